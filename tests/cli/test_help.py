"""Help of the commands, and suggestions for misspelt words."""

import os
import re
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest

import fastshard
from fastshard import typed
from fastshard.cli.entry import main
from fastshard.cli.program import make_parser
from fastshard.columnar import ShardedDatasetWriter
from support.marks import not_sanitized
from support.paths import TREE
from support.processes import COMMAND
from support.servers.atproto.pds import FakePds
from support.servers.hub import FakeHub

pytestmark = not_sanitized

PARSERS = list(make_parser().walk())
COMMANDS = [parser for parser in PARSERS if parser.commands is None]
EXAMPLES = [
    pytest.param(command, id=command.removeprefix("fastshard "))
    for parser in COMMANDS
    for _, command in parser.examples
    if "..." not in command  # stands for the identifiers of an account
]


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.prog)
def test_every_argument_has_help_and_every_command_examples(parser):
    assert parser.description
    for action in parser._actions:
        assert action.help or action is parser.commands, action
        if action.option_strings and action.nargs != 0 and action.default is not None:
            assert "default" in action.help, action
    if parser.commands is None:
        assert parser.examples
        assert "exit status" in parser.format_help()
    else:
        helps = [each.help for each in parser.commands._choices_actions]
        assert len(helps) == len(parser.commands.choices)
        assert all(helps)


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.prog)
def test_help_fits_a_terminal_of_80_columns(parser, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for line in parser.format_help().splitlines():
        assert len(line) <= 79 or line.strip().startswith("fastshard"), line


@typed.packable
class Image:
    text: str


Captioned = typed.packable(type("Image", (), {"__annotations__": {"text": int}}))


@pytest.fixture(scope="module")
def bin_folder(tmp_path_factory):
    """Return a folder with the command ``fastshard`` of this interpreter."""
    folder = tmp_path_factory.mktemp("bin")
    command = folder / "fastshard"
    (folder / "command.py").write_text(COMMAND)
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" {folder}/command.py "$@"\n')
    command.chmod(0o755)
    return folder


@pytest.fixture
def work(tmp_path):
    """Return a folder with two shards in ``data``, and a columnar dataset."""
    with fastshard.ShardWriter(tmp_path / "data/train-{:04d}.tar", max_count=3) as w:
        for i in range(6):
            w.write({"__key__": f"{i:06d}", "png": bytes(100 * i), "cls": str(i % 2)})
    with ShardedDatasetWriter(tmp_path / "columns") as writer:
        writer.add_field("x")
        for i in range(4):
            writer.add_sample({"x": np.arange(i)}, metadata={"label": i % 2})
    store = typed.LocalDiskStore(tmp_path / "store")
    index = typed.Index(path=tmp_path / "index.db", data_store=store)
    index.write_samples([Image(f"a picture {i}") for i in range(4)], name="images")
    index.publish_schema(Captioned)
    return tmp_path


@pytest.mark.parametrize("command", EXAMPLES)
def test_examples_run_as_printed(command, work, bin_folder):
    shards = {path.name: path.read_bytes() for path in work.glob("data/*.tar")}
    if "--merge" in command or "--hash" in command:  # says what goes before
        before = "fastshard index data" + " --hash" * ("--hash" in command)
        assert run_shell(before, work, bin_folder).returncode == 0
    with FakeHub({"me/pictures": shards}) as hub:
        settings = {"HF_ENDPOINT": hub.url, "FASTSHARD_CACHE": str(work / "cache")}
        if command.startswith("fastshard cache clear"):
            url = "hf://datasets/me/pictures/train-0000.tar"
            warm = f"fastshard cache warm --cache-dir kept {url}"
            assert run_shell(warm, work, bin_folder, settings).returncode == 0
        with serve_account(command) as more:
            done = run_shell(command, work, bin_folder, settings | more)
    assert (done.returncode, done.stderr) == (0, "")
    if "cache ls" not in command and ">" not in command:
        assert done.stdout or "--quiet" in command
    if "demo --out" in command:
        assert "fastshard stat demo/images-0000.tar" in done.stdout


@contextmanager
def serve_account(command):
    """Run a server with the account of an example; yield its environment."""
    if "alice.test" not in command:
        yield {}
        return
    with FakePds() as pds:
        pds.create_account("alice.test", "app-password")
        yield {
            "ATDATA_PDS_URL": pds.url,
            "ATDATA_PLC_URL": pds.plc.url,
            "ATDATA_PASSWORD": "app-password",
        }


def run_shell(command, folder, bin_folder, settings=None):
    path = f"{bin_folder}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, **(settings or {}), "PATH": path},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def call(capsys):
    """Return a function that runs a command: its status, stdout and stderr."""

    def run(*args):
        try:
            status = main(list(args))
        except SystemExit as error:
            status = error.code or 0
        return status, *capsys.readouterr()

    return run


def test_no_command_is_help_on_stderr_and_wrong_usage(call):
    status, out, err = call()
    assert (status, out) == (2, "")
    assert err == make_parser().format_help()
    status, out, err = call("cache")
    assert (status, out) == (2, "")
    assert "download whole shards" in err
    status, out, err = call("datasets", "--index", "x.db")
    assert (status, out) == (2, "")
    assert err.startswith("usage: fastshard datasets ")


def test_help_is_a_command_too(call):
    assert call("help") == call("--help") == (0, make_parser().format_help(), "")
    status, out, err = call("help", "cache", "warm")
    assert (status, err) == (0, "")
    assert out.startswith("usage: fastshard cache warm")
    assert out == call("cache", "warm", "-h")[1]
    assert call("help", "sl")[0] == 2


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("verfy data", "fastshard: unknown command 'verfy'; did you mean verify?"),
        ("list data", "fastshard: unknown command 'list'; did you mean ls?"),
        ("sl data", "fastshard: unknown command 'sl'; did you mean ls?"),
        ("check data", "unknown command 'check'; did you mean verify?"),
        ("version", "unknown command 'version'; did you mean --version?"),
        ("cache version", "fastshard cache: unknown command 'version'; commands: ls,"),
        ("cache rm", "fastshard cache: unknown command 'rm'; did you mean clear?"),
        ("rm data", "fastshard: unknown command 'rm'; commands: ls, cat,"),
        ("cache lss", "fastshard cache: unknown command 'lss'; did you mean ls?"),
        ("frobnicate", "fastshard: unknown command 'frobnicate'; commands: ls, cat,"),
        ("ls --lnog data", "fastshard ls: unknown option --lnog; did you mean --long?"),
        ("ls --jsn", "fastshard ls: unknown option --jsn; did you mean --json?"),
        ("ls --xyzzy=1 data", "fastshard ls: unknown option --xyzzy\n"),
        ("ls", "fastshard ls: missing: SOURCE\n"),
        ("cat data", "fastshard cat: missing: NAME\n"),
        ("query a b c", "fastshard query: unexpected argument: c\n"),
        ("index d --format jsn", "got 'jsn'; did you mean json?\n"),
        ("index d --threads 0", "must be an int of at least 1, got '0'\n"),
        (
            "ls --hash data",
            "fastshard ls: unknown option --hash; it is an option of: "
            "fastshard verify, fastshard index\n",
        ),
        (
            "--json ls data",
            "fastshard: unknown option --json before the command; "
            "write it behind the command: fastshard ls --json\n",
        ),
    ],
)
def test_wrong_usage_has_a_suggestion(call, args, message):
    status, out, err = call(*args.split())
    assert (status, out) == (2, "")
    assert message in err
    assert "usage: fastshard" in err
    assert "--help" in err


def test_the_page_of_commands_has_each_with_its_help():
    page = TREE / "docs" / "command-line.md"
    if not page.exists():
        pytest.skip("no source tree")
    rows = re.findall(
        r"^\| \[?`(\w+)`(?:\]\(#\w+\))? \| (.*) \|$", page.read_text(), re.M
    )
    documented = {command: text.replace("`", "") for command, text in rows[:13]}
    listed = {each.dest: each.help for each in PARSERS[0].commands._choices_actions}
    assert documented.pop("help").startswith(listed.pop("help"))
    assert documented == listed
    statuses = re.findall(r"^\| (\d+) \| ", page.read_text(), re.M)
    assert statuses == re.findall(r"^ +(\d+)  ", PARSERS[0].epilog, re.M)


def test_a_hostile_argument_takes_one_line(call):
    err = call("ls", "--a\nb\x1b[31m", "x")[2]
    assert "unknown option --a\\nb\\x1b[31m" in err
    assert "\x1b" not in err
