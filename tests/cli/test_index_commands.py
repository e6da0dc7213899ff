"""Commands ``datasets`` and ``schemas`` on an index in a file."""

import json
import os
import sqlite3
import subprocess
import sys

import pytest

from fastshard import typed
from fastshard.cli.entry import main
from fastshard.typed.commands.index_options import has_password, with_password
from support.marks import not_sanitized
from support.processes import environment

pytestmark = not_sanitized  # tests no C code

SECRET = "hunter2-secret"


@typed.packable
class Picture:
    name: str
    label: int


@pytest.fixture
def index(tmp_path, monkeypatch):
    """An index with two datasets, in the default place of this process."""
    path = tmp_path / "index.db"
    monkeypatch.setenv("FASTSHARD_INDEX", str(path))
    store = typed.LocalDiskStore(tmp_path / "store")
    index = typed.Index(path=path, data_store=store)
    samples = [Picture(f"p{i}", i) for i in range(4)]
    index.write_samples(samples, name="pictures", maxcount=2, metadata={"raw": b"\0"})
    ds = typed.Dataset[Picture](["https://h.example/a.tar?token=" + SECRET])
    ref = index.get_dataset("pictures").schema_ref
    index.add_entry(ds, name="remote", schema_ref=ref)
    return index


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


def objects(out):
    return [json.loads(line) for line in out.splitlines()]


def test_datasets_are_listed(index, call):
    status, out, err = call("datasets", "ls")
    assert (status, err) == (0, "")
    assert sorted(out.splitlines()) == [
        "pictures\tPicture@1.0.0\t2 URLs",
        "remote\tPicture@1.0.0\t1 URL",
    ]
    found = {
        each["name"]: each for each in objects(call("datasets", "ls", "--json")[1])
    }
    entry = index.get_dataset("pictures")
    assert found["pictures"] == {
        "name": "pictures",
        "cid": entry.cid,
        "schema_ref": "atdata://local/schema/Picture@1.0.0",
        "data_urls": entry.data_urls,
        "metadata": {"raw": {"$bytes": "AA=="}, "checksums": entry.checksums},
    }
    assert found["remote"]["data_urls"] == ["https://h.example/a.tar?..."]
    assert SECRET not in out


def test_the_index_stands_before_or_behind_the_command(index, call, monkeypatch):
    path = os.environ["FASTSHARD_INDEX"]
    monkeypatch.delenv("FASTSHARD_INDEX")
    before = call("datasets", "--index", path, "ls")
    assert before == call("datasets", "ls", "--index", path)
    assert before[0] == 0
    assert before == call("datasets", "--index", "none", "ls", "--index", path)


def test_a_dataset_is_shown(index, call):
    index.label("best", index.get_dataset("pictures").cid, version="1.0.0")
    status, out, err = call("datasets", "show", "pictures")
    assert (status, err) == (0, "")
    entry = index.get_dataset("pictures")
    url = entry.data_urls[0]
    lines = out.splitlines()
    assert lines[:3] == ["pictures", f"  cid       {entry.cid}", lines[2]]
    assert "  schema    Picture@1.0.0" in lines
    assert "  label     best@1.0.0" in lines
    assert '  metadata  raw: {"$bytes": "AA=="}' in lines
    assert lines[lines.index(f"  url       {url}") + 1].split() == [
        "sha256",
        entry.checksums[url],
    ]
    (found,) = objects(call("datasets", "show", "best", "--json")[1])
    assert found["name"] == "pictures"
    assert {"name": "best", "version": "1.0.0"} in found["labels"]
    status, out, err = call("datasets", "show", "remote")
    assert (status, SECRET in out) == (0, False)


def test_a_dataset_is_labelled(index, call):
    assert call("datasets", "label", "pictures", "2.1.0")[0] == 0
    assert index.get_label("pictures", "2.1.0").name == "pictures"
    status, out, _ = call(
        "datasets", "label", "pictures", "1.0.0", "--label", "best", "--json"
    )
    cid = index.get_dataset("pictures").cid
    assert (status, objects(out)) == (
        0,
        [{"name": "best", "version": "1.0.0", "cid": cid}],
    )
    assert index.get_label("best").cid == cid


def test_a_dataset_is_removed_and_its_shards_stay(index, call):
    urls = index.get_dataset("pictures").data_urls
    status, out, _ = call("datasets", "rm", "pictures")
    assert (status, out) == (0, "pictures removed; its shards stay\n")
    assert all(map(os.path.exists, urls))
    assert [entry.name for entry in index.datasets] == ["remote"]
    assert call("datasets", "rm", "remote", "--json")[1] == '{"removed": "remote"}\n'


@pytest.mark.parametrize(
    "args",
    [
        ("datasets", "show", "none"),
        ("datasets", "label", "none", "1.0.0"),
        ("datasets", "rm", "none"),
    ],
)
def test_names_that_are_not_there(index, call, args):
    status, out, err = call(*args)
    assert (status, out) == (1, "")
    assert err.startswith("fastshard: ")
    assert "none" in err
    assert err.count("\n") == 1


def test_an_index_that_is_not_there_is_not_made(tmp_path, call):
    path = tmp_path / "none.db"
    status, _, err = call("datasets", "ls", "--index", str(path))
    assert (status, err) == (1, f"fastshard: there is no index at {path}\n")
    assert not path.exists()


def test_a_file_that_is_no_index(tmp_path, call):
    path = tmp_path / "index.db"
    path.write_bytes(b"x" * 5000)
    status, _, err = call("datasets", "ls", "--index", str(path))
    assert status == 1
    assert str(path) in err
    assert "Traceback" not in err


def test_damaged_rows_are_errors_of_one_line(index, call, tmp_path):
    with sqlite3.connect(tmp_path / "index.db") as db:
        db.execute("UPDATE dataset_entries SET data_urls = x'c1' WHERE name = 'remote'")
    db.close()
    status, _, err = call("datasets", "ls")
    assert status == 1
    assert "remote" in err or "data_urls" in err
    assert err.count("\n") == 1


def test_hostile_names_take_one_line(index, call):
    index.add_entry(
        typed.Dataset[Picture](["https://h.example/a.tar"]),
        name="a\nb\x1b[31m\u202e",
    )
    status, out, _ = call("datasets", "ls")
    assert status == 0
    assert len(out.splitlines()) == 3
    assert "\x1b" not in out
    assert "\u202e" not in out


@pytest.mark.parametrize(
    "target",
    [
        f"postgresql://someone:{SECRET}@localhost/db",
        f"postgresql://localhost/db?password={SECRET}",
        f"host=localhost password={SECRET}",
        f"redis://:{SECRET}@localhost:6379/0",
        f"redis://localhost?password={SECRET}",
    ],
)
def test_passwords_in_arguments_are_refused(target, call):
    assert has_password(target)
    for command in ("datasets",):
        status, out, err = call(command, "--index", target, "ls")
        assert (status, out) == (2, "")
        assert "--index-password-file" in err
        assert SECRET not in err


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("postgresql://localhost/db", "postgresql://:a%2Fb%27%20@localhost/db"),
        ("postgres://me@h:1/db?x=1", "postgres://me:a%2Fb%27%20@h:1/db?x=1"),
        ("redis://h:1", "redis://:a%2Fb%27%20@h:1"),
        ("redis://h?db=1", "redis://:a%2Fb%27%20@h?db=1"),
        ("host=h user=me", "host=h user=me password='a/b\\' '"),
    ],
)
def test_passwords_are_quoted(target, expected):
    assert not has_password(target)
    assert with_password(target, None) == target
    assert with_password(target, "a/b' ") == expected


def test_passwords_of_files(tmp_path, call):
    path = tmp_path / "password"
    url = "redis://127.0.0.1:9/0"
    args = ("datasets", "ls", "--index", url, "--index-password-file", str(path))
    status, _, err = call(*args)
    assert (status, "--index-password-file" in err) == (2, True)
    path.write_text("\n")
    assert "first line is empty" in call(*args)[2]
    path.write_text(f"{SECRET}\n")
    args = ("datasets", "ls", "--index", str(path), *args[4:])
    assert call(*args)[0] == 2


def test_a_password_is_asked_for_on_a_terminal_only(call):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "fastshard",
            *("datasets", "ls", "--index", "redis://h", "--ask-index-password"),
        ],
        stdin=subprocess.DEVNULL,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "no terminal" in done.stderr


def test_other_targets(call):
    status, _, err = call("datasets", "ls", "--index", "mysql://h/db")
    assert status == 2
    assert "expected a path, postgresql:// or redis://" in err
