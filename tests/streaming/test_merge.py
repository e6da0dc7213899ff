"""Indexes of partitions merged into one."""

import json
import os

import pytest

from fastshard import FormatError
from fastshard.streaming import JSONWriter, MDSWriter, merge_index


def write(folder, *ids, cls=MDSWriter, **options):
    with cls(columns={"id": "str"}, out=folder, **options) as writer:
        for text in ids:
            writer.write({"id": text})
    return str(folder / "index.json")


def names_in(folder):
    shards = json.loads((folder / "index.json").read_bytes())["shards"]
    keys = ("raw_data", "zip_data", "raw_meta", "zip_meta")
    return [
        shard[key]["basename"] for shard in shards for key in keys if shard.get(key)
    ]


def test_the_index_that_upstream_merged(copy_streaming):
    known = copy_streaming("edge/merged")
    parts = ("part.00000", "part.00001", "part.00002", "json.00000", "json.00001")
    path = known.root / "index.json"
    before = path.read_bytes()
    path.unlink()
    given = [str(known.root / part / "index.json") for part in parts]
    assert merge_index(given, known.root) == str(path)
    assert path.read_bytes() == before


def test_all_below_a_root_of_any_depth(tmp_path):
    for part in ("b", "a/x/y", "a/x/z", "a/w"):
        write(tmp_path / part, part)
    assert merge_index(tmp_path) == str(tmp_path / "index.json")
    wanted = ["a/w", "a/x/y", "a/x/z", "b"]
    assert names_in(tmp_path) == [f"{part}/shard.00000.mds" for part in wanted]
    assert merge_index(str(tmp_path)) == str(tmp_path / "index.json")  # not of itself
    assert len(names_in(tmp_path)) == 4
    assert merge_index(tmp_path / "a", tmp_path) == str(tmp_path / "index.json")
    assert names_in(tmp_path) == [f"{part}/shard.00000.mds" for part in wanted[:3]]


def test_a_list_in_its_order_without_repetitions(tmp_path, monkeypatch):
    paths = {part: write(tmp_path / part, part) for part in ("b", "a")}
    write(tmp_path / "a" / "x", "a/x")
    given = [paths["b"], str(tmp_path / "a" / "x"), paths["b"] + "/", paths["a"]]
    merge_index(given, tmp_path)
    wanted = ["b/shard.00000.mds", "a/x/shard.00000.mds", "a/shard.00000.mds"]
    assert names_in(tmp_path) == wanted
    monkeypatch.chdir(tmp_path)
    merge_index([("b/index.json", "s3://bucket/b/index.json")], ".")
    assert names_in(tmp_path) == wanted[:1]


def test_all_files_of_a_shard_are_named(tmp_path):
    write(tmp_path / "a", "1", cls=JSONWriter, compression="gz")
    merge_index(tmp_path)
    assert names_in(tmp_path) == [
        f"a/shard.00000.json{end}" for end in ("", ".gz", ".meta", ".meta.gz")
    ]


def test_partitions_that_are_elsewhere(tmp_path):
    given = [write(tmp_path / "x" / part, part) for part in ("0", "1/2")]
    merge_index(given, tmp_path / "new" / "out")
    assert names_in(tmp_path / "new" / "out") == [
        "0/shard.00000.mds",
        "1/2/shard.00000.mds",
    ]
    merge_index(given[:1], tmp_path / "out")
    assert names_in(tmp_path / "out") == ["0/shard.00000.mds"]


def test_the_output_itself_may_be_a_partition(tmp_path):
    given = [write(tmp_path, "top"), write(tmp_path / "a", "a")]
    merge_index(given, tmp_path)
    assert names_in(tmp_path) == ["shard.00000.mds", "a/shard.00000.mds"]


def test_keys_that_are_unknown_stay(tmp_path):
    path = write(tmp_path / "a", "1")
    index = json.loads((tmp_path / "a" / "index.json").read_bytes())
    index["shards"][0]["note"] = {"of": "ours"}
    index["shards"][0]["format"] = "line"
    (tmp_path / "a" / "index.json").write_text(json.dumps(index))
    merge_index([path], tmp_path)
    (shard,) = json.loads((tmp_path / "index.json").read_bytes())["shards"]
    assert shard["note"] == {"of": "ours"}


def test_two_indexes_that_name_one_file(tmp_path):
    write(tmp_path / "a" / "b", "1")
    merge_index(tmp_path / "a")
    with pytest.raises(FormatError, match="name"):
        merge_index(tmp_path)
    assert not (tmp_path / "index.json").exists()


@pytest.mark.parametrize("name", ["../a.mds", "/etc/passwd", "a/../../b", "", None, 5])
def test_names_that_leave_their_directory(tmp_path, name):
    write(tmp_path / "a", "1")
    index = json.loads((tmp_path / "a" / "index.json").read_bytes())
    index["shards"][0]["raw_data"]["basename"] = name
    (tmp_path / "a" / "index.json").write_text(json.dumps(index))
    with pytest.raises(FormatError) as caught:
        merge_index(tmp_path)
    assert caught.value.path == str(tmp_path / "a" / "index.json")
    assert not (tmp_path / "index.json").exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"version": 2}',
        '{"version": 2, "shards": {}}',
        '{"version": 2, "shards": [5]}',
        '{"version": 1, "shards": []}',
        '{"version": 2, "shards": [{"raw_data": []}]}',
        "[" * 200_000,
        '{"version": 2, "shards": [\ud800]}',
    ],
)
def test_indexes_that_are_none(tmp_path, text):
    (tmp_path / "a").mkdir()
    path = tmp_path / "a" / "index.json"
    path.write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(FormatError) as caught:
        merge_index(tmp_path)
    assert caught.value.path == str(path)


def test_nothing_to_merge(tmp_path):
    with pytest.raises(FileNotFoundError, match="index"):
        merge_index(tmp_path)
    with pytest.raises(FileNotFoundError):
        merge_index(tmp_path / "missing")
    with pytest.raises(FileNotFoundError):
        merge_index([tmp_path / "missing"], tmp_path)
    with pytest.raises(ValueError, match="no partitions"):
        merge_index([], tmp_path)
    assert os.listdir(tmp_path) == []


def test_arguments_that_are_refused(tmp_path):
    path = write(tmp_path / "a", "1")
    with pytest.raises(ValueError, match="out="):
        merge_index([path])
    with pytest.raises(ValueError, match="s3://bucket/a"):
        merge_index("s3://bucket/a")
    with pytest.raises(ValueError, match="gs://bucket"):
        merge_index([path], "gs://bucket")
    with pytest.raises(ValueError, match="hf://a"):
        merge_index(["hf://a/index.json"], tmp_path)
    with pytest.raises(ValueError, match="only copy"):
        merge_index(tmp_path, keep_local=False)
    assert sorted(os.listdir(tmp_path)) == ["a"]
