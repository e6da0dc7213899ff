"""Protocols between range reads and servers: transports, objects, their metadata."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from fastshard._util.paths.urls import Url
from fastshard.remote.deadline import Deadline
from fastshard.remote.meter import Meter
from fastshard.remote.options import Settings

__all__ = [
    "MAX_NBYTES",
    "MAX_WHOLE",
    "LoopedRead",
    "ObjectInfo",
    "Part",
    "RangedObject",
    "ReadLoop",
    "Transport",
]

Part = tuple[int, memoryview]  # offset in the object, destination of the bytes

MAX_NBYTES = 2**63  # upper bound of sizes
MAX_WHOLE = 256 << 20  # bytes of an object that is read whole, such as an index


class ObjectInfo(NamedTuple):
    """Metadata of an object, from the headers of a response.

    Attributes
    ----------
    nbytes : int
        Size of the object.
    tag : str
        Its strong ETag, otherwise its Last-Modified, otherwise "".
    mtime_ns : int
        Last-Modified, ns since 1970; 0 if unknown.
    """

    nbytes: int
    tag: str
    mtime_ns: int

    @property
    def strong_tag(self) -> str:
        """The tag if it is an ETag that ``If-Match`` compares, otherwise ""."""
        return self.tag if self.tag.startswith('"') else ""


class ReadLoop(Protocol):
    """Thread of a transport that reads many ranges."""

    def begin_wait(self) -> None:
        """Announce that the calling thread waits for a read."""

    def end_wait(self) -> None:
        """End the wait of `begin_wait`."""

    def ensure_thread(self) -> None:
        """Start the thread unless it runs."""

    def cancel(self, exchange: Any) -> None:
        """End an exchange soon, by `LoopedRead.end_cancelled`."""


class LoopedRead(Protocol):
    """Range read as a `ReadLoop` sees it; it calls one of the methods that end it.

    Attributes
    ----------
    start, end : int
        The range, bytes of the object.
    parts : list of (int, memoryview)
        Offsets and destinations.
    claim_lock : lock
        Acquired by the one who reads.
    is_in_new_memory : bool
        Whether pages of a destination may not be allocated yet.
    server : object
        The server's state, as given to `enter_loop`.
    """

    start: int
    end: int
    parts: list[Part]
    claim_lock: Any
    is_in_new_memory: bool
    server: Any

    def enter_loop(self, loop: ReadLoop, exchange: Any, server: Any) -> None:
        """Keep the handles to cancel the read."""

    def leave_loop(self) -> None:
        """Drop the handles of `enter_loop`."""

    def complete(self) -> None:
        """End the read: all parts are filled."""

    def end_cancelled(self) -> None:
        """End the read, which was cancelled."""

    def read_generally(self, begun: int) -> None:
        """Pass the read to another thread and the general client.

        `begun` is the moment from which its time counts, ns of `time.monotonic_ns`.
        """


class Transport(Protocol):
    """Client for servers of one kind."""

    @property
    def meter(self) -> Meter:
        """Measured latency and transfer rate."""
        ...

    def read(
        self,
        url: Url,
        start: int,
        end: int,
        parts: Sequence[Part],
        expected: ObjectInfo,
        deadline: Deadline | None = None,
    ) -> None:
        """Read a range and copy parts of it to their destinations."""

    def begin(
        self, url: Url, expected: ObjectInfo, reads: Sequence[LoopedRead]
    ) -> Sequence[LoopedRead]:
        """Give range reads to a `ReadLoop`; return those that are not for one."""
        ...

    def head(self, url: str | Url, size: int) -> tuple[ObjectInfo, bytes]:
        """Return the metadata and at most the first `size` bytes of an object."""
        ...

    def whole(self, url: str | Url) -> tuple[ObjectInfo, bytes]:
        """Return the metadata and all bytes of a small object."""
        ...


class RangedObject(Protocol):
    """Object whose ranges the scheduler reads.

    Attributes
    ----------
    path : str
        Redacted URL, for errors.
    settings : Settings
    entry : object or None
        Its entry in the disk cache.
    """

    path: str
    settings: Settings
    entry: Any

    @property
    def meter(self) -> Meter:
        """Measured latency and transfer rate of its server."""
        ...

    def is_cached(self, offset: int, size: int) -> bool:
        """Return whether the disk cache has all of a range."""
        ...

    def read_cached(self, offset: int, view: memoryview) -> bool:
        """Fill a buffer from the disk cache.

        Return False if a byte is missing or wrong; the buffer may be written to.
        """
        ...

    def begin(self, reads: Sequence[LoopedRead]) -> Sequence[LoopedRead]:
        """Give its range reads to its transport's loop; return those to read."""
        ...

    def read_range(
        self, start: int, end: int, parts: Sequence[Part], deadline: Deadline
    ) -> None:
        """Read a range over the network and copy parts of it to their destinations."""
