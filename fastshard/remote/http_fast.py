"""Fast path for ranges over HTTP: one request, one expected response.

A general client takes 0.3 ms of CPU per response, which bounds the requests per second
of all threads. Here only the expected response is accepted: 206, the requested range,
its length, the object's tag. After any other response urllib3 sends the request again
and reports the error. Connections are made by urllib3, which checks hosts and verifies
certificates.

Many ranges of a plain server are read by one thread, `HttpLoop`. Single ones, and the
first ones of a server, are read by the calling thread; with TLS and on Windows by
Python's calls.
"""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

from urllib3.exceptions import HTTPError
from urllib3.util import wait_for_read

from fastshard._core.io.exchange import (
    CAN_EXCHANGE,
    CAN_LOOP,
    COMPLETE,
    RangeExchange,
    parse_head,
)
from fastshard._core.io.socket import Scatter
from fastshard.remote.http_connection import CONNECT, connection_to, proxy_for
from fastshard.remote.http_loop import HttpLoop, ServerState
from fastshard.remote.options import Settings
from fastshard.remote.retry import SLOWEST, Deadline, Meter, RetryError, traffic
from fastshard.remote.transport import LoopedRead, ObjectInfo, Part
from fastshard.remote.urls import Origin, origin_of

__all__ = ["FastHttp"]

FIRST = 16 << 10  # bytes of the first receive
MOST_HEADERS = 16 << 10  # bytes
MOST_URLS = 4096  # with cached request lines


class NoConnectionError(Exception):
    """No connection to the server could be made."""


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
        self._servers: dict[Origin, ServerState] = {}
        self._prefixes: dict[str, bytes] = {}  # first lines of requests, by URL
        self._loop: HttpLoop | None = None
        self._numbers = itertools.count()

    def begin(self, url: str, expected: ObjectInfo, read: LoopedRead) -> bool:
        """Give a range read to the loop; return False if it is not for the loop.

        It is for ranges of plain servers with a known address.
        """
        origin = origin_of(url)
        if not CAN_LOOP or origin.scheme != "http" or not expected.tag:
            return False
        server = self._server_of(origin)
        if server.proxied or server.is_paused() or not server.has_address():
            return False
        try:
            start, end = read.start, read.end
            exchange = RangeExchange(
                self._request(origin, url, start, end, expected),
                b"bytes %d-%d/%d" % (start, end - 1, expected.nbytes),
                expected.tag.encode("latin-1"),
                Scatter(start, end, read.parts),
                server.number,
                int((self._settings.timeout + (end - start) / SLOWEST) * 1e9),
                read,
            )
            loop = self._loop or self._make_loop()
        except Exception:  # for example of a function for token=; reported by `read`
            return False
        read.enter_loop(loop, exchange, server)
        accepted = loop.submit(exchange, read, server)
        if not accepted:
            read.leave_loop()
        return accepted

    def _make_loop(self) -> HttpLoop:
        self._loop = HttpLoop(self._settings.connections, self._meter)
        return self._loop

    def _server_of(self, origin: Origin) -> ServerState:
        server = self._servers.get(origin)
        if server is None:
            proxied = proxy_for(origin) is not None
            server = ServerState(proxied, next(self._numbers))
            server = self._servers.setdefault(origin, server)
        return server

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
        if not expected.tag or end == start or deadline.is_general:
            return False
        origin = origin_of(url)
        server = self._server_of(origin)
        if server.proxied or server.is_paused():
            return False
        succeeded = False
        try:
            request = self._request(origin, url, start, end, expected)
            content_range = b"bytes %d-%d/%d" % (start, end - 1, expected.nbytes)
            tag = expected.tag.encode("latin-1")
            wanted = request, content_range, tag, Scatter(start, end, parts)
            succeeded = self._read(server, origin, wanted, deadline)
        except NoConnectionError:
            return False  # not a failure of the fast path
        except (OSError, HTTPError, ValueError, RetryError):
            pass  # urllib3 reports the error
        finally:
            deadline.sock = None
        server.record(succeeded)
        if not succeeded:
            traffic.count_retry()
        return succeeded

    def _read(
        self,
        server: ServerState,
        origin: Origin,
        wanted: tuple[bytes, bytes, bytes, Scatter],
        deadline: Deadline,
    ) -> bool:
        """Send a request, receive the response; return whether it was expected.

        Parameters
        ----------
        wanted : tuple
            Request, expected Content-Range and tag, destinations.
        """
        is_plain = CAN_EXCHANGE and origin.scheme == "http"
        nbytes, begun = wanted[3].left, time.monotonic()
        while True:
            # An old address is resolved again by a new connection.
            knows = server.has_address() or not is_plain
            sock = server.pop_idle() if knows else None
            is_new = sock is None
            if sock is None:
                sock = self._connect(origin, deadline)
                server.learn_address(sock)
            kept: bool | None = False
            try:
                deadline.sock = sock
                deadline.remaining()
                traffic.count_request()
                if is_plain:
                    exchange = RangeExchange(*wanted)
                    fresh = exchange.run(sock.fileno(), not is_new, deadline.at)
                    succeeded, kept = exchange.status == COMPLETE, exchange.keeps
                else:
                    kept = _exchange_in_python(sock, *wanted, deadline)
                    succeeded = fresh = kept is not None
            finally:
                if kept:
                    server.push_idle(sock)
                else:
                    sock.close()
            if not fresh and not is_new:
                continue  # the server had closed the idle connection
            if succeeded:
                self._meter.record_response(nbytes, time.monotonic() - begun)
            return succeeded

    def _connect(self, origin: Origin, deadline: Deadline) -> socket.socket:
        timeout = min(deadline.remaining(), CONNECT)
        try:
            connection = connection_to(origin, self._settings.private_hosts, timeout)
        except (OSError, HTTPError) as error:
            raise NoConnectionError from error
        sock: socket.socket
        sock, connection.sock = connection.sock, None
        return sock

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


def _exchange_in_python(
    sock: socket.socket,
    request: bytes,
    content_range: bytes,
    tag: bytes,
    scatter: Scatter,
    deadline: Deadline,
) -> bool | None:
    """Exchange by Python's calls: with TLS, and on Windows.

    Returns
    -------
    bool or None
        Whether the server keeps the connection open; None: the server had closed it.

    Raises
    ------
    ValueError
        The response is not the expected one.
    """
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
    kept = parse_head(data[: at + 4], content_range, tag, scatter.left)
    if kept is None:
        raise ValueError("another response than the expected one")
    scatter.feed(data[at + 4 :])  # raises if it is longer than the body
    room = memoryview(bytearray(min(scatter.left, 64 << 10)))
    while scatter.left:
        sock.settimeout(deadline.remaining())
        got = sock.recv_into(room[: min(scatter.left, len(room))])
        if not got:
            raise ValueError("the connection ended inside the body")
        scatter.feed(room[:got])
    return kept
