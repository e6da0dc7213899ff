"""Scan of a remote tar shard by ranges over its headers.

Each header's position follows from the header before it, and each read is a round
trip, so a large archive is walked from several start positions at a time. A start
position is a block that looks like a header. Its walk counts only if the walk before
it ends exactly there: the headers of a tar stored inside the tar are never taken for
the archive's own.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from threading import Event

from fastshard._core.parse.tar import HeaderWalk, find_header
from fastshard._core.table.grouping import Grouping
from fastshard.errors import FormatError
from fastshard.index.binary import read_binary, write_binary
from fastshard.index.contents import Contents
from fastshard.index.freshness import identify_file
from fastshard.remote.file import RemoteFile, index_cache_entry

__all__ = ["scan_or_load", "scan_remote"]

NEAR = 8 << 10  # bytes between headers, at most, that one range spans
WINDOW = 256 << 10  # bytes of a range over near headers
HEADERS = 4 << 10  # bytes of headers to read beyond those needed, at most
WALKS = 16  # concurrent walks
MIN_WALK_BYTES = 16 << 20  # bytes of the archive for each walk
SEARCH_BYTES = 1 << 20  # bytes to search for a start position
SEARCH_WINDOW = 64 << 10  # bytes of a range in that search


def scan_remote(
    file: RemoteFile, progress: Callable[[int], object] | None = None
) -> Contents:
    """Scan the headers of a remote tar."""
    if file.nbytes == 0:
        raise FormatError("an empty file is not a tar", file.path, 0)
    walk = HeaderWalk(file.nbytes, 0, file.path)
    starts = _find_starts(file, walk)
    cancelled = Event()
    with ThreadPoolExecutor(WALKS) as pool:
        try:
            walks = [
                (start, pool.submit(_walk_from, file, start, stop, cancelled))
                for start, stop in pairwise([*starts, file.nbytes])
            ]
            _advance(file, walk, starts[0] if starts else file.nbytes, progress)
            for start, future in walks:
                if walk.ended or walk.has_global or walk.at > start:
                    continue
                _advance(file, walk, start, progress)
                if walk.at == start and not walk.has_global:
                    found = future.result()
                    if found is not None and not found.has_global:
                        walk.append(found)
            if not walk.ended:
                _advance(file, walk, file.nbytes + 1, progress)
        finally:
            cancelled.set()
            pool.shutdown(cancel_futures=True)
    return Contents.of_scan(walk.scan())


def _find_starts(file: RemoteFile, walk: HeaderWalk) -> list[int]:
    """Return offsets of likely headers, at which further walks start.

    None for a small archive, for one of small members, whose headers long ranges cover,
    and for one with a global header, which changes the members behind it.
    """
    walks = min(WALKS, file.nbytes // MIN_WALK_BYTES)
    if walks < 2:
        return []
    _advance(file, walk, SEARCH_BYTES, None)
    if walk.ended or walk.stride <= NEAR or walk.has_global:
        return []
    with ThreadPoolExecutor(WALKS) as pool:
        offsets = [file.nbytes * i // walks // 512 * 512 for i in range(1, walks)]
        found = pool.map(lambda offset: _find_header(file, offset), offsets)
        return sorted({at for at in found if at is not None and at > walk.at})


def _find_header(file: RemoteFile, start: int) -> int | None:
    """Return the offset of the first likely header from `start` on, if one is near."""
    stop = min(start + SEARCH_BYTES, file.nbytes)
    for at in range(start, stop, SEARCH_WINDOW):
        window = file.read(at, min(SEARCH_WINDOW, file.nbytes - at))
        found = find_header(window, at, file.nbytes, stop)
        if found is not None:
            return found
    return None


def _walk_from(
    file: RemoteFile, start: int, stop: int, cancelled: Event
) -> HeaderWalk | None:
    """Walk from a likely header to `stop`; return None if it was not a header."""
    walk = HeaderWalk(file.nbytes, start, file.path)

    def check_cancelled(_: int) -> None:
        if cancelled.is_set():
            raise FormatError("the scan was cancelled", file.path, start)

    try:
        _advance(file, walk, stop, check_cancelled)
    except FormatError:  # if it was a header, the previous walk meets the fault again
        return None
    return walk


def _advance(
    file: RemoteFile,
    walk: HeaderWalk,
    stop: int,
    progress: Callable[[int], object] | None,
) -> None:
    """Walk to the first header at or after `stop`, or to the archive's end."""
    window, start, headers_at = b"", 0, -1
    while (need := walk.advance(window, start, stop)) is not None:
        start, size = need
        guess = min(walk.header_size, HEADERS)
        if walk.count and walk.stride <= NEAR:
            guess = WINDOW
        elif walk.at == headers_at:  # a long chain of headers before one member
            guess = max(guess, min(2 * len(window), WINDOW))
        headers_at = walk.at
        window = file.read(start, min(max(size, guess), file.nbytes - start))
        if progress is not None:
            progress(start)


def scan_or_load(
    file: RemoteFile, progress: Callable[[int], object] | None, *, again: bool = False
) -> Contents:
    """Scan a remote tar, or load the result of an earlier scan.

    The result is stored in the cache entry of the tar, or in the user's cache
    directory.
    """
    entry = index_cache_entry(file)
    path = None if entry is None else entry.sidecar("index.fsi")
    if path is not None and not again:
        with suppress(OSError, FormatError):
            index = read_binary(path, copied=True)  # checks all of it
            if index.header.shard_bytes == file.nbytes:
                contents = index.contents(index.header.last_dot, True)
                return Contents(contents.table, None, contents.end, contents.skipped)
    contents = scan_remote(file, progress)
    if path is not None:
        with suppress(OSError):
            grouping = Grouping(contents.table, False, True)
            write_binary(
                path,
                contents,
                grouping,
                shard_bytes=file.nbytes,
                identity=identify_file(file),
                fingerprint=bytes(16),
            )
    return contents
