"""The binary index, ``<stem>.fsi``: columns that are mapped, not parsed.

All numbers are little-endian and unsigned unless said otherwise. A header of
256 bytes:

====== ======= ===============================================================
byte   type    what
====== ======= ===============================================================
0      8 bytes magic, ``89 66 73 69 0D 0A 1A 0A`` ("\\x89fsi\\r\\n\\x1a\\n")
8      u32     version of the format, 1
12     u32     flags: 1, keys end at the last dot; 2, there is info; 4, a sample
               has a field twice, where case does not count
16     u64     bytes of this file
24     u64     bytes of the shard
32     i64     when the shard was last written to, ns since 1970
40     16 b.   fingerprint of the shard, see `fingerprint_of`
56     u64     members
64     u64     samples
72     u64     members that belong to a sample
80     u64     bytes of all names
88     u64     bytes of all infos
96     u64     where the archive ends in the shard; 2**64 - 1: not known
104    8 u64   how many of each kind of `KINDS` are stored but are no members
168    8 u32   CRC-32 of each column, in the order below
200    52 b.   zeros
252    u32     CRC-32 of the 252 bytes before
====== ======= ===============================================================

Then the columns, each at the next multiple of 64 bytes, with zeros between:

============== ======================= =======================================
column         type                    what
============== ======================= =======================================
offsets        u64 [members]           a member's first byte in the shard
sizes          u64 [members]           bytes of a member
name_ends      u64 [members]           where its name ends in ``names``; it
                                       begins where the one before ends
sample_starts  u32 [samples + 1]       a sample's first place in
                                       ``sample_members``
sample_members u32 [grouped members]   positions of members, sample by sample
info_ends      u64 [members], or none  as name_ends, in ``infos``
names          bytes                   as the shard has them, no ends between
infos          bytes                   JSON objects; an empty one says nothing
============== ======================= =======================================

Members are in the shard's order, samples in that of their first members. The
file holds no hash table. Its size must be what the header's numbers make.
"""

from __future__ import annotations

import os
import struct
import sys
import zlib
from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import Any, NamedTuple

from fastshard._core.borrowed import (
    IndexMemory,
    borrowed_grouping,
    borrowed_table,
    columns_of,
    samples_of,
)
from fastshard._core.grouping import Grouping
from fastshard._core.mapped import MappedFile
from fastshard._core.scan import KINDS
from fastshard._core.source import LocalFile, PreadSource
from fastshard.errors import FastshardError, FormatError
from fastshard.files import replacing
from fastshard.index.contents import Contents

__all__ = [
    "BinaryIndex",
    "Header",
    "parse_binary",
    "read_binary",
    "read_header",
    "write_binary",
]

MAGIC = b"\x89fsi\r\n\x1a\n"
VERSION = 1
LAST_DOT, HAS_INFO, REPEATS = 1, 2, 4  # flags
HEADER = struct.Struct("<8sIIQQq16sQQQQQQ8Q8I52xI")
CHECKED = HEADER.size - 4  # bytes that the header's checksum is of
ALIGNMENT = 64  # bytes
UNKNOWN = 2**64 - 1
NOTHING: Mapping[str, int] = MappingProxyType({})
COLUMNS = (
    "offsets",
    "sizes",
    "name_ends",
    "sample_starts",
    "sample_members",
    "info_ends",
    "names",
    "infos",
)
assert HEADER.size == 256


class Header(NamedTuple):
    """The numbers of a header; see the module."""

    last_dot: bool
    has_info: bool
    repeats: bool
    file_bytes: int
    shard_bytes: int
    mtime_ns: int
    fingerprint: bytes
    members: int
    samples: int
    grouped: int
    names_bytes: int
    infos_bytes: int
    end: int | None
    skipped: Mapping[str, int] | None
    checksums: tuple[int, ...]

    def column_bytes(self) -> dict[str, int]:
        """Return the length of each column, in the order of the file."""
        return {
            "offsets": 8 * self.members,
            "sizes": 8 * self.members,
            "name_ends": 8 * self.members,
            "sample_starts": 4 * (self.samples + 1),
            "sample_members": 4 * self.grouped,
            "info_ends": 8 * self.members if self.has_info else 0,
            "names": self.names_bytes,
            "infos": self.infos_bytes,
        }

    def column_places(self) -> dict[str, tuple[int, int]]:
        """Return where each column begins and how long it is, in bytes."""
        places = {}
        at = HEADER.size
        for column, size in self.column_bytes().items():
            at = _aligned(at)
            places[column] = at, size
            at += size
        return places

    def pack(self) -> bytes:
        """Return the header's bytes."""
        known = self.skipped is not None
        counts = dict(self.skipped or {})
        packed = HEADER.pack(
            MAGIC,
            VERSION,
            LAST_DOT * self.last_dot
            | HAS_INFO * self.has_info
            | REPEATS * self.repeats,
            self.file_bytes,
            self.shard_bytes,
            self.mtime_ns,
            self.fingerprint,
            self.members,
            self.samples,
            self.grouped,
            self.names_bytes,
            self.infos_bytes,
            UNKNOWN if self.end is None or not known else self.end,
            *(counts.get(kind, 0) for kind in KINDS.values()),
            *self.checksums,
            0,
        )
        return packed[:CHECKED] + struct.pack("<I", zlib.crc32(packed[:CHECKED]))


def _aligned(at: int) -> int:
    return (at + (ALIGNMENT - 1)) & -ALIGNMENT


class BinaryIndex(NamedTuple):
    """An open binary index."""

    header: Header
    memory: IndexMemory
    places: dict[str, tuple[int, int]]  # of the columns: where, how long; bytes

    def contents(self, last_dot: bool, lower: bool) -> Contents:
        """Return what the index tells, by a rule for keys.

        The samples are borrowed from the index where its rule is the same.
        """
        header, memory, places = self
        at = {column: place[0] for column, place in places.items()}
        table = borrowed_table(
            memory,
            header.members,
            at["offsets"],
            at["sizes"],
            at["name_ends"],
            at["names"],
            header.names_bytes,
            at["info_ends"] if header.has_info else 0,
            at["infos"],
            header.infos_bytes,
        )
        grouping = None
        if header.last_dot == last_dot:
            grouping = borrowed_grouping(
                table,
                memory,
                header.samples,
                at["sample_starts"],
                header.grouped,
                at["sample_members"],
                last_dot,
                lower,
                not header.repeats,
            )
        return Contents(table, grouping, header.end, header.skipped, memory.path)

    def broken_columns(self) -> list[tuple[str, int]]:
        """Return the columns whose checksums are wrong, and where they begin."""
        return [
            (column, at)
            for (column, (at, size)), stored in zip(
                self.places.items(), self.header.checksums, strict=True
            )
            if zlib.crc32(self.memory.read(at, size)) != stored
        ]


def read_binary(path: str, *, copied: bool = False) -> BinaryIndex:
    """Open a binary index: map it, and check its header.

    Parameters
    ----------
    path : str
    copied : bool
        Read it into memory instead, so that no change of the file can matter.

    Raises
    ------
    FormatError
        It is no binary index, a newer one, or cut.
    OSError
        It cannot be read.
    """
    if sys.byteorder != "little":
        raise FastshardError("binary indexes are read on little-endian machines only")
    with LocalFile(path) as file:
        if file.nbytes < HEADER.size:
            raise FormatError("cut inside its header", path, file.nbytes)
        source = PreadSource(file)
        header = _read_header(source.read(0, HEADER.size), path)  # faults no page in
        owner: MappedFile | bytes
        if copied:
            owner = source.read(0, file.nbytes)
        else:
            owner = MappedFile(file.fd, file.nbytes, path)
    return _opened(header, IndexMemory(owner, path))


def parse_binary(data: bytes, path: str) -> BinaryIndex:
    """Open a binary index whose bytes were read; see `read_binary`."""
    if sys.byteorder != "little":
        raise FastshardError("binary indexes are read on little-endian machines only")
    if len(data) < HEADER.size:
        raise FormatError("cut inside its header", path, len(data))
    header = _read_header(data[: HEADER.size], path)
    return _opened(header, IndexMemory(data, path))


def _opened(header: Header, memory: IndexMemory) -> BinaryIndex:
    """See that an index is as long as its header says."""
    places = header.column_places()
    if header.file_bytes != memory.nbytes or sum(places["infos"]) != memory.nbytes:
        reason = (
            f"{memory.nbytes:,} bytes, where the header makes {header.file_bytes:,}"
        )
        raise FormatError(reason, memory.path, 16)
    return BinaryIndex(header, memory, places)


def read_header(path: str) -> Header:
    """Read the header of a binary index, and nothing else."""
    with LocalFile(path) as file:
        if file.nbytes < HEADER.size:
            raise FormatError("cut inside its header", path, file.nbytes)
        return _read_header(PreadSource(file).read(0, HEADER.size), path)


def _read_header(raw: bytes, path: str) -> Header:
    magic, version, flags, *numbers = HEADER.unpack(raw)
    if magic != MAGIC:
        raise FormatError("not a binary index", path, 0)
    if version != VERSION:
        reason = f"version {version} of the format; this reader knows {VERSION}"
        raise FormatError(reason, path, 8)
    if zlib.crc32(raw[:CHECKED]) != numbers[-1]:
        raise FormatError("the header's checksum is wrong", path, CHECKED)
    *counts, end = numbers[:10]
    skipped: Mapping[str, int] | None = None
    if end != UNKNOWN:
        stored = dict(zip(KINDS.values(), numbers[10:18], strict=True))
        skipped = NOTHING
        if any(stored.values()):
            skipped = MappingProxyType({kind: n for kind, n in stored.items() if n})
    header = Header._make(
        (
            bool(flags & LAST_DOT),
            bool(flags & HAS_INFO),
            bool(flags & REPEATS),
            *counts,
            None if end == UNKNOWN else end,
            skipped,
            tuple(numbers[18:26]),
        )
    )
    if flags & ~(LAST_DOT | HAS_INFO | REPEATS):
        raise FormatError("flags that this reader does not know", path, 12)
    return header


def write_binary(
    path: str | os.PathLike[str],
    contents: Contents,
    grouping: Grouping,
    *,
    shard_bytes: int,
    mtime_ns: int,
    fingerprint: bytes,
    infos: Sequence[bytes] | None = None,
) -> None:
    """Write a binary index; it appears whole.

    Parameters
    ----------
    path : str or path-like
    contents : Contents
    grouping : Grouping
        The samples, by the rule to record.
    shard_bytes, mtime_ns, fingerprint
        The shard's identity.
    infos : sequence of bytes, optional
        A JSON object for each member, in place of what `contents` has.

    Raises
    ------
    OSError
        It cannot be written.
    """
    if sys.byteorder != "little":
        raise FastshardError("binary indexes are made on little-endian machines only")
    columns: dict[str, Any] = columns_of(contents.table)
    columns["sample_starts"], columns["sample_members"] = samples_of(grouping)
    if infos is not None:
        columns["infos"] = b"".join(infos)
        columns["info_ends"] = array("Q", accumulate(map(len, infos))).tobytes()
    if not columns["infos"]:
        columns["info_ends"] = b""
    header = Header(
        last_dot=grouping.last_dot,
        has_info=bool(columns["infos"]),
        repeats=bool(Grouping(contents.table, grouping.last_dot, True).repeats()),
        file_bytes=0,
        shard_bytes=shard_bytes,
        mtime_ns=mtime_ns,
        fingerprint=fingerprint,
        members=len(contents.table),
        samples=len(columns["sample_starts"]) // 4 - 1,
        grouped=len(columns["sample_members"]) // 4,
        names_bytes=len(columns["names"]),
        infos_bytes=len(columns["infos"]),
        end=contents.end,
        skipped=contents.skipped,
        checksums=tuple(zlib.crc32(columns[column]) for column in COLUMNS),
    )
    places = header.column_places()
    file_bytes = sum(places["infos"])
    with replacing(path) as file:
        file.write(header._replace(file_bytes=file_bytes).pack())
        for column, (at, _) in places.items():
            file.write(bytes(at - file.tell()))
            file.write(columns[column])
