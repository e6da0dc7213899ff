"""Time that a thread spends in each step of making batches."""

from __future__ import annotations

from fastshard._core.loader.threads import (
    ThreadTimes,
    current_times,
    enter_step,
    set_current_times,
)

__all__ = ["ThreadTimes", "current_times", "enter_step", "set_current_times"]
