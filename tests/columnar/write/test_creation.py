"""Interrupted creation of a columnar dataset: it is absent or empty."""

from __future__ import annotations

import errno
import os
import sqlite3

import numpy as np
import pytest

from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter, verify
from fastshard.columnar.write import creation
from fastshard.errors import FormatError
from support.columnar.stored import sql

TABLES = {"samples", "fields", "counters", "fastshard_shards"}


@pytest.fixture
def root(tmp_path):
    return tmp_path / "data"


def names(root):
    return sorted(path.name for path in root.iterdir())


def tables(path):
    conn = sqlite3.connect(path)
    try:
        query = "SELECT name FROM sqlite_master WHERE type = 'table'"
        return {name for (name,) in conn.execute(query)}
    finally:
        conn.close()


def test_an_index_has_its_tables_when_it_gets_its_name(root, monkeypatch):
    seen = []
    link = os.link

    def watched(new, path, **options):
        seen.append((os.path.exists(path), tables(new)))
        link(new, path, **options)

    monkeypatch.setattr(creation.os, "link", watched)
    ShardedDatasetWriter(root).close()
    assert seen == [(False, TABLES)]
    assert names(root) == ["index.sqlite", "readers.lock", "writer.lock"]
    with ShardedDatasetReader(root) as reader:
        assert (len(reader), reader.list_fields()) == (0, [])
    assert sql(root, "PRAGMA journal_mode") == [("wal",)]


@pytest.mark.parametrize("where", ["create", "sync_path", "_rename"])
def test_an_error_during_creation_leaves_nothing(root, monkeypatch, where):
    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(creation, where, full)
        with pytest.raises(OSError, match="No space") as caught:
            ShardedDatasetWriter(root)
    assert caught.value.errno == errno.ENOSPC
    assert names(root) == ["readers.lock", "writer.lock"]
    with pytest.raises(FileNotFoundError):
        ShardedDatasetReader(root)
    with ShardedDatasetWriter(root) as writer:
        writer.add_field("a")
        writer.add_sample({"a": np.arange(3)})
    assert verify(root) == []


def test_an_unfinished_index_is_reported_and_removed(root):
    ShardedDatasetWriter(root).close()
    leftovers = [f".index.sqlite.new{end}" for end in ("", "-wal", "-shm", "-journal")]
    for name in leftovers:
        (root / name).write_bytes(b"x")
    (root / ".index.sqlite.newer").write_bytes(b"of another program")
    faults = verify(root)
    assert sorted(os.path.basename(fault.path) for fault in faults) == sorted(leftovers)
    ShardedDatasetWriter(root).close()
    assert verify(root) == []
    assert ".index.sqlite.newer" in names(root)
    assert not set(leftovers) & set(names(root))


@pytest.mark.parametrize("mode", [None, "DELETE", "WAL"])
def test_an_index_without_tables_is_reported_and_continued(root, mode):
    root.mkdir()
    (root / "index.sqlite").touch()
    if mode is not None:
        conn = sqlite3.connect(root / "index.sqlite")
        conn.execute(f"PRAGMA journal_mode={mode}")
        conn.execute("PRAGMA user_version = 0")
        conn.close()
    with pytest.raises(FormatError, match=r"without tables.*ShardedDatasetWriter"):
        ShardedDatasetReader(root)
    (fault,) = verify(root)
    assert "without tables" in fault.reason
    with ShardedDatasetWriter(root) as writer:
        writer.add_field("a")
        writer.add_sample({"a": [1]}, "x")
    with ShardedDatasetReader(root) as reader:
        assert reader.query_ids() == ["x"]


def test_an_index_without_tables_beside_shards_is_refused(root):
    with ShardedDatasetWriter(root) as writer:
        writer.add_field("a")
        writer.add_sample({"a": [1]}, "x")
    (root / "index.sqlite").unlink()
    conn = sqlite3.connect(root / "index.sqlite")
    conn.execute("PRAGMA journal_mode=WAL")
    conn.close()
    assert (root / "index.sqlite").stat().st_size > 0
    with pytest.raises(FormatError, match="have no index: move them away"):
        ShardedDatasetWriter(root)
    assert (root / "a_shards" / "shard_0000.tar").exists()
