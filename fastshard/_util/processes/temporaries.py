"""Temporary files and folders, locked while their process lives; removal of others.

A name is ``.NAME.NODE-BOOT-RANDOM.tmp``. A file is locked by its process, a folder by
its file ``.lock``: the system drops the lock when the process ends, however it ends. So
an unlocked one, of this machine and user, is a leftover, and `sweep` removes it.

Those of other machines are left alone, for locks on a shared file system may be local.
So is all on file systems without locks and on Windows, which renames no open file; on
systems other than Linux files are, but not folders.
"""

from __future__ import annotations

import functools
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from fastshard._util.processes.locks import is_at, try_lock, try_lock_content
from fastshard._util.processes.machine import boot_id, node_name

__all__ = ["create_temporary", "sweep", "sweep_once", "temporary_folder"]

NAME = re.compile(r"\..*\.([0-9a-f]{8})-([0-9a-f]{8})-[0-9a-f]{8}\.tmp", re.DOTALL)
LOCK = ".lock"  # file of a folder
MAX_NAME = 200  # bytes of the final name in a temporary one
HAS_SWEEP = os.name != "nt"
FLAGS = (
    os.O_RDWR
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_NOINHERIT", 0)
)

_swept: set[str] = set()  # folders, by this process


def create_temporary(folder: str, name: str) -> tuple[int, str]:
    """Create a temporary file for `name`; return its descriptor and path.

    While the descriptor, or a copy of it, is open, no sweep removes the file.
    """
    while True:
        path = os.path.join(folder, _make_name(name))
        try:
            fd = os.open(path, FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            continue
        if _hold(fd, path, try_lock_content):
            return fd, path
        os.close(fd)


@contextmanager
def temporary_folder(name: str, parent: str | None = None) -> Iterator[str]:
    """Yield the path of a new folder; remove it at the end if it still exists.

    Leftovers of dead processes beside it are removed first.
    """
    if parent is None:
        from tempfile import gettempdir

        parent = gettempdir()
    sweep(parent)
    fd, home = _create_folder(parent, name)
    owner = os.getpid()
    try:
        path = os.path.join(home, name)
        os.mkdir(path)
        yield path
    finally:
        if os.getpid() == owner:  # not in a forked child
            _remove_folder(home, fd)


def sweep_once(folder: str) -> None:
    """Sweep a folder, once in this process."""
    if folder not in _swept:
        _swept.add(folder)
        sweep(folder)


def sweep(folder: str) -> None:
    """Remove the temporary files and folders of dead processes in a folder."""
    found = []
    if HAS_SWEEP:
        with suppress(OSError), os.scandir(folder) as entries:
            found = [entry for entry in entries if _is_of_machine(entry.name)]
    for entry in found:
        with suppress(OSError):
            _remove_if_dead(entry.path)


def _remove_if_dead(path: str) -> None:
    status = os.lstat(path)
    if sys.platform == "win32" or status.st_uid != os.geteuid():
        return  # another user may replace it, in a folder of all users
    if stat.S_ISDIR(status.st_mode):
        _remove_folder_if_dead(path)
    elif stat.S_ISREG(status.st_mode):
        fd = os.open(path, FLAGS)
        try:
            if try_lock_content(fd):
                os.unlink(path)
        finally:
            os.close(fd)


def _remove_folder_if_dead(home: str) -> None:
    with suppress(OSError):
        os.rmdir(home)  # its process died before it made the lock
    fd = os.open(os.path.join(home, LOCK), FLAGS)
    if try_lock(fd):
        _remove_folder(home, fd)
    else:
        os.close(fd)


def _create_folder(parent: str, name: str) -> tuple[int, str]:
    """Create a folder with its lock; return the lock's descriptor, and the path."""
    while True:
        path = os.path.join(parent, _make_name(name))
        lock = os.path.join(path, LOCK)
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            continue
        try:
            fd = os.open(lock, FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
        except FileNotFoundError:  # swept before it was locked
            continue
        if _hold(fd, lock, try_lock):
            return fd, path
        os.close(fd)


def _hold(fd: int, path: str, lock: Callable[[int], bool | None]) -> bool:
    """Lock a new file; return False if a sweep was faster."""
    return not HAS_SWEEP or (lock(fd) is not False and is_at(fd, path))


def _remove_folder(home: str, fd: int) -> None:
    """Remove a folder, its lock last, so that a sweep can continue.

    The lock is closed before: file systems of a network keep open files.
    """
    import shutil  # late, as `hashlib`: readers of indexes import this module

    with suppress(OSError):
        for name in os.listdir(home):
            if name != LOCK:
                shutil.rmtree(os.path.join(home, name), ignore_errors=True)
    os.close(fd)
    shutil.rmtree(home, ignore_errors=True)


def _make_name(name: str) -> str:
    start = os.fsencode(name)[:MAX_NAME].decode("utf-8", "ignore")
    return f".{start}.{'-'.join(_machine_tags())}-{os.urandom(4).hex()}.tmp"


def _is_of_machine(name: str) -> bool:
    """Return whether a name is that of a temporary file of this machine."""
    match = NAME.fullmatch(name)
    own = _machine_tags()
    return match is not None and (match[1] == own[0] or match[2] == own[1])


@functools.lru_cache(1)
def _machine_tags() -> tuple[str, str]:
    """Return digests of the machine's name, and of its boot, which containers share."""
    from hashlib import blake2b

    def digest(text: str) -> str:
        return blake2b(text.encode("utf-8", "replace"), digest_size=4).hexdigest()

    return digest(node_name()), digest(boot_id() or node_name())
