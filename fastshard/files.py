"""Writing files whole: they appear under their name only when they are complete."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

__all__ = ["replacing", "sync_directory"]


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Give a new file to write, which takes the place of `path` at the end.

    What is at `path` stays as it was until then, also after a crash: the file
    is written under a temporary name beside it, synced, renamed, and the
    directory is synced. An exception leaves nothing behind.

    Raises
    ------
    OSError
        It cannot be written.
    """
    name = os.path.realpath(path)  # what a link points at, not the link
    folder, last = os.path.split(name)
    fd, temporary = tempfile.mkstemp(
        prefix=f".{last[:200]}.", suffix=".tmp", dir=folder
    )
    try:
        with open(fd, "w+b") as file:
            yield file
            file.flush()
            _copy_mode(name, file.fileno())
            os.fsync(file.fileno())
        os.replace(temporary, name)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    sync_directory(folder)


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
