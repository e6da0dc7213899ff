"""A server in a process of its own, on loopback."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence

SECONDS = 30  # to start, or to end
# Ends the server when the pipe on its standard input closes: with the tests, also when
# their process is killed. It ends with the server.
GUARD = """
exec 3<&0
"$@" 3<&- & server=$!
echo $server
{ cat <&3; kill -$0 $server; } > /dev/null &
wait $server
kill $!
"""


class ServerProcess:
    """Server that listens on 127.0.0.1.

    Parameters
    ----------
    command : callable
        Takes the port and returns the words of the command.
    is_ready : callable
        Takes the port and returns whether the server answers.

    Attributes
    ----------
    port : int
    pid : int
        Of the server.
    end : str
        The signal that ends it at once.
    """

    end = "KILL"

    def __init__(
        self, command: Callable[[int], Sequence[str]], is_ready: Callable[[int], bool]
    ) -> None:
        self.port = free_port()
        self._command = command
        self._is_ready = is_ready
        self.start()

    def start(self) -> None:
        """Start the server, and wait until it answers.

        One that ends is started again: processes of a server that was killed may still
        have its files.
        """
        self._run()
        deadline = time.monotonic() + SECONDS
        while not self._is_ready(self.port):
            if time.monotonic() > deadline:
                self.kill()
                raise TimeoutError(f"{self._command(self.port)[0]} does not answer")
            time.sleep(0.02)
            if self._guard.poll() is not None:
                self._close()
                self._run()

    def _run(self) -> None:
        self._guard = subprocess.Popen(
            ["sh", "-c", GUARD, self.end, *self._command(self.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.pid = int(self._guard.stdout.readline())

    def _close(self) -> None:
        self._guard.stdin.close()
        self._guard.wait(SECONDS)
        self._guard.stdout.close()

    def send(self, number: signal.Signals) -> None:
        """Send the server a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End the server as a crash does. It may be started again, on its port."""
        self._close()
        deadline = time.monotonic() + SECONDS
        while is_listening(self.port) and time.monotonic() < deadline:
            time.sleep(0.01)


def free_port() -> int:
    """Return a port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_listening(port: int) -> bool:
    """Return whether something accepts connections on a port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
