"""Blocking work awaited in an event loop of asyncio or trio."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["run_in_thread"]

T = TypeVar("T")


async def run_in_thread(work: Callable[[], T]) -> T:
    """Call `work` in a new thread; return its result.

    There is no limit on threads. After a cancellation `work` runs to its end, and its
    result is dropped.
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

    def settle(result: Any, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as caught:
            error = caught
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:  # the loop is closed
            return

    threading.Thread(target=run, name="fastshard await", daemon=True).start()
    return await future
