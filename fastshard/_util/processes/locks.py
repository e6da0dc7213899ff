"""Exclusive locks on files; the system drops one when its process ends."""

from __future__ import annotations

import errno
import os
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from fastshard._util.processes.descriptors import open_regular

__all__ = [
    "CONTENTION",
    "FLOCK",
    "HAS_RANGES",
    "close_locked",
    "hold_file",
    "is_at",
    "lock_range",
    "open_locked",
    "try_lock",
    "try_lock_content",
    "unlock",
]

CONTENTION = {errno.EACCES, errno.EAGAIN, errno.EDEADLK}  # the lock is held
HAS_RANGES = sys.platform == "linux" and sys.maxsize > 1 << 32
FLOCK = struct.Struct("hhqqixxxx")  # Linux: type, whence, start, length, process
POLL = 0.05  # seconds between attempts to get a lock
CONTENT_BYTE = 1 << 62  # locked for `try_lock_content`, past all content

if sys.platform == "win32":
    import msvcrt

    LOCKED_BYTE = 1 << 30  # past the content of lock files, which others read

    def _set(fd: int, mode: int) -> None:
        at = os.lseek(fd, 0, os.SEEK_CUR)
        os.lseek(fd, LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(fd, mode, 1)
        finally:
            os.lseek(fd, at, os.SEEK_SET)

    def _lock(fd: int) -> None:
        _set(fd, msvcrt.LK_NBLCK)

    def _unlock(fd: int) -> None:
        _set(fd, msvcrt.LK_UNLCK)
else:
    import fcntl

    def _lock(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_UN)


def lock_range(fd: int, kind: int, start: int, end: int) -> None:
    """Lock or unlock a range of bytes for an open file description, on Linux."""
    if sys.platform != "linux" or not HAS_RANGES:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
    request = FLOCK.pack(kind, os.SEEK_SET, start, end - start, 0)
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, request)


def try_lock_content(fd: int) -> bool | None:
    """Lock a file that other descriptors read and write, as `try_lock` does.

    On servers of SMB the lock of a whole file would keep them out.
    """
    if sys.platform != "linux":
        return None
    try:
        lock_range(fd, fcntl.F_WRLCK, CONTENT_BYTE, CONTENT_BYTE + 1)
    except OSError as error:
        return False if error.errno in CONTENTION else None
    return True


def try_lock(fd: int) -> bool | None:
    """Lock a file without waiting.

    A forked child shares the lock, until both have closed the descriptor or one has
    unlocked it.
    """
    try:
        _lock(fd)
    except OSError as error:
        return False if error.errno in CONTENTION else None
    return True


def unlock(fd: int) -> None:
    """Unlock a file; closing is not enough, for a forked child shares the lock."""
    with suppress(OSError):
        _unlock(fd)


def is_at(fd: int, path: str) -> bool:
    """Return whether a path leads to an open file."""
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False


def open_locked(
    path: str, may_wait: Callable[[int], bool] | None = None, mode: int = 0o666
) -> tuple[int, bool | None] | None:
    """Open a file, or create it, and lock it; return its descriptor, and as `try_lock`.

    While another holds the lock, ``may_wait(fd)`` pauses, and returns whether to try
    again. None: the file was renamed or removed before it was locked.
    """
    fd = open_regular(path, os.O_RDWR | os.O_CREAT, mode)
    keep = False
    try:
        locked = try_lock(fd)
        while locked is False and may_wait is not None and may_wait(fd):
            locked = try_lock(fd)
        keep = not locked or is_at(fd, path)
        return (fd, locked) if keep else None
    finally:
        if not keep:
            close_locked(fd)


def close_locked(fd: int) -> None:
    """Unlock and close a file."""
    unlock(fd)
    os.close(fd)


@contextmanager
def hold_file(path: str) -> Iterator[None]:
    """Hold a lock on a file made for it, and removed at the end.

    Waits while another process or thread holds it. On a file system without locks
    nothing is waited for.
    """

    def pause(fd: int) -> bool:
        time.sleep(POLL)
        return True

    while (found := open_locked(path, pause)) is None:
        pass  # the last holder removed it
    try:
        yield
    finally:
        with suppress(OSError):
            os.unlink(path)
        close_locked(found[0])
