"""Progress bars of the commands, on a terminal."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest

import fastshard
from fastshard._util.progress import BAR_DELAY
from fastshard.columnar import ShardedDatasetWriter
from support.marks import not_sanitized
from support.processes import COMMAND, run_in_terminal
from support.servers.http import Server

pytestmark = not_sanitized

# Bars show at once, and at each update, so that short work shows them.
AT_ONCE = f"""
from fastshard._util import progress
progress.BAR_DELAY = 0
{COMMAND}"""
IMPATIENT = [sys.executable, "-c", AT_ONCE]
EACH_UPDATE = {"TQDM_MININTERVAL": "0"}


@pytest.fixture
def work(tmp_path, monkeypatch):
    """Enter a folder with a tar dataset, and a columnar one with dead space."""
    with fastshard.ShardWriter(f"{tmp_path}/data/t-{{}}.tar", max_count=4) as w:
        for i in range(12):
            w.write({"__key__": f"{i}", "txt": "text" * 100})
    for path in tmp_path.glob("data/*.fsi"):
        path.unlink()
    with ShardedDatasetWriter(tmp_path / "columns", samples_per_shard=2) as writer:
        writer.add_field("x")
        for i in range(6):
            writer.add_sample({"x": np.arange(i)}, sample_id=f"s{i}")
    with ShardedDatasetWriter(tmp_path / "columns") as writer:
        writer.update_sample("s0", {"x": np.arange(9)})
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        ("ls data/t-0.tar", r"t-0\.tar: 100%"),
        ("ls data", r"t-2\.tar: 100%"),
        ("cat data 0.txt", r"t-2\.tar: 100%"),
        ("stat data", r"t-2\.tar: 100%"),
        ("verify data", r"t-2\.tar: 100%"),
        ("verify --hash data", r"t-1\.tar: +\d+%"),
        ("index data", r"indexing: +\d+%"),
        ("stat --deep columns", r"counting x: .* 3/3 .* shards/s|counting x: 100%"),
        ("verify columns", r"verifying x: 100%"),
        ("compact columns", r"compacting x: 100%"),
        ("demo", r"demo: +\d+%"),
    ],
)
def test_commands_show_progress_and_erase_it(work, args, shown):
    status, text = run_in_terminal([*IMPATIENT, *args.split()], EACH_UPDATE)
    assert status == 0
    assert re.search(shown, text), text
    # What remains on the screen is the output in a pipe.
    done = subprocess.run([*IMPATIENT, *args.split()], capture_output=True)
    if args not in ("demo", "compact columns"):
        assert screen_of(text) == done.stdout.decode().splitlines()
    assert done.stderr == b""


def screen_of(text):
    """Return the lines that a terminal shows at the end."""
    lines = []
    for line in text.split("\n"):
        cells = []
        for part in re.sub(r"\x1b\[[0-9;]*m", "", line).split("\r"):
            cells[: len(part)] = part
        lines.append("".join(cells).rstrip())
    while lines and not lines[-1]:
        lines.pop()
    return lines


def test_several_urls_are_counted_one_is_in_bytes(work):
    files = {f"/t-{k}.tar": (work / f"data/t-{k}.tar").read_bytes() for k in range(3)}
    with Server(files) as server:
        command = [*IMPATIENT, "stat", server.at("/t-") + "{0..2}.tar"]
        text = run_in_terminal(command, EACH_UPDATE)[1]
        assert re.search(r"t-1\.tar: .* 2/3 ", text)
        command = [
            *IMPATIENT,
            "cache",
            "warm",
            server.at("/t-0.tar"),
            "--cache-dir",
            "c",
        ]
        status, text = run_in_terminal(command, EACH_UPDATE)
        assert status == 0
        assert re.search(r"t-0\.tar: .*B/s", text)


@pytest.mark.parametrize("args", ["stat data", "index data", "verify columns"])
def test_quiet_shows_no_bar(work, args):
    text = run_in_terminal([*IMPATIENT, *args.split(), "-q"], EACH_UPDATE)[1]
    assert "%" not in text
    assert "it/s" not in text


@pytest.mark.parametrize("args", ["stat data", "index data", "verify columns"])
def test_no_bar_shows_in_a_pipe(work, args):
    env = {**os.environ, **EACH_UPDATE}
    done = subprocess.run([*IMPATIENT, *args.split()], capture_output=True, env=env)
    assert (done.returncode, done.stderr) == (0, b"")


def test_no_bar_shows_before_a_second(work):
    assert BAR_DELAY == 1
    command = [sys.executable, "-m", "fastshard", "stat", "data"]
    text = run_in_terminal(command, EACH_UPDATE)[1]
    assert "%" not in text
    assert "\r " not in text


def test_an_error_is_on_a_line_of_its_own(work):
    (work / "data/t-1.tar").write_bytes(b"\xee" * 2048)
    for command in ("ls", "stat", "verify"):
        status, text = run_in_terminal([*IMPATIENT, command, "data"], EACH_UPDATE)
        assert status == 1
        [line] = [line for line in screen_of(text) if "checksum is wrong" in line]
        assert line.startswith(("fastshard: ", "data/t-1.tar: byte 0: "))
        assert "%" not in "".join(screen_of(text))
