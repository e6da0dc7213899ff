"""Iterating over a dataset, past samples that cannot be read where that is wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from fastshard.errors import ClosedError, FastshardError
from fastshard.shardset import ShardSet

__all__ = ["Iteration", "OnError", "ShardwiseIteration"]

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
            try:
                return self._at(i)
            except (FastshardError, OSError) as error:
                self._pass_over(error, i)
        raise StopIteration

    def _pass_over(self, error: Exception, i: int) -> None:
        """Go on after an error, if that is wanted."""
        if self._on_error == "raise" or isinstance(error, ClosedError):
            raise error
        self.skipped += 1
        if callable(self._on_error):
            self._on_error(error, i)


class ShardwiseIteration(Iteration):
    """An iterator over all samples of shards that nobody has counted yet.

    Shards are opened one after another. One that cannot be opened is one error,
    at the position where its samples would begin.
    """

    def __init__(
        self, shards: ShardSet, finish: Callable[[Any], Any], on_error: OnError
    ) -> None:
        super().__init__(finish, 0, on_error)
        self._shards = shards
        self._next_shard = 0
        self._samples: Sequence[Any] = ()
        self._next_sample = 0

    def __next__(self) -> Any:
        while True:
            if self._next_sample == len(self._samples):
                self._open_next()
                continue
            i = self._next_sample
            self._next_sample = i + 1
            self.position += 1
            try:
                return self._at(self._samples[i])
            except (FastshardError, OSError) as error:
                self._pass_over(error, self.position - 1)

    def _open_next(self) -> None:
        k = self._next_shard
        if k == len(self._shards):
            raise StopIteration
        self._next_shard = k + 1
        self._samples, self._next_sample = (), 0
        try:
            samples = self._shards.samples(k)
            len(samples)  # groups the members
        except (FastshardError, OSError) as error:
            self._pass_over(error, self.position)
        else:
            self._samples = samples
