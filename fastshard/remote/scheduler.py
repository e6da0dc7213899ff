"""Scheduler of range reads: coalesces requests, and starts the reads of ranges.

A transport's loop reads ranges where it has one, otherwise threads do.
Nearby requests for one object share a range, where reading over the gap takes less
time than another response. Each request's bytes go to memory of their own, so that a
view of one does not keep the others alive.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import groupby
from operator import attrgetter
from queue import Empty, SimpleQueue
from typing import Any

from fastshard._core.io.source import allocate_bytes, batch_memory
from fastshard._util.processes.forks import ForkAware
from fastshard.errors import FastshardError, RemoteError
from fastshard.remote.deadline import Deadline, note_waits
from fastshard.remote.errors import ReadCancelledError
from fastshard.remote.meter import MOST_SPAN
from fastshard.remote.options import Settings
from fastshard.remote.traffic import traffic
from fastshard.remote.transport import RangedObject, ReadLoop

__all__ = [
    "RangeRead",
    "ReaderPool",
    "Request",
    "coalesce",
    "drop_stored",
    "fetch",
    "read_now",
    "start",
]

IDLE = 1.0  # seconds before an idle thread ends
STORE_SECONDS = 5.0  # for threads that store bytes of cancelled requests
PATIENCE = 0.5  # seconds before a waiting thread reads an unqueued range itself
CANCELLED = "the request was cancelled: no reader waits for it"


class Request:
    """Request for bytes of a remote object."""

    __slots__ = (
        "_room",
        "error",
        "file",
        "filled",
        "is_in_pool",
        "offset",
        "reads",
        "size",
        "view",
    )

    def __init__(
        self,
        file: RangedObject,
        offset: int,
        size: int,
        into: memoryview | None = None,
        room: tuple[Any, memoryview] | None = None,
    ) -> None:
        self.file = file
        self.offset = offset
        self.size = size
        self.reads: Sequence[RangeRead] = ()
        self.error: Exception | None = None
        self.filled = False  # from the cache, or by the calling thread
        self.is_in_pool = room is not None
        self._room: Any = None
        self.view = into
        if room is not None:
            self._room, self.view = room

    def destination(self) -> memoryview:
        """Return the memory for the bytes; allocate it at the first call."""
        if self.view is None:
            self._room, self.view = allocate_bytes(self.size)
        return self.view

    def wait(self) -> Exception | None:
        """Wait until the request succeeds or fails; return its error.

        A request whose sending was interrupted is sent now.
        """
        if not self.reads and not self.filled and self.size:
            start([self])
        for read in self.reads:
            error = read.wait()
            self.error = self.error or error
        return self.error

    def is_done(self) -> bool:
        """Return whether the request has succeeded or failed, without waiting."""
        return self.filled or all(read.done for read in self.reads)

    def has_failed(self) -> bool:
        """Return whether the request has failed, without waiting."""
        return self.error is not None or any(
            read.done and read.error is not None for read in self.reads
        )

    def settle(self) -> None:
        """Wait until no thread writes to the destination."""
        for read in self.reads:
            read.wait()

    def result(self) -> Any:
        """Wait, and return the bytes or raise the error of the request.

        The owner of its memory, if it was made with `room`.
        """
        error = self.wait()
        if error is not None:
            raise error.with_traceback(None)
        self.destination()
        assert self._room is not None
        return self._room

    def drop(self) -> None:
        """Cancel the request; a range read ends when all its requests are dropped."""
        for read in self.reads:
            read.release()


class RangeRead:
    """Read of one range of an object, by one thread.

    Attributes
    ----------
    start, end : int
        The range, bytes of the object.
    parts : list of (int, memoryview)
        Offsets and destinations, ascending; empty when the read has ended.
    wanted : int
        Number of requests that were not dropped.
    is_in_new_memory : bool
        Whether pages of a destination may not be allocated yet.
    error : Exception or None
    done : bool
        Whether the read has ended.
    queued : bool
        Whether it was given to a `ReaderPool`.
    has_begun : bool
        Whether a thread that claimed it began to read.
    """

    __slots__ = (
        "_busy",
        "_exchange",
        "_loop",
        "_pid",
        "claim_lock",
        "deadline",
        "done",
        "end",
        "error",
        "file",
        "has_begun",
        "is_in_new_memory",
        "parts",
        "queued",
        "server",
        "start",
        "wanted",
    )

    def __init__(self, file: RangedObject, start: int) -> None:
        self.file = file
        self.start = self.end = start
        self.parts: list[tuple[int, memoryview]] = []
        self.wanted = 0
        self.is_in_new_memory = False
        self.error: Exception | None = None
        self.done = False
        self.deadline: Deadline | None = None
        self._pid = os.getpid()
        self.queued = False
        self.has_begun = False
        self.claim_lock = threading.Lock()
        self.server: Any = None  # these three only while a loop reads
        self._loop: ReadLoop | None = None
        self._exchange: Any = None
        self._busy = threading.Lock()
        self._busy.acquire()

    def add(self, offset: int, view: memoryview) -> None:
        """Extend the range to the end of another part."""
        self.parts.append((offset, view))
        self.end = offset + len(view)
        self.wanted += 1

    def claim(self) -> bool:
        """Return True to the first caller only, which then calls `read` or `fail`."""
        return self.claim_lock.acquire(blocking=False)

    def read(self) -> None:
        """Read the claimed range; leave a failure in `error`."""
        try:
            self.has_begun = True
            if self.wanted <= 0:
                raise ReadCancelledError
            if self.deadline is None:
                timeout = self.file.settings.timeout
                self.deadline = Deadline(timeout, self.end - self.start)
            self.file.read_range(self.start, self.end, self.parts, self.deadline)
        except (FastshardError, OSError) as error:
            self.error = error.with_traceback(None)
        except ReadCancelledError:
            self.error = RemoteError(CANCELLED, self.file.path)
        except Exception as error:  # for example of a function for token=
            self.error = RemoteError(f"{type(error).__name__}: {error}", self.file.path)
        except BaseException:
            self.error = RemoteError("the read was interrupted", self.file.path)
            raise
        finally:
            self._end()

    def fail(self, error: Exception) -> None:
        """End the claimed read with an error."""
        self.error = error
        self._end()

    def enter_loop(self, loop: ReadLoop, exchange: Any, server: Any) -> None:
        """Keep the handles to cancel the read in a loop."""
        self.queued = True
        self.server = server
        self._exchange = exchange
        self._loop = loop

    def leave_loop(self) -> None:
        """Drop the loop's handles, which hold the destinations."""
        self._loop = self._exchange = self.server = None

    def complete(self) -> None:
        """End a read whose parts a loop has filled."""
        self.leave_loop()
        self._end()

    def end_cancelled(self) -> None:
        """End a read that was cancelled in a loop."""
        self.leave_loop()
        self.fail(RemoteError(CANCELLED, self.file.path))

    def read_generally(self, begun: int) -> None:
        """Queue the read for a thread after the loop gave it up.

        `begun` is the moment from which its time counts, ns of `time.monotonic_ns`.
        """
        deadline = Deadline(self.file.settings.timeout, self.end - self.start)
        deadline.at = begun + int(deadline.timeout * 1e9)
        deadline.is_general = True
        self.deadline = deadline
        self.leave_loop()
        if self.wanted <= 0:
            self.fail(RemoteError(CANCELLED, self.file.path))
            return
        self.claim_lock.release()
        self.file.settings.shared[ReaderPool].start([self])

    def _end(self) -> None:
        if self.done:
            return
        self.parts = []
        self.done = True
        if self._pid == os.getpid():
            self._busy.release()

    def wait(self) -> Exception | None:
        """Wait until the read has ended; return its error."""
        if self._pid != os.getpid() and not self.done:
            self.deadline = None
            self.read()  # in a forked child, which has no reader threads
        while not self.done:
            loop = self._loop
            if loop is not None:
                loop.begin_wait()
            try:
                ended = self._busy.acquire(timeout=PATIENCE)
            finally:
                if loop is not None:
                    loop.end_wait()
            if ended:
                self._busy.release()
            elif loop is not None:
                loop.ensure_thread()  # an interrupt may have prevented the start
            elif not self.queued and (self.claim() or not self.has_begun):
                self.read()  # an interrupt came before its queueing, or after a claim
        return self.error

    def wait_until(self, moment: float) -> bool:
        """Wait until a time of `time.monotonic`; return whether the read has ended."""
        left = moment - time.monotonic()
        while not self.done and left > 0:
            if self._busy.acquire(timeout=min(left, PATIENCE)):
                self._busy.release()
            left = moment - time.monotonic()
        return self.done

    def release(self) -> None:
        """Release one request's claim; cancel the read after the last one."""
        self.wanted -= 1
        if self.wanted > 0 or self.done or self._pid != os.getpid():
            return
        loop, exchange, deadline = self._loop, self._exchange, self.deadline
        if self.claim():
            self.leave_loop()
            self.fail(RemoteError(CANCELLED, self.file.path))
        elif loop is not None and exchange is not None:
            loop.cancel(exchange)
        elif deadline is not None:
            deadline.cancel()


def coalesce(requests: Iterable[Request], gap: int, span: int) -> list[RangeRead]:
    """Merge requests into range reads, in the order of the first request of each."""
    by_file: dict[int, list[Request]] = {}
    for request in requests:
        if request.size > 0:
            by_file.setdefault(id(request.file), []).append(request)
    reads: list[RangeRead] = []
    for group in by_file.values():
        group.sort(key=lambda request: request.offset)
        reads += _merge(group, gap, span)
    return reads


def _merge(requests: Sequence[Request], gap: int, span: int) -> list[RangeRead]:
    """Merge requests for one object, sorted by offset."""
    reads: list[RangeRead] = []
    read: RangeRead | None = None
    for request in requests:
        end = request.offset + request.size
        fits = (
            read is not None
            and 0 <= request.offset - read.end <= gap
            and end - read.start <= span
        )
        if read is None or not fits:
            read = RangeRead(request.file, request.offset)
            reads.append(read)
        view, own = request.destination(), [read]
        for at in range(0, request.size, MOST_SPAN):
            if at > 0:
                read = RangeRead(request.file, request.offset + at)
                reads.append(read)
                own.append(read)
            read.add(request.offset + at, view[at : at + MOST_SPAN])
            read.is_in_new_memory |= not request.is_in_pool
        request.reads = own
    return reads


class ReaderPool(ForkAware):
    """Thread pool for range reads; idle threads end."""

    def __init__(self, settings: Settings) -> None:
        self._connections = settings.connections
        # Written in C: an exception such as KeyboardInterrupt never leaves it locked.
        self._reads: SimpleQueue[RangeRead | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        super().__init__()

    def start(self, reads: Iterable[RangeRead]) -> None:
        """Queue range reads, first in first out."""
        for read in reads:
            self._reads.put(read)
            read.queued = True  # last: an interrupt may come between
        with self._lock:
            alone = not self._grow()
        while alone:  # no thread can be started: read in this one
            try:
                waiting = self._reads.get_nowait()
            except Empty:
                break
            if waiting is not None and waiting.claim():
                waiting.read()

    def _grow(self) -> bool:
        """Start threads for queued reads; return whether any thread runs."""
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
            except RuntimeError:  # the system has no more threads
                self._threads.discard(thread)
                break
        return bool(self._threads)

    def _work(self) -> None:
        while (read := self._next()) is not None:
            if read.claim():
                read.read()
            del read  # an idle thread must not keep its buffers alive

    def _next(self) -> RangeRead | None:
        """Wait for a read; return None to end the thread."""
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
                    if not self._threads:
                        batch_memory.drain()
                return read

    def before_fork(self) -> None:
        """End idle threads before a fork, which warns of threads."""
        with self._lock:
            threads = list(self._threads)
            busy = len(threads) - self._idle
            for _ in range(self._idle):
                self._reads.put(None)
        for thread in threads if busy == 0 else ():
            thread.join(1.0)


def fetch(requests: Sequence[Request]) -> list[Exception | None]:
    """Send requests and wait; return the error of each, or None.

    When it returns or raises, KeyboardInterrupt included, no thread writes to a
    destination.
    """
    try:
        if len(requests) == 1 and 0 < requests[0].size <= MOST_SPAN:
            if not _fill_from_cache(requests[0]):
                _read_here(requests[0])
        else:
            start(requests)
        for request in reversed(requests):  # last first: one wake-up of this thread
            request.wait()
        return [request.error for request in requests]
    except BaseException:
        for request in requests:
            request.drop()
        for request in requests:
            request.settle()
        raise


def start(requests: Sequence[Request]) -> None:
    """Send requests by the threads of their pools, without waiting."""
    note_waits(requests)
    for settings, group in _group_by_settings(requests).items():
        reads = _coalesce_as_measured(group)
        others: list[RangeRead] = []
        for file, own in groupby(reads, key=attrgetter("file")):
            others += file.begin(list(own))
        if others:
            settings.shared[ReaderPool].start(others)


def drop_stored(requests: Sequence[Request]) -> None:
    """Drop requests; wait until no thread stores their bytes in a disk cache."""
    for request in requests:
        request.drop()
    moment = time.monotonic() + STORE_SECONDS
    for request in requests:
        if request.file.entry is not None:
            for read in request.reads:
                read.wait_until(moment)


def read_now(requests: Sequence[Request]) -> None:
    """Read requests in this thread, before those queued for other threads.

    Failures are left in the requests; after one the others fail without a read.
    """
    failed: Exception | None = None
    groups = _group_by_settings(requests).values()
    for read in [read for group in groups for read in _coalesce_as_measured(group)]:
        if not read.claim():
            continue
        if failed is None:
            read.read()
            failed = read.error
        else:
            read.fail(failed)


def _read_here(request: Request) -> None:
    """Read one request in this thread."""
    file, at = request.file, request.offset
    deadline = Deadline(file.settings.timeout, request.size)
    try:
        parts = [(at, request.destination())]
        file.read_range(at, at + request.size, parts, deadline)
    except (FastshardError, OSError) as error:
        request.error = error.with_traceback(None)
    except ReadCancelledError:
        request.error = RemoteError(CANCELLED, file.path)
    request.filled = True


def _fill_from_cache(request: Request) -> bool:
    """Fill a request from the disk cache; return whether that succeeded."""
    if request.file.entry is None:
        return False
    if not request.file.is_cached(request.offset, request.size):
        return False
    request.filled = request.file.read_cached(request.offset, request.destination())
    if request.filled:
        traffic.count_hit()
    return request.filled


def _group_by_settings(requests: Sequence[Request]) -> dict[Settings, list[Request]]:
    """Fill requests from the cache; group the others by settings."""
    groups: dict[Settings, list[Request]] = {}
    for request in requests:
        if not _fill_from_cache(request):
            groups.setdefault(request.file.settings, []).append(request)
    return groups


def _coalesce_as_measured(requests: Sequence[Request]) -> list[RangeRead]:
    """Merge requests of the same settings by the measured latency and rate."""
    meter = requests[0].file.meter
    return coalesce(requests, meter.gap(), meter.span())
