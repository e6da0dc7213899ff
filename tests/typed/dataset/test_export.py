"""Typed samples as columns, data frames and Parquet files."""

import dataclasses

import numpy as np
import pytest

from fastshard import typed
from support.typed.packed import write_shard
from support.typed.photos import Photo, is_odd, label_of, row, write_photos


@pytest.fixture
def photos(tmp_path):
    return typed.Dataset[Photo](write_photos(tmp_path))


def test_columns(photos):
    found = photos.to_dict()
    assert list(found) == ["number", "label", "image"]
    assert found["number"] == list(range(30))
    np.testing.assert_array_equal(found["image"][7], row(7)["image"])
    assert photos.to_dict(limit=2)["label"] == ["photo 0", "photo 1"]
    assert photos.to_dict(limit=0) == {}
    assert photos.filter(is_odd).to_dict(3)["number"] == [1, 3, 5]


def test_columns_of_samples_without_types(tmp_path):
    write_shard(tmp_path / "a.tar", [{"a": 1}, {"b": 2}])
    assert typed.Dataset(str(tmp_path / "a.tar")).to_dict() == {
        "a": [1, None],
        "b": [None, 2],
    }


def test_columns_of_mapped_samples(photos):
    assert photos.map(lambda p: {"n": p.number}).to_dict(2) == {"n": [0, 1]}
    with pytest.raises(TypeError, match=r"expected samples with named fields, .*: str"):
        photos.map(label_of).to_dict()


def test_a_data_frame(photos):
    pytest.importorskip("pandas")
    frame = photos.to_pandas(limit=4)
    assert frame.columns.tolist() == ["number", "label", "image"]
    assert frame["number"].tolist() == [0, 1, 2, 3]
    assert len(photos.filter(is_odd).to_pandas()) == 15
    assert len(photos.to_pandas(0)) == 0


def labels(photo):
    return {"number": photo.number, "label": photo.label}


def test_parquet_in_one_file(photos, tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    path = tmp_path / "photos.parquet"
    photos.filter(is_odd).to_parquet(path, labels, compression="gzip")
    frame = pandas.read_parquet(path)
    assert frame["number"].tolist() == list(range(1, 30, 2))
    photos[:2].to_parquet(path, labels)  # in place of the other
    assert len(pandas.read_parquet(path)) == 2
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".parquet", *[".tar"] * 3]


def test_parquet_in_several_files(photos, tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    photos.to_parquet(tmp_path / "out.parquet", labels, maxcount=13)
    paths = sorted(tmp_path.glob("*.parquet"))
    assert [path.name for path in paths] == [f"out-{i:06d}.parquet" for i in range(3)]
    counts = [len(pandas.read_parquet(path)) for path in paths]
    assert counts == [13, 13, 4]
    with pytest.raises(ValueError, match="maxcount must be at least 1"):
        photos.to_parquet(tmp_path / "x.parquet", maxcount=0)


def test_all_fields_go_to_parquet_by_default(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")

    @typed.packable
    class Words:
        text: str
        numbers: list[int]

    write_shard(tmp_path / "a.tar", [{"text": "a", "numbers": [1, 2]}])
    typed.Dataset[Words](str(tmp_path / "a.tar")).to_parquet(tmp_path / "a.parquet")
    (found,) = pandas.read_parquet(tmp_path / "a.parquet").to_dict("records")
    assert found["text"] == "a"
    assert list(found["numbers"]) == [1, 2]


def test_a_failed_export_leaves_no_file(photos, tmp_path):
    pytest.importorskip("pandas")

    def fails(photo):
        raise KeyError(photo.number)

    with pytest.raises(KeyError):
        photos.to_parquet(tmp_path / "x.parquet", fails)
    assert not list(tmp_path.glob("*parquet*"))


def test_nested_dataclasses_are_dicts_in_a_data_frame(photos):
    pytest.importorskip("pandas")

    @dataclasses.dataclass
    class Inner:
        a: int

    @dataclasses.dataclass
    class Outer:
        inner: Inner

    frame = photos[:1].map(lambda photo: Outer(Inner(photo.number))).to_pandas()
    assert frame["inner"].tolist() == [{"a": 0}]
