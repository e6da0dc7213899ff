"""Search over the entries of an index."""

import pytest

from fastshard import typed
from fastshard.catalog.index import Index
from support.typed.numbers import Number


@pytest.fixture
def index(tmp_path):
    """Return an index of two repositories with five datasets."""
    lab = typed.create_repository(path=tmp_path / "lab.db")
    index = Index(path=tmp_path / "index.db", repos={"lab": lab}, atmosphere=None)
    for name, metadata in {
        "mnist-train": {"tags": ["digits", "vision"], "description": "handwriting"},
        "mnist-test": {"tags": ["digits"]},
        "cifar": {"tags": ["vision", 3]},
        "odd": {"tags": "vision", "description": 3},
        "lab/MNIST": None,
    }.items():
        ds = typed.Dataset(f"{name}.tar", Number)
        index.insert_dataset(ds, name=name, metadata=metadata)
    return index


def names(results):
    return [found.name for found in results]


def test_without_a_query_all_are_found(index):
    results = index.search()
    assert names(results) == ["MNIST", "cifar", "mnist-test", "mnist-train", "odd"]
    assert len(results) == results.total_hint == 5
    assert results.failed == {}


def test_text_is_part_of_the_name_in_any_case(index):
    assert names(index.search("mnIST")) == ["MNIST", "mnist-test", "mnist-train"]
    assert names(index.search("handwriting")) == []


def test_all_tags_are_there(index):
    assert names(index.search(tags=["vision"])) == ["cifar", "mnist-train"]
    assert names(index.search(tags=("vision", "digits"))) == ["mnist-train"]
    assert names(index.search("test", tags=["vision"])) == []
    with pytest.raises(TypeError, match="list of str"):
        index.search(tags="vision")


def test_a_schema_is_searched_for(index):
    ref = "atdata://local/schema/Number@1.0.0"
    assert len(index.search(schema_ref=ref)) == 5
    assert len(index.search(schema_ref=ref.replace("1.0.0", "1.0.1"))) == 0


def test_results_say_where_they_are_from(index):
    found = {each.name: each for each in index.search()}
    assert found["MNIST"].source == "lab"
    assert found["cifar"].source == "local"
    entry = index.get_dataset("mnist-train")
    assert found["mnist-train"] == typed.SearchResult(
        entry.cid,
        "mnist-train",
        "handwriting",
        ["digits", "vision"],
        entry.schema_ref,
        "local",
    )
    assert (found["odd"].description, found["odd"].tags) == (None, [])


def test_one_repository_is_searched(index):
    assert names(index.search("mnist", repo="lab")) == ["MNIST"]
    assert len(index.search("mnist", repo="local")) == 2


def test_a_limit_is_kept(index):
    results = index.search(limit=2)
    assert names(results) == ["MNIST", "cifar"]
    assert results.total_hint == 5
    assert names(index.search(limit=0)) == []
    with pytest.raises(ValueError, match="must not be negative"):
        index.search(limit=-1)


def test_a_store_that_fails_is_named_and_the_others_answer(index, tmp_path):
    (tmp_path / "broken.db").write_bytes(b"no database" * 1000)
    repos = {"lab": typed.create_repository(path=tmp_path / "broken.db")}
    results = Index(index.provider, repos=repos, atmosphere=None).search("mnist")
    assert names(results) == ["mnist-test", "mnist-train"]
    assert list(results.failed) == ["lab"]
    assert "broken.db" in results.failed["lab"]


def test_arguments_are_checked(index):
    with pytest.raises(TypeError, match="text must be a str, got int"):
        index.search(5)
    with pytest.raises(TypeError, match="tags must be a list"):
        index.search(tags="a")
    with pytest.raises(ValueError, match="limit must not be negative"):
        index.search(limit=-1)
