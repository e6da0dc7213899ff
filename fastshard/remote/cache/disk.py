"""File operations that tolerate processes that damage or fill the same files."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from fastshard._util.processes.forks import LockOwner
from fastshard._util.processes.locks import close_locked, open_locked

__all__ = [
    "append_to",
    "disk_bytes",
    "read_at",
    "remove_tree",
    "touch",
    "try_lock_file",
    "try_lock_folder",
    "write_at",
]

BLOCK = 512  # unit of `st_blocks`, bytes
MOST_AT_ONCE = 1 << 30  # bytes; some systems refuse 2 GiB
GONE = ".gone"  # suffix of a directory that is being removed

_seeking = LockOwner()  # without pread: makes seek and read atomic


def read_at(fd: int, view: memoryview, offset: int) -> bool:
    """Fill the view from a file; return False if the file ends before."""
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
        with _seeking.lock:
            os.lseek(fd, offset, os.SEEK_SET)
            data = os.read(fd, len(view))
    view[: len(data)] = data
    return len(data)


def write_at(fd: int, view: memoryview, offset: int) -> None:
    """Write all of the view to a file at an offset."""
    done = 0
    while done < len(view):
        done += _write_some(fd, view[done : done + MOST_AT_ONCE], offset + done)


def _write_some(fd: int, view: memoryview, offset: int) -> int:
    if hasattr(os, "pwrite"):
        count: int = os.pwrite(fd, view, offset)
        return count
    with _seeking.lock:
        os.lseek(fd, offset, os.SEEK_SET)
        return os.write(fd, view)


def append_to(fd: int, data: bytes) -> None:
    """Write to the end of a file opened with ``O_APPEND``, in one call."""
    if os.write(fd, data) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def disk_bytes(status: os.stat_result) -> int:
    """Return the bytes allocated for a file; of a sparse one fewer than its size."""
    if sys.platform == "win32":
        return status.st_size
    return status.st_blocks * BLOCK


def touch(path: str, now_ns: int) -> None:
    """Set a file's times if permitted; do not follow a link."""
    follow = os.utime not in os.supports_follow_symlinks
    with suppress(OSError):
        os.utime(path, ns=(now_ns, now_ns), follow_symlinks=follow)


def remove_tree(path: str) -> bool:
    """Remove a directory, or a file of its name; return whether it is gone.

    It is renamed first, so that no process opens it half removed.
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


def try_lock_folder(folder: str) -> AbstractContextManager[bool]:
    """Lock a folder without waiting; see `try_lock_file`."""
    return try_lock_file(os.path.join(folder, "lock"))


@contextmanager
def try_lock_file(path: str) -> Iterator[bool]:
    """Lock a file without waiting; yield whether the lock was acquired.

    The file is created. Where that is impossible, and on a file system without locks,
    it always yields True.
    """
    found: tuple[int, bool | None] | None = -1, None
    with suppress(OSError):
        found = open_locked(path, mode=0o600)
    if found is None:
        yield False
        return
    fd, locked = found
    try:
        yield locked is not False
    finally:
        if fd >= 0:
            close_locked(fd)
