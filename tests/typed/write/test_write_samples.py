"""Shards of samples: contents, names, refusals."""

import gc
import io
import os
import tarfile
import tracemalloc
from typing import Annotated, Any

import msgpack
import numpy as np
import pytest
from numpy.typing import NDArray

import fastshard
from fastshard import typed


@typed.packable
class Item:
    i: int
    text: str
    x: NDArray[np.float32]


@typed.packable
class Other:
    i: int


@typed.packable
class Loose:
    value: Any
    more: dict


def make_items(n, size=3):
    return [Item(i, f"text {i}", np.full(size, i, "f4")) for i in range(n)]


def members_of(path):
    with tarfile.open(path) as tar:
        return [(m.name, m.offset_data, tar.extractfile(m).read()) for m in tar]


def test_samples_read_back_equal(tmp_path):
    items = make_items(5)
    ds = typed.write_samples(iter(items), tmp_path / "new" / "out.tar")

    assert isinstance(ds, typed.Dataset)
    assert ds.sample_type is Item
    assert [(s.i, s.text, s.x.tolist()) for s in ds.ordered()] == [
        (s.i, s.text, s.x.tolist()) for s in items
    ]
    assert ds.list_shards() == [str(tmp_path / "new" / "out.tar")]
    assert sorted(os.listdir(tmp_path / "new")) == ["out.fsi", "out.tar"]


def test_members_are_plain_ustar_under_running_keys(tmp_path):
    typed.write_samples(make_items(5), tmp_path / "a.tar", maxcount=2)
    names = [m[0] for k in range(3) for m in members_of(tmp_path / f"a-{k:06d}.tar")]
    assert names == [f"{i:012d}.msgpack" for i in range(5)]
    with tarfile.open(tmp_path / "a-000000.tar") as tar:
        for member in tar:
            assert (member.mtime, member.pax_headers, member.uid) == (0, {}, 0)
            assert member.offset_data % 512 == 0
    data = (tmp_path / "a-000000.tar").read_bytes()
    assert data.endswith(bytes(1024))
    assert len(data) == 2 * 1024 + 1024  # header, payload; no pax pairs


def test_the_same_samples_give_the_same_bytes(tmp_path):
    for name in "ab":
        typed.write_samples(make_items(5), tmp_path / f"{name}.tar")
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()


def test_arrays_are_aligned_in_memory(tmp_path):
    items = [Item(i, "x" * i, np.arange(i, dtype="f4")) for i in range(70)]
    ds = typed.write_samples(items, tmp_path / "a.tar")
    shards = fastshard.open(ds.list_shards(), packed=True)
    for item, found in zip(items, shards, strict=True):
        array = found.array("x")
        assert array.tolist() == item.x.tolist()
        assert array.__array_interface__["data"][0] % 64 == 0


def test_compact_payloads_are_those_of_msgpack(tmp_path):
    items = make_items(3)
    ds = typed.write_samples(items, tmp_path / "a.tar", array_format="compact")
    for (_, _, payload), item in zip(
        members_of(tmp_path / "a.tar"), items, strict=True
    ):
        data = b"\x03<f4\x01\x03" + bytes(7) + item.x.tobytes()
        assert payload == msgpack.packb({"i": item.i, "text": item.text, "x": data})
    assert [s.x.tolist() for s in ds] == [s.x.tolist() for s in items]


@pytest.mark.parametrize(
    ("path", "options", "names"),
    [
        ("a.tar", {}, ["a.tar"]),
        ("a.tar", {"maxcount": 3}, ["a-000000.tar", "a-000001.tar"]),
        ("a.tar", {"maxcount": 3.0}, ["a-000000.tar", "a-000001.tar"]),
        ("a.tar", {"maxcount": 100}, ["a-000000.tar"]),
        ("a.tar", {"maxsize": 4 * 1024}, ["a-000000.tar", "a-000001.tar"]),
        ("a.tar", {"maxsize": "4KiB"}, ["a-000000.tar", "a-000001.tar"]),
        ("a-%04d.tar", {"maxcount": 3}, ["a-0000.tar", "a-0001.tar"]),
        ("%d.tar", {"maxcount": 3}, ["0.tar", "1.tar"]),
        ("a-%04d.tar", {}, ["a-0000.tar"]),
        ("a-1.5.tar", {"maxcount": 3}, ["a-1.5-000000.tar", "a-1.5-000001.tar"]),
        ("50%{b}.tar", {}, ["50%{b}.tar"]),
        ("50%{b}.tar", {"maxcount": 3}, ["50%{b}-000000.tar", "50%{b}-000001.tar"]),
        ("{a,b}-%02d.tar", {"maxcount": 3}, ["{a,b}-00.tar", "{a,b}-01.tar"]),
        ("a,b.tar", {"maxcount": 3}, ["a,b-000000.tar", "a,b-000001.tar"]),
    ],
)
def test_names_of_shards(tmp_path, path, options, names):
    ds = typed.write_samples(make_items(5), tmp_path / path, **options)
    found = sorted(name for name in os.listdir(tmp_path) if not name.endswith(".fsi"))
    assert found == names
    assert [s.i for s in ds.ordered()] == list(range(5))
    assert [os.path.basename(path) for path in ds.list_shards()] == names


@pytest.mark.parametrize("name", ["a", "a.tar.gz", "a.tgz", "a.zip"])
def test_names_that_are_not_of_tars_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match=r"ends in \.tar"):
        typed.write_samples(make_items(1), tmp_path / name)
    assert not os.listdir(tmp_path)


def test_keys_of_the_caller(tmp_path):
    ds = typed.write_samples(
        make_items(3), tmp_path / "a.tar", key=lambda item: f"k/{item.text[-1]}"
    )
    assert list(ds.keys()) == ["k/0", "k/1", "k/2"]
    assert ds.get("k/1").i == 1


@pytest.mark.parametrize(
    ("key", "error"),
    [
        (lambda item: "same", ValueError),
        (lambda item: "a.b", ValueError),
        (lambda item: "../a", ValueError),
        (lambda item: item.i, TypeError),
    ],
)
def test_keys_that_are_refused(tmp_path, key, error):
    with pytest.raises(error):
        typed.write_samples(make_items(3), tmp_path / "a.tar", key=key)
    assert not os.listdir(tmp_path)


def test_no_samples(tmp_path):
    with pytest.raises(ValueError, match="non-empty"):
        typed.write_samples([], tmp_path / "new" / "a.tar")
    assert not os.listdir(tmp_path)


def test_two_types(tmp_path):
    samples = [Other(1), Other(2), *make_items(1)]
    with pytest.raises(ValueError, match="sample 0 is Other, sample 2 is Item"):
        typed.write_samples(samples, tmp_path / "a.tar")
    assert not os.listdir(tmp_path)


def test_types_that_are_not_packable(tmp_path):
    with pytest.raises(
        TypeError, match="sample 0: expected a packable object, got dict"
    ):
        typed.write_samples([{"a": 1}], tmp_path / "a.tar")


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ({1: 2}, TypeError, "keys of a map must be str, got int 1"),
        ({1, 2}, TypeError, "cannot store set"),
        (2**64, OverflowError, "65 bits"),
        (np.array([{}]), ValueError, "object-dtype"),
        ([np.zeros(2)], TypeError, "list or map"),
    ],
    ids=repr,
)
def test_values_that_cannot_be_stored_name_sample_and_field(
    tmp_path, value, error, message
):
    samples = [Loose(1, {}), Loose(value, {})]
    with pytest.raises(error, match=message) as caught:
        typed.write_samples(samples, tmp_path / "a.tar")
    assert str(caught.value).startswith("sample 1 ('000000000001'), field 'value': ")
    assert not os.listdir(tmp_path)


def test_complete_shards_stay_after_an_error(tmp_path):
    pytest.importorskip("pyarrow")

    def samples():
        yield from make_items(5)
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        typed.write_samples(samples(), tmp_path / "a.tar", maxcount=2, manifest=True)
    names = {name for name in os.listdir(tmp_path) if not name.endswith("fsi")}
    assert names == {
        f"a-00000{k}.{kind}"
        for k in range(2)
        for kind in ("tar", "manifest.json", "manifest.parquet")
    }
    assert [s.i for s in typed.Dataset[Item](str(tmp_path))] == [0, 1, 2, 3]


def test_samples_are_taken_one_by_one(tmp_path):
    alive = []

    def samples():
        for i in range(200):
            gc.collect(0)
            alive.append(sum(isinstance(o, Item) for o in gc.get_objects(0)))
            yield Item(i, "", np.zeros(1, "f4"))

    typed.write_samples(samples(), tmp_path / "a.tar", maxcount=50)
    assert max(alive) < 10


def test_memory_of_one_shard_at_most(tmp_path):
    samples = (Item(i, "", np.zeros(250_000, "f4")) for i in range(40))  # 40 MB
    tracemalloc.start()
    typed.write_samples(samples, tmp_path / "a.tar", maxcount=4)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12 << 20


def test_untyped_samples(tmp_path):
    samples = [typed.DictSample(a=i, x=np.arange(i), b=b"raw") for i in range(3)]
    ds = typed.write_samples(samples, tmp_path / "a.tar")
    assert ds.sample_type is typed.DictSample
    assert [s.a for s in ds] == [0, 1, 2]
    assert ds[2].array("x").tolist() == [0, 1]
    again = typed.write_samples(ds, tmp_path / "b.tar")
    assert [m[2] for m in members_of(tmp_path / "b.tar")] == [
        m[2] for m in members_of(tmp_path / "a.tar")
    ]
    assert again[2]["b"] == b"raw"


def test_objects_that_pack_themselves(tmp_path):
    class Own:
        def __init__(self, i):
            self.packed = bytes([0x81, 0xA1, ord("i"), i])

    Own.packed = property(
        lambda self: self.data, lambda self, v: setattr(self, "data", v)
    )
    typed.write_samples([Own(1), Own(2)], tmp_path / "a.tar")
    assert [s.i for s in typed.Dataset(str(tmp_path / "a.tar"))] == [1, 2]


def test_a_method_of_the_class_that_packs(tmp_path):
    class Doubled(typed.PackableSample):
        i: int

        @property
        def packed(self):
            return msgpack.packb({"i": self.i * 2})

    assert typed.write_samples([Doubled(i=2)], tmp_path / "a.tar")[0].i == 4


def test_an_earlier_shard_and_its_manifest_are_replaced(tmp_path):
    pytest.importorskip("pyarrow")
    typed.write_samples(make_items(3), tmp_path / "a.tar", manifest=True)
    typed.write_samples(make_items(3, 7), tmp_path / "a.tar")
    assert sorted(os.listdir(tmp_path)) == ["a.fsi", "a.tar"]
    assert [s.x.shape for s in typed.Dataset[Item](str(tmp_path / "a.tar"))] == [
        (7,)
    ] * 3


@pytest.mark.parametrize("metadata", [{"instrument": "Zeiss"}, Other(3)])
def test_content_metadata(tmp_path, metadata):
    ds = typed.write_samples(
        make_items(1), tmp_path / "a.tar", content_metadata=metadata
    )
    assert ds.content_metadata == metadata


def test_content_metadata_of_another_type(tmp_path):
    with pytest.raises(TypeError, match="content_metadata must be a Packable instance"):
        typed.write_samples(make_items(1), tmp_path / "a.tar", content_metadata=[1])
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    "options", [{"maxcount": 0}, {"maxcount": 1.5}, {"maxsize": "x"}]
)
def test_bad_options(tmp_path, options):
    with pytest.raises((ValueError, TypeError)):
        typed.write_samples(make_items(1), tmp_path / "a.tar", **options)
    with pytest.raises(ValueError, match="array_format"):
        typed.write_samples(make_items(1), tmp_path / "a.tar", array_format="npz")
    assert not os.listdir(tmp_path)


def test_webdataset_reads_written_shards(tmp_path):
    tars = pytest.importorskip("webdataset.tariterators")
    typed.write_samples(make_items(3), tmp_path / "a.tar")
    with open(tmp_path / "a.tar", "rb") as file:
        source = [{"url": "a.tar", "stream": file}]
        found = list(tars.group_by_keys(tars.tar_file_expander(source)))
    assert [sample["__key__"] for sample in found] == [f"{i:012d}" for i in range(3)]
    values = msgpack.unpackb(found[2]["msgpack"])
    assert np.load(io.BytesIO(values["x"])).tolist() == [2.0, 2.0, 2.0]


def test_bfloat16_comes_back(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")

    @typed.packable
    class Half:
        x: NDArray[ml_dtypes.bfloat16]

    array = np.arange(5).astype(ml_dtypes.bfloat16)
    ds = typed.write_samples([Half(array)], tmp_path / "a.tar")
    assert ds[0].x.dtype == ml_dtypes.bfloat16
    assert ds[0].x.tolist() == array.tolist()
    assert fastshard.open(ds.list_shards()[0], packed=True)[0].array("x").dtype == "<u2"
    assert "bfloat16" in str(typed.schema_of(Half))


class Scored(typed.PackableSample):
    score: Annotated[Any, typed.ManifestField("numeric")]


def test_a_value_that_a_manifest_does_not_take_names_the_sample(tmp_path):
    pytest.importorskip("pyarrow")
    samples = [Scored(1), Scored("high")]
    with pytest.raises(TypeError, match="sample '000000000001', field 'score'"):
        typed.write_samples(samples, tmp_path / "a.tar", manifest=True)
    assert list(tmp_path.iterdir()) == []


def test_values_that_the_class_would_not_read_are_refused(tmp_path):
    samples = [*make_items(1), Item("1", "a", np.zeros(1, "f4"))]
    with pytest.raises(TypeError, match=r"sample 1 \('000000000001'\), field 'i'"):
        typed.write_samples(samples, tmp_path / "a.tar")
    assert list(tmp_path.iterdir()) == []


class Scaled(typed.PackableSample):
    number: int
    values: NDArray[np.float32]
    others: NDArray[np.floating] | None = None


@pytest.mark.parametrize("array_format", ["npy", "compact"])
@pytest.mark.parametrize(
    "values",
    [
        np.zeros(3),
        np.zeros(3, "i4"),
        np.zeros((4, 6))[:, ::2],
        np.zeros((2, 3), order="F"),
        np.zeros(2, [("a", "f4")]),
    ],
    ids=["float64", "int32", "strided", "fortran", "structured"],
)
def test_an_array_of_another_dtype_than_declared_is_refused(
    tmp_path, values, array_format
):
    good = Scaled(1, np.zeros(3, "f4"))
    path = tmp_path / "a.tar"
    with pytest.raises(typed.SchemaError) as caught:
        typed.write_samples([good, Scaled(2, values)], path, array_format=array_format)
    error = caught.value
    assert (error.field, error.key) == ("values", "000000000001")
    assert f"array of {values.dtype} in place of array of float32" in str(error)
    assert not path.exists()
    with pytest.raises(typed.SchemaError, match="float32 - at field 'values'"):
        _ = Scaled(2, values).packed


@pytest.mark.parametrize("array_format", ["npy", "compact"])
def test_arrays_of_a_declared_dtype_have_any_byte_order(tmp_path, array_format):
    arrays = [np.zeros(3, "f4"), np.zeros((2, 3), ">f4", order="F"), np.zeros((), "f4")]
    samples = [
        Scaled(i, array, np.zeros(i, dtype))
        for i, (array, dtype) in enumerate(zip(arrays, "efd", strict=True))
    ]
    found = typed.write_samples(samples, tmp_path / "a.tar", array_format=array_format)
    assert [sample.values.shape for sample in found] == [(3,), (2, 3), ()]
    assert [sample.others.dtype for sample in found] == ["f2", "f4", "f8"]
