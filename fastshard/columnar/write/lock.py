"""One writer of a dataset at a time: a lock between processes, a list in this one."""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
import weakref
from contextlib import AbstractContextManager, suppress
from typing import Any, Protocol

from fastshard._core.dataset.npy import keep_for_ever
from fastshard.errors import WriterLockedError

__all__ = [
    "LOCK",
    "Locked",
    "WriterLock",
    "is_locked",
    "open_writers",
    "opening",
    "register",
    "registered",
    "unregister",
]

LOCK = "writer.lock"  # below a dataset's root; holds the writer's process id
A_MOMENT = 0.1  # seconds that `is_locked` may keep it, at most
AGAIN = {errno.EACCES, errno.EAGAIN, errno.EDEADLK}  # another process has the lock
PATIENCE = 5.0  # seconds that a writer of this process may take to end


class WriterLock:
    """The right to write to a dataset, until `release`.

    The system ends it when the process does. A forked child has no part in it.

    Parameters
    ----------
    root : str
        The dataset's directory.

    Raises
    ------
    WriterLockedError
        Another process has it.
    OSError
        The file cannot be made, or the file system has no locks.
    """

    def __init__(self, root: str) -> None:
        path = os.path.join(root, LOCK)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
        try:
            _take_soon(fd)
        except OSError as error:
            holder = _holder(fd)
            os.close(fd)
            if error.errno not in AGAIN:
                raise OSError(error.errno, error.strerror, path) from error
            who = "another process" if holder is None else f"process {holder}"
            reason = f"{who} writes to this dataset; there can be one writer at a time"
            raise WriterLockedError(errno.EAGAIN, reason, root) from None
        self._fd = fd
        _held.add(self)
        with suppress(OSError):  # for messages only: a full disk is no reason to stop
            os.ftruncate(fd, 0)
            os.write(fd, b"%d\n" % os.getpid())

    def release(self) -> None:
        """Give it back. Twice is no error."""
        if self._fd >= 0:  # until it is given back: an interrupt may come between
            with suppress(OSError):
                os.ftruncate(self._fd, 0)
            with suppress(OSError):
                _give_back(self._fd)
            _held.discard(self)
            fd, self._fd = self._fd, -1
            os.close(fd)

    def forked(self) -> None:
        """Leave it to the parent, in a child process."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


_held: set[WriterLock] = set()


if sys.platform == "win32":
    import msvcrt

    FAR = 1 << 30  # the byte that is locked: where the process id is not

    def _take(fd: int) -> None:
        os.lseek(fd, FAR, os.SEEK_SET)
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        finally:
            os.lseek(fd, 0, os.SEEK_SET)

    def _give_back(fd: int) -> None:
        os.lseek(fd, FAR, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)
else:
    import fcntl

    def _take(fd: int) -> None:
        # A lock of `lockf` would be lost when anything here closes the same file.
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in AGAIN:
                raise
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _give_back(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_UN)  # also where a child that starts has a copy


def is_locked(root: str) -> bool:
    """Say whether a writer is at work; for a moment it takes the lock to know."""
    if registered(root) is not None:
        return True
    try:
        fd = os.open(os.path.join(root, LOCK), os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
    except FileNotFoundError:
        return False
    except OSError:
        return True  # who may not write cannot know
    try:
        _take(fd)
        _give_back(fd)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def _take_soon(fd: int) -> None:
    """Take the lock; wait a little for a writer of this process that is ending."""
    begun = time.monotonic()
    while True:
        try:
            return _take(fd)
        except OSError as error:
            if error.errno not in AGAIN:
                raise
            patience = PATIENCE if _holder(fd) == os.getpid() else A_MOMENT
            if time.monotonic() > begun + patience:
                raise
        time.sleep(0.01)


def _holder(fd: int) -> int | None:
    """Return the process that wrote its id, None if none can be read."""
    try:
        os.lseek(fd, 0, os.SEEK_SET)
        return int(os.read(fd, 32))
    except (OSError, ValueError):
        return None


class Locked(Protocol):
    """What is registered: a writer."""

    def close(self) -> None: ...

    def forked(self) -> list[object]:
        """Become useless, in a child process; return what must not be finished."""


_writers: weakref.WeakValueDictionary[tuple[int, int], Locked] = (
    weakref.WeakValueDictionary()
)


_opening = threading.RLock()


def opening() -> AbstractContextManager[Any]:
    """Return the lock that is held while a writer is opened in this process."""
    return _opening


def registered(root: str) -> Locked | None:
    """Return this process's writer of a dataset, under whatever path it was opened."""
    return _writers.get(_identity(root))


def register(root: str, writer: Locked) -> None:
    """Remember the writer of a dataset; it is not kept alive."""
    _writers[_identity(root)] = writer


def unregister(writer: Locked) -> None:
    """Forget a writer. One that is not registered is no error."""
    for key, other in list(_writers.items()):
        if other is writer:
            del _writers[key]


def open_writers() -> list[Locked]:
    """Return the writers that are registered."""
    return list(_writers.values())


def _identity(root: str) -> tuple[int, int]:
    status = os.stat(root)
    return status.st_dev, status.st_ino


def _after_fork() -> None:
    """Make the parent's writers useless in a child, and keep what they hold.

    A connection that a child closes takes back what the parent has not committed,
    in memory that both share; so it is never closed here.
    """
    global _opening  # another thread may have held it
    _opening = threading.RLock()
    for lock in _held:
        lock.forked()
    _held.clear()
    for writer in open_writers():
        for thing in writer.forked():
            keep_for_ever(thing)
    _writers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
