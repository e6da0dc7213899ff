"""KeyboardInterrupt anywhere in a writer: acknowledged samples stay, it goes on."""

import errno
import gc
import os
import sys
import time
import warnings

import numpy as np
import pytest

from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter
from fastshard.columnar.write import append_file, fields, lock
from fastshard.columnar.write.session import WriterSession
from support.columnar.stored import lengths, read_all
from support.inside.columnar import ADD_COLUMN, unsynced_files
from support.marks import LONG, not_sanitized, thin

pytestmark = [
    not_sanitized,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # writers are dropped
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(autouse=True)
def _collect_garbage():
    """Collect objects kept by an interrupt here, not in other tests."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def interrupt(event, function, call):
    """Interrupt a call at the "call" or "return" (`event`) of a function in it."""

    def look(frame, now, _):
        if now == event and frame.f_code is function.__code__:
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(look)
    try:
        with pytest.raises(KeyboardInterrupt):
            call()
    finally:
        sys.setprofile(None)


def test_an_interrupted_release_of_the_lock_is_repeated(tmp_path):
    root = tmp_path / "data"
    writer = ShardedDatasetWriter(root)
    writer.add_field("a")
    writer.add_sample({"a": np.arange(3)}, "x")
    interrupt("call", lock.unlock, writer.close)
    with ShardedDatasetWriter(root) as other:  # closes the one before
        other.add_sample({"a": np.arange(4)}, "y")
    writer.close()
    assert lengths(root) == {"x": 3, "y": 4}


@pytest.mark.parametrize("waits", [True, False])
def test_a_full_shard_is_queued_twice(tmp_path, waits):
    root = tmp_path / "data"
    with ShardedDatasetWriter(root, samples_per_shard=2) as writer:
        writer.add_field("a")
        writer.add_sample({"a": np.arange(1)}, "0")
        writer.flush()
        writer.add_sample({"a": np.arange(2)}, "1")
        add = append_file.SyncQueue.add
        interrupt("return", add, lambda: writer.add_sample({"a": np.arange(3)}, "2"))
        if waits:  # until the file is synced and closed
            until = time.monotonic() + 60
            while unsynced_files(writer) and time.monotonic() < until:
                time.sleep(0.01)
        for i in range(3, 8):
            writer.add_sample({"a": np.arange(i + 1)}, f"{i}")
    found = lengths(root)
    assert found.pop("2", 3) == 3
    assert found == {f"{i}": i + 1 for i in (0, 1, 3, 4, 5, 6, 7)}


@pytest.mark.parametrize(
    ("event", "function"),
    [
        ("call", fields.insert_field),
        ("return", fields.insert_field),
        ("call", ADD_COLUMN),
        ("return", ADD_COLUMN),
        ("call", WriterSession.flush),
    ],
)
def test_a_field_is_added_again(tmp_path, event, function):
    root = tmp_path / "data"
    with ShardedDatasetWriter(root) as writer:
        writer.add_field("a")
        interrupt(event, function, lambda: writer.add_field("b"))
        writer.add_field("b")
        writer.add_sample({"a": np.arange(1), "b": np.arange(2)}, "x")
    assert [len(array) for array in read_all(root)["x"][1].values()] == [1, 2]


def test_interrupts_at_every_call(tmp_path):
    """Interrupt the n-th call of a session, for n up to the last call."""
    acknowledged = {}
    interrupted = 0
    gc.collect()
    gc.freeze()  # objects of other tests need not be collected each time
    for n in thin(range(1, 5000, 9), 2):
        # Few sessions each: a session opens all shards.
        root = tmp_path / f"data-{n // 130}"
        calls = 0

        def look(frame, event, _, n=n):
            nonlocal calls
            if event == "call" and "columnar" in frame.f_code.co_filename:
                calls += 1
                if calls == n:
                    sys.setprofile(None)
                    raise KeyboardInterrupt

        try:
            sys.setprofile(look)
            writer = ShardedDatasetWriter(root, samples_per_shard=2)
            writer.add_fields(["a", "b"])
            for k in range(2):
                for i in range(3):
                    writer.add_sample({"a": np.full(n, i)}, f"{n}/{k}/{i}")
                writer.flush()
                ids = {f"{n}/{k}/{i}": (n, i) for i in range(3)}
                acknowledged.setdefault(root, {}).update(ids)
            writer.close()
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            sys.setprofile(None)
            writer = None
            gc.collect()
        if calls < n:
            break
    else:
        pytest.fail("sessions have more calls than are tested")
    assert interrupted > (50 if LONG else 25)
    assert sum(map(len, acknowledged.values())) > (30 if LONG else 15)
    for root, ids in acknowledged.items():
        check_acknowledged(root, ids)


def check_acknowledged(root, ids):
    """Check that a dataset is sound and has the samples, (size, value) by id."""
    with ShardedDatasetReader(root) as reader:
        assert reader.verify() == []
        for sample_id, (size, value) in ids.items():
            found = reader.get_sample(sample_id)[0]["a"]
            assert (found == np.full(size, value)).all()
            assert len(found) == size


def test_a_dropped_writer_releases_the_lock(tmp_path):
    def drop():
        writer = ShardedDatasetWriter(tmp_path / "data")
        interrupt("call", lock.unlock, writer.close)

    drop()
    gc.collect()
    with ShardedDatasetWriter(tmp_path / "data") as writer:
        writer.add_field("a")


@pytest.mark.skipif(not hasattr(os, "SEEK_DATA"), reason="no SEEK_DATA")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_holes_of_a_large_file_are_skipped(tmp_path):
    path = tmp_path / "hole"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.ftruncate(fd, 1 << 43)
        try:
            os.lseek(fd, 0, os.SEEK_DATA)
        except OSError as error:
            assert error.errno == errno.ENXIO
        else:  # this file system has no holes
            return
        assert append_file.is_zero_from(fd, 512)
        assert append_file.is_zero_from(fd, (1 << 43) - 1)
        os.pwrite(fd, b"\0" * 100, 1 << 30)
        assert append_file.is_zero_from(fd, 0)
        os.pwrite(fd, b"x", (1 << 43) - 1)
        assert not append_file.is_zero_from(fd, 0)
        assert not append_file.is_zero_from(fd, (1 << 43) - 1)
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
    finally:
        os.close(fd)
