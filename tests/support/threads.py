"""Tasks in several threads at once."""

from __future__ import annotations

import threading
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
