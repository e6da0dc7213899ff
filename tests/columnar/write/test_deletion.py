"""Deletion of samples: rows now, bytes with the next compaction."""

import numpy as np
import pytest

from fastshard.columnar import (
    ShardedDatasetReader,
    ShardedDatasetWriter,
    stat,
    verify,
)
from support.columnar.original import FIELDS

FIRST, SECOND, THIRD = (f"sample_{i:012d}" for i in (1, 2, 3))


@pytest.fixture(params=[False, True], ids=["members", "packs"])
def pack(request):
    return request.param


@pytest.fixture
def ids(root, pack):
    """Write nine samples, four a shard; return their ids."""
    with ShardedDatasetWriter(root, samples_per_shard=4, pack=pack) as writer:
        writer.add_fields(["a", "b"])
        return [writer.add_sample(arrays(i), metadata={"i": i}) for i in range(9)]


def arrays(i):
    return {"a": np.full(100, i, "f4"), "b": np.arange(i)}


def check(root, expected):
    """Assert that a dataset holds these samples: arrays by field, by id."""
    with ShardedDatasetReader(root) as reader:
        assert reader.query_ids() == list(expected)
        for sample_id, put in expected.items():
            found, _ = reader.get_sample(sample_id)
            assert found.keys() == put.keys()
            for field, array in put.items():
                assert np.array_equal(found[field], array)
    assert verify(root) == []


def test_deleted_samples_are_gone_and_the_others_stay(root, ids):
    with ShardedDatasetWriter(root) as writer:
        writer.delete_sample(ids[0])
        writer.delete_samples(iter([ids[3], ids[8], ids[3]]))

    left = {each: arrays(i) for i, each in enumerate(ids) if i not in (0, 3, 8)}
    check(root, left)
    with ShardedDatasetReader(root) as reader, pytest.raises(KeyError):
        reader.get_sample(ids[3])


def test_a_compaction_removes_the_bytes_of_deleted_samples(root, ids, pack):
    with ShardedDatasetWriter(root, samples_per_shard=4, pack=pack) as writer:
        writer.delete_samples(ids[1:7])  # the whole second shard among them
        result = writer.compact()

        assert result.bytes_after < result.bytes_before
        assert writer.compact().bytes_after == result.bytes_after
    check(root, {ids[i]: arrays(i) for i in (0, 7, 8)})


def test_stat_counts_dead_space_of_shards_without_rows(root):
    with ShardedDatasetWriter(root, samples_per_shard=4) as writer:
        writer.add_field("a")
        ids = [writer.add_sample({"a": np.zeros(9)}) for _ in range(8)]
        writer.delete_samples([*ids[4:], ids[0]])
        writer.flush()

        figures = stat(root, deep=True)["fields"]["a"]
        assert figures["samples"] == 3
        assert figures["shards"] == 2
        assert figures["dead_members"] == 5
        writer.compact()
    figures = stat(root, deep=True)["fields"]["a"]
    assert (figures["shards"], figures["dead_members"]) == (1, 0)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (["nothing"], ValueError),
        ([FIRST, "nothing"], ValueError),
        ([FIRST, ""], ValueError),
        ([FIRST, 7], TypeError),
        (FIRST, TypeError),
        (FIRST.encode(), TypeError),
    ],
)
def test_a_wrong_id_deletes_nothing(root, ids, wrong, error):
    with ShardedDatasetWriter(root) as writer:
        with pytest.raises(error):
            writer.delete_samples(wrong)
        with pytest.raises(ValueError, match="no sample 'nothing'"):
            writer.delete_sample("nothing")

    check(root, {each: arrays(i) for i, each in enumerate(ids)})


def test_a_closed_writer_deletes_nothing(root, ids):
    writer = ShardedDatasetWriter(root)
    writer.close()

    with pytest.raises(ValueError, match="closed"):
        writer.delete_sample(ids[0])


def test_generated_ids_of_deleted_samples_are_not_used_again(root, ids):
    with ShardedDatasetWriter(root) as writer:
        writer.delete_samples(ids[7:])
        assert writer.add_sample({}) == "sample_000000000010"
        writer.delete_sample("sample_000000000010")
    with ShardedDatasetWriter(root) as writer:
        assert writer.add_sample({}) == "sample_000000000011"


def test_a_deleted_id_is_added_again(root, ids, pack):
    with ShardedDatasetWriter(root, samples_per_shard=4, pack=pack) as writer:
        writer.delete_samples(ids[1:])
        writer.add_sample({"b": np.ones(7)}, ids[4])
        writer.register_samples([ids[2]])
        writer.delete_sample(ids[2])
        writer.add_sample({"a": np.ones(100, "f4")}, ids[2])
        expected = {
            ids[0]: arrays(0),
            ids[4]: {"b": np.ones(7)},
            ids[2]: {"a": np.ones(100, "f4")},
        }
        writer.flush()
        check(root, expected)
        writer.compact()
    check(root, expected)


def test_a_sample_is_deleted_before_it_is_flushed(root, ids):
    with ShardedDatasetWriter(root, samples_per_shard=4) as writer:
        writer.add_sample(arrays(20), "new")
        writer.delete_sample("new")
        writer.add_sample(arrays(21), "newer")
    expected = {each: arrays(i) for i, each in enumerate(ids)}
    check(root, expected | {"newer": arrays(21)})


def test_a_reader_keeps_deleted_samples_until_it_is_refreshed(root, ids):
    with ShardedDatasetReader(root) as reader:
        with ShardedDatasetWriter(root) as writer:
            writer.delete_samples(ids[:8])
            writer.flush()
            writer.compact()
        assert np.array_equal(reader.get_sample(ids[2])[0]["a"], arrays(2)["a"])
        reader.refresh()
        assert reader.query_ids() == [ids[8]]


def test_a_rollback_undoes_a_deletion(root, ids):
    with ShardedDatasetWriter(root) as writer:
        writer.delete_samples(ids)
        writer.conn.rollback()
    check(root, {each: arrays(i) for i, each in enumerate(ids)})


def test_an_open_shard_forgets_deleted_samples(root, ids):
    with ShardedDatasetWriter(root) as writer, writer.open_shard("b") as shard:
        shard.add_sample(ids[0], np.ones(3))
        shard.add_sample(ids[1], np.ones(3))
        writer.delete_sample(ids[0])
    check(
        root,
        {each: arrays(i) for i, each in enumerate(ids) if i}
        | {ids[1]: arrays(1) | {"b": np.ones(3)}},
    )


def test_samples_of_the_original_are_deleted_and_added_again(several):
    root, put = several
    ids = list(put)
    new = {FIELDS[0]: np.full(3, 9.0)}
    with ShardedDatasetWriter(root) as writer:
        writer.delete_samples([ids[0], ids[1], ids[-1]])
        writer.add_sample({}, ids[0])
        writer.add_sample(new, ids[1])
        writer.add_sample(new, ids[-1])
    expected = {each: put[each] for each in ids[2:-1]}
    expected |= {ids[0]: {}, ids[1]: new, ids[-1]: new}
    check(root, expected)
    with ShardedDatasetWriter(root) as writer:
        writer.compact()
    check(root, expected)


def test_shards_of_the_original_whose_samples_were_deleted_are_removed(several):
    root, put = several
    with ShardedDatasetWriter(root) as writer:
        writer.delete_samples(put)
    with ShardedDatasetWriter(root) as writer:
        writer.compact()
    assert list(root.glob("*_shards/*.tar")) == []
    assert verify(root) == []
