"""Whole objects in the disk cache that are known by the SHA-256 of their bytes.

An object is written under a temporary name, and becomes an entry when its digest is
the expected one. A file beside the data names the state of the data that was hashed:
device, inode, size, times, and the boot of the machine. While it holds, the bytes are
not read again; otherwise they are hashed before their first use.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from fastshard._util.files import replace_file
from fastshard._util.processes.descriptors import open_regular
from fastshard._util.processes.forks import ForkAware, LockOwner
from fastshard._util.processes.locks import try_lock
from fastshard._util.processes.machine import boot_id
from fastshard.codecs.hashes import hash_file
from fastshard.remote.cache.directory import (
    HASHED,
    NEW,
    OBJECT,
    USED,
    remove_leftovers,
)
from fastshard.remote.cache.disk import (
    append_to,
    remove_tree,
    touch,
    try_lock_file,
)
from fastshard.remote.cache.entry_files import DATA, LOG
from fastshard.remote.cache.store import RangeCache
from fastshard.remote.cache.version import ObjectVersion
from fastshard.remote.transport import ObjectInfo

__all__ = ["HashedObject", "ObjectWriter", "WrongHashError", "find_hashed", "locked"]

BETWEEN = 0.002  # seconds between two attempts to lock an object
TOUCH = 5.0  # seconds between two updates of the time of the last use
ATTEMPTS = 5  # at a name that other processes use, too
TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
MAX_MARK = 4096  # bytes of the file beside the data
MAX_KNOWN = 1 << 16  # files that a process remembers as checked

Identity = tuple[int, int, int, int, int]  # device, inode, size, mtime_ns, ctime_ns


class FoundObject(NamedTuple):
    """Object found by this process.

    Attributes
    ----------
    path : str
    touched : float
        When the time of its last use was updated, of `time.monotonic`.
    """

    path: str
    touched: float


_known: dict[str, Identity] = {}  # data files that this process has checked
_found: dict[tuple[str, str], FoundObject] = {}  # by folder of the cache, and URL
_swept: set[str] = set()  # folders whose leftovers this process has removed


class WrongHashError(Exception):
    """The bytes are not those that the digest names."""


class HashedObject(NamedTuple):
    """An object that is known by the SHA-256 of its bytes.

    Attributes
    ----------
    url : str
        Stored on disk, so without secrets.
    tag : str
        Names the content, such as its CID.
    digest : bytes
        SHA-256 of the content.
    """

    url: str
    tag: str
    digest: bytes


def find_hashed(
    cache: RangeCache, wanted: HashedObject, nbytes: int | None = None
) -> str | None:
    """Return the path of an object's data, or None if the cache has not all of it."""
    known = _found.get((cache.folder, wanted.url))
    if known is not None and _identify(known.path) == _known.get(known.path, ()):
        if time.monotonic() - known.touched >= TOUCH:
            _note_use(cache, wanted, known.path)
        return known.path
    info = None if nbytes is None else ObjectInfo(nbytes, wanted.tag, 0)
    folder = None if info is None else cache.entry_folder(wanted.url, info)
    if folder is None or not os.path.isdir(folder):
        info = cache.latest_info(wanted.url)
        if info is None or info.tag != wanted.tag:
            return None
        folder = cache.entry_folder(wanted.url, info)
    path = os.path.join(folder, DATA)
    if not _is_right(path, folder, wanted.digest):
        return None
    _note_use(cache, wanted, path)
    return path


def _note_use(cache: RangeCache, wanted: HashedObject, path: str) -> None:
    """Update the time of the last use of an object's entry."""
    touch(os.path.join(os.path.dirname(path), USED), time.time_ns())
    if len(_found) >= MAX_KNOWN:
        _found.clear()
    _found[cache.folder, wanted.url] = FoundObject(path, time.monotonic())


def _is_right(path: str, folder: str, digest: bytes) -> bool:
    """Return whether a data file is the object; remove its entry if it is not."""
    identity = _identify(path)
    if identity is None:
        return False
    if _known.get(path) == identity or _read_mark(folder) == _mark_of(identity):
        _remember(path, identity)
        return True
    try:
        right = _hash_file(path) == digest
    except OSError:
        return False
    if not right:
        remove_tree(folder)
        return False
    _remember(path, identity)
    with (
        suppress(OSError),
        replace_file(os.path.join(folder, HASHED), sync=False) as file,
    ):
        file.write(_mark_of(identity))
    return True


class ObjectWriter:
    """Writer of a whole object; its digest is checked before it becomes an entry.

    Used in a ``with`` statement, at whose end uncommitted data are removed.

    Attributes
    ----------
    nbytes : int
        Written so far.
    """

    def __init__(self, cache: RangeCache, wanted: HashedObject) -> None:
        self.nbytes = 0
        self._cache = cache
        self._wanted = wanted
        self._sha256 = hashlib.sha256()
        self._fd = -1
        subfolder = os.path.dirname(cache.lock_path(wanted.url))
        os.makedirs(subfolder, 0o700, exist_ok=True)
        if cache.folder not in _swept:
            _swept.add(cache.folder)
            remove_leftovers(cache.folder)
        self._new = tempfile.mkdtemp(prefix=".", suffix=NEW, dir=subfolder)
        try:
            self._fd = _create(os.path.join(self._new, DATA))
            try_lock(self._fd)  # until it is closed: no other process removes it
        except BaseException:
            self.close()
            raise

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes of the object."""
        self.nbytes += len(data)
        limit = self._cache.limit
        if limit is not None and self.nbytes > limit:
            raise OSError(
                errno.EFBIG,
                f"an object does not fit in cache_limit, {limit:,} bytes",
                self._cache.folder,
            )
        self._sha256.update(data)
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(self._fd, left) :]
            except OSError as error:
                raise self._name(error) from None

    def commit(self) -> str:
        """Make the entry; return the path of its data."""
        if self._sha256.digest() != self._wanted.digest:
            raise WrongHashError
        identity = _identity_of(os.fstat(self._fd))
        self._close_file()  # an open one cannot be renamed on Windows
        info = ObjectInfo(self.nbytes, self._wanted.tag, 0)
        folder = self._cache.entry_folder(self._wanted.url, info)
        try:
            version = ObjectVersion(self._wanted.url, info)
            content = {OBJECT: version.dump(), LOG: b"", USED: b""}
            content[HASHED] = _mark_of(identity)
            for name, data in content.items():
                fd = _create(os.path.join(self._new, name))
                try:
                    append_to(fd, data)
                finally:
                    os.close(fd)
            is_new = self._rename(folder)
        except OSError as error:
            raise self._name(error) from None
        path = os.path.join(folder, DATA)
        if is_new:
            _remember(path, identity)
            self._cache.note_growth(folder, self.nbytes)
        return path

    def _rename(self, folder: str) -> bool:
        """Rename the files to the entry's name; replace unusable ones."""
        for attempt in range(ATTEMPTS):
            try:
                os.rename(self._new, folder)
                return True
            except OSError as error:
                if error.errno not in TAKEN or attempt + 1 == ATTEMPTS:
                    raise
            if find_hashed(self._cache, self._wanted) == os.path.join(folder, DATA):
                return False
            remove_tree(folder)
        raise AssertionError

    def _name(self, error: OSError) -> OSError:
        """Return an error of the system with the cache's directory."""
        if error.errno is None:
            return error
        return OSError(error.errno, os.strerror(error.errno), self._cache.folder)

    def close(self) -> None:
        """Close the data file; remove it unless committed."""
        self._close_file()
        shutil.rmtree(self._new, ignore_errors=True)

    def _close_file(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> ObjectWriter:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


@contextmanager
def locked(
    cache: RangeCache, url: str, until: float, is_done: Callable[[], bool]
) -> Iterator[None]:
    """Hold an object's lock, so that one process and one thread downloads it."""
    path = cache.lock_path(url)
    with suppress(OSError):
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
    while True:
        is_first = False
        try:
            with _in_process.lock:
                is_first = path not in _in_process.paths
                _in_process.paths.add(path)
            if is_first:
                with try_lock_file(path) as has_lock:
                    if has_lock or time.monotonic() >= until or is_done():
                        try:
                            yield
                        finally:
                            if has_lock:
                                with suppress(OSError):
                                    os.unlink(path)
                        return
            elif time.monotonic() >= until:
                yield
                return
        finally:
            if is_first:
                with _in_process.lock:
                    _in_process.paths.discard(path)
        time.sleep(BETWEEN)


class _InProcess(LockOwner, ForkAware):
    """Objects that threads of this process hold; empty in a forked child."""

    def __init__(self) -> None:
        LockOwner.__init__(self)
        ForkAware.__init__(self)
        self.paths: set[str] = set()

    def reset_after_fork(self) -> None:
        self.paths = set()


_in_process = _InProcess()


def _create(path: str) -> int:
    """Create a file; return its descriptor."""
    return open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)


def _identify(path: str) -> Identity | None:
    """Return the identity of a regular file, or None."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return _identity_of(status) if stat.S_ISREG(status.st_mode) else None


def _identity_of(status: os.stat_result) -> Identity:
    return (
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


def _remember(path: str, identity: Identity) -> None:
    if len(_known) >= MAX_KNOWN:
        _known.clear()
    _known[path] = identity


def _mark_of(identity: Identity) -> bytes:
    """Return the content of the file beside checked data; empty: untrusted."""
    boot = boot_id()
    return json.dumps([boot, *identity]).encode() if boot else b""


def _read_mark(folder: str) -> bytes | None:
    """Return the content of the file beside the data, or None."""
    try:
        fd = open_regular(os.path.join(folder, HASHED), os.O_RDONLY)
        with open(fd, "rb") as file:
            return file.read(MAX_MARK) or None
    except OSError:
        return None


def _hash_file(path: str) -> bytes:
    found = hash_file(open_regular(path, os.O_RDONLY), ["sha256"])
    return bytes.fromhex(found["sha256"])
