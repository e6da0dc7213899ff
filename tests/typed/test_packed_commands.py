"""Commands ``ls``, ``stat`` and ``verify`` with ``--packed``."""

import json
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from fastshard import typed
from fastshard.cli import main
from support.servers.http import Server
from support.typed import packed
from support.typed.packed import compact, write_payloads

pytest.importorskip("msgspec")

pack = partial(packed.pack, encode=compact)


def row(i):
    text = None if i == 1 else f"text {i}"
    return {"n": i, "x": np.zeros((i, 3), np.float32), "text": text}


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    write_payloads(folder / "a.tar", [(f"k{i}", pack(row(i))) for i in range(3)])
    later = [(f"k{i}", pack({"n": i / 2, "more": b"m"})) for i in range(3, 5)]
    write_payloads(folder / "b.tar", later)
    return folder


def run(capsys, *arguments):
    status = main(list(map(str, arguments)))
    return status, *capsys.readouterr()


def test_ls_shows_keys_and_fields(folder, capsys):
    assert run(capsys, "ls", "--packed", folder)[1].split() == [
        "k0", "k1", "k2", "k3", "k4",
    ]  # fmt: skip
    lines = run(capsys, "ls", "--packed", "--long", folder)[1].splitlines()
    assert lines[1] == "k1  n int, x array float32 [1, 3], text None"
    assert lines[4] == "k4  n float, more bytes"
    lines = run(capsys, "ls", "--packed", "--json", folder / "b.tar")[1].splitlines()
    assert json.loads(lines[1]) == {
        "key": "k4",
        "position": 1,
        "shard": str(folder / "b.tar"),
        "fields": {
            "n": {"kind": "float", "optional": False, "dtype": None, "shape": None},
            "more": {"kind": "bytes", "optional": False, "dtype": None, "shape": None},
        },
    }
    assert run(capsys, "ls", folder / "b.tar")[1].split() == [
        "k3.msgpack",
        "k4.msgpack",
    ]


class Row(typed.PackableSample):
    n: int
    x: NDArray[np.float32]
    text: str | None


class Later(typed.PackableSample):
    n: float
    more: bytes


def test_stat_shows_schemas_and_where_they_change(folder, capsys):
    status, out, _ = run(capsys, "stat", "--packed", "--deep", "--json", folder)
    assert status == 0
    figures = json.loads(out)
    assert (figures["shards"], figures["samples"], figures["examined"]) == (2, 5, 5)
    assert figures["fields"]["x"] == {
        "kind": "array", "optional": False, "dtype": "float32", "shape": [None, 3],
    }  # fmt: skip
    assert figures["fields"]["n"]["kind"] == "object"
    assert figures["fields"]["text"]["optional"]
    first, second = figures["schemas"]
    assert first["fingerprint"] == typed.fingerprint(Row)
    assert second["fingerprint"] == typed.fingerprint(Later)
    assert (first["position"], second["position"], second["key"]) == (0, 3, "k3")
    assert first["fields"]["text"] == "str or None"

    lines = run(capsys, "stat", "--packed", folder)[1].splitlines()
    assert "  samples  5, 2 examined" in lines
    assert "  field    x: array float32 [0, 3]" in lines
    assert lines[-1].startswith(f"  schema   {typed.fingerprint(Later)} from sample 3")


def test_schemas_that_change_often_are_cut(tmp_path, capsys):
    payloads = [(str(i), pack({"n": i if i % 2 else "n"})) for i in range(300)]
    write_payloads(tmp_path / "a.tar", payloads)
    out = run(capsys, "stat", "--packed", "--deep", "--json", tmp_path / "a.tar")[1]
    schemas = json.loads(out)["schemas"]
    assert [schema["position"] for schema in schemas] == list(range(100))


def test_verify_names_faults_of_payloads(folder, capsys):
    assert run(capsys, "verify", "--packed", folder)[0] == 0
    path = folder / "b.tar"
    path.write_bytes(path.read_bytes().replace(b"more", b"mor\xff"))
    assert run(capsys, "verify", folder)[0] == 0
    status, out, _ = run(capsys, "verify", "--packed", "--json", folder)
    assert status == 1
    faults = [json.loads(line) for line in out.splitlines()]
    assert [fault["member"] for fault in faults] == ["sample 'k3'", "sample 'k4'"]
    assert {fault["path"] for fault in faults} == {str(path)}
    assert "UTF-8" in faults[0]["reason"]


def test_commands_take_urls(folder, capsys):
    files = {f"/d/{path.name}": path.read_bytes() for path in folder.glob("*.tar")}
    with Server(files) as server:
        urls = f"{server.url}/d/{{a,b}}.tar"
        assert run(capsys, "ls", "--packed", urls)[1].split()[4] == "k4"
        out = run(capsys, "stat", "--packed", "--json", "--deep", urls)[1]
        assert len(json.loads(out)["schemas"]) == 2
        assert run(capsys, "verify", "--packed", urls)[0] == 0
