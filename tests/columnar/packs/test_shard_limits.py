"""Number and size of the shards that writers and compactions fill."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fastshard.columnar import (
    ShardedDatasetReader,
    ShardedDatasetWriter,
    compact,
    verify,
)
from fastshard.columnar.layout import shard_limit
from fastshard.columnar.layout.shard_limit import ShardLimit, ShardLimits
from support.columnar.checks import sql

ROW = 200  # bytes


@pytest.fixture
def root(tmp_path) -> Path:
    return tmp_path / "data"


def set_defaults(monkeypatch, unpacked: ShardLimit, packed: ShardLimit) -> None:
    monkeypatch.setattr(
        ShardLimits,
        "make",
        lambda n: (
            ShardLimits(*[ShardLimit(n)] * 2) if n else ShardLimits(unpacked, packed)
        ),
    )


@pytest.fixture
def small_limits(monkeypatch) -> None:
    """Set defaults of 4 arrays a shard without packs, and of 20 with them."""
    set_defaults(monkeypatch, ShardLimit(4), ShardLimit(20, 1 << 30))


def write(root, count, *, start=0, **options) -> None:
    with ShardedDatasetWriter(root, **options) as writer:
        writer.add_field("a")
        for i in range(start, start + count):
            writer.add_sample({"a": np.full(ROW // 4, i, "f4")}, f"{i}")


def counts(root) -> list[int]:
    """Return the samples in each shard, by its number; check them all."""
    found = sql(root, "SELECT count(*) FROM samples GROUP BY a_shard ORDER BY a_shard")
    with ShardedDatasetReader(root) as reader:
        for sample_id in reader.query_ids():
            array = reader.get_sample(sample_id)[0]["a"]
            assert array.tolist() == [float(sample_id)] * (ROW // 4)
    assert verify(root) == []
    return [count for (count,) in found]


def test_defaults():
    limits = ShardLimits.make(None)
    assert limits.find(packed=False) == (1000, shard_limit.ANY_SIZE)
    assert limits.find(packed=True) == (50_000, 256 << 20)
    assert set(ShardLimits.make(7)) == {ShardLimit(7)}


@pytest.mark.parametrize(("pack", "limit"), [(False, 1000), (True, 50_000)])
def test_attribute_of_the_writer(root, pack, limit):
    with ShardedDatasetWriter(root, pack=pack) as writer:
        assert writer.samples_per_shard == limit
    with ShardedDatasetWriter(root, 7, pack=pack) as writer:
        assert writer.samples_per_shard == 7


@pytest.mark.usefixtures("small_limits")
def test_writers_continue_shards_by_the_layout_of_the_field(root):
    write(root, 25, pack=True)
    assert counts(root) == [20, 5]
    write(root, 10, start=25)  # members of their own in a packed field
    assert counts(root) == [20, 15]
    write(root, 3, start=35, pack=True, samples_per_shard=6)  # the last shard is full
    assert counts(root) == [20, 15, 3]
    write(root, 10, start=38, pack=True)
    assert counts(root) == [20, 15, 13]


@pytest.mark.usefixtures("small_limits")
def test_a_packing_writer_continues_shards_without_packs(root):
    write(root, 6)
    assert counts(root) == [4, 2]
    write(root, 20, start=6, pack=True)
    assert counts(root) == [4, 20, 2]


@pytest.mark.usefixtures("small_limits")
def test_compaction_makes_shards_for_the_new_layout(root):
    write(root, 30)
    assert counts(root) == [4] * 7 + [2]
    result = compact(root, pack=True)
    assert (result.shards_before, result.shards_after) == (8, 2)
    assert counts(root) == [20, 10]
    assert compact(root, pack=True) == compact(root)  # nothing is rewritten
    assert compact(root, pack=False).shards_after == 8
    assert counts(root) == [4] * 7 + [2]


@pytest.mark.usefixtures("small_limits")
def test_compaction_keeps_larger_shards(root):
    write(root, 60, samples_per_shard=25)
    compact(root, pack=True)
    assert counts(root) == [25, 25, 10]
    with ShardedDatasetWriter(root) as writer:
        writer.delete_samples([f"{i}" for i in range(0, 60, 2)])
    compact(root)
    assert counts(root) == [25, 5]


@pytest.mark.usefixtures("small_limits")
def test_a_writer_continues_with_the_limits_after_its_compaction(root):
    with ShardedDatasetWriter(root, pack=True) as writer:
        writer.add_field("a")
        for i in range(30):
            writer.add_sample({"a": np.full(ROW // 4, i, "f4")}, f"{i}")
            if i == 9:
                writer.compact(pack=False)
                assert counts(root) == [4, 4, 2]
            if i == 19:
                writer.compact(pack=True)
                assert counts(root) == [20]
    assert counts(root) == [20, 10]


def test_shards_are_bounded_in_bytes(root, monkeypatch):
    set_defaults(monkeypatch, ShardLimit(1000), ShardLimit(1000, 10 * ROW))
    write(root, 35, pack=True)
    found = counts(root)
    assert sum(found) == 35
    assert max(found) <= 10
    write(root, 1, start=35, pack=True)  # the last shard is found full, or continued
    assert sum(counts(root)) == 36
    write(root, 40, start=36)  # members of their own have headers
    assert max(counts(root)[-10:]) <= 2


def test_compaction_bounds_shards_in_bytes(root, monkeypatch):
    set_defaults(monkeypatch, ShardLimit(1000), ShardLimit(1000, 10 * ROW))
    write(root, 35)
    assert counts(root) == [35]
    compact(root, pack=True)
    found = counts(root)
    assert found[:-1] == [10, 10, 10]
    assert compact(root, pack=True).shards_after == 4
    with ShardedDatasetWriter(root) as writer:
        writer.compact()
    assert counts(root) == found
    compact(root, pack=False)
    assert counts(root) == found
