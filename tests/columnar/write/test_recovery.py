"""Recovery of columnar datasets: crashes at every call, full disks, torn tails."""

import errno
import os
import random
import shutil
import sqlite3
import threading
import warnings

import numpy as np
import pytest

from fastshard.columnar.write.writer import ShardedDatasetWriter
from fastshard.errors import ClosedError
from support.columnar.stored import read_all, read_members, sql
from support.inside.columnar import transaction_of
from support.marks import LONG, not_sanitized

pytestmark = not_sanitized  # the code under test is Python and SQLite

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")


@pytest.fixture
def root(tmp_path):
    return tmp_path / "data"


def contents(root, **options):
    """Return a dataset's samples as lists, to compare."""
    return {
        id_: (metadata, {field: array.tolist() for field, array in arrays.items()})
        for id_, (metadata, arrays) in read_all(root, **options).items()
    }


# ------------------------------------------------------------- a crash at each call


def begin(root):
    with ShardedDatasetWriter(root, samples_per_shard=3) as writer:
        writer.add_fields(["a", "b"])


def add(root):
    with ShardedDatasetWriter(root, samples_per_shard=3) as writer:
        for i in range(7):
            writer.add_sample({"a": np.arange(200 + i), "b": np.array(i)}, metadata={})


def update(root):
    with ShardedDatasetWriter(root, samples_per_shard=3) as writer:
        for i in (1, 4, 7):
            writer.update_sample(f"sample_{i:012d}", {"a": np.arange(i)}, {"new": i})


def delete(root):
    with ShardedDatasetWriter(root, samples_per_shard=3) as writer:
        writer.delete_samples([f"sample_{i:012d}" for i in (2, 4, 5, 6)])
        writer.add_sample({"a": np.arange(9)}, "sample_000000000005", {"again": 5})


def write_new_shard(root):
    with ShardedDatasetWriter(root, samples_per_shard=3) as writer:
        writer.write_shard("b", 9, ["sample_000000000003"], [np.arange(5)])


def overwrite_shard(root):
    with ShardedDatasetWriter(root, samples_per_shard=3) as writer:
        ids = [f"sample_{i:012d}" for i in (1, 7)]
        arrays = [np.arange(300), np.arange(301)]
        writer.write_shard("a", 0, ids, arrays, overwrite=True)


def compact(root):
    with ShardedDatasetWriter(root, samples_per_shard=3) as writer:
        writer.compact()


STEPS = [begin, add, update, delete, write_new_shard, overwrite_shard, add, compact]
HOOKED = ["pwrite", "fsync", "replace", "unlink", "link", "ftruncate", "open", "mkdir"]


class CrashingCalls:
    """Patch of `os` that exits before the n-th call that changes a file.

    With `lost`, bytes written since the last sync of a file become zeros, at random.
    """

    def __init__(self, n, lost):
        self.left = n
        self.lost = random.Random(n) if lost else None
        self.unsynced = {}
        self.lock = threading.Lock()  # syncing threads count, too
        self.calls = {name: getattr(os, name) for name in HOOKED}
        for name in HOOKED:
            setattr(os, name, getattr(self, name, None) or self.wrap(name))

    def wrap(self, name):
        def call(*args, **kwargs):
            with self.lock:
                self.count()
            return self.calls[name](*args, **kwargs)

        return call

    def count(self):
        self.left -= 1
        if self.left < 0:
            self.crash()

    def crash(self):
        for fd, ranges in self.unsynced.values():
            size = os.fstat(fd).st_size
            for offset, nbytes in ranges:
                if self.lost.random() < 0.7 and offset < size:
                    nbytes = min(nbytes, size - offset)
                    start = self.lost.randrange(0, nbytes + 1, 512)
                    self.calls["pwrite"](fd, bytes(nbytes - start), offset + start)
        os._exit(42)

    def pwrite(self, fd, data, offset):
        with self.lock:
            self.count()
            if self.lost is not None:
                key = os.fstat(fd).st_ino
                if key not in self.unsynced:
                    self.unsynced[key] = (os.dup(fd), [])
                self.unsynced[key][1].append((offset, len(data)))
            return self.calls["pwrite"](fd, data, offset)

    def fsync(self, fd):
        with self.lock:
            self.count()
            self.unsynced.pop(os.fstat(fd).st_ino, None)
            return self.calls["fsync"](fd)


def crash_in(step, root, n, lost):
    """Run a step in a child process; return whether it reached its n-th call."""
    pid = os.fork()
    if pid == 0:
        try:
            CrashingCalls(n, lost)
            step(root)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, 42)
    return code == 42


@needs_fork
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("lost", [False, True], ids=["killed", "power loss"])
@pytest.mark.parametrize("k", range(len(STEPS)), ids=[s.__name__ for s in STEPS])
def test_a_crash_at_any_call_leaves_the_state_before_or_after(tmp_path, k, lost):
    states = []
    for number in range(2):  # the states before and after the step
        root = tmp_path / f"state{number}"
        for step in STEPS[: k + number]:
            step(root)
        states.append(contents(root) if k + number else {})
    crashed, n = True, 0
    while crashed:
        root = tmp_path / f"crash{n}"
        if k:
            shutil.copytree(tmp_path / "state0", root)
        crashed = crash_in(STEPS[k], root, n, lost)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with ShardedDatasetWriter(root, samples_per_shard=3) as writer:
                writer.add_fields(["a", "b"])
        found = contents(root)
        assert found in states, n
        if not crashed:
            assert found == states[1]
        with ShardedDatasetWriter(root, samples_per_shard=3) as writer:
            writer.add_sample({"a": np.arange(3), "b": np.arange(3)}, "after")
        assert contents(root) == {**found, "after": ({}, {f: [0, 1, 2] for f in "ab"})}
        files = [name for _, _, names in os.walk(root) for name in names]
        assert not [name for name in files if name.startswith(".")]
        n += 7 if n >= 30 else 1 if LONG or n < 6 else 3
    assert n > 3


# ------------------------------------------------------------- full disks


class FailingCall:
    """Patch of a function of `os` that fails from its n-th call on."""

    def __init__(self, monkeypatch, name, code, n):
        self.left = n
        self.code = code
        self.call = getattr(os, name)
        monkeypatch.setattr(os, name, self)

    def __call__(self, *args):
        self.left -= 1
        if self.left < 0:
            raise OSError(self.code, os.strerror(self.code))
        return self.call(*args)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 5, 8])
@pytest.mark.parametrize(
    ("name", "code"), [("pwrite", errno.ENOSPC), ("fsync", errno.EIO)]
)
def test_a_write_that_fails(root, monkeypatch, name, code, n):
    writer = ShardedDatasetWriter(root, samples_per_shard=3)
    writer.add_fields(["a", "b"])
    for i in range(4):
        writer.add_sample({"a": np.arange(i), "b": np.array(i)}, str(i))
    writer.flush()
    acknowledged = [contents(root)]

    def fill():
        for i in range(4, 20):
            writer.add_sample({"a": np.arange(i), "b": np.array(i)}, str(i))
            if i % 5 == 0:
                writer.flush()
                acknowledged.append(contents(root))

    with monkeypatch.context() as patch:
        FailingCall(patch, name, code, n)
        with pytest.raises(OSError, match="since the last flush are not stored") as got:
            fill()
        assert got.value.errno == code
        assert writer.closed
        with pytest.raises(ClosedError, match="could not store"):
            writer.add_sample({})
        writer.close()
    before = acknowledged[-1]
    assert contents(root, ended=False) == before
    with ShardedDatasetWriter(root, samples_per_shard=3) as again:
        again.add_sample({"a": np.arange(3)}, "more")
    assert len(read_all(root)) == len(before) + 1


def test_a_full_index(root):
    writer = ShardedDatasetWriter(root)
    writer.add_field("a")
    writer.add_sample({"a": np.arange(3)}, "x")
    writer.flush()
    (pages,) = writer.conn.execute("PRAGMA page_count").fetchone()
    writer.conn.execute(f"PRAGMA max_page_count = {pages + 2}")

    def fill():
        while True:
            writer.add_sample({"a": np.arange(3)}, metadata={"i": "x" * 100})

    with pytest.raises(OSError, match="not stored") as got:
        fill()
    assert got.value.errno == errno.ENOSPC
    assert writer.closed
    assert list(read_all(root)) == ["x"]


def test_a_commit_that_fails_cuts_nothing(root, monkeypatch):
    """The commit may be on disk: only the next writer, from the index, knows."""
    writer = ShardedDatasetWriter(root)
    writer.add_field("a")
    writer.add_sample({"a": np.arange(3)}, "x")
    path = root / "a_shards" / "shard_0000.tar"

    class Cursor(sqlite3.Cursor):
        def execute(self, sql, *args):
            super().execute(sql, *args)
            if sql == "COMMIT":
                error = sqlite3.OperationalError("disk I/O error")
                error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
                raise error
            return self

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "Cursor", Cursor)
        with pytest.raises(OSError, match="not stored") as got:
            writer.flush()
    assert got.value.errno == errno.EIO
    assert len(read_members(path)) == 1
    ShardedDatasetWriter(root).close()
    assert list(read_all(root)) == ["x"]


# ------------------------------------------------------------- other programs


def write_samples(root, count=3):
    with ShardedDatasetWriter(root, samples_per_shard=100) as writer:
        writer.add_field("a")
        for i in range(count):
            writer.add_sample({"a": np.arange(i)}, str(i))
    return root / "a_shards" / "shard_0000.tar"


def append_foreign(root, path, id_, array, offset):
    """Append a member with tarfile, and write its row, as another program does."""
    import io
    import tarfile

    data = io.BytesIO()
    np.save(data, array)
    with tarfile.open(path, "a") as tar:
        info = tarfile.TarInfo(f"{id_}.npy")
        info.size = data.tell()
        data.seek(0)
        tar.addfile(info, data)
    conn = sqlite3.connect(root / "index.sqlite")
    conn.execute(
        "INSERT OR IGNORE INTO samples (id, meta_json) VALUES (?, '{}')", (id_,)
    )
    conn.execute(
        "UPDATE samples SET a_offset = ?, a_shard = 0 WHERE id = ?", (offset, id_)
    )
    conn.commit()
    conn.close()


def test_members_that_others_appended_are_adopted(root):
    path = write_samples(root)
    append_foreign(root, path, "x", np.arange(7), 0)
    append_foreign(root, path, "1", np.arange(8), 184)
    before = path.read_bytes()
    with ShardedDatasetWriter(root, samples_per_shard=100) as writer:
        writer.add_sample({"a": np.arange(9)}, "y")
    names = [name for name, _, _ in read_members(path)]
    assert names == ["0.npy", "1.npy", "2.npy", "x.npy", "1.npy", "y.npy"]
    assert path.read_bytes()[: 5 * 1024] == before[: 5 * 1024]
    with ShardedDatasetWriter(root, samples_per_shard=100) as writer:
        writer.compact()
    found = read_all(root)
    assert [len(s["a"]) for _, s in found.values()] == [0, 8, 2, 7, 9]


@pytest.mark.parametrize(
    "tail",
    [b"\xff" * 700, b"\0" * 5000, b"\0" * 600 + b"x" * 600, b"header"],
    ids=["garbage", "zeros", "hole", "short"],
)
def test_a_torn_tail_is_cut(root, tail):
    path = write_samples(root)
    before = contents(root)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1024] + tail)
    with ShardedDatasetWriter(root, samples_per_shard=100) as writer:
        writer.add_sample({"a": np.arange(9)}, "y")
    assert contents(root) == {**before, "y": ({}, {"a": list(range(9))})}


def test_a_torn_tail_as_long_as_the_end_is_cut_in_any_shard(root):
    with ShardedDatasetWriter(root, samples_per_shard=2) as writer:
        writer.add_field("a")
        for i in range(6):
            writer.add_sample({"a": np.full(9, i)})
    path = root / "a_shards" / "shard_0000.tar"
    whole = path.read_bytes()
    assert whole.endswith(bytes(1024))
    path.write_bytes(
        whole[:-1024] + whole[:1024]
    )  # a member in place of the archive's end
    assert path.stat().st_size == len(whole)

    with ShardedDatasetWriter(root, samples_per_shard=2):
        pass

    assert path.read_bytes() == whole


def test_members_without_rows_are_cut(root):
    path = write_samples(root)
    append_foreign(root, path, "x", np.arange(7), 0)
    conn = sqlite3.connect(root / "index.sqlite")
    conn.execute("DELETE FROM samples WHERE id = 'x'")
    conn.commit()
    conn.close()
    ShardedDatasetWriter(root).close()
    assert [name for name, _, _ in read_members(path)] == ["0.npy", "1.npy", "2.npy"]


@pytest.mark.parametrize("size", [None, 0, 1024])
def test_a_shortened_shard_is_left_alone(root, size):
    path = write_samples(root)
    path.unlink() if size is None else os.truncate(path, size)
    with (
        pytest.warns(RuntimeWarning, match="arrays are lost"),
        ShardedDatasetWriter(root) as writer,
    ):
        writer.add_sample({"a": np.arange(9)}, "y")
    assert sql(root, "SELECT a_shard FROM samples WHERE id = 'y'") == [(1,)]
    assert (path.stat().st_size if path.exists() else None) == size


def test_linked_files_are_not_written_to(root, tmp_path):
    path = write_samples(root)
    other = tmp_path / "other.tar"
    path.rename(other)
    path.symlink_to(other)
    before = other.read_bytes()
    with ShardedDatasetWriter(root) as writer:
        writer.add_sample({"a": np.arange(9)}, "y")
    assert other.read_bytes() == before
    path.unlink()
    os.link(other, path)  # as a snapshot does
    with ShardedDatasetWriter(root) as writer:
        writer.add_sample({"a": np.arange(9)}, "z")
    assert other.read_bytes() == before
    assert len(read_all(root)) == 5


def test_a_dataset_of_others_is_continued(root, make_original):
    original = make_original(root.name, samples_per_shard=3)
    original.add_fields(["a"])
    for i in range(5):
        original.add_sample({"a": np.arange(i)}, sample_id=str(i))
    original.close()
    first = (root / "a_shards" / "shard_0000.tar").read_bytes()
    with ShardedDatasetWriter(root, samples_per_shard=3) as writer:
        writer.add_sample({"a": np.arange(5)}, "5")
        writer.add_sample({"a": np.arange(6)}, "6")
    assert (root / "a_shards" / "shard_0000.tar").read_bytes() == first
    rows = sql(root, "SELECT a_shard, count(*) FROM samples GROUP BY 1")
    assert rows == [(0, 3), (1, 3), (2, 1)]
    assert sql(root, "SELECT num_shards FROM fields") == [(3,)]
    with ShardedDatasetWriter(root, samples_per_shard=3) as writer:
        writer.compact()
    assert [len(s["a"]) for _, s in read_all(root).values()] == [*range(7)]


@needs_fork
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_crash_after_appending_to_a_shard_of_others(root, make_original):
    """Its rows find members by name: they must not find uncommitted ones."""
    original = make_original(root.name, samples_per_shard=3)
    original.add_fields(["a"])
    for i in range(2):
        original.add_sample({"a": np.arange(i)}, sample_id=str(i))
    original.update_sample("0", {"a": np.arange(7)})
    original.close()
    pid = os.fork()
    if pid == 0:
        writer = ShardedDatasetWriter(root, samples_per_shard=9)
        writer.update_sample("0", {"a": np.arange(100)})
        transaction_of(writer).prepare()  # written and synced, and never committed
        os._exit(0)
    os.waitpid(pid, 0)
    assert len(read_members(root / "a_shards" / "shard_0000.tar")) == 4
    assert [len(s["a"]) for _, s in read_all(root, whole=False).values()] == [7, 1]
    ShardedDatasetWriter(root).close()
    assert len(read_members(root / "a_shards" / "shard_0000.tar")) == 3
    assert [len(s["a"]) for _, s in read_all(root).values()] == [7, 1]
