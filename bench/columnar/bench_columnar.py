"""Benches of reading columnar datasets: samples, columns and scans, with rivals.

pytest bench/columnar/bench_columnar.py bench/columnar/bench_columnar_index.py

200,000 samples of float32[100], [50] and [50], with metadata. Targets: `get_sample` in
6 us and `samples[i]` in 1 us, against 20 times as long for the original, and 1,000
times at first touch; `columns` at 60 % of NumPy's fancy indexing; `get_many` in 5 us a
sample; `scan` at 85 % of a plain read.
"""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastshard.columnar import ShardedDatasetReader
from harness import SCALE, contenders
from rivals.columnar_by_id import (
    Blobs,
    Lmdb,
    Original,
    write_blobs,
    write_fastshard,
    write_lmdb,
)
from rivals.columnar_data import (
    BATCH,
    FIELDS,
    PER_SHARD,
    Columns,
    Data,
    Order,
    Run,
    by_position,
    columns_in_memory,
    evict_all,
    one_by_one,
    over_ids,
    over_positions,
    shards,
)
from rivals.columnar_stores import Arrow, Npz, Zarr, write_arrow, write_npz, write_zarr

COUNT = max(int(200_000 * SCALE), 2 * PER_SHARD)
READS = 20_480
SLOW_COUNT = 20_000  # samples that slow rivals store and read
BUFFER = 1 << 20  # bytes of a plain read

# The rivals leave files open.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

Read = Callable[[Data], Run]
SLOW: set[Read] = set()


def slow(read: Read) -> Read:
    """Mark a contender that reads a tenth as often, of the first `SLOW_COUNT` only."""
    SLOW.add(read)
    return read


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Data]:
    folder = tmp_path_factory.mktemp("columnar")
    yield Data(folder, COUNT)
    shutil.rmtree(folder)


def plain_read(data: Data) -> Iterator[int]:
    """Read every byte of the shards into one buffer; yield the sizes of the reads."""
    buffer = bytearray(BUFFER)
    for path in shards(data.store(write_fastshard)):
        with open(path, "rb", buffering=0) as file:
            while nbytes := file.readinto(buffer):
                yield nbytes


@pytest.fixture
def order(data: Data, read: Read) -> Order:
    """Return random samples, with all shards in the page cache."""
    deque(plain_read(data), 0)  # a cold bench may have run before
    numbers = np.random.default_rng(1)
    chosen = numbers.integers(0, COUNT, READS)
    return Order(
        data, (chosen[: READS // 10] % SLOW_COUNT if read in SLOW else chosen).tolist()
    )


def open_reader(data: Data) -> ShardedDatasetReader:
    return ShardedDatasetReader(data.store(write_fastshard))


def original(data: Data) -> Original:
    """Open the original's reader; the warm-up run opens its tars and reads headers."""
    return Original(data.store(write_fastshard))


def lmdb(data: Data) -> Lmdb:
    return Lmdb(data.store(write_lmdb))


def blobs(data: Data) -> Blobs:
    return Blobs(data.store(write_blobs))


def arrow(data: Data) -> Arrow:
    return Arrow(data.store(write_arrow))


def zarr(data: Data) -> Zarr:
    return Zarr(data.store(write_zarr))


def npz(data: Data) -> Npz:
    return Npz(data.store(write_npz, SLOW_COUNT))


@contenders(
    "get_sample",
    fastshard=lambda data: one_by_one(open_reader(data).get_sample),
    LMDB=lambda data: one_by_one(lmdb(data).get_sample),
    SQLite_blobs=lambda data: one_by_one(blobs(data).get_sample),
    npz_files=slow(lambda data: one_by_one(npz(data).get_sample)),
    datasets=slow(lambda data: one_by_one(arrow(data).get_sample)),
    zarr=slow(lambda data: one_by_one(zarr(data).get_sample)),
    the_original=slow(lambda data: one_by_one(original(data).get_sample)),
)
def bench_get_sample(
    benchmark: Any, data: Data, order: Order, read: Read, turn: int
) -> None:
    run = read(data)
    for i in (*order.positions[:20], order.positions[-1]):
        data.check(i, *run(Order(data, [i])))
    run(order)
    benchmark.group = f"get_sample, random, {COUNT:,} samples of 3 fields, warm"
    benchmark.extra_info["operations"] = len(order)
    benchmark.pedantic(run, (order,), rounds=5)


class Rows:
    """Samples as rows of arrays in memory."""

    def __init__(self, data: Data) -> None:
        self.columns = data.columns

    def __getitem__(self, i: int) -> Columns:
        return {field: column[i] for field, column in self.columns.items()}


@contenders(
    "samples[i]",
    fastshard=lambda data: by_position(open_reader(data).samples),
    rows_of_arrays_in_memory=lambda data: by_position(Rows(data)),
    datasets=slow(lambda data: by_position(arrow(data))),
    zarr=slow(lambda data: by_position(zarr(data))),
)
def bench_samples(
    benchmark: Any, data: Data, order: Order, read: Read, turn: int
) -> None:
    run = read(data)
    for i in (*order.positions[:20], order.positions[-1]):
        data.check(i, run(Order(data, [i])), data.metadata(i))
    run(order)
    benchmark.group = f"samples[i], random, {COUNT:,} samples of 3 fields, warm"
    benchmark.extra_info["operations"] = len(order)
    benchmark.pedantic(run, (order,), rounds=5)


class Opening:
    """Reader that is opened, read once and closed by each `get_sample`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def get_sample(self, key: str) -> Any:
        with ShardedDatasetReader(self.root) as reader:
            return reader.get_sample(key, copy=True)


@contenders(
    "first touch",
    fastshard=ShardedDatasetReader,
    fastshard_and_its_opening=Opening,
    the_original=Original,
)
@pytest.mark.parametrize("cache", ["warm", "cold"])
def bench_first(benchmark: Any, data: Data, read: Any, cache: str, turn: int) -> None:
    root = data.store(write_fastshard)
    positions = itertools.cycle(range(PER_SHARD // 2, COUNT, PER_SHARD))
    for i in itertools.islice(positions, 2):
        data.check(i, *read(root).get_sample(data.ids[i]))

    def fresh() -> tuple[tuple[Any, str], dict[str, Any]]:
        if cache == "cold":
            evict_all(root)
        return (read(root), data.ids[next(positions)]), {}

    benchmark.group = f"first get_sample of a reader, {cache}"
    rounds = 5 if cache == "cold" else 20
    benchmark.pedantic(
        lambda reader, key: reader.get_sample(key), setup=fresh, rounds=rounds
    )


@contenders(
    "columns",
    NumPy_fancy_indexing_in_memory=columns_in_memory,
    fastshard_by_positions=lambda data: over_positions(open_reader(data).columns),
    fastshard_by_ids=lambda data: over_ids(open_reader(data).columns),
    LMDB=lambda data: over_ids(lmdb(data).columns),
    SQLite_blobs=lambda data: over_ids(blobs(data).columns),
    datasets=slow(lambda data: over_positions(arrow(data).columns_at)),
    zarr=slow(lambda data: over_positions(zarr(data).columns_at)),
)
def bench_columns(
    benchmark: Any, data: Data, order: Order, read: Read, turn: int
) -> None:
    run = read(data)
    for chosen in (order.positions[:BATCH], order.positions[-5:]):
        data.check_columns(chosen, run(Order(data, chosen)))
    run(order)
    benchmark.group = f"columns of {BATCH} samples x 3 fields, random, warm"
    benchmark.extra_info["operations"] = len(order.batches)
    benchmark.pedantic(run, (order,), rounds=9)


@contenders(
    "get_many",
    fastshard=lambda data: over_ids(open_reader(data).get_many),
    LMDB=lambda data: over_ids(lmdb(data).get_many),
    SQLite_blobs=lambda data: over_ids(blobs(data).get_many),
    datasets=slow(lambda data: over_ids(arrow(data).get_many)),
    the_original=slow(lambda data: over_ids(original(data).get_many)),
)
def bench_get_many(
    benchmark: Any, data: Data, order: Order, read: Read, turn: int
) -> None:
    run = read(data)
    chosen = order.positions[:BATCH]
    for i, found in zip(chosen, run(Order(data, chosen)), strict=True):
        data.check(i, *found)
    run(order)
    benchmark.group = f"a sample of get_many({BATCH}), random, warm"
    benchmark.extra_info["operations"] = len(order)
    benchmark.pedantic(run, (order,), rounds=5)


def load_rows(data: Data) -> ShardedDatasetReader:
    """Return a reader with all rows loaded and no shard open."""
    reader = open_reader(data)
    assert len(reader.samples) == COUNT
    return reader


def scan_batches(data: Data) -> Iterator[Any]:
    return load_rows(data).scan(batch_size=BATCH)


def scan_opening(data: Data) -> Iterator[Any]:
    """Scan in batches; as a generator, so that loading the index is timed too."""
    yield from scan_batches(data)


def scan_samples(data: Data) -> Iterator[Any]:
    """Scan sample by sample, touching each array."""
    return map(touch, load_rows(data).scan())


def touch(sample: Any) -> Any:
    for field in FIELDS:
        sample[field][0]
    return sample


def check_scan(data: Data, read: Any) -> None:
    if read is plain_read:
        assert sum(read(data)) == sum(
            path.stat().st_size for path in shards(data.store(write_fastshard))
        )
        return
    at = 0
    for found in read(data):
        if read is scan_samples:
            data.check(at, found, data.metadata(at))
            at += 1
        else:
            end = at + len(found["history"])
            data.check_columns(slice(at, end), found)
            at = end
    assert at == COUNT


@contenders(
    "scan",
    plain_read_of_the_files=plain_read,
    fastshard_batches=scan_batches,
    fastshard_samples=scan_samples,
    fastshard_batches_and_its_opening=scan_opening,
    LMDB=lambda data: lmdb(data).batches(),
    SQLite_blobs=lambda data: blobs(data).batches(),
    datasets=lambda data: arrow(data).batches(),
    zarr_chunks=lambda data: zarr(data).batches(),
)
@pytest.mark.parametrize("cache", ["warm", "cold"])
def bench_scan(benchmark: Any, data: Data, read: Any, cache: str, turn: int) -> None:
    def fresh() -> tuple[tuple[Iterator[Any], int], dict[str, Any]]:
        if cache == "cold":
            evict_all(data.folder)
        return (read(data), 0), {}  # a deque of length 0 keeps none

    check_scan(data, read)
    nbytes = sum(path.stat().st_size for path in shards(data.store(write_fastshard)))
    benchmark.group = f"a sample of a scan, {cache}, {nbytes >> 20:,} MiB of shards"
    benchmark.extra_info["operations"] = COUNT
    rounds = 1 if cache == "cold" else 5
    benchmark.pedantic(deque, setup=fresh, rounds=rounds)
    if read in (plain_read, scan_batches, scan_samples, scan_opening):
        seconds = benchmark.stats.stats.median if benchmark.stats else 1
        benchmark.extra_info["GB/s"] = round(nbytes / seconds / 1e9, 2)


MEMORY = """
import sys
from fastshard.columnar import ShardedDatasetReader
def taken():
    with open("/proc/self/status") as file:
        kinds = ("RssAnon", "RssFile")
        return [int(line.split()[1]) for line in file if line.startswith(kinds)]
root, batch, bound = sys.argv[1:]
with ShardedDatasetReader(root, max_memory=bound or None) as reader:
    len(reader)
    before = peak = taken()
    for k, found in enumerate(reader.scan(batch_size=int(batch) or None)):
        if k % 64 == 0:
            peak = list(map(max, peak, taken()))
print(*(b - a for a, b in zip(before, peak)))
"""


def memory_of(root: Path, batch: int, bound: str) -> list[int]:
    """Return the peak KiB of a scan in a new process: private, and of mapped files."""
    command = [sys.executable, "-c", MEMORY, str(root), str(batch), bound]
    done = subprocess.run(command, capture_output=True, check=True)
    return [int(text) for text in done.stdout.split()]


@contenders(
    "memory of a scan",
    fastshard_batches_in_256_MB=lambda root: memory_of(root, BATCH, "256MB"),
    fastshard_samples_in_256_MB=lambda root: memory_of(root, 0, "256MB"),
    fastshard_batches=lambda root: memory_of(root, BATCH, ""),
)
def bench_memory(benchmark: Any, data: Data, read: Any, turn: int) -> None:
    """Measure memory; the time is that of the whole process."""
    root = data.store(write_fastshard)
    found = benchmark.pedantic(read, (root,), setup=lambda: evict_all(root), rounds=1)
    benchmark.group = "a cold scan in a process of its own, and its memory at most"
    benchmark.extra_info["MB of its own"] = round(found[0] * 1024 / 1e6, 1)
    benchmark.extra_info["MB of files mapped"] = round(found[1] * 1024 / 1e6, 1)
