"""Deadlines of reads: pauses between attempts, time limits, cancellation."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from fastshard.errors import RemoteError
from fastshard.remote.errors import ReadCancelledError, RetryError
from fastshard.remote.traffic import traffic

__all__ = ["SLOWEST", "Deadline", "Waits", "note_waits", "watch_requests"]

SLOWEST = 100_000  # bytes per second, in addition to the timeout
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # upper bounds of the pause, seconds
LEAST_LEFT = 0.02  # seconds; with less left there is no other attempt


class Droppable(Protocol):
    """A request, or the time limit of one, that another thread may cancel."""

    def drop(self) -> None:
        """Cancel the request."""


class Waits(list[Any]):
    """Pending requests of a thread, which other threads may cancel.

    Attributes
    ----------
    is_dropped : bool
        Whether later requests are dropped, too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_dropped = False

    def note(self, found: Sequence[Droppable]) -> None:
        """Set the pending requests."""
        self[:] = found
        if self.is_dropped:
            self.drop()

    def drop(self) -> None:
        """Cancel these requests and later ones."""
        self.is_dropped = True
        for each in list(self):
            each.drop()


class _Watched(threading.local):
    waits: Waits | None = None


_watched = _Watched()


@contextmanager
def watch_requests() -> Iterator[Waits]:
    """Let other threads cancel the requests of the calling thread."""
    before, _watched.waits = _watched.waits, (waits := Waits())
    try:
        yield waits
    finally:
        _watched.waits = before


def note_waits(found: Sequence[Droppable]) -> None:
    """Register the pending requests of the calling thread, if it is watched."""
    waits = _watched.waits
    if waits is not None:
        waits.note(found)


class Deadline:
    """Time limit of a read and its retries; cancellable from other threads.

    Attributes
    ----------
    at : int
        End, ns of `time.monotonic_ns`.
    timeout : float
        Total time, seconds.
    nbytes : int
        Bytes for which it has time, in addition to the timeout.
    cancelled : bool
    is_general : bool
        Whether the general client reads, after the fast path has failed.
    sock : socket.socket or None
        The socket that the reading thread waits for.
    """

    __slots__ = (
        "_answer",
        "_begun",
        "at",
        "cancelled",
        "is_general",
        "nbytes",
        "sock",
        "timeout",
    )

    def __init__(self, timeout: float, nbytes: int = 0) -> None:
        self.timeout = timeout + nbytes / SLOWEST
        self.nbytes = nbytes
        self._begun = time.monotonic_ns()
        self._answer: RetryError | None = None  # the last one with a status
        self.at = self._begun + int(self.timeout * 1e9)
        self.cancelled = False
        self.is_general = False
        self.sock: socket.socket | None = None
        note_waits((self,))

    def extend(self, nbytes: int) -> None:
        """Extend the limit to the size of a response, once for several attempts."""
        further = max(nbytes - self.nbytes, 0)
        self.nbytes += further
        self.timeout += further / SLOWEST
        self.at += int(further / SLOWEST * 1e9)

    def cancel(self) -> None:
        """Cancel the read; a thread that waits for the socket wakes up."""
        self.cancelled = True
        sock = self.sock
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    drop = cancel

    def remaining(self) -> float:
        """Return the remaining seconds, a positive number."""
        if self.cancelled:
            raise ReadCancelledError
        left = (self.at - time.monotonic_ns()) / 1e9
        if left <= 0:
            raise RetryError(f"no complete response within {self.timeout:.3g} s")
        return left

    def receive(self, sock: socket.socket, most: int) -> bytes:
        """Receive at most so many bytes; the wait ends with the limit, or a cancel."""
        self.sock = sock  # before `remaining` asks if it is cancelled
        try:
            sock.settimeout(self.remaining())
            return sock.recv(most)
        finally:
            self.sock = None

    def backoff(
        self, failed: RetryError, attempt: int, url: str, attempts: int | None = None
    ) -> None:
        """Wait before the next attempt: exponential backoff with full jitter."""
        longest = min(FIRST_PAUSE * 2 ** min(attempt, 16), LONGEST_PAUSE)
        if failed.status is not None:
            self._answer = failed
        end, waited = self.at, ""
        if failed.within is not None and failed.within < self.timeout:
            end = min(end, self._begun + int(failed.within * 1e9))
            waited = f"; it was tried for {failed.within:g} s: timeout= waits longer"
        left = (end - time.monotonic_ns()) / 1e9
        asked = failed.retry_after or 0.0
        if left <= LEAST_LEFT or asked >= left or attempt + 1 == attempts:
            reason, status = failed.reason + waited, failed.status
            if asked >= left > 0:
                reason += f"; it asks to retry after {asked:,.0f} s"
            if status is None and self._answer is not None:
                reason += f"; the last answer: {self._answer.reason}"
                status = self._answer.status
            raise RemoteError(
                reason, url, status, attempt + 1, transient=True
            ) from None
        # At most half of the remaining time: the last attempts lie near the end.
        self._sleep(max(min(random.uniform(0, longest), left / 2), asked))
        traffic.count_retry()

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self.cancelled:
                raise ReadCancelledError
            time.sleep(min(left, 0.1))
