"""Ranges over HTTP and HTTPS, by urllib3: every answer is checked.

Redirects are followed here, so that a secret never goes to another origin, and no
answer leads away from http and https.
"""

from __future__ import annotations

import functools
import http.client
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import parse_qs, urljoin, urlsplit

import urllib3
from urllib3.exceptions import HTTPError

from fastshard._core.io.source import allocate_bytes
from fastshard.errors import FastshardError, RemoteError
from fastshard.remote.addresses import RefusedHostError
from fastshard.remote.http_connection import (
    CONNECT,
    current_read,
    manager_for,
    proxy_for,
    refuse_proxy,
)
from fastshard.remote.http_fast import FastHttp
from fastshard.remote.http_response import RangeResponse
from fastshard.remote.options import Settings
from fastshard.remote.retry import Deadline, Meter, RetryError
from fastshard.remote.transport import ObjectInfo, Part
from fastshard.remote.urls import (
    Origin,
    Url,
    normalize_url,
    origin_of,
    parse_url,
    redact,
)

__all__ = ["HttpClient", "Part", "client_for"]

T = TypeVar("T")
FAILURES = (
    HTTPError,
    OSError,
    http.client.HTTPException,
    ValueError,
    OverflowError,  # of http.client, for a chunk of absurd size
)

NO_TLS = frozenset(("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNSUPPORTED_PROTOCOL"))
NO_NAME = frozenset(
    (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))
)
ENDED = frozenset((400, 401, 403, 404, 410))  # what a target says that was signed
REDIRECTS = frozenset((301, 302, 303, 307, 308))
MOST_REDIRECTS = 5
REMEMBERED = 60.0  # seconds that a redirect is remembered, unless it says otherwise
MARGIN = 30.0  # seconds before a signature ends in which it is not used
MESSAGE = 64 << 10  # bytes of what goes with an error
LARGEST = 1 << 40  # bytes of an object that is downloaded
LARGEST_ANSWER = 256 << 20  # bytes of a whole object that is read at once


class HttpClient:
    """Reads ranges; one a process and settings. Use `client_for`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.meter = Meter()
        self._fast = FastHttp(settings, self.meter)
        self._managers: dict[tuple[str | None, bool], Any] = {}
        self._pools: dict[Origin, tuple[Any, bool]] = {}
        self._targets: dict[str, tuple[str, float]] = {}  # where urls lead, until when
        self._answered: set[Origin] = set()  # these hosts exist

    def read(
        self,
        url: Url,
        start: int,
        end: int,
        parts: Sequence[Part],
        known: ObjectInfo,
        deadline: Deadline | None = None,
    ) -> None:
        """Read a range, and put parts of it where they go; see `Transport.read`."""
        deadline = deadline or Deadline(self.settings.timeout, end - start)
        target = self._target_of(url.sent)
        if self._fast.read(target, start, end, parts, known, deadline):
            return
        self._request(
            url, start, end, known, deadline, lambda answer: answer.read_parts(parts)
        )

    def head(self, url: str | Url, size: int) -> tuple[ObjectInfo, bytes]:
        """Return what an object is, and its first bytes, at most `size`."""
        url = parse_url(url)
        deadline = Deadline(self.settings.timeout, size)
        return self._request(
            url, 0, size, None, deadline, lambda answer: (answer.info, answer.read())
        )

    def whole(
        self, url: str | Url, most: int = LARGEST_ANSWER
    ) -> tuple[ObjectInfo, bytes]:
        """Return an object, also from servers that know no ranges.

        Raises
        ------
        RemoteError
            It has more than `most` bytes, or cannot be had.
        """
        url = parse_url(url)
        first = 1 << 20
        deadline = Deadline(self.settings.timeout, first)

        def take(answer: RangeResponse) -> tuple[ObjectInfo, bytes]:
            if answer.info.nbytes > most:
                raise answer.error(f"{answer.info.nbytes:,} bytes, and {most:,} may be")
            deadline.extend(answer.end)
            return answer.info, answer.read()

        info, data = self._request(url, 0, first, None, deadline, take, whole=True)
        if len(data) == info.nbytes:
            return info, data
        room, view = allocate_bytes(info.nbytes)
        view[: len(data)] = data
        rest = [(len(data), view[len(data) :])]
        self.read(url, len(data), info.nbytes, rest, info)
        return info, room

    def download(self, url: Url, receive: Callable[[RangeResponse], T]) -> T:
        """Return what `receive` makes of a response with a whole object of any size."""
        deadline = Deadline(self.settings.timeout)

        def begin(answer: RangeResponse) -> T:
            deadline.extend(answer.end)
            return receive(answer)

        return self._request(url, 0, LARGEST, None, deadline, begin, whole=True)

    def _request(
        self,
        url: Url,
        start: int,
        end: int,
        known: ObjectInfo | None,
        deadline: Deadline,
        receive: Callable[[RangeResponse], T],
        whole: bool = False,
    ) -> T:
        """Ask until an answer is right, or there is no sense in asking again."""
        sent, attempt = url.sent, 0
        while True:
            remembered = self._target_of(sent) != sent
            try:
                with self._answer(url, start, end, known, deadline, whole) as answer:
                    return receive(answer)
            except RetryError as failed:
                self._targets.pop(sent, None)
                deadline.backoff(failed, attempt, url.redacted, self.settings.attempts)
            except RemoteError as error:
                self._targets.pop(sent, None)
                if not remembered or error.status not in ENDED:
                    error.attempts = attempt + 1
                    raise
            attempt += 1

    @contextmanager
    def _answer(
        self,
        url: Url,
        start: int,
        end: int,
        known: ObjectInfo | None,
        deadline: Deadline,
        whole: bool,
    ) -> Iterator[RangeResponse]:
        """Send a request, follow its redirects, check the answer's headers."""
        target = self._target_of(url.sent)
        headers = {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
        response = None
        handled = sys.exception()  # that the caller handles: the context of all others
        current_read.deadline = deadline
        try:
            for _ in range(MOST_REDIRECTS + 1):
                begun = time.monotonic()
                response = self._send(target, headers, known, deadline)
                if response.status not in REDIRECTS:
                    break
                target = self._redirected(url, target, response)
                response.close()
            else:
                raise RemoteError("too many redirects", url.redacted)
            self.meter.record_latency(time.monotonic() - begun)
            if response.status >= 400:
                _drain(response)
            answer = RangeResponse(response, url, start, end, known, whole)
            begun = time.monotonic()
            yield answer
            self.meter.record_transfer(end - start, time.monotonic() - begun)
            response = None
        except FAILURES as error:
            raise self._translate_error(error, url, target, handled) from None
        finally:
            current_read.deadline = current_read.response = None
            current_read.query = ""
            if response is not None:
                response.close()

    def _send(
        self,
        target: str,
        headers: dict[str, str],
        known: ObjectInfo | None,
        deadline: Deadline,
    ) -> Any:
        """Send a request; return the response, whose body is not read."""
        headers = dict(headers)
        if known is not None and known.is_strong and not self._leads_on(target):
            headers["If-Match"] = known.tag
        origin = origin_of(target)
        if origin in self.settings.origins:
            headers.update(self.settings.headers)
            token = self.settings.bearer()
            if token:
                headers["Authorization"] = f"Bearer {token}"
        left = deadline.remaining()
        pool, whole = self._pool_for(origin)
        base, question, query = target.partition("?")
        current_read.query = question + query if query else ""
        response = pool.urlopen(
            "GET",
            base if whole else _path_of(base),
            headers=headers,
            redirect=False,
            assert_same_host=False,
            retries=False,
            preload_content=False,
            decode_content=False,
            timeout=urllib3.Timeout(connect=min(left, CONNECT), read=left),
        )
        self._answered.add(origin)
        return response

    def _translate_error(
        self, error: Exception, url: Url, target: str, handled: BaseException | None
    ) -> Exception:
        """Return a `RetryError` or a `RemoteError` for a library's or the system's."""
        chain = [error, *_causes(error, handled)]
        reason = _text_of(chain[-1])
        for one in chain:
            if isinstance(one, RefusedHostError):
                return RefusedHostError(one.reason, url.redacted)
            if isinstance(one, RemoteError):
                return one
            if isinstance(one, ssl.SSLCertVerificationError):
                reason = f"its certificate is not trusted: {reason}"
                return RemoteError(reason, url.redacted)
            if isinstance(one, ssl.SSLError) and one.reason in NO_TLS:
                return RemoteError(f"it does not speak TLS: {reason}", url.redacted)
            unknown = isinstance(one, socket.gaierror) and one.errno in NO_NAME
            if unknown and origin_of(target) not in self._answered:
                return RemoteError(f"there is no such host: {reason}", url.redacted)
        return RetryError(reason)

    def _leads_on(self, target: str) -> bool:
        return target in self._targets

    def _target_of(self, url: str) -> str:
        """Return where a url led, if that is remembered and holds."""
        target, until = self._targets.get(url, (url, 0.0))
        return target if time.monotonic() < until else url

    def _redirected(self, url: Url, target: str, response: Any) -> str:
        """Return where a redirect leads, and remember it."""
        location = response.headers.get("Location")
        if not location:
            raise RemoteError("a redirect to nowhere", url.redacted, response.status)
        try:
            found = normalize_url(urljoin(target, location))
        except (FastshardError, ValueError):
            raise RemoteError(
                f"a redirect to {_redact(target, location)!r}",
                url.redacted,
                response.status,
            ) from None
        if origin_of(target).scheme == "https" and origin_of(found).scheme == "http":
            raise RemoteError(
                f"a redirect from https to {_redact(target, location)!r}",
                url.redacted,
                response.status,
            )
        if target == url.sent or url.sent in self._targets:
            until = time.monotonic() + _lasts(found)
            self._targets[url.sent] = found, until
        return found

    def _pool_for(self, origin: Origin) -> tuple[Any, bool]:
        """Return the connections to an origin, and whether they take whole URLs."""
        found = self._pools.get(origin)
        if found is None:
            proxy, secure = proxy_for(origin), origin.scheme == "https"
            manager = self._managers.get((proxy, secure))
            if not self.settings.private_hosts:
                refuse_proxy(origin, proxy)
            if manager is None:
                told = self.settings
                manager = manager_for(
                    told.connections, told.private_hosts, proxy, secure
                )
                self._managers[proxy, secure] = manager
            pool = manager.connection_from_host(origin.host, origin.port, origin.scheme)
            made = pool, proxy is not None and origin.scheme == "http"
            found = self._pools.setdefault(origin, made)
        return found


@functools.lru_cache(1024)
def _path_of(url: str) -> str:
    """Return the path of a URL without a query, as it is sent to its host."""
    return urlsplit(url).path or "/"


def _drain(response: Any) -> None:
    """Read the message that goes with an error, so that the connection is free."""
    length = response.headers.get("Content-Length", "")
    if (
        length.isascii()
        and length.isdigit()
        and len(length) < 6
        and int(length) < MESSAGE
    ):
        response.read()
        response.release_conn()


def _redact(target: str, location: str) -> str:
    """Return where a redirect leads, without what may be secret."""
    try:
        return redact(urljoin(target, location)).partition("?")[0][:200]
    except ValueError:
        return "no URL"


def _causes(
    error: BaseException, handled: BaseException | None
) -> Iterator[BaseException]:
    """Yield what led to an exception, up to one that was being handled before."""
    for _ in range(8):
        reason = getattr(error, "reason", None)
        inner = reason if isinstance(reason, BaseException) else error.__cause__
        inner = inner or error.__context__
        if inner is None or inner is handled:
            return
        yield inner
        error = inner


def _text_of(last: BaseException) -> str:
    """Describe an exception without addresses of objects or of secrets."""
    text = last.strerror if isinstance(last, OSError) and last.strerror else str(last)
    return f"{type(last).__name__}: {str(text)[:200]}"


def _lasts(url: str) -> float:
    """Return how long a redirect's target holds, seconds; signed ones say it."""
    query = parse_qs(urlsplit(url).query)
    try:
        if "Expires" in query:
            return max(0.0, float(query["Expires"][0]) - time.time() - MARGIN)
        if "X-Amz-Expires" in query:
            signed = time.strptime(query["X-Amz-Date"][0], "%Y%m%dT%H%M%SZ")
            import calendar

            until = calendar.timegm(signed) + float(query["X-Amz-Expires"][0])
            return max(0.0, until - time.time() - MARGIN)
    except (ValueError, KeyError, OverflowError):
        pass
    return REMEMBERED


def client_for(settings: Settings) -> HttpClient:
    """Return this process's client."""
    return settings.shared(HttpClient)
