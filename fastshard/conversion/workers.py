"""Processes that work on the ranges of a conversion."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Any, TypeVar

from fastshard._util.progress import make_bar
from fastshard.conversion.ranges import Conversion, Task
from fastshard.errors import FastshardError

__all__ = ["Workers"]

T = TypeVar("T")


class Workers:
    """Processes for one conversion; none, if one worker is enough.

    Parameters
    ----------
    count : int
        Workers, at most.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool: Any = None
        self._stack = ExitStack()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def map(
        self,
        function: Callable[[Conversion, Task], T],
        job: Conversion,
        tasks: Sequence[Task],
        doing: str,
    ) -> Iterator[T]:
        """Yield the results of tasks in their order, with a progress bar.

        The first error, and an interrupt, stop all work.
        """
        total = sum(task.stop - task.start for task in tasks)
        with make_bar(total, doing, unit=" samples", unit_scale=True) as bar:
            if self._count < 2 or len(tasks) < 2:
                for task in tasks:
                    yield function(job, task)
                    bar.update(task.stop - task.start)
                return
            pool = self._start(len(tasks))
            futures = [pool.submit(function, job, task) for task in tasks]
            try:
                for task, future in zip(tasks, futures, strict=True):
                    yield self._wait(future)
                    bar.update(task.stop - task.start)
            except BaseException:
                with open(job.stop_path, "wb"):
                    pass
                for future in futures:
                    future.cancel()
                for future in futures:
                    with suppress(BaseException):
                        future.result()
                os.unlink(job.stop_path)
                raise

    def _wait(self, future: Any) -> Any:
        from concurrent.futures.process import BrokenProcessPool

        try:
            return future.result()
        except BrokenProcessPool as error:
            raise FastshardError(f"a worker process died: {error}") from error

    def _start(self, tasks: int) -> Any:
        """Return the pool, started at first use."""
        if self._pool is None:
            from concurrent.futures import ProcessPoolExecutor

            # A fork is quick and needs no guard of the caller's main module, but may
            # copy the locks that other threads hold.
            can_fork = sys.platform == "linux" and threading.active_count() == 1
            context = multiprocessing.get_context("fork" if can_fork else "spawn")
            pool = ProcessPoolExecutor(
                min(self._count, tasks), context, initializer=ignore_interrupts
            )
            self._pool = self._stack.enter_context(pool)
        return self._pool


def ignore_interrupts() -> None:
    """Leave Ctrl-C to the process that started this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
