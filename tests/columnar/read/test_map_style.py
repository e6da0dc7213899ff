"""Readers as map-style datasets: items by position, of one state, over processes."""

import os
import pickle

import numpy as np
import pytest

from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter
from fastshard.errors import ClosedError, SampleNotFoundError
from support.inside.columnar import items_of
from support.marks import not_sanitized

pytestmark = not_sanitized  # tests Python code

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")


@pytest.fixture
def root(tmp_path):
    with ShardedDatasetWriter(tmp_path / "d", samples_per_shard=2) as writer:
        writer.add_fields(["x", "y"])
        for i in range(5):
            arrays = {"x": np.full(2, i)} | ({"y": np.array(i)} if i % 2 else {})
            writer.add_sample(arrays, f"s{i}")
    return tmp_path / "d"


@pytest.fixture
def reader(root):
    with ShardedDatasetReader(root) as reader:
        yield reader


def first(item):
    return int(item["x"][0])


def test_items_are_those_of_samples(reader):
    for i in (0, 4, -1, -5, np.int64(2)):
        item, sample = reader[i], reader.samples[i]
        assert item.keys() == sample.keys()
        np.testing.assert_array_equal(item["x"], sample["x"])
    assert [first(item) for item in reader[1:4]] == [1, 2, 3]
    assert [first(item) for item in reader[::-2]] == [4, 2, 0]
    assert [first(item) for item in reader] == list(range(5))
    assert [first(item) for item in reader.__getitems__([3, 0, -1])] == [3, 0, 4]
    assert sorted(reader["s3"]) == ["x", "y"]
    assert list(reader["s2"]) == ["x"]


def test_bad_keys_are_refused(reader):
    for i in (5, -6):
        with pytest.raises(IndexError):
            reader[i]
    with pytest.raises(SampleNotFoundError):
        reader["s5"]
    for key in (1.0, None, b"s1"):
        with pytest.raises(TypeError):
            reader[key]


def test_membership_is_that_of_ids(reader):
    assert "s1" in reader
    for other in ("s5", 1, "\ud800", None, {}):
        assert other not in reader


def test_items_belong_to_one_state(root, reader):
    assert first(reader[-1]) == 4
    with ShardedDatasetWriter(root) as writer:
        writer.add_sample({"x": np.full(2, 5)})
        writer.update_sample("s0", {"x": np.full(2, 50)})
    assert (len(reader), first(reader[-1]), first(reader[0])) == (5, 4, 0)
    reader.refresh()
    assert (len(reader), first(reader[-1]), first(reader[0])) == (6, 5, 50)


def test_a_pickle_opens_the_dataset(reader):
    assert first(reader[1]) == 1
    with pickle.loads(pickle.dumps(reader)) as again:
        assert first(again[-1]) == 4
        assert items_of(again) is not items_of(reader)


@needs_fork
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_has_the_items_of_its_parent(root, reader):
    assert first(reader[0]) == 0
    with ShardedDatasetWriter(root) as writer:
        writer.add_sample({"x": np.full(2, 5)})
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            assert len(reader) == 5
            assert [first(item) for item in reader] == list(range(5))
            assert first(reader.__getitems__([4, 1])[0]) == 4
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0


def test_a_closed_reader_has_no_items(reader):
    item = reader[1]
    reader.close()
    assert first(item) == 1
    for use in (
        lambda: reader[1],
        lambda: reader[:],
        lambda: reader["s1"],
        lambda: len(reader),
        lambda: "s1" in reader,
        lambda: 1 in reader,
        lambda: list(reader),
        lambda: reader.__getitems__([1]),
    ):
        with pytest.raises(ClosedError):
            use()
