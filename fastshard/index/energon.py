"""Megatron-Energon's index of a shard, ``.tar.idx``.

Little-endian u64, without a header: where each sample's first header begins
(extension headers included), and last where the archive's own end begins. A
sample is a run of neighbours with the same key. It holds no names and no sizes,
so that reading one takes a scan of the shard all the same.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from types import MappingProxyType

from fastshard._core.extents import ExtentTable
from fastshard._core.scan import header_starts, scan_tar
from fastshard._core.source import LocalFile, PreadSource
from fastshard.errors import FastshardError, FormatError, StaleIndexError
from fastshard.files import replacing
from fastshard.index.contents import Contents

__all__ = ["read_energon", "write_energon"]

WIDTH = 8  # bytes of an offset
# Energon's own rules, which are WebDataset's.
SAMPLE_NAME = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")
META_NAME = re.compile(r"__[^/]*__($|/)")


def read_energon(path: str, file: LocalFile) -> Contents:
    """Read an Energon index: scan the shard, and compare.

    Parameters
    ----------
    path : str
    file : LocalFile
        The shard.

    Raises
    ------
    StaleIndexError
        Samples of the shard begin elsewhere.
    FormatError
        It is not made of offsets, or the shard is broken.
    OSError
        It cannot be read.
    """
    with LocalFile(path) as index:
        raw = PreadSource(index).read(0, index.nbytes)
    if not raw or len(raw) % WIDTH:
        raise FormatError("not made of offsets of 8 bytes", path, len(raw))
    table, skipped, end = scan_tar(file)
    expected = _packed(offsets_of(table, file))
    if raw != expected:
        at = next(
            (
                i
                for i in range(0, len(raw), WIDTH)
                if raw[: i + WIDTH] != expected[: i + WIDTH]
            ),
            len(raw),
        )
        raise StaleIndexError(f"samples of {file.path} begin elsewhere", path, at)
    return Contents(table, end=end, skipped=MappingProxyType(skipped), index=path)


def offsets_of(table: ExtentTable, file: LocalFile) -> list[int]:
    """Return where the first headers of samples begin, and the archive's end."""
    starts, end = header_starts(file)
    if len(starts) != WIDTH * len(table):
        raise StaleIndexError("not all of the shard's members", file.path, 0)
    headers = array("Q", starts)
    keyed = zip(_keys(table), headers, strict=True)
    members = [(key, start) for key, start in keyed if key is not None]
    runs = groupby(members, key=itemgetter(0))
    return [*(next(run)[1] for _, run in runs), end]


def _keys(table: ExtentTable) -> Iterator[str | None]:
    """Return each member's key, or None where it belongs to no sample."""
    for i in range(len(table)):
        name = table.name_of(i)
        found = SAMPLE_NAME.match(name)
        yield None if found is None or META_NAME.match(name) else found.group(1)


def _packed(offsets: list[int]) -> bytes:
    return b"".join(offset.to_bytes(WIDTH, "little") for offset in offsets)


def write_energon(path: str, contents: Contents, file: LocalFile) -> None:
    """Write an Energon index; the bytes that its own writer makes of the shard.

    Parameters
    ----------
    path : str
    contents : Contents
    file : LocalFile
        The shard; it is scanned, for an extent does not say where headers begin.

    Raises
    ------
    FastshardError
        The shard has no samples, or `contents` not all of its members.
    OSError
        It cannot be written.
    """
    offsets = offsets_of(contents.table, file)
    if len(offsets) == 1:
        raise FastshardError(
            f"{file.path}: an index of Energon needs a sample at least"
        )
    with replacing(path) as index:
        index.write(_packed(offsets))
