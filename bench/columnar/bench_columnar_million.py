"""Benches of columnar datasets of up to a million samples, against LMDB.

pytest bench/columnar/bench_columnar_million.py

10,000, 100,000 and 1,000,000 samples of float32[100], [50] and [50], with metadata:
3,000 shards of 3.5 GB at a million, and 60 of 0.8 GB with packs. Targets, in CPU time:
`get_sample` is not slower than LMDB at a million, and the first thousand calls of a new
reader take at most twice as long as LMDB's. The stores of all contenders are written
once, and locked in memory. With ``BENCH_STORES=FOLDER`` they are kept there.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastshard.columnar import ShardedDatasetReader
from harness import SCALE, contenders, limit
from harness.hold import hold_pages
from rivals.columnar_by_id import Lmdb, write_fastshard, write_lmdb, write_packed
from rivals.columnar_data import PER_SHARD, Data

COUNTS = [max(int(count * SCALE), PER_SHARD) for count in (10**4, 10**5, 10**6)]
READS = 10_000
WARM = 50_000  # lookups before them: all rows are loaded by then
FIRST = 1000  # lookups of a new reader
ROUNDS = 5
STORES = os.environ.get("BENCH_STORES")  # folder of stores, by number of samples

Open = Callable[[Data], Any]  # returns a reader with `get_sample`

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(scope="module")
def data(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Data]:
    """Yield samples with the stores of all contenders locked in memory."""
    folder = Path(STORES or tmp_path_factory.mktemp("million")) / str(request.param)
    folder.mkdir(parents=True, exist_ok=True)
    found = Data(folder, request.param)
    for write in (write_fastshard, write_packed, write_lmdb):
        found.store(write)
    with hold_pages(folder):
        yield found
    if not STORES:
        shutil.rmtree(folder)


def open_fastshard(data: Data) -> ShardedDatasetReader:
    return ShardedDatasetReader(data.store(write_fastshard))


def open_packed(data: Data) -> ShardedDatasetReader:
    return ShardedDatasetReader(data.store(write_packed))


def open_lmdb(data: Data) -> Lmdb:
    return Lmdb(data.store(write_lmdb))


READERS: dict[str, Open] = {
    "fastshard": open_fastshard,
    "fastshard_packed": open_packed,
    "LMDB": open_lmdb,
}


def random_ids(data: Data, count: int, seed: int) -> list[str]:
    chosen = np.random.default_rng(seed).integers(0, data.count, count)
    return [data.ids[i] for i in chosen.tolist()]


def read_samples(benchmark: Any, reader: Any, keys: list[str]) -> None:
    """Read samples; note the CPU time of one."""
    get = reader.get_sample
    begun = time.process_time()
    for key in keys:
        get(key)
    cpu = (time.process_time() - begun) / len(keys) * 1e6
    times = benchmark.extra_info.setdefault("times", [])
    times.append(cpu)
    benchmark.extra_info["CPU us"] = round(float(np.median(times)), 2)


def check_samples(data: Data, reader: Any) -> None:
    for i in (0, data.count // 2, data.count - 1):
        data.check(i, *reader.get_sample(data.ids[i]))


@contenders("get_sample of a million", **READERS)
@pytest.mark.parametrize("data", COUNTS, indirect=True)
def bench_get_sample(benchmark: Any, data: Data, read: Open, turn: int) -> None:
    """Random samples, after many others."""
    reader = read(data)
    check_samples(data, reader)
    for key in random_ids(data, WARM, 0):
        reader.get_sample(key)
    seeds = iter(range(1, ROUNDS + 1))

    def fresh() -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (benchmark, reader, random_ids(data, READS, next(seeds))), {}

    benchmark.group = f"get_sample, random, {data.count:,} samples of 3 fields, warm"
    benchmark.extra_info["operations"] = READS
    benchmark.pedantic(read_samples, setup=fresh, rounds=ROUNDS)
    benchmark.extra_info.pop("times", None)
    for who in ("fastshard", "fastshard packed"):
        limit(benchmark, who, "CPU us", 1, "LMDB")
    reader.close()


@contenders("first of a million", **READERS)
@pytest.mark.parametrize("data", COUNTS, indirect=True)
def bench_first(benchmark: Any, data: Data, read: Open, turn: int) -> None:
    """Random samples, the first of a new reader."""
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
    for who in ("fastshard", "fastshard packed"):
        limit(benchmark, who, "CPU us", 2, "LMDB")
    check_samples(data, readers[-1])
    readers.pop().close()
