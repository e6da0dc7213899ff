"""Iterator over a concatenation in order: the iterators of its parts in turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self, cast

from fastshard._core.dataset.streams import CallGuard
from fastshard.dataset.sequence.base import BaseDataset
from fastshard.dataset.sequence.images import decode_item
from fastshard.dataset.sequence.iteration import (
    ErrorHandler,
    SampleIterator,
    T_co,
)

__all__ = ["ChainIterator"]


class ChainIterator(Iterator[T_co]):
    """Iterator over the parts of a concatenation, each prefetched as by itself.

    Implements `SampleIterator`.
    """

    def __init__(
        self,
        dataset: Any,
        parts: Sequence[BaseDataset[Any]],
        starts: Sequence[int],
        window: int,
        on_error: ErrorHandler | None,
        decodes: bool,
    ) -> None:
        self._dataset = dataset
        self._parts = parts
        self._starts = starts
        self._window = window
        self._on_error = on_error
        self._decodes = decodes
        self._part = 0
        self._items: SampleIterator[Any] | None = None  # of the part, once begun
        self._skipped = 0  # in earlier parts, and by mapped functions
        self._guard = CallGuard()
        self._closed = False
        self._has_stages = bool(dataset._stages)
        self.is_mapped: bool = self._has_stages or any(
            part._stages for part in dataset.datasets
        )
        self._wait_ns = 0  # of earlier parts

    def __iter__(self) -> Self:
        return self

    @property
    def position(self) -> int:
        """The position of the next item."""
        done = 0 if self._items is None else self._items.position
        return self._starts[self._part] + done

    @property
    def skipped(self) -> int:
        """The number of skipped items."""
        return self._skipped + (0 if self._items is None else self._items.skipped)

    @property
    def wait_ns(self) -> int:
        """Nanoseconds that items waited for bytes."""
        return self._wait_ns + getattr(self._items, "wait_ns", 0)

    def __repr__(self) -> str:
        skipped = f"; {self.skipped:,} skipped" if self.skipped else ""
        return f"{type(self).__name__}(position {self.position:,}{skipped})"

    def __length_hint__(self) -> int:
        return 0 if self._closed else self._starts[-1] - self.position

    def __next__(self) -> T_co:
        return self._guard.call(self._next_item)

    def _next_item(self) -> T_co:
        while True:
            items = self._items
            if items is None:
                items = self._begin_part()
            try:
                item = next(items)
            except StopIteration:
                if self._closed:
                    raise
                self._end_part()
                continue
            if not self._has_stages:
                return cast(T_co, item)
            try:
                mapped = self._dataset._map_item_at(item, self.position - 1)
                return cast(T_co, decode_item(mapped) if self._decodes else mapped)
            except Exception as error:
                handler = self._on_error
                if handler is None or not handler(error, self.position - 1):
                    raise
                self._skipped += 1

    def _begin_part(self) -> SampleIterator[Any]:
        """Return the iterator of the next part; raise StopIteration after the last."""
        if self._closed or self._part + 1 == len(self._starts):
            raise StopIteration
        handler = self._on_error
        if handler is not None:
            handler = handler.shifted(self._starts[self._part])
        decodes = self._decodes and not self._has_stages
        part = self._parts[self._part]
        self._items = part._iterator(self._window, handler, decodes)
        return self._items

    def _end_part(self) -> None:
        if self._items is not None:
            self._wait_ns = self.wait_ns
            self._skipped += self._items.skipped
            self._items.close()
            self._items = None
        self._part += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the items so far, skipped ones included."""
        return self.state_after(self.position, self.skipped)

    def state_after(self, done: int, skipped: int) -> dict[str, Any]:
        """Return the state after `done` items, with `skipped` skipped in total."""
        state: dict[str, Any] = self._dataset._state_after(done, skipped)
        return state

    def close(self) -> None:
        """End the iteration and its prefetching thread."""
        self._closed = True
        if self._items is not None:
            self._items.close()  # it ends, and no other part begins
