"""The shard index of Megatron-Energon, ``.tar.idx``.

An array of little-endian u64 without a header: the offset of each sample's first header
(including extension headers), then the offset of the end-of-archive blocks. A sample is
a run of consecutive members with the same key. The file has no names and no sizes, so
reading it requires a scan of the shard. Links have no data behind their headers and
are not listed; the scan finds them.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator
from itertools import groupby
from operator import itemgetter

from fastshard._core.io.source import LocalFile, PreadSource
from fastshard._core.parse.tar import scan_header_starts, scan_tar
from fastshard._core.table.extents import ExtentTable
from fastshard._util.files import replace_file
from fastshard.errors import FormatError, StaleIndexError
from fastshard.index.contents import Contents

__all__ = ["read_energon", "write_energon"]

Progress = Callable[[int], object]

BLOCK = 512  # bytes
WIDTH = 8  # bytes of an offset
# Energon's rules for names, the same as WebDataset's.
SAMPLE_NAME = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")
META_NAME = re.compile(r"__[^/]*__($|/)")


def read_energon(
    path: str, file: LocalFile, progress: Progress | None = None
) -> Contents:
    """Read an Energon index: scan the shard, and compare the samples' offsets."""
    with LocalFile(path) as index:
        raw = PreadSource(index).read(0, index.nbytes)
    if not raw or len(raw) % WIDTH:
        reason = f"expected offsets of 8 bytes each, got {len(raw):,} bytes"
        raise FormatError(reason, path, len(raw))
    contents = Contents.of_scan(scan_tar(file, progress))
    expected = _pack(_sample_starts(contents.table, file, path, progress))
    if raw != expected:
        reason = f"samples of {file.path} begin at other offsets"
        raise StaleIndexError(reason, path, _first_difference(raw, expected))
    contents.index = path
    return contents


def _first_difference(raw: bytes, expected: bytes) -> int:
    """Return the byte offset of the first differing entry."""
    pairs = zip(array("Q", raw), array("Q", expected), strict=False)
    same = (i for i, (one, other) in enumerate(pairs) if one != other)
    return WIDTH * next(same, min(len(raw), len(expected)) // WIDTH)


def _sample_starts(
    table: ExtentTable, file: LocalFile, index: str, progress: Progress | None
) -> list[int]:
    """Return the offset of each sample's first header, and of the archive's end."""
    regular, raw, end = scan_header_starts(file, progress)
    _check_regular(table, regular, file, index)
    keyed = zip(_member_keys(regular), array("Q", raw), strict=True)
    members = [(key, start) for key, start in keyed if key is not None]
    runs = groupby(members, key=itemgetter(0))
    return [*(next(run)[1] for _, run in runs), end]


def _check_regular(
    table: ExtentTable, regular: ExtentTable, file: LocalFile, index: str
) -> None:
    """Raise StaleIndexError unless a table lists a shard's regular members, and links.

    A link has the extent of a regular member.
    """
    extents = {regular.extent(i) for i in range(len(regular))}
    listed = set()
    for i in range(len(table)):
        offset, size = table.extent(i)
        if (offset, size) not in extents:
            reason = f"{file.path} has no member of {size:,} bytes at byte {offset:,}"
            raise StaleIndexError(reason, index, 0, table.name_of(i))
        listed.add((offset, size))
    if listed != extents:
        reason = f"lists {len(listed):,} members, but {file.path} has {len(extents):,}"
        raise StaleIndexError(reason, index, 0)


def _member_keys(table: ExtentTable) -> Iterator[str | None]:
    """Yield each member's key, or None if it belongs to no sample."""
    for i in range(len(table)):
        name = table.name_of(i)
        found = SAMPLE_NAME.match(name)
        yield None if found is None or META_NAME.match(name) else found.group(1)


def _pack(offsets: list[int]) -> bytes:
    return b"".join(offset.to_bytes(WIDTH, "little") for offset in offsets)


def write_energon(
    path: str, contents: Contents, file: LocalFile, progress: Progress | None = None
) -> None:
    """Write an Energon index, byte for byte as Energon writes it."""
    shown = contents.index or file.path
    starts = _sample_starts(contents.table, file, shown, progress)
    with replace_file(path) as index:
        index.write(_pack(starts))
