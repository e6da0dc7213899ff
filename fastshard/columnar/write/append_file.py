"""Shard files opened for appending, and the queue that syncs them.

The functions work on file descriptors: write, sync, cut, look for zeros.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections import deque
from contextlib import suppress

from fastshard._core.dataset.npy import MemberBuffer
from fastshard._util.processes.descriptors import kept_limit
from fastshard.columnar.layout.values import encode_array, encode_object, encode_row
from fastshard.formats.tar_writer import END, MARK, HeaderEncoder

__all__ = [
    "OPEN_FLAGS",
    "WRITE_BYTES",
    "AppendFile",
    "SyncQueue",
    "cut_file",
    "is_zero_from",
    "new_buffer",
    "sync_file",
    "sync_path",
    "write_at",
]

WRITE_BYTES = 256 << 10  # size from which a buffer is written: within L2 caches
MAX_THREADS = 4  # of a SyncQueue; each ends when no file waits
MAX_WAITING = 32  # files in a SyncQueue, each with a descriptor
CHUNK = 1 << 20  # bytes that `is_zero_from` reads at once
LARGE = 256 << 20  # bytes above which `is_zero_from` looks for holes
OPEN_FLAGS = os.O_RDWR
for _flag in ("O_CLOEXEC", "O_BINARY", "O_NOFOLLOW"):  # a link would lead elsewhere
    OPEN_FLAGS |= getattr(os, _flag, 0)
headers = HeaderEncoder(0o644, 0, MARK)


def new_buffer(*, allow_pickle: bool, packs: bool = False) -> MemberBuffer:
    """Return an empty buffer for the members of a shard; with `packs` for packs too."""
    encode = encode_object if allow_pickle else encode_array
    buffer = MemberBuffer(headers.member, encode, encode_row)
    buffer.packs = packs
    return buffer


class AppendFile:
    """Shard file with a buffer of the members to append.

    Each field has one. If few descriptors are left, it is opened for each write.
    """

    def __init__(
        self, path: str, number: int, buffer: MemberBuffer, start: int
    ) -> None:
        self.path = path
        self.number = number
        self.buffer = buffer
        self.is_new = start == 0
        flags = OPEN_FLAGS
        if start == 0:
            # No row needs the old content, but a hard link may.
            with suppress(FileNotFoundError):
                os.unlink(path)
            flags |= os.O_CREAT | os.O_EXCL
        self.fd = os.open(path, flags, 0o666)
        self._is_parked = False
        self._park()
        buffer.begin(start)

    def write(self) -> None:
        """Write the buffered members and empty the buffer. An open pack ends."""
        buffer = self.buffer
        buffer.end_pack()
        end = buffer.end
        with memoryview(buffer) as data:
            self._write_at(data, buffer.start)
        buffer.begin(end)
        self._park()

    def complete(self) -> None:
        """Write the buffered members and the end of the archive.

        The next member overwrites that end.
        """
        self.write()
        self._write_at(memoryview(END), self.buffer.end)
        self._park()

    def sync(self) -> None:
        """Return when the file's bytes are on disk; at once if it is closed."""
        if self._is_parked:
            sync_path(self.path)
        elif self.fd >= 0:
            sync_file(self.fd)

    def close(self) -> None:
        """Close the file; remove it if it has no member. May be called twice."""
        fd, self.fd = self.fd, -1
        was_parked, self._is_parked = self._is_parked, False
        if fd >= 0:
            os.close(fd)
        if (fd >= 0 or was_parked) and self.buffer.end == 0:
            os.unlink(self.path)

    def close_as_is(self) -> None:
        """Close the file, ignoring errors, and leave its content as it is."""
        fd, self.fd = self.fd, -1
        self._is_parked = False
        if fd >= 0:
            with suppress(OSError):
                os.close(fd)

    def discard(self, nbytes: int) -> None:
        """Cut the file to `nbytes` and close it; see `cut_file`."""
        with suppress(OSError):
            self._unpark()
        fd, self.fd = self.fd, -1
        if fd >= 0:
            cut_file(fd, self.path, nbytes)

    def _park(self) -> None:
        """Close the descriptor until the next use if few are left."""
        if self.fd >= kept_limit():
            fd, self.fd = self.fd, -1
            self._is_parked = True
            os.close(fd)

    def _unpark(self) -> None:
        if self._is_parked:
            self.fd = os.open(self.path, OPEN_FLAGS)
            self._is_parked = False

    def _write_at(self, data: memoryview, offset: int) -> None:
        self._unpark()
        try:
            write_at(self.fd, data, offset)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.path) from error


class SyncQueue:
    """Queue of files to sync, worked off by background threads.

    The threads end when the queue is empty. A file whose sync was interrupted stays
    listed, and `finish` syncs it again.
    """

    def __init__(self) -> None:
        self._waiting: deque[AppendFile] = deque()
        self._unsynced: dict[AppendFile, bool] = {}  # file: whether to close it
        self._threads: list[threading.Thread] = []
        self._error: OSError | None = None

    def add(self, file: AppendFile, *, close: bool) -> None:
        """Queue a file for sync, and for closing if `close`."""
        if file in self._unsynced:
            self.finish()
        self._unsynced[file] = close
        self._waiting.append(file)
        if len(self._waiting) > MAX_WAITING:
            self._drain()
        elif len(self._waiting) > len(self._threads):
            self._start()
        self._raise_error()

    def finish(self) -> None:
        """Return when all queued files are on disk."""
        while self._threads or self._unsynced:
            self._drain()
            self._join()
            self._waiting.extend(tuple(self._unsynced))
        self._raise_error()

    def abandon(self) -> None:
        """Empty the queue, join the threads, close the files that were to be closed."""
        self._waiting.clear()
        self._join()
        for file, close in self._unsynced.items():
            if close:
                file.close_as_is()
        self._unsynced.clear()

    def _start(self) -> None:
        """Start one more thread, up to `MAX_THREADS`."""
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        if len(self._threads) < MAX_THREADS:
            thread = threading.Thread(target=self._drain, daemon=True)
            self._threads.append(thread)  # before the start: it may be interrupted
            try:
                thread.start()
            except RuntimeError:  # the interpreter shuts down: `finish` syncs it
                self._threads.remove(thread)

    def _join(self) -> None:
        for thread in self._threads:
            if thread.ident is not None:  # else an interrupt came before its start
                thread.join()
        self._threads.clear()

    def _drain(self) -> None:
        """Sync files until none waits; several threads may run it."""
        while True:
            try:
                file = self._waiting.popleft()
            except IndexError:
                return
            try:
                file.sync()
            except OSError as error:
                self._error = OSError(error.errno, error.strerror, file.path)
            if self._unsynced.get(file):
                file.close_as_is()
            self._unsynced.pop(file, None)

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error


def write_at(fd: int, data: memoryview, offset: int) -> None:
    """Write all of `data` at a byte offset."""
    while data:
        if sys.platform == "win32":
            os.lseek(fd, offset, os.SEEK_SET)
            written = os.write(fd, data)
        else:
            written = os.pwrite(fd, data, offset)
        data = data[written:]
        offset += written


if sys.platform == "darwin":
    import fcntl

    def sync_file(fd: int) -> None:
        """Return when the file's bytes are on disk."""
        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        except OSError:  # the file system does not support it
            os.fsync(fd)
else:

    def sync_file(fd: int) -> None:
        """Return when the file's bytes are on disk."""
        os.fsync(fd)


def sync_path(path: str, flags: int = OPEN_FLAGS) -> None:
    """Open a file, sync it and close it."""
    fd = os.open(path, flags)
    try:
        sync_file(fd)
    finally:
        os.close(fd)


def cut_file(fd: int, path: str, nbytes: int) -> None:
    """Truncate an open file to `nbytes`, write an archive's end, sync, close.

    Errors are ignored: the next writer cuts the file again. With 0 bytes the file
    is removed.
    """
    with suppress(OSError):
        os.ftruncate(fd, nbytes)
        if nbytes:
            write_at(fd, memoryview(END), nbytes)
            sync_file(fd)
    with suppress(OSError):
        os.close(fd)
    if nbytes == 0:
        with suppress(OSError):
            os.unlink(path)


def is_zero_from(fd: int, offset: int) -> bool:
    """Return whether all bytes from an offset to the file's end are zero.

    Holes are skipped only where more than `LARGE` bytes follow: file systems have
    reported freshly written data as a hole.
    """
    while True:
        os.lseek(fd, offset, os.SEEK_SET)
        if hasattr(os, "SEEK_DATA") and os.fstat(fd).st_size - offset > LARGE:
            try:
                offset = os.lseek(fd, offset, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return True
        data = os.read(fd, CHUNK)
        if data.count(0) != len(data):
            return False
        if not data:
            return True
        offset += len(data)
