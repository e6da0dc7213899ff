"""Scripts and commands in processes of their own, also on a terminal."""

from __future__ import annotations

import os
import select
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import fastshard
from support.paths import TESTS

SECONDS = 60  # a command on a terminal may take

# Code that runs ``fastshard`` with a demonstration of 100 samples.
COMMAND = """
import sys
if "demo" in sys.argv:
    from fastshard.cli import demo
    demo.SAMPLES = 100
from fastshard.cli.entry import main
sys.exit(main())
"""


def run_script(folder: Path, code: str, *args: object, timeout: float = 300) -> str:
    """Run code from a file, as spawned workers need it; return its output."""
    script = folder / "script.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, script, *map(str, args)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def environment() -> dict[str, str]:
    """Return the environment of a process that imports this fastshard and `support`."""
    paths = [str(Path(fastshard.__file__).parents[1]), str(TESTS)]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def start(*command: object, **options) -> subprocess.Popen:
    """Start Python, with the text of its output in a pipe."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    words = [sys.executable, *map(str, command)]
    return subprocess.Popen(words, env=environment(), **pipes, **options)


def run_on_mount(
    mount: str, command: str, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run a shell command with a mount of its own; skip where that is not allowed.

    The mount and the processes that serve it end with the command, and with this one.
    """
    own = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    namespace = [shutil.which("unshare") or "false", *own, "sh", "-c"]
    if subprocess.run([*namespace, mount], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    return subprocess.run(
        [*namespace, f"{mount} && {command}"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def wait_until(condition: Callable[[], object], seconds: float = SECONDS) -> None:
    """Wait for a condition of other processes."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.01)


def processes_with(text: bytes) -> list[str]:
    """Return the ids of the processes that have a text in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # ended meanwhile, or of another user
            if text in path.read_bytes():
                found.append(path.parent.name)
    return found


class Terminal:
    """Process whose stdin, stdout and stderr are a terminal of 80 columns.

    Parameters
    ----------
    args : sequence of str
    env : Mapping of str to str
        Added to the environment; no colour is asked for, nor forbidden.
    cwd : path-like, optional
    """

    def __init__(self, args, env=None, cwd=None):
        pty = pytest.importorskip("pty")  # POSIX only, as the two below
        import termios
        from fcntl import ioctl

        self.end, other = pty.openpty()
        ioctl(other, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
        unset = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")
        inherited = {k: v for k, v in os.environ.items() if k not in unset}
        self.process = subprocess.Popen(
            list(map(str, args)),
            stdin=other,
            stdout=other,
            stderr=other,
            cwd=cwd,
            env=inherited | {"TERM": "xterm", **(env or {})},
            start_new_session=True,
        )
        os.close(other)
        self.text = ""

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.kill()
        self.process.wait()
        os.close(self.end)

    def send(self, text):
        os.write(self.end, text.encode())

    def read_until(self, done, seconds=SECONDS):
        """Read until `done(text)` or the end of the process; return the text."""
        deadline = time.monotonic() + seconds
        while not done(self.text):
            if time.monotonic() > deadline:
                raise TimeoutError(self.text)
            if not select.select([self.end], [], [], 0.1)[0]:
                continue
            try:
                data = os.read(self.end, 65536)
            except OSError:  # the other end is closed
                break
            if not data:
                break
            self.text += data.decode("utf-8", "surrogateescape")
        return self.text


def run_in_terminal(args, env=None, cwd=None):
    """Run a command in a terminal; return its exit status and all it printed."""
    with Terminal(args, env, cwd) as terminal:
        text = terminal.read_until(lambda text: False)
        return terminal.process.wait(SECONDS), text
