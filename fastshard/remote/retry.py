"""Retries: delays, total time limit, cancellation."""

from __future__ import annotations

import random
import socket
import time
from contextlib import suppress

from fastshard.errors import RemoteError

__all__ = [
    "Deadline",
    "Meter",
    "NoRangesError",
    "ReadCancelledError",
    "RetryError",
]


GROWTH = 1.02  # of the least latency, by each answer that took longer
WEIGHT = 0.1  # of a new measurement
LEAST_BYTES = 64 << 10  # of an answer that tells a rate
LEAST_GAP, MOST_GAP = 16 << 10, 1 << 20  # bytes
LEAST_SPAN, MOST_SPAN = 1 << 20, 8 << 20  # bytes


class Meter:
    """Running figures; threads may lose a measurement, which does not matter.

    Attributes
    ----------
    latency : float
        Seconds until an answer begins, the least of late: more is waiting in line.
    rate : float
        Bytes a second of one connection, the mean of late.
    """

    def __init__(self) -> None:
        self.latency = 0.01
        self.rate = 50e6
        self._answers = False
        self._rates = 0

    def record_latency(self, seconds: float) -> None:
        slower = self.latency * GROWTH if self._answers else seconds
        self._answers = True
        self.latency = min(seconds, slower)

    def record_response(self, nbytes: int, seconds: float) -> None:
        """Note an answer that came in a time, waiting and bytes together."""
        waited = min(seconds, self.latency * GROWTH) if self._answers else seconds
        if nbytes < LEAST_BYTES:
            self.record_latency(seconds)
        else:
            self.record_transfer(nbytes, seconds - min(waited, seconds / 2))

    def record_transfer(self, nbytes: int, seconds: float) -> None:
        if nbytes < LEAST_BYTES:
            return
        self._rates += 1
        weight = max(WEIGHT, 1 / self._rates)
        self.rate += weight * (nbytes / max(seconds, 1e-6) - self.rate)

    def span(self) -> int:
        """Return how many bytes to ask for at once, so that answers cost little."""
        return min(max(int(8 * self.latency * self.rate), LEAST_SPAN), MOST_SPAN)

    def gap(self) -> int:
        """Return how many bytes come while an answer is waited for."""
        return min(max(int(self.latency * self.rate), LEAST_GAP), MOST_GAP)


SLOWEST = 100_000  # bytes a second, on top of the time for an answer
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # seconds between attempts, at most
LEAST_LEFT = 0.02  # seconds that another attempt is worth


class ReadCancelledError(Exception):
    """Nobody waits for these bytes any more."""


class NoRangesError(RemoteError):
    """A server sends whole objects only."""


class RetryError(Exception):
    """An attempt failed in a way that may pass: it is worth another one.

    Attributes
    ----------
    reason : str
    status : int or None
        What the server answered.
    retry_after : float or None
        How long it asks to wait, seconds.
    """

    def __init__(
        self, reason: str, status: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status
        self.retry_after = retry_after


class Deadline:
    """The end of a read, in ns of `time.monotonic_ns`; it can be brought forward.

    Parameters
    ----------
    timeout : float
        Seconds.
    nbytes : int
        Bytes that are asked for: large reads may take longer.
    """

    __slots__ = ("at", "cancelled", "sock", "timeout")

    def __init__(self, timeout: float, nbytes: int = 0) -> None:
        self.timeout = timeout + nbytes / SLOWEST
        self.at = time.monotonic_ns() + int(self.timeout * 1e9)
        self.cancelled = False
        self.sock: socket.socket | None = None  # that is waited for

    def extend(self, nbytes: int) -> None:
        """Allow for more bytes, whose number the answer told."""
        self.timeout += nbytes / SLOWEST
        self.at += int(nbytes / SLOWEST * 1e9)

    def cancel(self) -> None:
        """End the read: nobody waits for it."""
        self.cancelled = True
        sock = self.sock
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def remaining(self) -> float:
        """Return seconds, above 0.

        Raises
        ------
        RetryError
            It is over.
        DroppedError
            Nobody waits.
        """
        if self.cancelled:
            raise ReadCancelledError
        left = (self.at - time.monotonic_ns()) / 1e9
        if left <= 0:
            raise RetryError(f"no whole answer within {self.timeout:.3g} s")
        return left

    def backoff(
        self, failed: RetryError, attempt: int, url: str, attempts: int | None = None
    ) -> None:
        """Wait before the next attempt: exponential backoff with full jitter.

        Parameters
        ----------
        failed : RetryError
            Why the last attempt failed.
        attempt : int
            Its number, from 0.
        url : str
            For the error.
        attempts : int, optional
            How many there may be; otherwise only the time limits them.

        Raises
        ------
        RemoteError
            There is no time, or no attempt, left.
        """
        longest = min(FIRST_PAUSE * 2 ** min(attempt, 16), LONGEST_PAUSE)
        left = (self.at - time.monotonic_ns()) / 1e9
        asked = failed.retry_after or 0.0
        if left <= LEAST_LEFT or asked >= left or attempt + 1 == attempts:
            reason = failed.reason
            if asked >= left > 0:
                reason += f"; it asks to wait for {asked:,.0f} s"
            raise RemoteError(
                reason, url, failed.status, attempt + 1, transient=True
            ) from None
        # Half of what is left at most, so that the last attempts come near its end.
        self._sleep(max(min(random.uniform(0, longest), left / 2), asked))

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self.cancelled:
                raise ReadCancelledError
            time.sleep(min(left, 0.1))
