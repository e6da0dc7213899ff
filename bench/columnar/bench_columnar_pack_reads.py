"""Benches of reading packed columnar datasets, against NumPy and members of their own.

pytest bench/columnar/bench_columnar_pack_reads.py

A million samples of float32[100], [50] and [50]. Targets, in CPU time: `columns` by
position at 0.9 of NumPy's fancy indexing on arrays in memory, by id at 0.7; `scan` in
half of the time that it takes without packs; `get_sample` in no more.
"""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastshard
from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter
from harness import SCALE, contenders, limit
from rivals.columnar_by_id import write_fastshard
from rivals.columnar_data import (
    BATCH,
    FIELDS,
    PER_SHARD,
    Data,
    Order,
    Row,
    Run,
    columns_in_memory,
    one_by_one,
    over_ids,
    over_positions,
)

COUNT = max(int(10**6 * SCALE), 2 * PER_SHARD)
READS = 20_480
BATCHES = 200  # of an iteration over batches
BATCH_SIZES = (32, BATCH, 4096)
ROUNDS = 5
BUFFER = 1 << 20  # bytes of a plain read
RATIO = "CPU / NumPy's"

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def write_packs(folder: Path, rows: Iterable[Row]) -> None:
    """Write packs in shards of the default size."""
    with ShardedDatasetWriter(folder, pack=True) as writer:
        writer.add_fields(list(FIELDS))
        for key, arrays, metadata in rows:
            writer.add_sample(arrays, key, metadata)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Data]:
    folder = tmp_path_factory.mktemp("packs")
    found = Data(folder, COUNT)
    for write in (write_fastshard, write_packs):
        found.store(write)
    found.__dict__.pop("rows", None)  # a gigabyte of Python objects
    yield found
    shutil.rmtree(folder)


@pytest.fixture
def data(stored: Data) -> Data:
    """Bring the stores into the page cache: other processes may have evicted them."""
    buffer = bytearray(BUFFER)
    for path in stored.folder.rglob("*"):
        if path.is_file():
            with open(path, "rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass
    return stored


def packed(data: Data) -> ShardedDatasetReader:
    return ShardedDatasetReader(data.store(write_packs))


def unpacked(data: Data) -> ShardedDatasetReader:
    return ShardedDatasetReader(data.store(write_fastshard))


def measure(benchmark: Any, run: Callable[[Any], Any], orders: list[Any]) -> None:
    """Run for each order; note the median of the CPU times of one operation."""
    left = iter(orders)
    times: list[float] = []

    def timed(order: Any) -> None:
        begun = time.process_time()
        run(order)
        times.append(time.process_time() - begun)

    benchmark.pedantic(timed, setup=lambda: ((next(left),), {}), rounds=len(orders))
    operations = benchmark.extra_info["operations"]
    cpu = float(np.median(times)) / operations * 1e6
    benchmark.extra_info["CPU us"] = round(cpu, 2)


def measure_beside(
    benchmark: Any, run: Run, rival: Run, orders: list[tuple[Order, Order]]
) -> None:
    """Run a contender and a rival in turns; note the median of their CPU times' ratio.

    Other processes take caches and memory bandwidth from both alike.
    """
    ratios: list[float] = []
    left = iter(orders)
    times: list[float] = []

    def time_of(one: Run, order: Order) -> float:
        begun = time.process_time()
        one(order)
        return time.process_time() - begun

    def timed(order: Order, rivals_order: Order) -> None:
        before = time_of(rival, rivals_order)
        times.append(time_of(run, order))
        after = time_of(rival, rivals_order)
        ratios.append(2 * times[-1] / (before + after))

    benchmark.pedantic(timed, setup=lambda: (next(left), {}), rounds=len(orders))
    cpu = float(np.median(times)) / benchmark.extra_info["operations"] * 1e6
    benchmark.extra_info["CPU us"] = round(cpu, 2)
    benchmark.extra_info[RATIO] = round(float(np.median(ratios)), 3)


def random_orders(data: Data, count: int, batch_size: int = BATCH) -> list[Order]:
    numbers = np.random.default_rng(1)
    reads = max(READS, 5 * batch_size)
    return [
        Order(data, numbers.integers(0, data.count, reads).tolist(), batch_size)
        for _ in range(count)
    ]


@contenders(
    "columns of packs",
    NumPy_fancy_indexing_in_memory=columns_in_memory,
    fastshard_by_positions=lambda data: over_positions(packed(data).columns),
    fastshard_by_ids=lambda data: over_ids(packed(data).columns),
    fastshard_without_packs=lambda data: over_positions(unpacked(data).columns),
)
@pytest.mark.parametrize("batch_size", BATCH_SIZES)
def bench_columns(
    benchmark: Any, data: Data, read: Any, batch_size: int, turn: int
) -> None:
    """Measure `columns`, with NumPy's indexing before and after each order."""
    run, rival = read(data), columns_in_memory(data)
    warm, *orders = random_orders(data, 2 * ROUNDS + 1, batch_size)
    run(Order(data, range(data.count), PER_SHARD))  # loads all rows, maps all pages
    for chosen in (warm.positions[:BATCH], [0, data.count - 1]):
        data.check_columns(chosen, run(Order(data, chosen)))
    for one in (run, rival):
        one(warm)
    benchmark.group = f"columns of {batch_size} samples x 3 fields, random, warm"
    benchmark.extra_info["operations"] = len(warm.batches)
    pairs = list(zip(orders[::2], orders[1::2], strict=True))
    measure_beside(benchmark, run, rival, pairs)
    limit(benchmark, "fastshard_by_positions", RATIO, 1 / 0.9)
    limit(benchmark, "fastshard_by_ids", RATIO, 1 / 0.7)


@contenders(
    "get_sample of packs",
    packed=lambda data: one_by_one(packed(data).get_sample),
    members=lambda data: one_by_one(unpacked(data).get_sample),
)
def bench_get_sample(benchmark: Any, data: Data, read: Any, turn: int) -> None:
    run = read(data)
    orders = random_orders(data, ROUNDS + 3)
    for order in orders[:3]:  # all rows are loaded then
        data.check(order.positions[-1], *run(order))
    benchmark.group = f"get_sample, random, {data.count:,} samples, warm"
    benchmark.extra_info["operations"] = READS
    measure(benchmark, run, orders[3:])
    limit(benchmark, "packed", "CPU us", 1, "members")


@contenders("scan of packs", packed=packed, members=unpacked)
@pytest.mark.parametrize("size", [BATCH, None], ids=["batches", "samples"])
def bench_scan(
    benchmark: Any, data: Data, read: Any, size: int | None, turn: int
) -> None:
    reader = read(data)
    at = 0
    for found in reader.scan(batch_size=size):  # loads all rows, maps all pages
        end = at + (1 if size is None else len(found["__key__"]))
        if at % (BATCH * 100) == 0 or end == data.count:
            data.check_columns(at if size is None else slice(at, end), found)
        at = end
    assert at == data.count

    def scan(_: Any) -> None:
        for found in reader.scan(batch_size=size):
            if size is None:
                for field in FIELDS:
                    found[field][0]

    what = "samples" if size is None else f"batches of {size}"
    benchmark.group = f"a sample of a scan in {what}, warm"
    benchmark.extra_info["operations"] = data.count
    measure(benchmark, scan, [None] * ROUNDS)
    limit(benchmark, "packed", "CPU us", 1 / 2, "members")


@contenders("batches of packs", packed=write_packs, members=write_fastshard)
@pytest.mark.parametrize("order", ["in order", "shuffled"])
def bench_batches(benchmark: Any, data: Data, read: Any, order: str, turn: int) -> None:
    """Measure batches of `fastshard.open`."""
    with fastshard.open(data.store(read)) as ds:
        numbers = {key: i for i, key in enumerate(data.ids)}

        def batches(seed: int, count: int) -> Iterator[Any]:
            ordered = ds if order == "in order" else ds.shuffle(seed=seed)
            return itertools.islice(ordered.batches(BATCH), count)

        def iterate(seed: int) -> None:
            for _ in batches(seed, BATCHES):
                pass

        for found in batches(0, 3):
            keys = found["__key__"]
            data.check_columns([numbers[key] for key in keys], found)
        iterate(0)
        benchmark.group = f"a batch of {BATCH} of fastshard.open, {order}, warm"
        benchmark.extra_info["operations"] = min(BATCHES, -(-data.count // BATCH))
        measure(benchmark, iterate, list(range(1, ROUNDS + 1)))
        limit(benchmark, "packed", "CPU us", 1, "members")
