"""Batches of samples, made one after another in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fastshard.collation import Collation
from fastshard.iteration import ErrorHandler, Iteration

__all__ = ["Batches", "alone"]


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

    Parameters
    ----------
    samples : Iteration
    count : int or callable
        How many samples there are, or a function that counts them when that is asked.
    size : int
        Samples of a batch.
    collate : callable
    drop_last : bool
    on_error : ErrorHandler, optional
        Decides about samples that only `collate` finds to be broken.
    """

    def __init__(
        self,
        samples: Iteration,
        count: int | Callable[[], int],
        size: int,
        collate: Callable[[list[Any]], Any],
        drop_last: bool,
        on_error: ErrorHandler | None,
    ) -> None:
        self._samples = samples
        self._count = count
        self._size = size
        self._collate = collate
        self._drop_last = drop_last
        self._on_error = on_error
        self._begun: list[tuple[int, Any]] = []  # position, sample: of the next batch
        self._entered = threading.Lock()
        self._broken = 0  # samples that could not be collated, and were passed over
        self._done = 0, samples.skipped  # after the batches that had their turn

    def __len__(self) -> int:
        """Return how many batches are to come; at most, where samples are skipped."""
        if callable(self._count):
            self._count = self._count()
        left = max(0, self._count - self._samples.position) + len(self._begun)
        return left // self._size if self._drop_last else -(-left // self._size)

    def __length_hint__(self) -> int:
        return 0 if callable(self._count) else len(self)

    @property
    def position(self) -> int:
        """Position of the sample that comes after the batches so far."""
        return self._done[0]

    @property
    def skipped(self) -> int:
        """Samples passed over before that; those of the state it began from too."""
        return self._done[1]

    def __next__(self) -> Any:
        with alone(self._entered):
            while True:
                batch = self._filled()
                try:
                    return self._collate([sample for _, sample in batch])
                except Exception:
                    kept = self._readable(batch)
                    if len(kept) == len(batch):
                        raise
                    self._begun = kept

    def _filled(self) -> list[tuple[int, Any]]:
        """Return the samples of the next batch, whose turn has come then."""
        if not callable(self._count) and len(self) == 0:
            raise StopIteration
        begun, samples = self._begun, self._samples
        while len(begun) < self._size:
            try:
                sample = next(samples)
                begun.append((samples.position - 1, sample))
            except StopIteration:
                self._count = samples.position  # fewer, if a shard cannot be read
                if not begun or self._drop_last:
                    begun.clear()
                    raise
                break
        self._begun = []
        self._done = samples.position, samples.skipped + self._broken
        return begun

    def _readable(self, batch: list[tuple[int, Any]]) -> list[tuple[int, Any]]:
        """Return those of a batch that can be collated; the others are passed over.

        Raises
        ------
        Exception
            That of a sample, if it is none to pass over.
        """
        if self._on_error is None or not isinstance(self._collate, Collation):
            return batch
        kept = []
        for position, sample in batch:
            try:
                self._collate.check(sample)
            except Exception as error:
                if not self._on_error(error, position):
                    raise
                self._broken += 1
            else:
                kept.append((position, sample))
        return kept

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the batches that were returned so far."""
        return self._samples.state_after(*self._done)

    def close(self) -> None:
        """End the iteration, and its thread."""
        self._samples.close()
