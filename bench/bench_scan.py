"""Header scans, warm, cold and in threads; grouping; memory of open shards.

pytest bench/bench_scan.py
"""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import fastshard
from fastshard._core.table.grouping import Grouping
from harness import SCALE, Tar, contenders, evict

# webdataset leaves its files open.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SMALL = 100_000, 2048  # members, bytes each
LARGE = 10_000, 100_000
PAIRS = max(int(500_000 * SCALE), 1_000)  # samples of two members


def scan_fastshard(path: Path) -> int:
    with fastshard.open_shard(path) as shard:
        return len(shard)


def scan_tarfile(path: Path) -> int:
    with tarfile.open(path, "r:") as tar:
        return len(tar.getmembers())


def scan_gnu_tar(path: Path) -> int:
    listed = subprocess.run(["tar", "-tf", path], capture_output=True, check=True)
    return listed.stdout.count(b"\n")


def scan_webdataset(path: Path) -> int:
    """Read the whole shard: webdataset cannot list it otherwise."""
    import webdataset as wds

    return sum(1 for _ in wds.WebDataset(str(path), shardshuffle=False))


def read_whole(path: Path) -> int:
    """Read all bytes without parsing: the limit for small members."""
    fd = os.open(path, os.O_RDONLY)
    buffer = bytearray(256 << 10)
    at = 0
    while got := os.preadv(fd, [buffer], at):
        at += got
    os.close(fd)
    return at


def read_direct(path: Path) -> int:
    """Read by O_DIRECT, past the page cache, 8 MiB at a time: the device's rate."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    at = 0
    with mmap.mmap(-1, 8 << 20) as buffer:
        while got := os.preadv(fd, [buffer], at):
            at += got
    os.close(fd)
    return at


def check(scan: Callable[[Path], int], tar: Tar) -> None:
    """Check the result of a contender before it is timed."""
    expected = tar.path.stat().st_size if "read_" in scan.__name__ else tar.members
    assert scan(tar.path) == expected
    if scan is scan_fastshard:
        with fastshard.open_shard(tar.path) as shard:
            assert shard.offsets.tolist() == tar.offsets
            assert list(shard.names) == tar.names


@contenders(
    "scan, warm",
    fastshard=scan_fastshard,
    all_bytes_read_once=read_whole,
    gnu_tar=scan_gnu_tar,
    tarfile=scan_tarfile,
    webdataset=scan_webdataset,
)
@pytest.mark.parametrize("kind", ["ustar", "pax"])
@pytest.mark.parametrize("shape", [SMALL, LARGE], ids=["2KB", "100KB"])
def bench_warm(
    benchmark: Any, tars: Any, read: Any, shape: tuple[int, int], kind: str, turn: int
) -> None:
    tar = tars(kind, *shape)
    if read is scan_webdataset and shape is LARGE:
        pytest.skip("webdataset reads all of it")
    check(read, tar)
    benchmark.group = (
        f"scan, warm, {tar.members:,} members of {tar.size:,} bytes, {kind}"
    )
    benchmark.extra_info["operations"] = tar.members
    fast = read in (scan_fastshard, read_whole, scan_gnu_tar)
    benchmark.pedantic(read, (tar.path,), rounds=7 if fast else 1)


@contenders(
    "scan, cold",
    fastshard=scan_fastshard,
    device_read_direct=read_direct,
    tarfile=scan_tarfile,
)
@pytest.mark.parametrize("kind", ["ustar", "pax"])
def bench_cold(benchmark: Any, tars: Any, read: Any, kind: str, turn: int) -> None:
    tar = tars(kind, *LARGE)
    check(read, tar)
    benchmark.group = (
        f"scan, cold, {tar.members:,} members of {tar.size:,} bytes, {kind}"
    )
    benchmark.extra_info["operations"] = tar.members
    benchmark.pedantic(read, (tar.path,), setup=lambda: evict(tar.path), rounds=3)


def scan_all(paths: list[Path], threads: int) -> int:
    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(scan_fastshard, paths))


@contenders(
    "two shards in threads",
    one_thread=lambda paths: scan_all(paths, 1),
    two_threads=lambda paths: scan_all(paths, 2),
)
def bench_threads(benchmark: Any, tars: Any, read: Any, turn: int) -> None:
    shards = [tars("pax", *SMALL, n=n) for n in range(2)]
    paths = [tar.path for tar in shards]
    expected = sum(tar.members for tar in shards)
    assert read(paths) == expected
    benchmark.group = f"scan, warm, 2 shards of {shards[0].members:,} pax members"
    benchmark.extra_info["operations"] = expected
    benchmark.pedantic(read, (paths,), rounds=7)


def group_fastshard(shard: fastshard.TarShard) -> int:
    grouping = Grouping(shard.parts()[1], False, True)
    return len(fastshard.Samples(shard, grouping, fastshard.Sample))


def group_python(shard: fastshard.TarShard) -> int:
    """Group into a dict of lists, as most readers do."""
    samples: dict[str, list[str]] = {}
    for name in shard.names:
        folder, slash, last = name.rpartition("/")
        key, _, field = last.partition(".")
        samples.setdefault(folder + slash + key, []).append(field)
    return len(samples)


@pytest.fixture(scope="session")
def million(tmp_path_factory: pytest.TempPathFactory) -> fastshard.TarShard:
    """Return a shard of empty members, two a sample."""
    path = tmp_path_factory.mktemp("million") / "m.tar"
    with path.open("wb") as file:
        for i in range(PAIRS):
            for suffix in ("jpg", "json"):
                member = tarfile.TarInfo(f"train/{i:08d}.{suffix}")
                file.write(member.tobuf(tarfile.USTAR_FORMAT))
    return fastshard.open_shard(path)


@contenders(
    f"{2 * PAIRS:,} names grouped into samples",
    fastshard=group_fastshard,
    python_dict=group_python,
)
def bench_grouping(benchmark: Any, million: Any, read: Any, turn: int) -> None:
    assert read(million) == PAIRS
    benchmark.pedantic(read, (million,), rounds=3)


MEMORY = """
import sys, tarfile, fastshard
def anonymous_bytes():
    with open("/proc/self/smaps_rollup") as file:
        return next(int(l.split()[1]) for l in file if l.startswith("Anonymous")) * 1024
def open_shard(path):
    if sys.argv[1] == "fastshard":
        return fastshard.open_shard(path)
    tar = tarfile.open(path, "r:")
    tar.getmembers()
    return tar
small = open_shard(sys.argv[2])
before = anonymous_bytes()
large = open_shard(sys.argv[3])
print(anonymous_bytes() - before)
"""


def memory_of(reader: str, small: Path, large: Path) -> int:
    """Return the bytes of memory, without mapped files, of a shard in a new process."""
    command = [sys.executable, "-c", MEMORY, reader, str(small), str(large)]
    return int(subprocess.run(command, capture_output=True, check=True).stdout)


def memory_fastshard(small: Path, large: Path) -> int:
    return memory_of("fastshard", small, large)


def memory_tarfile(small: Path, large: Path) -> int:
    return memory_of("tarfile", small, large)


@contenders("an open shard", fastshard=memory_fastshard, tarfile=memory_tarfile)
def bench_memory(benchmark: Any, tars: Any, read: Any, turn: int) -> None:
    """Measure memory; the time is of whole processes."""
    small, tar = tars("pax", 10, 2048), tars("pax", *SMALL)
    taken = benchmark.pedantic(read, (small.path, tar.path), rounds=1)
    benchmark.group = f"memory of {tar.members:,} open members, names of 11 bytes"
    benchmark.extra_info["bytes a member"] = round(taken / tar.members, 1)
    if tar.members >= 10_000:
        assert taken > 24 * tar.members  # the table alone
