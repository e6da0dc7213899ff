"""Cache directory: survey of its entries, and their removal."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from fastshard.remote.cache.disk import (
    GONE,
    disk_bytes,
    remove_tree,
    try_lock_file,
)
from fastshard.remote.cache.entry_files import DATA, DamagedEntryError, EntryFiles
from fastshard.remote.cache.version import hash_url, read_version

__all__ = [
    "ENTRY",
    "HASHED",
    "LOCK",
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

SUBFOLDER = re.compile(r"[0-9a-f]{2}")
ENTRY = re.compile(r"[0-9a-f]{40}-[0-9a-f]{24}")  # an entry's directory
OBJECT = "object.json"  # the version file of an entry
USED = "used"  # an empty file; its mtime is the time of the entry's last use
HASHED = "hashed"  # the state of an entry's data at its last digest check
LOCK = ".lock"  # suffix of a file that is locked while an object is downloaded
NEW = ".new"  # suffix of a directory that becomes an entry
PATIENCE_NS = 3600 * 10**9  # age of an unfinished entry after which it may be removed


class CachedObject(NamedTuple):
    """Cached version of an object.

    Attributes
    ----------
    url : str
        "" if the version file is damaged.
    disk_bytes : int
        Allocated on disk for the entry's files.
    nbytes : int
        Size of the object.
    whole : bool
        Whether all bytes were stored; their checksums are not verified here.
    used_ns : int
        Time of the last use, ns since 1970.
    """

    url: str
    disk_bytes: int
    nbytes: int
    whole: bool
    used_ns: int


class EntryUsage(NamedTuple):
    """Directory of an entry, with its size and its last use."""

    path: str
    disk_bytes: int
    used_ns: int


def list_objects(folder: str) -> list[CachedObject]:
    """Return the cached objects of a directory, the last used first."""
    entries = sorted(survey(folder), key=lambda entry: entry.used_ns, reverse=True)
    return [_inspect(entry) for entry in entries]


def clear(folder: str, urls: Collection[str] | None = None) -> int:
    """Remove entries from a cache directory; return the bytes freed on disk.

    Files that the cache did not make are left alone.
    """
    if urls is None:
        remove_leftovers(folder)
        return remove_entries(survey(folder))
    hashes = {hash_url(url) for url in urls}
    return remove_entries(
        entry for entry in survey(folder) if os.path.basename(entry.path)[:40] in hashes
    )


def remove_entries(entries: Iterable[EntryUsage], enough: int | None = None) -> int:
    """Remove entries until `enough` bytes are free; return the bytes freed."""
    freed = 0
    for entry in entries:
        if enough is not None and freed >= enough:
            break
        if remove_tree(entry.path):
            freed += entry.disk_bytes
    return freed


def remove_leftovers(folder: str) -> None:
    """Remove the leftovers of processes that died while making or removing entries."""
    for item in _items(folder):
        if item.name.startswith(".") and item.name.endswith(GONE):
            remove_tree(item.path)
        elif item.name.startswith(".") and item.name.endswith((NEW, LOCK)):
            _remove_abandoned(item.path)


def _remove_abandoned(path: str) -> None:
    """Remove an unfinished entry, or a lock, that is old and that no process holds."""
    if mtime_ns(path) >= time.time_ns() - PATIENCE_NS:
        return
    with try_lock_file(
        path if path.endswith(LOCK) else os.path.join(path, DATA)
    ) as free:
        if free:
            remove_tree(path)


def survey(folder: str) -> Iterator[EntryUsage]:
    """Yield the entries of a cache directory."""
    for item in _items(folder):
        if ENTRY.fullmatch(item.name):
            used_ns = mtime_ns(os.path.join(item.path, USED))
            yield EntryUsage(item.path, _bytes_in(item), used_ns)


def mtime_ns(path: str) -> int:
    """Return a file's modification time, ns since 1970; 0 if unreadable."""
    try:
        return os.stat(path, follow_symlinks=False).st_mtime_ns
    except OSError:
        return 0


def _inspect(entry: EntryUsage) -> CachedObject:
    version = read_version(os.path.join(entry.path, OBJECT))
    if version is None:
        return CachedObject("", entry.disk_bytes, 0, False, entry.used_ns)
    nbytes = version.info.nbytes
    whole = False
    with suppress(OSError, DamagedEntryError):
        files = EntryFiles(entry.path, nbytes)
        is_hashed = os.path.lexists(os.path.join(entry.path, HASHED))
        whole = is_hashed or not files.missing(0, nbytes)
    return CachedObject(version.url, entry.disk_bytes, nbytes, whole, entry.used_ns)


def _items(folder: str) -> Iterator[os.DirEntry[str]]:
    """Yield the content of the subfolders, which hold the entries."""
    for subfolder in _scan(folder):
        if SUBFOLDER.fullmatch(subfolder.name) and subfolder.is_dir(
            follow_symlinks=False
        ):
            yield from _scan(subfolder.path)


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
