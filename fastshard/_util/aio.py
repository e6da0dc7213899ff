"""Waiting for blocking work in an event loop: asyncio's, or trio's."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["run_in_thread"]

T = TypeVar("T")


async def run_in_thread(work: Callable[[], T]) -> T:
    """Return what `work` returns, done in a thread of its own.

    As many as are awaited run at a time: no pool holds them up. One that is cancelled
    goes on until it ends, and nobody hears of it.
    """
    import asyncio

    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        trio = sys.modules.get("trio")
        if trio is None:
            raise
        found: T = await trio.to_thread.run_sync(work, abandon_on_cancel=True)
        return found
    future: asyncio.Future[T] = loop.create_future()

    def settle(found: Any, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is None:
            future.set_result(found)
        else:
            future.set_exception(error)

    def run() -> None:
        found, error = None, None
        try:
            found = work()
        except BaseException as caught:
            error = caught
        try:
            loop.call_soon_threadsafe(settle, found, error)
        except RuntimeError:  # the loop was closed: nobody waits
            return

    threading.Thread(target=run, name="fastshard await", daemon=True).start()
    return await future
