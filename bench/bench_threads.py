"""Reads of one shard by several threads, each with its own handle.

pytest bench/bench_threads.py

On a free-threaded CPython all reads run in parallel; on others only those that release
the GIL: `read_into`, and scans that wait.
"""

from __future__ import annotations

import copy
import random
import zlib
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import fastshard
from harness import contenders

SMALL = 20_000, 2048  # members, bytes each
LARGE = 2500, 102_400

Work = Callable[[fastshard.TarShard, Sequence[int]], object]


def read_views(shard: fastshard.TarShard, order: Sequence[int]) -> int:
    for i in order:
        shard[i]
    return len(order)


def read_by_name(shard: fastshard.TarShard, order: Sequence[int]) -> int:
    listed = shard.names[:200]
    for i in order:
        shard[listed[i % 200]]
    return len(order)


def read_arrays(shard: fastshard.TarShard, order: Sequence[int]) -> int:
    bound = shard.array  # a look-up counts references to a shared object
    for i in order:
        bound(i)
    return len(order)


def gather(shard: fastshard.TarShard, order: Sequence[int]) -> int:
    out = bytearray(64 * int(shard.sizes.max()))
    for at in range(0, len(order), 64):
        shard.read_into(order[at : at + 64], out, threads=1)
    return len(order)


def scan(shard: fastshard.TarShard, order: Sequence[int]) -> int:
    """Scan, with work of the consumer that releases the GIL."""
    found = 0
    for view in shard.scan(order):
        found ^= zlib.crc32(view)
    return found


KINDS: dict[str, tuple[Work, tuple[int, int], bool]] = {
    "shard[i]": (read_views, SMALL, False),
    "shard[name]": (read_by_name, SMALL, False),
    "shard.array(i)": (read_arrays, SMALL, True),
    "read_into, 64 members of 100 KiB": (gather, LARGE, False),
    "scan and crc32, members of 100 KiB": (scan, LARGE, False),
}


def run_threads(
    shard: fastshard.TarShard, work: Work, order: Sequence[int], threads: int
) -> None:
    def one(_: int) -> None:
        # Each thread has its own handle and order: without a GIL, threads that count
        # references to the same objects wait for each other.
        work(copy.copy(shard), array("q", order))

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(one, range(threads)))


@contenders(
    "threads",
    one_thread=lambda shard, work, order: run_threads(shard, work, order, 1),
    four_threads=lambda shard, work, order: run_threads(shard, work, order, 4),
)
@pytest.mark.parametrize("kind", KINDS)
def bench_threads(
    benchmark: Any, tars: Any, read: Callable[..., None], kind: str, turn: int
) -> None:
    work, (count, size), npy = KINDS[kind]
    tar = tars("ustar", count, size, npy)
    shard = fastshard.open_shard(tar.path)
    tar.path.read_bytes()  # into the page cache
    order = random.Random(0).choices(range(tar.members), k=10 * tar.members)
    if size > 10_000:
        order = order[: tar.members]
    assert work(copy.copy(shard), order[:64])
    threads = 4 if benchmark.extra_info["who"] == "four threads" else 1
    benchmark.group = f"warm, {kind}, one handle a thread"
    benchmark.extra_info["operations"] = threads * len(order)
    benchmark.pedantic(read, (shard, work, order), rounds=5)
