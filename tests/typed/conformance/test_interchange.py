"""atdata reads files written here, and the reverse; compact bytes are its own."""

import dataclasses
import gc
import io
import tarfile

import msgpack
import numpy as np
import pytest
from numpy.typing import NDArray

from fastshard import typed
from support.typed.classes import Basic, Vec, type_of
from support.typed.expected import SHARDS, described

pytest.importorskip("msgspec")

FORMATS = ("npy", "compact")
# Written by atdata 0.7.0b1 as {"x": array}.
GOLDEN = {
    "2-d": (
        np.array([[1.0, -0.0], [np.inf, 0.5]], "<f4"),
        "81a178c425033c66340202000000000000000200000000000000"
        "0000803f000000800000807f0000003f",
    ),
    "bool": (np.array([True, False]), "81a178c40f037c62310102000000000000000100"),
    "text": (
        np.array(["é", "ab"]),
        "81a178c41d033c5532010200000000000000e9000000000000006100000062000000",
    ),
    "0-d": (np.array(258, ">i2"), "81a178c407033e6932000102"),
    "empty": (
        np.zeros((0, 3), "<i8"),
        "81a178c415033c69380200000000000000000300000000000000",
    ),
}


@typed.packable
class One:
    x: NDArray


@pytest.fixture
def atdata():
    return pytest.importorskip("atdata")


def payloads_in(path):
    with tarfile.open(path) as tar:
        return [tar.extractfile(m).read() for m in tar if m.name.endswith(".msgpack")]


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_compact_arrays(name, tmp_path):
    array, data = GOLDEN[name]
    payload = bytes.fromhex(data)
    found = One.from_bytes(payload).x
    assert described(found) == described(array)
    path = tmp_path / "a.tar"
    typed.write_samples([One(x=array)], path, array_format="compact")
    assert payloads_in(path) == [payload]


@pytest.mark.parametrize("name", [n for n in SHARDS if n != "struct.tar"])
def test_compact_payloads_are_those_of_atdata(typed_data, tmp_path, name):
    """Read and written again, payloads are equal byte by byte."""
    ds = typed.Dataset(typed_data.root / name, type_of(name))
    path = tmp_path / "again.tar"
    typed.write_samples(list(ds), path, array_format="compact")
    stored = payloads_in(typed_data.root / name)
    if name == "legacy.tar":  # npy then, compact now: equal values
        pairs = zip(typed.Dataset(path, type_of(name)), ds, strict=True)
        assert all(described(a.x) == described(b.x) for a, b in pairs)
    else:
        assert payloads_in(path) == stored


@pytest.mark.parametrize("array_format", FORMATS)
@pytest.mark.parametrize("name", SHARDS)
def test_shards_are_written_and_read_again(typed_data, tmp_path, name, array_format):
    cls = type_of(name)
    ds = typed.Dataset(typed_data.root / name, cls)
    again = typed.write_samples(
        list(ds), tmp_path / "again.tar", array_format=array_format
    )
    for found, known in zip(again.ordered(), typed_data.shards[name], strict=True):
        for field in dataclasses.fields(cls):
            value = getattr(found, field.name)
            assert described(value) == known.fields[field.name]
            if array_format == "npy" and isinstance(value, np.ndarray):
                assert value.ctypes.data % 64 == 0 or not value.size


def test_payloads_are_plain_msgpack(tmp_path):
    """Any reader of msgpack and npy reads them."""
    array = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    typed.write_samples([One(x=array)], tmp_path / "a.tar")
    (payload,) = payloads_in(tmp_path / "a.tar")
    found = np.load(io.BytesIO(msgpack.unpackb(payload)["x"]), allow_pickle=False)
    np.testing.assert_array_equal(found, array)
    assert found.flags.f_contiguous


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_webdataset_reads_written_shards(tmp_path):
    webdataset = pytest.importorskip("webdataset")
    samples = [Vec(idx=i, x=np.full(2, i, "f4"), label=str(i)) for i in range(5)]
    typed.write_samples(samples, tmp_path / "a.tar")
    found = list(webdataset.WebDataset(str(tmp_path / "a.tar"), shardshuffle=False))
    gc.collect()  # it leaves its file open
    assert [sample["__key__"] for sample in found] == [f"{i:012}" for i in range(5)]
    for raw, sample in zip(found, samples, strict=True):
        read = Vec.from_bytes(raw["msgpack"])
        assert (read.idx, read.label) == (sample.idx, sample.label)
        np.testing.assert_array_equal(read.x, sample.x)


def test_shards_of_webdataset_are_read(tmp_path):
    webdataset = pytest.importorskip("webdataset")
    samples = [Vec(idx=i, x=np.full(2, i, "f4"), label=str(i)) for i in range(5)]
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as writer:
        for sample in samples:
            writer.write(sample.as_wds)
    found = list(typed.Dataset(tmp_path / "a.tar", Vec).ordered())
    assert [described(s.x) for s in found] == [described(s.x) for s in samples]
    assert [s.idx for s in found] == list(range(5))


def upstreams(atdata, cls):
    """Return atdata's type of the same fields, bare arrays as it needs them."""
    arrays = {"x", "y", "t", "mask"}
    names = [field.name for field in dataclasses.fields(cls)]
    hints = {name: NDArray if name in arrays else object for name in names}
    made = type(cls.__name__, (), {"__annotations__": hints})
    return atdata.packable(made)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("array_format", FORMATS)
@pytest.mark.parametrize("name", [n for n in SHARDS if n != "opt.tar"])
def test_atdata_reads_our_rows(atdata, typed_data, tmp_path, name, array_format):
    cls = type_of(name)
    ds = typed.Dataset(typed_data.root / name, cls)
    typed.write_samples(list(ds), tmp_path / "a.tar", array_format=array_format)
    theirs = upstreams(atdata, cls)
    found = list(atdata.Dataset[theirs](str(tmp_path / "a.tar")).ordered())
    gc.collect()  # it leaves its file open
    for sample, known in zip(found, typed_data.shards[name], strict=True):
        values = {field: getattr(sample, field) for field in known.fields}
        assert {f: described(value) for f, value in values.items()} == known.fields


def test_rows_of_atdata_are_read(atdata, tmp_path):
    theirs = upstreams(atdata, Basic)
    array = np.arange(6, dtype="f4").reshape(2, 3)
    values = {"name": "é", "value": -(2**63), "score": 1.5, "ok": True, "raw": b"\0"}
    path = tmp_path / "a.tar"
    atdata.write_samples([theirs(**values, x=array)], str(path))
    (found,) = typed.Dataset(path, Basic).ordered()
    assert {name: getattr(found, name) for name in values} == values
    np.testing.assert_array_equal(found.x, array)


def test_objects_of_both_pack_alike(atdata):
    theirs = upstreams(atdata, Basic)
    values = {"name": "é", "value": 7, "score": 1.5, "ok": True, "raw": b"\0"}
    array = np.arange(6, dtype="f4")
    ours = Basic(**values, x=array)
    assert described(theirs.from_bytes(ours.packed).x) == described(array)
    assert described(Basic.from_bytes(theirs(**values, x=array).packed).x) == described(
        array
    )
