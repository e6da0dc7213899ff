"""Contents of a shard, from an index or a scan, and warnings about indexes."""

from __future__ import annotations

import warnings
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from fastshard._core.table.extents import order_extents
from fastshard._core.table.grouping import IndexMemory, borrow_table
from fastshard.errors import FormatError, StaleIndexError, StaleIndexWarning

if TYPE_CHECKING:
    from fastshard._core.parse.tar import Scan, UnreadLink
    from fastshard._core.table.extents import ExtentTable
    from fastshard._core.table.grouping import Grouping

__all__ = [
    "LINKS",
    "NO_IDENTITY",
    "Contents",
    "FileIdentity",
    "ForeignFileError",
    "IndexWarnings",
    "NamedExtent",
    "Warn",
    "build_table",
    "describe_link",
    "warn_ignored_index",
    "warn_old_version",
]


NamedExtent = tuple[int, int, bytes]  # offset, size, name
Warn = Callable[[FormatError], None]  # called with the error of an ignored index


class FileIdentity(NamedTuple):
    """Identity of a file, which a copy does not share; zeros where unknown."""

    device: int
    inode: int
    ctime_ns: int  # last change of its bytes or its inode, ns since 1970
    mtime_ns: int  # last write, ns since 1970


NO_IDENTITY = FileIdentity(0, 0, 0, 0)
LINKS = "hard link", "symbolic link"  # kinds of entries


def describe_link(link: UnreadLink) -> str:
    """Return the name, kind and target of a link."""
    return f"{link.name!r}, a {link.kind} to {link.target!r}"


def build_table(extents: Sequence[NamedExtent], path: str) -> ExtentTable:
    """Return a table of checked extents, in the shard's order."""
    ordered = order_extents(list(extents))
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


class ForeignFileError(FormatError):
    """A file with the name of an index, from another tool."""


class Contents:
    """Contents of a shard, as an index or a scan lists them.

    Attributes
    ----------
    table : ExtentTable
        The members, in the shard's order.
    grouping : Grouping or None
        The samples, if an index groups them by the requested rule.
    end : int or None
        End of the archive in bytes; None if the index does not record it.
    skipped : Mapping of str to int, or None
        Number of archive entries that are not members, by kind; None if the index
        does not record it.
    index : str or None
        Path of the index; None for a scan.
    fingerprint : bytes or None
        Fingerprint of the shard, from a fresh binary index.
    unread : sequence of UnreadLink
        Links that lead to no member, the first 100 of them; empty for an index.
    lone_zeros : int or None
        Offset of the first lone block of zeros before a header; None for an index.
    """

    __slots__ = (
        "end",
        "fingerprint",
        "grouping",
        "index",
        "lone_zeros",
        "skipped",
        "table",
        "unread",
    )

    def __init__(
        self,
        table: ExtentTable,
        grouping: Grouping | None = None,
        end: int | None = None,
        skipped: Mapping[str, int] | None = None,
        index: str | None = None,
    ) -> None:
        self.table: ExtentTable = table
        self.grouping: Grouping | None = grouping
        self.end: int | None = end
        self.skipped: Mapping[str, int] | None = skipped
        self.index: str | None = index
        self.fingerprint: bytes | None = None
        self.unread: Sequence[UnreadLink] = ()
        self.lone_zeros: int | None = None

    @classmethod
    def of_scan(cls, scan: Scan) -> Contents:
        """Return the contents that a scan found."""
        contents = cls(scan.table, end=scan.end, skipped=MappingProxyType(scan.skipped))
        contents.unread, contents.lone_zeros = scan.unread, scan.lone_zeros
        return contents

    @property
    def unread_links(self) -> int:
        """Number of links that lead to no member; 0 if unknown."""
        skipped = self.skipped
        return sum(skipped.get(kind, 0) for kind in LINKS) if skipped else 0

    def describe_unread(self) -> str:
        """Return a sentence about unread links and zeros, or ""."""
        parts = []
        if count := self.unread_links:
            links = "1 link leads" if count == 1 else f"{count:,} links lead"
            shown = "listed by fastshard verify"
            if self.unread:
                shown = f"such as {describe_link(self.unread[0])}"
            parts.append(
                f"{links} to no member of the archive and cannot be read, {shown}"
            )
            if "symbolic link" in (self.skipped or ()):
                parts[-1] += ": tar -h stores the files themselves"
        if self.lone_zeros is not None:
            parts.append(
                f"a lone block of zeros at byte {self.lone_zeros:,} stands before "
                "further members, where other readers end"
            )
        return "; ".join(parts)


_has_warned = False  # whether this process warned of an old index


def warn_ignored_index(error: FormatError) -> None:
    """Warn of a stale or damaged index, at the caller who opens the shard."""
    what = "stale" if isinstance(error, StaleIndexError) else "broken"
    warnings.warn(f"{what} index: {error}", StaleIndexWarning, stacklevel=5)


class IndexWarnings:
    """Warnings of the ignored indexes of one dataset; a `Warn`.

    Of files of other tools with the names of indexes there is one warning.
    """

    def __init__(self, shards: int, count: Callable[[], int] = lambda: 0) -> None:
        self._shards = shards
        self._count = count
        self._unwarned = [True]  # the thread that pops it warns

    def __call__(self, error: FormatError) -> None:
        """Warn of an ignored index, unless a file of another tool was warned of."""
        if not isinstance(error, ForeignFileError):
            warn_ignored_index(error)
            return
        with suppress(IndexError):
            self._unwarned.pop()
            text = f"not an index: {error}"
            if count := self._count():
                text += f"; {count:,} of {self._shards:,} shards have such a file"
            text += "; further ones are passed over without a warning"
            warnings.warn(text, StaleIndexWarning, stacklevel=6)


def warn_old_version(path: str) -> None:
    """Warn of an index of version 1 of the format, once in a process."""
    global _has_warned
    if _has_warned:
        return
    _has_warned = True
    warnings.warn(
        f"old index: {path} has version 1 of its format, and other indexes may too; "
        "they can be read, but opening compares headers of their shards; "
        "renew them with: fastshard index",
        StaleIndexWarning,
        stacklevel=5,
    )
