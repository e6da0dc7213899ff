"""Disk cache: ranges of remote objects, one entry for each version of an object."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from fastshard._util.files import replace_file
from fastshard._util.processes.descriptors import kept_limit, open_regular
from fastshard._util.processes.forks import LockOwner
from fastshard._util.sizes import parse_size
from fastshard.errors import CacheWarning
from fastshard.remote.cache.directory import (
    ENTRY,
    HASHED,
    LOCK,
    NEW,
    OBJECT,
    USED,
    mtime_ns,
    remove_entries,
    remove_leftovers,
    survey,
)
from fastshard.remote.cache.disk import (
    append_to,
    remove_tree,
    touch,
    try_lock_folder,
)
from fastshard.remote.cache.entry_files import (
    DATA,
    LOG,
    DamagedEntryError,
    EntryFiles,
    RemovedEntryError,
)
from fastshard.remote.cache.version import (
    ObjectVersion,
    hash_url,
    hash_version,
    read_version,
)
from fastshard.remote.transport import MAX_NBYTES, ObjectInfo

__all__ = ["CacheEntry", "RangeCache"]

LOOK_EVERY = 5.0  # seconds between searches for removed files
MOST_OPEN = 256  # entries with open files
SPARE = 10  # eviction frees 1/10 of the limit
TOUCH_NS = 5 * 10**9  # between two updates of the time of the last use
NOT_OF_THE_DISK = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOENT)

T = TypeVar("T")

_warned_of: set[str] = set()  # folders that are too small for an object


class RangeCache(LockOwner):
    """Disk cache for ranges of remote objects. Thread-safe.

    Several processes may use the same directory at the same time.

    Attributes
    ----------
    folder : str
    limit : int or None
    is_stopped : bool
        Whether storing has ended because the disk cannot be written to.
    """

    def __init__(self, folder: str, limit: int | str | None = None) -> None:
        super().__init__()
        self.folder = os.path.abspath(folder)
        self.limit = None if limit is None else parse_size(limit)
        self.is_stopped = False
        self._room = 0  # bytes to store before the directory is counted again
        self._looked = -LOOK_EVERY  # time of the last search for removed files
        self._open: dict[CacheEntry, None] = {}  # with open files, oldest first
        self._entries: weakref.WeakSet[CacheEntry] = weakref.WeakSet()

    def entry(self, url: str, info: ObjectInfo) -> CacheEntry:
        """Open the entry of a version of an object, or create it."""
        if not info.tag:
            raise ValueError(
                f"cannot tell versions of {url} apart: the server sends neither an "
                "ETag nor Last-Modified"
            )
        if not 0 <= info.nbytes < MAX_NBYTES:
            raise ValueError(
                f"the size of {url} must be 0 to 2**63 - 1 bytes, got {info.nbytes:,}"
            )
        entry = CacheEntry(self, self.entry_folder(url, info), ObjectVersion(url, info))
        with self.lock:
            self._entries.add(entry)
        return entry

    def latest_info(self, url: str) -> ObjectInfo | None:
        """Return the metadata of the last opened version of an object, or None."""
        subfolder, part = os.path.split(self._path_of(url))
        found = []
        with suppress(OSError):
            for name in os.listdir(subfolder):
                path = os.path.join(subfolder, name, OBJECT)
                if name.startswith(part) and ENTRY.fullmatch(name):
                    version = read_version(path)
                    if version is not None and version.url == url:
                        found.append((mtime_ns(path), version.info))
        return max(found)[1] if found else None

    def stop(self, error: Exception) -> None:
        """Stop storing; warn the first time."""
        with self.lock:
            first = not self.is_stopped
            self.is_stopped = True
        if first:
            text = f"caching in {self.folder} has stopped: {error}"
            warnings.warn(text, CacheWarning, stacklevel=2)

    def warn_uncacheable(self, url: str, nbytes: int, error: Exception) -> None:
        """Warn of the first object of a folder that cannot be cached.

        Smaller ones may fit a file system's limit on the size of files.
        """
        with self.lock:
            first = self.folder not in _warned_of
            _warned_of.add(self.folder)
        if first:
            text = f"{url} ({nbytes:,} bytes) is not cached in {self.folder}: {error}"
            warnings.warn(text, CacheWarning, stacklevel=2)

    def note_growth(self, folder: str, nbytes: int) -> None:
        """Count bytes stored in an entry's folder, and enforce the limit."""
        if self.limit is None:
            return
        with self.lock:
            self._room -= nbytes
            due = self._room < 0
        if due:
            self._enforce_limit(self.limit, folder)
            self.release_removed()

    def note_opened(self, entry: CacheEntry) -> None:
        """Register open files; close the oldest ones above the maximum."""
        with self.lock:
            self._open.pop(entry, None)
            self._open[entry] = None
            oldest = list(self._open)[: max(0, len(self._open) - most_open())]
            for other in oldest:
                del self._open[other]
        for other in oldest:
            other.close_files()

    def release_periodically(self) -> None:
        """Call `release_removed`, at most once in 5 seconds."""
        with self.lock:
            now = time.monotonic()
            due = now - self._looked >= LOOK_EVERY
            self._looked = now if due else self._looked
        if due:
            self.release_removed()

    def release_removed(self) -> None:
        """Close files that were removed by this process or another."""
        with self.lock:
            entries = list(self._entries)
        for entry in entries:
            entry.release_if_removed()

    def _enforce_limit(self, limit: int, keep: str) -> None:
        """Count the directory; above the limit evict entries other than `keep`."""
        left = limit
        with try_lock_folder(self.folder) as locked:
            if locked:
                remove_leftovers(self.folder)
                entries = sorted(survey(self.folder), key=lambda entry: entry.used_ns)
                left = limit - sum(entry.disk_bytes for entry in entries)
                others = [entry for entry in entries if entry.path != keep]
                if left < 0:
                    left += remove_entries(others, limit // SPARE - left)
        share = max(limit // 64, left // 8)  # other processes store too
        with self.lock:
            self._room = max(0, min(left, share))

    def entry_folder(self, url: str, info: ObjectInfo) -> str:
        """Return the directory of a version of an object, which may not exist."""
        return f"{self._path_of(url)}-{hash_version(info)}"

    def lock_path(self, url: str) -> str:
        """Return the path of the lock of an object, of all its versions."""
        subfolder, part = os.path.split(self._path_of(url))
        return os.path.join(subfolder, f".{part}{LOCK}")

    def _path_of(self, url: str) -> str:
        part = hash_url(url)
        return os.path.join(self.folder, part[:2], part)


def most_open() -> int:
    """Return the maximum of entries with open files."""
    return min(MOST_OPEN, max(8, kept_limit(spared=True) // 2))


class CacheEntry:
    """Cached bytes of one version of a remote object. Thread-safe.

    Made by `RangeCache.entry`. Usable in a forked child, which inherits the results
    of checks. An entry that is closed or unreadable is empty and stores nothing.

    Attributes
    ----------
    path : str
        Data file: sparse, `nbytes` long. It may not exist. While `is_whole` returns
        True it exists, and any program may read it.
    nbytes : int
        Size of the object.
    """

    def __init__(self, cache: RangeCache, folder: str, version: ObjectVersion) -> None:
        self.path = os.path.join(folder, DATA)
        self.nbytes = version.info.nbytes
        self.folder = folder
        self._cache = cache
        self._version = version
        self._files: EntryFiles | None = None
        self._closed = False
        self._touched_ns = 0
        self._reopen(create=True)
        if self._files is not None:
            touch(os.path.join(folder, OBJECT), time.time_ns())
            self._mark_used()

    def has(self, offset: int, size: int) -> bool:
        """Return whether all of a range was stored.

        Checksums are not verified: `read_into` may still return False, after which
        the damaged bytes count as missing.
        """
        if not self._is_inside(offset, size):
            return False
        return not size or self._query(
            lambda files: files.has(offset, offset + size), False
        )

    def missing(self, offset: int, size: int) -> list[tuple[int, int]]:
        """Return the gaps in a range: offsets and sizes, ascending."""
        end = min(offset + size, self.nbytes)
        start = max(offset, 0)
        if start >= end:
            return []
        gaps = self._query(lambda files: files.missing(start, end), [(start, end)])
        return [(left, right - left) for left, right in gaps]

    def read_into(self, offset: int, view: memoryview) -> bool:
        """Fill a buffer; return False if a byte is missing or wrong.

        In that case the buffer may have been written to. CRCs of ranges are verified
        before their first use in this process.
        """
        with as_bytes(view) as to:
            if not self._is_inside(offset, len(to)):
                return False
            done = not to or self._query(
                lambda files: files.read_into(offset, to), False
            )
        if done:
            self._mark_used()
        return done

    def is_whole(self) -> bool:
        """Return whether every byte of the object is stored and right.

        Bytes not verified in this process are read. If a file was opened by `path`
        before the call, a True result covers that file.
        """
        whole = self._query(lambda files: files.is_whole(), False)
        if whole:
            self._mark_used()
        return whole

    def add(self, offset: int, data: bytes | memoryview) -> None:
        """Store bytes of the object, if possible.

        If the disk is full or read-only, all storing of this cache ends, with one
        warning. If no file of the object's size can be created, storing of this entry
        ends, with a warning for the first such entry. Bytes outside the object are
        not stored, nor those with which this entry alone would exceed the limit.
        """
        with as_bytes(memoryview(data)) as view:
            if view and self._is_inside(offset, len(view)):
                grown = self._store(offset, view)
                if grown:
                    self._cache.note_growth(self.folder, grown)

    def sidecar(self, name: str) -> str:
        """Return the path of a small file beside the data, which may not exist."""
        taken = name in (DATA, LOG, OBJECT, USED, HASHED) or name.startswith(".")
        if not name or taken or os.path.basename(name) != name or "\0" in name:
            raise ValueError(f"{name!r} is not a name for a file beside cached data")
        return os.path.join(self.folder, name)

    def close(self) -> None:
        """Close the files for good."""
        self._closed = True
        self._files = None

    def close_files(self) -> None:
        """Close the files until the next access."""
        self._files = None

    def release_if_removed(self) -> None:
        """Close the files if they were removed, which frees their disk space."""
        files = self._files
        with suppress(OSError):
            if files is not None and files.is_removed():
                self._files = None

    def _is_inside(self, offset: int, size: int) -> bool:
        return size >= 0 and 0 <= offset <= self.nbytes - size

    def _query(self, question: Callable[[EntryFiles], T], default: T) -> T:
        """Return ``question(files)``, or `default` if the files cannot be read."""
        files = self._files or self._reopen(create=False)
        if files is None:
            return default
        try:
            return question(files)
        except DamagedEntryError:
            self._discard()
        except OSError:
            self.close()
        return default

    def _store(self, offset: int, view: memoryview) -> int:
        """Store bytes; return the growth on disk."""
        for _ in range(3):  # another process may remove the new entry again
            if self._cache.is_stopped:
                return 0
            files = self._files or self._reopen(create=True)
            if files is None:
                return 0
            try:
                return files.add(offset, view, self._cache.limit)
            except RemovedEntryError:
                self._files = None
            except DamagedEntryError:
                self._discard()
            except OSError as error:
                self._cache.stop(error)
        return 0

    def _reopen(self, *, create: bool) -> EntryFiles | None:
        """Open the files; if they are missing or unusable, optionally create them."""
        if self._closed:
            return None
        try:
            files = self._open()
            if files is None and create and not self._cache.is_stopped:
                create_entry(self.folder, self._version)
                files = self._open()
        except OSError as error:
            if create and error.errno == errno.EFBIG:
                self.close()  # the file system has no files of this size
                self._cache.warn_uncacheable(self._version.url, self.nbytes, error)
            elif create and error.errno not in NOT_OF_THE_DISK:
                self._cache.stop(error)
            return None
        if not self._closed and (files is None or files.is_kept):
            self._files = files
            if files is not None:
                self._cache.note_opened(self)
        return files

    def _open(self) -> EntryFiles | None:
        """Open the files if they exist; remove unusable ones."""
        try:
            files = EntryFiles(self.folder, self.nbytes)
            self._check_version()
        except FileNotFoundError:
            return None
        except DamagedEntryError:
            self._discard()
            return None
        return files

    def _check_version(self) -> None:
        """Raise if the version file names another object; update the time in it."""
        path = os.path.join(self.folder, OBJECT)
        stored = read_version(path)
        if stored is None or not is_same_object(stored, self._version):
            raise DamagedEntryError
        if stored != self._version and not self._cache.is_stopped:
            try:
                with replace_file(path) as file:
                    file.write(self._version.dump())
            except OSError as error:
                self._cache.stop(error)

    def _discard(self) -> None:
        self._files = None
        remove_tree(self.folder)

    def _mark_used(self) -> None:
        """Update the time of the last use, at most once in 5 seconds."""
        now_ns = time.time_ns()
        if abs(now_ns - self._touched_ns) >= TOUCH_NS:
            self._touched_ns = now_ns
            touch(os.path.join(self.folder, USED), now_ns)
            self._cache.release_periodically()


def as_bytes(view: memoryview) -> memoryview:
    """Return a view of bytes; an empty view cannot be cast."""
    return view.cast("B") if view.nbytes else memoryview(b"")


def is_same_object(one: ObjectVersion, other: ObjectVersion) -> bool:
    """Return whether the bytes are the same; replicas may differ in the time."""
    return one.url == other.url and one.info[:2] == other.info[:2]


def create_entry(folder: str, version: ObjectVersion) -> None:
    """Create the files of an entry, unless another process is faster."""
    subfolder = os.path.dirname(folder)
    os.makedirs(subfolder, 0o700, exist_ok=True)
    new = tempfile.mkdtemp(prefix=".", suffix=NEW, dir=subfolder)
    try:
        _write_files(new, version)
        os.rename(new, folder)
    except OSError as error:
        exists = error.errno in (errno.EEXIST, errno.ENOTEMPTY)
        if not exists and not os.path.lexists(folder):
            raise
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _write_files(folder: str, version: ObjectVersion) -> None:
    content = {DATA: b"", LOG: b"", OBJECT: version.dump(), USED: b""}
    for name, data in content.items():
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        fd = open_regular(os.path.join(folder, name), flags)
        try:
            if name == DATA:
                os.ftruncate(fd, version.info.nbytes)
            append_to(fd, data)
        finally:
            os.close(fd)
