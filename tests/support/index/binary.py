"""Damaged binary indexes, and reads through them that must stay inside the shard."""

from __future__ import annotations

import random
import struct
from contextlib import suppress

import fastshard
from fastshard._core.table.checksums import block_sums
from fastshard.index.binary import seal_header
from fastshard.index.dataset_file import HEADER as DATASET_HEADER
from fastshard.index.dataset_file import seal_dataset_header
from support.marks import thin

MEMBERS = {
    "a.jpg": b"1" * 700,
    "a.json": b"{}",
    "b.jpg": b"",
    "README": b"no sample",
    "b.json": b"[1]",
    "sub/c.d.jpg": b"3",
}


def crc32c_by_bits(data):
    """Compute CRC-32C from its definition, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def with_right_checksums(raw, header):
    """Return the bytes with all checksums recomputed, as an attacker would."""
    if len(raw) < header.size:
        return raw
    fields = header.unpack(raw[: header.size])
    rest = raw[header.size :]
    if header is DATASET_HEADER:
        rows = 8 * fields[5] if fields[2] & 2 else 0
        at = len(rest) - min(rows, len(rest))
        return seal_dataset_header(raw[: header.size], rest[:at], rest[at:]) + rest
    blocks = -(-len(rest) // (65_536 + 4)) or 1  # the sums come last
    at = max(len(rest) - 4 * blocks, 0)
    sums = block_sums(rest[:at])[: len(rest) - at]
    return seal_header(raw[: header.size], sums) + rest[:at] + sums


def iterate_damaged(raw, header, seed, count):
    """Yield truncated, flipped and extreme values, some with right checksums."""
    for n in thin(range(0, len(raw), 5), 3):
        yield raw[:n]
    for i in thin(range(len(raw)), 3):
        for flip in (0x01, 0x80, 0xFF):
            changed = raw[:i] + bytes([raw[i] ^ flip]) + raw[i + 1 :]
            yield changed
            if i < header.size:
                yield with_right_checksums(changed, header)
    numbers = random.Random(seed)
    absurd = (0, 1, 2**31, 2**32 - 1, 2**32, 2**61, 2**63, 2**64 - 1, 2**64 - 512)
    for _ in thin(range(count), 2):
        changed = bytearray(raw)
        for _ in range(numbers.randrange(1, 6)):
            at = numbers.randrange(len(raw) - 8) // 8 * 8
            value = numbers.choice([*absurd, numbers.getrandbits(64), len(raw)])
            changed[at : at + 8] = struct.pack("<Q", value)
        yield with_right_checksums(bytes(changed), header)


def use_shard(path):
    """Do everything with a shard; its bytes must lie in the file.

    Returns whether its index was found to be broken.
    """
    try:
        with fastshard.open_shard(path) as shard:
            use(shard, path)
    except fastshard.FormatError as error:
        assert error.path == str(path.with_suffix(".fsi"))
        return True
    return False


def use(shard, path):
    size = path.stat().st_size
    whole = path.read_bytes()
    offsets, sizes = shard.offsets.tolist(), shard.sizes.tolist()
    for i, name in enumerate(shard.names):
        try:
            view = shard[i]
        except fastshard.StaleIndexError:
            pass
        except fastshard.FormatError:
            assert offsets[i] > size or sizes[i] > size - offsets[i]
        else:
            assert view == whole[offsets[i] : offsets[i] + sizes[i]]
        assert 0 <= shard.position(name) < len(shard)
        with suppress(fastshard.FormatError):
            shard.info(i)
    for i in range(len(shard.samples)):
        try:
            sample = shard.samples[i]
            for field in sample:
                sample[field]
            assert sample.key in shard.samples
        except (fastshard.FormatError, fastshard.FieldNotFoundError):
            pass
    shard.samples.grouping.field_counts()
    list(shard.samples.keys())
