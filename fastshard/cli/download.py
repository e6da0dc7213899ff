"""Keeping whole remote shards on this machine, before they are read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator

from fastshard.errors import FormatError, RemoteError
from fastshard.formats.tar import TarOptions, open_tar
from fastshard.index.remote_sidecar import remote_sidecar_path
from fastshard.remote.cache.store import CacheEntry
from fastshard.remote.file import (
    RemoteFile,
    open_remote,
    read_remote,
    try_open_remote,
)
from fastshard.remote.options import Settings

__all__ = ["download_shard"]

PIECE = 8 << 20  # bytes of one range
PIECES = 4  # at a time


def download_shard(
    url: str, settings: Settings, progress: Callable[[int, int], object] | None = None
) -> int:
    """Keep all of a remote shard, and its index, in the cache.

    Parameters
    ----------
    url : str
    settings : Settings
        With a ``cache_dir``.
    progress : callable, optional
        ``progress(done, nbytes)``, called now and then.

    Returns
    -------
    int
        Bytes that were read over the network.

    Raises
    ------
    RemoteError
        It cannot be read, or cannot be kept: the disk is full, or nothing tells
        when the object is written to.
    FormatError
        Its sha256 is not what its JSON index says.
    """
    file = open_remote(url, settings)
    entry = file.entry
    if entry is None:
        raise RemoteError(
            "it has neither ETag nor Last-Modified to keep it by", file.path
        )
    asked = 0
    for extents in _batches(entry, file.nbytes):
        file.read_many(extents)
        asked += sum(size for _, size in extents)
        if progress is not None:
            progress(min(extents[-1][0] + extents[-1][1], file.nbytes), file.nbytes)
    if not entry.is_whole():
        raise RemoteError("it could not be kept whole", file.path)
    _check_hash(file, entry)
    open_tar(url, TarOptions(remote=settings)).close()  # which keeps its index
    return asked


def _batches(entry: CacheEntry, nbytes: int) -> Iterator[list[tuple[int, int]]]:
    """Cut what is missing into ranges, some at a time."""
    batch: list[tuple[int, int]] = []
    for offset, size in entry.missing(0, nbytes):
        for at in range(offset, offset + size, PIECE):
            batch.append((at, min(PIECE, offset + size - at)))
            if len(batch) == PIECES:
                yield batch
                batch = []
    if batch:
        yield batch


def _check_hash(file: RemoteFile, entry: CacheEntry) -> None:
    """Compare with the sha256 that a JSON index beside the shard records."""
    beside = remote_sidecar_path(file.url, "json", None)
    if try_open_remote(beside, file.settings) is None:
        return
    try:
        recorded = json.loads(read_remote(beside, file.settings)).get("hash_lfs")
    except (ValueError, AttributeError, RecursionError):
        return  # opening the shard says what is wrong with it
    if not isinstance(recorded, str):
        return
    with open(entry.path, "rb") as kept:
        digest = hashlib.file_digest(kept, "sha256").hexdigest()
    if digest != recorded.lower():
        raise FormatError("its sha256 is not what its index says", file.path, 0)
