"""Samples that are looked up without SQL, once so many were asked for."""

from __future__ import annotations

import sqlite3

import numpy as np
import pytest

from fastshard.columnar import (
    ShardedDatasetReader,
    ShardedDatasetWriter,
    looking,
    rows,
)
from fastshard.errors import (
    ClosedError,
    FieldNotFoundError,
    FormatError,
    SampleNotFoundError,
)

from columnarchecks import assert_same_arrays, rewrite
from conftest import not_sanitized

pytestmark = not_sanitized  # Python and SQLite

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


@pytest.fixture
def asked(monkeypatch):
    """What SQL was asked for, by readers that read all rows after ten look-ups."""
    monkeypatch.setattr(looking, "FEW", 10)
    asked = []
    opened = rows.Snapshot.connection

    def connection(self):
        found = opened(self)
        found.set_trace_callback(asked.append)
        return found

    monkeypatch.setattr(rows.Snapshot, "connection", connection)
    return asked


def test_all_rows_are_read_once_that_is_worth_it(root, asked):
    with ShardedDatasetReader(root) as reader:
        by_sql = [reader.get_sample(sample_id) for sample_id in PUT]
        assert any("table_xinfo" in text for text in asked)
        assert sum("WHERE id" in text for text in asked) == 10
        asked.clear()
        again = [reader.get_sample(sample_id) for sample_id in PUT]
        assert again[0][1] == {}
        many = reader.get_many(list(PUT)[::-1])[::-1]
        only = [reader.get_sample(sample_id, ["a"]) for sample_id in PUT]
        copies = reader.get_many(PUT, "a", copy=True)
        reader.columns(list(PUT), "a", ragged="list")
        assert asked == []
        for i, (one, two, three) in enumerate(zip(by_sql, again, many, strict=True)):
            assert_same_arrays(two[0], one[0])
            assert_same_arrays(three[0], one[0])
            assert one[1] == two[1] == three[1] == ({"i": i} if i % 3 else {})
            assert_same_arrays(only[i][0], {"a": one[0]["a"]})
            assert_same_arrays(copies[i][0], {"a": one[0]["a"]})
            assert copies[i][0]["a"].flags.writeable
            assert not two[0]["a"].flags.writeable


def test_get_many_counts_each_sample(root, asked):
    with ShardedDatasetReader(root) as reader:
        reader.get_many(list(PUT)[:9])
        assert not any("table_xinfo" in text for text in asked)
        reader.get_many(list(PUT)[:1])
        assert any("table_xinfo" in text for text in asked)


def test_a_large_dataset_is_asked_more(root, asked, monkeypatch):
    monkeypatch.setattr(looking, "WORTH_WHOLE", 2)
    with ShardedDatasetReader(root) as reader:
        for sample_id in list(PUT)[: COUNT // 2 - 1]:
            reader.get_sample(sample_id)
        assert not any("table_xinfo" in text for text in asked)
        reader.get_sample("s/é0")
        assert any("table_xinfo" in text for text in asked)


def test_an_index_that_is_too_large_is_asked_on(root, asked, monkeypatch):
    monkeypatch.setattr(rows, "MOST_BYTES", 1000)
    with ShardedDatasetReader(root) as reader:
        for _ in range(3):
            for i, sample_id in enumerate(PUT):
                arrays, metadata = reader.get_sample(sample_id)
                assert metadata == ({"i": i} if i % 3 else {})
                assert len(arrays["a"]) == i
        assert sum("page_count" in text for text in asked) == 1
        assert sum("WHERE id" in text for text in asked) == 3 * COUNT
        assert len(reader.samples) == COUNT  # by SQL
        assert reader.get_sample("s/é4")[1] == {"i": 4}


def test_refresh_begins_anew(root, asked):
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
def test_what_is_not_there(root, known):
    with ShardedDatasetReader(root) as reader:
        if known:
            assert len(reader.samples) == COUNT
        for nothing in ("s/é30", "", "s/é4.npy", "\0", "\udc80", "s/é"):
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
    with pytest.raises(ClosedError):
        reader.get_many(["s/é4"])


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("SET meta_json = '{'", "metadata of sample 's/é4'"),
        ("SET meta_json = CAST(x'ff' AS TEXT)", "not an index"),
        ("SET meta_json = x'7b7d'", "metadata of sample 's/é4'"),
        ("SET a_offset = -1", "no offset and shard"),
        ("SET a_offset = NULL", "no offset and shard"),
        ("SET a_shard = 'x'", "no offset and shard"),
        ("SET a_offset = 1 << 40", "s/é4.npy"),
    ],
)
def test_rows_that_are_bad_are_so_in_either_way(root, statement, error):
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
    assert found or "1 << 40" in statement  # the name's last member is found


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
def test_columns_of_other_types_are_left_to_sql(root, column):
    table = (
        "CREATE TABLE other (id TEXT PRIMARY KEY, meta_json TEXT, a_offset INTEGER, "
        f"{column}, b_offset INTEGER, b_shard INTEGER)"
    )
    rewrite(
        root,
        table,
        "INSERT INTO other SELECT * FROM samples ORDER BY rowid",
        "DROP TABLE samples",
        "ALTER TABLE other RENAME TO samples",
    )
    with ShardedDatasetReader(root) as reader:
        assert rows.load_whole(reader._snapshot) is None
        assert len(reader.samples) == COUNT
        if column in ("a_shard", "a_shard INTEGER DEFAULT 0"):
            assert len(reader.samples[4]["a"]) == 4
        else:
            with pytest.raises(FormatError, match="no shard and offset"):
                reader.samples[4]


def test_cache_tars_off_keeps_no_shard(root):
    with ShardedDatasetReader(root, cache_tars=False) as reader:
        assert len(reader.samples) == COUNT
        for _ in range(2):
            assert len(reader.get_sample("s/é4")[0]["a"]) == 4
            assert len(reader.get_many(["s/é5"])[0][0]["a"]) == 5
            assert reader._snapshot.files.sources() == []


def test_metadata_of_samples_of_a_dataset(root):
    import fastshard

    with fastshard.open(root) as dataset:
        found = [sample.metadata for sample in dataset]
    assert found == [{"i": i} if i % 3 else {} for i in range(COUNT)]


def test_an_image_that_sqlite_does_not_give(root, monkeypatch):
    def refuse(self):
        raise sqlite3.OperationalError("unable to serialize 'main'")

    monkeypatch.setattr(rows.Snapshot, "connection", rows.Snapshot.connection)
    monkeypatch.setattr(
        "fastshard.columnar.connect.ReaderConnection.serialize", refuse, raising=False
    )
    with ShardedDatasetReader(root) as reader:
        assert len(reader.samples) == COUNT
        assert reader.get_sample("s/é4")[1] == {"i": 4}
