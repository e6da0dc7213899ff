"""Requests of HTTP as they are sent: method, URL, headers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import urlsplit

from fastshard._util.paths.urls import Origin, origin_of

__all__ = ["HttpRequest", "range_request"]


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

    def encode(self) -> bytes:
        """Return the bytes of a request without a body.

        Raises
        ------
        ValueError
            A header has a line end.
        """
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


def range_request(url: str, start: int, end: int, tag: str = "") -> HttpRequest:
    """Return the request for a range of an object, of one version if `tag` is given."""
    headers = {"Range": f"bytes={start}-{end - 1}"}
    if tag:
        headers["If-Match"] = tag
    return HttpRequest("GET", url, headers)
