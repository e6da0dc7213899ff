"""Datasets that `load_dataset` finds by their names in an index."""

import pytest

from fastshard import typed
from support.typed.numbers import Number


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    """Be in a folder of one's own, with a default index of one's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    typed.set_default_index(None)
    yield
    typed.set_default_index(None)


@pytest.fixture
def named(index):
    """Return an index with "n" in two versions, 5 and 3 samples."""
    for version, count in {"1.0.0": 5, "2.0.0": 3}.items():
        samples = [Number(value=i) for i in range(count)]
        index.write_samples(samples, name="n", version=version, maxcount=2)
    return index


def values(ds):
    return [sample.value for sample in ds]


@pytest.mark.parametrize(
    ("path", "count"),
    [
        ("n", 3),
        ("local/n", 3),
        ("@local/n", 3),
        ("@local/n@1.0.0", 5),
        ("atdata://local/dataset/n", 3),
    ],
)
def test_a_name_is_looked_up_in_the_index(named, path, count):
    ds = typed.load_dataset(path, index=named, split="train")
    assert values(ds) == list(range(count))
    assert ds.sample_type.__name__ == "Number"
    found = typed.load_dataset(path, Number, index=named)
    assert list(found) == ["train"]
    assert found.sample_type is Number
    assert found["train"].sample_type is Number


def test_options_are_the_dataset_s(named):
    ds = typed.load_dataset("n", Number, index=named, split="train", mode="pread")
    assert values(ds) == [0, 1, 2]
    with pytest.raises(TypeError, match="modes"):
        typed.load_dataset("n", index=named, split="train", modes="pread")


def test_a_name_that_is_not_there_is_a_key_error(named):
    for path in ("other", "local/other", "@local/other", "@local/n@3.0.0"):
        with pytest.raises(KeyError):
            typed.load_dataset(path, index=named, split="train")


def test_paths_of_shards_are_read_beside_an_index(named):
    typed.write_samples([Number(value=7)], "data/train-0.tar")
    for path in ("data", "data/", "data/*.tar", "data/train-{0..0}.tar"):
        ds = typed.load_dataset(path, Number, index=named, split="train")
        assert values(ds) == [7]
    with pytest.raises(FileNotFoundError):
        typed.load_dataset("nothing.tar", Number, index=named, split="train")
    with pytest.raises(FileNotFoundError):
        typed.load_dataset("data/*.missing", Number, index=named, split="train")


def test_a_name_comes_before_a_folder(named, tmp_path):
    typed.write_samples([Number(value=7)], "n/train-0.tar")
    assert values(typed.load_dataset("n", Number, index=named, split="train")) == [
        0,
        1,
        2,
    ]
    assert values(typed.load_dataset("./n", Number, index=named, split="train")) == [7]
    assert values(typed.load_dataset("n", Number, split="train")) == [7]
    files = typed.load_dataset("n", Number, data_files="*.tar", index=named)
    assert values(files["train"]) == [7]


def test_a_reference_is_looked_up_in_the_default_index(named):
    with pytest.raises(KeyError):
        typed.load_dataset("@local/n", split="train")
    typed.set_default_index(named)
    assert values(typed.load_dataset("@local/n", split="train")) == [0, 1, 2]
    assert values(typed.load_dataset("@local/n@1.0.0", split="train")) == [
        0,
        1,
        2,
        3,
        4,
    ]


def test_the_default_index_is_made_once(tmp_path):
    index = typed.get_default_index()
    assert typed.get_default_index() is index
    assert not (tmp_path / "home").exists()
    index.write_samples([Number(value=1)], name="n")
    assert (tmp_path / "home" / ".atdata" / "index.db").exists()
    with pytest.raises(TypeError, match="must be an Index"):
        typed.set_default_index("index.db")
    assert typed.get_default_index() is index


def test_a_named_dataset_shuffles_and_batches(named):
    ds = typed.load_dataset("@local/n@1.0.0", Number, index=named, split="train")
    assert sorted(sample.value for sample in ds.shuffled(seed=1)) == [0, 1, 2, 3, 4]
    assert [batch.value for batch in ds.ordered(batch_size=3)] == [[0, 1, 2], [3, 4]]
