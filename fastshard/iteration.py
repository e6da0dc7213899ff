"""Iterating over a dataset, past samples that cannot be read where that is wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

from fastshard.errors import ClosedError, FastshardError

__all__ = ["Iteration", "OnError"]

OnError = Literal["raise", "skip"] | Callable[[Exception, int], object]


class Iteration(Iterator[Any]):
    """An iterator over a dataset.

    Attributes
    ----------
    position : int
        Of the item that comes next.
    skipped : int
        How many could not be read and were passed over.
    """

    def __init__(self, at: Callable[[int], Any], count: int, on_error: OnError) -> None:
        if on_error not in ("raise", "skip") and not callable(on_error):
            raise ValueError(
                f'on_error is "raise", "skip" or a function, not {on_error!r}'
            )
        self._at = at
        self._count = count
        self._on_error = on_error
        self.position = 0
        self.skipped = 0

    def __length_hint__(self) -> int:
        return max(0, self._count - self.position)

    def __next__(self) -> Any:
        while self.position < self._count:
            i = self.position
            self.position = i + 1
            if self._on_error == "raise":
                return self._at(i)
            try:
                return self._at(i)
            except ClosedError:
                raise
            except (FastshardError, OSError) as error:
                self.skipped += 1
                if callable(self._on_error):
                    self._on_error(error, i)
        raise StopIteration
