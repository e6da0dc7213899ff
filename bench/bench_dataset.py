"""Datasets: opening, samples by position, batches, memory of workers.

pytest bench/bench_dataset.py
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastshard
from harness import SCALE, contenders

SHARDS = 20
EACH = max(int(5_000 * SCALE), 50)  # samples a shard, of two members
SIZE = 2048  # bytes of the larger one
BATCH = 256
READS = 20_480

# The rivals leave files open.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

Read = Callable[[list[int]], list[bytes]]


def data_of(i: int) -> bytes:
    return b"%016d" % i + b"x" * (SIZE - 16)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return tars with JSON and binary indexes, for every contender."""
    folder = tmp_path_factory.mktemp("dataset")
    for shard in range(SHARDS):
        with tarfile.open(folder / f"t-{shard:02d}.tar", "w") as tar:
            for k in range(EACH):
                i = shard * EACH + k
                for suffix, data in ((".bin", data_of(i)), (".cls", b"%d" % (i % 10))):
                    member = tarfile.TarInfo(f"{i:08d}{suffix}")
                    member.size = len(data)
                    add_member(tar, member, data)
    fastshard.build_index(folder)
    fastshard.build_index(folder, format="json")
    fastshard.build_index(folder, format="wids")
    return folder


def add_member(tar: tarfile.TarFile, member: tarfile.TarInfo, data: bytes) -> None:
    import io

    tar.addfile(member, io.BytesIO(data))


@pytest.fixture(scope="session")
def order() -> list[int]:
    """Return random positions of samples."""
    numbers = np.random.default_rng(0)
    chosen: list[int] = numbers.integers(0, SHARDS * EACH, READS).tolist()
    return chosen


def samples_fastshard(folder: Path) -> Callable[[list[int]], str]:
    ds = fastshard.open(folder)

    def read(order: list[int]) -> str:
        for i in order:
            sample = ds[i]
        key: str = sample.key
        return key

    return read


def samples_wids(folder: Path) -> Callable[[list[int]], str]:
    import wids

    index = str(folder / "shardindex.json")
    ds = wids.ShardListDataset(index, keep=True, transformations=[])

    def read(order: list[int]) -> str:
        for i in order:
            sample = ds[i]
        return str(sample["__key__"])

    return read


def samples_webshart(folder: Path) -> Callable[[list[int]], str]:
    import webshart

    ds = webshart.discover_dataset(str(folder))
    readers = [ds.open_shard(k) for k in range(ds.num_shards)]

    def read(order: list[int]) -> str:
        for i in order:
            data = readers[i // EACH].read_file(2 * (i % EACH))
        return f"{int(data[:16]):08d}"

    return read


@contenders(
    "samples by position",
    fastshard=samples_fastshard,
    webshart=samples_webshart,
    wids=samples_wids,
)
def bench_samples(
    benchmark: Any, folder: Path, order: list[int], read: Any, turn: int
) -> None:
    reader = read(folder)
    if read is samples_wids:
        order = sorted(order[: READS // 20])  # wids opens a shard for each read
    assert reader(order) == f"{order[-1]:08d}"
    benchmark.group = f"ds[i], {SHARDS * EACH:,} samples of {SIZE:,} bytes"
    benchmark.extra_info["operations"] = len(order)
    benchmark.pedantic(reader, (order,), rounds=5)


def views_fastshard(folder: Path) -> Callable[[list[int]], bytes]:
    ds = fastshard.open(folder)

    def read(order: list[int]) -> bytes:
        for i in order:
            sample = ds[i]
            view, _ = sample["bin"], sample["cls"]
        return bytes(view)

    return read


def get_many_fastshard(folder: Path) -> Callable[[list[int]], bytes]:
    ds = fastshard.open(folder)

    def read(order: list[int]) -> bytes:
        for at in range(0, len(order), BATCH):
            samples = ds.get_many(order[at : at + BATCH])
        return bytes(samples[-1]["bin"])

    return read


@contenders(
    "samples with views, and batches",
    two_views_taken=views_fastshard,
    get_many=get_many_fastshard,
)
def bench_views(
    benchmark: Any, folder: Path, order: list[int], read: Any, turn: int
) -> None:
    reader = read(folder)
    assert reader(order) == data_of(order[-1])
    benchmark.group = "ds[i] with two views taken, and ds.get_many(256)"
    benchmark.extra_info["operations"] = len(order)
    benchmark.pedantic(reader, (order,), rounds=5)


def read_batches(module: Any, folder: Path) -> Read:
    ds = module.discover_dataset(str(folder))

    def read(order: list[int]) -> list[bytes]:
        for at in range(0, len(order), BATCH):
            wanted = [(i // EACH, 2 * (i % EACH)) for i in order[at : at + BATCH]]
            found = module.read_files_batch(ds, wanted)
        return list(found)

    return read


def batch_fastshard(folder: Path) -> Read:
    return read_batches(fastshard, folder)


def batch_webshart(folder: Path) -> Read:
    import webshart

    return read_batches(webshart, folder)


@contenders("read_files_batch", fastshard=batch_fastshard, webshart=batch_webshart)
def bench_batch(
    benchmark: Any, folder: Path, order: list[int], read: Any, turn: int
) -> None:
    reader = read(folder)
    assert reader(order)[-1] == data_of(order[-1])
    benchmark.group = f"read_files_batch of {BATCH} members of {SIZE:,} bytes"
    benchmark.extra_info["operations"] = len(order)
    benchmark.pedantic(reader, (order,), rounds=5)


@pytest.fixture(scope="session")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return 100 indexed shards of 1,000,000 members in all."""
    folder = tmp_path_factory.mktemp("hundred")
    for shard in range(100):
        with (folder / f"t-{shard:03d}.tar").open("wb") as file:
            for i in range(max(int(10_000 * SCALE), 20)):
                member = tarfile.TarInfo(f"{shard:03d}{i // 2:06d}.{'ab'[i % 2]}")
                file.write(member.tobuf(tarfile.USTAR_FORMAT))
            file.write(bytes(1024))
    fastshard.build_index(folder)
    return folder


def open_and_count(folder: Path) -> int:
    return len(fastshard.open(folder))


def open_all_shards(folder: Path) -> int:
    return sum(len(shard.samples) for shard in fastshard.open(folder).shards)


@contenders(
    "a dataset opened",
    opened_and_counted=open_and_count,
    and_all_shards=open_all_shards,
)
def bench_open(benchmark: Any, hundred: Path, read: Any, turn: int) -> None:
    count = read(hundred)
    assert count == 100 * max(int(10_000 * SCALE), 20) // 2
    benchmark.group = f"{2 * count:,} members over 100 shards opened"
    benchmark.pedantic(read, (hundred,), rounds=20)


@pytest.fixture(scope="session")
def thousands(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return 10,000 indexed shards of five samples."""
    folder = tmp_path_factory.mktemp("thousands")
    for shard in range(max(int(10_000 * SCALE), 10)):
        with (folder / f"t-{shard:05d}.tar").open("wb") as file:
            for i in range(5):
                member = tarfile.TarInfo(f"{shard:05d}{i}.a")
                file.write(member.tobuf(tarfile.USTAR_FORMAT))
            file.write(bytes(1024))
    fastshard.build_index(folder)
    return folder


def count_by_scans(folder: Path) -> int:
    return len(fastshard.open(folder, index="none"))


@contenders("many shards", dataset_fsi=open_and_count, no_index=count_by_scans)
def bench_many_shards(benchmark: Any, thousands: Path, read: Any, turn: int) -> None:
    count = read(thousands)
    assert count == 5 * max(int(10_000 * SCALE), 10)
    benchmark.group = f"{count // 5:,} shards opened and counted"
    benchmark.pedantic(read, (thousands,), rounds=3)


WORKERS = """
import os, sys, fastshard
def private_kib():
    with open("/proc/self/smaps_rollup") as file:
        kinds = ("Private_Dirty:", "Private_Clean:")
        return sum(int(line.split()[1]) for line in file if line.startswith(kinds))
ds = fastshard.open(sys.argv[1])
len(ds)
done, read_all, measured = os.pipe(), os.pipe(), os.pipe()
for _ in range(8):
    if os.fork() == 0:
        before = private_kib()
        count = sum(1 for sample in ds if sample["a"] is not None)
        os.write(done[1], b".")
        os.read(read_all[0], 1)  # until all eight have mapped everything
        os.write(1, b"%d %d\\n" % (count, private_kib() - before))
        os.write(done[1], b".")
        os.read(measured[0], 1)  # until each of the eight has measured
        os._exit(0)
for gate in (read_all, measured):
    for _ in range(8):
        os.read(done[0], 1)
    os.write(gate[1], b"." * 8)
for _ in range(8):
    os.wait()
"""


def run_workers(folder: Path) -> list[tuple[int, int]]:
    """Return the samples that each worker read, and its private KiB."""
    command = [sys.executable, "-c", WORKERS, str(folder)]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    lines = (line.split() for line in done.stdout.splitlines())
    return [(int(count), int(taken)) for count, taken in lines]


@contenders("workers", fastshard=run_workers)
def bench_workers(benchmark: Any, hundred: Path, read: Any, turn: int) -> None:
    """Measure memory; the time is of whole processes."""
    found = benchmark.pedantic(read, (hundred,), rounds=1)
    assert len(found) == 8
    assert {count for count, _ in found} == {open_and_count(hundred)}
    benchmark.group = "8 forked workers that read all samples: private memory"
    benchmark.extra_info["MB the largest"] = round(max(n for _, n in found) / 1024, 1)
