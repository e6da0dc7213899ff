"""Time that a thread spends in each step of making batches."""

from __future__ import annotations

import threading

__all__ = ["ThreadTimes", "current_times", "set_current_times"]


class ThreadTimes:
    """Nanoseconds and counts of one thread; written by that thread alone.

    Attributes
    ----------
    fetch, decode, resize, map, collate, full, idle : int
        Nanoseconds. `full` is time without a free set of buffers, `idle` time without
        work.
    cpu, runqueue : int
        Nanoseconds, of ``/proc/thread-self/schedstat``.
    bytes_read, bytes_decoded : int
        Stored bytes of samples, and bytes of decoded images.
    filled : int
        Truncated images that were filled.
    """

    __slots__ = (
        "bytes_decoded",
        "bytes_read",
        "collate",
        "cpu",
        "decode",
        "fetch",
        "filled",
        "full",
        "idle",
        "map",
        "resize",
        "runqueue",
    )

    def __init__(self) -> None:
        self.fetch = 0
        self.decode = 0
        self.resize = 0
        self.map = 0
        self.collate = 0
        self.full = 0
        self.idle = 0
        self.cpu = 0
        self.runqueue = 0
        self.bytes_read = 0
        self.bytes_decoded = 0
        self.filled = 0


class _Current(threading.local):
    times: ThreadTimes | None = None


_current = _Current()


def current_times() -> ThreadTimes | None:
    """Return the times of the calling thread, or None outside of loaders."""
    return _current.times


def set_current_times(times: ThreadTimes | None) -> None:
    """Set the times of the calling thread."""
    _current.times = times
