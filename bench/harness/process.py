"""A contender in a process of its own: time, CPU and memory of it and its children."""

from __future__ import annotations

import multiprocessing
import os
import resource
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

MEMORY = ("Pss_Anon:", "Pss_Shmem:")  # shared pages are divided among who maps them


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that have ended."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    each = [resource.getrusage(kind) for kind in kinds]
    return sum(usage.ru_utime + usage.ru_stime for usage in each)


def tree_memory() -> int:
    """Return the bytes of anonymous and shared memory of this process's tree."""
    return sum(map(_memory_of, _tree(os.getpid())))


def _memory_of(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # ended meanwhile
        return 0
    sizes = [line.split()[1] for line in lines if line.startswith(MEMORY)]
    return sum(map(int, sizes)) * 1024


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = path.read_text().split()
        except OSError:
            continue
        for child in children:
            yield from _tree(int(child))


class Served:
    """An object in another process whose methods are called from here."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def call(self, method: str, *args: Any) -> Any:
        """Return the result of a method there; a failed import skips the bench."""
        self._connection.send((method, args))
        return self._receive()

    def _receive(self) -> Any:
        kind, value = self._connection.recv()
        if kind == "skip":
            pytest.skip(value)
        if kind == "error":
            raise RuntimeError(value)
        return value


def _serve(connection: Any, make: Callable[..., Any], args: tuple[Any, ...]) -> None:
    multiprocessing.set_start_method(None, force=True)  # not spawn, which it inherits
    try:
        try:
            served = make(*args)
        except (ImportError, OSError) as error:
            connection.send(("skip", f"{type(error).__name__}: {error}"[:300]))
            return
        connection.send(("ready", None))
        while (message := connection.recv()) is not None:
            method, values = message
            connection.send(("ok", getattr(served, method)(*values)))
    except Exception:
        connection.send(("error", traceback.format_exc()))


@contextmanager
def serve(make: Callable[..., Any], *args: Any) -> Iterator[Served]:
    """Make an object in a new process, a fresh interpreter, and end it after use."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, make, args))
    process.start()
    there.close()
    try:
        served = Served(here)
        served._receive()
        yield served
        here.send(None)
    finally:
        here.close()
        process.join(20)
        if process.exitcode is None:
            process.kill()
            process.join()
