"""The interface between a loader and its dataset: fetch, map and collate samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from fastshard.loader.buffers import BufferSet

__all__ = ["BatchSource", "EpochSource"]


class BatchSource(Protocol):
    """Samples in an order, and the steps that make a batch of some.

    Its methods are called by several threads at once, each for other positions.
    """

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    @property
    def is_prepared(self) -> bool:
        """True if `prepare` has nothing to do: a thread then makes whole batches."""
        ...

    @property
    def is_remote(self) -> bool:
        """True if `fetch` waits for a network: a thread of its own then calls it."""
        ...

    def fetch(self, start: int, stop: int) -> list[Any]:
        """Return samples by position, with their bytes in memory, not mapped."""
        ...

    def prepare(
        self, items: list[Any], position: int, row: int, rows: int, buffers: BufferSet
    ) -> list[Any]:
        """Map and decode neighbouring samples of a batch."""
        ...

    def collate(self, items: list[Any], buffers: BufferSet | None) -> Any:
        """Return the batch of prepared items, on the memory of `buffers` if given.

        Items of rows that failed are left out: later rows close up, in order.
        """
        ...

    def check(self, item: Any) -> None:
        """Raise the error of a prepared item that only `collate` finds."""
        ...

    def name_of(self, position: int) -> str:
        """Return shard and key of a sample, for messages; does not raise."""
        ...

    def state_after(self, done: int, skipped: int) -> dict[str, Any]:
        """Return the state after the first `done` positions."""
        ...


class EpochSource(Protocol):
    """An epoch of a dataset, and the position in it where an iteration begins."""

    @property
    def number(self) -> int:
        """The number of the epoch, from 0."""
        ...

    def source(self) -> BatchSource:
        """Return the samples from the position on: the share of this process."""
        ...

    def count(self) -> int:
        """Return the number of samples of the share in the whole epoch."""
        ...

    def at(self, number: int) -> EpochSource:
        """Return another epoch, from its beginning."""
        ...

    def resumed(self, state: Mapping[str, Any]) -> EpochSource:
        """Return the epoch and position of a state; raise StateError."""
        ...
