"""Remote files: range reads through the optional disk cache."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from fastshard._core.io.source import MemoryPool, allocate_bytes, batch_memory
from fastshard._util.paths.urls import HTTP, Url, base_of, parse_url, strip_user
from fastshard.errors import (
    FastshardError,
    FormatError,
    RemoteError,
    RemoteNotFoundError,
)
from fastshard.remote.cache.store import CacheEntry, RangeCache
from fastshard.remote.deadline import Deadline
from fastshard.remote.errors import NoRangesError
from fastshard.remote.meter import MOST_SPAN, Meter
from fastshard.remote.options import Settings
from fastshard.remote.scheduler import Request, drop_stored, fetch, read_now, start
from fastshard.remote.traffic import traffic
from fastshard.remote.transport import (
    MAX_WHOLE,
    LoopedRead,
    ObjectInfo,
    Part,
    Transport,
)

if TYPE_CHECKING:
    from fastshard.remote.http.response import RangeResponse

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

FIRST = 16 << 10  # bytes requested when an object is opened

CHUNK = 1 << 20  # bytes of a download stored at a time
NEAR = 0.002  # seconds of a round trip
COMMIT = re.compile(r"^(hf://datasets/[^/@]+/[^/@]+)@[0-9a-f]{40}(?=/|$)")


class RemoteFile:
    """Remote object, read by ranges. Thread-safe; does not pickle.

    Attributes
    ----------
    location : Url
    url : str
        As given.
    path : str
        Redacted URL, for errors, logs and files.
    nbytes, mtime_ns : int
    tag : str
        Differs between versions of the object; "" if the server sends none.
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
        self._client: Callable[[Settings], Transport] = settings.client or _client_of(
            self.location.scheme
        )
        self._downloading = threading.Lock()

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes of the object, by a range request if they are not cached."""
        if offset > self.nbytes or size > self.nbytes - offset:
            reason = f"a read of {size:,} bytes past the end, byte {self.nbytes:,}"
            raise FormatError(reason, self.path, offset)
        if offset + size <= len(self.head):
            return self.head[offset : offset + size]
        if not 0 < size <= MOST_SPAN:
            request = Request(self, offset, size)
            fetch([request])
            data: bytes = request.result()
            return data
        room, view = allocate_bytes(size)
        if self.is_cached(offset, size) and self.read_cached(offset, view):
            traffic.count_hit()
        else:
            deadline = Deadline(self.settings.timeout, size)
            try:
                self.read_range(offset, offset + size, [(offset, view)], deadline)
            except (FastshardError, OSError) as error:
                # Frames of the traceback hold headers and buffers.
                raise error.with_traceback(None)  # noqa: B904
        return room

    def read_many(self, extents: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of several extents, requested at the same time."""
        if all(offset + size <= len(self.head) for offset, size in extents):
            return [self.head[offset : offset + size] for offset, size in extents]
        requests = [Request(self, offset, size) for offset, size in extents]
        fetch(requests)
        return [request.result() for request in requests]

    def request(
        self, offset: int, size: int, room: tuple[Any, memoryview] | None = None
    ) -> Request:
        """Return a request for bytes, to be sent by `start`."""
        return Request(self, offset, size, room=room)

    def memory_pool(self) -> MemoryPool | None:
        """Return the memory for batches, if threads read them: they drain it."""
        return batch_memory if self.entry is None else None

    def start(self, requests: Sequence[Request]) -> None:
        """Send requests for this object or others, without waiting."""
        start(requests)

    def read_now(self, requests: Sequence[Request]) -> None:
        """Read requests in this thread, before those queued for other threads."""
        read_now(requests)

    def drop(self, requests: Sequence[Request]) -> None:
        """Cancel requests of this object or others; no thread stores their bytes."""
        drop_stored(requests)

    def read_into(
        self, wants: Sequence[tuple[RemoteFile, int, memoryview]]
    ) -> list[Exception | None]:
        """Fill buffers with bytes of this object or others."""
        requests = [Request(file, at, len(view), view) for file, at, view in wants]
        return fetch(requests)

    @property
    def meter(self) -> Meter:
        """Latency and transfer rate of the server, measured in this process."""
        return self.settings.shared[self._client].meter

    def flight_bytes(self) -> int:
        """Return the bytes that all connections transfer in two round trips.

        0 for a server with low latency.
        """
        meter = self.meter
        if meter.latency < NEAR:
            return 0
        return int(2 * meter.latency * meter.rate * self.settings.connections)

    def is_cached(self, offset: int, size: int) -> bool:
        """Return whether the disk cache has all of a range."""
        return self.entry is not None and self.entry.has(offset, size)

    def read_cached(self, offset: int, view: memoryview) -> bool:
        """Fill a buffer from the disk cache; return False if it lacks a byte."""
        return self.entry is not None and self.entry.read_into(offset, view)

    def begin(self, reads: Sequence[LoopedRead]) -> Sequence[LoopedRead]:
        """Give range reads to its transport's loop; return those that it does not take.

        Ranges that are then stored in the cache are read by threads.
        """
        if self.settings.offline or self.entry is not None:
            return reads
        transport = self.settings.shared[self._client]
        return transport.begin(self.location, self.info, reads)

    def read_range(
        self, start: int, end: int, parts: Sequence[Part], deadline: Deadline
    ) -> None:
        """Read a range over the network and copy parts of it to their destinations."""
        if self.settings.offline:
            raise RemoteError(
                f"byte {start:,} is not in cache_dir, and offline=True", self.path
            )
        if self.settings.block and self._may_store():
            self._store_blocks(start, end, deadline)
            parts = [part for part in parts if not self.read_cached(*part)]
            if not parts:
                return
        transport = self.settings.shared[self._client]
        try:
            transport.read(self.location, start, end, parts, self.info, deadline)
        except NoRangesError:
            if self.entry is None:
                raise
            self._download(self.entry, parts)
            return
        if self.entry is not None and not deadline.cancelled:
            for offset, view in parts:
                self.entry.add(offset, view)

    def _may_store(self) -> bool:
        """Return whether the cache has room for the object."""
        cache = cache_for(self.settings)
        if self.entry is None or cache is None or cache.is_stopped:
            return False
        return cache.limit is None or self.nbytes <= cache.limit

    def _store_blocks(self, start: int, end: int, deadline: Deadline) -> None:
        """Store the blocks of a range that are not cached."""
        entry, block = self.entry, self.settings.block
        assert entry is not None
        transport = self.settings.shared[self._client]
        first = start // block * block
        for offset, size in entry.missing(first, -(-end // block) * block - first):
            room, view = allocate_bytes(size)
            part = [(offset, view)]
            transport.read(
                self.location, offset, offset + size, part, self.info, deadline
            )
            if not deadline.cancelled:
                entry.add(offset, room)

    def _download(self, entry: CacheEntry, parts: Sequence[Part]) -> None:
        """Download the object again, from a server without ranges."""
        cache = cache_for(self.settings)
        assert cache is not None
        with self._downloading:
            if not all(entry.read_into(*part) for part in parts):
                download_to_cache(self.location, self.settings, cache)
        if not all(entry.read_into(*part) for part in parts):
            raise RemoteError(
                "the server does not support ranges, and the object does not fit in "
                "cache_limit",
                self.path,
            )

    def __enter__(self) -> RemoteFile:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Do nothing: connections belong to the process."""

    def __repr__(self) -> str:
        return f"<RemoteFile {self.path!r}, {self.nbytes:,} bytes>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a RemoteFile does not pickle; pickle the shard")


def open_remote(url: str | Url, settings: Settings) -> RemoteFile:
    """Open a remote object: request its metadata and first bytes."""
    url = parse_url(url)
    cache = cache_for(settings)
    if cache is None:
        info, head = transport_for(url, settings).head(url, FIRST)
        return RemoteFile(url, settings, info, head)
    return _open_cached(url, settings, cache)


def _open_cached(url: Url, settings: Settings, cache: RangeCache) -> RemoteFile:
    """Open an object through the disk cache."""
    name = cache_key(url.text)
    if settings.offline:
        known = cache.latest_info(name)
        if known is None:
            raise RemoteNotFoundError(
                "the object is not in cache_dir, and offline=True", url.redacted
            )
        return RemoteFile(url, settings, known, entry=cache.entry(name, known))
    try:
        info, head = transport_for(url, settings).head(url, FIRST)
    except NoRangesError:
        return RemoteFile(url, settings, *download_to_cache(url, settings, cache))
    if not info.tag:  # changes of the object could not be detected
        return RemoteFile(url, settings, info, head)
    entry = cache.entry(name, info)
    if not entry.has(0, len(head)):
        entry.add(0, head)
    return RemoteFile(url, settings, info, head, entry)


def read_remote(url: str | Url, settings: Settings) -> bytes:
    """Return all bytes of a small object, such as an index."""
    if settings.cache_dir is None:
        return transport_for(url, settings).whole(url)[1]
    file = open_remote(url, settings)
    if file.nbytes > MAX_WHOLE:
        reason = f"expected at most {MAX_WHOLE:,} bytes, got {file.nbytes:,}"
        raise RemoteError(reason, file.path)
    return file.read(0, file.nbytes)


def try_open_remote(url: str | Url, settings: Settings) -> RemoteFile | None:
    """Open an object, or return None if it does not exist."""
    try:
        return open_remote(url, settings)
    except RemoteError as error:
        if is_not_found(error):
            return None
        raise


def is_not_found(error: OSError) -> bool:
    """Return whether an error means that the object does not exist.

    A store without permission to list answers 403 for missing objects.
    """
    return isinstance(error, FileNotFoundError) or (
        isinstance(error, RemoteError) and error.status in (401, 403)
    )


def transport_for(url: str | Url, settings: Settings) -> Transport:
    """Return the process's client for a URL."""
    kind = settings.client or _client_of(parse_url(url).scheme)
    client: Transport = settings.shared[kind]
    return client


def _client_of(scheme: str) -> Callable[[Settings], Transport]:
    """Return the client class for a scheme; import its module."""
    if scheme in HTTP:
        from fastshard.remote.http.client import HttpClient

        return HttpClient
    if scheme == "hf":
        from fastshard.remote.hub import HubClient

        return HubClient
    from fastshard.remote.object_store import StoreClient

    return StoreClient


def cache_key(url: str) -> str:
    """Return an object's name in the cache: its URL without secrets and commit.

    A file that is the same in two commits has one entry: versions differ by tag.
    """
    scheme, _, rest = url.partition("://")
    if scheme.lower() not in HTTP and "@" in rest.partition("/")[0]:
        url = strip_user(url)
    return COMMIT.sub(r"\1", base_of(url))


def download_to_cache(
    url: Url, settings: Settings, cache: RangeCache
) -> tuple[ObjectInfo, bytes, CacheEntry]:
    """Store a whole object in the cache, from a server without ranges."""
    from fastshard.remote.http.client import client_for

    def store(response: RangeResponse) -> tuple[ObjectInfo, bytes, CacheEntry]:
        if not response.info.tag:
            raise response.error(
                "the server supports neither ranges nor ETag and Last-Modified: "
                "download the object to a local file"
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

    return client_for(settings).download(url, store)


class _CacheOfSettings:
    """Disk cache for ``cache_dir`` and ``cache_limit``; one per `Settings`."""

    def __init__(self, settings: Settings) -> None:
        assert settings.cache_dir is not None
        self.cache = RangeCache(settings.cache_dir, settings.cache_limit)


def cache_for(settings: Settings) -> RangeCache | None:
    """Return the process's disk cache, or None without ``cache_dir``."""
    if settings.cache_dir is None:
        return None
    return settings.shared[_CacheOfSettings].cache


def index_cache_entry(file: RemoteFile) -> CacheEntry | None:
    """Return the cache entry that stores an index made for an object, if any."""
    if file.entry is not None or not file.tag:
        return file.entry
    folder = default_cache_dir()
    return None if folder is None else RangeCache(folder).entry(file.path, file.info)


def default_cache_dir() -> str | None:
    """Return the directory for indexes: ``FASTSHARD_CACHE``, or the user's cache.

    None if the variable is empty, or the user has no home directory.
    """
    folder = os.environ.get("FASTSHARD_CACHE")
    if folder is not None:
        return folder or None
    parent = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(parent, "fastshard") if os.path.isabs(parent) else None
