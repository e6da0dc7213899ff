"""Remote files: reads by range, through the cache where there is one."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn, Protocol

from fastshard.errors import (
    FastshardError,
    FormatError,
    RemoteError,
    RemoteNotFoundError,
)
from fastshard.remote.cache.store import Entry, RangeCache
from fastshard.remote.facts import Facts, Part
from fastshard.remote.options import Settings
from fastshard.remote.retry import Deadline, Meter, NoRangesError
from fastshard.remote.scheduler import MOST_SPAN, Engine, Request, Run, plan
from fastshard.remote.urls import base_of, scheme_of, shown

if TYPE_CHECKING:
    from fastshard.remote.http_response import Answer

__all__ = [
    "RemoteFile",
    "Transport",
    "cache_for",
    "default_folder",
    "downloaded",
    "fetch",
    "index_entry",
    "is_absent",
    "kept_name",
    "open_if_there",
    "open_remote",
    "remote_bytes",
    "transport_for",
]


MOST_WHOLE = 256 << 20  # bytes of an index
FIRST = 16 << 10  # bytes that are asked for when an object is opened


class Transport(Protocol):
    """What asks a kind of server for ranges."""

    meter: Meter

    def read(
        self,
        url: str,
        start: int,
        end: int,
        parts: Sequence[Part],
        known: Facts,
        deadline: Deadline | None = None,
    ) -> None:
        """Read a range, and put parts of it where they go."""

    def head(self, url: str, size: int) -> tuple[Facts, bytes]:
        """Return what an object is, and its first bytes, at most `size`."""
        ...

    def whole(self, url: str) -> tuple[Facts, bytes]:
        """Return a small object."""
        ...


class RemoteFile:
    """An object that is read by ranges.

    Attributes
    ----------
    url : str
    path : str
        The URL without what may be secret.
    nbytes, mtime_ns : int
    tag : str
        What changes when it is written to; empty if nothing does.
    head : bytes
        Its first bytes.
    entry : Entry or None
        What is kept of it on this machine.
    """

    def __init__(
        self,
        url: str,
        settings: Settings,
        facts: Facts,
        head: bytes = b"",
        entry: Entry | None = None,
    ) -> None:
        self.url = url
        self.path = shown(url)
        self.settings = settings
        self.facts = facts
        self.nbytes, self.tag, self.mtime_ns = facts
        self.head = head
        self.entry = entry
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
        request = Request(self, offset, size)
        fetch([request])
        return request.result()

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
        _start(requests)

    def read_now(self, requests: Sequence[Request]) -> None:
        """Answer requests in this thread, ahead of what waits for the engine.

        What goes wrong is left in the requests; after a failure the rest is not
        asked for.
        """
        failed: Exception | None = None
        for run in _runs_of(requests):
            if not run.claim():
                continue
            if failed is None:
                run.read()
                failed = run.error
            else:
                run.refuse(failed)

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

    def read_range(
        self, start: int, end: int, parts: Sequence[Part], deadline: Deadline
    ) -> None:
        """Read one range over the network; a thread of the engine's does."""
        if self.settings.offline:
            raise RemoteError(
                f"offline, and byte {start:,} is not kept here", self.path
            )
        transport = transport_for(self.url, self.settings)
        try:
            transport.read(self.url, start, end, parts, self.facts, deadline)
        except NoRangesError:
            if self.entry is None:
                raise
            self._read_kept(self.entry, parts)
            return
        if self.entry is not None:
            for offset, view in parts:
                self.entry.add(offset, view)

    def _read_kept(self, entry: Entry, parts: Sequence[Part]) -> None:
        """Keep all of an object again, of which ranges cannot be had."""
        cache = cache_for(self.settings)
        assert cache is not None
        with self._keeping:
            if not all(entry.read_into(*part) for part in parts):
                downloaded(self.url, self.settings, cache)
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


def open_remote(url: str, settings: Settings) -> RemoteFile:
    """Find out what a remote object is.

    Raises
    ------
    RemoteNotFoundError
        There is none.
    RemoteError
        It cannot be read.
    """
    cache = cache_for(settings)
    if cache is None:
        facts, head = transport_for(url, settings).head(url, FIRST)
        return RemoteFile(url, settings, facts, head)
    return _open_kept(url, settings, cache)


def _open_kept(url: str, settings: Settings, cache: RangeCache) -> RemoteFile:
    """Open an object of which something may be kept here."""
    name = kept_name(url)
    if settings.offline:
        known = cache.remembered(name)
        if known is None:
            raise RemoteNotFoundError("offline, and it is not kept here", shown(url))
        return RemoteFile(url, settings, known, entry=cache.entry(name, known))
    try:
        facts, head = transport_for(url, settings).head(url, FIRST)
    except NoRangesError:
        return RemoteFile(url, settings, *downloaded(url, settings, cache))
    if not facts.tag:  # nothing tells when it is written to
        return RemoteFile(url, settings, facts, head)
    entry = cache.entry(name, facts)
    if not entry.has(0, len(head)):
        entry.add(0, head)
    return RemoteFile(url, settings, facts, head, entry)


def remote_bytes(url: str, settings: Settings) -> bytes:
    """Return the bytes of a small object."""
    if settings.cache_dir is None:
        return transport_for(url, settings).whole(url)[1]
    file = open_remote(url, settings)
    if file.nbytes > MOST_WHOLE:
        reason = f"{file.nbytes:,} bytes, and {MOST_WHOLE:,} may be"
        raise RemoteError(reason, file.path)
    return file.read(0, file.nbytes)


def open_if_there(url: str, settings: Settings) -> RemoteFile | None:
    """Open an object, or return None if there is none."""
    try:
        return open_remote(url, settings)
    except RemoteError as error:
        if is_absent(error):
            return None
        raise


def is_absent(error: OSError) -> bool:
    """Say whether an error means that there is no such object.

    A store that may not be listed denies what is not there.
    """
    return isinstance(error, FileNotFoundError) or (
        isinstance(error, RemoteError) and error.status in (401, 403)
    )


def fetch(requests: Sequence[Request]) -> list[Exception | None]:
    """Have requests answered, and wait; returns what went wrong with each.

    When it returns, also with an exception such as KeyboardInterrupt, nothing writes
    into their buffers any more.
    """
    try:
        if len(requests) == 1 and 0 < requests[0].size <= MOST_SPAN:
            if not _is_kept(requests[0]):
                _read_here(requests[0])
        else:
            _start(requests)
        for request in reversed(requests):  # the last first: it wakes this thread once
            request.wait()
        return [request.error for request in requests]
    except BaseException:
        for request in requests:
            request.drop()
        for request in requests:
            request.settle()
        raise


def _read_here(request: Request) -> None:
    """Answer a request in this thread."""
    file, start = request.file, request.offset
    deadline = Deadline(file.settings.timeout, request.size)
    parts = [(start, request.place())]
    try:
        file.read_range(start, start + request.size, parts, deadline)
    except (FastshardError, OSError) as error:
        request.error = error.with_traceback(None)
    request.filled = True


def _is_kept(request: Request) -> bool:
    """Answer a request from this machine, if that has all of it."""
    entry, offset, size = request.file.entry, request.offset, request.size
    if entry is None or not entry.has(offset, size):
        return False
    request.filled = entry.read_into(offset, request.place())
    return request.filled


def _start(requests: Sequence[Request]) -> None:
    for settings, some in _by_settings(requests).items():
        runs = _planned(some)
        if runs:
            _engine_of(settings).start(runs)


def _runs_of(requests: Sequence[Request]) -> list[Run]:
    """Return runs of requests, which no thread has."""
    some = _by_settings(requests).values()
    return [run for group in some for run in _planned(group)]


def _by_settings(requests: Sequence[Request]) -> dict[Settings, list[Request]]:
    """Sort out requests that the network has to answer."""
    found: dict[Settings, list[Request]] = {}
    for request in requests:
        if not _is_kept(request):
            found.setdefault(request.file.settings, []).append(request)
    return found


def _planned(requests: Sequence[Request]) -> list[Run]:
    """Merge requests of the same settings into runs."""
    file = requests[0].file
    meter = transport_for(file.url, file.settings).meter
    return plan(requests, meter.gap(), meter.span())


def _engine_of(settings: Settings) -> Engine:
    return settings.shared(Engine)


def transport_for(url: str, settings: Settings) -> Transport:
    """Return what reads a URL in this process."""
    scheme = scheme_of(url)
    if scheme in ("http", "https"):
        from fastshard.remote.http import client_for

        return client_for(settings)
    if scheme == "hf":
        from fastshard.remote.hub import hub_for

        return hub_for(settings)
    from fastshard.remote.object_store import stores_for

    return stores_for(settings)


CHUNK = 1 << 20  # bytes that are kept at a time
COMMIT = re.compile(r"^(hf://datasets/[^/@]+/[^/@]+)@[0-9a-f]{40}(?=/|$)")


def kept_name(url: str) -> str:
    """Return the name that an object is kept by: nothing secret, and no commit.

    What is the same in two commits of a repository is kept once, for its tag tells.
    """
    return COMMIT.sub(r"\1", base_of(url))


def downloaded(
    url: str, settings: Settings, cache: RangeCache
) -> tuple[Facts, bytes, Entry]:
    """Keep a whole object of a server that knows no ranges."""
    from fastshard.remote.http import client_for

    def take(answer: Answer) -> tuple[Facts, bytes, Entry]:
        if not answer.facts.tag:
            raise answer.error(
                "the server sends whole objects only, and nothing that tells when they "
                "are written to: download them"
            )
        entry = cache.entry(kept_name(url), answer.facts)
        if entry.is_whole():
            return answer.facts, b"", entry
        chunk = memoryview(bytearray(CHUNK))
        for at in range(0, answer.facts.nbytes, CHUNK):
            part = chunk[: min(CHUNK, answer.facts.nbytes - at)]
            answer.read_into(part)
            entry.add(at, part)
        answer.finish()
        return answer.facts, b"", entry

    return client_for(settings).download(url, take)


class _Kept:
    """The cache that settings name."""

    def __init__(self, settings: Settings) -> None:
        assert settings.cache_dir is not None
        self.cache = RangeCache(settings.cache_dir, settings.cache_limit)


def cache_for(settings: Settings) -> RangeCache | None:
    """Return what keeps bytes on this machine, if something does."""
    return None if settings.cache_dir is None else settings.shared(_Kept).cache


def index_entry(file: RemoteFile) -> Entry | None:
    """Return where an index of an object is kept that was made here."""
    if file.entry is not None or not file.tag:
        return file.entry
    folder = default_folder()
    return None if folder is None else RangeCache(folder).entry(file.path, file.facts)


def default_folder() -> str | None:
    """Return where indexes are kept: ``FASTSHARD_CACHE``, or the user's cache."""
    told = os.environ.get("FASTSHARD_CACHE")
    if told is not None:
        return told or None
    above = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(above, "fastshard") if os.path.isabs(above) else None
