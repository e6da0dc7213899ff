"""One member at a time: views, copies, arrays, samples. The page cache is warm.

    pytest bench/bench_view.py
"""

from __future__ import annotations

import io
import mmap
import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fastshard

from conftest import Tar, array_bytes, contenders

READS = 1000  # a round
ROUNDS = 100
F4 = np.dtype("f4")

Reader = Callable[[Tar], tuple[Callable[[Any], Any], list[Any]]]


def order_of(count: int, shuffled: bool) -> list[int]:
    """Positions to read: a few over and over, or all over the shard."""
    if not shuffled:
        return [i % 8 for i in range(READS)]
    return random.Random(0).sample(range(count), min(READS, count))


def fastshard_position(tar: Tar) -> tuple[Callable[[Any], Any], Callable[[int], Any]]:
    shard = fastshard.open_shard(tar.path)
    return shard.__getitem__, lambda i: i


def fastshard_name(tar: Tar) -> tuple[Callable[[Any], Any], Callable[[int], Any]]:
    shard = fastshard.open_shard(tar.path)
    return shard.__getitem__, tar.names.__getitem__


def fastshard_read(tar: Tar) -> tuple[Callable[[Any], Any], Callable[[int], Any]]:
    shard = fastshard.open_shard(tar.path)
    return shard.read, lambda i: i


def os_pread(tar: Tar) -> tuple[Callable[[Any], Any], Callable[[int], Any]]:
    fd, size = os.open(tar.path, os.O_RDONLY), tar.size
    return lambda offset: os.pread(fd, size, offset), tar.offsets.__getitem__


def mmap_slice(tar: Tar) -> tuple[Callable[[Any], Any], Callable[[int], Any]]:
    with open(tar.path, "rb") as file:
        view = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    size = tar.size
    return lambda offset: view[offset : offset + size], tar.offsets.__getitem__


def time_reads(benchmark: Any, read: Callable[[Any], Any], keys: list[Any]) -> None:
    """Time reads of the keys, one after another."""

    def reads() -> None:
        for key in keys:
            read(key)

    benchmark.extra_info["operations"] = len(keys)
    benchmark.pedantic(reads, rounds=ROUNDS, warmup_rounds=3)


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
    get, key_of = read(tar)
    for i in (0, 7, tar.members - 1):  # a benchmark that reads wrong is not fast
        assert bytes(get(key_of(i)))[:16] == b"%016d" % i
        assert len(get(key_of(i))) == size
    benchmark.group = f"one member of {size // 1000} KB, {'shuffled' if shuffled else 'hot'}"
    time_reads(benchmark, get, [key_of(i) for i in order_of(tar.members, shuffled)])


def array_fastshard(shard: fastshard.Shard, tar: Tar) -> Callable[[int], Any]:
    return shard.array


def array_load(shard: fastshard.Shard, tar: Tar) -> Callable[[int], Any]:
    fd, size, offsets = os.open(tar.path, os.O_RDONLY), len(array_bytes(0)), tar.offsets
    return lambda i: np.load(io.BytesIO(os.pread(fd, size, offsets[i])))


def array_frombuffer(shard: fastshard.Shard, tar: Tar) -> Callable[[int], Any]:
    return lambda i: np.frombuffer(shard[i], F4, offset=128)


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
        assert np.array_equal(get(i), np.full(512, i, np.float32))
    benchmark.group = f".npy of float32[512], {'shuffled' if shuffled else 'hot'}"
    time_reads(benchmark, get, order_of(tar.members, shuffled))


@contenders(
    "raw float32[512] of a known type, hot",
    fastshard=lambda shard: lambda i: shard.array(i, F4),
    np_frombuffer=lambda shard: lambda i: np.frombuffer(shard[i], F4),
)
def bench_raw(benchmark: Any, tars: Any, read: Any, turn: int) -> None:
    shard = fastshard.open_shard(tars("ustar", 20_000, 2048).path)
    get = read(shard)
    assert get(7).tobytes() == shard.read(7)
    time_reads(benchmark, get, order_of(len(shard), False))


def one_field(samples: Any) -> Callable[[str], Any]:
    return lambda key: samples[key]["bin"]


def two_fields(samples: Any) -> Callable[[int], Any]:
    def get(i: int) -> Any:
        sample = samples[i]
        return sample["bin"], sample["bin"]

    return get


@contenders(
    "a sample, hot",
    sample_alone=lambda samples: samples.__getitem__,
    with_two_views=two_fields,
)
def bench_sample(benchmark: Any, tars: Any, read: Any, turn: int) -> None:
    samples = fastshard.open_shard(tars("ustar", 20_000, 2048).path).samples
    assert samples[7]["bin"][:16] == b"%016d" % 7
    time_reads(benchmark, read(samples), order_of(len(samples), False))
