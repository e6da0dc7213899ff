"""Misuse and interrupts of columnar writers: threads, handles, re-entry, Ctrl-C."""

import os
import sqlite3
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest

import fastshard
from fastshard.columnar import ShardedDatasetWriter
from fastshard.columnar.write import append_file
from fastshard.columnar.write.lock import LOCK
from fastshard.errors import ClosedError, UnclosedWriterWarning, WriterLockedError
from support.columnar.stored import lengths, sql
from support.inside.columnar import sync_in_this_thread, transaction_of
from support.processes import environment


@pytest.fixture
def writer(root):
    with ShardedDatasetWriter(root, samples_per_shard=3) as writer:
        writer.add_fields(["a", "b"])
        yield writer


# ------------------------------------------------------------- the lock


def test_threads_that_open_a_dataset_at_once_get_one_writer(root):
    start = threading.Barrier(6)
    opened, errors = [], []

    def run():
        start.wait()
        try:
            opened.append(ShardedDatasetWriter(root))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert [writer.closed for writer in opened].count(False) == 1
    for writer in opened:
        writer.close()


LOCKED = """
import sys
from fastshard.columnar import ShardedDatasetWriter
ShardedDatasetWriter(sys.argv[1])
"""


@pytest.mark.skipif(os.name == "nt", reason="the lock file cannot be opened there")
def test_the_lock_survives_closing_another_descriptor_of_its_file(root, writer):
    (root / LOCK).read_bytes()
    package = os.path.dirname(os.path.dirname(fastshard.__file__))
    done = subprocess.run(
        [sys.executable, "-c", LOCKED, root],
        env=os.environ | {"PYTHONPATH": package},
        capture_output=True,
        text=True,
    )
    assert WriterLockedError.__name__ in done.stderr


def test_a_relative_root_stays_where_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with ShardedDatasetWriter("data") as writer:
        writer.add_field("a")
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        writer.add_sample({"a": np.arange(2)}, "x")
        writer.add_field("b")
        assert repr(writer) == "ShardedDatasetWriter(data; open)"
    assert os.listdir(tmp_path / "elsewhere") == []
    assert lengths(tmp_path / "data") == {"x": 2}


# ------------------------------------------------------------- handles


def test_a_handle_of_a_closed_writer_touches_nothing(root):
    old = ShardedDatasetWriter(root)
    old.add_field("a")
    old.register_samples(["x", "y"])
    handle = old.open_shard("a", 0)
    handle.add_sample("x", np.arange(3))
    with ShardedDatasetWriter(root) as new:  # closes the old one
        new.write_shard("a", 0, ["y"], [np.arange(5)])
        handle.discard()
        with pytest.raises(ClosedError):
            handle.close()
        with pytest.raises(ClosedError):
            handle.add_sample("x", np.arange(3))
    assert lengths(root) == {"y": 5}


def test_a_writer_closed_within_a_handle_is_an_error(root, writer):
    writer.register_samples(["x"])
    shard = writer.open_shard("a", 0)
    shard.add_sample("x", np.arange(3))
    with pytest.raises(ClosedError), shard:
        writer.close()
    assert lengths(root) == {}


def test_a_dropped_handle_is_discarded(root, writer):
    writer.register_samples(["x"])
    with pytest.warns(UnclosedWriterWarning, match="shard_0000.tar .* 1 sample is not"):
        writer.open_shard("a", 0).add_sample("x", np.arange(3))
    writer.compact()
    writer.write_shard("a", 0, ["x"], [np.arange(4)])
    assert lengths(root, ended=False) == {"x": 4}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_handle_touches_nothing(root, writer):
    writer.register_samples(["x"])
    with writer.open_shard("a", 0) as shard:
        shard.add_sample("x", np.arange(3))
        pid = os.fork()
        if pid == 0:
            try:
                shard.discard()
                del shard
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
    assert lengths(root, ended=False) == {"x": 3}


# ------------------------------------------------------------- arrays that call


class Calling:
    """Array-like that makes a call when it is converted."""

    def __init__(self, call):
        self.call = call

    def __array__(self, dtype=None, copy=None):
        self.call()
        return np.arange(3)


def test_a_writer_is_not_reentrant(root, writer):
    writer.register_samples(["r"])
    shard = writer.open_shard("b", 5)
    calls = [
        lambda: writer.add_sample({"a": [1]}, "inner"),
        lambda: writer.update_sample("r", {"a": [1]}),
        lambda: writer.register_samples(["s"]),
        lambda: writer.add_field("c"),
        lambda: writer.write_shard("a", 7, ["r"], [[1]]),
        lambda: shard.add_sample("r", [1]),
        lambda: ShardedDatasetWriter(root),
        shard.close,
        shard.discard,
        writer.conn.commit,
        lambda: writer.conn.execute("COMMIT"),
        writer.flush,
        writer.compact,
        writer.close,
    ]
    for call in calls:
        with pytest.raises((RuntimeError, ValueError), match="is being added"):
            writer.add_sample({"a": np.arange(9), "b": Calling(call)}, "outer")
        with pytest.raises((RuntimeError, ValueError), match="is being added"):
            shard.add_sample("r", Calling(call))
    shard.discard()
    writer.add_sample({"a": np.arange(4)}, "after")
    writer.flush()
    assert lengths(root, ended=False) == {"after": 4}


def test_a_mapping_that_changes_meanwhile_is_copied_first(root, writer):
    arrays = {"a": None, "b": np.arange(2)}
    arrays["a"] = Calling(lambda: arrays.update(c=1))
    writer.add_sample(arrays, "x")
    writer.flush()
    assert lengths(root, ended=False) == {"x": 3}


# ------------------------------------------------------------- interrupts


def interrupt(patch, writer, name, n):
    """Interrupt right after the n-th call of a method of the transaction."""
    transaction = transaction_of(writer)
    real, left = getattr(transaction, name), iter(range(n, 0, -1))

    def interrupted():
        result = real()
        if next(left, 0) == 1:
            raise KeyboardInterrupt
        return result

    patch.setattr(transaction, name, interrupted)


@pytest.mark.parametrize("linked", [False, True], ids=["appended", "replaced"])
@pytest.mark.parametrize("name", ["record", "prepare", "mark_committed"])
def test_an_interrupt_while_a_shard_is_committed(
    root, writer, monkeypatch, tmp_path, linked, name
):
    writer.register_samples(["x", "y"])
    writer.write_shard("a", 0, ["x", "y"], [np.arange(3)] * 2)
    if linked:  # a linked shard is replaced, not appended to
        os.link(root / "a_shards" / "shard_0000.tar", tmp_path / "other")
    with monkeypatch.context() as patch:
        interrupt(patch, writer, name, 1)
        with pytest.raises(KeyboardInterrupt):
            writer.write_shard("a", 0, ["x"], [np.arange(8)], overwrite=True)
    expected = {"x": 8} if name == "mark_committed" else {"x": 3, "y": 3}
    writer.flush()
    writer.close()
    if linked:  # the old file is back before another writer settles it
        assert lengths(root, ended=False) == expected
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ShardedDatasetWriter(root).close()
    assert lengths(root) == expected


@pytest.mark.parametrize(
    ("name", "n"),
    [("record", 1), ("prepare", 1), ("prepare", 2), ("mark_committed", 2)],
)
def test_an_interrupted_compaction(root, writer, monkeypatch, name, n):
    for i in range(4):
        writer.add_sample({"a": np.arange(i)}, str(i))
    writer.update_sample("1", {"a": np.arange(9)})
    writer.flush()
    before = lengths(root, ended=False)
    with monkeypatch.context() as patch:
        interrupt(patch, writer, name, n)
        with pytest.raises(KeyboardInterrupt):
            writer.compact()
    writer.flush()
    assert lengths(root, ended=False) == before
    writer.compact()
    assert lengths(root, ended=False) == before
    writer.close()
    ShardedDatasetWriter(root).close()
    assert lengths(root) == before


def test_an_interrupted_sync_is_repeated(root, writer, monkeypatch):
    synced, real = [], append_file.sync_file

    def interrupted(fd):
        synced.append(fd)
        if len(synced) == 1:
            raise KeyboardInterrupt
        real(fd)

    monkeypatch.setattr(append_file, "sync_file", interrupted)
    sync_in_this_thread(monkeypatch)
    writer.add_sample({"a": np.arange(3)}, "x")
    with pytest.raises(KeyboardInterrupt):
        writer.flush()
    assert sql(root, "SELECT count(*) FROM samples") == [(0,)]
    writer.flush()
    assert len(synced) > 1
    assert len(set(synced)) == 1
    assert lengths(root, ended=False) == {"x": 3}


EXIT = """
import os, sys
from fastshard.columnar import ShardedDatasetWriter
from support.inside.columnar import transaction_of
bad = ShardedDatasetWriter(sys.argv[1] + "/bad")
good = ShardedDatasetWriter(sys.argv[1] + "/good")
for writer in bad, good:
    writer.add_field("a")
    writer.add_sample({"a": [1, 2]}, "x")

def fail():
    raise OSError("no")

transaction_of(bad).prepare = fail
"""


def test_an_error_at_exit_does_not_keep_other_writers_open(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", EXIT, tmp_path],
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert "bad was not closed: 1 sample is not stored (no)" in done.stderr
    assert lengths(tmp_path / "good") == {"x": 2}


# ------------------------------------------------------------- transactions


def test_a_rollback_by_sqlite_closes_the_writer(root, writer):
    writer.add_sample({"a": np.arange(3)}, "x")
    writer.flush()
    writer.add_sample({"a": np.arange(4)}, "y")
    with pytest.raises(ValueError, match="does not accept it"):
        writer.conn.execute("INSERT OR ROLLBACK INTO samples (id) VALUES ('x')")
    assert writer.closed
    assert lengths(root, ended=False) == {"x": 3}


def test_a_rollback_by_the_user_keeps_the_writer_open(root, writer):
    writer.add_sample({"a": np.arange(4)}, "y")
    writer.conn.execute("ROLLBACK")
    writer.add_sample({"a": np.arange(5)}, "z")
    writer.conn.rollback()
    writer.add_sample({"a": np.arange(6)}, "x")
    writer.flush()
    assert lengths(root, ended=False) == {"x": 6}


def test_every_way_to_commit_stores_the_arrays_first(root, writer):
    ends = [
        lambda: setattr(writer.conn, "isolation_level", None),
        lambda: writer.conn.execute("\ufeffCOMMIT"),
        lambda: writer.conn.execute(" ;\ufeff/* */ END"),
    ]
    for i, end in enumerate(ends):
        writer.add_sample({"a": np.arange(i)}, str(i))
        end()
        assert lengths(root, ended=False) == {str(j): j for j in range(i + 1)}
    with pytest.raises(sqlite3.NotSupportedError):
        writer.conn.autocommit = True
    with pytest.raises(sqlite3.OperationalError, match="no such savepoint"):
        writer.conn.execute("RELEASE unknown")


def test_rows_that_the_index_refuses(writer):
    writer.conn.execute("ALTER TABLE samples ADD COLUMN identity TEXT")
    writer.conn.execute("CREATE UNIQUE INDEX one ON samples (coalesce(identity, 1))")
    writer.conn.execute("CREATE UNIQUE INDEX two ON samples (meta_json)")
    writer.add_sample({}, metadata={"i": 1})
    with pytest.raises(ValueError, match="UNIQUE"):
        writer.add_sample({}, metadata={"i": 2})
    writer.conn.execute("DROP INDEX one")
    writer.add_sample({}, "other", metadata={"i": 2})
    with pytest.raises(ValueError, match="does not accept"):
        writer.update_sample("other", {}, {"i": 1})
