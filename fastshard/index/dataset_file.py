"""The index of a whole dataset, ``dataset.fsi``: each shard's counts, and keys.

All numbers are little-endian and unsigned unless said otherwise. A header of
128 bytes:

====== ======= ===============================================================
byte   type    what
====== ======= ===============================================================
0      8 bytes magic, ``89 66 73 64 0D 0A 1A 0A`` ("\\x89fsd\\r\\n\\x1a\\n")
8      u32     version of the format, 2
12     u32     flags: 1, keys end at the last dot; 2, there is a table of keys
16     u64     bytes of this file
24     u64     shards
32     u64     samples of all shards
40     u64     members of all shards
48     u64     bytes of all names
56     16 b.   seed of the keys' hash
72     u32     CRC-32C of the 72 bytes before and of what stands between the
               header and the rows
76     u32     CRC-32C of the 76 bytes before and of the rows
80     44 b.   zeros
124    u32     CRC-32 of the 124 bytes before
====== ======= ===============================================================

Then the columns, each at the next multiple of 64 bytes, with zeros between:

============== ======================= =======================================
column         type                    what
============== ======================= =======================================
shard_bytes    u64 [shards]            the file's size
devices        u64 [shards]            where the shard is, and which file: as in
inodes         u64 [shards]            its own index; an inode of 0: not known
ctimes         i64 [shards]            its last change, ns since 1970
mtimes         i64 [shards]            its last write, ns since 1970
fingerprints   16 bytes [shards]       as in its own index
samples        u64 [shards]
members        u64 [shards]
data_bytes     u64 [shards]            the sum of its members' sizes
name_ends      u64 [shards]            where its name ends in ``names``
names          bytes                   UTF-8: paths below the directory that
                                       the dataset is in, parts joined by "/"
rows           u64 [samples], or none  32 bits of a key's hash above 32 bits
                                       of the sample's position; sorted
============== ======================= =======================================

The hash is SipHash-1-3. Shards are in the dataset's order. All but the rows is
checked when the file is opened, the rows when they are first used; their checksum
is of the seed and of the flags too, without which they mean nothing.

Version 1 is read, and written no more. It has no ``devices``, ``inodes`` and
``ctimes``; its checksums are CRC-32, of the columns before the rows and of the rows
alone. Its seed is the BLAKE2b hash, 16 bytes, of all fingerprints.
"""

from __future__ import annotations

import hashlib
import os
import struct
import sys
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fastshard._core.io.source import LocalFile, MappedFile, PreadSource
from fastshard._core.table.checksums import crc32c
from fastshard._core.table.grouping import IndexMemory, hash_key
from fastshard._util.files import replace_file
from fastshard.errors import FastshardError, FormatError, StaleIndexError
from fastshard.index.contents import FileIdentity
from fastshard.index.freshness import compute_fingerprint, identify_file, is_same_file
from fastshard.remote.file import RemoteFile, open_remote

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from fastshard._core.table.extents import ExtentTable

__all__ = [
    "NAME",
    "DatasetIndex",
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
CHECKED = HEADER.size - 4  # bytes that the header's checksum is of
TABLE_BOUND = 72  # bytes of it that the checksum of the columns is of too
ROWS_BOUND = 76  # and those that the checksum of the rows is of
ALIGNMENT = 64  # bytes
MOST_SAMPLES = 2**32 - 1  # that a table of keys can number
WIDTHS = {  # bytes a shard, of the columns before the names
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
SINCE_2 = {"devices", "inodes", "ctimes"}  # columns that version 1 has not
assert HEADER.size == 128


class ShardRecord(NamedTuple):
    """What is recorded of one shard."""

    name: str
    shard_bytes: int
    identity: FileIdentity
    fingerprint: bytes
    samples: int
    members: int
    data_bytes: int


class DatasetIndex:
    """An open ``dataset.fsi``.

    Parameters
    ----------
    path : str
    copied : bool
        Keep nothing mapped.
    file : RemoteFile, optional
        Where it is, if it is not here; the table of keys is read when it is needed.

    Raises
    ------
    FormatError
        It is broken.
    OSError
        It cannot be read.
    """

    def __init__(
        self, path: str, *, copied: bool = False, file: RemoteFile | None = None
    ) -> None:
        if sys.byteorder != "little":
            raise FastshardError("dataset.fsi is read on little-endian machines only")
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
                owner: MappedFile | bytes
                if copied:
                    owner = source.read(0, local.nbytes)
                else:
                    owner = MappedFile(local.fd, local.nbytes, path)
                self._opened = IndexMemory(owner, path)

    @property
    def _memory(self) -> IndexMemory | None:
        """What holds the table of keys, if there is one."""
        if self._opened is None and self.has_keys and self._file is not None:
            data = self._file.read(0, self._file.nbytes)
            self._opened = IndexMemory(data, self.path)
        return self._opened

    def _read(self, source: PreadSource | RemoteFile, nbytes: int) -> None:
        """Read all but the table of keys."""
        if nbytes < HEADER.size:
            raise FormatError("cut inside its header", self.path, nbytes)
        self._read_header(source.read(0, HEADER.size), nbytes)
        at = _places(self.count, self._names_bytes, self.version)
        self.shards = self._read_shards(source, at)
        self._rows_at = at["rows"]

    def _read_header(self, raw: bytes, nbytes: int) -> None:
        magic, version, flags, file_bytes, *counts, table_crc, rows_crc, crc = (
            HEADER.unpack(raw)
        )
        if magic != MAGIC:
            raise FormatError("not the index of a dataset", self.path, 0)
        if not 1 <= version <= VERSION:
            reason = f"version {version} of the format; this reader knows {VERSION}"
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
        self.last_dot = bool(flags & LAST_DOT)
        self.has_keys = bool(flags & HAS_KEYS)
        rows = 8 * self.samples if self.has_keys else 0
        at = _places(self.count, self._names_bytes, version)["rows"]
        if file_bytes != nbytes or at + rows != nbytes:
            reason = f"{nbytes:,} bytes, where the header makes {at + rows:,}"
            raise FormatError(reason, self.path, 16)

    def _read_shards(
        self, source: PreadSource | RemoteFile, at: dict[str, int]
    ) -> list[ShardRecord]:
        raw = source.read(HEADER.size, at["rows"] - HEADER.size)
        if self._checksum(TABLE_BOUND, raw) != self._table_crc:
            raise FormatError("the checksum of its shards is wrong", self.path, 72)

        def column(name: str, form: str = "Q") -> Sequence[Any]:
            if name not in at:
                return [0] * self.count
            start = at[name] - HEADER.size
            return struct.unpack_from(f"<{self.count}{form}", raw, start)

        marks = at["fingerprints"] - HEADER.size
        fingerprints = [
            raw[i : i + 16] for i in range(marks, marks + 16 * self.count, 16)
        ]
        facts = zip(
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
        shards = [ShardRecord._make(fact) for fact in facts]
        sums = sum(s.samples for s in shards), sum(s.members for s in shards)
        if sums != (self.samples, self.members):
            raise FormatError("its counts do not add up", self.path, 32)
        marks_of = b"".join(fingerprints)
        if self.version == 1 and self.has_keys and self.seed != derive_seed(marks_of):
            raise FormatError("its seed is not that of its shards", self.path, 56)
        return shards

    def _checksum(self, bound: int, data: Buffer) -> int:
        """Return the checksum of a part, for the first bytes of this header."""
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
            raise FormatError("its names have no ends", self.path, at["name_ends"])
        names = [os.fsdecode(texts[a:b]) for a, b in zip(begins, ends, strict=True)]
        for name in names:
            if not name or "://" in name or {"", ".."} & set(name.split("/")):
                reason = f"shard {name!r} is not below the dataset's directory"
                raise FormatError(reason, self.path, at["names"])
        return names

    def rows(self) -> NDArray[np.uint64] | None:
        """Return the table of keys: uint64 [samples], mapped; None if there is none."""
        import numpy as np

        if self._memory is None:
            return None
        memory = memoryview(self._memory)
        return np.frombuffer(memory, np.uint64, self.samples, self._rows_at)

    def has_damaged_rows(self) -> bool:
        """Say whether the checksum of the table of keys is wrong."""
        if self._memory is None:
            return False
        rows = memoryview(self._memory)[self._rows_at :]
        return self._checksum(ROWS_BOUND, rows) != self._rows_crc

    def copy_rows(self) -> bytes:
        """Return the table of keys as bytes of their own."""
        if self._memory is None:
            return b""
        return self._memory.read(self._rows_at, 8 * self.samples)

    def check(
        self,
        number: int,
        path: str,
        samples: int,
        table: ExtentTable,
        file: LocalFile | RemoteFile,
        fingerprint: bytes | None = None,
    ) -> None:
        """Raise `StaleIndexError` unless an open shard is what is recorded of it.

        Parameters
        ----------
        number : int
            The shard's place in this index.
        path : str
            The shard.
        samples : int
            How many it has now.
        table : ExtentTable
            Its members now.
        file : LocalFile or RemoteFile
            It, open.
        fingerprint : bytes, optional
            What its own index, which is of it, records.
        """
        facts = self.shards[number]
        same = (facts.shard_bytes, facts.samples, facts.members) == (
            file.nbytes,
            samples,
            len(table),
        )
        if same and not is_same_file(facts.identity, identify_file(file)):
            if fingerprint is None:
                fingerprint = compute_fingerprint(file, table)
            same = fingerprint == facts.fingerprint
        if not same:
            raise StaleIndexError(
                f"{path} was written to after the index was made; "
                f"make it again with: fastshard index",
                self.path,
                0,
            )

    def candidates(self, key: str) -> list[int]:
        """Return positions of samples that may have this key; sorted.

        Earlier releases took a leading ``./`` for a part of the key, and nothing in
        the file tells by which rule it was made: so both are looked up.

        There must be a table of keys. It is checked on first use, which reads
        all of it: a damaged one would deny keys that are there.

        Raises
        ------
        FormatError
            Its checksum is wrong.
        """
        if not self._rows_checked:
            if self.has_damaged_rows():
                reason = "the checksum of its table of keys is wrong"
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
        where: Any = os.path.abspath(self.path)
        if self._file is not None:
            where = self._file.url, self._file.settings
        return _reopen, (where, self.identity, self._copied)


def _reopen(where: Any, identity: int, copied: bool) -> DatasetIndex:
    if isinstance(where, str):
        index = DatasetIndex(where, copied=copied)
    else:
        file = open_remote(*where)
        index = DatasetIndex(file.path, file=file)
    path = index.path
    if index.identity != identity:
        raise StaleIndexError("made again since the dataset was opened", path, 0)
    return index


_again = _reopen  # the name in pickles of version 0.1


def candidates(rows: NDArray[np.uint64], key: str, seed: bytes) -> list[int]:
    """Return the positions in sorted rows whose key may be this one."""
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
    """Return the seed for shards of these fingerprints: the same each time."""
    return hashlib.blake2b(fingerprints, digest_size=16).digest()


def _places(shards: int, names_bytes: int, version: int = VERSION) -> dict[str, int]:
    """Return where each column begins, in bytes."""
    places = {}
    at = HEADER.size
    widths = {
        name: width * shards
        for name, width in WIDTHS.items()
        if version > 1 or name not in SINCE_2
    }
    for name, size in (*widths.items(), ("names", names_bytes), ("rows", 0)):
        at = -(-at // ALIGNMENT) * ALIGNMENT
        places[name] = at
        at += size
    return places


def write_dataset_index(
    path: str | os.PathLike[str],
    shards: Sequence[ShardRecord],
    *,
    last_dot: bool,
    seed: bytes,
    rows: NDArray[np.uint64] | None,
) -> None:
    """Write a ``dataset.fsi``; it appears whole.

    Parameters
    ----------
    path : str or path-like
    shards : sequence of ShardRecord
        In the dataset's order; names below the directory of the dataset.
    last_dot : bool
        The rule for keys that counts and rows were made by.
    seed : bytes
        Of the keys' hash; 16 of them.
    rows : uint64 [samples], or None
        The table of keys, sorted; None for none.
    """
    names = [os.fsencode(shard.name) for shard in shards]
    ends, end = [], 0
    for name in names:
        end += len(name)
        ends.append(end)
    columns = {
        "shard_bytes": _packed("Q", [shard.shard_bytes for shard in shards]),
        "devices": _packed("Q", [shard.identity.device for shard in shards]),
        "inodes": _packed("Q", [shard.identity.inode for shard in shards]),
        "ctimes": _packed("q", [shard.identity.ctime_ns for shard in shards]),
        "mtimes": _packed("q", [shard.identity.mtime_ns for shard in shards]),
        "fingerprints": b"".join(shard.fingerprint for shard in shards),
        "samples": _packed("Q", [shard.samples for shard in shards]),
        "members": _packed("Q", [shard.members for shard in shards]),
        "data_bytes": _packed("Q", [shard.data_bytes for shard in shards]),
        "name_ends": _packed("Q", ends),
        "names": b"".join(names),
    }
    places = _places(len(shards), end)
    table = bytearray(places["rows"] - HEADER.size)
    for column, data in columns.items():
        at = places[column] - HEADER.size
        table[at : at + len(data)] = data
    keys = b"" if rows is None else rows.tobytes()
    packed = HEADER.pack(
        MAGIC,
        VERSION,
        LAST_DOT * last_dot | HAS_KEYS * (rows is not None),
        places["rows"] + len(keys),
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


def _packed(form: str, numbers: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}{form}", *numbers)
