"""Commands on columnar datasets."""

import csv
import io
import json
import os
import sqlite3
import subprocess
import sys

import numpy as np
import pytest

from fastshard.cli import main
from support.columnar.original import OriginalReader, shard_path
from support.marks import not_sanitized

pytestmark = not_sanitized  # tests Python code and SQLite

COUNT = 7


@pytest.fixture
def root(make_original):
    with make_original(samples_per_shard=3) as writer:
        writer.add_fields(["a", "b"])
        for i in range(COUNT):
            arrays = {"a": np.full(4, i)} | ({"b": np.zeros(i)} if i % 2 else {})
            metadata = {"length": i * 10, "name": f"ä\n{i}"}
            writer.add_sample(arrays, sample_id=f"s{i}", metadata=metadata)
        writer.update_sample("s0", {"a": np.full(4, 50)})
    writer.conn.close()
    return writer.root


@pytest.fixture
def call(capfd):
    """Return a function that runs a command: its status, stdout and stderr."""

    def run(*args):
        try:
            status = main([str(arg) for arg in args])
        except SystemExit as error:
            status = error.code
        out, err = capfd.readouterr()
        assert "Traceback" not in err
        return status, out, err

    return run


def test_ls(root, call):
    ids = [f"s{i}" for i in range(COUNT)]
    assert call("ls", root) == (0, "".join(f"{name}\n" for name in ids), "")


def test_cat_writes_the_npy_file_of_a_field(root, capfdbinary):
    assert main(["cat", str(root), "3", "a"]) == 0
    array = np.load(io.BytesIO(capfdbinary.readouterr().out))
    np.testing.assert_array_equal(array, np.full(4, 3))


def test_ls_long(root, call):
    _, out, _ = call("ls", "-l", root)
    assert out.splitlines()[:2] == ["s0  a", "s1  a b"]


def test_ls_json(root, call):
    _, out, _ = call("ls", "--json", root)
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["id"] for line in lines] == [f"s{i}" for i in range(COUNT)]
    assert lines[1] == {"id": "s1", "shards": {"a": 0, "b": 0}}


def test_an_id_takes_one_line(root, call):
    connection = sqlite3.connect(root / "index.sqlite")
    with connection:
        connection.execute("DELETE FROM samples WHERE id > 's0'")
        connection.execute("UPDATE samples SET id = ?", ["new\nline \x1b[31m ä"])
        connection.execute("INSERT INTO samples (id) VALUES (CAST(x'ff' AS TEXT))")
    connection.close()
    _, out, _ = call("ls", root)
    assert out == "new\\nline \\x1b[31m ä\n\\xff\n"
    assert call("ls", "--json", root)[0] == 0


def test_stat(root, call):
    status, out, _ = call("stat", root)
    assert status == 0
    assert "samples  7" in out
    assert "a: 7 samples in 3 shards" in out
    figures = json.loads(call("stat", "--json", "--deep", root)[1])
    assert figures["fields"]["a"]["dead_members"] == 1
    assert "live" in call("stat", "--deep", root)[1]


def test_verify(root, call):
    assert call("verify", root) == (0, f"{root}: ok\n", "")
    assert call("verify", "--json", root) == (0, "", "")
    path = shard_path(root / "b_shards", 0)
    path.unlink()
    status, out, err = call("verify", root)
    assert (status, err) == (1, "")
    assert out == f"{path}: byte 0: the shard is missing; samples in it: 3\n"
    fault = json.loads(call("verify", "--json", root)[1])
    assert fault["path"] == str(path)


def everything(root):
    reader = OriginalReader(root)
    try:
        found = [reader.get_sample(f"s{i}") for i in range(COUNT)]
    finally:
        reader.close()
    return [({k: v.tolist() for k, v in a.items()}, meta) for a, meta in found]


def test_compact(root, call):
    before = everything(root)
    status, out, err = call("compact", root)
    assert (status, err) == (0, "")
    assert "bytes freed" in out
    figures = json.loads(call("stat", "--json", "--deep", root)[1])
    assert figures["fields"]["a"]["dead_members"] == 0
    assert call("verify", root)[0] == 0
    assert everything(root) == before
    done = json.loads(call("compact", "--json", root)[1])
    assert done["bytes_before"] == done["bytes_after"]


WHERE = "json_extract(meta_json, '$.length') > 40"


def test_query(root, call):
    status, out, _ = call("query", root, WHERE)
    assert status == 0
    rows = [line.split("\t") for line in out.splitlines()]
    assert [row[0] for row in rows] == ["s5", "s6"]
    assert call("query", root, "0") == (0, "", "")
    assert len(call("query", root)[1].splitlines()) == COUNT


def test_query_json(root, call):
    _, out, _ = call("query", "--json", root, WHERE)
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["id"] for row in rows] == ["s5", "s6"]
    assert json.loads(rows[0]["meta_json"]) == {"length": 50, "name": "ä\n5"}


def test_query_csv(root, call):
    columns = "id,json_extract(meta_json, '$.name'),b_shard,x'00ff'"
    _, out, _ = call("query", "--csv", "--columns", columns, root, WHERE)
    rows = list(csv.reader(io.StringIO(out)))
    assert rows == [
        ["id", "json_extract(meta_json, '$.name')", "b_shard", "x'00ff'"],
        ["s5", "ä\n5", "0", "00ff"],
        ["s6", "ä\n6", "", "00ff"],
    ]
    assert call("query", "--csv", root, "0")[1] == "id,meta_json\n"


def test_query_csv_of_a_repeated_column(root, call):
    _, out, _ = call("query", "--csv", "--columns", "id,id", root, "id = 's0'")
    assert out == "id\ns0\n"


def test_query_limit_and_columns(root, call):
    assert call("query", "--limit", 2, "--columns", "id", root) == (0, "s0\ns1\n", "")
    _, out, _ = call("query", "--columns", "id, a_shard", "--limit", 1, root)
    assert out == "s0\t2\n"


@pytest.mark.parametrize(
    "where",
    ["nothing = 1", "1; DROP TABLE samples", "(", "load_extension('x')", "x = ?"],
)
def test_invalid_queries(root, call, where):
    status, out, err = call("query", root, where)
    assert (status, out) == (2, "")
    assert err.startswith("fastshard: ")


def test_a_query_is_stopped_at_its_timeout(root, call):
    crossed = ", ".join(f"samples s{i}" for i in range(30))
    where = f"(SELECT count(*) FROM {crossed}) > 0"
    status, _, err = call("query", "--timeout", 0.3, root, where)
    assert (status, err) == (1, "fastshard: the query took longer than 0.3 seconds\n")


@pytest.mark.parametrize("command", ["query", "compact"])
def test_a_directory_without_an_index(tmp_path, call, command):
    status, _, err = call(command, tmp_path)
    assert status == 2
    assert "is not a columnar dataset" in err


@pytest.mark.parametrize("command", ["ls", "stat", "verify"])
def test_a_columnar_dataset_among_others(root, shard_path, call, command):
    status, _, err = call(command, root, shard_path)
    assert status == 2
    assert "only source" in err
    assert call(command, shard_path)[0] == 0  # tars are listed as before


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["--limit", "-1"], "must be an int of at least 0, got '-1'"),
        (["--limit", "x"], "must be an int of at least 0, got 'x'"),
        (["--timeout", "x"], "must be a number of seconds of at least 0, got 'x'"),
        (["--timeout", "nan"], "must be a number of seconds of at least 0, got 'nan'"),
        (["--json", "--csv"], "not allowed with"),
    ],
)
def test_wrong_usage(root, call, args, reason):
    status, _, err = call("query", *args, root)
    assert status == 2
    assert reason in err


@pytest.mark.parametrize("command", ["ls", "stat", "verify", "query"])
def test_an_invalid_index(tmp_path, call, command):
    (tmp_path / "index.sqlite").write_bytes(os.urandom(4096))
    status, out, err = call(command, tmp_path)
    assert status == 1
    assert "index.sqlite" in out + err


def test_as_a_process(root):
    args = [sys.executable, "-m", "fastshard", "query", str(root), WHERE, "--json"]
    done = subprocess.run(args, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert len(done.stdout.splitlines()) == 2
