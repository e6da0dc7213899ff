"""Fast path for ranges over HTTP: one request, one expected response.

A general client takes 0.3 ms of CPU per response, which bounds the requests per second
of all threads. Here only the expected response is accepted: 206, the requested range,
its length, the object's tag. After any other response urllib3 sends the request again
and reports the error. Connections are made by urllib3, which verifies certificates;
headers are parsed by RFC 9112.
"""

from __future__ import annotations

import socket
import time
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from urllib3.exceptions import HTTPError
from urllib3.util import wait_for_read

from fastshard._core.io.socket import CAN_RECEIVE, Scatter
from fastshard.remote.http_connection import CONNECT, connection_to, proxy_for
from fastshard.remote.options import Settings
from fastshard.remote.retry import Deadline, Meter, RetryError, traffic
from fastshard.remote.transport import ObjectInfo, Part
from fastshard.remote.urls import Origin, origin_of

__all__ = ["FastHttp"]

FIRST = 16 << 10  # bytes of the first receive
MOST_HEADERS = 16 << 10  # bytes
MOST_URLS = 4096  # with cached request lines
MOST_IDLE = 256  # connections to one origin
FAILURES = 3  # in a row, after which the fast path pauses for the origin
REST = 5.0  # seconds of that pause
ONCE = frozenset(  # headers that must not be repeated
    (
        b"connection",
        b"content-encoding",
        b"content-length",
        b"content-range",
        b"etag",
        b"last-modified",
        b"transfer-encoding",
    )
)


class NoConnectionError(Exception):
    """No connection to the server could be made."""


class _Server:
    """State of an origin: idle connections, recent failures."""

    __slots__ = ("__weakref__", "failures", "idle", "paused_until", "proxied")

    def __init__(self, origin: Origin) -> None:
        self.idle: deque[Any] = deque()
        self.failures = 0  # in a row
        self.paused_until = 0.0  # by `time.monotonic`
        self.proxied = proxy_for(origin) is not None
        weakref.finalize(self, _close_all, self.idle)


def _close_all(idle: deque[Any]) -> None:
    for connection in idle:
        connection.close()


class FastHttp:
    """Client for ranges of objects that are already open.

    Parameters
    ----------
    settings : Settings
    meter : Meter
        Records the times of responses.
    """

    def __init__(self, settings: Settings, meter: Meter) -> None:
        self._settings = settings
        self._meter = meter
        self._servers: dict[Origin, _Server] = {}
        self._prefixes: dict[str, bytes] = {}  # first lines of requests, by URL

    def read(
        self,
        url: str,
        start: int,
        end: int,
        parts: Sequence[Part],
        expected: ObjectInfo,
        deadline: Deadline,
    ) -> bool:
        """Read a range and copy parts of it to their destinations, if possible.

        Returns
        -------
        bool
            Whether the range was read. If not, the content of the parts is undefined.
        """
        origin = origin_of(url)
        server = self._servers.get(origin)
        if server is None:
            server = self._servers.setdefault(origin, _Server(origin))
        if not expected.tag or end == start or server.proxied:
            return False
        if server.failures >= FAILURES and time.monotonic() < server.paused_until:
            return False
        succeeded = False
        try:
            request = self._request(origin, url, start, end, expected)
            headers = self._read(
                server, origin, request, Scatter(start, end, parts), deadline
            )
            succeeded = headers is not None and _is_expected(
                headers, start, end, expected
            )
        except NoConnectionError:
            return False  # not a failure of the fast path
        except (OSError, HTTPError, ValueError, RetryError):
            pass  # urllib3 reports the error
        finally:
            deadline.sock = None
        server.failures = 0 if succeeded else server.failures + 1
        if not succeeded:
            traffic.count_retry()
            server.paused_until = time.monotonic() + REST
        return succeeded

    def _read(
        self,
        server: _Server,
        origin: Origin,
        request: bytes,
        scatter: Scatter,
        deadline: Deadline,
    ) -> dict[bytes, bytes] | None:
        """Send a request, receive the response; return its headers if complete."""
        nbytes, begun = scatter.left, time.monotonic()
        while True:
            connection, is_new = _pop_idle(server), False
            if connection is None:
                connection, is_new = self._connect(origin, deadline), True
            try:
                sock = deadline.sock = connection.sock
                traffic.count_request()
                if CAN_RECEIVE and type(sock) is socket.socket:
                    head = _exchange(sock, request, scatter, deadline)
                else:
                    head = _exchange_in_python(sock, request, scatter, deadline)
                if head is None and not is_new:
                    continue  # the server closed the idle connection
                headers = None if head is None else _parse_headers(head)
                if headers is None or scatter.left:
                    return None
                option = headers.get(b"connection", b"keep-alive").lower()
                if option == b"keep-alive" and len(server.idle) < MOST_IDLE:
                    server.idle.append(connection)
                    connection = None
            finally:
                if connection is not None:
                    connection.close()
            self._meter.record_response(nbytes, time.monotonic() - begun)
            return headers

    def _connect(self, origin: Origin, deadline: Deadline) -> Any:
        timeout = min(deadline.remaining(), CONNECT)
        try:
            return connection_to(origin, self._settings.private_hosts, timeout)
        except (OSError, HTTPError) as error:
            raise NoConnectionError from error

    def _request(
        self, origin: Origin, url: str, start: int, end: int, expected: ObjectInfo
    ) -> bytes:
        """Return a request, with secrets only for the origins of the settings."""
        prefix = self._prefixes.get(url)
        if prefix is None:
            if len(self._prefixes) >= MOST_URLS:
                self._prefixes.clear()
            parts = urlsplit(url)
            query = "?" + parts.query if parts.query else ""
            path = f"GET {parts.path or '/'}{query} HTTP/1.1"
            lines = [path, f"Host: {parts.netloc}", "Accept-Encoding: identity"]
            prefix = self._prefixes[url] = "\r\n".join(lines).encode("ascii")
        lines = [f"Range: bytes={start}-{end - 1}"]
        if expected.is_strong:
            lines.append(f"If-Match: {expected.tag}")
        if origin in self._settings.origins:
            lines += [
                f"{name}: {text}" for name, text in self._settings.headers.items()
            ]
            token = self._settings.bearer()
            if token:
                lines.append(f"Authorization: Bearer {token}")
        if any("\r" in line or "\n" in line for line in lines):
            raise ValueError("a header must not contain line ends")
        return prefix + "\r\n".join(["", *lines, "", ""]).encode("latin-1")


def _pop_idle(server: _Server) -> Any:
    """Return an idle connection, or None."""
    try:
        return server.idle.pop()
    except IndexError:
        return None


def _exchange(
    sock: socket.socket, request: bytes, scatter: Scatter, deadline: Deadline
) -> bytes | None:
    """Send a request and receive the response, without the GIL.

    Return its head, or None if the server had closed the connection.
    """
    sock.settimeout(0)
    while True:
        deadline.remaining()
        head, fresh = scatter.exchange(sock.fileno(), request, deadline.at)
        if not fresh:
            return None
        if head is not None and not (scatter.left and scatter.took_body):
            return head
        request = b""


def _exchange_in_python(
    sock: socket.socket, request: bytes, scatter: Scatter, deadline: Deadline
) -> bytes | None:
    """Do the same as `_exchange` by Python's calls: for TLS, and on Windows."""
    if wait_for_read(sock, 0.0):
        return None
    sock.settimeout(deadline.remaining())
    sock.sendall(request)
    data = sock.recv(FIRST)
    while (at := data.find(b"\r\n\r\n")) < 0:
        if not data or len(data) > MOST_HEADERS:
            raise ValueError("the response has no head")
        sock.settimeout(deadline.remaining())
        more = sock.recv(FIRST)
        if not more:
            raise ValueError("the connection ended inside the headers")
        data += more
    head = data[:at]
    headers = _parse_headers(head)
    if headers is None or headers.get(b"content-length") != b"%d" % scatter.left:
        return head
    scatter.feed(data[at + 4 :])  # raises if it is longer than the body
    room = memoryview(bytearray(min(scatter.left, 64 << 10)))
    while scatter.left:
        sock.settimeout(deadline.remaining())
        got = sock.recv_into(room[: min(scatter.left, len(room))])
        if not got:
            raise ValueError("the connection ended inside the body")
        scatter.feed(room[:got])
    return head


def _parse_headers(head: bytes) -> dict[bytes, bytes] | None:
    """Return the headers of a 206 by lower-case name; None for other responses."""
    first, *lines = head.split(b"\r\n")
    if not first.startswith(b"HTTP/1.1 206"):
        return None
    headers: dict[bytes, bytes] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        name = name.lower()
        if not colon or not name or name.strip() != name or b"\n" in line:
            return None
        if name in ONCE and name in headers:
            return None
        headers[name] = value.strip()
    return headers


def _is_expected(
    headers: dict[bytes, bytes], start: int, end: int, expected: ObjectInfo
) -> bool:
    """Return whether headers are those of the requested range and version."""
    tag = headers.get(b"etag") or headers.get(b"last-modified", b"")
    return (
        headers.get(b"content-range")
        == b"bytes %d-%d/%d" % (start, end - 1, expected.nbytes)
        and headers.get(b"content-length") == b"%d" % (end - start)
        and b"transfer-encoding" not in headers
        and headers.get(b"content-encoding", b"identity") == b"identity"
        and tag.decode("latin-1") == expected.tag
    )
