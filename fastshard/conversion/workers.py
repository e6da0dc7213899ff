"""Worker processes of a conversion."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, TypeVar

from fastshard._util.processes.lifetime import end_with_parent
from fastshard._util.progress import make_bar
from fastshard.conversion.ranges import Conversion, Task
from fastshard.errors import FastshardError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

__all__ = ["Workers"]

FROM_TERMINALS = [  # sent to all processes of a command
    getattr(signal, name) for name in ("SIGINT", "SIGHUP") if hasattr(signal, name)
]
HELD = {*FROM_TERMINALS, signal.SIGTERM}
GRACE_SECONDS = 5.0  # seconds for workers to stop; containers are killed after 10

T = TypeVar("T")
Outcome = tuple[Any, BaseException | None]  # of a task: its result, or its error


class Workers:
    """Processes of one conversion; none for a single worker.

    Each has a pipe of its own, which ends with it: the death of one is seen at once,
    also amid a message.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._crew: dict[Connection, Any] = {}  # processes by their pipes

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def map(
        self,
        function: Callable[[Conversion, Task], T],
        conversion: Conversion,
        tasks: Sequence[Task],
        doing: str,
    ) -> Iterator[T]:
        """Yield the results of tasks in their order, with a progress bar.

        The first error, and an interrupt, stop all work.
        """
        total = sum(task.stop - task.start for task in tasks)
        alone = self._count < 2 or len(tasks) < 2
        results = (function(conversion, task) for task in tasks)
        with (
            make_bar(total, doing, unit=" samples", unit_scale=True) as bar,
            closing(
                results if alone else self._run(function, conversion, tasks)
            ) as results,
        ):
            for task, result in zip(tasks, results, strict=True):
                yield result
                bar.update(task.stop - task.start)

    def _run(
        self,
        function: Callable[[Conversion, Task], T],
        conversion: Conversion,
        tasks: Sequence[Task],
    ) -> Generator[T, None, None]:
        """Yield results in order; give an idle worker the next task."""
        numbers = iter(range(len(tasks)))
        busy: dict[Connection, int] = {}
        done: dict[int, Outcome] = {}
        try:
            self._start(min(self._count, len(tasks)) - len(self._crew))
            idle = list(self._crew)
            for at in range(len(tasks)):
                while at not in done:
                    for pipe, number in zip(idle, numbers, strict=False):
                        self._send(pipe, (function, conversion, tasks[number]))
                        busy[pipe] = number
                    idle = wait_for(busy)
                    for pipe in idle:
                        done[busy.pop(pipe)] = self._receive(pipe)
                result, error = done.pop(at)
                if error is not None:
                    raise error
                yield result
        except BaseException:
            self._stop(conversion)
            raise

    def _send(self, pipe: Connection, message: object) -> None:
        try:
            pipe.send(message)
        except ConnectionError:
            raise self._death_of(pipe) from None

    def _receive(self, pipe: Connection) -> Outcome:
        try:
            outcome: Outcome = pipe.recv()
            return outcome
        except (EOFError, OSError):
            raise self._death_of(pipe) from None

    def _death_of(self, pipe: Connection) -> FastshardError:
        """Return the error for a worker whose pipe has ended."""
        process = self._crew[pipe]
        process.join(GRACE_SECONDS)
        code = process.exitcode
        if code == -signal.SIGKILL:
            return FastshardError("a worker process died: killed, or out of memory")
        how = f"signal {-code}" if code and code < 0 else f"exit status {code}"
        return FastshardError(f"a worker process died: {how}")

    def _start(self, count: int) -> None:
        """Start further processes."""
        # A fork is quick and needs no guard of the caller's main module, but may copy
        # the locks that other threads hold.
        can_fork = sys.platform == "linux" and threading.active_count() == 1
        context: Any = multiprocessing.get_context("fork" if can_fork else "spawn")
        with hold_signals():
            for _ in range(count):
                ours, theirs = context.Pipe()
                copied = [*self._crew, ours] if can_fork else []
                process = context.Process(
                    target=serve, args=(theirs, copied), daemon=True
                )
                process.start()
                theirs.close()
                self._crew[ours] = process

    def _stop(self, conversion: Conversion) -> None:
        """Stop all work, and end the processes."""
        with (
            suppress(OSError),
            open(conversion.stop_path, "wb"),
        ):  # the disk may be full
            pass
        self._close()
        with suppress(OSError):
            os.unlink(conversion.stop_path)

    def _close(self) -> None:
        """Close the pipes; kill processes that run for `GRACE_SECONDS` more."""
        crew, self._crew = self._crew, {}
        deadline = time.monotonic() + GRACE_SECONDS
        try:
            for pipe in crew:
                pipe.close()  # ends `serve`
            for process in crew.values():
                process.join(max(0, deadline - time.monotonic()))
        finally:  # a second interrupt ends the wait
            for process in crew.values():
                process.kill()
                process.join()


@contextmanager
def hold_signals() -> Iterator[None]:
    """Delay signals to this thread and to processes that it starts; see `serve`."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def wait_for(pipes: Iterable[Connection]) -> list[Connection]:
    """Return the pipes that have a message, or have ended; wait for the first."""
    ready = set(wait(list(pipes)))
    return [pipe for pipe in pipes if pipe in ready]


# In a worker.


def serve(pipe: Connection, copied: Sequence[Connection]) -> None:
    """Run tasks until the pipe ends."""
    for other in copied:
        other.close()
    leave_signals()
    end_with_parent()
    with suppress(EOFError, OSError):
        while True:
            function, conversion, task = pipe.recv()
            pipe.send_bytes(answer(function, conversion, task))


def leave_signals() -> None:
    """Ignore signals except that of `Process.terminate`; the parent handles them."""
    for number in FROM_TERMINALS:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not a handler of the parent
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)


def answer(
    function: Callable[[Conversion, Task], Any], conversion: Conversion, task: Task
) -> bytes:
    """Return the pickled result or error of a task."""
    try:
        return pickle.dumps((function(conversion, task), None))
    except BaseException as error:
        error.add_note(f"In a worker process:\n{traceback.format_exc()}")
        try:
            message = pickle.dumps((None, error))
            pickle.loads(message)
        except Exception:  # one of another package
            text = f"{type(error).__name__}: {error}"
            return pickle.dumps((None, FastshardError(text)))
        return message
