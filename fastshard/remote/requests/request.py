"""Requests of HTTP as they are sent: method, URL, headers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple, Self
from urllib.parse import urlsplit

from fastshard._util.paths.remote_options import RemoteOptions
from fastshard._util.paths.urls import Origin, origin_of

__all__ = ["Authorization", "Credentials", "HttpRequest", "range_request"]


class Authorization:
    """Way to authorise requests, made from the options that it takes."""

    @classmethod
    def of(cls, options: RemoteOptions) -> Self | None:
        """Return the way that the options select, or None."""
        raise NotImplementedError

    def headers(self, request: HttpRequest) -> Mapping[str, str]:
        """Return headers for a request, which has those of earlier ways."""
        raise NotImplementedError

    def check_pickles(self) -> None:
        """Raise FastshardError if an option is a secret or does not pickle."""
        raise NotImplementedError


class Credentials(NamedTuple):
    """Ways to authorise requests to a fixed set of servers."""

    ways: tuple[Authorization, ...]
    origins: frozenset[Origin]


class HttpRequest:
    """Request of one attempt.

    Attributes
    ----------
    method : str
    url : str
        Normalized.
    origin : Origin
    headers : dict
        Without Host and those of a body.
    """

    __slots__ = ("headers", "method", "origin", "url")

    def __init__(self, method: str, url: str, headers: Mapping[str, str]) -> None:
        self.method = method
        self.url = url
        self.origin: Origin = origin_of(url)
        self.headers: dict[str, str] = {"Accept-Encoding": "identity", **headers}

    def authorize(self, credentials: Credentials) -> None:
        """Add the headers of ways, in their order, if they are for the server."""
        if self.origin in credentials.origins:
            for way in credentials.ways:
                self.headers.update(way.headers(self))

    def encode(self) -> bytes:
        """Return the bytes of a request without a body."""
        lines = "\r\n".join(
            [f"{name}: {value}" for name, value in self.headers.items()]
        )
        ends = len(self.headers) - 1
        if lines.count("\r") != ends or lines.count("\n") != ends:
            raise ValueError("a header must not contain line ends")
        return _first_lines(self.method, self.url) + lines.encode("latin-1") + END


END = b"\r\n\r\n"


@lru_cache(4096)
def _first_lines(method: str, url: str) -> bytes:
    """Return the request line and Host."""
    parts = urlsplit(url)
    query = "?" + parts.query if parts.query else ""
    line = f"{method} {parts.path or '/'}{query} HTTP/1.1"
    return f"{line}\r\nHost: {parts.netloc}\r\n".encode("ascii")


def range_request(
    url: str, start: int, end: int, tag: str, credentials: Credentials
) -> HttpRequest:
    """Return the request for a range, of one version if the tag is a strong ETag."""
    headers = {"Range": f"bytes={start}-{end - 1}"}
    if tag.startswith('"'):
        headers["If-Match"] = tag
    request = HttpRequest("GET", url, headers)
    request.authorize(credentials)
    return request
