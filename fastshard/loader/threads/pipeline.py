"""Threads that make batches ahead of their consumer, in order."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from fastshard.loader.buffers import BufferPool, BufferSet
from fastshard.loader.recorder import LoaderRecorder
from fastshard.loader.threads.batch_work import BatchSteps, BatchWork
from fastshard.loader.times import enter_step

if TYPE_CHECKING:
    from fastshard.remote.deadline import Waits

__all__ = ["Pipeline", "PipelineOptions", "PipelineStoppedError", "running_pipeline"]

MIN_CHUNK, MAX_CHUNK = 4, 8  # samples that a thread claims at a time
CHUNKS_PER_THREAD = 4  # of a batch, with chunks of MAX_CHUNK
FILL_SECONDS = 0.001  # poll interval of `fill`
STOP_SECONDS = 1.0  # timeout of `join`
DIRECT_NS = 1_000_000  # to make a batch: below, threads may cost more than they gain


class PipelineOptions(NamedTuple):
    """Sizes of a pipeline; see `Loader`."""

    batch_size: int
    threads: int
    ahead: int


class PipelineStoppedError(Exception):
    """The pipeline was stopped while its consumer waited; never leaves the loader."""


class Claim(NamedTuple):
    """Part of a batch that a thread makes: its bytes, or the rows of a chunk."""

    work: BatchWork
    row: int
    stop: int  # 0: fetch


class _Running(threading.local):
    pipeline: Pipeline | None = None


_running = _Running()


def running_pipeline() -> Pipeline | None:
    """Return the pipeline that the calling thread belongs to."""
    return _running.pipeline


class Pipeline:
    """Threads and the batches between them and the consumer.

    Threads refer to it; it has no reference to its loader, whose finalizer stops it.
    Threads claim chunks of the oldest unfinished batch first. Batches are made in
    memory of the pool, in that of ``ahead + 2`` if the consumer keeps none but the last
    one.
    """

    def __init__(
        self,
        steps: BatchSteps,
        options: PipelineOptions,
        start: int,
        total: int,
        count: int,
        recorder: LoaderRecorder,
        pool: BufferPool,
    ) -> None:
        self._steps = steps
        self._pool = pool
        self.recorder = recorder
        self._options = options
        self._start = start
        self._total = total
        self._count = count
        self._is_prepared = steps.source.is_prepared
        self._is_remote = steps.source.is_remote
        # Reentrant: a finalizer that the garbage collector runs may call `stop` in a
        # thread that holds it. All that follows is locked by it.
        self._lock = threading.RLock()
        self._works: deque[BatchWork] = deque()  # opened, not taken; in order
        self._opened = 0
        self.ready = 0  # batches that are made and not taken
        self._asked = 0  # batches that the consumer requested
        self._is_asking = False
        self._is_filling = False  # `fill` was called since
        self._idle: list[threading.Lock] = []  # gates of threads without work
        self._fetcher: threading.Lock | None = None  # its gate, while it waits
        self._waits: Waits | None = None  # pending requests of the fetching thread
        self._error: BaseException | None = None  # of the pipeline itself
        self._is_stopping = False
        self._is_waiting = False  # the consumer, at its gate
        self._threads: list[threading.Thread] = []
        self._gate = _closed_gate()
        self._given = 0  # time of the last batch, ns
        self._consumer_ns = 0  # between a batch and the next call, about
        self._make_ns = 0  # to make a whole batch in one thread, about

    # -- The consumer

    def take(self, timeout: float | None) -> BatchWork | None:
        """Remove the next batch, when it is made; None after `timeout` seconds.

        Must not be called after the last batch.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        may_make = timeout is None  # its own read would ignore the timeout
        self._ask(may_make)
        while True:
            with self._lock:
                if self._error is not None:
                    raise self._error
                work = self._works[0] if self._works else None
                if self._is_stopping:
                    raise PipelineStoppedError
                if work is not None and work.is_done:
                    return self._give()
                work = self._open_own() if may_make else None
                if work is None:
                    self._is_waiting = True
            if work is not None:
                with self.recorder.inline():
                    self._make(work)
                continue
            if not self._threads:
                self._start_threads()
            if deadline is None:
                self._gate.acquire()
            elif not self._gate.acquire(timeout=max(0.0, deadline - time.monotonic())):
                with self._lock:
                    if self._is_waiting:
                        self._is_waiting = False
                        return None
                self._gate.acquire()

    def _ask(self, may_make: bool) -> None:
        """Count a call of the consumer."""
        with self._lock:
            if self._is_asking:  # the last call ended with a timeout
                return
            now = time.perf_counter_ns()
            interval = now - self._given if self._given else 0
            self._consumer_ns = min(interval, 2 * self._consumer_ns + DIRECT_NS // 16)
            self._is_asking = True
            self._asked += 1
            self._is_filling = False
            if self._threads and not (may_make and self._is_direct()):
                self._wake()

    def _give(self) -> BatchWork:
        work = self._works.popleft()
        self.ready -= 1
        self._is_asking = False
        self._given = time.perf_counter_ns()
        return work

    def fill(self, deadline: float) -> list[BatchWork]:
        """Make the next ``ahead + 1`` batches; return them, without taking them."""
        if not self._threads:
            self._start_threads()
        while True:
            with self._lock:
                if self._error is not None:
                    raise self._error
                if self._is_stopping:
                    raise PipelineStoppedError
                self._is_filling = True
                limit = self._limit()
                ring = [work for work in self._works if work.number < limit]
                works = [work for work in ring if work.is_done]
                is_full = self._opened >= limit and len(works) == len(ring)
                self._wake()
            if is_full or time.monotonic() >= deadline:
                return works
            time.sleep(FILL_SECONDS)

    def _is_direct(self) -> bool:
        """Return True if the consumer makes all batches: threads would be idle.

        Stacking a batch of arrays is faster than handing it over between threads.
        """
        return (
            self._is_prepared
            and not self._is_remote
            and self._make_ns < DIRECT_NS
            and self._consumer_ns < self._make_ns // 2
        )

    def _open_own(self) -> BatchWork | None:
        """Return the next batch for the consumer to make, if no thread began it."""
        if self._works or not self._is_prepared or self._is_remote:
            return None
        if not self._threads and self._make_ns and not self._is_direct():
            self._start_threads()
        return self._open()

    def _make(self, work: BatchWork) -> None:
        """Make a whole batch of a local dataset that needs no preparation."""
        began = time.perf_counter_ns()
        self._steps.fetch(work)
        self._steps.collate(work, work.buffers)
        with self._lock:
            self._end_work(work)
            # Other threads may have interfered: take the least of the last batches.
            made = time.perf_counter_ns() - began
            self._make_ns = min(made, self._make_ns * 5 // 4 or made)

    # -- The threads

    def _start_threads(self) -> None:
        """Start the threads; fewer, if the system has no more."""
        bodies: list[Callable[[], None]] = [self._run] * self._options.threads
        if self._is_remote:
            bodies.insert(0, self._run_fetcher)
        for k, body in enumerate(bodies):
            name = f"fastshard-loader-{k}"
            thread = threading.Thread(
                target=_run_body, args=(self, body), name=name, daemon=True
            )
            try:
                thread.start()
            except RuntimeError:
                if k == 0 or (self._is_remote and k == 1):
                    self.stop()
                    raise
                break
            self._threads.append(thread)

    def _run(self) -> None:
        """Claim work and do it; the body of a thread."""
        gate = _closed_gate()
        while True:
            with self._lock:
                if self._is_stopping:
                    return
                claim = self._claim()
                if claim is None:
                    if self._is_over():
                        return
                    self._idle.append(gate)
                    enter_step("full" if self._is_full() else "idle")
            if claim is None:
                if self._is_stopping:  # set by a finalizer, before the gate was listed
                    return
                gate.acquire()
            elif claim.stop == 0 and self._is_prepared:
                self._make(claim.work)
            elif claim.stop == 0:
                self._fetch(claim.work)
            else:
                self._prepare_chunk(claim.work, claim.row, claim.stop)

    def _claim(self) -> Claim | None:
        """Return the next part of the oldest unfinished batch, or None."""
        limit = self._limit()
        for work in self._works:
            if work.number >= limit:
                return None
            if not work.is_fetched or work.claimed == work.rows:
                continue
            if work.buffers is None:
                work.buffers = BufferSet(self._pool)
            row = work.claimed
            work.claimed = min(row + self._chunk(work), work.rows)
            return Claim(work, row, work.claimed)
        if self._is_remote or self._opened >= limit:
            return None
        return Claim(self._open(), 0, 0)

    def _limit(self) -> int:
        """Return the number of the first batch that may not be begun yet."""
        ahead = self._options.ahead + self._is_filling
        return min(self._count, self._asked + ahead)

    def _chunk(self, work: BatchWork) -> int:
        if self._is_prepared or work.error is not None:
            return work.rows
        if work.number == 0:  # the consumer waits: let threads end together
            return MIN_CHUNK
        share = work.rows // (CHUNKS_PER_THREAD * self._options.threads)
        return min(max(share, MIN_CHUNK), MAX_CHUNK)

    def _open(self) -> BatchWork:
        """Start the next batch."""
        size = self._options.batch_size
        start = self._start + self._opened * size
        work = BatchWork(self._opened, start, min(start + size, self._total))
        self._opened += 1
        self._works.append(work)
        if not self._is_remote:
            work.buffers = BufferSet(self._pool)
            if self._is_prepared:  # the thread that opens it makes all of it
                work.is_fetched = True
                work.claimed = work.rows
        return work

    def _is_full(self) -> bool:
        """Return whether the queue is full: the consumer must ask first."""
        return self._opened >= self._limit() and all(
            work.is_fetched for work in self._works
        )

    def _is_over(self) -> bool:
        """Return whether all batches are claimed."""
        return self._opened == self._count and all(
            work.claimed == work.rows for work in self._works
        )

    def _fetch(self, work: BatchWork) -> None:
        """Fetch the samples of a batch; let threads prepare them."""
        self._steps.fetch(work)
        with self._lock:
            self._open_chunks(work)

    def _open_chunks(self, work: BatchWork) -> None:
        """Let threads claim chunks of a batch that was fetched."""
        work.is_fetched = True
        self._wake(-(-work.rows // self._chunk(work)) - (not self._is_remote))

    def _prepare_chunk(self, work: BatchWork, row: int, stop: int) -> None:
        """Prepare a chunk; collate the batch after the last one."""
        if not self._is_prepared and not work.fails_before(row):
            self._steps.prepare(work, row, stop)
        with self._lock:
            work.left -= stop - row
            if work.left:
                return
        self._steps.collate(work, work.buffers)
        with self._lock:
            self._end_work(work)

    def _end_work(self, work: BatchWork) -> None:
        """Count a finished batch; wake the consumer if it waits for that one."""
        work.is_done = True
        self.ready += 1
        if self._works and self._works[0] is work:
            self._release_consumer()

    def _wake(self, count: int = 1) -> None:
        """Let idle threads look for work."""
        for _ in range(count):
            if not self._idle:  # checked each time: a finalizer may call `stop` between
                break
            self._idle.pop().release()
        fetcher, self._fetcher = self._fetcher, None
        if fetcher is not None:
            fetcher.release()

    # -- The thread that fetches from a network

    def _run_fetcher(self) -> None:
        """Fetch the samples of several batches at a time; the body of a thread."""
        from fastshard.remote.deadline import watch_requests

        with watch_requests() as self._waits:
            self._fetch_ahead(_closed_gate())

    def _fetch_ahead(self, gate: threading.Lock) -> None:
        while True:
            with self._lock:
                if self._is_stopping or self._opened == self._count:
                    return
                works = self._open_fetched()
                if not works:
                    self._fetcher = gate
                    enter_step("full")
            if works:
                self._fetch_plan(works)
            elif self._is_stopping:
                return
            else:
                gate.acquire()

    def _open_fetched(self) -> list[BatchWork]:
        """Open the batches to fetch next: the first alone, then `ahead` at a time."""
        most = max(1, self._options.ahead)
        count = min(self._count, self._limit() + 1 + most) - self._opened
        if self._opened == 0:
            return [self._open()]
        is_part = count < most and self._opened + count < self._count
        if is_part and any(not work.claimed for work in self._works):
            return []  # later, more together: threads have work
        return [self._open() for _ in range(count)]

    def _fetch_plan(self, works: list[BatchWork]) -> None:
        """Fetch batches together; after an error each by itself."""
        first, last = works[0], works[-1]
        items: list[object] | None = None
        if len(works) > 1:
            enter_step("fetch")
            try:
                items = self._steps.fetch_together(first.start, last.stop)
            except Exception:
                items = None
        for work in works:
            if self._is_stopping:
                return
            if items is None:
                self._steps.fetch(work)
            else:
                work.items = items[work.start - first.start : work.stop - first.start]
            with self._lock:
                self._open_chunks(work)

    # -- The end

    def fail(self, error: BaseException) -> None:
        """End with an error that is not a sample's; the consumer raises it."""
        with self._lock:
            if self._error is None:
                self._error = error
            self._release_consumer()

    def stop(self) -> None:
        """Let threads end after their current work; also called by finalizers."""
        with self._lock:
            self._is_stopping = True
            self._wake(len(self._idle))
            self._release_consumer()

    def cancel(self) -> None:
        """Stop, and cancel requests that are in progress; not for finalizers."""
        self.stop()
        if self._waits is not None:
            self._waits.drop()

    def _release_consumer(self) -> None:
        if self._is_waiting:
            self._is_waiting = False
            self._gate.release()

    def join(self, deadline: float) -> bool:
        """Wait for the threads until a time of `time.monotonic`."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)


def _closed_gate() -> threading.Lock:
    """Return a lock that is held: a thread that acquires it waits for a release."""
    gate = threading.Lock()
    gate.acquire()
    return gate


def _run_body(pipeline: Pipeline, body: Callable[[], None]) -> None:
    """Run the body of a thread; its errors reach the consumer."""
    _running.pipeline = pipeline
    try:
        with pipeline.recorder.thread():
            body()
    except BaseException as error:
        pipeline.fail(error)
    finally:
        _running.pipeline = None
