"""A Redis server that keeps nothing on the disk."""

from __future__ import annotations

import itertools
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from support.servers.databases.process import ServerProcess

DATABASES = itertools.count(1)
MOST = 10_000  # databases


class RedisServer(ServerProcess):
    """Server, and new databases on it."""

    def __init__(self, folder: str, password: str | None = None) -> None:
        program = shutil.which("redis-server")
        if program is None:
            pytest.skip("no redis-server on this machine")
        secret = ["--requirepass", password] if password else []

        def command(port: int) -> list[str]:
            return [
                program,
                *("--port", str(port), "--bind", "127.0.0.1", "--dir", folder),
                *("--save", "", "--appendonly", "no", "--databases", str(MOST)),
                *secret,
            ]

        super().__init__(command, _answers)

    def new(self) -> dict[str, int | str]:
        """Return the options of an empty database."""
        return {"host": "127.0.0.1", "port": self.port, "db": next(DATABASES)}


@contextmanager
def serve_redis(folder: str, password: str | None = None) -> Iterator[RedisServer]:
    """Run a server in a folder of its own."""
    pytest.importorskip("redis")
    server = RedisServer(folder, password)
    try:
        yield server
    finally:
        server.kill()


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16)[:1] in (b"+", b"-")
    except OSError:
        return False
