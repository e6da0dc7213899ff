"""Cache directory: survey of its entries, and their removal."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from fastshard.remote.cache.disk import GONE, disk_bytes, remove_tree
from fastshard.remote.cache.entry_files import DamagedEntryError, EntryFiles
from fastshard.remote.cache.version import hash_url, read_version

__all__ = [
    "ENTRY",
    "NEW",
    "OBJECT",
    "USED",
    "CachedObject",
    "EntryUsage",
    "clear",
    "list_objects",
    "mtime_ns",
    "remove_entries",
    "remove_leftovers",
    "survey",
]

ABOVE = re.compile(r"[0-9a-f]{2}")
ENTRY = re.compile(r"[0-9a-f]{40}-[0-9a-f]{24}")
PATIENCE_NS = 3600 * 10**9  # age at which an unfinished entry is abandoned
OBJECT = "object.json"
USED = "used"  # its time is that of the last use
NEW = ".new"  # how names of entries end that are being made


class CachedObject(NamedTuple):
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


class EntryUsage(NamedTuple):
    """An entry as the directory shows it."""

    path: str
    disk_bytes: int
    used_ns: int


def list_objects(folder: str) -> list[CachedObject]:
    """Return what is in a cache's folder, the last used first."""
    found = sorted(survey(folder), key=lambda one: one.used_ns, reverse=True)
    return [_inspect(one) for one in found]


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
        remove_leftovers(folder)
        return remove_entries(survey(folder))
    parts = {hash_url(url) for url in urls}
    found = survey(folder)
    return remove_entries(
        one for one in found if os.path.basename(one.path)[:40] in parts
    )


def remove_entries(found: Iterable[EntryUsage], enough: int | None = None) -> int:
    """Remove entries until so many bytes are free; return how many are."""
    freed = 0
    for one in found:
        if enough is not None and freed >= enough:
            break
        if remove_tree(one.path):
            freed += one.disk_bytes
    return freed


def _inspect(one: EntryUsage) -> CachedObject:
    known = read_version(os.path.join(one.path, OBJECT))
    if known is None:
        return CachedObject("", one.disk_bytes, 0, False, one.used_ns)
    nbytes = known.info.nbytes
    whole = False
    with suppress(OSError, DamagedEntryError):
        whole = not EntryFiles(one.path, nbytes).missing(0, nbytes)
    return CachedObject(known.url, one.disk_bytes, nbytes, whole, one.used_ns)


def survey(folder: str) -> Iterator[EntryUsage]:
    for item in _items(folder):
        if ENTRY.fullmatch(item.name):
            used_ns = mtime_ns(os.path.join(item.path, USED))
            yield EntryUsage(item.path, _bytes_in(item), used_ns)


def remove_leftovers(folder: str) -> None:
    """Remove what was left by processes that ended while they made or removed."""
    for item in _items(folder):
        late_ns = time.time_ns() - PATIENCE_NS
        unfinished = item.name.endswith(NEW) and mtime_ns(item.path) < late_ns
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


def mtime_ns(path: str) -> int:
    try:
        return os.stat(path, follow_symlinks=False).st_mtime_ns
    except OSError:
        return 0
