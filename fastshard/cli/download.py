"""Download of whole remote shards into the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fastshard._util.json import parse_json
from fastshard.codecs.hashes import hash_file
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

RANGE_BYTES = 8 << 20  # bytes of a range
CONCURRENT_RANGES = 4


def download_shard(
    url: str, settings: Settings, progress: Callable[[int, int], object] | None = None
) -> int:
    """Download all of a remote shard, and its index, into the cache."""
    file = open_remote(url, settings)
    entry = file.entry
    if entry is None:
        raise RemoteError(
            "cannot be cached: it has neither ETag nor Last-Modified", file.path
        )
    for extents in _group_ranges(entry, file.nbytes):
        file.read_many(extents)
        if progress is not None:
            progress(min(extents[-1][0] + extents[-1][1], file.nbytes), file.nbytes)
    if not entry.is_whole():
        raise RemoteError("could not be cached completely", file.path)
    _check_hash(file, entry)
    open_tar(url, TarOptions(remote=settings)).close()  # caches the index
    return file.nbytes


def _group_ranges(entry: CacheEntry, nbytes: int) -> Iterator[list[tuple[int, int]]]:
    """Yield the ranges missing from the cache, in groups."""
    group: list[tuple[int, int]] = []
    for offset, size in entry.missing(0, nbytes):
        for at in range(offset, offset + size, RANGE_BYTES):
            group.append((at, min(RANGE_BYTES, offset + size - at)))
            if len(group) == CONCURRENT_RANGES:
                yield group
                group = []
    if group:
        yield group


def _check_hash(file: RemoteFile, entry: CacheEntry) -> None:
    """Compare a cached shard with the sha256 in the JSON index beside it."""
    beside = remote_sidecar_path(file.url, "json", None)
    if try_open_remote(beside, file.settings) is None:
        return
    try:
        index = parse_json(read_remote(beside, file.settings), beside, surrogates=True)
        recorded = index.get("hash_lfs")
    except (ValueError, AttributeError):
        return  # opening the shard reports the damage
    if not isinstance(recorded, str):
        return
    digest = hash_file(entry.path, ["sha256"])["sha256"]
    if digest != recorded.lower():
        reason = f"expected sha256 {recorded} by its index, got {digest}"
        raise FormatError(reason, file.path, 0)
