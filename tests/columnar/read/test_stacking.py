"""Stacks of ragged and missing fields, and metadata columns beside them."""

import datetime
import shutil

import numpy as np
import pytest

from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter
from fastshard.errors import FastshardError, FieldNotFoundError, RaggedError
from fastshard.formats.stacking.fill_values import cast_fill, default_fill
from support.marks import not_sanitized

pytestmark = not_sanitized  # tests Python code

LENGTHS = (3, 0, 5, 5, 1)


def array_of(i):
    return np.arange(LENGTHS[i], dtype="f4") + 10 * i


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a dataset of ragged arrays, with a field and columns added late."""
    root = tmp_path_factory.mktemp("made") / "d"
    with ShardedDatasetWriter(root, samples_per_shard=2) as writer:
        writer.add_fields(["x", "grid"])
        for i, length in enumerate(LENGTHS):
            arrays = {"x": array_of(i), "grid": np.full((i % 2 + 1, 3 - i % 3), i)}
            metadata = {"length": length, "name": f"n{i}", "score": i / 2}
            writer.add_sample(arrays, f"s{i}", metadata if i != 3 else {})
        writer.add_field("late")
        writer.update_sample("s1", {"late": np.array([1.5, 2.5], "f4")})
        for name, kind in (("length", int), ("name", str), ("score", "REAL")):
            writer.add_metadata_column(name, f"$.{name}", kind)
    return root


@pytest.fixture
def root(tmp_path, made):
    """Return a copy of the dataset."""
    return shutil.copytree(made, tmp_path / "d")


@pytest.fixture
def reader(made):
    with ShardedDatasetReader(made) as reader:
        yield reader


# ---------------------------------------------------------------- padding


@pytest.mark.parametrize("fill", [None, -1, 0.1])
def test_ragged_arrays_are_padded_at_the_end(reader, fill):
    order = [4, 0, 1, 2, 0]
    got = reader.columns(order, "x", ragged="pad", fill=fill, lengths=True)
    expected = np.full((5, 5), 0 if fill is None else fill, "f4")
    for row, i in zip(expected, order, strict=True):
        row[: LENGTHS[i]] = array_of(i)
    np.testing.assert_array_equal(got["x"], expected)
    assert got["x"].dtype == "f4"
    assert got["__lengths__"]["x"].tolist() == [[LENGTHS[i]] for i in order]


def test_each_axis_is_padded(reader):
    got = reader.columns(["s0", "s1", "s2"], "grid", ragged="pad", lengths=True)
    assert got["grid"].tolist() == [
        [[0, 0, 0], [0, 0, 0]],
        [[1, 1, 0], [1, 1, 0]],
        [[2, 0, 0], [0, 0, 0]],
    ]
    assert got["__lengths__"]["grid"].tolist() == [[1, 3], [2, 2], [1, 1]]


def test_equal_arrays_are_not_padded(reader):
    got = reader.columns([2, 3], "x", ragged="pad", fill=7, lengths=True)
    np.testing.assert_array_equal(got["x"], [array_of(2), array_of(3)])
    assert got["__lengths__"]["x"].tolist() == [[5], [5]]


def test_batches_of_a_scan_are_padded_each(reader):
    batches = list(reader.scan("x", batch_size=2, ragged="pad", fill={"x": -2}))
    assert [batch["x"].shape for batch in batches] == [(2, 3), (2, 5), (1, 1)]
    assert batches[0]["x"].tolist() == [[0, 1, 2], [-2, -2, -2]]


def test_other_dtypes_and_axes_are_not_padded(root):
    with ShardedDatasetWriter(root) as writer:
        writer.update_sample("s1", {"x": np.zeros(2, "f8")})
        writer.update_sample("s2", {"x": np.zeros((2, 2), "f4")})
    with ShardedDatasetReader(root) as reader:
        for i, what in (
            (1, r"float64 \(2,\) in sample 's1'"),
            (2, r"float32 \(2, 2\) in sample 's2'"),
        ):
            with pytest.raises(RaggedError, match=rf"{what} and .* in sample 's0'"):
                reader.columns([0, i], "x", ragged="pad", lengths=True)


def test_padding_does_not_multiply_axes_without_bound(root):
    with ShardedDatasetWriter(root) as writer:
        writer.update_sample("s0", {"grid": np.zeros((0, 10**9), int)})
        writer.update_sample("s1", {"grid": np.zeros((10**9, 0), int)})
    error = pytest.raises(RaggedError, match="8,000,000,000,000,000,000 bytes")
    with ShardedDatasetReader(root) as reader, error:
        reader.columns([0, 1], "grid", ragged="pad")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"ragged": "pat"}, "ragged must be"),
        ({"missing": "skip"}, "query_ids"),
        ({"missing": "eror"}, "'error', or a value"),
        ({"fill": 1}, 'ragged="pad"'),
        ({"ragged": "pad", "fill": {"grit": 1}}, "grit"),
        ({"ragged": "pad", "fill": np.zeros(2)}, "cannot be stored in field 'x'"),
        ({"ragged": "pad", "fill": "a"}, "cannot be stored in field 'x' of float32"),
    ],
)
def test_bad_options_are_refused(reader, options, error):
    with pytest.raises((ValueError, FieldNotFoundError), match=error):
        reader.columns([0, 1], ["x", "grid"], **options)


# ---------------------------------------------------------------- missing fields


def test_a_missing_field_is_an_error_that_names_the_options(reader):
    advice = r"no field 'late' in sample 's0' .*missing=VALUE .*missing=\"skip\""
    with pytest.raises(FieldNotFoundError, match=advice):
        reader.columns([1, 0], "late")
    with pytest.raises(FieldNotFoundError, match=advice):
        list(reader.scan("late", batch_size=5))
    with pytest.raises(FieldNotFoundError, match="missing=VALUE"):
        list(reader.scan("late", missing="error"))
    assert [len(sample) for sample in reader.scan("late")] == [2, 1, 1, 1, 1]


def test_missing_rows_are_filled(reader):
    got = reader.columns([1, 0], missing={"late": -1}, ragged="list")["late"]
    assert (got.dtype, got.tolist()) == ("f4", [[1.5, 2.5], [-1, -1]])
    for ids in (["s0", "s4"], [0, 4]):
        got = reader.columns(ids, "late", missing=np.nan)["late"]
        assert (got.dtype, got.shape) == ("f4", (2, 2))
        assert np.isnan(got).all()
    (batch,) = reader.scan("late", batch_size=9, missing=0)
    assert batch["late"].tolist() == [[1.5, 2.5]] + [[0, 0]] * 4
    samples = list(reader.scan("late", missing=3))
    assert [s["late"].tolist() for s in samples] == [[1.5, 2.5]] + [[3, 3]] * 4
    assert all(sample["late"].dtype == "f4" for sample in samples)


def test_missing_rows_of_ragged_fields_are_filled(root):
    with ShardedDatasetWriter(root) as writer:
        writer.update_sample("s2", {"late": np.array([9], "f4")})
    with ShardedDatasetReader(root) as reader:
        got = reader.columns(
            [0, 1, 2], "late", ragged="pad", fill=-1, missing=-2, lengths=True
        )
        assert got["late"].tolist() == [[-2, -2], [1.5, 2.5], [9, -1]]
        assert got["__lengths__"]["late"].tolist() == [[0], [2], [1]]
        got = reader.columns([0, 2, 1], "late", ragged="list", missing=-2)["late"]
        assert [array.tolist() for array in got] == [[-2], [9], [1.5, 2.5]]
        got = reader.columns([0], "late", ragged="pad", missing=-2, lengths=True)
        assert got["__lengths__"]["late"].tolist() == [[0]]
        with pytest.raises(RaggedError):
            reader.columns([0, 1, 2], "late", missing=-2)


def test_samples_without_a_field_are_skipped(reader):
    batches = list(reader.scan(["x", "late"], batch_size=2, missing="skip"))
    assert [batch["__key__"] for batch in batches] == [["s1"]]
    where = reader.scan("late", "id <> 's1'", missing="skip")
    assert list(where) == []


def test_a_field_without_any_array_has_no_shape(root):
    with ShardedDatasetWriter(root) as writer:
        writer.add_field("empty")
    error = pytest.raises(FieldNotFoundError, match="dtype and shape are unknown")
    with ShardedDatasetReader(root) as reader, error:
        reader.columns([0], "empty", missing=0)


# ---------------------------------------------------------------- fill values


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (np.nan, "i8"),
        (0.5, "i4"),
        (300, "u1"),
        (-1, "u8"),
        (2**70, "i8"),
        (2, "?"),
        (1e300, "f4"),
        (1j, "f8"),
        ("a", "i8"),
        ("abc", "U2"),
        (1, "U2"),
        (b"abc", "S2"),
        (0, "M8[s]"),
        (1.5, "m8[s]"),
        ([1, 2], "f8"),
        ((1, 2, 3), [("a", "i4"), ("b", "f4")]),
    ],
)
def test_a_value_that_a_dtype_cannot_represent_is_refused(value, dtype):
    with pytest.raises(ValueError, match=r"fill=.* cannot be stored in field 'x' of"):
        cast_fill(value, np.dtype(dtype), "x", "fill")


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (0.1, "f4", np.float32(0.1)),
        (1, "c16", 1 + 0j),
        (3.0, ">i2", 3),
        (True, "u1", 1),
        (1, "?", True),
        (2**63, "u8", 2**63),
        (np.inf, "f2", np.inf),
        ("ab", "U4", "ab"),
        (np.datetime64("2020-01-01"), "M8[s]", datetime.datetime(2020, 1, 1)),
        ((1, 2.5), [("a", "i4"), ("b", "f4")], (1, 2.5)),
        ("x", "O", "x"),
    ],
)
def test_a_value_is_cast(value, dtype, expected):
    cast = cast_fill(value, np.dtype(dtype), "x", "fill")
    assert (cast.dtype, cast.item()) == (np.dtype(dtype), expected)


def test_default_values_are_nan_or_zero():
    for dtype in ("f2", "f8", "c8"):
        assert np.isnan(default_fill(np.dtype(dtype)))
    for dtype in ("M8[D]", "m8[ns]"):
        assert np.isnat(cast_fill(np.nan, np.dtype(dtype), "x", "fill"))
        assert np.isnat(cast_fill(None, np.dtype(dtype), "x", "fill"))
    for dtype, zero in (("i8", 0), ("?", False), ("U3", ""), ("S3", b"")):
        assert cast_fill(None, np.dtype(dtype), "x", "fill").item() == zero


# ---------------------------------------------------------------- metadata columns


def test_metadata_columns_are_read_beside_fields(reader):
    names = ["length", "late", "name", "score"]
    for order in ([1], ["s1"]):
        got = reader.columns(order, names)
        assert list(got) == names
        assert (got["length"].dtype, got["length"].tolist()) == ("i8", [0])
        assert (got["score"].dtype, got["score"].tolist()) == ("f8", [0.5])
        assert got["name"] == ["n1"]
    got = reader.columns([4, 0, 4], ["length"])["length"]
    assert got.tolist() == [1, 3, 1]


def test_metadata_columns_of_scans_are_in_its_order(reader):
    for where, expected in (
        (None, ["s1", "s0", "s2", "s4"]),
        ("id > 's0'", ["s1", "s2", "s4"]),
    ):
        batches = list(
            reader.scan(["late", "name"], where, 2, missing={"late": 0, "name": ""})
        )
        keys = [key for batch in batches for key in batch["__key__"]]
        names = [name for batch in batches for name in batch["name"]]
        assert names == [f"n{key[1]}" if key != "s3" else "" for key in keys]
        assert [key for key in keys if key != "s3"] == expected
    samples = {s["__key__"]: s for s in reader.scan(["length", "score", "name"])}
    assert samples["s4"] == {"__key__": "s4", "length": 1, "score": 2.0, "name": "n4"}
    assert samples["s3"] == {"__key__": "s3"}  # NULL
    keys = [s["__key__"] for s in reader.scan(["length"], missing="skip")]
    assert keys == ["s0", "s1", "s2", "s4"]


def test_null_is_a_missing_value(reader):
    for name in ("length", "score", "name"):
        with pytest.raises(
            FieldNotFoundError, match=r"'s3': .* is NULL; missing=VALUE"
        ):
            reader.columns([0, 3], name)
    assert reader.columns([3, 0], "length", missing=-1)["length"].tolist() == [-1, 3]
    assert reader.columns([3, 0], "name", missing={"name": None})["name"] == [
        None,
        "n0",
    ]
    assert np.isnan(reader.columns([3], "score", missing={"score": None})["score"])
    with pytest.raises(ValueError, match="cannot be stored in field 'length'"):
        reader.columns([3], "length", missing=np.nan)


def test_a_value_of_another_type_is_refused(root):
    with ShardedDatasetWriter(root) as writer:
        writer.update_sample("s0", {}, {"length": "long"})
    error = pytest.raises(FastshardError, match="INTEGER, but sample 's0' has 'long'")
    with ShardedDatasetReader(root) as reader, error:
        reader.columns([1, 0], "length")


def test_a_field_hides_a_metadata_column_of_its_name(root):
    with ShardedDatasetWriter(root) as writer:
        writer.add_metadata_column("x", "$.length", int)
    with ShardedDatasetReader(root) as reader:
        np.testing.assert_array_equal(reader.columns([2], "x")["x"], [array_of(2)])
        with pytest.raises(FieldNotFoundError, match="x, grid, late, length"):
            reader.columns([2], ["x", "y"])


def test_metadata_columns_follow_a_refresh(root):
    reader = ShardedDatasetReader(root)
    assert reader.columns([0], "length")["length"].tolist() == [3]
    with ShardedDatasetWriter(root) as writer:
        writer.update_sample("s0", {}, {"length": 33})
    assert reader.columns([0], "length")["length"].tolist() == [3]
    reader.refresh()
    assert reader.columns([0], "length")["length"].tolist() == [33]
