"""Lookup of the ``dataset.fsi`` that describes a dataset's shards."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fastshard._core.io.source import LocalFile
from fastshard._util.paths.urls import is_remote, join_url, redact, relative_path
from fastshard.errors import FormatError, StaleIndexError
from fastshard.index.contents import warn_ignored_index, warn_old_version
from fastshard.index.dataset_file import (
    NAME,
    DatasetIndex,
    DatasetIndexView,
    ShardRecord,
)
from fastshard.index.freshness import identify_file, is_same_file

if TYPE_CHECKING:
    from fastshard.remote.options import Settings

__all__ = [
    "find_dataset_index",
    "match_dataset_index",
    "match_remote_dataset_index",
]

CHECKED_SHARDS = 64  # touched shards whose headers are compared at open, at most


def find_dataset_index(
    paths: Sequence[str],
    root: str,
    *,
    folder: str | None,
    last_dot: bool,
    whole: bool,
    copied: bool,
    settings: Settings | None = None,
) -> DatasetIndexView | None:
    """Return the view of a fresh ``dataset.fsi`` of some shards, or None.

    A stale or damaged index is ignored with a `StaleIndexWarning`. Remote shards are
    compared with the index when they are opened, not here.
    """
    try:
        index = _try_open(folder or root, copied, settings)
        if index is None or index.last_dot != last_dot:
            return None
        match = match_dataset_index if settings is None else match_remote_dataset_index
        view = match(index, paths, root, whole)
    except FormatError as error:
        warn_ignored_index(error)
        return None
    if index.version == 1:
        warn_old_version(index.path)
    return view


def match_remote_dataset_index(
    index: DatasetIndex, urls: Sequence[str], root: str, whole: bool
) -> DatasetIndexView:
    """Return the view of an index in the order of some remote shards."""
    by_name = {shard.name: number for number, shard in enumerate(index.shards)}
    numbers = []
    for url in urls:
        name = relative_path(url, root)
        if name not in by_name:
            raise StaleIndexError(f"does not list {redact(url)}", index.path, 0)
        numbers.append(by_name[name])
    if whole:
        _check_complete(index, numbers, root)
    same = numbers == list(range(index.count))
    return DatasetIndexView(index, None if same else numbers)


def _check_complete(index: DatasetIndex, numbers: Sequence[int], root: str) -> None:
    """Raise StaleIndexError if the index lists further shards, which do not exist.

    The index of a directory may have shards of the directories below it.
    """
    for number in sorted(set(range(index.count)) - set(numbers)):
        name = index.shards[number].name
        if is_remote(root) or not os.path.exists(os.path.join(root, name)):
            raise StaleIndexError(f"lists {name}, which does not exist", index.path, 0)


def _try_open(
    folder: str, copied: bool, settings: Settings | None
) -> DatasetIndex | None:
    """Open the dataset index of a folder; return None if there is none."""
    if settings is None or not is_remote(folder):
        path = os.path.join(folder, NAME)
        is_unrooted = not folder and settings is not None  # URLs of several hosts
        if is_unrooted or not os.path.exists(path):
            return None
        return DatasetIndex(path, copied=copied)
    from fastshard.remote.file import try_open_remote

    file = try_open_remote(join_url(folder, NAME), settings)
    return None if file is None else DatasetIndex(file.path, file=file)


def match_dataset_index(
    index: DatasetIndex, paths: Sequence[str], root: str, whole: bool
) -> DatasetIndexView:
    """Return the view of an index in the order of some local shards.

    All sizes are compared, and the headers of some shards whose identity differs from
    the recorded one. The headers of the others are compared when they are opened.
    """
    by_name = {shard.name: number for number, shard in enumerate(index.shards)}
    numbers = []
    touched = []  # shards whose identity differs from the recorded one
    for path in paths:
        name = os.path.relpath(path, root).replace(os.sep, "/")
        number = by_name.get(name)
        if number is None:
            raise StaleIndexError(f"does not list {path}", index.path, 0)
        status, record = os.stat(path), index.shards[number]
        if status.st_size != record.shard_bytes:
            raise StaleIndexError(
                f"made for {path} of {record.shard_bytes:,} bytes; "
                f"it has {status.st_size:,}",
                index.path,
                0,
            )
        if not is_same_file(record.identity, identify_file(status)):
            touched.append((path, record))
        numbers.append(number)
    if whole:
        _check_complete(index, numbers, root)
    for path, record in touched[:CHECKED_SHARDS]:
        if _has_changed(index, path, record):
            raise StaleIndexError(
                f"{path} was written to after the index was made", index.path, 0
            )
    same = numbers == list(range(index.count))
    return DatasetIndexView(index, None if same else numbers)


def _has_changed(index: DatasetIndex, path: str, record: ShardRecord) -> bool:
    """Return whether a shard's fingerprint differs from the recorded one.

    Its own binary index lists the headers to hash; without one, return False.
    """
    from fastshard.index.binary import read_binary
    from fastshard.index.freshness import compute_fingerprint

    below = os.path.splitext(record.name)[0] + ".fsi"
    where = os.path.join(os.path.dirname(index.path), below)
    try:
        found = read_binary(where).contents(index.last_dot, True)
        with LocalFile(path) as file:
            now = compute_fingerprint(file, found.table, found.end, where)
            return now != record.fingerprint
    except FileNotFoundError:
        return False
    except FormatError:
        return True
