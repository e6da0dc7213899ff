"""Sources of bytes: reads outside a file, memory, pickling."""

import copy
import gc
import weakref

import numpy as np
import pytest

import fastshard
from fastshard import FormatError
from fastshard._core.io.source import (
    LocalFile,
    MemorySource,
    PreadSource,
    RemoteSource,
    Source,
)


@pytest.mark.parametrize("mode", ["mmap", "private", "pread"])
@pytest.mark.parametrize(
    ("offset", "size"), [(0, 10**9), (10**12, 1), (2**64 - 1, 2), (2**63, 2**63 - 1)]
)
def test_reads_beyond_the_file_are_refused(shard_path, mode, offset, size):
    with fastshard.open_shard(shard_path, mode=mode) as shard:
        source, _ = shard.parts()
        assert source.read(source.nbytes, 0) == b""
        assert source.read(512, 2) == shard.read(0)[:2]
        with pytest.raises((FormatError, MemoryError, OSError, OverflowError)):
            source.read(offset, size)


def test_owners_of_a_file_do_not_pickle(shard_path):
    with LocalFile(shard_path) as file:
        for owner in (file, PreadSource(file)):
            with pytest.raises(TypeError, match="pickle"):
                owner.__reduce__()
    assert file.fd == -1


def test_the_base_class_reads_nothing():
    with pytest.raises(NotImplementedError):
        Source().read(0, 1)


class Remote:
    """A file of 100 bytes whose reads are counted."""

    path, nbytes, reads = "remote", 100, 0

    def read(self, offset, size):
        self.reads += 1
        return bytes(range(offset, offset + size))


def test_an_extent_is_found_inside_prefetched_bytes():
    file = Remote()
    source = RemoteSource(file, {10: bytes(range(10, 40)), 60: bytes(range(60, 70))})
    for offset, size in [(10, 30), (10, 4), (11, 29), (39, 1), (63, 7), (99, 0)]:
        assert source.has_staged(offset, size)
        assert source.read(offset, size) == bytes(range(offset, offset + size))
    assert file.reads == 0
    for offset, size in [(9, 2), (10, 31), (39, 2), (40, 1), (69, 2), (70, 1)]:
        assert not source.has_staged(offset, size)
        assert source.read(offset, size) == bytes(range(offset, offset + size))
    assert file.reads == 6


@pytest.fixture
def tar_in_memory(shard_path):
    """Make a shard whose source is bytes in memory."""

    def make(writable=False):
        path = str(shard_path)
        source = MemorySource(shard_path.read_bytes(), path, writable=writable)
        return fastshard.open_shard(shard_path).with_source(source)

    return make


@pytest.mark.parametrize("writable", [False, True])
def test_a_shard_in_memory_reads_as_its_file(shard_path, tar_in_memory, writable):
    with fastshard.open_shard(shard_path) as expected:
        shard = tar_in_memory(writable=writable)
        assert [bytes(view) for view in shard] == [bytes(view) for view in expected]
        assert [shard.read(i) for i in range(len(shard))] == [*map(bytes, expected)]
        assert {view.readonly for view in shard} == {not writable}
        out = np.empty(int(shard.sizes.sum()), "u1")
        shard.read_into(range(len(shard)), out)
        assert out.tobytes() == b"".join(map(bytes, expected))
        assert [dict(s) for s in shard.samples] == [dict(s) for s in expected.samples]


def test_views_keep_memory_alive(shard_path, tar_in_memory):
    expected = fastshard.open_shard(shard_path).read(0)
    shard = tar_in_memory()
    handle = copy.copy(shard)
    view = handle[0]
    source = shard.parts()[0]
    with pytest.raises(BufferError, match="1 live view"):
        handle.close(strict=True)
    shard.close()
    handle.close()
    del shard, handle, source
    gc.collect()
    assert view == expected


def test_memory_is_released_with_its_last_view(shard_path):
    class Data(bytearray):
        pass

    data = Data(shard_path.read_bytes())
    shard = fastshard.open_shard(shard_path).with_source(MemorySource(data, "x"))
    view = shard[0]
    alive = weakref.ref(data)
    del data
    shard.close()
    del shard
    gc.collect()
    assert alive() is not None
    del view
    gc.collect()
    assert alive() is None


def test_writable_memory_is_a_copy(shard_path):
    data = bytearray(shard_path.read_bytes())
    before = bytes(data)
    source = MemorySource(data, "x", writable=True)
    shard = fastshard.open_shard(shard_path).with_source(source)
    shard[0][:2] = b"##"
    assert shard.read(0)[:2] == b"##"
    assert copy.copy(shard).read(0)[:2] == b"##"
    assert data == before


@pytest.mark.parametrize(("offset", "size"), [(0, 101), (100, 1), (2**64 - 1, 2)])
def test_reads_beyond_memory_are_refused(offset, size):
    source = MemorySource(bytes(100), "shard.mds")
    assert source.read(100, 0) == b""
    with pytest.raises(FormatError, match=r"100 - at shard\.mds"):
        source.read(offset, size)


@pytest.mark.parametrize("data", [b"", bytearray(), memoryview(b"")])
def test_empty_memory(data):
    source = MemorySource(data, "x")
    assert (source.nbytes, source.read(0, 0), source.live_views) == (0, b"", 0)


def test_objects_without_a_buffer_are_refused():
    for data in (None, "text", 7):
        with pytest.raises(TypeError):
            MemorySource(data, "x")
