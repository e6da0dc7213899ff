"""Benches of columnar datasets of up to a million samples, against LMDB.

pytest bench/columnar/bench_columnar_million.py

10,000, 100,000 and 1,000,000 samples of float32[100], [50] and [50], with metadata:
3,000 shards of 3.5 GB at a million. Targets, in CPU time: `get_sample` is not slower
than LMDB at a million, and the first thousand calls of a new reader take at most twice
as long as LMDB's.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastshard.columnar import ShardedDatasetReader
from harness import SCALE, contenders, limit
from rivals.columnar_by_id import Lmdb, write_fastshard, write_lmdb
from rivals.columnar_data import PER_SHARD, Data

COUNTS = [max(int(count * SCALE), PER_SHARD) for count in (10**4, 10**5, 10**6)]
READS = 50_000
FIRST = 1000  # lookups of a new reader
ROUNDS = 5
BUFFER = 1 << 20  # bytes of a plain read

Open = Callable[[Data], Any]  # returns a reader with `get_sample`

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(scope="module")
def data(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Data]:
    """Yield samples with the stores of all contenders in the page cache."""
    folder = tmp_path_factory.mktemp("million")
    found = Data(folder, request.param)
    for write in (write_fastshard, write_lmdb):
        found.store(write)
    found.__dict__.pop("rows", None)  # a gigabyte of Python objects
    yield found
    shutil.rmtree(folder)


def open_fastshard(data: Data) -> ShardedDatasetReader:
    return ShardedDatasetReader(data.store(write_fastshard))


def open_lmdb(data: Data) -> Lmdb:
    return Lmdb(data.store(write_lmdb))


def read_all(folder: Path) -> None:
    """Bring files into the page cache: other processes may have evicted them."""
    buffer = bytearray(BUFFER)
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass


def random_ids(data: Data, count: int, seed: int) -> list[str]:
    chosen = np.random.default_rng(seed).integers(0, data.count, count)
    return [data.ids[i] for i in chosen.tolist()]


def read_samples(benchmark: Any, reader: Any, keys: list[str]) -> None:
    """Read samples; note the CPU time of one."""
    begun = time.process_time()
    get = reader.get_sample
    for key in keys:
        get(key)
    cpu = (time.process_time() - begun) / len(keys) * 1e6
    times = benchmark.extra_info.setdefault("times", [])
    times.append(cpu)
    benchmark.extra_info["CPU us"] = round(float(np.median(times)), 2)


def check_samples(data: Data, reader: Any) -> None:
    for i in (0, data.count // 2, data.count - 1):
        data.check(i, *reader.get_sample(data.ids[i]))


@contenders("get_sample of a million", fastshard=open_fastshard, LMDB=open_lmdb)
@pytest.mark.parametrize("data", COUNTS, indirect=True)
def bench_get_sample(benchmark: Any, data: Data, read: Open, turn: int) -> None:
    """Random samples, after as many others."""
    read_all(data.folder)
    reader = read(data)
    check_samples(data, reader)
    for key in random_ids(data, READS, 0):
        reader.get_sample(key)
    seeds = iter(range(1, ROUNDS + 1))

    def fresh() -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (benchmark, reader, random_ids(data, READS, next(seeds))), {}

    benchmark.group = f"get_sample, random, {data.count:,} samples of 3 fields, warm"
    benchmark.extra_info["operations"] = READS
    benchmark.pedantic(read_samples, setup=fresh, rounds=ROUNDS)
    benchmark.extra_info.pop("times", None)
    limit(benchmark, "fastshard", "CPU us", 1, "LMDB")
    reader.close()


@contenders("first of a million", fastshard=open_fastshard, LMDB=open_lmdb)
@pytest.mark.parametrize("data", COUNTS, indirect=True)
def bench_first(benchmark: Any, data: Data, read: Open, turn: int) -> None:
    """Random samples, the first of a new reader."""
    read_all(data.folder)
    seeds = iter(range(ROUNDS))
    readers: list[Any] = []

    def fresh() -> tuple[tuple[Any, ...], dict[str, Any]]:
        while readers:
            readers.pop().close()
        readers.append(read(data))
        return (benchmark, readers[-1], random_ids(data, FIRST, next(seeds))), {}

    benchmark.group = f"the first {FIRST:,} get_sample, {data.count:,} samples, warm"
    benchmark.extra_info["operations"] = FIRST
    benchmark.pedantic(read_samples, setup=fresh, rounds=ROUNDS)
    benchmark.extra_info.pop("times", None)
    limit(benchmark, "fastshard", "CPU us", 2, "LMDB")
    check_samples(data, readers[-1])
    readers.pop().close()
