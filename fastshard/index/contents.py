"""The members that an index or a scan lists, and warnings about indexes."""

from __future__ import annotations

import warnings
from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from fastshard._core.table.extents import ExtentTable
from fastshard._core.table.grouping import IndexMemory, borrow_table
from fastshard.errors import FormatError, StaleIndexError, StaleIndexWarning

if TYPE_CHECKING:
    from fastshard._core.table.extents import ExtentTable
    from fastshard._core.table.grouping import Grouping

__all__ = [
    "NO_IDENTITY",
    "Contents",
    "Extent",
    "FileIdentity",
    "build_table",
    "warn_ignored_index",
    "warn_old_version",
]


Extent = tuple[int, int, bytes]  # offset, size, name


class FileIdentity(NamedTuple):
    """Identity of a file, which no copy keeps; zeros where it is not known."""

    device: int
    inode: int
    ctime_ns: int  # when anything of it was last changed, ns since 1970
    mtime_ns: int  # when it was last written to


NO_IDENTITY = FileIdentity(0, 0, 0, 0)


def build_table(extents: Sequence[Extent], path: str) -> ExtentTable:
    """Return a table of extents that were checked; it is in the shard's order.

    Parameters
    ----------
    extents : sequence of (offset, size, name)
        In any order; names are bytes, as tar stores them.
    path : str
        The index, for messages.
    """
    ordered = sorted(extents, key=lambda extent: extent[0])
    count = len(ordered)
    names = [name for _, _, name in ordered]
    columns = (
        array("Q", [offset for offset, _, _ in ordered]),
        array("Q", [size for _, size, _ in ordered]),
        array("Q", accumulate(map(len, names))),
    )
    raw = b"".join(column.tobytes() for column in columns) + b"".join(names)
    width = 8 * count
    return borrow_table(
        IndexMemory(raw, path),
        count,
        0,
        width,
        2 * width,
        3 * width,
        len(raw) - 3 * width,
        0,
        0,
        0,
    )


class Contents:
    """What is known of a shard, whoever told it.

    Attributes
    ----------
    table : ExtentTable
        The members, in the shard's order.
    grouping : Grouping or None
        The samples, where an index lists them by the rule asked for.
    end : int or None
        Where the archive ends, bytes; None where an index does not say.
    skipped : Mapping of str to int, or None
        How many of each kind are stored that are no members; None likewise.
    index : str or None
        The index that told it; None for a scan.
    fingerprint : bytes or None
        Of the shard, where a binary index that is of it records one.
    """

    __slots__ = ("end", "fingerprint", "grouping", "index", "skipped", "table")

    def __init__(
        self,
        table: ExtentTable,
        grouping: Grouping | None = None,
        end: int | None = None,
        skipped: Mapping[str, int] | None = None,
        index: str | None = None,
    ) -> None:
        self.table = table
        self.grouping = grouping
        self.end = end
        self.skipped = skipped
        self.index = index
        self.fingerprint: bytes | None = None


_told = False  # of an old index, in this process


def warn_ignored_index(error: FormatError) -> None:
    """Warn where the function's caller's callers open a shard or a dataset."""
    what = "stale" if isinstance(error, StaleIndexError) else "broken"
    warnings.warn(f"{what} index: {error}", StaleIndexWarning, stacklevel=5)


def warn_old_version(path: str) -> None:
    """Warn once in a process of an index of the format's version 1, which is read."""
    global _told
    if _told:
        return
    _told = True
    warnings.warn(
        f"old index: {path} is of version 1 of its format, and so are others perhaps; "
        "they are read, and their shards' headers compared; "
        "renew them with: fastshard index",
        StaleIndexWarning,
        stacklevel=5,
    )
