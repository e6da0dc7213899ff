"""Recorder of a loader: the times of its consumer and of its threads."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fastshard._core.loader.times import ConsumerTimes, ThreadTimes
from fastshard.loader.stats import LoaderStats, LoaderTotals
from fastshard.loader.times import set_current_times

__all__ = ["LoaderRecorder"]

REMOTE = "fastshard.remote.retry"
REMOTE_COUNTS = ("requests", "retries", "cache_hits")
THREAD_COUNTS = ("bytes_read", "bytes_decoded", "filled")


class LoaderRecorder:
    """Times of the consumer and of the threads of one loader.

    Attributes
    ----------
    consumer : ConsumerTimes
        Its `ask`, `answer` and `fail` are called around each wait, and `stop` at the
        end.
    """

    def __init__(self) -> None:
        self.consumer = ConsumerTimes()
        self._threads: list[ThreadTimes] = []
        self._lock = threading.Lock()  # of the list
        self._remote = _remote_counts()

    def add(self, times: ThreadTimes) -> None:
        """Add the times of another thread."""
        with self._lock:
            self._threads.append(times)
            self.consumer.begin()

    @contextmanager
    def thread(self, step: str = "idle") -> Iterator[ThreadTimes]:
        """Times of the calling thread, from here to the end of the block."""
        times = ThreadTimes()
        times.start(step)
        self.add(times)
        set_current_times(times)
        try:
            yield times
        finally:
            set_current_times(None)
            times.stop()

    def stats(self, since: LoaderStats | None = None) -> LoaderStats:
        """Return the statistics since the start, or since earlier ones.

        Any thread may call it.

        Parameters
        ----------
        since : LoaderStats, optional
            Earlier statistics of this recorder.
        """
        stats = LoaderStats.of(self._totals())
        return stats if since is None else stats.after(since)

    def _totals(self) -> LoaderTotals:
        with self._lock:
            threads = list(self._threads)
        now, consumer, counts, ready, waits = self.consumer.snapshot()
        found = [thread.snapshot(now) for thread in threads]
        times: dict[str, int | None] = {**consumer}
        for name in found[0] if found else ThreadTimes().snapshot(now):
            known = [one[name] for one in found]
            numbers = [ns for ns in known if ns is not None]
            times[name] = sum(numbers) if len(numbers) == len(known) else None
        for name in THREAD_COUNTS:
            counts[name] = times.pop(name) or 0
        for name, count, before in zip(
            REMOTE_COUNTS, _remote_counts(), self._remote, strict=True
        ):
            counts[name] = count - before
        return LoaderTotals(times, counts, ready, waits, len(threads))


def _remote_counts() -> tuple[int, int, int]:
    """Return the process's requests, retries and cache hits, if it read remotely."""
    module = sys.modules.get(REMOTE)
    if module is None:
        return 0, 0, 0
    requests, retries, hits = module.traffic.counts()
    return requests, retries, hits
