"""Client for ranges over HTTP and HTTPS, by urllib3; checks every response.

Redirects are followed here, so that no secret is sent to another origin, and no
redirect leads to another scheme.
"""

from __future__ import annotations

import errno
import functools
import http.client
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import urlsplit

import urllib3
from urllib3.exceptions import HTTPError

from fastshard._core.io.source import allocate_bytes
from fastshard._util.paths.urls import (
    Origin,
    Url,
    origin_of,
    parse_url,
)
from fastshard.errors import RemoteError, RemoteNotFoundError
from fastshard.remote.addresses import RefusedHostError
from fastshard.remote.deadline import Deadline
from fastshard.remote.errors import RetryError
from fastshard.remote.http.connection import (
    CONNECT,
    current_read,
    manager_for,
    proxy_for,
    refuse_proxy,
)
from fastshard.remote.http.fast import FastHttp
from fastshard.remote.http.response import FRESH_URL, REFUSALS, RangeResponse, Wanted
from fastshard.remote.http.signing import SignedUrls
from fastshard.remote.meter import Meter
from fastshard.remote.options import Settings
from fastshard.remote.requests.heads import content_length
from fastshard.remote.requests.redirects import (
    MOST_REDIRECTS,
    REDIRECTS,
    following_url,
    lifetime_of,
)
from fastshard.remote.requests.request import HttpRequest, range_request
from fastshard.remote.traffic import traffic
from fastshard.remote.transport import MAX_WHOLE, LoopedRead, ObjectInfo, Part

__all__ = ["HttpClient", "Part", "client_for"]

T = TypeVar("T")
FAILURES = (
    HTTPError,
    OSError,
    http.client.HTTPException,
    ValueError,
    OverflowError,  # http.client raises it for a chunk of an absurd size
)

NO_TLS = frozenset(("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNSUPPORTED_PROTOCOL"))
NO_NAME = frozenset(
    (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))
)
UNREACHABLE = frozenset(
    (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN)
)
EXPIRED = frozenset((400, 401, 403, 404, 410))  # of a target with an old signature
MESSAGE = 64 << 10  # bytes of the body of an error response
MESSAGE_SECONDS = 2.0  # seconds to wait for the body of a refusal
COMMON = frozenset((200, 206, 404))  # statuses that the fast path receives
FIRST = 1 << 20  # bytes of an object that is read whole, in the first request
LARGEST = 1 << 40  # bytes of a downloaded object


class HttpClient:
    """Client for HTTP servers; one per process and settings, by `client_for`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.meter = Meter()
        self._fast = FastHttp(settings, self.meter)
        self._managers: dict[tuple[str | None, bool], Any] = {}
        self._pools: dict[Origin, tuple[Any, bool]] = {}
        self._targets: dict[str, tuple[str, float]] = {}  # of redirects; with expiry
        self._signed = SignedUrls(settings.sign) if settings.sign else None
        self._common: set[Origin] = set()  # hosts that sent a common response

    def read(
        self,
        url: Url,
        start: int,
        end: int,
        parts: Sequence[Part],
        expected: ObjectInfo,
        deadline: Deadline | None = None,
    ) -> None:
        """Read a range and copy parts of it to their destinations; see `Transport`."""
        deadline = deadline or Deadline(self.settings.timeout, end - start)
        target = self._target_of(url.normalized)
        if not self._fast.read(target, start, end, parts, expected, deadline):
            wanted = Wanted(url, start, end, expected)
            self._request(wanted, deadline, lambda response: response.read_parts(parts))

    def begin(
        self, url: Url, expected: ObjectInfo, reads: Sequence[LoopedRead]
    ) -> Sequence[LoopedRead]:
        """Give range reads to the loop; see `Transport`."""
        return self._fast.begin(self._target_of(url.normalized), expected, reads)

    def head(self, url: str | Url, size: int) -> tuple[ObjectInfo, bytes]:
        """Return the metadata and at most the first `size` bytes of an object."""
        return self._request_first(Wanted(parse_url(url), 0, size))

    def whole(self, url: str | Url, most: int = MAX_WHOLE) -> tuple[ObjectInfo, bytes]:
        """Return the metadata and all bytes of an object; ranges are not needed."""
        wanted = Wanted(parse_url(url), 0, FIRST, most=most)
        info, data = self._request_first(wanted)
        if len(data) == info.nbytes:
            return info, data
        room, view = allocate_bytes(info.nbytes)
        view[: len(data)] = data
        rest = [(len(data), view[len(data) :])]
        self.read(wanted.url, len(data), info.nbytes, rest, info)
        return info, room

    def download(self, url: Url, receive: Callable[[RangeResponse], T]) -> T:
        """Request a whole object of any size; return ``receive(response)``."""
        wanted = Wanted(url, 0, LARGEST, most=LARGEST)
        return self._request(wanted, Deadline(self.settings.timeout), receive)

    def _request_first(self, wanted: Wanted) -> tuple[ObjectInfo, bytes]:
        """Request an object for the first time: by the fast path, or by urllib3."""
        given = wanted.url.normalized
        target, begun = self._first_of(given), time.monotonic()
        is_fast = given not in self._targets and origin_of(target) in self._common
        deadline, size = Deadline(self.settings.timeout, wanted.end), wanted.end
        response = self._fast.ask(target, 0, size, deadline) if is_fast else None
        if response is not None:
            self.meter.record_latency(time.monotonic() - begun)
            try:
                ranged = RangeResponse(response, wanted)
                if ranged.end > size:
                    deadline.extend(ranged.end)
                return ranged.read_with_info()
            except RemoteNotFoundError:
                response.release_conn()
                raise
            except (*FAILURES, RetryError):
                self._fast.count_uncommon(target)
            finally:
                response.close()
        return self._request(wanted, deadline, RangeResponse.read_with_info)

    def _request(
        self, wanted: Wanted, deadline: Deadline, receive: Callable[[RangeResponse], T]
    ) -> T:
        """Send a request; retry after transient failures and expired signatures."""
        url, attempt, may_sign = wanted.url, 0, True
        given = url.normalized
        while True:
            first = self._first_of(given)
            redirected = self._target_of(given) != first
            try:
                return self._attempt(wanted, deadline, receive)
            except RetryError as failed:
                self._targets.pop(given, None)
                deadline.backoff(failed, attempt, url.redacted, self.settings.attempts)
                may_sign = True
            except RemoteError as error:
                target = self._targets.pop(given, None)
                if not redirected or error.status not in EXPIRED:
                    signed = self._signed if may_sign else None
                    if signed is None or not signed.renew(url, error, first):
                        error = self._explain(error, first != given, target is not None)
                        error.attempts = attempt + 1
                        raise error from None
                    may_sign = False
            attempt += 1

    def _attempt(
        self, wanted: Wanted, deadline: Deadline, receive: Callable[[RangeResponse], T]
    ) -> T:
        """Send a request by urllib3, follow redirects, receive the response."""
        url, target = wanted.url, self._target_of(wanted.url.normalized)
        response = None
        handled = sys.exception()  # by the caller; the context of later exceptions
        current_read.deadline = deadline
        try:
            for _ in range(MOST_REDIRECTS + 1):
                begun = time.monotonic()
                response = self._send_range(target, wanted, deadline)
                if response.status not in REDIRECTS:
                    break
                target = self._follow_redirect(url, target, response)
                response.close()
            else:
                raise RemoteError(f"more than {MOST_REDIRECTS} redirects", url.redacted)
            self.meter.record_latency(time.monotonic() - begun)
            if response.status in COMMON:
                self._common.add(origin_of(target))
            message = _drain(response, deadline) if response.status >= 400 else b""
            ranged = RangeResponse(response, wanted, target, message)
            if wanted.most:
                deadline.extend(ranged.end)
            begun = time.monotonic()
            received = receive(ranged)
            seconds = time.monotonic() - begun
            response = None
        except FAILURES as error:
            raise self.translate_error(error, url, target, handled) from None
        finally:
            current_read.clear()
            if response is not None:
                response.close()
        self.meter.record_transfer(wanted.end - wanted.start, seconds)
        return received

    def _send_range(self, target: str, wanted: Wanted, deadline: Deadline) -> Any:
        """Send a request for a range; return the response with its body unread."""
        tag, expected = "", wanted.expected
        if expected is not None and target not in self._targets:
            tag = expected.tag
        credentials = self.settings.credentials
        request = range_request(target, wanted.start, wanted.end, tag, credentials)
        remaining = deadline.remaining()
        traffic.count_request()
        return self.send(request, remaining)

    def send(
        self,
        request: HttpRequest,
        remaining: float,
        body: Iterator[bytes | memoryview] | None = None,
    ) -> Any:
        """Send a request by urllib3; return the response with its body unread.

        `remaining` are the seconds for it.
        """
        pool, takes_urls = self.pool_for(request.origin)
        base, question, query = request.url.partition("?")
        current_read.query = question + query if query else ""
        response = pool.urlopen(
            request.method,
            base if takes_urls else _path_of(base),
            body=body,
            headers=request.headers,
            redirect=False,
            assert_same_host=False,
            retries=False,
            preload_content=False,
            decode_content=False,
            timeout=urllib3.Timeout(connect=min(remaining, CONNECT), read=remaining),
        )
        self.settings.reached.add(request.origin)
        return response

    def translate_error(
        self, error: Exception, url: Url, target: str, handled: BaseException | None
    ) -> Exception:
        """Return a `RetryError` or a `RemoteError` for another exception."""
        chain = [error, *_causes(error, handled)]
        reason = _describe(chain[-1])
        is_first = origin_of(target) not in self.settings.reached
        for cause in chain:
            if isinstance(cause, RefusedHostError):
                return RefusedHostError(cause.reason, url.redacted)
            if isinstance(cause, RemoteError):
                return cause
            if isinstance(cause, ssl.SSLCertVerificationError):
                reason = f"the server's certificate is not trusted: {reason}"
                return RemoteError(reason, url.redacted)
            if isinstance(cause, ssl.SSLError) and cause.reason in NO_TLS:
                reason = f"the server does not support TLS: {reason}"
                return RemoteError(reason, url.redacted)
            if not is_first or not isinstance(cause, OSError):
                continue
            unresolved = isinstance(cause, socket.gaierror)
            if unresolved and cause.errno in NO_NAME:
                return RemoteError(f"the host does not exist: {reason}", url.redacted)
            if unresolved or cause.errno in UNREACHABLE:
                reason = f"there is no connection to the server: {reason}"
                return RetryError(reason, within=self.settings.first_timeout)
        return RetryError(reason)

    def _explain(
        self, error: RemoteError, is_signed: bool, is_redirected: bool
    ) -> RemoteError:
        """Return the error of a refused URL with its origin in place of advice."""
        if not error.reason.endswith(FRESH_URL):
            return error
        if is_redirected:
            origin = "the server redirects to it"
        elif is_signed:
            origin = "sign= returned it"
        elif self.settings.sign is not None:
            origin = "sign= returned no other"
        else:
            return error
        reason = f"{error.reason.removesuffix(FRESH_URL)}; {origin}"
        return RemoteError(reason, error.url, error.status)

    def _first_of(self, url: str) -> str:
        """Return the URL to request, before redirects: a fresh one, or the given."""
        return self._signed.fresh.get(url, url) if self._signed else url

    def _target_of(self, url: str) -> str:
        """Return the cached redirect target of a URL, or its signed URL."""
        target, until = self._targets.get(url, (url, 0.0))
        return target if time.monotonic() < until else self._first_of(url)

    def _follow_redirect(self, url: Url, target: str, response: Any) -> str:
        """Return the target of a redirect, and cache it."""
        following = following_url(target, response.status, response.headers, url)
        first = self._first_of(url.normalized)
        if target == first or url.normalized in self._targets:
            until = time.monotonic() + lifetime_of(following)
            self._targets[url.normalized] = following, until
        return following

    def pool_for(self, origin: Origin) -> tuple[Any, bool]:
        """Return an origin's connection pool, and whether it takes whole URLs."""
        found = self._pools.get(origin)
        if found is None:
            proxy, secure = proxy_for(origin), origin.scheme == "https"
            manager = self._managers.get((proxy, secure))
            if not self.settings.private_hosts:
                refuse_proxy(origin, proxy)
            if manager is None:
                settings = self.settings
                manager = manager_for(
                    settings.openers,
                    settings.private_hosts,
                    proxy,
                    secure,
                )
                self._managers[proxy, secure] = manager
            pool = manager.connection_from_host(origin.host, origin.port, origin.scheme)
            takes_urls = proxy is not None and origin.scheme == "http"
            found = self._pools.setdefault(origin, (pool, takes_urls))
        return found


@functools.lru_cache(1024)
def _path_of(url: str) -> str:
    """Return the path of a URL without a query, as a request target."""
    return urlsplit(url).path or "/"


def _drain(response: Any, deadline: Deadline) -> bytes:
    """Read the short body of an error response, so that its connection is reused."""
    length = content_length(response.headers)
    if length is not None and 0 <= length < MESSAGE:
        message: bytes = response.read()
        response.release_conn()
        return message
    return _read_message(response, deadline) if response.status in REFUSALS else b""


def _read_message(response: Any, deadline: Deadline) -> bytes:
    """Return the start of a refusal's body, or b"" if it does not arrive soon.

    S3 sends chunked bodies.
    """
    end, message = deadline.at, b""
    deadline.at = min(end, time.monotonic_ns() + int(MESSAGE_SECONDS * 1e9))
    with suppress(*FAILURES, RetryError):
        message = response.read(MESSAGE)
    deadline.at = end
    return message


def _causes(
    error: BaseException, handled: BaseException | None
) -> Iterator[BaseException]:
    """Yield the causes of an exception, up to the one in `handled`."""
    for _ in range(8):
        reason = getattr(error, "reason", None)
        inner = reason if isinstance(reason, BaseException) else error.__cause__
        inner = inner or error.__context__
        if inner is None or inner is handled:
            return
        yield inner
        error = inner


def _describe(error: BaseException) -> str:
    """Return an exception's class and text: the system's message if it has one."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = str(error.strerror)
    return f"{type(error).__name__}: {text[:200]}"


def client_for(settings: Settings) -> HttpClient:
    """Return the process's client for these settings."""
    return settings.shared[HttpClient]
