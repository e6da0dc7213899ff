"""Exclusive access of a columnar writer: in a process, among processes, after fork."""

import gc
import os
import sqlite3
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

from fastshard.columnar.write.writer import ShardedDatasetWriter
from fastshard.errors import ClosedError, WriterLockedError
from support.columnar.stored import read_all, read_members

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")


def test_a_new_writer_closes_the_one_before(root, tmp_path):
    first = ShardedDatasetWriter(root)
    first.add_field("a")
    first.add_sample({"a": np.arange(2)})
    link = tmp_path / "link"
    link.symlink_to(root)
    second = ShardedDatasetWriter(link)
    assert first.closed
    with pytest.raises(ClosedError, match="closed"):
        first.add_sample({"a": np.arange(2)})
    with pytest.raises(ClosedError):
        first.conn.execute("SELECT 1")
    second.add_sample({"a": np.arange(3)})
    first.close()
    second.close()
    assert len(read_all(root)) == 2


def run_python(root, code):
    """Run code with the variable `root` in a new process."""
    code = f"root = {str(root)!r}\n" + textwrap.dedent(code)
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )


def test_a_second_process_is_refused(writer, root):
    done = run_python(
        root,
        """
        from fastshard.columnar.write.writer import ShardedDatasetWriter
        ShardedDatasetWriter(root)
        """,
    )
    assert "WriterLockedError" in done.stderr
    assert f"process {os.getpid()} writes to this dataset" in done.stderr
    writer.close()
    done = run_python(
        root,
        """
        from fastshard.columnar.write.writer import ShardedDatasetWriter
        ShardedDatasetWriter(root).close()
        """,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert issubclass(WriterLockedError, BlockingIOError)


def test_a_write_lock_of_another_program_on_the_index(writer, root):
    writer.conn.execute("PRAGMA busy_timeout=50")
    other = sqlite3.connect(root / "index.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(WriterLockedError, match="another program"):
        writer.add_sample({"a": np.arange(3)}, "x")
    other.execute("COMMIT")
    other.close()
    writer.add_sample({"a": np.arange(4)}, "x")
    writer.close()
    assert len(read_all(root)["x"][1]["a"]) == 4
    assert len(read_members(root / "a_shards" / "shard_0000.tar")) == 1


def test_a_dropped_writer_is_flushed(root):
    def drop():
        writer = ShardedDatasetWriter(root)
        writer.add_field("a")
        writer.add_sample({"a": np.arange(2)})

    with pytest.warns(ResourceWarning, match="without close"):
        drop()
    assert len(read_all(root)) == 1


def test_a_writer_open_at_exit_is_flushed(root):
    done = run_python(
        root,
        """
        import numpy as np
        from fastshard.columnar.write.writer import ShardedDatasetWriter
        writer = ShardedDatasetWriter(root, samples_per_shard=2)
        writer.add_field("a")
        for i in range(9):
            writer.add_sample({"a": np.arange(i)})
        """,
    )
    assert done.stderr == ""
    assert len(read_all(root)) == 9


@needs_fork
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_copy_raises_on_every_call(writer, root):
    for i in range(3):
        writer.add_sample({"a": np.arange(i)})
    receiver, sender = os.pipe()
    pid = os.fork()
    if pid == 0:
        errors = []
        calls = [writer.flush, writer.close, writer.conn.commit, writer.conn.close]
        calls.append(lambda: writer.add_sample({"a": np.arange(3)}))
        calls.append(lambda: writer.conn.execute("DELETE FROM samples"))
        calls.append(lambda: ShardedDatasetWriter(root))
        status = 1
        try:
            for call in calls:
                try:
                    call()
                except (ClosedError, WriterLockedError) as error:
                    errors.append(type(error).__name__)
            os.write(sender, " ".join(errors).encode())
            del writer
            gc.collect()
            status = 0
        finally:
            os._exit(status)  # the child must not run the rest of the tests
    assert os.waitpid(pid, 0)[1] == 0
    assert os.read(receiver, 1000).decode().split() == ["ClosedError"] * 6 + [
        "WriterLockedError"
    ]
    os.close(receiver)
    os.close(sender)
    writer.add_sample({"a": np.arange(3)})
    writer.close()
    assert len(read_all(root)) == 4


def test_threads_share_a_writer(writer, root):
    def work(k):
        for i in range(200):
            writer.add_sample({"a": np.array(i), "b": np.array(k)})
            if i % 50 == 0:
                writer.flush()

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    found = read_all(root)
    assert len(found) == 800
    assert {(int(s["a"]), int(s["b"])) for _, s in found.values()} == {
        (i, k) for i in range(200) for k in range(4)
    }


@pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="links are followed")
def test_a_lock_file_that_is_a_link_is_refused(root, tmp_path):
    ShardedDatasetWriter(root).close()
    target = tmp_path / "target"
    target.write_bytes(b"data")
    lock = root / "writer.lock"
    lock.unlink()
    lock.symlink_to(target)
    with pytest.raises(OSError, match="writer"):
        ShardedDatasetWriter(root)
    assert target.read_bytes() == b"data"
