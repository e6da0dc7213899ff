"""Readers under threads, forks, limits of open shards, and changes of the files."""

import gc
import os
import subprocess
import sys
import tarfile

import numpy as np
import pytest

import fastshard
from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter
from fastshard.errors import FieldNotFoundError, FormatError
from support.inside.columnar import forget_asked, open_sources, samples_of, snapshot_of
from support.inside.datasets import sources_of
from support.marks import not_sanitized
from support.memory import evict
from support.paths import TESTS
from support.threads import in_threads

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
COUNT = 120


def value(i):
    return np.full(300, i, np.float64)


def write(root, count=COUNT, per_shard=10, first=0):
    with ShardedDatasetWriter(root, samples_per_shard=per_shard) as writer:
        if first == 0:
            writer.add_fields(["a", "b"])
        return [
            writer.add_sample({"a": value(i), "b": value(-i)})
            for i in range(first, first + count)
        ]


def assert_says_true(code):
    """Assert that code in a new process exits normally and prints a text."""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stdout) == (0, "True\n"), run.stderr


def test_threads_that_scan_one_shard_at_once(make_original):
    with make_original(samples_per_shard=10**6) as writer:
        writer.add_field("a")
        for i in range(3000):
            writer.add_sample({"a": np.array(i)}, sample_id=f"s{i}")
    for _ in range(5):
        with ShardedDatasetReader(writer.root) as reader:

            def read(k, reader=reader):
                for i in range(k, 3000, 97):
                    assert reader.get_sample(f"s{i}")[0]["a"] == i

            in_threads(read)


@pytest.mark.parametrize("limit", [1, 3])
def test_more_shards_in_use_than_the_limit(tmp_path, limit):
    write(tmp_path / "d")
    shards = sorted((tmp_path / "d").glob("*_shards/*.tar"))
    for cold in (False, True):
        with fastshard.open(tmp_path / "d", max_mapped=limit) as ds:
            if cold:
                evict(*shards)
            assert [s["a"][0] for s in ds] == list(range(COUNT))
            batch = next(iter(ds.shuffle(3).batches(64)))
            np.testing.assert_array_equal(batch["a"], -batch["b"])
            columns = ds.columns(range(0, COUNT, 7), ["b"])
            np.testing.assert_array_equal(columns["b"][:, 0], range(0, -COUNT, -7))
            assert len(sources_of(ds)) <= limit


def test_threads_with_shards_that_do_not_stay_open(tmp_path):
    ids = write(tmp_path / "d")
    with ShardedDatasetReader(tmp_path / "d", cache_tars=False) as reader:
        samples = reader.samples

        def read(k):
            for i in range(k, COUNT, 3):
                assert reader.get_sample(ids[i])[0]["a"][0] == i
                assert samples[i]["b"][0] == -i
                assert reader.columns([i, 0])["a"][0][0] == i

        in_threads(read)


def test_a_shard_rewritten_under_a_reader(make_original):
    ids = [f"s{i}" for i in range(5)]
    with make_original() as writer:
        writer.add_field("a")
        writer.register_samples(ids)
        writer.write_shard("a", 0, ids, [value(i) for i in range(5)])
    with ShardedDatasetReader(writer.root, cache_tars=False) as reader:
        np.testing.assert_array_equal(reader.columns(range(5))["a"][:, 0], range(5))
        with make_original() as writer:  # in another order, with another dtype
            arrays = [value(i).astype(np.int64) for i in range(5)]
            writer.write_shard("a", 0, ids[::-1], arrays[::-1])
        for call in (
            lambda: reader.columns(range(5)),
            lambda: reader.samples[3],
            lambda: list(reader.scan(batch_size=2)),
        ):
            with pytest.raises(FormatError, match="refresh"):
                call()
        reader.refresh()
        found = reader.columns(range(5))["a"]
        assert found.dtype == np.int64
        np.testing.assert_array_equal(found[:, 0], range(5))


@not_sanitized
def test_a_shard_truncated_during_a_scan(tmp_path):
    """In a new process: touching truncated pages would kill it."""
    write(tmp_path / "d", 2000, per_shard=2000)
    shard = tmp_path / "d" / "a_shards" / "shard_0000.tar"
    code = f"""
import os, sys
sys.path.insert(0, {os.fspath(TESTS)!r})
from pathlib import Path
from support.memory import evict
from fastshard.columnar import ShardedDatasetReader
from fastshard.errors import FormatError
reader = ShardedDatasetReader({os.fspath(tmp_path / "d")!r}, max_memory="1MiB")
reader.samples
shard = Path({os.fspath(shard)!r})
evict(shard)
scan = reader.scan("a", batch_size=16)
next(scan)
os.truncate(shard, 1 << 20)
evict(shard)
try:
    for _ in scan:
        pass
except FormatError as error:
    print("shard_0000.tar" in str(error))
"""
    assert_says_true(code)


@not_sanitized
def test_a_cached_shard_truncated_before_a_scan(tmp_path):
    """The prefetching thread does not touch the truncated pages."""
    ids = write(tmp_path / "d", 2000, per_shard=2000)
    code = f"""
import os
from fastshard.columnar import ShardedDatasetReader
from fastshard.errors import FormatError
reader = ShardedDatasetReader({os.fspath(tmp_path / "d")!r})
reader.get_sample({ids[0]!r})
os.truncate({os.fspath(tmp_path / "d" / "a_shards" / "shard_0000.tar")!r}, 1 << 20)
try:
    for _ in reader.scan("a"):
        pass
except FormatError as error:
    print("shard_0000.tar" in str(error))
"""
    assert_says_true(code)


@pytest.mark.parametrize("batch_size", [None, 50])
def test_a_scan_over_swapped_members(tmp_path, batch_size):
    """Two members that were swapped with their headers are found by name."""
    ids = write(tmp_path / "d", 200, per_shard=200)
    shard = tmp_path / "d" / "a_shards" / "shard_0000.tar"
    with tarfile.open(shard) as tar:
        places = [(m.offset, m.offset_data, m.size) for m in tar]
    (first, _, size), (second, at, _) = places[20], places[120]
    whole = bytearray(shard.read_bytes())
    length = at - second + size
    one, other = whole[first:][:length], whole[second:][:length]
    whole[first : first + length], whole[second : second + length] = other, one
    shard.write_bytes(whole)
    with ShardedDatasetReader(tmp_path / "d") as reader:
        found = list(reader.scan("a", batch_size=batch_size))
        expected = [reader.get_sample(key)[0]["a"] for key in ids]
    keys, arrays = [], []
    for part in found:
        keys += part["__key__"] if batch_size else [part["__key__"]]
        arrays += list(part["a"]) if batch_size else [part["a"]]
    by_key = dict(zip(keys, arrays, strict=True))
    assert len(keys) == 200
    for i, key in enumerate(ids):
        np.testing.assert_array_equal(by_key[key], expected[i])
        assert by_key[key][0] == i


@needs_fork
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_sees_one_state(tmp_path):
    root = tmp_path / "d"
    ids = write(root, 5, per_shard=100)
    with ShardedDatasetReader(root) as reader:
        assert len(reader.samples) == 5
        reader.get_sample(ids[0])
        with ShardedDatasetWriter(root) as writer:
            ids.append(writer.add_sample({"a": value(5)}))
            writer.update_sample(ids[0], {"a": value(50)})
            writer.add_field("c")
            writer.update_sample(ids[1], {"c": value(1)})
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                assert reader.query_ids() == ids
                assert len(reader) == len(reader.samples) == 6
                assert reader.get_sample(ids[5])[0]["a"][0] == 5
                for column in (reader.columns(ids, "a"), reader.columns(range(6), "a")):
                    assert column["a"][:, 0].tolist() == [50, 1, 2, 3, 4, 5]
                assert [s["__key__"] for s in reader.scan("c")] == [
                    ids[1],
                    *ids[:1],
                    *ids[2:],
                ]
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
        assert reader.list_fields() == ["a", "b"]  # the parent's snapshot is unchanged
        assert reader.get_sample(ids[0])[0]["a"][0] == 0


def test_a_failed_refresh_leaves_one_state(tmp_path, monkeypatch):
    import fastshard.columnar.read.snapshot as module

    root = tmp_path / "d"
    write(root, 5)
    with ShardedDatasetReader(root) as reader:
        assert len(reader.samples) == 5
        write(root, 5, first=5)

        def fail(*args):
            raise FormatError("no", "path", 0)

        with monkeypatch.context() as patch:
            patch.setattr(module, "read_fields", fail)
            with pytest.raises(FormatError):
                reader.refresh()
        assert len(reader) == len(reader.samples) == len(reader.query_ids()) == 10


def test_memory_of_a_scan_of_large_samples(tmp_path):
    with ShardedDatasetWriter(tmp_path / "d") as writer:
        writer.add_field("x")
        for i in range(60):
            writer.add_sample({"x": np.full(1 << 17, i, np.float64)})
    with ShardedDatasetReader(tmp_path / "d", max_memory="16MiB") as reader:
        most = 0
        for i, sample in enumerate(reader.scan()):
            assert sample["x"].sum() == i << 17
            (source,) = open_sources(reader)
            most = max(most, resident_from(source.address))
    assert 0 < most < 24 << 20


def resident_from(address):
    """Return the resident bytes of the mapping at an address."""
    with open("/proc/self/smaps") as file:
        for line in file:
            if line.startswith(f"{address:x}-"):
                for follows in file:
                    if follows.startswith("Rss:"):
                        return int(follows.split()[1]) << 10
    return 0


def test_a_dropped_reader_releases_its_files(tmp_path):
    ids = write(tmp_path / "d", 5)
    gc.collect()
    gc.disable()
    try:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            reader = ShardedDatasetReader(tmp_path / "d")
            reader.get_sample(ids[0])
            samples = reader.samples
            del reader
            assert samples[4]["a"][0] == 4  # the samples keep the files
        del samples
        assert len(os.listdir("/proc/self/fd")) <= before
    finally:
        gc.enable()


def test_arrays_and_samples_outlive_a_dropped_reader(tmp_path):
    ids = write(tmp_path / "d", 30)
    for item in ShardedDatasetReader(tmp_path / "d").scan():
        assert item["a"][0] == ids.index(item["__key__"])
    samples = list(fastshard.open(tmp_path / "d"))
    sample = fastshard.open(tmp_path / "d")[7]
    gc.collect()
    assert sample["a"][0] == 7
    assert sample.metadata == {}
    assert [sample["b"][0] for sample in samples] == list(range(0, -30, -1))


def test_many_small_columns_do_not_leak(tmp_path):
    ids = write(tmp_path / "d", 100)
    with ShardedDatasetReader(tmp_path / "d") as reader:
        reader.columns(ids[:2])
        before = None
        for k in range(400):
            forget_asked(reader)
            reader.columns(ids[:2])
            if k == 100:
                gc.collect()
                before = len(gc.get_objects())
        gc.collect()
        assert len(gc.get_objects()) < before + 100


def test_strings_and_axes_of_length_zero(tmp_path):
    arrays = {
        "a": np.zeros(3, "U0"),
        "b": np.zeros((0, 1 << 20, 5)),
        "c": np.array(7.0),
    }
    arrays["d"] = np.zeros((1,) * 64)
    with ShardedDatasetWriter(tmp_path / "d") as writer:
        writer.add_fields(list(arrays))
        ids = [writer.add_sample(arrays) for _ in range(3)]
    with ShardedDatasetReader(tmp_path / "d") as reader:
        for found in (reader.get_sample(ids[0])[0], reader.samples[1]):
            for field, array in arrays.items():
                np.testing.assert_array_equal(found[field], array)
        for item in reader.samples.__getitems__([0, 2]):
            assert type(item["c"]) is np.ndarray
            assert item["d"].shape == (1,) * 64
        columns = reader.columns(ids, ["a", "b", "c"])
        assert columns["a"].shape == (3, 3)
        assert columns["b"].shape == (3, 0, 1 << 20, 5)
        with pytest.raises(fastshard.FastshardError, match="64 axes"):
            reader.columns(ids, "d")
        assert len(reader.columns(ids, "d", ragged="list")["d"]) == 3
        with pytest.raises(FieldNotFoundError):
            samples_of(reader).columns_of(["z"])


def test_a_missing_member_is_a_format_error(tmp_path):
    ids = write(tmp_path / "d", 3, per_shard=100)
    shard = tmp_path / "d" / "a_shards" / "shard_0000.tar"
    whole = bytearray(shard.read_bytes())
    whole[: len(ids[0])] = b"another_one".ljust(len(ids[0]), b"_")
    shard.write_bytes(whole)
    with ShardedDatasetReader(tmp_path / "d") as reader:
        with pytest.raises(FormatError, match=ids[0]) as error:
            reader.get_sample(ids[0])
        assert not isinstance(error.value, KeyError)


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs /proc")
def test_errors_name_exhausted_descriptors(tmp_path):
    write(tmp_path / "d", 3)
    code = f"""
import os, resource
from fastshard.columnar import ShardedDatasetReader
with ShardedDatasetReader({os.fspath(tmp_path / "d")!r}):
    pass
used = len(os.listdir("/proc/self/fd")) - 1
for left in range(1, 6):
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + left, used + 100))
    try:
        with ShardedDatasetReader({os.fspath(tmp_path / "d")!r}) as reader:
            assert len(reader) == 3
    except OSError as error:
        assert error.errno == 24, error
"""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr


def test_a_very_large_array(tmp_path):
    """Above 8 GiB the size is in a pax header; the file is sparse."""
    root = tmp_path / "d"
    (sample_id,) = write(root, 1, per_shard=100)
    shard = root / "a_shards" / "shard_0000.tar"
    from fastshard.formats.tar_writer import MARK, HeaderEncoder

    count = (1 << 33) + 7
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({count},), }}".encode()
    text = text.ljust(117) + b"\n"
    npy = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
    header = HeaderEncoder(0o644, 0, MARK).member(
        f"{sample_id}.npy".encode(), 128 + count
    )
    with open(shard, "wb") as file:
        file.write(header + npy)
        file.seek(count - 1, os.SEEK_CUR)
        file.write(b"\x05")
        file.truncate(-(-file.tell() // 512) * 512 + 1024)
    import sqlite3

    conn = sqlite3.connect(root / "index.sqlite")
    conn.execute("UPDATE samples SET a_offset = ?", (len(header),))
    conn.execute(
        "UPDATE fastshard_shards SET nbytes = ?", (shard.stat().st_size - 1024,)
    )
    conn.commit()
    conn.close()
    with ShardedDatasetReader(root) as reader:
        for array in (reader.get_sample(sample_id)[0]["a"], reader.samples[0]["a"]):
            assert array.shape == (count,)
            assert array[-1] == 5
        assert not snapshot_of(reader).files.file("a", 0).is_scanned
