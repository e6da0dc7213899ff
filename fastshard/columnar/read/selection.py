"""Selections of a reader's samples: the rows of a dataset made by a query."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastshard.columnar.read.lookup import RowLookup

if TYPE_CHECKING:
    from fastshard._core.columnar.rows import ColumnSamples
    from fastshard._core.io.paging import PageRing
    from fastshard.columnar.read.snapshot import Snapshot

__all__ = ["RowSelection"]

MAX_CONDITION = 60  # characters of a condition in a dataset's name


class RowSelection:
    """Samples of a reader that satisfied a condition, or all of them."""

    def __init__(
        self,
        snapshot: Snapshot,
        lookup: RowLookup,
        ring: PageRing | None,
        ids: list[str] | None,
        condition: str,
        reduction: tuple[Any, ...],
    ) -> None:
        self.snapshot = snapshot
        self.ring = ring
        self.ids = ids
        self.condition = condition
        self.reduction = reduction
        self._lookup = lookup

    @property
    def count(self) -> int | None:
        """Number of samples, or None for all samples."""
        return None if self.ids is None else len(self.ids)

    def load(self) -> ColumnSamples:
        """Return the samples; loads their rows of the index."""
        lookup, ids = self._lookup, self.ids
        is_current = lookup.generation == self.snapshot.generation
        if not is_current:
            self.snapshot.connect()  # opens the index again after a fork
            lookup = RowLookup(self.snapshot)
        if ids is None or (is_current and len(ids) == lookup.count()):
            return lookup.load()
        return lookup.select(ids)

    def describe(self, name: str) -> str:
        """Return the name of a dataset of these samples, for messages."""
        text = " ".join(self.condition.split())
        if not text:
            return name
        if len(text) > MAX_CONDITION:
            text = f"{text[:MAX_CONDITION]}..."
        return f"{name} where {text}"
