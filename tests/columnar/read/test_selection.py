"""Datasets of the samples that satisfy a condition: `ShardedDatasetReader.dataset`."""

import pickle

import numpy as np
import pytest

import fastshard
from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter
from fastshard.errors import (
    ClosedError,
    FieldNotFoundError,
    FormatError,
    QueryError,
    SampleNotFoundError,
    StateError,
)
from support.inside.columnar import ring_of_reader
from support.inside.datasets import ring_of

COUNT = 90
HOUR = "json_extract(meta_json, '$.hour')"


def add(writer, numbers):
    for i in numbers:
        arrays = {"x": np.full(i % 7 + 1, i, "f4"), "y": np.full((2, 3), i)}
        if i % 10 == 4:
            del arrays["y"]
        writer.add_sample(arrays, f"s{i}", {"hour": i % 24})


@pytest.fixture
def root(copied):
    return copied


def write_series(root, pack):
    with ShardedDatasetWriter(root, samples_per_shard=20, pack=pack) as writer:
        writer.add_fields(["x", "y"])
        add(writer, range(COUNT))


def keys_of(ds):
    return [sample.key for sample in ds]


def matching(low, count=COUNT):
    return [i for i in range(count) if i % 24 >= low]


def test_all_samples_are_those_of_open(reader, root):
    ds, opened = reader.dataset(), fastshard.open(root)
    assert keys_of(ds) == keys_of(opened) == [f"s{i}" for i in range(COUNT)]
    assert ds.state_dict(7) == opened.state_dict(7)
    assert keys_of(ds.shuffle(seed=3)) == keys_of(opened.shuffle(seed=3))
    assert repr(ds) == repr(opened)
    for one, other in zip(ds, opened, strict=True):
        assert one.metadata == other.metadata
        assert list(one) == list(other)
        np.testing.assert_array_equal(one["x"], other["x"])


@pytest.mark.parametrize("low", [0, 5, 24])
def test_samples_that_match_in_row_order(reader, low):
    ds = reader.dataset(f"{HOUR} >= ?", (low,))
    wanted = matching(low)
    assert len(ds) == len(wanted)
    assert keys_of(ds) == [f"s{i}" for i in wanted]
    for position, (i, sample) in enumerate(zip(wanted, ds, strict=True)):
        assert (sample.position, sample.metadata) == (position, {"hour": i % 24})
        np.testing.assert_array_equal(sample["x"], np.full(i % 7 + 1, i, "f4"))
    batches = ds.select_fields("x").shuffle(seed=1).batches(8, ragged="list")
    assert sum(len(batch["__key__"]) for batch in batches) == len(wanted)


def test_orders_ranks_and_states(reader):
    ds = reader.dataset(f"{HOUR} >= :low", {"low": 5}).select_fields("x")
    shuffled = ds.shuffle(seed=7, epoch=2)
    shares = [keys_of(shuffled.split_by_rank(rank, 3)) for rank in range(3)]
    assert {key for share in shares for key in share} == set(keys_of(ds))
    for done in (0, 1, 13, len(shares[1])):
        part = shuffled.split_by_rank(1, 3)
        rest = reader.dataset(f"{HOUR} >= 5", fields="x").split_by_rank(1, 3)
        assert keys_of(rest.resume(part.state_dict(done))) == shares[1][done:]


def test_fields(reader):
    assert list(reader.dataset(fields="y")[0]) == ["y"]
    both = reader.dataset(f"{HOUR} = 3", fields=["y", "x"])
    assert list(both[0]) == ["y", "x"]
    lacking = reader.dataset("y_offset IS NULL", fields=["y"])
    assert len(lacking) == 9
    with pytest.raises(FieldNotFoundError, match="s4"):
        lacking[0]["y"]
    with pytest.raises(FieldNotFoundError, match="'z'"):
        reader.dataset(fields=["x", "z"])


def test_the_query_runs_at_once(reader):
    with pytest.raises(QueryError):
        reader.dataset("no such column = 1")
    with pytest.raises(QueryError):
        reader.dataset("1; DROP TABLE samples")


def test_a_state_is_refused_once_other_samples_match(reader, root):
    condition = f"{HOUR} >= 20"
    state = reader.dataset(condition).shuffle(seed=1).state_dict(4)
    with ShardedDatasetWriter(root) as writer:
        writer.add_sample({"x": np.zeros(3)}, "day", {"hour": 5})
    reader.refresh()
    rest = reader.dataset(condition).resume(state)
    assert len(rest) == len(matching(20)) - 4
    with ShardedDatasetWriter(root) as writer:
        writer.add_sample({"x": np.zeros(3)}, "night", {"hour": 21})
    reader.refresh()
    with pytest.raises(StateError, match="samples are others"):
        reader.dataset(condition).resume(state)


def test_pickles_hold_the_samples_not_the_query(reader, root):
    ds = reader.dataset(f"{HOUR} >= 20").shuffle(seed=1)
    before = keys_of(ds)
    data = pickle.dumps(ds)
    with ShardedDatasetWriter(root) as writer:
        add(writer, range(COUNT, COUNT + 24))
    again = pickle.loads(data)
    assert keys_of(again) == before
    assert again.state_dict(3) == ds.state_dict(3)
    assert keys_of(pickle.loads(pickle.dumps(again))) == before
    assert len(pickle.loads(pickle.dumps(reader.dataset()))) == COUNT + 24
    again.close()


def test_a_refreshed_reader(reader, root):
    condition = f"{HOUR} >= 20"
    used, unused = reader.dataset(condition), reader.dataset(condition)
    whole, wanted = reader.dataset(), keys_of(used)
    assert len(whole) == COUNT
    with ShardedDatasetWriter(root) as writer:
        writer.add_field("z")
        add(writer, range(COUNT, COUNT + 24))
    assert keys_of(used) == wanted
    reader.refresh()
    assert keys_of(used) == keys_of(unused) == wanted
    assert len(whole) == COUNT
    assert len(reader.dataset()) == COUNT + 24
    assert len(reader.dataset(condition)) == len(matching(20, COUNT + 24))


def test_a_missing_id(root):
    reader = ShardedDatasetReader(root)
    data = pickle.dumps(reader.dataset(f"{HOUR} >= 20"))
    with ShardedDatasetWriter(root) as writer:
        writer.conn.execute("DELETE FROM samples WHERE id = 's20'")
    with pytest.raises(SampleNotFoundError, match="s20"):
        len(pickle.loads(data))


def test_a_closed_reader(reader):
    used, unused = reader.dataset(f"{HOUR} >= 20"), reader.dataset()
    array = used[0]["x"]
    reader.close()
    for ds in (used, unused):
        with pytest.raises(ClosedError):
            ds[0]
        with pytest.raises(ClosedError):
            next(ds.batches(2))
    with pytest.raises(ClosedError):
        reader.dataset()
    assert array[0] == 20


def test_a_closed_dataset_leaves_the_reader_open(reader):
    with reader.dataset(f"{HOUR} >= 20") as ds:
        assert len(ds)
    with pytest.raises(ClosedError):
        next(ds.batches(2))
    assert len(reader.dataset(f"{HOUR} >= 20")) == len(matching(20))


def test_options_of_the_reader(root, tmp_path):
    reader = ShardedDatasetReader(root, mode="private", max_memory="1MiB")
    ds = reader.dataset(f"{HOUR} >= 20")
    ds[0]["x"][:] = 7
    assert ds[0]["x"][0] == 7
    assert ring_of_reader(reader) is ring_of(ds) is not None
    with ShardedDatasetWriter(tmp_path / "o", allow_pickle=True) as writer:
        writer.add_field("x")
        writer.add_sample({"x": np.array([{"a": 1}, None], object)})
    objects = ShardedDatasetReader(tmp_path / "o", allow_pickle=True).dataset()
    assert objects[0]["x"][0] == {"a": 1}
    with pytest.raises(FormatError):
        ShardedDatasetReader(tmp_path / "o").dataset()[0]["x"]


def test_loaders(reader):
    ds = reader.dataset(f"{HOUR} >= 5", fields="x").shuffle(seed=4)
    with ds.loader(8, threads=2, ragged="list") as loader:
        batches = [batch["__key__"] for batch in loader]
    assert [key for batch in batches for key in batch] == keys_of(ds)


def test_an_empty_dataset(tmp_path):
    with ShardedDatasetWriter(tmp_path / "none") as writer:
        writer.add_field("x")
    reader = ShardedDatasetReader(tmp_path / "none")
    assert len(reader.dataset()) == len(reader.dataset("1")) == 0
    assert list(reader.dataset("1").shuffle(seed=1).batches(4)) == []
