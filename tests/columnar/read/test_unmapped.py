"""Shards that are read with pread at first, and mapped after some reads."""

from __future__ import annotations

import os

import numpy as np
import pytest

import fastshard._core.columnar.column_file as column_file
from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter
from fastshard.columnar.layout import shard_files
from fastshard.columnar.read import lookup
from fastshard.errors import FormatError
from support.inside.columnar import lookup_of

COUNT = 24
PER_SHARD = 4
READS = 32  # of a shard, before it is mapped
SHARD = "a_shards/shard_0001.tar"

pytestmark = pytest.mark.skipif(os.name == "nt", reason="all shards are mapped at once")


@pytest.fixture(autouse=True)
def unmapped(monkeypatch):
    monkeypatch.setattr(shard_files, "MAPPED_AT_ONCE", 0)


@pytest.fixture
def root(tmp_path):
    return write(tmp_path / "d")


@pytest.fixture
def packed(tmp_path):
    return write(tmp_path / "packed", pack=True)


def write(root, **options):
    with ShardedDatasetWriter(root, samples_per_shard=PER_SHARD, **options) as writer:
        writer.add_fields(["a", "b"])
        for i in range(COUNT):
            arrays = {"a": np.arange(i, i + 50), "b": np.full((i, 3), i, "f4")}
            if i % 5 == 0:
                del arrays["b"]
            writer.add_sample(arrays, f"s{i}", {"i": i})
    return root


def assert_sample(reader, i):
    arrays, metadata = reader.get_sample(f"s{i}")
    np.testing.assert_array_equal(arrays["a"], np.arange(i, i + 50))
    assert not arrays["a"].flags.writeable
    assert ("b" in arrays) == (i % 5 != 0)
    if i % 5:
        np.testing.assert_array_equal(arrays["b"], np.full((i, 3), i))
        assert arrays["b"].dtype == np.float32
    assert metadata == {"i": i}


def open_shards():
    """Return the paths of the shards to which the process has descriptors."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:  # the folder's own
            continue
    return [path for path in found if path.endswith(".tar")]


needs_proc = pytest.mark.skipif(
    not os.path.isdir("/proc/self/fd"), reason="descriptors are listed in /proc"
)


@needs_proc
@pytest.mark.parametrize("kind", ["root", "packed"])
def test_a_shard_is_mapped_after_some_reads(kind, request):
    with ShardedDatasetReader(request.getfixturevalue(kind)) as reader:
        for i in range(COUNT):
            assert_sample(reader, i)
        assert len(open_shards()) == 6 + 5  # fewer samples have b
        for _ in range(READS):
            assert_sample(reader, 1)
        assert len(open_shards()) == 5 + 4
        kept = [reader.get_sample(f"s{i}")[0] for i in range(COUNT)]
    assert open_shards() == []
    for i, arrays in enumerate(kept):
        np.testing.assert_array_equal(arrays["a"], np.arange(i, i + 50))


@needs_proc
def test_other_ways_of_reading_map_the_shards(root):
    with ShardedDatasetReader(root) as reader:
        first = reader.get_sample("s4")[0]["a"]
        samples = reader.samples
        mapped = samples[4]["a"]
        assert first.ctypes.data != mapped.ctypes.data
        assert open_shards() == []
        np.testing.assert_array_equal(first, mapped)
        columns = reader.columns([f"s{i}" for i in range(COUNT)], "a")
        np.testing.assert_array_equal(columns["a"][7], np.arange(7, 57))
        assert_sample(reader, 5)


@needs_proc
def test_few_descriptors_map_all_shards(root, monkeypatch):
    monkeypatch.setattr(column_file, "kept_limit", lambda **spared: 0)
    with ShardedDatasetReader(root) as reader:
        for i in range(COUNT):
            assert_sample(reader, i)
        assert open_shards() == []


@needs_proc
@pytest.mark.parametrize("option", [{"mode": "private"}, {"max_memory": "1MB"}])
def test_other_modes_map_at_once(root, option):
    with ShardedDatasetReader(root, **option) as reader:
        for i in range(COUNT):
            assert reader.get_sample(f"s{i}")[1] == {"i": i}
        assert open_shards() == []


def test_a_damaged_header_is_an_error_that_names_the_member(root):
    with open(root / SHARD, "r+b") as file:
        file.write(b"x")
    with ShardedDatasetReader(root) as reader:
        with pytest.raises(FormatError, match=r"s4\.npy") as raised:
            reader.get_sample("s4")
        assert raised.value.path == str(root / SHARD)
        assert_sample(reader, 5)


def test_damaged_array_headers_name_their_byte(root):
    with open(root / SHARD, "r+b") as file:
        file.seek(512)
        file.write(b"x")
    with ShardedDatasetReader(root) as reader:
        with pytest.raises(FormatError, match="magic") as raised:
            reader.get_sample("s4")
        assert (raised.value.member, raised.value.offset) == ("s4.npy", 512)


def test_a_truncated_shard_is_an_error(root):
    with ShardedDatasetReader(root) as reader:
        assert_sample(reader, 4)
        os.truncate(root / SHARD, 3 * 512)
        with pytest.raises(FormatError, match=r"s6\.npy") as raised:
            reader.get_sample("s6")
        assert raised.value.path == str(root / SHARD)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_reads_its_own(root):
    with ShardedDatasetReader(root) as reader:
        for i in range(COUNT):
            assert_sample(reader, i)
        pid = os.fork()
        if pid == 0:
            try:
                for i in range(COUNT):
                    assert_sample(reader, i)
            except BaseException:
                os._exit(1)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert_sample(reader, 3)


def test_large_members_are_mapped(tmp_path):
    large = np.arange(1 << 16, dtype=np.int64)
    with ShardedDatasetWriter(tmp_path) as writer:
        writer.add_fields(["a"])
        for i in range(3):
            writer.add_sample({"a": large + i}, f"s{i}")
    with ShardedDatasetReader(tmp_path) as reader:
        first = reader.get_sample("s1")[0]["a"]
        assert first.ctypes.data == reader.samples[1]["a"].ctypes.data
        np.testing.assert_array_equal(first, large + 1)


@needs_proc
@pytest.mark.parametrize("kind", ["root", "packed"])
def test_loaded_samples_are_read_without_a_mapping(kind, request, monkeypatch):
    monkeypatch.setattr(lookup, "MIN_LOOKUPS", 2)
    with ShardedDatasetReader(request.getfixturevalue(kind)) as reader:
        for i in (1, 2, 3):
            assert_sample(reader, i)
        assert lookup_of(reader).samples is not None
        for i in range(COUNT):
            assert_sample(reader, i)
        assert len(open_shards()) == 6 + 5
        for _ in range(READS + 1):
            assert_sample(reader, 1)
        assert len(open_shards()) == 5 + 4
        for i, (arrays, _) in enumerate(reader.get_many([f"s{i}" for i in range(6)])):
            np.testing.assert_array_equal(arrays["a"], np.arange(i, i + 50))


@pytest.mark.parametrize("is_loaded", [False, True])
def test_damaged_packs_name_sample_and_byte(packed, is_loaded, monkeypatch):
    monkeypatch.setattr(lookup, "MIN_LOOKUPS", 2)
    with ShardedDatasetReader(packed) as reader:
        for i in range(8, 11):
            assert_sample(reader, i)
        if not is_loaded:
            reader.refresh()
        with open(packed / SHARD, "r+b") as file:
            file.seek(512)
            file.write(b"x")
        with pytest.raises(FormatError, match="damaged pack") as raised:
            reader.get_sample("s4")
        assert (raised.value.member, raised.value.offset) == ("s4.npy", 512)
        assert raised.value.path == str(packed / SHARD)
        with open(packed / SHARD, "r+b") as file:
            file.write(b"x")
        with pytest.raises(FormatError, match="no member") as raised:
            reader.get_sample("s5")
        assert raised.value.member == "s5.npy"


def test_a_truncated_pack_is_an_error(packed):
    with ShardedDatasetReader(packed) as reader:
        assert_sample(reader, 4)
        os.truncate(packed / SHARD, 2 * 512)
        with pytest.raises(FormatError, match=r"s6\.npy") as raised:
            reader.get_sample("s6")
        assert raised.value.path == str(packed / SHARD)


@needs_proc
def test_large_rows_of_packs_are_mapped(tmp_path):
    large = np.arange(1 << 12, dtype=np.int64)
    with ShardedDatasetWriter(tmp_path, pack=True) as writer:
        writer.add_fields(["a"])
        for i in range(3):
            writer.add_sample({"a": large + i}, f"s{i}")
    with ShardedDatasetReader(tmp_path) as reader:
        first = reader.get_sample("s1")[0]["a"]
        assert open_shards() == []
        assert first.ctypes.data == reader.samples[1]["a"].ctypes.data
        np.testing.assert_array_equal(first, large + 1)
