"""Stored ranges of an object: the log on disk, and its table in memory.

The log consists of records of 32 bytes, little-endian: start (u64), end (u64), CRC-32
of the object's bytes from start to end (u32), the mark (8 bytes), CRC-32 of the 28
bytes before (u32). Records are only appended. After a torn record the mark finds the
next one.

Ranges are split at pieces of 1 MiB of the object, so that verifying a few bytes reads
at most one piece.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from operator import attrgetter

__all__ = ["PIECE", "Range", "Ranges", "decode", "encode", "split_at_pieces"]

PIECE = 1 << 20  # bytes
RECORD = struct.Struct("<QQI8sI")
MARK = b"\xf5fsrange"
MARK_AT = 20  # offset of the mark in a record
BODY = 28  # bytes of a record that its CRC covers

Range = tuple[int, int, int]  # start, end, CRC-32 of the bytes


def encode(stored: Range) -> bytes:
    """Return the record of a range."""
    body = RECORD.pack(*stored, MARK, 0)[:BODY]
    return body + zlib.crc32(body).to_bytes(4, "little")


def decode(log: bytes) -> tuple[list[Range], int]:
    """Parse a part of a log; return its ranges and the number of bytes consumed.

    The rest may be the start of a record that is not fully appended.
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
    """Split a range at the borders of pieces."""
    while start < end:
        stop = min(end, (start // PIECE + 1) * PIECE)
        yield start, stop
        start = stop


class Piece:
    """Stored ranges of a piece.

    Attributes
    ----------
    stored, verified : list of int
        Start, end, start, end... of disjoint intervals, ascending. Verified bytes had
        their CRC compared, or were written by this process; they are stored too.
    unverified : list of Range
        Ranges of the log that are stored, but not verified.
    """

    __slots__ = ("stored", "unverified", "verified")

    def __init__(self) -> None:
        self.stored: list[int] = []
        self.verified: list[int] = []
        self.unverified: list[Range] = []


STORED: Callable[[Piece], list[int]] = attrgetter("stored")
VERIFIED: Callable[[Piece], list[int]] = attrgetter("verified")


class Ranges:
    """Stored ranges of an object. Not thread-safe."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._pieces: dict[int, Piece] = {}

    def add_unverified(self, found: Range) -> None:
        """Add a range of the log; ignore one that is invalid."""
        start, end, _ = found
        number = start // PIECE
        if not (start < end <= self.nbytes and (end - 1) // PIECE == number):
            return
        piece = self._piece(number)
        if not _covers(piece.verified, start, end):
            _insert(piece.stored, start, end)
            piece.unverified.append(found)

    def add_verified(self, start: int, end: int) -> None:
        """Add a verified range; it lies inside one piece."""
        piece = self._piece(start // PIECE)
        _insert(piece.stored, start, end)
        _insert(piece.verified, start, end)

    def unverified(self, number: int) -> tuple[Range, ...]:
        """Return the unverified ranges of a piece."""
        piece = self._pieces.get(number)
        return tuple(piece.unverified) if piece else ()

    def record_check(self, number: int, right: set[Range], wrong: set[Range]) -> None:
        """Record the ranges of a piece whose CRC was right, or wrong."""
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
        """Return whether all of a range is stored."""
        return self._is_covered(start, end, STORED)

    def is_verified(self, start: int, end: int) -> bool:
        """Return whether all of a range is stored and verified."""
        return self._is_covered(start, end, VERIFIED)

    def is_whole(self) -> bool:
        """Return whether every byte of the object is stored."""
        enough = len(self._pieces) == -(-self.nbytes // PIECE)
        return enough and self.has(0, self.nbytes)

    def gaps(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the starts and ends of the gaps in a range."""
        found = []
        at = start
        for number in self._numbers(start, end):
            for left, right in _intersect(self._pieces[number].stored, at, end):
                if left > at:
                    found.append((at, left))
                at = right
        if at < end:
            found.append((at, end))
        return found

    def _is_covered(
        self, start: int, end: int, bounds_of: Callable[[Piece], list[int]]
    ) -> bool:
        for a, b in split_at_pieces(start, end):
            piece = self._pieces.get(a // PIECE)
            if piece is None or not _covers(bounds_of(piece), a, b):
                return False
        return True

    def _numbers(self, start: int, end: int) -> list[int]:
        """Return the numbers of a range's pieces that have an entry, ascending."""
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
    """Add an interval; merge those that touch."""
    i = bisect_left(bounds, start)
    j = bisect_right(bounds, end)
    new = [start] if i % 2 == 0 else []
    if j % 2 == 0:
        new.append(end)
    bounds[i:j] = new


def _covers(bounds: list[int], start: int, end: int) -> bool:
    i = bisect_right(bounds, start)
    return i % 2 == 1 and bounds[i] >= end


def _intersect(bounds: list[int], start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the intersection of each interval with start to end."""
    i = bisect_right(bounds, start)
    for k in range(i - i % 2, len(bounds), 2):
        if bounds[k] >= end:
            break
        yield max(bounds[k], start), min(bounds[k + 1], end)
