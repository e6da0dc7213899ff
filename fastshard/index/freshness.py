"""Freshness of indexes and of open shards: identity, fingerprint, header checks."""

from __future__ import annotations

import os
from array import array
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING

from fastshard._core.io.source import LocalFile, Source
from fastshard._core.parse.tar import HeaderWalk, find_mismatches, scan_until_fault
from fastshard._util.files import wait_for_tick
from fastshard.errors import FormatError, StaleIndexError, StaleShardError
from fastshard.index.contents import FileIdentity

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fastshard._core.table.extents import ExtentTable
    from fastshard.index.binary import Header
    from fastshard.remote.file import RemoteFile

__all__ = [
    "FileVersion",
    "FirstVersions",
    "Opening",
    "check_binary",
    "check_size_and_headers",
    "compute_fingerprint",
    "find_first_changed",
    "identify_file",
    "is_present",
    "is_same_file",
    "settle_identity",
    "spread_positions",
    "version_of",
]

FileVersion = tuple[int, int]  # hashes; equal ones in either place mean the same bytes

BLOCK = 512  # bytes of a header
FINGERPRINT_HEADERS = 16  # headers in a fingerprint, the same on each check
RANDOM_HEADERS = 8  # further headers to compare, chosen anew on each check
WINDOW = 4 << 10  # bytes of a read among headers
MAX_FOLLOWING = 16  # headers read behind the last listed member
MAX_GLOBAL = 64 << 10  # bytes at the start of a shard to search for global headers
LOOK_BACK = 64  # members searched for the nearest one before a member


def identify_file(file: LocalFile | os.stat_result | RemoteFile) -> FileIdentity:
    """Return the identity of a file; of a remote one only its modification time."""
    if isinstance(file, LocalFile):
        return FileIdentity(file.device, file.inode, file.ctime_ns, file.mtime_ns)
    if isinstance(file, os.stat_result):
        return FileIdentity(
            file.st_dev, file.st_ino, file.st_ctime_ns, file.st_mtime_ns
        )
    return FileIdentity(0, 0, 0, file.mtime_ns)


def is_same_file(recorded: FileIdentity, found: FileIdentity) -> bool:
    """Return whether a file is the recorded one, unchanged."""
    return recorded == found and recorded.inode != 0


def version_of(file: LocalFile | os.stat_result | RemoteFile) -> FileVersion:
    """Return the version of a file: by its inode, and by its time of change (ctime).

    Either may differ for the same bytes: chmod, links and renames change the ctime,
    and some network file systems give a file a new inode when it is looked up again.
    A remote file has size and tag; replicas may differ in its time.
    """
    if isinstance(file, LocalFile):
        nbytes = file.nbytes
    elif isinstance(file, os.stat_result):
        nbytes = file.st_size
    else:
        remote = hash((file.nbytes, file.tag))
        return remote, remote
    device, inode, ctime_ns, mtime_ns = identify_file(file)
    return hash((nbytes, mtime_ns, device, inode)), hash((nbytes, mtime_ns, ctime_ns))


class FirstVersions:
    """Versions of the files of shards when they were first opened, 16 bytes each."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._hashes: array[int] | None = None  # two for each shard; 0: not opened yet

    def opening(self, k: int) -> Opening:
        """Return a check for an opening of shard `k`."""
        return Opening(self, k)

    def check(self, k: int, path: str, version: FileVersion) -> None:
        """Raise StaleShardError if shard `k` was another file before."""
        if self._hashes is None:
            return
        first = tuple(self._hashes[2 * k : 2 * k + 2])
        if any(first) and first[0] != version[0] and first[1] != version[1]:
            raise StaleShardError(
                "replaced or written to since the dataset first opened it: open the "
                "dataset again",
                path,
                0,
            )

    def record(self, k: int, version: FileVersion) -> None:
        """Record the version of shard `k`, unless it has one."""
        if self._hashes is None:
            self._hashes = array("q", bytes(16 * self._count))
        if not any(self._hashes[2 * k : 2 * k + 2]):
            self._hashes[2 * k : 2 * k + 2] = array("q", version)


class Opening:
    """Check of the file at one opening of a shard; see `FirstVersions`."""

    def __init__(self, first: FirstVersions, k: int) -> None:
        self._first = first
        self._k = k
        self._found: tuple[str, FileVersion] | None = None

    def check(self, path: str, version: FileVersion) -> None:
        """Raise StaleShardError if the file is not the one that was opened first."""
        self._found = path, version
        self._first.check(self._k, path, version)

    def settle(self) -> None:
        """Record the file as the first version, after an opening without a fault."""
        if self._found is not None:
            self._first.check(self._k, *self._found)
            self._first.record(self._k, self._found[1])


def settle_identity(file: LocalFile | RemoteFile) -> FileIdentity:
    """Wait until any later write changes a file's identity, and return the identity.

    Many file systems take timestamps from a clock that ticks every 1 to 10 ms: a
    second write within one tick leaves the times as they are. The wait ends with the
    tick of the file's last change, or after 20 ms.
    """
    identity = identify_file(file)
    if not isinstance(file, LocalFile) or not wait_for_tick(identity.ctime_ns):
        return identity
    status = os.stat(file.path)
    if (status.st_size, identify_file(status)) != (file.nbytes, identity):
        raise StaleIndexError("written to while its index was made", file.path, 0)
    return identity


def spread_positions(count: int) -> list[int]:
    """Return positions of at most 16 members: first, last, and evenly between."""
    if count <= FINGERPRINT_HEADERS:
        return list(range(count))
    last = FINGERPRINT_HEADERS - 1
    return [i * (count - 1) // last for i in range(FINGERPRINT_HEADERS)]


def random_positions(count: int) -> list[int]:
    """Return up to 8 unpredictable positions; none if the fingerprint has all."""
    if count <= FINGERPRINT_HEADERS:
        return []
    raw = os.urandom(8 * RANDOM_HEADERS)
    numbers = (int.from_bytes(raw[k : k + 8], "little") for k in range(0, len(raw), 8))
    return sorted({number % count for number in numbers})


def extra_positions(file: LocalFile | RemoteFile, count: int) -> list[int]:
    """Return members whose headers are compared in addition to the fingerprint's.

    None of a remote shard: each header would cost a request that no cache saves.
    """
    return random_positions(count) if isinstance(file, LocalFile) else []


def compute_fingerprint(
    file: LocalFile | RemoteFile,
    table: ExtentTable,
    end: int | None = None,
    index: str = "",
) -> bytes:
    """Return the BLAKE2b hash, 16 bytes, of a file's first block and some headers.

    The headers are those of `spread_positions`, at most 16: the 512 bytes before a
    member's data. Each is preceded in the hash by the member's offset and size (u64,
    little-endian). With `end`, the end of the archive that `index` records, the two
    blocks of zeros before it are read too.
    """
    from hashlib import blake2b

    extents = [table.extent(i) for i in spread_positions(len(table))]
    for offset, size in extents:
        if offset < BLOCK or offset > file.nbytes or size > file.nbytes - offset:
            raise FormatError("an extent reaches beyond the shard", file.path, offset)
    blocks = [(0, min(BLOCK, file.nbytes))]
    blocks += [(offset - BLOCK, BLOCK) for offset, _ in extents]
    if end is not None and end >= 3 * BLOCK:
        blocks.append((end - 2 * BLOCK, 2 * BLOCK))
    found = file.read_many(blocks)
    for (at, size), data in zip(blocks, found, strict=True):
        if len(data) != size:
            raise FormatError("unexpected end of file", file.path, at + len(data))
    if len(found) > len(extents) + 1 and any(found.pop()):
        _check_end(index, file, table)
    hashed = blake2b(found[0], digest_size=16)
    for (offset, size), data in zip(extents, found[1:], strict=True):
        hashed.update(offset.to_bytes(8, "little") + size.to_bytes(8, "little"))
        hashed.update(data)
    return hashed.digest()


def check_binary(
    path: str, header: Header, file: LocalFile | RemoteFile, table: ExtentTable
) -> None:
    """Raise StaleIndexError unless a binary index describes this file.

    If the file's identity differs, as after a copy, its fingerprint and some further
    headers decide; each other header is compared at its member's first use.
    """
    check_size(path, header.shard_bytes, file)
    if is_same_file(header.identity, identify_file(file)):
        return
    try:
        found = compute_fingerprint(file, table, header.end, path)
        same = found == header.fingerprint
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
    check_headers(path, file, table, extra_positions(file, len(table)))


def check_size(path: str, recorded: int, file: LocalFile | RemoteFile) -> None:
    if recorded != file.nbytes:
        raise StaleIndexError(
            f"made for a shard of {recorded:,} bytes; {file.path} has {file.nbytes:,}",
            path,
            0,
        )


def check_size_and_headers(
    path: str,
    recorded: int | None,
    file: LocalFile | RemoteFile,
    table: ExtentTable,
    is_listed: Callable[[str], bool] = lambda name: True,
) -> None:
    """Raise StaleIndexError unless size and headers agree with an index.

    For formats that record neither identity nor fingerprint.
    """
    if recorded is not None:
        check_size(path, recorded, file)
    if not len(table) and file.nbytes > 2 * BLOCK and recorded is None:
        raise StaleIndexError(f"lists no member of {file.path}", path, 0)
    chosen = {*spread_positions(len(table)), *extra_positions(file, len(table))}
    check_headers(path, file, table, sorted(chosen))
    if recorded is None or isinstance(file, LocalFile):  # else a request more
        _check_end(path, file, table, is_listed)


def _check_end(
    path: str,
    file: LocalFile | RemoteFile,
    table: ExtentTable,
    is_listed: Callable[[str], bool] = lambda name: True,
) -> None:
    """Raise StaleIndexError if another member follows the last one of a table."""
    count = len(table)
    if not count:
        return
    # The last ones may be links to members before them.
    ends = (sum(table.extent(i)) for i in range(max(count - LOOK_BACK, 0), count))
    end = -(-max(ends) // BLOCK) * BLOCK
    walk = HeaderWalk(file.nbytes, end, file.path)
    with suppress(FormatError):  # no header: a cut archive, or another one
        for _ in range(MAX_FOLLOWING):
            _advance(walk, _get_reader(file), walk.at + 1)
            if walk.ended:
                break
    found = walk.table()
    for i in range(len(found)):
        if found.extent(i)[0] > end and is_listed(found.name_of(i)):
            raise StaleIndexError(
                f"does not list the member {found.name_of(i)!r} of {file.path}, which "
                f"follows the last one that it lists, at byte {end:,}",
                path,
                0,
            )


def check_headers(
    path: str,
    file: LocalFile | RemoteFile,
    table: ExtentTable,
    positions: Sequence[int],
) -> None:
    """Raise StaleIndexError unless the headers at `positions` are as the table says.

    The others are compared at their members' first use.
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
    """Return the first of `positions` whose member differs from the table, or -1."""
    for i in find_mismatches(file, table, positions):
        if not is_present(table, i, file):
            return i
    return -1


def is_present(
    table: ExtentTable, i: int, source: LocalFile | RemoteFile | Source
) -> bool:
    """Return whether a member is at its place in the table, by extension headers too.

    The block before the data need not have the member's name and size; an extension
    header may give them: the member's own, behind the previous member, or a global one,
    usually at the start of the archive. A global header elsewhere is found by comparing
    all headers, once, but not in remote shards.

    A link has the extent of its target, whose headers stand before the data. They
    suffice at opening; at its first use, through a `Source`, all headers are compared.
    """
    offset, _ = table.extent(i)
    if offset % BLOCK or offset > source.nbytes:
        return False
    read = _get_reader(source)
    twins = [] if isinstance(source, Source) else table.twins(i)
    try:
        if _has_headers_before(table, [i, *twins], source, read):
            return True
    except FormatError:
        return False
    if not isinstance(source, (LocalFile, Source)) or table.scanned:
        return table.is_verified(i)
    return i in _compare_all(table, read, source)


def _has_headers_before(
    table: ExtentTable,
    names: Sequence[int],
    source: LocalFile | RemoteFile | Source,
    read: Callable[[int, int], bytes],
) -> bool:
    """Return whether the headers before a member's data have one of these names.

    `names` are positions of members with this extent.
    """
    offset, _ = table.extent(names[0])
    start = _end_before(table, names[0], offset)
    if start + BLOCK > offset:
        return False
    walk = HeaderWalk(source.nbytes, start, source.path)
    _advance(walk, read, offset)
    if _ends_with_member(walk, table, names):
        return True
    walk = HeaderWalk(source.nbytes, 0, source.path)
    _advance(walk, read, min(table.extent(0)[0], MAX_GLOBAL))
    if not walk.has_global or walk.at > start:
        return False
    walk.jump_to(start)
    _advance(walk, read, offset)
    return _ends_with_member(walk, table, names)


def _end_before(table: ExtentTable, i: int, offset: int) -> int:
    """Return the nearest end of a member before a member's headers.

    The member before it may be a link, whose data is anywhere.
    """
    nearest = 0
    for k in range(max(i - LOOK_BACK, 0), i):
        end = -(-sum(table.extent(k)) // BLOCK) * BLOCK
        if end + BLOCK <= offset:
            nearest = max(nearest, end)
    return nearest


def _get_reader(
    source: LocalFile | RemoteFile | Source,
) -> Callable[[int, int], bytes]:
    if isinstance(source, LocalFile):
        return lambda offset, size: source.read_many([(offset, size)])[0]
    return source.read


def _advance(walk: HeaderWalk, read: Callable[[int, int], bytes], stop: int) -> None:
    """Walk to the first header at or after `stop`, or to the archive's end."""
    window, start = b"", 0
    while (need := walk.advance(window, start, stop)) is not None:
        start, size = need
        window = read(start, min(max(size, WINDOW), walk.nbytes - start))
        if len(window) < size:
            raise FormatError("unexpected end of file", walk.path, start + len(window))


def _ends_with_member(
    walk: HeaderWalk, table: ExtentTable, names: Sequence[int]
) -> bool:
    """Return whether the last member of a walk is among some members of a table."""
    found = walk.table()
    if not len(found):
        return False
    last = len(found) - 1
    name = found.name_of(last)
    return found.extent(last) == table.extent(names[0]) and any(
        is_same_name(table.name_of(i), name) for i in names
    )


def is_same_name(listed: str, found: str) -> bool:
    """Return whether a name matches an index, which may omit a leading ``./``.

    A name that is not UTF-8 matches any: other tools write it in ways of their own.
    """
    listed, found = listed.removeprefix("./"), found.removeprefix("./")
    if listed == found:
        return True
    return "\ufffd" in listed or any("\udc80" <= c <= "\udcff" for c in found)


def _compare_all(
    table: ExtentTable,
    read: Callable[[int, int], bytes],
    source: LocalFile | Source,
) -> set[int]:
    """Compare all headers with a table; mark the members found, and return them."""
    if isinstance(source, LocalFile):
        found = scan_until_fault(source, links=True)[0]
    else:
        walk = HeaderWalk(source.nbytes, 0, source.path)
        with suppress(FormatError):  # keep the members before the fault
            _advance(walk, read, source.nbytes + 1)
        found = walk.scan().table
    table.scanned = table.index is not None
    names = defaultdict(list)  # several where there are links
    for k in range(len(found)):
        names[found.extent(k)].append(found.name_of(k))
    present = set()
    for i in range(len(table)):
        found_names = names.get(table.extent(i), ())
        if any(is_same_name(table.name_of(i), name) for name in found_names):
            table.mark_verified(i)
            present.add(i)
    return present
