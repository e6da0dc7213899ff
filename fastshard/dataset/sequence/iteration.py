"""Iterators over samples and batches, with a state to resume from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeVar

from fastshard._core.dataset.streams import CallGuard
from fastshard.dataset.sequence.batch import Collation
from fastshard.errors import ClosedError, FastshardError, MissingLibraryError
from fastshard.formats.decoders import is_data_error
from fastshard.loader.recorder import InlineRecorder

__all__ = [
    "WINDOW",
    "BatchIterator",
    "ErrorHandler",
    "OnError",
    "SampleIterator",
    "is_skippable",
    "make_error_handler",
]

WINDOW = 32  # items prefetched ahead of an iteration


if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultTypeVar

    from fastshard.loader.stats import LoaderStats

    # An item: a sample, or its mapped value. `Dataset` alone is ``Dataset[Any]``.
    T_co = DefaultTypeVar("T_co", covariant=True, default=Any)
else:
    T_co = TypeVar("T_co", covariant=True)

OnError = Literal["raise", "skip"] | Callable[[Exception, int], object]
Take = Callable[[int], Iterable[tuple[int, Any]]]


class SampleIterator(Iterator[T_co], Protocol[T_co]):
    """Iterator over samples with a state to resume from; see `Dataset.iter`.

    Examples
    --------
    >>> import fastshard
    >>> ds = fastshard.open("data/")
    >>> iterator = iter(ds)
    >>> next(iterator).key, next(iterator).key, iterator.position
    ('000000', '000001', 2)
    >>> state = iterator.state_dict()
    >>> next(ds.iter(state)).key
    '000002'
    """

    @property
    def position(self) -> int:
        """The position of the next sample in the iterated dataset."""
        ...

    @property
    def skipped(self) -> int:
        """The number of unreadable samples that were skipped.

        Including those before the state that the iteration was resumed from.
        """
        ...

    def __iter__(self) -> SampleIterator[T_co]: ...
    def __next__(self) -> T_co: ...
    def __length_hint__(self) -> int: ...
    def state_dict(self) -> dict[str, Any]:
        """Return the state after the samples so far, skipped ones included.

        Returns
        -------
        dict
            JSON values of less than 1 KB, for `Dataset.iter` and `Dataset.resume`.

        Raises
        ------
        FormatError, OSError
            The samples of a shard cannot be counted.

        Examples
        --------
        >>> iterator = ds.iter()
        >>> _ = next(iterator)
        >>> len(ds.resume(iterator.state_dict()))
        99
        """
        ...

    def state_after(self, done: int, skipped: int) -> dict[str, Any]:
        """Return the state after `done` samples, with `skipped` skipped in total.

        For loaders that read ahead.

        Parameters
        ----------
        done : int
            Samples since the iteration began, skipped ones included.
        skipped : int
            Skipped ones, including those before a resumed state.

        Returns
        -------
        dict
            As `state_dict`.

        Examples
        --------
        >>> iterator = ds.iter()
        >>> len(ds.resume(iterator.state_after(10, 0)))
        90
        """
        ...

    def close(self) -> None:
        """End the iteration and its prefetching thread.

        Examples
        --------
        >>> iterator = ds.iter()
        >>> iterator.close()
        >>> next(iterator, "no more")
        'no more'
        """
        ...


def is_skippable(error: Exception) -> bool:
    """Return whether bad data can cause an error of a sample.

    True for `FastshardError`, `OSError`, `ValueError`, `EOFError`, and those of
    decoders (`is_data_error`). False for errors of a closed dataset or a missing
    library, and other errors of mapped functions (`TypeError`, `KeyError`,
    `NameError`, ...).
    """
    if isinstance(error, ClosedError | MissingLibraryError):
        return False
    kinds = (FastshardError, OSError, ValueError, EOFError)
    return isinstance(error, kinds) or is_data_error(error)


class ErrorHandler:
    """Handler of the errors of samples: decides which to skip, and reports them."""

    def __init__(
        self,
        callback: Callable[[Exception, int], object] | None = None,
        is_skippable: Callable[[Exception], bool] = is_skippable,
    ) -> None:
        self._callback = callback
        self._is_skippable = is_skippable

    def __call__(self, error: Exception, position: int) -> bool:
        """Return whether to skip an error of the sample at a position."""
        if not self._is_skippable(error):
            return False
        if self._callback is not None:
            self._callback(error, position)
        return True

    def shifted(self, start: int) -> ErrorHandler:
        """Return the handler of a part whose first position is `start`."""
        callback = self._callback
        if callback is None:
            return self
        return ErrorHandler(
            lambda error, i: callback(error, start + i), self._is_skippable
        )


def make_error_handler(
    on_error: OnError, is_skippable: Callable[[Exception], bool] = is_skippable
) -> ErrorHandler | None:
    """Return the handler of an `on_error` option, or None to raise all errors."""
    if callable(on_error):
        return ErrorHandler(on_error, is_skippable)
    if on_error not in ("raise", "skip"):
        raise ValueError(
            f'on_error must be "raise", "skip" or a function, got {on_error!r}'
        )
    return ErrorHandler(None, is_skippable) if on_error == "skip" else None


class BatchIterator(Iterator[T_co]):
    """Iterator over collated batches with a state to resume from.

    `Dataset.batches` makes it. After the error of a sample, the next batch begins with
    the samples read before the error and continues after it. A batch that fails to
    collate is not repeated.

    Parameters
    ----------
    samples : SampleIterator
        One that has ``take(count)`` gives the next samples with their positions, fewer
        at the end, at once.
    count : int or callable
        The number of samples, or a function that counts them on demand.
    size : int
        Number of samples in a batch.
    collate : callable
        Function from a list of samples to a batch.
    drop_last : bool
        Drop a last batch of fewer than `size` samples.
    on_error : ErrorHandler, optional
        Handler of the errors of samples that only `collate` finds unreadable.

    Examples
    --------
    >>> import fastshard
    >>> ds = fastshard.open("data/")
    >>> batches = ds.batches(40)
    >>> len(batches), next(batches)["cls"].sum(), batches.position
    (3, np.int64(180), 40)
    >>> rest = ds.batches(40, state=batches.state_dict())
    >>> len(rest), next(rest)["__key__"][0]
    (2, '000040')
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
        self._take: Take | None = getattr(samples, "take", None)
        self._count = count
        self._size = size
        self._collate = collate
        self._drop_last = drop_last
        self._on_error = on_error
        # Positions and samples of the next batch.
        self._pending: list[tuple[int, Any]] = []
        self._guard = CallGuard()
        self._dropped = 0  # skipped samples that `collate` found unreadable
        self._done = 0, samples.skipped  # position and skipped after the batches so far
        self._recorder = InlineRecorder(samples)

    def __iter__(self) -> Self:
        return self

    def __len__(self) -> int:
        """Return the number of remaining batches, at most if samples are skipped.

        Examples
        --------
        >>> len(ds.batches(40)), len(ds.batches(40, drop_last=True))
        (3, 2)
        """
        if callable(self._count):
            self._count = self._count()
        left = max(0, self._count - self._samples.position) + len(self._pending)
        return left // self._size if self._drop_last else -(-left // self._size)

    def __length_hint__(self) -> int:
        return 0 if callable(self._count) else len(self)

    def __repr__(self) -> str:
        skipped = f"; {self.skipped:,} skipped" if self.skipped else ""
        return (
            f"BatchIterator(position {self.position:,}; {self._size:,} each{skipped})"
        )

    @property
    def position(self) -> int:
        """The position of the first sample after the batches so far."""
        return self._done[0]

    @property
    def skipped(self) -> int:
        """The number of skipped samples, including those before a resumed state."""
        return self._done[1]

    def __next__(self) -> T_co:
        return self._guard.call(self._next_batch)

    def _next_batch(self) -> T_co:
        recorder = self._recorder
        recorder.begin()
        count = 0
        try:
            items, batch = self._make_batch(recorder)
            count = items
            return batch
        finally:
            recorder.end(count, self.skipped)

    def _make_batch(self, recorder: InlineRecorder) -> tuple[int, T_co]:
        """Return the number of samples of the next batch, and the batch."""
        while True:
            batch = self._fill_batch()
            samples = [sample for _, sample in batch]
            recorder.begin_collation(samples)
            try:
                return len(batch), self._collate(samples)
            except Exception:
                readable = self._drop_unreadable(batch)
                if len(readable) == len(batch):
                    raise
                self._pending = readable
                recorder.begin_again()

    def _fill_batch(self) -> list[tuple[int, Any]]:
        """Read the samples of the next batch and count them as done."""
        pending, samples = self._pending, self._samples
        if not callable(self._count) and len(self) == 0:
            self._done = samples.position, samples.skipped + self._dropped
            raise StopIteration
        if self._take is not None:
            pending.extend(self._take(self._size - len(pending)))
        while len(pending) < self._size:
            try:
                sample = next(samples)
                pending.append((samples.position - 1, sample))
            except StopIteration:
                # There are fewer than counted if a shard could not be opened.
                self._count = samples.position
                if not pending:  # the last samples were skipped
                    self._done = samples.position, samples.skipped + self._dropped
                    raise
                if self._drop_last:
                    pending.clear()
                    raise
                break
        self._pending = []
        self._done = samples.position, samples.skipped + self._dropped
        return pending

    def _drop_unreadable(self, batch: list[tuple[int, Any]]) -> list[tuple[int, Any]]:
        """Return the samples of a batch that can be collated."""
        if self._on_error is None or not isinstance(self._collate, Collation):
            return batch
        readable = []
        for position, sample in batch:
            try:
                self._collate.check(sample)
            except Exception as error:
                if not self._on_error(error, position):
                    raise
                self._dropped += 1
            else:
                readable.append((position, sample))
        return readable

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the batches so far.

        Returns
        -------
        dict
            JSON values of less than 1 KB, for `Dataset.batches` and `Dataset.resume`.

        Raises
        ------
        FormatError, OSError
            The samples of a shard cannot be counted.

        Examples
        --------
        >>> batches = ds.batches(40)
        >>> _ = next(batches)
        >>> batches.state_dict()["position"]
        40
        """
        return self._samples.state_after(*self._done)

    def stats(self, since: LoaderStats | None = None) -> LoaderStats:
        """Return the time spent on batches and between them, and counts.

        Parameters
        ----------
        since : LoaderStats, optional
            Earlier statistics of this iterator, to be subtracted.

        Returns
        -------
        LoaderStats
            Of one thread, the caller's: it reads, maps and collates samples inside
            ``next``, and is `idle` while the caller uses a batch. `cpu` and `runqueue`
            are extrapolated from some batches.

        Raises
        ------
        TypeError, ValueError
            `since` is not an earlier result of this method.

        Examples
        --------
        >>> batches = ds.batches(4)
        >>> for batch in batches:
        ...     pass
        >>> stats = batches.stats()
        >>> stats.batches, stats.samples, stats.threads
        (25, 100, 1)
        """
        return self._recorder.stats(since)

    def close(self) -> None:
        """End the iteration and its prefetching thread.

        Examples
        --------
        >>> batches = ds.batches(40)
        >>> batches.close()
        >>> next(batches, "no more")
        'no more'
        """
        self._recorder.stop()
        self._samples.close()
