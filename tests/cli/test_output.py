"""Colours, --quiet and --json of the commands, and their exit status."""

import json
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

from fastshard._util.terminal import has_color, output_options, paint, write_line
from fastshard.cli import demo
from fastshard.cli.entry import main
from fastshard.columnar import ShardedDatasetWriter
from support.marks import needs, not_sanitized, thin
from support.paths import TREE
from support.processes import run_in_terminal
from support.servers.http import Server
from support.tars import write_tar

pytestmark = not_sanitized

FASTSHARD = [sys.executable, "-m", "fastshard"]
RED, GREEN, BOLD, SHARD = "\x1b[1;31m", "\x1b[32m", "\x1b[1m", "\x1b[35m"


@pytest.fixture
def work(tmp_path, monkeypatch):
    """Enter a folder with a tar dataset, a broken shard and a columnar dataset."""
    for k in range(2):
        (tmp_path / "data").mkdir(exist_ok=True)
        write_tar(tmp_path / f"data/t-{k}.tar", {f"{k}.txt": b"text", f"{k}.cls": b"1"})
    (tmp_path / "bad.tar").write_bytes(b"x" * 2048)
    with ShardedDatasetWriter(tmp_path / "columns") as writer:
        writer.add_field("x")
        for i in range(3):
            writer.add_sample({"x": np.arange(i)}, sample_id=f"s{i}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*args, **options):
    options.setdefault("stdout", subprocess.PIPE)
    options.setdefault("stderr", subprocess.PIPE)
    done = subprocess.run([*FASTSHARD, *args], text=True, timeout=120, **options)
    assert "Traceback" not in (done.stderr or "")
    assert "Exception ignored" not in (done.stderr or "")
    return done


# Colours


class Screen:
    """Text stream that says it is a terminal."""

    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("env", "color", "expected"),
    [
        ({}, "auto", True),
        ({"NO_COLOR": "1"}, "auto", False),
        ({"NO_COLOR": "0"}, "auto", False),  # any text but the empty one
        ({"NO_COLOR": ""}, "auto", True),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, "auto", False),
        ({"TERM": "dumb"}, "auto", False),
        ({"TERM": "dumb", "FORCE_COLOR": "1"}, "auto", True),
        ({"NO_COLOR": "1"}, "always", True),
        ({"FORCE_COLOR": "1"}, "never", False),
        ({}, "never", False),
    ],
)
def test_colours_of_a_terminal_follow_option_and_environment(
    env, color, expected, monkeypatch
):
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with output_options(color=color):
        assert has_color(Screen()) is expected


def test_painted_text_is_escaped(capsys):
    with output_options(color="always"):
        write_line(paint("a\x1b[2Jb\n", "error"), "c\x1b[0m", sep=": ")
        assert paint("", "bold") == ""
    out = capsys.readouterr().out
    assert out == RED + "a\\x1b[2Jb\\n" + "\x1b[0m" + ": c\\x1b[0m\n"


def test_a_terminal_shows_faults_results_headings_and_shards_in_colour(work):
    status, text = run_in_terminal([*FASTSHARD, "verify", "data", "bad.tar"])
    assert status == 1
    assert f"t-0.tar: {GREEN}ok\x1b[0m, 2 members" in text
    assert f"{RED}bad.tar: byte 0\x1b[0m: " in text
    assert (
        f"{BOLD}all together\x1b[0m" in run_in_terminal([*FASTSHARD, "stat", "data"])[1]
    )
    assert (
        f"{SHARD}data/t-0.tar\x1b[0m:0.txt"
        in run_in_terminal([*FASTSHARD, "ls", "data"])[1]
    )
    assert (
        f"{RED}fastshard:\x1b[0m none.tar does"
        in run_in_terminal([*FASTSHARD, "ls", "none.tar"])[1]
    )
    assert f"{RED}fastshard:\x1b[0m unknown" in run_in_terminal([*FASTSHARD, "sl"])[1]


@pytest.mark.parametrize(
    "args",
    thin(["ls data", "stat data", "verify data bad.tar", "stat columns", "nope"], 2),
)
def test_pipes_and_no_color_have_no_colour(work, args):
    for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert "\x1b[" not in run_in_terminal([*FASTSHARD, *args.split()], env)[1]
    done = run(*args.split(), env={**os.environ, "TERM": "xterm"})
    assert "\x1b" not in done.stdout + done.stderr
    if args != "nope":
        done = run(*args.split(), "--color", "always")
        assert "\x1b[" in done.stdout


@pytest.mark.parametrize(
    "args",
    ["verify bad.tar", "stat --each data", "ls data", "index data", "stat columns"],
)
def test_json_is_never_coloured(work, args):
    status, text = run_in_terminal(
        [*FASTSHARD, *args.split(), "--json", "--color=always"]
    )
    assert status == (args == "verify bad.tar")
    assert all(isinstance(json.loads(line), dict) for line in text.splitlines())


# --quiet


def test_quiet_leaves_data_faults_and_errors(work, capsys):
    main(["index", "data"])
    write_tar(work / "data/t-1.tar", {"other.txt": b""})
    capsys.readouterr()

    def call(*args):
        return main(list(args)), *capsys.readouterr()

    assert "stale index" in call("ls", "data")[2]
    status, out, err = call("ls", "--quiet", "data")
    assert (status, err) == (0, "")
    assert out.splitlines()[-1] == "data/t-1.tar:other.txt"
    status, out, err = call("verify", "-q", "data", "bad.tar", "none.tar")
    assert status == 1
    assert "ok" not in out
    assert "bad.tar: byte 0: " in out
    assert "none.tar does not exist" in err
    assert call("index", "-q", "data", "--again") == (0, "", "")
    assert call("verify", "-q", "data") == (0, "", "")
    assert call("compact", "-q", "columns") == (0, "", "")
    assert call("cache", "clear", "-q", "--cache-dir", "none") == (0, "", "")
    assert call("query", "-q", "columns", "id = 's1'")[1].startswith("s1")
    assert "bytes freed" in call("compact", "columns")[1]  # nothing stays quiet


# --json


PAGE = TREE / "docs" / "command-line.md"


def read_documented():
    """Return the members of each command's JSON objects, by the docs' table."""
    documented = {}
    text = PAGE.read_text().partition("\n## JSON\n")[2].partition("\n## ")[0]
    for command, _, members in re.findall(
        r"^\| (`.*?) \| (.*?) \| (.*) \|$", text, re.M
    ):
        names = re.findall(r"`(\w+)`", re.sub(r"\(.*?\)", "", members))
        documented[command.replace("`", "")] = set(names)
    return documented


@pytest.fixture
def documented():
    if not PAGE.exists():
        pytest.skip("no source tree")
    return read_documented()


def test_json_has_the_documented_members(work, capsys, documented, monkeypatch):
    monkeypatch.setattr(demo, "SAMPLES", 100)

    def members(*args):
        main([*args, "--json"])
        lines = capsys.readouterr().out.splitlines()
        return [set(json.loads(line)) for line in lines]

    shard, total = documented["stat"], documented["stat of several"]
    assert members("ls", "data") == [documented["ls"]] * 4
    assert members("stat", "--each", "data") == [shard, shard, total]
    assert members("verify", "bad.tar") == [documented["verify"]]
    assert members("index", "data") == [documented["index"]] * 3
    found = members("ls", "columns")
    assert found == [documented["ls of a columnar dataset"]] * 3
    assert members("query", "columns") == [{"id", "meta_json"}] * 3
    assert members("compact", "columns") == [documented["compact"]]
    assert members("stat", "columns") == [documented["stat of a columnar dataset"]]
    assert demo.Demo(work).figures().keys() == documented["demo"]
    assert documented.keys() >= {"cache ls", "cache clear", "cache warm", "query"}


def test_index_prints_paths_as_its_source_is_given(work, capsys):
    assert main(["index", "data"]) == 0
    names = ["t-0.fsi", "t-1.fsi", "dataset.fsi"]
    shown = capsys.readouterr().out.splitlines()
    assert shown == [os.path.join("data", name) for name in names]
    assert main(["index", "data", "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["index"] for line in lines] == shown


def test_json_of_the_cache(work, capsys, documented):
    data = (work / "data/t-0.tar").read_bytes()
    with Server({"/t-0.tar": data}) as server:
        url = server.at("/t-0.tar") + "?sig=secret"
        assert main(["cache", "warm", url, "--cache-dir", "kept", "--json"]) == 0
        line = json.loads(capsys.readouterr().out)
        assert line == {"shard": server.at("/t-0.tar") + "?...", "bytes": len(data)}
        assert set(line) == documented["cache warm"]
    assert main(["cache", "ls", "--cache-dir", "kept", "--json"]) == 0
    [line] = capsys.readouterr().out.splitlines()
    assert set(json.loads(line)) == documented["cache ls"]
    assert "secret" not in line
    assert main(["cache", "clear", "--cache-dir", "kept", "--json"]) == 0
    freed = json.loads(capsys.readouterr().out)
    assert freed["freed_bytes"] > len(data)
    assert set(freed) == documented["cache clear"]


@pytest.mark.parametrize(
    "args", [["ls"], ["ls", "--json"], ["ls", "-H"], ["stat", "--json"]]
)
def test_signatures_are_not_printed(work, capsys, args):
    files = {"/a.tar": (work / "data/t-0.tar").read_bytes()}
    files["/b.tar"] = files["/a.tar"]
    with Server(files) as server:
        urls = [server.at(f"/{name}.tar") + "?sig=secret" for name in "ab"]
        for given in ([urls[0]], urls):
            assert main([*args, *given]) == 0
            out, err = capsys.readouterr()
            assert "secret" not in out + err
            if args != ["stat", "--json"] and (len(given) > 1 or len(args) > 1):
                assert "/a.tar?..." in out


# Names of shards


def test_ls_shows_the_shard_of_several_or_as_asked(work, capsys):
    def names(*args):
        assert main(["ls", *args]) == 0
        return capsys.readouterr().out.splitlines()

    several = [
        f"data/t-{k}.tar:{k}.{kind}" for k in range(2) for kind in ("txt", "cls")
    ]
    assert names("data") == several
    assert names("data/t-0.tar", "data/t-1.tar") == several
    assert names("data/t-0.tar") == ["0.txt", "0.cls"]
    assert names("-H", "data/t-0.tar") == several[:2]
    assert names("--no-filename", "data") == [
        line.partition(":")[2] for line in several
    ]
    assert names("-l", "data")[0].split() == ["data/t-0.tar:", "512", "4", "0.txt"]


# Exit status


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        ("ls data", 0, ""),
        ("ls none.tar", 1, "none.tar does not exist"),
        ("ls bad.tar", 1, "bad.tar, byte 0"),
        ("ls data bad.tar", 1, "bad.tar, byte 0"),
        ("ls locked.tar", 1, "locked.tar: Permission denied"),
        ("ls loop.tar", 1, "loop.tar: Too many levels"),
        ("stat loop.tar", 1, "loop.tar: Too many levels"),
        ("verify loop.tar", 1, "loop.tar: Too many levels"),
        ("index loop.tar", 1, "loop.tar"),
        ("ls empty", 1, "empty"),
        ("ls columns data", 2, "only source"),
        ("ls --offline http://127.0.0.1:1/a.tar", 2, "--cache-dir"),
        ("ls --token-file none data", 2, "--token-file none"),
        ("ls --token-file bad.tar data", 2, "--token-file"),
        ("cat data 0.txt", 0, ""),
        ("cat data absent", 1, "no member 'absent'"),
        ("cat bad.tar absent", 1, "bad.tar"),
        ("cat none.tar absent", 1, "none.tar does not exist"),
        ("stat data", 0, ""),
        ("stat bad.tar", 1, "bad.tar"),
        ("stat locked.tar", 1, "Permission denied"),
        ("stat http://127.0.0.1:1/a.tar --offline --cache-dir kept", 1, "127.0.0.1"),
        ("verify data", 0, ""),
        ("verify bad.tar", 1, ""),
        ("verify none.tar", 1, "none.tar does not exist"),
        ("verify locked.tar", 1, "Permission denied"),
        ("verify --cache-limit many data", 2, "--cache-limit"),
        ("index data", 0, ""),
        ("index bad.tar", 1, "bad.tar"),
        ("index none.tar", 1, "none.tar"),
        ("index empty", 1, "empty"),
        ("index data --part 2/2", 2, "--part"),
        ("index data --merge --part 0/2", 2, "--merge"),
        ("query columns", 0, ""),
        ("query data", 2, "not a columnar dataset"),
        ("query columns nothing=1", 2, "nothing"),
        ("compact columns", 0, ""),
        ("compact data", 2, "not a columnar dataset"),
        ("cache ls --cache-dir none", 0, ""),
        ("cache clear --cache-dir none", 0, ""),
        ("cache warm http://127.0.0.1:1/a.tar", 2, "--cache-dir"),
        ("cache warm data --cache-dir kept", 0, ""),
        ("cache warm data --cache-dir kept --offline", 2, "local files"),
        ("help ls", 0, ""),
        ("--version", 0, ""),
    ],
)
def test_exit_status(work, args, status, message, capsys, monkeypatch):
    locked = work / "locked.tar"
    locked.write_bytes(b"")
    locked.chmod(0)
    if "locked" in args and os.access(locked, os.R_OK):
        pytest.skip("this user reads every file")
    (work / "empty").mkdir()
    (work / "loop.tar").symlink_to("loop.tar")  # unreadable for the superuser, too
    try:
        found = main(args.split())
    except SystemExit as error:
        found = error.code or 0
    err = capsys.readouterr().err
    assert found == status
    assert message in err
    assert bool(err) == (bool(message))


def test_a_refused_connection_is_status_1(work, capsys):
    with Server({}) as server:
        url = server.at("/absent.tar")
        for command in ("ls", "stat", "verify"):
            assert main([command, url]) == 1
            assert "status 404" in capsys.readouterr().err
        assert main(["index", url, "--out", "out"]) == 1
        assert main(["cache", "warm", url, "--cache-dir", "kept"]) == 1


WRITERS = [
    "ls data", "cat data 0.txt", "stat data", "verify data", "index data", "--help",
    "query --csv columns", "compact columns", "cache clear", "--completion bash",
]  # fmt: skip


@pytest.mark.parametrize("args", WRITERS)
def test_output_that_cannot_be_written_is_status_1(work, args):
    env = {**os.environ, "FASTSHARD_CACHE": str(work / "cache")}
    if os.path.exists("/dev/full"):
        with open("/dev/full", "w") as full:
            done = run(*args.split(), stdout=full, env=env)
        assert (done.returncode, done.stderr) == (
            1,
            "fastshard: stdout: No space left on device\n",
        )
    needs("sh")
    command = f"{FASTSHARD[0]} -m fastshard {args} >&-"
    done = subprocess.run(
        ["sh", "-c", command], stderr=subprocess.PIPE, text=True, env=env
    )
    assert (done.returncode, done.stderr) == (
        1,
        "fastshard: stdout: Bad file descriptor\n",
    )


@pytest.mark.parametrize(
    ("args", "status"), [("ls none.tar", 1), ("sl", 2), ("", 2), ("ls data", 0)]
)
@pytest.mark.parametrize("where", [">&-", ">/dev/full"])
def test_the_status_tells_without_stderr(work, args, status, where):
    if where == ">/dev/full" and not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    needs("sh")
    command = f"{FASTSHARD[0]} -m fastshard {args} 2{where}"
    done = subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE)
    assert done.returncode == status
    assert bool(done.stdout) == (status == 0)


@pytest.mark.parametrize("args", ["ls data", "verify data", "--help", "cat data 0.txt"])
def test_a_reader_that_ended_is_quiet(work, args):
    needs("bash")
    command = f"{FASTSHARD[0]} -m fastshard {args} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True)
    assert (done.returncode, done.stderr) == (141, b"")


def test_ctrl_c_is_status_130_without_a_traceback(tmp_path):
    path = tmp_path / "many.tar"
    write_tar(path, {f"{i:0100d}": b"" for i in range(5000)})
    process = subprocess.Popen(
        [*FASTSHARD, "ls", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.read(100)  # it has begun, and waits for us to read on
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130  # though nothing reads the rest
    assert process.stderr.read() == b""
    process.stdout.close()
    process.stderr.close()
