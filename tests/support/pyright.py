"""pyright, which downloads itself when it runs first."""

from __future__ import annotations

import functools
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import fcntl
except ImportError:
    fcntl = None


@functools.cache
def pyright_problem() -> str | None:
    """Return why pyright cannot be had, or None; the first run may download it."""
    if importlib.util.find_spec("pyright") is None:
        return "pyright is not installed"
    with (Path(tempfile.gettempdir()) / "fastshard-pyright.lock").open("w") as lock:
        if fcntl is not None:  # one download, whatever the number of test processes
            fcntl.flock(lock, fcntl.LOCK_EX)
        command = [sys.executable, "-m", "pyright", "--version"]
        done = subprocess.run(command, capture_output=True, text=True)
    return f"pyright does not run: {done.stderr}" if done.returncode else None
