"""Writing files whole: they appear under their name only when they are complete."""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

__all__ = ["AtomicFile", "replace_file", "sync_directory"]


class AtomicFile:
    """A file that takes its name when it is complete, not before.

    It is written under a temporary name in the same directory. One that is
    discarded, or dropped without `commit`, leaves nothing behind.

    Parameters
    ----------
    path : str or path-like
        Its name. A link there is followed.
    overwrite : bool
        Whether it takes the place of a file that has the name already.
    buffering : int
        Bytes that are gathered before they are written; see `open`.

    Attributes
    ----------
    path : str
        Where it will be, absolute.
    temporary : str
        Where it is meanwhile.
    file : BinaryIO
        To write to, and to read from.

    Raises
    ------
    OSError
        It cannot be made.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = True,
        buffering: int = -1,
    ) -> None:
        self.path = os.path.realpath(path)  # what a link points at, not the link
        self._overwrite = overwrite
        folder, last = os.path.split(self.path)
        from tempfile import mkstemp  # late: an index that is read needs none

        fd, self.temporary = mkstemp(
            prefix=f".{last[:200]}.", suffix=".tmp", dir=folder
        )
        self.file: BinaryIO = open(fd, "w+b", buffering)  # noqa: SIM115
        self._dropped = weakref.finalize(
            self, _discard, self.file, self.temporary, os.getpid()
        )

    def commit(self, others: Iterator[str] = iter(())) -> str:  # noqa: B008 - empty
        """Sync the file, give it its name, and sync the directory.

        Parameters
        ----------
        others : iterator of str, optional
            Names in the same directory to try, one after another, where the name is
            taken and `overwrite` is False. Of several processes one gets each name.

        Returns
        -------
        str
            The path that it has now.

        Raises
        ------
        FileExistsError
            The name is taken, and `overwrite` is False.
        OSError
            It cannot be written. It is discarded.
        """
        try:
            self.file.flush()
            _copy_mode(self.path, self.file.fileno())
            os.fsync(self.file.fileno())
            self.file.close()
            if self._overwrite:
                os.replace(self.temporary, self.path)
            else:
                self._rename(others)
        except BaseException:
            self.discard()
            raise
        self._dropped.detach()
        sync_directory(os.path.dirname(self.path))
        return self.path

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
def replace_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Give a new file to write, which takes the place of `path` at the end.

    What is at `path` stays as it was until then, also after a crash: the file
    is written under a temporary name beside it, synced, renamed, and the
    directory is synced. An exception leaves nothing behind.

    Raises
    ------
    OSError
        It cannot be written.
    """
    new = AtomicFile(path)
    try:
        yield new.file
        new.commit()
    finally:
        new.discard()


def _discard(file: BinaryIO, temporary: str, pid: int) -> None:
    if os.getpid() != pid:  # a forked copy: the file is the parent's
        return
    with suppress(OSError):
        file.close()
    with suppress(OSError):
        os.unlink(temporary)


def _rename_new(temporary: str, path: str) -> None:
    """Rename a file to a name that must be free, also when others race for it."""
    if os.name == "nt":
        os.rename(temporary, path)  # there it replaces nothing
        return
    try:
        os.link(temporary, path)
    except OSError as error:
        if isinstance(error, FileExistsError) or os.path.lexists(path):
            code = errno.EEXIST
            raise FileExistsError(code, os.strerror(code), path) from None
        _claim(temporary, path)  # a file system without hard links
    else:
        os.unlink(temporary)


def _claim(temporary: str, path: str) -> None:
    """Rename a file to a free name where there are no hard links.

    A hidden ``.claim`` beside it keeps others out meanwhile. One that a killed process
    left has the name count as taken.
    """
    folder, last = os.path.split(path)
    claim = os.path.join(folder, f".{last[:200]}.claim")
    try:
        os.close(os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except FileExistsError:
        reason = f"another process gives a file this name, or was killed: {claim}"
        raise FileExistsError(errno.EEXIST, reason, path) from None
    try:
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        os.rename(temporary, path)
    finally:
        os.unlink(claim)


def sync_directory(folder: str) -> None:
    """Make the names in a directory survive a power loss, where that is offered."""
    if os.name == "nt":  # directories cannot be opened there
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _copy_mode(name: str, fd: int) -> None:
    """Give a new file the old one's permissions, or those of any new file."""
    if os.name == "nt":
        return
    try:
        mode = os.stat(name).st_mode & 0o777
    except FileNotFoundError:
        mode = 0o666 & ~_umask()
    os.fchmod(fd, mode)


def _umask() -> int:
    """Ask for the umask without setting it, which other threads would see."""
    with (
        suppress(OSError, ValueError, StopIteration),
        open("/proc/self/status") as file,
    ):
        line = next(line for line in file if line.startswith("Umask:"))
        return int(line.split()[1], 8)
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
