"""Cold reads: shards outside the page cache; the costs of prefetch on warm ones.

pytest bench/bench_cold.py

Files are evicted before each round by `posix_fadvise(DONTNEED)`; no process maps them.
The limits are those of the device, measured in the same run: O_DIRECT by one thread for
sequential reads, eight threads of `pread` for random ones. The results depend on
`/sys/class/bdi/*/read_ahead_kb` of the device, so the table shows it.
"""

from __future__ import annotations

import gc
import mmap
import os
import random
import statistics
import threading
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import fastshard
from harness import SCALE, contenders, evict, write

SHARDS, EACH, SIZE = 4, 10_000, 102_400  # members of a shard, bytes of each
RANDOM = 2000  # samples read in random order
WORK = 50e-6  # seconds of a consumer's work on a sample
PAGE = mmap.PAGESIZE


class Data:
    """Shards, and the file and offset of each member."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.each = max(int(EACH * SCALE), 40)
        tars = [
            write(folder / f"s-{k}.tar", "ustar", self.each, SIZE)
            for k in range(SHARDS)
        ]
        self.paths = [tar.path for tar in tars]
        self.extents = [(tar.path, offset) for tar in tars for offset in tar.offsets]
        fastshard.build_index(folder)
        self.count = len(self.extents)
        self.nbytes = self.count * SIZE
        numbers = random.Random(0)
        self.order = numbers.sample(range(self.count), min(RANDOM, self.count // 2))

    def evict(self) -> None:
        gc.collect()  # unreferenced datasets in cycles stay mapped until then
        for path in self.paths:
            evict(path)

    def check(self, i: int, view: Any) -> None:
        """Check that a sample begins with its number in the shard."""
        assert view[:16] == b"%016d" % (i % self.each)

    def describe_readahead(self) -> str:
        """Return the readahead of the device of the shards."""
        number = os.stat(self.folder).st_dev
        name = f"{os.major(number)}:{os.minor(number)}"
        try:
            text = Path(f"/sys/class/bdi/{name}/read_ahead_kb").read_text()
        except OSError:
            text = "unknown"
        return f"KB of readahead: {text.strip()}"


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    return Data(tmp_path_factory.mktemp("cold"))


def touch(view: Any) -> int:
    """Read a byte of each page."""
    return len(bytes(view[::PAGE]))


def scan_in_order(data: Data, **options: Any) -> int:
    ds = fastshard.open(data.folder, **options)
    total = 0
    for i, sample in enumerate(ds):
        view = sample["bin"]
        data.check(i, view)
        touch(view)
        total += len(view)
    return total


def read_direct(data: Data) -> int:
    """Read by O_DIRECT, past the page cache: one thread, 1 MiB at a time."""
    buffer = mmap.mmap(-1, 1 << 20)
    total = 0
    for path in data.paths:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        at = 0
        while got := os.preadv(fd, [buffer], at):
            at += got
        os.close(fd)
        total += at
    return total


def read_in_order(data: Data) -> int:
    total = 0
    buffer = bytearray(1 << 20)
    for path in data.paths:
        with open(path, "rb", buffering=0) as file:
            while got := file.readinto(buffer):
                total += got
    return total


@contenders(
    "in order",
    fastshard=scan_in_order,
    fastshard_in_256_MB=lambda data: scan_in_order(data, max_memory="256MB"),
    fastshard_nothing_left_in_the_cache=lambda data: scan_in_order(
        data, max_memory="256MB", keep_cache=False
    ),
    the_mapping_touched=lambda data: scan_in_order(data, prefetch=False),
    read_of_1_MB=read_in_order,
    O_DIRECT=read_direct,
)
def bench_in_order(benchmark: Any, data: Data, read: Any, turn: int) -> None:
    benchmark.group = (
        f"cold, in order, {data.nbytes >> 20:,} MiB ({data.describe_readahead()})"
    )
    benchmark.extra_info["operations"] = data.nbytes / 1e9
    assert read(data) >= data.nbytes
    benchmark.pedantic(read, (data,), setup=data.evict, rounds=1)


def read_at_random(data: Data, work: float = 0, **options: Any) -> int:
    ds = fastshard.open(data.folder, **options)
    done = 0
    for i, sample in zip(data.order, ds.iter(order=data.order), strict=True):
        view = sample["bin"]
        data.check(i, view)
        touch(view)
        done += 1
        until = time.perf_counter() + work
        while work and time.perf_counter() < until:
            pass
    return done


def read_batches(data: Data) -> int:
    ds = fastshard.open(data.folder)
    done = 0
    for at in range(0, len(data.order), 256):
        batch = data.order[at : at + 256]
        for i, sample in zip(batch, ds.get_many(batch), strict=True):
            view = sample["bin"]
            data.check(i, view)
            touch(view)
            done += 1
    return done


def pread_in_threads(data: Data, threads: int) -> int:
    fds = {path: os.open(path, os.O_RDONLY) for path in data.paths}

    def read_some(order: list[int]) -> int:
        for i in order:
            path, offset = data.extents[i]
            data.check(i, os.pread(fds[path], SIZE, offset))
        return len(order)

    with ThreadPoolExecutor(threads) as pool:
        done = sum(
            pool.map(read_some, [data.order[k::threads] for k in range(threads)])
        )
    for fd in fds.values():
        os.close(fd)
    return done


@contenders(
    "at random",
    eight_threads_of_pread=lambda data: pread_in_threads(data, 8),
    fastshard=read_at_random,
    fastshard_batches_of_256=read_batches,
    the_mapping_touched=lambda data: read_at_random(data, prefetch=False),
    pread=lambda data: pread_in_threads(data, 1),
)
def bench_at_random(benchmark: Any, data: Data, read: Any, turn: int) -> None:
    benchmark.group = (
        f"cold, at random, members of 100 KiB ({data.describe_readahead()})"
    )
    benchmark.extra_info["operations"] = len(data.order)
    assert read(data) == len(data.order)
    benchmark.pedantic(read, (data,), setup=data.evict, rounds=1)


@contenders(
    "at random, a busy consumer",
    fastshard=lambda data: read_at_random(data, WORK),
    the_mapping_touched=lambda data: read_at_random(data, WORK, prefetch=False),
)
def bench_busy(benchmark: Any, data: Data, read: Any, turn: int) -> None:
    benchmark.group = (
        f"cold, at random, 50 us of work a sample ({data.describe_readahead()})"
    )
    benchmark.extra_info["operations"] = len(data.order)
    assert read(data) == len(data.order)
    benchmark.pedantic(read, (data,), setup=data.evict, rounds=1)


def time_touches(
    data: Data, prefetch: bool, order: Callable[[Data], Any]
) -> list[float]:
    """Return the seconds of touching a byte of each sample, which holds the GIL."""
    ds = fastshard.open(data.folder, prefetch=prefetch)
    found = []
    clock = time.perf_counter
    for sample in ds.iter(order=order(data)):
        view = sample["bin"]
        begun = clock()
        view[50_000]
        found.append(clock() - begun)
    return found


def time_single_touches(data: Data, prefetch: bool) -> list[float]:
    """Return the seconds of touching a byte of each ``ds[i]``."""
    ds = fastshard.open(data.folder, prefetch=prefetch)
    found = []
    clock = time.perf_counter
    for i in data.order:
        view = ds[i]["bin"]
        begun = clock()
        view[50_000]
        found.append(clock() - begun)
    return found


@contenders(
    "the GIL held",
    fastshard_at_random=lambda data: time_touches(data, True, lambda d: d.order),
    fastshard_single_reads=lambda data: time_single_touches(data, True),
    the_mapping_touched_at_random=lambda data: time_touches(
        data, False, lambda d: d.order
    ),
)
def bench_gil_held(benchmark: Any, data: Data, read: Any, turn: int) -> None:
    benchmark.group = "GIL held by the first touch of a cold sample, mean"
    data.evict()
    found = read(data)
    benchmark.extra_info["us at the 99.9th percentile"] = round(
        sorted(found)[int(len(found) * 0.999)] * 1e6, 1
    )
    benchmark.extra_info["us at worst"] = round(max(found) * 1e6, 1)
    benchmark.extra_info["operations"] = len(found)
    waits = sum(found)
    benchmark.pedantic(time.sleep, (waits,), rounds=1)  # reports the sum as the time


def measure_delays(data: Data, prefetch: bool) -> list[float]:
    """Return the delays, in seconds, of a sleeping thread during a cold scan."""
    delays: list[float] = []
    done = threading.Event()

    def sleeper() -> None:
        while not done.is_set():
            begun = time.perf_counter()
            time.sleep(0.0005)
            delays.append(time.perf_counter() - begun - 0.0005)

    thread = threading.Thread(target=sleeper)
    thread.start()
    for sample in fastshard.open(data.folder, prefetch=prefetch):
        touch(sample["bin"])
    done.set()
    thread.join()
    return delays


@contenders(
    "lateness",
    fastshard=lambda data: measure_delays(data, True),
    the_mapping_touched=lambda data: measure_delays(data, False),
)
def bench_delays(benchmark: Any, data: Data, read: Any, turn: int) -> None:
    benchmark.group = "delay of a thread that sleeps 0.5 ms, during a cold scan, p99"
    data.evict()
    delays = sorted(read(data))
    benchmark.extra_info["ms at worst"] = round(delays[-1] * 1e3, 2)
    benchmark.pedantic(time.sleep, (delays[int(len(delays) * 0.99)],), rounds=1)


def scan_warm(data: Data, prefetch: bool) -> int:
    """Return the crc32 of each sample, combined by xor."""
    found = 0
    for sample in fastshard.open(data.folder, prefetch=prefetch):
        found ^= zlib.crc32(sample["bin"])
    return found


@contenders(
    "warm",
    fastshard_without_prefetch=lambda data: scan_warm(data, False),
    fastshard=lambda data: scan_warm(data, True),
)
def bench_warm(benchmark: Any, data: Data, read: Any, turn: int) -> None:
    benchmark.group = "warm, in order, crc32 of each sample of 100 KiB"
    benchmark.extra_info["operations"] = data.count
    expected = scan_warm(data, False)
    read_in_order(data)  # into the page cache
    assert read(data) == expected
    benchmark.pedantic(read, (data,), rounds=3)


def visit_members(shard: fastshard.TarShard, order: list[int]) -> int:
    for i in order:
        shard[i]
    return len(order)


@contenders(
    "visits",
    first=lambda shard, order: visit_members(shard, order),
    first_unwatched=lambda shard, order: visit_members(shard, order),
    first_while_some_of_the_file_is_missing=lambda shard, order: visit_members(
        shard, order
    ),
    later=lambda shard, order: visit_members(shard, order),
)
def bench_visits(
    benchmark: Any, data: Data, read: Any, turn: int, request: pytest.FixtureRequest
) -> None:
    who = benchmark.extra_info["who"]
    benchmark.group = "visits of warm members of 100 KiB by shard[i], random"
    count = data.each - 20  # the last 20 stay untouched and may be uncached
    order = random.Random(turn).sample(range(count), count)  # an epoch
    benchmark.extra_info["operations"] = len(order)
    path = data.paths[0]

    def opened() -> tuple[Any, dict[str, Any]]:
        path.read_bytes()
        if "missing" in who:
            end = data.extents[data.each - 8][1]
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, end, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
        shard = fastshard.open_shard(path, prefetch="unwatched" not in who)
        if who == "later":
            visit_members(shard, order)
        return (shard, order), {}

    benchmark.pedantic(read, setup=opened, rounds=5)


def resident(data: Data) -> int:
    """Return the KiB of mapped files that are resident in this process."""
    with open("/proc/self/status") as status:
        return sum(
            int(line.split()[1])
            for line in status
            if line.startswith(("RssFile", "RssShmem"))
        )


def scan_for_peak(data: Data, **options: Any) -> float:
    """Scan; return the peak MB of resident files above those before the scan."""
    before = resident(data)
    most = 0
    for i, sample in enumerate(fastshard.open(data.folder, **options)):
        touch(sample["bin"])
        if i % 64 == 0:
            most = max(most, resident(data) - before)
    return most * 1024 / 1e6


@contenders(
    "memory",
    fastshard_in_256_MB=lambda data: scan_for_peak(data, max_memory="256MB"),
    fastshard_in_256_MB_nothing_left_in_the_cache=lambda data: scan_for_peak(
        data, max_memory="256MB", keep_cache=False
    ),
    fastshard_without_a_bound=scan_for_peak,
)
def bench_memory(benchmark: Any, data: Data, read: Any, turn: int) -> None:
    benchmark.group = f"cold scan of {data.nbytes >> 20:,} MiB, time a GB, and memory"
    benchmark.extra_info["operations"] = data.nbytes / 1e9
    most: list[float] = []

    def run() -> None:
        most.append(read(data))

    benchmark.pedantic(run, setup=data.evict, rounds=1)
    benchmark.extra_info["MB resident at most"] = round(statistics.median(most))
