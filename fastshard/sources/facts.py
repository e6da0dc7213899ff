"""What a server says of an object: what its bytes are told apart by."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Facts"]


class Facts(NamedTuple):
    """The size of an object, and what changes when it is written to.

    Attributes
    ----------
    nbytes : int
    tag : str
        Its ETag, otherwise its Last-Modified; empty where the server tells neither.
    mtime_ns : int
        When it was last written to, ns since 1970; 0 where that is not told.
    """

    nbytes: int
    tag: str
    mtime_ns: int
