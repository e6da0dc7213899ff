"""Uncommitted shards of a killed writer: reported, and removed by the next one."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import tarfile

import numpy as np
import pytest

import fastshard
from fastshard.columnar import (
    ShardedDatasetReader,
    ShardedDatasetWriter,
    compact,
    stat,
    verify,
)
from support.columnar.stored import read_all
from support.inside.columnar import transaction_of
from support.processes import environment

pytestmark = pytest.mark.skipif(os.name == "nt", reason="no SIGKILL there")

KILLED = """
import os, signal, sys
import numpy as np
from fastshard.columnar import ShardedDatasetWriter
from support.inside.columnar import transaction_of
writer = ShardedDatasetWriter(sys.argv[1], samples_per_shard=4)
writer.add_field("a")
if sys.argv[2] == "some":
    writer.add_sample({"a": np.arange(3)}, "stored")
    writer.flush()
for i in range(50):
    writer.add_sample({"a": np.full(1000, i)})
for column in transaction_of(writer).columns.values():
    column.write()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(params=["some", "none"])
def root(tmp_path, request):
    command = [sys.executable, "-c", KILLED, tmp_path / "data", request.param]
    done = subprocess.run(command, env=environment(), timeout=60)
    assert done.returncode == -signal.SIGKILL
    return tmp_path / "data"


def shards(root):
    return sorted(path.name for path in (root / "a_shards").iterdir())


def stored(root):
    with ShardedDatasetReader(root) as reader:
        return reader.query_ids()


def test_verify_and_stat_report_leftovers(root):
    kept = set(stored(root))
    leftovers = shards(root)[1 if kept else 0 :]
    assert len(leftovers) > 10
    faults = verify(root)
    assert sorted(os.path.basename(fault.path) for fault in faults) == leftovers
    assert all("was stopped" in fault.reason for fault in faults)
    found = stat(root)["fields"]["a"]
    sizes = sum((root / "a_shards" / name).stat().st_size for name in leftovers)
    assert (found["uncommitted"], found["uncommitted_bytes"]) == (len(leftovers), sizes)


@pytest.mark.parametrize("how", ["writer", "compact"])
def test_the_next_writer_removes_leftovers(root, how):
    ids = stored(root)
    if how == "compact":
        compact(root)
    else:
        ShardedDatasetWriter(root).close()
    assert shards(root) == ["shard_0000.tar"][: len(ids)]
    assert verify(root) == []
    assert stored(root) == ids
    with ShardedDatasetWriter(root, samples_per_shard=4) as writer:
        for i in range(9):
            writer.add_sample({"a": np.full(5, i)}, f"new{i}")
    assert [len(arrays["a"]) for _, arrays in read_all(root).values()] == (
        [3] * len(ids) + [5] * 9
    )
    assert len(fastshard.open(str(root / "a_shards" / "shard_*.tar"))) == len(ids) + 9


def test_files_of_an_open_writer_are_not_leftovers(tmp_path):
    root = tmp_path / "data"
    with ShardedDatasetWriter(root, samples_per_shard=2) as writer:
        writer.add_field("a")
        for i in range(9):
            writer.add_sample({"a": np.arange(i)})
        for column in transaction_of(writer).columns.values():
            column.write()
        assert len(shards(root)) > 3
        assert verify(root) == []
        assert stat(root)["fields"]["a"]["uncommitted"] == 0


def plain_tar(path, name="foreign.npy"):
    with tarfile.open(path, "w") as tar:
        tar.addfile(tarfile.TarInfo(name))
    return path.read_bytes()


def test_files_of_other_programs_stay(root):
    folder = root / "a_shards"
    theirs = plain_tar(folder / "shard_0100.tar")
    notes = folder / "notes.txt"
    notes.write_text("mine")
    link = folder / "shard_0101.tar"
    link.symlink_to(notes)
    (folder / "shard_0102.tar").mkdir()
    ShardedDatasetWriter(root).close()
    assert (folder / "shard_0100.tar").read_bytes() == theirs
    assert notes.read_text() == "mine"
    assert link.is_symlink()
    with ShardedDatasetWriter(root, samples_per_shard=2) as writer:
        writer.open_shard("a").discard()
        with pytest.raises(FileExistsError):
            writer.write_shard("a", 100, ["x"], [[1]])
        with writer.open_shard("a") as shard:
            shard.add_sample("y", [1, 2])
            assert shard.shard_id > 102
    assert (folder / "shard_0100.tar").read_bytes() == theirs


def test_a_referenced_shard_without_a_record_stays(root):
    ids = stored(root)
    ours = ids or ["sample_000000000001"]
    with sqlite3.connect(root / "index.sqlite") as conn:
        conn.execute("DELETE FROM fastshard_shards")
        if not ids:
            sql = "INSERT INTO samples VALUES (?, '{}', 512, 0)"
            conn.execute(sql, ours)
    conn.close()
    ShardedDatasetWriter(root).close()
    assert shards(root) == ["shard_0000.tar"]
    with ShardedDatasetReader(root) as reader:
        assert len(reader.get_sample(ours[0])[0]["a"]) in (3, 1000)


@pytest.mark.parametrize("size", [0, 100, 512, 5000])
def test_a_shard_of_zeros_is_removed(tmp_path, size):
    root = tmp_path / "data"
    with ShardedDatasetWriter(root) as writer:
        writer.add_field("a")
        writer.add_sample({"a": [1]}, "x")
    (root / "a_shards" / "shard_0001.tar").write_bytes(bytes(size))
    assert len(verify(root)) == 1
    ShardedDatasetWriter(root).close()
    assert shards(root) == ["shard_0000.tar"]
