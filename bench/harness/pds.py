"""A personal data server in a process of its own, for benchmarks of blobs.

With ``PDS_HOME``, where ``tests/pds/run`` installs it, the real one; else that of the
tests, which answers from memory.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from urllib.request import Request, urlopen

from fastshard import typed

TESTS = Path(__file__).resolve().parents[2] / "tests"
HANDLE, PASSWORD = "alice.test", "a password of benchmarks"


def server_name() -> str:
    """Return which server is run."""
    return "@atproto/pds" if os.environ.get("PDS_HOME") else "server of the tests"


@contextmanager
def run_pds() -> Iterator[typed.Atmosphere]:
    """Run a server; yield a client with a session of an account."""
    if os.environ.get("PDS_HOME"):
        ports = [str(port) for port in free_ports(3)]
        command = [shutil.which("node") or "node", str(TESTS / "pds/serve.mjs"), *ports]
    else:
        command = [sys.executable, __file__]
    with subprocess.Popen(
        command,
        env={**os.environ, "LOG_ENABLED": "false"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            line = next(line for line in process.stdout if line.startswith('{"pds"'))
            ready = json.loads(line)
            url = ready["pds"] if isinstance(ready["pds"], str) else ready["pds"][0]
            create_account(url)
            yield typed.Atmosphere.login(
                HANDLE, PASSWORD, base_url=url, plc_url=ready["plc"]
            )
        finally:
            process.stdin.close()
            process.wait(30)


def create_account(url: str) -> None:
    account = {"handle": HANDLE, "email": "a@example.com", "password": PASSWORD}
    request = Request(
        f"{url}/xrpc/com.atproto.server.createAccount",
        json.dumps(account).encode(),
        {"content-type": "application/json"},
    )
    with urlopen(request, timeout=30):
        pass


def free_ports(number: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def main() -> None:
    """Run the server of the tests until the end of stdin."""
    sys.path.insert(0, str(TESTS))
    pds = import_module("support.servers.atproto.pds")
    with pds.FakePds() as server:
        print(json.dumps({"pds": server.url, "plc": server.plc.url}), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
