"""Files that others may damage or fill at the same time: open, read, write, remove."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = [
    "LockOwner",
    "append_to",
    "disk_bytes",
    "open_regular",
    "read_at",
    "remove_tree",
    "touch",
    "try_lock_folder",
    "write_at",
]

# No link is followed, no pipe is waited for, no line end is changed.
SAFELY = (
    getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_NOINHERIT", 0)
)
MODE = 0o600  # of new files: what is cached may have needed a password
BLOCK = 512  # bytes that `st_blocks` counts by
MOST_AT_ONCE = 1 << 30  # bytes; some systems refuse 2 GiB
GONE = ".gone"  # how names end of what is being deleted

_all_locked: weakref.WeakSet[LockOwner] = weakref.WeakSet()
_seeking = threading.Lock()  # where there is no pread: position and read are one


class LockOwner:
    """Something with a lock that is free in a forked child.

    Attributes
    ----------
    lock : threading.Lock
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        _all_locked.add(self)

    def reset_after_fork(self) -> None:
        """Begin anew: another thread was changing this when the process forked."""


def _free_locks() -> None:
    global _seeking
    _seeking = threading.Lock()
    for one in list(_all_locked):
        if one.lock.locked():
            one.reset_after_fork()
        one.lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_locks)


def open_regular(path: str, flags: int) -> int:
    """Open a file, and return its descriptor.

    Raises
    ------
    OSError
        It cannot be opened, or is a link, a pipe, a directory.
    """
    fd = os.open(path, flags | SAFELY, MODE)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return fd


def read_at(fd: int, view: memoryview, offset: int) -> bool:
    """Fill the view with a file's bytes; return False if the file ends before."""
    done = 0
    while done < len(view):
        part = view[done : done + MOST_AT_ONCE]
        count = _read_some(fd, part, offset + done)
        if not count:
            return False
        done += count
    return True


def _read_some(fd: int, view: memoryview, offset: int) -> int:
    if hasattr(os, "preadv"):
        count: int = os.preadv(fd, [view], offset)
        return count
    if hasattr(os, "pread"):
        data = os.pread(fd, len(view), offset)
    else:
        with _seeking:
            os.lseek(fd, offset, os.SEEK_SET)
            data = os.read(fd, len(view))
    view[: len(data)] = data
    return len(data)


def write_at(fd: int, view: memoryview, offset: int) -> None:
    """Write all of the view to a place in a file.

    Raises
    ------
    OSError
        It cannot be written; some of it may have been.
    """
    done = 0
    while done < len(view):
        done += _write_some(fd, view[done : done + MOST_AT_ONCE], offset + done)


def _write_some(fd: int, view: memoryview, offset: int) -> int:
    if hasattr(os, "pwrite"):
        count: int = os.pwrite(fd, view, offset)
        return count
    with _seeking:
        os.lseek(fd, offset, os.SEEK_SET)
        return os.write(fd, view)


def append_to(fd: int, data: bytes) -> None:
    """Write to the end of a file that was opened with ``O_APPEND``, at once.

    Raises
    ------
    OSError
        Not all of it could be written.
    """
    if os.write(fd, data) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def disk_bytes(status: os.stat_result) -> int:
    """Return the bytes that a file takes on disk: of a sparse one not its size."""
    if sys.platform == "win32":
        return status.st_size
    return status.st_blocks * BLOCK


def touch(path: str, now_ns: int) -> None:
    """Set a file's times, if that is allowed; of a link its own."""
    follow = os.utime not in os.supports_follow_symlinks
    with suppress(OSError):
        os.utime(path, ns=(now_ns, now_ns), follow_symlinks=follow)


def remove_tree(path: str) -> bool:
    """Remove a directory, or what is in its place; return whether it is gone.

    It is renamed first, so that nobody meets it half deleted.
    """
    try:
        gone = tempfile.mkdtemp(prefix=".", suffix=GONE, dir=os.path.dirname(path))
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    try:
        os.rename(path, os.path.join(gone, "entry"))
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    finally:
        shutil.rmtree(gone, ignore_errors=True)
    return True


@contextmanager
def try_lock_folder(folder: str) -> Iterator[bool]:
    """Tell whether no other process or thread is in here with the same folder.

    Where files cannot be locked, everyone is told that they are alone.
    """
    fd = -1
    with suppress(OSError):
        fd = open_regular(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT)
    try:
        alone = fd < 0 or _lock(fd)
        try:
            yield alone
        finally:
            if fd >= 0 and alone:
                _unlock(fd)  # said, for a forked child has the descriptor too
    finally:
        if fd >= 0:
            os.close(fd)


if sys.platform == "win32":
    import msvcrt

    def _lock(fd: int) -> bool:
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def _unlock(fd: int) -> None:
        with suppress(OSError):
            os.lseek(fd, 0, os.SEEK_SET)
            msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(fd: int) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks
            return True
        return True

    def _unlock(fd: int) -> None:
        with suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)
