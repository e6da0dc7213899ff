"""Total time limit and cancellation for a read and its retries."""

from __future__ import annotations

import random
import socket
import time
from contextlib import suppress

from fastshard.errors import RemoteError

__all__ = ["Again", "Deadline", "DroppedError", "NoRangesError"]

SLOWEST = 100_000  # bytes a second, on top of the time for an answer
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # seconds between attempts, at most
LEAST_LEFT = 0.02  # seconds that another attempt is worth


class DroppedError(Exception):
    """Nobody waits for these bytes any more."""


class NoRangesError(RemoteError):
    """A server sends whole objects only."""


class Again(Exception):  # noqa: N818 - it is no error yet
    """An attempt failed in a way that may pass.

    Attributes
    ----------
    reason : str
    status : int or None
        What the server answered.
    pause : float or None
        How long it asks to wait, seconds.
    """

    def __init__(
        self, reason: str, status: int | None = None, pause: float | None = None
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status
        self.pause = pause


class Deadline:
    """The end of a read, in ns of `time.monotonic_ns`; it can be brought forward.

    Parameters
    ----------
    timeout : float
        Seconds.
    nbytes : int
        Bytes that are asked for: large reads may take longer.
    """

    __slots__ = ("at", "dropped", "sock", "timeout")

    def __init__(self, timeout: float, nbytes: int = 0) -> None:
        self.timeout = timeout + nbytes / SLOWEST
        self.at = time.monotonic_ns() + int(self.timeout * 1e9)
        self.dropped = False
        self.sock: socket.socket | None = None  # that is waited for

    def extend(self, nbytes: int) -> None:
        """Allow for more bytes, whose number the answer told."""
        self.timeout += nbytes / SLOWEST
        self.at += int(nbytes / SLOWEST * 1e9)

    def drop(self) -> None:
        """End the read: nobody waits for it."""
        self.dropped = True
        sock = self.sock
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def left(self) -> float:
        """Return seconds, above 0.

        Raises
        ------
        Again
            It is over.
        DroppedError
            Nobody waits.
        """
        if self.dropped:
            raise DroppedError
        left = (self.at - time.monotonic_ns()) / 1e9
        if left <= 0:
            raise Again(f"no whole answer within {self.timeout:.3g} s")
        return left

    def pause(
        self, again: Again, attempt: int, url: str, attempts: int | None = None
    ) -> None:
        """Wait before the next attempt: exponential backoff with full jitter.

        Parameters
        ----------
        again : Again
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
        asked = again.pause or 0.0
        if left <= LEAST_LEFT or asked >= left or attempt + 1 == attempts:
            reason = again.reason
            if asked >= left > 0:
                reason += f"; it asks to wait for {asked:,.0f} s"
            raise RemoteError(
                reason, url, again.status, attempt + 1, transient=True
            ) from None
        # Half of what is left at most, so that the last attempts come near its end.
        self._sleep(max(min(random.uniform(0, longest), left / 2), asked))

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self.dropped:
                raise DroppedError
            time.sleep(min(left, 0.1))
