"""Scripts in forks of a process that has imported torch, which takes two seconds.

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
from functools import cache
from pathlib import Path

# A line of standard input has the script, its arguments and the folder of its output;
# the answers are the id of its process, and its exit status.
SERVER = """
import json, os, sys, types
import torch.utils.data, fastshard.adapters.torch

for line in iter(sys.stdin.readline, ""):
    script, arguments, folder = json.loads(line)
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
sys.argv = [script, *arguments]
main = sys.modules["__main__"] = types.ModuleType("__main__")
main.__file__ = script
with open(script) as file:
    code = compile(file.read(), script, "exec")
exec(code, main.__dict__)
"""


def run_with_torch(folder: Path, code: str, *args: object, timeout: float = 300) -> str:
    """Run code from a file as `run_script` does; it may fork workers."""
    done = run_forked(folder, code, *args, timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_forked(
    folder: Path, code: str, *args: object, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run code from a file in a process that has imported torch."""
    server = start_server()
    script = folder / "script.py"
    script.write_text(code)
    words = [str(script), *map(str, args)]
    asked = json.dumps([words[0], words[1:], str(folder)])
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
def start_server() -> subprocess.Popen[bytes]:
    """Start the process that forks."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
    server = subprocess.Popen([sys.executable, "-c", SERVER], **pipes)
    atexit.register(server.communicate)  # closes its standard input
    return server


def read_line(server: subprocess.Popen[bytes], timeout: float) -> bytes:
    """Return the next line of the server's answers."""
    if not select.select([server.stdout], [], [], timeout)[0]:
        raise subprocess.TimeoutExpired(server.args, timeout)
    return server.stdout.readline()
