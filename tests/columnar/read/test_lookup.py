"""Lookup of samples without SQL, once all rows are loaded."""

from __future__ import annotations

import os
import sqlite3

import numpy as np
import pytest

from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter
from fastshard.columnar.read import lookup as lookup_module
from fastshard.columnar.read import samples as samples_module
from fastshard.columnar.read.lookup import RowLookup
from fastshard.columnar.read.snapshot import Snapshot
from fastshard.errors import (
    ClosedError,
    FieldNotFoundError,
    FormatError,
    SampleNotFoundError,
)
from support.columnar.checks import assert_same_arrays, rewrite
from support.inside.columnar import lookup_of, open_sources, snapshot_of

COUNT = 30
PUT = {
    f"s/é{i}": {"a": np.arange(i), "b": np.asfortranarray(np.ones((i, 3)))}
    for i in range(COUNT)
}


@pytest.fixture
def root(tmp_path):
    with ShardedDatasetWriter(tmp_path / "data", samples_per_shard=7) as writer:
        writer.add_fields(["a", "b"])
        for i, (sample_id, arrays) in enumerate(PUT.items()):
            some = arrays if i % 5 else {"a": arrays["a"]}
            writer.add_sample(some, sample_id, {"i": i} if i % 3 else None)
    return tmp_path / "data"


TABLE = (
    "CREATE TABLE other ({}, meta_json TEXT, a_offset INTEGER, {}, "
    "b_offset INTEGER, b_shard INTEGER)"
)


def rebuild(root, id_column, place="a_shard INTEGER"):
    """Replace the table of samples by one with other column types."""
    rewrite(
        root,
        TABLE.format(id_column, place),
        "INSERT INTO other SELECT * FROM samples ORDER BY rowid",
        "DROP TABLE samples",
        "ALTER TABLE other RENAME TO samples",
    )


@pytest.fixture
def executed(monkeypatch):
    """Return a list of the SQL statements run; all rows load after ten lookups."""
    monkeypatch.setattr(lookup_module, "MIN_LOOKUPS", 10)
    executed = []
    original = Snapshot.connect

    def connect(self):
        found = original(self)
        found.set_trace_callback(executed.append)
        return found

    monkeypatch.setattr(Snapshot, "connect", connect)
    return executed


def test_all_rows_are_loaded_after_enough_lookups(root, executed):
    with ShardedDatasetReader(root) as reader:
        by_sql = [reader.get_sample(sample_id) for sample_id in PUT]
        assert any("table_xinfo" in text for text in executed)
        assert sum("WHERE id" in text for text in executed) == 10
        executed.clear()
        again = [reader.get_sample(sample_id) for sample_id in PUT]
        assert again[0][1] == {}
        many = reader.get_many(list(PUT)[::-1])[::-1]
        only = [reader.get_sample(sample_id, ["a"]) for sample_id in PUT]
        copies = reader.get_many(PUT, "a", copy=True)
        reader.columns(list(PUT), "a", ragged="list")
        assert executed == []
        for i, (one, two, three) in enumerate(zip(by_sql, again, many, strict=True)):
            assert_same_arrays(two[0], one[0])
            assert_same_arrays(three[0], one[0])
            assert one[1] == two[1] == three[1] == ({"i": i} if i % 3 else {})
            assert_same_arrays(only[i][0], {"a": one[0]["a"]})
            assert_same_arrays(copies[i][0], {"a": one[0]["a"]})
            assert copies[i][0]["a"].flags.writeable
            assert not two[0]["a"].flags.writeable


def test_get_many_counts_each_sample(root, executed):
    with ShardedDatasetReader(root) as reader:
        reader.get_many(list(PUT)[:9])
        assert not any("table_xinfo" in text for text in executed)
        reader.get_many(list(PUT)[:1])
        assert any("table_xinfo" in text for text in executed)


def test_a_large_dataset_takes_more_lookups(root, executed, monkeypatch):
    monkeypatch.setattr(lookup_module, "IMAGE_RATIO", 2)
    with ShardedDatasetReader(root) as reader:
        for sample_id in list(PUT)[: COUNT // 2 - 1]:
            reader.get_sample(sample_id)
        assert not any("table_xinfo" in text for text in executed)
        reader.get_sample("s/é0")
        assert any("table_xinfo" in text for text in executed)


def test_a_very_large_index_is_not_loaded(root, executed, monkeypatch):
    monkeypatch.setattr(samples_module, "MAX_BYTES", 1000)
    with ShardedDatasetReader(root) as reader:
        for _ in range(3):
            for i, sample_id in enumerate(PUT):
                arrays, metadata = reader.get_sample(sample_id)
                assert metadata == ({"i": i} if i % 3 else {})
                assert len(arrays["a"]) == i
        assert sum("page_count" in text for text in executed) == 1
        assert sum("WHERE id" in text for text in executed) == 3 * COUNT
        assert len(reader.samples) == COUNT  # by SQL
        assert reader.get_sample("s/é4")[1] == {"i": 4}


def test_refresh_drops_loaded_rows(root, executed):
    with ShardedDatasetReader(root) as reader:
        reader.get_many(PUT)
        with ShardedDatasetWriter(root) as writer:
            writer.update_sample("s/é4", {"a": np.array([7])}, {"new": True})
            writer.add_sample({"a": [1]}, "more")
        assert reader.get_sample("s/é4")[1] == {"i": 4}
        with pytest.raises(SampleNotFoundError):
            reader.get_sample("more")
        reader.refresh()
        for _ in range(12):
            arrays, metadata = reader.get_sample("s/é4")
            assert arrays["a"].tolist() == [7]
            assert metadata == {"new": True}
            assert reader.get_sample("more")[0]["a"].tolist() == [1]


@pytest.mark.parametrize("known", [False, True])
def test_missing_ids_and_fields(root, known):
    with ShardedDatasetReader(root) as reader:
        if known:
            assert len(reader.samples) == COUNT
        spelled = "s/\udcc3\udca94"  # surrogates that stand for the bytes of s/é4
        for nothing in ("s/é30", "", "s/é4.npy", "\0", "\udc80", "s/é", spelled):
            with pytest.raises(SampleNotFoundError):
                reader.get_sample(nothing)
            with pytest.raises(SampleNotFoundError):
                reader.get_many(["s/é4", nothing])
        for odd in (4, None, b"s/4", ["s/4"]):
            with pytest.raises(TypeError):
                reader.get_sample(odd)
            with pytest.raises(TypeError):
                reader.get_many(["s/é4", odd])
        with pytest.raises(FieldNotFoundError):
            reader.get_sample("s/é4", ["c"])
        assert reader.get_sample(np.str_("s/é4"))[1] == {"i": 4}
        assert reader.get_many([np.str_("s/é4")])[0][1] == {"i": 4}
        assert reader.get_many([]) == []
    with pytest.raises(ClosedError):
        reader.get_sample("s/é4")
    for ids in (["s/é4"], []):
        with pytest.raises(ClosedError):
            reader.get_many(ids)


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("SET meta_json = '{'", "metadata of sample 's/é4'"),
        ("SET meta_json = CAST(x'ff' AS TEXT)", "not an index"),
        ("SET meta_json = x'7b7d'", "metadata of sample 's/é4'"),
        ("SET a_offset = -1", "expected two integers"),
        ("SET a_offset = NULL", "expected two integers"),
        ("SET a_shard = 'x'", "expected two integers"),
        ("SET a_offset = 1 << 40", "s/é4.npy"),
    ],
)
def test_bad_rows_give_the_same_error_by_sql_and_in_memory(root, statement, error):
    rewrite(root, f"UPDATE samples {statement} WHERE id = 's/é4'")
    found = []
    for known in (False, True):
        with ShardedDatasetReader(root) as reader:
            if known:
                assert len(reader.samples) == COUNT
            for read in (reader.get_sample, lambda key: reader.get_many([key])):
                try:
                    read("s/é4")
                except FormatError as caught:
                    found.append(str(caught))
            assert reader.get_sample("s/é7")[1] == {"i": 7}
    assert len(set(found)) <= 1
    assert all(error in text for text in found)
    assert len(found) in (0, 4)
    assert found or "1 << 40" in statement  # the last member of that name is found


@pytest.mark.parametrize("allow", [False, True])
def test_arrays_of_objects(tmp_path, allow):
    array = np.array([{"a": 1}, None], object)
    with ShardedDatasetWriter(tmp_path / "data", allow_pickle=True) as writer:
        writer.add_field("a")
        writer.add_sample({"a": array}, "x")
    with ShardedDatasetReader(tmp_path / "data", allow_pickle=allow) as reader:
        assert len(reader.samples) == 1
        for read in (reader.get_sample, lambda key: reader.get_many([key])[0]):
            if allow:
                assert read("x")[0]["a"].tolist() == array.tolist()
            else:
                with pytest.raises(FormatError, match="allow_pickle"):
                    read("x")


@pytest.mark.parametrize(
    "column",
    ["a_shard REAL", "a_shard TEXT", "a_shard", "a_shard INTEGER DEFAULT 0"],
)
def test_columns_of_other_types_are_read_by_sql(root, column):
    rebuild(root, "id TEXT PRIMARY KEY", place=column)
    with ShardedDatasetReader(root) as reader:
        assert samples_module.load_image(snapshot_of(reader)) is None
        assert len(reader.samples) == COUNT
        if column in ("a_shard", "a_shard INTEGER DEFAULT 0"):
            assert len(reader.samples[4]["a"]) == 4
        else:
            with pytest.raises(FormatError, match="invalid shard, offset or row"):
                reader.samples[4]


def test_cache_tars_off_keeps_no_shard(root):
    with ShardedDatasetReader(root, cache_tars=False) as reader:
        assert len(reader.samples) == COUNT
        for _ in range(2):
            assert len(reader.get_sample("s/é4")[0]["a"]) == 4
            assert len(reader.get_many(["s/é5"])[0][0]["a"]) == 5
            assert open_sources(reader) == []


def test_metadata_of_samples_of_a_dataset(root):
    import fastshard

    with fastshard.open(root) as dataset:
        found = [sample.metadata for sample in dataset]
    assert found == [{"i": i} if i % 3 else {} for i in range(COUNT)]


def test_sqlite_fails_to_serialize(root, monkeypatch):
    def refuse(self):
        raise sqlite3.OperationalError("unable to serialize 'main'")

    monkeypatch.setattr(
        "fastshard.columnar.layout.connection.ReaderConnection.serialize",
        refuse,
        raising=False,
    )
    with ShardedDatasetReader(root) as reader:
        assert len(reader.samples) == COUNT
        assert reader.get_sample("s/é4")[1] == {"i": 4}


def test_sqlite_without_serialize(root, monkeypatch):
    monkeypatch.setattr(samples_module, "hasattr", lambda *_: False, raising=False)
    with ShardedDatasetReader(root) as reader:
        assert samples_module.load_image(snapshot_of(reader)) is None
        assert len(reader.samples) == COUNT
        assert reader.get_sample("s/é4")[1] == {"i": 4}


def test_rows_of_too_much_memory_are_looked_up_by_sql(root, monkeypatch):
    with ShardedDatasetWriter(root) as writer:
        writer.add_fields([f"later_{i}" for i in range(100)])
    size = (root / "index.sqlite").stat().st_size
    assert size < COUNT * 102 * 32
    monkeypatch.setattr(samples_module, "MAX_BYTES", size)
    with ShardedDatasetReader(root) as reader:
        assert samples_module.load_image(snapshot_of(reader)) is None
        for i, sample_id in enumerate(PUT):
            assert len(reader.get_sample(sample_id)[0]["a"]) == i


def test_a_fault_of_other_rows_is_not_raised_for_a_found_sample(
    root, executed, monkeypatch
):
    def damaged(self):
        raise FormatError("not an index", "index.sqlite", 0)

    monkeypatch.setattr(RowLookup, "estimate_count", damaged)
    with ShardedDatasetReader(root) as reader:
        for _ in range(2):
            for sample_id in PUT:
                reader.get_sample(sample_id)
        assert sum("WHERE id" in text for text in executed) == 2 * COUNT


@pytest.mark.parametrize("known", [False, True])
def test_duplicate_ids_are_left_to_sql(root, known):
    rebuild(root, "id TEXT")
    rewrite(root, "UPDATE samples SET id = 's/é4' WHERE id = 's/é7'")
    with ShardedDatasetReader(root) as reader:
        if known:
            assert len(reader.samples) == COUNT
        assert reader.get_sample("s/é4")[1] == {"i": 4}
        with pytest.raises(FormatError, match="samples have the same id"):
            reader.get_many(["s/é4"])


@pytest.mark.parametrize("known", [False, True])
def test_ids_compared_without_case(root, known):
    rebuild(root, "id TEXT COLLATE NOCASE")
    rewrite(root, "UPDATE samples SET id = 'A' WHERE id = 's/é4'")
    with ShardedDatasetReader(root) as reader:
        if known:
            assert len(reader.samples) == COUNT
        for sample_id in ("a", "A"):
            assert reader.get_sample(sample_id, [])[1] == {"i": 4}


def test_duplicate_ids_missing_from_sqlites_index(root):
    """The table has equal ids that SQLite's index of ids does not."""
    with ShardedDatasetReader(root) as reader:
        assert not lookup_of(reader).samples
        reader.samples  # noqa: B018
        assert lookup_of(reader).samples.has_metadata
        assert not lookup_of(reader).samples.names.has_duplicates
        assert lookup_of(reader).reader_of(None).samples is not None
    data = (root / "index.sqlite").read_bytes()
    assert data.count("s/é14".encode()) == 2  # in the table and in its index
    at = data.index("s/é14".encode())
    (root / "index.sqlite").write_bytes(
        data[:at] + "s/é15".encode() + data[at + len("s/é14".encode()) :]
    )
    with ShardedDatasetReader(root) as reader:
        reader.samples  # noqa: B018
        if lookup_of(reader).samples.has_metadata:
            assert lookup_of(reader).samples.names.has_duplicates
        assert lookup_of(reader).reader_of(None).samples is None


def test_columns_that_differ_in_unicode_case(root):
    with ShardedDatasetWriter(root) as writer:
        writer.add_field("k")
        writer.add_sample({"k": [1, 2]}, "with k")
    rewrite(
        root,
        'ALTER TABLE samples ADD COLUMN "\u212a_offset" TEXT',
        'UPDATE samples SET "\u212a_offset" = "x"',
    )
    for known in (False, True):
        with ShardedDatasetReader(root) as reader:
            if known:
                assert len(reader.samples) == COUNT + 1
            assert reader.get_sample("with k")[0]["k"].tolist() == [1, 2]


def test_no_shard_stays_open_after_an_error(root):
    rewrite(root, "UPDATE samples SET meta_json = '{' WHERE id = 's/é4'")
    with ShardedDatasetReader(root, cache_tars=False) as reader:
        assert len(reader.samples) == COUNT
        for read in (reader.get_sample, lambda key: reader.get_many([key])):
            with pytest.raises(FormatError):
                read("s/é4")
            assert open_sources(reader) == []
        with pytest.raises(SampleNotFoundError):
            reader.get_many([*PUT, "s/é99"])
        assert open_sources(reader) == []


def test_rows_of_an_old_state_are_not_kept(root, monkeypatch):
    """A refresh in another thread, while all rows are loaded."""
    load = lookup_module.load_samples

    def slow(snapshot):
        samples = load(snapshot)
        with ShardedDatasetWriter(root) as writer:
            writer.update_sample("s/é4", {}, {"new": True})
        reader.refresh()
        return samples

    with ShardedDatasetReader(root) as reader:
        monkeypatch.setattr(lookup_module, "load_samples", slow)
        reader.samples  # noqa: B018
        monkeypatch.undo()
        assert reader.get_sample("s/é4")[1] == {"new": True}
        assert reader.get_many(["s/é4"])[0][1] == {"new": True}
        assert len(reader.samples) == COUNT
        assert reader.get_sample("s/é4")[1] == {"new": True}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("first", ["get_many", "samples", "get_sample"])
def test_a_child_of_fork_sees_its_own_state(root, first):
    with ShardedDatasetReader(root) as reader:
        samples = reader.samples
        reader.get_many(["s/é4"])
        with ShardedDatasetWriter(root) as writer:
            writer.update_sample("s/é4", {}, {"new": True})
        child = os.fork()
        if child == 0:
            code = 1
            try:
                if first == "get_many":
                    reader.get_many(["s/é5"])
                elif first == "samples":
                    samples[5]["a"].sum()
                found = [reader.get_sample("s/é4"), *reader.get_many(["s/é4"])]
                code = 0 if [m for _, m in found] == 2 * [{"new": True}] else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert reader.get_sample("s/é4")[1] == {"i": 4}
