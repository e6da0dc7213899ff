"""The command ``query`` on packed shards."""

import csv
import io
import json

import pytest

from fastshard.cli import main
from fastshard.streaming import MDSWriter
from support.servers.http import Server

pytest.importorskip("pyarrow")


@pytest.fixture
def query(typed_data, capfd):
    def run(*args, shard="tagged-*.tar"):
        source = str(typed_data.root / "extra" / shard)
        status = main(["query", *map(str, args[:-1]), source, *args[-1:]])
        out, err = capfd.readouterr()
        return status, out, err

    return run


def test_samples_that_meet_a_condition(query, typed_data):
    text = (typed_data.root / "extra" / "expected.json").read_text()
    expected = json.loads(text)["queries"]["(F.label == 'dog') & F.ok"]
    status, out, err = query("label == 'dog' and ok")
    assert (status, err) == (0, "")
    assert [line.split("\t") for line in out.splitlines()] == [
        [shard, key, str(offset)] for shard, key, offset in expected
    ]
    assert query("label == 'dog' and not label == 'dog'") == (0, "", "")


def test_forms_of_output(query):
    _, out, _ = query("--json", "--limit", 1, "score > 6")
    assert json.loads(out)["shard"] == "tagged-000001"
    _, out, _ = query("--csv", "grade in (0, 2)")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert len(rows) == 10
    assert rows[0]["offset"] == "1536"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nope > 1", "no sample has a field 'nope'"),
        ("label > 1", "field 'label'"),
        ("__import__('os')", "condition"),
        ("label >", "condition"),
    ],
)
def test_conditions_that_are_refused(query, text, message):
    status, out, err = query(text)
    assert (status, out) == (2, "")
    assert message in err


def test_options_of_other_datasets_are_refused(query):
    status, _, err = query("--columns", "a", "ok")
    assert status == 2
    assert "--columns" in err


def test_false_manifests_are_named(query):
    status, out, err = query("idx > 22", shard="byatdata-*.tar")
    assert (status, len(out.splitlines())) == (0, 2)
    assert "byatdata-000002.manifest.json" in err


def test_folders_that_are_not_datasets(tmp_path, capfd):
    assert main(["query", str(tmp_path), "a > 1"]) == 2
    assert "not a columnar dataset" in capfd.readouterr().err


def test_url_of_another_format(tmp_path, capfd):
    with MDSWriter(out=str(tmp_path), columns={"a": "int"}) as writer:
        writer.write({"a": 1})
    files = {f"/mds/{path.name}": path.read_bytes() for path in tmp_path.iterdir()}
    with Server(files) as server:
        assert main(["query", f"{server.url}/mds", "a > 0"]) == 2
    assert "/mds is a streaming dataset: expected" in capfd.readouterr().err
