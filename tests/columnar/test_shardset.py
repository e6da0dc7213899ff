"""Columnar datasets opened by `fastshard.open`."""

import copy
import pickle

import numpy as np
import pytest

import fastshard
from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter
from fastshard.errors import (
    ClosedError,
    FastshardError,
    FieldNotFoundError,
    FormatError,
    StateError,
)
from fastshard.formats.decoders import DECODERS

COUNT = 230


def value(i, field):
    return (np.arange(40 if field == "x" else 9) + 100 * i).astype(np.float32)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("columnar") / "set"
    with ShardedDatasetWriter(root, samples_per_shard=50) as writer:
        writer.add_fields(["x", "y"])
        for i in range(COUNT):
            arrays = {"x": value(i, "x"), "y": value(i, "y")}
            if i % 10 == 4:
                del arrays["y"]
            writer.add_sample(arrays, f"id/{i:03d}", {"i": i, "odd": i % 2})
    return root


@pytest.fixture(params=["mmap", "pread"])
def ds(request, root):
    with fastshard.open(root, mode=request.param) as ds:
        yield ds


def assert_is(sample, i):
    assert sample.key == f"id/{i:03d}"
    assert list(sample) == (["x"] if i % 10 == 4 else ["x", "y"])
    for field in sample:
        np.testing.assert_array_equal(sample[field], value(i, field))


def test_samples_are_of_arrays(ds):
    assert len(ds) == COUNT
    for i in (0, 4, 49, 50, COUNT - 1):
        assert_is(ds[i], i)
    assert_is(ds[-1], COUNT - 1)
    sample = ds["id/007"]
    assert_is(sample, 7)
    assert sample.position == 7
    assert sample.metadata == {"i": 7, "odd": 1}
    assert bytes(sample.view("x"))[:6] == b"\x93NUMPY"
    assert sample.open("x").read() == bytes(sample.view("x"))
    np.testing.assert_array_equal(sample.array("y"), value(7, "y"))
    assert list(sample.decode()) == ["__key__", "x", "y"]
    with pytest.raises(FieldNotFoundError, match="id/004"):
        ds[4]["y"]
    with pytest.raises(KeyError):
        ds["id/999"]
    assert "id/001" in ds
    assert ds.keys()[3] == "id/003"


def test_iterating_in_any_order(ds):
    for i, sample in enumerate(ds):
        assert_is(sample, i)
    order = [int(s.key[3:]) for s in ds.shuffle(seed=3).split_by_rank(1, 4)]
    assert len(set(order)) == len(order) == len(ds.split_by_rank(1, 4))
    for i, sample in zip(order, ds.get_many(order), strict=True):
        assert_is(sample, i)
    assert [s.position for s in ds.iter(order=[5, 1, 200])] == [5, 1, 200]


def test_iterating_with_prefetch(root):
    with fastshard.open(root, max_memory="1MiB", keep_cache=False) as ds:
        for _ in range(2):
            for i, sample in enumerate(ds):
                assert_is(sample, i)
        assert ds.memory_info()["mapped"] > 0


def test_selections(ds):
    both = ds.select_fields("y", "x", missing="skip")
    assert len(both) == COUNT - 23
    assert list(both[0]) == ["y", "x"]
    odd = ds.filter(lambda key, sizes, info: info["metadata"]["odd"])
    assert len(odd) == COUNT // 2
    assert_is(odd[3], 7)
    sizes = []
    ds[:1].filter(lambda key, size, info: sizes.append(size))
    assert sizes == [{"x": 128 + 160, "y": 128 + 36}]
    np.testing.assert_array_equal(ds.info("i"), np.arange(COUNT))
    assert ds[[3, 9]].map(lambda s: s["x"][0])[1] == 900


def test_batches(ds):
    batch = fastshard.collate([ds[i] for i in (1, 2, 100)])
    assert batch["__key__"] == ["id/001", "id/002", "id/100"]
    assert batch["x"].shape == (3, 40)
    np.testing.assert_array_equal(batch["y"][2], value(100, "y"))
    columns = ds.columns([3, 200], ["x", "y"])
    np.testing.assert_array_equal(columns["x"], [value(3, "x"), value(200, "x")])
    out = np.zeros((2, 288), np.uint8)
    assert ds.read_into([0, 1], out, fields="x").tolist() == [0, 288, 576]
    assert bytes(out[1]) == bytes(ds[1].view("x"))
    with pytest.raises(FastshardError, match="id/004"):
        fastshard.collate([ds[3], ds[4]])


def test_pickles(ds):
    again = pickle.loads(pickle.dumps(ds))
    assert_is(again[9], 9)
    sample = pickle.loads(pickle.dumps(ds[9]))
    assert_is(sample, 9)
    assert sample.metadata["i"] == 9
    assert bytes(sample.view("y")) == bytes(ds[9].view("y"))
    assert sample.open("y").read() == bytes(ds[9].view("y"))
    assert_is(pickle.loads(pickle.dumps(sample)), 9)
    assert_is(copy.copy(sample), 9)
    batch = fastshard.collate([sample, ds[8]])
    np.testing.assert_array_equal(batch["x"], [value(9, "x"), value(8, "x")])


def test_resuming_from_a_state(ds, root, tmp_path):
    steps = iter(ds.shuffle(seed=5))
    done = [next(steps).position for _ in range(17)]
    state = steps.state_dict()
    with fastshard.open(root) as again:
        rest = [sample.position for sample in again.resume(state)]
    assert sorted(done + rest) == list(range(COUNT))
    with ShardedDatasetWriter(tmp_path / "other") as writer:
        writer.add_field("x")
        writer.add_sample({"x": np.zeros(3)})
    with fastshard.open(tmp_path / "other") as other, pytest.raises(StateError):
        other.resume(state)


def test_statistics_and_faults(ds):
    stats = ds.stats()
    assert stats["samples"] == COUNT
    assert stats["members"] == 2 * COUNT - 23
    assert stats["bytes"] == COUNT * 288 + (COUNT - 23) * 164
    assert stats["shards"] == 10
    assert ds.verify() == []


def test_unsupported_operations(ds):
    for call in (lambda: ds.shards[0], lambda: ds.members[0]):
        with pytest.raises(FastshardError, match="columnar"):
            call()


def test_options_of_tars_are_refused(root):
    for option in ({"key": "last"}, {"lower": False}, {"index": "none"}):
        with pytest.raises(ValueError, match="columnar"):
            fastshard.open(root, **option)


def test_closed(root):
    ds = fastshard.open(root)
    sample = ds[0]
    steps = iter(ds)
    array = sample["x"]
    ds.close()
    for call in (lambda: ds[1], lambda: sample["y"], lambda: next(steps)):
        with pytest.raises(ClosedError):
            call()
    np.testing.assert_array_equal(array, value(0, "x"))


def test_a_bad_sample_may_be_skipped(root, tmp_path):
    import shutil
    import sqlite3

    shutil.copytree(root, tmp_path / "d")
    conn = sqlite3.connect(tmp_path / "d" / "index.sqlite")
    conn.execute("UPDATE samples SET x_shard = 'none' WHERE id = 'id/003'")
    conn.commit()
    conn.close()
    with fastshard.open(tmp_path / "d") as ds:
        steps = ds.map(lambda s: s["x"][0]).iter(on_error="skip")
        assert len(list(steps)) == COUNT - 1
        assert steps.skipped == 1
        with pytest.raises(FormatError, match="id/003"):
            ds[3]["x"]


def test_samples_equal_those_of_the_reader(ds, root):
    with ShardedDatasetReader(root) as reader:
        for i, arrays in enumerate(reader.samples):
            assert list(arrays) == list(ds[i])


def test_a_built_in_decoder_that_the_user_names_goes_first(root):
    with fastshard.open(root, decoders={"x": DECODERS["bin"]}) as ds:
        assert ds[1].decode("x")["x"] == ds[1].view("x")
        np.testing.assert_array_equal(ds[1].decode("y")["y"], value(1, "y"))
