"""Redirects: target URLs, never from TLS to plain HTTP."""

from __future__ import annotations

import time
from collections.abc import Mapping
from urllib.parse import urljoin

from fastshard._util.paths.urls import Url, expiry_of, normalize_url, origin_of, redact
from fastshard.errors import FastshardError, RemoteError

__all__ = [
    "MOST_REDIRECTS",
    "REDIRECTS",
    "following_url",
    "is_downgrade",
    "lifetime_of",
]

REDIRECTS = frozenset((301, 302, 303, 307, 308))
MOST_REDIRECTS = 5
LIFETIME = 60.0  # seconds that a redirect is cached, unless its target has a lifetime
MARGIN = 30.0  # seconds before its expiry from which a signature is not used


def following_url(sent: str, status: int, headers: Mapping[str, str], url: Url) -> str:
    """Return the normalized URL that the response to the URL `sent` leads to."""
    location = headers.get("Location")
    if not location:
        raise RemoteError("a redirect without a Location", url.redacted, status)
    try:
        following = normalize_url(urljoin(sent, location))
    except (FastshardError, ValueError):
        reason = f"a redirect to {_redact(sent, location)!r}"
        raise RemoteError(reason, url.redacted, status) from None
    if is_downgrade(sent, following):
        reason = f"a redirect from https to {_redact(sent, location)!r}"
        raise RemoteError(reason, url.redacted, status)
    return following


def is_downgrade(sent: str, following: str) -> bool:
    """Return whether a step leads from TLS to plain HTTP."""
    return (origin_of(sent).scheme, origin_of(following).scheme) == ("https", "http")


def lifetime_of(url: str) -> float:
    """Return the seconds of validity of a redirect's target."""
    until = expiry_of(url)
    return LIFETIME if until is None else max(0.0, until - time.time() - MARGIN)


def _redact(sent: str, location: str) -> str:
    """Return the target of a redirect without its possible secrets."""
    try:
        return redact(urljoin(sent, location)).partition("?")[0][:200]
    except ValueError:
        return "an invalid URL"
