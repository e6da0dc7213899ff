"""Commands ``datasets`` and ``schemas`` on an index in a file."""

import json
import os
import sqlite3
import subprocess
import sys

import numpy as np
import pytest
from numpy.typing import NDArray

from fastshard import typed
from fastshard.catalog.commands.index_options import has_password, with_password
from fastshard.cli.entry import main
from support.marks import not_sanitized
from support.processes import environment
from support.servers.atproto.pds import FakePds
from support.servers.databases.postgres import serve_postgres
from support.servers.databases.redis import serve_redis

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


def test_metadata_of_every_kind_are_json(index, call):
    url = "https://h.example/a.tar?sig=" + SECRET
    metadata = {
        "título": "日本\u202e",
        "what?now": 1,
        "nan": float("nan"),
        "list": [1, None, {"a": b"\xff"}],
        "checksums": {url: "0" * 64},
    }
    ds = typed.Dataset[Picture](index.get_dataset("pictures").data_urls[0])
    index.add_entry(ds, name="kinds", metadata=metadata)
    status, out, _ = call("datasets", "show", "kinds")
    assert status == 0
    assert '  metadata  título: "日本\\u202e"' in out
    assert '  metadata  list: [1, null, {"a": {"$bytes": "/w=="}}]' in out
    assert "  metadata  what?now: 1" in out
    (found,) = objects(call("datasets", "show", "kinds", "--json")[1])
    assert found["metadata"]["nan"] == "nan"
    assert list(found["metadata"]["checksums"]) == ["https://h.example/a.tar?..."]
    assert SECRET not in out + json.dumps(found)


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


def test_a_path_may_look_like_a_setting(index, call, tmp_path):
    path = tmp_path / "a=b.db"
    index.provider.close()  # writes its log
    os.rename(tmp_path / "index.db", path)
    for target in (str(path), f"sqlite://{path}"):
        assert call("datasets", "ls", "--index", target)[0] == 0


def test_a_missing_index_is_not_made(tmp_path, call):
    path = tmp_path / "none.db"
    status, _, err = call("datasets", "ls", "--index", str(path))
    assert (status, err) == (1, f"fastshard: there is no index at {path}\n")
    assert not path.exists()


def test_a_file_that_is_not_an_index(tmp_path, call):
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
    for command in ("datasets", "schemas"):
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


def test_no_server_is_an_error_of_one_line(tmp_path, call):
    pytest.importorskip("redis")
    path = tmp_path / "password"
    path.write_text(f"{SECRET}\n")
    status, out, err = call(
        *("datasets", "ls", "--index", "redis://127.0.0.1:9/0"),
        *("--index-password-file", str(path)),
    )
    assert (status, out) == (1, "")
    assert "127.0.0.1:9" in err
    assert SECRET not in err
    assert err.count("\n") == 1


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


# Servers.


def fill(index):
    """Write a dataset; return the line of `ls`."""
    index.write_samples([Picture("p", 1)], name="served")
    return "served\tPicture@1.0.0\t1 URL\n"


def test_an_index_on_redis_with_a_password(tmp_path, call, monkeypatch):
    store = typed.LocalDiskStore(tmp_path / "store")
    with serve_redis(str(tmp_path), SECRET) as server:
        url = f"redis://127.0.0.1:{server.port}/0"
        line = fill(typed.Index(redis=with_password(url, SECRET), data_store=store))
        path = tmp_path / "password"
        path.write_text(f"{SECRET}\n")
        args = ("datasets", "--index", url, "ls")
        assert call(*args, "--index-password-file", str(path)) == (0, line, "")
        status, _, err = call(*args)
        assert (status, f"127.0.0.1:{server.port}" in err) == (1, True)
        path.write_text("another-password\n")
        status, _, err = call(*args, "--index-password-file", str(path))
        assert status == 1
        assert "another-password" not in err
        monkeypatch.setenv("REDISCLI_AUTH", SECRET)
        assert call(*args) == (0, line, "")
        monkeypatch.delenv("REDISCLI_AUTH")
        monkeypatch.setenv("FASTSHARD_INDEX", with_password(url, SECRET))
        assert call("datasets", "ls") == (0, line, "")
        assert call("schemas", "ls")[1] == "Picture@1.0.0\tname, label\n"


def test_an_index_on_postgres(tmp_path, call):
    store = typed.LocalDiskStore(tmp_path / "store")
    with serve_postgres() as server:
        dsn = server.new()["dsn"]
        line = fill(typed.Index("postgres", dsn=dsn, data_store=store))
        assert call("datasets", "--index", dsn, "ls") == (0, line, "")
        assert call("datasets", "rm", "served", "--index", dsn)[0] == 0
        assert call("datasets", "ls", "--index", dsn) == (0, "", "")
    status, out, err = call("datasets", "ls", "--index", dsn)
    assert (status, out) == (1, "")
    assert "127.0.0.1" in err
    assert err.count("\n") == 1


# Publishing.


@pytest.fixture
def pds(monkeypatch):
    """A server with an account, which the environment names."""
    with FakePds() as server:
        server.create_account("alice.test", SECRET)
        monkeypatch.setenv("ATDATA_PDS_URL", server.url)
        monkeypatch.setenv("ATDATA_PLC_URL", server.plc.url)
        yield server


def test_a_dataset_is_published(index, call, pds, monkeypatch, tmp_path):
    monkeypatch.setenv("ATDATA_PASSWORD", SECRET)
    status, out, err = call(
        *("datasets", "promote", "pictures", "alice.test", "--blobs"),
        *("--version", "1.2.0", "--tag", "a", "--tag", "b", "--license", "MIT"),
        *("--description", "Of a camera."),
    )
    assert (status, err) == (0, "")
    assert out.startswith("at://did:")
    record = typed.Atmosphere().get_record(out.strip())
    assert (record["name"], record["tags"]) == ("pictures", ["a", "b"])
    assert (record["license"], record["description"]) == ("MIT", "Of a camera.")
    for ref in (out.strip(), "@alice.test/pictures", "@alice.test/pictures@1.2.0"):
        status, shown, err = call("datasets", "show", ref)
        assert (status, err) == (0, "")
        assert shown.splitlines()[0] == "pictures"
        assert shown.count("  url       at://did:") == 2
    args = ("datasets", "show", "@alice.test/pictures", "--json")
    (found,) = objects(call(*args)[1])
    assert list(found["checksums"]) == found["data_urls"]
    assert (found["license"], found["uri"]) == ("MIT", out.strip())
    status, shown, err = call("schemas", "show", "@alice.test/Picture@1.0.0")
    assert (status, err) == (0, "")
    assert shown.splitlines()[1:] == ["  name: str", "  label: int"]


def test_a_password_of_a_file_and_another_server(
    index, call, pds, monkeypatch, tmp_path
):
    monkeypatch.delenv("ATDATA_PDS_URL")
    path = tmp_path / "password"
    path.write_text(f"{SECRET}\n")
    ds = typed.Dataset[Picture](["https://h.example/a.tar"])
    index.add_entry(ds, name="public")
    args = ("datasets", "promote", "public", "alice.test", "--as", "far", "--json")
    more = ("--password-file", str(path), "--pds", pds.url)
    (found,) = objects(call(*args, *more)[1])
    assert found["uri"].startswith("at://did:")
    assert typed.Atmosphere(pds.url).get_record(found["uri"])["name"] == "far"
    path.write_text("no password\n")
    status, out, err = call(*args, *more)
    assert (status, out) == (1, "")
    assert "no password" not in err
    assert err.count("\n") == 1


def test_shards_that_are_not_public_are_not_published(index, call, pds, monkeypatch):
    monkeypatch.setenv("ATDATA_PASSWORD", SECRET)
    for name in ("pictures", "remote"):  # on this disk; with a token in its URL
        status, out, err = call("datasets", "promote", name, "alice.test")
        assert (status, out) == (1, "")
        assert err.count("\n") == 1
        assert SECRET not in err
    assert not any(account.records for account in pds.accounts.values())


def test_no_password_and_no_terminal(index, call, pds, monkeypatch):
    monkeypatch.delenv("ATDATA_PASSWORD", raising=False)
    status, _, err = call("datasets", "promote", "remote", "alice.test")
    assert status == 2
    assert "ATDATA_PASSWORD" in err
    assert call("datasets", "promote", "none", "alice.test")[0] == 1  # before that
    assert pds.count("com.atproto.server.createSession") == 0


# Schemas.


@pytest.fixture
def schemas(index):
    """The index with a second version of a schema, and another."""

    @typed.packable
    class Picture:  # the fixture's, and a field more
        name: str
        label: float
        note: str | None = None

    @typed.packable
    class Pixels:
        data: NDArray[np.float32]
        rest: NDArray
        tags: list[str]

    index.publish_schema(Picture, description="Of a camera.")
    index.publish_schema(Pixels, version="2.0.0")
    return index


def test_schemas_are_listed(schemas, call):
    status, out, err = call("schemas", "ls")
    assert (status, err) == (0, "")
    assert sorted(out.splitlines()) == [
        "Picture@1.0.0\tname, label",
        "Picture@1.0.1\tname, label, note",
        "Pixels@2.0.0\tdata, rest, tags",
    ]
    found = {each["ref"]: each for each in objects(call("schemas", "ls", "--json")[1])}
    assert found["atdata://local/schema/Picture@1.0.1"]["fields"][2] == {
        "name": "note",
        "fieldType": {"$type": "local#primitive", "primitive": "str"},
        "optional": True,
    }


@pytest.mark.parametrize(
    "ref", ["Picture", "Picture@1.0.1", "atdata://local/schema/Picture@1.0.1"]
)
def test_a_schema_is_shown(schemas, call, ref):
    assert call("schemas", "show", ref) == (
        0,
        "Picture@1.0.1\n"
        "  Of a camera.\n"
        "  name: str\n"
        "  label: float\n"
        "  note: str | None\n",
        "",
    )
    (found,) = objects(call("schemas", "show", ref, "--json")[1])
    assert found["ref"] == "atdata://local/schema/Picture@1.0.1"
    assert found["description"] == "Of a camera."


def test_arrays_and_lists_are_shown(schemas, call):
    assert call("schemas", "show", "Pixels")[1].splitlines()[-3:] == [
        "  data: ndarray[float32]",
        "  rest: ndarray[any]",
        "  tags: list[str]",
    ]


def test_schemas_are_compared(schemas, call):
    args = ("schemas", "diff", "Picture@1.0.0", "Picture@1.0.1")
    assert call(*args)[:2] == (
        0,
        "~ label: int -> float\n+ note: str | None\n",
    )
    back = call("schemas", "diff", "Picture@1.0.1", "Picture@1.0.0")[1]
    assert back.splitlines() == [
        "~ label: float -> int  (older samples do not fit)",
        "- note: str | None",
    ]
    found = objects(call(*args, "--json")[1])
    assert [each["is_compatible"] for each in found] == [True, True]
    assert found[0] == {
        "field": "label",
        "change": "changed",
        "before": "int",
        "after": "float",
        "is_compatible": True,
    }
    assert call("schemas", "diff", "Pixels", "Pixels")[1] == "no differences\n"
    assert call("schemas", "diff", "Pixels", "Pixels", "-q")[1] == ""


@pytest.mark.parametrize("ref", ["None", "Picture@9.9.9", "atdata://local/schema/X@1"])
def test_schemas_that_are_not_there(schemas, call, ref):
    for args in (("show", ref), ("diff", "Picture", ref)):
        status, out, err = call("schemas", *args)
        assert (status, out) == (1, "")
        assert err.count("\n") == 1
        assert ref.rpartition("/")[2].partition("@")[0] in err


def test_a_schema_whose_fields_are_not_a_list_is_listed(schemas, call, tmp_path):
    with sqlite3.connect(tmp_path / "index.db") as db:
        text = '{"name": "Pixels", "version": "2.0.0", "fields": 7}'
        sql = "UPDATE schemas SET schema_json = ? WHERE name = 'Pixels'"
        db.execute(sql, (text,))
    db.close()
    status, out, err = call("schemas", "ls")
    assert (status, err) == (0, "")
    assert "Pixels@2.0.0\t" in out.splitlines()


def test_a_damaged_schema_is_an_error_of_one_line(schemas, call, tmp_path):
    with sqlite3.connect(tmp_path / "index.db") as db:
        db.execute("UPDATE schemas SET schema_json = '[1' WHERE name = 'Pixels'")
    db.close()
    for args in (("ls",), ("show", "Pixels@2.0.0")):
        status, _, err = call("schemas", *args)
        assert status == 1
        assert "Pixels" in err
        assert err.count("\n") == 1
