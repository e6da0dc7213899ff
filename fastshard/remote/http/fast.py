"""Fast path for ranges over HTTP: one request, one expected response.

A general client takes 0.3 ms of CPU per response, which bounds the requests per second
of all threads. Here only the expected response is accepted: 206, the requested range,
its length, the object's tag. After any other response urllib3 sends the request again
and reports the error. Connections are made by urllib3, which checks hosts and verifies
certificates.

Many ranges of a plain server are read by one thread, `HttpLoop`. It drives an
`ExchangeLoop`, which sends requests and receives bodies without the GIL, and ends soon
after the last read. Threads that start reads prepare the requests and the sockets.
Reads without the expected response go back to the scheduler. Single ones, and the
first ones of a server, are read by the calling thread; with TLS and on Windows by
Python's calls.

First requests of objects, with no tag to expect yet, are sent by `FastHttp.ask` to
servers that have answered before: for shards and for indexes that may be missing.
"""

from __future__ import annotations

import itertools
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from urllib3.exceptions import HTTPError
from urllib3.util import wait_for_read

from fastshard._core.io.exchange import (
    ABSENT,
    CAN_LOOP,
    CAN_RECEIVE,
    COMPLETE,
    DROPPED,
    ExchangeLoop,
    RangeExchange,
    Scatter,
    parse_head,
)
from fastshard._core.io.source import batch_memory
from fastshard._util.paths.urls import Origin, origin_of
from fastshard._util.processes.forks import ForkAware
from fastshard.remote.deadline import SLOWEST, Deadline
from fastshard.remote.errors import RetryError
from fastshard.remote.http.connection import CONNECT, connection_to, proxy_for
from fastshard.remote.http.response import PlainResponse
from fastshard.remote.meter import Meter
from fastshard.remote.options import Settings
from fastshard.remote.requests.heads import receive_head
from fastshard.remote.requests.request import range_request
from fastshard.remote.traffic import traffic
from fastshard.remote.transport import LoopedRead, ObjectInfo, Part

__all__ = ["FastHttp", "HttpLoop", "ServerState"]

MOST_IDLE = 256  # connections to one server
FAILURES = 3  # failures in a row, after which urllib3 reads a server's ranges
REST = 5.0  # seconds of that pause
IDLE = 1.0  # seconds before the idle thread ends
LIFETIME = 300.0  # seconds for which a resolved address is connected to
FIRST = 16 << 10  # bytes of the first receive


class ServerState:
    """Idle connections to a server, its address, recent failures.

    Attributes
    ----------
    idle : deque of socket.socket
        Connected sockets without a response in progress.
    number : int
        Differs between the servers of a loop.
    uncommon : int
        Responses to `FastHttp.ask` that only urllib3 understood.
    """

    def __init__(self, proxied: bool, number: int = 0) -> None:
        self.idle: deque[socket.socket] = deque()
        self.proxied = proxied
        self.number = number
        self.uncommon = 0  # first responses that urllib3 had to receive
        self._failures = 0  # in a row
        self._paused_until = 0.0  # by `time.monotonic`
        self._address: tuple[int, Any] | None = None  # family, address
        self._known_until = 0.0
        weakref.finalize(self, _close_all, self.idle)

    def is_paused(self) -> bool:
        """Return whether urllib3 reads the server's ranges, after failures."""
        return self._failures >= FAILURES and time.monotonic() < self._paused_until

    def record(self, succeeded: bool) -> None:
        """Record whether the expected response came."""
        if succeeded:
            self._failures = 0
        else:
            self._failures += 1
            self._paused_until = time.monotonic() + REST

    def has_address(self) -> bool:
        """Return whether a working address is known."""
        return self._address is not None and time.monotonic() < self._known_until

    def learn_address(self, sock: socket.socket) -> None:
        """Remember the address of a new connection, which was checked."""
        with suppress(OSError):
            self._address = sock.family, sock.getpeername()
            self._known_until = time.monotonic() + LIFETIME

    def forget_address(self) -> None:
        """Let the next connection resolve the name again."""
        self._address = None

    def pop_idle(self) -> socket.socket | None:
        """Take an idle connection, if any."""
        try:
            return self.idle.pop()
        except IndexError:
            return None

    def push_idle(self, sock: socket.socket) -> None:
        """Keep a connection, or close it if there are many."""
        if len(self.idle) < MOST_IDLE:
            self.idle.append(sock)
        else:
            sock.close()

    def connect(self) -> socket.socket | None:
        """Return a socket that has begun to connect to the known address."""
        address = self._address
        if address is None:
            return None
        sock = None
        try:
            sock = socket.socket(address[0], socket.SOCK_STREAM)
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.connect_ex(address[1])  # the loop notices a failure
        except OSError:  # no descriptor is left
            if sock is not None:
                sock.close()
            return None
        return sock


def _close_all(idle: deque[socket.socket]) -> None:
    for sock in idle:
        sock.close()


class HttpLoop(ForkAware):
    """Thread that reads ranges from plain HTTP servers."""

    def __init__(self, connections: int, meter: Meter) -> None:
        self._loop = ExchangeLoop(connections)
        self._meter = meter
        self._lock = threading.Lock()  # of starting and ending the thread
        self._thread: threading.Thread | None = None
        self._sockets: dict[int, tuple[socket.socket, ServerState]] = {}
        # See `ReadLoop`.
        self.begin_wait, self.end_wait = self._loop.begin_wait, self._loop.end_wait
        self.cancel = self._loop.cancel
        super().__init__()

    def submit(
        self, exchange: RangeExchange, read: LoopedRead, server: ServerState
    ) -> bool:
        """Queue an exchange; return False if another thread has claimed the read."""
        sock, is_new = None, False
        if self._loop.has_room():
            sock = server.pop_idle()
            if sock is None:
                sock, is_new = server.connect(), True
        if sock is None:
            accepted, _ = self._loop.submit(exchange, read.claim_lock)
        else:
            fd = sock.fileno()
            self._sockets[fd] = sock, server
            accepted, added = self._loop.submit(
                exchange, read.claim_lock, fd, is_new, int(CONNECT * 1e9)
            )
            if not added:
                self._release(fd, not is_new)
        if self._thread is None:
            self.ensure_thread()
        if accepted and read.is_in_new_memory:
            exchange.populate()
        return accepted

    def ensure_thread(self) -> None:
        """Start the thread unless it runs; without threads, run the loop here."""
        with self._lock:
            if self._thread is not None or self._loop.is_quiet():
                return
            self._loop.resume()
            thread = threading.Thread(
                target=self._work, name="fastshard http", daemon=True
            )
            self._thread = thread
        try:
            thread.start()
        except RuntimeError:  # the system has no more threads
            self._loop.stop()  # as soon as all reads are done
            try:
                self._work()
            finally:
                self._thread = None

    def before_fork(self) -> None:
        """End the thread if it is idle."""
        thread = self._thread
        if thread is not None and self._loop.is_quiet():
            self._loop.stop()
            thread.join(1.0)

    def _work(self) -> None:
        """Drive the loop until it is idle: the body of the thread."""
        own = self._thread
        while True:
            if self._step():
                continue
            self._thread = None
            if self._loop.is_quiet():  # otherwise another thread may have seen this one
                batch_memory.drain()
                return
            with self._lock:
                if self._thread is not None:
                    return
                self._thread = own

    def _step(self) -> bool:
        """Run the loop once; return whether it made progress."""
        ended = self._loop.run(IDLE)
        for exchange in ended:
            self._end(exchange)
        left = self._loop.take_left()
        for fd, is_idle in left:
            self._release(fd, is_idle)
        lacking = self._loop.lacking()
        for exchange in lacking:
            self._add_connection(exchange.read.server)
        return bool(ended or left or lacking)

    def _end(self, exchange: RangeExchange) -> None:
        """Complete the read of an exchange, or pass it to urllib3."""
        read: LoopedRead = exchange.read
        server: ServerState = read.server
        for _ in range(exchange.sends):
            traffic.count_request()
        if exchange.status == COMPLETE:
            server.record(True)
            self._meter.record_response(exchange.nbytes, exchange.seconds)
            read.complete()
        elif exchange.status == DROPPED:
            read.end_cancelled()
        else:
            if exchange.status != ABSENT:
                server.record(False)
                traffic.count_retry()
                if server.is_paused():
                    self._loop.drain(server.number)
            elif not server.is_paused():
                server.forget_address()
            read.read_generally(exchange.begun)

    def _release(self, fd: int, is_idle: bool) -> None:
        """Keep or close the connection of a finished exchange."""
        sock, server = self._sockets.pop(fd)
        if is_idle:
            server.push_idle(sock)
        else:
            sock.close()

    def _add_connection(self, server: ServerState) -> None:
        """Connect to a server; on failure pass its queued reads to urllib3."""
        sock, is_new = server.pop_idle(), False
        if sock is None:
            sock, is_new = server.connect(), True
        if sock is None:
            self._loop.drain(server.number)
            return
        fd = sock.fileno()
        self._sockets[fd] = sock, server
        if not self._loop.add(fd, server.number, is_new, int(CONNECT * 1e9)):
            self._release(fd, not is_new)


class NoConnectionError(Exception):
    """No connection to the server could be made."""


class FastHttp:
    """Client for ranges of objects that are already open."""

    def __init__(self, settings: Settings, meter: Meter) -> None:
        self._settings = settings
        self._meter = meter
        self._servers: dict[Origin, ServerState] = {}
        self._loop: HttpLoop | None = None
        self._numbers = itertools.count()

    def begin(
        self, url: str, expected: ObjectInfo, reads: Sequence[LoopedRead]
    ) -> Sequence[LoopedRead]:
        """Give range reads to the loop; return those that are not for it.

        It is for ranges of plain servers with a known address.
        """
        origin = origin_of(url)
        if not CAN_LOOP or origin.scheme != "http" or not expected.tag:
            return reads
        server = self._server_of(origin)
        if server.proxied or server.is_paused() or not server.has_address():
            return reads
        loop = self._loop or self._make_loop()
        return [
            read
            for read in reads
            if not self._submit(loop, url, expected, read, server)
        ]

    def _submit(
        self,
        loop: HttpLoop,
        url: str,
        expected: ObjectInfo,
        read: LoopedRead,
        server: ServerState,
    ) -> bool:
        """Give a range read to the loop; return False if it did not take it."""
        try:
            start, end = read.start, read.end
            exchange = RangeExchange(
                self._request(url, start, end, expected),
                b"bytes %d-%d/%d" % (start, end - 1, expected.nbytes),
                expected.tag.encode("latin-1"),
                Scatter(start, end, read.parts),
                server.number,
                int((self._settings.timeout + (end - start) / SLOWEST) * 1e9),
                read,
            )
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
        """Read a range and copy parts of it to their destinations, if possible."""
        if not expected.tag or end == start or deadline.is_general:
            return False
        origin = origin_of(url)
        server = self._server_of(origin)
        if server.proxied or server.is_paused():
            return False
        succeeded = False
        try:
            request = self._request(url, start, end, expected)
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
        """Send a request, receive the response; return whether it was expected."""
        is_plain = CAN_RECEIVE and origin.scheme == "http"
        nbytes, begun = wanted[3].left, time.monotonic()
        while True:
            # A stale address is resolved again by a new connection.
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

    def ask(
        self, url: str, start: int, end: int, deadline: Deadline
    ) -> PlainResponse | None:
        """Request a range of an object that is not open yet."""
        origin = origin_of(url)
        server = self._server_of(origin)
        if server.proxied or server.is_paused() or server.uncommon >= FAILURES:
            return None
        try:
            request = self._request(url, start, end, None)
        except Exception:  # for example of a function for token=; urllib3 reports it
            return None
        try:
            while True:
                sock = server.pop_idle()
                is_new = sock is None
                if sock is None:
                    sock = self._connect(origin, deadline)
                    server.learn_address(sock)
                elif wait_for_read(sock, 0.0):
                    sock.close()  # the server had closed it
                    continue
                break
        except (NoConnectionError, OSError, RetryError):
            return None  # urllib3 reports the error
        try:
            sock.settimeout(deadline.remaining())
            traffic.count_request()
            sock.sendall(request)
            return PlainResponse(sock, deadline, server.push_idle)
        except BaseException as error:
            sock.close()
            if not isinstance(error, OSError | ValueError | RetryError):
                raise
            if is_new or not isinstance(error, OSError):
                server.uncommon += 1
            traffic.count_retry()
            return None

    def count_uncommon(self, url: str) -> None:
        """Record that urllib3 must repeat a request of `ask`."""
        self._server_of(origin_of(url)).uncommon += 1
        traffic.count_retry()

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
        self, url: str, start: int, end: int, expected: ObjectInfo | None
    ) -> bytes:
        """Return the encoded request."""
        tag = "" if expected is None else expected.tag
        credentials = self._settings.credentials
        return range_request(url, start, end, tag, credentials).encode()


def _exchange_in_python(
    sock: socket.socket,
    request: bytes,
    content_range: bytes,
    tag: bytes,
    scatter: Scatter,
    deadline: Deadline,
) -> bool | None:
    """Exchange by Python's calls: with TLS, and on Windows."""
    if wait_for_read(sock, 0.0):
        return None

    def receive() -> bytes:
        sock.settimeout(deadline.remaining())
        return sock.recv(FIRST)

    sock.settimeout(deadline.remaining())
    sock.sendall(request)
    head, rest = receive_head(receive(), receive)
    kept = parse_head(head, content_range, tag, scatter.left)
    if kept is None:
        raise ValueError("another response than the expected one")
    scatter.feed(rest)  # raises if it is longer than the body
    room = memoryview(bytearray(min(scatter.left, 64 << 10)))
    while scatter.left:
        sock.settimeout(deadline.remaining())
        got = sock.recv_into(room[: min(scatter.left, len(room))])
        if not got:
            raise ValueError("the connection ended inside the body")
        scatter.feed(room[:got])
    return kept
