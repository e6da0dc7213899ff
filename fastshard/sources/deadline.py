"""How long a read may take, all attempts together, and who may end it before."""

from __future__ import annotations

import random
import socket
import time
from contextlib import suppress

from fastshard.errors import RemoteError

__all__ = ["Again", "Deadline", "DroppedError", "NoRangesError"]

SLOWEST = 100_000  # bytes a second, on top of the time for an answer
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 8.0  # seconds between attempts


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

    def pause(self, again: Again, attempt: int, url: str) -> None:
        """Wait before the next attempt, if there is time for one.

        Raises
        ------
        RemoteError
            There is none.
        """
        wait = min(FIRST_PAUSE * 2**attempt, LONGEST_PAUSE) * random.uniform(0.5, 1)
        if again.pause is not None:
            wait = max(wait, again.pause)
        left = (self.at - time.monotonic_ns()) / 1e9
        if wait >= left:
            reason = again.reason
            if again.pause is not None and again.pause >= left > 0:
                reason += f"; it asks to wait for {again.pause:,.0f} s"
            raise RemoteError(reason, url, again.status, attempt + 1) from None
        while wait > 0:
            if self.dropped:
                raise DroppedError
            time.sleep(min(wait, 0.1))
            wait -= 0.1
