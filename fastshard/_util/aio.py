"""Blocking calls awaited in an event loop of asyncio or trio."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

__all__ = ["run_in_thread"]

T = TypeVar("T")


async def run_in_thread(work: Callable[[], T]) -> T:
    """Call `work` in a thread; return its result.

    With asyncio each call has a new thread, without a limit on their number; with trio
    its own limiter of threads applies. After a cancellation `work` runs to its end, and
    its result is dropped. A StopIteration of `work` becomes a RuntimeError, as in a
    coroutine.
    """
    import asyncio

    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        trio = sys.modules.get("trio")
        if trio is None:
            raise
        result: T = await trio.to_thread.run_sync(work, abandon_on_cancel=True)
        return result
    future: asyncio.Future[T] = loop.create_future()

    def settle(set_outcome: Callable[[], None]) -> None:
        if not future.cancelled():
            set_outcome()

    def run() -> None:
        try:
            set_outcome = partial(future.set_result, work())
        except StopIteration as error:  # a future refuses it
            failure = RuntimeError("the call raised StopIteration")
            failure.__cause__ = error
            set_outcome = partial(future.set_exception, failure)
        except BaseException as error:
            set_outcome = partial(future.set_exception, error)
        try:
            loop.call_soon_threadsafe(settle, set_outcome)
        except RuntimeError:  # the loop is closed
            return

    threading.Thread(target=run, name="fastshard await", daemon=True).start()
    return await future
