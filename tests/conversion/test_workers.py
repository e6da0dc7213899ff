"""Worker processes of conversions: they end with their parent, and so do its files."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from conversion.conftest import contents, write_tar
from fastshard import convert
from support.marks import not_sanitized
from support.processes import environment, processes_with, wait_until

pytestmark = [
    not_sanitized,  # tests Python code
    pytest.mark.skipif(not os.path.exists("/proc/self/environ"), reason="no /proc"),
]

# Converts with pauses; spawned workers import it, forked ones inherit it.
SCRIPT = """
import os, sys, threading, time
import fastshard
from fastshard.cli.entry import main
from fastshard.conversion import ranges, workers

real, pause = ranges.write_samples, float(sys.argv[3])

def slow(*args):
    open(f"{sys.argv[2]}.{os.getpid()}", "w").close()
    time.sleep(pause)
    return real(*args)

ranges.write_samples = slow
workers.GRACE_SECONDS = 0.2 if pause > 1 else workers.GRACE_SECONDS

if __name__ == "__main__":
    source, out, _, how, caller = sys.argv[1:]
    if how == "spawn":  # as beside threads
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    if caller == "library":
        fastshard.convert(source, out, to="tar", workers=2)
    else:
        command = ["convert", source, out, "--to", "tar", "--workers", "2", "--quiet"]
        sys.exit(main(command))
"""


class Running:
    """A conversion in a session of its own; its processes share a marker."""

    def __init__(self, folder, *, pause, how="fork", caller="command"):
        script = folder / "script.py"
        script.write_text(SCRIPT)
        marker = secrets.token_hex(8)
        self.folder = folder
        self.marker = marker.encode()
        paths = [script, folder / "in", folder / "out"]
        self.process = subprocess.Popen(
            [sys.executable, *paths, str(pause), how, caller],
            env=environment() | {"FASTSHARD_MARKER": marker},
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait_for_workers(self):
        """Wait until both workers have begun to write."""
        wait_until(lambda: len(list(self.folder.glob("out.*"))) == 2)

    def temporaries(self):
        return [path for path in self.folder.iterdir() if path.name.startswith(".")]

    def left(self):
        return processes_with(self.marker)

    def end(self):
        """Return the exit status and stderr; nothing runs afterwards."""
        _, err = self.process.communicate(timeout=60)
        wait_until(lambda: not self.left())
        return self.process.returncode, err


@pytest.fixture
def run(tmp_path):
    samples = [{"__key__": f"{i:04d}", "txt": "x" * 100} for i in range(400)]
    write_tar(tmp_path / "in", samples, 10)
    running = []

    def start(**options):
        running.append(Running(tmp_path, **options))
        running[-1].wait_for_workers()
        return running[-1]

    yield start
    for one in running:
        for pid in one.left():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        one.process.communicate()


@pytest.mark.parametrize("how", ["fork", "spawn"])
@pytest.mark.parametrize("caller", ["command", "library"])
def test_workers_end_with_a_killed_parent(run, how, caller):
    running = run(pause=600, how=how, caller=caller)
    running.process.kill()
    assert running.end()[0] == -signal.SIGKILL


def test_workers_without_help_of_the_kernel_end_by_the_pipe(run, monkeypatch):
    monkeypatch.setitem(globals(), "SCRIPT", NO_PRCTL + SCRIPT)
    running = run(pause=600)
    running.process.kill()
    assert running.end()[0] == -signal.SIGKILL


NO_PRCTL = """
from fastshard._util.processes import lifetime
lifetime.ask_kernel = lambda parent: None
"""


@pytest.mark.parametrize(
    ("name", "status", "how", "pause"),
    [
        ("SIGINT", 130, "fork", 0.05),
        ("SIGINT", 130, "fork", 600),  # workers do not stop by themselves
        ("SIGTERM", 143, "fork", 0.05),
        ("SIGTERM", 143, "spawn", 600),
        ("SIGHUP", 129, "fork", 0.05),
    ],
)
def test_a_signal_ends_a_command_and_its_workers(run, name, status, how, pause):
    running = run(pause=pause, how=how)
    running.process.send_signal(getattr(signal, name))
    assert running.end() == (status, "")
    assert running.temporaries() == []
    assert not (running.folder / "out").exists()


@pytest.mark.parametrize(("name", "status"), [("SIGTERM", 143), ("SIGHUP", 129)])
def test_signals_to_all_processes_of_a_command(run, name, status):
    running = run(pause=0.05)
    for _ in range(2):  # as of a terminal that is closed
        os.killpg(running.process.pid, getattr(signal, name))
    found = running.end()
    # A shell shows the same for a second signal that comes after the cleaning.
    assert found in ((status, ""), (-getattr(signal, name), ""))
    assert running.temporaries() == []


def test_signals_end_a_program_that_converts_as_before(run):
    running = run(pause=600, caller="library")
    running.process.terminate()
    assert running.end()[0] == -signal.SIGTERM


def test_the_next_run_removes_leftovers_of_a_killed_one(run):
    running = run(pause=600)
    running.process.kill()
    running.end()
    assert len(running.temporaries()) == 1
    folder = running.folder
    convert(folder / "in", folder / "out", to="tar", workers=1)
    assert running.temporaries() == []
    assert contents(folder / "out") == contents(folder / "in")


def test_a_running_conversion_is_not_disturbed_by_another(run):
    running = run(pause=0.05)
    [temporary] = running.temporaries()
    folder = running.folder
    convert(folder / "in", folder / "other", to="tar", workers=1)
    assert running.temporaries() == [temporary]
    assert running.end() == (0, "")
    assert contents(folder / "out") == contents(folder / "in")


def test_a_library_call_leaves_signal_handlers_alone(tmp_path):
    write_tar(tmp_path / "in", [{"__key__": "a", "txt": "x"}])
    known = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in known]
    convert(tmp_path / "in", tmp_path / "out", to="tar")
    assert [signal.getsignal(number) for number in known] == before


def run_code(folder, code):
    """Run code that converts ``in`` to ``out``; return its stderr."""
    command = [sys.executable, "-c", code, folder / "in", folder / "out"]
    return subprocess.run(
        command,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        env=environment(),
        cwd=folder,
    ).stderr


DEATHS = {
    "amid a result": ("os.write(self.fileno(), b'1'); os._exit(9)", "exit status 9"),
    "killed": ("os.kill(os.getpid(), 9)", "killed, or out of memory"),
    "terminated": ("os.kill(os.getpid(), 15)", "signal 15"),
}


@pytest.mark.parametrize("how", DEATHS)
@pytest.mark.parametrize("answers", [0, 5])
def test_a_worker_that_dies_instead_of_an_answer(tmp_path, how, answers):
    write_tar(tmp_path / "in", [{"__key__": str(i), "txt": "x"} for i in range(9)], 1)
    die, reason = DEATHS[how]
    code = (
        "import os, sys, fastshard\n"
        "from multiprocessing.connection import Connection\n"
        f"real, left = Connection.send_bytes, [None] * {answers}\n"
        "def send_bytes(self, data):\n"
        "    if left:\n"
        "        left.pop()\n"
        "        return real(self, data)\n"
        f"    {die}\n"
        "Connection.send_bytes = send_bytes\n"
        "fastshard.convert(sys.argv[1], sys.argv[2], to='tar', workers=2)\n"
    )
    assert f"FastshardError: a worker process died: {reason}" in run_code(
        tmp_path, code
    )
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_later_work_gets_the_workers_that_earlier_work_did_not_need(tmp_path):
    write_tar(tmp_path / "in", [{"__key__": str(i), "txt": "x"} for i in range(12)], 6)
    code = (
        "import os, sys, time, fastshard\n"
        "from fastshard.conversion import ranges\n"
        "real, options = ranges.write_samples, {'workers': 3, 'max_count': 4}\n"
        "def write(*args):\n"
        "    open(f'{sys.argv[2]}.{os.getpid()}', 'w').close()\n"
        "    while len([x for x in os.listdir('.') if x[:4] == 'out.']) < 3:\n"
        "        time.sleep(0.01)\n"
        "    return real(*args)\n"
        "ranges.write_samples = write\n"
        "fastshard.convert(sys.argv[1], sys.argv[2], to='tar', **options)\n"
    )
    assert run_code(tmp_path, code) == ""


def test_an_error_that_does_not_pickle_is_told(tmp_path):
    write_tar(tmp_path / "in", [{"__key__": str(i), "txt": "x"} for i in range(9)], 1)
    code = (
        "import sys, fastshard\n"
        "from fastshard.conversion import ranges\n"
        "class Odd(Exception):\n"
        "    def __init__(self, text, code):\n"
        "        super().__init__(f'{text}, {code}')\n"
        "def fail(*args):\n"
        "    raise Odd('no answer', 503)\n"
        "ranges.write_samples = fail\n"
        "fastshard.convert(sys.argv[1], sys.argv[2], to='tar', workers=2)\n"
    )
    assert "FastshardError: Odd: no answer, 503" in run_code(tmp_path, code)


def test_one_of_racing_conversions_wins(tmp_path):
    write_tar(tmp_path / "in", [{"__key__": "a", "txt": "x"}])
    code = (
        "import sys, fastshard\n"
        "from fastshard.conversion.publish import NewDirectory\n"
        "real = NewDirectory.commit\n"
        "def commit(self):\n"
        "    print('ready', flush=True)\n"
        "    sys.stdin.readline()\n"
        "    real(self)\n"
        "NewDirectory.commit = commit\n"
        "try:\n"
        "    fastshard.convert(sys.argv[1], sys.argv[2], to='tar', workers=1)\n"
        "    print('won')\n"
        "except FileExistsError as error:\n"
        "    print(error.filename)\n"
    )
    out = tmp_path / "out"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", code, tmp_path / "in", out]
    racing = [subprocess.Popen(command, env=environment(), **pipes) for _ in range(4)]
    for process in racing:
        assert process.stdout.readline() == "ready\n"
    for process in racing:
        process.stdin.write("\n")
        process.stdin.flush()
    said = [process.communicate(timeout=60)[0].strip() for process in racing]
    assert sorted(said) == sorted(["won", *[str(out)] * 3])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]
    assert contents(out) == contents(tmp_path / "in")
