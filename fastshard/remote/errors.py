"""Errors of one attempt to read: retry, cancelled, no ranges."""

from __future__ import annotations

from fastshard.errors import RemoteError

__all__ = ["NoRangesError", "ReadCancelledError", "RetryError"]


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
