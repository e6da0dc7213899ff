"""Arrays and ids of all kinds, written by the original package and by fastshard."""

from __future__ import annotations

import datetime
import json
import math
import os
import random
import tarfile

import numpy as np
import pytest

from fastshard._core.parse.json import encode_flat
from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter
from fastshard.errors import FastshardError
from support.columnar.checks import (
    assert_original_reads,
    assert_reads,
    assert_same_array,
    assert_same_arrays,
    assert_true_offsets,
    snapshot,
)
from support.columnar.original import FIELDS, arrays_of

# ---------------------------------------------------------------- arrays

grid = np.arange(24, dtype=np.float32).reshape(4, 6)
points = np.array([(1, 2.5, b"ab"), (3, -4.5, b"c")], "i4,f8,S3")
nested = np.zeros(3, [("p", [("x", ">f4"), ("y", "<u2", (2, 3))]), ("größe", "U4")])
nested["p"]["y"] = 7
nested["größe"] = "äöü"
padded = np.zeros(2, np.dtype([("a", "i1"), ("b", "f8"), ("c", "i2")], align=True))
padded["b"] = 1.5
wide = np.zeros(2, [(f"column_{i:04d}", "<f8") for i in range(4000)])  # npy version 2
wide["column_3999"] = 4.5
days = np.array(["2024-02-29", "NaT", "1969-12-31"], "M8[D]")

ARRAYS = {
    "fortran": np.asfortranarray(grid),
    "fortran 3-d": np.asfortranarray(np.arange(24.0).reshape(2, 3, 4)),
    "fortran, empty": np.zeros((0, 4), order="F"),
    "a column": grid[:, :1].copy(),
    "0-d": np.array(2.5),
    "0-d, big-endian": np.array(7, ">i8"),
    "0-d, text": np.array("word"),
    "0-d, structured": points[0:1].reshape(()),
    "empty": np.zeros(0, np.float32),
    "empty, 3-d": np.zeros((3, 0, 2), np.int16),
    "empty text": np.array(["", ""]),
    "no bytes an item": np.zeros(3, "U0"),
    "structured": points,
    "structured, nested": nested,
    "structured, padded": padded,
    "structured, wide": wide,
    "no fields": np.zeros(4, np.dtype([])),
    "big-endian floats": grid.astype(">f4"),
    "big-endian integers": np.arange(5, dtype=">u2"),
    "big-endian text": np.array(["ab", "größe"], ">U5"),
    "big-endian dates": days.astype(">M8[D]"),
    "bool": np.array([[True, False], [False, True]]),
    "bytes": np.array([b"ab", b"", b"abc\0d"]),
    "text": np.array(["日本", "", "😀 smile"]),
    "dates": days,
    "times": np.array(["2024-01-01T00:00:00.000000001"], "M8[ns]"),
    "times of 25 s": np.array([3, 4], "M8[25s]"),
    "spans": np.array([1, -2], "m8[ms]"),
    "complex": np.array([1 + 2j, complex(math.nan, -0.0)], np.complex64),
    "complex, big-endian": np.array([[1 - 2j]], ">c16"),
    "half": np.array([1.5, np.inf, -0.0], np.float16),
    "long double": np.array([1.25], np.longdouble),
    "opaque": np.array([b"abcdefg"], "V7"),
    "int8": np.arange(-128, 128, dtype=np.int8),
    "uint64": np.array([2**64 - 1], np.uint64),
    "many axes": np.ones((1,) * 32, np.uint8),
    "one byte over a block": np.zeros(385, np.uint8),  # 128 of header
    "one block": np.ones(384, np.uint8),
    "a megabyte": np.arange(1 << 17, dtype=np.int64),
}

unusual = pytest.mark.filterwarnings("ignore:Stored array in format:UserWarning")


@unusual
@pytest.mark.parametrize("name", ARRAYS)
def test_any_array(make_original, name):
    with make_original() as writer:
        writer.add_field("x")
        for sample_id in "ab":
            writer.add_sample({"x": ARRAYS[name]}, sample_id=sample_id)
    put = {"a": {"x": ARRAYS[name]}, "b": {"x": ARRAYS[name]}}
    assert_original_reads(writer.root, put)
    assert_reads(writer.root, put)
    with ShardedDatasetReader(writer.root) as reader:
        copied = reader.get_sample("b", copy=True)[0]["x"]
        stacked = reader.columns(["b", "a"])["x"]
    assert copied.flags.writeable
    assert_same_array(copied, ARRAYS[name])
    assert stacked.shape == (2, *ARRAYS[name].shape)
    order = "F" if ARRAYS[name].flags.f_contiguous else "C"
    alone = stacked[1, ...].astype(ARRAYS[name].dtype, order=order)
    assert_same_array(alone, ARRAYS[name])


@unusual
def test_all_arrays_in_one_shard(make_original):
    put = {name: {"x": array} for name, array in ARRAYS.items()}
    with make_original() as writer:
        writer.add_field("x")
        for name, arrays in put.items():
            writer.add_sample(arrays, sample_id=name)
    assert_reads(writer.root, put)


@unusual
def test_the_original_reads_arrays_that_fastshard_wrote(tmp_path):
    put = {name: {"x": array} for name, array in ARRAYS.items()}
    with ShardedDatasetWriter(tmp_path / "data", samples_per_shard=10) as writer:
        writer.add_field("x")
        for name, arrays in put.items():
            writer.add_sample(arrays, sample_id=name)
    assert_original_reads(tmp_path / "data", put)
    assert_reads(tmp_path / "data", put)


def test_object_arrays_are_refused_unless_allowed(make_original):
    objects = np.array([{"a": 1}, None, "text", datetime.date(2024, 2, 29)], object)
    mixed = np.array([(1, [2, 3])], [("n", "i4"), ("any", object)])
    with make_original() as writer:
        writer.add_fields(["x", "y"])
        plain = {"x": np.arange(3.0), "y": np.arange(2)}
        writer.add_sample(plain, sample_id="plain")
        writer.add_sample({"x": objects, "y": plain["y"]}, sample_id="objects")
        writer.add_sample({"x": mixed}, sample_id="mixed")
    before = snapshot(writer.root)
    with ShardedDatasetReader(writer.root) as reader:
        assert_same_arrays(reader.get_sample("plain")[0], plain)
        for sample_id in "objects", "mixed":
            with pytest.raises(FastshardError, match="allow_pickle"):
                reader.get_sample(sample_id)
        only = reader.get_sample("objects", fields=["y"])[0]
        assert_same_arrays(only, {"y": plain["y"]})
    with ShardedDatasetReader(writer.root, allow_pickle=True) as reader:
        found = reader.get_many(["objects", "mixed", "plain"])
    assert_same_array(found[0][0]["x"], objects)
    assert_same_array(found[1][0]["x"], mixed)
    assert_same_arrays(found[2][0], plain)
    assert snapshot(writer.root) == before


def test_no_code_runs_unless_allowed(make_original, tmp_path):
    trace = tmp_path / "run"

    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(trace),)

    with make_original() as writer:
        writer.add_field("x")
        writer.add_sample({"x": np.array([Trap()], object)}, sample_id="a")
    with ShardedDatasetReader(writer.root) as reader:
        for read in (
            lambda: reader.get_sample("a"),
            lambda: reader.get_many(["a"]),
            lambda: reader.columns(["a"]),
            lambda: reader.samples[0]["x"],
            lambda: list(reader.scan()),
        ):
            with pytest.raises(FastshardError):
                read()
    assert not trace.exists()


# ---------------------------------------------------------------- ids

IDS = [
    "größe",
    "数据/一",
    "😀" * 20,
    "e\u0301",  # two characters that look like the next one
    "\xe9",  # one character
    "a/b/c",
    "a//b",
    "a/",
    "/etc/passwd",
    "../../up",
    ".",
    "..",
    "./a",
    "a.npy",
    "a",
    "A",
    " a ",
    "a b\tc\nd",
    "a\\b",
    "'; DROP TABLE samples; --",
    '"',
    "%s{}?#*[a]",
    "__key__",
    "-1",
    "1e3",
    "007",
    "\x7f\x01",
    "null",
    *("long" * (n // 4) + "x" * (n % 4) for n in (90, 95, 96, 97, 100, 150, 256, 300)),
    *("p" * 100 + tail for tail in ("1", "2")),  # differ past ustar's name
    "f" * 140 + "/" + "n" * 90,
    "ü" * 47,  # 94 bytes
    "ü" * 60 + "/x",
    "ü" * 200,
]


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_any_id(make_original, form):
    put = {sample_id: arrays_of(i) for i, sample_id in enumerate(IDS)}
    with make_original(form=form, samples_per_shard=25) as writer:
        writer.add_fields(FIELDS)
        for sample_id, arrays in put.items():
            writer.add_sample(arrays, sample_id=sample_id)
    assert_original_reads(writer.root, put)
    assert_reads(writer.root, put)
    for i in 0, 2, 30, 35:
        put[IDS[i]] = arrays_of(i, 1)
    with make_original(form=form) as writer:
        for i in 0, 2, 30, 35:
            writer.update_sample(IDS[i], put[IDS[i]])
    assert_reads(writer.root, put)


def test_ids_that_ustar_splits(make_original):
    ids = ["d" * n + "/" + "e" * 80 for n in (19, 20, 60, 155)]
    put = {sample_id: arrays_of(i) for i, sample_id in enumerate(ids)}
    with make_original(form=tarfile.USTAR_FORMAT) as writer:
        writer.add_fields(FIELDS)
        for sample_id, arrays in put.items():
            writer.add_sample(arrays, sample_id=sample_id)
    assert_reads(writer.root, put)


def test_the_original_reads_ids_that_fastshard_wrote(tmp_path):
    put = {sample_id: arrays_of(i) for i, sample_id in enumerate(IDS)}
    with ShardedDatasetWriter(tmp_path / "data", samples_per_shard=25) as writer:
        writer.add_fields(FIELDS)
        for sample_id, arrays in put.items():
            assert writer.add_sample(arrays, sample_id=sample_id) == sample_id
    assert_original_reads(tmp_path / "data", put)
    assert_reads(tmp_path / "data", put)
    for field in FIELDS:
        assert_true_offsets(tmp_path / "data", field)


@pytest.mark.parametrize("n", [90, 95, 96, 97, 100, 155, 251, 256, 300])
@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_long_ids_begin_a_shard(make_original, n, form):
    put = {"i" * n: arrays_of(1), "j" * n: arrays_of(2)}
    with make_original(form=form) as writer:
        writer.add_fields(FIELDS)
        for sample_id, arrays in put.items():
            writer.add_sample(arrays, sample_id=sample_id)
    assert_reads(writer.root, put)


@pytest.mark.parametrize("mode", ["mmap", "private", "pread"])
@pytest.mark.parametrize("first", ["samples", "columns", "scan"])
def test_cached_layouts_apply_to_equal_headers_only(tmp_path, mode, first):
    """A header shared by many rows is read once, with other headers in between."""
    # A header that is too long to be kept.
    wide = np.dtype([(f"field_{i}", "f8") for i in range(40)])
    kinds = [
        lambda i: np.full(5, i, "f4"),
        lambda i: np.full(5, i, "f4"),
        lambda i: np.full((5, 1), i, "f4"),
        lambda i: np.full(5, i, "i4"),  # of the same size
        lambda i: np.asfortranarray(np.full((5, 2), i, "f4")),
        lambda i: np.zeros(i % 2, wide),
        lambda i: np.float64(i),
    ]
    put = {f"{i}": {"a": kinds[i % 7](i), "b": kinds[0](-i)} for i in range(70)}
    with ShardedDatasetWriter(tmp_path / "data", samples_per_shard=9) as writer:
        writer.add_fields(["a", "b"])
        for sample_id, arrays in put.items():
            writer.add_sample(arrays, sample_id)
    with ShardedDatasetReader(tmp_path / "data", mode=mode) as reader:
        if first == "columns":
            reader.columns([1, 0, 7, 8], ["b", "a"])
            reader.columns([3, 10], "a")
        elif first == "scan":
            assert len(list(reader.scan())) == 70
        for _ in range(3):
            for i, arrays in enumerate(put.values()):
                found = reader.samples[i]
                assert_same_arrays(found, arrays)
                assert found["b"].flags.writeable == (mode == "private")
            stacks = reader.columns(range(70), ragged="list")
            assert_same_arrays({"a": stacks["a"][3]}, {"a": put["3"]["a"]})
            assert stacks["b"][:, 0].tolist() == [-i for i in range(70)]
        found = reader.samples[1]["b"]
    assert found.tolist() == [-1.0] * 5  # valid while it is referenced


# ---------------------------------------------------------------- metadata

SCALARS: list[object] = [
    *(0, -1, 7, 2**63 - 1, -(2**63), 2**63, -(2**63) - 1, True, False, None),
    *(1.5, -0.0, 1e16, 1e300, 5e-324, 0.1, math.nan, -math.inf, np.float64(2.5)),
    *("", "a b~", 'quo"te', "back\\slash", "\x7f", "\n", "größe", "x" * 600),
    *([], [1, "a"], {}, {"deep": None}),
]


def test_metadata_of_many_short_lists(tmp_path):
    metadata = {"lists": [[i] for i in range(1000)]}
    with ShardedDatasetWriter(tmp_path) as writer:
        writer.add_field("a")
        writer.add_sample({"a": np.zeros(1)}, "x", metadata)
    with ShardedDatasetReader(tmp_path) as reader:
        assert reader.get_sample("x")[1] == metadata


@pytest.mark.parametrize("seed", range(4))
def test_flat_metadata_is_encoded_as_json_dumps_does(seed: int) -> None:
    numbers = random.Random(seed)
    encoded = 0
    for _ in range(2000):
        keys = numbers.sample(["a", "length", "k k", "é", "", 1, None], 3)
        metadata = {key: numbers.choice(SCALARS) for key in keys}

        text = encode_flat(metadata)

        if text is not None:
            encoded += 1
            assert text == json.dumps(metadata, allow_nan=False)
    assert encoded > 20


def test_flat_metadata_up_to_the_capacity_of_the_encoder() -> None:
    for size in range(1000, 1030):
        for metadata in ({"k": "x" * size}, {"k" * size: 1}, {"k": "x" * size, "n": 7}):
            text = encode_flat(metadata)
            assert text is None or text == json.dumps(metadata)
    assert encode_flat({"k": "x" * 1000}) is not None
