"""Checking that members are arrays, by their headers and sizes."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fastshard._core.io.source import LocalFile
from fastshard.errors import FormatError

__all__ = ["ArrayType", "HeaderCheck", "needs_pickle"]

GUESS = 256 + 64  # bytes that are read of each member at first
MAX_HEADER = 1 << 20  # bytes
MAGIC = b"\x93NUMPY"
AT_ONCE = 4096  # members whose headers are read together
MOST_KNOWN = 10_000  # headers that are remembered
CUT = "not .npy: it ends inside its header"
LENGTHS = {1: struct.Struct("<H"), 2: struct.Struct("<I"), 3: struct.Struct("<I")}


class ArrayType(NamedTuple):
    """What a header says of an array."""

    dtype: str
    shape: tuple[int, ...]


class HeaderCheck:
    """Checks members; one like another that was seen costs a look-up.

    Parameters
    ----------
    allow_pickle : bool
        Whether arrays of Python objects are arrays.
    """

    def __init__(self, *, allow_pickle: bool = False) -> None:
        self._allow_pickle = allow_pickle
        # By header and size: what they make, or why they make nothing.
        self._known: dict[tuple[bytes, int], ArrayType | str] = {}

    def check(
        self, file: LocalFile, members: Sequence[tuple[int, int, str]]
    ) -> Iterator[tuple[int, str, ArrayType | str]]:
        """Check members (offset, size, name) of a file.

        Yields
        ------
        (int, str, ArrayType or str)
            The offset and name of each, and what it is, or why it is no array.
        """
        for start in range(0, len(members), AT_ONCE):
            part = members[start : start + AT_ONCE]
            heads = file.read_many([(at, min(size, GUESS)) for at, size, _ in part])
            for (at, size, name), head in zip(part, heads, strict=True):
                yield at, name, self._kind(file, at, size, head)

    def _kind(
        self, file: LocalFile, at: int, size: int, head: bytes
    ) -> ArrayType | str:
        length = parse_header_length(head)
        if isinstance(length, str):
            return length
        if length > size:
            return CUT
        if length > len(head):
            (head,) = file.read_many([(at, length)])
        key = head[:length], size
        kind = self._known.get(key)
        if kind is None:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            kind = parse_array_type(*key)
            if self._allow_pickle and isinstance(kind, str) and needs_pickle(kind):
                kind = ArrayType("object", ())
            self._known[key] = kind
        return kind


def needs_pickle(reason: str) -> bool:
    """Say whether what is wrong with an array is that only a pickle holds it."""
    return "Python objects" in reason


def parse_array_type(header: bytes, size: int) -> ArrayType | str:
    """Say what a member of this header and so many bytes is, or why it is nothing."""
    import numpy as np

    from fastshard._core.dataset.npy import array_from_buffer

    try:
        member = np.zeros(size, np.uint8)  # pages that nobody touches
        member[: len(header)] = np.frombuffer(header, np.uint8)
        array = array_from_buffer(member.data)  # as a reader would
    except FormatError as error:
        return error.reason
    except MemoryError:
        return f"an array of {size:,} bytes"
    return ArrayType(str(array.dtype), array.shape)


def parse_header_length(head: bytes) -> int | str:
    """Return how many bytes a header has, or what is wrong with it."""
    if not head.startswith(MAGIC) or len(head) < len(MAGIC) + 2:
        return "not .npy: it does not begin as one"
    form = LENGTHS.get(head[len(MAGIC)])
    if form is None:
        return f"not .npy: version {head[len(MAGIC)]}"
    start = len(MAGIC) + 2
    if len(head) < start + form.size:
        return CUT
    length: int = form.unpack_from(head, start)[0] + start + form.size
    return length if length <= MAX_HEADER else f"a header of {length:,} bytes"
