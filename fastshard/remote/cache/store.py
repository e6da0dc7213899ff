"""Disk cache: ranges of remote objects, one entry for each version of an object."""

from __future__ import annotations

import errno
import functools
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
from fastshard._util.sizes import parse_size
from fastshard.errors import CacheWarning
from fastshard.remote.cache.directory import (
    ENTRY,
    NEW,
    OBJECT,
    USED,
    mtime_ns,
    remove_entries,
    remove_leftovers,
    survey,
)
from fastshard.remote.cache.disk import (
    LockOwner,
    append_to,
    open_regular,
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

LOOK_EVERY = 5.0  # seconds between looks for removed files
MOST_OPEN = 256  # entries whose files are open
_warned_of: set[str] = set()  # folders that objects are too large for
SPARE = 10  # the part of the limit that is free after entries were removed: 1/10


class RangeCache(LockOwner):
    """Ranges of remote objects, kept in a directory. Any thread may use it.

    Other processes may use the same directory at the same time.

    Parameters
    ----------
    folder : str
        Made when it is needed.
    limit : int or str, optional
        Bytes on disk, of all that is in the folder; or text such as "100GB". When
        there are more, entries that were not used for longest are removed until a
        tenth of the limit is free. While several processes add there may be
        somewhat more.

    Attributes
    ----------
    folder : str
    limit : int or None
    is_stopped : bool
        Whether nothing more is stored, for the disk cannot be written to.

    Raises
    ------
    ValueError
        The limit is no size, or not above 0.
    """

    def __init__(self, folder: str, limit: int | str | None = None) -> None:
        super().__init__()
        self.folder = os.path.abspath(folder)
        self.limit = None if limit is None else parse_size(limit)
        self.is_stopped = False
        self._room = 0  # bytes that may be added before all are counted again
        self._looked = -LOOK_EVERY  # when removed files were looked for
        self._open: dict[
            CacheEntry, None
        ] = {}  # whose files are open, the oldest first
        self._entries: weakref.WeakSet[CacheEntry] = weakref.WeakSet()

    def entry(self, url: str, info: ObjectInfo) -> CacheEntry:
        """Open what is here of an object, or make an entry for it.

        Parameters
        ----------
        url : str
            Stored as it is, so without anything secret.
        info : ObjectInfo
            What the server told, or `latest_info` did. Another tag or size is another
            version, of which nothing is shared.

        Raises
        ------
        ValueError
            There is no tag, or no file can have the size.
        """
        if not info.tag:
            raise ValueError(
                f"the server tells nothing that versions of {url} differ by"
            )
        if not 0 <= info.nbytes < MAX_NBYTES:
            raise ValueError(f"{url} cannot have {info.nbytes:,} bytes")
        path = f"{self._path_of(url)}-{hash_version(info)}"
        entry = CacheEntry(self, path, ObjectVersion(url, info))
        with self.lock:
            self._entries.add(entry)
        return entry

    def latest_info(self, url: str) -> ObjectInfo | None:
        """Return the info that an entry for an object was last opened with."""
        above, part = os.path.split(self._path_of(url))
        found = []
        with suppress(OSError):
            for name in os.listdir(above):
                path = os.path.join(above, name, OBJECT)
                if name.startswith(part) and ENTRY.fullmatch(name):
                    known = read_version(path)
                    if known is not None and known.url == url:
                        found.append((mtime_ns(path), known.info))
        return max(found)[1] if found else None

    def stop(self, error: Exception) -> None:
        """Store nothing more; the first time, warn."""
        with self.lock:
            first = not self.is_stopped
            self.is_stopped = True
        if first:
            text = f"nothing more is cached in {self.folder}: {error}"
            warnings.warn(text, CacheWarning, stacklevel=2)

    def warn_uncacheable(self, url: str, nbytes: int, error: Exception) -> None:
        """Note that an object cannot be kept; of the first one in a folder, warn.

        Others may be small enough for a limit on the size of files.
        """
        with self.lock:
            first = self.folder not in _warned_of
            _warned_of.add(self.folder)
        if first:
            text = f"{url} ({nbytes:,} bytes) is not cached in {self.folder}: {error}"
            warnings.warn(text, CacheWarning, stacklevel=2)

    def note_growth(self, entry: CacheEntry, nbytes: int) -> None:
        """Count bytes that were added to an entry, and hold the limit."""
        if self.limit is None:
            return
        with self.lock:
            self._room -= nbytes
            due = self._room < 0
        if due:
            self._enforce_limit(self.limit, entry.folder)
            self.release_removed()

    def note_opened(self, entry: CacheEntry) -> None:
        """Have the files closed of what was opened first, if there are too many."""
        with self.lock:
            self._open.pop(entry, None)
            self._open[entry] = None
            most = most_open()
            gone = list(self._open)[: max(0, len(self._open) - most)]
            for one in gone:
                del self._open[one]
        for one in gone:
            one.close_files()

    def release_periodically(self) -> None:
        """Do as `release_removed` does, if that was not done of late."""
        with self.lock:
            now = time.monotonic()
            late = now - self._looked >= LOOK_EVERY
            self._looked = now if late else self._looked
        if late:
            self.release_removed()

    def release_removed(self) -> None:
        """Close files that were removed, by this process or another."""
        with self.lock:
            entries = list(self._entries)
        for entry in entries:
            entry.release_if_removed()

    def _enforce_limit(self, limit: int, keep: str) -> None:
        """Count what is here, and remove entries but one until the limit holds."""
        left = limit
        with try_lock_folder(self.folder) as alone:
            if alone:
                remove_leftovers(self.folder)
                found = sorted(survey(self.folder), key=lambda one: one.used_ns)
                left = limit - sum(one.disk_bytes for one in found)
                others = [one for one in found if one.path != keep]
                if left < 0:
                    left += remove_entries(others, limit // SPARE - left)
        few = max(limit // 64, left // 8)  # for other processes add as well
        with self.lock:
            self._room = max(0, min(left, few))

    def _path_of(self, url: str) -> str:
        part = hash_url(url)
        return os.path.join(self.folder, part[:2], part)


@functools.lru_cache(1)
def most_open() -> int:
    """Return how many entries may have files open: a part of what a process may."""
    try:
        import resource

        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    except ImportError:  # Windows
        return MOST_OPEN
    return MOST_OPEN if soft < 0 else max(8, min(MOST_OPEN, soft // 4))


TOUCH_NS = 5 * 10**9  # between two notes that an entry is in use
PASSING = (  # not of the disk
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.ENOENT,
)

T = TypeVar("T")


class CacheEntry:
    """Bytes of one version of a remote object. Any thread may use it.

    It is made by `RangeCache.entry`. A forked child may go on with it; what has been
    checked by then need not be checked again. One that cannot be read, or was closed,
    has nothing and takes nothing.

    Attributes
    ----------
    path : str
        Of the data: a sparse file of `nbytes` bytes. It need not exist; while
        `is_whole` says so it does, and may be read by anyone.
    nbytes : int
        Of the object.
    """

    def __init__(self, cache: RangeCache, folder: str, known: ObjectVersion) -> None:
        self.path = os.path.join(folder, DATA)
        self.nbytes = known.info.nbytes
        self.folder = folder
        self._cache = cache
        self._known = known
        self._files: EntryFiles | None = None
        self._closed = False
        self._touched_ns = 0
        self._reopen(make=True)
        if self._files is not None:
            touch(os.path.join(folder, OBJECT), time.time_ns())
            self._mark_used()

    def has(self, offset: int, size: int) -> bool:
        """Tell whether all of a range was stored.

        That it is right is not looked at: `read_into` may still return False, after
        which what is wrong is missing.
        """
        if not self._is_inside(offset, size):
            return False
        return not size or self._query(lambda it: it.has(offset, offset + size), False)

    def missing(self, offset: int, size: int) -> list[tuple[int, int]]:
        """Return what was not stored of a range: offsets and sizes, ascending."""
        end = min(offset + size, self.nbytes)
        start = max(offset, 0)
        if start >= end:
            return []
        gaps = self._query(lambda it: it.missing(start, end), [(start, end)])
        return [(left, right - left) for left, right in gaps]

    def read_into(self, offset: int, view: memoryview) -> bool:
        """Fill the view and return True if every byte of it is here and right.

        Otherwise return False; the view may have been written to. Ranges are compared
        with their CRCs before they are first used in this process.

        Parameters
        ----------
        offset : int
            In the object, in bytes.
        view : memoryview
            Contiguous and writable.
        """
        with as_bytes(view) as to:
            if not self._is_inside(offset, len(to)):
                return False
            done = not to or self._query(lambda it: it.read_into(offset, to), False)
        if done:
            self._mark_used()
        return done

    def is_whole(self) -> bool:
        """Tell whether every byte of the object is here and right.

        What has not been checked in this process is read. For a file that was opened
        by its `path` ask after that: then it was the one that is whole.
        """
        whole = self._query(lambda it: it.is_whole(), False)
        if whole:
            self._mark_used()
        return whole

    def add(self, offset: int, data: bytes | memoryview) -> None:
        """Store bytes of the object, unless that cannot be done.

        A disk that is full or cannot be written to ends all storing of this cache
        with one warning; one without room for a file of the object's size ends that of
        this entry, with a warning for the first of them. Nothing is stored either of
        what does not lie inside the object, or by what this entry alone would break
        the limit.
        """
        with as_bytes(memoryview(data)) as view:
            if view and self._is_inside(offset, len(view)):
                grown = self._store(offset, view)
                if grown:
                    self._cache.note_growth(self, grown)

    def sidecar(self, name: str) -> str:
        """Return the path of a small file beside the data, which may not exist.

        Raises
        ------
        ValueError
            The name is no file's, or is used by the cache.
        """
        taken = name in (DATA, LOG, OBJECT, USED) or name.startswith(".")
        if not name or taken or os.path.basename(name) != name or "\0" in name:
            raise ValueError(f"{name!r} is no name for a file beside cached data")
        return os.path.join(self.folder, name)

    def close(self) -> None:
        """Let the files go."""
        self._closed = True
        self._files = None

    def close_files(self) -> None:
        """Close the files; they are opened again when they are needed."""
        self._files = None

    def release_if_removed(self) -> None:
        """Let the files go if they were removed, so that the disk gets their space."""
        opened = self._files
        with suppress(OSError):
            if opened is not None and opened.is_removed():
                self._files = None

    def _is_inside(self, offset: int, size: int) -> bool:
        return size >= 0 and 0 <= offset <= self.nbytes - size

    def _query(self, question: Callable[[EntryFiles], T], otherwise: T) -> T:
        """Ask the files, or answer otherwise if they cannot be asked."""
        opened = self._files or self._reopen(make=False)
        if opened is None:
            return otherwise
        try:
            return question(opened)
        except DamagedEntryError:
            self._discard()
        except OSError:  # it has nothing, rather than something that none can read
            self.close()
        return otherwise

    def _store(self, offset: int, view: memoryview) -> int:
        for _ in range(3):  # in case it is removed again meanwhile
            if self._cache.is_stopped:
                return 0
            opened = self._files or self._reopen(make=True)
            if opened is None:
                return 0
            try:
                return opened.add(offset, view, self._cache.limit)
            except RemovedEntryError:
                self._files = None
            except DamagedEntryError:
                self._discard()
            except OSError as error:
                self._cache.stop(error)
        return 0

    def _reopen(self, *, make: bool) -> EntryFiles | None:
        """Open the files; make them, if asked to, where none can be used."""
        if self._closed:
            return None
        try:
            opened = self._open()
            if opened is None and make and not self._cache.is_stopped:
                make_entry(self.folder, self._known)
                opened = self._open()
        except OSError as error:
            if make and error.errno == errno.EFBIG:
                self.close()  # no file of its size can be made here
                self._cache.warn_uncacheable(self._known.url, self.nbytes, error)
            elif make and error.errno not in PASSING:
                self._cache.stop(error)
            return None
        if not self._closed:
            self._files = opened
            if opened is not None:
                self._cache.note_opened(self)
        return opened

    def _open(self) -> EntryFiles | None:
        """Open the files if they are there; remove what cannot be used."""
        try:
            opened = EntryFiles(self.folder, self.nbytes)
            self._check_object()
        except FileNotFoundError:
            return None
        except DamagedEntryError:
            self._discard()
            return None
        return opened

    def _check_object(self) -> None:
        path = os.path.join(self.folder, OBJECT)
        stored = read_version(path)
        if stored is None or not same_object(stored, self._known):
            raise DamagedEntryError
        if stored != self._known and not self._cache.is_stopped:
            try:
                with replace_file(path) as file:
                    file.write(self._known.dump())
            except OSError as error:
                self._cache.stop(error)

    def _discard(self) -> None:
        self._files = None
        remove_tree(self.folder)

    def _mark_used(self) -> None:
        """Note that it is in use, from time to time."""
        now_ns = time.time_ns()
        if abs(now_ns - self._touched_ns) >= TOUCH_NS:
            self._touched_ns = now_ns
            touch(os.path.join(self.folder, USED), now_ns)
            self._cache.release_periodically()


def as_bytes(view: memoryview) -> memoryview:
    return view.cast("B") if view.nbytes else memoryview(b"")


def same_object(one: ObjectVersion, other: ObjectVersion) -> bool:
    """Tell whether the bytes are the same. Of the time, servers tell several."""
    return one.url == other.url and one.info[:2] == other.info[:2]


def make_entry(folder: str, known: ObjectVersion) -> None:
    """Make the files of an entry, and give them their place if it is free.

    Raises
    ------
    OSError
        They cannot be made.
    """
    above = os.path.dirname(folder)
    os.makedirs(above, 0o700, exist_ok=True)
    new = tempfile.mkdtemp(prefix=".", suffix=NEW, dir=above)
    try:
        _fill(new, known)
        os.rename(new, folder)
    except OSError as error:
        faster = error.errno in (errno.EEXIST, errno.ENOTEMPTY)  # another was
        if not faster and not os.path.lexists(folder):
            raise
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _fill(folder: str, known: ObjectVersion) -> None:
    content = {DATA: b"", LOG: b"", OBJECT: known.dump(), USED: b""}
    for name, data in content.items():
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        fd = open_regular(os.path.join(folder, name), flags)
        try:
            if name == DATA:
                os.ftruncate(fd, known.info.nbytes)
            append_to(fd, data)
        finally:
            os.close(fd)
