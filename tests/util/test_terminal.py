"""No text from a file, shard or server moves the terminal's cursor."""

import ast
import csv
import io
import json
import os
import pty
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

import fastshard
from fastshard._util.terminal import (
    escape_line,
    escape_name,
    escape_unencodable,
    write_line,
)
from fastshard.columnar import ShardedDatasetWriter
from support.marks import LONG
from support.tars import write_tar

EVIL = "\x1b]0;owned\x07\x1b[2J\r\u202e\x9bé☃\udcff"
PLAIN = "\\x1b]0;owned\\x07\\x1b[2J\\r\\u202e\\x9bé☃\\xff"
HARMFUL = set(map(chr, [*range(0x20), 0x7F, *range(0x80, 0xA0), 0x202E])) - {"\n"}


def run(*args, **env):
    """Run the command with its output in a pipe."""
    done = subprocess.run(
        [sys.executable, "-m", "fastshard", *map(str, args)],
        capture_output=True,
        env={**os.environ, "PYTHONUTF8": "1", **env},
    )
    assert b"Traceback" not in done.stderr
    coding = env.get("PYTHONIOENCODING", "utf-8")
    done.stdout = done.stdout.decode(coding)  # text=True would read \r as \n
    done.stderr = done.stderr.decode(coding)
    return done


def harmless(done):
    assert not HARMFUL & set(done.stdout + done.stderr)
    return done.stdout


@pytest.fixture
def folder(tmp_path):
    """Make two shards with hostile folder, file and member names."""
    folder = tmp_path / f"dir {EVIL}"
    folder.mkdir()
    members = {f"{EVIL}.t{EVIL}x": b"x", "a.txt": b"a", f"a.{EVIL}": b"", "b.txt": b""}
    for i in range(2):
        write_tar(folder / f"{EVIL}{i}.tar", members, errors="surrogateescape")
    return folder


def test_escapes():
    assert escape_line(EVIL) == escape_name(EVIL) == PLAIN
    assert (escape_line("a\\b"), escape_name("a\\b"), escape_name("a\\\x1b")) == (
        "a\\b",
        "a\\\\b",
        "a\\\\\\x1b",
    )
    assert escape_unencodable("é☃😀", "ascii") == "\\u00e9\\u2603\\U0001f600"
    assert escape_unencodable("é☃", "latin-1") == "é\\u2603"
    assert escape_unencodable("é☃", None) == "é☃"


def test_a_line_stays_one_line_in_any_encoding():
    for encoding in ("ascii", "latin-1", "cp1252", "utf-8"):
        raw = io.BytesIO()
        file = io.TextIOWrapper(raw, encoding)
        write_line(f"a{EVIL}\nb", "c\td", file=file)
        file.flush()
        text = raw.getvalue().decode(encoding)
        assert text.isascii() or encoding != "ascii"
        assert text.count("\n") == text.count("\t") == 1


COMMANDS = [
    "ls",
    "ls --long",
    "stat",
    "stat --each",
    "verify",
    "verify --hash",
    "index --again",
    "index --format json --again",
]
# All write by the same functions, which know the encoding.
EACH = [
    *((command, "ascii") for command in COMMANDS),
    *product(COMMANDS if LONG else COMMANDS[1:2], ["utf-8", "latin-1"]),
]


@pytest.mark.parametrize(("command", "encoding"), EACH)
def test_commands_write_no_control_characters(folder, command, encoding):
    env = {"PYTHONIOENCODING": encoding, "LC_ALL": "C"}
    shards = sorted(folder.glob("*.tar"))
    done = run(*command.split(), *shards, **env)
    assert harmless(done)
    (folder / f"{EVIL}0.fsi").write_bytes(b"junk")
    shards[1].write_bytes(shards[1].read_bytes()[:700])
    done = run(*command.split(), *shards, folder / f"absent{EVIL}.tar", **env)
    harmless(done)
    assert done.stderr
    if encoding == "ascii":
        assert (done.stdout + done.stderr).isascii()


@pytest.mark.parametrize("command", ["ls", "stat", "verify"])
def test_json_stays_json(folder, command):
    (folder / "2.tar").write_bytes(b"x" * 1000)
    done = run(command, "--json", *folder.glob("*.tar"), PYTHONIOENCODING="ascii")
    texts = [json.loads(line) for line in harmless(done).splitlines()]
    assert texts
    if command == "ls":
        assert texts[0]["name"] == f"{EVIL}.t{EVIL}x"
        assert texts[0]["shard"] in map(str, folder.glob("*.tar"))


def test_ls_in_ascii(tmp_path):
    path = write_tar(tmp_path / "s.tar", {"ä/☃.txt": b"", "plain": b""})
    done = run("ls", path, PYTHONIOENCODING="ascii", LC_ALL="C", PYTHONUTF8="0")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "\\u00e4/\\u2603.txt\nplain\n"


def test_messages_about_wrong_usage(tmp_path):
    for args in (
        ["ls", f"--{EVIL}"],
        ["ls", tmp_path / EVIL],
        ["cat", tmp_path / EVIL, EVIL],
        ["index", tmp_path / "a", "--part", EVIL],
        ["query", tmp_path / EVIL, "x"],
        ["compact", tmp_path / EVIL],
        ["verify", tmp_path / EVIL / "**"],
        ["stat", f"http://127.0.0.1:9/{EVIL}.tar"],
        ["cache", "ls", "--cache-dir", tmp_path / EVIL],
        [EVIL],
    ):
        harmless(run(*args))


def test_columnar_commands(tmp_path):
    root = tmp_path / f"root {EVIL[:-1]}"  # SQLite cannot store the last character
    root.mkdir()
    values = {"text": EVIL[:-1], "n": 1}
    with ShardedDatasetWriter(root) as writer:
        writer.add_fields(["a"])
        writer.add_metadata_column("text", "$.text", "TEXT")
        writer.add_sample({"a": [1.0]}, metadata=values)
    for encoding in ("utf-8", "ascii"):
        for command in ("ls", "stat", "verify", "compact"):
            done = run(command, root, PYTHONIOENCODING=encoding)
            assert done.returncode == 0
            assert harmless(done)
        found = run("query", root, "--columns", "text,id", PYTHONIOENCODING=encoding)
        text, _ = found.stdout.rstrip("\n").split("\t")
        assert not HARMFUL & set(text)
    found = run("query", root, "--columns", "text", "--json")
    assert json.loads(found.stdout) == {"text": values["text"]}
    found = run("query", root, "--columns", "text", "--csv")
    assert list(csv.reader(io.StringIO(found.stdout, newline=""))) == [
        ["text"],
        [values["text"]],
    ]


def test_csv_on_a_terminal_is_escaped(tmp_path):
    with ShardedDatasetWriter(tmp_path / "r") as writer:
        writer.add_fields(["a"])
        writer.add_metadata_column("text", "$.text", "TEXT")
        writer.add_sample({"a": [1.0]}, metadata={"text": "\x1b[2J"})
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "fastshard", "query", tmp_path / "r"]
    child = subprocess.Popen([*command, "--columns", "text", "--csv"], stdout=theirs)
    assert child.wait() == 0
    os.close(theirs)
    output = b""
    while b"[2J" not in output:
        output += os.read(ours, 1000)
    os.close(ours)
    assert output.split() == [b"text", b"\\x1b[2J"]


def test_errors_are_one_line_as_text(folder):
    path = folder / f"{EVIL}0.tar"
    path.write_bytes(path.read_bytes()[:700])
    with pytest.raises(fastshard.FormatError) as caught:
        fastshard.open_shard(path)
    assert not HARMFUL & set(str(caught.value))
    assert PLAIN in str(caught.value)
    assert caught.value.path == str(path)
    with pytest.raises(fastshard.FastshardError, match="no shard") as caught:
        fastshard.open(str(folder / f"*{EVIL}"))
    assert not HARMFUL & set(str(caught.value))
    shard = fastshard.open_shard(folder / f"{EVIL}1.tar")
    for missing in (lambda: shard["absent"], lambda: shard.samples["absent"]):
        with pytest.raises(KeyError) as caught:
            missing()
        assert not HARMFUL & set(str(caught.value))


def test_all_commands_print_by_write_line():
    """Except the bytes of members and CSV, which are data."""
    sources = Path(fastshard.__file__).parent
    for path in [*(sources / "cli").glob("*.py"), *sources.glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            called = node.func if isinstance(node, ast.Call) else None
            assert getattr(called, "id", None) != "print", (path, node.lineno)
