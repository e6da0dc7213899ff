"""The binary index, ``<stem>.fsi``: mapped columns of extents, names and samples.

Numbers are little-endian, and unsigned unless noted. A header of 256 bytes:

====== ======= ===============================================================
byte   type    content
====== ======= ===============================================================
0      8 bytes magic, ``89 66 73 69 0D 0A 1A 0A`` ("\\x89fsi\\r\\n\\x1a\\n")
8      u32     version of the format, 2
12     u32     flags: 1, keys end at the last dot; 2, the file has infos; 4, a
               sample has a field twice, ignoring case; 8, the links that are
               counted at byte 104 lead to no member, and the others are members
16     u64     size of this file in bytes
24     u64     size of the shard in bytes
32     i64     last write to the shard, ns since 1970
40     16 b.   fingerprint of the shard, see `compute_fingerprint`
56     u64     number of members
64     u64     number of samples
72     u64     number of members that belong to a sample
80     u64     bytes of all names
88     u64     bytes of all infos
96     u64     end of the archive in the shard; 2**64 - 1 if unknown
104    8 u64   number of archive entries that are not members, by `KINDS`
168    u64     device of the shard
176    u64     its inode; 0 if device, inode and ctime are unknown
184    i64     last change of the shard (ctime), ns since 1970
192    u32     CRC-32C of bytes 0 to 191 and of the column ``sums``
196    u64     offset in this file of the lengths of documents; 0 if absent
204    u64     their size in bytes; see `fastshard.index.document_column`
212    40 b.   zeros
252    u32     CRC-32 of bytes 0 to 251
====== ======= ===============================================================

The columns follow, each at the next multiple of 64 bytes, padded with zeros:

============== ======================= =======================================
column         type                    content
============== ======================= =======================================
offsets        u64 [members]           offset of a member in the shard
sizes          u64 [members]           size of a member in bytes
name_ends      u64 [members]           end of its name in ``names``; the name
                                       begins at the end of the one before
sample_starts  u32 [samples + 1]       a sample's first element of
                                       ``sample_members``
sample_members u32 [grouped members]   positions of members, sample by sample
info_ends      u64 [members], or none  as name_ends, in ``infos``
names          bytes                   as in the shard, without separators
infos          bytes                   JSON objects; empty for no metadata
sums           u32 [blocks]            CRC-32C of each 64 KiB between the
                                       header and this column
============== ======================= =======================================

Members are in the shard's order, samples in the order of their first members. The file
has no hash table. Its size must be the one that the header's numbers give.

The header and ``sums`` are checked when the file is opened, each block at its first
use. The header's numbers are then compared with the size of the file and with the last
numbers of ``name_ends``, ``sample_starts`` and ``info_ends``: right checksums do not
make a hostile number harmless. Device, inode, ctime and mtime identify the indexed
file; see `fastshard.index.freshness`.

Version 1 is read but no longer written. It has no ``sums``. Its header has at byte 168
the CRC-32 of each of the eight columns, 8 u32, then 52 bytes of zeros; the columns are
checked when the file is opened.
"""

from __future__ import annotations

import os
import struct
import sys
import zlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import Any, NamedTuple

from fastshard._core.io.source import (
    LocalFile,
    MappedFile,
    PreadSource,
    map_or_read,
)
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
from fastshard.errors import FastshardError, FormatError, StaleIndexError
from fastshard.index.contents import LINKS, NO_IDENTITY, Contents, FileIdentity

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
LAST_DOT, HAS_INFO, REPEATS, UNREAD_LINKS = 1, 2, 4, 8  # flags
HEADER = struct.Struct("<8sIIQQq16sQQQQQQ8QQQqIQQ40xI")
HEADER_1 = struct.Struct("<8sIIQQq16sQQQQQQ8Q8I52xI")  # version 1
CHECKED = HEADER.size - 4  # bytes that the header's checksum covers
BOUND = 192  # bytes of the header that the checksum of ``sums`` covers
MEMBERS_AT, END_AT, LINKS_AT = 56, 96, 104  # bytes of the header: of these numbers
LENGTHS_AT = 196  # byte of the header with the place of the documents' lengths
ALIGNMENT = 64  # bytes
LENGTHS_ALIGNMENT = 8  # bytes
BLOCK = 512  # minimum bytes of the shard for each member and other entry
UNKNOWN = 2**64 - 1
NOTHING: Mapping[str, int] = MappingProxyType({})
assert HEADER.size == HEADER_1.size == 256


class Header(NamedTuple):
    """Header of a binary index; see the module."""

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
    checksums: tuple[int, ...]  # version 1: of the columns; version 2: of the sums
    lengths: tuple[int, int] = (0, 0)  # offset and size of the documents' lengths

    def column_bytes(self) -> dict[str, int]:
        """Return the size of each column in bytes, in the order of the file."""
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

    def column_extents(self) -> dict[str, tuple[int, int]]:
        """Return the offset and size of each column, in bytes."""
        extents = {}
        at = HEADER.size
        for column, size in self.column_bytes().items():
            at = (at + (ALIGNMENT - 1)) & -ALIGNMENT
            extents[column] = at, size
            at += size
        if self.version > 1:
            at = (at + (ALIGNMENT - 1)) & -ALIGNMENT
            blocks = -(-(at - HEADER.size) // BLOCK_BYTES)
            extents["sums"] = at, 4 * blocks
        return extents

    def pack(self, sums: bytes) -> bytes:
        """Return the header's bytes; `sums` are the checksums of the blocks."""
        has_end = self.skipped is not None and self.end is not None
        counts = dict(self.skipped or {})
        device, inode, ctime_ns, mtime_ns = self.identity
        packed = HEADER.pack(
            MAGIC,
            VERSION,
            LAST_DOT * self.last_dot
            | HAS_INFO * self.has_info
            | REPEATS * self.repeats
            | UNREAD_LINKS * any(kind in counts for kind in LINKS),
            self.file_bytes,
            self.shard_bytes,
            mtime_ns,
            self.fingerprint,
            self.members,
            self.samples,
            self.grouped,
            self.names_bytes,
            self.infos_bytes,
            self.end if has_end else UNKNOWN,
            *(counts.get(kind, 0) for kind in KINDS.values()),
            device,
            inode,
            ctime_ns,
            0,
            *self.lengths,
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
    extents: dict[str, tuple[int, int]]  # offset and size of each column, bytes

    def contents(self, last_dot: bool, lower: bool) -> Contents:
        """Return the shard's contents; samples too, if they follow the same rule.

        The contents borrow the memory of the index.
        """
        header, memory, extents = self
        at = {column: offset for column, (offset, _) in extents.items()}
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
        """Return the name and offset of each part whose checksum is wrong."""
        if self.header.version > 1:
            found = self.memory.find_damage()
            return [(f"block {at // BLOCK_BYTES:,}", at) for at in found]
        memory = memoryview(self.memory)
        return [
            (column, at)
            for (column, (at, size)), stored in zip(
                self.extents.items(), self.header.checksums, strict=True
            )
            if zlib.crc32(memory[at : at + size]) != stored
        ]


def read_binary(path: str, *, copied: bool = False) -> BinaryIndex:
    """Open a binary index: map it if its file system does, and check its header."""
    _check_byte_order()
    with LocalFile(path) as file:
        header, raw, source = _read_header(file)  # by pread: no page faults
        extents, sums = _check_places(header, file.nbytes, file.read_many, path)
        owner = source.read(0, file.nbytes) if copied else map_or_read(file)
    return _make_index(header, raw, extents, owner, sums, path)


def parse_binary(data: bytes, path: str) -> BinaryIndex:
    """Open a binary index from its bytes; see `read_binary`."""
    _check_byte_order()
    if len(data) < HEADER.size:
        raise FormatError("truncated inside its header", path, len(data))
    raw = data[: HEADER.size]
    header = _parse_header(raw, path)

    def read_many(wanted: Sequence[tuple[int, int]]) -> list[bytes]:
        return [data[at : at + size] for at, size in wanted]

    extents, sums = _check_places(header, len(data), read_many, path)
    return _make_index(header, raw, extents, data, sums, path)


def _check_byte_order() -> None:
    if sys.byteorder != "little":
        raise FastshardError("a binary index requires a little-endian machine")


def _check_places(
    header: Header,
    nbytes: int,
    read_many: Callable[[Sequence[tuple[int, int]]], list[bytes]],
    path: str,
) -> tuple[dict[str, tuple[int, int]], bytes | None]:
    """Return the extents of the columns, and the column ``sums`` of version 2.

    Raises FormatError unless the columns fill a file of `nbytes` bytes, and their last
    numbers are those of the header.
    """
    extents = header.column_extents()
    last = "sums" if header.version > 1 else "infos"
    for expected in (header.file_bytes, sum(extents[last])):
        if expected != nbytes:
            reason = f"expected {expected:,} bytes by the header, got {nbytes:,}"
            raise FormatError(reason, path, 16)
    infos_size = _infos_before_lengths(header, extents["infos"], path)
    padding = LENGTHS_ALIGNMENT - 1 if header.lengths[0] else 0
    wanted = [_end_of(extents["sample_starts"], 4)]
    ends = [("sample_starts", header.grouped, 0)]  # column, last number, what it lacks
    if header.members:
        wanted.append(_end_of(extents["name_ends"], 8))
        ends.append(("name_ends", header.names_bytes, 0))
        if header.has_info:
            wanted.append(_end_of(extents["info_ends"], 8))
            ends.append(("info_ends", infos_size, padding))
    if header.version > 1:
        wanted.append(extents["sums"])
    found = read_many(wanted)
    for (column, end, spare), data in zip(ends, found, strict=False):
        number = int.from_bytes(data, "little")
        if not end - spare <= number <= end:
            reason = f"{column} ends with {number:,}, expected {end:,} by the header"
            raise FormatError(reason, path, extents[column][0])
    return extents, found[-1] if header.version > 1 else None


def _end_of(column: tuple[int, int], width: int) -> tuple[int, int]:
    """Return the extent of the last number of a column."""
    return column[0] + column[1] - width, width


def _infos_before_lengths(header: Header, infos: tuple[int, int], path: str) -> int:
    """Return the bytes of infos before the documents' lengths; check their position."""
    at, size = infos
    lengths_at, lengths_size = header.lengths
    if header.lengths == (0, 0):
        return size
    if (
        not at <= lengths_at <= at + size
        or lengths_at % LENGTHS_ALIGNMENT
        or lengths_size != at + size - lengths_at
    ):
        reason = (
            f"{lengths_size:,} bytes of documents' lengths at byte {lengths_at:,} are "
            "not the end of the infos"
        )
        raise FormatError(reason, path, LENGTHS_AT)
    return lengths_at - at


def _make_index(
    header: Header,
    raw: bytes,
    extents: dict[str, tuple[int, int]],
    owner: MappedFile | bytes,
    sums: bytes | None,
    path: str,
) -> BinaryIndex:
    """Verify the checksums due at opening; `sums` is None for version 1."""
    if sums is None:
        index = BinaryIndex(header, IndexMemory(owner, path), extents)
        for column, at in index.find_damage():
            raise FormatError(f"the checksum of {column} is wrong", path, at)
        return index
    if crc32c(sums, crc32c(raw[:BOUND])) != header.checksums[0]:
        raise FormatError("the checksum of sums is wrong", path, BOUND)
    memory = IndexMemory(owner, path, sums, HEADER.size, extents["sums"][0])
    return BinaryIndex(header, memory, extents)


def read_header(path: str) -> Header:
    """Read the header of a binary index, and check it against the file."""
    with LocalFile(path) as file:
        header, _, _ = _read_header(file)
        _check_places(header, file.nbytes, file.read_many, path)
    return header


def _read_header(file: LocalFile) -> tuple[Header, bytes, PreadSource]:
    if file.nbytes < HEADER.size:
        raise FormatError("truncated inside its header", file.path, file.nbytes)
    source = PreadSource(file)
    raw = source.read(0, HEADER.size)
    return _parse_header(raw, file.path), raw, source


def _parse_header(raw: bytes, path: str) -> Header:
    magic, version, flags, *numbers = HEADER.unpack(raw)
    if magic != MAGIC:
        raise FormatError("not a binary index: wrong magic", path, 0)
    if not 1 <= version <= VERSION:
        reason = f"expected a format of version 1 to {VERSION}, got version {version}"
        raise FormatError(reason, path, 8)
    if zlib.crc32(raw[:CHECKED]) != numbers[-1]:
        raise FormatError("the header's checksum is wrong", path, CHECKED)
    if flags & ~(LAST_DOT | HAS_INFO | REPEATS | UNREAD_LINKS):
        reason = f"unknown flags {flags:#x}; a newer release may have written them"
        raise FormatError(reason, path, 12)
    file_bytes, shard_bytes, mtime_ns, fingerprint, *counts, end = numbers[:10]
    skipped: Mapping[str, int] | None = None
    entries = counts[0]
    if end != UNKNOWN:
        stored = dict(zip(KINDS.values(), numbers[10:18], strict=True))
        skipped = NOTHING
        if any(stored.values()):
            skipped = MappingProxyType({kind: n for kind, n in stored.items() if n})
            entries += sum(stored.values())
        if not flags & UNREAD_LINKS and any(stored[kind] for kind in LINKS):
            reason = "made by a release that read no links; renew it: fastshard index"
            raise StaleIndexError(reason, path, LINKS_AT)
        if end > shard_bytes:
            reason = f"the archive ends at byte {end:,} of a shard of {shard_bytes:,}"
            raise FormatError(reason, path, END_AT)
    if entries > shard_bytes // BLOCK:
        reason = f"{entries:,} entries do not fit a shard of {shard_bytes:,} bytes"
        raise FormatError(reason, path, MEMBERS_AT)
    lengths = 0, 0
    if version == 1:
        identity = NO_IDENTITY._replace(mtime_ns=mtime_ns)
        checksums = HEADER_1.unpack(raw)[-9:-1]
    else:
        device, inode, ctime_ns, *sums, at, size = numbers[18:24]
        identity = FileIdentity(device, inode, ctime_ns, mtime_ns)
        checksums, lengths = tuple(sums), (at, size)
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
            lengths,
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
    sync: bool = True,
) -> None:
    """Write a binary index, atomically."""
    _check_byte_order()
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
    extents = header.column_extents()
    header = header._replace(file_bytes=sum(extents["sums"]))
    sums_at, _ = extents.pop("sums")
    body = bytearray(sums_at - HEADER.size)
    for column, (at, size) in extents.items():
        at -= HEADER.size
        body[at : at + size] = columns[column]
    sums = block_sums(body)
    with replace_file(path, sync=sync) as file:
        file.write(header.pack(sums))
        file.write(body)
        file.write(sums)
