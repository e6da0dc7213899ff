"""Iterator over batches made ahead by threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from operator import index
from typing import Any, NamedTuple, Self, TypeVar, cast
from weakref import finalize

from fastshard._util.options import check_choice
from fastshard.formats.layout import Allocate
from fastshard.loader.recorder import LoaderRecorder
from fastshard.loader.source import BatchSource
from fastshard.loader.stats import LoaderStats
from fastshard.loader.threads.batch_work import BatchSteps, BatchWork, LoaderOnError
from fastshard.loader.threads.cpus import count_cpus
from fastshard.loader.threads.lifetime import (
    register_loader,
    register_pipeline,
    unregister_pipeline,
)
from fastshard.loader.threads.pipeline import (
    STOP_SECONDS,
    Pipeline,
    PipelineOptions,
    PipelineStoppedError,
    running_pipeline,
)
from fastshard.loader.threads.rows import FailedRows

__all__ = ["Loader", "LoaderOnError", "LoaderOptions"]

T_co = TypeVar("T_co", covariant=True)

AT_END = "the loader is at its end: replay needs batches ahead"


class LoaderOptions(NamedTuple):
    """Options of a loader; see `BaseDataset.loader`."""

    batch_size: int
    threads: int
    ahead: int
    hold: int
    allocate: Allocate | None
    copy: bool
    drop_last: bool
    on_error: LoaderOnError
    timeout: float | None

    @classmethod
    def checked(
        cls,
        batch_size: int,
        threads: int | None = None,
        ahead: int = 2,
        hold: int = 1,
        allocate: Allocate | None = None,
        copy: bool = False,
        drop_last: bool = False,
        on_error: LoaderOnError = "raise",
        timeout: float | None = None,
    ) -> LoaderOptions:
        """Return options; raise ValueError or TypeError for one that is invalid."""
        if threads is None:
            threads = count_cpus()
        for name, number, least in (
            ("batch_size", batch_size, 1),
            ("threads", threads, 1),
            ("ahead", ahead, 0),
            ("hold", hold, 1),
        ):
            if index(number) < least:
                raise ValueError(f"{name} must be at least {least}, got {number}")
        if timeout is not None and not timeout > 0:
            raise ValueError(f"timeout must be positive, got {timeout}")
        if allocate is not None and not callable(allocate):
            kind = type(allocate).__name__
            raise TypeError(f"allocate must be a function, got {kind}")
        check_choice("on_error", on_error, ("raise", "skip", "mask"))
        return cls(
            index(batch_size),
            index(threads),
            index(ahead),
            index(hold),
            allocate,
            bool(copy),
            bool(drop_last),
            on_error,
            None if timeout is None or timeout > threading.TIMEOUT_MAX else timeout,
        )


class Loader(Iterator[T_co]):
    """Iterator over batches made ahead by threads, with a state to resume from.

    Made by `Dataset.loader`. The batches are those of `Dataset.batches`, in the same
    order. Threads start at the first call of ``next``. They end when the loader is
    exhausted, closed or deleted, at ctrl-C in ``next``, and at interpreter exit: each
    after its current sample or read.

    A batch is lent: its arrays are overwritten once `hold` more batches were requested,
    unless the loader was made with ``copy=True``.

    After a fork the child continues with threads of its own; those of the parent go on.

    Parameters
    ----------
    source : BatchSource
    options : LoaderOptions
    is_skippable : callable
        As of `BatchSteps`.

    Examples
    --------
    >>> import fastshard
    >>> ds = fastshard.open("data/")
    >>> with ds.loader(40) as loader:
    ...     for batch in loader:
    ...         batch["__key__"][0], batch["cls"].sum(), loader.position
    ('000000', np.int64(180), 40)
    ('000040', np.int64(180), 80)
    ('000080', np.int64(90), 100)
    """

    def __init__(
        self,
        source: BatchSource,
        options: LoaderOptions,
        is_skippable: Callable[[Exception], bool],
    ) -> None:
        self._source = source
        self._options = options
        self._is_skippable = is_skippable
        self._lock = threading.Lock()
        self._recorder = LoaderRecorder()
        self._pipeline: Pipeline | None = None
        self._finalizer: finalize[Any, Any] | None = None
        self._is_closed = False
        self._done = 0  # position after the batches so far
        self._skipped = 0
        # Position and number of skipped samples after the batches so far and those
        # whose errors were raised since: the state has these with the next batch only.
        self._passed = 0, 0
        self._failed_rows: FailedRows | None = None
        if options.on_error != "raise":
            masks = options.on_error == "mask"
            self._failed_rows = FailedRows(masks, source.name_of)
        register_loader(self)

    def __iter__(self) -> Self:
        return self

    def __reduce__(self) -> Any:
        raise TypeError(
            "a Loader cannot be pickled: send the dataset and loader.state_dict(), and "
            "call ds.loader(..., state=state) in the other process"
        )

    def __repr__(self) -> str:
        options = self._options
        threads = f"{options.threads} thread" + "s" * (options.threads != 1)
        skipped = f"; {self._skipped:,} skipped" if self._skipped else ""
        closed = "; closed" if self._is_closed else ""
        return (
            f"Loader(position {self._done:,}; {options.batch_size:,} each; "
            f"{threads}{skipped}{closed})"
        )

    def __len__(self) -> int:
        """Return the number of remaining batches.

        Returns
        -------
        int

        Examples
        --------
        >>> loader = ds.loader(40)
        >>> _ = next(loader)
        >>> len(loader), len(ds.loader(40, drop_last=True))
        (2, 2)
        """
        if self._is_closed:
            return 0
        left = max(0, len(self._source) - self._passed[0])
        size = self._options.batch_size
        return left // size if self._options.drop_last else -(-left // size)

    def __length_hint__(self) -> int:
        return 0  # `list` must not count the samples of unread shards

    @property
    def position(self) -> int:
        """The position of the first sample after the batches so far."""
        return self._done

    @property
    def skipped(self) -> int:
        """The number of samples that were skipped or masked in the batches so far."""
        return self._skipped

    def __next__(self) -> T_co:
        if self._pipeline is not None and running_pipeline() is self._pipeline:
            raise RuntimeError(
                "a function that a loader calls must not ask the loader for batches"
            )
        if not self._lock.acquire(blocking=False):
            raise ValueError("another thread is in this iterator")
        try:
            consumer, pipeline = self._recorder.consumer, self._pipeline
            consumer.ask(0 if pipeline is None else pipeline.ready)
            try:
                done, skipped = self._done, self._skipped
                batch = self._next()
                skipped = self._skipped - skipped
                consumer.answer(self._done - done - skipped, skipped)
                return batch
            except BaseException:
                consumer.fail()
                raise
        finally:
            self._lock.release()

    def _next(self) -> T_co:
        if self._is_closed:
            raise StopIteration
        try:
            pipeline = self._pipeline
            if pipeline is None:
                pipeline = self._begin()
                if self._is_closed:  # by another thread, meanwhile
                    self._halt()
                    raise StopIteration
            if len(self) == 0:
                self.close()
                raise StopIteration
            work = pipeline.take(self._options.timeout)
        except PipelineStoppedError:
            raise StopIteration from None
        except BaseException:
            self._halt()
            raise
        if work is None:
            raise TimeoutError(
                f"no batch within {self._options.timeout:g} s, from position "
                f"{self._passed[0]:,}; next waits for the same batch again"
            )
        return self._return(work)

    def _begin(self) -> Pipeline:
        """Return a new pipeline that begins after the batches so far."""
        options = self._options
        pipeline = Pipeline(
            BatchSteps(self._source, options.on_error, self._is_skippable),
            PipelineOptions(
                options.batch_size,
                options.threads,
                options.ahead,
                options.hold,
                options.copy,
                options.allocate,
            ),
            self._passed[0],
            len(self._source),
            len(self),
            self._recorder,
        )
        register_pipeline(pipeline)
        self._finalizer = finalize(self, _stop, pipeline)
        self._finalizer.atexit = False  # `lifetime` stops all together
        self._pipeline = pipeline
        return pipeline

    def _return(self, work: BatchWork) -> T_co:
        """Return a batch and count it, or raise its error."""
        error = work.error
        if not isinstance(error, KeyboardInterrupt):  # after one, it is made again
            self._passed = work.stop, self._passed[1] + len(work.failures)
        if error is not None:
            work.error = None
            if not isinstance(error, Exception):
                self._halt()
            try:
                raise error
            finally:
                del error  # its traceback has this frame, and that the loader
        rows = self._failed_rows
        batch = work.value if rows is None else rows.add(work)
        self._done, self._skipped = self._passed
        return cast(T_co, batch)

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the batches that were returned.

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
        return self._source.state_after(self._done, self._skipped)

    def stats(self, since: LoaderStats | None = None) -> LoaderStats:
        """Return the times of the consumer and of the threads, and counts.

        Any thread may call it, at any time.

        Parameters
        ----------
        since : LoaderStats, optional
            Earlier statistics of this loader, to be subtracted.

        Returns
        -------
        LoaderStats
            From the first request for a batch until now or the loader's end. A forked
            child begins with new statistics.

        Raises
        ------
        TypeError, ValueError
            `since` is not an earlier result of this method.

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
        return self._recorder.stats(since)

    def replay(self, n: int) -> Iterator[T_co]:
        """Iterate `n` times over the batches that are made ahead, without reading.

        The threads make these batches first, and are idle afterwards: a training loop
        then takes the time that it would take with the fastest loader. The loader's
        position does not change.

        Parameters
        ----------
        n : int
            Number of repetitions.

        Yields
        ------
        object
            The batches ahead in order, without those that have errors. They and the
            iterator are valid until the next call of ``next``.

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
        if index(n) < 0:
            raise ValueError(f"n must not be negative, got {n}")
        batches = self._ring()
        done = self._passed
        return self._replay(batches, index(n), done)

    def _ring(self) -> list[T_co]:
        """Return the batches that are made ahead."""
        if self._is_closed or len(self) == 0:
            raise ValueError(AT_END)
        if not self._lock.acquire(blocking=False):
            raise ValueError("another thread is in this iterator")
        try:
            timeout = self._options.timeout
            seconds = float("inf") if timeout is None else timeout
            pipeline = self._pipeline or self._begin()
            if self._is_closed:  # by another thread, meanwhile
                raise PipelineStoppedError
            works = pipeline.fill(time.monotonic() + seconds)
        except PipelineStoppedError:
            self._halt()
            raise ValueError(AT_END) from None
        except BaseException:
            self._halt()
            raise
        finally:
            self._lock.release()
        if not works:
            raise TimeoutError("no batch of the ring was made in time")
        rows = self._failed_rows
        return [
            cast(T_co, work.value if rows is None else rows.add(work))
            for work in works
            if work.error is None and not work.failures
        ]

    def _replay(
        self, batches: list[T_co], n: int, done: tuple[int, int]
    ) -> Iterator[T_co]:
        for _ in range(n):
            for batch in batches:
                if self._is_closed or self._passed != done:
                    raise ValueError(
                        "the loader went on: its batches may be overwritten"
                    )
                yield batch

    def close(self) -> None:
        """End the iteration and its threads.

        Waits at most a second for the threads; one in a function that takes longer ends
        when it returns.

        Examples
        --------
        >>> loader = ds.loader(40)
        >>> loader.close()
        >>> next(loader, "no more")
        'no more'
        """
        self._is_closed = True
        self._recorder.consumer.stop()
        pipeline = self._pipeline
        self._halt()
        if pipeline is not None and running_pipeline() is not pipeline:
            pipeline.cancel()
            pipeline.join(time.monotonic() + STOP_SECONDS)

    def _halt(self) -> None:
        """Stop the threads; the next call of ``next`` begins after the last batch."""
        self._pipeline = None
        finalizer, self._finalizer = self._finalizer, None
        if finalizer is not None:
            finalizer()

    def _continue_in_child(self) -> None:
        self._lock = threading.Lock()
        self._recorder = LoaderRecorder()
        self._pipeline = None
        if self._finalizer is not None:
            self._finalizer.detach()
            self._finalizer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _stop(pipeline: Pipeline) -> None:
    """Stop the threads of a loader that is garbage or at its end."""
    unregister_pipeline(pipeline)
    pipeline.stop()
