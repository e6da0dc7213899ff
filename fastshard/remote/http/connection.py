"""HTTP connections: read deadlines, queries kept from logs, private hosts refused.

A socket's timeout restarts with each byte. Here every wait, for headers too, ends at
the deadline of the read in progress in the thread.

urllib3 logs the target of each request, and a query may be secret: urllib3 gets
targets without a query, and the connection appends it when the request is sent.
"""

from __future__ import annotations

import functools
import io
import socket
import ssl
import threading
from http.client import HTTPResponse
from typing import Any
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import (
    ConnectTimeoutError,
    NameResolutionError,
    NewConnectionError,
)
from urllib3.util.connection import create_connection
from urllib3.util.ssl_ import create_urllib3_context

from fastshard._core.io.exchange import CAN_RECEIVE, Scatter
from fastshard._util.paths.urls import Origin
from fastshard.remote.addresses import RefusedHostError, public_addresses
from fastshard.remote.deadline import Deadline

BUFFER = 8 << 10  # bytes
CONNECT = 10.0  # seconds to connect
AT_ONCE = 256 << 10  # bytes of a buffered read; larger than the buffer, to bypass it

__all__ = [
    "TimedResponse",
    "check_public",
    "connection_to",
    "current_read",
    "manager_for",
    "proxy_for",
    "refuse_proxy",
]


class _CurrentRead(threading.local):
    """State of the read in progress in this thread."""

    deadline: Deadline | None = None
    response: TimedResponse | None = None
    query: str = ""  # of the request's target, with its question mark
    connection: Any = None  # that sends the request
    cut: bool = False  # whether part of the request's body is unsent

    def clear(self) -> None:
        """Forget the read, which has ended."""
        self.deadline = self.response = self.connection = None
        self.query, self.cut = "", False


current_read = _CurrentRead()


class _TimedRaw(io.RawIOBase):
    """Raw file of a socket; reads after the deadline raise `RetryError`."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._file = sock.makefile("rb", buffering=0)  # keeps the socket open

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        deadline = current_read.deadline
        if deadline is None:
            raise ValueError("a read without a deadline")
        while True:
            deadline.sock = self.sock  # before `remaining` checks for cancellation
            try:
                self.sock.settimeout(deadline.remaining())
                return self.sock.recv_into(buffer)
            except TimeoutError:  # `remaining` raises
                continue
            finally:
                deadline.sock = None

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


class TimedResponse(HTTPResponse):
    """Response whose body is received directly into the caller's memory."""

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        self._raw = _TimedRaw(sock)
        # HTTPResponse calls only `makefile` of the socket.
        super().__init__(self, *args, **kwargs)  # type: ignore[arg-type]
        self._drained = False  # whether all buffered bytes of the body were taken
        current_read.response = self

    def makefile(self, mode: str) -> io.BufferedReader:
        """Return a buffered file of the socket, for `HTTPResponse`."""
        return io.BufferedReader(self._raw, BUFFER)

    def receive(self, scatter: Scatter) -> bool:
        """Receive bytes of the body; return False at its end."""
        sock = self._raw.sock
        if self._drained and CAN_RECEIVE and type(sock) is socket.socket:
            count = _receive(sock, scatter)
        else:
            data = self.read1(min(scatter.left, AT_ONCE))  # decodes chunks
            scatter.feed(data)
            self._drained = not self.chunked and self.length is not None
            return bool(data)
        assert self.length is not None
        self.length -= count
        return count > 0

    def is_complete(self) -> bool:
        """Return whether the whole body was read, which frees the connection."""
        if self.fp is None:
            return True
        if self.chunked or self.length is None:
            return not self.read1(1)
        if self.length == 0:
            self._close_conn()  # type: ignore[attr-defined]
            return True
        return False


def _receive(sock: socket.socket, scatter: Scatter) -> int:
    """Fill buffers from a plain socket, without the GIL; return 0 at its end."""
    deadline = current_read.deadline
    assert deadline is not None
    while True:
        deadline.remaining()
        count, ended = scatter.receive(sock.fileno(), deadline.at)
        if count or ended:
            return count


class _GuardedConnection:
    """Mixin for connections of urllib3: timed responses, secrets kept from logs."""

    response_class: Any = TimedResponse
    debuglevel = 0  # otherwise http.client may print requests, secrets included

    def __init__(self, *args: Any, private_hosts: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._private_hosts = private_hosts

    def putrequest(self, method: str, url: str, *args: Any, **kwargs: Any) -> None:
        current_read.connection = self
        target = url + current_read.query
        super().putrequest(method, target, *args, **kwargs)  # type: ignore[misc]

    def _new_conn(self) -> socket.socket:
        if self._private_hosts:
            sock: socket.socket = super()._new_conn()  # type: ignore[misc]
            return sock
        assert isinstance(self, HTTPConnection)
        return _connect_to_public(self)


class _PlainConnection(_GuardedConnection, HTTPConnection):
    """Connection without TLS."""


class _SecureConnection(_GuardedConnection, HTTPSConnection):
    """Connection with TLS."""


def _connect_to_public(connection: HTTPConnection) -> socket.socket:
    """Connect to a host whose addresses are all public.

    The name is resolved once, and the checked addresses are connected to. TLS uses
    the name.
    """
    host = connection.host
    try:
        addresses = public_addresses(host, connection.port)
    except socket.gaierror as error:
        raise NameResolutionError(host, connection, error) from error
    failure: OSError | None = None
    for address in addresses:
        try:
            return create_connection(
                (address, connection.port),
                connection.timeout,
                socket_options=connection.socket_options,
            )
        except OSError as error:
            failure = error
    if isinstance(failure, TimeoutError):
        raise ConnectTimeoutError(connection, f"connecting to {host} timed out")
    raise NewConnectionError(connection, f"no connection to {host}: {failure}")


def _pool_class(base: type, connection: type, private_hosts: bool) -> type:
    """Return a subclass of a connection pool with our class of connections."""
    make = functools.partial(connection, private_hosts=private_hosts)
    return type(base.__name__, (base,), {"ConnectionCls": staticmethod(make)})


@functools.lru_cache(1)
def _tls_context() -> ssl.SSLContext:
    """Return the shared TLS context; loading certificates is slow."""
    context = create_urllib3_context()
    context.load_default_certs()
    return context


def connection_to(
    origin: Origin, private_hosts: bool, timeout: float
) -> HTTPConnection:
    """Return a new connection to an origin, outside the pools of urllib3."""
    options: dict[str, Any] = {"timeout": timeout, "private_hosts": private_hosts}
    connection: HTTPConnection
    if origin.scheme == "https":
        options["ssl_context"] = _tls_context()
        connection = _SecureConnection(origin.host, origin.port, **options)
    else:
        connection = _PlainConnection(origin.host, origin.port, **options)
    connection.connect()
    return connection


def manager_for(
    connections: int, private_hosts: bool, proxy: str | None, secure: bool
) -> Any:
    """Return a manager of connection pools."""
    options: dict[str, Any] = {
        "maxsize": connections,
        "num_pools": 64,
        "retries": False,
    }
    if secure:
        options["ssl_context"] = _tls_context()
    manager = (
        urllib3.PoolManager(**options)
        if proxy is None
        else urllib3.ProxyManager(proxy, **options)
    )
    manager.pool_classes_by_scheme = {
        "http": _pool_class(
            urllib3.HTTPConnectionPool, _PlainConnection, private_hosts
        ),
        "https": _pool_class(
            urllib3.HTTPSConnectionPool, _SecureConnection, private_hosts
        ),
    }
    return manager


def check_public(origin: Origin) -> None:
    """Refuse a private host for a client that resolves names itself."""
    refuse_proxy(origin, proxy_for(origin))
    public_addresses(origin.host, origin.port or 443)


def refuse_proxy(origin: Origin, proxy: str | None) -> None:
    """Raise RefusedHostError for a proxy, which resolves names itself."""
    if proxy is not None:
        raise RefusedHostError(
            "private_hosts=False cannot be enforced through a proxy, which resolves "
            f"names itself: add {origin.host} to NO_PROXY, or let the proxy refuse "
            "private hosts",
            origin.host,
        )


def proxy_for(origin: Origin) -> str | None:
    """Return the URL of the environment's proxy for a server, or None."""
    proxies = getproxies()
    proxy = proxies.get(origin.scheme) or proxies.get("all")
    return None if proxy is None or proxy_bypass(origin.host) else proxy
