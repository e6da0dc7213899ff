"""Protocols between range reads and servers: transports, objects, their metadata."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from fastshard.remote.options import Settings
from fastshard.remote.retry import Deadline, Meter
from fastshard.remote.urls import Url

__all__ = ["MAX_NBYTES", "MAX_WHOLE", "ObjectInfo", "Part", "RangedObject", "Transport"]

Part = tuple[int, memoryview]  # offset in the object, destination of the bytes

MAX_NBYTES = 2**63  # sizes of objects are below
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
    def is_strong(self) -> bool:
        """Whether the tag is an ETag that ``If-Match`` compares."""
        return self.tag.startswith('"')


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
        """Read a range and copy parts of it to their destinations.

        Parameters
        ----------
        url : Url
        start, end : int
            Range in the object, bytes.
        parts : sequence of (int, memoryview)
            Inside the range, ascending, without overlaps.
        expected : ObjectInfo
            Expected version of the object.
        deadline : Deadline, optional

        Raises
        ------
        RemoteError
            The range cannot be read, or the object has changed.
        """

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
    """

    path: str
    settings: Settings

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

    def read_range(
        self, start: int, end: int, parts: Sequence[Part], deadline: Deadline
    ) -> None:
        """Read a range over the network and copy parts of it to their destinations."""
