"""Metadata columns in samples and batches of datasets."""

import pickle

import numpy as np
import pytest

import fastshard
from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter
from fastshard.errors import (
    FastshardError,
    FieldNotFoundError,
    SampleNotFoundError,
)
from support.marks import not_sanitized, slow

pytestmark = not_sanitized  # tests Python code

COUNT = 30
NAMES = ("label", "x", "score", "title")


def metadata_of(i):
    found = {"label": i * 10, "score": i / 4, "title": f"t{i}", "x": -1}
    return found if i == 7 else found | {"part": i}


def add(writer, numbers):
    for i in numbers:
        arrays = {"x": np.full(3, i), "y": np.full(i % 2, i)}
        writer.add_sample(arrays, f"s{i}", metadata_of(i))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("metadata") / "d"
    with ShardedDatasetWriter(root, samples_per_shard=8) as writer:
        writer.add_fields(["x", "y"])
        add(writer, range(COUNT))
        kinds = {"label": int, "score": float, "title": str, "part": int, "x": int}
        for name, kind in kinds.items():
            writer.add_metadata_column(name, f"$.{name}", kind)
    return root


@pytest.fixture
def ds(root):
    with fastshard.open(root) as ds:
        yield ds


def check(batch):
    numbers = [int(key[1:]) for key in batch["__key__"]]
    assert list(batch) == ["__key__", *NAMES]
    assert (batch["label"].dtype, batch["score"].dtype) == (np.int64, np.float64)
    assert batch["label"].tolist() == [i * 10 for i in numbers]
    assert batch["score"].tolist() == [i / 4 for i in numbers]
    assert batch["title"] == [f"t{i}" for i in numbers]
    assert batch["x"][:, 0].tolist() == numbers  # the field, not the column
    return numbers


def numbers_of(batches):
    return [i for batch in batches for i in check(batch)]


def test_batches_have_the_columns_that_are_selected(ds):
    chosen = ds.select_fields(*NAMES)
    assert numbers_of(chosen.batches(7)) == list(range(COUNT))
    assert numbers_of(chosen.loader(7)) == list(range(COUNT))
    assert list(next(iter(ds.batches(2, ragged="list")))) == ["__key__", "x", "y"]
    assert list(chosen.fields) == list(NAMES)
    kinds = [info.kind for info in chosen.fields.values()]
    assert kinds == ["int", "array", "float", "text"]


def test_orders_are_those_of_fields(ds):
    chosen = ds.select_fields(*NAMES)
    shuffled = chosen.shuffle(seed=3)
    order = [int(sample.key[1:]) for sample in ds.shuffle(seed=3)]
    assert numbers_of(shuffled.batches(4)) == order
    assert numbers_of(shuffled.loader(4)) == order
    parts = [shuffled.split_by_rank(rank, 2) for rank in range(2)]
    assert sorted(i for p in parts for i in numbers_of(p.batches(4))) == list(
        range(COUNT)
    )
    resumed = shuffled.resume(shuffled.state_dict(9))
    assert numbers_of(resumed.batches(4)) == order[9:]
    assert numbers_of(pickle.loads(pickle.dumps(shuffled)).batches(4)) == order
    both = chosen[:3] + chosen[5:7]
    assert numbers_of(both.batches(5)) == [0, 1, 2, 5, 6]


def test_batches_equal_columns_of_a_reader(root, ds):
    batch = next(iter(ds.select_fields(*NAMES).batches(COUNT)))
    with ShardedDatasetReader(root) as reader:
        stacks = reader.columns(range(COUNT), NAMES)
    assert list(stacks) == list(NAMES)
    for name in NAMES:
        np.testing.assert_array_equal(batch[name], stacks[name])
        assert type(batch[name]) is type(stacks[name])
    again = ds.columns(range(COUNT), NAMES)
    for name in ("label", "score", "x"):
        np.testing.assert_array_equal(again[name], stacks[name])
        assert again[name].dtype == stacks[name].dtype
    assert again["title"] == stacks["title"]


def test_a_sample_has_its_values_by_name(ds):
    sample = ds[3]
    assert (sample["label"], sample["score"], sample["title"]) == (30, 0.75, "t3")
    assert sample["x"].tolist() == [3, 3, 3]
    assert list(sample) == ["x", "y"]
    assert "label" in sample
    assert "lable" not in sample
    assert sample.decode("title") == {"__key__": "s3", "title": "t3"}
    narrowed = ds.select_fields("title", "x")[3]
    assert list(narrowed) == ["title", "x"]
    with pytest.raises(FieldNotFoundError, match="label"):
        narrowed["label"]
    with pytest.raises(FastshardError, match="'title' is a metadata column"):
        narrowed.view("title")
    copied = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(narrowed))))
    assert list(copied) == ["title", "x"]
    assert (copied["title"], copied["x"].tolist()) == ("t3", [3, 3, 3])
    assert copied.decode()["title"] == "t3"
    batch = fastshard.collate([copied, narrowed])
    assert batch["title"] == ["t3", "t3"]
    assert "t3" in narrowed._repr_html_()


def test_null_is_a_missing_field(ds):
    chosen = ds.select_fields("x", "part")
    with pytest.raises(FieldNotFoundError, match=r"'part' in sample 's7'"):
        list(chosen.batches(COUNT))
    assert "part" not in ds[7]
    with pytest.raises(FieldNotFoundError, match="part"):
        ds[7]["part"]
    kept = ds.select_fields("x", "part", missing="skip")
    batch = next(iter(kept.batches(COUNT)))
    assert batch["part"].tolist() == [i for i in range(COUNT) if i != 7]
    assert batch["part"].dtype == np.int64


def test_filters_and_selections_of_a_reader(root):
    with ShardedDatasetReader(root) as reader:
        few = reader.dataset("label IN (20, 250)", fields=["x", "label"])
        assert [batch["label"].tolist() for batch in few.batches(4)] == [[20, 250]]
        many = reader.dataset("label >= ?", (50,)).select_fields("label", "x")
        batch = next(iter(many.shuffle(seed=1).loader(COUNT)))
        assert batch["label"].tolist() == (batch["x"][:, 0] * 10).tolist()
        assert len(batch["label"]) == COUNT - 5
        odd = many.filter(lambda key, sizes, info: info["metadata"]["label"] == 60)
        assert [sample["label"] for sample in odd] == [60]


def test_columns_are_loaded_once(root, monkeypatch):
    from fastshard.columnar.read.stacks import sample_values

    calls = []

    def select(*args):
        calls.append(args[1])
        return original(*args)

    original = sample_values.select
    monkeypatch.setattr(sample_values, "select", select)
    with fastshard.open(root) as ds:
        chosen = ds.select_fields("x", "label")
        for _ in range(2):
            assert len(list(chosen.shuffle(seed=1).batches(3))) == COUNT // 3
    assert len(calls) == 1


def test_values_follow_their_samples(tmp_path):
    root = tmp_path / "d"
    with ShardedDatasetWriter(root) as writer:
        writer.add_fields(["x", "y"])
        add(writer, range(4))
        writer.add_metadata_column("label", "$.label", int)
        writer.add_metadata_column("title", "$.title", int)
    with ShardedDatasetReader(root) as reader:
        ds, gone = reader.dataset(), reader.dataset()
        assert len(ds[:2]) == len(gone[:2]) == 2  # loaded
        with ShardedDatasetWriter(root) as writer:
            writer.update_sample("s1", {}, metadata={"label": 5})
            add(writer, [4])
        reader.refresh()
        labels = [sample["label"] for sample in ds]
        assert labels == [0, 5, 20, 30]
        with pytest.raises(
            FastshardError, match=r"'title' is INTEGER, but sample 's0'"
        ):
            ds[0]["title"]
    with ShardedDatasetReader(root) as reader:
        gone = reader.dataset()
        assert len(gone[:2]) == 2
        with ShardedDatasetWriter(root) as writer:
            writer.delete_sample("s2")
        reader.refresh()
        with pytest.raises(SampleNotFoundError, match="s2"):
            gone[0]["label"]


@slow  # imports torch
def test_torch_workers_have_the_columns(ds):
    torch = pytest.importorskip("torch")
    chosen = ds.select_fields(*NAMES).shuffle(seed=5)
    loader = torch.utils.data.DataLoader(
        chosen, batch_size=8, num_workers=1, collate_fn=fastshard.collate
    )
    order = [int(sample.key[1:]) for sample in chosen]
    assert numbers_of(loader) == order
