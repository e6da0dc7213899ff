"""End of loaders' threads at interpreter exit; loaders in forked children."""

from __future__ import annotations

import atexit
import time
from typing import Protocol
from weakref import ref

from fastshard._util.processes.forks import at_fork
from fastshard.loader.threads.pipeline import STOP_SECONDS, Pipeline

__all__ = ["register_loader", "register_pipeline", "unregister_pipeline"]


class ForkedLoader(Protocol):
    """A loader that continues in a forked child."""

    def _continue_in_child(self) -> None:
        """Replace locks, and forget the threads, which the child does not have."""
        ...


_pipelines: dict[int, Pipeline] = {}  # those with threads
_loaders: dict[int, ref[ForkedLoader]] = {}


def register_pipeline(pipeline: Pipeline) -> None:
    """Stop the threads of a pipeline when the interpreter exits."""
    _pipelines[id(pipeline)] = pipeline


def unregister_pipeline(pipeline: Pipeline) -> None:
    """Forget a pipeline that was stopped."""
    _pipelines.pop(id(pipeline), None)


def register_loader(loader: ForkedLoader) -> None:
    """Let a loader continue with threads of its own in a forked child."""
    number = id(loader)

    def forget(dead: ref[ForkedLoader]) -> None:
        if _loaders.get(number) is dead:
            del _loaders[number]

    _loaders[number] = ref(loader, forget)


def _stop_all() -> None:
    """Stop all threads; wait a bounded time, as a mapped function may never return."""
    pipelines = list(_pipelines.values())
    for pipeline in pipelines:
        pipeline.stop()
    deadline = time.monotonic() + STOP_SECONDS
    for pipeline in pipelines:
        pipeline.join(deadline)


def _continue_in_child() -> None:
    _pipelines.clear()
    for known in list(_loaders.values()):
        loader = known()
        if loader is not None:
            loader._continue_in_child()


atexit.register(_stop_all)
at_fork(after_in_child=_continue_in_child)
