"""Time that a thread spends in each step of making batches."""

from __future__ import annotations

import os
import threading
import time
from typing import Final, Literal, NamedTuple

__all__ = [
    "NESTED",
    "STEPS",
    "THREAD_COUNTS",
    "Step",
    "ThreadTimes",
    "TimesSnapshot",
    "current_times",
    "set_current_times",
]

Step = Literal["fetch", "map", "collate", "full", "idle"]
STEPS: Final[tuple[Step, ...]] = ("fetch", "map", "collate", "full", "idle")
NESTED = ("decode", "resize")  # inside a step, and subtracted from its time
THREAD_COUNTS = ("bytes_read", "bytes_decoded", "filled")
SCHEDSTAT = "/proc/thread-self/schedstat"
ATTEMPTS = 1000  # reads of times that their thread changes meanwhile


class TimesSnapshot(NamedTuple):
    """Times and counts of one thread at one moment; see `ThreadTimes`.

    `cpu` and `runqueue` are None where the system does not tell.
    """

    fetch: int
    decode: int
    resize: int
    map: int
    collate: int
    full: int
    idle: int
    bytes_read: int
    bytes_decoded: int
    filled: int
    cpu: int | None
    runqueue: int | None


class ThreadTimes:
    """Nanoseconds and counts of one thread; written by that thread alone.

    A thread is always in one step, from `enter` to the next `enter`: the steps add up
    to the thread's whole time. Image decoders add to `decode` and `resize` inside a
    step; that time is not counted for the step.

    Attributes
    ----------
    fetch, decode, resize, map, collate, full, idle : int
        Nanoseconds. `full` is time without a free set of buffers, `idle` time without
        work.
    bytes_read, bytes_decoded : int
        Stored bytes of samples, and bytes of decoded images.
    filled : int
        Truncated images that were filled.
    started : int
        Start of the thread, ns of `time.perf_counter_ns`.
    """

    __slots__ = (
        "_ended",
        "_fd",
        "_last",
        "_nested",
        "_pid",
        "_since",
        "_step",
        "bytes_decoded",
        "bytes_read",
        "collate",
        "decode",
        "fetch",
        "filled",
        "full",
        "idle",
        "map",
        "resize",
        "started",
    )

    def __init__(self) -> None:
        self.fetch = 0
        self.decode = 0
        self.resize = 0
        self.map = 0
        self.collate = 0
        self.full = 0
        self.idle = 0
        self.bytes_read = 0
        self.bytes_decoded = 0
        self.filled = 0
        self.started = 0
        self._ended = 0
        self._step: Step | None = None
        self._since = 0  # start of the step; -1 while `enter` changes times
        self._nested = 0  # decode and resize at the start of the step
        self._fd = -1
        self._pid = 0
        self._last: tuple[int, int] | None = None  # schedstat at the end

    def start(self, step: Step = "idle") -> None:
        """Begin in a step; called by the thread itself."""
        try:
            self._fd = os.open(SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)
            self._pid = os.getpid()
        except OSError:
            self._fd = -1
        self._step = step
        self.started = self._since = time.perf_counter_ns()

    def enter(self, step: Step | None) -> None:
        """End the step, and begin another, or none."""
        now = time.perf_counter_ns()
        since, last = self._since, self._step
        self._since = -1
        nested = self.decode + self.resize
        if last is not None:
            spent = now - since - (nested - self._nested)
            setattr(self, last, getattr(self, last) + spent)
        self._nested = nested
        self._step = step
        self._since = now

    def stop(self) -> None:
        """End the step; called by the thread itself at its end."""
        self.enter(None)
        self._ended = self._since
        self._last = self._read_schedstat()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def snapshot(self, now: int) -> TimesSnapshot:
        """Return the times until now, those of the current step included.

        Any thread may call it. A thread that has ended counts as idle since.

        Parameters
        ----------
        now : int
            Ns of `time.perf_counter_ns`.
        """
        for _ in range(ATTEMPTS):
            since, step = self._since, self._step
            steps = {
                name: getattr(self, name) for name in (*STEPS, *NESTED, *THREAD_COUNTS)
            }
            base = self._nested
            if since == self._since and since >= 0:
                break
            time.sleep(0)
        if step is not None and since > 0:
            nested = steps["decode"] + steps["resize"]
            steps[step] += max(0, now - since - (nested - base))
        elif self._ended:
            steps["idle"] += max(0, now - self._ended)
        cpu, runqueue = self._read_schedstat() or self._last or (None, None)
        return TimesSnapshot(**steps, cpu=cpu, runqueue=runqueue)

    def _read_schedstat(self) -> tuple[int, int] | None:
        """Return the thread's ns on a CPU, and ns runnable but waiting for one."""
        fd = self._fd
        if fd < 0 or self._pid != os.getpid():
            return None
        try:
            cpu, runqueue, *_ = os.pread(fd, 128, 0).split()
            return int(cpu), int(runqueue)
        except (OSError, ValueError):
            return None

    def __del__(self) -> None:
        fd = getattr(self, "_fd", -1)
        if fd >= 0:
            self._fd = -1
            os.close(fd)


class _Current(threading.local):
    times: ThreadTimes | None = None


_current = _Current()


def current_times() -> ThreadTimes | None:
    """Return the times of the calling thread, or None outside of loaders."""
    return _current.times


def set_current_times(times: ThreadTimes | None) -> None:
    """Set the times of the calling thread."""
    _current.times = times
