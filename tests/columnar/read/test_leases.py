"""Leases: readers keep their state, until a refresh, while a writer compacts."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sqlite3
import subprocess
import sys
import time
import traceback

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
from fastshard.columnar.read import leases
from support.columnar.stored import sql
from support.inside.columnar import keep_unread_generations
from support.processes import environment

linux = pytest.mark.skipif(sys.platform != "linux", reason="no locks of descriptions")
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
COUNT = 12


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "data"
    with ShardedDatasetWriter(root, samples_per_shard=3) as writer:
        writer.add_fields(["a", "b"])
        for i in range(COUNT):
            writer.add_sample({"a": np.full(4, i), "b": np.full(2, i)}, f"s{i}")
    return root


def update(root, by=100):
    """Replace the arrays of all samples, and compact."""
    with ShardedDatasetWriter(root, samples_per_shard=3) as writer:
        for i in range(COUNT):
            writer.update_sample(f"s{i}", {"a": np.full(4, by + i)})
        writer.compact()


def shards(root):
    return sorted(path.name for path in (root / "a_shards").iterdir())


def first(reader):
    return [int(reader.get_sample(f"s{i}")[0]["a"][0]) for i in range(COUNT)]


OLD = list(range(COUNT))
NEW = list(range(100, 100 + COUNT))


def test_a_reader_sees_its_state_until_it_is_refreshed(root):
    old = shards(root)
    with ShardedDatasetReader(root) as reader:
        update(root)
        assert set(old) < set(shards(root))
        assert first(reader) == OLD
        assert [int(s["a"][0]) for s in reader.scan()] == OLD
        columns = reader.columns([f"s{i}" for i in range(COUNT)], "a")
        np.testing.assert_array_equal(columns["a"][:, 0], OLD)
        reader.refresh()
        assert first(reader) == NEW
        ShardedDatasetWriter(root).close()
        assert not set(old) & set(shards(root))
        assert first(reader) == NEW
    assert verify(root) == []


def test_without_readers_replaced_shards_are_removed_at_once(root):
    old = shards(root)
    update(root)
    assert not set(old) & set(shards(root))
    assert sql(root, "SELECT * FROM fastshard_shards WHERE nbytes < 0") == []


@pytest.mark.parametrize("how", ["writer", "compact", "close"])
def test_a_closed_reader_ends_its_lease(root, how):
    old = shards(root)
    reader = ShardedDatasetReader(root)
    writer = ShardedDatasetWriter(root, samples_per_shard=3)
    writer.update_sample("s0", {"a": np.full(4, 7)})
    done = writer.compact()
    assert (done.shards_before, done.shards_after) == (9, 8)
    assert set(old) < set(shards(root))
    if how != "close":
        writer.close()
        assert set(old) < set(shards(root))
    reader.close()
    if how == "compact":
        compact(root)
    elif how == "writer":
        ShardedDatasetWriter(root).close()
    else:
        writer.close()
    assert not set(old) & set(shards(root))
    assert len(shards(root)) == 4
    assert verify(root) == []


def test_verify_and_stat_count_replaced_shards(root):
    with ShardedDatasetReader(root):
        update(root)
        assert verify(root) == []
        found = stat(root)["fields"]["a"]
        assert (found["shards"], found["replaced"], found["uncommitted"]) == (4, 8, 0)
        assert found["replaced_bytes"] > 0
    ShardedDatasetWriter(root).close()
    assert stat(root)["fields"]["a"]["replaced"] == 0


@linux
def test_each_reader_keeps_its_own_generation_alone(root):
    """A reader opened later does not keep shards that were replaced before."""
    readers = [ShardedDatasetReader(root)]
    for k in (1, 2):
        update(root, 100 * k)  # four live shards and four replaced ones
        readers.append(ShardedDatasetReader(root))
    assert len(shards(root)) == 4 + 8 + 8
    for k, left in enumerate([4 + 8, 4, 4]):  # the oldest goes first
        assert [first(reader)[0] for reader in readers[k:]] == [0, 100, 200][k:]
        readers[k].close()
        ShardedDatasetWriter(root).close()
        assert len(shards(root)) == left


def test_a_dataset_holds_a_lease_too(root):
    ds = fastshard.open(str(root))
    update(root)
    assert [int(sample["a"][0]) for sample in ds] == OLD
    again = pickle.loads(pickle.dumps(ds))
    assert [int(sample["a"][0]) for sample in again] == NEW
    ds.close()
    again.close()
    ShardedDatasetWriter(root).close()
    assert len(shards(root)) == 4


def test_a_dropped_reader_ends_its_lease(root):
    reader = ShardedDatasetReader(root)
    update(root)
    assert len(shards(root)) == 12
    del reader
    gc.collect()
    ShardedDatasetWriter(root).close()
    assert len(shards(root)) == 4


READS = """
import sys
from fastshard.columnar import ShardedDatasetReader
reader = ShardedDatasetReader(sys.argv[1])
print("open", flush=True)
sys.stdin.readline()
print([int(reader.get_sample(f"s{i}")[0]["a"][0]) for i in range(12)], flush=True)
sys.stdin.readline()
"""


@pytest.mark.skipif(os.name == "nt", reason="no SIGKILL there")
def test_the_lease_of_a_killed_process_ends(root):
    command = [sys.executable, "-c", READS, root]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment(), **pipes) as child:
        assert child.stdout.readline() == "open\n"
        update(root)
        assert len(shards(root)) == 12
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == f"{OLD}\n"
        child.send_signal(signal.SIGKILL)
        child.wait()
    ShardedDatasetWriter(root).close()
    assert len(shards(root)) == 4


@linux
@forks
@pytest.mark.parametrize("uses", [False, True])
def test_a_forked_child_shares_its_parents_lease(root, uses):
    ds = fastshard.open(str(root))
    assert int(ds[0]["a"][0]) == 0  # loads the rows, which the child goes on using
    start, go = os.pipe()
    said, say = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(go)
            os.close(said)
            if uses:
                assert ds[1].metadata == {}  # opens the index again
            os.write(say, b"x")
            os.read(start, 1)
            code = 0 if [int(sample["a"][0]) for sample in ds] == OLD else 2
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(say)
    try:
        assert os.read(said, 1) == b"x"
        ds.close()
        update(root)
        assert len(shards(root)) == 12
    finally:
        os.close(go)
        os.close(said)
        os.close(start)
        status = os.waitpid(child, 0)[1]
    assert os.waitstatus_to_exitcode(status) == 0
    ShardedDatasetWriter(root).close()
    assert len(shards(root)) == 4


@forks
def test_a_child_that_ends_leaves_its_parents_lease(root):
    reader = ShardedDatasetReader(root)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            reader.get_sample("s0")
            reader.refresh()
            reader.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    update(root)
    assert first(reader) == OLD
    reader.close()


@linux
def test_a_lease_takes_one_descriptor(root):
    def count():
        links = [
            os.path.join("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd")
        ]
        where = [os.readlink(link) for link in links if os.path.lexists(link)]
        return sum(path.endswith(leases.LOCK_FILE) for path in where)

    with ShardedDatasetReader(root) as reader:
        for _ in range(3):
            first(reader)
            reader.refresh()
        assert count() == 1
    assert count() == 0


def without_leases(root):
    (root / leases.LOCK_FILE).unlink()


def test_a_reader_without_a_lease_is_seen_by_its_transaction(root):
    without_leases(root)
    old = shards(root)
    with ShardedDatasetReader(root) as reader:
        assert not (root / leases.LOCK_FILE).exists()  # readers write nothing
        update(root)
        assert first(reader) == OLD
    assert set(old) < set(shards(root))
    ShardedDatasetWriter(root).close()
    assert not set(old) & set(shards(root))


@pytest.mark.parametrize("seconds", [leases.GRACE_MS / 1000 + 60, 30])
def test_a_grace_period_without_locks(root, monkeypatch, seconds):
    monkeypatch.setattr(leases, "HAS_LOCKS", False)
    keep_unread_generations(monkeypatch)
    old = shards(root)
    update(root)
    assert set(old) < set(shards(root))
    now = time.time_ns()
    monkeypatch.setattr(leases.time, "time_ns", lambda: now + int(seconds * 1e9))
    ShardedDatasetWriter(root).close()
    assert (set(old) & set(shards(root)) == set()) == (seconds > 3600)


@pytest.mark.parametrize("value", ["'x'", "-1", "NULL", str((1 << 63) - 1)])
def test_an_invalid_generation_keeps_all(root, value):
    update(root)
    sql_ = f"UPDATE counters SET value = {value} WHERE name = 'fastshard_generation'"
    conn = sqlite3.connect(root / "index.sqlite")
    with conn:
        conn.execute(sql_)
    conn.close()
    with ShardedDatasetReader(root) as reader:
        update(root, 0)
        assert first(reader) == NEW
    ShardedDatasetWriter(root).close()
    assert len(shards(root)) == 4


@pytest.mark.parametrize("kind", ["folder", "fifo", "loop", "text"])
def test_any_file_in_place_of_the_lock_file(root, kind):
    path = root / leases.LOCK_FILE
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "loop":
        path.symlink_to(path)
    else:
        path.write_bytes(b"\0" * 100)
    with ShardedDatasetReader(root) as reader:
        assert first(reader) == OLD
    update(root)
    with ShardedDatasetReader(root) as reader:
        assert first(reader) == NEW


def test_three_readers_read_while_one_compacts(root):
    code = (
        "import sys\n"
        "from fastshard.columnar import ShardedDatasetReader\n"
        "count = 0\n"
        "while not sys.stdin.closed and count < 60:\n"
        "    with ShardedDatasetReader(sys.argv[1]) as reader:\n"
        "        for _ in range(3):\n"
        "            found = [int(reader.get_sample(f's{i}')[0]['a'][0])\n"
        "                     for i in range(12)]\n"
        "            assert len({x - i for i, x in enumerate(found)}) == 1, found\n"
        "            reader.refresh()\n"
        "    count += 1\n"
    )
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", code, root],
            env=environment(),
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    with ShardedDatasetWriter(root, samples_per_shard=3) as writer:
        by = 0
        while any(reader.poll() is None for reader in readers):
            by += 100
            for i in range(COUNT):
                writer.update_sample(f"s{i}", {"a": np.full(4, by + i)})
            writer.compact()
    said = [reader.communicate()[1] for reader in readers]
    assert [reader.returncode for reader in readers] == [0, 0, 0], said
    assert by > 300
    ShardedDatasetWriter(root).close()
    assert len(shards(root)) == 4
