"""Readers of tars over HTTP, fastshard's and rivals': members, batches, scans, indexes.

A reader of members is opened with a `Remote` and then called with positions; scans
and indexers are called with an address. Readers that are not installed are skipped.

webshart is missing: it reads only from directories and from huggingface.co, not from
another server or the URL of a tar.

    cd bench; python -m rivals.remote_readers SCAN URL  # prints the bytes a scan adds
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import fastshard
from fastshard._util.paths.globs import expand_braces
from harness import Tar

THREADS = 16
HUB = "datasets/bench/data"  # repository of the fake hub

ReadOne = Callable[[int], Any]
ReadMany = Callable[[Sequence[int]], Sequence[Any]]
Offsets = list[tuple[str, int]]  # names of members, offsets of their bytes


@dataclass(frozen=True)
class Remote:
    """Shards on a server, with equal numbers of members."""

    tars: Sequence[Tar]
    address: Callable[[str], str]  # returns the URL of a path on the server
    pattern: str  # brace list of the shards' paths

    @property
    def source(self) -> str:
        return self.address(self.pattern)

    @property
    def urls(self) -> list[str]:
        return [self.address(path) for path in self.paths]

    @property
    def paths(self) -> list[str]:
        return expand_braces(self.pattern)

    @property
    def size(self) -> int:
        """Size of each member, bytes."""
        return self.tars[0].size

    def __len__(self) -> int:
        return sum(tar.members for tar in self.tars)

    def locations(self, positions: Iterable[int]) -> list[tuple[int, int]]:
        """Return the shard of each member, and the offset of its bytes."""
        each = self.tars[0].members
        return [(i // each, self.tars[i // each].offsets[i % each]) for i in positions]

    def check(self, i: int, data: Any, pool: bytes) -> None:
        """Check the bytes of the i-th member."""
        head = b"%016d" % (i % self.tars[0].members)
        view = memoryview(data)
        assert len(view) == self.size
        assert view[:16] == head
        assert view[16:] == pool[: self.size - 16]


def byte_range(start: int, size: int) -> dict[str, str]:
    return {"Range": f"bytes={start}-{start + size - 1}"}


# Single members of the first shard.


def fastshard_one(data: Remote) -> ReadOne:
    return fastshard.open_shard(data.urls[0]).read


def urllib3_one(data: Remote) -> ReadOne:
    pool = pytest.importorskip("urllib3").PoolManager()
    url, offsets, size = data.urls[0], data.tars[0].offsets, data.size

    def read(i: int) -> Any:
        return pool.request("GET", url, headers=byte_range(offsets[i], size)).data

    return read


def obstore_one(data: Remote) -> ReadOne:
    obstore, store = store_of(data)
    path, offsets, size = data.paths[0], data.tars[0].offsets, data.size

    def read(i: int) -> Any:
        return obstore.get_range(store, path, start=offsets[i], length=size)

    return read


def fsspec_one(data: Remote) -> ReadOne:
    fs = http_of_fsspec()
    url, offsets, size = data.urls[0], data.tars[0].offsets, data.size

    def read(i: int) -> Any:
        return fs.cat_file(url, start=offsets[i], end=offsets[i] + size)

    return read


def huggingface_hub_one(data: Remote) -> ReadOne:
    """Read from a fake hub on the server. Without a cache: that reads ahead 5 MB."""
    hub = pytest.importorskip("huggingface_hub")
    fs = hub.HfFileSystem(
        endpoint=data.address("").rstrip("/"), token=False, skip_instance_cache=True
    )
    path, offsets, size = f"{HUB}/{data.paths[0]}", data.tars[0].offsets, data.size

    def read(i: int) -> Any:
        start = offsets[i]
        return fs.cat_file(path, start=start, end=start + size, cache_type="none")

    return read


def store_of(data: Remote) -> tuple[Any, Any]:
    """Return the module obstore, and a store for the whole server."""
    obstore = pytest.importorskip("obstore")
    stores = pytest.importorskip("obstore.store")
    options = {"allow_http": True}
    return obstore, stores.HTTPStore(data.address(""), client_options=options)


def http_of_fsspec() -> Any:
    pytest.importorskip("aiohttp")
    fsspec = pytest.importorskip("fsspec")
    return fsspec.filesystem("http", skip_instance_cache=True)


# Batches.


def many_of_fastshard(data: Remote, **options: Any) -> ReadMany:
    ds = fastshard.open(data.source, **options)

    def read(positions: Sequence[int]) -> Sequence[Any]:
        return [sample["bin"] for sample in ds.get_many(positions)]

    return read


def fastshard_many(data: Remote) -> ReadMany:
    return many_of_fastshard(data)


def fastshard_many_64(data: Remote) -> ReadMany:
    return many_of_fastshard(data, connections=64)


def urllib3_many(data: Remote) -> ReadMany:
    pool = pytest.importorskip("urllib3").PoolManager(maxsize=THREADS, block=True)
    threads = ThreadPoolExecutor(THREADS)
    urls, size = data.urls, data.size

    def one(location: tuple[int, int]) -> Any:
        k, at = location
        return pool.request("GET", urls[k], headers=byte_range(at, size)).data

    return lambda positions: list(threads.map(one, data.locations(positions)))


def obstore_many_in_64_threads(data: Remote) -> ReadMany:
    return obstore_many_in_threads(data, 64)


def obstore_many_in_threads(data: Remote, count: int = THREADS) -> ReadMany:
    obstore, store = store_of(data)
    threads = ThreadPoolExecutor(count)
    paths, size = data.paths, data.size

    def one(location: tuple[int, int]) -> Any:
        return obstore.get_range(
            store, paths[location[0]], start=location[1], length=size
        )

    return lambda positions: list(threads.map(one, data.locations(positions)))


def obstore_many_gathered(data: Remote) -> ReadMany:
    """Read by as many connections as members."""
    obstore, store = store_of(data)
    paths, size = data.paths, data.size

    async def every(positions: Sequence[int]) -> Sequence[Any]:
        get = obstore.get_range_async
        return await asyncio.gather(
            *(
                get(store, paths[k], start=at, length=size)
                for k, at in data.locations(positions)
            )
        )

    return lambda positions: asyncio.run(every(positions))


def obstore_many_as_ranges(data: Remote) -> ReadMany:
    """Read by concurrent calls, one for each shard, of up to 10 connections each."""
    obstore, store = store_of(data)
    paths, size = data.paths, data.size

    async def every(positions: Sequence[int]) -> Sequence[Any]:
        found: list[Any] = [None] * len(positions)

        async def of_shard(k: int, wanted: list[tuple[int, int]]) -> None:
            starts = [at for _, at in wanted]
            views = await obstore.get_ranges_async(
                store, paths[k], starts=starts, lengths=[size] * len(starts), coalesce=0
            )
            for (j, _), view in zip(wanted, views, strict=True):
                found[j] = view

        wanted = enumerate(data.locations(positions))
        by_shard = sorted((k, j, at) for j, (k, at) in wanted)
        groups = itertools.groupby(by_shard, lambda location: location[0])
        shards = [(k, [(j, at) for _, j, at in group]) for k, group in groups]
        await asyncio.gather(*(of_shard(k, wanted) for k, wanted in shards))
        return found

    return lambda positions: asyncio.run(every(positions))


def fsspec_many(data: Remote) -> ReadMany:
    """Read by up to 100 connections, the limit of aiohttp."""
    fs = http_of_fsspec()
    urls, size = data.urls, data.size

    def read(positions: Sequence[int]) -> Any:
        locations = data.locations(positions)
        starts = [at for _, at in locations]
        ends = [at + size for at in starts]
        return fs.cat_ranges([urls[k] for k, _ in locations], starts, ends)

    return read


# Scans: the sum of all members' bytes, in order.


def sum_of_fastshard(source: str, **options: Any) -> int:
    return sum(len(sample["bin"]) for sample in fastshard.open(source, **options))


def fastshard_scan(source: str) -> int:
    return sum_of_fastshard(source)


def fastshard_scan_in_64_mib(source: str) -> int:
    return sum_of_fastshard(source, max_memory="64MiB")


def curl_scan(source: str) -> int:
    """Only fetch the files; the sum is of their bytes."""
    command = ["curl", "-s", "-w", "%{size_download}\n"]
    for url in expand_braces(source):
        command += ["-o", "/dev/null", url]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    return sum(map(int, out.split()))


def webdataset_scan(source: str) -> int:
    """Read from a pipe of `curl`, webdataset's default."""
    wds = pytest.importorskip("webdataset")
    data = wds.WebDataset(expand_braces(source), shardshuffle=False)
    return sum(len(sample["bin"]) for sample in data)


def urllib3_scan(source: str) -> int:
    """Read urllib3's stream by tarfile."""
    pool = pytest.importorskip("urllib3").PoolManager()
    total = 0
    for url in expand_braces(source):
        response = pool.request("GET", url, preload_content=False)
        with tarfile.open(fileobj=response, mode="r|", bufsize=1 << 20) as tar:
            for member in tar:
                file = tar.extractfile(member)
                assert file is not None
                total += len(file.read())
    return total


# Indexes: the offsets of a tar's members.


def fastshard_index(url: str) -> Offsets:
    with fastshard.open_shard(url, index="none") as shard:
        return list(zip(shard.names, shard.offsets.tolist(), strict=True))


def urllib3_index(url: str) -> Offsets:
    """Read the whole file by tarfile."""
    pool = pytest.importorskip("urllib3").PoolManager()
    response = pool.request("GET", url, preload_content=False)
    with tarfile.open(fileobj=response, mode="r|", bufsize=1 << 20) as tar:
        return [(member.name, member.offset_data) for member in tar]


def fsspec_index(url: str) -> Offsets:
    """Seek from header to header by tarfile, with one request for each.

    Tarfile reads the byte before a header first; the block cache joins the two reads.
    """
    options: Any = {"cache_type": "readahead", "block_size": 1024}
    with http_of_fsspec().open(url, **options) as file, tarfile.open(fileobj=file) as t:
        return [(member.name, member.offset_data) for member in t]


# Memory of a scan, in a process of its own.


def status(field: str) -> int:
    """Return a field of this process's status in /proc, bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) << 10
    raise LookupError(field)


def main(name: str, source: str) -> None:
    """Print the bytes of a scan, and the growth of the process in bytes.

    The library is imported before; modules that fastshard imports at open are not.
    """
    importlib.import_module(name.partition("_")[0])
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    total = globals()[name](source)
    print(total, status("VmHWM") - before)


if __name__ == "__main__":
    main(*sys.argv[1:])
