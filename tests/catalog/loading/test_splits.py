"""Splits of shards by their names."""

import pytest

from fastshard.typed.loading.splits import detect_split, group_by_split, list_splits


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("dataset-train-000000.tar", "train"),
        ("dataset_training_000000.tar", "train"),
        ("dataset-test-000000.tar", "test"),
        ("dataset-testing_000000.tar", "test"),
        ("dataset-val-000000.tar", "validation"),
        ("dataset-valid-000000.tar", "validation"),
        ("dataset-validation-000000.tar", "validation"),
        ("dataset-dev-000000.tar", "validation"),
        ("dataset-development-000000.tar", "validation"),
        ("train-000.tar", "train"),
        ("test_data.tar", "test"),
        ("dev-0.tar", "validation"),
        ("train/shard-000.tar", "train"),
        ("data/test/shard-000.tar", "test"),
        ("data\\val\\shard-000.tar", "validation"),
        ("data/TRAIN/x-Test-0.tar", "test"),  # the name first
        ("x-test-train-0.tar", "train"),  # the first pattern
        ("dataset-TRAIN-000000.tar", "train"),
        ("s3://bucket/val/0.tar", "validation"),
        ("https://host/train-0.tar?test/", "train"),
        ("s3://test-bucket/0.tar", None),
        ("dataset-000000.tar", None),
        ("train.tar", None),
        ("x-train.tar", None),
        ("trainer-0.tar", None),
        ("contest-0.tar", None),
        ("", None),
    ],
)
def test_a_name_says_its_split(path, split):
    assert detect_split(path.partition("?")[0]) == split
    assert list(group_by_split([path])) == [split or "train"]


def test_shards_keep_their_order():
    shards = ["b-test-1.tar", "x.tar", "a-test-0.tar", "train-0.tar"]
    assert group_by_split(shards) == {
        "test": ["b-test-1.tar", "a-test-0.tar"],
        "train": ["x.tar", "train-0.tar"],
    }


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("train-2", "train-10", "x-val-0", "a{0,1}", "b"):
        (tmp_path / f"{name}.tar").touch()
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "test-0.tar").touch()
    (tmp_path / "empty").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("path", "data_files", "splits"),
    [
        (
            ".",
            None,
            {
                "train": ["a{0,1}.tar", "b.tar", "train-2.tar", "train-10.tar"],
                "validation": ["x-val-0.tar"],
            },
        ),
        ("train-*.tar", None, {"train": ["train-2.tar", "train-10.tar"]}),
        (
            "{x-val-0,train-2}.tar",
            None,
            {"validation": ["x-val-0.tar"], "train": ["train-2.tar"]},
        ),
        ("a{0,1}.tar", None, {"train": ["a{0,1}.tar"]}),
        (
            ["b.tar", "x-val-0.tar"],
            None,
            {"train": ["b.tar"], "validation": ["x-val-0.tar"]},
        ),
        ("**/test-*.tar", None, {"test": ["below/test-0.tar"]}),
        (".", "x-val-0.tar", {"train": ["x-val-0.tar"]}),
        (
            ".",
            ["b.tar", "train-*.tar"],
            {"train": ["b.tar", "train-2.tar", "train-10.tar"]},
        ),
        (
            ".",
            {"first": "{b,train-2}.tar", "second": ["below"]},
            {"first": ["b.tar", "train-2.tar"], "second": ["below/test-0.tar"]},
        ),
        ("below", "test-*.tar", {"train": ["below/test-0.tar"]}),
    ],
)
def test_paths_have_splits(folder, path, data_files, splits):
    found = list_splits(path, data_files, {})
    names = {
        split: [shard.removeprefix("./") for shard in shards]
        for split, shards in found.items()
    }
    assert names == splits


def test_absolute_files_and_urls_are_not_joined(folder):
    path = str(folder / "b.tar")
    assert list_splits("nowhere", path, {}) == {"train": [path]}
    url = "http://host/a-{0..1}.tar"
    assert list_splits("nowhere", url, {}) == {
        "train": ["http://host/a-0.tar", "http://host/a-1.tar"]
    }
    assert list_splits("s3://bucket/data", {"test": "a.tar"}, {}) == {
        "test": ["s3://bucket/data/a.tar"]
    }


@pytest.mark.parametrize(
    ("path", "data_files"),
    [
        ("none.tar", None),
        ("none-*.tar", None),
        ("none", None),
        ("empty", None),
        ("train-{2..3}.tar", None),
        (".", "none.tar"),
        (".", {"train": "b.tar", "test": "none-*.tar"}),
        ([], None),
        ("", None),
    ],
)
def test_a_missing_name_is_an_error_at_once(folder, path, data_files):
    with pytest.raises(FileNotFoundError):
        list_splits(path, data_files, {})


def test_files_are_below_one_path(folder):
    with pytest.raises(TypeError, match="one path"):
        list_splits(["a.tar"], "b.tar", {})
