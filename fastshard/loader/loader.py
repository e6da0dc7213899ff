"""Batches made ahead by threads, epoch after epoch, with a state to resume from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import index
from typing import Any, Self, TypeVar
from weakref import ref

from fastshard.errors import ClosedError
from fastshard.loader.buffers import BufferPool
from fastshard.loader.epochs import Epochs
from fastshard.loader.iterator import LoaderIterator
from fastshard.loader.options import LoaderOptions
from fastshard.loader.recorder import LoaderRecorder
from fastshard.loader.source import EpochSource
from fastshard.loader.stats import LoaderStats

__all__ = ["Loader"]

T_co = TypeVar("T_co", covariant=True)


class Loader(Iterator[T_co]):
    """Batches made ahead by threads, epoch after epoch, with a state to resume from.

    Made by `Dataset.loader`. The batches are those of `Dataset.batches`, in the same
    order. ``iter`` returns an iterator over an epoch, which begins at its first
    ``next``; several are independent. When one is exhausted, the next epoch begins: of
    a shuffle in another order. ``next(loader)`` is that of one iterator of its own.

    Arrays of a batch are the caller's: memory is used for a later batch once nothing
    refers to it, neither an array, a slice of one nor a tensor on it.

    Parameters
    ----------
    start : EpochSource
    options : LoaderOptions
    is_skippable : callable
        As of `BatchSteps`.

    Examples
    --------
    >>> import fastshard
    >>> ds = fastshard.open("data/")
    >>> with ds.shuffle(7).loader(40) as loader:
    ...     for epoch in range(2):
    ...         for batch in loader:
    ...             loader.epoch, len(batch["cls"]), loader.position
    (0, 40, 40)
    (0, 40, 80)
    (0, 20, 100)
    (1, 40, 40)
    (1, 40, 80)
    (1, 20, 100)
    """

    def __init__(
        self,
        start: EpochSource,
        options: LoaderOptions,
        is_skippable: Callable[[Exception], bool],
    ) -> None:
        self._options = options
        self._epochs = Epochs(start)
        self._pool = BufferPool(options.ahead + 2, options.allocate)
        self._is_skippable = is_skippable
        self._iterators: list[ref[LoaderIterator[T_co]]] = []
        self._current: LoaderIterator[T_co] | None = None  # of `next(loader)`

    def __iter__(self) -> LoaderIterator[T_co]:
        if self._epochs.is_closed:
            raise ClosedError("the loader is closed: call ds.loader(...) for another")
        return self._new_iterator()

    def _new_iterator(self) -> LoaderIterator[T_co]:
        iterator: LoaderIterator[T_co] = LoaderIterator(
            self._epochs, self._options, self._is_skippable, self._pool
        )
        self._iterators.append(ref(iterator, self._iterators.remove))
        return iterator

    def __next__(self) -> T_co:
        return next(self._own_iterator())

    def _own_iterator(self) -> LoaderIterator[T_co]:
        """Return the iterator of ``next(loader)``."""
        if self._current is None:
            self._current = self._new_iterator()
        return self._current

    def __reduce__(self) -> Any:
        raise TypeError(
            "a Loader cannot be pickled: send the dataset and loader.state_dict(), and "
            "call ds.loader(..., state=state) in the other process"
        )

    def __repr__(self) -> str:
        options = self._options
        threads = f"{options.threads} thread" + "s" * (options.threads != 1)
        skipped = f"; {self.skipped:,} skipped" if self.skipped else ""
        closed = "; closed" if self._epochs.is_closed else ""
        return (
            f"Loader(epoch {self.epoch:,}, position {self.position:,}; "
            f"{options.batch_size:,} each; {threads}{skipped}{closed})"
        )

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch, also of a resumed one.

        Examples
        --------
        >>> loader = ds.loader(40)
        >>> _ = next(loader)
        >>> len(loader), len(ds.loader(40, drop_last=True))
        (3, 2)
        """
        return self._options.count_batches(self._epochs.start.count())

    def __length_hint__(self) -> int:
        return 0  # `list` must not count the samples of unread shards

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration, or of the one that is not at its end."""
        return self._epochs.start.number

    @property
    def position(self) -> int:
        """The position of the first sample after the batches so far.

        In the iteration that returned a batch last; from where that began.
        """
        last = self._epochs.last
        return 0 if last is None else last.done[0]

    @property
    def skipped(self) -> int:
        """The number of skipped or masked samples in the batches so far.

        In the iteration that returned a batch last.
        """
        last = self._epochs.last
        return 0 if last is None else last.done[1]

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch with the next iteration; in that epoch do nothing.

        So a resumed epoch continues. A dataset that is not shuffled has the
        same order in each.

        Parameters
        ----------
        epoch : int
            At least 0, as of `Dataset.shuffle`.

        Raises
        ------
        ValueError
            `epoch` is negative.

        Examples
        --------
        >>> loader = ds.shuffle(7).loader(40)
        >>> first = [batch["__key__"] for batch in loader]
        >>> loader.set_epoch(0)
        >>> first == [batch["__key__"] for batch in loader]
        True
        """
        if index(epoch) < 0:
            raise ValueError(f"epoch must be at least 0, got {epoch}")
        if self._epochs.set_epoch(index(epoch)):
            self._current = None

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the batches that were returned.

        They are those of the iteration that returned the last batch. An exhausted
        iteration's state has ``"finished"``: a loader continues with the next epoch.

        Returns
        -------
        dict
            JSON values of less than 1 KB, as of `Dataset.batches`: for `Dataset.loader`
            with any number of threads, `Dataset.batches` and `Dataset.resume`.

        Raises
        ------
        FormatError, OSError
            The samples of a shard cannot be counted.

        Examples
        --------
        >>> loader = ds.loader(40)
        >>> _ = next(loader)
        >>> loader.state_dict()["position"]
        40
        >>> rest = ds.batches(40, state=loader.state_dict())
        >>> next(rest)["__key__"][0]
        '000040'
        """
        return self._epochs.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the next iteration where a state was saved.

        Iterators that have begun continue where they are.

        Parameters
        ----------
        state : Mapping
            As for `Dataset.loader`.

        Raises
        ------
        StateError
            The state belongs to another dataset.

        Examples
        --------
        >>> loader, other = ds.loader(40), ds.loader(40)
        >>> _ = next(loader)
        >>> other.load_state_dict(loader.state_dict())
        >>> [batch["__key__"][0] for batch in other]
        ['000040', '000080']
        """
        self._epochs.resume(state)
        self._current = None

    def stats(self, since: LoaderStats | None = None) -> LoaderStats:
        """Return the times of the consumer and of the threads, and counts.

        Those of the iteration that returned a batch last. Any thread may call it, at
        any time.

        Parameters
        ----------
        since : LoaderStats, optional
            Earlier statistics of this iteration, to be subtracted.

        Returns
        -------
        LoaderStats
            From the first request for a batch until now or the end of the iteration. A
            forked child begins with new statistics.

        Raises
        ------
        TypeError, ValueError
            `since` is not an earlier result of this method, in this iteration.

        Examples
        --------
        >>> with ds.loader(4, threads=2) as loader:
        ...     for batch in loader:
        ...         pass
        >>> stats = loader.stats()
        >>> stats.batches, stats.samples, stats.skipped
        (25, 100, 0)
        >>> stats.verdict in ("consumer", "storage", "decode")
        True
        """
        last = self._epochs.last
        recorder = LoaderRecorder() if last is None else last.recorder
        return recorder.stats(since)

    def replay(self, n: int) -> Iterator[T_co]:
        """Iterate `n` times over the batches that are made ahead, without reading.

        Those of ``next(loader)``. The threads make these batches first and then idle:
        the training loop runs as with an infinitely fast loader. The loader's position
        does not change.

        Yields
        ------
        object
            The batches ahead in order, without those that have errors.

        Raises
        ------
        ValueError
            `n` is negative, or the loader is closed, at its end, or in use.
        TimeoutError
            No batch was made within the loader's `timeout`.

        Examples
        --------
        >>> loader = ds.loader(10, ahead=1)
        >>> _ = next(loader)
        >>> [batch["__key__"][0] for batch in loader.replay(2)]
        ['000010', '000020', '000010', '000020']
        >>> next(loader)["__key__"][0]
        '000010'
        """
        return self._own_iterator().replay(index(n))

    def close(self) -> None:
        """End all iterations and their threads.

        Waits at most a second for the threads; one in a function that takes longer ends
        when it returns.

        Examples
        --------
        >>> loader = ds.loader(40)
        >>> loader.close()
        >>> next(loader, "no more")
        'no more'
        """
        self._epochs.is_closed = True
        for known in list(self._iterators):
            iterator = known()
            if iterator is not None:
                iterator.close()
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
