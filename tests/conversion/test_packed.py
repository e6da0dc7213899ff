"""Packed tars as source and target of conversions."""

import itertools
import math

import numpy as np
import pytest

import fastshard
from conversion.conftest import contents, digests, make_samples, write_tar
from fastshard import ConversionError, convert
from support.marks import not_sanitized

msgspec = pytest.importorskip("msgspec")

pytestmark = not_sanitized  # tests Python code


def payloads(folder):
    """The maps of packed tars by key, as msgspec decodes them."""
    with fastshard.open(folder) as ds:
        return {
            sample.key: msgspec.msgpack.decode(sample.view("msgpack")) for sample in ds
        }


def array_in(data):
    """Read an array by the text of the format of npy."""
    assert data[:8] == b"\x93NUMPY\x01\x00"
    size = int.from_bytes(data[8:10], "little")
    header = eval(data[10 : 10 + size])
    order = "F" if header["fortran_order"] else "C"
    array = np.frombuffer(data[10 + size :], header["descr"])
    return array.reshape(header["shape"], order=order)


def write_maps(folder, maps, per_shard=100):
    """Write packed tars by msgspec."""
    samples = [
        {"__key__": f"{i:04d}", "msgpack": msgspec.msgpack.encode(values)}
        for i, values in enumerate(maps)
    ]
    return write_tar(folder, samples, per_shard)


@pytest.mark.parametrize("workers", [1, 2])
def test_tars_are_packed(tars, tmp_path, workers):
    done = convert(tars, tmp_path / "out", to="packed", workers=workers)
    assert done.format == "packed"
    assert done.columns == {
        "jpg": "bytes", "seg": "bytes", "thumb.webp": "bytes", "txt": "str",
        "cls": "int", "meta": "json", "x": "npy", "lr": "npy", "data.bin": "bytes",
        "empty": "str",
    }  # fmt: skip
    found = payloads(tmp_path / "out")
    for sample in make_samples():
        values = found.pop(sample["__key__"])
        assert list(values) == list(done.columns)
        x, lr = array_in(values.pop("x")), array_in(values.pop("lr"))
        assert x.dtype == np.float32
        np.testing.assert_array_equal(x, sample["x.npy"])
        assert (lr.dtype, lr.shape, lr) == (np.float32, (), sample["lr.npy"])
        assert values == {
            "jpg": sample["jpg"],
            "seg": sample["seg.png"],
            "thumb.webp": sample["thumb.webp"],
            "txt": sample["txt"],
            "cls": sample["cls"],
            "meta": sample["meta.json"],
            "data.bin": sample["data.bin"],
            "empty": "",
        }
    assert not found
    assert fastshard.open(tmp_path / "out").verify() == []


@pytest.mark.parametrize("workers", [1, 2])
def test_tars_come_back(tars, tmp_path, workers):
    convert(tars, tmp_path / "packed", to="packed", workers=workers)
    done = convert(
        tmp_path / "packed", tmp_path / "back", to="tar", packed=True, workers=workers
    )
    assert done.columns["jpg"] == "jpeg"
    assert done.columns["seg"] == "png"
    assert digests(tmp_path / "back") == digests(tars)


def test_a_packed_tar_is_packed_again(tmp_path):
    maps = [
        {"any": 1, "x": np.arange(3), "deep": {"a": [b"", {"b": 2}]}, "n": 2**64 - 1},
        {"any": "one", "x": None, "deep": None, "f": np.float16(1)},
        {"any": True},
    ]
    for values in maps:
        if values.get("x") is not None:
            values["x"] = compact(values["x"])
        if "f" in values:
            values["f"] = compact(np.asarray(values["f"]))
    source = write_maps(tmp_path / "in", maps)
    for at, (start, packed) in enumerate(itertools.pairwise([source, *"ab"])):
        start = tmp_path / start if at else start
        convert(start, tmp_path / packed, to="packed", packed=True, workers=1)
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    one, two, three = payloads(tmp_path / "b").values()
    np.testing.assert_array_equal(array_in(one["x"]), np.arange(3))
    assert one["deep"] == {"a": [b"", {"b": 2}]}
    assert one["n"] == 2**64 - 1
    assert "x" not in two
    assert two["deep"] is None
    assert array_in(two["f"]).dtype == np.float16
    assert three == {"any": True}


def compact(array):
    """Return an array as atdata stores it, by the text of the format."""
    dtype = array.dtype.str.encode()
    shape = b"".join(n.to_bytes(8, "little") for n in array.shape)
    return bytes([len(dtype)]) + dtype + bytes([array.ndim]) + shape + array.tobytes()


KINDS = {
    "text": ["a", "b"],
    "int": [1, -2],
    "big": [1, 2**63],
    "float": [0.5, math.inf],
    "mixed": [1, 0.5],
    "flag": [True, False],
    "list": [[1], []],
    "jpeg": [b"\xff\xd8a", b"\xff\xd8b"],
    "png": [b"\x89PNGa", b"\x89PNGb"],
    "bytes": [b"\xff\xd8", b"\x89PNG"],
    "array": [compact(np.arange(2.0)), compact(np.zeros((0, 2), "u1"))],
    "scalar": [compact(np.float32(1)), compact(np.float32(2))],
    "both": [compact(np.arange(2.0)), b"raw"],
}


def test_columns_have_the_encoding_of_their_values(tmp_path):
    maps = [{name: both[i] for name, both in KINDS.items()} for i in range(2)]
    source = write_maps(tmp_path / "in", maps)
    done = convert(source, tmp_path / "tars", to="tar", packed=True, workers=1)
    assert done.columns == {
        "text": "str", "int": "int", "big": "str_int", "float": "float64",
        "mixed": "json", "flag": "json", "list": "json", "jpeg": "jpeg", "png": "png",
        "bytes": "bytes", "array": "npy", "scalar": "npy", "both": "bytes",
    }  # fmt: skip
    left_out = ("big", "array", "jpeg", "png")  # mds has no such array, no such picture
    names = ",".join(name for name in KINDS if name not in left_out)
    done = convert(
        source, tmp_path / "mds", to="mds", packed=True, columns=names, workers=1
    )
    assert done.columns["scalar"] == "float32"
    rows = [sample.decode() for sample in fastshard.open(tmp_path / "mds")]
    assert [row["mixed"] for row in rows] == [1, 0.5]
    assert [bytes(row["both"]) for row in rows] == KINDS["both"]
    assert [row["scalar"] for row in rows] == [1, 2]


def test_samples_with_nil_lack_the_column(tmp_path):
    x = np.arange(3)
    maps = [{"a": 1, "x": compact(x)}, {"a": None, "t": "b"}, {"a": 3, "x": None}]
    source = write_maps(tmp_path / "in", maps)
    options = {"packed": True, "workers": 1}
    done = convert(source, tmp_path / "tars", to="tar", **options)
    assert done.columns == {"a": "int", "x": "npy", "t": "str"}
    fields = [sorted(fields) for _, fields in contents(tmp_path / "tars")]
    assert fields == [["a.cls", "x.npy"], ["t.txt"], ["a.cls"]]
    with pytest.raises(ConversionError, match="1 of 3 samples lack 'a'"):
        convert(source, tmp_path / "mds", to="mds", columns="a", **options)
    convert(source, tmp_path / "mds", to="mds", columns="a:json", **options)
    rows = [sample.decode() for sample in fastshard.open(tmp_path / "mds")]
    assert [row["a"] for row in rows] == [1, None, 3]


def test_a_column_of_nothing_but_nil_is_json(tmp_path):
    source = write_maps(tmp_path / "in", [{"a": None}, {"a": None}])
    done = convert(source, tmp_path / "out", to="mds", packed=True, workers=1)
    assert done.columns == {"__key__": "str", "a": "json"}
    rows = [sample.decode() for sample in fastshard.open(tmp_path / "out")]
    assert [row["a"] for row in rows] == [None, None]


def test_values_of_unlike_kinds_are_refused_by_name(tmp_path):
    source = write_maps(tmp_path / "in", [{"a": 1}, {"a": b"1"}])
    with pytest.raises(ConversionError, match="column 'a'"):
        convert(source, tmp_path / "out", to="tar", packed=True, workers=1)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("value", "reason"),
    [({"k": b"1"}, "sample 1 .*'a'"), ({1: 2}, "key 1"), ([{2.5: 1}], "key 2.5")],
)
def test_values_beyond_json_are_refused_before_writing(tmp_path, value, reason):
    source = write_maps(tmp_path / "in", [{"a": {}}, {"a": value}])
    with pytest.raises(ConversionError, match=reason):
        convert(source, tmp_path / "out", to="tar", packed=True, workers=1)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ("a.json", r"column 'a': an int must be"),
        ("a.cls", "beyond the ints"),
    ],
)
def test_ints_that_msgpack_lacks(tmp_path, field, reason):
    samples = [{"__key__": "0", field: 1}, {"__key__": "1", field: 2**64}]
    source = write_tar(tmp_path / "in", samples)
    with pytest.raises(ConversionError, match=f"sample 1 .*{reason}"):
        convert(source, tmp_path / "out", to="packed", workers=1)
    assert not (tmp_path / "out").exists()


def test_encodings_are_chosen(tars, tmp_path):
    columns = "cls:float,x,txt,meta:str,data.bin"
    done = convert(tars, tmp_path / "out", to="packed", columns=columns, workers=1)
    assert done.columns == {
        "cls": "float", "x": "npy", "txt": "str", "meta": "str", "data.bin": "bytes"
    }  # fmt: skip
    for values, sample in zip(
        payloads(tmp_path / "out").values(), make_samples(), strict=True
    ):
        assert type(values["cls"]) is float
        assert values["cls"] == sample["cls"]
        assert values["meta"].startswith('{"a":[')
    with pytest.raises(ValueError, match="no encoding 'uint8'"):
        convert(tars, tmp_path / "new", to="packed", columns="cls:uint8")
    with pytest.raises(ValueError, match="compression= is not an option of packed"):
        convert(tars, tmp_path / "new", to="packed", compression="gz")


def test_a_damaged_payload_leaves_nothing(tmp_path):
    source = write_maps(tmp_path / "in", [{"a": 1}])
    tar = tmp_path / "in" / "train-0000.tar"
    tar.write_bytes(tar.read_bytes().replace(b"\x81\xa1a\x01", b"\x82\xa1a\x01"))
    with pytest.raises(fastshard.FormatError, match="0000"):
        convert(source, tmp_path / "out", to="tar", packed=True, workers=1)
    assert not (tmp_path / "out").exists()
