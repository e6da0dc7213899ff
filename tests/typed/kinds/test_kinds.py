"""Fields of other libraries: sparse matrices, tables, tensors, as atdata wrote them."""

import dataclasses
import hashlib
import io
import struct
import subprocess
import sys
import zipfile
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

import fastshard
from fastshard import FormatError, MissingLibraryError, SchemaError, typed
from fastshard.typed.kinds.values import pack
from support.processes import environment
from support.typed.expected import described_array

pytest.importorskip("msgspec")

NAMES = ["arrow_tensor", "dataframe", "safetensors", "sparse", "structured"]
FORMATS = {
    "csr": "sparse",
    "other": "sparse",
    "table": "dataframe",
    "tensor": "arrow_tensor",
    "records": "structured",
    "pair": "safetensors",
}


class Formats(typed.PackableSample):
    __field_formats__ = FORMATS
    name: str
    csr: Any
    other: Any
    table: Any
    tensor: Any
    records: Any
    pair: Any


class Untold(typed.PackableSample):
    name: str
    csr: Any
    other: Any
    table: Any
    tensor: Any
    records: NDArray
    pair: Any


def library(name):
    return pytest.importorskip(name)


@pytest.fixture
def formats(typed_data):
    """Return the samples as atdata read them, and the shard."""
    shard = typed_data.root / "extra/formats.tar"
    return typed_data.shards["extra/formats.tar"], shard


def test_fields_of_formats_equal_those_of_atdata(formats):
    for name in ("scipy", "pandas", "pyarrow", "safetensors"):
        library(name)
    expected, shard = formats
    samples = list(typed.Dataset[Formats](shard).ordered())
    assert len(samples) == len(expected) == 3
    for sample, known in zip(samples, expected, strict=True):
        check_sparse(sample.csr, known.fields["csr"])
        check_sparse(sample.other, known.fields["other"])
        check_table(sample.table, known.fields["table"])
        check_tensor(sample.tensor, known.fields["tensor"])
        assert described_array(sample.records) == known.fields["records"]
        tensors = known.fields["pair"]["tensors"]
        assert {k: described_array(v) for k, v in sample.pair.items()} == tensors


def check_sparse(value, known):
    assert value.format == known["format"]
    assert type(value).__name__ == known["class"]
    assert value.dtype.str == known["dtype"]
    assert value.toarray().tolist() == known["dense"]


def check_table(value, known):
    assert {name: str(dtype) for name, dtype in value.dtypes.items()} == {
        **known["columns"]
    } | {"s": str(value.dtypes["s"])}  # pandas' choice of a string type
    rows = value.assign(t=value["t"].astype(str)).values.tolist()
    assert rows == known["rows"]


def check_tensor(value, known):
    array = value.to_numpy()
    assert (array.dtype.str, list(value.shape)) == (known["dtype"], known["shape"])
    assert list(value.strides) == known["strides"]
    data = np.ascontiguousarray(array).tobytes()
    assert hashlib.sha256(data).hexdigest() == known["sha256"]


def test_without_formats_they_are_bytes(formats):
    _, shard = formats
    sample = typed.Dataset[Untold](shard)[0]
    for name in ("csr", "other", "table", "tensor", "pair"):
        assert type(getattr(sample, name)) is bytes
    assert sample.records.dtype.names == ("x", "y", "s")  # structured ones are npy
    untyped = typed.Dataset(shard)[0]
    assert type(untyped.records) is bytes
    assert untyped.array("records").dtype.names == ("x", "y", "s")


def values_of(name):
    if name == "sparse":
        return library("scipy.sparse").csr_matrix(np.eye(3, dtype="f4"))
    if name == "dataframe":
        library("pyarrow")
        return library("pandas").DataFrame({"a": [1, 2], "b": ["x", "y"]})
    if name == "arrow_tensor":
        return library("pyarrow").Tensor.from_numpy(np.arange(6.0).reshape(2, 3))
    if name == "safetensors":
        library("safetensors")
        return {"w": np.ones((2, 2), "f4")}
    return np.array([(1, 2.5)], [("i", "i4"), ("f", "f8")])


def same(name, left, right):
    if name == "sparse":
        return type(left) is type(right) and (left != right).nnz == 0
    if name == "dataframe":
        return left.equals(right)
    if name == "arrow_tensor":
        return left.equals(right)
    if name == "safetensors":
        return left.keys() == right.keys() and np.array_equal(left["w"], right["w"])
    return np.array_equal(left, right)


def sample_type(name, optional=False):
    annotation = Any if not optional else Any | None
    names = {
        "__annotations__": {"m": annotation},
        "__field_formats__": {"m": name},
        "__module__": __name__,
    }
    return type("Sample", (typed.PackableSample,), names)


@pytest.mark.parametrize("name", ["ndarray", *NAMES])
def test_a_value_is_read_as_it_was_written(name):
    value = values_of(name)
    cls = sample_type(name)
    payload = cls(value).packed
    assert same(name, cls.from_bytes(payload).m, value)
    data = typed.DictSample.from_bytes(payload).m
    assert type(data) is bytes
    assert same(name, cls(data).m, value)  # bytes are decoded by the constructor
    assert same(name, cls.from_data({"m": data}).m, value)
    assert cls.from_bytes(pack({"m": None})).m is None
    assert cls.from_bytes(cls(None).packed).m is None


@pytest.mark.parametrize("name", ["sparse", "dataframe", "arrow_tensor"])
def test_a_value_is_written_by_its_type(name):
    value = values_of(name)

    class Sample(typed.PackableSample):
        m: Any

    payload = Sample(value).packed
    assert pack({"m": value}) == payload
    assert same(name, sample_type(name).from_bytes(payload).m, value)


def test_types_of_libraries_are_annotations():
    scipy, pandas, pyarrow = map(library, ("scipy.sparse", "pandas", "pyarrow"))

    class Sample(typed.PackableSample):
        m: scipy.csr_matrix
        t: pandas.DataFrame
        p: pyarrow.Tensor | None

    sample = Sample(values_of("sparse"), values_of("dataframe"), None)
    again = Sample.from_bytes(sample.packed)
    assert same("sparse", again.m, sample.m)
    assert again.t.equals(sample.t)
    assert again.p is None
    assert '"kind":"sparse"' in typed.schema_of(Sample)

    class Other(typed.PackableSample):
        m: scipy.coo_array

    with pytest.raises(SchemaError, match=r"coo_array.*csr_matrix"):
        Other.from_bytes(sample.packed)


@pytest.mark.parametrize("name", NAMES[:-1])
def test_values_of_other_types_are_refused(name):
    values_of(name)  # its library is here
    with pytest.raises(TypeError, match="'m'"):
        _ = sample_type(name)([1]).packed
    with pytest.raises(SchemaError) as caught:
        sample_type(name).from_bytes(pack({"m": 5}))
    assert caught.value.field == "m"


@pytest.mark.parametrize("name", NAMES)
def test_broken_bytes_are_format_errors(name):
    value = values_of(name)
    cls = sample_type(name)
    data = typed.DictSample.from_bytes(cls(value).packed).m
    for broken in (b"", b"abc", b"PK\x03\x04", data[: len(data) // 2], data[::-1]):
        with pytest.raises(FormatError) as caught:
            cls.from_bytes(pack({"m": broken}))
        assert "'m'" in str(caught.value)


def test_an_npz_with_pickles_is_not_unpickled():
    library("scipy")
    file = io.BytesIO()
    np.savez(file, format=np.array(b"csr"), data=np.array([Bomb()], dtype=object))
    with pytest.raises(FormatError):
        sample_type("sparse").from_bytes(pack({"m": file.getvalue()}))
    assert Bomb.gone_off is False


class Bomb:
    gone_off = False

    def __reduce__(self):
        return setattr, (Bomb, "gone_off", True)


@pytest.mark.parametrize("name", ["indices", "indptr"])
def test_sparse_matrices_with_indices_out_of_range(name):
    sparse = library("scipy.sparse")
    matrix = sparse.csr_matrix(np.eye(4))
    arrays = {
        "format": np.array(b"csr"),
        "shape": np.array(matrix.shape),
        "data": matrix.data,
        "indices": matrix.indices.copy(),
        "indptr": matrix.indptr.copy(),
    }
    arrays[name][1] = 1 << 30
    file = io.BytesIO()
    np.savez(file, **arrays)
    with pytest.raises(FormatError):
        sample_type("sparse").from_bytes(pack({"m": file.getvalue()}))


def test_an_npz_that_claims_more_than_it_can_hold():
    library("scipy")
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("format.npy", bytes(1000))
    data = bytearray(file.getvalue())
    at = data.rindex(b"PK\x01\x02")
    struct.pack_into("<I", data, at + 24, 1 << 30)  # the size in the directory
    with pytest.raises(FormatError, match="claim"):
        sample_type("sparse").from_bytes(pack({"m": bytes(data)}))


def test_a_library_that_is_not_here_is_named():
    code = (
        "import sys\n"
        "for name in ('scipy', 'pandas', 'pyarrow', 'safetensors'):\n"
        "    sys.modules[name] = None\n"
        "from fastshard import typed\n"
        "for name in ('sparse', 'dataframe', 'arrow_tensor', 'safetensors'):\n"
        "    cls = type('S', (typed.PackableSample,), {\n"
        "        '__annotations__': {'m': object}, '__field_formats__': {'m': name}})\n"
        "    try:\n"
        "        cls.from_bytes(b'\\x81\\xa1m\\xc4\\x01a')\n"
        "    except typed.AtdataError as error:\n"
        "        print(type(error).__name__, error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment()
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 4, done.stderr
    for line, name in zip(
        lines, ("scipy", "pandas", "pyarrow", "safetensors"), strict=True
    ):
        assert line.startswith(MissingLibraryError.__name__)
        assert name in line


def test_formats_that_there_are_not():
    with pytest.raises(TypeError, match=r"Sample\.m: unknown format 'jpeg'"):
        sample_type("jpeg").from_bytes(b"\x80")

    class Sample(typed.PackableSample):
        __field_formats__: ClassVar = {"n": "sparse"}
        m: Any

    with pytest.raises(TypeError, match="'n', which is not a field"):
        Sample.from_bytes(b"\x80")


# bfloat16 is not a dtype of npy: stored as uint16, declared by the class.


def test_bfloat16():
    ml_dtypes = library("ml_dtypes")

    class Sample(typed.PackableSample):
        x: NDArray[ml_dtypes.bfloat16]

    x = np.arange(6, dtype="f4").reshape(2, 3).astype(ml_dtypes.bfloat16)
    payload = Sample(x).packed
    assert typed.DictSample.from_bytes(payload).array("x").dtype == "<u2"
    again = Sample.from_bytes(payload)
    assert again.x.dtype == ml_dtypes.bfloat16
    assert np.array_equal(again.x, x)
    assert not again.x.flags.owndata
    assert '"dtype":"bfloat16"' in typed.schema_of(Sample)
    with pytest.raises(SchemaError, match="bfloat16"):
        Sample.from_bytes(pack({"x": np.zeros(3, "f4")}))

    class Undeclared(typed.PackableSample):
        x: NDArray

    with pytest.raises(TypeError, match="uint16"):
        _ = Undeclared(x).packed


def test_bfloat16_in_datasets(tmp_path):
    ml_dtypes = library("ml_dtypes")

    class Sample(typed.PackableSample):
        x: NDArray[ml_dtypes.bfloat16] | None

    path = tmp_path / "a.tar"
    with fastshard.ShardWriter(path) as writer:
        for i in range(4):
            x = np.full(3, i, ml_dtypes.bfloat16)
            writer.write({"__key__": str(i), "msgpack": Sample(x).packed})
    dataset = typed.Dataset[Sample](path)
    assert dataset[2].x.tolist() == [2, 2, 2]
    (batch,) = dataset.ordered(batch_size=4)
    assert batch.x.dtype == ml_dtypes.bfloat16
    assert batch.x[3].tolist() == [3, 3, 3]
    assert dataclasses.asdict(dataset[1])["x"].dtype == ml_dtypes.bfloat16
