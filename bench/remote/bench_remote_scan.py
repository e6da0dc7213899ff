"""Scans and openings of remote shards, with nginx and its client on the same two cores.

pytest bench/remote/bench_remote_scan.py

A member of 2 KB is to take a tenth of the time of version 2949317, which runs beside if
FASTSHARD_2949317 names a checkout of it that is built in place. The yardstick of every
run is curl, which moves the same bytes to nowhere: 2949317 took 17.7 x its time when
the bar was set, with more cores than two, so a tenth is 1.77 x curl's. On two cores
2949317 takes about 6 x, and a tenth of that is less than curl takes.

Members of 100 KB come at 0.9 x of curl's rate. 100 shards without indexes, 20 ms away,
are opened and counted in at most 4 x the time of one, which is that of its round trips;
`requests a shard` counts what was asked of the server.
"""

from __future__ import annotations

import atexit
import functools
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fastshard
from harness import SCALE, contenders, expect, limit, write
from rivals import remote_readers as readers
from rivals.web_server import Server, far, nginx, nginx_version, serve

LARGE, SMALL = 102_400, 2048  # bytes of a member
COUNTS = {LARGE: max(int(4000 * SCALE), 100), SMALL: max(int(40_000 * SCALE), 400)}
SHARDS = 4
MANY = 100  # shards without an index
MEMBERS = 20  # of each of these
CHECKOUT = os.environ.get("FASTSHARD_2949317")  # of that version, built in place

pytestmark = [
    pytest.mark.skipif(nginx() is None, reason="needs nginx"),
    pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl"),
]


@pytest.fixture(scope="module", autouse=True)
def two_cores() -> Iterator[None]:
    """Confine this process and those that it starts to two cores."""
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("needs sched_setaffinity")
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(cores)[:2])
    yield
    os.sched_setaffinity(0, cores)


@pytest.fixture(scope="module")
def server(
    two_cores: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """Yield a server of indexed shards, and of many that have no index."""
    site = tmp_path_factory.mktemp("site")
    for size, count in COUNTS.items():
        (site / str(size)).mkdir()
        for k in range(SHARDS):
            path = site / str(size) / f"{k}.tar"
            write(path, "ustar", count // SHARDS, size)
        fastshard.build_index(site / str(size))
        if CHECKOUT is not None:
            index_by_2949317(site / str(size), site / f"{size}-2949317", CHECKOUT)
    (site / "many").mkdir()
    for k in range(MANY):
        write(site / f"many/{k:02}.tar", "ustar", MEMBERS, SMALL)
    with serve(site, tmp_path_factory.mktemp("nginx")) as server:
        yield server
    shutil.rmtree(site)


def index_by_2949317(folder: Path, copy: Path, checkout: str) -> None:
    """Link shards to another folder, with indexes that version 2949317 reads."""
    copy.mkdir()
    for path in folder.glob("*.tar"):
        os.link(path, copy / path.name)
    subprocess.run([sys.executable, "-c", INDEXER, checkout, str(copy)], check=True)


INDEXER = """
import sys
sys.path.insert(0, sys.argv[1])
import fastshard
fastshard.build_index(sys.argv[2])
"""
WORKER = """
import resource, sys
sys.path.insert(0, sys.argv[1])
import fastshard
for line in sys.stdin:
    total = sum(len(sample["bin"]) for sample in fastshard.open(line.strip()))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(total, usage.ru_utime + usage.ru_stime, flush=True)
"""


@functools.cache
def version_2949317() -> subprocess.Popen[str]:
    """Return a process that scans the sources it is sent with version 2949317."""
    if CHECKOUT is None:
        pytest.skip("needs FASTSHARD_2949317, a checkout of this version")
    command = [sys.executable, "-c", WORKER, CHECKOUT]
    worker = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(worker.kill)
    return worker


cpu_of_worker = 0.0  # seconds, as of its last answer


def scan_with_2949317(source: str) -> int:
    global cpu_of_worker
    worker = version_2949317()
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(source + "\n")
    worker.stdin.flush()
    total, seconds = worker.stdout.readline().split()
    cpu_of_worker = float(seconds)
    return int(total)


def cpu() -> float:
    """Return the CPU seconds of this process, its worker and ended children."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages) + cpu_of_worker


@pytest.mark.parametrize("size", [LARGE, SMALL])
@contenders(
    "members in order on two cores",
    fastshard=readers.fastshard_scan,
    curl_to_dev_null=readers.curl_scan,
    version_2949317=scan_with_2949317,
)
def bench_scan_on_two_cores(
    benchmark: Any, server: Server, read: Any, turn: int, size: int
) -> None:
    benchmark.group = f"members of {size >> 10} KB in order, nginx on the same 2 cores"
    folder = f"{size}-2949317" if read is scan_with_2949317 else str(size)
    source = server.url(f"{folder}/{{0..{SHARDS - 1}}}.tar")
    members = COUNTS[size] // SHARDS * SHARDS
    assert read(source) >= members * size  # curl's sum has the headers
    if read is not readers.curl_scan:
        assert read(source) == members * size
        benchmark.extra_info["nginx"] = nginx_version()
    benchmark.extra_info["operations"] = members
    if size == LARGE:
        expect(benchmark, "fastshard", "curl to dev null", 0.9)
    else:
        expect(benchmark, "fastshard", "version 2949317", 10)
        expect(benchmark, "fastshard", "curl to dev null", 1 / 1.77)
    begun = cpu()
    rounds = 5
    benchmark.pedantic(read, args=(source,), rounds=rounds)
    benchmark.extra_info["us CPU a member"] = round(
        (cpu() - begun) / rounds / members * 1e6, 2
    )


def open_one(server: Server) -> int:
    return count_samples(server.counted("many/00.tar"), 1)


def open_many(server: Server) -> int:
    return count_samples(server.counted(f"many/{{00..{MANY - 1}}}.tar"), MANY)


def count_samples(source: str, shards: int) -> int:
    """Open shards, count their samples and read the first."""
    ds = fastshard.open(source)
    assert len(ds) == shards * MEMBERS
    assert len(ds[0]["bin"]) == SMALL
    return shards


@contenders("opening from afar", many=open_many, one=open_one)
def bench_opening(
    benchmark: Any,
    server: Server,
    read: Any,
    turn: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    benchmark.group = f"1 and {MANY} shards without indexes from 20 ms away"
    monkeypatch.setenv("FASTSHARD_CACHE", "")
    with far(server, 0.020) as distant:
        trip = distant.trip("many/00.tar")
        distant.moved()  # reset
        shards = read(distant)
        benchmark.extra_info["requests a shard"] = distant.moved().requests / shards
        benchmark.pedantic(read, args=(distant,), rounds=5, warmup_rounds=1)
    if benchmark.stats is None:  # --benchmark-disable
        return
    trips = benchmark.stats.stats.median / trip
    benchmark.extra_info["round trips"] = round(trips, 1)
    limit(benchmark, "many", "round trips", 4, "one")
