"""Indexes of remote shards: beside them, elsewhere, or made by hopping over headers.

A tar without an index is walked from several places at a time, for each header must be
asked for after the one before it, and an answer takes long. A place in the middle is
a block that looks like a header; what was found from there on counts only if the walk
from the place before ends exactly there. So a tar inside a tar misleads nobody.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from threading import Event
from types import MappingProxyType

from fastshard._core.io.source import LocalFile
from fastshard._core.parse.tar import Walk, first_header
from fastshard._core.table.grouping import Grouping
from fastshard.errors import FormatError, RemoteError
from fastshard.index.binary import parse_binary, read_binary, write_binary
from fastshard.index.contents import Contents, warn_old, warn_passed_over
from fastshard.index.freshness import check_binary, identity_of
from fastshard.index.sidecar import FOUND, format_of, listed, sidecar
from fastshard.remote.file import RemoteFile, index_entry, is_absent, remote_bytes
from fastshard.remote.options import Settings
from fastshard.remote.urls import Url, is_folder, joined, last_part, parse

__all__ = [
    "find_contents",
    "find_remote_index",
    "read_remote_index",
    "scan_remote",
    "scanned",
    "sidecar_of",
]

NEAR = 8 << 10  # bytes between headers that one range joins
WINDOW = 256 << 10  # bytes read at once among near headers
HEADERS = 4 << 10  # bytes of headers that are read on a guess
WALKS = 16  # at a time
WORTH_A_WALK = 16 << 20  # bytes of an archive for each
LOOKED_AT = 1 << 20  # bytes in which a header is looked for
GUESS = 64 << 10  # bytes that are read to look for it


def scan_remote(
    file: RemoteFile, progress: Callable[[int], object] | None = None
) -> Contents:
    """Walk over the headers of a remote tar; reads little but headers.

    Raises
    ------
    FormatError
        It breaks the format.
    RemoteError
        It cannot be read.
    """
    if file.nbytes == 0:
        raise FormatError("an empty file is no tar", file.path, 0)
    walk = Walk(file.nbytes, 0, file.path)
    places = _places(file, walk)
    stopped = Event()
    with ThreadPoolExecutor(WALKS) as pool:
        try:
            walks = [
                (place, pool.submit(_walked_from, file, place, stop, stopped))
                for place, stop in pairwise([*places, file.nbytes])
            ]
            _walk(file, walk, places[0] if places else file.nbytes, progress)
            for place, future in walks:
                if walk.ended or walk.has_global or walk.at > place:
                    continue
                _walk(file, walk, place, progress)
                if walk.at == place and not walk.has_global:
                    found = future.result()
                    if found is not None and not found.has_global:
                        walk.append(found)
            if not walk.ended:
                _walk(file, walk, file.nbytes + 1, progress)
        finally:
            stopped.set()
            pool.shutdown(cancel_futures=True)
    end = walk.at
    skipped = MappingProxyType(walk.skipped())
    return Contents(walk.table(), end=end, skipped=skipped)


def _places(file: RemoteFile, walk: Walk) -> list[int]:
    """Find headers in the middle of a large archive whose members are not small."""
    walks = min(WALKS, file.nbytes // WORTH_A_WALK)
    if walks < 2:
        return []
    _walk(file, walk, LOOKED_AT, None)
    if walk.ended or walk.stride <= NEAR or walk.has_global:
        return []
    with ThreadPoolExecutor(WALKS) as pool:
        starts = [file.nbytes * i // walks // 512 * 512 for i in range(1, walks)]
        found = pool.map(lambda start: _header_near(file, start), starts)
        return sorted({at for at in found if at is not None and at > walk.at})


def _header_near(file: RemoteFile, start: int) -> int | None:
    stop = min(start + LOOKED_AT, file.nbytes)
    for at in range(start, stop, GUESS):
        window = file.read(at, min(GUESS, file.nbytes - at))
        place = first_header(window, at, file.nbytes, stop)
        if place is not None:
            return place
    return None


def _walked_from(
    file: RemoteFile, place: int, stop: int, stopped: Event
) -> Walk | None:
    """Walk from a place that looks like a header; None: it was none."""
    walk = Walk(file.nbytes, place, file.path)

    def go_on(_: int) -> None:
        if stopped.is_set():
            raise FormatError("nobody waits for it", file.path, place)

    try:
        _walk(file, walk, stop, go_on)
    except FormatError:  # if it was one, the walk to here meets the fault again
        return None
    return walk


def _walk(
    file: RemoteFile, walk: Walk, stop: int, progress: Callable[[int], object] | None
) -> None:
    """Walk on to a header at or behind `stop`, or to the archive's end."""
    window, start, headers_at = b"", 0, -1
    while (need := walk.go(window, start, stop)) is not None:
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


def scanned(
    file: RemoteFile, progress: Callable[[int], object] | None, *, again: bool = False
) -> Contents:
    """Return what a scan of a remote tar found, now or before.

    What it finds is kept on this machine, with what else is kept of the tar, or in the
    user's cache.
    """
    entry = index_entry(file)
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
                identity=identity_of(file),
                fingerprint=bytes(16),
            )
    return contents


def find_contents(
    file: RemoteFile,
    index: str | Url,
    progress: Callable[[int], object] | None,
    *,
    last_dot: bool,
    lower: bool,
) -> Contents:
    """Find out what a remote shard holds: from an index, or by a scan.

    Parameters
    ----------
    file : RemoteFile
        The shard.
    index : str or Url
        As for `fastshard.open_shard`; a URL is parsed.
    progress : callable, optional
        Called with the place that a scan has come to.
    last_dot, lower
        As for `read_index`.
    """
    contents = None
    if index == "auto" or (index not in ("none", "rebuild") and is_folder(index)):
        folder = None if index == "auto" else index
        contents = find_remote_index(file, folder, last_dot=last_dot, lower=lower)
    elif index not in ("none", "rebuild"):
        contents = read_remote_index(index, file, last_dot=last_dot, lower=lower)
    if contents is None:
        contents = scanned(file, progress, again=index == "rebuild")
    return contents


def find_remote_index(
    file: RemoteFile, folder: str | Url | None, *, last_dot: bool, lower: bool
) -> Contents | None:
    """Read the fresh index of a remote shard, if there is one.

    A stale or broken one is passed over with a `StaleIndexWarning`.

    Parameters
    ----------
    file : RemoteFile
        The shard.
    folder : str or Url, optional
        Where indexes are, a URL or a directory; otherwise beside the shard.
    last_dot, lower
        As for `read_index`.
    """
    for kind in FOUND:
        place = _sidecar(file.location, kind, folder)
        try:
            return read_remote_index(place, file, last_dot=last_dot, lower=lower)
        except OSError as error:
            if not is_absent(error):
                raise
        except FormatError as error:
            warn_passed_over(error)
    return None


def sidecar_of(url: str, kind: str, folder: str | None) -> str:
    """Return where the index of a remote shard is."""
    place = _sidecar(Url(url), kind, None if folder is None else parse(folder))
    return place.text if isinstance(place, Url) else place


def _sidecar(url: Url, kind: str, folder: str | Url | None) -> str | Url:
    if folder is None:
        return Url(sidecar(url.base, kind) + url.query)
    name = sidecar(last_part(url.base), kind)
    if isinstance(folder, Url):
        return Url(joined(folder.text, name))
    return os.path.join(folder, name)


def read_remote_index(
    path: str | Url,
    file: RemoteFile | LocalFile,
    *,
    last_dot: bool,
    lower: bool,
    settings: Settings | None = None,
) -> Contents:
    """Read an index, and check that it is of a shard; one of them is remote.

    Parameters
    ----------
    settings : Settings, optional
        How a URL is read; otherwise as the shard is.
    path : str or Url
        Of the index, a path or a URL.
    file, last_dot, lower
        As for `read_index`.

    Raises
    ------
    OSError
        There is none.
    StaleIndexError, FormatError
        It is of another shard, or broken.
    """
    place = parse(path) if isinstance(path, str) else path
    where = place.redacted if isinstance(place, Url) else place
    kind = format_of(place.base if isinstance(place, Url) else place.partition("?")[0])
    if kind not in FOUND:
        raise RemoteError(
            f"an index in the format {kind} is read beside local shards", where
        )
    if settings is None:
        assert isinstance(file, RemoteFile)
        settings = file.settings
    data = _bytes_of(place, settings)
    if kind == "json":
        return listed(data, where, file)
    index = parse_binary(data, where)
    contents = index.contents(last_dot, lower)
    check_binary(where, index.header, file, contents.table)
    contents.fingerprint = index.header.fingerprint
    if index.header.version == 1:
        warn_old(where)
    return contents


def _bytes_of(place: str | Url, settings: Settings) -> bytes:
    """Return the bytes of a small file, here or remote."""
    if isinstance(place, Url):
        return remote_bytes(place, settings)
    with open(place, "rb") as stored:
        return stored.read()
