"""The binary index, ``<stem>.fsi``: columns that are mapped, not parsed.

All numbers are little-endian and unsigned unless said otherwise. A header of
256 bytes:

====== ======= ===============================================================
byte   type    what
====== ======= ===============================================================
0      8 bytes magic, ``89 66 73 69 0D 0A 1A 0A`` ("\\x89fsi\\r\\n\\x1a\\n")
8      u32     version of the format, 2
12     u32     flags: 1, keys end at the last dot; 2, there is info; 4, a sample
               has a field twice, where case does not count
16     u64     bytes of this file
24     u64     bytes of the shard
32     i64     when the shard was last written to, ns since 1970
40     16 b.   fingerprint of the shard, see `compute_fingerprint`
56     u64     members
64     u64     samples
72     u64     members that belong to a sample
80     u64     bytes of all names
88     u64     bytes of all infos
96     u64     where the archive ends in the shard; 2**64 - 1: not known
104    8 u64   how many of each kind of `KINDS` are stored but are no members
168    u64     device that the shard is on
176    u64     its inode; 0: neither this, nor the device, nor the next is known
184    i64     when anything of the shard was last changed (ctime), ns since 1970
192    u32     CRC-32C of the 192 bytes before and of the column ``sums``
196    56 b.   zeros
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
sums           u32 [blocks]            CRC-32C of each 64 KiB of what stands
                                       between the header and this column
============== ======================= =======================================

Members are in the shard's order, samples in that of their first members. The
file holds no hash table. Its size must be what the header's numbers make.

The header and ``sums`` are checked when the file is opened, each block when it is
first used. Device, inode, ctime and mtime say whether the shard is the file that was
indexed; see `fastshard.index.freshness`.

Version 1 is read, and written no more. It has no ``sums``, and in its header from
byte 168 on the CRC-32 of each of the eight columns, 8 u32, and 52 bytes of zeros;
the columns are checked when the file is opened.
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

from fastshard._core.io.source import LocalFile, MappedFile, PreadSource
from fastshard._core.parse.tar import KINDS
from fastshard._core.table.checksums import BLOCK_BYTES, block_sums, crc32c
from fastshard._core.table.grouping import (
    Grouping,
    IndexMemory,
    borrow_grouping,
    borrow_table,
    copy_columns,
    copy_samples,
)
from fastshard._util.files import replace_file
from fastshard.errors import FastshardError, FormatError
from fastshard.index.contents import NO_IDENTITY, Contents, FileIdentity

__all__ = [
    "BinaryIndex",
    "Header",
    "parse_binary",
    "read_binary",
    "read_header",
    "seal_header",
    "write_binary",
]

MAGIC = b"\x89fsi\r\n\x1a\n"
VERSION = 2
LAST_DOT, HAS_INFO, REPEATS = 1, 2, 4  # flags
HEADER = struct.Struct("<8sIIQQq16sQQQQQQ8QQQqI56xI")
HEADER_1 = struct.Struct("<8sIIQQq16sQQQQQQ8Q8I52xI")  # of version 1
CHECKED = HEADER.size - 4  # bytes that the header's checksum is of
BOUND = 192  # bytes of it that the checksum of the sums is of too
ALIGNMENT = 64  # bytes
UNKNOWN = 2**64 - 1
NOTHING: Mapping[str, int] = MappingProxyType({})
assert HEADER.size == HEADER_1.size == 256


class Header(NamedTuple):
    """The numbers of a header; see the module."""

    version: int
    last_dot: bool
    has_info: bool
    repeats: bool
    file_bytes: int
    shard_bytes: int
    identity: FileIdentity
    fingerprint: bytes
    members: int
    samples: int
    grouped: int
    names_bytes: int
    infos_bytes: int
    end: int | None
    skipped: Mapping[str, int] | None
    checksums: tuple[int, ...]  # of the columns in version 1; then of the sums

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
            at = (at + (ALIGNMENT - 1)) & -ALIGNMENT
            places[column] = at, size
            at += size
        if self.version > 1:
            at = (at + (ALIGNMENT - 1)) & -ALIGNMENT
            blocks = -(-(at - HEADER.size) // BLOCK_BYTES)
            places["sums"] = at, 4 * blocks
        return places

    def pack(self, sums: bytes) -> bytes:
        """Return the header's bytes, for the checksums of these columns."""
        known = self.skipped is not None
        counts = dict(self.skipped or {})
        device, inode, ctime_ns, mtime_ns = self.identity
        packed = HEADER.pack(
            MAGIC,
            VERSION,
            LAST_DOT * self.last_dot
            | HAS_INFO * self.has_info
            | REPEATS * self.repeats,
            self.file_bytes,
            self.shard_bytes,
            mtime_ns,
            self.fingerprint,
            self.members,
            self.samples,
            self.grouped,
            self.names_bytes,
            self.infos_bytes,
            UNKNOWN if self.end is None or not known else self.end,
            *(counts.get(kind, 0) for kind in KINDS.values()),
            device,
            inode,
            ctime_ns,
            0,
            0,
        )
        return seal_header(packed, sums)


def seal_header(header: bytes, sums: bytes) -> bytes:
    """Return a header of version 2 with its two checksums."""
    bound = header[:BOUND] + struct.pack("<I", crc32c(sums, crc32c(header[:BOUND])))
    checked = bound + header[len(bound) : CHECKED]
    return checked + struct.pack("<I", zlib.crc32(checked))


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
        table = borrow_table(
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
            grouping = borrow_grouping(
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

    def find_damage(self) -> list[tuple[str, int]]:
        """Return what has a wrong checksum, and where it begins."""
        if self.header.version > 1:
            found = self.memory.find_damage()
            return [(f"block {at // BLOCK_BYTES:,}", at) for at in found]
        memory = memoryview(self.memory)
        return [
            (column, at)
            for (column, (at, size)), stored in zip(
                self.places.items(), self.header.checksums, strict=True
            )
            if zlib.crc32(memory[at : at + size]) != stored
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
        It is no binary index, a newer one, cut, or what is checked at once is damaged.
    OSError
        It cannot be read.
    """
    _refuse_big_endian()
    with LocalFile(path) as file:
        header, raw, source = _header_of(file)  # faults no page in
        places = _places_of(header, file.nbytes, path)
        sums = None
        if header.version > 1:
            sums = source.read(*places["sums"])
        owner: MappedFile | bytes
        if copied:
            owner = source.read(0, file.nbytes)
        else:
            owner = MappedFile(file.fd, file.nbytes, path)
    return _opened(header, raw, places, owner, sums, path)


def parse_binary(data: bytes, path: str) -> BinaryIndex:
    """Open a binary index whose bytes were read; see `read_binary`."""
    _refuse_big_endian()
    if len(data) < HEADER.size:
        raise FormatError("cut inside its header", path, len(data))
    raw = data[: HEADER.size]
    header = _read_header(raw, path)
    places = _places_of(header, len(data), path)
    sums = None
    if header.version > 1:
        at, size = places["sums"]
        sums = data[at : at + size]
    return _opened(header, raw, places, data, sums, path)


def _refuse_big_endian() -> None:
    if sys.byteorder != "little":
        raise FastshardError("binary indexes are read on little-endian machines only")


def _places_of(header: Header, nbytes: int, path: str) -> dict[str, tuple[int, int]]:
    """See that an index is as long as its header says; return where columns are."""
    places = header.column_places()
    made = sum(places["sums" if header.version > 1 else "infos"])
    if header.file_bytes != nbytes or made != nbytes:
        reason = f"{nbytes:,} bytes, where the header makes {header.file_bytes:,}"
        raise FormatError(reason, path, 16)
    return places


def _opened(
    header: Header,
    raw: bytes,
    places: dict[str, tuple[int, int]],
    owner: MappedFile | bytes,
    sums: bytes | None,
    path: str,
) -> BinaryIndex:
    if sums is None:
        index = BinaryIndex(header, IndexMemory(owner, path), places)
        for column, at in index.find_damage():
            raise FormatError(f"the checksum of its {column} is wrong", path, at)
        return index
    if crc32c(sums, crc32c(raw[:BOUND])) != header.checksums[0]:
        raise FormatError("the checksum of its checksums is wrong", path, BOUND)
    memory = IndexMemory(owner, path, sums, HEADER.size, places["sums"][0])
    return BinaryIndex(header, memory, places)


def read_header(path: str) -> Header:
    """Read the header of a binary index, and nothing else."""
    with LocalFile(path) as file:
        return _header_of(file)[0]


def _header_of(file: LocalFile) -> tuple[Header, bytes, PreadSource]:
    if file.nbytes < HEADER.size:
        raise FormatError("cut inside its header", file.path, file.nbytes)
    source = PreadSource(file)
    raw = source.read(0, HEADER.size)
    return _read_header(raw, file.path), raw, source


def _read_header(raw: bytes, path: str) -> Header:
    magic, version, flags, *numbers = HEADER.unpack(raw)
    if magic != MAGIC:
        raise FormatError("not a binary index", path, 0)
    if not 1 <= version <= VERSION:
        reason = f"version {version} of the format; this reader knows {VERSION}"
        raise FormatError(reason, path, 8)
    if zlib.crc32(raw[:CHECKED]) != numbers[-1]:
        raise FormatError("the header's checksum is wrong", path, CHECKED)
    if flags & ~(LAST_DOT | HAS_INFO | REPEATS):
        raise FormatError("flags that this reader does not know", path, 12)
    file_bytes, shard_bytes, mtime_ns, fingerprint, *counts, end = numbers[:10]
    skipped: Mapping[str, int] | None = None
    if end != UNKNOWN:
        stored = dict(zip(KINDS.values(), numbers[10:18], strict=True))
        skipped = NOTHING
        if any(stored.values()):
            skipped = MappingProxyType({kind: n for kind, n in stored.items() if n})
    if version == 1:
        identity = NO_IDENTITY._replace(mtime_ns=mtime_ns)
        checksums = HEADER_1.unpack(raw)[-9:-1]
    else:
        device, inode, ctime_ns = numbers[18:21]
        identity = FileIdentity(device, inode, ctime_ns, mtime_ns)
        checksums = (numbers[21],)
    return Header._make(
        (
            version,
            bool(flags & LAST_DOT),
            bool(flags & HAS_INFO),
            bool(flags & REPEATS),
            file_bytes,
            shard_bytes,
            identity,
            fingerprint,
            *counts,
            None if end == UNKNOWN else end,
            skipped,
            checksums,
        )
    )


def write_binary(
    path: str | os.PathLike[str],
    contents: Contents,
    grouping: Grouping,
    *,
    shard_bytes: int,
    identity: FileIdentity,
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
    shard_bytes, identity, fingerprint
        What tells the shard from others.
    infos : sequence of bytes, optional
        A JSON object for each member, in place of what `contents` has.

    Raises
    ------
    OSError
        It cannot be written.
    """
    if sys.byteorder != "little":
        raise FastshardError("binary indexes are made on little-endian machines only")
    columns: dict[str, Any] = copy_columns(contents.table)
    columns["sample_starts"], columns["sample_members"] = copy_samples(grouping)
    if infos is not None:
        columns["infos"] = b"".join(infos)
        columns["info_ends"] = array("Q", accumulate(map(len, infos))).tobytes()
    if not columns["infos"]:
        columns["info_ends"] = b""
    header = Header(
        version=VERSION,
        last_dot=grouping.last_dot,
        has_info=bool(columns["infos"]),
        repeats=bool(Grouping(contents.table, grouping.last_dot, True).repeats()),
        file_bytes=0,
        shard_bytes=shard_bytes,
        identity=identity,
        fingerprint=fingerprint,
        members=len(contents.table),
        samples=len(columns["sample_starts"]) // 4 - 1,
        grouped=len(columns["sample_members"]) // 4,
        names_bytes=len(columns["names"]),
        infos_bytes=len(columns["infos"]),
        end=contents.end,
        skipped=contents.skipped,
        checksums=(),
    )
    places = header.column_places()
    header = header._replace(file_bytes=sum(places["sums"]))
    sums_at, _ = places.pop("sums")
    body = bytearray(sums_at - HEADER.size)
    for column, (at, size) in places.items():
        at -= HEADER.size
        body[at : at + size] = columns[column]
    sums = block_sums(body)
    with replace_file(path) as file:
        file.write(header.pack(sums))
        file.write(body)
        file.write(sums)
