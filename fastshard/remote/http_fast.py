"""Ranges over HTTP with little more than a request and its answer.

A general client takes 0.3 ms of the processor for an answer, whoever waits for it; that
bounds what threads can read. Here an answer is taken that is just what was asked for:
206, the range, its length, the object's tag. Of anything else nothing is taken: urllib3
asks again, with all it knows of HTTP, and says what is wrong. Connections are made by
urllib3, with its checks of certificates; headers are read as RFC 9112 has them.
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
from fastshard.remote.retry import Deadline, Meter, RetryError
from fastshard.remote.transport import ObjectInfo, Part
from fastshard.remote.urls import Origin, origin_of

__all__ = ["FastHttp"]

FIRST = 16 << 10  # bytes that are received to begin with
MOST_HEADERS = 16 << 10  # bytes
MOST_URLS = 4096  # whose requests are remembered
MOST_IDLE = 256  # connections to one origin
FAILURES = 3  # one after the other, and the origin is left alone
REST = 5.0  # seconds that it is
ONCE = frozenset(
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
    """There is no connection to a server."""


class _Server:
    """An origin: its idle connections, and how reading went."""

    __slots__ = ("__weakref__", "failures", "idle", "proxied", "rests_until")

    def __init__(self, origin: Origin) -> None:
        self.idle: deque[Any] = deque()
        self.failures = 0  # one after the other
        self.rests_until = 0.0  # of `time.monotonic`
        self.proxied = proxy_for(origin) is not None
        weakref.finalize(self, _close_all, self.idle)


def _close_all(idle: deque[Any]) -> None:
    for connection in idle:
        connection.close()


class FastHttp:
    """Reads ranges of objects that are known already.

    Parameters
    ----------
    settings : Settings
    meter : Meter
        Is told what is measured.
    """

    def __init__(self, settings: Settings, meter: Meter) -> None:
        self._settings = settings
        self._meter = meter
        self._servers: dict[Origin, _Server] = {}
        self._begins: dict[str, bytes] = {}  # of requests, by url

    def read(
        self,
        url: str,
        start: int,
        end: int,
        parts: Sequence[Part],
        known: ObjectInfo,
        deadline: Deadline,
    ) -> bool:
        """Read a range if that is easy, and put parts of it where they go.

        Returns
        -------
        bool
            Whether that was done. If not, parts may be filled with anything.
        """
        origin = origin_of(url)
        server = self._servers.get(origin)
        if server is None:
            server = self._servers.setdefault(origin, _Server(origin))
        if not known.tag or end == start or server.proxied:
            return False
        if server.failures >= FAILURES and time.monotonic() < server.rests_until:
            return False
        right = unreached = False
        try:
            request = self._request(origin, url, start, end, known)
            headers = self._read(
                server, origin, request, Scatter(start, end, parts), deadline
            )
            right = headers is not None and _is_due(headers, start, end, known)
        except NoConnectionError:
            unreached = True  # which says nothing of its answers
        except (OSError, HTTPError, ValueError, RetryError):
            pass  # urllib3 says what it is
        finally:
            deadline.sock = None
        if unreached:
            return False
        server.failures = 0 if right else server.failures + 1
        if not right:
            server.rests_until = time.monotonic() + REST
        return right

    def _read(
        self,
        server: _Server,
        origin: Origin,
        request: bytes,
        scatter: Scatter,
        deadline: Deadline,
    ) -> dict[bytes, bytes] | None:
        """Send a request and take its answer; return the headers of a right one."""
        nbytes, begun = scatter.left, time.monotonic()
        while True:
            connection, is_new = _idle(server), False
            if connection is None:
                connection, is_new = self._connected(origin, deadline), True
            try:
                sock = deadline.sock = connection.sock
                if CAN_RECEIVE and type(sock) is socket.socket:
                    head = _exchanged(sock, request, scatter, deadline)
                else:
                    head = _by_python(sock, request, scatter, deadline)
                if head is None and not is_new:
                    continue  # it was closed meanwhile
                headers = None if head is None else _headers(head)
                if headers is None or scatter.left:
                    return None
                goes_on = headers.get(b"connection", b"keep-alive").lower()
                if goes_on == b"keep-alive" and len(server.idle) < MOST_IDLE:
                    kept, connection = connection, None
                    server.idle.append(kept)
            finally:
                if connection is not None:
                    connection.close()
            self._meter.record_response(nbytes, time.monotonic() - begun)
            return headers

    def _connected(self, origin: Origin, deadline: Deadline) -> Any:
        left = min(deadline.remaining(), CONNECT)
        try:
            return connection_to(origin, self._settings.private_hosts, left)
        except (OSError, HTTPError) as error:
            raise NoConnectionError from error

    def _request(
        self, origin: Origin, url: str, start: int, end: int, known: ObjectInfo
    ) -> bytes:
        """Return a request; its secrets are for origins that were named."""
        begin = self._begins.get(url)
        if begin is None:
            if len(self._begins) >= MOST_URLS:
                self._begins.clear()
            parts = urlsplit(url)
            query = "?" + parts.query if parts.query else ""
            path = f"GET {parts.path or '/'}{query} HTTP/1.1"
            lines = [path, f"Host: {parts.netloc}", "Accept-Encoding: identity"]
            begin = self._begins[url] = "\r\n".join(lines).encode("ascii")
        lines = [f"Range: bytes={start}-{end - 1}"]
        if known.is_strong:
            lines.append(f"If-Match: {known.tag}")
        if origin in self._settings.origins:
            lines += [
                f"{name}: {text}" for name, text in self._settings.headers.items()
            ]
            token = self._settings.bearer()
            if token:
                lines.append(f"Authorization: Bearer {token}")
        if any("\r" in line or "\n" in line for line in lines):
            raise ValueError("a header of several lines")
        return begin + "\r\n".join(["", *lines, "", ""]).encode("latin-1")


def _idle(server: _Server) -> Any:
    """Return a connection that is free; None if there is none."""
    try:
        return server.idle.pop()
    except IndexError:
        return None


def _exchanged(
    sock: socket.socket, request: bytes, scatter: Scatter, deadline: Deadline
) -> bytes | None:
    """Send a request and receive the answer without the GIL; None: it was closed."""
    sock.settimeout(0)
    while True:
        deadline.remaining()
        head, fresh = scatter.exchange(sock.fileno(), request, deadline.at)
        if not fresh:
            return None
        if head is not None and not (scatter.left and scatter.took_body):
            return head
        request = b""


def _by_python(
    sock: socket.socket, request: bytes, scatter: Scatter, deadline: Deadline
) -> bytes | None:
    """Do the same by Python's own calls: for TLS, and where those are the only ones."""
    if wait_for_read(sock, 0.0):
        return None
    sock.settimeout(deadline.remaining())
    sock.sendall(request)
    data = sock.recv(FIRST)
    while (at := data.find(b"\r\n\r\n")) < 0:
        if not data or len(data) > MOST_HEADERS:
            raise ValueError("no headers")
        sock.settimeout(deadline.remaining())
        more = sock.recv(FIRST)
        if not more:
            raise ValueError("cut headers")
        data += more
    head = data[:at]
    headers = _headers(head)
    if headers is None or headers.get(b"content-length") != b"%d" % scatter.left:
        return head
    scatter.feed(data[at + 4 :])  # raises if it is more than was due
    room = memoryview(bytearray(min(scatter.left, 64 << 10)))
    while scatter.left:
        sock.settimeout(deadline.remaining())
        got = sock.recv_into(room[: min(scatter.left, len(room))])
        if not got:
            raise ValueError("a cut body")
        scatter.feed(room[:got])
    return head


def _headers(head: bytes) -> dict[bytes, bytes] | None:
    """Return the headers of a 206 by their names in lower case; None for another."""
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


def _is_due(
    headers: dict[bytes, bytes], start: int, end: int, known: ObjectInfo
) -> bool:
    """Say whether an answer is the one that is due."""
    tag = headers.get(b"etag") or headers.get(b"last-modified", b"")
    return (
        headers.get(b"content-range")
        == b"bytes %d-%d/%d" % (start, end - 1, known.nbytes)
        and headers.get(b"content-length") == b"%d" % (end - start)
        and b"transfer-encoding" not in headers
        and headers.get(b"content-encoding", b"identity") == b"identity"
        and tag.decode("latin-1") == known.tag
    )
