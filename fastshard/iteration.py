"""Iterating over a dataset, past samples that cannot be read where that is wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

from fastshard.errors import ClosedError, FastshardError

__all__ = ["Iteration", "OnError"]

OnError = Literal["raise", "skip"] | Callable[[Exception, int], object]


class Iteration(Iterator[Any]):
    """An iterator over a dataset that counts what it passes over.

    Of shards that nobody has counted, one that cannot be opened is one error, at the
    position where its samples would begin.

    Attributes
    ----------
    position : int
        Of the item that comes next.
    skipped : int
        How many could not be read and were passed over.
    """

    def __init__(
        self,
        items: Any,
        count: int | None,
        on_error: OnError,
    ) -> None:
        if on_error not in ("raise", "skip") and not callable(on_error):
            raise ValueError(
                f'on_error is "raise", "skip" or a function, not {on_error!r}'
            )
        self._items = items
        self._count = count
        self._on_error = on_error
        self.position = 0
        self.skipped = 0

    def __length_hint__(self) -> int:
        return max(0, (self._count or 0) - self.position)

    def __next__(self) -> Any:
        while True:
            i = self.position
            try:
                item = next(self._items)
            except (FastshardError, OSError) as error:
                self.position = i + 1
                self._pass_over(error, i)
            else:
                self.position = i + 1
                return item

    def state_dict(self) -> dict[str, Any]:
        """Return the state after what came so far, skipped or not."""
        state: dict[str, Any] = self._items.state_dict()
        return state

    def _pass_over(self, error: Exception, i: int) -> None:
        """Go on after an error, if that is wanted."""
        if self._on_error == "raise" or isinstance(error, ClosedError):
            raise error
        self.skipped += 1
        if callable(self._on_error):
            self._on_error(error, i)
