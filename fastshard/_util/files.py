"""Atomic file creation and replacement."""

from __future__ import annotations

import errno
import os
import sys
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from fastshard._util.processes.temporaries import create_temporary

__all__ = [
    "AtomicFile",
    "make_directory",
    "name_full_disk",
    "replace_file",
    "sync_directory",
    "wait_for_tick",
]

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # errors of writes without a file name
CLOCK_REALTIME_COARSE = 5  # <linux/time.h>: the clock of file timestamps
MAX_TICK = 20_000_000  # ns to wait, at most
POLL_INTERVAL = 500_000  # ns


class AtomicFile:
    """File that is renamed to its path when it is complete.

    It is written under a temporary name in the same directory. If it is discarded, or
    garbage collected before `commit`, it is removed; if its process is killed, by the
    next `sweep` of the directory.

    Attributes
    ----------
    path : str
        Final path, absolute.
    temporary : str
        Path until `commit`.
    file : BinaryIO
        Open for reading and writing.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = True,
        buffering: int = -1,
        sync_folder: bool = True,
        sync: bool = True,
    ) -> None:
        self._sync_folder = sync_folder and sync
        self._sync = sync
        self.path = os.path.realpath(path)
        self._overwrite = overwrite
        folder, last = os.path.split(self.path)
        fd, self.temporary = create_temporary(folder, last)
        self.file: BinaryIO = open(fd, "w+b", buffering)  # noqa: SIM115
        self._dropped = weakref.finalize(
            self, _discard, self.file, self.temporary, os.getpid()
        )

    def commit(self, others: Iterator[str] = iter(())) -> str:  # noqa: B008 - empty
        """Sync the file, rename it, and sync the directory."""
        try:
            self.file.flush()
            _copy_mode(self.path, self.file.fileno())
            if self._sync:
                os.fsync(self.file.fileno())
            with self._closed_file():
                if self._overwrite:
                    os.replace(self.temporary, self.path)
                else:
                    self._rename(others)
        except BaseException:
            self.discard()
            raise
        self._dropped.detach()
        if self._sync_folder:
            sync_directory(os.path.dirname(self.path))
        return self.path

    @contextmanager
    def _closed_file(self) -> Iterator[None]:
        """Close the file; hold its lock until the rename, against sweeps."""
        held = -1 if os.name == "nt" else os.dup(self.file.fileno())
        try:
            self.file.close()
            yield
        finally:
            if held >= 0:
                os.close(held)

    def _rename(self, others: Iterator[str]) -> None:
        while True:
            try:
                _rename_new(self.temporary, self.path)
            except FileExistsError:
                other = next(others, None)
                if other is None:
                    raise
                self.path = os.path.abspath(other)
            else:
                return

    def discard(self) -> None:
        """Remove the file, unless it was committed."""
        self._dropped()


@contextmanager
def replace_file(
    path: str | os.PathLike[str], *, sync_folder: bool = True, sync: bool = True
) -> Iterator[BinaryIO]:
    """Yield a new file that atomically replaces `path` at the end.

    Until then the old file is unchanged, also after a crash: the new one is written
    under a temporary name beside it, synced and renamed, and the directory is synced.
    After an exception the new file is removed. With ``sync_folder=False`` the caller
    syncs the directory, once for many files; with ``sync=False`` nothing is synced.
    """
    new = AtomicFile(path, sync_folder=sync_folder, sync=sync)
    try:
        yield new.file
        new.commit()
    except OSError as error:
        name_full_disk(error, path)
        raise
    finally:
        new.discard()


def name_full_disk(error: OSError, path: str | os.PathLike[str]) -> None:
    """Add the file's name to the error of a write to a full disk."""
    if error.errno in FULL and error.filename is None:
        error.filename = os.fspath(path)


def _discard(file: BinaryIO, temporary: str, pid: int) -> None:
    if os.getpid() != pid:  # in a forked child: the parent owns the file
        return
    with suppress(OSError):
        file.close()
    with suppress(OSError):
        os.unlink(temporary)


def _rename_new(temporary: str, path: str) -> None:
    """Rename a file; raise FileExistsError if the path exists, atomically."""
    if os.name == "nt":
        os.rename(temporary, path)  # never replaces a file on Windows
        return
    try:
        os.link(temporary, path)
    except OSError as error:
        if isinstance(error, FileExistsError) or os.path.lexists(path):
            code = errno.EEXIST
            raise FileExistsError(code, os.strerror(code), path) from None
        _rename_with_claim(temporary, path)  # a file system without hard links
    else:
        os.unlink(temporary)


def _rename_with_claim(temporary: str, path: str) -> None:
    """Rename a file to a new path on a file system without hard links.

    A hidden ``.claim`` file excludes other processes. If a killed process left one, the
    path counts as existing.
    """
    folder, last = os.path.split(path)
    claim = os.path.join(folder, f".{last[:200]}.claim")
    try:
        os.close(os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except FileExistsError:
        reason = (
            "another process is creating the file, or was killed and left "
            f"{claim}, which may then be removed"
        )
        raise FileExistsError(errno.EEXIST, reason, path) from None
    try:
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        os.rename(temporary, path)
    finally:
        os.unlink(claim)


def make_directory(path: str) -> None:
    """Create a directory and its missing parents, and sync them."""
    missing = []
    folder = path
    while not os.path.isdir(folder) and folder != os.path.dirname(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    os.makedirs(path, exist_ok=True)
    for created in missing:
        sync_directory(os.path.dirname(created))


def sync_directory(folder: str) -> None:
    """Sync a directory, so that renames in it survive a power loss; not on Windows."""
    if os.name == "nt":
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _copy_mode(name: str, fd: int) -> None:
    """Set a file's permissions: those of the file it replaces, or the default ones."""
    if os.name == "nt":
        return
    try:
        mode = os.stat(name).st_mode & 0o777
    except FileNotFoundError:
        mode = 0o666 & ~_umask()
    os.fchmod(fd, mode)


def _umask() -> int:
    """Return the umask, if possible without setting it, which affects other threads."""
    with (
        suppress(OSError, ValueError, StopIteration),
        open("/proc/self/status") as file,
    ):
        line = next(line for line in file if line.startswith("Umask:"))
        return int(line.split()[1], 8)
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def wait_for_tick(ctime_ns: int) -> bool:
    """Wait until new timestamps differ from `ctime_ns`; return whether it waited.

    Many file systems take timestamps from a clock that ticks every 1 to 10 ms.
    """
    if sys.platform != "linux":
        return False
    waited = 0
    while waited < MAX_TICK and (
        0 <= ctime_ns - time.clock_gettime_ns(CLOCK_REALTIME_COARSE) < MAX_TICK
    ):
        time.sleep(POLL_INTERVAL / 1e9)
        waited += POLL_INTERVAL
    return waited > 0
