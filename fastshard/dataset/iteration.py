"""Iterators over samples and over batches, which know their state."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeVar

from fastshard.dataset.batch import Collation
from fastshard.errors import ClosedError, FastshardError, MissingLibraryError
from fastshard.formats.decoders import is_of_data

__all__ = [
    "BatchIterator",
    "ErrorHandler",
    "OnError",
    "SampleIterator",
    "alone",
    "handler_of",
]


if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultTypeVar

    # An item: a sample, or its mapped value. `Dataset` alone is ``Dataset[Any]``.
    T_co = DefaultTypeVar("T_co", covariant=True, default=Any)
else:
    T_co = TypeVar("T_co", covariant=True)

OnError = Literal["raise", "skip"] | Callable[[Exception, int], object]


class SampleIterator(Iterator[T_co], Protocol[T_co]):
    """An iterator over samples that knows how far it is; see `Dataset.iter`.

    Attributes
    ----------
    position : int
        Of the sample that comes next, in what is iterated over.
    skipped : int
        Samples that could not be read and were passed over; those before the state
        that it began from included.
    """

    @property
    def position(self) -> int: ...
    @property
    def skipped(self) -> int: ...
    def __iter__(self) -> SampleIterator[T_co]: ...
    def __next__(self) -> T_co: ...
    def __length_hint__(self) -> int: ...
    def state_dict(self) -> dict[str, Any]:
        """Return the state after what came so far, skipped or not."""
        ...

    def state_after(self, done: int, skipped: int) -> dict[str, Any]:
        """Return the state after some samples, and so many skipped in all."""
        ...

    def close(self) -> None:
        """End the iteration, and its thread."""
        ...


class ErrorHandler:
    """Which errors an iteration passes over, and who is told.

    Parameters
    ----------
    told : callable, optional
        ``told(error, position)`` is called for each that is passed over.
    """

    def __init__(self, told: Callable[[Exception, int], object] | None = None) -> None:
        self._told = told

    def __call__(self, error: Exception, position: int) -> bool:
        """Say whether to go on after an error of the sample at a position.

        Passed over is what the sample's data can cause: `FastshardError`, `OSError`,
        `ValueError`, `EOFError`, and what a field's decoder raises (`is_of_data`).
        Raised are a closed dataset, a library that is missing, and what else a
        mapped function raises: `TypeError`, `KeyError`, `NameError`, ...
        """
        if isinstance(error, ClosedError | MissingLibraryError):
            return False
        kinds = (FastshardError, OSError, ValueError, EOFError)
        if not isinstance(error, kinds) and not is_of_data(error):
            return False
        if self._told is not None:
            self._told(error, position)
        return True


def handler_of(on_error: OnError) -> ErrorHandler | None:
    """Return what decides about errors; None: all of them are raised.

    Raises
    ------
    ValueError
        It is none of "raise", "skip" and a function.
    """
    if callable(on_error):
        return ErrorHandler(on_error)
    if on_error not in ("raise", "skip"):
        raise ValueError(f'on_error is "raise", "skip" or a function, not {on_error!r}')
    return ErrorHandler() if on_error == "skip" else None


@contextmanager
def alone(entered: threading.Lock) -> Iterator[None]:
    """Refuse a second thread while one is inside."""
    if not entered.acquire(blocking=False):
        raise ValueError("another thread is in this iterator")
    try:
        yield
    finally:
        entered.release()


class BatchIterator(Iterator[T_co]):
    """An iterator over collated batches; see `Dataset.batches`.

    After an error of one sample the next batch has those that were read before it,
    and goes on behind it. A batch that cannot be collated has had its turn.

    Parameters
    ----------
    samples : SampleIterator
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
        samples: SampleIterator[Any],
        count: int | Callable[[], int],
        size: int,
        collate: Callable[[list[Any]], T_co],
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

    def __iter__(self) -> Self:
        return self

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

    def __next__(self) -> T_co:
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
