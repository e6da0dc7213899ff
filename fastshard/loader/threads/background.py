"""Background threads that end with their owner, such as those that open shards."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from fastshard.errors import ClosedError

if TYPE_CHECKING:
    from fastshard.remote.deadline import Waits

__all__ = ["Background"]

WAIT_SECONDS = 10.0  # for work that ignores cancellation

T = TypeVar("T")


class Work:
    """Work of one thread.

    Attributes
    ----------
    thread : int or None
        Number of the thread; None before it has begun.
    waits : Waits or None
        Its pending requests.
    ended : threading.Event
    """

    def __init__(self) -> None:
        self.thread: int | None = None
        self.waits: Waits | None = None
        self.ended = threading.Event()


class Background:
    """Background threads of one owner. Thread-safe without a lock, for forks."""

    def __init__(self) -> None:
        self.is_closed = False
        self._works: dict[Work, None] = {}
        self._pid = os.getpid()

    def start(
        self, call: Callable[..., object], *args: Any, daemon: bool = True
    ) -> threading.Thread | None:
        """Call ``call(*args)`` in a new thread; drop its errors."""
        work = Work()

        def run() -> None:
            with suppress(Exception):
                self._run(work, call, args)

        self._works[work] = None  # before the start: `close` waits for it
        thread = threading.Thread(target=run, name="fastshard ahead", daemon=daemon)
        try:
            thread.start()
        except RuntimeError:
            self._forget(work)
            return None
        return thread

    def run(self, call: Callable[[], T]) -> T:
        """Call `call` in this thread unless it was cancelled."""
        work = Work()
        self._works[work] = None
        found: T = self._run(work, call, ())
        return found

    def close(self) -> None:
        """Cancel the requests of all work, and wait until it has ended."""
        self.is_closed = True
        if self._pid != os.getpid():  # threads do not survive fork
            return
        deadline = time.monotonic() + WAIT_SECONDS
        works = list(self._works)
        for work in works:
            if work.waits is not None:
                work.waits.drop()
        for work in works:
            if work.thread != threading.get_ident():
                work.ended.wait(max(0.0, deadline - time.monotonic()))

    def _run(self, work: Work, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        from fastshard.remote.deadline import watch_requests

        work.thread = threading.get_ident()
        try:
            with watch_requests() as work.waits:
                if self.is_closed:  # checked after `waits`, which `close` drops
                    raise ClosedError("the dataset is closed: open it again")
                return call(*args)
        finally:
            self._forget(work)

    def _forget(self, work: Work) -> None:
        self._works.pop(work, None)
        work.ended.set()
