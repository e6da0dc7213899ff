"""Indexes of datasets, their stores of shards, and content identifiers.

pytest bench/typed/bench_typed_index.py

The rival of CIDs is libipld, by which atdata makes them. A bar is a factor in the same
run; the summary at the end says which are met.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import urllib3
from numpy.typing import NDArray

from fastshard import typed
from fastshard.atmosphere.cid import cid_of_blob
from fastshard.catalog.providers.rows import pack_entry
from fastshard.typed.stores.writing import write_to_store
from harness import SCALE, contenders, expect
from harness.pds import run_pds, server_name

COUNT = max(int(10_000 * SCALE), 10)  # samples
NUMBERS = 2_560  # float32 in a sample: 10 KiB
BLOB = max(int(256 * SCALE), 1) << 20  # bytes
LABEL = "science.alt.dataset.label"
LIST = "com.atproto.repo.listRecords"


@typed.packable
class Row:
    label: str
    array: NDArray[np.float32]


# Writing.


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    numbers = np.random.default_rng(0).random((COUNT, NUMBERS), dtype="f4")
    return [Row(f"row {i}", numbers[i]) for i in range(COUNT)]


def write_alone(folder: Path, rows: list[Row]) -> list[str]:
    shards = typed.write_samples(rows, folder / "a.tar", maxcount=10_000)
    return shards.list_shards()


def write_stored(folder: Path, rows: list[Row]) -> list[str]:
    store = typed.LocalDiskStore(folder)
    return write_to_store(store, rows, prefix="a", maxcount=10_000)


def write_indexed(folder: Path, rows: list[Row]) -> list[str]:
    store = typed.LocalDiskStore(folder)
    index = typed.Index(path=folder / "index.db", data_store=store)
    return index.write_samples(rows, name="a").data_urls


@contenders(
    f"write_samples, {COUNT:,} samples of 10 KiB",
    Index_and_LocalDiskStore=write_indexed,
    LocalDiskStore=write_stored,
    write_samples=write_alone,
)
def bench_write(
    benchmark: Any,
    tmp_path: Path,
    rows: list[Row],
    read: Callable[[Path, list[Row]], list[str]],
    turn: int,
) -> None:
    expect(benchmark, "LocalDiskStore", "write_samples", 1 / 1.1)
    expect(benchmark, "Index_and_LocalDiskStore", "write_samples", 1 / 1.1)
    numbers = iter(range(100))

    def setup() -> tuple[tuple[Path, list[Row]], dict[str, Any]]:
        out = tmp_path / str(next(numbers))
        out.mkdir()
        return (out, rows), {}

    def drop(folder: Path, rows: list[Row]) -> None:
        shutil.rmtree(folder)

    found = typed.Dataset[Row](read(*setup()[0]))
    assert len(found) == COUNT
    assert np.array_equal(found[COUNT - 1].array, rows[-1].array)
    benchmark.extra_info["operations"] = COUNT
    benchmark.pedantic(read, setup=setup, teardown=drop, rounds=5)
    shutil.rmtree(tmp_path)


# Content identifiers.


def cid_fastshard(entry: dict[str, Any]) -> str:
    return typed.generate_cid(entry)


def find_libipld() -> Any:
    try:
        return import_module("libipld")
    except ImportError:
        return None


libipld = find_libipld()


def cid_libipld(entry: dict[str, Any]) -> str:
    digest = hashlib.sha256(libipld.encode_dag_cbor(entry)).digest()
    text: str = libipld.encode_cid(bytes([1, 0x71, 0x12, 0x20]) + digest)
    return text


@pytest.mark.parametrize("urls", [1, 1000])
@contenders("generate_cid of an entry", fastshard=cid_fastshard, libipld=cid_libipld)
def bench_cid(
    benchmark: Any, read: Callable[[dict[str, Any]], str], urls: int, turn: int
) -> None:
    expect(benchmark, "fastshard", "libipld", 1 / 10)
    if read is cid_libipld and libipld is None:
        pytest.skip("libipld is not installed")
    names = [f"/data/shards/train/data--00000000--{i:06d}.tar" for i in range(urls)]
    entry = {"schema_ref": "atdata://local/schema/Row@1.0.0", "data_urls": names}
    assert read(entry) == cid_fastshard(entry)
    benchmark.group += f" of {urls:,} URL{'s' * (urls > 1)}"
    benchmark(read, entry)


def blob_fastshard(data: memoryview) -> str:
    return cid_of_blob(hashlib.sha256(data).digest())


def blob_sha256(data: memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


@contenders(
    f"CID of a blob of {BLOB >> 20:,} MiB", fastshard=blob_fastshard, sha256=blob_sha256
)
def bench_blob(benchmark: Any, read: Callable[[memoryview], str], turn: int) -> None:
    expect(benchmark, "fastshard", "sha256", 1 / 1.02)
    benchmark.pedantic(read, (memoryview(bytes(BLOB)),), rounds=3)


# Names among many records of a repository. The server is in this process: what counts
# is the number of requests; the rival asks for the same pages.


@pytest.fixture(scope="module")
def labels() -> Iterator[Any]:
    record_cid = import_module("support.servers.atproto.dag").record_cid
    servers = import_module("support.servers.atproto.pds")
    target = "at://did:plc:abc/science.alt.dataset.entry/x"
    base = {"$type": LABEL, "datasetUri": target, "createdAt": "2026-11-22T06:08:44Z"}
    with servers.FakePds() as pds:
        account = pds.create_account("alice.test")
        kept = account.records.setdefault(LABEL, {})
        for i in range(COUNT):
            record = {**base, "name": f"label {i}"}
            kept[pds.next_key()] = record_cid(record), record
        yield pds


def label_first(pds: Any) -> int:
    client = typed.Atmosphere(pds.url, plc_url=pds.plc.url)
    loader = typed.LabelLoader(client)
    loader.resolve("alice.test", "label 0")
    pages = count_pages(pds)
    loader.resolve("alice.test", f"label {COUNT // 2}")
    assert pds.count() == 1  # a second look-up in a session asks once
    pds.forget()
    return pages


def label_urllib3(pds: Any) -> int:
    import urllib3

    fields = {"repo": next(iter(pds.accounts)), "collection": LABEL, "limit": "100"}
    with urllib3.PoolManager() as pool:
        while True:
            answer = pool.request("GET", f"{pds.url}/xrpc/{LIST}", fields=fields)
            page = json.loads(answer.data)
            if not page["records"]:
                return count_pages(pds)
            fields["cursor"] = page["cursor"]


def count_pages(pds: Any) -> int:
    pages: int = pds.count(LIST)
    pds.forget()
    return pages


@contenders(
    f"a label among {COUNT:,} records", fastshard=label_first, urllib3=label_urllib3
)
def bench_label(
    benchmark: Any, labels: Any, read: Callable[[Any], int], turn: int
) -> None:
    assert read(labels) == -(-COUNT // 100) + 1  # the last page has no records
    benchmark.pedantic(read, (labels,), rounds=3)


# Names in the stores of an index.

MANY = max(int(100_000 * SCALE), 100)  # entries of a listing


def some_entry(i: int) -> typed.DatasetEntry:
    url = f"s3://bucket/d{i}/train-{{000000..000099}}.tar"
    ref = "atdata://local/schema/Row@1.0.0"
    return typed.DatasetEntry(f"d{i}", ref, [url], {"split": "train", "n": i})


class Store(NamedTuple):
    """A store with entries and labels, and a client of one's own."""

    provider: typed.IndexProvider
    client: Any


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    path = tmp_path_factory.mktemp("names") / "index.db"
    with typed.create_provider("sqlite", path=path) as provider:
        provider.store_label("", "")  # makes the tables
        with closing(sqlite3.connect(path)) as client:
            with client:  # in one transaction: a commit each takes a minute
                for entry in map(some_entry, range(COUNT)):
                    values = pack_entry(entry)
                    client.execute(
                        "INSERT INTO dataset_entries (cid, name, schema_ref, "
                        "data_urls, metadata, legacy_uuid) VALUES (?, ?, ?, ?, ?, ?)",
                        values,
                    )
                    client.execute(
                        "INSERT INTO labels (name, cid) VALUES (?, ?)",
                        (entry.name, entry.cid),
                    )
            yield Store(provider, client)


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    servers = import_module("support.servers.databases.redis")
    with servers.serve_redis(str(tmp_path_factory.mktemp("redis"))) as server:
        yield server


def fill_redis(server: Any, count: int, labels: bool) -> Iterator[Store]:
    """Store rows as atdata does, in a few pipelines."""
    redis = import_module("redis")
    options = server.new()
    with (
        redis.Redis(**options) as client,
        typed.create_provider("redis", **options) as provider,
    ):
        for start in range(0, count, 1000):
            pipeline = client.pipeline(transaction=False)
            for entry in map(some_entry, range(start, min(start + 1000, count))):
                cid, name, ref, urls, metadata, _ = pack_entry(entry)
                fields = {"name": name, "schema_ref": ref, "data_urls": urls}
                fields |= {"cid": cid, "metadata": metadata or b""}
                pipeline.hset(f"LocalDatasetEntry:{cid}", mapping=fields)
                if labels:
                    fields = {"name": name, "cid": cid, "version": ""}
                    pipeline.hset(f"Label:{name}@", mapping=fields)
            pipeline.execute()
        yield Store(provider, client)


@pytest.fixture(scope="module")
def redis(redis_server: Any) -> Iterator[Store]:
    yield from fill_redis(redis_server, COUNT, labels=True)


@pytest.fixture(scope="module")
def redis_many(redis_server: Any) -> Iterator[Store]:
    yield from fill_redis(redis_server, MANY, labels=False)


@pytest.fixture(scope="module")
def postgres() -> Iterator[Store]:
    servers = import_module("support.servers.databases.postgres")
    psycopg = import_module("psycopg")
    with servers.serve_postgres() as server:
        options = server.new()
        with (
            typed.create_provider("postgres", **options) as provider,
            psycopg.connect(options["dsn"], autocommit=True) as client,
        ):
            for entry in map(some_entry, range(COUNT)):
                provider.store_entry(entry)
                provider.store_label(entry.name, entry.cid)
            yield Store(provider, client)


def name_fastshard(store: Store) -> str:
    index = typed.Index(store.provider, atmosphere=None)
    return index.get_dataset(f"d{COUNT // 2}").name


def name_60_us(store: Store) -> str:
    end = time.perf_counter() + 60e-6
    while time.perf_counter() < end:
        pass
    return f"d{COUNT // 2}"


def name_scan(store: Store) -> str:
    """Find a label and its entry as atdata does: by a scan of all keys."""
    for key in store.client.scan_iter(match=f"Label:d{COUNT // 2}@*"):
        label = store.client.hgetall(key)
    entry = store.client.hgetall(f"LocalDatasetEntry:{label[b'cid'].decode()}")
    name: str = entry[b"name"].decode()
    return name


def name_round_trips(store: Store) -> str:
    for _ in range(3):
        store.client.execute("SELECT 1").fetchall()
    return f"d{COUNT // 2}"


def time_name(
    benchmark: Any, store: Store, read: Callable[[Store], str], rounds: int
) -> None:
    assert read(store) == f"d{COUNT // 2}"
    benchmark.pedantic(read, (store,), rounds=rounds, warmup_rounds=1)


@contenders(
    f"get_dataset of {COUNT:,}, SQLite",
    fastshard=name_fastshard,
    limit_of_60_us=name_60_us,
)
def bench_name_sqlite(
    benchmark: Any, sqlite: Store, read: Callable[[Store], str], turn: int
) -> None:
    expect(benchmark, "fastshard", "limit_of_60_us", 1)
    time_name(benchmark, sqlite, read, 2000)


@contenders(
    f"get_dataset of {COUNT:,}, Redis", fastshard=name_fastshard, atdata_scan=name_scan
)
def bench_name_redis(
    benchmark: Any, redis: Store, read: Callable[[Store], str], turn: int
) -> None:
    expect(benchmark, "fastshard", "atdata_scan", 100)
    time_name(benchmark, redis, read, 200 if read is name_fastshard else 5)


@contenders(
    f"get_dataset of {COUNT:,}, Postgres",
    fastshard=name_fastshard,
    three_round_trips=name_round_trips,
)
def bench_name_postgres(
    benchmark: Any, postgres: Store, read: Callable[[Store], str], turn: int
) -> None:
    expect(benchmark, "fastshard", "three_round_trips", 1)
    time_name(benchmark, postgres, read, 500)


def list_fastshard(store: Store) -> Sequence[Any]:
    return typed.Index(store.provider, atmosphere=None).list_datasets()


def list_each(store: Store) -> list[typed.DatasetEntry]:
    """List entries as atdata does: in a round trip each."""
    msgpack = import_module("msgpack")
    entries = []
    for key in store.client.scan_iter(match="LocalDatasetEntry:*"):
        fields = store.client.hgetall(key)
        entries.append(
            typed.DatasetEntry(
                fields[b"name"].decode(),
                fields[b"schema_ref"].decode(),
                msgpack.unpackb(fields[b"data_urls"]),
                msgpack.unpackb(fields[b"metadata"]),
                fields[b"cid"].decode(),
            )
        )
    return entries


@contenders(
    f"list_datasets of {MANY:,}, Redis", fastshard=list_fastshard, atdata=list_each
)
def bench_list_redis(
    benchmark: Any,
    redis_many: Store,
    read: Callable[[Store], Sequence[Any]],
    turn: int,
) -> None:
    expect(benchmark, "fastshard", "atdata", 10)
    found = {entry.cid: entry for entry in read(redis_many)}
    assert found == {entry.cid: entry for entry in map(some_entry, range(MANY))}
    benchmark.extra_info["operations"] = MANY
    benchmark.pedantic(read, (redis_many,), rounds=2)


# Shards that are blobs.

SHARDS = 10
# The real server takes 5 MiB where its configuration does not say another limit.
SHARD_ROWS = max(int((12 if server_name() == "@atproto/pds" else 100) * SCALE), 2)
ROW_NUMBERS = 100_000  # float32 in a sample: 400 kB


class Blobs(NamedTuple):
    """A dataset whose shards are blobs, and the same shards as files."""

    urls: list[str]  # at://
    http: list[str]
    paths: list[str]
    nbytes: int
    client: typed.Atmosphere


@pytest.fixture(scope="module")
def blobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Blobs]:
    folder = tmp_path_factory.mktemp("blobs")
    numbers = np.random.default_rng(0).random((SHARD_ROWS, ROW_NUMBERS), dtype="f4")
    rows = (
        Row(f"{k}-{i}", numbers[i] + np.float32(k))
        for k in range(SHARDS)
        for i in range(SHARD_ROWS)
    )
    ds = typed.write_samples(rows, folder / "a.tar", maxcount=SHARD_ROWS)
    with run_pds() as client:
        store = typed.PDSBlobStore(client)
        result = store.write_shards(ds, prefix="a")
        client.create_record("com.example.blobs", {"blobs": result.blob_refs})
        nbytes = sum(blob["size"] for blob in result.blob_refs)
        http = [store.read_url(url) for url in result]
        yield Blobs(list(result), http, ds.list_shards(), nbytes, client)
    shutil.rmtree(folder)


def read_all(ds: typed.Dataset[Row]) -> int:
    """Return the bytes of the arrays of an epoch."""
    return sum(row.array.nbytes for row in ds.ordered())


def blobs_fastshard(blobs: Blobs, folder: Path) -> int:
    source = typed.BlobSource.from_refs(blobs.urls, client=blobs.client)
    return read_all(typed.Dataset[Row](source, cache_dir=folder))


def blobs_urllib3(blobs: Blobs, folder: Path) -> int:
    pool = urllib3.PoolManager()
    return sum(len(pool.request("GET", url).data) for url in blobs.http)


def blobs_to_files(blobs: Blobs, folder: Path) -> int:
    pool = urllib3.PoolManager()
    total = 0
    for i, url in enumerate(blobs.http):
        data = pool.request("GET", url).data
        total += (folder / f"{i}.tar").write_bytes(data)
    return total


@contenders(
    f"{SHARDS} blobs of {SHARD_ROWS * ROW_NUMBERS * 4 / 1e6:,.0f} MB, first epoch, "
    f"{server_name()}",
    fastshard=blobs_fastshard,
    urllib3=blobs_urllib3,
    urllib3_to_files=blobs_to_files,
)
def bench_first_epoch(
    benchmark: Any,
    tmp_path: Path,
    blobs: Blobs,
    read: Callable[[Blobs, Path], int],
    turn: int,
) -> None:
    expect(benchmark, "fastshard", "urllib3", 1 / 1.2)
    found = SHARDS * SHARD_ROWS * ROW_NUMBERS * 4
    expected = found if read is blobs_fastshard else blobs.nbytes
    numbers = iter(range(100))

    def setup() -> tuple[tuple[Blobs, Path], dict[str, Any]]:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        return (blobs, folder), {}

    def drop(_: Blobs, folder: Path) -> None:
        shutil.rmtree(folder)

    assert read(*setup()[0]) == expected
    benchmark.extra_info["bytes"] = blobs.nbytes
    benchmark.pedantic(read, setup=setup, teardown=drop, rounds=3)
    shutil.rmtree(tmp_path)


def open_blobs(blobs: Blobs, folder: Path) -> typed.Dataset[Row]:
    source = typed.BlobSource.from_refs(blobs.urls, client=blobs.client)
    return typed.Dataset[Row](source, cache_dir=folder)


def open_files(blobs: Blobs, folder: Path) -> typed.Dataset[Row]:
    return typed.Dataset[Row](blobs.paths)


@pytest.mark.parametrize("opened", [False, True], ids=["epoch", "open and epoch"])
@contenders("blobs in the cache", fastshard=open_blobs, local_shards=open_files)
def bench_second_epoch(
    benchmark: Any,
    tmp_path_factory: pytest.TempPathFactory,
    blobs: Blobs,
    read: Callable[[Blobs, Path], typed.Dataset[Row]],
    opened: bool,
    turn: int,
) -> None:
    expect(benchmark, "fastshard", "local_shards", 1 / 1.05)
    folder = tmp_path_factory.getbasetemp() / "second epoch"
    ds = read(blobs, folder)
    expected = SHARDS * SHARD_ROWS * ROW_NUMBERS * 4
    assert read_all(ds) == expected
    benchmark.group += ", opened before each epoch" if opened else ", later epochs"
    if opened:
        benchmark.pedantic(lambda: read_all(read(blobs, folder)), rounds=30)
    else:
        benchmark.pedantic(read_all, (ds,), rounds=30)
