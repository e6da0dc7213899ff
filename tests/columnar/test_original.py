"""Reading of datasets that the original package wrote.

The samples given to its writer are expected back. Reading changes no file.
"""

from __future__ import annotations

import json
import math
import os
import random
import sqlite3
import tarfile
from contextlib import closing

import numpy as np
import pytest

import fastshard
from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter
from fastshard.errors import FastshardError, QueryError
from support.columnar.checks import (
    assert_original_reads,
    assert_reads,
    assert_same_array,
    assert_same_arrays,
    assert_true_offsets,
    members_in,
    snapshot,
    sql,
)
from support.columnar.original import (
    FIELDS,
    INDEX,
    OriginalReader,
    OriginalWriter,
    arrays_of,
    npy,
    shard_path,
)

# ---------------------------------------------------------------- the builder


def test_the_builder_has_the_faults_of_the_original(several, make_original):
    root, put = several
    sizes = [len(npy(arrays["history"])) for arrays in put.values()]
    found = sql(root, "SELECT history_shard, history_offset FROM samples ORDER BY id")
    for first in 0, 7, 14:  # each session begins with shard 0 and a sum of 0
        sums = [sum(sizes[first : first + i]) for i in range(5)]
        expected = [(0, offset) for offset in sums] + [(1, 0), (1, sizes[first + 5])]
        assert found[first : first + 7] == expected
    shards = root / "history_shards"
    assert len(members_in(shard_path(shards, 0))) == 15
    assert len(members_in(shard_path(shards, 1))) == 6
    assert sql(root, "SELECT num_shards, base_dir FROM fields LIMIT 1") == [
        (0, str(shards))
    ]
    assert os.path.isabs(str(shards))
    assert list(put)[-1] == "sample_000000000021"
    assert_original_reads(root, put)

    first = next(iter(put))
    with make_original() as writer:
        writer.update_sample(first, {"history": np.zeros(2)})
        conn = sqlite3.connect(root / INDEX)
        with closing(conn):  # not committed yet
            where = "SELECT history_offset FROM samples WHERE id = ?"
            assert conn.execute(where, (first,)).fetchone() == (0,)
        writer.register_samples(["a", "b"])
        writer.write_shard("target", 0, ["a"], [np.zeros(1)])
    names = [name for name, _ in members_in(shard_path(shards, 0))]
    assert (len(names), names.count(f"{first}.npy")) == (16, 2)
    assert len(members_in(shard_path(root / "target_shards", 0))) == 1  # truncated
    assert sql(root, "SELECT num_shards FROM fields WHERE name = 'target'") == [(1,)]


# ---------------------------------------------------------------- offsets, shards


@pytest.mark.parametrize("mode", ["mmap", "pread", "private"])
def test_payload_sum_offsets(make_original, mode):
    put = {f"sample_{i + 1:012d}": arrays_of(i) for i in range(12)}
    with make_original() as writer:
        writer.add_fields(FIELDS)
        for arrays in put.values():
            writer.add_sample(arrays)
    assert_reads(writer.root, put, mode=mode)
    assert_reads(writer.root, put, mode=mode, cache_tars=False)


def test_shards_grown_past_their_limit(several):
    root, put = several
    assert_reads(root, put)
    with ShardedDatasetReader(root) as reader:
        assert reader.list_fields() == FIELDS
        assert reader.shard_counts("history") == {0: 15, 1: 6}
        assert reader.get_sample("sample_000000000009")[1] == {"n": 8}
        where = "json_extract(meta_json, '$.n') >= ?"
        assert reader.query_ids(where, params=(19,)) == list(put)[19:]


def test_columns_equal_the_samples_written(several):
    root, put = several
    ids = random.Random(1).sample(list(put), len(put))
    before = snapshot(root)
    with ShardedDatasetReader(root) as reader:
        found = reader.columns(ids, fields=["target"])
        ragged = reader.columns(ids, fields=["history"], ragged="list")
    assert list(found) == ["target"]
    assert_same_array(found["target"], np.stack([put[i]["target"] for i in ids]))
    for array, sample_id in zip(ragged["history"], ids, strict=True):
        assert_same_array(array, put[sample_id]["history"])
    assert snapshot(root) == before


def test_opened_as_a_dataset(several):
    root, put = several
    before = snapshot(root)
    with fastshard.open(root) as dataset:
        assert len(dataset) == len(put)
        for i, (sample_id, arrays) in enumerate(put.items()):
            assert dataset[i].key == sample_id
            for field in FIELDS:
                assert_same_array(dataset[i][field], arrays[field])
    assert snapshot(root) == before


def test_shard_numbers_with_gaps(make_original):
    put = {f"s{i}": arrays_of(i) for i in range(6)}
    with make_original() as writer:
        writer.add_fields(FIELDS)
        writer.register_samples(put)
        histories = [arrays["history"] for arrays in put.values()]
        writer.write_shard("history", 12_345, list(put), histories)
        for shard, sample_ids in [(7, ["s5", "s0", "s1"]), (2, ["s2", "s4", "s3"])]:
            with writer.open_shard("target", shard_id=shard) as handle:
                for sample_id in sample_ids:
                    handle.add_sample(sample_id, put[sample_id]["target"])
    assert (writer.root / "history_shards" / "shard_12345.tar").exists()
    assert_reads(writer.root, put)
    with ShardedDatasetReader(writer.root) as reader:
        assert reader.shard_counts("history") == {12_345: 6}
        assert reader.shard_counts("target") == {2: 3, 7: 3}


def test_samples_that_lack_fields(make_original):
    put = {"none": {}, "one": {"target": np.ones(3)}, "both": arrays_of(1), "last": {}}
    with make_original() as writer:
        writer.add_fields([*FIELDS, "never"])
        for sample_id, arrays in put.items():
            writer.add_sample(arrays, sample_id=sample_id)
    assert_reads(writer.root, put)
    with ShardedDatasetReader(writer.root) as reader:
        assert reader.query_ids("history_offset IS NOT NULL") == ["both"]
        assert reader.shard_counts("never") == {}
        arrays, _ = reader.get_sample("one", fields=["history", "target"])
        assert_same_arrays(arrays, put["one"])


@pytest.mark.parametrize("fields", [[], FIELDS])
def test_no_samples(make_original, fields):
    with make_original() as writer:
        writer.add_fields(fields)
    assert_reads(writer.root, {})
    with ShardedDatasetReader(writer.root) as reader:
        assert reader.list_fields() == fields


def test_rows_of_a_truncated_shard(make_original):
    ids = ["a", "b", "c"]
    with make_original() as writer:
        writer.add_field("x")
        writer.register_samples(ids)
        writer.write_shard("x", 0, ids, [np.full(4, i) for i in range(3)])
        writer.write_shard("x", 0, ["b"], [np.full(9, 7.5)])
    before = snapshot(writer.root)
    with ShardedDatasetReader(writer.root) as reader:
        for lost in "a", "c":
            with pytest.raises(FastshardError):
                reader.get_sample(lost)
        assert_same_array(reader.get_sample("b")[0]["x"], np.full(9, 7.5))
    assert snapshot(writer.root) == before


# ---------------------------------------------------------------- offsets by chance


def member(name, data):
    """Return a tar header and its data, padded to whole blocks."""
    header = tarfile.TarInfo(name)
    header.size = len(data)
    return header.tobuf(tarfile.USTAR_FORMAT) + data + bytes(-len(data) % 512)


def bait(name, array):
    """Return an array whose bytes contain a false member, at a block's start.

    The false member's data is at the sum of payloads, if the array is the first one.
    """
    false = member(name, npy(array))
    data = np.zeros(1920, np.uint8)  # four blocks, with the 128 bytes of its header
    data[896 : 896 + len(false)] = np.frombuffer(false, np.uint8)
    return data


def assert_bogus_offset_hits(root, sample_id, array):
    """Assert that a row's offset points at a header that could be its member's."""
    ((offset,),) = sql(root, "SELECT x_offset FROM samples WHERE id = ?", sample_id)
    assert offset % 512 == 0
    raw = shard_path(root / "x_shards", 0).read_bytes()
    wanted = member(f"{sample_id}.npy", npy(array))[512:]
    assert raw[offset - 512 :].startswith(f"{sample_id}.npy\0".encode())
    assert raw[offset:].startswith(wanted[: len(npy(array))])


TRUE, FALSE = np.arange(20.0), np.arange(20.0) + 1000


def header_inside_an_array(root, *, holder="p"):
    put = {holder: {"x": bait("x.npy", FALSE)}, "x": {"x": TRUE}, "y": {"x": TRUE + 1}}
    with OriginalWriter(root) as writer:
        writer.add_field("x")
        writer.add_sample({"x": bait("x.npy", FALSE)}, sample_id=holder)
        writer.add_sample(put["x"], sample_id="x")
        writer.add_sample(put["y"], sample_id="y")
    return put


def header_inside_the_same(root):
    return header_inside_an_array(root, holder="x")


def data_before_an_update(root):
    put = {"x": {"x": TRUE}, "y": {"x": np.zeros(12)}}
    with OriginalWriter(root) as writer:
        writer.add_field("x")
        writer.add_sample({"x": FALSE}, sample_id="x")  # 128 + 160 bytes, data at 512
        writer.add_sample(put["y"], sample_id="y")  # 128 + 96
        writer.update_sample("x", put["x"])
    return put


def data_that_fastshard_wrote(root):
    put = {"x": {"x": FALSE}, "y": {"x": np.zeros(5)}}
    with ShardedDatasetWriter(root) as writer:
        writer.add_field("x")
        for sample_id, arrays in put.items():
            writer.add_sample(arrays, sample_id=sample_id)
    ((offset,),) = sql(root, "SELECT x_offset FROM samples WHERE id = 'x'")
    put |= {"x": {"x": TRUE}, "z": {"x": np.zeros(offset - 128, np.uint8)}}
    with OriginalWriter(root) as writer:
        writer.add_sample(put["z"], sample_id="z")
        writer.update_sample("x", put["x"])
    return put


def header_inside_an_array_that_fastshard_wrote(root):
    put = {"p": {"x": bait("x.npy", FALSE)}}
    with ShardedDatasetWriter(root) as writer:
        writer.add_field("x")
        writer.add_sample(put["p"], sample_id="p")
    raw = shard_path(root / "x_shards", 0).read_bytes()
    offset = raw.index(b"x.npy\0") + 512
    put |= {"z": {"x": np.zeros(offset - 128, np.uint8)}, "x": {"x": TRUE}}
    with OriginalWriter(root) as writer:
        writer.add_sample(put["z"], sample_id="z")
        writer.add_sample(put["x"], sample_id="x")
    return put


@pytest.fixture(
    params=[
        header_inside_an_array,
        header_inside_the_same,
        data_before_an_update,
        data_that_fastshard_wrote,
        header_inside_an_array_that_fastshard_wrote,
    ],
    ids=lambda make: make.__name__,
)
def by_chance(request, tmp_path):
    """Return a dataset where the offset of ``x`` is that of `FALSE`, and its arrays."""
    root = tmp_path / "data"
    put = request.param(root)
    assert_bogus_offset_hits(root, "x", FALSE)
    assert_original_reads(root, put)
    return root, put


def test_an_offset_that_hits_a_false_member(by_chance):
    root, put = by_chance
    assert_reads(root, put)
    with ShardedDatasetReader(root) as reader:  # before anything else is read
        assert_same_array(reader.get_sample("x")[0]["x"], TRUE)
    with ShardedDatasetReader(root) as reader:
        assert_same_array(reader.columns(["x"])["x"][0], TRUE)


def test_a_false_member_after_fastshard_appended(by_chance):
    root, put = by_chance
    put["more"] = {"x": np.ones(3)}
    with ShardedDatasetWriter(root) as writer:
        writer.add_sample(put["more"], sample_id="more")
    assert_original_reads(root, put)
    assert_reads(root, put)


def test_a_false_member_after_compaction(by_chance):
    root, put = by_chance
    with ShardedDatasetWriter(root) as writer:
        writer.compact()
    assert_original_reads(root, put)
    assert_reads(root, put)
    assert_true_offsets(root, "x")


# ---------------------------------------------------------------- duplicates


def test_updates_in_the_same_shard(make_original):
    put = {f"s{i}": arrays_of(i) for i in range(6)}
    with make_original() as writer:
        writer.add_fields(FIELDS)
        for sample_id, arrays in put.items():
            writer.add_sample(arrays, sample_id=sample_id, metadata={"v": 0})
        for version in 1, 2:
            put["s1"] = arrays_of(1, version)
            writer.update_sample("s1", put["s1"], metadata={"v": version})
        target = np.array([9.5, -1.0], np.float16)  # another type and size
        put["s4"] = {**put["s4"], "target": target}
        writer.update_sample("s4", {"target": target})
    assert_reads(writer.root, put)
    with ShardedDatasetReader(writer.root) as reader:
        assert reader.get_sample("s1")[1] == {"v": 2}
        assert reader.get_sample("s4")[1] == {"v": 0}
        found = reader.columns(["s1", "s0"], fields=["target"])
    assert_same_array(found["target"], np.array([[[1, 2]], [[0, 0]]]))


def test_updates_in_other_shards_and_back(make_original):
    put = {f"s{i}": arrays_of(i) for i in range(9)}
    with make_original(samples_per_shard=3) as writer:
        writer.add_fields(FIELDS)
        for sample_id, arrays in put.items():
            writer.add_sample(arrays, sample_id=sample_id)
        for sample_id in "s0", "s8":  # both are appended to shard 3
            put[sample_id] = arrays_of(int(sample_id[1:]), 1)
            writer.update_sample(sample_id, put[sample_id])
    for version, sample_ids in enumerate([["s8", "s5"], ["s0", "s1", "s2", "s5"]], 2):
        with make_original(samples_per_shard=3) as writer:  # begins at shard 0
            for sample_id in sample_ids:
                put[sample_id] = arrays_of(int(sample_id[1:]), version)
                writer.update_sample(sample_id, put[sample_id])
    assert_reads(writer.root, put)
    with ShardedDatasetReader(writer.root) as reader:
        assert reader.shard_counts("target") == {0: 4, 1: 3, 2: 2}


def test_a_sample_added_twice(make_original):
    with make_original() as writer:
        writer.add_fields(FIELDS)
        for version in 0, 1:
            writer.add_sample(arrays_of(1, version), "a", {"version": version})
    assert_reads(writer.root, {"a": arrays_of(1, 1)})
    with ShardedDatasetReader(writer.root) as reader:
        assert reader.get_sample("a")[1] == {"version": 0}  # the row that exists stays


# ---------------------------------------------------------------- metadata


def test_metadata_outside_of_strict_json(make_original):
    with make_original() as writer:
        writer.add_field("x")
        writer.add_sample({"x": np.zeros(1)}, "nan", {"loss": math.nan, "n": 1})
        writer.add_sample({"x": np.ones(1)}, "inf", {"loss": [math.inf, -math.inf]})
        writer.add_sample({}, "null")
        writer.add_sample({}, "empty")
        writer.add_sample({}, "text", {"größe": "😀", "low": "\ud800"})
    sql(writer.root, "UPDATE samples SET meta_json = NULL WHERE id = 'null'")
    sql(writer.root, "UPDATE samples SET meta_json = '' WHERE id = 'empty'")
    before = snapshot(writer.root)
    with ShardedDatasetReader(writer.root) as reader:
        arrays, metadata = reader.get_sample("nan")
        assert_same_array(arrays["x"], np.zeros(1))
        assert math.isnan(metadata.pop("loss"))
        assert metadata == {"n": 1}
        assert reader.get_sample("inf")[1] == {"loss": [math.inf, -math.inf]}
        assert reader.get_sample("null")[1] == {}
        assert reader.get_sample("empty")[1] == {}
        assert reader.get_sample("text")[1] == {"größe": "😀", "low": "\ud800"}
        several = reader.get_many(["null", "inf", "nan"])
        assert [list(metadata) for _, metadata in several] == [
            [],
            ["loss"],
            ["loss", "n"],
        ]
        assert reader.query_ids("x_offset IS NOT NULL") == ["nan", "inf"]
        assert reader.query_ids("meta_json IS NULL") == ["null"]
        with pytest.raises(QueryError):
            reader.query_ids("json_extract(meta_json, '$.n') = 1")
        where = "json_valid(meta_json) AND id <> 'empty'"
        assert reader.query_ids(where) in (["text"], ["nan", "inf", "text"])
    assert snapshot(writer.root) == before


def test_columns_that_a_user_added(make_original):
    writer = make_original()
    writer.add_field("x")
    writer.conn.execute("ALTER TABLE samples ADD COLUMN length INTEGER")
    writer.conn.execute("CREATE INDEX by_length ON samples(length)")
    writer.add_field("y")
    put = {}
    for i in range(5):
        put[f"s{i}"] = {"x": np.zeros(i), "y": np.ones((i, 2))}
        writer.add_sample(put[f"s{i}"], sample_id=f"s{i}", metadata={"i": i})
        writer.conn.execute("UPDATE samples SET length = ? WHERE id = ?", (i, f"s{i}"))
    writer.close()
    assert_reads(writer.root, put)
    with ShardedDatasetReader(writer.root) as reader:
        assert reader.list_fields() == ["x", "y"]
        assert reader.query_ids("length > ?", (2,)) == ["s3", "s4"]
        rows = reader.query("length < 2", columns=("id", "length"))
        assert rows == [{"id": "s0", "length": 0}, {"id": "s1", "length": 1}]
        (row,) = reader.query("id = ?", ("s3",), limit=1)
        assert json.loads(row["meta_json"]) == {"i": 3}


def test_missing_samples_and_fields(several):
    root, _ = several
    with ShardedDatasetReader(root) as reader:
        with pytest.raises(KeyError):
            reader.get_sample("absent")
        with pytest.raises(KeyError):
            reader.get_many(["sample_000000000001", "absent"])
        with pytest.raises(KeyError):
            reader.get_sample("sample_000000000001", fields=["nothing"])


def test_a_shard_that_is_missing(several):
    root, put = several
    shard_path(root / "target_shards", 1).unlink()
    with ShardedDatasetReader(root) as reader:
        ids = list(put)
        with pytest.raises((FastshardError, OSError)):
            reader.get_sample(ids[5])
        found = reader.get_sample(ids[5], fields=["history"])[0]
        assert_same_array(found["history"], put[ids[5]]["history"])
        assert_same_arrays(reader.get_sample(ids[4])[0], put[ids[4]])


def test_open_shard_appends_to_a_shard_of_the_original(make_original):
    ids = ["a", "b", "c"]
    with make_original() as writer:
        writer.add_field("x")
        writer.register_samples([*ids, "d"])
        writer.write_shard("x", 0, ids, [np.full(4, i) for i in range(3)])
    with ShardedDatasetWriter(writer.root) as ours, ours.open_shard("x", 0) as shard:
        shard.add_sample("d", np.full(4, 3))
        shard.add_sample("b", np.full(4, 10))
    with ShardedDatasetReader(writer.root) as reader:
        found = [int(arrays["x"][0]) for arrays, _ in reader.get_many([*ids, "d"])]
    assert found == [0, 10, 2, 3]
    with closing(OriginalReader(writer.root)) as theirs:
        assert [int(theirs.get_sample(i)[0]["x"][0]) for i in [*ids, "d"]] == found
