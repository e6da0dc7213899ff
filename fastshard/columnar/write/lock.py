"""Exclusive right to write to a dataset.

Among processes it is a file lock. Within a process it is a registry of open writers,
through which a new writer closes the one before it. A forked child inherits neither:
its copies of the parent's writers are disabled.
"""

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
from fastshard._util.processes.descriptors import open_regular
from fastshard._util.processes.forks import at_fork
from fastshard._util.processes.locks import CONTENTION, try_lock, unlock
from fastshard._util.writing.unclosed import ExitCall
from fastshard.errors import WriterLockedError

__all__ = [
    "LOCK",
    "OpenWriter",
    "WriterLock",
    "find_writer",
    "hold_registry",
    "is_locked",
    "list_writers",
    "register",
    "unregister",
]

LOCK = "writer.lock"  # below a dataset's root; holds the writer's process id
OTHER_WAIT_SECONDS = 0.1  # for another process: its `is_locked` may hold the lock
OWN_WAIT_SECONDS = 5.0  # for a writer of this process that is being closed

if sys.platform == "win32":
    fcntl = None
else:
    import fcntl


class WriterLock:
    """Exclusive file lock on a dataset, until `release` or the process's end."""

    def __init__(self, root: str) -> None:
        path = os.path.join(root, LOCK)
        fd = open_regular(
            path, os.O_RDWR | os.O_CREAT, 0o666
        )  # no link: it is truncated
        try:
            _wait_for_lock(fd)
        except OSError as error:
            holder = _read_holder(fd)
            os.close(fd)
            if error.errno not in CONTENTION:
                raise OSError(error.errno, error.strerror, path) from error
            who = "another process" if holder is None else f"process {holder}"
            reason = f"{who} writes to this dataset; there can be one writer at a time"
            raise WriterLockedError(errno.EAGAIN, reason, root) from None
        self.fd = fd
        _locks.add(self)
        with suppress(OSError):  # the id is only for messages: the disk may be full
            os.ftruncate(fd, 0)
            os.write(fd, b"%d\n" % os.getpid())

    def release(self) -> None:
        """Unlock and close the file. May be called twice."""
        if self.fd >= 0:  # reset last: an interrupted release can be repeated
            with suppress(OSError):
                os.ftruncate(self.fd, 0)
            unlock(self.fd)
            _locks.discard(self)
            fd, self.fd = self.fd, -1
            os.close(fd)

    def close_in_child(self) -> None:
        """Close a forked child's descriptor; the parent keeps the lock."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


_locks: set[WriterLock] = set()  # held by this process


def _lock(fd: int) -> None:
    """Lock a file; raise an OSError, of `CONTENTION` if another process holds it."""
    locked = try_lock(fd)
    if locked is None:
        _lock_region(fd)
    elif not locked:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def _lock_region(fd: int) -> None:
    """Lock a file on a file system without `flock`.

    Only a fallback: the lock is lost when any descriptor of the file is closed in this
    process.
    """
    if fcntl is None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_locked(root: str) -> bool:
    """Return whether a dataset has an open writer.

    The lock is taken for a moment to find out. If the lock file cannot be
    opened, the dataset counts as locked.
    """
    if find_writer(root) is not None:
        return True
    try:
        fd = open_regular(os.path.join(root, LOCK), os.O_RDWR)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        _lock(fd)
        unlock(fd)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def _wait_for_lock(fd: int) -> None:
    """Lock a file; retry for `OWN_WAIT_SECONDS` or `OTHER_WAIT_SECONDS`."""
    begun = time.monotonic()
    while True:
        try:
            return _lock(fd)
        except OSError as error:
            if error.errno not in CONTENTION:
                raise
            own = _read_holder(fd) == os.getpid()
            seconds = OWN_WAIT_SECONDS if own else OTHER_WAIT_SECONDS
            if time.monotonic() > begun + seconds:
                raise
        time.sleep(0.01)


def _read_holder(fd: int) -> int | None:
    """Return the process id in the lock file, or None."""
    try:
        os.lseek(fd, 0, os.SEEK_SET)
        return int(os.read(fd, 32))
    except (OSError, ValueError):
        return None


class OpenWriter(Protocol):
    """Entry of the registry."""

    def close(self) -> None: ...

    def close_dropped(self) -> None:
        """Close the writer with a `ResourceWarning`."""

    def disable_in_child(self) -> list[object]:
        """Disable the writer in a forked child."""


_writers: weakref.WeakValueDictionary[tuple[int, int], OpenWriter] = (
    weakref.WeakValueDictionary()
)
_registry_lock = threading.RLock()


def hold_registry() -> AbstractContextManager[Any]:
    """Return the lock to hold while a writer is opened in this process."""
    return _registry_lock


def find_writer(root: str) -> OpenWriter | None:
    """Return this process's writer of a dataset, by any path to it."""
    return _writers.get(_identify(root))


def register(root: str, writer: OpenWriter) -> None:
    """Add the writer of a dataset; the registry does not keep it alive."""
    _writers[_identify(root)] = writer
    _exit_call.arm()


def unregister(writer: OpenWriter) -> None:
    """Remove a writer if it is registered."""
    for key, other in list(_writers.items()):
        if other is writer:
            del _writers[key]


def list_writers() -> list[OpenWriter]:
    """Return the open writers of this process."""
    return list(_writers.values())


def _identify(root: str) -> tuple[int, int]:
    """Return device and inode of a directory."""
    status = os.stat(root)
    return status.st_dev, status.st_ino


def _close_all() -> None:
    """Close all writers at exit; report interrupts, so that each is closed."""
    for writer in list_writers():
        try:
            writer.close_dropped()
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__)


_exit_call = ExitCall(_close_all)


def _disable_in_child() -> None:
    """Disable the parent's writers in a forked child.

    Their connections are kept for ever: closing one would roll back the parent's
    transaction, in memory that both processes share.
    """
    global _registry_lock  # another thread of the parent may have held it
    _registry_lock = threading.RLock()
    for lock in _locks:
        lock.close_in_child()
    _locks.clear()
    for writer in list_writers():
        for thing in writer.disable_in_child():
            keep_for_ever(thing)
    _writers.clear()


at_fork(after_in_child=_disable_in_child)
