"""Many ranges at a time: requests are merged into runs, which threads read.

A run is one range of one object. Requests that lie near each other share one: to read
over a gap takes less time than another answer. Each request's bytes go into memory of
its own, so that what is kept of one does not keep the others.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from fastshard._core.io.source import room_for
from fastshard.errors import FastshardError, RemoteError
from fastshard.remote.retry import Deadline, DroppedError

if TYPE_CHECKING:
    from fastshard.remote.file import RemoteFile
    from fastshard.remote.options import Settings

__all__ = ["Engine", "Request", "Run", "plan"]

MOST_SPAN = 8 << 20  # bytes of a run
IDLE = 1.0  # seconds that a thread waits for more to do
PATIENCE = 0.5  # seconds after which it is asked whether anybody reads a run


class Request:
    """Bytes of a remote object that somebody wants.

    Parameters
    ----------
    file : RemoteFile
    offset, size : int
        Within it.
    into : memoryview, optional
        Where they go; otherwise they become bytes of their own.
    """

    __slots__ = ("_room", "error", "file", "filled", "offset", "runs", "size", "view")

    def __init__(
        self, file: RemoteFile, offset: int, size: int, into: memoryview | None = None
    ) -> None:
        self.file = file
        self.offset = offset
        self.size = size
        self.runs: Sequence[Run] = ()
        self.error: Exception | None = None
        self.filled = False  # without a run
        self._room: bytes | None = None
        self.view = into

    def place(self) -> memoryview:
        """Return where the bytes go; room is made when they are asked for."""
        if self.view is None:
            self._room, self.view = room_for(self.size)
        return self.view

    def wait(self) -> Exception | None:
        """Wait until the bytes are there, or nothing comes any more.

        One that was not sent, for something interrupted that, is sent now.
        """
        if not self.runs and not self.filled and self.size:
            self.file.start([self])
        for run in self.runs:
            error = run.wait()
            self.error = self.error or error
        return self.error

    def has_failed(self) -> bool:
        """Return whether it ended with an error; does not wait."""
        return self.error is not None or any(
            run.done and run.error is not None for run in self.runs
        )

    def settle(self) -> None:
        """Wait until nothing writes into the buffer any more."""
        for run in self.runs:
            run.wait()

    def result(self) -> bytes:
        """Return the bytes, once they are there."""
        error = self.wait()
        if error is not None:
            raise error.with_traceback(None)
        self.place()
        assert self._room is not None
        return self._room

    def drop(self) -> None:
        """Tell that nobody waits for these bytes any more."""
        for run in self.runs:
            run.let_go()


class Run:
    """One range of an object, read by one thread."""

    __slots__ = (
        "_busy",
        "_pid",
        "_unclaimed",
        "deadline",
        "done",
        "end",
        "error",
        "file",
        "parts",
        "queued",
        "start",
        "wanted",
    )

    def __init__(self, file: RemoteFile, start: int) -> None:
        self.file = file
        self.start = self.end = start
        self.parts: list[tuple[int, memoryview]] = []
        self.wanted = 0  # requests that somebody waits for
        self.error: Exception | None = None
        self.done = False
        self.deadline: Deadline | None = None
        self._pid = os.getpid()
        self.queued = False
        self._unclaimed = threading.Lock()
        self._busy = threading.Lock()
        self._busy.acquire()

    def add(self, offset: int, view: memoryview) -> None:
        """Add what comes next in the range."""
        self.parts.append((offset, view))
        self.end = offset + len(view)
        self.wanted += 1

    def claim(self) -> bool:
        """Say whether nobody has begun to read it, and that the caller will."""
        return self._unclaimed.acquire(blocking=False)

    def read(self) -> None:
        """Read the range, which was claimed; what goes wrong is left in `error`."""
        try:
            if self.wanted <= 0:
                raise DroppedError
            timeout = self.file.settings.timeout
            self.deadline = Deadline(timeout, self.end - self.start)
            self.file.read_range(self.start, self.end, self.parts, self.deadline)
        except (FastshardError, OSError) as error:
            self.error = error.with_traceback(None)
        except DroppedError:
            self.error = RemoteError(
                "the request was cancelled: no reader waits for it", self.file.path
            )
        except Exception as error:  # of a function that was to return a token, say
            self.error = RemoteError(f"{type(error).__name__}: {error}", self.file.path)
        except BaseException:
            self.error = RemoteError("the read was interrupted", self.file.path)
            raise
        finally:
            self._end()

    def refuse(self, error: Exception) -> None:
        """End a run that was claimed with an error, without reading it."""
        self.error = error
        self._end()

    def _end(self) -> None:
        self.parts = []
        self.done = True
        if self._pid == os.getpid():
            self._busy.release()

    def wait(self) -> Exception | None:
        """Wait until it is read; return what went wrong."""
        if self._pid != os.getpid() and not self.done:
            self.read()  # a forked copy, whose threads are gone
        while not self.done:
            if self._busy.acquire(timeout=PATIENCE):
                self._busy.release()
            elif not self.queued and self.claim():
                self.read()  # it was lost when something interrupted who sent it
        return self.error

    def let_go(self) -> None:
        """Note that one request less waits; ends a read that nobody waits for."""
        self.wanted -= 1
        if self.wanted > 0 or self.done or self._pid != os.getpid():
            return
        if self.claim():
            self.refuse(
                RemoteError(
                    "the request was cancelled: no reader waits for it", self.file.path
                )
            )
        elif self.deadline is not None:
            self.deadline.drop()


def plan(requests: Iterable[Request], gap: int, span: int) -> list[Run]:
    """Merge requests into runs, in the order of the first request of each.

    Parameters
    ----------
    requests : iterable of Request
        Of any objects, in any order.
    gap : int
        Bytes between two requests that one run reads over.
    span : int
        Bytes of a run of several requests, at most.
    """
    by_file: dict[int, list[Request]] = {}
    for request in requests:
        if request.size > 0:
            by_file.setdefault(id(request.file), []).append(request)
    runs: list[Run] = []
    for some in by_file.values():
        some.sort(key=lambda request: request.offset)
        runs += _merged(some, gap, span)
    return runs


def _merged(requests: Sequence[Request], gap: int, span: int) -> list[Run]:
    """Merge requests of one object, which are sorted."""
    runs: list[Run] = []
    run: Run | None = None
    for request in requests:
        end = request.offset + request.size
        near = (
            run is not None
            and 0 <= request.offset - run.end <= gap
            and end - run.start <= span
        )
        if run is None or not near:
            run = Run(request.file, request.offset)
            runs.append(run)
        view, own = request.place(), [run]
        for at in range(0, request.size, MOST_SPAN):
            if at > 0:
                run = Run(request.file, request.offset + at)
                runs.append(run)
                own.append(run)
            run.add(request.offset + at, view[at : at + MOST_SPAN])
        request.runs = own
    return runs


class Engine:
    """Threads that read runs, a bounded number; they end when there is nothing to do.

    Parameters
    ----------
    settings : Settings
        Whose ``connections`` are how many there may be.
    """

    def __init__(self, settings: Settings) -> None:
        self._connections = settings.connections
        # Written in C, as locks are: nothing that interrupts a thread leaves it held.
        self._runs: SimpleQueue[Run | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        _engines.add(self)

    def start(self, runs: Iterable[Run]) -> None:
        """Have runs read, those that were given first before others."""
        for run in runs:
            run.queued = True
            self._runs.put(run)
        with self._lock:
            alone = not self._grow()
        while alone:  # no thread can be started: this one does it
            try:
                waiting = self._runs.get_nowait()
            except Empty:
                break
            if waiting is not None and waiting.claim():
                waiting.read()

    def _grow(self) -> bool:
        """Start threads for what is to be read; say whether there are any."""
        missing = min(
            self._runs.qsize() - self._idle, self._connections - len(self._threads)
        )
        for _ in range(missing):
            thread = threading.Thread(
                target=self._work, name="fastshard range", daemon=True
            )
            self._threads.add(thread)
            try:
                thread.start()
            except RuntimeError:  # those that there are do it
                self._threads.discard(thread)
                break
        return bool(self._threads)

    def _work(self) -> None:
        while (run := self._next()) is not None:
            if run.claim():
                run.read()
            del run  # its buffers are its owner's now

    def _next(self) -> Run | None:
        """Wait for something to do; None: leave."""
        with self._lock:
            self._idle += 1
        while True:
            run = None
            with suppress(Empty):
                run = self._runs.get(timeout=IDLE)
            with self._lock:
                if run is None and not self._runs.empty():
                    continue
                self._idle -= 1
                if run is None:
                    self._threads.discard(threading.current_thread())
                return run

    def rest(self) -> None:
        """Have idle threads leave, and wait for them: a fork warns of threads."""
        with self._lock:
            threads = list(self._threads)
            busy = len(threads) - self._idle
            for _ in range(self._idle):
                self._runs.put(None)
        for thread in threads if busy == 0 else ():
            thread.join(1.0)


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def _rest() -> None:
    for engine in list(_engines):
        engine.rest()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_rest, after_in_child=_engines.clear)
