"""Retries: delays, total time limit, cancellation; counts of requests."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from fastshard._util.processes.forks import LockOwner
from fastshard.errors import RemoteError

__all__ = [
    "MOST_SPAN",
    "SLOWEST",
    "Deadline",
    "Meter",
    "NoRangesError",
    "ReadCancelledError",
    "RetryError",
    "Waits",
    "note_waits",
    "traffic",
    "watch_requests",
]

GROWTH = 1.02  # factor on the latency for each slower response
WEIGHT = 0.1  # of a new measurement
LEAST_BYTES = 64 << 10  # of a response whose rate is measured
LEAST_GAP, MOST_GAP = 16 << 10, 1 << 20  # bytes between extents of a range
LEAST_SPAN, MOST_SPAN = 1 << 20, 8 << 20  # bytes of a range

SLOWEST = 100_000  # bytes per second, in addition to the timeout
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # upper bounds of the pause, seconds
LEAST_LEFT = 0.02  # seconds; with less left there is no other attempt


class Meter:
    """Running latency and transfer rate of a server.

    Without a lock: concurrent threads may lose a measurement.

    Attributes
    ----------
    latency : float
        Seconds until a response begins: a recent minimum, since more is queueing.
    rate : float
        Bytes per second of one connection, a moving average.
    """

    def __init__(self) -> None:
        self.latency = 0.01
        self.rate = 50e6
        self._measured = False  # whether `latency` is
        self._rates = 0  # number of measured rates

    def record_latency(self, seconds: float) -> None:
        """Record the time until a response began."""
        slower = self.latency * GROWTH if self._measured else seconds
        self._measured = True
        self.latency = min(seconds, slower)

    def record_response(self, nbytes: int, seconds: float) -> None:
        """Record the time of a whole response, latency and transfer together."""
        waited = min(seconds, self.latency * GROWTH) if self._measured else seconds
        if nbytes < LEAST_BYTES:
            self.record_latency(seconds)
        else:
            self.record_transfer(nbytes, seconds - min(waited, seconds / 2))

    def record_transfer(self, nbytes: int, seconds: float) -> None:
        """Record the time in which a response's body was received."""
        if nbytes < LEAST_BYTES:
            return
        self._rates += 1
        weight = max(WEIGHT, 1 / self._rates)
        self.rate += weight * (nbytes / max(seconds, 1e-6) - self.rate)

    def span(self) -> int:
        """Return the bytes of a range for which the latency matters little."""
        return min(max(int(8 * self.latency * self.rate), LEAST_SPAN), MOST_SPAN)

    def gap(self) -> int:
        """Return the bytes transferred in the time of one latency."""
        return min(max(int(self.latency * self.rate), LEAST_GAP), MOST_GAP)


class Traffic(LockOwner):
    """Counts of this process's range requests, for statistics.

    Attributes
    ----------
    requests : int
        Requests that were sent, repeated ones included; those that obstore repeats
        by itself are not.
    retries : int
        Requests repeated after a transient failure.
    cache_hits : int
        Ranges found in the disk cache.
    """

    def __init__(self) -> None:
        super().__init__()
        self.requests = 0
        self.retries = 0
        self.cache_hits = 0

    def count_request(self) -> None:
        """Count a request."""
        with self.lock:
            self.requests += 1

    def count_retry(self) -> None:
        """Count the repetition of a request, before it is sent."""
        with self.lock:
            self.retries += 1

    def count_hit(self) -> None:
        """Count a range found in the disk cache."""
        with self.lock:
            self.cache_hits += 1

    def counts(self) -> tuple[int, int, int]:
        """Return `requests`, `retries` and `cache_hits`."""
        with self.lock:
            return self.requests, self.retries, self.cache_hits


traffic = Traffic()


class ReadCancelledError(Exception):
    """The read was cancelled: no request needs its bytes."""


class NoRangesError(RemoteError):
    """The server ignores ranges and sends whole objects."""


class RetryError(Exception):
    """An attempt failed, and another one may succeed.

    Attributes
    ----------
    reason : str
    status : int or None
        HTTP status, if there was a response.
    retry_after : float or None
        Pause that the server asks for, seconds.
    within : float or None
        Seconds from the begin of the read after which no other attempt is made, if they
        are fewer than its time limit.
    """

    def __init__(
        self,
        reason: str,
        status: int | None = None,
        retry_after: float | None = None,
        within: float | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status
        self.retry_after = retry_after
        self.within = within


class Droppable(Protocol):
    """A request, or the time limit of one, that another thread may cancel."""

    def drop(self) -> None:
        """Cancel it."""


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
        """Replace the requests."""
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
    """Note the requests that the calling thread will wait for, if it is watched."""
    waits = _watched.waits
    if waits is not None:
        waits.note(found)


class Deadline:
    """Time limit of a read and its retries; cancellable from other threads.

    Parameters
    ----------
    timeout : float
        Seconds.
    nbytes : int
        Size of the read, which extends the limit.

    Attributes
    ----------
    at : int
        End, ns of `time.monotonic_ns`.
    timeout : float
        Total time, seconds.
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
        "sock",
        "timeout",
    )

    def __init__(self, timeout: float, nbytes: int = 0) -> None:
        self.timeout = timeout + nbytes / SLOWEST
        self._begun = time.monotonic_ns()
        self._answer: RetryError | None = None  # the last one with a status
        self.at = self._begun + int(self.timeout * 1e9)
        self.cancelled = False
        self.is_general = False
        self.sock: socket.socket | None = None
        note_waits((self,))

    def extend(self, nbytes: int) -> None:
        """Extend the limit by the size of a response."""
        self.timeout += nbytes / SLOWEST
        self.at += int(nbytes / SLOWEST * 1e9)

    def cancel(self) -> None:
        """Cancel the read; a thread that waits for the socket wakes up."""
        self.cancelled = True
        sock = self.sock
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    drop = cancel

    def remaining(self) -> float:
        """Return the remaining seconds, a positive number.

        Raises
        ------
        RetryError
            The time is over.
        ReadCancelledError
            The read was cancelled.
        """
        if self.cancelled:
            raise ReadCancelledError
        left = (self.at - time.monotonic_ns()) / 1e9
        if left <= 0:
            raise RetryError(f"no complete response within {self.timeout:.3g} s")
        return left

    def backoff(
        self, failed: RetryError, attempt: int, url: str, attempts: int | None = None
    ) -> None:
        """Wait before the next attempt: exponential backoff with full jitter.

        Parameters
        ----------
        failed : RetryError
            Failure of the last attempt.
        attempt : int
            Number of the last attempt, from 0.
        url : str
            Redacted, for the error.
        attempts : int, optional
            Maximum number of attempts; without it only the time limits them.

        Raises
        ------
        RemoteError
            No time or no attempt is left.
        """
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
