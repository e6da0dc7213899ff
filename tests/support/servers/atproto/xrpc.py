"""Base of servers of JSON over HTTP, which count their requests."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

__all__ = ["Call", "Reply", "XrpcError", "XrpcServer"]

PIECE = 1 << 20  # bytes of a body read at a time


@dataclass
class Call:
    """A request to a server.

    Attributes
    ----------
    method, path, nsid : str
        The path without its query, decoded; the last part of ``/xrpc/NSID``, or "".
    params : list of (str, str)
    headers : dict
        Names in lower case.
    body : bytes
    """

    method: str
    path: str
    params: list[tuple[str, str]]
    headers: dict[str, str]
    handler: BaseHTTPRequestHandler = field(repr=False)
    body: bytes = field(default=b"", repr=False)

    @property
    def nsid(self) -> str:
        return self.path.removeprefix("/xrpc/") if "/xrpc/" in self.path else ""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def size(self) -> int:
        """Bytes of the body that the request announces."""
        return int(self.headers.get("content-length", 0))

    def get(self, name: str, default: str = "") -> str:
        return dict(self.params).get(name, default)


@dataclass
class Reply:
    """An answer; `body` is bytes, or an object for JSON."""

    body: Any
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    close: bool = False

    def encode(self) -> tuple[bytes, dict[str, str]]:
        if isinstance(self.body, bytes):
            return self.body, self.headers
        text = json.dumps(self.body, separators=(",", ":"), ensure_ascii=False)
        kind = {"content-type": "application/json; charset=utf-8"}
        return text.encode(), kind | self.headers


class XrpcError(Exception):
    """An error that a method answers with."""

    def __init__(self, status: int, error: str, message: str) -> None:
        super().__init__(status, error, message)
        self.reply = Reply({"error": error, "message": message}, status)


Hook = Callable[[Call], Reply | None]


class Handler(BaseHTTPRequestHandler):
    """Reads requests, and writes an answer with one call."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: Listener

    def do_GET(self) -> None:
        self.respond()

    do_POST = do_PUT = do_DELETE = do_HEAD = do_GET  # noqa: N815

    def respond(self) -> None:
        parts = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        call = Call(
            self.command,
            unquote(parts.path),
            parse_qsl(parts.query, keep_blank_values=True),
            headers,
            self,
        )
        owner = self.server.owner
        owner.record(call)
        try:
            reply = owner.answer(call)
        except XrpcError as error:
            reply = error.reply
        except ConnectionError:
            reply = None
        if reply is None:  # the hook closes the connection
            self.close_connection = True
            return
        if call.body == b"" and call.size:
            reply.close = True  # the rest of the body is not the next request
        body, kinds = reply.encode()
        self.send_response(reply.status)
        lengths = {} if reply.status == 304 else {"content-length": str(len(body))}
        for name, value in (lengths | kinds).items():
            self.send_header(name, value)
        if reply.close:
            self.send_header("connection", "close")
            self.close_connection = True
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else body)
        self.wfile.flush()

    def finish(self) -> None:
        """Close both files, also after the client has left."""
        for file in (self.wfile, self.rfile):
            with contextlib.suppress(OSError):
                file.close()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


class Listener(ThreadingHTTPServer):
    """Accepts connections of one `XrpcServer`."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, owner: XrpcServer) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.owner = owner
        self.open: dict[threading.Thread, Any] = {}

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        thread = threading.current_thread()
        self.open[thread] = request
        try:
            super().process_request_thread(request, client_address)
        finally:
            del self.open[thread]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: clients break connections."""


class XrpcServer:
    """Server on a port of this machine, inside a ``with``.

    Attributes
    ----------
    calls : list of Call
        All requests, in the order in which they came.
    hook : callable or None
        Called with each request; what it returns is answered, None leaves it to the
        server. It may write to ``call.handler.connection``, the socket, and raise
        ConnectionError to close the connection.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.hook: Hook | None = None
        self.lock = threading.RLock()
        self.stopping = threading.Event()
        self.port = 0
        self.context: ssl.SSLContext | None = None  # for https

    @property
    def url(self) -> str:
        scheme = "http" if self.context is None else "https"
        return f"{scheme}://127.0.0.1:{self.port}"

    def __enter__(self) -> Any:
        self.listener = Listener(self)
        self.port = self.listener.server_address[1]
        if self.context is not None:
            self.listener.socket = self.context.wrap_socket(
                self.listener.socket, server_side=True
            )
        self.thread = threading.Thread(
            target=self.listener.serve_forever, args=(0.02,), daemon=True
        )
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self.listener.shutdown()
        self.listener.server_close()
        for thread, connection in list(self.listener.open.items()):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            thread.join(10)
        self.thread.join()

    def record(self, call: Call) -> None:
        with self.lock:
            self.calls.append(call)

    def count(self, name: str | None = None) -> int:
        """Return the number of requests, all or those of a method."""
        with self.lock:
            return sum(name in (None, call.nsid) for call in self.calls)

    def counts(self) -> Counter[str]:
        """Return the numbers of requests by method, or by path for others."""
        with self.lock:
            return Counter(call.nsid or call.path for call in self.calls)

    def forget(self) -> None:
        """Forget the requests counted so far."""
        with self.lock:
            self.calls.clear()

    def answer(self, call: Call) -> Reply | None:
        if self.hook is not None:
            reply = self.hook(call)
            if reply is not None:
                return reply
        return self.respond(call)

    def respond(self, call: Call) -> Reply:
        """Return the answer of a correct server."""
        raise NotImplementedError

    def read_body(self, call: Call, most: int) -> bytes:
        """Read the body of a request; refuse a larger one without reading it."""
        too_large = XrpcError(413, "PayloadTooLarge", "request entity too large")
        if call.size > most:
            raise too_large
        if call.headers.get("transfer-encoding") == "chunked":
            pieces, total = [], 0
            while size := int(call.handler.rfile.readline().split(b";")[0], 16):
                total += size
                if total > most:
                    raise too_large
                pieces.append(call.handler.rfile.read(size))
                call.handler.rfile.readline()
            call.handler.rfile.readline()
            call.body = b"".join(pieces)
            return call.body
        left, pieces = call.size, []
        while left and (piece := call.handler.rfile.read(min(left, PIECE))):
            pieces.append(piece)
            left -= len(piece)
        call.body = b"".join(pieces)
        return call.body
