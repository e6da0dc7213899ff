"""Iterator over the batches of one epoch, made ahead by threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Self, TypeVar, cast
from weakref import finalize

from fastshard._core.dataset.streams import CallGuard
from fastshard.loader.buffers import BufferPool
from fastshard.loader.epochs import Epochs, Position
from fastshard.loader.options import LoaderOptions
from fastshard.loader.recorder import LoaderRecorder
from fastshard.loader.stats import LoaderStats
from fastshard.loader.threads.batch_work import BatchSteps, BatchWork
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

__all__ = ["LoaderIterator"]

T_co = TypeVar("T_co", covariant=True)

AT_END = "the loader is at its end: replay needs batches ahead"


class LoaderIterator(Iterator[T_co]):
    """Iterator over the batches of one epoch, made ahead by threads.

    ``iter(loader)`` makes it. At its first ``next`` it begins where the loader is then,
    and starts its threads. The threads end after their current sample or read when the
    iterator is exhausted, closed or deleted, at ctrl-C in ``next``, and at interpreter
    exit.

    After a fork the child continues with its own threads; the parent keeps its own.
    """

    def __init__(
        self,
        epochs: Epochs,
        options: LoaderOptions,
        is_skippable: Callable[[Exception], bool],
        pool: BufferPool,
    ) -> None:
        self._epochs = epochs
        self._options = options
        self._is_skippable = is_skippable
        self._pool = pool
        self._guard = CallGuard()
        self._recorder = LoaderRecorder()
        self._position: Position | None = None  # None: it has not begun
        self._pipeline: Pipeline | None = None
        self._finalizer: finalize[Any, Any] | None = None  # of the pipeline
        self._end_early: finalize[Any, Any] | None = None
        self._is_closed = False
        # Position and number of skipped samples after the batches so far and those
        # whose errors were raised since: the state has these with the next batch only.
        self._passed = 0, 0
        self._failed_rows: FailedRows | None = None
        register_loader(self)

    def __iter__(self) -> Self:
        return self

    def __reduce__(self) -> Any:
        raise TypeError(
            "an iterator of a Loader cannot be pickled: send the dataset and the "
            "state, and call ds.loader(..., state=state) in the other process"
        )

    def __repr__(self) -> str:
        skipped = f"; {self.skipped:,} skipped" if self.skipped else ""
        closed = "; closed" if self.is_closed else ""
        return f"LoaderIterator(position {self.position:,}{skipped}{closed})"

    def __len__(self) -> int:
        """Return the number of remaining batches."""
        if self.is_closed:
            return 0
        position = self._position
        source = self._epochs.start.source() if position is None else position.source
        return self._options.count_batches(max(0, len(source) - self._passed[0]))

    def __length_hint__(self) -> int:
        return 0  # `list` must not count the samples of unread shards

    @property
    def is_closed(self) -> bool:
        """True after the last batch, and if this or the loader was closed."""
        return self._is_closed or self._epochs.is_closed

    @property
    def position(self) -> int:
        """The position of the first sample after the batches so far."""
        return 0 if self._position is None else self._position.done[0]

    @property
    def skipped(self) -> int:
        """The number of samples that were skipped or masked in the batches so far."""
        return 0 if self._position is None else self._position.done[1]

    def __next__(self) -> T_co:
        if self._pipeline is not None and running_pipeline() is self._pipeline:
            raise RuntimeError(
                "a function that a loader calls must not ask the loader for batches"
            )
        return self._guard.call(self._timed_next)

    def _timed_next(self) -> T_co:
        consumer, pipeline = self._recorder.consumer, self._pipeline
        consumer.ask(0 if pipeline is None else pipeline.ready)
        try:
            done, skipped = self.position, self.skipped
            batch = self._next()
            skipped = self.skipped - skipped
            consumer.answer(self.position - done - skipped, skipped)
            return batch
        except BaseException:
            consumer.fail()
            raise

    def _next(self) -> T_co:
        if self.is_closed:
            raise StopIteration
        position = self._position or self._start()
        try:
            pipeline = self._pipeline
            if pipeline is None:
                pipeline = self._begin(position)
                if self.is_closed:  # by another thread, meanwhile
                    self._halt()
                    raise StopIteration
            if len(self) == 0:
                self._finish(position)
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
        return self._return(position, work)

    def _start(self) -> Position:
        """Begin where the loader is."""
        epochs, on_error = self._epochs, self._options.on_error
        position = Position(epochs.start, self._recorder)
        if on_error != "raise":
            masks, steps = on_error == "mask", self._steps(position)
            self._failed_rows = FailedRows(masks, steps, self._pool)
        self._end_early = finalize(self, epochs.end_early, position)
        self._end_early.atexit = False
        self._position = position
        epochs.last = epochs.last or position
        return position

    def _begin(self, position: Position) -> Pipeline:
        """Return a new pipeline that begins after the batches so far."""
        options = self._options
        pipeline = Pipeline(
            self._steps(position),
            PipelineOptions(options.batch_size, options.threads, options.ahead),
            self._passed[0],
            len(position.source),
            len(self),
            self._recorder,
            self._pool,
        )
        register_pipeline(pipeline)
        self._finalizer = finalize(self, _stop, pipeline)
        self._finalizer.atexit = False  # `lifetime` stops all together
        self._pipeline = pipeline
        return pipeline

    def _steps(self, position: Position) -> BatchSteps:
        on_error = self._options.on_error
        return BatchSteps(position.source, on_error, self._is_skippable)

    def _return(self, position: Position, work: BatchWork) -> T_co:
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
                del error  # its traceback refers to this frame and the iterator
        batch = self._complete(work)
        work.value = work.buffers = None  # a thread may still refer to the work
        position.done = self._passed
        position.batches += 1
        self._epochs.last = position
        return batch

    def _complete(self, work: BatchWork) -> T_co:
        """Return the batch with its failed rows reported."""
        rows = self._failed_rows
        return cast(T_co, work.value if rows is None else rows.add(work))

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the batches so far; see `Loader.state_dict`."""
        position = self._position
        if position is None:
            return self._epochs.start.source().state_after(0, 0)
        return position.state()

    def stats(self, since: LoaderStats | None = None) -> LoaderStats:
        """Return the statistics of this iteration; see `Loader.stats`."""
        return self._recorder.stats(since)

    def replay(self, n: int) -> Iterator[T_co]:
        """Iterate `n` times over the batches made ahead; see `Loader.replay`."""
        if n < 0:
            raise ValueError(f"n must not be negative, got {n}")
        batches = self._guard.call(self._ring)
        return self._replay(batches, n, self._passed)

    def _ring(self) -> list[T_co]:
        """Return the batches that are made ahead."""
        if self.is_closed or len(self) == 0:
            raise ValueError(AT_END)
        try:
            timeout = self._options.timeout
            seconds = float("inf") if timeout is None else timeout
            position = self._position or self._start()
            pipeline = self._pipeline or self._begin(position)
            if self.is_closed:  # by another thread, meanwhile
                raise PipelineStoppedError
            works = pipeline.fill(time.monotonic() + seconds)
        except PipelineStoppedError:
            self._halt()
            raise ValueError(AT_END) from None
        except BaseException:
            self._halt()
            raise
        if not works:
            raise TimeoutError("no batch of the ring was made in time")
        return [
            self._complete(work)
            for work in works
            if work.error is None and not work.failures
        ]

    def _replay(
        self, batches: list[T_co], n: int, done: tuple[int, int]
    ) -> Iterator[T_co]:
        for _ in range(n):
            for batch in batches:
                if self.is_closed or self._passed != done:
                    raise ValueError(
                        "the loader has advanced: these are not its next batches"
                    )
                yield batch

    def close(self) -> None:
        """End the iteration and its threads; see `Loader.close`."""
        if self._end_early is not None:
            self._end_early()
        self._end()

    def _finish(self, position: Position) -> None:
        """End the iteration after its last batch."""
        if self._end_early is not None:
            self._end_early.detach()
        self._epochs.finish(position)
        self._end()

    def _end(self) -> None:
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
        self._guard = CallGuard()
        self._recorder = LoaderRecorder()
        self._pipeline = None
        if self._position is not None:
            self._position.recorder = self._recorder
        if self._finalizer is not None:
            self._finalizer.detach()
            self._finalizer = None


def _stop(pipeline: Pipeline) -> None:
    """Stop the threads of an iterator that is garbage or at its end."""
    unregister_pipeline(pipeline)
    pipeline.stop()
