"""Event loop of range reads over plain HTTP: one thread, many connections.

The thread drives an `ExchangeLoop`, which sends requests and receives bodies without
the GIL, and ends soon after the last read. Threads that start reads prepare the
requests and the sockets. Reads without the expected response go back to the scheduler,
which reads them by urllib3.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fastshard._core.io.exchange import (
    ABSENT,
    COMPLETE,
    DROPPED,
    ExchangeLoop,
    RangeExchange,
)
from fastshard.remote.http_connection import CONNECT
from fastshard.remote.retry import Meter, traffic

if TYPE_CHECKING:
    from fastshard.remote.transport import LoopedRead

__all__ = ["HttpLoop", "ServerState"]

MOST_IDLE = 256  # connections to one server
FAILURES = 3  # in a row, after which a server's ranges are left to urllib3
REST = 5.0  # seconds for which they are
IDLE = 1.0  # seconds before the idle thread ends
LIFETIME = 300.0  # seconds for which a resolved address is connected to


class ServerState:
    """Idle connections to a server, its address, recent failures.

    Parameters
    ----------
    proxied : bool
        Whether it is reached through a proxy.

    Attributes
    ----------
    idle : deque of socket.socket
        Connected sockets without a response in progress.
    number : int
        Differs between the servers of a loop.
    """

    def __init__(self, proxied: bool, number: int = 0) -> None:
        self.idle: deque[socket.socket] = deque()
        self.proxied = proxied
        self.number = number
        self._failures = 0  # in a row
        self._paused_until = 0.0  # by `time.monotonic`
        self._address: tuple[int, Any] | None = None  # family, address
        self._known_until = 0.0
        weakref.finalize(self, _close_all, self.idle)

    def is_paused(self) -> bool:
        """Return whether its ranges are left to urllib3, after failures."""
        return self._failures >= FAILURES and time.monotonic() < self._paused_until

    def record(self, succeeded: bool) -> None:
        """Record whether the expected response came."""
        if succeeded:
            self._failures = 0
        else:
            self._failures += 1
            self._paused_until = time.monotonic() + REST

    def has_address(self) -> bool:
        """Return whether an address is known to which a connection was made."""
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


class HttpLoop:
    """Thread that reads ranges from plain HTTP servers.

    Parameters
    ----------
    connections : int
        Maximum of connections.
    meter : Meter
        Records the times of responses.
    """

    def __init__(self, connections: int, meter: Meter) -> None:
        self._loop = ExchangeLoop(connections)
        self._meter = meter
        self._lock = threading.Lock()  # of starting and ending the thread
        self._thread: threading.Thread | None = None
        self._sockets: dict[int, tuple[socket.socket, ServerState]] = {}
        _loops.add(self)

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
        return accepted

    def ensure_thread(self) -> None:
        """Start the thread unless it runs; without threads, read in this one."""
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
            self._loop.stop()  # as soon as nothing is left to read
            try:
                self._work()
            finally:
                self._thread = None

    def begin_wait(self) -> None:
        """Announce that this thread waits for a read."""
        self._loop.begin_wait()

    def end_wait(self) -> None:
        """End what `begin_wait` began."""
        self._loop.end_wait()

    def cancel(self, exchange: RangeExchange) -> None:
        """End an exchange soon."""
        self._loop.cancel(exchange)

    def stop_idle_thread(self) -> None:
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
            if self._loop.is_quiet():  # else another thread may have seen this one
                return
            with self._lock:
                if self._thread is not None:
                    return
                self._thread = own

    def _step(self) -> bool:
        """Run the loop once; return whether anything was done."""
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
        """Complete the read of an exchange, or leave it to urllib3."""
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
        """Keep or close a connection that left the loop."""
        sock, server = self._sockets.pop(fd)
        if is_idle:
            server.push_idle(sock)
        else:
            sock.close()

    def _add_connection(self, server: ServerState) -> None:
        """Add a connection to a server; without one, give up its queued reads."""
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


_loops: weakref.WeakSet[HttpLoop] = weakref.WeakSet()


def _before_fork() -> None:
    for loop in list(_loops):
        loop.stop_idle_thread()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_loops.clear)
