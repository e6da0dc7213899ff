"""Remote objects: what a server tells of one, and what reads its ranges."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from fastshard.remote.cache.disk import open_regular
from fastshard.remote.options import Settings
from fastshard.remote.retry import Deadline, Meter
from fastshard.remote.urls import Url

__all__ = [
    "TOO_LARGE",
    "ObjectInfo",
    "ObjectVersion",
    "Part",
    "RangedObject",
    "Transport",
    "read_version",
    "url_part",
    "version_part",
]

Part = tuple[int, memoryview]  # where in an object, and where its bytes go

MOST_TEXT = 1 << 20  # bytes of a stored version that are read
TOO_LARGE = 2**63  # bytes; no file is


class ObjectInfo(NamedTuple):
    """What a server tells of an object without its bytes.

    Attributes
    ----------
    nbytes : int
        Its size.
    tag : str
        Its strong ETag, or its Last-Modified, or "" if the server tells neither.
    mtime_ns : int
        From Last-Modified, 0 if unknown.
    """

    nbytes: int
    tag: str
    mtime_ns: int

    @property
    def is_strong(self) -> bool:
        """Whether the tag is an ETag that ``If-Match`` compares."""
        return self.tag.startswith('"')


class Transport(Protocol):
    """Client of a kind of server."""

    @property
    def meter(self) -> Meter:
        """Latency and rate of its answers."""
        ...

    def read(
        self,
        url: Url,
        start: int,
        end: int,
        parts: Sequence[Part],
        known: ObjectInfo,
        deadline: Deadline | None = None,
    ) -> None:
        """Read a range, and put parts of it where they go.

        Parameters
        ----------
        url : Url
        start, end : int
            Bytes of the object.
        parts : sequence of (int, memoryview)
            Within the range, in order, without overlaps.
        known : ObjectInfo
            What the object must be still.

        Raises
        ------
        RemoteError
            They cannot be had.
        """

    def head(self, url: str | Url, size: int) -> tuple[ObjectInfo, bytes]:
        """Return what an object is, and its first bytes, at most `size`."""
        ...

    def whole(self, url: str | Url) -> tuple[ObjectInfo, bytes]:
        """Return a small object."""
        ...


class RangedObject(Protocol):
    """An object whose ranges the scheduler reads.

    Attributes
    ----------
    path : str
        Its URL without what may be secret, for errors.
    """

    path: str
    settings: Settings

    @property
    def meter(self) -> Meter:
        """Latency and rate of its server, as measured."""
        ...

    def is_kept(self, offset: int, size: int) -> bool:
        """Say whether a range is on this machine."""
        ...

    def read_kept(self, offset: int, view: memoryview) -> bool:
        """Fill a buffer from this machine; False if a byte is not there, or wrong."""
        ...

    def read_range(
        self, start: int, end: int, parts: Sequence[Part], deadline: Deadline
    ) -> None:
        """Read a range over the network, and put parts of it where they go."""


class ObjectVersion(NamedTuple):
    """A version of an object, as a JSON file beside its kept bytes records it.

    Attributes
    ----------
    url : str
        Without anything secret, for it is stored.
    info : ObjectInfo
    """

    url: str
    info: ObjectInfo

    def dump(self) -> bytes:
        """Return what `read_version` reads: JSON in UTF-8."""
        table = {"url": self.url, **self.info._asdict(), "check": self._check()}
        return json.dumps(table, indent=1).encode()

    def _check(self) -> str:
        """Return a hash by which a changed character is seen."""
        return _hashed(repr((self.url, *self.info)))[:16]


def url_part(url: str) -> str:
    """Return the part of an entry's name that all versions of an object share."""
    return _hashed(url)[:40]


def version_part(info: ObjectInfo) -> str:
    """Return the part of an entry's name that tells versions apart."""
    return _hashed(f"{info.tag}\n{info.nbytes}")[:24]


def read_version(path: str) -> ObjectVersion | None:
    """Return the version that a file records; None if it is missing or damaged."""
    try:
        with open(open_regular(path, os.O_RDONLY), "rb") as file:
            table = json.loads(file.read(MOST_TEXT))
        info = ObjectInfo(table["nbytes"], table["tag"], table["mtime_ns"])
        version = ObjectVersion(table["url"], info)
        texts = version.url, info.tag, table["check"]
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return None
    if any(type(text) is not str for text in texts):
        return None
    if any(type(n) is not int for n in (info.nbytes, info.mtime_ns)):
        return None
    if not 0 <= info.nbytes < TOO_LARGE:
        return None
    return version if table["check"] == version._check() else None


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
