"""Progress bars on a terminal, for work of more than a second."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, TypeVar

from fastshard._util.processes.forks import at_fork
from fastshard._util.terminal import escape_line, is_quiet

__all__ = ["byte_bar", "iterate_with_bar", "make_bar"]

BAR_DELAY = 1  # seconds before a bar shows

T = TypeVar("T")


@cache
def _bar_type() -> Any:
    """Return a tqdm class without a monitor thread: a fork warns of threads.

    tqdm's own lock is a semaphore that forked processes share: one that is killed
    while it holds the lock would stop all the others at their next bar.
    """
    from tqdm import std

    default: Any = vars(std)["TqdmDefaultWriteLock"]
    members = {"monitor_interval": 0, "_lock": default.th_lock}
    bar: Any = type("Bar", (std.tqdm,), members)
    # Another thread may have held it.
    at_fork(after_in_child=lambda: bar.set_lock(threading.RLock()))
    return bar


def make_bar(total: float | None, doing: str, **options: Any) -> Any:
    """Return a progress bar on stderr, a context manager; None is an unknown total.

    It shows on a terminal only, after a second, unless the command is quiet, and
    leaves nothing behind.
    """
    settings = {
        "miniters": 1,  # otherwise a fast start delays later updates
        "delay": BAR_DELAY,
        "leave": False,
        "disable": True if is_quiet() else None,  # None: unless on a terminal
        "dynamic_ncols": True,
    }
    return _bar_type()(total=total, desc=escape_line(doing), **settings, **options)


def byte_bar(total: int | None, doing: str) -> Any:
    """Return a progress bar in bytes."""
    return make_bar(total, doing, unit="B", unit_scale=True)


def iterate_with_bar(
    items: Iterable[T], total: int, doing: str, unit: str = " shards"
) -> Iterator[T]:
    """Yield items, and show their number on a terminal."""
    with make_bar(total, doing, unit=unit) as bar:
        for item in items:
            yield item
            bar.update()
