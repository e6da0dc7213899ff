"""Lengths of documents, kept in a binary index behind its infos.

An optional extension of ``.fsi`` files of version 2, whose header has its place. It
lies at the end of the column ``infos``, which earlier releases do not read to its end,
so that the checksums of blocks cover it. It holds entries, one for each field, at
multiples of 8 bytes:

====== ========== ============================================================
byte   type       content
====== ========== ============================================================
0      u64        number of samples
8      u32        bytes of the field's name
12     u32        bytes of the dtype
16     u32        CRC-32 of all that follows
20     u32        zeros
24     bytes      the field's name, UTF-8
..     bytes      the dtype of a token as NumPy's ``dtype.str``, ASCII
..     u64 each   tokens of each sample's document, at a multiple of 8 bytes
====== ========== ============================================================
"""

from __future__ import annotations

import os
import struct
import zlib
from typing import NamedTuple

from fastshard._core.io.source import LocalFile, PreadSource
from fastshard._core.table.checksums import block_sums
from fastshard._util.files import replace_file
from fastshard.errors import FormatError
from fastshard.index.binary import HEADER, LENGTHS_ALIGNMENT, Header, parse_binary

__all__ = ["read_lengths", "write_lengths"]

ENTRY = struct.Struct("<QIIII")
MAX_FILE = 1 << 30  # bytes of an index that is rewritten


class IntactIndex(NamedTuple):
    """An index of version 2 whose blocks are intact."""

    data: bytes
    header: Header


def read_lengths(
    path: str, field: str, fingerprint: bytes, samples: int, last_dot: bool
) -> tuple[str, bytes] | None:
    """Return the dtype and the lengths of a field's documents, if an index has them."""
    try:
        index = read_intact(path)
    except (OSError, FormatError):
        return None
    if index is None or index.header.fingerprint != fingerprint:
        return None
    if index.header.samples != samples or index.header.last_dot != last_dot:
        return None
    for name, dtype, lengths in entries_of(index):
        if name == field and len(lengths) == 8 * samples:
            return dtype, lengths
    return None


def write_lengths(
    path: str,
    field: str,
    fingerprint: bytes,
    last_dot: bool,
    dtype: str,
    lengths: bytes,
) -> bool:
    """Add the lengths of a field's documents to an index, atomically.

    An entry of the same field is replaced.
    """
    if not os.access(path, os.W_OK):
        return False
    try:
        index = read_intact(path)
    except FormatError:
        return False
    if index is None or index.header.fingerprint != fingerprint:
        return False
    data, header = index
    if len(lengths) != 8 * header.samples or header.last_dot != last_dot:
        return False
    kept = [entry for entry in entries_of(index) if entry[0] != field]
    extension = b"".join(
        pack_entry(*entry) for entry in [*kept, (field, dtype, lengths)]
    )
    infos_at, infos_size = header.column_extents()["infos"]
    infos_end = header.lengths[0] or infos_at + infos_size
    at = infos_end + -infos_end % LENGTHS_ALIGNMENT
    new = header._replace(
        infos_bytes=at + len(extension) - infos_at, lengths=(at, len(extension))
    )
    sums_at, sums_size = new.column_extents()["sums"]
    new = new._replace(file_bytes=sums_at + sums_size)
    body = bytearray(sums_at - HEADER.size)
    body[: infos_end - HEADER.size] = data[HEADER.size : infos_end]
    body[at - HEADER.size : at - HEADER.size + len(extension)] = extension
    sums = block_sums(body)
    with replace_file(path, sync=False) as file:
        file.write(new.pack(sums))
        file.write(body)
        file.write(sums)
    return True


def read_intact(path: str) -> IntactIndex | None:
    """Read an index; None if larger than `MAX_FILE`, damaged or of version 1."""
    with LocalFile(path) as file:
        if file.nbytes > MAX_FILE:
            return None
        data = PreadSource(file).read(0, file.nbytes)
    index = parse_binary(data, path)
    if index.header.version != 2 or index.find_damage():
        return None
    return IntactIndex(data, index.header)


def entries_of(index: IntactIndex) -> list[tuple[str, str, bytes]]:
    """Return field, dtype and lengths of each entry, up to a damaged one."""
    data, header = index
    at, size = header.lengths
    end = at + size
    found: list[tuple[str, str, bytes]] = []
    while end - at >= ENTRY.size:
        count, name_size, dtype_size, checksum, _ = ENTRY.unpack_from(data, at)
        texts = name_size + dtype_size
        before = texts + -(ENTRY.size + texts) % LENGTHS_ALIGNMENT
        left = end - at - ENTRY.size
        if before > left or count > (left - before) // 8:
            break
        start = at + ENTRY.size
        at = start + before + 8 * count
        if zlib.crc32(data[start:at]) != checksum:
            break
        name, dtype = data[start : start + name_size], data[start + name_size :]
        found.append(
            (
                name.decode("utf-8", "replace"),
                dtype[:dtype_size].decode("ascii", "replace"),
                data[at - 8 * count : at],
            )
        )
    return found


def pack_entry(field: str, dtype: str, lengths: bytes) -> bytes:
    """Return the bytes of an entry."""
    name, kind = field.encode(), dtype.encode()
    texts = name + kind
    body = texts + bytes(-(ENTRY.size + len(texts)) % LENGTHS_ALIGNMENT) + lengths
    entry = ENTRY.pack(len(lengths) // 8, len(name), len(kind), zlib.crc32(body), 0)
    return entry + body
