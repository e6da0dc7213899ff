"""Batches and splits of shards that atdata wrote are as atdata made them."""

import numpy as np
import pytest

import fastshard
from fastshard import typed
from support.typed.classes import Vec
from support.typed.expected import described

pytest.importorskip("msgspec")

SIZES = {"train": 7, "test": 3, "validation": 2}


def test_batches(typed_data):
    known = typed_data.batch
    ds = typed.Dataset(typed_data.root / known["shard"], Vec)
    batches = list(ds.ordered(batch_size=known["batch_size"]))
    assert [len(batch.samples) for batch in batches] == known["sizes"]
    batch = batches[0]
    assert type(batch) is typed.SampleBatch
    assert batch.sample_type is Vec
    assert described(batch.x) == known["x"]
    assert batch.idx == known["idx"]
    assert batch.label == known["label"]
    assert batch.x is batch.x
    assert [sample.idx for sample in batch.samples] == known["idx"]


def test_batches_of_dict_samples(typed_data):
    known = typed_data.batch
    ds = typed.Dataset(typed_data.root / known["shard"])
    batch = next(iter(ds.ordered(batch_size=known["batch_size"])))
    assert batch.idx == known["idx"]
    assert {type(data) for data in batch.x} == {bytes}
    assert described(batch.array("x")) == known["x"]


def test_batches_of_untyped_samples(typed_data):
    known = typed_data.batch
    with fastshard.open(typed_data.root / known["shard"], packed=True) as ds:
        batch = fastshard.collate(list(ds[: known["batch_size"]]))
        assert described(np.asarray(batch["x"])) == known["x"]
        assert list(batch["idx"]) == known["idx"]
        assert batch["label"] == known["label"]


def test_splits_of_a_directory(typed_data):
    splits = typed.load_dataset(typed_data.root / "splits", Vec)
    assert type(splits) is typed.DatasetDict
    assert {name: len(ds) for name, ds in splits.items()} == SIZES
    assert splits.num_shards == dict.fromkeys(SIZES, 1)
    for name, size in SIZES.items():
        assert [sample.idx for sample in splits[name].ordered()] == list(range(size))


@pytest.mark.parametrize(
    "pattern", ["ds-{train,test,val}-000000.tar", "ds-*-000000.tar"]
)
def test_splits_are_of_each_shard(typed_data, pattern):
    splits = typed.load_dataset(f"{typed_data.root}/splits/{pattern}", Vec)
    assert {name: len(ds) for name, ds in splits.items()} == SIZES


@pytest.mark.parametrize("split", SIZES)
def test_one_split(typed_data, split):
    ds = typed.load_dataset(f"{typed_data.root}/splits", Vec, split=split)
    assert type(ds) is typed.Dataset
    assert len(ds) == SIZES[split]


def test_a_missing_split(typed_data):
    with pytest.raises(ValueError, match=r"Split 'dev' not found. Available splits: "):
        typed.load_dataset(typed_data.root / "splits", Vec, split="dev")


def test_shards_of_a_pattern(typed_data):
    ds = typed.Dataset[Vec](f"{typed_data.root}/vec-{{000000..000002}}.tar")
    assert len(ds) == 50
    assert [sample.idx for sample in ds.ordered()] == list(range(50))
    assert [name.rpartition("/")[2] for name in ds.list_shards()] == [
        f"vec-{i:06}.tar" for i in range(3)
    ]
