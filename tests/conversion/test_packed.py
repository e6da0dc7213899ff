"""Packed tars as source and target of conversions."""

import numpy as np
import pytest

import fastshard
from conversion.conftest import make_samples, write_tar
from fastshard import ConversionError, convert
from support.marks import not_sanitized

msgspec = pytest.importorskip("msgspec", reason="no msgspec for this Python")

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
    with pytest.raises(ValueError, match="compression= is no option of packed"):
        convert(tars, tmp_path / "new", to="packed", compression="gz")
