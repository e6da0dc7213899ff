"""Responses to range requests: checks of headers and bodies.

RFC 9110, sections 14.2 to 14.4 (ranges) and 15.3.7 (206).
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from fastshard._core.io.exchange import Scatter
from fastshard._core.io.source import allocate_bytes
from fastshard._util.paths.urls import Url, expiry_of
from fastshard.errors import RemoteError, RemoteNotFoundError
from fastshard.remote.deadline import Deadline
from fastshard.remote.errors import NoRangesError, RetryError
from fastshard.remote.http.connection import TimedResponse, current_read
from fastshard.remote.requests.heads import (
    TRANSIENT,
    parse_head,
    read_head,
    receive_head,
    retry_after,
)
from fastshard.remote.transport import MAX_NBYTES, ObjectInfo

if TYPE_CHECKING:
    from typing_extensions import Buffer
    from urllib3 import BaseHTTPResponse

__all__ = [
    "CODE",
    "FRESH_URL",
    "REFUSALS",
    "PlainResponse",
    "RangeResponse",
    "Wanted",
]

FIRST = 80 << 10  # bytes that are received at first
AT_ONCE = 64 << 10  # bytes of a body that are received at a time
MESSAGE = 64 << 10  # bytes of the body of a 404 that are discarded
RANGE = re.compile(r"bytes\s+(\d{1,19})-(\d{1,19})/(\d{1,19}|\*)", re.ASCII)
NO_RANGE = re.compile(r"bytes\s+\*/(\d{1,19})", re.ASCII)
REFUSALS = frozenset((400, 401, 403))  # of a signature, a token
CODE = re.compile(r"<Code>(\w{1,60})</Code>")  # of the errors of object stores
EXPIRED = re.compile(r"expired|not valid in the specified time frame", re.IGNORECASE)
SIGNATURE = re.compile(
    r"[?&](?:x-amz-signature|x-goog-signature|x-oss-signature|signature|sig)=",
    re.IGNORECASE,
)
FRESH_URL = "; give a fresh URL, or sign=, a function that returns one"
EARLIEST = 1e9  # seconds since 1970; real expiries are later


class Wanted(NamedTuple):
    """Range of an object that is asked for.

    Attributes
    ----------
    url : Url
        As given, before redirects.
    start, end : int
    expected : ObjectInfo or None
        Metadata of the object if it is known.
    most : int
        Size up to which the whole object is as good; 0 for the range alone.
    """

    url: Url
    start: int
    end: int
    expected: ObjectInfo | None = None
    most: int = 0


class RangeResponse:
    """Response with valid headers, and its body.

    Attributes
    ----------
    info : ObjectInfo
    start, end : int
        Range of the body.
    """

    def __init__(
        self,
        response: BaseHTTPResponse | PlainResponse,
        wanted: Wanted,
        target: str = "",
        message: bytes = b"",
    ) -> None:
        self._response = response
        self._url, self.start, self.end, self._expected, most = wanted
        self._target = target or self._url.text
        self._message = message.decode("latin-1")
        self._body: PlainResponse | TimedResponse
        if isinstance(response, PlainResponse):
            self._body, self._head = response, response.head
        else:
            assert current_read.response is not None
            self._body = current_read.response
            self._head = read_head(response.status, response.headers)
        status = self._head.status
        if status == 206:
            self._check_range()
        elif status == 200:
            self._check_whole(most > 0)
        elif status == 416:
            self._check_beyond()
        else:
            self._refuse()
        if self._head.fault:
            raise self.error(self._head.fault)
        length = self._length()
        if status == 416:
            return  # the body is an error message
        size = self.end - self.start
        if length is not None and length != size:
            raise RetryError(f"expected a body of {size:,} bytes, got {length:,}")
        if self.info.nbytes > most > 0:
            got = self.info.nbytes
            raise self.error(f"expected at most {most:,} bytes, got {got:,}")

    def error(self, reason: str) -> RemoteError:
        """Return an error with the URL and the status of the response."""
        return RemoteError(reason, self._url.redacted, self._response.status)

    def _length(self) -> int | None:
        if self._body.chunked:
            return None
        if self._head.length == -1:
            raise self.error("Content-Length is not a number")
        return self._head.length

    def _check_range(self) -> None:
        text = self._head.content_range
        if text is None:
            if self._head.kind.startswith("multipart/"):
                raise self.error("expected one range, got a multipart response")
            raise self.error("the response has no Content-Range")
        match = RANGE.fullmatch(text.strip())
        if match is None:
            raise self.error(f"Content-Range {text[:60]!r} is not a range of bytes")
        first, last = int(match[1]), int(match[2])
        if match[3] == "*":
            if self._expected is None:
                raise self.error("Content-Range does not tell the object's size")
            total = self._expected.nbytes
        else:
            total = int(match[3])
        if total >= MAX_NBYTES:
            raise self.error(f"the object's size must be below 2**63, got {total:,}")
        self.info = self._info(total)
        end = self.end if self._expected else min(self.end, total)
        if (first, last + 1) != (self.start, end) or end > total:
            raise self.error(
                f"expected bytes {self.start:,} to {end - 1:,}, got {first:,} to "
                f"{last:,}"
            )
        self.end = end

    def _check_whole(self, whole: bool) -> None:
        """Accept a whole object if it was requested or the range covers it."""
        total = self._length()
        if (
            self._expected is not None
            and total is not None
            and total != self._expected.nbytes
        ):
            raise self._changed(f"{total:,} bytes", f"{self._expected.nbytes:,}")
        if self._head.kind.startswith("text/html"):
            raise self.error("expected data, got an HTML page")
        if self.start == 0 and total is not None and (whole or total <= self.end):
            self.info = self._info(total)
            self.end = total
            return
        if self._expected is not None:
            self._info(self._expected.nbytes)  # raises if it is another object
        raise NoRangesError(
            "the server does not support ranges: store its objects with cache_dir=, or "
            "download them",
            self._url.redacted,
            self._response.status,
        )

    def _check_beyond(self) -> None:
        """Accept a range past the end of an empty object."""
        match = NO_RANGE.fullmatch((self._head.content_range or "").strip())
        if match is None:
            raise self.error("the server refused the range")
        total = int(match[1])
        self.info = self._info(total)
        if total != 0 or self.start != 0:
            raise self.error(f"the object ends at byte {total:,}")
        self.end = 0

    def _info(self, nbytes: int) -> ObjectInfo:
        tag, expected = self._head.tag, self._expected
        if expected is None:
            return ObjectInfo(nbytes, tag, self._head.mtime_ns)
        if nbytes != expected.nbytes:
            raise self._changed(f"{nbytes:,} bytes", f"{expected.nbytes:,}")
        if expected.tag and tag != expected.tag:
            raise self._changed(f"the tag {tag}", expected.tag)
        return expected

    def _changed(self, now: str, before: str) -> RemoteError:
        return self.error(f"the object has changed: it has {now}, it had {before}")

    def _refuse(self) -> None:
        """Raise the error of a status that is not of a range."""
        status, headers = self._response.status, self._response.headers
        if status in TRANSIENT:
            raise RetryError("the server failed", status, retry_after(headers))
        if status == 412:
            raise self.error("the object has changed")
        message = headers.get("X-Error-Message", "")[:200]
        if status in (404, 410):
            raise RemoteNotFoundError(
                message or "the object does not exist", self._url.redacted, status
            )
        if status in REFUSALS and "?" in self._target:
            self._refuse_signature()
        if status in (401, 403):
            reason = message or "the server requires other credentials"
            if EXPIRED.search(self._message):
                reason = "the credentials have expired"
            raise self.error(f"{reason}; give token=")
        raise self.error("the server refused the request")

    def _refuse_signature(self) -> None:
        """Raise the error of a signed URL that expired or is refused, if it is one."""
        code = CODE.search(self._message)
        shown = f" ({code[1]})" if code else ""
        until = expiry_of(self._target) or 0.0
        if EXPIRED.search(self._message) or EARLIEST < until < time.time():
            raise self.error(f"the URL has expired{shown}{FRESH_URL}")
        if SIGNATURE.search(self._target):
            raise self.error(f"the URL's signature was refused{shown}{FRESH_URL}")

    def read_parts(self, parts: Sequence[tuple[int, Buffer]]) -> None:
        """Read the body, copy parts of it to their destinations, and `finish`."""
        scatter = Scatter(self.start, self.end, parts)
        while scatter.left:
            if not self._body.receive(scatter):
                raise RetryError("the connection ended inside the body")
        self.finish()

    def read(self) -> bytes:
        """Read the body, and `finish`."""
        room, view = allocate_bytes(self.end - self.start)
        self.read_parts([(self.start, view)])
        return room

    def read_with_info(self) -> tuple[ObjectInfo, bytes]:
        """Return `info` and the body; `finish`."""
        return self.info, self.read()

    def read_into(self, view: memoryview) -> None:
        """Fill a buffer with the next bytes of the body; `finish` comes later."""
        scatter = Scatter(0, len(view), [(0, view)])
        while scatter.left:
            if not self._body.receive(scatter):
                raise RetryError("the connection ended inside the body")

    def finish(self) -> None:
        """Check that the body has ended, and release the connection."""
        if self._response.status == 416:
            self._response.close()
            return
        if not self._body.is_complete():
            raise RetryError("the body is longer than expected")
        self._response.release_conn()


class PlainResponse:
    """Common response, received by few calls: 200, 206 or 404 with a Content-Length.

    Attributes
    ----------
    status : int
    headers : PlainHeaders
    head : ResponseHead
    chunked : bool
        False.
    """

    chunked = False

    def __init__(
        self,
        sock: socket.socket,
        deadline: Deadline,
        release: Callable[[socket.socket], object],
    ) -> None:
        self._sock = sock
        self._deadline = deadline
        self._release = release
        self._is_released = False
        receive = partial(deadline.receive, sock, FIRST)
        head, self._rest = receive_head(receive(), receive)
        self.headers, self.head = parse_head(head)
        self.status, length = self.head.status, self.head.length
        if length is None or length < 0:
            raise ValueError("a response without a Content-Length")
        connection = self.headers.get("Connection", "keep-alive").lower()
        self._is_kept = connection == "keep-alive"
        self._left = length
        if len(self._rest) > self._left:
            raise ValueError("the body is longer than expected")
        if self.status == 404 and self._left <= MESSAGE:
            self.receive(Scatter(0, self._left, []))

    def receive(self, scatter: Scatter) -> bool:
        """Receive the body; return False if it ends before the buffers are full."""
        while scatter.left and self._left:
            data = self._rest[: scatter.left]
            self._rest = self._rest[len(data) :]
            if not data:
                most = min(scatter.left, self._left, AT_ONCE)
                data = memoryview(self._deadline.receive(self._sock, most))
            if not data:
                return False
            scatter.feed(data)
            self._left -= len(data)
        return not scatter.left

    def is_complete(self) -> bool:
        """Return whether the whole body was read."""
        return self._left == 0

    def release_conn(self) -> None:
        """Let `close` keep the connection; without effect before the body's end."""
        self._is_released = self._is_kept and self._left == 0

    def close(self) -> None:
        """Close the connection, or let it be used again."""
        if self._is_released:
            self._release(self._sock)
        else:
            self._sock.close()
