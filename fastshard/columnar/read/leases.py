"""Leases of readers: locks that tell writers which states are in use.

A compaction replaces shards that a reader may not have opened yet. It begins a new
generation. Each reader holds a shared lock on one byte of a lock file, whose offset is
the generation that it reads. Replaced shards are removed once no byte before the new
generation is locked. The kernel drops a lock when its process ends; a forked child
shares its parent's.

The locks belong to open file descriptions (Linux). On other systems the writer asks
SQLite whether a connection still reads an older state; it waits at most `GRACE_MS`.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import sys
import time
from contextlib import suppress

from fastshard._util.processes.locks import FLOCK, HAS_RANGES, lock_range

__all__ = [
    "LOCK_FILE",
    "Lease",
    "create_lease_file",
    "has_older_readers",
    "next_generation",
    "read_generation",
]

LOCK_FILE = "readers.lock"  # in a dataset's root; made by writers
GENERATION = "fastshard_generation"  # counter: time of the last compaction, in ms
GRACE_MS = 3_600_000  # for readers without a lease
MAX_GENERATION = 1 << 62  # exclusive
# A reader then has no lease: the lock file, made by fastshard's writer, does not
# exist, or the file system has no locks.
TOLERATED = {
    errno.ENOENT,
    errno.EACCES,
    errno.EPERM,
    errno.ELOOP,
    errno.ENXIO,
    errno.EINVAL,
    errno.ENOLCK,
    errno.ENOSYS,
    errno.EOPNOTSUPP,
}
FLAGS = os.O_RDONLY
for _flag in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"):
    FLAGS |= getattr(os, _flag, 0)


if sys.platform == "linux" and HAS_RANGES:
    import fcntl

    def _lock(fd: int, kind: int, start: int, end: int) -> None:
        if end > start:
            lock_range(fd, kind, start, end)

    def _share(fd: int, start: int, end: int) -> None:
        _lock(fd, fcntl.F_RDLCK, start, end)

    def _unlock(fd: int, start: int, end: int) -> None:
        _lock(fd, fcntl.F_UNLCK, start, end)

    def _is_locked(fd: int, end: int) -> bool:
        """Return whether another description has a lock on a byte before `end`."""
        request = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, end, 0)
        kind: int = FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, request))[0]
        return kind != fcntl.F_UNLCK

    HAS_LOCKS = True
else:

    def _share(fd: int, start: int, end: int) -> None: ...

    def _unlock(fd: int, start: int, end: int) -> None: ...

    def _is_locked(fd: int, end: int) -> bool:
        return False

    HAS_LOCKS = False


class Lease:
    """Lease of a reader: keeps the shards of the generations that it reads.

    Without a lock file, or on a file system without locks, it keeps nothing;
    `has_older_readers` says how long shards are then kept.

    Attributes
    ----------
    generations : frozenset of int
        Generations that it keeps, apart from all of them after `widen`.
    """

    def __init__(self, root: str) -> None:
        self._path = os.path.join(root, LOCK_FILE)
        self._fd = -1
        self.generations: frozenset[int] = frozenset()

    def widen(self) -> None:
        """Keep all generations; call it before opening the index."""
        if not HAS_LOCKS:
            return
        try:
            if self._fd < 0:
                self._fd = os.open(self._path, FLAGS)
                if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                    self.close()
                    return
            _share(self._fd, 0, MAX_GENERATION)
        except OSError as error:
            self.close()
            if error.errno not in TOLERATED:
                raise

    def narrow(self, *generations: int) -> None:
        """Keep only these generations; all if one is unknown (-1)."""
        self.generations = frozenset(generations)
        if self._fd < 0 or not all(0 <= one < MAX_GENERATION for one in generations):
            return
        start = 0
        for one in sorted(set(generations)):
            _unlock(self._fd, start, one)
            start = one + 1
        _unlock(self._fd, start, MAX_GENERATION)

    def close(self) -> None:
        """End the lease; in a forked child the parent's stays. May be called twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Lease:
        self.widen()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def create_lease_file(root: str, *, is_new: bool) -> None:
    """Create the lock file if it does not exist; ignore failures.

    It holds the time, in ms, before which readers may have opened the dataset without a
    lease: 0 for a new dataset. Without the file readers have no leases.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
    with suppress(OSError):
        fd = os.open(os.path.join(root, LOCK_FILE), flags, 0o666)
        try:
            os.write(fd, b"%d\n" % (0 if is_new else _now()))
        finally:
            os.close(fd)


def read_generation(conn: sqlite3.Connection) -> int:
    """Return the generation that a connection reads, or -1 if it is unknown."""
    sql = "SELECT value FROM counters WHERE name = ?"
    row = conn.execute(sql, (GENERATION,)).fetchone()
    value = 0 if row is None else row[0]
    return value if type(value) is int and 0 <= value < MAX_GENERATION else -1


def next_generation(cursor: sqlite3.Cursor) -> int:
    """Begin a generation in the open transaction; return its number, the time in ms."""
    number = min(
        max(read_generation(cursor.connection) + 1, _now()), MAX_GENERATION - 1
    )
    cursor.execute(
        "INSERT OR REPLACE INTO counters (name, value) VALUES (?, ?)",
        (GENERATION, number),
    )
    return number


def has_older_readers(conn: sqlite3.Connection, root: str, generation: int) -> bool:
    """Return whether a reader may read a state older than a generation."""
    since = -1  # ms; later readers have a lease; -1: no reader is known to have one
    if HAS_LOCKS:
        with suppress(OSError, ValueError):
            fd = os.open(os.path.join(root, LOCK_FILE), FLAGS)
            try:
                if _is_locked(fd, generation):
                    return True
                since = _read_since(fd)
            finally:
                os.close(fd)
    if since >= 0 and not 0 <= _now() - since < GRACE_MS:
        return False
    if _all_read_latest(conn):
        return False
    return since >= 0 or 0 <= _now() - generation < GRACE_MS


def _read_since(fd: int) -> int:
    """Return the time in the lock file, in ms."""
    data = os.read(fd, 32)
    try:
        return int(data)
    except ValueError:  # a crash came between creating and writing it
        return os.fstat(fd).st_mtime_ns // 1_000_000


def _all_read_latest(conn: sqlite3.Connection) -> bool:
    """Return whether no connection is in a transaction on an older state."""
    cursor = sqlite3.Cursor(conn)
    (busy_timeout,) = cursor.execute("PRAGMA busy_timeout").fetchone()
    cursor.execute("PRAGMA busy_timeout = 0")
    try:
        busy: int = cursor.execute("PRAGMA wal_checkpoint(FULL)").fetchone()[0]
        return busy == 0
    except sqlite3.OperationalError:
        return False
    finally:
        cursor.execute(f"PRAGMA busy_timeout = {busy_timeout}")


def _now() -> int:
    return time.time_ns() // 1_000_000
