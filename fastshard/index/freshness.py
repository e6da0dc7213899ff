"""Checks that an index is of the shard beside it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from fastshard._core.io.source import LocalFile, PreadSource, Source
from fastshard._core.parse.tar import HeaderWalk, find_mismatches, scan_until_fault
from fastshard.errors import FormatError, StaleIndexError
from fastshard.index.contents import FileIdentity

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fastshard._core.table.extents import ExtentTable
    from fastshard.index.binary import Header
    from fastshard.remote.file import RemoteFile

__all__ = [
    "Hashes",
    "check_binary",
    "check_size_and_headers",
    "compute_fingerprint",
    "compute_hashes",
    "find_first_changed",
    "identify_file",
    "is_present",
    "is_same_file",
    "settle_identity",
    "spread_positions",
]


CHUNK = 1 << 20  # bytes read at once


class Hashes(NamedTuple):
    """Checksums, in hexadecimal.

    Attributes
    ----------
    hash : str
        SHA-1 of the shard as a git blob, as the Hub names small files.
    hash_lfs : str
        SHA-256 of the shard, as the Hub names large files.
    sha256 : list of str
        SHA-256 of each member.
    """

    hash: str
    hash_lfs: str
    sha256: list[str]

    def infos(self, table: ExtentTable) -> list[bytes]:
        """Return each member's info with its checksum in it, as JSON."""
        import json

        from fastshard.index.jsonfile import parse_info

        return [
            json.dumps(parse_info(table.info(i)) | {"sha256": digest}).encode()
            for i, digest in enumerate(self.sha256)
        ]


def compute_hashes(
    file: LocalFile,
    table: ExtentTable,
    progress: Callable[[int], object] | None = None,
) -> Hashes:
    """Read a shard twice: hash it, and its members.

    Parameters
    ----------
    file : LocalFile
    table : ExtentTable
    progress : callable, optional
        Called for each MiB, with the part that is done, scaled to the shard's bytes.
        What it raises ends the work.

    Raises
    ------
    FormatError
        The table points outside the file, or the file shrank.
    OSError
        Reading failed.
    """
    import hashlib

    source = PreadSource(file)
    progress = progress or (lambda done: None)
    blob = hashlib.sha1(b"blob %d\0" % file.nbytes, usedforsecurity=False)
    whole = hashlib.sha256()
    for at in range(0, file.nbytes, CHUNK):
        chunk = source.read(at, min(CHUNK, file.nbytes - at))
        blob.update(chunk)
        whole.update(chunk)
        progress((at + len(chunk)) // 2)
    members = []
    for i in range(len(table)):
        offset, size = table.extent(i)
        digest = hashlib.sha256()
        for at in range(0, size, CHUNK):
            digest.update(source.read(offset + at, min(CHUNK, size - at)))
            progress((file.nbytes + offset + at) // 2)
        members.append(digest.hexdigest())
    return Hashes(blob.hexdigest(), whole.hexdigest(), members)


BLOCK = 512  # bytes of a header
LOOKS = 16  # headers that are looked at, always the same
LOOKS_ANEW = 8  # headers that are chosen anew each time
WINDOW = 4 << 10  # bytes of headers that are read at once
MOST_GLOBAL = 64 << 10  # bytes at the start that are looked at for global headers
CLOCK_REALTIME_COARSE = 5  # <linux/time.h>: the clock of the times of files
LONGEST_TICK = 20_000_000  # ns
TICK_PART = 500_000  # ns


def identify_file(file: LocalFile | os.stat_result | RemoteFile) -> FileIdentity:
    """Return what tells a file from its copies; a remote one has its time alone."""
    if isinstance(file, LocalFile):
        return FileIdentity(file.device, file.inode, file.ctime_ns, file.mtime_ns)
    if isinstance(file, os.stat_result):
        return FileIdentity(
            file.st_dev, file.st_ino, file.st_ctime_ns, file.st_mtime_ns
        )
    return FileIdentity(0, 0, 0, file.mtime_ns)


def is_same_file(recorded: FileIdentity, found: FileIdentity) -> bool:
    """Say whether a file is one that was seen before, and unchanged."""
    return recorded == found and recorded.inode != 0


def settle_identity(file: LocalFile | RemoteFile) -> FileIdentity:
    """Return the identity that an index records, once later writes would change it.

    Many file systems stamp times by a clock that ticks every 1 to 10 ms: a write in
    the tick of the last change would leave the times as they are. That tick is waited
    for.

    Raises
    ------
    StaleIndexError
        The file was changed meanwhile.
    """
    identity = identify_file(file)
    if not isinstance(file, LocalFile) or not _wait_for_tick(identity.ctime_ns):
        return identity
    status = os.stat(file.path)
    if (status.st_size, identify_file(status)) != (file.nbytes, identity):
        raise StaleIndexError("written to while its index was made", file.path, 0)
    return identity


def _wait_for_tick(ctime_ns: int) -> bool:
    """Wait until files get later times than one; say whether that had to be."""
    if sys.platform != "linux":
        return False
    waited = 0
    while waited < LONGEST_TICK and (
        0 <= ctime_ns - time.clock_gettime_ns(CLOCK_REALTIME_COARSE) < LONGEST_TICK
    ):
        time.sleep(TICK_PART / 1e9)
        waited += TICK_PART
    return waited > 0


def spread_positions(count: int) -> list[int]:
    """Return positions of at most 16 members: first, last, evenly between."""
    if count <= LOOKS:
        return list(range(count))
    return [i * (count - 1) // (LOOKS - 1) for i in range(LOOKS)]


def chosen_anew(count: int) -> list[int]:
    """Return positions of some members, which cannot be foreseen."""
    if count <= LOOKS:
        return []
    raw = os.urandom(8 * LOOKS_ANEW)
    numbers = (int.from_bytes(raw[k : k + 8], "little") for k in range(0, len(raw), 8))
    return sorted({number % count for number in numbers})


def looks_of(file: LocalFile | RemoteFile, count: int) -> list[int]:
    """Return which headers are looked at beside those of the fingerprint.

    None of a remote shard: each would be a request, and no cache would have it.
    """
    return chosen_anew(count) if isinstance(file, LocalFile) else []


def compute_fingerprint(file: LocalFile | RemoteFile, table: ExtentTable) -> bytes:
    """Hash the file's first block and 16 headers: BLAKE2b, 16 bytes.

    A header is the 512 bytes before a member's data. Each is hashed behind the
    member's offset and size (u64, little-endian).

    Raises
    ------
    FormatError
        The table points outside the file.
    """
    from hashlib import blake2b

    extents = [table.extent(i) for i in spread_positions(len(table))]
    for offset, size in extents:
        if offset < BLOCK or offset > file.nbytes or size > file.nbytes - offset:
            raise FormatError("an extent reaches beyond the shard", file.path, offset)
    blocks = [(0, min(BLOCK, file.nbytes))]
    blocks += [(offset - BLOCK, BLOCK) for offset, _ in extents]
    found = file.read_many(blocks)
    for (at, due), data in zip(blocks, found, strict=True):
        if len(data) != due:
            raise FormatError("the file ends here", file.path, at + len(data))
    hashed = blake2b(found[0], digest_size=16)
    for (offset, size), data in zip(extents, found[1:], strict=True):
        hashed.update(offset.to_bytes(8, "little") + size.to_bytes(8, "little"))
        hashed.update(data)
    return hashed.digest()


def check_binary(
    path: str, header: Header, file: LocalFile | RemoteFile, table: ExtentTable
) -> None:
    """Raise `StaleIndexError` unless a binary index is of this file.

    The table is in doubt then, where headers had to decide.
    """
    check_size(path, header.shard_bytes, file)
    if is_same_file(header.identity, identify_file(file)):
        return
    try:
        same = compute_fingerprint(file, table) == header.fingerprint
    except StaleIndexError:
        raise
    except FormatError as error:
        if error.path == path:  # the index is damaged
            raise
        same = False
    if not same:
        raise StaleIndexError(
            f"{file.path} was written to after the index was made", path, 32
        )
    check_headers(path, file, table, looks_of(file, len(table)))


def check_size(path: str, recorded: int, file: LocalFile | RemoteFile) -> None:
    if recorded != file.nbytes:
        raise StaleIndexError(
            f"made for a shard of {recorded:,} bytes; {file.path} has {file.nbytes:,}",
            path,
            0,
        )


def check_size_and_headers(
    path: str, recorded: int | None, file: LocalFile | RemoteFile, table: ExtentTable
) -> None:
    """Raise `StaleIndexError` unless headers are where an index says.

    For indexes that record no identity and no fingerprint.
    """
    if recorded is not None:
        check_size(path, recorded, file)
    if not len(table) and file.nbytes > 2 * BLOCK and recorded is None:
        raise StaleIndexError(f"lists nothing of {file.path}", path, 0)
    looks = {*spread_positions(len(table)), *looks_of(file, len(table))}
    check_headers(path, file, table, sorted(looks))


def check_headers(
    path: str,
    file: LocalFile | RemoteFile,
    table: ExtentTable,
    positions: Sequence[int],
) -> None:
    """Raise `StaleIndexError` unless some headers are where an index says.

    The others are compared when their members are first used.
    """
    table.verify_on_use(path, is_present)
    i = find_first_changed(file, table, positions)
    if i >= 0:
        offset, size = table.extent(i)
        raise StaleIndexError(
            f"{file.path} has no member {table.name_of(i)!r} of {size:,} bytes "
            f"at byte {offset:,}",
            path,
            0,
        )


def find_first_changed(
    file: LocalFile | RemoteFile, table: ExtentTable, positions: Sequence[int]
) -> int:
    """Return the first of some members that is not where a table says, or -1."""
    for i in find_mismatches(file, table, positions):
        if not is_present(table, i, file):
            return i
    return -1


def is_present(
    table: ExtentTable, i: int, source: LocalFile | RemoteFile | Source
) -> bool:
    """Say whether a member is where a table says, whatever its own block says.

    An extension header may tell its name and size: one of its own, which stands
    behind the member before it; a global one, which stands first as a rule; or one
    anywhere. For that all headers are compared, once; not those of remote shards.
    """
    offset, _ = table.extent(i)
    start = 0
    if i > 0:
        before, size = table.extent(i - 1)
        start = -(-(before + size) // BLOCK) * BLOCK
    if start + BLOCK > offset or offset % BLOCK or offset > source.nbytes:
        return False
    read = _reader_of(source)
    try:
        walk = HeaderWalk(source.nbytes, start, source.path)
        _go(walk, read, offset)
        if _ends_at(walk, table, i):
            return True
        walk = HeaderWalk(source.nbytes, 0, source.path)
        _go(walk, read, min(table.extent(0)[0], MOST_GLOBAL))
        if walk.has_global and walk.at <= start:
            walk.jump_to(start)
            _go(walk, read, offset)
            if _ends_at(walk, table, i):
                return True
    except FormatError:
        return False
    if not isinstance(source, (LocalFile, Source)) or table.scanned:
        return table.is_verified(i)
    return i in _prove_all(table, read, source)


def _reader_of(
    source: LocalFile | RemoteFile | Source,
) -> Callable[[int, int], bytes]:
    if isinstance(source, LocalFile):
        return lambda offset, size: source.read_many([(offset, size)])[0]
    return source.read


def _go(walk: HeaderWalk, read: Callable[[int, int], bytes], stop: int) -> None:
    """Walk on to a header at or behind `stop`, or to the archive's end."""
    window, start = b"", 0
    while (need := walk.advance(window, start, stop)) is not None:
        start, size = need
        window = read(start, min(max(size, WINDOW), walk.nbytes - start))
        if len(window) < size:
            raise FormatError("the file ends here", walk.path, start + len(window))


def _ends_at(walk: HeaderWalk, table: ExtentTable, i: int) -> bool:
    """Say whether the last member of a walk is one that a table lists."""
    found = walk.table()
    if not len(found):
        return False
    last = len(found) - 1
    return found.extent(last) == table.extent(i) and is_same_name(
        table.name_of(i), found.name_of(last)
    )


def is_same_name(listed: str, found: str) -> bool:
    """Say whether a name is what an index lists, which may lack a leading ``./``.

    Bytes that are no UTF-8 may have become anything in an index that others made.
    """
    listed, found = listed.removeprefix("./"), found.removeprefix("./")
    if listed == found:
        return True
    return "\ufffd" in listed or any("\udc80" <= c <= "\udcff" for c in found)


def _prove_all(
    table: ExtentTable,
    read: Callable[[int, int], bytes],
    source: LocalFile | Source,
) -> set[int]:
    """Compare all headers with a table; return what is there, and in doubt no more."""
    if isinstance(source, LocalFile):
        found = scan_until_fault(source)[0]
    else:
        walk = HeaderWalk(source.nbytes, 0, source.path)
        with suppress(FormatError):  # what stands before the fault counts
            _go(walk, read, source.nbytes + 1)
        found = walk.table()
    table.scanned = table.index is not None
    names = {found.extent(k): found.name_of(k) for k in range(len(found))}
    there = set()
    for i in range(len(table)):
        name = names.get(table.extent(i))
        if name is not None and is_same_name(table.name_of(i), name):
            table.mark_verified(i)
            there.add(i)
    return there
