"""Arguments of the calls on columnar datasets, and errors about wrong ones."""

import os
import pickle
import sqlite3

import numpy as np
import pytest

import fastshard
from fastshard.columnar import (
    ShardedDatasetReader,
    ShardedDatasetWriter,
    compact,
    stat,
    verify,
)
from fastshard.errors import ClosedError, FastshardError, RaggedError
from support.marks import not_sanitized

pytestmark = not_sanitized

COUNT = 6


def write(root, value=0, **options):
    with ShardedDatasetWriter(root, **options) as writer:
        writer.add_fields(["x", "y"])
        for i in range(COUNT):
            writer.add_sample({"x": np.full(3, value + i), "y": np.arange(i)})
    return [f"sample_{i + 1:012d}" for i in range(COUNT)]


@pytest.fixture
def root(tmp_path):
    write(tmp_path / "data")
    return tmp_path / "data"


IDS = [f"sample_{i + 1:012d}" for i in range(COUNT)]


def test_a_relative_root_survives_chdir(tmp_path, monkeypatch):
    for value, name in enumerate(["one", "other"]):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "data", 10 * value)
    monkeypatch.chdir(tmp_path / "one")
    with ShardedDatasetReader("data") as reader, fastshard.open("data") as ds:
        again = pickle.dumps((reader, ds))
        monkeypatch.chdir(tmp_path / "other")
        assert reader.get_sample(IDS[0])[0]["x"].tolist() == [0, 0, 0]
        assert reader.samples[1]["x"].tolist() == [1, 1, 1]
        assert ds[2]["x"].tolist() == [2, 2, 2]
        reader.refresh()
        assert [batch["x"][0, 0] for batch in reader.scan("x", batch_size=1)] == [
            *range(COUNT)
        ]
        copies = pickle.loads(pickle.dumps(reader)), *pickle.loads(again)
        for copy in copies[:2]:
            assert copy.samples[0]["x"].tolist() == [0, 0, 0]
            copy.close()
        assert copies[2][0]["x"].tolist() == [0, 0, 0]
        assert (reader.verify(), ds.verify()) == ([], [])
        assert reader.root == "data"


def test_a_root_may_be_bytes(root):
    name = os.fsencode(root)
    with ShardedDatasetReader(name) as reader:
        assert reader.columns(IDS, "x")["x"].shape == (COUNT, 3)
    assert verify(name) == []
    assert stat(name) == stat(root)
    assert compact(name).bytes_after


def test_a_reader_verifies_and_counts(root):
    with ShardedDatasetReader(root) as reader:
        assert reader.verify() == []
        assert reader.stat(deep=True) == stat(root, deep=True)
        (root / "x_shards" / "shard_0000.tar").unlink()
        assert [fault.reason for fault in reader.verify()] == [
            f"the shard is missing; samples in it: {COUNT}"
        ]
    for call in (reader.verify, reader.stat, lambda: len(reader)):
        with pytest.raises(ClosedError, match="open another"):
            call()


def test_a_str_is_refused_for_a_list_of_ids(root):
    with ShardedDatasetReader(root) as reader:
        for call in (reader.get_many, reader.columns):
            with pytest.raises(
                TypeError, match=f"a list of str, got the str '{IDS[0]}'"
            ):
                call(IDS[0])
        assert reader.columns(ids=IDS[:2], fields="x")["x"].shape == (2, 3)


@pytest.mark.parametrize("of", [list, np.array])
def test_a_mask_is_refused(root, of):
    mask = of([False, True] * (COUNT // 2))
    with ShardedDatasetReader(root) as reader:
        with pytest.raises(TypeError, match="flatnonzero"):
            reader.columns(mask, "x")
        chosen = reader.columns(np.flatnonzero(mask), "x")["x"]
    assert chosen[:, 0].tolist() == [1, 3, 5]


@pytest.mark.parametrize("position", [COUNT, -COUNT - 1, 10**20, -(10**20)])
def test_positions_out_of_range(root, position):
    with ShardedDatasetReader(root) as reader, pytest.raises(IndexError):
        reader.columns([0, position])


def test_ragged_error_is_a_value_error(root):
    with ShardedDatasetReader(root) as reader:
        with pytest.raises(RaggedError, match=IDS[1]) as caught:
            reader.columns(IDS)
        assert isinstance(caught.value, ValueError)
        with pytest.raises(RaggedError):
            next(reader.scan(batch_size=3))
    with fastshard.open(root) as ds, pytest.raises(RaggedError):
        ds.columns([0, 1], "y")


def test_unknown_options(root):
    with pytest.raises(TypeError, match="bogus"):
        fastshard.open(root, bogus=1)
    with pytest.raises(ValueError, match="does not take index"):
        fastshard.open(root, key="last")


def test_a_field_named_as_the_key(make_original):
    writer = make_original()
    writer.add_fields(["__key__", "x"])
    writer.add_sample({"__key__": np.arange(2), "x": np.arange(3)}, "s")
    writer.close()
    with ShardedDatasetReader(writer.root) as reader:
        assert reader.get_sample("s")[0]["__key__"].tolist() == [0, 1]
        with pytest.raises(FastshardError, match="other fields"):
            reader.scan()
        (found,) = reader.scan(["x"])
        assert found["__key__"] == "s"
    with fastshard.open(writer.root) as ds:
        with pytest.raises(FastshardError, match="other fields"):
            ds[0].decode()
        for call in (lambda: fastshard.collate([ds[0]]), lambda: next(ds.batches(1))):
            with pytest.raises(FastshardError, match="named '__key__'"):
                call()
        assert ds[0].decode("x")["__key__"] == "s"
        assert fastshard.collate([ds.select_fields("x")[0]])["__key__"] == ["s"]
        assert ds[0]["__key__"].tolist() == [0, 1]


def test_queries_take_named_parameters(root):
    with ShardedDatasetReader(root) as reader:
        assert reader.query_ids("id = :wanted", {"wanted": IDS[2]}) == [IDS[2]]
        assert len(reader.query_ids("id > ?", (IDS[2],), limit=2)) == 2


def test_invalid_json_in_a_query_is_named(make_original):
    writer = make_original()
    writer.add_field("x")
    writer.add_sample({"x": np.arange(2)}, "good", {"n": 1})
    writer.add_sample({"x": np.arange(2)}, "nan", {"n": float("nan")})
    writer.close()
    with ShardedDatasetReader(writer.root) as reader:
        if sqlite3.sqlite_version_info >= (3, 42):  # NaN is JSON5, which it reads
            assert reader.query_ids("json_extract(meta_json, '$.n') = 1") == ["good"]
        else:
            with pytest.raises(fastshard.QueryError, match="json_valid"):
                reader.query_ids("json_extract(meta_json, '$.n') = 1")
        guarded = "CASE WHEN json_valid(meta_json) THEN {} END"
        wanted = guarded.format("json_extract(meta_json, '$.n') = 1")
        assert reader.query_ids(wanted) == ["good"]


# ------------------------------------------------------------- arrays of objects


def test_all_calls_unpickle_if_allowed(tmp_path):
    objects = [np.array([{"i": i}, None]) for i in range(4)]
    with ShardedDatasetWriter(tmp_path / "d", allow_pickle=True) as writer:
        writer.add_fields(["o", "x"])
        for i, array in enumerate(objects):
            writer.add_sample({"o": array, "x": np.arange(3) + i}, f"s{i}")
    with ShardedDatasetReader(tmp_path / "d") as reader:
        for call in (
            lambda: reader.samples[1],
            lambda: reader.columns(["s1"]),
            lambda: reader.columns([1]),
            lambda: list(reader.scan()),
            lambda: list(reader.scan(batch_size=2)),
            lambda: reader.samples.__getitems__([0, 1]),
        ):
            with pytest.raises(fastshard.FormatError, match="Python objects"):
                call()
        assert len(reader.verify()) == 4
    with ShardedDatasetReader(tmp_path / "d", allow_pickle=True) as reader:
        assert reader.verify() == []
        assert reader.samples[1]["o"].tolist() == [{"i": 1}, None]
        for ids in (["s2", "s1"], [2, 1]):
            found = reader.columns(ids)
            assert found["o"].tolist() == [[{"i": 2}, None], [{"i": 1}, None]]
            assert found["x"][:, 0].tolist() == [2, 1]
        assert [one["o"][0]["i"] for one in reader.scan()] == [0, 1, 2, 3]
        batches = list(reader.scan(batch_size=3))
        assert [batch["o"].shape for batch in batches] == [(3, 2), (1, 2)]
        items = reader.samples.__getitems__([3, 0])
        assert [item["o"][0]["i"] for item in items] == [3, 0]
        again = pickle.loads(pickle.dumps(reader.samples))
        assert again[2]["o"].tolist() == [{"i": 2}, None]


def test_fields_of_plain_arrays_and_of_objects(tmp_path):
    with ShardedDatasetWriter(tmp_path / "d", allow_pickle=True) as writer:
        writer.add_field("a")
        writer.add_sample({"a": np.arange(2.0)}, "plain")
        writer.add_sample({"a": np.array([1, {}], object)}, "objects")
    both = ["plain", "objects"]
    for ids in (both, both[::-1], [0, 1], [1, 0]):
        with ShardedDatasetReader(tmp_path / "d", allow_pickle=True) as reader:
            for _ in range(2):
                found = reader.columns(ids, ragged="list")["a"]
                assert {array.dtype.kind for array in found} == {"f", "O"}
                with pytest.raises(RaggedError):
                    reader.columns(ids)
                for one in ids:
                    assert reader.columns([one])["a"].shape == (1, 2)
            (batch,) = reader.scan(batch_size=5, ragged="list")
            assert [array.dtype.kind for array in batch["a"]] == ["f", "O"]


def test_invalid_pickles(tmp_path):
    with ShardedDatasetWriter(tmp_path / "d", allow_pickle=True) as writer:
        writer.add_field("o")
        writer.add_sample({"o": np.array([{"a": 1}])}, "s")
        writer.add_sample({"o": np.arange(3)}, "plain")
    path = tmp_path / "d" / "o_shards" / "shard_0000.tar"
    data = path.read_bytes()
    assert data.count(b"\x80\x03") + data.count(b"\x80\x04") == 1
    path.write_bytes(
        data.replace(b"\x80\x03", b"\xff\xff").replace(b"\x80\x04", b"\xff\xff")
    )
    with ShardedDatasetReader(tmp_path / "d", allow_pickle=True) as reader:
        for call in (
            lambda: reader.samples[0],
            lambda: reader.columns([0]),
            lambda: reader.get_sample("s"),
        ):
            with pytest.raises(fastshard.FormatError, match=r"s\.npy"):
                call()
        assert reader.samples[1]["o"].tolist() == [0, 1, 2]
        assert reader.columns([1])["o"].tolist() == [[0, 1, 2]]


# ------------------------------------------------------------- errors about shards


def test_errors_name_the_fault_of_a_shard(tmp_path, make_original):
    writer = make_original()
    writer.add_field("x")
    for i in range(3):
        writer.add_sample({"x": np.arange(i)}, f"s{i}")
    writer.close()
    path = writer.root / "x_shards" / "shard_0000.tar"
    data = bytearray(path.read_bytes())
    data[1024 + 148 : 1024 + 156] = b"0000000\0"  # a checksum
    path.write_bytes(data)
    with ShardedDatasetReader(writer.root) as reader:
        assert reader.get_sample("s0")[0]["x"].tolist() == []
        for call in (lambda: reader.get_sample("s2"), lambda: reader.samples[2]):
            with pytest.raises(fastshard.FormatError, match=r"checksum.* byte 1,024"):
                call()
