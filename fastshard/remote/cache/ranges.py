"""Which bytes of an object are here: a log of ranges, and the table made of it.

The log consists of records of 32 bytes, little-endian: start (u64), end (u64), CRC-32
of the object's bytes from start to end (u32), the mark (8 bytes), CRC-32 of the 28
bytes before (u32). Records are only appended. Where one is torn, the mark tells where
the next begins.

An object is seen as pieces of 1 MiB, and no range reaches from one into another: so
little has to be read to check what is said of a few bytes.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

__all__ = ["PIECE", "Range", "Ranges", "decode", "encode", "split_at_pieces"]

PIECE = 1 << 20  # bytes
RECORD = struct.Struct("<QQI8sI")
MARK = b"\xf5fsrange"
MARK_AT = 20  # bytes of a record before the mark
BODY = 28  # bytes of a record that its CRC is of

Range = tuple[int, int, int]  # start, end, CRC-32 of the bytes


def encode(found: Range) -> bytes:
    """Return a range as a record."""
    body = RECORD.pack(*found, MARK, 0)[:BODY]
    return body + zlib.crc32(body).to_bytes(4, "little")


def decode(log: bytes) -> tuple[list[Range], int]:
    """Return the ranges in a part of a log, and how many bytes that took.

    What is left at the end may become a record when more is appended.
    """
    found = []
    at = 0
    while at + RECORD.size <= len(log):
        start, end, crc, mark, check = RECORD.unpack_from(log, at)
        if mark == MARK and zlib.crc32(log[at : at + BODY]) == check:
            found.append((start, end, crc))
            at += RECORD.size
        else:
            mark_at = log.find(MARK, at + MARK_AT + 1)
            at = mark_at - MARK_AT if mark_at >= 0 else len(log) - RECORD.size + 1
    return found, at


def split_at_pieces(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Cut a range where pieces of the object meet."""
    while start < end:
        stop = min(end, (start // PIECE + 1) * PIECE)
        yield start, stop
        start = stop


class Piece:
    """Which bytes of a piece are here.

    Attributes
    ----------
    held, sound : list of int
        Start, end, start, end... of disjoint runs, ascending. What is sound has been
        checked, or was written by this process; it is held too.
    unchecked : list of Range
        What else is held.
    """

    __slots__ = ("stored", "unverified", "verified")

    def __init__(self) -> None:
        self.stored: list[int] = []
        self.verified: list[int] = []
        self.unverified: list[Range] = []


class Ranges:
    """Which bytes of an object are here. Not for several threads at a time.

    Parameters
    ----------
    nbytes : int
        Of the object.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._pieces: dict[int, Piece] = {}

    def add_unverified(self, found: Range) -> None:
        """Take a range that the log tells of. One that cannot be is passed over."""
        start, end, _ = found
        number = start // PIECE
        if not (start < end <= self.nbytes and (end - 1) // PIECE == number):
            return
        piece = self._piece(number)
        if not _covers(piece.verified, start, end):
            _insert(piece.stored, start, end)
            piece.unverified.append(found)

    def add_verified(self, start: int, end: int) -> None:
        """Take a range that is known to be right, inside one piece."""
        piece = self._piece(start // PIECE)
        _insert(piece.stored, start, end)
        _insert(piece.verified, start, end)

    def unverified(self, number: int) -> tuple[Range, ...]:
        """Return what is to be checked of a piece."""
        piece = self._pieces.get(number)
        return tuple(piece.unverified) if piece else ()

    def record_check(self, number: int, right: set[Range], wrong: set[Range]) -> None:
        """Take the outcome of a check of a piece's ranges."""
        piece = self._piece(number)
        for start, end, _ in right:
            _insert(piece.verified, start, end)
        done = right | wrong
        piece.unverified = [found for found in piece.unverified if found not in done]
        if wrong:
            piece.stored = list(piece.verified)
            for start, end, _ in piece.unverified:
                _insert(piece.stored, start, end)

    def has(self, start: int, end: int) -> bool:
        """Tell whether all of a range is held."""
        pieces = self._pieces
        for a, b in split_at_pieces(start, end):
            piece = pieces.get(a // PIECE)
            if piece is None or not _covers(piece.stored, a, b):
                return False
        return True

    def is_verified(self, start: int, end: int) -> bool:
        """Tell whether all of a range is held, and has been checked."""
        pieces = self._pieces
        for a, b in split_at_pieces(start, end):
            piece = pieces.get(a // PIECE)
            if piece is None or not _covers(piece.verified, a, b):
                return False
        return True

    def is_whole(self) -> bool:
        """Tell whether every byte of the object is held."""
        enough = len(self._pieces) == -(-self.nbytes // PIECE)
        return enough and self.has(0, self.nbytes)

    def gaps(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the starts and ends of what is not held of a range."""
        found = []
        at = start
        for number in self._numbers(start, end):
            for left, right in _runs(self._pieces[number].stored, at, end):
                if left > at:
                    found.append((at, left))
                at = right
        if at < end:
            found.append((at, end))
        return found

    def _numbers(self, start: int, end: int) -> list[int]:
        """Return the pieces of a range of which something is held, ascending."""
        wanted = range(start // PIECE, -(-end // PIECE))
        if len(wanted) <= len(self._pieces):
            return [number for number in wanted if number in self._pieces]
        return sorted(number for number in self._pieces if number in wanted)

    def _piece(self, number: int) -> Piece:
        piece = self._pieces.get(number)
        if piece is None:
            piece = self._pieces[number] = Piece()
        return piece


def _insert(bounds: list[int], start: int, end: int) -> None:
    """Add a run to runs; those that touch become one."""
    i = bisect_left(bounds, start)
    j = bisect_right(bounds, end)
    new = [start] if i % 2 == 0 else []
    if j % 2 == 0:
        new.append(end)
    bounds[i:j] = new


def _covers(bounds: list[int], start: int, end: int) -> bool:
    i = bisect_right(bounds, start)
    return i % 2 == 1 and bounds[i] >= end


def _runs(bounds: list[int], start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield what lies of each run between start and end."""
    i = bisect_right(bounds, start)
    for k in range(i - i % 2, len(bounds), 2):
        if bounds[k] >= end:
            break
        yield max(bounds[k], start), min(bounds[k + 1], end)
