"""Recorder of a loader: the times of its consumer and of its threads."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fastshard._core.loader.threads import ConsumerTimes, ThreadTimes
from fastshard.loader.stats import LoaderStats, LoaderTotals
from fastshard.loader.times import set_current_times

__all__ = ["InlineRecorder", "LoaderRecorder"]

REMOTE = "fastshard.remote.traffic"
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

    def __init__(self, consumer: ConsumerTimes | None = None) -> None:
        self.consumer = consumer or ConsumerTimes()
        self._threads: list[ThreadTimes] = []
        self._lock = threading.Lock()  # of the list
        self._inline: ThreadTimes | None = None
        self._remote = _remote_counts()

    def add(self, times: ThreadTimes) -> None:
        """Add the times of another thread."""
        with self._lock:
            self._threads.append(times)
            self.consumer.begin()

    @contextmanager
    def thread(self) -> Iterator[ThreadTimes]:
        """Times of the calling thread, from here to the end of the block."""
        times = ThreadTimes()
        self.consumer.begin()
        times.start(self.consumer.first)
        self.add(times)
        set_current_times(times)
        try:
            yield times
        finally:
            set_current_times(None)
            times.stop()

    def inline(self) -> ThreadTimes:
        """Times of the consumer's thread: the context in which it makes a batch."""
        if self._inline is None:
            self._inline = ThreadTimes(is_inline=True)
            self._inline.start(self.consumer.first)
            self.add(self._inline)
        return self._inline

    def stats(self, since: LoaderStats | None = None) -> LoaderStats:
        """Return the statistics since the start, or since earlier ones.

        Any thread may call it.
        """
        stats = LoaderStats._of(self._totals())
        return stats if since is None else stats._after(since)

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
        begun = self.consumer.first
        return LoaderTotals(times, counts, ready, waits, len(threads), begun)


class InlineRecorder:
    """Times of an iterator that makes its batches in the consumer's thread.

    Attributes
    ----------
    begin : callable
        ``begin()`` is called when ``next`` begins.
    begin_collation : callable
        ``begin_collation(samples)`` is called before a batch's samples are collated.
    end : callable
        ``end(samples, skipped)`` is called when ``next`` ends: samples of the batch, 0
        if there is none; and samples skipped in total.
    """

    def __init__(self, samples: Any) -> None:
        self._samples = samples
        is_mapped = getattr(samples, "is_mapped", True)
        self._waited = 0  # of `wait_ns`
        self._times = ThreadTimes(is_inline=True)
        self._step = "map" if is_mapped else "fetch"
        self._consumer = ConsumerTimes(self._times, self._step, samples.skipped)
        self._recorder = LoaderRecorder(self._consumer)
        self._recorder.add(self._times)
        # Raw samples need no times: no function of the caller and no decoder runs.
        self.begin: Callable[[], None] = self._consumer.ask
        self.begin_collation: Callable[[list[Any]], None] = self._times.collate
        self.end: Callable[[int, int], None] = self._consumer.end_call
        if is_mapped:
            self.begin, self.end = self._begin_mapped, self._end_mapped
            self.begin_collation = self._begin_mapped_collation

    def _begin_mapped(self) -> None:
        self._times.__enter__()
        self._consumer.ask()

    def _begin_mapped_collation(self, samples: list[Any]) -> None:
        waited = getattr(self._samples, "wait_ns", 0)
        self._times.fetch += waited - self._waited
        self._waited = waited
        self._times.collate(samples)

    def _end_mapped(self, samples: int, skipped: int) -> None:
        self._times.__exit__(None, None, None)
        self._consumer.end_call(samples, skipped)

    def begin_again(self) -> None:
        """Restart the times of a batch whose samples were dropped."""
        self._times.enter(self._step)

    def stop(self) -> None:
        """End the measured time."""
        self._consumer.stop()

    def stats(self, since: LoaderStats | None = None) -> LoaderStats:
        """Return the statistics; see `LoaderRecorder.stats`."""
        return self._recorder.stats(since)


def _remote_counts() -> tuple[int, int, int]:
    """Return the process's requests, retries and cache hits, if it read remotely."""
    module = sys.modules.get(REMOTE)
    if module is None:
        return 0, 0, 0
    requests, retries, hits = module.traffic.counts()
    return requests, retries, hits
