"""Readers and writers that the MDS benches compare: ours, and those of rivals.

A reader is made from a `Store`, and ``reader[i]`` is a row; of rivals that store blobs
it is the bytes of the row's one value. mosaicml-streaming reads the same files as
fastshard, the others have files of their own with equal values. A rival that is not
installed skips its bench.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import fastshard
from rivals.epochs import BATCH, WORKERS, Epoch, import_mosaicml
from rivals.mds_data import Kind, Row, Store, encoded, rows_of

# fastshard.


def ours() -> Any:
    return importlib.import_module("fastshard.streaming")


def reader(store: Store, form: str = "mds", **options: Any) -> Any:
    """Return our Reader of the first shard."""
    path: Path = getattr(store, form)
    obj = store.entry(path)
    whole = ours().reader_from_json(str(path), None, obj)
    if not options:
        return whole
    del obj["version"], obj["format"]
    for name in ("raw_data", "raw_meta"):
        if name in obj:
            obj[name] = getattr(whole, name)
    return type(whole)(str(path), None, **obj, **options)


def reader_of_views(store: Store) -> Any:
    return reader(store, copy=False)


def json_reader(store: Store) -> Any:
    return reader(store, "json")


def csv_reader(store: Store) -> Any:
    return reader(store, "csv")


def dataset(store: Store) -> Any:
    return fastshard.open(store.mds)


def decoded(store: Store) -> Any:
    return fastshard.open(store.mds).decode()


# mosaicml-streaming.


def mosaicml(store: Store, form: str = "mds") -> Any:
    """Return the original's Reader of the first shard."""
    streaming = mosaicml_module()
    path = getattr(store, form)
    return streaming.base.format.reader_from_json(str(path), None, store.entry(path))


def mosaicml_module() -> Any:
    pytest.importorskip("streaming.base")  # tests/ has a folder of the short name
    return import_mosaicml()


def mosaicml_json(store: Store) -> Any:
    return mosaicml(store, "json")


def mosaicml_csv(store: Store) -> Any:
    return mosaicml(store, "csv")


def mosaicml_local(store: Store) -> Any:
    return mosaicml_module().LocalDataset(str(store.mds))


def mosaicml_streaming(store: Store) -> Any:
    """Return a StreamingDataset in the order of the data; one for each directory."""
    return store.keep("in this process", lambda: new_mosaicml_streaming(store))


def new_mosaicml_streaming(store: Store) -> Any:
    return mosaicml_module().StreamingDataset(
        local=str(store.mds), batch_size=BATCH, shuffle=False
    )


# Others.


def litdata(store: Store) -> Any:
    library = pytest.importorskip("litdata")
    path = store.path("litdata", write_litdata)
    return library.StreamingDataset(str(path), shuffle=False)


def write_litdata(folder: Path, kind: Kind) -> None:
    from litdata.streaming.cache import Cache

    cache = Cache(str(folder), chunk_bytes="64MB")
    for i, row in enumerate(rows_of(kind)):
        cache[i] = row
    cache.done()
    cache.merge()


def array_record(store: Store) -> Any:
    name = "array_record.python.array_record_data_source"
    library = pytest.importorskip(name)
    paths = sorted(store.path("array_record", write_array_record).iterdir())
    return library.ArrayRecordDataSource([str(path) for path in paths])


def write_array_record(folder: Path, kind: Kind) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    path = folder / "00000.array_record"
    writer = ArrayRecordWriter(str(path), "group_size:1,uncompressed")
    for blob in blobs_of(kind):
        writer.write(blob)
    writer.close()


def bagz(store: Store, threads: int = 1) -> Any:
    """Return bagz' reader; its default number of threads is slow for few records."""
    library = pytest.importorskip("bagz")
    options = library.Reader.Options(
        limits_storage=library.LimitsStorage.IN_MEMORY, max_parallelism=threads
    )
    return library.Reader(str(store.path("bagz", write_bagz) / "00000.bag"), options)


def write_bagz(folder: Path, kind: Kind) -> None:
    import bagz

    writer = bagz.Writer(str(folder / "00000.bag"))
    for blob in blobs_of(kind):
        writer.write(blob)
    writer.close()


def blobs_of(kind: Kind) -> Iterator[bytes]:
    """Yield the bytes of the one value of each row."""
    ((name, encoding),) = kind.columns.items()
    for row in rows_of(kind):
        yield encoded(row[name], encoding)


# Epochs through torch's loader: samples, and the sum of a column.


def sum_batches(batches: Any, column: str) -> tuple[int, float]:
    count, total = 0, 0.0
    for batch in batches:
        values = batch[column].reshape(len(batch[column]), -1)
        count += len(values)
        total += float(values[:, 0].double().sum())
    return count, total


def loader_of_ours(store: Store, column: str) -> Epoch:
    from torch.utils.data import DataLoader

    from fastshard.adapters.torch import collate

    loader: Any = DataLoader(
        dataset(store),
        BATCH,
        num_workers=WORKERS,
        persistent_workers=True,
        collate_fn=collate,
    )
    return lambda: sum_batches(loader, column)


def loader_with_fastshard_collate(store: Store, column: str) -> Epoch:
    """Collate to arrays, which torch's loader moves between processes by pickle."""
    from torch import from_numpy
    from torch.utils.data import DataLoader

    loader: Any = DataLoader(
        dataset(store),
        BATCH,
        num_workers=WORKERS,
        persistent_workers=True,
        collate_fn=fastshard.collate,
    )
    return lambda: sum_batches(
        ({column: from_numpy(batch[column])} for batch in loader), column
    )


def loader_of_mosaicml(store: Store, column: str) -> Epoch:
    # One that was read in this process holds a lock that workers must not inherit.
    data = store.keep("in workers", lambda: new_mosaicml_streaming(store))
    loader = mosaicml_module().StreamingDataLoader(
        data,
        batch_size=BATCH,
        num_workers=WORKERS,
        persistent_workers=True,
    )
    return lambda: sum_batches(loader, column)


# Writers. Each is called with a folder that is not there yet.


def write_by(library: Any, folder: Path, columns: dict[str, str], rows: Any) -> None:
    with library.MDSWriter(columns=columns, out=str(folder), exist_ok=True) as writer:
        write = writer.write
        for row in rows:
            write(row)


def write_fastshard(folder: Path, columns: dict[str, str], rows: Sequence[Row]) -> None:
    write_by(ours(), folder, columns, rows)


def write_mosaicml(folder: Path, columns: dict[str, str], rows: Sequence[Row]) -> None:
    write_by(mosaicml_module(), folder, columns, rows)


# Compressed shards: the bytes of all shards, decompressed.


def decompress_with_sync(zipped: Sequence[Path], out: Path) -> int:
    """Decompress each file to one in `out` and sync it, as a first epoch does."""
    total = 0
    for path in zipped:
        with open(out / path.stem, "xb", buffering=0) as file:
            total += file.write(decompress(path.read_bytes()))
            os.fsync(file.fileno())
    return total


def decompress_in_memory(zipped: Sequence[Path], out: Path) -> int:
    return sum(len(decompress(path.read_bytes())) for path in zipped)


def decompress(data: bytes) -> bytes:
    found: bytes = pytest.importorskip("backports.zstd").decompress(data)
    return found
