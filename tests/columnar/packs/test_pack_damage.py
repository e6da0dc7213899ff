"""Damaged packs: each way of reading raises a FormatError that says where."""

from __future__ import annotations

import io
import random
import sqlite3
import struct
from contextlib import closing

import numpy as np
import pytest

import fastshard
from fastshard.columnar import (
    ShardedDatasetReader,
    ShardedDatasetWriter,
    compact,
    verify,
)
from fastshard.errors import FastshardError, FormatError
from support.columnar.checks import sql
from support.columnar.identity import identify, row_of
from support.columnar.packed import npy_bytes, tar_header, write_packed
from support.marks import slow

ROWS = 4
VALUES = np.arange(3 * ROWS * 5.0).reshape(-1, 5)
PACK = 512  # offset of the first pack's data


@pytest.fixture
def root(tmp_path):
    """Return a dataset of one field with three packs in one shard."""
    root = tmp_path / "data"
    write_packed(root, [{"a": row} for row in VALUES], samples_per_shard=100)
    return root


def by_columns(root, i, **options):
    with ShardedDatasetReader(root, **options) as reader:
        return reader.columns([i])["a"][0]


def by_id(root, i, **options):
    with ShardedDatasetReader(root, **options) as reader:
        return reader.get_sample(f"sample_{i + 1:012d}")[0]["a"]


def by_position(root, i, **options):
    with ShardedDatasetReader(root, **options) as reader:
        return reader.samples[i]["a"]


def by_scan(root, i, **options):
    with ShardedDatasetReader(root, **options) as reader:
        found = {sample["__key__"]: sample["a"] for sample in reader.scan()}
        return found[f"sample_{i + 1:012d}"]


def by_scan_of_batches(root, i, **options):
    with ShardedDatasetReader(root, **options) as reader:
        found = [batch["a"] for batch in reader.scan(batch_size=3)]
        return np.concatenate(found)[i]


def by_dataset(root, i, **options):
    with fastshard.open(root, **options) as ds:
        return ds[i]["a"]


def by_view(root, i, **options):
    with fastshard.open(root, **options) as ds:
        return np.load(io.BytesIO(ds[i].view("a")))


READS = [
    by_columns,
    by_id,
    by_position,
    by_scan,
    by_scan_of_batches,
    by_dataset,
    by_view,
]


def shard_of(root):
    return root / "a_shards" / "shard_0000.tar"


def put(root, payload, *, name=f"pack_{PACK:012d}.npy"):
    """Replace the first pack by another member of at most its room."""
    path = shard_of(root)
    data = bytearray(path.read_bytes())
    room = struct.calcsize("512s")
    payload_room = 512
    assert len(payload) <= payload_room
    data[:room] = tar_header(name, len(payload))
    data[room : room + payload_room] = payload + bytes(payload_room - len(payload))
    path.write_bytes(data)


def set_index(root, column, value, i=1):
    with closing(sqlite3.connect(root / "index.sqlite")) as conn, conn:
        conn.execute(f"UPDATE samples SET {column} = ? WHERE rowid = ?", (value, i + 1))


def fortran():
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asfortranarray(VALUES[:ROWS]))
    return file.getvalue()


DAMAGE = {
    "the name of another offset": lambda root: put(
        root, npy_bytes(VALUES[:ROWS]), name="pack_000000001024.npy"
    ),
    "the name of a sample": lambda root: put(
        root, npy_bytes(VALUES[:ROWS]), name="sample_000000000002.npy"
    ),
    "fortran order": lambda root: put(root, fortran()),
    "version 2": lambda root: put(root, npy_bytes(VALUES[:ROWS], version=(2, 0))),
    "no axis": lambda root: put(root, npy_bytes(np.float64(3))),
    "no rows": lambda root: put(root, npy_bytes(VALUES[:0])),
    "rows of no bytes": lambda root: put(root, npy_bytes(np.ones((ROWS, 0)))),
    "few rows": lambda root: put(root, npy_bytes(VALUES[:1])),
    "too short": lambda root: put(root, npy_bytes(VALUES[:ROWS])[:-8]),
    "too long": lambda root: put(root, npy_bytes(VALUES[:ROWS]) + bytes(8)),
    "no header": lambda root: put(root, npy_bytes(VALUES[:ROWS])[:20]),
    "no array": lambda root: put(root, b"text"),
    "a row behind the last": lambda root: set_index(root, "a_row", ROWS),
    "a row of 2**31": lambda root: set_index(root, "a_row", 2**31),
    "a row of 2**32": lambda root: set_index(root, "a_row", 2**32 + 1),
    "a row of 2**63 - 1": lambda root: set_index(root, "a_row", 2**63 - 1),
    "a negative row": lambda root: set_index(root, "a_row", -1),
    "a row of text": lambda root: set_index(root, "a_row", "one"),
    "a row of bytes": lambda root: set_index(root, "a_row", b"1"),
    "a row of 1.5": lambda root: set_index(root, "a_row", 1.5),
    "a row without a place": lambda root: (
        set_index(root, "a_offset", None),
        set_index(root, "a_shard", None),
    ),
    "a negative offset": lambda root: set_index(root, "a_offset", -512),
    "an offset behind the file": lambda root: set_index(root, "a_offset", 1 << 40),
    "an offset of 2**63 - 1": lambda root: set_index(root, "a_offset", 2**63 - 1),
    "an offset of 0": lambda root: set_index(root, "a_offset", 0),
    "an offset inside a pack": lambda root: set_index(root, "a_offset", PACK + 64),
    "a negative shard": lambda root: set_index(root, "a_shard", -1),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named(root, damage):
    DAMAGE[damage](root)
    for read in READS:
        mode = "pread" if read in (by_id, by_scan) else "mmap"
        with pytest.raises(FormatError) as caught:
            read(root, 1, mode=mode)
        text = str(caught.value)
        assert "'a'" in text, text
        assert "sample_00000000000" in text, text
        assert "shard_0000.tar" in text or "index.sqlite" in text
        assert caught.value.offset >= 0
    if damage.startswith("a") and "row" in damage:  # the other samples are sound
        assert np.array_equal(by_columns(root, 2), VALUES[2])


def test_a_truncated_file(root):
    data = shard_of(root).read_bytes()
    for size in range(0, len(data), 600):
        shard_of(root).write_bytes(data[:size])
        for k, read in enumerate(READS):
            for i in (0,) if k % 2 else (len(VALUES) - 1,):
                try:
                    found = read(root, i)
                except (FastshardError, OSError):
                    assert size < len(data) - 1024
                else:
                    assert np.array_equal(found, VALUES[i])


@pytest.mark.parametrize("identities", [True, False])
def test_two_samples_of_one_row_are_a_fault(tmp_path, identities):
    root = tmp_path / "d"
    ids = write_packed(root, [{"a": row} for row in VALUES], identities=identities)
    set_index(
        root, "a_row", identify("a", ids[0], 0, PACK, 3) if identities else 3, i=0
    )
    (fault,) = verify(root)
    assert fault.member == ids[3]
    assert f"as that of the sample {ids[0]!r}" in fault.reason
    for pack in (True, False, None):
        with pytest.raises(FormatError, match=f"{ids[0]!r}, {ids[3]!r}"):
            compact(root, pack=pack)


@pytest.mark.parametrize("read", READS)
def test_a_row_of_another_sample_raises(root, read):
    ((other,),) = sql(root, "SELECT a_row FROM samples WHERE rowid = 1")
    set_index(root, "a_row", other)
    with pytest.raises(FormatError, match="identity") as raised:
        read(root, 1)
    assert raised.value.member == "sample_000000000002.npy"
    assert str(PACK) in str(raised.value)
    (fault,) = verify(root)
    assert "identity" in fault.reason
    with pytest.raises(FormatError, match="identity"):
        compact(root)


def test_rows_without_identities_are_read_and_get_them(tmp_path):
    root = tmp_path / "d"
    ids = write_packed(root, [{"a": row} for row in VALUES], identities=False)
    assert verify(root) == []
    for read in READS:
        assert np.array_equal(read(root, 6), VALUES[6])
    sql(root, "PRAGMA journal_mode = WAL")  # as a writer of it has set
    with ShardedDatasetReader(root) as reader:
        with ShardedDatasetWriter(root, pack=True) as writer:
            writer.add_sample({"a": VALUES[0]}, "new")
        assert np.array_equal(reader.get_sample(ids[6])[0]["a"], VALUES[6])
        assert np.array_equal(reader.columns([6])["a"][0], VALUES[6])
    rows = sql(root, "SELECT id, a_shard, a_offset, a_row FROM samples")
    assert [
        row_of(row, "a", sample_id, shard, offset)
        for sample_id, shard, offset, row in rows
    ] == [*(i % ROWS for i in range(10)), 0, 1, 0]
    assert verify(root) == []
    for read in READS:
        assert np.array_equal(read(root, 6), VALUES[6])


def test_rows_of_an_unknown_version_are_refused(root):
    sql(root, "UPDATE fastshard_packed SET version = 3")
    for open_it in (ShardedDatasetReader, ShardedDatasetWriter, fastshard.open):
        with pytest.raises(FormatError, match="version 3"):
            open_it(root)
    sql(root, "UPDATE fastshard_packed SET version = 1")  # values with identities
    for read in READS:
        with pytest.raises(FormatError):
            read(root, 1)


def read_damaged(root, seed):
    """Change bytes of a shard, and read all; only errors of ours may be raised."""
    rng = random.Random(seed)
    path = shard_of(root)
    whole = path.read_bytes()
    data = bytearray(whole)
    for _ in range(rng.randrange(1, 4)):
        pack = rng.choice([0, 1024, 2048])
        data[pack + rng.randrange(700)] = rng.choice([0, 32, 49, 57, 255])
    path.write_bytes(data)
    try:
        for read in rng.sample(READS, 2):
            for i in (1, 6, 11):
                try:
                    found = read(root, i)
                except (FastshardError, OSError):
                    continue
                assert isinstance(found, np.ndarray)
    finally:
        path.write_bytes(whole)


@pytest.mark.parametrize("seed", range(8))
def test_changed_bytes(root, seed):
    read_damaged(root, seed)


@slow
def test_many_changed_bytes(root):
    for seed in range(8, 200):
        read_damaged(root, seed)
