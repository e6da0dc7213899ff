"""Local files that are read through the disk cache, as of a mounted network disk."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fastshard._util.files import wait_for_tick
from fastshard._util.paths.remote_options import RemoteOptions
from fastshard._util.paths.urls import Url, parse_url
from fastshard.errors import RemoteError, RemoteNotFoundError
from fastshard.remote.cache.disk import read_at
from fastshard.remote.deadline import Deadline
from fastshard.remote.errors import ReadCancelledError
from fastshard.remote.meter import Meter
from fastshard.remote.options import Settings
from fastshard.remote.traffic import traffic
from fastshard.remote.transport import MAX_WHOLE, LoopedRead, ObjectInfo, Part

__all__ = ["CopyClient", "CopySettings"]


BLOCK = 64 << 10  # bytes that are copied at a time, at least
O_BINARY = getattr(os, "O_BINARY", 0)


class CopySettings(Settings):
    """Options with which local files are read through ``cache_dir``."""

    block = BLOCK

    def __init__(self, options: RemoteOptions) -> None:
        super().__init__(options)
        self.client = CopyClient

    def __reduce__(self) -> tuple[Any, ...]:
        return CopySettings, (self.options,)


class CopyClient:
    """Reader of local files; a `Transport`.

    The tag of a file is its device, inode and times: a changed file is another version.
    Each read opens the file, so that a network file system looks for changes.
    """

    def __init__(self, settings: Settings) -> None:
        self.meter = Meter()

    def read(
        self,
        url: Url,
        start: int,
        end: int,
        parts: Sequence[Part],
        expected: ObjectInfo,
        deadline: Deadline | None = None,
    ) -> None:
        """Read parts of a range of a file; see `Transport`."""
        if deadline is not None and deadline.cancelled:
            raise ReadCancelledError
        begun = time.monotonic()
        traffic.count_request()
        with open_file(url) as fd:
            for offset, view in parts:
                if not read_at(fd, view, offset):
                    break
            found = describe(os.fstat(fd))  # last: a write before it changes the times
        if found != expected:
            raise changed(url, expected, found)
        self.meter.record_response(end - start, time.monotonic() - begun)

    def begin(
        self, url: Url, expected: ObjectInfo, reads: Sequence[LoopedRead]
    ) -> Sequence[LoopedRead]:
        """Return all reads: files are read by threads."""
        return reads

    def head(self, url: str | Url, size: int) -> tuple[ObjectInfo, bytes]:
        """Return the metadata and at most the first `size` bytes of a file."""
        url = parse_url(url)
        with open_file(url) as fd:
            wait_for_tick(os.fstat(fd).st_ctime_ns)
            info = describe(os.fstat(fd))
            data = bytearray(min(size, info.nbytes))
            is_filled = read_at(fd, memoryview(data), 0)
            found = describe(os.fstat(fd))
        if found != info or not is_filled:
            raise changed(url, info, found)
        return info, bytes(data)

    def whole(self, url: str | Url) -> tuple[ObjectInfo, bytes]:
        """Return the metadata and all bytes of a small file."""
        return self.head(url, MAX_WHOLE)


@contextmanager
def open_file(url: Url) -> Iterator[int]:
    """Yield a descriptor of a local file."""
    path = url.text
    try:
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | O_BINARY)
    except (FileNotFoundError, NotADirectoryError):
        raise RemoteNotFoundError("the file does not exist", path) from None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise RemoteError("only regular files are read through cache_dir", path)
        yield fd
    except OSError as error:
        if error.filename is None:
            error.filename = path
        raise
    finally:
        os.close(fd)


def describe(status: os.stat_result) -> ObjectInfo:
    """Return a file's size, and its identity and times as its tag."""
    numbers = status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns
    tag = "-".join(f"{number:x}" for number in numbers)
    return ObjectInfo(status.st_size, tag, status.st_mtime_ns)


def changed(url: Url, expected: ObjectInfo, found: ObjectInfo) -> RemoteError:
    """Return the error for a file that was written to since it was opened."""
    sizes = ""
    if found.nbytes != expected.nbytes:
        sizes = f": it has {found.nbytes:,} bytes, it had {expected.nbytes:,}"
    return RemoteError(f"the file has changed since it was opened{sizes}", url.text)
