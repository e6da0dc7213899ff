"""`Dataset.columns`: dtypes by the field's decoder, as in batches."""

import numpy as np
import pytest

import fastshard
from fastshard.columnar import ShardedDatasetWriter
from fastshard.errors import FormatError, RaggedError
from fastshard.formats.layout import ARRAY, NPY, FieldLayout
from fastshard.formats.sample import Sample
from support.builders import npy
from support.tars import write_numbers, write_tar


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_numbers(tmp_path_factory.mktemp("numbers"), 40)


@pytest.mark.parametrize("ragged", ["error", "list"])
@pytest.mark.parametrize("positions", [[9, 10], [0, 39, 0], range(40), [3]])
def test_cls_fields_are_numbers(folder, positions, ragged):
    with fastshard.open(folder) as ds:
        column = ds.columns(positions, ["cls", "npy"], ragged=ragged)
        (batch,) = ds[list(positions)].batches(40)
        for field in ("cls", "npy"):
            assert column[field].dtype == batch[field].dtype
            assert column[field].tolist() == batch[field].tolist()
        assert column["cls"].tolist() == list(positions)


def test_a_dtype_gives_the_bytes_of_numbers(folder):
    with fastshard.open(folder) as ds:
        raw = ds.columns([10, 39], {"cls": "u1"})["cls"]
        assert raw.tobytes() == b"1039"
        with pytest.raises(RaggedError, match="'000010'"):
            ds.columns([9, 10], {"cls": "u1"})


def test_other_fields_are_raw_bytes(folder):
    with fastshard.open(folder) as ds:
        assert ds.columns([10, 39], "txt")["txt"].tobytes() == b"1039"
        with pytest.raises(RaggedError):
            ds.columns([9, 10], "txt")


def test_no_positions(folder):
    with fastshard.open(folder) as ds:
        column = ds.columns([], ["cls", "npy", "txt"])
        assert {field: len(array) for field, array in column.items()} == {
            "cls": 0,
            "npy": 0,
            "txt": 0,
        }
        assert column["cls"].dtype == np.int64


def test_numbers_that_no_integer_of_numpy_holds_are_a_list(tmp_path):
    path = write_tar(tmp_path / "n.tar", {"0.cls": b"%d" % 2**70, "1.cls": b"1"})
    with fastshard.open(path) as ds:
        assert ds.columns([0, 1], "cls")["cls"] == [2**70, 1]


def test_the_error_of_an_invalid_number_names_the_member(tmp_path):
    path = write_tar(tmp_path / "n.tar", {"0.cls": b"5", "1.cls": b"five"})
    with fastshard.open(path) as ds, pytest.raises(FormatError, match=r"1\.cls"):
        ds.columns([0, 1], "cls")


def test_decoders_of_the_caller_s_own(folder):
    def decode(view):
        return np.full(1 + (bytes(view) == b"11"), int(bytes(view)), np.int16)

    own = {"txt": lambda view: float(bytes(view)), "cls": decode}
    with fastshard.open(folder, decoders=own) as ds:
        column = ds.columns([9, 10], ["txt", "cls"])
        (batch,) = ds[9:11].batches(2)
        for field in ("txt", "cls"):
            assert column[field].dtype == batch[field].dtype
            assert column[field].tolist() == batch[field].tolist()
        assert column["txt"].tolist() == [9.0, 10.0]
        with pytest.raises(RaggedError, match=r"\(2,\) in .*'000011' .*'000009'"):
            ds.columns([9, 10, 11], "cls")
        listed = ds.columns([9, 11], "cls", ragged="list")["cls"]
        assert [array.tolist() for array in listed] == [[9], [11, 11]]


def test_fields_of_columnar_datasets(tmp_path):
    with ShardedDatasetWriter(tmp_path / "c") as writer:
        writer.add_fields(["cls"])
        for i in range(3):
            writer.add_sample({"cls": np.full(2, i)}, sample_id=str(i))
    with fastshard.open(tmp_path / "c") as ds:
        order = list(map(int, ds.keys()))
        column = ds.columns(range(3), "cls")["cls"]
        assert column.tolist() == [[i, i] for i in order]
    own = {"cls": lambda view: len(view)}
    with fastshard.open(tmp_path / "c", decoders=own) as ds:
        assert ds.columns([0], "cls")["cls"].tolist() == [len(ds[0].view("cls"))]


@pytest.mark.parametrize("layout", [ARRAY, NPY], ids=lambda layout: layout.kind)
def test_arrays_behind_headers_are_stacked(tmp_path, monkeypatch, layout):
    """An ``.npy`` file is read as one of a format with headers of its own, too."""
    arrays = [np.arange(6, dtype="<i4").reshape(2, 3) + i for i in range(5)]
    odd = [arrays[0].astype("<f4"), arrays[0].ravel(), np.zeros((2, 3, 9), "<i4")]
    write_tar(
        tmp_path / "a.tar",
        {f"{i}.x.npy": npy(array) for i, array in enumerate([*arrays, *odd])},
    )
    monkeypatch.setattr(Sample, "layout_of", lambda self, field: layout)
    with fastshard.open(tmp_path) as ds:
        found = ds.columns([3, 0, 3], "x.npy")["x.npy"]
        np.testing.assert_array_equal(found, np.stack([arrays[i] for i in (3, 0, 3)]))
        batch = fastshard.collate([ds[1], ds[2]])
        np.testing.assert_array_equal(batch["x.npy"], np.stack(arrays[1:3]))
        for i in range(5, 8):
            with pytest.raises(RaggedError, match=rf"sample '{i}'"):
                ds.columns([0, 1, i], "x.npy")
            ragged = ds.columns([0, i], "x.npy", ragged="list")["x.npy"]
            np.testing.assert_array_equal(ragged[1], odd[i - 5], strict=True)


def test_raw_elements_are_stacked(tmp_path, monkeypatch):
    arrays = [np.arange(6, dtype="<i4").reshape(2, 3) + i for i in range(5)]
    members = {f"{i}.x": array.tobytes() for i, array in enumerate(arrays)}
    write_tar(tmp_path / "a.tar", members | {"5.x": bytes(23)})
    raw = FieldLayout("raw", "<i4", (2, 3))
    monkeypatch.setattr(Sample, "layout_of", lambda self, field: raw)
    with fastshard.open(tmp_path) as ds:
        found = ds.columns([3, 0], "x")["x"]
        np.testing.assert_array_equal(found, np.stack([arrays[3], arrays[0]]))
        np.testing.assert_array_equal(
            next(ds[:5].batches(5))["x"], np.stack(arrays), strict=True
        )
        with pytest.raises(ValueError, match="23 bytes"):
            ds.columns([0, 5], "x")
