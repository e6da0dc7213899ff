"""Check of members by their ``.npy`` headers and sizes, without their data."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from fastshard._core.io.source import LocalFile
from fastshard.errors import FormatError

__all__ = ["ArrayType", "HeaderChecker", "Unpickle", "needs_pickle"]

Unpickle: TypeAlias = Callable[[bytes, FormatError], Any]  # (member, why it is refused)

FIRST_READ = 256 + 64  # bytes of each member
MAX_HEADER = 1 << 20  # bytes
MAGIC = b"\x93NUMPY"
MEMBERS_PER_READ = 4096
CACHE_SIZE = 10_000  # distinct headers
TRUNCATED = "not .npy: it ends inside its header"
LENGTH_FORMATS = {
    1: struct.Struct("<H"),
    2: struct.Struct("<I"),
    3: struct.Struct("<I"),
}


class ArrayType(NamedTuple):
    """Dtype and shape of an array."""

    dtype: str
    shape: tuple[int, ...]


class HeaderChecker:
    """Checker of members, with a cache of results by header and size."""

    def __init__(self, *, allow_pickle: bool = False) -> None:
        self._allow_pickle = allow_pickle
        self._results: dict[tuple[bytes, int], ArrayType | str] = {}

    def check(
        self, file: LocalFile, members: Sequence[tuple[int, int, str]]
    ) -> Iterator[tuple[int, str, ArrayType | str]]:
        """Check members (offset, size, name) of a file."""
        for start in range(0, len(members), MEMBERS_PER_READ):
            part = members[start : start + MEMBERS_PER_READ]
            heads = file.read_many(
                [(at, min(size, FIRST_READ)) for at, size, _ in part]
            )
            for (at, size, name), head in zip(part, heads, strict=True):
                yield at, name, self._check_member(file, at, size, head)

    def _check_member(
        self, file: LocalFile, at: int, size: int, head: bytes
    ) -> ArrayType | str:
        length = parse_header_length(head)
        if isinstance(length, str):
            return length
        if length > size:
            return TRUNCATED
        if length > len(head):
            (head,) = file.read_many([(at, length)])
        key = head[:length], size
        result = self._results.get(key)
        if result is None:
            if len(self._results) >= CACHE_SIZE:
                self._results.clear()
            result = parse_array_type(*key)
            if self._allow_pickle and isinstance(result, str) and needs_pickle(result):
                result = ArrayType("object", ())
            self._results[key] = result
        return result


def needs_pickle(reason: str) -> bool:
    """Return whether an array was refused because it is a pickle."""
    return "Python objects" in reason


def parse_array_type(header: bytes, size: int) -> ArrayType | str:
    """Return the array type of a member, or the reason why it is not an array."""
    import numpy as np

    from fastshard._core.dataset.npy import array_from_buffer

    try:
        member = np.zeros(size, np.uint8)  # untouched pages take no memory
        member[: len(header)] = np.frombuffer(header, np.uint8)
        array = array_from_buffer(member.data)  # the readers' own check
    except FormatError as error:
        return error.reason
    except MemoryError:
        return f"an array of {size:,} bytes does not fit in memory"
    return ArrayType(str(array.dtype), array.shape)


def parse_header_length(head: bytes) -> int | str:
    """Return the size of a header in bytes, or the reason why it is invalid."""
    if not head.startswith(MAGIC) or len(head) < len(MAGIC) + 2:
        return "not .npy: it does not begin with the magic string"
    length_format = LENGTH_FORMATS.get(head[len(MAGIC)])
    if length_format is None:
        return f"not .npy: version {head[len(MAGIC)]}"
    start = len(MAGIC) + 2
    if len(head) < start + length_format.size:
        return TRUNCATED
    (size,) = length_format.unpack_from(head, start)
    length: int = start + length_format.size + size
    if length > MAX_HEADER:
        return f"the header must have at most {MAX_HEADER:,} bytes, got {length:,}"
    return length
