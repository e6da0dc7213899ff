"""Time that a thread spends in each step of making batches."""

from __future__ import annotations

import threading

from fastshard._core.loader.times import ThreadTimes

__all__ = ["ThreadTimes", "current_times", "set_current_times"]


class _Current(threading.local):
    times: ThreadTimes | None = None


_current = _Current()


def current_times() -> ThreadTimes | None:
    """Return the times of the calling thread, or None outside of loaders."""
    return _current.times


def set_current_times(times: ThreadTimes | None) -> None:
    """Set the times of the calling thread."""
    _current.times = times
