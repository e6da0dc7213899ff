"""Running a script in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


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
