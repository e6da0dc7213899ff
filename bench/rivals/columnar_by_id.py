"""Rivals of columnar datasets that look samples up by id.

Each has a function that writes samples to a folder, durably if it can, and a class
that reads them. Shapes and dtypes are given to the rivals; fastshard reads them from
each member.
"""

from __future__ import annotations

import io
import json
import sqlite3
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastshard.columnar import ShardedDatasetWriter
from rivals.columnar_data import (
    BATCH,
    FIELDS,
    PER_SHARD,
    Columns,
    Floats,
    Found,
    Row,
    text_of,
)

UPDATE = "UPDATE samples SET {0}_offset = ?, {0}_shard = ? WHERE id = ?"
SAMPLES_PER_COMMIT = 10_000  # of the original
MAP_SIZE = 1 << 36  # bytes of address space for LMDB


def write_fastshard(folder: Path, rows: Iterable[Row], *, pack: bool = False) -> None:
    per_shard = None if pack else PER_SHARD
    with ShardedDatasetWriter(folder, per_shard, pack=pack) as writer:
        writer.add_fields(list(FIELDS))
        add = writer.add_sample
        for key, arrays, metadata in rows:
            add(arrays, key, metadata)


def write_packed(folder: Path, rows: Iterable[Row]) -> None:
    write_fastshard(folder, rows, pack=True)


def write_original(folder: Path, rows: Iterable[Row]) -> None:
    """Write as the original does: `tarfile`, four statements a sample, no sync."""
    database = sqlite3.connect(folder / "index.sqlite")
    create_index(database, folder)
    with ExitStack() as files:
        tars = Tars(folder, files)
        for i, (key, arrays, metadata) in enumerate(rows):
            new = key, text_of(metadata)
            database.execute("INSERT INTO samples (id, meta_json) VALUES (?, ?)", new)
            for field, array in arrays.items():
                where = tars.add(field, i // PER_SHARD, key, array), i // PER_SHARD, key
                database.execute(UPDATE.format(field), where)
            if i % SAMPLES_PER_COMMIT == SAMPLES_PER_COMMIT - 1:
                database.commit()
    database.commit()
    database.close()


class Tars:
    """Open shards of the original's writer."""

    def __init__(self, root: Path, files: ExitStack) -> None:
        self.root = root
        self.files = files
        self.tars: dict[tuple[str, int], tarfile.TarFile] = {}
        self.sums: dict[tuple[str, int], int] = {}

    def add(self, field: str, shard: int, key: str, array: Floats) -> int:
        """Append a member; return the offset that the original records."""
        at = field, shard
        if at not in self.tars:
            path = self.root / f"{field}_shards" / f"shard_{shard:04d}.tar"
            self.tars[at] = self.files.enter_context(tarfile.TarFile(path, "a"))
            self.sums[at] = 0
        file = io.BytesIO()
        np.save(file, array)
        member = tarfile.TarInfo(f"{key}.npy")
        member.size = file.tell()
        file.seek(0)
        self.tars[at].addfile(member, file)
        # Of data without headers: the original's offsets are wrong.
        self.sums[at] += member.size
        return self.sums[at] - member.size


def create_index(database: sqlite3.Connection, root: Path) -> None:
    """Create the original's tables of a columnar dataset."""
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=NORMAL")
    places = "".join(
        f", {field}_offset INTEGER, {field}_shard INTEGER" for field in FIELDS
    )
    tables = {
        "samples": "id TEXT PRIMARY KEY, meta_json TEXT" + places,
        "fields": "name TEXT PRIMARY KEY, num_shards INTEGER, base_dir TEXT",
        "counters": "name TEXT PRIMARY KEY, value INTEGER",
    }
    for name, columns in tables.items():
        database.execute(f"CREATE TABLE {name} ({columns})")
    database.execute("INSERT INTO counters VALUES ('sample_id', 0)")
    for field in FIELDS:
        base = root / f"{field}_shards"
        base.mkdir()
        database.execute("INSERT INTO fields VALUES (?, 0, ?)", (field, str(base)))
    database.commit()


class Original:
    """Reader by the original's algorithm: a row, then each member by name in a tar."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.database = sqlite3.connect(root / "index.sqlite")
        self.database.row_factory = sqlite3.Row
        self.files = ExitStack()
        self.tars: dict[tuple[str, int], tarfile.TarFile] = {}

    def __len__(self) -> int:
        (count,) = self.database.execute("SELECT count(*) FROM samples").fetchone()
        return int(count)

    def get_sample(self, key: str) -> Found:
        found = self.database.execute("SELECT * FROM samples WHERE id = ?", (key,))
        row = found.fetchone()
        arrays = {
            field: self.load(field, row[f"{field}_shard"], key)
            for field in FIELDS
            if row[f"{field}_offset"] is not None
        }
        return arrays, json.loads(row["meta_json"])

    def load(self, field: str, shard: int, key: str) -> Floats:
        if (field, shard) not in self.tars:
            path = self.root / f"{field}_shards" / f"shard_{shard:04d}.tar"
            opened = self.files.enter_context(tarfile.TarFile(path))
            self.tars[field, shard] = opened
        tar = self.tars[field, shard]
        file = tar.extractfile(tar.getmember(f"{key}.npy"))
        assert file is not None
        array: Floats = np.load(io.BytesIO(file.read()), allow_pickle=True)
        return array

    def get_many(self, keys: Sequence[str]) -> list[Found]:
        return [self.get_sample(key) for key in keys]

    def query_ids(
        self, where: str, params: Sequence[Any], limit: int | None
    ) -> list[str]:
        sql = f"SELECT id FROM samples WHERE {where} LIMIT {limit or -1}"
        return [row["id"] for row in self.database.execute(sql, params).fetchall()]

    def close(self) -> None:
        self.files.close()
        self.database.close()


def write_blobs(folder: Path, rows: Iterable[Row]) -> None:
    """Write a table of blobs in one synced commit."""
    database = sqlite3.connect(folder / "blobs.sqlite")
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    columns = ", ".join(f"{field} BLOB" for field in FIELDS)
    database.execute(f"CREATE TABLE t (id TEXT PRIMARY KEY, meta TEXT, {columns})")
    insert = f"INSERT INTO t VALUES (?, ?{', ?' * len(FIELDS)})"
    for key, arrays, metadata in rows:
        values = [array.data for array in arrays.values()]
        database.execute(insert, (key, text_of(metadata), *values))
    database.commit()
    database.close()


class Blobs:
    """Reader of SQLite alone, with the arrays in columns of a table."""

    def __init__(self, folder: Path) -> None:
        self.database = sqlite3.connect(folder / "blobs.sqlite")
        self.database.execute("PRAGMA mmap_size=4000000000")
        self.select = f"SELECT id, meta, {', '.join(FIELDS)} FROM t"

    def found(self, row: Any) -> Found:
        arrays = {
            field: np.frombuffer(data, np.float32)
            for field, data in zip(FIELDS, row[2:], strict=True)
        }
        return arrays, json.loads(row[1])

    def get_sample(self, key: str) -> Found:
        rows = self.database.execute(f"{self.select} WHERE id = ?", (key,))
        return self.found(rows.fetchone())

    def rows_of(self, keys: Sequence[str]) -> list[Any]:
        where = f"WHERE id IN (?{', ?' * (len(keys) - 1)})"
        rows = {
            row[0]: row for row in self.database.execute(f"{self.select} {where}", keys)
        }
        return [rows[key] for key in keys]

    def get_many(self, keys: Sequence[str]) -> list[Found]:
        return [self.found(row) for row in self.rows_of(keys)]

    def columns(self, keys: Sequence[str]) -> Columns:
        rows = self.rows_of(keys)
        return join_columns(rows, len(rows))

    def batches(self) -> Iterator[Columns]:
        rows = self.database.execute(self.select)
        while some := rows.fetchmany(BATCH):
            yield join_columns(some, len(some))


def join_columns(rows: Sequence[Sequence[Any]], count: int) -> Columns:
    """Return columns of rows, whose fields begin at the third value."""
    return {
        field: np.frombuffer(b"".join(row[2 + k] for row in rows), np.float32).reshape(
            count, size
        )
        for k, (field, size) in enumerate(FIELDS.items())
    }


def write_lmdb(folder: Path, rows: Iterable[Row]) -> None:
    """Write in one synced commit; a value is the joined arrays and the metadata."""
    lmdb = pytest.importorskip("lmdb")
    with lmdb.open(str(folder), map_size=MAP_SIZE) as env, env.begin(write=True) as txn:
        for key, arrays, metadata in rows:
            data = b"".join(array.data for array in arrays.values())
            txn.put(key.encode(), data + text_of(metadata).encode())


class Lmdb:
    """Reader of LMDB, one value a sample; batches are copied row by row."""

    def __init__(self, folder: Path) -> None:
        lmdb = pytest.importorskip("lmdb")
        self.env = lmdb.open(str(folder), map_size=MAP_SIZE, readonly=True)
        self.txn = self.env.begin(buffers=True)

    def found(self, data: Any) -> Found:
        arrays, at = {}, 0
        for field, size in FIELDS.items():
            arrays[field] = np.frombuffer(data, np.float32, size, at)
            at += 4 * size
        return arrays, json.loads(bytes(data[at:]))

    def get_sample(self, key: str) -> Found:
        return self.found(self.txn.get(key.encode()))

    def get_many(self, keys: Sequence[str]) -> list[Found]:
        return [self.found(self.txn.get(key.encode())) for key in keys]

    def split(self, values: Sequence[Any]) -> Columns:
        """Return the columns of values, in which the fields are adjacent."""
        width = sum(FIELDS.values())
        table = np.empty((len(values), width), np.float32)
        for row, data in zip(table, values, strict=True):
            row[:] = np.frombuffer(data, np.float32, width)
        ends = np.cumsum(list(FIELDS.values()))
        parts = np.split(table, ends[:-1], axis=1)
        return dict(zip(FIELDS, parts, strict=True))

    def columns(self, keys: Sequence[str]) -> Columns:
        return self.split([self.txn.get(key.encode()) for key in keys])

    def batches(self) -> Iterator[Columns]:
        values: list[Any] = []
        for data in self.txn.cursor().iternext(keys=False, values=True):
            values.append(data)
            if len(values) == BATCH:
                yield self.split(values)
                values = []
        if values:
            yield self.split(values)

    def close(self) -> None:
        self.txn.abort()
        self.env.close()
