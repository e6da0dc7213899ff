"""Open files of a cache entry: the data, and the log of its stored ranges.

Several threads and processes may fill an entry at the same time without locking its
files: all write the same bytes to the same offsets, and append a range's record, in
one write, after its bytes. A complete record therefore tells that bytes were written.
Their CRC is verified before the first use, because a crash may keep the record and
lose the bytes.
"""

from __future__ import annotations

import errno
import os
import stat
import zlib
from contextlib import suppress

from fastshard._core.io.source import lower_descriptor
from fastshard._util.processes.descriptors import kept_limit, open_regular
from fastshard._util.processes.forks import LockOwner
from fastshard.remote.cache.disk import (
    append_to,
    disk_bytes,
    read_at,
    write_at,
)
from fastshard.remote.cache.ranges import (
    PIECE,
    Range,
    Ranges,
    decode,
    encode,
    split_at_pieces,
)

__all__ = ["DATA", "LOG", "DamagedEntryError", "EntryFiles", "RemovedEntryError"]

READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)  # retried without writing

DATA = "data"
LOG = "ranges"
MOST_LOG = 1 << 28  # bytes; 8 million ranges
CHUNK = 1 << 22  # bytes of a log per read


class DamagedEntryError(Exception):
    """The entry is unusable, and must be removed before a new one is made."""


class RemovedEntryError(Exception):
    """The entry was removed while it was open."""


class EntryFiles(LockOwner):
    """Open files of a cache entry. Thread-safe.

    The data file is closed with the last reference; readers hold one.
    """

    def __init__(self, folder: str, nbytes: int) -> None:
        self.fd = -1
        super().__init__()
        self.nbytes = nbytes
        self._data = os.path.join(folder, DATA)
        self._log = os.path.join(folder, LOG)
        self._ranges = Ranges(nbytes)
        self._log_read = 0  # bytes
        self._whole = False
        _check_above(os.path.dirname(folder))
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            raise DamagedEntryError
        try:
            log = os.lstat(self._log)
            self._open(self._data)
        except FileNotFoundError:
            raise DamagedEntryError from None
        fd, self.fd = self.fd, -1  # an interrupt may leak it, never close another
        self.fd = lower_descriptor(fd)
        # Otherwise descriptors are scarce, and the files serve one call.
        self.is_kept: bool = self.fd < kept_limit()
        right_size = os.fstat(self.fd).st_size == nbytes
        if not (right_size and stat.S_ISREG(log.st_mode) and log.st_size <= MOST_LOG):
            raise DamagedEntryError
        self._log_id = log.st_dev, log.st_ino

    def _open(self, path: str) -> None:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise DamagedEntryError
        try:
            self.fd = open_regular(path, os.O_RDWR)
        except OSError as error:
            if error.errno not in READ_ONLY:
                raise
            self.fd = open_regular(path, os.O_RDONLY)

    def __del__(self) -> None:
        if self.fd >= 0:
            with suppress(OSError):
                os.close(self.fd)

    def reset_after_fork(self) -> None:
        self._ranges = Ranges(self.nbytes)
        self._log_read = 0

    def is_removed(self) -> bool:
        """Return whether the files were removed; closing them frees their space."""
        return os.fstat(self.fd).st_nlink == 0

    def has(self, start: int, end: int) -> bool:
        """Return whether a range is stored, and not known to be damaged."""
        with self.lock:
            if not self._ranges.has(start, end):
                self._read_log()
            return self._ranges.has(start, end)

    def missing(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the starts and ends of the gaps in a range."""
        with self.lock:
            gaps = self._ranges.gaps(start, end)
            if gaps and self._read_log():
                gaps = self._ranges.gaps(start, end)
            return gaps

    def read_into(self, start: int, view: memoryview) -> bool:
        """Fill the view; return False if a byte is missing or wrong."""
        if not self._verify(start, start + len(view)):
            return False
        if not read_at(self.fd, view, start):
            raise DamagedEntryError
        return True

    def is_whole(self) -> bool:
        """Return whether the whole object is stored and valid, under its path."""
        if not self._whole:
            with self.lock:
                if not self._ranges.is_whole():
                    self._read_log()
                stored = self._ranges.is_whole()
            self._whole = stored and self._verify(0, self.nbytes)
        if not self._whole:
            return False
        status = os.fstat(self.fd)
        if status.st_size != self.nbytes:
            raise DamagedEntryError
        return self._is_in_place(status)

    def add(self, start: int, data: memoryview, most: int | None) -> int:
        """Store bytes; return an upper bound of the growth on disk, bytes.

        Nothing is stored if the data file would grow above `most` bytes on disk.
        """
        before = os.fstat(self.fd)
        if before.st_nlink == 0:
            raise RemovedEntryError
        if before.st_size != self.nbytes:
            raise DamagedEntryError
        with self.lock:
            cuts = split_at_pieces(start, start + len(data))
            new = [(a, b) for a, b in cuts if not self._ranges.is_verified(a, b)]
            full = self._log_read > MOST_LOG - len(new) * 32
        written = sum(b - a for a, b in new)
        if (
            not new
            or full
            or (most is not None and disk_bytes(before) + written > most)
        ):
            return 0
        records = []
        for a, b in new:
            part = data[a - start : b - start]
            write_at(self.fd, part, a)
            records.append(encode((a, b, zlib.crc32(part))))
        self._append(b"".join(records))
        with self.lock:
            for a, b in new:
                self._ranges.add_verified(a, b)
        return max(written, disk_bytes(os.fstat(self.fd)) - disk_bytes(before))

    def _append(self, records: bytes) -> None:
        try:
            if not self._is_log(os.lstat(self._log)):
                raise RemovedEntryError
            fd = open_regular(self._log, os.O_WRONLY | os.O_APPEND)
        except FileNotFoundError:
            raise RemovedEntryError from None
        try:
            if not self._is_log(os.fstat(fd)):
                raise RemovedEntryError
            append_to(fd, records)
        finally:
            os.close(fd)

    def _is_in_place(self, status: os.stat_result) -> bool:
        try:
            return os.path.samestat(os.lstat(self._data), status)
        except FileNotFoundError:
            return False

    def _is_log(self, status: os.stat_result) -> bool:
        """Return whether a file is this entry's log, not that of a newer entry."""
        return (status.st_dev, status.st_ino) == self._log_id

    def _read_log(self) -> bool:
        """Read new records of the log; return whether there were any.

        The caller holds the lock.
        """
        before = self._log_read
        try:
            size = min(os.stat(self._log).st_size, MOST_LOG)
            if size < before + 32:
                return False
            fd = open_regular(self._log, os.O_RDONLY)
        except OSError:
            return False
        with open(fd, "rb", buffering=0) as file:
            if not self._is_log(os.fstat(fd)):
                return False
            file.seek(before)
            while self._log_read < size and self._read_chunk(file.read(CHUNK)):
                pass
        return self._log_read > before

    def _read_chunk(self, chunk: bytes) -> int:
        found, used = decode(chunk)
        for one in found:
            self._ranges.add_unverified(one)
        self._log_read += used
        return used

    def _verify(self, start: int, end: int) -> bool:
        """Return whether a range is stored and right; verify it where necessary."""
        with self.lock:
            ranges = self._ranges
            if ranges.is_verified(start, end):
                return True
            if not ranges.has(start, end):
                self._read_log()
            if not ranges.has(start, end):
                return False
        for number in range(start // PIECE, -(-end // PIECE)):
            self._check(ranges, number)
        with self.lock:
            return ranges.is_verified(start, end)

    def _check(self, ranges: Ranges, number: int) -> None:
        """Verify the CRCs of a piece's ranges; the bytes are read without the lock."""
        with self.lock:
            found = ranges.unverified(number)
        if not found:
            return
        first = min(start for start, _, _ in found)
        data = memoryview(bytearray(max(end for _, end, _ in found) - first))
        if not read_at(self.fd, data, first):
            raise DamagedEntryError
        right: set[Range] = set()
        wrong: set[Range] = set()
        for start, end, crc in found:
            same = zlib.crc32(data[start - first : end - first]) == crc
            (right if same else wrong).add((start, end, crc))
        with self.lock:
            ranges.record_check(number, right, wrong)


def _check_above(folder: str) -> None:
    """Raise unless the parent of entries is a directory, not a link."""
    if not stat.S_ISDIR(os.lstat(folder).st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder)
