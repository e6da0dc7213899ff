"""Scripts and commands in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import fastshard
from support.paths import TESTS


def run_script(folder: Path, code: str, *args: object, timeout: float = 300) -> str:
    """Run code from a file, as spawned workers need it; return what it printed."""
    script = folder / "script.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, script, *map(str, args)],
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
