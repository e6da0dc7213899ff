"""Real personal data servers on loopback; skips where they are not installed."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pytest
from numpy.typing import NDArray

from fastshard import typed

HERE = Path(__file__).parent
HOME = os.environ.get("PDS_HOME", "")  # where tests/pds/run installs the servers
BUILT = "node_modules/better-sqlite3/build/Release/better_sqlite3.node"
MISSING = "no personal data server: tests/pds/run installs one"
PASSWORD = "a password of tests"


@typed.packable
class Digit:
    """A picture of a digit."""

    image: NDArray[np.uint8]
    label: int
    note: str | None = None


class Servers:
    """Two servers with one directory.

    Attributes
    ----------
    urls : list of str
    plc, password : str
    """

    password = PASSWORD

    def __init__(self, urls: list[str], plc: str) -> None:
        self.urls = urls
        self.plc = plc
        self.dids: dict[str, str] = {}

    def call(self, server: int, method: str, body: dict[str, Any]) -> Any:
        """POST a procedure without a session."""
        request = Request(
            f"{self.urls[server]}/xrpc/{method}",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        with urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def create(self, server: int, handle: str) -> None:
        account = {
            "handle": handle,
            "email": f"{handle}@example.com",
            "password": PASSWORD,
        }
        method = "com.atproto.server.createAccount"
        self.dids[handle] = self.call(server, method, account)["did"]

    def anonymous(self, server: int = 0) -> typed.Atmosphere:
        return typed.Atmosphere(self.urls[server], plc_url=self.plc)

    def login(self, handle: str, server: int = 0) -> typed.Atmosphere:
        return typed.Atmosphere.login(
            handle, PASSWORD, base_url=self.urls[server], plc_url=self.plc
        )


def free_ports(number: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """Run two servers with one directory; they end with this process."""
    node = shutil.which("node")
    if not HOME:
        pytest.skip(MISSING)
    if node is None or not Path(HOME, BUILT).exists():
        pytest.fail(f"no node, or no {BUILT} in {HOME}")
    first, plc, second = free_ports(3)
    with subprocess.Popen(
        [node, str(HERE / "serve.mjs"), str(first), str(plc), str(second)],
        env={**os.environ, "LOG_ENABLED": "false"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            for line in process.stdout:  # the servers' own messages come before
                if line.startswith('{"pds"'):
                    break
            else:
                pytest.fail("the personal data servers did not start")
            ready = json.loads(line)
            yield Servers(ready["pds"], ready["plc"])
        finally:
            process.stdin.close()
            process.wait(30)


@pytest.fixture(scope="session")
def accounts(servers: Servers) -> Servers:
    """Create alice and bob on the first server, carol on the second."""
    for server, handle in ((0, "alice.test"), (0, "bob.test"), (1, "carol.test")):
        servers.create(server, handle)
    return servers


@pytest.fixture(scope="session")
def alice(accounts: Servers) -> typed.Atmosphere:
    return accounts.login("alice.test")


@pytest.fixture
def fresh(accounts: Servers) -> typed.Atmosphere:
    """Return a client of an account without records."""
    handle = f"fresh{len(accounts.dids)}.test"
    accounts.create(0, handle)
    return accounts.login(handle)


@pytest.fixture
def digits() -> list[Digit]:
    return [Digit(image=np.full((4, 4), i, "u1"), label=i) for i in range(10)]


@pytest.fixture
def digit_type() -> type[Digit]:
    return Digit
