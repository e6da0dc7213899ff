"""Statistics of loaders: verdicts under throttles, and cost of statistics.

pytest bench/bench_loader_stats.py

A throttle slows one side down: storage by a pause in each fetch, or by a server that
answers late; decoding by a mapped function that computes without the GIL; the consumer
by sleep, or by Python code that holds the GIL.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import fastshard
from fastshard.dataset.sequence.loading import DatasetSource
from fastshard.loader.recorder import LoaderRecorder
from harness import SCALE, contenders, expect
from harness.pictures import jpegs, write_tar
from harness.range_server import serve_ranges

ROWS = 16
BATCHES = 24
COUNT = ROWS * BATCHES
ARRAYS = max(int(200_000 * SCALE), 2048)
SIDE = 224
FETCH_PAUSE = 0.15  # seconds a batch
LATE = 0.2  # seconds a response of the slow server
CONSUMER = 0.08  # seconds a batch
COMPUTED = bytes(2 << 20)  # of a mapped function, a sample

VERDICTS = {
    "storage": "storage",
    "decode": "decode",
    "asleep": "consumer",
    "holds_the_GIL": "consumer",
}
Paths = dict[str, Path]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> Paths:
    """Write the shards: pictures, and arrays."""
    folder = tmp_path_factory.mktemp("stats")
    pictures = folder / "pictures.tar"
    some = jpegs(min(COUNT, 100))
    write_tar(pictures, tuple(some[i % len(some)] for i in range(COUNT)))
    many, few = folder / "many.tar", folder / "few.tar"
    for path, count in ((many, ARRAYS), (few, COUNT)):
        with fastshard.ShardWriter(path) as writer:
            for i in range(count):
                writer.write({"__key__": f"{i:07}", "npy": np.full(512, i, np.float32)})
    return {"jpeg": pictures, "npy": many, "http": few}


def hold_the_gil(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def compute(sample: Any) -> Any:
    """Compute without the GIL."""
    zlib.crc32(COMPUTED)
    return sample.array("npy")


def read_arrays(sample: Any) -> Any:
    return sample.array("npy")


def open_loader(stack: ExitStack, paths: Paths, data: str, throttle: str) -> Any:
    """Return a loader of one kind of data, throttled."""
    path = paths[data]
    if data == "http":
        delay = LATE if throttle == "storage" else 0.0
        url = stack.enter_context(serve_ranges(path, delay))
        small = "256KB" if throttle == "storage" else None  # a request a batch
        ds: Any = fastshard.open(url, index="none", max_memory=small)
        ds = ds[:COUNT]
    else:
        ds = fastshard.open(str(path))[:COUNT]
    if data == "jpeg":
        ds = ds.images("jpg", SIDE, crop="center")
    else:
        ds = ds.map(compute if throttle == "decode" else read_arrays)
    loader = stack.enter_context(ds.loader(ROWS, threads=2))
    if throttle == "storage" and data != "http":
        fetch = DatasetSource.fetch

        def fetch_slowly(source: DatasetSource, start: int, stop: int) -> Any:
            time.sleep(FETCH_PAUSE)
            return fetch(source, start, stop)

        stack.enter_context(patch.object(DatasetSource, "fetch", fetch_slowly))
    return loader


def consume(loader: Any, throttle: str) -> None:
    for _ in loader:
        if throttle == "asleep":
            time.sleep(CONSUMER)
        elif throttle == "holds_the_GIL":
            hold_the_gil(CONSUMER)


def judged(loader: Any, throttle: str) -> None:
    consume(loader, throttle)


@pytest.mark.parametrize("throttle", VERDICTS)
@pytest.mark.parametrize("data", ["jpeg", "npy", "http"])
@contenders("verdicts", fastshard=judged)
def bench_verdicts(
    benchmark: Any, paths: Paths, data: str, throttle: str, read: Any, turn: int
) -> None:
    """Throttle one side; the verdict must name it."""
    with ExitStack() as stack:
        loader = open_loader(stack, paths, data, throttle)
        benchmark.group = f"verdict of {data}, throttled: {throttle.replace('_', ' ')}"
        benchmark.pedantic(read, (loader, throttle), rounds=1)
        stats = loader.stats()
    benchmark.extra_info["stats"] = str(stats)
    if SCALE >= 1:  # a short run beside other processes is throttled by them, too
        assert stats.verdict == VERDICTS[throttle], str(stats)
    parts = stats.busy + stats.full + stats.idle
    assert stats.wait + stats.consumer >= 0.98 * stats.wall
    assert parts >= 0.98 * stats.wall * stats.threads


class SilentTimes:
    """Stands in for the clocks of a build without statistics; its calls cost little."""

    first = 0
    begin: Any = staticmethod({}.clear)
    fail = stop = begin
    ask: Any = staticmethod({}.get)
    answer = ask


class SilentRecorder(LoaderRecorder):
    """Recorder that records nothing."""

    nothing = nullcontext()

    def __init__(self) -> None:
        super().__init__()
        self.consumer: Any = SilentTimes()

    def thread(self) -> Any:
        return self.nothing

    def inline(self) -> Any:
        return self.nothing


def batches_of(
    paths: Paths, data: str, kind: str, rows: int
) -> Callable[[], Iterator[Any]]:
    ds: Any = fastshard.open(str(paths[data]))
    if data == "jpeg":
        ds = ds.images("jpg", SIDE, crop="center")
    if kind == "loader":
        return lambda: iter(ds.loader(rows, threads=2))
    return lambda: ds.batches(rows)


def with_stats(make: Callable[[], Any]) -> int:
    return sum(1 for _ in make())


def without_stats(make: Callable[[], Any]) -> int:
    batches = make()
    if hasattr(batches, "replay"):
        batches._recorder = SilentRecorder()
    else:
        recorder = batches._recorder
        recorder.begin = recorder.stop = {}.clear
        recorder.begin_collation, recorder.end = id, {}.get
    return sum(1 for _ in batches)


@pytest.mark.parametrize("kind", ["loader", "batches"])
@pytest.mark.parametrize(("data", "rows"), [("jpeg", 64), ("npy", 64), ("npy", 16)])
@contenders("cost of stats", with_stats=with_stats, without_stats=without_stats)
def bench_cost_of_stats(
    benchmark: Any,
    paths: Paths,
    data: str,
    rows: int,
    kind: str,
    read: Any,
    turn: int,
) -> None:
    make = batches_of(paths, data, kind, rows)
    assert read(make) > 0
    benchmark.group = f"statistics of {kind}, {data}, batches of {rows}"
    expect(benchmark, "with_stats", "without_stats", 0.99)
    benchmark.pedantic(read, (make,), rounds=5)
