"""Packs that writers make, and their compaction; see layout/packs.py."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from fastshard.cli import main
from fastshard.columnar import (
    ShardedDatasetReader,
    ShardedDatasetWriter,
    compact,
    stat,
    verify,
)
from fastshard.errors import FormatError
from support.columnar import found as contents
from support.columnar.checks import assert_same_array, members_in, sql
from support.columnar.identity import identify, row_of
from support.columnar.original import OriginalWriter, shard_path
from support.marks import thin


@pytest.fixture
def root(tmp_path) -> Path:
    return tmp_path / "data"


def write(root, arrays, *, pack=True, per_shard=1000, flush=()):
    with ShardedDatasetWriter(root, per_shard, pack=pack) as writer:
        writer.add_field("a")
        for i, array in enumerate(arrays):
            writer.add_sample({"a": array}, f"{i}")
            if i in flush:
                writer.flush()


def names_in(root, shard=0) -> list[str]:
    return [name for name, _ in members_in(shard_path(root / "a_shards", shard))]


def rows_of(root) -> list[tuple]:
    rows = sql(root, "SELECT id, a_shard, a_offset, a_row FROM samples ORDER BY rowid")
    return [
        (shard, offset, row_of(row, "a", sample_id, shard, offset))
        for sample_id, shard, offset, row in rows
    ]


def check(root, arrays) -> None:
    """Read a dataset by `tarfile` and NumPy, and by fastshard; verify it."""
    found = contents.read(root, whole=True).rows
    assert len(found) == len(arrays)
    with ShardedDatasetReader(root) as reader:
        for i, put in enumerate(arrays):
            assert found[f"{i}"][1]["a"] == contents.digest(np.asarray(put))
            assert_same_array(reader.get_sample(f"{i}")[0]["a"], put)
    assert verify(root) == []


def test_arrays_of_one_layout_are_rows_of_one_member(root):
    arrays = [np.full(50, i, "f4") for i in range(100)]
    write(root, arrays)
    assert names_in(root) == ["pack_000000000512.npy"]
    assert rows_of(root) == [(0, 512, i) for i in range(100)]
    check(root, arrays)
    with open(shard_path(root / "a_shards", 0), "rb") as file:
        file.seek(512)
        assert np.array_equal(np.load(file), np.stack(arrays))


@pytest.mark.parametrize("seed", thin(range(6), 3))
def test_any_arrays_in_any_order(root, seed):
    rng = random.Random(seed)
    layouts = [("<f4", (3,)), ("<i8", ()), ("|u1", (2, 70)), ("<M8[s]", (3,))]
    arrays = []
    for i in range(100):
        dtype, shape = layouts[0] if rng.random() < 0.8 else rng.choice(layouts)
        array = np.full(shape, i % 100, "i8").astype(dtype)
        other = rng.random()
        if other < 0.02:
            array = np.zeros((0, 3))
        elif other < 0.04:
            array = np.asfortranarray(np.full((2, 3), i))
        elif other < 0.06:
            array = np.arange(12).reshape(4, 3)[::2]
        elif other < 0.07:
            array = np.full(9000, i)
        arrays.append(array)
    write(root, arrays, per_shard=rng.choice([7, 60]), flush=rng.sample(range(100), 4))
    check(root, arrays)
    for pack in [True, None, False, True][seed % 2 :]:
        before = compact(root, pack=pack)
        check(root, arrays)
        again = compact(root, pack=pack)
        assert again.bytes_before == again.bytes_after == before.bytes_after
        figures = stat(root, deep=True)["fields"]["a"]
        assert figures["dead_bytes"] == 0
        assert bool(figures["packed"]) == bool(figures["packs"])
        assert bool(figures["packs"]) == (pack is not False)


def test_a_member_of_another_layout_follows_the_space_for_more_rows(root):
    arrays = [np.full(3, i, "f4") for i in range(40)]
    arrays[10] = arrays[25] = np.zeros((2, 2))
    write(root, arrays)
    assert names_in(root)[:2] == ["pack_000000000512.npy", "10.npy"]
    assert sum(name.startswith("pack") for name in names_in(root)) <= 3
    check(root, arrays)
    compact(root)
    assert names_in(root, 1) == ["pack_000000000512.npy", "pack_000000002048.npy"]
    check(root, arrays)


def test_layouts_that_take_turns_begin_packs_of_their_own(root):
    arrays = [np.full(3 + i // 50, i, "f4") for i in range(150)]
    write(root, arrays)
    own = [row for _, _, row in rows_of(root) if row is None]
    assert len(own) <= 2 * 3
    check(root, arrays)


def test_a_refused_row_is_taken_back_from_its_pack(root):
    with ShardedDatasetWriter(root, pack=True) as writer:
        writer.add_fields(["a", "b"])
        for i in range(5):
            writer.add_sample({"a": [i]}, f"{i}")
            with pytest.raises(ValueError, match="exists already"):
                writer.add_sample({"a": [99]}, f"{i}")
            with pytest.raises(ValueError, match="Python objects"):
                writer.add_sample({"a": [99], "b": [object()]}, "other")
    assert [row for *_, row in rows_of(root)] == [0, 1, 2, 3, 4]
    assert stat(root, deep=True)["fields"]["a"]["dead_bytes"] == 0


def test_a_replaced_row_is_dead_space(root):
    write(root, [np.full(3, i) for i in range(4)])
    with ShardedDatasetWriter(root) as writer:  # it does not pack
        writer.update_sample("1", {"a": np.full(3, 7)})
    assert [row for *_, row in rows_of(root)] == [0, None, 2, 3]
    figures = stat(root, deep=True)["fields"]["a"]
    assert (figures["packed"], figures["dead_bytes"]) == (3, 24)
    check(root, [np.full(3, i) for i in (0, 7, 2, 3)])
    compact(root)
    assert [row for *_, row in rows_of(root)] == [0, 1, 2, 3]
    check(root, [np.full(3, i) for i in (0, 7, 2, 3)])


def test_whole_shards_are_packed(root):
    with ShardedDatasetWriter(root, pack=True) as writer:
        writer.add_field("a")
        writer.write_shard("a", 0, ["0", "1"], [np.ones(3), np.zeros(3)])
        with writer.open_shard("a", 0) as shard:
            shard.add_sample("2", np.full(3, 2.0))
    assert [row for *_, row in rows_of(root)] == [0, 1, 0]
    check(root, [np.ones(3), np.zeros(3), np.full(3, 2.0)])


def test_a_column_of_the_user_forbids_packs(root):
    write(root, [np.ones(3)], pack=False)
    sql(root, "ALTER TABLE samples ADD COLUMN a_row INTEGER")
    with pytest.raises(ValueError, match="cannot be packed"):
        ShardedDatasetWriter(root, pack=True)
    with pytest.raises(ValueError, match="cannot be packed"):
        compact(root, pack=True)
    check_plain = ShardedDatasetReader(root).get_sample("0")[0]
    assert_same_array(check_plain["a"], np.ones(3))


def test_rows_and_packs_that_disagree_are_faults(root):
    write(root, [np.full(3, i) for i in range(4)])
    row = identify("a", "1", 0, 512, 4)
    sql(root, f"UPDATE samples SET a_row = {row} WHERE id = '1'")
    row = identify("a", "2", 0, 1024, 2)
    sql(root, f"UPDATE samples SET a_offset = 1024, a_row = {row} WHERE id = '2'")
    sql(root, "UPDATE samples SET a_row = a_row + 1 WHERE id = '3'")
    faults = verify(root)
    assert [fault.member for fault in faults] == ["1", "2", "3"]
    assert "row 4 of the pack at 512" in faults[0].reason
    assert "no pack at 1024" in faults[1].reason
    assert "identity" in faults[2].reason
    with pytest.raises(FormatError, match="sample '1'"):
        compact(root)


def test_a_damaged_pack_is_one_fault(root):
    write(root, [np.full(3, i) for i in range(4)])
    with open(shard_path(root / "a_shards", 0), "r+b") as file:
        file.seek(512 + 6)
        file.write(b"\x02")
    (fault,) = verify(root)
    assert (fault.member, fault.offset) == ("pack_000000000512.npy", 512)


def test_a_lost_record_is_restored_with_the_number_of_arrays(root):
    arrays = [np.full(3, i) for i in range(30)]
    write(root, arrays, flush=[10])
    sql(root, "DELETE FROM fastshard_shards")
    ShardedDatasetWriter(root).close()
    assert sql(root, "SELECT members FROM fastshard_shards") == [(30,)]
    check(root, arrays)


def test_a_member_of_another_program_replaces_a_row(root):
    write(root, [np.full(3, i) for i in range(4)])
    with OriginalWriter(root) as writer:  # it leaves the row in the pack as it was
        writer.update_sample("1", {"a": np.full(3, 7)})
    ((left,),) = sql(root, "SELECT a_row FROM samples WHERE id = '1'")
    assert left == identify("a", "1", 0, 512, 1)
    ShardedDatasetWriter(root).close()
    assert [row for *_, row in rows_of(root)] == [0, None, 2, 3]
    check(root, [np.full(3, i) for i in (0, 7, 2, 3)])


def test_the_command_packs_and_takes_apart(root, capsys):
    arrays = [np.full(3, i) for i in range(4)]
    write(root, arrays, pack=False)
    assert main(["compact", "--pack", str(root)]) == 0
    assert names_in(root, 1) == ["pack_000000000512.npy"]
    assert main(["stat", str(root)]) == 0
    assert "packed: 4 samples" in capsys.readouterr().out
    assert main(["compact", "--no-pack", str(root)]) == 0
    assert "a_row" not in [row[1] for row in sql(root, "PRAGMA table_info(samples)")]
    check(root, arrays)


def test_an_open_reader_sees_packs_taken_apart(root):
    arrays = [np.full(3, i) for i in range(4)]
    write(root, arrays)
    with ShardedDatasetReader(root) as reader:
        for pack in (False, True, False):
            compact(root, pack=pack)
            reader.refresh()
            assert_same_array(reader.get_sample("2")[0]["a"], arrays[2])


@pytest.mark.parametrize("pack", [False, True])
def test_names_of_fields_may_be_assigned_between_samples(tmp_path, pack):
    dtype = np.dtype([("a", "i4"), ("b", "i4")])
    with ShardedDatasetWriter(tmp_path, pack=pack) as writer:
        writer.add_field("pair")
        writer.add_sample({"pair": np.zeros(2, dtype)})
        dtype.names = ("x", "y")
        writer.add_sample({"pair": np.zeros(2, dtype)})
    with ShardedDatasetReader(tmp_path) as reader:
        names = [reader[i]["pair"].dtype.names for i in range(2)]
    assert names == [("a", "b"), ("x", "y")]
