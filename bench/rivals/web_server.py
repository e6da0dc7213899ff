"""Web server on loopback for the remote benches, and a relay that adds latency.

`serve` runs nginx with its own configuration in a temporary directory. `far` runs a
relay in front of it, in a process of its own::

    with serve(site, scratch) as server, far(server, 0.020) as distant:
        server.url("data/a.tar")   # http://127.0.0.1:PORT/data/a.tar
        distant.url("data/a.tar")  # the same, a round trip takes 20 ms more
"""

from __future__ import annotations

import http.client
import os
import queue
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

HOST = "127.0.0.1"
START = 10.0  # seconds for a process to start
SETTLED = 0.1  # seconds without a new line after which a log is complete
CHUNK = 1 << 18  # bytes per receive
BEGINNING = 16 << 20  # bytes of a measurement of bandwidth

# - tcp_nopush would delay the end of a range by up to 40 ms.
# - reuseport spreads connections over the workers; without it one gets most.
# - Only access under /counted/ is logged, so that other reads do not pay for it.
CONFIG = """\
{user}
worker_processes 2;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 2048; }}
http {{
    sendfile on;
    tcp_nopush off;
    tcp_nodelay on;
    keepalive_requests 1000000;
    keepalive_timeout 1h;
    default_type application/octet-stream;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    log_format moved "$bytes_sent $request_length";
    access_log off;
    server {{
        listen {host}:{port} reuseport;
        root {site};
        index index.json;
        location /counted/ {{
            alias {site}/;
            access_log {folder}/moved.log moved;
        }}
    }}
}}
"""


def nginx() -> str | None:
    """Return the path of nginx, or None; /usr/sbin may be missing in PATH."""
    sbin = os.pathsep.join(("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/bin"))
    return shutil.which("nginx") or shutil.which("nginx", path=sbin)


def nginx_version() -> str:
    """Return the version that nginx prints to stderr, as nginx/1.22.1."""
    run = subprocess.run([str(nginx()), "-v"], stderr=subprocess.PIPE, text=True)
    return run.stderr.strip().rpartition("/")[2]


class Moved(NamedTuple):
    """Bytes on the wire for requests under /counted/, headers included."""

    requests: int
    down: int  # bytes that the server sent
    up: int  # bytes of the requests


@dataclass(frozen=True)
class Server:
    """Server on a port of this machine: nginx, or a relay to it."""

    port: int
    log: Path

    def url(self, path: str = "") -> str:
        return f"http://{HOST}:{self.port}/{path}"

    def counted(self, path: str = "") -> str:
        """Return the URL of a file whose bytes `moved` counts."""
        return self.url(f"counted/{path}")

    def moved(self) -> Moved:
        """Return the bytes moved since the last call.

        A request is logged after its last byte went to the kernel, so maybe after the
        client got it: the log is read when it has stopped growing.
        """
        size = -1
        while size != (size := self.log.stat().st_size):
            time.sleep(SETTLED)
        lines = [line.split() for line in self.log.read_text().splitlines()]
        os.truncate(self.log, 0)  # nginx appends
        down = sum(int(sent) for sent, _ in lines)
        return Moved(len(lines), down, sum(int(asked) for _, asked in lines))

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(HOST, self.port)

    def trip(self, path: str) -> float:
        """Return the seconds of a small request, mostly a relay's delay."""
        times = []
        with closing(self.connect()) as connection:
            for _ in range(20):
                begin = time.perf_counter()
                discard(connection, path, 512)
                times.append(time.perf_counter() - begin)
        return median(times)

    def bandwidth(self, paths: Sequence[str], connections: int = 16) -> float:
        """Return the bytes per second of several connections together."""

        def one(k: int) -> int:
            with closing(self.connect()) as connection:
                return discard(connection, paths[k % len(paths)], BEGINNING)

        speeds = []
        with ThreadPoolExecutor(connections) as threads:
            for _ in range(5):
                begin = time.perf_counter()
                total = sum(threads.map(one, range(connections)))
                speeds.append(total / (time.perf_counter() - begin))
        return median(speeds)


def discard(connection: http.client.HTTPConnection, path: str, size: int) -> int:
    """Read and discard the first bytes of a file; return their number."""
    connection.request("GET", f"/{path}", headers={"Range": f"bytes=0-{size - 1}"})
    answer, buffer, total = connection.getresponse(), bytearray(CHUNK), 0
    while n := answer.readinto(buffer):
        total += n
    return total


@contextmanager
def serve(site: Path, scratch: Path) -> Iterator[Server]:
    """Serve the files below `site`; `scratch` has the configuration and logs."""
    binary = nginx()
    if binary is None:
        raise FileNotFoundError("there is no nginx on this machine")
    for _ in range(5):  # another process may take the free port before nginx
        port = free_port()
        config = scratch / "nginx.conf"
        # By default the workers of root run as nobody, who cannot read `site`.
        user = "user root;" if os.geteuid() == 0 else ""
        names = {"folder": scratch, "site": site, "host": HOST, "port": port}
        config.write_text(CONFIG.format(user=user, **names))
        log = scratch / "error.log"
        process = subprocess.Popen([binary, "-c", config, "-e", log, "-p", scratch])
        if listens(port, process):
            break
        process.wait()
    else:
        raise RuntimeError(f"nginx does not start; see {log}")
    try:
        yield Server(port, scratch / "moved.log")
    finally:
        process.terminate()
        process.wait(START)


def free_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        return int(listener.getsockname()[1])


def listens(port: int, process: subprocess.Popen[bytes]) -> bool:
    """Wait until a process accepts connections; return False if it ends."""
    until = time.monotonic() + START
    while process.poll() is None:
        try:
            socket.create_connection((HOST, port)).close()
        except OSError:
            if time.monotonic() > until:
                process.kill()
            time.sleep(0.01)
        else:
            return process.poll() is None
    return False


@contextmanager
def far(server: Server, delay: float) -> Iterator[Server]:
    """Add `delay` seconds to each round trip to a server."""
    command = [sys.executable, __file__, str(server.port), str(delay)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as relay:
        assert relay.stdout is not None
        try:
            yield Server(int(relay.stdout.readline()), server.log)
        finally:
            relay.kill()


# Relay.


def relay(target: int, delay: float) -> None:
    """Forward connections to a port, with requests delayed by `delay` seconds.

    The whole delay is on the way to the server, so that responses need no queue; for a
    waiting client that equals half of it each way. Not modelled: the time to connect
    (the handshake is with the relay) and slow start (windows are those of loopback).

    Threads only wait in the kernel, without the GIL.
    """
    late: queue.SimpleQueue[tuple[float, socket.socket, bytes]] = queue.SimpleQueue()
    start(forward, late)
    start(end_with_parent)
    with socket.create_server((HOST, 0), backlog=1024) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            client, _ = listener.accept()
            server = socket.create_connection((HOST, target))
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            start(requests, client, server, late, delay)
            start(answers, server, client)


def start(work: Callable[..., None], *args: Any) -> None:
    threading.Thread(target=work, args=args, daemon=True).start()


def end_with_parent() -> None:
    """End this process when its parent ends."""
    sys.stdin.read()
    os._exit(0)


def requests(
    client: socket.socket,
    server: socket.socket,
    late: queue.SimpleQueue[tuple[float, socket.socket, bytes]],
    delay: float,
) -> None:
    """Queue received bytes with the time to forward them; none mean the end."""
    data = b"first"
    with suppress(OSError):
        while data:
            data = client.recv(CHUNK)
            late.put((time.monotonic() + delay, server, data))


def forward(late: queue.SimpleQueue[tuple[float, socket.socket, bytes]]) -> None:
    """Forward queued bytes when they are due; the delays are equal, so in order."""
    while True:
        due, server, data = late.get()
        wait = due - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        with suppress(OSError):  # the server may have closed the connection
            if data:
                server.sendall(data)
            else:
                server.shutdown(socket.SHUT_RDWR)


def answers(server: socket.socket, client: socket.socket) -> None:
    """Forward responses without delay, until either end closes."""
    buffer = memoryview(bytearray(CHUNK))
    with suppress(OSError):
        while n := server.recv_into(buffer):
            client.sendall(buffer[:n])
    for end in (server, client):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads from it
        end.close()


if __name__ == "__main__":
    relay(int(sys.argv[1]), float(sys.argv[2]))
