"""Batches of samples, made one after another in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

__all__ = ["Batches", "Describe", "Stateful", "alone"]

Describe = Callable[[int], dict[str, Any]]  # the state after so many samples


class Stateful(Protocol):
    """An iterator over samples that knows how far it is."""

    @property
    def taken(self) -> int:
        """How many samples it has returned, or raised an error for."""
        ...

    def __iter__(self) -> Iterator[Any]: ...
    def __next__(self) -> Any: ...
    def state_dict(self) -> dict[str, Any]:
        """Return the state after these."""
        ...


@contextmanager
def alone(entered: threading.Lock) -> Iterator[None]:
    """Refuse a second thread while one is inside."""
    if not entered.acquire(blocking=False):
        raise ValueError("another thread is in this iterator")
    try:
        yield
    finally:
        entered.release()


class Batches(Iterator[Any]):
    """An iterator over collated batches; see `Dataset.batches`.

    After an error of one sample the next batch has those that were read before it,
    and goes on behind it. A batch that cannot be collated has had its turn.
    """

    def __init__(
        self,
        samples: Stateful,
        count: int,
        size: int,
        collate: Callable[[list[Any]], Any],
        drop_last: bool,
        describe: Describe,
    ) -> None:
        self._samples = samples
        self._count = count
        self._size = size
        self._collate = collate
        self._drop_last = drop_last
        self._describe = describe
        self._begun: list[Any] = []  # samples of the batch that comes
        self._entered = threading.Lock()
        self._done = 0  # samples that were taken for the batches before

    def __len__(self) -> int:
        """Return how many batches are to come."""
        left = self._count - self._samples.taken + len(self._begun)
        return left // self._size if self._drop_last else -(-left // self._size)

    def __next__(self) -> Any:
        with alone(self._entered):
            return self._collate(self._filled())

    def _filled(self) -> list[Any]:
        """Return the samples of the next batch, whose turn has come then."""
        if len(self) == 0:
            raise StopIteration
        begun = self._begun
        while len(begun) < self._size:
            try:
                begun.append(next(self._samples))
            except StopIteration:
                self._count = self._samples.taken  # fewer, if a shard cannot be read
                if not begun or self._drop_last:
                    begun.clear()
                    raise
                break
        self._begun = []
        self._done = self._samples.taken
        return begun

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the batches that were returned so far."""
        return self._describe(self._done)
