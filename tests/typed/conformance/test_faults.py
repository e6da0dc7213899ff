"""Faults of atdata 0.7.0b1 that fastshard lacks: types, stages, payloads, keys."""

import dataclasses
import io
import json
import pickle
import subprocess
import sys
import tarfile
from typing import Annotated, Any, Optional

import msgpack
import numpy as np
import pytest
from numpy.typing import NDArray

import fastshard
from fastshard import typed
from support.typed import classes
from support.typed.expected import described

pytest.importorskip("msgspec")

F4 = np.arange(6, dtype="f4").reshape(2, 3)


@typed.packable
class Arrays:
    bare: NDArray
    of_dtype: NDArray[np.float32]
    plain: np.ndarray
    optional: Optional[NDArray]  # noqa: UP045  users write it so
    either: NDArray[np.float32] | None
    annotated: Annotated[NDArray[Any], "of anything"]


@typed.packable
class Number:
    value: int
    x: NDArray[np.float32]


@typed.packable
class Twice:
    double: int


@typed.packable
class Text:
    text: str


@typed.lens
def double(sample: Number) -> Twice:
    return Twice(double=2 * sample.value)


@typed.lens
def say(sample: Twice) -> Text:
    return Text(text=str(sample.double))


def npy(array):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def compact(array):
    """Return the bytes that atdata stores of an array, made by hand."""
    dtype = array.dtype.str.encode()
    shape = np.array(array.shape, "<i8").tobytes()
    head = bytes([len(dtype)]) + dtype + bytes([array.ndim])
    return head + shape + array.tobytes("C")


def write_payloads(path, payloads):
    """Write a tar of payloads with the standard library; return its path."""
    with tarfile.open(path, "w") as tar:
        for i, payload in enumerate(payloads):
            member = tarfile.TarInfo(f"{i:03}.msgpack")
            member.size = len(payload)
            tar.addfile(member, io.BytesIO(payload))
    return path


def names_in(path):
    with tarfile.open(path) as tar:
        return tar.getnames()


def number(value, **more):
    x = np.full(2, value, "f4")
    return msgpack.packb({"value": value, "x": compact(x), **more})


@pytest.fixture
def numbers(tmp_path):
    """Return the path of ten samples of `Number`."""
    return write_payloads(tmp_path / "numbers.tar", map(number, range(10)))


# 1: other annotations than bare NDArray leave the field bytes


@pytest.mark.parametrize("write", [npy, compact])
def test_every_annotation_of_an_array_gives_arrays(tmp_path, write):
    names = [field.name for field in dataclasses.fields(Arrays)]
    payload = msgpack.packb({name: write(F4) for name in names})
    ds = typed.Dataset(write_payloads(tmp_path / "a.tar", [payload]), Arrays)
    for sample in (ds[0], next(iter(ds)), Arrays.from_bytes(payload)):
        for name in names:
            np.testing.assert_array_equal(getattr(sample, name), F4)
    batch = next(iter(ds.ordered(batch_size=1)))
    assert all(getattr(batch, name).shape == (1, 2, 3) for name in names)


def test_postponed_annotations_mean_the_same():
    """`support.typed.classes` postpones its annotations."""
    assert dataclasses.fields(classes.Vec)[1].type == "NDArray[np.float32]"
    payload = msgpack.packb({"idx": 1, "x": compact(F4), "label": "a"})
    np.testing.assert_array_equal(classes.Vec.from_bytes(payload).x, F4)
    payload = msgpack.packb({"label": "a", "x": None, "y": compact(F4), "note": None})
    sample = classes.Opt.from_bytes(payload)
    assert sample.x is None
    np.testing.assert_array_equal(sample.y, F4)


# 2: batches pass over stages; stages are not in the order given


def test_batches_honour_filters_and_maps(numbers):
    ds = typed.Dataset(numbers, Number).filter(lambda s: s.value % 2)
    (batch,) = ds.ordered(batch_size=8)
    assert batch.value == [1, 3, 5, 7, 9]
    assert batch.x[:, 0].tolist() == [1, 3, 5, 7, 9]
    mapped = ds.map(lambda s: dataclasses.replace(s, value=s.value + 100))
    assert [b.value for b in mapped.ordered(batch_size=3)] == [
        [101, 103, 105],
        [107, 109],
    ]
    (batch,) = mapped.shuffled(batch_size=9, seed=1)
    assert sorted(batch.value) == [101, 103, 105, 107, 109]


def test_a_filter_after_a_map_sees_mapped_samples(numbers):
    ds = typed.Dataset(numbers, Number).map(lambda s: s.value * 10)
    assert list(ds.filter(lambda value: value > 60).ordered()) == [70, 80, 90]
    assert ds.filter(lambda value: value > 60)[0] == 70


def test_lenses_follow_each_other(numbers):
    ds = typed.Dataset(numbers, Number).as_type(Twice).as_type(Text)
    assert ds.sample_type is Text
    assert [sample.text for sample in ds.ordered()] == [str(2 * i) for i in range(10)]
    assert next(iter(ds.ordered(batch_size=3))).text == ["0", "2", "4"]
    assert ds[9] == Text(text="18")


def test_a_filter_stays_before_a_lens(numbers):
    ds = typed.Dataset(numbers, Number).filter(lambda s: s.value > 7).as_type(Twice)
    assert [sample.double for sample in ds.ordered()] == [16, 18]
    assert len(ds) == 2
    assert ds.head() == [Twice(double=16), Twice(double=18)]


# 3: one more field is a TypeError


def test_more_fields_are_passed_over(tmp_path):
    payload = number(3, more={"a": [1]}, last=compact(F4))
    ds = typed.Dataset(write_payloads(tmp_path / "a.tar", [payload]), Number)
    for sample in (ds[0], Number.from_bytes(payload)):
        assert sample.value == 3
    assert next(iter(ds.ordered(batch_size=1))).value == [3]


# 4: manifests of the shard before, of other offsets, empty ones


def test_manifests_are_those_of_their_shards(tmp_path):
    pytest.importorskip("pyarrow")
    samples = [Number(value=i, x=F4) for i in range(25)]
    typed.write_samples(samples, tmp_path / "a.tar", maxcount=10, manifest=True)
    for i, size in enumerate((10, 10, 5)):
        stem = tmp_path / f"a-{i:06}"
        header = json.loads(stem.with_name(f"{stem.name}.manifest.json").read_text())
        assert header["shard_id"].rpartition("/")[2] == stem.name
        assert header["num_samples"] == size
        assert header["aggregates"]["value"]["min"] == i * 10
        manifest = typed.ShardManifest.from_files(
            f"{stem}.manifest.json", f"{stem}.manifest.parquet"
        )
        with tarfile.open(f"{stem}.tar") as tar:
            members = [m for m in tar if m.name.endswith(".msgpack")]
        assert len(members) == size
        found = typed.QueryExecutor([manifest]).query(
            typed.query_fields(Number).value >= 0
        )
        assert [(at.key, at.offset) for at in found] == [
            (m.name.partition(".")[0], m.offset_data) for m in members
        ]


# 8: a schema says float32 of any array; a dict has no dtype


def test_a_schema_claims_no_dtype_that_the_class_does_not():
    @typed.packable
    class Loose:
        x: NDArray
        y: NDArray[np.int16]
        meta: dict

    fields = {
        field["name"]: field for field in json.loads(typed.schema_of(Loose))["fields"]
    }
    assert fields["x"]["dtype"] is None
    assert np.dtype(fields["y"]["dtype"]) == np.int16
    assert "meta" in fields


# 12: a key that is not a str can be written and not be read


def test_keys_that_are_not_text_are_refused_when_written(tmp_path):
    @typed.packable
    class Meta:
        name: str
        meta: dict

    sample = Meta(name="a", meta={"deep": [{1: 2}]})
    with pytest.raises(TypeError, match="meta"):
        sample.packed  # noqa: B018
    with pytest.raises(TypeError, match="meta"):
        typed.write_samples([sample], tmp_path / "a.tar")
    assert not list(tmp_path.glob("*.tar"))


def test_keys_that_others_wrote_are_read(tmp_path):
    @typed.packable
    class Meta:
        meta: dict

    payload = msgpack.packb({"meta": {1: {2: "a"}}})
    path = write_payloads(tmp_path / "a.tar", [payload])
    assert Meta.from_bytes(payload).meta == {1: {2: "a"}}
    assert typed.Dataset(path, Meta)[0].meta == {1: {2: "a"}}
    assert typed.Dataset(path)[0]["meta"] == {1: {2: "a"}}
    with fastshard.open(path, packed=True) as ds:
        assert ds[0].decode()["meta"] == {1: {2: "a"}}


# 13: the order of arrays and bfloat16


@pytest.mark.parametrize(
    "array",
    [np.asfortranarray(F4), F4.astype(">f4"), F4[::-1, ::2], np.array(2.5), F4[:0]],
    ids=["fortran", "big-endian", "strides", "0-d", "empty"],
)
def test_arrays_come_back_as_they_were(tmp_path, array):
    @typed.packable
    class One:
        x: NDArray

    typed.write_samples([One(x=array)], tmp_path / "a.tar")
    stored = typed.Dataset(tmp_path / "a.tar", One)[0].x
    packed = One.from_bytes(One(x=array).packed).x
    for found in (stored, packed):
        assert described(found) == described(array)
        assert found.flags.f_contiguous or not array.flags.f_contiguous


def test_bfloat16_does_not_become_void():
    ml_dtypes = pytest.importorskip("ml_dtypes")

    @typed.packable
    class Declared:
        x: NDArray[ml_dtypes.bfloat16]

    @typed.packable
    class Bare:
        x: NDArray

    array = np.arange(4).astype(ml_dtypes.bfloat16)
    found = Declared.from_bytes(Declared(x=array).packed).x
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)
    with pytest.raises(TypeError, match="uint16"):
        Bare(x=array).packed  # noqa: B018


# 14: the type of a dataset is lost on the way


def open_by_helper(path, cls):
    def made(kind):
        return kind(path)

    return made(typed.Dataset[cls])


def test_a_dataset_knows_its_type(numbers):
    for ds in (
        open_by_helper(numbers, Number),
        typed.Dataset(numbers, Number),
        pickle.loads(pickle.dumps(typed.Dataset[Number](numbers))),
    ):
        assert ds.sample_type is Number
        assert ds[4].value == 4
        assert next(iter(ds.ordered(batch_size=2))).sample_type is Number
    assert typed.Dataset(numbers).sample_type is typed.DictSample


# 15: shards are read from the start


def test_single_samples_are_found_without_the_others(tmp_path):
    payloads = [b"\xc1"] * 9 + [number(9)]  # 0xc1: not msgpack
    ds = typed.Dataset(write_payloads(tmp_path / "a.tar", payloads), Number)
    assert len(ds) == 10
    assert ds[9].value == ds[-1].value == ds.get("009").value == 9
    assert [sample.value for sample in ds.select([9, -1])] == [9, 9]
    assert ds.head(0) == []
    with pytest.raises(fastshard.FormatError):
        ds[0]


# 17: equal keys of two processes, other keys when data are rewritten


def test_the_same_samples_give_the_same_bytes(tmp_path):
    samples = [Number(value=i, x=F4) for i in range(7)]
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        typed.write_samples(samples, tmp_path / name / "s.tar", maxcount=4)
    shards = [f"s-{i:06}.tar" for i in range(2)]
    for shard in shards:
        first, second = ((tmp_path / name / shard).read_bytes() for name in "ab")
        assert first == second
    names = [name for shard in shards for name in names_in(tmp_path / "a" / shard)]
    keys = [name.partition(".")[0] for name in names]
    assert keys == [f"{i:012}" for i in range(7)]


def test_keys_are_the_callers_to_choose(tmp_path):
    samples = [Number(value=i, x=F4) for i in range(3)]
    ds = typed.write_samples(
        samples, tmp_path / "s.tar", key=lambda sample: f"n{sample.value}"
    )
    assert ds.get("n2").value == 2
    assert names_in(tmp_path / "s.tar") == [f"n{i}.msgpack" for i in range(3)]


# 18: a truncated payload is an error without a place


def test_a_truncated_payload_names_its_place(tmp_path):
    payloads = [number(0), number(1)[:-3]]
    path = write_payloads(tmp_path / "cut.tar", payloads)
    ds = typed.Dataset(path, Number)
    with tarfile.open(path) as tar:
        start = tar.getmember("001.msgpack").offset_data
    for read in (
        lambda: ds[1],
        lambda: list(ds.ordered()),
        lambda: [batch.x for batch in ds.ordered(batch_size=2)],
        lambda: [batch.samples for batch in ds.ordered(batch_size=2)],
        lambda: ds.get("001"),
    ):
        with pytest.raises(fastshard.FormatError) as caught:
            read()
        assert caught.value.path.endswith("cut.tar")
        assert "001" in str(caught.value)
        assert start <= caught.value.offset <= start + len(payloads[1])


# 19: an import takes 1.5 s and 79 distributions


def test_an_import_takes_msgspec_alone():
    code = "import sys; import fastshard.typed as t; t.packable; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    tops = {name.partition(".")[0] for name in done.stdout.split()}
    outside = tops - sys.stdlib_module_names - {"fastshard", "msgspec", "numpy"}
    libraries = {"webdataset", "pandas", "pyarrow", "torch", "scipy", "requests"}
    assert not outside & libraries
