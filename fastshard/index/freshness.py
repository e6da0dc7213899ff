"""Whether an index still is of the shard beside it.

A size that differs says no; the same size and time of writing say yes. A time
that differs says nothing, for every copy and download changes it: then a few of
the shard's headers decide.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from fastshard._core.probe import first_changed
from fastshard.errors import FormatError, StaleIndexError

if TYPE_CHECKING:
    from fastshard._core.extents import ExtentTable
    from fastshard._core.source import LocalFile
    from fastshard.index.binary import Header
    from fastshard.sources.remote import RemoteFile

__all__ = ["check_binary", "check_listed", "fingerprint_of", "spread"]

BLOCK = 512  # bytes of a header
LOOKS = 16  # headers that are looked at


def spread(count: int) -> list[int]:
    """Return positions of at most 16 members: first, last, evenly between."""
    if count <= LOOKS:
        return list(range(count))
    return [i * (count - 1) // (LOOKS - 1) for i in range(LOOKS)]


def fingerprint_of(file: LocalFile | RemoteFile, table: ExtentTable) -> bytes:
    """Hash the file's first block and 16 headers: BLAKE2b, 16 bytes.

    A header is the 512 bytes before a member's data. Each is hashed behind the
    member's offset and size (u64, little-endian).

    Raises
    ------
    FormatError
        The table points outside the file.
    """
    extents = [table.extent(i) for i in spread(len(table))]
    for offset, size in extents:
        if offset < BLOCK or offset > file.nbytes or size > file.nbytes - offset:
            raise FormatError("an extent reaches beyond the shard", file.path, offset)
    blocks = [(0, min(BLOCK, file.nbytes))]
    blocks += [(offset - BLOCK, BLOCK) for offset, _ in extents]
    found = file.read_many(blocks)
    for (at, due), data in zip(blocks, found, strict=True):
        if len(data) != due:
            raise FormatError("the file ends here", file.path, at + len(data))
    hashed = hashlib.blake2b(found[0], digest_size=16)
    for (offset, size), data in zip(extents, found[1:], strict=True):
        hashed.update(offset.to_bytes(8, "little") + size.to_bytes(8, "little"))
        hashed.update(data)
    return hashed.digest()


def check_binary(
    path: str, header: Header, file: LocalFile | RemoteFile, table: ExtentTable
) -> None:
    """Raise `StaleIndexError` unless a binary index is of this file."""
    check_size(path, header.shard_bytes, file)
    if header.mtime_ns == file.mtime_ns:
        return
    try:
        same = fingerprint_of(file, table) == header.fingerprint
    except FormatError:
        same = False
    if not same:
        raise StaleIndexError(
            f"{file.path} was written to after the index was made", path, 32
        )


def check_size(path: str, recorded: int, file: LocalFile | RemoteFile) -> None:
    if recorded != file.nbytes:
        raise StaleIndexError(
            f"made for a shard of {recorded:,} bytes; {file.path} has {file.nbytes:,}",
            path,
            0,
        )


def check_listed(
    path: str, recorded: int | None, file: LocalFile | RemoteFile, table: ExtentTable
) -> None:
    """Raise `StaleIndexError` unless headers are where an index says.

    For indexes that record no time and no fingerprint.
    """
    if recorded is not None:
        check_size(path, recorded, file)
    if not len(table) and file.nbytes > 2 * BLOCK and recorded is None:
        raise StaleIndexError(f"lists nothing of {file.path}", path, 0)
    i = first_changed(file, table, spread(len(table)))
    if i >= 0:
        offset, size = table.extent(i)
        raise StaleIndexError(
            f"{file.path} has no member {table.name_of(i)!r} of {size:,} bytes "
            f"at byte {offset:,}",
            path,
            0,
        )
