"""Opening of compressed shards: once each, ahead, in bounded memory."""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import suppress
from typing import Any

from fastshard._core.io.source import MemorySource
from fastshard._util.processes.forks import LockOwner

__all__ = ["CompressedShards"]

MOST_AHEAD = 4  # shards that are opened ahead
MEMORY_SHARE = 4  # of the machine's memory, for shards that are written nowhere
UNKNOWN_MEMORY = 4 << 30  # bytes, if the machine's memory is unknown


class CompressedShards(LockOwner):
    """Opens the compressed shards of a set.

    Threads that want the same shard open it once. If shards are opened in their order,
    those that follow are opened ahead, each in a background thread of the set; its
    errors are dropped, for the reader meets them again. Shards that are in memory,
    because their raw files cannot be written, are closed in the order of their opening
    beyond `max_memory`, or a quarter of the machine's memory.
    """

    def __init__(self, shards: Any) -> None:
        super().__init__()
        # weak: memory goes with the set
        self._shards: Any = weakref.proxy(shards)
        self._opening: dict[int, LockOwner] = {}
        self._threads: dict[int, threading.Thread] = {}
        self._ready: dict[int, Any] = {}  # shards that were opened ahead
        self._held: dict[int, int] = {}  # bytes by shard in memory, the oldest first
        self._last = -1  # shard that was opened last
        self._most = shards.reading.max_memory or _machine_memory() // MEMORY_SHARE

    def open(self, k: int) -> Any:
        """Return the samples of shard `k`."""
        with self.lock:
            opening = self._opening.setdefault(k, LockOwner())
        with opening.lock:
            samples = self._shards.open_samples[k]
            if samples is None:
                samples = self._shards.open_now(k, self._take_ready(k))
                source = samples.shard.parts()[0]
                if isinstance(source, MemorySource):
                    self._hold(k, source.nbytes)
                if self._shards.reading.prefetch:
                    self._open_next(k)
        with self.lock:
            self._opening.pop(k, None)
        return samples

    def _take_ready(self, k: int) -> Any:
        """Return a shard that was opened ahead, or None; wait for its thread."""
        thread = self._threads.get(k)
        if thread is not None:
            thread.join()
        with self.lock:
            self._threads.pop(k, None)
            return self._ready.pop(k, None)

    def drop_ready(self) -> None:
        """Close the shards that were opened ahead, after the set was closed."""
        with self.lock:
            self._ready.clear()

    def _open_next(self, k: int) -> None:
        """Start to open the shards after `k` if access is sequential."""
        with self.lock:
            is_next, self._last = k == self._last + 1, k
            if not is_next:
                self._threads.clear()
                self._ready.clear()
                return
            last = min(k + self._count_ahead(k), len(self._shards) - 1)
            for number in range(k + 1, last + 1):
                if number not in self._threads and self._is_missing(number):
                    # The interpreter waits: no temporary file is left.
                    thread = self._shards.background.start(
                        self._open_ahead, number, daemon=False
                    )
                    if thread is None:
                        return
                    self._threads[number] = thread

    def _count_ahead(self, k: int) -> int:
        """Return how many shards to open ahead: in memory only one."""
        if k in self._held:
            return int(2 * self._held[k] <= self._most)
        return min(MOST_AHEAD, _count_processors())

    def _is_missing(self, k: int) -> bool:
        shards = self._shards
        return (
            shards.open_samples[k] is None
            and k not in self._ready
            and shards.files.needs_raw(shards.numbers[k])
        )

    def _open_ahead(self, k: int) -> None:
        shards = self._shards
        opened = shards.open_files(k)
        with self.lock:
            is_wanted = self._threads.get(k) is threading.current_thread()
            if is_wanted and not shards.closed:
                self._ready[k] = opened

    def _hold(self, k: int, nbytes: int) -> None:
        """Count a shard in memory; close the oldest ones beyond the limit."""
        shards = self._shards
        most = self._most
        if shards.reading.prefetch and 2 * nbytes <= most:
            most -= nbytes  # of the next one, which is opened ahead
        with self.lock:
            self._held.pop(k, None)
            self._held[k] = nbytes
            while len(self._held) > 1 and sum(self._held.values()) > most:
                oldest = next(iter(self._held))
                del self._held[oldest]
                shards.drop(oldest)


def _count_processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _machine_memory() -> int:
    with suppress(AttributeError, OSError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return UNKNOWN_MEMORY
