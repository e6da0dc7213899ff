"""Recorder of a loader: the consumer's times, and the threads'."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from fastshard.loader.stats import COUNTS, LoaderStats, LoaderTotals, bucket_of
from fastshard.loader.times import (
    NESTED,
    STEPS,
    THREAD_COUNTS,
    Step,
    ThreadTimes,
    set_current_times,
)

__all__ = ["LoaderRecorder"]

ATTEMPTS = 1000  # reads of the consumer's times, which change meanwhile
REMOTE = "fastshard.remote.retry"
REMOTE_COUNTS = ("requests", "retries", "cache_hits")


class LoaderRecorder:
    """Times of the consumer and of the threads of one loader.

    The consumer calls `ask` when it wants a batch, then `answer`, or `fail` when it
    gets none. The calls cost less than a microsecond. `stats` may be called by any
    thread.
    """

    def __init__(self) -> None:
        self._threads: list[ThreadTimes] = []
        self._lock = threading.Lock()  # of the list
        self._first = 0  # ns of the first call of `ask`
        self._last = 0  # ns of the last call of `ask` or `answer`
        self._end = 0  # ns of `stop`
        self._is_waiting = False
        self._change = 0  # odd while the consumer changes what follows
        self._consumer = 0
        self._wait = 0
        self._batches = 0
        self._samples = 0
        self._skipped = 0
        self._ready = 0
        self._asked = 0  # batches ready at the last call of `ask`
        self._waits: dict[int, int] = {}  # histogram: number of waits by bucket
        self._remote = _remote_counts()

    @contextmanager
    def thread(self, step: Step = "idle") -> Iterator[ThreadTimes]:
        """Times of the calling thread, from here to the end of the block."""
        times = ThreadTimes()
        times.start(step)
        with self._lock:
            self._threads.append(times)
            if not self._first:
                self._first = self._last = times.started
        set_current_times(times)
        try:
            yield times
        finally:
            set_current_times(None)
            times.stop()

    def ask(self, ready: int) -> None:
        """Begin a wait of the consumer, with a number of batches that are ready."""
        now = time.perf_counter_ns()
        self._change += 1
        if self._first:
            self._consumer += now - self._last
        else:
            self._first = now
        self._last = now
        self._end = 0
        self._asked = ready
        self._is_waiting = True
        self._change += 1

    def answer(self, samples: int, skipped: int = 0) -> None:
        """End a wait with a batch of samples."""
        now = time.perf_counter_ns()
        wait = now - self._last
        self._change += 1
        self._wait += wait
        self._last = now
        self._is_waiting = False
        self._batches += 1
        self._samples += samples
        self._skipped += skipped
        self._ready += self._asked
        bucket = bucket_of(wait)
        self._waits[bucket] = self._waits.get(bucket, 0) + 1
        self._change += 1

    def fail(self) -> None:
        """End a wait without a batch."""
        now = time.perf_counter_ns()
        self._change += 1
        self._wait += now - self._last
        self._last = now
        self._is_waiting = False
        self._change += 1

    def stop(self) -> None:
        """End the measured time: the loader is exhausted or closed."""
        self._end = self._end or time.perf_counter_ns()

    def stats(self, since: LoaderStats | None = None) -> LoaderStats:
        """Return the statistics since the first call of `ask`, or since earlier ones.

        Parameters
        ----------
        since : LoaderStats, optional
            Earlier statistics of this recorder.
        """
        totals = self._total()
        stats = LoaderStats.of(totals)
        return stats if since is None else stats.after(since)

    def _total(self) -> LoaderTotals:
        """Return the totals since the start."""
        for _ in range(ATTEMPTS):
            change = self._change
            counts = dict.fromkeys(COUNTS, 0)
            counts["batches"], counts["samples"] = self._batches, self._samples
            counts["skipped"], ready = self._skipped, self._ready
            waits = self._waits.copy()
            consumer, wait = self._consumer, self._wait
            first, last, is_waiting = self._first, self._last, self._is_waiting
            now = self._end or time.perf_counter_ns()
            if change == self._change and not change & 1:
                break
            time.sleep(0)
        since_last = max(0, now - last) if first else 0
        if is_waiting:
            wait += since_last
        else:
            consumer += since_last
        wall = max(0, now - first) if first else 0
        times: dict[str, int | None] = {
            "wall": wall,
            "consumer": consumer,
            "wait": wait,
        }
        with self._lock:
            threads = [thread.snapshot(now) for thread in self._threads]
        for name in (*STEPS, *NESTED):
            times[name] = sum(getattr(thread, name) for thread in threads)
        for name in ("cpu", "runqueue"):
            known = [getattr(thread, name) for thread in threads]
            times[name] = None if None in known else sum(known)
        for name in THREAD_COUNTS:
            counts[name] = sum(getattr(thread, name) for thread in threads)
        for name, count, before in zip(
            REMOTE_COUNTS, _remote_counts(), self._remote, strict=True
        ):
            counts[name] = count - before
        return LoaderTotals(times, counts, ready, waits, len(threads))


def _remote_counts() -> tuple[int, int, int]:
    """Return the process's requests, retries and cache hits, if it read remotely."""
    module = sys.modules.get(REMOTE)
    return (0, 0, 0) if module is None else module.traffic.counts()
