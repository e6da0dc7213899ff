"""Commands on streaming datasets."""

import json
import os

import pytest

from fastshard.cli import main
from fastshard.streaming.write.jsonl import JSONWriter
from fastshard.streaming.write.mds import MDSWriter
from support.marks import not_sanitized
from support.servers.http import Server

pytestmark = not_sanitized  # tests Python code

COLUMNS = {"__key__": "str", "image": "jpeg", "label": "int"}


def write_mds(folder, count=5, columns=COLUMNS, **options):
    with MDSWriter(columns=columns, out=folder, size_limit=250, **options) as writer:
        for i in range(count):
            sample = {"__key__": f"k{i}", "image": b"j" * i, "label": i, "a\nb": "x"}
            writer.write({name: sample[name] for name in columns})
    return str(folder)


def run(capsys, *args):
    status = main([str(arg) for arg in args])
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return status, out.splitlines(), err


def test_ls_shows_keys_and_columns(tmp_path, capsys):
    root = write_mds(tmp_path / "d")
    assert run(capsys, "ls", root) == (0, ["k0", "k1", "k2", "k3", "k4"], "")
    assert run(capsys, "ls", "--long", root)[1][1] == "k1  image label"
    lines = run(capsys, "ls", "--json", root)[1]
    shards = {json.loads(line)["shard"] for line in lines}
    assert len(shards) > 1
    assert shards < set(os.listdir(root))
    assert json.loads(lines[1]) == {
        "key": "k1",
        "position": 1,
        "shard": json.loads(lines[1])["shard"],
        "fields": ["image", "label"],
    }


def test_ls_of_samples_without_keys_opens_no_shard(tmp_path, capsys):
    root = write_mds(tmp_path / "d", columns={"label": "int", "a\nb": "str"})
    for name in os.listdir(root):
        if name.endswith(".mds"):
            os.unlink(f"{root}/{name}")
    status, lines, err = run(capsys, "ls", "-l", root)
    assert (status, lines[2], err) == (0, r"2  a\nb label", "")
    status, lines, _ = run(capsys, "stat", root)
    assert lines[-1].startswith("  missing  ")
    assert "shard.00000.mds" in lines[-1]


def test_cat_writes_the_stored_bytes(tmp_path, capsys):
    root = write_mds(tmp_path / "d", compression="bz2")
    assert run(capsys, "cat", root, 3, "image")[1] == ["jjj"]
    assert run(capsys, "cat", root, -1, "image")[1] == ["jjjj"]
    status, lines, err = run(capsys, "cat", root, 3, "nope")
    assert (status, lines) == (1, [])
    assert "nope" in err
    with JSONWriter(columns={"s": "str"}, out=tmp_path / "j") as writer:
        writer.write({"s": 'a "b"'})
    assert run(capsys, "cat", tmp_path / "j", 0, "s")[1] == [r'"a \"b\""']


@pytest.mark.parametrize("compression", [None, "gz:1"])
def test_stat(tmp_path, capsys, compression):
    root = write_mds(tmp_path / "d", compression=compression, hashes=["md5", "sha1"])
    status, [line], _ = run(capsys, "stat", "--json", "--deep", root)
    figures = json.loads(line)
    index = json.loads((tmp_path / "d/index.json").read_bytes())
    assert status == 0
    assert figures["dataset"] == root
    assert figures["samples"] == 5
    assert figures["shards"] == len(index["shards"])
    assert figures["formats"] == {"mds": figures["shards"]}
    assert figures["compressions"] == {compression or "none": figures["shards"]}
    assert figures["hashes"] == ["md5", "sha1"]
    raw = [shard["raw_data"]["bytes"] for shard in index["shards"]]
    assert figures["bytes"] == sum(raw)
    assert (figures["compressed_bytes"] > 0) == (compression is not None)
    assert figures["columns"] == COLUMNS
    assert figures["missing"] == []
    assert figures["fields"] == {
        "__key__": {"count": 5, "bytes": 10, "smallest": 2, "largest": 2},
        "image": {"count": 5, "bytes": 10, "smallest": 0, "largest": 4},
        "label": {"count": 5, "bytes": 40, "smallest": 8, "largest": 8},
    }
    status, lines, _ = run(capsys, "stat", "--deep", root)
    assert lines[0] == root
    assert "  samples  5" in lines
    assert "  columns  __key__: str, image: jpeg, label: int" in lines
    assert "  image: 10 bytes, 0 to 4 bytes each" in lines


def test_verify_finds_damage_and_hashes(tmp_path, capsys):
    root = write_mds(tmp_path / "d", hashes=["sha1"])
    assert run(capsys, "verify", "--hash", root) == (0, [f"{root}: ok"], "")
    path = tmp_path / "d/shard.00001.mds"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1  # of a number: only the hash tells
    path.write_bytes(data)
    assert run(capsys, "verify", root)[0] == 0
    status, [line], _ = run(capsys, "verify", "--hash", root)
    assert status == 1
    assert "shard.00001.mds" in line
    assert "sha1" in line
    path.write_bytes(data[:-3])
    status, lines, _ = run(capsys, "verify", "--json", root)
    assert status == 1
    assert json.loads(lines[0])["path"] == str(path)


def test_urls(tmp_path, capsys):
    root = tmp_path / "d"
    write_mds(root)
    with Server({f"/d/{p.name}": p.read_bytes() for p in root.iterdir()}) as server:
        url = f"{server.url}/d"
        assert run(capsys, "ls", url)[:2] == (0, ["k0", "k1", "k2", "k3", "k4"])
        assert json.loads(run(capsys, "stat", "--json", url)[1][0])["samples"] == 5
        assert run(capsys, "verify", url)[0] == 0
        assert run(capsys, "cat", url, 2, "image")[1] == ["jj"]


def test_a_damaged_index_is_a_message(tmp_path, capsys):
    root = tmp_path / "d"
    write_mds(root)
    index = root / "index.json"
    index.write_bytes(index.read_bytes()[:-5])
    for command in ("ls", "stat", "verify"):
        status, lines, err = run(capsys, command, root)
        assert (status, lines) == (1, [])
        assert "index.json" in err
