"""Reads of single members: views, copies, arrays, samples; the page cache is warm.

pytest bench/bench_view.py
"""

from __future__ import annotations

import io
import mmap
import os
import random
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastshard
from harness import SCALE, Tar, array_bytes, contenders, expect

READS = 1000  # per round of hot members
ROUNDS = 200
F4 = np.dtype("f4")

Loop = Callable[[list[Any]], Any]  # reads all keys, returns the last value
KeyOf = Callable[[int], Any]  # returns the contender's key of a position


def order_of(count: int, shuffled: bool) -> list[int]:
    """Return positions: eight in turn, or all of the shard in random order."""
    if not shuffled:
        return [i % 8 for i in range(READS)]
    return random.Random(0).sample(range(count), count)


def index_loop(shard: Any) -> Loop:
    """Return a loop over ``shard[key]``, which saves the call of `call_loop`."""

    def loop(keys: list[Any]) -> Any:
        for key in keys:
            value = shard[key]
        return value

    return loop


def call_loop(read: Callable[[Any], Any]) -> Loop:
    def loop(keys: list[Any]) -> Any:
        for key in keys:
            value = read(key)
        return value

    return loop


def fastshard_position(tar: Tar) -> tuple[Loop, KeyOf]:
    return index_loop(fastshard.open_shard(tar.path)), lambda i: i


def fastshard_name(tar: Tar) -> tuple[Loop, KeyOf]:
    return index_loop(fastshard.open_shard(tar.path)), tar.names.__getitem__


def fastshard_read(tar: Tar) -> tuple[Loop, KeyOf]:
    return call_loop(fastshard.open_shard(tar.path).read), lambda i: i


def os_pread(tar: Tar) -> tuple[Loop, KeyOf]:
    fd, size, pread = os.open(tar.path, os.O_RDONLY), tar.size, os.pread

    def loop(offsets: list[Any]) -> Any:
        for offset in offsets:
            value = pread(fd, size, offset)
        return value

    return loop, tar.offsets.__getitem__


def mmap_slice(tar: Tar) -> tuple[Loop, KeyOf]:
    with open(tar.path, "rb") as file:
        view = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    size = tar.size

    def loop(offsets: list[Any]) -> Any:
        for offset in offsets:
            value = view[offset : offset + size]
        return value

    return loop, tar.offsets.__getitem__


def time_reads(benchmark: Any, loop: Loop, keys: list[Any]) -> None:
    """Time the loop over all keys."""
    benchmark.extra_info["operations"] = len(keys)
    rounds = max(ROUNDS * READS // len(keys), 5)
    benchmark.pedantic(loop, (keys,), rounds=rounds, warmup_rounds=1)


@contenders(
    "one member as bytes",
    fastshard=fastshard_position,
    fastshard_by_name=fastshard_name,
    fastshard_copied=fastshard_read,
    mapping_sliced=mmap_slice,
    os_pread=os_pread,
)
@pytest.mark.parametrize("shuffled", [False, True], ids=["hot", "shuffled"])
@pytest.mark.parametrize("size", [2048, 100_000], ids=["2KB", "100KB"])
def bench_member(
    benchmark: Any, tars: Any, read: Any, size: int, shuffled: bool, turn: int
) -> None:
    tar = tars("ustar", 20_000 if size == 2048 else 2000, size)
    loop, key_of = read(tar)
    for i in (0, 7, tar.members - 1):  # check before timing
        assert bytes(loop([key_of(i)]))[:16] == b"%016d" % i
        assert len(loop([key_of(i)])) == size
    state = "shuffled" if shuffled else "hot"
    benchmark.group = f"one member of {size // 1000} KB, {state}"
    time_reads(benchmark, loop, [key_of(i) for i in order_of(tar.members, shuffled)])


def array_fastshard(shard: fastshard.Shard, tar: Tar) -> Loop:
    return call_loop(shard.array)


def array_load(shard: fastshard.Shard, tar: Tar) -> Loop:
    fd, size, offsets = os.open(tar.path, os.O_RDONLY), len(array_bytes(0)), tar.offsets

    def loop(positions: list[Any]) -> Any:
        for i in positions:
            value = np.load(io.BytesIO(os.pread(fd, size, offsets[i])))
        return value

    return loop


def array_frombuffer(shard: fastshard.Shard, tar: Tar) -> Loop:
    def loop(positions: list[Any]) -> Any:
        for i in positions:
            value = np.frombuffer(shard[i], F4, offset=128)
        return value

    return loop


@contenders(
    ".npy",
    fastshard=array_fastshard,
    np_frombuffer_known_header=array_frombuffer,
    np_load=array_load,
)
@pytest.mark.parametrize("shuffled", [False, True], ids=["hot", "shuffled"])
def bench_npy(benchmark: Any, tars: Any, read: Any, shuffled: bool, turn: int) -> None:
    tar = tars("ustar", 20_000, 2048, npy=True)
    get = read(fastshard.open_shard(tar.path), tar)
    for i in (0, 7, tar.members - 1):
        assert np.array_equal(get([i]), np.full(512, i, np.float32))
    benchmark.group = f".npy of float32[512], {'shuffled' if shuffled else 'hot'}"
    time_reads(benchmark, get, order_of(tar.members, shuffled))


def tokens_of(folder: Path, is_changing: bool) -> fastshard.Shard:
    """Return a shard of uint16 arrays of 1, 2, 3, ... tokens, or all of 1500."""
    with tarfile.open(folder / f"{is_changing}.tar", "w") as tar:
        for i in range(max(int(3000 * SCALE), 10)):
            file = io.BytesIO()
            np.save(file, np.full(i + 1 if is_changing else 1500, i, np.uint16))
            member = tarfile.TarInfo(f"{i:05d}.npy")
            member.size = file.tell()
            file.seek(0)
            tar.addfile(member, file)
    return fastshard.open_shard(folder / f"{is_changing}.tar")


def length_of_its_own(folder: Path) -> Loop:
    return call_loop(tokens_of(folder, True).array)


def length_of_all(folder: Path) -> Loop:
    return call_loop(tokens_of(folder, False).array)


def length_of_its_own_np_load(folder: Path) -> Loop:
    shard = tokens_of(folder, True)
    return call_loop(lambda i: np.load(io.BytesIO(shard[i])))


@contenders(
    ".npy of 3,000 lengths",
    fastshard=length_of_its_own,
    fastshard_one_length=length_of_all,
    np_load=length_of_its_own_np_load,
)
def bench_npy_lengths(benchmark: Any, tmp_path: Path, read: Any, turn: int) -> None:
    loop = read(tmp_path)
    keys = list(range(max(int(3000 * SCALE), 10)))
    for i in (0, 7, keys[-1]):
        assert loop([i])[0] == i
        assert len(loop([i])) == (1500 if read is length_of_all else i + 1)
    expect(benchmark, "fastshard", "fastshard one length", 1 / 8)  # <= 1 us more
    benchmark.extra_info["operations"] = len(keys)
    benchmark.pedantic(loop, (keys,), rounds=20, warmup_rounds=1)


def raw_fastshard(shard: fastshard.Shard) -> Loop:
    def loop(positions: list[Any]) -> Any:
        for i in positions:
            value = shard.array(i, F4)
        return value

    return loop


def raw_fastshard_text(shard: fastshard.Shard) -> Loop:
    def loop(positions: list[Any]) -> Any:
        for i in positions:
            value = shard.array(i, "f4")
        return value

    return loop


def raw_frombuffer(shard: fastshard.Shard) -> Loop:
    def loop(positions: list[Any]) -> Any:
        for i in positions:
            value = np.frombuffer(shard[i], F4)
        return value

    return loop


@contenders(
    "raw float32[512] of a known type, hot",
    fastshard=raw_fastshard,
    fastshard_dtype_as_text=raw_fastshard_text,
    np_frombuffer=raw_frombuffer,
)
def bench_raw(benchmark: Any, tars: Any, read: Any, turn: int) -> None:
    shard = fastshard.open_shard(tars("ustar", 20_000, 2048).path)
    loop = read(shard)
    assert loop([7]).tobytes() == shard.read(7)
    time_reads(benchmark, loop, order_of(len(shard), False))


def two_fields(samples: Any) -> Loop:
    def loop(positions: list[Any]) -> Any:
        for i in positions:
            sample = samples[i]
            value = sample["bin"], sample["bin"]
        return value

    return loop


@contenders(
    "a sample, hot",
    sample_alone=index_loop,
    with_two_views=two_fields,
)
def bench_sample(benchmark: Any, tars: Any, read: Any, turn: int) -> None:
    samples = fastshard.open_shard(tars("ustar", 20_000, 2048).path).samples
    assert samples[7]["bin"][:16] == b"%016d" % 7
    time_reads(benchmark, read(samples), order_of(len(samples), False))
