"""Streaming datasets by `fastshard.open`: fields, values, keys, sets of shards."""

import hashlib
import json
import os
import pickle
from itertools import pairwise

import numpy as np
import pytest

import fastshard
from fastshard import (
    AmbiguousKeyError,
    FastshardError,
    FormatError,
    ShardNotFoundError,
    StaleIndexError,
)
from fastshard.streaming import CSVWriter, JSONWriter, MDSWriter
from support.inside.datasets import opened_shards
from support.streaming.expected import described

MODES = ["mmap", "private", "pread"]


def change_index(path, change):
    index = json.loads((path / "index.json").read_bytes())
    change(index["shards"])
    (path / "index.json").write_text(json.dumps(index))


def plain_rows(data):
    """Read the rows of an MDS file by the format's description alone."""
    count = int.from_bytes(data[:4], "little")
    ends = np.frombuffer(data, "<u4", count + 1, 4).tolist()
    return [data[a:b] for a, b in pairwise(ends)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["mds/none", "mds/zstd", "edge/fixed_only"])
def test_values_are_those_of_mosaicml_streaming(copy_streaming, name, mode):
    data = copy_streaming(name)
    ds = fastshard.open(data.root, mode=mode)

    assert len(ds) == len(data.samples)
    for i, (sample, expected) in enumerate(zip(ds, data.samples, strict=True)):
        values = sample.decode()
        assert values.pop("__key__") == sample.key == str(i)
        for field, value in values.items():
            facts = expected["fields"][field]
            assert described(value) == (facts["type"], facts["sha256"]), field
            stored = hashlib.sha256(sample[field]).hexdigest()
            assert stored == facts["enc_sha256"]
        assert list(values) == sample.keys() == expected["keys"]


def test_fields_are_stored_bytes_without_a_copy(copy_streaming):
    path = copy_streaming("edge/one_sample").root
    sample = fastshard.open(path)[0]
    (row,) = plain_rows((path / "shard.00000.mds").read_bytes())

    assert sample["id"].readonly
    size = int.from_bytes(row[:4], "little")
    assert bytes(sample["id"]) == row[4 : 4 + size]
    assert bytes(sample["sample"]) == row[4 + size :]
    assert sample.array("sample") == 0
    assert sample.array("sample").dtype == np.int64
    with sample.open("id") as file:
        assert file.read() == bytes(sample["id"])


def test_keys_are_positions_in_the_dataset(copy_streaming):
    ds = fastshard.open(copy_streaming("mds/none").root)

    assert ds[7].key == "7"
    assert ds["7"].decode("int") == ds[7].decode("int")
    assert ds.keys().find("7") == [7]
    assert ds.keys().find("07") == ds.keys().find("13") == []
    assert [sample.key for sample in ds[10:]] == ["10", "11", "12"]
    with pytest.raises(KeyError):
        ds["13"]


def test_excluded_shards_leave_keys_and_decode_nothing_else(copy_streaming):
    ds = fastshard.open(copy_streaming("mds/none").root)
    counts = [len(ds.shards[k].rows) for k in range(3)]
    rest = ds.exclude(["shard.00001.mds"])

    assert len(rest) == counts[0] + counts[2]
    assert rest[counts[0]].key == str(counts[0] + counts[1])
    assert rest.keys().find(rest[-1].key) == [len(rest) - 1]
    assert rest.keys().find(str(counts[0])) == []
    assert pickle.loads(pickle.dumps(rest))[-1].key == rest[-1].key


def test_pickles_of_samples_hold_their_bytes(copy_streaming):
    sample = fastshard.open(copy_streaming("mds/none").root)[3]
    copied = pickle.loads(pickle.dumps(sample))

    assert copied.key == sample.key
    assert copied.keys() == sample.keys()
    assert {f: bytes(copied[f]) for f in copied} == {
        f: bytes(sample[f]) for f in sample
    }
    for field in sample:
        assert described(copied.decode(field)[field]) == described(
            sample.decode(field)[field]
        )
    assert (copied.array("nd_dyn") == sample.array("nd_dyn")).all()
    assert copied.layout_of("nd_i64_5") == sample.layout_of("nd_i64_5")


def test_a_shard_is_opened_when_a_sample_of_it_is_read(copy_streaming):
    path = copy_streaming("mds/none").root
    for file in path.glob("*.mds"):
        file.unlink()
    ds = fastshard.open(path)

    assert len(ds) == 13
    assert ds.stats()["samples"] == 13
    assert "13 streaming samples" in repr(ds)
    with pytest.raises(ShardNotFoundError):
        ds[0].decode()


def test_decoders_of_the_caller_win(copy_streaming):
    path = copy_streaming("mds/none").root
    ds = fastshard.open(path, decoders={"str": len, "nd_dyn": bytes})

    assert ds[1].decode("str")["str"] == len(ds[1]["str"])
    assert ds[1].decode("nd_dyn")["nd_dyn"] == bytes(ds[1]["nd_dyn"])
    assert ds[1].decode("int")["int"] == fastshard.open(path)[1].decode("int")["int"]
    assert ds.fields["str"].kind == "object"


def test_pickled_columns_need_leave(copy_streaming):
    path = copy_streaming("edge/pkl").root

    with pytest.raises(ValueError, match="unsafe"):
        fastshard.open(path)[0].decode()
    assert len(bytes(fastshard.open(path)[0]["p"])) > 0
    assert "p" in fastshard.open(path, allow_unsafe_types=True)[0].decode()


def test_splits_are_directories(copy_streaming):
    data = copy_streaming("edge/splits#train")

    assert len(fastshard.open(data.root, split="train")) == len(data.samples)
    assert len(fastshard.open(data.root, split="val/nested")) > 0
    for split in ("../splits/train", "/", str(data.root)):
        with pytest.raises(ValueError, match="split= is a directory below"):
            fastshard.open(data.root / "train", split=split)


def test_a_missing_split_lists_the_existing_ones(copy_streaming):
    root = copy_streaming("edge/splits#train").root
    (root / "broken").mkdir()
    (root / "broken" / "index.json").write_text("[]")

    with pytest.raises(ShardNotFoundError) as caught:
        fastshard.open(root, split="nope")
    assert caught.value.path == str(root / "nope")
    assert str(caught.value) == (
        f"no split 'nope' in {root}: nope/index.json does not exist; "
        "splits there: train, val/nested"
    )
    with pytest.raises(ShardNotFoundError, match=r"broken/index\.json is not an index"):
        fastshard.open(root, split="broken")
    with pytest.raises(ShardNotFoundError, match="splits there: none"):
        fastshard.open(root / "broken", split="train")
    with pytest.raises(ShardNotFoundError, match="nowhere"):
        fastshard.open(root / "nowhere", split="train")
    (root / "a.tar").write_bytes(bytes(1024))
    with pytest.raises(TypeError, match="option of streaming datasets"):
        fastshard.open(root, split="nope")


def test_options_of_tars_are_refused(copy_streaming):
    path = copy_streaming("edge/one_sample").root
    with pytest.raises(ValueError, match="key= is an option of tar shards"):
        fastshard.open(path, key="last")
    with pytest.raises(TypeError, match="splitt"):
        fastshard.open(path, splitt="x")


@pytest.mark.parametrize("mode", MODES)
def test_a_file_of_another_size_than_the_index_states(copy_streaming, mode):
    path = copy_streaming("edge/one_sample").root
    file = path / "shard.00000.mds"
    os.truncate(file, file.stat().st_size - 1)

    with pytest.raises(FormatError, match="the index states") as caught:
        fastshard.open(path, mode=mode)[0].decode()
    assert caught.value.path == str(file)


def test_columns_and_batches_are_arrays(copy_streaming):
    ds = fastshard.open(copy_streaming("mds/none").root)
    values = [sample.decode("int64", "nd_f32_2x3") for sample in ds]

    for found in (
        ds.columns(range(13), ["int64", "nd_f32_2x3"]),
        next(iter(ds.select_fields("int64", "nd_f32_2x3").batches(13))),
    ):
        assert found["int64"].dtype == np.int64
        assert found["int64"].tolist() == [each["int64"] for each in values]
        assert found["nd_f32_2x3"].shape == (13, 2, 3)
        assert (found["nd_f32_2x3"] == [each["nd_f32_2x3"] for each in values]).all()


def test_verify_names_the_sample_and_column(copy_streaming):
    path = copy_streaming("mds/none").root
    assert fastshard.open(path).verify(hashes=True) == []
    file = path / "shard.00001.mds"
    data = bytearray(file.read_bytes())
    start = int.from_bytes(data[8:12], "little")
    data[start : start + 4] = b"\xff\xff\xff\x7f"
    file.write_bytes(data)

    faults = fastshard.open(path).verify()
    assert [fault.path for fault in faults] == [str(file)]
    assert "sample 1" in faults[0].member
    assert len(fastshard.open(path).verify(hashes=True)) == 3


@pytest.mark.parametrize("name", ["edge/one_sample", "json/none", "csv/none"])
def test_members_of_a_shard_are_fields_and_then_rows(copy_streaming, name):
    with fastshard.open(copy_streaming(name).root) as ds:
        sample = ds[0]
        shard, member = sample.place(sample.keys()[-1])
        width, count = len(sample), len(shard) // (len(sample) + 1)
        assert len(shard.names) == len(shard) == count * (width + 1)
        assert shard.names[member] == f"sample 0, column {sample.keys()[-1]!r}"
        assert shard.names[-1] == f"sample {count - 1}"
        assert list(shard.names) == shard.names[:] == shard.names[0 : len(shard)]
        for i in (member, 0, width * count, len(shard) - 1):
            assert (shard.offsets[i], shard.sizes[i]) == shard.extent_of(i)
            assert shard.sizes[i] == len(shard[i])


@pytest.mark.parametrize("make", [MDSWriter, JSONWriter, CSVWriter])
def test_samples_are_found_by_the_column_of_keys(tmp_path, make):
    keys = ["a", "é", '"', "a", "longer"]
    columns = {"__key__": "str", "x": "str"}
    with make(columns=columns, out=str(tmp_path / "d")) as writer:
        for i, key in enumerate(keys):
            writer.write({"__key__": key, "x": f"{i}"})
    with fastshard.open(tmp_path / "d") as ds:
        for key in ("é", '"', "longer"):
            assert ds[key].decode() == {"__key__": key, "x": str(keys.index(key))}
        for key in ("", "b", "longe", "longer2", "\ud800", "0"):
            assert key not in ds
        assert ds[0].samples.search_key("a") == 0
        assert ds.keys().find("a") == [0, 3]
        with pytest.raises(AmbiguousKeyError):
            ds["a"]


@pytest.mark.parametrize("mode", MODES)
def test_a_key_that_is_not_text_names_its_column(tmp_path, mode):
    columns = {"__key__": "str", "x": "int"}
    with MDSWriter(columns=columns, out=str(tmp_path / "d")) as writer:
        writer.write({"__key__": "abc", "x": 1})
    file = tmp_path / "d" / "shard.00000.mds"
    file.write_bytes(file.read_bytes().replace(b"abc", b"a\xffc"))

    with pytest.raises(FormatError) as caught:
        str(fastshard.open(tmp_path / "d", mode=mode)[0].key)
    assert caught.value.path == str(file)
    assert "sample 0, column '__key__'" in str(caught.value)


@pytest.mark.parametrize("writer", [MDSWriter, JSONWriter, CSVWriter])
def test_a_column_of_the_keys_name_that_is_not_text_collides(tmp_path, writer):
    columns = {"__key__": "int", "x": "int"}
    with writer(columns=columns, out=str(tmp_path / "d")) as file:
        for i in range(3):
            file.write({"__key__": 10 + i, "x": i})
    ds = fastshard.open(tmp_path / "d")
    own = fastshard.open(tmp_path / "d", decoders={"x": bytes})

    copied = pickle.loads(pickle.dumps(ds[1]))
    for sample in (ds[1], own[1], copied, ds.select_fields("x", "__key__")[1]):
        assert sample.key == "1"
        for fields in ((), ("__key__",), ("x", "__key__"), ("__key__", "x")):
            with pytest.raises(FastshardError, match="collides with the sample's key"):
                sample.decode(*fields)
        assert sample.decode("x")["__key__"] == "1"
    with pytest.raises(FastshardError, match="collides"):
        list(ds.decode())
    assert [s["x"] for s in ds.decode("x")] == [0, 1, 2]
    assert ds.columns([2, 0], "__key__")["__key__"].tolist() == [12, 10]
    assert ds[1].decoder_of("__key__")(ds[1]["__key__"]) == 11


def test_several_formats_in_one_set(copy_streaming):
    data = copy_streaming("edge/merged")
    ds = fastshard.open(data.root)

    ids = [sample.decode("id")["id"] for sample in ds.shuffle(seed=3)]
    assert sorted(ids) == sorted(sample.decode("id")["id"] for sample in ds)
    assert {type(shard.rows).__name__ for shard in ds.shards} == {"MdsRows", "JsonRows"}
    assert bytes(ds[-1]["id"])[:1] == b'"'
    assert ds[-1].text("id") == ds[-1].json("id") == ds[-1].decode("id")["id"]
    assert list(ds.columns(range(len(ds)), "id")["id"]) == [
        sample.decode("id")["id"] for sample in ds
    ]


def test_a_column_of_keys_names_the_samples(tmp_path):
    keys = [f"k{i:03}" for i in range(50)]
    columns = {"__key__": "str", "x": "int"}
    with MDSWriter(columns=columns, out=str(tmp_path / "d"), size_limit=600) as writer:
        for i, key in enumerate(keys):
            writer.write({"__key__": key, "x": i})
    ds = fastshard.open(tmp_path / "d")

    assert len(ds.shards) > 2
    assert [sample.key for sample in ds] == keys
    assert ds[7].keys() == ["x"]
    assert ds[7].decode() == {"__key__": "k007", "x": 7}
    assert ds["k031"].decode("x") == {"__key__": "k031", "x": 31}
    assert ds.keys().find("31") == []
    assert ds.stats()["members"] == 50


def test_a_changed_file_is_noticed_as_of_tars(tmp_path):
    with MDSWriter(columns={"x": "str"}, out=str(tmp_path / "d")) as writer:
        for i in range(100):
            writer.write({"x": str(i) * 100})
    file = tmp_path / "d" / "shard.00000.mds"
    private = fastshard.open(tmp_path / "d", mode="private")
    pread = fastshard.open(tmp_path / "d", mode="pread")
    mapped = fastshard.open(tmp_path / "d", check_size=True)
    view = private[3]["x"]
    view[:1] = b"y"
    assert private[3].decode()["x"][:2] == "y3"
    assert pread[3].decode()["x"][:2] == mapped[3].decode()["x"][:2] == "33"

    os.truncate(file, file.stat().st_size - 5000)
    for ds in (pread, mapped):
        with pytest.raises(FormatError) as caught:
            ds[99].decode()
        assert caught.value.path == str(file)
        with pytest.raises(FormatError):
            bytes(ds[99]["x"])


def test_memory_is_bounded_and_shards_are_evicted(tmp_path):
    with MDSWriter(
        columns={"x": "bytes"}, out=str(tmp_path / "d"), size_limit=1 << 16
    ) as writer:
        for i in range(200):
            writer.write({"x": bytes([i]) * 4000})
    ds = fastshard.open(tmp_path / "d", max_memory="1MiB", max_mapped=2)

    assert len(ds.shards) > 8
    for sample in ds.shuffle(seed=5):
        assert set(bytes(sample["x"])) == {sample.decode()["x"][0]}
    assert sum(opened_shards(ds)) <= 2
    assert ds.memory_info()["mapped"] <= 3 << 16


def test_iterations_continue_where_a_state_was_taken(copy_streaming):
    ds = fastshard.open(copy_streaming("edge/sequence_1000").root).shuffle(seed=2)
    iterator = iter(ds)
    seen = [next(iterator).key for _ in range(400)]
    rest = [sample.key for sample in ds.resume(ds.state_dict(400))]

    assert len({*seen, *rest}) == len(ds) == len(seen) + len(rest)
    parts = [len(ds.split_by_rank(rank, 3)) for rank in range(3)]
    assert sum(parts) >= len(ds)


def test_an_index_that_changed_is_not_unpickled(copy_streaming):
    path = copy_streaming("mds/none").root
    data = pickle.dumps(fastshard.open(path))
    change_index(path, lambda shards: shards.pop())

    with pytest.raises(StaleIndexError):
        pickle.loads(data)
