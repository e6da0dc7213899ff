"""HTTP server for tests, with files in memory and faults on demand."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import socket
import ssl
import struct
import subprocess
import tempfile
import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from pathlib import Path
from urllib.parse import quote

from support.servers import behaviours_bytes  # noqa: F401 - it registers what it has
from support.servers.behaviours import BEHAVIOURS, BROKEN, DOUBTFUL, ELSEWHERE, HARMLESS
from support.servers.behaviours_answers import redirect_to
from support.servers.messages import (
    Answer,
    Request,
    keeps,
    part_of,
    plain,
    read_request,
    slashed,
)

__all__ = [
    "BEHAVIOURS",
    "BROKEN",
    "DOUBTFUL",
    "HARMLESS",
    "Answer",
    "Exchange",
    "Request",
    "Server",
    "redirect_to",
]

PIECE = 1 << 18  # bytes of a body that go out, and are counted, at a time
YEAR = 365 * 24 * 3600  # seconds
NEW_YEAR_2024 = 1_704_067_200  # seconds since the epoch


class StoppedError(Exception):
    """The server stops, and with it the handlers that wait."""


@dataclass
class Exchange:
    """A request and its connection, as a behaviour gets them."""

    server: Server
    request: Request
    sock: socket.socket
    nth: int  # of the requests for this path that met the behaviour
    keep: bool  # the connection, after this
    over: bool = False

    @property
    def right(self) -> Answer:
        """Return the response of a correct server."""
        target = self.request.target
        for prefix in map(quote, ELSEWHERE):
            target = target.removeprefix(prefix)
        target = target.removeprefix(ELSEWHERE[1])  # by a client that does not quote
        return self.server.answer(replace(self.request, target=target))

    def send(self, head: bytes, body: bytes | memoryview = b"") -> None:
        """Send bytes; count those of a body before they are sent."""
        view = memoryview(body)
        first, rest = view[:PIECE], view[PIECE:]
        self.server.count(len(first))
        self.sock.sendall(b"".join([head, first]))
        for start in range(0, len(rest), PIECE):
            piece = rest[start : start + PIECE]
            self.server.count(len(piece))
            self.sock.sendall(piece)

    def answer(self, answer: Answer) -> None:
        if answer.get("Connection") == "close":
            self.keep = False
        silent = self.request.method == "HEAD" or answer.status in (204, 304)
        body = b"" if silent else answer.body
        head, cut = answer.head(), max(len(body) - PIECE, 0)
        if cut:
            self.send(head, memoryview(body)[:cut])
            head = b""
        self.finish()  # a client may see the end before this thread goes on
        self.send(head, memoryview(body)[cut:])

    def finish(self) -> None:
        """Count this request as no longer in progress."""
        if not self.over:
            self.over = True
            self.server.left()

    def pause(self, seconds: float) -> None:
        if self.server.stopping.wait(seconds):
            raise StoppedError

    def hang(self) -> None:
        """Send nothing until the client leaves or the server stops."""
        self.keep = False
        while self.sock.recv(65536):
            pass

    def reset(self) -> None:
        """Reset the connection instead of closing it."""
        linger = struct.pack("hh" if os.name == "nt" else "ii", 1, 0)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.keep = False


Behaviour = Callable[[Exchange], Answer | None]


@dataclass
class Rule:
    """Rule that gives a path, or all paths, a behaviour for a number of requests."""

    path: str | None
    behaviour: Behaviour
    left: float
    met: dict[str, int] = field(default_factory=dict)

    def take(self, path: str) -> int:
        """Count a request that this rule covers; return 0 for another."""
        if self.left <= 0 or self.path not in (None, path):
            return 0
        self.left -= 1
        self.met[path] = self.met.get(path, 0) + 1
        return self.met[path]


class Server:
    """Serve files over HTTP/1.1 on a port of this machine, inside a ``with``.

    ``files`` maps paths, with or without the first slash, to contents; a test
    may change it between requests. ``latency`` is in seconds, before each
    answer. With ``tls`` the certificate is in ``certificate``, as PEM. ``host`` is an
    address of this machine, in the version of the Internet Protocol to serve.
    """

    def __init__(
        self,
        files: dict[str, bytes] | None = None,
        *,
        latency: float = 0,
        tls: bool = False,
        host: str = "127.0.0.1",
    ) -> None:
        self.host = host
        self.files = {} if files is None else files
        self.latency = latency
        self.requests: list[Request] = []
        self.bytes_sent = 0  # of bodies
        self.in_progress = 0
        self.peak = 0  # requests in progress at a time
        self.connections = 0  # accepted so far
        self.stopping = threading.Event()
        self.rules: list[Rule] = []
        self.etags: dict[str, tuple[bytes, str]] = {}
        self.lock = threading.Lock()
        self.open: dict[threading.Thread, socket.socket] = {}
        self.certificate, self.context = make_certificate() if tls else (None, None)

    def __enter__(self) -> Server:
        self.listen(0)
        return self

    def listen(self, port: int) -> None:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        self.listener = socket.create_server(
            (self.host, port), family=family, backlog=256
        )
        self.port = self.listener.getsockname()[1]
        self.acceptor = threading.Thread(target=self.accept, daemon=True)
        self.acceptor.start()

    def leave(self) -> None:
        """Close all connections, and refuse new ones."""
        self.__exit__()

    def come_back(self) -> None:
        """Listen again, on the same port."""
        self.stopping = threading.Event()
        self.listen(self.port)

    def leave_for(self, seconds: float) -> threading.Timer:
        """Stop, and start again after some seconds."""
        self.leave()
        timer = threading.Timer(seconds, self.come_back)
        timer.start()
        return timer

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        with contextlib.suppress(OSError):  # wakes the thread that accepts
            socket.create_connection((self.host, self.port)).close()
        self.acceptor.join()
        self.listener.close()
        with self.lock:
            threads = list(self.open)
            for sock in self.open.values():
                with contextlib.suppress(OSError):  # the client was faster
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)
        for thread in threads:
            thread.join()

    @property
    def url(self) -> str:
        """Base URL of all paths, without a slash at its end."""
        if self.context is not None:
            return f"https://localhost:{self.port}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def open_connections(self) -> int:
        with self.lock:
            return len(self.open)

    def at(self, path: str) -> str:
        """Return the URL of a path."""
        return self.url + quote(slashed(path))

    def behave(
        self,
        path: str | None,
        behaviour: str | Behaviour,
        times: int | None = None,
    ) -> None:
        """Give requests for a path (None: all) a behaviour.

        Behaviours for a path take turns: the first for its number of times,
        then the second; after the last all is right again.
        """
        if isinstance(behaviour, str):
            behaviour = BEHAVIOURS[behaviour]
        left = float("inf") if times is None else times
        with self.lock:
            self.rules.append(Rule(path and slashed(path), behaviour, left))

    def behave_well(self) -> None:
        """Remove all behaviours."""
        with self.lock:
            self.rules.clear()

    def forget(self) -> None:
        """Reset the counts and the list of requests."""
        with self.lock:
            self.requests = []
            self.bytes_sent = self.connections = 0
            self.peak = self.in_progress

    def answer(self, request: Request) -> Answer:
        """Return the correct response to a request."""
        if request.method not in ("GET", "HEAD"):
            return plain(405).add("Allow", "GET, HEAD")
        data = self.files.get(request.path, self.files.get(request.path[1:]))
        return plain(404) if data is None else self.answer_file(request, data)

    def answer_file(self, request: Request, data: bytes) -> Answer:
        """Return the correct response to a request for these contents."""
        etag = self.etag(request.path, data)
        modified = formatdate(NEW_YEAR_2024 + zlib.adler32(data) % YEAR, usegmt=True)
        matches = request.headers.get("if-match", "*")
        if matches != "*" and etag not in [m.strip() for m in matches.split(",")]:
            return plain(412)
        answer = Answer(200).add("Accept-Ranges", "bytes").add("ETag", etag)
        answer = answer.add("Last-Modified", modified)
        answer = answer.add("Content-Type", "application/octet-stream")
        if request.range and request.headers.get("if-range", etag) in (etag, modified):
            return part_of(answer, data, *request.range)
        return answer.with_body(data)

    def etag(self, path: str, data: bytes) -> str:
        known, etag = self.etags.get(path, (None, ""))
        if known is not data:
            etag = f'"{hashlib.sha256(data).hexdigest()}"'
            self.etags[path] = data, etag
        return etag

    def count(self, nbytes: int) -> None:
        with self.lock:
            self.bytes_sent += nbytes

    def entered(self, request: Request) -> tuple[Behaviour | None, int]:
        """Record a request; return its behaviour, and how often that was used."""
        with self.lock:
            self.requests.append(request)
            self.in_progress += 1
            self.peak = max(self.peak, self.in_progress)
            for rule in self.rules:
                if nth := rule.take(request.path):
                    return rule.behaviour, nth
            return None, 1

    def left(self) -> None:
        with self.lock:
            self.in_progress -= 1

    def accept(self) -> None:
        while True:
            sock, _ = self.listener.accept()
            if self.stopping.is_set():
                sock.close()
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.context is not None:
                sock = self.context.wrap_socket(
                    sock, server_side=True, do_handshake_on_connect=False
                )
            thread = threading.Thread(target=self.serve, args=(sock,), daemon=True)
            with self.lock:
                self.connections += 1
                self.open[thread] = sock
            thread.start()

    def serve(self, sock: socket.socket) -> None:
        """Answer the requests of a connection until either side closes it."""
        rest = bytearray()
        try:
            if isinstance(sock, ssl.SSLSocket):
                sock.do_handshake()
            while request := read_request(sock, rest):
                if not self.exchange(request, sock):
                    break
        except (OSError, StoppedError):
            pass  # the client went, or the server goes
        finally:
            with self.lock:
                del self.open[threading.current_thread()]
                sock.close()

    def exchange(self, request: Request, sock: socket.socket) -> bool:
        """Answer a request; return whether the connection stays open."""
        behaviour, nth = self.entered(request)
        exchange = Exchange(self, request, sock, nth, keeps(request))
        try:
            exchange.pause(self.latency)
            answer = exchange.right if behaviour is None else behaviour(exchange)
            if answer is not None:
                exchange.answer(answer)
        finally:
            exchange.finish()
        return exchange.keep


@functools.cache
def make_certificate(*hosts: str) -> tuple[str, ssl.SSLContext]:
    """Make a certificate for localhost, and other hosts; return its PEM and context."""
    with tempfile.TemporaryDirectory() as folder:
        key, pem = Path(folder, "key.pem"), Path(folder, "cert.pem")
        command = (
            "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
        )
        others = "".join(f",DNS:{host}" for host in hosts)
        names = f"subjectAltName=DNS:localhost,IP:127.0.0.1{others}"
        leaf = "basicConstraints=critical,CA:FALSE"  # rustls takes no CA for a server
        subprocess.run(
            [
                *(*command.split(), "-addext", leaf, "-addext", names),
                *("-keyout", key, "-out", pem),
            ],
            check=True,
            capture_output=True,
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem, key)
        return pem.read_text(), context
