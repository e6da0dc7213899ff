"""Connections whose reads end at a deadline, and that may refuse private hosts.

A socket's own timeout begins anew with each byte. Here each wait, for headers too, is
as long as the deadline of the read that is under way in the thread.

urllib3 logs the target of each request, and a query may be secret: it gets targets
without one, and the connection adds that of the request under way.
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

from fastshard._core.io.socket import CAN_RECEIVE, Scatter
from fastshard.remote.addresses import RefusedHostError, public_addresses
from fastshard.remote.retry import Deadline
from fastshard.remote.urls import Origin

BUFFER = 8 << 10  # bytes
CONNECT = 10.0  # seconds to be connected in
AT_ONCE = 256 << 10  # bytes that are read by way of a buffer: more than it holds

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
    """What this thread reads."""

    deadline: Deadline | None = None
    response: TimedResponse | None = None
    query: str = ""  # of the target that is asked for, with its question mark


current_read = _CurrentRead()


class _TimedRaw(io.RawIOBase):
    """A socket's bytes; what was waited for too long raises `RetryError`."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._held = sock.makefile("rb", buffering=0)  # the socket closes after us

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        deadline = current_read.deadline
        if deadline is None:
            raise ValueError("a read without a deadline")
        while True:
            self.sock.settimeout(deadline.remaining())
            deadline.sock = self.sock
            try:
                return self.sock.recv_into(buffer)
            except TimeoutError:  # `left` raises
                continue
            finally:
                deadline.sock = None

    def close(self) -> None:
        if not self.closed:
            self._held.close()
        super().close()


class TimedResponse(HTTPResponse):
    """An answer, whose body can be received into memory of the caller's."""

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        self._raw = _TimedRaw(sock)
        # It asks the socket for nothing but a file.
        super().__init__(self, *args, **kwargs)  # type: ignore[arg-type]
        self._drained = False  # nothing of the body is buffered any more
        current_read.response = self

    def makefile(self, mode: str) -> io.BufferedReader:
        """Stand for the socket, of which `HTTPResponse` wants a file."""
        return io.BufferedReader(self._raw, BUFFER)

    def receive(self, scatter: Scatter) -> bool:
        """Read some bytes of the body; False at its end."""
        sock = self._raw.sock
        if self._drained and CAN_RECEIVE and type(sock) is socket.socket:
            got = _received(sock, scatter)
        else:
            data = self.read1(min(scatter.left, AT_ONCE))  # which knows chunks
            scatter.feed(data)
            self._drained = not self.chunked and self.length is not None
            return bool(data)
        assert self.length is not None
        self.length -= got
        return got > 0

    def is_over(self) -> bool:
        """Say whether the body was read whole; the connection is free then."""
        if self.fp is None:
            return True
        if self.chunked or self.length is None:
            return not self.read1(1)
        if self.length == 0:
            self._close_conn()  # type: ignore[attr-defined]
            return True
        return False


def _received(sock: socket.socket, scatter: Scatter) -> int:
    """Fill buffers from a plain socket, without the GIL; 0 at the end."""
    deadline = current_read.deadline
    assert deadline is not None
    while True:
        deadline.remaining()
        got, ended = scatter.receive(sock.fileno(), deadline.at)
        if got or ended:
            return got


class _Plain(HTTPConnection):
    response_class = TimedResponse
    debuglevel = 0  # http.client would print requests, with their secrets

    def putrequest(self, method: str, url: str, *args: Any, **kwargs: Any) -> None:
        super().putrequest(method, url + current_read.query, *args, **kwargs)


class _Secure(HTTPSConnection):
    response_class = TimedResponse
    debuglevel = 0

    def putrequest(self, method: str, url: str, *args: Any, **kwargs: Any) -> None:
        super().putrequest(method, url + current_read.query, *args, **kwargs)


class _PublicPlain(_Plain):
    def _new_conn(self) -> socket.socket:
        return _public_socket(self)


class _PublicSecure(_Secure):
    def _new_conn(self) -> socket.socket:
        return _public_socket(self)


def _public_socket(connection: HTTPConnection) -> socket.socket:
    """Connect to a host whose addresses are all public.

    Its name is resolved once: the addresses that were checked are connected to. TLS
    goes on with the name.

    Raises
    ------
    RefusedHostError
        One of them is not; nothing was connected to.
    """
    host = connection.host
    try:
        addresses = public_addresses(host, connection.port)
    except socket.gaierror as error:
        raise NameResolutionError(host, connection, error) from error
    failed: OSError | None = None
    for address in addresses:
        try:
            return create_connection(
                (address, connection.port),
                connection.timeout,
                socket_options=connection.socket_options,
            )
        except OSError as error:
            failed = error
    if isinstance(failed, TimeoutError):
        raise ConnectTimeoutError(connection, f"connecting to {host} took too long")
    raise NewConnectionError(connection, f"no connection to {host}: {failed}")


def _pool(base: type, connection: type) -> type:
    return type(base.__name__, (base,), {"ConnectionCls": connection})


@functools.lru_cache(1)
def _trust() -> ssl.SSLContext:
    """Return what certificates are checked by; to load it takes long."""
    context = create_urllib3_context()
    context.load_default_certs()
    return context


def connection_to(
    origin: Origin, private_hosts: bool, timeout: float
) -> HTTPConnection:
    """Return a connection of its own, which is connected."""
    connection: HTTPConnection
    if origin.scheme == "https":
        secure = _Secure if private_hosts else _PublicSecure
        connection = secure(
            origin.host, origin.port, timeout=timeout, ssl_context=_trust()
        )
    else:
        plain = _Plain if private_hosts else _PublicPlain
        connection = plain(origin.host, origin.port, timeout=timeout)
    connection.connect()
    return connection


def manager_for(
    connections: int, private_hosts: bool, proxy: str | None, secure: bool
) -> Any:
    """Return a pool of connections.

    Parameters
    ----------
    connections : int
        To one host, at most, that are kept.
    private_hosts : bool
        Whether hosts may be private ones.
    proxy : str or None
        What to go through.
    secure : bool
        Whether hosts are spoken to by TLS.
    """
    kinds = (_Plain, _Secure) if private_hosts else (_PublicPlain, _PublicSecure)
    options: dict[str, Any] = {
        "maxsize": connections,
        "num_pools": 64,
        "retries": False,
    }
    if secure:
        options["ssl_context"] = _trust()
    manager = (
        urllib3.PoolManager(**options)
        if proxy is None
        else urllib3.ProxyManager(proxy, **options)
    )
    manager.pool_classes_by_scheme = {
        "http": _pool(urllib3.HTTPConnectionPool, kinds[0]),
        "https": _pool(urllib3.HTTPSConnectionPool, kinds[1]),
    }
    return manager


def check_public(origin: Origin) -> None:
    """Refuse a private host for a client that resolves and connects by itself.

    Raises
    ------
    RefusedHostError
        It is private, or a proxy is between.
    socket.gaierror
        It has no address.
    """
    refuse_proxy(origin, proxy_for(origin))
    public_addresses(origin.host, origin.port or 443)


def refuse_proxy(origin: Origin, proxy: str | None) -> None:
    """Refuse a proxy, which resolves names by itself, where addresses are checked."""
    if proxy is not None:
        raise RefusedHostError(
            "private_hosts=False cannot be enforced through a proxy, which resolves "
            f"names itself: add {origin.host} to NO_PROXY, or leave it to the proxy",
            origin.host,
        )


def proxy_for(origin: Origin) -> str | None:
    """Return the proxy that the environment tells for a server."""
    proxies = getproxies()
    proxy = proxies.get(origin.scheme) or proxies.get("all")
    return None if proxy is None or proxy_bypass(origin.host) else proxy
