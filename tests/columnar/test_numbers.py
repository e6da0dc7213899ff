"""Limits of counters and queries, and byte offsets in errors."""

from __future__ import annotations

import json
import sqlite3

import numpy as np
import pytest

import fastshard
from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter, verify
from fastshard.errors import FormatError, QueryError
from support.columnar.stored import read_members

LARGEST = (1 << 63) - 1


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "data"
    with ShardedDatasetWriter(root) as writer:
        writer.add_field("a")
        for i in range(3):
            writer.add_sample({"a": np.arange(600 + i)})
    return root


def set_counter(root, value):
    conn = sqlite3.connect(root / "index.sqlite")
    with conn:
        conn.execute(f"UPDATE counters SET value = {value} WHERE name = 'sample_id'")
    conn.close()


@pytest.mark.parametrize("value", ["-1", "'many'", "2.5", "NULL", "x'00'"])
def test_an_invalid_counter_is_named(root, value):
    set_counter(root, value)
    (fault,) = verify(root)
    assert "counters.value" in fault.reason
    with pytest.raises(FormatError, match=r"counters\.value of 'sample_id'"):
        ShardedDatasetWriter(root)
    with ShardedDatasetReader(root) as reader:
        assert len(reader.get_many(reader.query_ids())) == 3


def test_a_counter_at_its_limit(root):
    set_counter(root, LARGEST - 1)
    assert verify(root) == []
    with ShardedDatasetWriter(root) as writer:
        assert writer.add_sample({"a": [1]}) == f"sample_{LARGEST}"
        for _ in range(2):
            with pytest.raises(FormatError, match="pass a sample_id"):
                writer.add_sample({"a": [2]})
        writer.add_sample({"a": [3]}, "mine")
    (fault,) = verify(root)
    assert f"{LARGEST}" in fault.reason
    with ShardedDatasetReader(root) as reader:
        assert reader.query_ids()[3:] == [f"sample_{LARGEST}", "mine"]


@pytest.mark.parametrize(
    "literals",
    [
        ",".join(["1"] * 50_000),
        ",".join(map(str, range(50_000))),
        ",".join(f"'sample_{i:012d}'" for i in range(50_000)),
        ",".join(["'" + "x" * 100_000 + "'"] * 50),
    ],
    ids=["short", "numbers", "ids", "long"],
)
def test_too_many_literals_are_refused_soon(root, literals):
    with ShardedDatasetReader(root) as reader:
        with pytest.raises(QueryError, match="json_each"):
            reader.query_ids(f"id IN ({literals})", timeout=2)
        with pytest.raises(QueryError, match="json_each"):
            reader.query(columns=[f"id IN ({literals})"], timeout=2)


def test_many_ids_as_a_parameter(root):
    ids = [f"sample_{i:012d}" for i in range(50_000)]
    with ShardedDatasetReader(root) as reader:
        found = reader.query_ids(
            "id IN (SELECT value FROM json_each(?))", (json.dumps(ids),), timeout=2
        )
        assert found == ids[1:4]
        some = ",".join(f"'{i}'" for i in ids[:5000])
        assert reader.query_ids(f"id IN ({some})") == ids[1:4]


def test_decode_names_the_byte_in_shards_of_other_writers(root):
    """Other writers' offsets are wrong; the true one is found with the header."""
    path = root / "a_shards" / "shard_0000.tar"
    members = read_members(path)
    conn = sqlite3.connect(root / "index.sqlite")
    with conn:
        conn.execute("DELETE FROM fastshard_shards")
        conn.execute("UPDATE samples SET a_offset = 1440 WHERE rowid = 2")
    conn.close()
    _, at, _ = members[1]
    data = bytearray(path.read_bytes())
    data[at : at + 6] = b"broken"
    path.write_bytes(data)
    ds = fastshard.open(str(root))
    for read in (lambda s: s.decode(), lambda s: s.json("a"), lambda s: s.text("a")):
        ds = fastshard.open(str(root))  # no header was found yet
        with pytest.raises(FormatError) as caught:
            read(ds[1])
        assert at <= caught.value.offset < at + 700 * 8
        assert caught.value.member == "sample_000000000002.npy"
        ds.close()


def test_open_shard_appends_to_an_existing_shard(root):
    with ShardedDatasetWriter(root) as writer:
        writer.register_samples(["x", "y", "z"])
        writer.write_shard("a", 7, ["x", "y"], [np.arange(1), np.arange(2)])
        with writer.open_shard("a", 7) as shard:
            shard.add_sample("z", np.arange(3))
            shard.add_sample("y", np.arange(9))  # a second time: the last member counts
        with pytest.raises(FileExistsError):
            writer.write_shard("a", 7, ["x"], [[1]])
        shard = writer.open_shard("a", 7)
        shard.add_sample("x", np.arange(50))
        shard.discard()
        writer.open_shard("a", 7).close()
    with ShardedDatasetReader(root) as reader:
        found = [len(arrays["a"]) for arrays, _ in reader.get_many(["x", "y", "z"])]
        assert found == [1, 9, 3]
        assert reader.shard_counts("a") == {0: 3, 7: 3}
    names = [name for name, _, _ in read_members(root / "a_shards" / "shard_0007.tar")]
    assert names == ["x.npy", "y.npy", "z.npy", "y.npy"]
    assert verify(root) == []


def test_the_modules_of_the_original_hold_the_same_classes():
    from fastshard.columnar import sharded_dataset_reader, sharded_dataset_writer

    assert sharded_dataset_reader.ShardedDatasetReader is ShardedDatasetReader
    assert sharded_dataset_writer.ShardedDatasetWriter is ShardedDatasetWriter
