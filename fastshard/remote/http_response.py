"""Responses to range requests, checked before and while their bodies are received.

RFC 9110, sections 14.2 to 14.4 (ranges) and 15.3.7 (206).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from fastshard._core.io.socket import Scatter
from fastshard._core.io.source import allocate_bytes
from fastshard.errors import RemoteError, RemoteNotFoundError
from fastshard.remote.http_connection import current_read
from fastshard.remote.retry import NoRangesError, RetryError
from fastshard.remote.transport import ObjectInfo
from fastshard.remote.urls import Url

if TYPE_CHECKING:
    from typing_extensions import Buffer
    from urllib3 import BaseHTTPResponse

__all__ = ["TRANSIENT", "RangeResponse"]

LONGEST_TAG = 300  # characters
LARGEST = 2**63  # bytes of an object
RANGE = re.compile(r"bytes\s+(\d{1,19})-(\d{1,19})/(\d{1,19}|\*)", re.ASCII)
NO_RANGE = re.compile(r"bytes\s+\*/(\d{1,19})", re.ASCII)
LASTING = frozenset((501, 505, 506, 508, 510, 511))  # of 5xx
TRANSIENT = frozenset((408, 425, 429, *range(500, 600))) - LASTING  # may pass


class RangeResponse:
    """A response whose headers are right, and its body.

    Parameters
    ----------
    response : urllib3.BaseHTTPResponse
    url : Url
        What was asked for.
    start, end : int
        The range, in bytes. An object may end before `end` where `known` is None.
    known : ObjectInfo or None
        What the object is known to be.
    whole : bool
        Whether the whole object will do in the place of a range of it.

    Attributes
    ----------
    info : ObjectInfo
    start, end : int
        What the body holds.

    Raises
    ------
    RetryError
        It is worth to ask again.
    RemoteError
        It is not.
    """

    def __init__(
        self,
        response: BaseHTTPResponse,
        url: Url,
        start: int,
        end: int,
        known: ObjectInfo | None,
        whole: bool = False,
    ) -> None:
        self._response = response
        body = current_read.response
        assert body is not None
        self._body = body
        self._url = url
        self._known = known
        self.start, self.end = start, end
        status = response.status
        if status == 206:
            self._check_range()
        elif status == 200:
            self._check_whole(whole)
        elif status == 416:
            self._check_beyond()
        else:
            self._refuse()
        if response.headers.get("Content-Encoding", "identity") != "identity":
            coding = response.headers["Content-Encoding"]
            raise self.error(f"the server compressed it ({coding[:40]!r}) unasked")
        length = self._length()
        if status == 416:
            return  # its body is a message
        if length is not None and length != self.end - self.start:
            due = self.end - self.start
            raise RetryError(f"a body of {length:,} bytes, where {due:,} were due")

    def error(self, reason: str) -> RemoteError:
        return RemoteError(reason, self._url.redacted, self._response.status)

    def _length(self) -> int | None:
        if self._body.chunked:
            return None
        text = self._response.headers.get("Content-Length")
        if text is None:
            return None
        if not re.fullmatch(r"\d{1,19}", text, re.ASCII):
            raise self.error(f"a body of {text[:40]!r} bytes")
        return int(text)

    def _check_range(self) -> None:
        text = self._response.headers.get("Content-Range")
        if text is None:
            kind = self._response.headers.get("Content-Type", "")
            if kind.lower().startswith("multipart/"):
                raise self.error("several ranges, where one was asked for")
            raise self.error("the answer does not say which range it is")
        match = RANGE.fullmatch(text.strip())
        if match is None:
            raise self.error(f"the answer is of the range {text[:60]!r}")
        first, last = int(match[1]), int(match[2])
        if match[3] == "*":
            if self._known is None:
                raise self.error("the server does not say how large the object is")
            total = self._known.nbytes
        else:
            total = int(match[3])
        if total >= LARGEST:
            raise self.error(f"an object of {total:,} bytes")
        self.info = self._info(total)
        end = self.end if self._known else min(self.end, total)
        if (first, last + 1) != (self.start, end) or end > total:
            raise self.error(
                f"bytes {first:,} to {last:,} were answered, and "
                f"{self.start:,} to {end - 1:,} asked for"
            )
        self.end = end

    def _check_whole(self, whole: bool) -> None:
        """Take the whole object where that was asked for, or no more than that."""
        total = self._length()
        if (
            self._known is not None
            and total is not None
            and total != self._known.nbytes
        ):
            raise self._changed(f"{total:,} bytes, and had {self._known.nbytes:,}")
        kind = self._response.headers.get("Content-Type", "")
        if kind.lower().startswith("text/html"):
            raise self.error("the server sends a page for people to read")
        if self.start == 0 and total is not None and (whole or total <= self.end):
            self.info = self._info(total)
            self.end = total
            return
        if self._known is not None:
            self._info(self._known.nbytes)  # raises if it is another object
        raise NoRangesError(
            "the server sends whole objects only, no ranges: keep them here with "
            "cache_dir=, or download them",
            self._url.redacted,
            self._response.status,
        )

    def _check_beyond(self) -> None:
        """Learn that an object is empty, or shorter than it was."""
        match = NO_RANGE.fullmatch(
            self._response.headers.get("Content-Range", "").strip()
        )
        if match is None:
            raise self.error("the server refuses the range")
        total = int(match[1])
        self.info = self._info(total)
        if total != 0 or self.start != 0:
            raise self.error(f"the object ends at byte {total:,}")
        self.end = 0

    def _info(self, nbytes: int) -> ObjectInfo:
        headers, known = self._response.headers, self._known
        modified = headers.get("Last-Modified", "")[:100]
        tag = headers.get("ETag", "") or modified
        if len(tag) > LONGEST_TAG:
            tag = "hash of it: " + hashlib.sha256(tag.encode()).hexdigest()
        if known is None:
            return ObjectInfo(nbytes, tag, _time_of(modified))
        if nbytes != known.nbytes:
            raise self._changed(f"{nbytes:,} bytes, and had {known.nbytes:,}")
        if known.tag and tag != known.tag:
            raise self._changed(f"the tag {tag}, and had {known.tag}")
        return known

    def _changed(self, how: str) -> RemoteError:
        return self.error(f"it was written to meanwhile: it has {how}")

    def _refuse(self) -> None:
        """Raise for any other status."""
        status, headers = self._response.status, self._response.headers
        if status in TRANSIENT:
            raise RetryError("the server fails", status, _pause_of(headers))
        if status == 412:
            raise self.error("it was written to meanwhile")
        message = headers.get("X-Error-Message", "")[:200]
        if status in (404, 410):
            raise RemoteNotFoundError(
                message or "there is no such object", self._url.redacted, status
            )
        if status in (401, 403):
            reason = message or "the server asks for other credentials"
            raise self.error(f"{reason}; give token=")
        raise self.error("the server refuses")

    def read_parts(self, parts: Sequence[tuple[int, Buffer]]) -> None:
        """Read the body, and put parts of it where they go; then `finish`.

        Raises
        ------
        RetryError
            The connection ended before.
        """
        scatter = Scatter(self.start, self.end, parts)
        while scatter.left:
            if not self._body.receive(scatter):
                raise RetryError("the connection ended inside the body")
        self.finish()

    def read(self) -> bytes:
        """Return the body."""
        room, view = allocate_bytes(self.end - self.start)
        self.read_parts([(self.start, view)])
        return room

    def read_into(self, view: memoryview) -> None:
        """Fill a buffer with what comes next of a body that is read by and by."""
        scatter = Scatter(0, len(view), [(0, view)])
        while scatter.left:
            if not self._body.receive(scatter):
                raise RetryError("the connection ended inside the body")

    def finish(self) -> None:
        """See that there is no more, and give the connection back.

        Raises
        ------
        RetryError
            There is.
        """
        if self._response.status == 416:
            self._response.close()
            return
        if not self._body.is_over():
            raise RetryError("more bytes came than were due")
        self._response.release_conn()


def _time_of(modified: str) -> int:
    """Return the time of a header, ns since 1970; 0 for one that tells none."""
    try:
        return int(parsedate_to_datetime(modified).timestamp()) * 10**9
    except (ValueError, TypeError, OverflowError, IndexError):
        return 0


def _pause_of(headers: Any) -> float | None:
    """Return how long Retry-After asks to wait, seconds."""
    import time

    text = headers.get("Retry-After", "").strip()
    if re.fullmatch(r"\d{1,9}", text, re.ASCII):
        return float(text)
    when = _time_of(text)
    return None if when == 0 else max(0.0, when / 1e9 - time.time())
