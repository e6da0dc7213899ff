"""Assertions on columnar datasets, and readings of them by other means."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fastshard.columnar import ShardedDatasetReader
from support.columnar.original import INDEX, Arrays, OriginalReader, shard_path


def sql(root: Path, statement: str, *params: Any) -> list[tuple[Any, ...]]:
    """Run one statement on a dataset's index and commit it; return its rows."""
    conn = sqlite3.connect(root / INDEX)
    try:
        with conn:
            return conn.execute(statement, params).fetchall()
    finally:
        conn.close()


def rename_base_dirs(root: Path, pattern: str) -> None:
    """Rewrite every `base_dir` as on another machine: ``{}`` is the folder."""
    for name, base_dir in sql(root, "SELECT name, base_dir FROM fields"):
        said = pattern.format(Path(base_dir).name)
        sql(root, "UPDATE fields SET base_dir = ? WHERE name = ?", said, name)


def members_in(path: Path) -> list[tuple[str, int]]:
    """Return (name, data offset) of a shard's members, in file order, by `tarfile`."""
    with tarfile.open(path) as tar:
        return [(member.name, member.offset_data) for member in tar]


def snapshot(root: str | Path) -> dict[str, Any]:
    """Return sizes, times and hashes of the files below a folder, by name.

    While a WAL holds transactions, SQLite's shared memory beside it is a cache that
    any connection may make or fill; then it is left out.
    """
    wal = Path(root, f"{INDEX}-wal")
    cache = f"{INDEX}-shm" if wal.exists() and wal.stat().st_size else None
    found: dict[str, Any] = {}
    for folder, names, files in os.walk(root):
        for name in names:
            found[os.path.relpath(os.path.join(folder, name), root)] = "folder"
        for name in files:
            if name != cache:
                path = Path(folder, name)
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                stat = path.stat()
                row = (stat.st_size, stat.st_mtime_ns, stat.st_mode, digest)
                found[os.path.relpath(path, root)] = row
    return found


def assert_same_array(found: Any, put: Any) -> None:
    """Assert that an array equals the one written: dtype, shape, order, values."""
    put = np.asarray(put)
    assert isinstance(found, np.ndarray)
    assert (found.dtype, found.shape) == (put.dtype, put.shape)
    if put.dtype.hasobject:
        assert found.tolist() == put.tolist()
    elif put.dtype.names:  # padding between fields is undefined
        assert np.array_equal(found, put)
    else:
        assert found.tobytes() == put.tobytes()
    if put.flags.f_contiguous and not put.flags.c_contiguous:
        assert found.flags.f_contiguous


def assert_same_arrays(found: Arrays, put: Arrays) -> None:
    """Assert that a sample has the fields that were written, and their arrays."""
    assert set(found) == set(put)
    for field, array in put.items():
        assert_same_array(found[field], array)


def assert_original_reads(root: Path, put: Mapping[str, Arrays]) -> None:
    """Assert that the original's algorithm reads the written values."""
    with OriginalReader(root) as reader:
        assert len(reader) == len(put)
        assert sorted(reader.query_ids()) == sorted(put)
        for sample_id, arrays in put.items():
            assert_same_arrays(reader.get_sample(sample_id)[0], arrays)


def assert_reads(root: str | Path, put: Mapping[str, Arrays], **options: Any) -> None:
    """Assert that each way to read returns the written values and changes no file."""
    before = snapshot(root)
    with ShardedDatasetReader(root, **options) as reader:
        ids = list(put)
        assert len(reader) == len(put)
        assert reader.query_ids() == ids
        for sample_id in ids:
            assert_same_arrays(reader.get_sample(sample_id)[0], put[sample_id])
        by_sql = reader.get_many(ids)
        for (found, _), sample_id in zip(by_sql, ids, strict=True):
            assert_same_arrays(found, put[sample_id])
        assert len(reader.samples) == len(ids)  # all rows are read
        by_rows = [*reader.get_many(ids), *map(reader.get_sample, ids)]
        for k, (found, metadata) in enumerate(by_rows):
            assert_same_arrays(found, put[ids[k % len(ids)]])
            assert metadata == by_sql[k % len(ids)][1]
        for found, sample_id in zip(reader.samples, ids, strict=True):
            assert_same_arrays(found, put[sample_id])
        scanned = {found.pop("__key__"): found for found in reader.scan()}
        for sample_id in ids:
            assert_same_arrays(scanned.get(sample_id, {}), put[sample_id])
        found = None
    assert snapshot(root) == before


def assert_true_offsets(root: Path, field: str) -> None:
    """Assert that each row's offset is where the last member of its name begins."""
    rows = sql(root, f"SELECT id, {field}_shard, {field}_offset FROM samples")
    for sample_id, shard, offset in rows:
        if offset is not None:
            path = shard_path(root / f"{field}_shards", shard)
            assert dict(members_in(path))[f"{sample_id}.npy"] == offset


def rewrite(root: Path, *statements: str) -> None:
    """Change the schema of an index by hand, with SQLite's checks off."""
    connection = sqlite3.connect(root / "index.sqlite", isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.execute("PRAGMA journal_mode=DELETE")
    connection.close()
