"""End of worker processes with their parent."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from contextlib import suppress

__all__ = ["end_with_parent"]

PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>


def end_with_parent() -> None:
    """Let this process, one of `multiprocessing`, end when its parent ends."""
    parent = multiprocessing.parent_process()
    if parent is None:
        raise RuntimeError("not a process of multiprocessing")
    if sys.platform == "linux":
        ask_kernel(parent.pid)
    threading.Thread(target=wait_and_exit, args=(parent,), daemon=True).start()


def ask_kernel(parent: int | None) -> None:
    """Ask the kernel to kill this process at its parent's end.

    Also when another process, which the parent has forked, keeps the pipe open that
    `wait_and_exit` waits for.
    """
    import ctypes

    zero, number = ctypes.c_ulong(0), ctypes.c_ulong(signal.SIGKILL)
    with suppress(OSError, AttributeError):  # of a C library without it
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number, zero, zero, zero)
    if os.getppid() != parent:  # it ended before the call
        os._exit(1)


def wait_and_exit(parent: multiprocessing.process.BaseProcess) -> None:
    """Exit when the parent ends: the sentinel of multiprocessing closes."""
    parent.join()
    os._exit(1)
