"""Range reads from the files of a user's source."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Any

from fastshard._util.paths.remote_options import RemoteOptions
from fastshard._util.paths.urls import Url, parse_url, redact
from fastshard.dataset.paths.listing import Location
from fastshard.errors import FastshardError, RemoteError, ShardNotFoundError
from fastshard.remote.deadline import Deadline
from fastshard.remote.errors import ReadCancelledError
from fastshard.remote.meter import Meter
from fastshard.remote.options import Settings
from fastshard.remote.transport import MAX_WHOLE, LoopedRead, ObjectInfo, Part
from fastshard.typed.sources.protocol import DataSource

__all__ = ["FileClient", "SourceLocation", "SourceSettings", "check_read", "open_file"]

MAX_OPEN = 32  # files that are kept open
CHUNK = 1 << 20  # bytes that are copied at a time


class SourceLocation(Location):
    """The shards of a user's source, for `fastshard.open`."""

    source: DataSource

    def __new__(cls, source: DataSource) -> SourceLocation:
        names = source.list_shards()
        if not names:
            raise ShardNotFoundError(f"{type(source).__name__} lists no shard")
        for name in names:
            if not isinstance(name, str) or not name:
                raise TypeError(
                    f"{type(source).__name__}.list_shards() must return names, "
                    f"got {name!r}"
                )
        location = super().__new__(cls, "shards", tuple(map(Url, names)))
        location.source = source
        return location

    def settings(self, options: RemoteOptions) -> Settings:
        """Return options for reading the source's files."""
        return SourceSettings(self.source, options)


class SourceSettings(Settings):
    """Options for reading a source's files, in place of a server."""

    def __init__(self, source: DataSource, options: RemoteOptions) -> None:
        super().__init__(options)
        self.source = source
        self.client = FileClient

    def __reduce__(self) -> tuple[Any, ...]:
        super().__reduce__()  # refuses secrets
        return SourceSettings, (self.source, self.options)


class SourceFile:
    """An open file of a shard. Thread-safe."""

    def __init__(self, file: IO[bytes], name: str) -> None:
        self.name = name
        self.lock = threading.Lock()
        self.closed = False
        if not _is_seekable(file):
            file = _spool(file)
        self.file = file
        self.nbytes = file.seek(0, 2)

    def read_into(self, offset: int, view: memoryview) -> bool:
        """Fill a buffer with bytes from an offset; return False if it was closed."""
        with self.lock:
            if self.closed:
                return False
            self.file.seek(offset)
            count = read_exactly(self.file, view)
        if count < len(view):
            raise RemoteError(
                f"the file ended at byte {offset + count:,}; it had {self.nbytes:,}",
                self.name,
            )
        return True

    def close(self) -> None:
        """Close the file, after a read in another thread."""
        with self.lock, suppress(Exception):
            self.closed = True
            self.file.close()


class FileClient:
    """Reader of a source's files; a `Transport`."""

    def __init__(self, settings: Settings) -> None:
        assert isinstance(settings, SourceSettings)
        self.source = settings.source
        self.meter = Meter()
        self._files: OrderedDict[str, SourceFile] = OrderedDict()
        self._lock = threading.Lock()

    def __del__(self) -> None:
        for file in self._files.values():
            file.close()

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
        for offset, view in parts:
            self._read_into(url, offset, view, expected)
        self.meter.record_transfer(end - start, time.monotonic() - begun)

    def begin(
        self, url: Url, expected: ObjectInfo, reads: Sequence[LoopedRead]
    ) -> Sequence[LoopedRead]:
        """Return all reads: files are read by threads."""
        return reads

    def head(self, url: str | Url, size: int) -> tuple[ObjectInfo, bytes]:
        """Return the size and at most the first `size` bytes of a file."""
        url = parse_url(url)
        info = ObjectInfo(self._open(url).nbytes, "", 0)
        data = bytearray(min(size, info.nbytes))
        self._read_into(url, 0, memoryview(data), info)
        return info, bytes(data)

    def whole(self, url: str | Url) -> tuple[ObjectInfo, bytes]:
        """Return the size and all bytes of a small file."""
        return self.head(url, MAX_WHOLE)

    def _read_into(
        self, url: Url, offset: int, view: memoryview, expected: ObjectInfo
    ) -> None:
        """Fill a buffer; open the file again if another thread closed it."""
        while True:
            file = self._open(url)
            if file.nbytes != expected.nbytes:
                raise RemoteError(
                    f"the shard has changed: it has {file.nbytes:,} bytes, it had "
                    f"{expected.nbytes:,}",
                    url.redacted,
                )
            if file.read_into(offset, view):
                return

    def _open(self, url: Url) -> SourceFile:
        """Return the open file of a shard; open it if needed."""
        name = url.text
        with self._lock:
            found = self._files.pop(name, None)
            if found is None:
                found = SourceFile(open_file(self.source, name), url.redacted)
            self._files[name] = found
            dropped = None
            if len(self._files) > MAX_OPEN:
                dropped = self._files.popitem(last=False)[1]
        if dropped is not None:
            dropped.close()
        return found


def _is_seekable(file: IO[bytes]) -> bool:
    seekable = getattr(file, "seekable", None)
    if seekable is None:
        return hasattr(file, "seek") and hasattr(file, "tell")
    return bool(seekable())


def _spool(file: IO[bytes]) -> IO[bytes]:
    """Return a temporary file with the bytes of a stream, which is closed."""
    copy = tempfile.TemporaryFile()  # noqa: SIM115 - `SourceFile` closes it
    try:
        shutil.copyfileobj(file, copy, CHUNK)
    except BaseException:
        copy.close()
        raise
    finally:
        with suppress(AttributeError):
            file.close()
    return copy


def read_exactly(file: IO[bytes], view: memoryview) -> int:
    """Fill a buffer from a file; return the bytes read, fewer only at its end."""
    done = 0
    while done < len(view):
        data = check_read(file.read(min(len(view) - done, CHUNK)))
        if not data:
            break
        if len(data) > len(view) - done:
            raise FastshardError("the file of a source returned more than asked for")
        view[done : done + len(data)] = data
        done += len(data)
    return done


def open_file(source: Any, name: str) -> IO[bytes]:
    """Return the file of a source's shard."""
    file = source.open_shard(name)
    if not callable(getattr(file, "read", None)):
        raise TypeError(
            f"open_shard({redact(name)!r}) of {type(source).__name__} must return a "
            f"binary file, got {type(file).__name__}"
        )
    return file  # type: ignore[no-any-return]


def check_read(data: Any) -> bytes:
    """Return the bytes of a file's `read`; raise FastshardError for others."""
    if data is None:
        raise FastshardError("the file of a source must block: it returned None")
    if not isinstance(data, bytes | bytearray | memoryview):
        raise FastshardError(
            f"the file of a source must return bytes, got {type(data).__name__}"
        )
    return data  # type: ignore[return-value]
