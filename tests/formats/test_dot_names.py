"""Names with a leading ``./``, as ``tar -C folder .`` stores them, share keys."""

import pickle
import subprocess

import numpy as np
import pytest

import fastshard
from fastshard import FormatError, SampleNotFoundError
from fastshard._core.table import grouping as keytable
from fastshard.index.dataset_file import DatasetIndex, write_dataset_index
from support.inside.datasets import has_dataset_index, record_probes
from support.marks import needs
from support.servers.http import Server
from support.tars import write_tar

COUNT = 30
KEYS = [f"{i:09}" for i in range(COUNT)] + ["sub/deep/000000030"]


@pytest.fixture(params=["tar", "bsdtar", "busybox"])
def folder(request, tmp_path):
    """Return a dataset of two shards, written by a tar program."""
    files = tmp_path / "files"
    (files / "sub" / "deep").mkdir(parents=True)
    (files / "__meta__").mkdir()
    (files / "__meta__" / "info.json").write_bytes(b"{}")
    (files / ".hidden.json").write_bytes(b"{}")
    for key in KEYS:
        (files / f"{key}.txt").write_text(key)
        (files / f"{key}.cls").write_text("7")
    data = tmp_path / "data"
    data.mkdir()
    program = [needs(request.param)] + ["tar"] * (request.param == "busybox")
    subprocess.run([*program, "-cf", data / "x.tar", "-C", files, "."], check=True)
    return data


def check_consistent(ds, shard):
    assert sorted(ds.keys()) == sorted(shard.samples.keys()) == sorted(KEYS)
    assert sorted(sample.key for sample in ds) == sorted(KEYS)
    seen = []
    ds.filter(lambda key, sizes, info: seen.append(key))
    assert sorted(seen) == sorted(KEYS)
    for key in KEYS:
        i = ds.keys().index(key)
        for asked in (key, f"./{key}", f"././/{key}"):
            assert ds[asked].key == shard.samples[asked].key == key
            assert ds[asked].text("txt") == shard.samples[asked].text("txt") == key
            assert asked in ds
            assert ds.keys().__contains__(asked)
            assert asked in shard.samples
            assert ds.keys().find(asked) == [i]
            assert ds.keys().count(asked) == 1
        assert ds.select_fields("cls")[key].decode()["cls"] == 7
        assert ds.shuffle(3)[key].key == key
    assert "000000099" not in ds
    assert "./000000099" not in ds
    assert pickle.loads(pickle.dumps(ds))[KEYS[3]].key == KEYS[3]


@pytest.mark.parametrize("index", ["none", "fsi", "json"])
def test_keys_have_no_dot_before_them(folder, index):
    if index != "none":
        fastshard.build_index(folder, format=index)
    ds = fastshard.open(folder)
    check_consistent(ds, fastshard.open_shard(folder / "x.tar"))
    assert len(ds) == COUNT + 1


def test_names_of_members_stay_as_tar_stores_them(folder):
    shard = fastshard.open_shard(folder / "x.tar")
    assert all(name.startswith("./") for name in shard.names)
    for key in KEYS:
        for asked in (f"{key}.txt", f"./{key}.txt"):
            assert shard[asked] == key.encode()
            assert asked in shard
            assert shard.names[shard.position(asked)] == f"./{key}.txt"
    with fastshard.open(folder) as ds:
        assert ds.members["000000003.txt"] == b"000000003"


def test_an_exact_name_comes_first(make_tar):
    shard = fastshard.open_shard(make_tar({"./a.x": b"1", "a.x": b"2", "b.x": b"3"}))
    assert (shard["./a.x"], shard["a.x"]) == (b"1", b"2")
    assert shard["./b.x"] == b"3"
    with pytest.raises(fastshard.MemberNotFoundError):
        shard["././b.x"]


def test_samples_of_both_spellings_are_one(make_tar):
    path = make_tar({"a.x": b"1", "./a.y": b"2", ".//a.z": b"3", "b.x": b"4"})
    samples = fastshard.open_shard(path).samples
    assert list(samples.keys()) == ["a", "b"]
    assert dict(samples["./a"]) == {"x": b"1", "y": b"2", "z": b"3"}


def test_a_member_appended_under_the_other_spelling_is_a_field_twice(make_tar):
    path = make_tar({"a.x": b"1", "b.x": b"2", "./a.x": b"3"})
    shard = fastshard.open_shard(path)
    assert shard.samples["b"]["x"] == b"2"
    with pytest.raises(FormatError, match="field 'x' twice") as caught:
        shard.samples["a"]
    assert caught.value.member == "./a.x"
    assert caught.value.offset == shard.offsets[2]


@pytest.mark.parametrize("key", ["first", "last"])
def test_rules_for_keys_hold_behind_the_dot(make_tar, key):
    path = make_tar(
        {"./a/b.Seg.PNG": b"", "./.x.y": b"", "./no": b"", "./__m__/a.b": b""}
    )
    with fastshard.open(path, key=key) as ds:
        assert list(ds.keys()) == [{"first": "a/b", "last": "a/b.Seg"}[key]]


def write_older_dataset_index(folder):
    """Write a ``dataset.fsi`` as of the release that took ``./`` for a part of keys."""
    path = folder / "dataset.fsi"
    known = DatasetIndex(str(path), copied=True)
    starts, rows = 0, []
    for facts in known.shards:
        shard = fastshard.open_shard(folder / facts.name)
        part = np.empty(facts.samples, np.uint64)
        grouping = shard.samples.grouping
        keytable.write_key_rows(grouping, starts, known.seed, part, older=True)
        rows.append(part)
        starts += facts.samples
    table = np.sort(np.concatenate(rows))
    assert table.tobytes() != known.copy_rows()
    write_dataset_index(path, known.shards, last_dot=False, seed=known.seed, rows=table)


def test_older_key_tables_hide_no_key(folder):
    write_tar(folder / "y.tar", {"plain.txt": b"plain", ".//odd.txt": b"odd"})
    fastshard.build_index(folder)
    write_older_dataset_index(folder)
    ds = fastshard.open(folder)
    assert has_dataset_index(ds)
    for key in [*KEYS, "plain", "odd"]:
        for asked in (key, f"./{key}"):
            assert ds[asked].key == key
            assert ds.keys().find(asked) == [list(ds.keys()).index(key)]
    assert fastshard.open(folder).verify() == []


def test_older_rows_hash_the_stored_names(make_tar):
    """Return the SipHash of a key with ``./``, by the earlier rule."""
    dotted = fastshard.open_shard(make_tar({"./a.x": b"", "./b/c.x": b""}))
    rows = np.empty(2, np.uint64)
    seed = bytes(range(16))
    keytable.write_key_rows(dotted.samples.grouping, 0, seed, rows, older=True)
    assert (rows >> np.uint64(32)).tolist() == [
        keytable.hash_key("./a", seed),
        keytable.hash_key("./b/c", seed),
    ]


def test_equal_keys_of_both_spellings_in_two_shards_are_ambiguous(tmp_path):
    write_tar(tmp_path / "1.tar", {"a.x": b"1"})
    write_tar(tmp_path / "2.tar", {"./a.x": b"2"})
    for _ in range(2):
        with fastshard.open(tmp_path) as ds:
            assert ds.keys().find("a") == ds.keys().find("./a") == [0, 1]
            with pytest.raises(fastshard.AmbiguousKeyError):
                ds["a"]
        fastshard.build_index(tmp_path)
    write_older_dataset_index(tmp_path)
    with fastshard.open(tmp_path) as ds:
        assert ds.keys().find("a") == ds.keys().find("./a") == [0, 1]


def test_over_http(folder):
    fastshard.build_index(folder)
    files = {f"/{path.name}": path.read_bytes() for path in folder.iterdir()}
    with Server(files) as server:
        ds = fastshard.open(server.at("/"))
        assert ds["000000007"].text("txt") == ds["./000000007"].text("txt") == KEYS[7]
        with pytest.raises(SampleNotFoundError, match="did you mean '000000007'"):
            ds["000000007.txt"]


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("000000007.txt", "000000007"),
        ("./000000007.txt", "000000007"),
        ("data/000000007", "000000007"),
        ("7", "000000007"),
        ("00000000000007", "000000007"),
        ("sub/deep/00000030", "sub/deep/000000030"),
        ("sub/dep/000000030", "sub/deep/000000030"),
    ],
)
def test_an_absent_key_names_near_ones(folder, asked, meant):
    ds = fastshard.open(folder)
    for samples in (ds, fastshard.open_shard(folder / "x.tar").samples):
        with pytest.raises(SampleNotFoundError, match="did you mean") as caught:
            samples[asked]
        assert meant in caught.value.near
        assert repr(meant) in str(caught.value)
        again = pickle.loads(pickle.dumps(caught.value))
        assert (str(again), again.near) == (str(caught.value), caught.value.near)


def test_a_key_without_its_folder_names_those_that_end_so(make_tar):
    names = {f"{folder}/{i:03}.x": b"" for folder in ("cat", "dog") for i in range(9)}
    ds = fastshard.open(make_tar(names))
    with pytest.raises(SampleNotFoundError) as caught:
        ds["007"]
    assert caught.value.near == ("cat/007", "dog/007")


def test_near_keys_of_a_large_dataset_are_found_in_little_time(tmp_path):
    with fastshard.ShardWriter(tmp_path / "n-{}.tar", max_count=20_000) as writer:
        for i in range(40_000):
            writer.write({"__key__": f"train/{i:08}", "txt": ""})
    ds = fastshard.open(tmp_path)
    probed = record_probes(ds.keys())
    with pytest.raises(SampleNotFoundError) as caught:
        ds["train/00031234.txt"]
    assert caught.value.near[0] == "train/00031234"
    assert len(probed) < 1000


def test_a_key_like_no_other_has_no_hint(make_tar):
    samples = fastshard.open_shard(make_tar({"a.x": b""})).samples
    for asked in ("zzzz", "x" * 10_000, ""):
        with pytest.raises(SampleNotFoundError) as caught:
            samples[asked]
        assert caught.value.near == ()
        assert "mean" not in str(caught.value)
