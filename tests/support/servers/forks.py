"""Scripts in forks of a process with imported libraries: torch takes 2 s.

The process starts with the first script of these tests, and ends with them.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from support.processes import environment

# A line of standard input has the script and its arguments, its working directory, its
# environment, and the folder of its output; the answers are the id of its process, and
# its exit status.
TORCH = "torch.utils.data", "fastshard.adapters.torch"
SERVER = """
import importlib, json, os, sys, types
for name in sys.argv[1:]:
    importlib.import_module(name)
for line in iter(sys.stdin.readline, ""):
    words, cwd, environment, folder = json.loads(line)
    child = os.fork()
    if child == 0:
        break
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
for fd, name in ((1, "stdout"), (2, "stderr")):
    os.dup2(os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), fd)
os.chdir(cwd)
os.environ.clear()
os.environ.update(environment)
sys.argv = words
if not sys.flags.safe_path:
    sys.path[0] = os.path.dirname(words[0])
main = sys.modules["__main__"] = types.ModuleType("__main__")
main.__file__ = words[0]
with open(words[0]) as file:
    code = compile(file.read(), words[0], "exec")
exec(code, main.__dict__)
"""


def run_with_torch(folder: Path, code: str, *args: object, timeout: float = 300) -> str:
    """Run code from a file as `run_script` does; it may fork workers."""
    done = run_forked(folder, code, *args, timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_forked(
    folder: Path,
    code: str,
    *args: object,
    imports: Sequence[str] = TORCH,
    timeout: float = 300,
) -> subprocess.CompletedProcess[str]:
    """Run code from a file in a process that has imported some modules."""
    script = folder / "script.py"
    script.write_text(code)
    return fork(folder, script, *args, imports=imports, timeout=timeout)


def fork(
    folder: Path,
    script: str | Path,
    *args: object,
    cwd: Path | None = None,
    env: Mapping[str, str] = os.environ,
    imports: Sequence[str] = TORCH,
    timeout: float = 300,
) -> subprocess.CompletedProcess[str]:
    """Run a script in a process that has imported modules; a folder gets its output."""
    server = start_server(*imports)
    words = [str(script), *map(str, args)]
    asked = json.dumps([words, str(cwd or Path.cwd()), dict(env), str(folder)])
    os.write(server.stdin.fileno(), asked.encode() + b"\n")
    child = int(read_line(server, timeout))
    try:
        status = int(read_line(server, timeout))
    except subprocess.TimeoutExpired:
        os.kill(child, signal.SIGKILL)
        read_line(server, timeout)
        raise
    outputs = [(folder / name).read_text() for name in ("stdout", "stderr")]
    return subprocess.CompletedProcess(words, status, *outputs)


@cache
def start_server(*imports: str) -> subprocess.Popen[bytes]:
    """Start the process that forks."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
    command = [sys.executable, "-c", SERVER, *imports]
    server = subprocess.Popen(command, env=environment(), **pipes)
    atexit.register(server.communicate)  # closes its standard input
    return server


def read_line(server: subprocess.Popen[bytes], timeout: float) -> bytes:
    """Return the next line of the server's answers."""
    if not select.select([server.stdout], [], [], timeout)[0]:
        raise subprocess.TimeoutExpired(server.args, timeout)
    return server.stdout.readline()
