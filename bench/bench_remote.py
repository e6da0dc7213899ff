"""Reading over HTTP, from nginx on loopback and at a distance of 20 and 40 ms.

pytest bench/bench_remote.py

Served files are in the page cache; `web_server.relay` tells what its delay models. As
in the report's last column, goals are rivals' times by fastshard's: one member 0.8 x
of urllib3; a batch 0.8 x of obstore's best, 0.95 x of urllib3 in 16 threads and 5 x of
fsspec, at most 3 round trips above the ideal where these are slow; a scan 0.9 x of
curl, in at most 96 MB with max_memory="64MiB"; an index from less than 3 % of a file
with members of 100 KB.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import math
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fastshard
from harness import SCALE, Tar, contenders, write
from rivals import remote_readers as readers
from rivals.remote_readers import HUB, ReadMany, ReadOne, Remote
from rivals.web_server import Server, far, nginx, nginx_version, serve

SHARDS = 4
LARGE, SMALL = 102_400, 2048  # bytes of a member
MEMBERS = max(int(10_000 * SCALE), 100 * SHARDS)  # of LARGE bytes, in all shards
SMALL_MEMBERS = max(int(100_000 * SCALE), 100 * SHARDS)
SINGLES = 100  # members read one after another
BATCH = 256

pytestmark = [
    pytest.mark.skipif(nginx() is None, reason="needs nginx"),
    pytest.mark.filterwarnings("ignore"),  # rivals leave connections open
]

Sizes = dict[int, Sequence[Tar]]  # by size of the members
Distant = dict[int, Server]  # by milliseconds of a round trip


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a folder to serve, and remove its two gigabytes at the end."""
    folder = tmp_path_factory.mktemp("site")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def sizes(site: Path) -> Sizes:
    """Write indexed shards, and a fake hub with those of large members."""
    made: dict[int, Sequence[Tar]] = {}
    for size, count in ((LARGE, MEMBERS), (SMALL, SMALL_MEMBERS)):
        folder = site / str(size)
        folder.mkdir()
        made[size] = [
            write(folder / f"shard-{k:04d}.tar", "ustar", count // SHARDS, size)
            for k in range(SHARDS)
        ]
        fastshard.build_index(folder)
    api = site / "api" / HUB
    (api / "tree/main").mkdir(parents=True)
    (api / "index.json").write_text(json.dumps({"id": "bench/data"}))
    (api / "tree/main" / str(LARGE)).write_text(json.dumps(listing(made)))
    resolve = site / HUB / "resolve"
    resolve.mkdir(parents=True)
    (resolve / "main").symlink_to(site)
    return made


def listing(made: Sizes) -> list[dict[str, Any]]:
    """Return a hub's listing of a repository."""
    paths = [tar.path for tar in made[LARGE]]
    return [
        {
            "type": "file",
            "oid": "0" * 40,
            "size": path.stat().st_size,
            "path": f"{LARGE}/{path.name}",
        }
        for path in paths
    ]


@pytest.fixture(scope="session")
def server(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serve(site, tmp_path_factory.mktemp("nginx")) as server:
        yield server


@pytest.fixture(scope="session")
def distant(server: Server) -> Iterator[Distant]:
    with ExitStack() as relays:
        yield {ms: relays.enter_context(far(server, ms / 1000)) for ms in (0, 20, 40)}


@pytest.fixture(scope="session")
def pool() -> bytes:
    """Return the bytes from which members are filled, after their numbers."""
    return random.Random(0).randbytes(LARGE)


def remote(tars: Sequence[Tar], server: Server) -> Remote:
    last = len(tars) - 1
    pattern = f"{tars[0].size}/shard-{{0000..{last:04d}}}.tar"
    return Remote(tars, server.url, pattern)


def note(benchmark: Any, read: Callable[..., Any]) -> None:
    """Record the versions of the contender and of the server."""
    names = importlib.metadata.packages_distributions()
    library = next((n for n in names if read.__name__.startswith(n)), None)
    if library is not None:
        version = importlib.metadata.version(names[library][0])
        benchmark.extra_info[library] = version
    if library == "fastshard":
        benchmark.extra_info["nginx"] = nginx_version()


# Single members.


@contenders(
    "one member of 100 KB at a time, random, over http",
    fastshard=readers.fastshard_one,
    urllib3=readers.urllib3_one,
    obstore=readers.obstore_one,
    fsspec=readers.fsspec_one,
    HfFileSystem=readers.huggingface_hub_one,
)
def bench_one(
    benchmark: Any, sizes: Sizes, server: Server, pool: bytes, read: Any, turn: int
) -> None:
    data = remote(sizes[LARGE], server)
    order = random.Random(turn).sample(range(data.tars[0].members), SINGLES)

    counted: ReadOne = read(replace(data, address=server.counted))
    data.check(order[0], counted(order[0]), pool)  # opens connections and the shard
    server.moved()
    for i in order:
        data.check(i, counted(i), pool)
    benchmark.extra_info["requests a read"] = server.moved().requests / SINGLES

    one: ReadOne = read(data)

    def every() -> None:
        for i in order:
            one(i)

    every()
    note(benchmark, read)
    benchmark.extra_info["operations"] = SINGLES
    benchmark(every)


# Batches.


def draw_batches(data: Remote, turn: int) -> list[list[int]]:
    """Return several batches: a repeated one could be read from a cache."""
    numbers = random.Random(turn)
    return [numbers.sample(range(len(data)), BATCH) for _ in range(8)]


def open_checked(
    data: Remote, read: Any, batches: list[list[int]], pool: bytes
) -> ReadMany:
    """Open a reader and check two batches, which also opens its connections."""
    many: ReadMany = read(data)
    for batch in batches[:2]:
        for i, view in zip(batch, many(batch), strict=True):
            data.check(i, view, pool)
    return many


@contenders(
    "a batch of 256 random members of 100 KB over http",
    fastshard=readers.fastshard_many,
    fastshard_with_64_connections=readers.fastshard_many_64,
    urllib3_in_16_threads=readers.urllib3_many,
    obstore_in_16_threads=readers.obstore_many_in_threads,
    obstore_in_64_threads=readers.obstore_many_in_64_threads,
    obstore_gathered=readers.obstore_many_gathered,
    obstore_get_ranges=readers.obstore_many_as_ranges,
    fsspec_cat_ranges=readers.fsspec_many,
)
def bench_batch(
    benchmark: Any, sizes: Sizes, server: Server, pool: bytes, read: Any, turn: int
) -> None:
    data = remote(sizes[LARGE], server)
    batches = draw_batches(data, turn)

    counted = open_checked(replace(data, address=server.counted), read, batches, pool)
    server.moved()
    counted(batches[2])
    benchmark.extra_info["requests"] = server.moved().requests

    many = open_checked(data, read, batches, pool)
    coming = itertools.cycle(batches)
    note(benchmark, read)
    benchmark.extra_info["operations"] = BATCH
    benchmark(lambda: many(next(coming)))


# Batches at a distance.

# Connections of each contender, from which its ideal time follows.
CONNECTIONS: dict[Any, int] = {
    readers.fastshard_many: 16,
    readers.fastshard_many_64: 64,
    readers.urllib3_many: readers.THREADS,
    readers.obstore_many_in_threads: readers.THREADS,
    readers.obstore_many_in_64_threads: 64,
    readers.obstore_many_gathered: BATCH,
    readers.fsspec_many: 100,
}
FROM_AFAR = {
    "fastshard": readers.fastshard_many,
    "fastshard_with_64_connections": readers.fastshard_many_64,
    "urllib3_in_16_threads": readers.urllib3_many,
    "obstore_in_16_threads": readers.obstore_many_in_threads,
    "obstore_in_64_threads": readers.obstore_many_in_64_threads,
    "obstore_gathered": readers.obstore_many_gathered,
    "fsspec_cat_ranges": readers.fsspec_many,
}


@pytest.mark.parametrize("ms", [20, 40])
@contenders("a batch from afar", **FROM_AFAR)
def bench_batch_from_afar(
    benchmark: Any,
    sizes: Sizes,
    server: Server,
    distant: Distant,
    pool: bytes,
    read: Any,
    turn: int,
    ms: int,
) -> None:
    benchmark.group = f"a batch of 256 random members of 100 KB from {ms} ms away"
    data = remote(sizes[LARGE], server)
    batches = draw_batches(data, turn)
    many = open_checked(replace(data, address=distant[ms].url), read, batches, pool)
    coming = itertools.cycle(batches)
    note(benchmark, read)
    benchmark.pedantic(lambda: many(next(coming)), rounds=5)

    each = distant[ms].trip(data.paths[0])
    speed = distant[0].bandwidth(data.paths)
    ideal = math.ceil(BATCH / CONNECTIONS[read]) * each + BATCH * LARGE / speed
    if benchmark.stats is None:  # --benchmark-disable
        return
    excess = (benchmark.stats.stats.median - ideal) / each
    benchmark.extra_info["ms a round trip"] = round(each * 1000, 2)
    benchmark.extra_info["MB/s at most"] = round(speed / 1e6)
    benchmark.extra_info["ms ideally"] = round(ideal * 1000, 1)
    benchmark.extra_info["round trips more than that"] = round(excess, 2)


# All members in order.

SCANS = {
    "fastshard": readers.fastshard_scan,
    "fastshard_in_64_MiB": readers.fastshard_scan_in_64_mib,
    "curl_to_dev_null": readers.curl_scan,
    "webdataset": readers.webdataset_scan,
    "tarfile_on_urllib3": readers.urllib3_scan,
}


@pytest.mark.parametrize("size", [LARGE, SMALL])
@contenders("members in order", **SCANS)
def bench_scan(
    benchmark: Any, sizes: Sizes, server: Server, read: Any, turn: int, size: int
) -> None:
    if read is readers.curl_scan and shutil.which("curl") is None:
        pytest.skip("needs curl")
    benchmark.group = f"members of {size >> 10} KB in order, over http"
    data = remote(sizes[size], server)
    files = sum(tar.path.stat().st_size for tar in data.tars)
    payload = len(data) * data.size
    assert read(data.source) == (files if read is readers.curl_scan else payload)
    note(benchmark, read)
    benchmark.extra_info["operations"] = len(data)
    benchmark.pedantic(read, args=(data.source,), rounds=3)
    if benchmark.stats is None:
        return
    speed = files / benchmark.stats.stats.median
    benchmark.extra_info["MB/s of the files"] = round(speed / 1e6)


@contenders(
    "members of 100 KB in order, over http, with the process that does it",
    fastshard_in_64_MiB=readers.fastshard_scan_in_64_mib,
    fastshard=readers.fastshard_scan,
    webdataset=readers.webdataset_scan,
    tarfile_on_urllib3=readers.urllib3_scan,
)
def bench_memory(
    benchmark: Any, sizes: Sizes, server: Server, read: Any, turn: int
) -> None:
    pytest.importorskip(read.__name__.partition("_")[0])
    data = remote(sizes[LARGE], server)
    command = [sys.executable, "-m", readers.__name__, read.__name__, data.source]
    bench = Path(__file__).parent

    def scan() -> tuple[int, int]:
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=bench)
        out = done.stdout
        total, growth = map(int, out.split())
        return total, growth

    total, growth = benchmark.pedantic(scan, rounds=1)
    assert total == len(data) * LARGE
    note(benchmark, read)
    benchmark.extra_info["MB more at the peak"] = round(growth / 1e6, 1)


# Indexing a tar.


@pytest.fixture(scope="session")
def bare(site: Path) -> Tar:
    """Write a tar without an index."""
    (site / "bare").mkdir()
    return write(site / "bare/bare.tar", "ustar", MEMBERS, LARGE)


def indexed(benchmark: Any, bare: Tar, server: Server, near: Server, read: Any) -> None:
    """Time indexing from `server`; count the bytes of one run at `near`."""
    path = "bare/bare.tar"
    near.moved()
    found = read(near.counted(path))
    moved = near.moved()
    assert found == list(zip(bare.names, bare.offsets, strict=True))
    share = (moved.down + moved.up) / bare.path.stat().st_size
    note(benchmark, read)
    benchmark.extra_info["% of the file moved"] = round(share * 100, 2)
    benchmark.extra_info["requests"] = moved.requests
    benchmark.extra_info["members"] = bare.members
    benchmark.pedantic(read, args=(server.url(path),), rounds=1)


@contenders(
    "an index of a tar of members of 100 KB over http",
    fastshard=readers.fastshard_index,
    tarfile_on_urllib3=readers.urllib3_index,
    tarfile_on_fsspec=readers.fsspec_index,
)
def bench_index(
    benchmark: Any, bare: Tar, server: Server, read: Any, turn: int
) -> None:
    indexed(benchmark, bare, server, server, read)


@contenders(  # without fsspec: it takes a request, so 20 ms, for each member
    "an index of a tar of members of 100 KB from 20 ms away",
    fastshard=readers.fastshard_index,
    tarfile_on_urllib3=readers.urllib3_index,
)
def bench_index_from_20_ms(
    benchmark: Any, bare: Tar, server: Server, distant: Distant, read: Any, turn: int
) -> None:
    indexed(benchmark, bare, distant[20], server, read)
