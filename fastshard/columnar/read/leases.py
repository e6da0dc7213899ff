"""Leases of readers: which states of a dataset may still be read.

A compaction replaces shards that open readers may not have opened yet. Each reader
holds a shared lock on one byte of a file, at the place of the generation that it
sees; each compaction begins a new generation. Shards that were replaced are removed
when no byte before that generation is locked. The kernel drops a lock with its
process, and a forked child shares its parent's.

Locks belong to open file descriptions (Linux). Elsewhere the writer asks SQLite
whether a connection still reads an older state, and waits for `GRACE_MS` at most.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import struct
import sys
import time
from contextlib import suppress

__all__ = [
    "LEASES",
    "Lease",
    "create_lease_file",
    "has_older_readers",
    "next_generation",
    "read_generation",
]

LEASES = "readers.lock"  # below a dataset's root; made by writers
GENERATION = "fastshard_generation"  # the counter of the last compaction, in ms
GRACE_MS = 3_600_000  # for readers that cannot be asked
LARGEST = 1 << 62  # no generation is so large
# What keeps a reader from a lease: no writer of ours was here, or no locks.
WITHOUT = {
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


if sys.platform == "linux" and sys.maxsize > 1 << 32:
    import fcntl

    FLOCK = struct.Struct("hhqqixxxx")  # type, whence, start, length, process

    def _lock(fd: int, kind: int, start: int, end: int) -> None:
        """Lock, or unlock, bytes of a file for its open file description."""
        if end > start:
            asked = FLOCK.pack(kind, os.SEEK_SET, start, end - start, 0)
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, asked)

    def _share(fd: int, start: int, end: int) -> None:
        _lock(fd, fcntl.F_RDLCK, start, end)

    def _give_back(fd: int, start: int, end: int) -> None:
        _lock(fd, fcntl.F_UNLCK, start, end)

    def _is_locked(fd: int, end: int) -> bool:
        """Say whether another has a lock on one of the first bytes."""
        asked = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, end, 0)
        kind: int = FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))[0]
        return kind != fcntl.F_UNLCK

    HAS_LOCKS = True
else:

    def _share(fd: int, start: int, end: int) -> None: ...

    def _give_back(fd: int, start: int, end: int) -> None: ...

    def _is_locked(fd: int, end: int) -> bool:
        return False

    HAS_LOCKS = False


class Lease:
    """A reader's claim to the shards of what it sees.

    Without the writers' file, or where locks do not work, it claims nothing; see
    `has_older_readers` for what then keeps shards.

    Parameters
    ----------
    root : str
        The dataset's directory.

    Attributes
    ----------
    generations : frozenset of int
        Those that it holds, besides all while `widen` counts.
    """

    def __init__(self, root: str) -> None:
        self._path = os.path.join(root, LEASES)
        self._fd = -1
        self.generations: frozenset[int] = frozenset()

    def widen(self) -> None:
        """Claim all states, before one is begun to be read.

        Raises
        ------
        OSError
            There are too many open files, or the device failed.
        """
        if not HAS_LOCKS:
            return
        try:
            if self._fd < 0:
                self._fd = os.open(self._path, FLAGS)
                if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                    self.close()
                    return
            _share(self._fd, 0, LARGEST)
        except OSError as error:
            self.close()
            if error.errno not in WITHOUT:
                raise

    def narrow(self, *generations: int) -> None:
        """Claim only the states of these generations; of one unknown (-1) all."""
        self.generations = frozenset(generations)
        if self._fd < 0 or not all(0 <= one < LARGEST for one in generations):
            return
        start = 0
        for one in sorted(set(generations)):
            _give_back(self._fd, start, one)
            start = one + 1
        _give_back(self._fd, start, LARGEST)

    def close(self) -> None:
        """Give it back; in a child of fork the parent's stays. Twice is no error."""
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
    """Make the file that readers' locks are on, if it is not there.

    It holds the time before which readers may have come without a lease: 0 where
    there was no dataset yet. Where it cannot be made readers have none.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
    with suppress(OSError):
        fd = os.open(os.path.join(root, LEASES), flags, 0o666)
        try:
            os.write(fd, b"%d\n" % (0 if is_new else _now()))
        finally:
            os.close(fd)


def read_generation(conn: sqlite3.Connection) -> int:
    """Return the generation of the state that a connection reads; -1: unknown."""
    sql = "SELECT value FROM counters WHERE name = ?"
    row = conn.execute(sql, (GENERATION,)).fetchone()
    value = 0 if row is None else row[0]
    return value if type(value) is int and 0 <= value < LARGEST else -1


def next_generation(cursor: sqlite3.Cursor) -> int:
    """Begin a generation in the open transaction; its number is the time."""
    number = min(max(read_generation(cursor.connection) + 1, _now()), LARGEST - 1)
    cursor.execute(
        "INSERT OR REPLACE INTO counters (name, value) VALUES (?, ?)",
        (GENERATION, number),
    )
    return number


def has_older_readers(conn: sqlite3.Connection, root: str, generation: int) -> bool:
    """Say whether a reader may see a state before a generation.

    Parameters
    ----------
    conn : sqlite3.Connection
        The writer's, in no transaction.
    root : str
    generation : int
        It is committed.
    """
    since = -1  # before which readers may be without a lease; -1: all may be
    if HAS_LOCKS:
        with suppress(OSError, ValueError):
            fd = os.open(os.path.join(root, LEASES), FLAGS)
            try:
                if _is_locked(fd, generation):
                    return True
                since = _since(fd)
            finally:
                os.close(fd)
    if since >= 0 and not 0 <= _now() - since < GRACE_MS:
        return False
    if _all_see_latest(conn):
        return False
    return since >= 0 or 0 <= _now() - generation < GRACE_MS


def _since(fd: int) -> int:
    data = os.read(fd, 32)
    try:
        return int(data)
    except ValueError:  # a crash came between its making and its writing
        return os.fstat(fd).st_mtime_ns // 1_000_000


def _all_see_latest(conn: sqlite3.Connection) -> bool:
    """Say whether no connection is in a transaction of an older state."""
    cursor = sqlite3.Cursor(conn)
    (patience,) = cursor.execute("PRAGMA busy_timeout").fetchone()
    cursor.execute("PRAGMA busy_timeout = 0")
    try:
        busy: int = cursor.execute("PRAGMA wal_checkpoint(FULL)").fetchone()[0]
        return busy == 0
    except sqlite3.OperationalError:
        return False
    finally:
        cursor.execute(f"PRAGMA busy_timeout = {patience}")


def _now() -> int:
    return time.time_ns() // 1_000_000
