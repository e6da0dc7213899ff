"""Shard files that grow: where they are written, and how they reach the disk."""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections import deque
from contextlib import suppress

from fastshard._core.npywrite import MemberBuffer
from fastshard.columnar.encoding import encode_array, encode_object
from fastshard.formats.tar_writer import END, MARK, Headers

__all__ = ["Growing", "Syncing", "new_buffer", "only_zeros", "sync_file", "write_at"]

THREADS = 4  # that sync files, at most; they live while there are some
WAITING = 32  # files that may wait for them, with a descriptor each
CHUNK = 1 << 20  # bytes
MOST_READ = 256 << 20  # bytes that may be a hole
FLAGS = os.O_RDWR
for _flag in ("O_CLOEXEC", "O_BINARY", "O_NOFOLLOW"):  # a link would lead elsewhere
    FLAGS |= getattr(os, _flag, 0)
headers = Headers(0o644, 0, MARK)


def new_buffer(*, allow_pickle: bool) -> MemberBuffer:
    """Return a buffer for the members of a shard."""
    return MemberBuffer(headers.member, encode_object if allow_pickle else encode_array)


class Growing:
    """A shard's file, and the members that go to its end.

    Parameters
    ----------
    path : str
    number : int
        The shard's.
    buffer : MemberBuffer
        Where its members are gathered. It is emptied.
    start : int
        Where in the file the next member begins. At 0 the file is made, in the
        place of one that is there.

    Raises
    ------
    OSError
        It cannot be opened; a symbolic link is not followed.
    """

    def __init__(
        self, path: str, number: int, buffer: MemberBuffer, start: int
    ) -> None:
        self.path = path
        self.number = number
        self.buffer = buffer
        self.is_new = start == 0
        flags = FLAGS
        if start == 0:
            # What is there counts for nobody; but other names of it may.
            with suppress(FileNotFoundError):
                os.unlink(path)
            flags |= os.O_CREAT | os.O_EXCL
        self.fd = os.open(path, flags, 0o666)
        buffer.begin(start)

    def write(self) -> None:
        """Write the members that are in the buffer, which is then empty."""
        buffer = self.buffer
        end = buffer.end
        with memoryview(buffer) as data:
            self._write_at(data, buffer.start)
        buffer.begin(end)

    def complete(self) -> None:
        """Write what is in the buffer, and the end of the archive behind it.

        The next member replaces that end.
        """
        self.write()
        self._write_at(memoryview(END), self.buffer.end)

    def close(self) -> None:
        """Close the file, if it is open; one without a member is removed."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
            if self.buffer.end == 0:
                os.unlink(self.path)

    def _write_at(self, data: memoryview, offset: int) -> None:
        try:
            write_at(self.fd, data, offset)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.path) from error

    def let_go(self) -> None:
        """Close the file, and leave it as it is."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            with suppress(OSError):
                os.close(fd)

    def discard(self, nbytes: int) -> None:
        """Cut the file back to bytes that count, as far as that works; close it."""
        fd, self.fd = self.fd, -1
        if fd < 0:
            return
        cut_file(fd, self.path, nbytes)


def cut_file(fd: int, path: str, nbytes: int) -> None:
    """Cut a file, as far as that works, and close it. Of 0 bytes nothing is left."""
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


class Syncing:
    """Files on their way to the disk.

    Threads sync them while the writer goes on. The threads end when no file
    waits. One whose sync an interrupt has stopped is synced again by `finish`.
    """

    def __init__(self) -> None:
        self._waiting: deque[Growing] = deque()
        self._left: dict[Growing, bool] = {}  # not synced yet; whether to close it
        self._threads: list[threading.Thread] = []
        self._error: OSError | None = None

    def add(self, growing: Growing, *, close: bool) -> None:
        """Sync a file, and close it if so asked. It may take until `finish`.

        Raises
        ------
        OSError
            This or an earlier one failed.
        """
        if growing in self._left:
            self.finish()
        self._left[growing] = close
        self._waiting.append(growing)
        if len(self._waiting) > WAITING:
            self._drain()
        elif len(self._waiting) > len(self._threads):
            self._start()
        self._raise()

    def finish(self) -> None:
        """Return when all files are on the disk.

        Raises
        ------
        OSError
            One of them is not.
        """
        while self._threads or self._left:
            self._drain()
            self._join()
            self._waiting.extend(tuple(self._left))
        self._raise()

    def abandon(self) -> None:
        """Wait for the threads, and close the files that were not closed yet."""
        self._waiting.clear()
        self._join()
        for growing, close in self._left.items():
            if close:
                growing.let_go()
        self._left.clear()

    def _start(self) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        if len(self._threads) < THREADS:
            thread = threading.Thread(target=self._drain, daemon=True)
            self._threads.append(thread)  # first: an interrupt may come
            try:
                thread.start()
            except RuntimeError:  # the interpreter ends: `finish` does it
                self._threads.remove(thread)

    def _join(self) -> None:
        for thread in self._threads:
            if thread.ident is not None:  # else an interrupt came before it began
                thread.join()
        self._threads.clear()

    def _drain(self) -> None:
        """Sync files until none waits. In several threads at once."""
        while True:
            try:
                growing = self._waiting.popleft()
            except IndexError:
                return
            try:
                if growing.fd >= 0:
                    sync_file(growing.fd)
            except OSError as error:
                self._error = OSError(error.errno, error.strerror, growing.path)
            if self._left.get(growing):
                growing.let_go()
            self._left.pop(growing, None)

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error


def write_at(fd: int, data: memoryview, offset: int) -> None:
    """Write all bytes at a place in a file."""
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
        """Return when a file's bytes are on the disk."""
        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        except OSError:  # a file system without it
            os.fsync(fd)
else:

    def sync_file(fd: int) -> None:
        """Return when a file's bytes are on the disk."""
        os.fsync(fd)


def only_zeros(fd: int, offset: int) -> bool:
    """Say whether a file holds nothing but zeros from a place on.

    Holes are passed over where much is left. Little is read: file systems have
    taken what was just written for a hole.
    """
    while True:
        os.lseek(fd, offset, os.SEEK_SET)
        if hasattr(os, "SEEK_DATA") and os.fstat(fd).st_size - offset > MOST_READ:
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
