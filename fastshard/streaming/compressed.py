"""Opening of compressed shards: each once, those that follow ahead, memory bounded."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import Any

from fastshard._core.io.source import MemorySource
from fastshard.remote.cache.disk import LockOwner

__all__ = ["CompressedShards"]

MOST_AHEAD = 4  # shards that are decompressed ahead
MEMORY_SHARE = 4  # of the machine's memory, for shards that are written nowhere
UNKNOWN_MEMORY = 4 << 30  # bytes, of a machine that does not tell


class CompressedShards(LockOwner):
    """Opens the compressed shards of a set.

    Threads that want the same shard open it once. If shards are opened in their order,
    the raw files of those that follow are decompressed ahead, each in a thread that
    ends with it; its errors are dropped, for the reader meets them again. Shards that
    are in memory, because their raw files cannot be written, are closed in the order
    of their opening beyond `max_memory`, or a quarter of the machine's memory.

    Parameters
    ----------
    shards : StreamSet
    """

    def __init__(self, shards: Any) -> None:
        super().__init__()
        self._shards = shards
        self._opening: dict[int, LockOwner] = {}
        self._threads: dict[int, threading.Thread] = {}
        self._held: dict[int, int] = {}  # bytes by shard in memory, the oldest first
        self._last = -1  # shard that was opened last
        self._is_prepared = shards.reading.prefetch
        self._most = shards.reading.max_memory or _machine_memory() // MEMORY_SHARE

    def open(self, k: int) -> Any:
        """Return the samples of shard `k`.

        Raises
        ------
        FormatError, OSError, MissingLibraryError, ValueError
            As for `open_raw`.
        """
        with self.lock:
            opening = self._opening.setdefault(k, LockOwner())
        with opening.lock:
            samples = self._shards.open_samples[k]
            if samples is None:
                self._prepare_next(k)
                samples = self._shards.open_now(k)
                source = samples.shard.parts()[0]
                if isinstance(source, MemorySource):
                    self._hold(k, source.nbytes)
        with self.lock:
            self._opening.pop(k, None)
        return samples

    def _prepare_next(self, k: int) -> None:
        """Start to prepare the shards that follow; wait for `k` if it is prepared."""
        with self.lock:
            thread = self._threads.pop(k, None)
            is_next = k == self._last + 1
            self._last = k
            if not is_next:
                self._threads.clear()
            last = min(k + _count_ahead(), len(self._shards) - 1)
            if is_next and self._is_prepared:
                for number in range(k + 1, last + 1):
                    self._start(number)
        if thread is not None:
            thread.join()

    def _start(self, k: int) -> None:
        shards = self._shards
        if k not in self._threads and shards.files.needs_raw(shards.numbers[k]):
            thread = threading.Thread(target=self._prepare, args=(k,))
            self._threads[k] = thread
            thread.start()

    def _prepare(self, k: int) -> None:
        if self._shards.closed:
            return
        try:
            self._shards.files.write_raw(self._shards.numbers[k])
        except FileNotFoundError:
            pass
        except OSError:
            self._is_prepared = False  # no file can be written
        except Exception:  # noqa: S110 - the reader meets it again
            pass

    def _hold(self, k: int, nbytes: int) -> None:
        """Count a shard in memory; close the oldest ones beyond the limit."""
        shards = self._shards
        with self.lock:
            self._held.pop(k, None)
            self._held[k] = nbytes
            while len(self._held) > 1 and sum(self._held.values()) > self._most:
                oldest = next(iter(self._held))
                del self._held[oldest]
                if shards.open_samples[oldest] is not None:
                    shards.open_samples[oldest] = None
                    shards.open_count -= 1


def _count_ahead() -> int:
    if hasattr(os, "sched_getaffinity"):
        return min(MOST_AHEAD, len(os.sched_getaffinity(0)))
    return min(MOST_AHEAD, os.cpu_count() or 1)


def _machine_memory() -> int:
    with suppress(AttributeError, OSError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return UNKNOWN_MEMORY
