"""What an index or a scan tells of a tar shard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastshard._core.extents import ExtentTable
    from fastshard._core.grouping import Grouping

__all__ = ["Contents"]


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
