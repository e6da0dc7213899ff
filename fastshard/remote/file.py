"""Remote files: reads by range, through the cache where there is one."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from fastshard._core.io.source import allocate_bytes
from fastshard.errors import (
    FastshardError,
    FormatError,
    RemoteError,
    RemoteNotFoundError,
)
from fastshard.remote.cache.store import CacheEntry, RangeCache
from fastshard.remote.options import Settings
from fastshard.remote.retry import Deadline, Meter, NoRangesError
from fastshard.remote.scheduler import MOST_SPAN, Request, fetch, read_now, start
from fastshard.remote.transport import ObjectInfo, Part, Transport
from fastshard.remote.urls import HTTP, Url, base_of, parse_url, without_user

if TYPE_CHECKING:
    from fastshard.remote.http_response import RangeResponse

__all__ = [
    "RemoteFile",
    "cache_for",
    "cache_key",
    "default_cache_dir",
    "download_to_cache",
    "fetch",
    "index_cache_entry",
    "is_not_found",
    "open_remote",
    "read_remote",
    "transport_for",
    "try_open_remote",
]


MOST_WHOLE = 256 << 20  # bytes of an index
FIRST = 16 << 10  # bytes that are asked for when an object is opened


class RemoteFile:
    """An object that is read by ranges.

    Parameters
    ----------
    url : str or Url
    settings : Settings
    info : ObjectInfo
    head : bytes
        Its first bytes, as far as they are known.
    entry : Entry, optional
        What is kept of it on this machine.

    Attributes
    ----------
    location : Url
    url : str
        As it was given.
    path : str
        The URL without what may be secret, for errors, logs, what is stored.
    nbytes, mtime_ns : int
    tag : str
        What changes when it is written to; empty if nothing does.
    """

    def __init__(
        self,
        url: str | Url,
        settings: Settings,
        info: ObjectInfo,
        head: bytes = b"",
        entry: CacheEntry | None = None,
    ) -> None:
        self.location = parse_url(url)
        self.url = self.location.text
        self.path = self.location.redacted
        self.settings = settings
        self.info = info
        self.nbytes, self.tag, self.mtime_ns = info
        self.head = head
        self.entry = entry
        self._client = _client_of(self.location.scheme)
        self._keeping = threading.Lock()

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes; a range request, unless they are known already.

        Raises
        ------
        RemoteError
            They cannot be had.
        FormatError
            The object has not so many.
        """
        if offset > self.nbytes or size > self.nbytes - offset:
            raise FormatError("a read beyond the object", self.path, offset)
        if offset + size <= len(self.head):
            return self.head[offset : offset + size]
        if not 0 < size <= MOST_SPAN:
            request = Request(self, offset, size)
            fetch([request])
            return request.result()
        room, view = allocate_bytes(size)
        if not (self.is_cached(offset, size) and self.read_cached(offset, view)):
            deadline = Deadline(self.settings.timeout, size)
            try:
                self.read_range(offset, offset + size, [(offset, view)], deadline)
            except (FastshardError, OSError) as error:
                # Without the frames that hold headers and buffers.
                raise error.with_traceback(None)  # noqa: B904
        return room

    def read_many(self, extents: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return bytes of some extents, all asked for at once."""
        if all(offset + size <= len(self.head) for offset, size in extents):
            return [self.head[offset : offset + size] for offset, size in extents]
        requests = [Request(self, offset, size) for offset, size in extents]
        fetch(requests)
        return [request.result() for request in requests]

    def request(self, offset: int, size: int) -> Request:
        """Return a request, which `start` sends."""
        return Request(self, offset, size)

    def start(self, requests: Sequence[Request]) -> None:
        """Have requests of this object or others answered, and do not wait."""
        start(requests)

    def read_now(self, requests: Sequence[Request]) -> None:
        """Answer requests in this thread, ahead of those that wait for the engine."""
        read_now(requests)

    def read_into(
        self, wants: Sequence[tuple[RemoteFile, int, memoryview]]
    ) -> list[Exception | None]:
        """Fill buffers with bytes of this object or others.

        Parameters
        ----------
        wants : sequence of (RemoteFile, int, memoryview)
            From where, from which byte on, where to.

        Returns
        -------
        list of Exception or None
            What went wrong with each.
        """
        requests = [Request(file, at, len(view), view) for file, at, view in wants]
        return fetch(requests)

    @property
    def meter(self) -> Meter:
        """Latency and rate of its server, as measured in this process."""
        return self.settings.shared(self._client).meter

    def is_cached(self, offset: int, size: int) -> bool:
        """Say whether a range is on this machine."""
        return self.entry is not None and self.entry.has(offset, size)

    def read_cached(self, offset: int, view: memoryview) -> bool:
        """Fill a buffer from this machine; False if a byte is not there, or wrong."""
        return self.entry is not None and self.entry.read_into(offset, view)

    def read_range(
        self, start: int, end: int, parts: Sequence[Part], deadline: Deadline
    ) -> None:
        """Read a range over the network, and put parts of it where they go."""
        if self.settings.offline:
            raise RemoteError(
                f"offline, and byte {start:,} is not kept here", self.path
            )
        transport = self.settings.shared(self._client)
        try:
            transport.read(self.location, start, end, parts, self.info, deadline)
        except NoRangesError:
            if self.entry is None:
                raise
            self._download(self.entry, parts)
            return
        if self.entry is not None:
            for offset, view in parts:
                self.entry.add(offset, view)

    def _download(self, entry: CacheEntry, parts: Sequence[Part]) -> None:
        """Keep all of an object again, of which ranges cannot be had."""
        cache = cache_for(self.settings)
        assert cache is not None
        with self._keeping:
            if not all(entry.read_into(*part) for part in parts):
                download_to_cache(self.location, self.settings, cache)
        if not all(entry.read_into(*part) for part in parts):
            raise RemoteError(
                "the server sends whole objects only, and cache_limit is too small to "
                "keep one",
                self.path,
            )

    def __enter__(self) -> RemoteFile:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing is open: connections are the process's."""

    def __repr__(self) -> str:
        return f"<RemoteFile {self.path!r}, {self.nbytes:,} bytes>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a RemoteFile does not pickle; pickle the shard")


def open_remote(url: str | Url, settings: Settings) -> RemoteFile:
    """Find out what a remote object is.

    Raises
    ------
    RemoteNotFoundError
        There is none.
    RemoteError
        It cannot be read.
    """
    url = parse_url(url)
    cache = cache_for(settings)
    if cache is None:
        info, head = transport_for(url, settings).head(url, FIRST)
        return RemoteFile(url, settings, info, head)
    return _open_kept(url, settings, cache)


def _open_kept(url: Url, settings: Settings, cache: RangeCache) -> RemoteFile:
    """Open an object of which something may be kept here."""
    name = cache_key(url.text)
    if settings.offline:
        known = cache.latest_info(name)
        if known is None:
            raise RemoteNotFoundError("offline, and it is not kept here", url.redacted)
        return RemoteFile(url, settings, known, entry=cache.entry(name, known))
    try:
        info, head = transport_for(url, settings).head(url, FIRST)
    except NoRangesError:
        return RemoteFile(url, settings, *download_to_cache(url, settings, cache))
    if not info.tag:  # nothing tells when it is written to
        return RemoteFile(url, settings, info, head)
    entry = cache.entry(name, info)
    if not entry.has(0, len(head)):
        entry.add(0, head)
    return RemoteFile(url, settings, info, head, entry)


def read_remote(url: str | Url, settings: Settings) -> bytes:
    """Return the bytes of a small object."""
    if settings.cache_dir is None:
        return transport_for(url, settings).whole(url)[1]
    file = open_remote(url, settings)
    if file.nbytes > MOST_WHOLE:
        reason = f"{file.nbytes:,} bytes, and {MOST_WHOLE:,} may be"
        raise RemoteError(reason, file.path)
    return file.read(0, file.nbytes)


def try_open_remote(url: str | Url, settings: Settings) -> RemoteFile | None:
    """Open an object, or return None if there is none."""
    try:
        return open_remote(url, settings)
    except RemoteError as error:
        if is_not_found(error):
            return None
        raise


def is_not_found(error: OSError) -> bool:
    """Say whether an error means that there is no such object.

    A store that may not be listed denies what is not there.
    """
    return isinstance(error, FileNotFoundError) or (
        isinstance(error, RemoteError) and error.status in (401, 403)
    )


def transport_for(url: str | Url, settings: Settings) -> Transport:
    """Return this process's client for a URL."""
    return settings.shared(_client_of(parse_url(url).scheme))


def _client_of(scheme: str) -> Callable[[Settings], Transport]:
    """Return the class of clients for a scheme; its module is imported now."""
    if scheme in HTTP:
        from fastshard.remote.http import HttpClient

        return HttpClient
    if scheme == "hf":
        from fastshard.remote.hub import HubClient

        return HubClient
    from fastshard.remote.object_store import StoreClient

    return StoreClient


CHUNK = 1 << 20  # bytes that are kept at a time
COMMIT = re.compile(r"^(hf://datasets/[^/@]+/[^/@]+)@[0-9a-f]{40}(?=/|$)")


def cache_key(url: str) -> str:
    """Return the name that an object is kept by: nothing secret, and no commit.

    Objects that are the same in two commits of a repository are kept once: tags tell.
    """
    scheme, _, rest = url.partition("://")
    if scheme.lower() not in HTTP and "@" in rest.partition("/")[0]:
        url = without_user(url)
    return COMMIT.sub(r"\1", base_of(url))


def download_to_cache(
    url: Url, settings: Settings, cache: RangeCache
) -> tuple[ObjectInfo, bytes, CacheEntry]:
    """Keep a whole object of a server that knows no ranges."""
    from fastshard.remote.http import client_for

    def keep(response: RangeResponse) -> tuple[ObjectInfo, bytes, CacheEntry]:
        if not response.info.tag:
            raise response.error(
                "the server sends whole objects only, and nothing that tells when they "
                "are written to: download them"
            )
        entry = cache.entry(cache_key(url.text), response.info)
        if entry.is_whole():
            return response.info, b"", entry
        chunk = memoryview(bytearray(CHUNK))
        for at in range(0, response.info.nbytes, CHUNK):
            part = chunk[: min(CHUNK, response.info.nbytes - at)]
            response.read_into(part)
            entry.add(at, part)
        response.finish()
        return response.info, b"", entry

    return client_for(settings).download(url, keep)


class _Kept:
    """The cache that settings name."""

    def __init__(self, settings: Settings) -> None:
        assert settings.cache_dir is not None
        self.cache = RangeCache(settings.cache_dir, settings.cache_limit)


def cache_for(settings: Settings) -> RangeCache | None:
    """Return what keeps bytes on this machine, if something does."""
    return None if settings.cache_dir is None else settings.shared(_Kept).cache


def index_cache_entry(file: RemoteFile) -> CacheEntry | None:
    """Return where an index of an object is kept that was made here."""
    if file.entry is not None or not file.tag:
        return file.entry
    folder = default_cache_dir()
    return None if folder is None else RangeCache(folder).entry(file.path, file.info)


def default_cache_dir() -> str | None:
    """Return where indexes are kept: ``FASTSHARD_CACHE``, or the user's cache."""
    told = os.environ.get("FASTSHARD_CACHE")
    if told is not None:
        return told or None
    above = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(above, "fastshard") if os.path.isabs(above) else None
