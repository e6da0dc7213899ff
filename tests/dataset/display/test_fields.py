"""Fields of datasets: kinds, dtypes, shapes."""

import json
import pickle

import numpy as np
import pytest

import fastshard
from fastshard import FieldInfo
from fastshard.columnar import ShardedDatasetWriter
from fastshard.formats.decoders import kind_of
from fastshard.formats.field_info import merge_field_infos
from support.builders import npy
from support.inside.datasets import opened_shards
from support.servers.http import Server
from support.tars import write_numbers, write_tar


def test_infos_compare_pickle_and_print():
    info = FieldInfo("array", "float32", (3, None))
    assert info == FieldInfo("array", "float32", (3, None)) != FieldInfo("array")
    assert len({info, FieldInfo("array", "float32", (3, None))}) == 1
    assert pickle.loads(pickle.dumps(info)) == info
    assert str(info) == "array float32 [3, ?]"
    assert str(FieldInfo("array", "int64", ())) == "array int64 []"
    assert json.loads(json.dumps(info.to_json()))["shape"] == [3, None]
    with pytest.raises(AttributeError):
        info.kind = "text"


@pytest.mark.parametrize(
    ("field", "kind"),
    [
        ("jpg", "image"),
        ("seg.PNG", "image"),
        ("cls", "int"),
        ("txt", "text"),
        ("json", "json"),
        ("npy", "array"),
        ("npz", "arrays"),
        ("mp", "msgpack"),
        ("pth", "torch"),
        ("bin", "bytes"),
        ("unknown", "bytes"),
    ],
)
def test_kinds_follow_extensions(field, kind):
    assert kind_of(field) == kind
    assert kind_of(field, {field: bytes}) == "object"


def test_decoders_that_cannot_be_hashed_have_a_kind():
    class Decoder:
        __hash__ = None

        def __call__(self, view):
            return view

    assert kind_of("jpg", {"jpg": Decoder()}) == "object"


def test_fields_are_those_of_the_first_shard_with_samples(tmp_path):
    write_tar(tmp_path / "a.tar", {"README": b"no sample"})
    members = {}
    for i, shape in enumerate([(4, 2), (4, 2), (4, 3)]):
        members[f"{i}.x.npy"] = npy(np.zeros(shape, ">f4"))
        members[f"{i}.y.npy"] = npy(np.zeros((5,) * (i + 1), "i8"))
        members[f"{i}.z.npy"] = npy(np.zeros(3, "u1" if i else "i2"))
        members[f"{i}.txt"] = b"text"
    members["0.json"] = b"{}"
    write_tar(tmp_path / "b.tar", members)
    write_tar(tmp_path / "c.tar", {"0.other": b""})
    ds = fastshard.open(tmp_path)
    assert ds.fields == {
        "x.npy": FieldInfo("array", ">f4", (4, None)),
        "y.npy": FieldInfo("array", "int64", None),
        "z.npy": FieldInfo("array", None, (3,)),
        "txt": FieldInfo("text"),
        "json": FieldInfo("json"),
    }
    assert not opened_shards(ds)[2]  # not opened
    chosen = ds.shuffle(3).select_fields("json", "other", "x.npy").fields
    assert list(chosen) == ["json", "other", "x.npy"]
    assert chosen["other"] == FieldInfo("bytes")
    assert chosen["x.npy"] == FieldInfo("array", ">f4", (4, None))
    assert ds.decode().map(len).fields == ds.fields
    with pytest.raises(TypeError):
        ds.fields["x"] = FieldInfo("text")


def test_bad_arrays_have_a_kind_only(tmp_path):
    objects = npy(np.zeros(3))[:-8]
    write_tar(
        tmp_path / "a.tar", {"0.npy": objects, "0.b.npy": b"", "0.c.npy": b"\x93NUMPY"}
    )
    array = FieldInfo("array")
    ds = fastshard.open(tmp_path)
    assert ds.fields == {"npy": array, "b.npy": array, "c.npy": array}


def test_decoders_of_the_caller_make_objects(tmp_path):
    ds = fastshard.open(write_numbers(tmp_path / "n", 3), decoders={"npy": bytes})
    assert ds.fields["npy"] == FieldInfo("object")
    assert ds.fields["txt"] == FieldInfo("text")


def test_a_dataset_without_samples_has_no_fields(tmp_path):
    write_tar(tmp_path / "a.tar", {"README": b""})
    ds = fastshard.open(tmp_path)
    assert ds.fields == {}
    assert ds.stats()["fields"] == {}


def test_columnar_fields_are_arrays(tmp_path):
    with ShardedDatasetWriter(tmp_path / "c") as writer:
        writer.add_fields(["tokens", "jpg"])
        for i in range(3):
            writer.add_sample(
                {"tokens": np.zeros(i + 5, "i4"), "jpg": np.zeros((2, 2))}
            )
    ds = fastshard.open(tmp_path / "c")
    assert ds.fields == {
        "tokens": FieldInfo("array", "int32", (None,)),
        "jpg": FieldInfo("array", "float64", (2, 2)),
    }


def test_stats_have_the_fields_as_json(tmp_path):
    ds = fastshard.open(write_numbers(tmp_path / "n", 25))
    stats = json.loads(json.dumps(ds.stats()))
    assert stats["samples"] == 25
    assert stats["fields"]["npy"] == {
        "kind": "array",
        "dtype": "float32",
        "shape": [2, 3],
    }


def test_combinations_merge_fields(tmp_path):
    a = fastshard.open(write_numbers(tmp_path / "n", 3))
    members = {"0.npy": npy(np.zeros((2, 4), "f4")), "0.txt": b"x", "0.bin": b""}
    write_tar(tmp_path / "b.tar", members)
    b = fastshard.open(tmp_path / "b.tar")
    expected = {
        "txt": FieldInfo("text"),
        "npy": FieldInfo("array", "float32", (2, None)),
        "cls": FieldInfo("int"),
        "bin": FieldInfo("bytes"),
    }
    assert (a + b).fields == fastshard.mix([a, b]).fields == expected
    assert merge_field_infos([{"x": FieldInfo("text")}, {"x": FieldInfo("int")}]) == {
        "x": FieldInfo("object")
    }
    assert not hasattr(fastshard.zip_by_key(a, a), "fields")


def test_of_remote_samples_only_headers_are_fetched(tmp_path):
    big = {f"{i}.npy": npy(np.zeros((1000, 1000), "f4")) for i in range(10)}
    ragged = {
        f"{i}.x.npy": npy(np.zeros((300_000 + i % 2, 2), "f4")) for i in range(10)
    }
    members = dict(sorted((big | ragged).items()))
    path = write_tar(tmp_path / "a.tar", members)
    with fastshard.open(path) as ds:
        local = ds.fields
    with Server({"/a.tar": path.read_bytes()}) as server:
        ds = fastshard.open(f"{server.url}/a.tar")
        len(ds)
        before = server.bytes_sent
        assert ds.fields == local
        assert local["npy"].shape == (1000, 1000)
        assert local["x.npy"].shape == (None, 2)
        assert server.bytes_sent - before < 2 << 20
        asked = len(server.requests)
        assert ds.fields == local
        assert len(server.requests) == asked
