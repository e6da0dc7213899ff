"""Bits flipped in an index: each way of reading gives a sample's own array, or raises.

Samples have arrays of one shape, so that another sample's array raises no error.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

import fastshard
from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter, verify
from fastshard.errors import FastshardError
from support.marks import LONG

COUNT = 24
IDS = [f"sample_{i + 1:012d}" for i in range(COUNT)]
FLIPS = 10_000 if LONG else 300
# Not the bytes of unused space, far from all others.
NEAR = 12

ARRAYS = {
    sample_id: {"a": np.full(4, i, "f4")}
    | ({"b": np.full((2, 2), 100 + i)} if i % 3 else {})
    for i, sample_id in enumerate(IDS)
}
FIRST = {sample_id: {"a": arrays["a"]} for sample_id, arrays in ARRAYS.items()}


def write(root, pack):
    with ShardedDatasetWriter(root, samples_per_shard=10, pack=pack) as writer:
        writer.add_fields(["a", "b"])
        for i, arrays in enumerate(ARRAYS.values()):
            writer.add_sample(arrays, metadata={"n": i})
            if i == 16:
                writer.flush()  # the next rows are in other packs


def by_id(root):
    with ShardedDatasetReader(root) as reader:
        for sample_id in IDS:
            try:
                yield sample_id, reader.get_sample(sample_id)[0], ARRAYS
            except (FastshardError, OSError):
                continue


def by_many_ids(root):
    with ShardedDatasetReader(root) as reader:
        for sample_id, found in zip(IDS, reader.get_many(IDS), strict=True):
            yield sample_id, found[0], ARRAYS


def by_columns_of_ids(root):
    with ShardedDatasetReader(root) as reader:
        for part in (IDS[:2], IDS[8:12]):
            for sample_id, a in zip(
                part, reader.columns(part, ["a"])["a"], strict=True
            ):
                yield sample_id, {"a": a}, FIRST


def by_position(root):
    with ShardedDatasetReader(root) as reader:
        for i, sample_id in enumerate(IDS):
            try:
                yield sample_id, reader.samples[i], ARRAYS
            except (FastshardError, OSError):
                continue


def by_columns(root):
    with ShardedDatasetReader(root) as reader:
        for sample_id, a in zip(
            IDS, reader.columns(range(COUNT), ["a"])["a"], strict=True
        ):
            yield sample_id, {"a": a}, FIRST
        for sample_id in IDS:  # all rows are loaded
            yield sample_id, reader.get_sample(sample_id)[0], ARRAYS


def by_scan(root):
    with ShardedDatasetReader(root) as reader:
        found = {sample.pop("__key__"): sample for sample in reader.scan()}
        assert sorted(found) == IDS  # in the order of the bytes
        for sample_id, arrays in found.items():
            yield sample_id, arrays, ARRAYS


def by_scan_where(root):
    with ShardedDatasetReader(root) as reader:
        for sample in reader.scan(where="id > ?", params=(IDS[9],)):
            yield sample.pop("__key__"), sample, ARRAYS


def by_windows(root):
    with ShardedDatasetReader(root) as reader:
        for batch in reader.windows("a", 4).batches(7):
            for sample_id, a in zip(batch["__key__"], batch["a"], strict=True):
                yield sample_id, {"a": a}, FIRST


def by_dataset(root):
    with fastshard.open(root, mode="pread") as ds:
        assert len(ds) == COUNT
        for i in range(COUNT):
            try:
                arrays = {field: ds[i][field] for field in ds[i]}
            except (FastshardError, OSError):
                continue
            yield IDS[i], arrays, ARRAYS


def by_batches(root):
    with fastshard.open(root) as ds:
        found = [batch["a"] for batch in ds.select_fields("a").batches(7)]
        for sample_id, a in zip(IDS, np.concatenate(found), strict=True):
            yield sample_id, {"a": a}, FIRST


WAYS = [
    by_id,
    by_many_ids,
    by_columns_of_ids,
    by_position,
    by_columns,
    by_scan,
    by_scan_where,
    by_windows,
    by_dataset,
    by_batches,
]


def find_wrong(root, ways=WAYS):
    """Return the ways that gave arrays of another sample, or not all of a sample."""
    wrong = []
    for way in ways:
        try:
            for sample_id, found, expected in way(root):
                own = expected.get(sample_id, {})
                if found.keys() != own.keys() or not all(
                    np.array_equal(found[field], own[field]) for field in own
                ):
                    wrong.append(way.__name__)
        except (FastshardError, OSError):
            continue
    return wrong


@pytest.mark.parametrize("pack", [False, True], ids=["members", "packs"])
@pytest.mark.parametrize("seed", range(3))
def test_a_flipped_bit_never_gives_another_array(tmp_path, pack, seed):
    write(tmp_path / "d", pack)
    index = tmp_path / "d" / "index.sqlite"
    whole = index.read_bytes()
    assert find_wrong(tmp_path / "d") == []
    used = [at for at in range(len(whole)) if any(whole[max(0, at - NEAR) : at + NEAR])]
    rng = random.Random(seed)
    for _ in range(FLIPS // 3):
        at, bit = rng.choice(used), rng.randrange(8)
        data = bytearray(whole)
        data[at] ^= 1 << bit
        for path in index.parent.glob("index.sqlite*"):
            path.unlink()
        index.write_bytes(data)
        assert find_wrong(index.parent, rng.sample(WAYS, 3)) == [], (at, bit)


def patch(root, old, new):
    """Replace bytes of the index that occur once."""
    path = root / "index.sqlite"
    whole = path.read_bytes()
    assert whole.count(old) == 1
    assert len(old) == len(new)
    path.write_bytes(whole.replace(old, new))


@pytest.mark.parametrize("pack", [False, True], ids=["members", "packs"])
def test_an_id_that_leads_to_another_row_raises(tmp_path, pack):
    root = tmp_path / "d"
    write(root, pack)
    patch(root, IDS[1].encode() + b"\x02", IDS[1].encode() + b"\x03")
    with ShardedDatasetReader(root) as reader:
        with pytest.raises(FastshardError, match=f"another sample for '{IDS[1]}'"):
            reader.get_sample(IDS[1])
        with pytest.raises(FastshardError, match="another sample"):
            reader.get_many(IDS[:3])
        assert np.array_equal(reader.samples[1]["a"], ARRAYS[IDS[1]]["a"])
    assert any("SQLite" in fault.reason for fault in verify(root))


@pytest.mark.parametrize("pack", [False, True], ids=["members", "packs"])
def test_a_row_with_the_id_of_another_sample_raises(tmp_path, pack):
    root = tmp_path / "d"
    write(root, pack)
    patch(root, IDS[1].encode() + b'{"n": 1}', IDS[2].encode() + b'{"n": 1}')
    with ShardedDatasetReader(root) as reader:
        assert np.array_equal(reader.samples[2]["a"], ARRAYS[IDS[2]]["a"])
        with pytest.raises(FastshardError):
            reader.samples[1]
        with pytest.raises(FastshardError):
            reader.columns(range(4))
        with pytest.raises(FastshardError):
            reader.get_sample(IDS[1])
    faults = [fault.reason for fault in verify(root)]
    assert any("SQLite: row 2 missing" in reason for reason in faults)


@pytest.mark.parametrize("name", [b"B", b"c"])
def test_a_field_of_another_name_raises(tmp_path, name):
    root = tmp_path / "d"
    write(root, False)
    rest = b"\x02" + str(root).encode() + b"/b_"  # its shards and folder
    patch(root, b"b" + rest, name + rest)
    for open_it in (ShardedDatasetReader, ShardedDatasetWriter, fastshard.open):
        with pytest.raises(FastshardError, match="its SQL index"):
            open_it(root)


def test_compact_refuses_a_damaged_index(tmp_path):
    root = tmp_path / "d"
    write(root, True)
    patch(root, IDS[1].encode() + b"\x02", IDS[1].encode() + b"\x03")
    shards = sorted(path.name for path in (root / "a_shards").iterdir())
    with pytest.raises(FastshardError, match="SQLite"), ShardedDatasetWriter(root) as w:
        w.compact(pack=False)
    assert sorted(path.name for path in (root / "a_shards").iterdir()) == shards
