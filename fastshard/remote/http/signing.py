"""Signed URLs: renewal of refused ones."""

from __future__ import annotations

import threading
from collections.abc import Callable

from fastshard._util.paths.urls import Url, normalize_url
from fastshard.errors import FastshardError, RemoteError
from fastshard.remote.http.response import FRESH_URL

__all__ = ["SignedUrls"]


class SignedUrls:
    """Renewed URLs of refused ones, from the function of ``sign=``.

    Attributes
    ----------
    fresh : dict of str
        URLs to request, by the normalized URL as given; both normalized.
    """

    def __init__(self, sign: Callable[[str], str | None]) -> None:
        self._sign = sign
        self.fresh: dict[str, str] = {}
        self._locks: dict[str, threading.Lock] = {}  # one call for a URL at a time

    def renew(self, url: Url, refused: RemoteError, sent: str) -> bool:
        """Return whether there is another URL than the refused one, which was sent."""
        if not _is_refusal(refused):
            return False
        with self._locks.setdefault(url.normalized, threading.Lock()):
            if self.fresh.get(url.normalized, url.normalized) == sent:
                self._call(url, refused)
            return self.fresh.get(url.normalized, url.normalized) != sent

    def _call(self, url: Url, refused: RemoteError) -> None:
        """Ask the function for a URL, and keep it."""
        try:
            found = self._sign(url.text)
        except Exception as error:
            reason = (
                f"sign= raised {type(error).__name__}; it returns None for an object "
                "that does not exist"
            )
            raise RemoteError(reason, url.redacted, refused.status) from error
        if found is None:
            return
        try:
            self.fresh[url.normalized] = normalize_url(found)
        except (FastshardError, AttributeError, TypeError):
            reason = f"sign= must return an http or https URL, got {type(found)}"
            if isinstance(found, str):
                reason = "sign= must return an http or https URL, got another text"
            raise RemoteError(reason, url.redacted, refused.status) from None


def _is_refusal(error: RemoteError) -> bool:
    """Return whether a fresh signature may help."""
    return error.status in (401, 403) or error.reason.endswith(FRESH_URL)
