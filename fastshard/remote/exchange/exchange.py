"""Requests of any method: deadlines, bounded answers, tokens for one host only.

`fastshard.remote.http` reads ranges of objects; here are the requests of services:
queries and procedures in JSON, uploads, downloads of whole objects. No frame of a
traceback holds a secret: an attempt returns its error, and its caller raises it.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from typing import Any

import urllib3
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError
from urllib3.util.wait import wait_for_read, wait_for_socket

from fastshard._util.paths.urls import Url, origin_of
from fastshard._util.secret import Secret
from fastshard.errors import FastshardError, RemoteError
from fastshard.remote.deadline import SLOWEST, Deadline
from fastshard.remote.errors import ReadCancelledError, RetryError
from fastshard.remote.exchange.answer import MAX_JSON, Answer
from fastshard.remote.exchange.body import Body, BodyError
from fastshard.remote.http.client import (
    FAILURES,
    HttpClient,
    client_for,
)
from fastshard.remote.http.connection import current_read, proxy_for
from fastshard.remote.options import Settings
from fastshard.remote.requests.authorization import Bearer
from fastshard.remote.requests.heads import (
    TRANSIENT,
    content_length,
    find_coding,
    retry_after,
)
from fastshard.remote.requests.redirects import (
    MOST_REDIRECTS,
    REDIRECTS,
    following_url,
)
from fastshard.remote.requests.request import Credentials, HttpRequest

__all__ = ["HttpExchange", "ServiceRequest"]

PIECE = 256 << 10  # bytes of an answer read at a time
MAX_ERROR = 1 << 20  # bytes of the body of a status above 299
NAMED = re.compile(rb'"error"\s*:\s*"\w{1,100}"')  # an XRPC error name, not a sentence
UNSENT = (NewConnectionError, ConnectTimeoutError)  # no byte was sent
Sink = Callable[[bytes], object]


class ServiceRequest:
    """A request; its repr has no secret.

    Attributes
    ----------
    method : str
    url : Url
    token : Secret or None
        Sent as ``Authorization: Bearer`` to the origin of `url` only.
    headers : dict
    body : Body or None
    most : int
        Maximum size of the answer, bytes.
    open_sink : callable or None
        Called for each attempt that succeeds; returns a function that takes the bytes
        of the answer.
    repeatable : bool
        Whether the server may get it twice.
    attempts : int or None
        Maximum number of attempts.
    names_errors : bool
        Whether an error with a name in the answer is final, as in XRPC.
    seconds : float or None
        Time limit of the request with its retries. None is the timeout of the settings,
        plus one second for each 100 KB that is sent or received.
    """

    def __init__(
        self,
        method: str,
        url: str,
        *,
        token: Secret | None = None,
        headers: dict[str, str] | None = None,
        body: Body | None = None,
        most: int = MAX_JSON,
        open_sink: Callable[[], Sink] | None = None,
        repeatable: bool | None = None,
        attempts: int | None = None,
        names_errors: bool = True,
        seconds: float | None = None,
    ) -> None:
        self.method = method
        self.url = Url(url)
        self.token = token
        self.headers = headers or {}
        self.body = body
        self.most = most
        self.open_sink = open_sink
        self.repeatable = method == "GET" if repeatable is None else repeatable
        self.attempts = attempts
        self.names_errors = names_errors
        self.seconds = seconds
        self.sent = False  # whether a server may have received the last attempt

    @property
    def credentials(self) -> Credentials:
        """The token, for the origin of `url`."""
        ways = () if self.token is None else (Bearer(self.token.reveal),)
        return Credentials(ways, frozenset((origin_of(self.url.normalized),)))

    def redact(self, text: str) -> str:
        """Return a text of the server without the secrets of the request."""
        secrets = [] if self.body is None else self.body.secrets()
        for secret in (*secrets, *filter(None, (self.token,))):
            if secret.reveal():
                text = text.replace(secret.reveal(), "<secret>")
        return text

    def __repr__(self) -> str:
        return f"<Request {self.method} {self.url.redacted}>"


class TimeLimit:
    """Time limit of a request that moves with its progress.

    Without progress it ends after `timeout` seconds; altogether it takes at most that
    and one second for each 100 KB.
    """

    def __init__(self, timeout: float, whole: float | None) -> None:
        self.deadline = Deadline(timeout if whole is None else whole)
        self._moves = whole is None
        self._timeout = int(timeout * 1e9)  # ns
        self._end = self.deadline.at  # ns without progress
        self._most = 0  # bytes, of any attempt

    def advance(self, nbytes: int) -> None:
        """Record how many bytes an attempt has sent or received."""
        if self._moves:
            self._most = max(self._most, nbytes)
            latest = self._end + int(self._most / SLOWEST * 1e9)
            self.deadline.at = min(time.monotonic_ns() + self._timeout, latest)


class HttpExchange:
    """Client for requests to services."""

    def __init__(self, settings: Settings, trusted: Settings, by_proxy: bool) -> None:
        self.settings = settings
        self.trusted = trusted
        self.by_proxy = by_proxy

    def send(self, request: ServiceRequest, *, trusted: bool) -> Answer:
        """Send a request; return an answer of any status that is not transient.

        Queries are repeated after transient failures, and other requests after those
        that happened before they were sent, or a status of 429.
        """
        limit = TimeLimit(self.settings.timeout, request.seconds)
        deadline = limit.deadline
        redacted, attempt = request.url.redacted, 0
        while True:
            found = self._follow(request, trusted, limit)
            if isinstance(found, Answer):
                found.attempts = attempt + 1
                return found
            if not isinstance(found, RetryError):
                if isinstance(found, RemoteError):
                    found.attempts = attempt + 1
                raise found
            repeatable = request.repeatable or not request.sent or found.status == 429
            attempts = request.attempts if repeatable else attempt + 1
            deadline.backoff(found, attempt, redacted, attempts)
            attempt += 1

    def _follow(
        self, request: ServiceRequest, trusted: bool, limit: TimeLimit
    ) -> Answer | Exception:
        """Make one attempt, with its redirects."""
        try:
            target = request.url.normalized
        except FastshardError as error:
            return error
        for _ in range(MOST_REDIRECTS + 1):
            found = self._attempt(request, target, trusted, limit)
            if not isinstance(found, Answer) or found.status not in REDIRECTS:
                return found
            if request.method != "GET":
                return _fail("the server redirects a request that writes", found)
            try:
                following = following_url(
                    target, found.status, found.headers, request.url
                )
            except RemoteError as error:
                return _redact(error, request)
            trusted = trusted and origin_of(following) == origin_of(target)
            target = following
        reason = f"more than {MOST_REDIRECTS} redirects"
        return RemoteError(reason, request.url.redacted)

    def _attempt(
        self, request: ServiceRequest, target: str, trusted: bool, limit: TimeLimit
    ) -> Answer | Exception:
        """Send a request once; return its answer or its error."""
        if self.by_proxy and proxy_for(origin_of(target)) is not None:
            trusted = True
        client = client_for(self.trusted if trusted else self.settings)
        response, request.sent = None, True
        current_read.deadline = limit.deadline
        current_read.connection = None
        try:
            response = _send(client, request, target, limit)
            answer = _receive(request, response, limit)
            if isinstance(answer, Answer):
                response = None
                return answer
            return _redact(answer, request)
        except (RetryError, ReadCancelledError) as error:
            return error
        except BodyError as error:
            return error.reason
        except FAILURES as error:
            request.sent = not isinstance(error, UNSENT)
            found = client.translate_error(error, request.url, target, None)
            return _redact(found, request)
        except FastshardError as error:  # for example of a token
            return error.with_traceback(None)
        finally:
            current_read.clear()
            if response is not None:
                response.close()


def _send(
    client: HttpClient, request: ServiceRequest, target: str, limit: TimeLimit
) -> urllib3.BaseHTTPResponse:
    """Send a request; return the response with its body unread."""
    sent = HttpRequest(request.method, target, request.headers)
    pieces: Iterator[Any] | None = None
    if request.body is not None:
        size, pieces = request.body.open()
        sent.headers["Content-Length"] = str(size)
        sent.headers["Content-Type"] = request.body.kind
        pieces = _paced(pieces, limit)
    elif request.method == "POST":
        sent.headers["Content-Length"] = "0"
    for credentials in (client.settings.credentials, request.credentials):
        sent.authorize(credentials)
    remaining = limit.deadline.remaining()
    response: urllib3.BaseHTTPResponse = client.send(sent, remaining, pieces)
    return response


def _paced(pieces: Iterator[Any], limit: TimeLimit) -> Iterator[Any]:
    """Send a body, or yield its pieces, until the deadline or an answer.

    A plain socket is written to here, only while it has nothing to read. A TLS socket
    may have something to read without an answer, for a session's tickets.
    """
    total = 0
    current_read.cut = True
    for piece in pieces:
        sock = current_read.connection.sock
        if isinstance(sock, ssl.SSLSocket):
            sock.settimeout(limit.deadline.remaining())
            yield piece
        elif not _send_piece(sock, piece, limit.deadline):
            return
        total += len(piece)
        limit.advance(total)
    current_read.cut = False


def _send_piece(
    sock: socket.socket, piece: bytes | memoryview, deadline: Deadline
) -> bool:
    """Send bytes; return False as soon as there is an answer."""
    view = memoryview(piece)
    while view:
        wait_for_socket(sock, read=True, write=True, timeout=deadline.remaining())
        if wait_for_read(sock, 0):
            return False
        sock.settimeout(deadline.remaining())
        view = view[sock.send(view) :]
    return True


def _receive(
    request: ServiceRequest, response: urllib3.BaseHTTPResponse, limit: TimeLimit
) -> Answer | RetryError | RemoteError:
    """Read the body of a response within its limits."""
    url, status = request.url.redacted, response.status
    headers = response.headers
    is_sunk = status == 200 and request.open_sink is not None
    most = request.most if status < 300 else min(request.most, MAX_ERROR)
    reason = find_coding(request.redact(headers.get("Content-Encoding", "")))
    if reason:
        return RemoteError(reason, url, status)
    announced = content_length(headers) or 0
    if announced < 0:
        return RemoteError("Content-Length is not a number", url, status)
    if announced > most:
        return _too_large(most, url, status)
    pieces: list[bytes] = []
    sink: Sink = pieces.append
    if is_sunk:
        assert request.open_sink is not None
        sink = request.open_sink()
    total = 0
    while piece := response.read(min(PIECE, most - total + 1)):
        total += len(piece)
        if total > most:
            return _too_large(most, url, status)
        sink(piece)
        limit.advance(total)
    answer = Answer(status, headers, b"".join(pieces), url)
    if current_read.cut:  # the rest of the body would be the next request
        current_read.connection.close()
    response.release_conn()
    if status in TRANSIENT and _is_transient(answer, request):
        return RetryError("the server failed", status, retry_after(headers))
    return answer


def _is_transient(answer: Answer, request: ServiceRequest) -> bool:
    """Return whether a status may change soon; an XRPC error with a name does not."""
    if not request.names_errors or answer.status in (429, 503, 504):
        return True
    return not NAMED.search(answer.body)


def _too_large(most: int, url: str, status: int) -> RemoteError:
    return RemoteError(f"the answer is larger than {most:,} bytes", url, status)


def _redact(error: Exception, request: ServiceRequest) -> Exception:
    """Return an error without secrets in its text, which may be the server's."""
    if isinstance(error, RetryError):
        reason = request.redact(error.reason)
        return RetryError(reason, error.status, error.retry_after, error.within)
    if isinstance(error, RemoteError):
        kind, (reason, *rest) = error.__reduce__()
        redacted: RemoteError = kind(request.redact(reason), *rest)
        return redacted
    return error


def _fail(reason: str, answer: Answer) -> RemoteError:
    return RemoteError(reason, answer.url, answer.status)
