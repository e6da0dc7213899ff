"""Worker processes of torch's loaders, without importing torch."""

from __future__ import annotations

import sys
import traceback
from typing import Any

from fastshard.errors import FastshardError

__all__ = [
    "current_worker",
    "guard_queue",
    "guard_queues",
    "unsent_error",
]

UNSENT = (
    "a worker process of the DataLoader cannot send a batch: {}. Shared memory "
    "(/dev/shm) or open files may be limited: raise the limit (docker run "
    "--shm-size=8g, ulimit -n), use fewer workers or none (num_workers=0), or "
    "ds.loader(), whose threads send nothing"
)


def current_worker() -> tuple[int, int] | None:
    """Return this process's worker number and the number of workers, or None.

    None outside workers, and in those of a map-style dataset: they are sent positions.
    Only workers of an iterable dataset divide its samples among themselves.
    """
    data = sys.modules.get("torch.utils.data")
    if data is None:
        return None
    info = data.get_worker_info()
    if info is None or not isinstance(info.dataset, data.IterableDataset):
        return None
    return info.id, info.num_workers


def unsent_error(error: BaseException) -> FastshardError:
    """Return the error of a batch that a worker process cannot send."""
    return FastshardError(UNSENT.format(str(error).partition("\n")[0]))


def guard_queue() -> None:
    """Guard the queue of a torch worker process; see `guard_queues`."""
    data = sys.modules.get("torch.utils.data")
    if data is not None and data.get_worker_info() is not None:
        guard_queues()


def guard_queues() -> None:
    """Let torch workers send an error in place of a batch that they cannot send.

    A thread of the queue pickles batches, and moves tensors to shared memory. If that
    fails, it prints the error and drops the batch: the loader waits for it for ever, or
    an iterable dataset ends without it. To be called before a worker sends anything.
    """
    from multiprocessing.queues import Queue

    hooks: Any = Queue
    hooks._on_queue_feeder_error = _send_error


def _send_error(queue: Any, error: BaseException, item: Any) -> None:
    """Put an error in the place of a batch; called in the queue's thread."""
    data = sys.modules.get("torch.utils.data")
    worker = None if data is None else data.get_worker_info()
    # A queue of another program, or a closed pipe: print, as the queue does.
    if worker is None or not isinstance(item, tuple) or len(item) != 2:
        traceback.print_exception(error)
        return
    failure = unsent_error(error)
    failure.__cause__ = error
    wrap: Any = sys.modules["torch._utils"].ExceptionWrapper
    place = f"in DataLoader worker process {worker.id}"
    wrapped = wrap((FastshardError, failure, None), place)
    task, batch = item
    if "torchdata.stateful_dataloader" in sys.modules and _has_state(batch, worker.id):
        wrapped = wrapped, worker.id, None
    queue._sem.acquire()  # as `put` does, but first in line: before the end of the data
    queue._buffer.appendleft((task, wrapped))


def _has_state(batch: Any, worker: int) -> bool:
    """Return whether torchdata's loader added the worker's number and a state."""
    is_triple = isinstance(batch, tuple) and len(batch) == 3
    return is_triple and type(batch[1]) is int and batch[1] == worker
