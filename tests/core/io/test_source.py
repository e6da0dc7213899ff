"""Sources of bytes: reads outside a file, pickling."""

import pytest

import fastshard
from fastshard import FormatError
from fastshard._core.io.source import (
    LocalFile,
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
