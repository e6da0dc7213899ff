"""Tasks in several threads at once; the threads of this process, native ones too."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable


def in_threads(task: Callable[[int], object], count: int = 4) -> None:
    """Run ``task(k)`` in a thread for each k; raise what the first one raised."""
    wrong: list[BaseException] = []

    def run(k: int) -> None:
        try:
            task(k)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if wrong:
        raise wrong[0]


def thread_ids() -> set[str]:
    """Return the kernel's ids of the threads of this process; none beside Linux."""
    tasks = "/proc/self/task"
    return set(os.listdir(tasks)) if os.path.exists(tasks) else set()


def started_since(before: set[str]) -> set[str]:
    """Return the ids of threads that were started since and do not end within 10 s.

    A join returns before the kernel takes the thread out of /proc.
    """
    deadline = time.monotonic() + 10
    while (started := thread_ids() - before) and time.monotonic() < deadline:
        time.sleep(0.001)
    return started
