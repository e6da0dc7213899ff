"""Columnar writers that are killed, lose power or fill the disk; locks and forks.

Short runs of tests/columnar_crash.py; its output names the seed of a failure.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter
from fastshard.errors import WriterLockedError
from support.marks import LONG, needs, not_sanitized, slow
from support.paths import TESTS
from support.processes import environment, run_on_mount, start

SECONDS = 8 if LONG else 3
PROCESSES = 3 if LONG else 2

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


@linux
@not_sanitized  # watched.c and the sanitizer's runtime must both be preloaded first
@pytest.mark.parametrize(
    "kind", ["kills", *(pytest.param(k, marks=slow) for k in ("losses", "errors"))]
)
def test_acknowledged_samples_survive(kind):
    needs(os.environ.get("CC", "cc").split()[0])
    script = TESTS / "columnar_crash.py"
    seeds = range(PROCESSES)
    children = [
        start(script, kind, SECONDS, seed, stderr=subprocess.STDOUT) for seed in seeds
    ]
    outputs = [child.communicate(timeout=300)[0] for child in children]
    assert [child.returncode for child in children] == [0] * PROCESSES, "\n".join(
        outputs
    )


@linux
def test_readers_beside_a_writer_see_complete_samples():
    child = start(
        TESTS / "columnar_crash.py", "reading", 1, 0, stderr=subprocess.STDOUT
    )
    outputs = child.communicate(timeout=300)[0]
    assert child.returncode == 0, outputs


HOLD = """
import sys
from fastshard.columnar import ShardedDatasetWriter
writer = ShardedDatasetWriter(sys.argv[1])
writer.add_fields(["a", "b"])
writer.add_sample({"a": [1, 2]}, "stored")
writer.flush()
writer.add_sample({"a": [1, 2]}, "not stored")
print("open", flush=True)
input()
writer.close()
"""


def test_a_second_process_is_refused_with_the_writers_process_id(tmp_path):
    with start("-c", HOLD, tmp_path) as holder:
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(WriterLockedError, match=f"{holder.pid}") as caught:
            ShardedDatasetWriter(tmp_path)
        assert isinstance(caught.value, BlockingIOError)
        with ShardedDatasetReader(tmp_path) as reader:  # readers are not locked out
            assert reader.query_ids() == ["stored"]
        holder.communicate("\n")
    assert holder.returncode == 0  # the holder was not disturbed
    with ShardedDatasetWriter(tmp_path) as writer:
        writer.add_sample({"a": [3]}, "mine")
    with ShardedDatasetReader(tmp_path) as reader:
        assert reader.query_ids() == ["stored", "not stored", "mine"]


@pytest.mark.skipif(os.name == "nt", reason="no SIGKILL there")
def test_the_lock_of_a_killed_writer_is_free_at_once(tmp_path):
    with start("-c", HOLD, tmp_path) as holder:
        assert holder.stdout.readline() == "open\n"
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with ShardedDatasetWriter(tmp_path) as writer:
            writer.add_sample({"a": [3]}, "mine")
    with ShardedDatasetReader(tmp_path) as reader:
        assert reader.query_ids() == ["stored", "mine"]
        np.testing.assert_array_equal(reader.get_sample("stored")[0]["a"], [1, 2])


FORK = """
import gc, os, subprocess, sys, warnings
import numpy as np
from fastshard.columnar import ShardedDatasetWriter
from fastshard.errors import FastshardError
warnings.simplefilter("error")
warnings.filterwarnings("ignore", "This process .* is multi-threaded")

def contents():  # in another process: closing the files here would drop the locks
    files = ["-type", "f", "!", "-name", "*-shm"]
    command = ["find", sys.argv[1], *files, "-exec", "cksum", "{}", "+"]
    return subprocess.check_output(command)

writer = ShardedDatasetWriter(sys.argv[1])
writer.add_field("a")
writer.add_sample({"a": np.arange(5)}, "one")
writer.flush()
writer.add_sample({"a": np.arange(300_000)}, "two")
before = contents()
child = os.fork()
if child == 0:
    if sys.argv[2] == "uses":
        for use in (
            lambda: writer.add_sample({"a": np.arange(3)}, "three"),
            lambda: writer.update_sample("one", {"a": np.arange(3)}),
            lambda: writer.conn.execute("UPDATE samples SET meta_json = 'x'"),
            writer.flush,
            writer.conn.commit,
            writer.compact,
            writer.close,
        ):
            try:
                use()
            except (FastshardError, RuntimeError):
                continue
            os._exit(3)
    elif sys.argv[2] == "drops":
        del writer
        gc.collect()
    elif sys.argv[2] == "opens":
        try:
            ShardedDatasetWriter(sys.argv[1])
        except BlockingIOError:
            sys.exit(0)
        os._exit(4)
    sys.exit(0)  # runs atexit functions
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert status == 0, status
assert contents() == before, "the child has written"
writer.add_sample({"a": np.arange(7)}, "three")
writer.close()
"""


@forks
@pytest.mark.parametrize("what", ["uses", "drops", "opens", "leaves"])
def test_a_forked_child_neither_flushes_nor_closes_its_parents_writer(tmp_path, what):
    done = subprocess.run(
        [sys.executable, "-c", FORK, tmp_path / "data", what],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    with ShardedDatasetReader(tmp_path / "data") as reader:
        found = [arrays["a"].size for arrays, _ in reader.get_many(reader.query_ids())]
    assert found == [5, 300_000, 7]


FULL = """
import errno, os, sys
import numpy as np
from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter
root, size = sys.argv[1] + "/data", int(sys.argv[2])
stored = []

def check():
    with ShardedDatasetReader(root) as reader:
        ids = reader.query_ids()
        assert ids[: len(stored)] == stored, (ids, stored)
        for i, (arrays, _) in enumerate(reader.get_many(ids)):
            assert (arrays["a"] == i).all() and len(arrays["a"]) == size

writer = ShardedDatasetWriter(root, samples_per_shard=20)
writer.add_field("a")
for i in range(100_000):
    try:
        added = writer.add_sample({"a": np.full(size, i, "u1")})
        writer.flush()
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
        break
    stored.append(added)
    ballast = sys.argv[1] + "/ballast"
    if i == 0:
        with open(ballast, "wb") as file:
            file.write(bytes(200_000))
assert len(stored) > 5
try:
    writer.close()
except OSError as error:
    assert error.errno == errno.ENOSPC, error
check()  # the disk is still full
try:
    ShardedDatasetWriter(root).close()
except OSError as error:
    assert error.errno == errno.ENOSPC, error
check()
os.unlink(ballast)
with ShardedDatasetWriter(root, samples_per_shard=20) as writer:
    count = writer.conn.execute("SELECT count(*) FROM samples").fetchone()[0]
    stored.append(writer.add_sample({"a": np.full(size, count, "u1")}))
check()
print(len(stored))
"""


@linux
@pytest.mark.parametrize("size", [100, 3_000, 100_000])
def test_a_full_disk_is_an_error_and_the_dataset_stays_readable(tmp_path, size):
    script = tmp_path / "full.py"
    script.write_text(FULL)
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size=2m tmpfs {disk}"
    command = f"{sys.executable} {script} {disk} {size}"
    done = run_on_mount(mount, command, 120)
    assert done.returncode == 0, done.stderr
