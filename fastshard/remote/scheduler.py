"""Scheduling of range reads: requests are coalesced, threads read the ranges.

Requests of one object that lie near each other share a range: to read over a gap takes
less time than another answer. Each request's bytes go into memory of its own, so that
what is kept of one does not keep the others.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

from fastshard._core.io.source import allocate_bytes
from fastshard.errors import FastshardError, RemoteError
from fastshard.remote.options import Settings
from fastshard.remote.retry import Deadline, ReadCancelledError
from fastshard.remote.transport import RangedObject

__all__ = [
    "MOST_SPAN",
    "RangeRead",
    "ReaderPool",
    "Request",
    "coalesce",
    "fetch",
    "read_now",
    "start",
]

MOST_SPAN = 8 << 20  # bytes of a range
IDLE = 1.0  # seconds that a thread waits for more to do
PATIENCE = 0.5  # seconds after which a waiting thread reads a range itself


class Request:
    """Bytes wanted of a remote object.

    Parameters
    ----------
    file : RangedObject
    offset, size : int
        Within it.
    into : memoryview, optional
        Where they go; otherwise they become bytes of their own.
    """

    __slots__ = ("_room", "error", "file", "filled", "offset", "reads", "size", "view")

    def __init__(
        self, file: RangedObject, offset: int, size: int, into: memoryview | None = None
    ) -> None:
        self.file = file
        self.offset = offset
        self.size = size
        self.reads: Sequence[RangeRead] = ()
        self.error: Exception | None = None
        self.filled = False  # without a range read
        self._room: bytes | None = None
        self.view = into

    def place(self) -> memoryview:
        """Return where the bytes go; room is made when they are asked for."""
        if self.view is None:
            self._room, self.view = allocate_bytes(self.size)
        return self.view

    def wait(self) -> Exception | None:
        """Wait until the bytes are there, or nothing comes any more.

        One that was not sent, for something interrupted that, is sent now.
        """
        if not self.reads and not self.filled and self.size:
            start([self])
        for read in self.reads:
            error = read.wait()
            self.error = self.error or error
        return self.error

    def has_failed(self) -> bool:
        """Return whether it ended with an error; does not wait."""
        return self.error is not None or any(
            read.done and read.error is not None for read in self.reads
        )

    def settle(self) -> None:
        """Wait until nothing writes into the buffer any more."""
        for read in self.reads:
            read.wait()

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
        for read in self.reads:
            read.release()


class RangeRead:
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

    def __init__(self, file: RangedObject, start: int) -> None:
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
                raise ReadCancelledError
            timeout = self.file.settings.timeout
            self.deadline = Deadline(timeout, self.end - self.start)
            self.file.read_range(self.start, self.end, self.parts, self.deadline)
        except (FastshardError, OSError) as error:
            self.error = error.with_traceback(None)
        except ReadCancelledError:
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

    def fail(self, error: Exception) -> None:
        """End a read that was claimed with an error, without reading."""
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

    def release(self) -> None:
        """Note that one request less waits; ends a read that nobody waits for."""
        self.wanted -= 1
        if self.wanted > 0 or self.done or self._pid != os.getpid():
            return
        if self.claim():
            self.fail(
                RemoteError(
                    "the request was cancelled: no reader waits for it", self.file.path
                )
            )
        elif self.deadline is not None:
            self.deadline.cancel()


def coalesce(requests: Iterable[Request], gap: int, span: int) -> list[RangeRead]:
    """Merge requests into range reads, in the order of the first request of each.

    Parameters
    ----------
    requests : iterable of Request
        Of any objects, in any order.
    gap : int
        Bytes between two requests that one range read reads over.
    span : int
        Bytes of a range of several requests, at most.
    """
    by_file: dict[int, list[Request]] = {}
    for request in requests:
        if request.size > 0:
            by_file.setdefault(id(request.file), []).append(request)
    reads: list[RangeRead] = []
    for some in by_file.values():
        some.sort(key=lambda request: request.offset)
        reads += _merged(some, gap, span)
    return reads


def _merged(requests: Sequence[Request], gap: int, span: int) -> list[RangeRead]:
    """Merge requests of one object, which are sorted."""
    reads: list[RangeRead] = []
    read: RangeRead | None = None
    for request in requests:
        end = request.offset + request.size
        near = (
            read is not None
            and 0 <= request.offset - read.end <= gap
            and end - read.start <= span
        )
        if read is None or not near:
            read = RangeRead(request.file, request.offset)
            reads.append(read)
        view, own = request.place(), [read]
        for at in range(0, request.size, MOST_SPAN):
            if at > 0:
                read = RangeRead(request.file, request.offset + at)
                reads.append(read)
                own.append(read)
            read.add(request.offset + at, view[at : at + MOST_SPAN])
        request.reads = own
    return reads


class ReaderPool:
    """Threads that read ranges, a bounded number; they end when idle.

    Parameters
    ----------
    settings : Settings
        Whose ``connections`` are how many there may be.
    """

    def __init__(self, settings: Settings) -> None:
        self._connections = settings.connections
        # Written in C, as locks are: nothing that interrupts a thread leaves it held.
        self._reads: SimpleQueue[RangeRead | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        _engines.add(self)

    def start(self, reads: Iterable[RangeRead]) -> None:
        """Queue range reads; those that were given first are read first."""
        for read in reads:
            read.queued = True
            self._reads.put(read)
        with self._lock:
            alone = not self._grow()
        while alone:  # no thread can be started: this one does it
            try:
                waiting = self._reads.get_nowait()
            except Empty:
                break
            if waiting is not None and waiting.claim():
                waiting.read()

    def _grow(self) -> bool:
        """Start threads for what is to be read; say whether there are any."""
        missing = min(
            self._reads.qsize() - self._idle, self._connections - len(self._threads)
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
        while (read := self._next()) is not None:
            if read.claim():
                read.read()
            del read  # its buffers are its owner's now

    def _next(self) -> RangeRead | None:
        """Wait for something to do; None: leave."""
        with self._lock:
            self._idle += 1
        while True:
            read = None
            with suppress(Empty):
                read = self._reads.get(timeout=IDLE)
            with self._lock:
                if read is None and not self._reads.empty():
                    continue
                self._idle -= 1
                if read is None:
                    self._threads.discard(threading.current_thread())
                return read

    def rest(self) -> None:
        """Have idle threads leave, and wait for them: a fork warns of threads."""
        with self._lock:
            threads = list(self._threads)
            busy = len(threads) - self._idle
            for _ in range(self._idle):
                self._reads.put(None)
        for thread in threads if busy == 0 else ():
            thread.join(1.0)


_engines: weakref.WeakSet[ReaderPool] = weakref.WeakSet()


def _rest() -> None:
    for engine in list(_engines):
        engine.rest()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_rest, after_in_child=_engines.clear)


def fetch(requests: Sequence[Request]) -> list[Exception | None]:
    """Have requests answered, and wait; return what went wrong with each.

    When it returns, also with an exception such as KeyboardInterrupt, nothing writes
    into their buffers any more.
    """
    try:
        if len(requests) == 1 and 0 < requests[0].size <= MOST_SPAN:
            if not _is_filled(requests[0]):
                _read_here(requests[0])
        else:
            start(requests)
        for request in reversed(requests):  # the last first: it wakes this thread once
            request.wait()
        return [request.error for request in requests]
    except BaseException:
        for request in requests:
            request.drop()
        for request in requests:
            request.settle()
        raise


def start(requests: Sequence[Request]) -> None:
    """Have requests answered by the engine's threads, and do not wait."""
    for settings, some in _by_settings(requests).items():
        reads = _coalesced(some)
        if reads:
            settings.shared(ReaderPool).start(reads)


def read_now(requests: Sequence[Request]) -> None:
    """Answer requests in this thread, ahead of those that wait for the engine.

    What goes wrong is left in the requests; after a failure the rest is not asked for.
    """
    failed: Exception | None = None
    groups = _by_settings(requests).values()
    for read in [read for some in groups for read in _coalesced(some)]:
        if not read.claim():
            continue
        if failed is None:
            read.read()
            failed = read.error
        else:
            read.fail(failed)


def _read_here(request: Request) -> None:
    """Answer a request in this thread."""
    file, at = request.file, request.offset
    deadline = Deadline(file.settings.timeout, request.size)
    try:
        file.read_range(at, at + request.size, [(at, request.place())], deadline)
    except (FastshardError, OSError) as error:
        request.error = error.with_traceback(None)
    request.filled = True


def _is_filled(request: Request) -> bool:
    """Answer a request from this machine, if all of it is kept here."""
    if not request.file.is_cached(request.offset, request.size):
        return False
    request.filled = request.file.read_cached(request.offset, request.place())
    return request.filled


def _by_settings(requests: Sequence[Request]) -> dict[Settings, list[Request]]:
    """Sort out requests that the network has to answer."""
    found: dict[Settings, list[Request]] = {}
    for request in requests:
        if not _is_filled(request):
            found.setdefault(request.file.settings, []).append(request)
    return found


def _coalesced(requests: Sequence[Request]) -> list[RangeRead]:
    """Merge requests of the same settings, as the measured latency and rate allow."""
    meter = requests[0].file.meter
    return coalesce(requests, meter.gap(), meter.span())
