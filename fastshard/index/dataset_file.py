"""The dataset index, ``dataset.fsi``: a record of each shard, and a table of keys.

Numbers are little-endian, and unsigned unless noted. A header of 128 bytes:

====== ======= ===============================================================
byte   type    content
====== ======= ===============================================================
0      8 bytes magic, ``89 66 73 64 0D 0A 1A 0A`` ("\\x89fsd\\r\\n\\x1a\\n")
8      u32     version of the format, 2
12     u32     flags: 1, keys end at the last dot; 2, the file has a key table
16     u64     size of this file in bytes
24     u64     number of shards
32     u64     number of samples of all shards
40     u64     number of members of all shards
48     u64     bytes of all names
56     16 b.   seed of the key hash
72     u32     CRC-32C of bytes 0 to 71 and of the bytes between the header
               and the rows
76     u32     CRC-32C of bytes 0 to 75 and of the rows
80     44 b.   zeros
124    u32     CRC-32 of bytes 0 to 123
====== ======= ===============================================================

The columns follow, each at the next multiple of 64 bytes, padded with zeros:

============== ======================= =======================================
column         type                    content
============== ======================= =======================================
shard_bytes    u64 [shards]            size of the shard in bytes
devices        u64 [shards]            device of the shard
inodes         u64 [shards]            its inode; 0 if the identity is unknown
ctimes         i64 [shards]            its last change, ns since 1970
mtimes         i64 [shards]            its last write, ns since 1970
fingerprints   16 bytes [shards]       as in the shard's own index
samples        u64 [shards]            number of samples
members        u64 [shards]            number of members
data_bytes     u64 [shards]            sum of the members' sizes
name_ends      u64 [shards]            end of the shard's name in ``names``
names          bytes                   paths below the dataset's directory,
                                       UTF-8, parts joined by "/"
rows           u64 [samples], or none  upper half: 32 bits of a key's hash;
                                       lower half: the sample's position;
                                       sorted
============== ======================= =======================================

The hash is SipHash-1-3; its seed is the BLAKE2b hash, 16 bytes, of all fingerprints.
Shards are in the dataset's order. The header and the columns are checked when the file
is opened, the rows at their first use. The checksum of the rows covers the seed and the
flags, on which their meaning depends. Counts of a shard are checked against its size,
for they size memory before the shard is opened.

Version 1 is read but no longer written. It has no ``devices``, ``inodes`` and
``ctimes``; its checksums are CRC-32, of the columns before the rows and of the rows
alone.
"""

from __future__ import annotations

import hashlib
import os
import struct
import sys
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fastshard._core.io.source import LocalFile, PreadSource, map_or_read
from fastshard._core.table.checksums import crc32c
from fastshard._core.table.grouping import IndexMemory, hash_key
from fastshard._util.files import replace_file
from fastshard.errors import FastshardError, FormatError, StaleIndexError
from fastshard.index.contents import FileIdentity

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from fastshard.remote.file import RemoteFile
    from fastshard.remote.options import Settings

__all__ = [
    "NAME",
    "DatasetIndex",
    "DatasetIndexView",
    "ShardRecord",
    "derive_seed",
    "seal_dataset_header",
    "write_dataset_index",
]

NAME = "dataset.fsi"
MAGIC = b"\x89fsd\r\n\x1a\n"
VERSION = 2
LAST_DOT, HAS_KEYS = 1, 2  # flags
HEADER = struct.Struct("<8sIIQQQQQ16sII44xI")
CHECKED = HEADER.size - 4  # bytes that the header's checksum covers
TABLE_BOUND = 72  # bytes of the header that the columns' checksum covers
ROWS_BOUND = 76  # bytes of the header that the rows' checksum covers
BEGIN = 16 << 10  # bytes of the first read
ALIGNMENT = 64  # bytes
BLOCK = 512  # minimum bytes of a shard for each member
MAX_SAMPLES = 2**32 - 1  # positions that fit a row
WIDTHS = {  # bytes per shard of the columns before the names
    "shard_bytes": 8,
    "devices": 8,
    "inodes": 8,
    "ctimes": 8,
    "mtimes": 8,
    "fingerprints": 16,
    "samples": 8,
    "members": 8,
    "data_bytes": 8,
    "name_ends": 8,
}
SINCE_2 = {"devices", "inodes", "ctimes"}  # columns missing in version 1
assert HEADER.size == 128


class ShardRecord(NamedTuple):
    """Record of one shard in a dataset index."""

    name: str
    shard_bytes: int
    identity: FileIdentity
    fingerprint: bytes
    samples: int
    members: int
    data_bytes: int


class DatasetIndex:
    """An open ``dataset.fsi``."""

    def __init__(
        self, path: str, *, copied: bool = False, file: RemoteFile | None = None
    ) -> None:
        if sys.byteorder != "little":
            raise FastshardError("dataset.fsi requires a little-endian machine")
        self.path = path
        self._copied = copied
        self._rows_checked = False
        self._file = file
        self._opened: IndexMemory | None = None
        if file is not None:
            self._read(file, file.nbytes)
            return
        with LocalFile(path) as local:
            source = PreadSource(local)
            self._read(source, local.nbytes)
            if self.has_keys:
                owner = source.read(0, local.nbytes) if copied else map_or_read(local)
                self._opened = IndexMemory(owner, path)

    @property
    def _memory(self) -> IndexMemory | None:
        """Memory of the file, for its key table; or None."""
        if self._opened is None and self.has_keys and self._file is not None:
            data = self._file.read(0, self._file.nbytes)
            self._opened = IndexMemory(data, self.path)
        return self._opened

    def _read(self, source: PreadSource | RemoteFile, nbytes: int) -> None:
        """Read all but the key table."""
        if nbytes < HEADER.size:
            raise FormatError("truncated inside its header", self.path, nbytes)
        begin = source.read(0, min(nbytes, BEGIN))
        self._parse_header(begin[: HEADER.size], nbytes)
        at = _column_offsets(self.count, self._names_bytes, self.version)
        raw = begin[HEADER.size : at["rows"]]
        if at["rows"] > len(begin):
            raw = source.read(HEADER.size, at["rows"] - HEADER.size)
        self.shards: list[ShardRecord] = self._read_shards(raw, at)
        self._rows_at = at["rows"]

    def _parse_header(self, raw: bytes, nbytes: int) -> None:
        magic, version, flags, file_bytes, *counts, table_crc, rows_crc, crc = (
            HEADER.unpack(raw)
        )
        if magic != MAGIC:
            raise FormatError("not a dataset index: wrong magic", self.path, 0)
        if not 1 <= version <= VERSION:
            reason = (
                f"expected a format of version 1 to {VERSION}, got version {version}"
            )
            raise FormatError(reason, self.path, 8)
        if zlib.crc32(raw[:CHECKED]) != crc:
            raise FormatError("the header's checksum is wrong", self.path, CHECKED)
        self.version: int = version
        self.identity: int = crc
        self._header = raw
        self.count: int = counts[0]
        self.samples: int = counts[1]
        self.members: int = counts[2]
        self._names_bytes: int = counts[3]
        self.seed: bytes = counts[4]
        self._table_crc: int = table_crc
        self._rows_crc: int = rows_crc
        self.last_dot: bool = bool(flags & LAST_DOT)
        self.has_keys: bool = bool(flags & HAS_KEYS)
        rows = 8 * self.samples if self.has_keys else 0
        at = _column_offsets(self.count, self._names_bytes, version)["rows"]
        for expected in (file_bytes, at + rows):
            if expected != nbytes:
                reason = f"expected {expected:,} bytes by the header, got {nbytes:,}"
                raise FormatError(reason, self.path, 16)

    def _read_shards(self, raw: bytes, at: dict[str, int]) -> list[ShardRecord]:
        if self._checksum(TABLE_BOUND, raw) != self._table_crc:
            raise FormatError("the columns' checksum is wrong", self.path, 72)

        def column(name: str, form: str = "Q") -> Sequence[Any]:
            if name not in at:
                return [0] * self.count
            start = at[name] - HEADER.size
            return struct.unpack_from(f"<{self.count}{form}", raw, start)

        first = at["fingerprints"] - HEADER.size
        fingerprints = [
            raw[i : i + 16] for i in range(first, first + 16 * self.count, 16)
        ]
        records = zip(
            self._names(raw, at, column("name_ends")),
            column("shard_bytes"),
            map(
                FileIdentity,
                column("devices"),
                column("inodes"),
                column("ctimes", "q"),
                column("mtimes", "q"),
            ),
            fingerprints,
            column("samples"),
            column("members"),
            column("data_bytes"),
            strict=True,
        )
        shards = [ShardRecord._make(record) for record in records]
        sums = sum(s.samples for s in shards), sum(s.members for s in shards)
        if sums != (self.samples, self.members):
            raise FormatError("the totals differ from the shards' sums", self.path, 32)
        for shard in shards:
            blocks = shard.shard_bytes // BLOCK
            if not shard.samples <= shard.members <= blocks:
                reason = (
                    f"{shard.samples:,} samples and {shard.members:,} members do not "
                    f"fit a shard of {shard.shard_bytes:,} bytes"
                )
                raise FormatError(reason, self.path, at["samples"], shard.name)
        seed = derive_seed(b"".join(fingerprints))
        if self.has_keys and self.seed != seed:
            raise FormatError("the seed is not derived from the shards", self.path, 56)
        return shards

    def _checksum(self, bound: int, data: Buffer) -> int:
        """Return the checksum of `data`, seeded with `bound` bytes of the header."""
        if self.version == 1:
            return zlib.crc32(data)
        return crc32c(data, crc32c(self._header[:bound]))

    def _names(self, raw: bytes, at: dict[str, int], ends: Sequence[int]) -> list[str]:
        start = at["names"] - HEADER.size
        texts = raw[start : start + self._names_bytes]
        begins = [0, *ends[:-1]]
        if any(a > b for a, b in zip(begins, ends, strict=True)) or (
            ends and ends[-1] != len(texts)
        ):
            raise FormatError("the ends of names are wrong", self.path, at["name_ends"])
        names = [os.fsdecode(texts[a:b]) for a, b in zip(begins, ends, strict=True)]
        for name in names:
            if not name or "://" in name or {"", ".."} & set(name.split("/")):
                reason = f"shard {name!r} is not below the dataset's directory"
                raise FormatError(reason, self.path, at["names"])
        return names

    def rows(self) -> NDArray[np.uint64] | None:
        """Return the key table: uint64 [samples], mapped; None if there is none."""
        import numpy as np

        if self._memory is None:
            return None
        memory = memoryview(self._memory)
        return np.frombuffer(memory, np.uint64, self.samples, self._rows_at)

    def has_damaged_rows(self) -> bool:
        """Return whether the checksum of the key table is wrong."""
        if self._memory is None:
            return False
        rows = memoryview(self._memory)[self._rows_at :]
        return self._checksum(ROWS_BOUND, rows) != self._rows_crc

    def copy_rows(self) -> bytes:
        """Return a copy of the key table."""
        if self._memory is None:
            return b""
        return self._memory.read(self._rows_at, 8 * self.samples)

    def candidates(self, key: str) -> list[int]:
        """Return the sorted positions of samples that may have this key.

        Both spellings of a key are looked up, with and without a leading ``./``: in
        earlier releases it was part of the key, and the file does not record the rule.

        The index must have a key table. Its checksum is checked at its first use,
        which reads all of it: a damaged table would hide keys.
        """
        if not self._rows_checked:
            if self.has_damaged_rows():
                reason = "the key table's checksum is wrong"
                raise FormatError(reason, self.path, 76)
            self._rows_checked = True
        rows = self.rows()
        assert rows is not None
        return sorted(
            {
                i
                for spelled in (key, f"./{key}", f".//{key}")
                for i in candidates(rows, spelled, self.seed)
            }
        )

    def __reduce__(self) -> tuple[Any, ...]:
        where: str | tuple[str, Settings] = os.path.abspath(self.path)
        if self._file is not None:
            where = self._file.url, self._file.settings
        return _reopen, (where, self.identity, self._copied)


class DatasetIndexView(NamedTuple):
    """View of a dataset index in the order of a dataset's shards.

    Attributes
    ----------
    file : DatasetIndex
    numbers : list of int, or None
        Each shard's position in the index; None for the index's own order.
    """

    file: DatasetIndex
    numbers: list[int] | None

    @property
    def path(self) -> str:
        """Path or URL of the ``dataset.fsi``."""
        return self.file.path

    @property
    def has_keys(self) -> bool:
        """True if the index has a key table that is valid for this order."""
        return self.numbers is None and self.file.has_keys

    def some(self, shards: Sequence[int]) -> DatasetIndexView:
        """Return the view of some of the shards, by position."""
        numbers = range(self.file.count) if self.numbers is None else self.numbers
        return DatasetIndexView(self.file, [numbers[k] for k in shards])

    def counts(self) -> list[tuple[int, int]]:
        """Return each shard's numbers of samples and members."""
        shards = self.file.shards
        if self.numbers is not None:
            shards = [shards[number] for number in self.numbers]
        return [(shard.samples, shard.members) for shard in shards]

    def record(self, k: int) -> ShardRecord:
        """Return the record of shard `k`."""
        return self.file.shards[k if self.numbers is None else self.numbers[k]]

    def data_bytes(self) -> int:
        """Return the sum of all members' sizes in bytes."""
        shards = self.file.shards
        numbers = range(len(shards)) if self.numbers is None else self.numbers
        return sum(shards[number].data_bytes for number in numbers)

    def candidates(self, key: str) -> list[int]:
        """Return positions of samples that may have this key; see `DatasetIndex`."""
        return self.file.candidates(key)


def _reopen(
    where: str | tuple[str, Settings], identity: int, copied: bool
) -> DatasetIndex:
    """Open a pickled index: by path, or by URL and settings."""
    if isinstance(where, str):
        index = DatasetIndex(where, copied=copied)
    else:
        from fastshard.remote.file import open_remote

        file = open_remote(*where)
        index = DatasetIndex(file.path, file=file)
    path = index.path
    if index.identity != identity:
        raise StaleIndexError("rebuilt since the dataset was opened", path, 0)
    return index


def candidates(rows: NDArray[np.uint64], key: str, seed: bytes) -> list[int]:
    """Return positions of possible samples of a key, from a sorted key table."""
    import numpy as np

    hashed = hash_key(key, seed)
    if hashed is None:
        return []
    first = np.uint64(hashed << 32)
    last = np.uint64(hashed << 32 | 0xFFFFFFFF)
    a = int(np.searchsorted(rows, first))
    b = int(np.searchsorted(rows, last, "right"))
    found: list[int] = (rows[a:b] & np.uint64(0xFFFFFFFF)).tolist()
    return found


def derive_seed(fingerprints: bytes) -> bytes:
    """Return the seed of the key hash, derived from the shards' fingerprints."""
    return hashlib.blake2b(fingerprints, digest_size=16).digest()


def _column_offsets(
    shards: int, names_bytes: int, version: int = VERSION
) -> dict[str, int]:
    """Return the offset of each column, in bytes from the start of the file."""
    offsets = {}
    at = HEADER.size
    widths = {
        name: width * shards
        for name, width in WIDTHS.items()
        if version > 1 or name not in SINCE_2
    }
    for name, size in (*widths.items(), ("names", names_bytes), ("rows", 0)):
        at = -(-at // ALIGNMENT) * ALIGNMENT
        offsets[name] = at
        at += size
    return offsets


def write_dataset_index(
    path: str | os.PathLike[str],
    shards: Sequence[ShardRecord],
    *,
    last_dot: bool,
    seed: bytes,
    rows: NDArray[np.uint64] | None,
) -> None:
    """Write a ``dataset.fsi``, atomically."""
    names = [os.fsencode(shard.name) for shard in shards]
    ends, end = [], 0
    for name in names:
        end += len(name)
        ends.append(end)
    columns = {
        "shard_bytes": _pack("Q", [shard.shard_bytes for shard in shards]),
        "devices": _pack("Q", [shard.identity.device for shard in shards]),
        "inodes": _pack("Q", [shard.identity.inode for shard in shards]),
        "ctimes": _pack("q", [shard.identity.ctime_ns for shard in shards]),
        "mtimes": _pack("q", [shard.identity.mtime_ns for shard in shards]),
        "fingerprints": b"".join(shard.fingerprint for shard in shards),
        "samples": _pack("Q", [shard.samples for shard in shards]),
        "members": _pack("Q", [shard.members for shard in shards]),
        "data_bytes": _pack("Q", [shard.data_bytes for shard in shards]),
        "name_ends": _pack("Q", ends),
        "names": b"".join(names),
    }
    offsets = _column_offsets(len(shards), end)
    table = bytearray(offsets["rows"] - HEADER.size)
    for column, data in columns.items():
        at = offsets[column] - HEADER.size
        table[at : at + len(data)] = data
    keys = b"" if rows is None else rows.tobytes()
    packed = HEADER.pack(
        MAGIC,
        VERSION,
        LAST_DOT * last_dot | HAS_KEYS * (rows is not None),
        offsets["rows"] + len(keys),
        len(shards),
        sum(shard.samples for shard in shards),
        sum(shard.members for shard in shards),
        end,
        seed,
        0,
        0,
        0,
    )
    with replace_file(path) as file:
        file.write(seal_dataset_header(packed, table, keys))
        file.write(table)
        file.write(keys)


def seal_dataset_header(header: bytes, table: Buffer, rows: Buffer) -> bytes:
    """Return a header of version 2 with its three checksums."""
    bound = header[:TABLE_BOUND]
    bound += struct.pack("<I", crc32c(table, crc32c(bound)))
    bound += struct.pack("<I", crc32c(rows, crc32c(bound)))
    checked = bound + header[len(bound) : CHECKED]
    return checked + struct.pack("<I", zlib.crc32(checked))


def _pack(form: str, numbers: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}{form}", *numbers)
