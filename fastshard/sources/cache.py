"""Ranges of remote objects, kept in a directory.

    <folder>/<2 hex>/<40 hex of the url>-<24 hex of the version>/data
                                                                 ranges
                                                                 object.json
                                                                 used

`data` is sparse and as large as the object; `ranges` is the log of what is in it;
`object.json` tells the url and what the server told; the time of `used` is that of
the last use. Nothing in the folder is believed: what is damaged is not here.
"""

from __future__ import annotations

import functools
import os
import re
import time
import warnings
import weakref
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import NamedTuple

from fastshard._util.sizes import parse_size
from fastshard.errors import CacheWarning
from fastshard.sources.disk import GONE, Locked, alone_in, disk_bytes, remove_tree
from fastshard.sources.entries import NEW, OBJECT, USED, Entry
from fastshard.sources.facts import (
    TOO_LARGE,
    Facts,
    Known,
    read_known,
    url_part,
    version_part,
)
from fastshard.sources.opened import DamagedError, Opened

__all__ = ["Cached", "RangeCache", "clear", "listing"]

ABOVE = re.compile(r"[0-9a-f]{2}")
ENTRY = re.compile(r"[0-9a-f]{40}-[0-9a-f]{24}")
PATIENCE_NS = 3600 * 10**9  # after which an entry that is being made was given up
LOOK_EVERY = 5.0  # seconds between looks for removed files
MOST_OPEN = 256  # entries whose files are open
_warned_of: set[str] = set()  # folders that objects are too large for
SPARE = 10  # the part of the limit that is free after entries were removed: 1/10


class Cached(NamedTuple):
    """What is here of an object.

    Attributes
    ----------
    url : str
        "" if that is damaged.
    disk_bytes : int
        That the entry's files take on disk.
    nbytes : int
        Of the object.
    whole : bool
        Whether all of it was stored; it has not been checked.
    used_ns : int
        The time of the last use, in nanoseconds since 1970.
    """

    url: str
    disk_bytes: int
    nbytes: int
    whole: bool
    used_ns: int


class Found(NamedTuple):
    """An entry as the directory shows it."""

    path: str
    disk_bytes: int
    used_ns: int


class RangeCache(Locked):
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
        self._open: dict[Entry, None] = {}  # whose files are open, the oldest first
        self._entries: weakref.WeakSet[Entry] = weakref.WeakSet()

    def entry(self, url: str, facts: Facts) -> Entry:
        """Open what is here of an object, or make an entry for it.

        Parameters
        ----------
        url : str
            Stored as it is, so without anything secret.
        facts : Facts
            What the server told, or `remembered` did. Another tag or size is another
            version, of which nothing is shared.

        Raises
        ------
        ValueError
            There is no tag, or no file can have the size.
        """
        if not facts.tag:
            raise ValueError(
                f"the server tells nothing that versions of {url} differ by"
            )
        if not 0 <= facts.nbytes < TOO_LARGE:
            raise ValueError(f"{url} cannot have {facts.nbytes:,} bytes")
        path = f"{self._path_of(url)}-{version_part(facts)}"
        entry = Entry(self, path, Known(url, facts))
        with self.lock:
            self._entries.add(entry)
        return entry

    def remembered(self, url: str) -> Facts | None:
        """Return the facts that an entry for an object was last opened with."""
        above, part = os.path.split(self._path_of(url))
        found = []
        with suppress(OSError):
            for name in os.listdir(above):
                path = os.path.join(above, name, OBJECT)
                if name.startswith(part) and ENTRY.fullmatch(name):
                    known = read_known(path)
                    if known is not None and known.url == url:
                        found.append((_mtime_ns(path), known.facts))
        return max(found)[1] if found else None

    def stop(self, error: Exception) -> None:
        """Store nothing more; the first time, warn."""
        with self.lock:
            first = not self.is_stopped
            self.is_stopped = True
        if first:
            text = f"nothing more is cached in {self.folder}: {error}"
            warnings.warn(text, CacheWarning, stacklevel=2)

    def refuse(self, url: str, nbytes: int, error: Exception) -> None:
        """Note that an object cannot be kept; of the first one in a folder, warn.

        Others may be small enough for a limit on the size of files.
        """
        with self.lock:
            first = self.folder not in _warned_of
            _warned_of.add(self.folder)
        if first:
            text = f"{url} ({nbytes:,} bytes) is not cached in {self.folder}: {error}"
            warnings.warn(text, CacheWarning, stacklevel=2)

    def note_growth(self, entry: Entry, nbytes: int) -> None:
        """Count bytes that were added to an entry, and hold the limit."""
        if self.limit is None:
            return
        with self.lock:
            self._room -= nbytes
            due = self._room < 0
        if due:
            self._hold(self.limit, entry.folder)
            self.let_go()

    def note_opened(self, entry: Entry) -> None:
        """Have the files closed of what was opened first, if there are too many."""
        with self.lock:
            self._open.pop(entry, None)
            self._open[entry] = None
            most = most_open()
            gone = list(self._open)[: max(0, len(self._open) - most)]
            for one in gone:
                del self._open[one]
        for one in gone:
            one.rest()

    def look(self) -> None:
        """Do as `let_go` does, if that was not done of late."""
        with self.lock:
            now = time.monotonic()
            late = now - self._looked >= LOOK_EVERY
            self._looked = now if late else self._looked
        if late:
            self.let_go()

    def let_go(self) -> None:
        """Close files that were removed, by this process or another."""
        with self.lock:
            entries = list(self._entries)
        for entry in entries:
            entry.let_go()

    def _hold(self, limit: int, keep: str) -> None:
        """Count what is here, and remove entries but one until the limit holds."""
        left = limit
        with alone_in(self.folder) as alone:
            if alone:
                _tidy(self.folder)
                found = sorted(_survey(self.folder), key=lambda one: one.used_ns)
                left = limit - sum(one.disk_bytes for one in found)
                others = [one for one in found if one.path != keep]
                if left < 0:
                    left += _free(others, limit // SPARE - left)
        few = max(limit // 64, left // 8)  # for other processes add as well
        with self.lock:
            self._room = max(0, min(left, few))

    def _path_of(self, url: str) -> str:
        part = url_part(url)
        return os.path.join(self.folder, part[:2], part)


def listing(folder: str) -> list[Cached]:
    """Return what is in a cache's folder, the last used first."""
    found = sorted(_survey(folder), key=lambda one: one.used_ns, reverse=True)
    return [_describe(one) for one in found]


def clear(folder: str, urls: Collection[str] | None = None) -> int:
    """Remove what is in a cache's folder, and return how many bytes that frees.

    Only what the cache made is removed, not other files in the folder.

    Parameters
    ----------
    folder : str
    urls : collection of str, optional
        Remove all versions of these objects only.
    """
    if urls is None:
        _tidy(folder)
        return _free(_survey(folder))
    parts = {url_part(url) for url in urls}
    found = _survey(folder)
    return _free(one for one in found if os.path.basename(one.path)[:40] in parts)


def _free(found: Iterator[Found] | list[Found], enough: int | None = None) -> int:
    """Remove entries until so many bytes are free; return how many are."""
    freed = 0
    for one in found:
        if enough is not None and freed >= enough:
            break
        if remove_tree(one.path):
            freed += one.disk_bytes
    return freed


def _describe(one: Found) -> Cached:
    known = read_known(os.path.join(one.path, OBJECT))
    if known is None:
        return Cached("", one.disk_bytes, 0, False, one.used_ns)
    nbytes = known.facts.nbytes
    whole = False
    with suppress(OSError, DamagedError):
        whole = not Opened(one.path, nbytes).missing(0, nbytes)
    return Cached(known.url, one.disk_bytes, nbytes, whole, one.used_ns)


def _survey(folder: str) -> Iterator[Found]:
    for item in _items(folder):
        if ENTRY.fullmatch(item.name):
            used_ns = _mtime_ns(os.path.join(item.path, USED))
            yield Found(item.path, _bytes_in(item), used_ns)


def _tidy(folder: str) -> None:
    """Remove what was left by processes that ended while they made or removed."""
    for item in _items(folder):
        late_ns = time.time_ns() - PATIENCE_NS
        unfinished = item.name.endswith(NEW) and _mtime_ns(item.path) < late_ns
        if item.name.startswith(".") and (item.name.endswith(GONE) or unfinished):
            remove_tree(item.path)


def _items(folder: str) -> Iterator[os.DirEntry[str]]:
    """Yield what is in the folders that entries are in."""
    for above in _scan(folder):
        if ABOVE.fullmatch(above.name) and above.is_dir(follow_symlinks=False):
            yield from _scan(above.path)


def _scan(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as items:
            return list(items)
    except OSError:
        return []


def _bytes_in(item: os.DirEntry[str]) -> int:
    files = _scan(item.path) if item.is_dir(follow_symlinks=False) else [item]
    total = 0
    for file in files:
        with suppress(OSError):
            total += disk_bytes(os.stat(file.path, follow_symlinks=False))
    return total


def _mtime_ns(path: str) -> int:
    try:
        return os.stat(path, follow_symlinks=False).st_mtime_ns
    except OSError:
        return 0


@functools.lru_cache(1)
def most_open() -> int:
    """Return how many entries may have files open: a part of what a process may."""
    try:
        import resource

        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    except ImportError:  # Windows
        return MOST_OPEN
    return MOST_OPEN if soft < 0 else max(8, min(MOST_OPEN, soft // 4))
