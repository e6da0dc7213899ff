"""What is known of a remote object, and the file that says so beside its data."""

from __future__ import annotations

import hashlib
import json
import os
from typing import NamedTuple

from fastshard.remote.cache.disk import open_regular

__all__ = [
    "TOO_LARGE",
    "Facts",
    "Known",
    "Part",
    "read_known",
    "url_part",
    "version_part",
]

Part = tuple[int, memoryview]  # where in an object, and where its bytes go

MOST_TEXT = 1 << 20  # bytes of a file of facts that are read
TOO_LARGE = 2**63  # bytes; no file is


class Facts(NamedTuple):
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


class Known(NamedTuple):
    """A version of an object.

    Attributes
    ----------
    url : str
        Without anything secret, for it is stored.
    facts : Facts
    """

    url: str
    facts: Facts

    def dump(self) -> bytes:
        """Return what `read_known` reads: JSON in UTF-8."""
        table = {"url": self.url, **self.facts._asdict(), "check": self._check()}
        return json.dumps(table, indent=1).encode()

    def _check(self) -> str:
        """Return what tells that no character of the file has changed."""
        return _hashed(repr((self.url, *self.facts)))[:16]


def url_part(url: str) -> str:
    """Return the part of an entry's name that all versions of an object share."""
    return _hashed(url)[:40]


def version_part(facts: Facts) -> str:
    """Return the part of an entry's name that tells versions apart."""
    return _hashed(f"{facts.tag}\n{facts.nbytes}")[:24]


def read_known(path: str) -> Known | None:
    """Return what a file says, None if it is none or is damaged."""
    try:
        with open(open_regular(path, os.O_RDONLY), "rb") as file:
            table = json.loads(file.read(MOST_TEXT))
        facts = Facts(table["nbytes"], table["tag"], table["mtime_ns"])
        known = Known(table["url"], facts)
        texts = known.url, facts.tag, table["check"]
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return None
    if any(type(text) is not str for text in texts):
        return None
    if any(type(n) is not int for n in (facts.nbytes, facts.mtime_ns)):
        return None
    if not 0 <= facts.nbytes < TOO_LARGE:
        return None
    return known if table["check"] == known._check() else None


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
