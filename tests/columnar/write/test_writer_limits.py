"""Limits of columnar writers, and files of other programs in their folders."""

import errno
import os
import sqlite3
import tarfile
import warnings

import numpy as np
import pytest

from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter, compact
from fastshard.columnar.write import column as column_module
from support.columnar.stored import lengths, read_all, read_members, sql
from support.inside.columnar import transaction_of


@pytest.fixture
def writer(root):
    with ShardedDatasetWriter(root, samples_per_shard=3) as writer:
        writer.add_fields(["a", "b"])
        yield writer


# ------------------------------------------------------------- refused arguments


@pytest.mark.parametrize("metadata", [[], 0, ""])
def test_empty_metadata_that_is_not_a_mapping(writer, metadata):
    with pytest.raises(TypeError, match="mapping"):
        writer.add_sample({}, metadata=metadata)


def test_values_beyond_the_limits_of_readers_are_refused(writer):
    with pytest.raises(ValueError, match="at most"):
        writer.add_sample({}, metadata={"x": "y" * (63 << 20)})
    with pytest.raises(ValueError, match="at most"):
        writer.add_sample({}, "x" * 70_000)
    with pytest.raises(ValueError, match="shard_id must be"):
        writer.open_shard("a", 10**9 + 1)
    dtype = np.dtype([("f" * 1000 + str(i), "i1") for i in range(1100)])
    with pytest.raises(ValueError, match="dtype"):
        writer.add_sample({"a": np.zeros(1, dtype)})
    with pytest.raises(TypeError, match="a list of ids"):
        writer.write_shard("a", 0, "ab", [[1], [2]])
    with pytest.raises(ValueError, match="samples_per_shard"):
        ShardedDatasetWriter("nowhere", 1 << 63)
    assert not os.path.exists("nowhere")


def test_a_file_named_like_a_folder(root, writer):
    (root / "c_shards").write_bytes(b"")
    with pytest.raises(FileExistsError):
        writer.add_fields(["c"])
    writer.add_field("d")
    writer.add_sample({"a": [1], "d": [1]}, "x")


def test_a_dtype_whose_names_change(root, writer):
    array = np.zeros(2, [("x", "i4"), ("y", "i4")])
    writer.add_sample({"a": array}, "1")
    array.dtype.names = ("p", "q")
    writer.add_sample({"a": array}, "2")
    writer.flush()
    found = read_all(root, ended=False)
    assert found["1"][1]["a"].dtype.names == ("x", "y")
    assert found["2"][1]["a"].dtype.names == ("p", "q")


def test_a_long_name_that_begins_with_a_slash(root, writer):
    name = "/" + "a" * 96
    writer.add_sample({"a": np.arange(3)}, name)
    writer.flush()
    with tarfile.open(root / "a_shards" / "shard_0000.tar") as tar:
        assert tar.getnames() == [f"{name}.npy"]
    assert lengths(root, ended=False) == {name: 3}


# ------------------------------------------------------------- files


def test_too_many_open_files(root, writer, monkeypatch):
    paths, append_file = [], column_module.AppendFile

    def limited(path, *args):
        paths.append(path)
        if len(paths) == 1:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return append_file(path, *args)

    monkeypatch.setattr(column_module, "AppendFile", limited)
    writer.add_sample({"a": np.arange(3)}, "x")
    writer.flush()
    assert len(paths) == 2
    assert lengths(root, ended=False) == {"x": 3}


def test_a_shard_number_of_another_program_is_skipped(root, writer):
    writer.add_sample({"a": np.arange(1)}, "0")
    writer.flush()
    other = root / "a_shards" / "shard_0001.tar"
    other.write_bytes((root / "a_shards" / "shard_0000.tar").read_bytes())
    writer.conn.execute(
        "INSERT INTO samples (id, a_shard, a_offset) VALUES ('o', 1, 0)"
    )
    before = other.read_bytes()
    for i in range(1, 5):
        writer.add_sample({"a": np.arange(i)}, str(i))
    writer.flush()
    assert other.read_bytes() == before
    rows = sql(root, "SELECT DISTINCT a_shard FROM samples ORDER BY 1")
    assert rows == [(0,), (1,), (2,)]


def test_a_tail_with_matching_rows_is_adopted(root):
    with ShardedDatasetWriter(root) as writer:
        writer.add_field("a")
        for i in range(3):
            writer.add_sample({"a": np.arange(i)}, str(i))
    conn = sqlite3.connect(root / "index.sqlite")  # as if the record were older
    conn.execute("UPDATE fastshard_shards SET nbytes = nbytes / 3, members = 1")
    conn.commit()
    conn.close()
    ShardedDatasetWriter(root).close()
    assert lengths(root) == {"0": 0, "1": 1, "2": 2}


@pytest.mark.parametrize("nbytes", [700, 1 << 62, (1 << 63) - 1, -5])
def test_impossible_records_are_ignored(root, nbytes):
    with ShardedDatasetWriter(root) as writer:
        writer.add_field("a")
        writer.add_sample({"a": np.arange(3)}, "x")
    path = root / "a_shards" / "shard_0000.tar"
    before = path.read_bytes()
    conn = sqlite3.connect(root / "index.sqlite")
    conn.execute("UPDATE fastshard_shards SET nbytes = ?", (nbytes,))
    conn.commit()
    conn.close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with ShardedDatasetWriter(root) as writer:
            writer.add_sample({"a": np.arange(4)}, "y")
    assert path.read_bytes() == before
    with ShardedDatasetReader(root) as reader:
        assert [len(reader.get_sample(id_)[0]["a"]) for id_ in "xy"] == [3, 4]


@pytest.mark.skipif(os.name == "nt", reason="no symbolic links")
def test_a_linked_shard_with_a_dirty_tail_is_left_alone(root, tmp_path):
    with ShardedDatasetWriter(root) as writer:
        writer.add_field("a")
        writer.add_sample({"a": np.arange(3)}, "x")
    path = root / "a_shards" / "shard_0000.tar"
    other = tmp_path / "other.tar"
    path.rename(other)
    other.write_bytes(other.read_bytes()[:-1024] + b"\xff" * 600)
    path.symlink_to(other)
    before = other.read_bytes()
    with (
        pytest.warns(RuntimeWarning, match="is a link"),
        ShardedDatasetWriter(root) as writer,
    ):
        writer.add_sample({"a": np.arange(4)}, "y")
    assert other.read_bytes() == before
    assert sql(root, "SELECT a_shard FROM samples WHERE id = 'y'") == [(1,)]


def test_compact_keeps_the_shard_size_of_others(root, make_original):
    original = make_original(root.name, samples_per_shard=50)
    original.add_fields(["a"])
    for i in range(120):
        original.add_sample({"a": np.arange(2)}, sample_id=str(i))
    original.close()
    compact(root)
    rows = sql(root, "SELECT count(*) FROM samples GROUP BY a_shard ORDER BY a_shard")
    assert rows == [(50,), (50,), (20,)]
    assert len(read_members(root / "a_shards" / "shard_0003.tar")) == 50


def test_a_compaction_that_fails_leaves_the_shards_of_others(
    root, make_original, monkeypatch
):
    original = make_original(root.name, samples_per_shard=2)
    original.add_fields(["a"])
    for i in range(5):
        original.add_sample({"a": np.arange(i)}, sample_id=str(i))
    original.close()
    writer = ShardedDatasetWriter(root, samples_per_shard=2)
    prepare = transaction_of(writer).prepare
    columns = transaction_of(writer).columns.values()

    def fail():
        if any(column.pending and not column.foreign for column in columns):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return prepare()

    monkeypatch.setattr(transaction_of(writer), "prepare", fail)
    with pytest.raises(OSError, match="not stored"):
        writer.compact()
    assert writer.closed
    with ShardedDatasetReader(root) as reader:
        found = [len(arrays["a"]) for arrays, _ in reader.get_many(reader.query_ids())]
    assert found == [0, 1, 2, 3, 4]
