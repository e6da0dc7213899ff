"""MosaicML Streaming shards: MDS, JSON and CSV, read and written.

pytest bench/bench_mds.py

Rivals that are not installed are skipped by name: mosaicml-streaming (its Reader,
LocalDataset, StreamingDataset, StreamingDataLoader and MDSWriter), litdata,
array_record, bagz. The page cache is warm unless a group says cold. A bar is a factor
in the same run; the summary at the end says which are met.
"""

from __future__ import annotations

import gc
import json
import mmap
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastshard
from harness import SCALE, Decorator, contenders, evict, expect
from rivals import mds_readers as by
from rivals.epochs import BATCH, Epoch
from rivals.mds_data import (
    BLOBS,
    DOCUMENTS,
    FLOAT_COLUMNS,
    IMAGES,
    INTS,
    RECORDS,
    STATIC,
    TEXTS,
    VECTORS,
    Kind,
    Row,
    Store,
    encoded,
    positions,
    rows_of,
    same,
    write_large_index,
    write_zstd,
)

READS = 20_480
SLOW_READS = 2048  # of a rival that takes microseconds
INDEXED = max(int(100_000 * SCALE), 100)  # shards of the large index
WRITTEN = {"text": 300_000, "floats": 20_000}  # rows

# The rivals leave files open and call deprecated functions.
pytestmark = [pytest.mark.filterwarnings("ignore")]

Open = Callable[[Store], Any]
Stores = Callable[[Kind], Store]


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stores]:
    """Return a function that makes the store of each kind once."""
    folder = tmp_path_factory.mktemp("mds")
    made: dict[str, Store] = {}

    def store(kind: Kind) -> Store:
        return made.setdefault(kind.name, Store(folder, kind))

    yield store
    shutil.rmtree(folder, ignore_errors=True)


def kinds(*given: Kind) -> Decorator:
    return pytest.mark.parametrize("kind", given, ids=[kind.name for kind in given])


def index_all(reader: Any, order: Sequence[int]) -> Any:
    for i in order:
        row = reader[i]
    return row


def check_rows(kind: Kind, reader: Any, order: Sequence[int]) -> None:
    """Compare rows with the expected ones, or the bytes of their one value."""
    for i in (0, *order[:20], kind.per_shard - 1):
        row = reader[i]
        if not isinstance(row, dict):
            (value,) = kind.row(i).values()
            row, value = bytes(row), encoded(value, *kind.columns.values())
            assert row == value
        else:
            assert same(row, kind.row(i))


def time_rows(benchmark: Any, reader: Any, order: Sequence[int]) -> None:
    benchmark.extra_info["operations"] = len(order)
    benchmark.pedantic(
        index_all, (reader, order), rounds=10 if len(order) > SLOW_READS else 3
    )


# Single rows of one shard, at random.

SINGLE = {
    "int": {"fastshard": 80},
    "text": {"fastshard": 80},
    "floats": {"fastshard": 50},
    "vector": {"fastshard_views": 60},
    "static": {"fastshard_views": 60},
    "blob": {"fastshard": 20, "fastshard_views": 80},
}
ONE_VALUE = (TEXTS, BLOBS)  # values for stores of bytes, too
FAST = (by.reader, by.reader_of_views, by.decoded, by.bagz)


@contenders(
    "reader[i]",
    fastshard=by.reader,
    fastshard_views=by.reader_of_views,
    fastshard_dataset_decoded=by.decoded,
    mosaicml_Reader=by.mosaicml,
    mosaicml_LocalDataset=by.mosaicml_local,
    mosaicml_StreamingDataset=by.mosaicml_streaming,
    litdata=by.litdata,
    array_record=by.array_record,
    bagz=by.bagz,
)
@kinds(INTS, TEXTS, FLOAT_COLUMNS, VECTORS, STATIC, BLOBS)
def bench_row(
    benchmark: Any, stores: Stores, read: Open, kind: Kind, turn: int
) -> None:
    if read in (by.bagz, by.array_record) and kind not in ONE_VALUE:
        pytest.skip("stores blobs, not rows")
    store = stores(kind)
    reader = read(store)
    reads = READS if read in FAST else 256 if read is by.litdata else SLOW_READS
    order = positions(kind.per_shard, reads)
    check_rows(kind, reader, order)
    benchmark.group = f"reader[i], {kind.title}"
    for who, times in SINGLE[kind.name].items():
        expect(benchmark, who, "mosaicml_Reader", times)
    if kind in ONE_VALUE:
        expect(benchmark, "fastshard", "bagz", 1)
    time_rows(benchmark, reader, order)


@contenders(
    "reader[i], JSON, 4 columns",
    fastshard=by.json_reader,
    mosaicml_Reader=by.mosaicml_json,
)
def bench_json(benchmark: Any, stores: Stores, read: Open, turn: int) -> None:
    expect(benchmark, "fastshard", "mosaicml_Reader", 5)
    reader = read(stores(RECORDS))
    order = positions(RECORDS.per_shard, SLOW_READS)
    check_rows(RECORDS, reader, order)
    time_rows(benchmark, reader, order)


@contenders(
    "reader[i], CSV, 4 columns",
    fastshard=by.csv_reader,
    mosaicml_Reader=by.mosaicml_csv,
)
def bench_csv(benchmark: Any, stores: Stores, read: Open, turn: int) -> None:
    expect(benchmark, "fastshard", "mosaicml_Reader", 8)
    reader = read(stores(RECORDS))
    order = positions(RECORDS.per_shard, SLOW_READS)
    check_rows(RECORDS, reader, order)
    time_rows(benchmark, reader, order)


# Samples of a dataset, beside those of tars with the same fields.


def open_mds(store: Store) -> Any:
    return fastshard.open(store.mds)


def open_json(store: Store) -> Any:
    return fastshard.open(store.json)


def open_csv(store: Store) -> Any:
    return fastshard.open(store.csv)


def open_tars(store: Store) -> Any:
    return fastshard.open(store.tars)


def read_samples(ds: Any, order: Sequence[int]) -> Any:
    for i in order:
        sample = ds[i]
    return sample


def read_fields(ds: Any, order: Sequence[int]) -> Any:
    for i in order:
        sample = ds[i]
        fields = sample["id"], sample["score"], sample["text"], sample["value"]
    return fields


@contenders(
    "ds[i]",
    fastshard_mds=open_mds,
    fastshard_json=open_json,
    fastshard_csv=open_csv,
    fastshard_tar=open_tars,
)
@pytest.mark.parametrize(
    "loop", [read_samples, read_fields], ids=["sample", "four_views"]
)
def bench_sample(
    benchmark: Any,
    stores: Stores,
    read: Open,
    loop: Callable[..., Any],
    turn: int,
) -> None:
    ds = read(stores(RECORDS))
    assert len(ds) == RECORDS.count
    order = positions(RECORDS.count, READS)
    for i in order[:20]:
        assert bytes(ds[i]["text"]).decode().strip('"') == RECORDS.row(i)["text"]
    with_views = " with four views" if loop is read_fields else ""
    benchmark.group = f"ds[i]{with_views}, 4 columns, at random"
    expect(benchmark, "fastshard_mds", "fastshard_tar", 1 / 1.5)
    benchmark.extra_info["operations"] = len(order)
    benchmark.pedantic(loop, (ds, order), rounds=10, warmup_rounds=1)


# Columns of many rows.

Columns = Callable[[Any], Any]


def columns_of_dataset(store: Store) -> Columns:
    ds = fastshard.open(store.mds)
    names = sorted(store.kind.columns)
    return lambda chosen: ds.columns(chosen, names)


def columns_of_reader(store: Store) -> Columns:
    return by.reader(store).read_columns  # type: ignore[no-any-return]


def columns_of_numpy(store: Store) -> Columns:
    names = sorted(store.kind.columns)
    rows = list(rows_of(store.kind))
    arrays = {name: np.array([row[name] for row in rows]) for name in names}
    return lambda chosen: {name: arrays[name][chosen] for name in names}


def columns_of_mosaicml(store: Store) -> Columns:
    ds = by.mosaicml_local(store)
    names = sorted(store.kind.columns)

    def columns(chosen: Sequence[int]) -> dict[str, Any]:
        rows = [ds[i] for i in chosen]
        return {name: np.array([row[name] for row in rows]) for name in names}

    return columns


@contenders(
    f"columns of {BATCH} random rows, 20 of float32",
    fastshard=columns_of_dataset,
    fastshard_reader=columns_of_reader,
    numpy_on_arrays_in_memory=columns_of_numpy,
    mosaicml_LocalDataset=columns_of_mosaicml,
)
def bench_columns(
    benchmark: Any, stores: Stores, read: Callable[[Store], Columns], turn: int
) -> None:
    expect(benchmark, "fastshard", "numpy_on_arrays_in_memory", 0.6)
    columns = read(stores(FLOAT_COLUMNS))
    one_shard = read is columns_of_reader
    rows = FLOAT_COLUMNS.per_shard if one_shard else FLOAT_COLUMNS.count
    chosen = np.array(positions(rows, BATCH))
    found = columns(chosen)
    for name in FLOAT_COLUMNS.columns:
        expected = [FLOAT_COLUMNS.row(i)[name] for i in chosen]
        assert np.array_equal(found[name], np.array(expected))
    benchmark(columns, chosen)


# Batches of equal bytes.

Many = Callable[[Sequence[int]], Sequence[Any]]


def many_of_reader(store: Store) -> Many:
    return by.reader(store).__getitems__  # type: ignore[no-any-return]


def many_of_views(store: Store) -> Many:
    return by.reader_of_views(store).__getitems__  # type: ignore[no-any-return]


def many_of_dataset(store: Store) -> Many:
    ds = fastshard.open(store.mds)
    (name,) = store.kind.columns
    return lambda chosen: [sample[name] for sample in ds.get_many(chosen)]


def many_of_bagz(store: Store) -> Many:
    return by.bagz(store).read_indices  # type: ignore[no-any-return]


def many_of_bagz_in_threads(store: Store) -> Many:
    return by.bagz(store, os.cpu_count() or 1).read_indices  # type: ignore[no-any-return]


def many_of_array_record(store: Store) -> Many:
    return by.array_record(store).__getitems__  # type: ignore[no-any-return]


@contenders(
    f"batches of {BATCH}",
    fastshard=many_of_reader,
    fastshard_views=many_of_views,
    fastshard_dataset=many_of_dataset,
    bagz=many_of_bagz,
    bagz_in_threads=many_of_bagz_in_threads,
    array_record=many_of_array_record,
)
@kinds(TEXTS, BLOBS)
def bench_batch(
    benchmark: Any,
    stores: Stores,
    read: Callable[[Store], Many],
    kind: Kind,
    turn: int,
) -> None:
    many = read(stores(kind))
    order = positions(kind.per_shard, BATCH * 8)
    batches = [order[k : k + BATCH] for k in range(0, len(order), BATCH)]
    for i, found in zip(batches[0], many(batches[0]), strict=True):
        (value,) = kind.row(i).values()
        value = encoded(value, *kind.columns.values())
        if isinstance(found, dict):
            (found,) = found.values()
        assert (found.encode() if isinstance(found, str) else bytes(found)) == value
    benchmark.group = f"a row of batches of {BATCH}, {kind.title}"
    expect(benchmark, "fastshard", "bagz", 1)
    benchmark.extra_info["operations"] = len(order)

    def read_all() -> None:
        for batch in batches:
            many(batch)

    benchmark.pedantic(read_all, rounds=10, warmup_rounds=1)


# Epochs.


def open_decoded(store: Store) -> Any:
    return fastshard.open(store.mds).decode()


@contenders(
    "iteration",
    fastshard=open_decoded,
    mosaicml_StreamingDataset=by.mosaicml_streaming,
    mosaicml_LocalDataset=by.mosaicml_local,
    litdata=by.litdata,
)
@kinds(INTS, TEXTS, FLOAT_COLUMNS)
def bench_iteration(
    benchmark: Any, stores: Stores, read: Open, kind: Kind, turn: int
) -> None:
    data = read(stores(kind))

    def epoch() -> int:
        count = 0
        for _ in data:
            count += 1
        return count

    for i, row in enumerate(data):
        assert i % 997 or same(row, kind.row(i))
    assert i == kind.count - 1
    benchmark.group = f"a row of an epoch, {kind.title}"
    expect(benchmark, "fastshard", "mosaicml_StreamingDataset", 100)
    benchmark.extra_info["operations"] = kind.count
    benchmark.pedantic(epoch, rounds=3 if read is open_decoded else 1)


@contenders(
    "torch's loader",
    fastshard=by.loader_of_ours,
    fastshard_collate_to_arrays=by.loader_with_fastshard_collate,
    mosaicml_StreamingDataLoader=by.loader_of_mosaicml,
)
@kinds(FLOAT_COLUMNS, VECTORS)
def bench_loader(
    benchmark: Any,
    stores: Stores,
    read: Callable[[Store, str], Epoch],
    kind: Kind,
    turn: int,
) -> None:
    pytest.importorskip("torch")
    name = min(kind.columns)
    epoch = read(stores(kind), name)
    firsts = [np.ravel(row[name])[0] for row in rows_of(kind)]
    count, total = epoch()
    assert count == kind.count
    assert total == pytest.approx(np.sum(firsts, dtype="f8"))
    benchmark.group = (
        f"a row through torch's loader, 4 workers, batches of {BATCH}, {kind.title}"
    )
    expect(benchmark, "fastshard", "mosaicml_StreamingDataLoader", 8)
    benchmark.extra_info["operations"] = kind.count
    benchmark.pedantic(epoch, rounds=2)


# A large index.


def open_fastshard(path: Path) -> int:
    with fastshard.open(path) as ds:
        return len(ds)


def open_mosaicml_readers(path: Path) -> int:
    library = by.mosaicml_module().base.format
    index = json.loads((path / "index.json").read_text())
    readers = [library.reader_from_json(str(path), None, s) for s in index["shards"]]
    return sum(reader.samples for reader in readers)


@pytest.fixture(scope="session")
def large_index(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """Return a folder with an index alone, and the bytes of its hashes and names."""
    folder = tmp_path_factory.mktemp("index")
    return folder, write_large_index(folder, INDEXED)


def grown(path: Path) -> int:
    """Return the bytes by which opening an index grows a process of its own."""
    code = (
        "import ctypes, gc, sys, fastshard\n"
        "def rss():\n"
        "    gc.collect()\n"
        "    ctypes.CDLL(None).malloc_trim(0)\n"
        "    lines = open('/proc/self/status').read().splitlines()\n"
        "    return next(int(l.split()[1]) << 10 for l in lines if 'VmRSS' in l)\n"
        "small = fastshard.open(sys.argv[2]); len(small)\n"
        "before = rss()\n"
        "ds = fastshard.open(sys.argv[1]); len(ds)\n"
        "print(rss() - before)\n"
    )
    small = path / "small"
    if not small.exists():
        small.mkdir()
        write_large_index(small, 2)
    run = subprocess.run(
        [sys.executable, "-c", code, path, small],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return int(run.stdout)


@contenders(
    f"an index of {INDEXED:,} shards opened, a shard",
    fastshard=open_fastshard,
    json_loads_and_mosaicml_Readers=open_mosaicml_readers,
)
def bench_index(
    benchmark: Any,
    large_index: tuple[Path, int],
    read: Callable[[Path], int],
    turn: int,
) -> None:
    path, named = large_index
    assert read(path) == INDEXED * 100
    expect(benchmark, "fastshard", "json_loads_and_mosaicml_Readers", 5)
    benchmark.extra_info["operations"] = INDEXED
    if read is open_fastshard:
        beyond = (grown(path) - named) / INDEXED
        benchmark.extra_info["bytes beyond hashes and names"] = round(beyond)
    benchmark.pedantic(read, (path,), rounds=3)


# Writers.


def entries(folder: Path) -> list[Any]:
    shards: list[Any] = json.loads((folder / "index.json").read_text())["shards"]
    return shards


@contenders(
    "MDSWriter",
    fastshard=by.write_fastshard,
    mosaicml_MDSWriter=by.write_mosaicml,
)
@kinds(TEXTS, FLOAT_COLUMNS)
def bench_writer(
    benchmark: Any,
    stores: Stores,
    tmp_path: Path,
    read: Callable[[Path, dict[str, str], Sequence[Row]], None],
    kind: Kind,
    turn: int,
) -> None:
    rows = [kind.row(i) for i in range(max(int(WRITTEN[kind.name] * SCALE), 512))]
    benchmark.group = f"a row written by MDSWriter, {kind.title}"
    times = 2 if kind is TEXTS else 3
    expect(benchmark, "fastshard", "mosaicml_MDSWriter", times)
    benchmark.extra_info["operations"] = len(rows)
    folders = iter(range(100))

    def setup() -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (tmp_path / str(next(folders)), kind.columns, rows), {}

    (out, *_), _ = setup()
    read(out, kind.columns, [kind.row(i) for i in range(kind.per_shard)])
    name = "shard.00000.mds"  # its bytes are those of the format's description
    assert (out / name).read_bytes() == (stores(kind).mds / name).read_bytes()
    benchmark.pedantic(read, setup=setup, rounds=5)
    out = tmp_path / "1"
    assert sum(shard["samples"] for shard in entries(out)) == len(rows)


# Cold scans.


def scan_views(path: Path) -> int:
    """Touch each page of all rows, in order."""
    total = 0
    for i, sample in enumerate(fastshard.open(path)):
        view = sample["data"]
        assert view[:8] == b"%08d" % i
        bytes(view[::4096])
        total += len(view)
    return total


def scan_mds(store: Store) -> tuple[Path, Callable[[Path], int]]:
    return store.mds, scan_views


def scan_tars(store: Store) -> tuple[Path, Callable[[Path], int]]:
    fastshard.build_index(store.tars)
    return store.tars, scan_views


def read_direct(path: Path) -> int:
    """Read by O_DIRECT, past the page cache, 1 MiB at a time."""
    buffer = mmap.mmap(-1, 1 << 20)
    total = 0
    for file in sorted(path.glob("*.mds")):
        fd = os.open(file, os.O_RDONLY | os.O_DIRECT)
        at = 0
        while got := os.preadv(fd, [buffer], at):
            at += got
        os.close(fd)
        total += at
    return total


def scan_direct(store: Store) -> tuple[Path, Callable[[Path], int]]:
    return store.mds, read_direct


@contenders(
    "cold, in order, a GB",
    fastshard_mds=scan_mds,
    fastshard_tar=scan_tars,
    O_DIRECT=scan_direct,
)
def bench_cold(
    benchmark: Any,
    stores: Stores,
    read: Callable[[Store], tuple[Path, Callable[[Path], int]]],
    turn: int,
) -> None:
    store = stores(IMAGES)
    path, scan = read(store)
    nbytes = len(IMAGES.row(0)["data"]) * IMAGES.count
    assert scan(path) >= nbytes
    expect(benchmark, "fastshard_mds", "fastshard_tar", 1 / 1.1)
    benchmark.extra_info["operations"] = nbytes / 1e9

    def setup() -> None:
        gc.collect()  # unreferenced datasets in cycles stay mapped until then
        for file in path.iterdir():
            evict(file)

    benchmark.pedantic(scan, (path,), setup=setup, rounds=1)


# Compressed shards.


def first_epoch(folder: Path, out: Path) -> int:
    """Open a compressed dataset and read all its rows; raw files appear beside it."""
    return sum(len(sample["text"]) for sample in fastshard.open(folder))


def first_epoch_in_memory(folder: Path, out: Path) -> int:
    """Read it as a user who may not write to the directory."""
    with cannot_write(folder):
        total = first_epoch(folder, out)
    assert not list(folder.glob("*.mds"))
    return total


@contextmanager
def cannot_write(folder: Path) -> Iterator[None]:
    """Make a directory read-only, for the superuser by being another user."""
    is_root = os.geteuid() == 0
    folder.chmod(0o555)
    if is_root:
        for parent in folder.parents:  # those of pytest are private
            if (mode := parent.stat().st_mode) & 0o11 != 0o11:
                parent.chmod(mode | 0o11)
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        folder.chmod(0o755)


def decompress_and_sync(folder: Path, out: Path) -> int:
    return by.decompress_with_sync(sorted(folder.glob("*.zstd")), out)


def decompress_alone(folder: Path, out: Path) -> int:
    return by.decompress_in_memory(sorted(folder.glob("*.zstd")), out)


@contenders(
    "the first epoch of zstd shards, a GB",
    fastshard=first_epoch,
    decompressed_written_and_synced=decompress_and_sync,
    fastshard_in_memory=first_epoch_in_memory,
    decompressed_in_memory=decompress_alone,
)
def bench_zstd(
    benchmark: Any,
    stores: Stores,
    tmp_path: Path,
    read: Callable[[Path, Path], int],
    turn: int,
) -> None:
    zipped = stores(DOCUMENTS).path("zstd", write_zstd)
    nbytes = sum(len(row["text"]) for row in rows_of(DOCUMENTS))
    expect(benchmark, "fastshard", "decompressed_written_and_synced", 1 / 1.2)
    expect(benchmark, "fastshard_in_memory", "decompressed_in_memory", 1 / 1.2)
    benchmark.extra_info["operations"] = nbytes / 1e9
    numbers = iter(range(100))

    def setup() -> tuple[tuple[Path, Path], dict[str, Any]]:
        folder = tmp_path / f"in-{next(numbers)}"
        shutil.copytree(zipped, folder)
        out = tmp_path / f"out-{folder.name}"
        out.mkdir()
        os.sync()
        return (folder, out), {}

    folder = setup()[0][0]
    for i, sample in enumerate(fastshard.open(folder)):
        assert i % 97 or same(sample.decode(), DOCUMENTS.row(i))
    assert read(*setup()[0]) >= nbytes
    benchmark.pedantic(read, setup=setup, rounds=5)
