"""Heads of responses: receipt, fields, statuses that may pass.

RFC 9110 and 9112. `fastshard._core.io.exchange` checks the heads that its loop expects.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Collection, Mapping
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any, NamedTuple

__all__ = [
    "TRANSIENT",
    "PlainHeaders",
    "ResponseHead",
    "content_length",
    "find_coding",
    "parse_head",
    "read_head",
    "receive_head",
    "retry_after",
]

PERMANENT = frozenset((501, 505, 506, 508, 510, 511))  # of 5xx
TRANSIENT = frozenset((408, 425, 429, *range(500, 600))) - PERMANENT
MOST_HEADERS = 16 << 10  # bytes
LONGEST_TAG = 300  # characters
PLAIN_HEAD = re.compile(  # of RFC 9112, without folded lines
    rb"HTTP/1\.1 (200|206|404)(?: [^\r\n\0]*)?\r\n"
    rb"((?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\r\n\0]*\r\n)*)\r\n"
)
SINGLE = frozenset(  # headers that must not be repeated
    (
        "connection",
        "content-encoding",
        "content-length",
        "content-range",
        "etag",
        "last-modified",
    )
)


class PlainHeaders(dict[str, str]):
    """Headers of a response, found by names in any case."""

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name.lower(), default)

    def __getitem__(self, name: str) -> str:
        return super().__getitem__(name.lower())


def receive_head(data: bytes, receive: Callable[[], bytes]) -> tuple[bytes, memoryview]:
    """Receive a head of which `data` is here; return it and the bytes that follow."""
    received = data
    while (at := data.find(b"\r\n\r\n", 0, MOST_HEADERS)) < 0:
        if not received:
            raise ConnectionError("the connection ended inside the headers")
        if len(data) >= MOST_HEADERS:
            raise ValueError("the headers are too long")
        received = receive()
        data += received
    return data[: at + 4], memoryview(data)[at + 4 :]


class ResponseHead(NamedTuple):
    """Fields of a head that ranges depend on.

    Attributes
    ----------
    status : int
    length : int or None
        Bytes of the body; None without a length, -1 if it is not a number.
    fault : str
        Reason to refuse the body's coding, or "".
    content_range : str or None
    kind : str
        Content-Type, in lower case.
    tag : str
        As of an `ObjectInfo`.
    mtime_ns : int
        Last-Modified, ns since 1970; 0 if unknown.
    """

    status: int
    length: int | None
    fault: str
    content_range: str | None
    kind: str
    tag: str
    mtime_ns: int


def read_head(status: int, headers: Mapping[str, str]) -> ResponseHead:
    """Return the fields of a head."""
    modified = headers.get("Last-Modified", "")[:100]
    tag = headers.get("ETag", "") or modified
    if len(tag) > LONGEST_TAG:
        tag = "hash of it: " + hashlib.sha256(tag.encode()).hexdigest()
    return ResponseHead(
        status,
        content_length(headers),
        find_coding(headers.get("Content-Encoding", "")),
        headers.get("Content-Range"),
        headers.get("Content-Type", "").lower(),
        tag,
        _parse_time(modified),
    )


def parse_head(head: bytes) -> tuple[PlainHeaders, ResponseHead]:
    """Return the headers and the fields of a common response."""
    match = PLAIN_HEAD.fullmatch(head)
    if match is None:
        raise ValueError("an uncommon response")
    headers = _fields_of(match[2])
    return headers, read_head(int(match[1]), headers)


def _fields_of(lines: bytes) -> PlainHeaders:
    """Return headers by their names in lower case."""
    headers = PlainHeaders()
    for line in lines.decode("latin-1").split("\r\n")[:-1]:
        name, _, text = line.partition(":")
        name = name.lower()
        if (name in SINGLE and name in headers) or name == "transfer-encoding":
            raise ValueError(f"the header {name} is repeated or not supported")
        headers[name] = text.strip(" \t")
    return headers


def content_length(headers: Mapping[str, str]) -> int | None:
    """Return the length of a body in bytes; None without one, -1 if not a number."""
    text = headers.get("Content-Length")
    if text is None:
        return None
    return int(text) if re.fullmatch(r"\d{1,19}", text, re.ASCII) else -1


def find_coding(coding: str, plain: Collection[str] = ("", "identity")) -> str:
    """Return a reason to refuse a Content-Encoding, or "" for a plain body."""
    if coding in plain:
        return ""
    return f"expected no Content-Encoding, got {coding[:40]!r}"


@lru_cache(1024)
def _parse_time(text: str) -> int:
    """Return the time of a header, ns since 1970; 0 if it is not a time."""
    try:
        return int(parsedate_to_datetime(text).timestamp()) * 10**9
    except (ValueError, TypeError, OverflowError, IndexError):
        return 0


def retry_after(headers: Any) -> float | None:
    """Return the pause that Retry-After asks for, seconds; None without one."""
    text = headers.get("Retry-After", "").strip()
    if re.fullmatch(r"\d{1,9}", text, re.ASCII):
        return float(text)
    when = _parse_time(text)
    return None if when == 0 else max(0.0, when / 1e9 - time.time())
