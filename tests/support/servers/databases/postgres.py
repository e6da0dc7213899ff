"""A Postgres server whose data are gone with it."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import socket
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.servers.databases.process import ServerProcess

NUMBERS = itertools.count()
USER = "owner"
STARTUP = f"user\0{USER}\0database\0postgres\0\0".encode()


class PostgresServer(ServerProcess):
    """Server, and new databases on it."""

    end = "QUIT"  # its processes, too

    def __init__(self, programs: Path, folder: str, account: list[str]) -> None:
        data = f"{folder}/data"
        subprocess.run(
            [
                *account,
                *(programs / "initdb", "-D", data, "-U", USER, "-A", "trust"),
                *("--no-sync", "--no-instructions", "-E", "UTF8", "--locale=C"),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=120,
        )
        settings = (
            "listen_addresses=127.0.0.1",
            "fsync=off",
            "shared_buffers=16MB",
            "max_connections=60",
        )

        def command(port: int) -> list[str]:
            return [
                *account,
                *(str(programs / "postgres"), "-D", data, "-p", str(port)),
                *("-k", folder),
                *(word for setting in settings for word in ("-c", setting)),
            ]

        super().__init__(command, _answers)

    def dsn(self, database: str = "postgres") -> str:
        """Return the address of a database."""
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"

    def new(self) -> dict[str, str]:
        """Make an empty database; return the options to reach it."""
        import psycopg

        name = f"index_{next(NUMBERS)}"
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} STRATEGY file_copy")
        return {"dsn": self.dsn(name)}


@contextmanager
def serve_postgres() -> Iterator[PostgresServer]:
    """Run a server, as another user if this one is root."""
    pytest.importorskip("psycopg")
    programs = _programs()
    if programs is None:
        pytest.skip("no Postgres server on this machine")
    # Not below the tests' own folder, which other users cannot enter.
    with tempfile.TemporaryDirectory(prefix="pg", dir="/tmp") as folder:
        account: list[str] = []
        if os.getuid() == 0:
            owner = _unprivileged()
            os.chown(folder, owner.pw_uid, owner.pw_gid)
            ids = f"--reuid={owner.pw_uid}", f"--regid={owner.pw_gid}"
            account = ["setpriv", *ids, "--clear-groups"]
        server = PostgresServer(programs, folder, account)
        try:
            yield server
        finally:
            server.kill()


def _programs() -> Path | None:
    """Return the folder of the newest server."""
    found = shutil.which("postgres")
    folders = [Path(found).parent] if found else []
    for path in Path("/usr/lib/postgresql").glob("*/bin/postgres"):
        folders.append(path.parent)
    usable = [folder for folder in folders if (folder / "initdb").exists()]
    return max(usable, key=str, default=None)


def _unprivileged() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    pytest.skip("no Postgres server on this machine: no user to run it")


def _answers(port: int) -> bool:
    """Return whether the server takes a user; before, it says that it starts."""
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as connection:
            size = struct.pack(">II", len(STARTUP) + 8, 196608)  # protocol 3.0
            connection.sendall(size + STARTUP)
            return connection.recv(1) == b"R"
    except OSError:
        return False
