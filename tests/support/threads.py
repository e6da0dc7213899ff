"""Tasks in several threads at once, and interrupted ones; the threads of this process.

Native threads are counted, too.
"""

from __future__ import annotations

import dis
import os
import sys
import threading
import time
from collections.abc import Callable, Collection
from functools import cache
from types import CodeType, FrameType
from typing import Any

HANG = 60.0  # seconds after which a test hangs; a guard, no measure of speed
SOON = 30.0  # seconds in which a call with a timeout of less than 2 s has ended

# After these the interpreter looks for signals; not after the entry of ``with`` before
# CPython 3.14, nor between other instructions.
CHECKED = ("CALL", "JUMP_BACKWARD", "RESUME")


def in_threads(task: Callable[[int], object], count: int = 4) -> None:
    """Run ``task(k)`` in a thread for each k; raise the error of the first."""
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


def interrupt(
    function: Callable[[], object], number: int, names: Collection[str]
) -> bool:
    """Call a function and interrupt it, as Ctrl-C; return whether it was.

    Parameters
    ----------
    function : callable
    number : int
        The place at which the interrupt comes, from 1.
    names : collection of str
        Functions whose places are counted.
    """
    count = 0
    last: dict[FrameType, str] = {}  # instruction of each frame

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if frame.f_code.co_name not in names:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            count += last.get(frame, "").startswith(CHECKED)
            last[frame] = instructions(frame.f_code)[frame.f_lasti]
            if count == number:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
        last.clear()
    return False


@cache
def instructions(code: CodeType) -> dict[int, str]:
    """Return the names of a function's instructions by their offsets."""
    return {found.offset: found.opname for found in dis.get_instructions(code)}
