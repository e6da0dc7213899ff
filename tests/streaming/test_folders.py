"""Several MDS datasets as one: lists, braces, globs, parents; texts of errors."""

import itertools
import json
import os
import pickle
import shutil

import numpy as np
import pytest

import fastshard
from fastshard import FastshardError, FormatError, ShardNotFoundError
from fastshard.cli.entry import main
from fastshard.columnar import ShardedDatasetWriter
from fastshard.streaming import JSONWriter, MDSWriter
from support.servers.http import Server

COUNTS = {"a": 7, "b": 5, "c10": 3, "c2": 2}


def write(root, name, count, **options):
    columns = {"i": "int", "text": "str"}
    with MDSWriter(out=str(root / name), columns=columns, **options) as writer:
        for i in range(count):
            writer.write({"i": i, "text": f"{name} {i}"})


@pytest.fixture
def mds(tmp_path):
    """Make four datasets of shards of a few samples below one directory."""
    for name, count in COUNTS.items():
        write(tmp_path / "mds", name, count, size_limit=70)
    return tmp_path / "mds"


def expected(*names):
    return [f"{name} {i}" for name in names for i in range(COUNTS[name])]


def texts(ds):
    return [sample.decode("text")["text"] for sample in ds]


SOURCES = [
    (["a", "b"], ["a", "b"]),
    (["c2/", "b", "a/"], ["c2", "b", "a"]),
    ("{b,a}", ["b", "a"]),
    ("{b,a}/", ["b", "a"]),
    ("c{2..10..8}", ["c2", "c10"]),
    ("*/", ["a", "b", "c2", "c10"]),
    ("*", ["a", "b", "c2", "c10"]),
    ("c*/", ["c2", "c10"]),
    ("**", ["a", "b", "c2", "c10"]),
    (["a", "c*/"], ["a", "c2", "c10"]),
]


@pytest.mark.parametrize(("source", "names"), SOURCES)
def test_samples_of_one_dataset_after_those_of_another(mds, source, names):
    listed = [source] if isinstance(source, str) else source
    paths = [f"{mds}/{each}" for each in listed]
    with fastshard.open(paths[0] if isinstance(source, str) else paths) as ds:
        assert texts(ds) == expected(*names)
        assert len(ds) == len(expected(*names))
        assert ds.verify() == []


def test_relative_sources_and_those_joined_by_colons(mds, monkeypatch):
    monkeypatch.chdir(mds.parent)
    for source in ("mds/{a,b}", "mds/a::mds/b", f"file://{mds}/{{a,b}}"):
        with fastshard.open(source) as ds:
            assert texts(ds) == expected("a", "b")


def test_a_dataset_without_a_shard_pickles(mds):
    with fastshard.open([mds / "a", mds / "b"]) as ds:
        part = ds.exclude([1])
        assert 0 < len(part) < len(ds)
        assert texts(pickle.loads(pickle.dumps(part))) == texts(part)


def test_a_joined_dataset_is_one_in_all_else(mds):
    source = [mds / "b", mds / "a"]
    both = expected("b", "a")
    with fastshard.open(source) as ds:
        parts = fastshard.open(mds / "b") + fastshard.open(mds / "a")
        assert [sample.decode("i")["i"] for sample in ds] == [
            sample.decode("i")["i"] for sample in parts
        ]
        assert [sample.key for sample in ds] == list(map(str, range(12)))
        assert ds["9"].decode("text") == ds[9].decode("text")
        assert texts(pickle.loads(pickle.dumps(ds))) == both
        assert next(iter(ds.loader(12)))["text"] == both
        assert next(ds.select_fields("i").batches(12))["i"].tolist() == [
            *range(5),
            *range(7),
        ]
        assert sorted(texts(ds.shuffle(seed=3))) == sorted(both)
        shares = [texts(ds.split_by_rank(rank, 3)) for rank in range(3)]
        assert sorted(itertools.chain(*shares)) == sorted(both)
        assert ds.decode("i")[-1] == {"__key__": "11", "i": 6}
        assert dict(ds.fields).keys() == {"i", "text"}
        assert "{b,a}" in repr(ds)


def test_a_state_continues_where_the_datasets_are_moved_to(mds, tmp_path):
    ds = fastshard.open([mds / "b", mds / "a"]).shuffle(seed=5)
    samples = iter(ds)
    before = [next(samples).decode("text")["text"] for _ in range(5)]
    state = samples.state_dict()
    (tmp_path / "elsewhere").mkdir()
    for name in "ab":
        shutil.move(mds / name, tmp_path / "elsewhere" / f"{name}s")

    moved = [tmp_path / "elsewhere" / f"{name}s" for name in "ba"]
    again = fastshard.open(moved).shuffle(seed=5).resume(state)
    assert sorted(before + texts(again)) == sorted(expected("b", "a"))
    with pytest.raises(FastshardError, match=r"state"):
        fastshard.open(moved[::-1]).shuffle(seed=5).resume(state)


def test_datasets_of_other_columns_formats_and_compressions(tmp_path):
    write(tmp_path, "x", 3, compression="zstd", hashes=["sha1"])
    with JSONWriter(out=str(tmp_path / "y"), columns={"n": "int"}) as writer:
        for n in range(4):
            writer.write({"n": n})
    with fastshard.open(tmp_path / "{x,y}", validate_hash=None) as ds:
        assert [list(sample.keys()) for sample in ds] == [["i", "text"]] * 3 + [
            ["n"]
        ] * 4
        assert ds[5].decode("n")["n"] == 2
        assert ds.verify(hashes=True) == []


def test_splits_of_several_datasets(tmp_path):
    for name in ("en", "de"):
        write(tmp_path, f"{name}/train", 3)
        write(tmp_path, f"{name}/val", 2)
    with fastshard.open(tmp_path / "{en,de}", split="val") as ds:
        assert texts(ds) == [f"{n}/val {i}" for n in ("en", "de") for i in range(2)]
        assert texts(pickle.loads(pickle.dumps(ds))) == texts(ds)
    with pytest.raises(ShardNotFoundError, match=r"no split 'test' in .*en"):
        fastshard.open(tmp_path / "{en,de}", split="test")
    shutil.rmtree(tmp_path / "de/val")
    with pytest.raises(ShardNotFoundError, match=r"no split 'val' in .*de.*: train"):
        fastshard.open(tmp_path / "*/", split="val")


def test_a_non_dataset_among_others_is_an_error(mds):
    with pytest.raises(ShardNotFoundError, match=r"nope does not exist"):
        fastshard.open([mds / "a", mds / "nope"])
    with pytest.raises(ShardNotFoundError, match=r"matches no shard"):
        fastshard.open([mds / "a", f"{mds}/nope*/"])
    with pytest.raises(FastshardError, match=r"a is listed twice"):
        fastshard.open([mds / "a", f"{mds}/a/"])
    (mds / "empty").mkdir()
    with pytest.raises(ShardNotFoundError, match=r"no MDS dataset in .*empty"):
        fastshard.open(f"{mds}/*/")
    with pytest.raises(FastshardError, match=r"only local or only remote"):
        fastshard.open([mds / "a", "http://127.0.0.1:9/b"])
    (mds / "b/index.json").write_text('{"version": 2, "shards": [5]}')
    with pytest.raises(FormatError, match=r"expected an object") as caught:
        fastshard.open([mds / "a", mds / "b"])
    assert caught.value.path == str(mds / "b/index.json")


@pytest.mark.skipif(os.name == "nt", reason="needs links")
def test_tars_of_a_pattern_come_first_and_keep_their_errors(mds):
    (mds / "x.tar").symlink_to("nowhere")
    for pattern in ("**", "*"):
        with pytest.raises(ShardNotFoundError, match=r"x\.tar (is a dang|does)"):
            fastshard.open(f"{mds}/{pattern}")


def test_an_index_of_the_parent_names_the_same_files(mds):
    fastshard.streaming.merge_index(str(mds), keep_local=True)
    assert len(fastshard.open(mds)) == sum(COUNTS.values())
    with pytest.raises(FormatError, match=r"two shards name one file"):
        fastshard.open([mds, mds / "a"])


def test_a_parent_names_its_datasets(mds, monkeypatch):
    monkeypatch.chdir(mds.parent)
    message = "it holds MDS datasets a, b, c2, c10: open one, or all by 'mds/.*/'"
    for source in ("mds", "mds/", "mds/nope*", ["mds", "mds/a"]):
        with pytest.raises(ShardNotFoundError, match=message):
            fastshard.open(source)
    write(mds.parent / "deep", "x/y", 2, compression="zstd")
    write(mds.parent / "deep", "z", 2)
    with pytest.raises(
        ShardNotFoundError, match=r"x/y, .*z: open one, or all by '.*deep"
    ):
        fastshard.open("deep")
    assert len(fastshard.open("deep/**")) == 4
    for name in ("p", "q"):
        with ShardedDatasetWriter(f"columns/{name}") as writer:
            writer.add_field("h")
            writer.add_sample({"h": np.zeros(3)})
    with pytest.raises(
        ShardNotFoundError, match=r"holds columnar datasets p, q: open one"
    ):
        fastshard.open("columns")
    for source in (["columns/p", "columns/q"], "columns/{p,q}", "columns/*/"):
        with pytest.raises(
            FastshardError, match=r"sum\(map\(fastshard.open, \['columns"
        ):
            fastshard.open(source)
    with pytest.raises(ShardNotFoundError, match=r"it is a columnar dataset"):
        fastshard.open(["mds/a", "columns/p"])


@pytest.mark.parametrize("suffix", ["", ".zstd"])
def test_a_bare_shard_names_its_index(tmp_path, suffix):
    write(tmp_path, "a", 2, compression=suffix[1:] or None)
    path = tmp_path / f"a/shard.00000.mds{suffix}"
    for open_one in (
        fastshard.open,
        fastshard.open_shard,
        lambda p: fastshard.open([p]),
    ):
        with pytest.raises(
            FastshardError, match=r"directory of its index.json, .*a"
        ) as caught:
            open_one(path)
        assert "unzstd" not in str(caught.value)
    with pytest.raises(
        FastshardError, match=r"index of the MDS dataset .*a: open that"
    ):
        fastshard.open(tmp_path / "a/index.json")
    os.remove(tmp_path / "a/index.json")
    with pytest.raises(FastshardError, match=r"no index.json: .*rebuild_index"):
        fastshard.open(path)
    with pytest.raises(ShardNotFoundError, match=r"1 mds file.* without an index.json"):
        fastshard.open(tmp_path / "a")


def test_commands_take_several_datasets(mds, capsys):
    sources = [f"{mds}/b", f"{mds}/a"]
    assert main(["stat", "--json", *sources]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 12
    assert main(["stat", f"{mds}/{{b,a}}"]) == 0
    assert "samples  12" in capsys.readouterr().out
    assert main(["ls", f"{mds}/*/"]) == 0
    assert capsys.readouterr().out.split() == list(map(str, range(17)))
    assert main(["stat", f"{mds}/**"]) == 0
    assert "samples  17" in capsys.readouterr().out
    assert main(["verify", *sources]) == 0
    capsys.readouterr()
    assert main(["cat", f"{mds}/{{b,a}}", "5", "text"]) == 0
    assert capsys.readouterr().out == "a 0"
    assert (
        main(["convert", f"{mds}/{{b,a}}", str(mds.parent / "out"), "--to", "mds"]) == 0
    )
    assert texts(fastshard.open(mds.parent / "out")) == expected("b", "a")


@pytest.mark.parametrize("query", ["", "?signed=1"])
def test_braces_and_lists_of_urls(mds, query, tmp_path):
    (mds / "a").rename(mds / "a b")
    files = {
        f"/d/{path.relative_to(mds).as_posix()}": path.read_bytes()
        for path in mds.rglob("*")
        if path.is_file()
    }
    with Server(files) as server:
        names = ["c2", "a%20b"]
        braces = f"{server.url}/d/{{{','.join(names)}}}{query}"
        listed = [f"{server.url}/d/{name}/{query}" for name in names]
        for source in (braces, listed):
            ds = fastshard.open(source, cache_dir=tmp_path / "cache")
            assert texts(ds) == expected("c2", "a")
            assert texts(pickle.loads(pickle.dumps(ds))) == texts(ds)
            assert ds.verify() == []
        assert len({each.path for each in server.requests if "index" in each.path}) == 2
        with pytest.raises(FastshardError, match=r"nope/index.json"):
            fastshard.open([*listed, f"{server.url}/d/nope{query}"])
        with pytest.raises(FastshardError, match=r"one by one"):
            fastshard.open([listed[0], f"{server.url}/d/b?other=2"])
