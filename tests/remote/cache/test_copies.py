"""Local files behind ``cache_dir``: copies of a slow disk's files on a fast one."""

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path

import pytest

import fastshard
from fastshard import CacheWarning, RemoteError, StaleShardError
from fastshard._util.paths.urls import parse_url
from fastshard.cli.program import run_command
from fastshard.remote.cache import copies
from fastshard.remote.cache.directory import list_objects
from fastshard.remote.cache.entry_files import EntryFiles
from fastshard.remote.transport import ObjectInfo
from support.builders import BUILDERS
from support.inside.datasets import has_dataset_index, shards_of
from support.processes import environment
from support.servers.http import Server
from support.tars import write_numbers, write_tar


@pytest.fixture
def nas(tmp_path):
    """Return a folder of three shards, a name of which has characters of URLs."""
    folder = write_numbers(tmp_path / "nas a?s%20#", 30)
    (folder / "n-002.tar").rename(folder / "n-002?x=[1]%41.tar")
    for index in folder.glob("*.fsi"):
        index.unlink()
    return folder


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def read_all(ds):
    return [(s.key, {field: bytes(s[field]) for field in s}) for s in ds]


class Reads(list):
    """Ranges that were read from the files behind a cache: name, start, end."""

    def nbytes(self, suffix=".tar"):
        return sum(b - a for name, a, b in self if name.endswith(suffix))


@pytest.fixture
def reads(monkeypatch):
    """Record the reads of `CopyClient`, beside the head of a file at its opening."""
    found = Reads()
    read = copies.CopyClient.read

    def note(self, url, start, end, *args):
        found.append((os.path.basename(url.text), start, end))
        read(self, url, start, end, *args)

    monkeypatch.setattr(copies.CopyClient, "read", note)
    return found


@pytest.mark.parametrize("index", [None, "fsi", "json"])
def test_same_samples_and_states_as_without_a_cache(nas, cache, index):
    if index is not None:
        fastshard.build_index(nas, format=index)
    plain = fastshard.open(nas)

    with fastshard.open(nas, cache_dir=cache) as ds:
        assert len(ds) == len(plain) == 30
        assert read_all(ds) == read_all(plain)
        assert read_all(ds.shuffle(seed=1)) == read_all(plain.shuffle(seed=1))
        assert ds["000007"].text("txt") == "7"
        assert ds.verify() == []
        assert repr(ds).split(";")[-1] == repr(plain).split(";")[-1]
        assert read_all(pickle.loads(pickle.dumps(ds))) == read_all(plain)

    shuffled = plain.shuffle(seed=3)
    iterator = iter(shuffled)
    first = [next(iterator).key for _ in range(7)]
    again = fastshard.open(nas, cache_dir=cache).resume(iterator.state_dict())
    assert first + [s.key for s in again] == [s.key for s in shuffled]


def test_each_byte_is_read_once_and_complete_shards_are_mapped(nas, cache, reads):
    fastshard.build_index(nas)
    ds = fastshard.open(nas, cache_dir=cache)
    list(ds.shuffle(seed=1))
    nbytes = sum(path.stat().st_size for path in nas.glob("*.tar"))
    assert 0 < reads.nbytes() <= nbytes

    del reads[:]
    list(ds.shuffle(seed=2))
    assert [ds.shards[k].mode for k in range(3)] == ["mmap"] * 3
    with fastshard.open(nas, cache_dir=cache) as again:
        list(again)
        assert [again.shards[k].mode for k in range(3)] == ["mmap"] * 3
    assert reads.nbytes() == 0


def test_epochs_of_a_loader_are_mapped_when_the_copies_are_complete(nas, cache):
    ds = fastshard.open(nas, cache_dir=cache).select_fields("cls")
    loader = ds.shuffle(seed=1).decode().loader(5, threads=2)
    for _ in range(3):
        assert sorted(int(x) for batch in loader for x in batch["cls"]) == [*range(30)]
    assert [ds.shards[k].mode for k in range(3)] == ["mmap"] * 3


def test_counting_and_single_samples_copy_little(tmp_path, cache, reads):
    members = {f"{i:03d}.bin": os.urandom(300_000) for i in range(40)}
    tar = write_tar(tmp_path / "a.tar", members)
    fastshard.build_index(tar)

    ds = fastshard.open(tar, cache_dir=cache)
    assert len(ds) == 40
    assert bytes(ds[30]["bin"]) == members["030.bin"]

    assert reads.nbytes() < tar.stat().st_size / 4


def test_a_changed_file_is_another_version(nas, cache):
    tar = nas / "n-001.tar"
    with fastshard.open(nas, cache_dir=cache) as ds:
        list(ds)
        assert ds[10].text("txt") == "10"

    with fastshard.open_shard(tar, index="none") as shard:
        offset = shard.offsets[shard.names.index("000010.txt")]
    times = tar.stat().st_atime_ns, tar.stat().st_mtime_ns
    with tar.open("r+b") as file:
        file.seek(offset)
        file.write(b"xy")
    os.utime(tar, ns=times)  # the same size, inode and mtime

    with fastshard.open(nas, cache_dir=cache, index="none") as ds:
        assert ds[10].text("txt") == "xy"
    urls = [one.url for one in list_objects(cache)]
    assert urls.count(str(tar)) == 2


def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path, cache):
    members = {f"{i:03d}.bin": os.urandom(300_000) for i in range(10)}
    tar = write_tar(tmp_path / "a.tar", members)
    ds = fastshard.open(tar, cache_dir=cache)
    assert bytes(ds[0]["bin"]) == members["000.bin"]

    with tar.open("r+b") as file:
        file.seek(1_500_000)
        file.write(b"changed")

    with pytest.raises(RemoteError, match=r"has changed since .*a\.tar"):
        ds[5]["bin"]
    assert bytes(ds[0]["bin"]) == members["000.bin"]


def test_a_replaced_shard_of_an_open_dataset_is_stale(nas, cache):
    ds = fastshard.open(nas, cache_dir=cache, max_mapped=1)
    list(ds)
    shutil.copy(nas / "n-000.tar", nas / "new")
    os.replace(nas / "new", nas / "n-001.tar")
    ds[0], ds[25]
    with pytest.raises((StaleShardError, RemoteError)):
        ds[15]


def test_a_missing_shard_is_named(nas, cache):
    ds = fastshard.open(nas, cache_dir=cache)
    os.unlink(nas / "n-000.tar")
    with pytest.raises(fastshard.ShardNotFoundError, match=r"n-000\.tar"):
        ds[0]
    with pytest.raises(fastshard.ShardNotFoundError, match=r"n-000\.tar"):
        fastshard.open_shard(nas / "n-000.tar", cache_dir=cache)


def test_damage_of_a_copy_is_found_and_read_anew(nas, cache):
    expected = read_all(fastshard.open(nas))
    list(fastshard.open(nas, cache_dir=cache))
    for data in cache.rglob("data"):
        raw = bytearray(data.read_bytes())
        raw[600] ^= 1
        data.write_bytes(raw)

    for _ in range(2):
        assert read_all(fastshard.open(nas, cache_dir=cache)) == expected


def test_the_size_is_bounded(tmp_path, cache):
    folder = tmp_path / "nas"
    folder.mkdir()
    for k in range(8):
        write_tar(folder / f"{k}.tar", {f"{k}.bin": os.urandom(1_000_000)})
    options = {"cache_limit": 3_500_000, "connections": 1}
    ds = fastshard.open(folder, cache_dir=cache, **options)
    for _ in range(2):
        assert [len(s["bin"]) for s in ds] == [1_000_000] * 8
    assert sum(one.disk_bytes for one in list_objects(cache)) < 4_000_000


def test_a_shard_above_the_limit_is_read_from_its_file(tmp_path, cache, reads):
    data = os.urandom(1_000_000)
    tar = write_tar(tmp_path / "a.tar", {"0.bin": data})
    ds = fastshard.open(tar, cache_dir=cache, cache_limit=200_000)
    assert bytes(ds[0]["bin"]) == data
    assert reads.nbytes() < 1_100_000


def test_a_full_disk_ends_copying_with_a_warning(nas, cache, monkeypatch):
    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(EntryFiles, "add", fail)
    expected = read_all(fastshard.open(nas))
    with pytest.warns(CacheWarning, match="No space left") as caught:
        assert read_all(fastshard.open(nas, cache_dir=cache)) == expected
    assert len(caught) == 1


@pytest.mark.parametrize(
    ("nbytes", "said"), [(4, ""), (5, ": it has 5 bytes, it had 4")]
)
def test_the_error_for_a_changed_file_has_sizes_that_differ(nbytes, said):
    before = ObjectInfo(4, "a", 1)
    error = copies.changed(
        parse_url("file://nas/a.tar"), before, ObjectInfo(nbytes, "b", 2)
    )
    assert str(error).startswith(f"the file has changed since it was opened{said} - ")


def count_samples(nas, cache):
    return read_all(fastshard.open(nas, cache_dir=cache))


def test_processes_share_the_copies(nas, cache):
    expected = read_all(fastshard.open(nas))
    with get_context("spawn").Pool(2) as pool:
        found = pool.starmap(count_samples, [(nas, cache)] * 4)
    assert found == [expected] * 4
    tars = [one for one in list_objects(cache) if one.url.endswith(".tar")]
    assert len(tars) == 3
    assert all(one.whole for one in tars)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_reads_on(nas, cache):
    ds = fastshard.open(nas, cache_dir=cache)
    expected = read_all(fastshard.open(nas))
    ds[0]
    pid = os.fork()
    if not pid:
        os._exit(0 if read_all(ds) == expected else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert read_all(ds) == expected


KILLED = """
import os, signal, pytest
import fastshard
from support.inside.remote import before_each_record

count = 0

def kill():
    global count
    count += 1
    if count == {most}:
        os.kill(os.getpid(), signal.SIGKILL)

before_each_record(pytest.MonkeyPatch(), kill)
list(fastshard.open({nas!r}, cache_dir={cache!r}))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
@pytest.mark.parametrize("count", [2, 4, 9])
def test_a_killed_process_leaves_usable_copies(tmp_path, cache, count):
    folder = tmp_path / "nas"
    folder.mkdir()
    for k in range(3):
        write_tar(folder / f"{k}.tar", {f"{k}.bin": os.urandom(900_000)})
    expected = read_all(fastshard.open(folder))
    script = KILLED.format(nas=str(folder), cache=str(cache), most=count)

    done = subprocess.run([sys.executable, "-c", script], env=environment())

    assert done.returncode == -signal.SIGKILL
    assert read_all(fastshard.open(folder, cache_dir=cache)) == expected


@pytest.mark.parametrize("name", ["mds/none", "mds/zstd", "json/none", "csv/gz"])
def test_streaming_datasets(copy_streaming, cache, name):
    data = copy_streaming(name)  # compressed shards are decompressed beside them
    plain = fastshard.open(data.root)
    ds = fastshard.open(data.root, cache_dir=cache)
    for _ in range(2):
        for found, expected in zip(ds, plain, strict=True):
            assert found.key == expected.key
            assert {f: bytes(found.view(f)) for f in found} == {
                f: bytes(expected.view(f)) for f in expected
            }
    assert shards_of(ds).identify() == shards_of(plain).identify()
    assert len(list(pickle.loads(pickle.dumps(ds)))) == len(plain)
    assert list_objects(cache)


def test_packed_datasets(tmp_path, cache):
    import numpy as np

    folder = tmp_path / "packed"
    rows = [{"x": np.arange(i, i + 3)} for i in range(6)]
    samples = [(f"{i:03d}", row) for i, row in enumerate(rows)]
    BUILDERS["packed"].build(folder, samples)
    ds = fastshard.open(folder, packed=True, cache_dir=cache)
    assert [s.decode()["x"].tolist() for s in ds] == [r["x"].tolist() for r in rows]


def test_one_shard(nas, cache):
    path = nas / "n-002?x=[1]%41.tar"
    plain = fastshard.open_shard(path)
    for index in ("auto", "rebuild", "auto", "none"):
        with fastshard.open_shard(path, cache_dir=cache, index=index) as shard:
            assert list(map(bytes, shard)) == list(map(bytes, plain))
            assert pickle.loads(pickle.dumps(shard)).names == plain.names
            assert shard.path == str(path)
    assert path.with_suffix(".fsi").exists()


def test_dataset_index_and_folder_of_indexes(nas, cache, tmp_path):
    fastshard.build_index(nas, out=tmp_path / "indexes")
    fastshard.build_index(nas)
    for index in ("auto", tmp_path / "indexes", "rebuild"):
        ds = fastshard.open(nas, cache_dir=cache, index=index)
        assert has_dataset_index(ds)
        assert ds["000003"].key == "000003" if index is None else len(ds) == 30
        assert read_all(ds) == read_all(fastshard.open(nas))


def test_commands_list_clear_and_warm_copies(nas, cache, capsys):
    kept = ["--cache-dir", str(cache)]
    path = str(nas / "n-000.tar")
    assert run_command(["cache", "warm", str(nas), *kept]) == 0
    assert run_command(["cache", "ls", "--json", *kept]) == 0
    lines = [json.loads(x) for x in capsys.readouterr().out.splitlines() if "url" in x]
    whole = {line["url"] for line in lines if line["whole"]}
    assert whole == {str(tar) for tar in nas.glob("*.tar")}

    assert run_command(["cache", "clear", path, *kept]) == 0
    assert path not in {one.url for one in list_objects(cache)}
    gone = nas / "n-001.tar"
    gone.unlink()
    assert run_command(["cache", "clear", str(gone), *kept]) == 0
    assert len(list_objects(cache)) == 1


def test_convert_reads_through_the_cache(nas, cache, tmp_path):
    fastshard.convert(nas, tmp_path / "mds", to="mds", workers=2, cache_dir=cache)
    assert len(fastshard.open(tmp_path / "mds")) == 30
    assert all(one.whole for one in list_objects(cache))


def test_a_directory_is_not_a_file(tmp_path, cache):
    with pytest.raises((RemoteError, OSError), match="regular"):
        fastshard.open_shard(tmp_path, cache_dir=cache)


def test_paths_may_be_relative(nas, cache, monkeypatch):
    monkeypatch.chdir(nas.parent)
    ds = fastshard.open(Path(nas.name), cache_dir=cache)
    assert len(ds) == 30
    monkeypatch.chdir("/")
    assert len(read_all(ds)) == 30


def test_complete_shards_of_urls_are_mapped_by_the_next_iteration(tmp_path, cache):
    members = {f"{i}.bin": os.urandom(100_000) for i in range(5)}
    path = write_tar(tmp_path / "n.tar", members)
    with Server({"/n.tar": path.read_bytes()}) as server:
        ds = fastshard.open(server.at("/n.tar"), cache_dir=cache)
        first = ds[0]
        shard = ds.shards[0]
        assert shard.mode == "remote"
        entry = shard.parts()[0].file.entry
        for offset, size in entry.missing(0, entry.nbytes):
            entry.add(offset, path.read_bytes()[offset : offset + size])

        assert read_all(ds) == read_all(fastshard.open(path))

        assert ds.shards[0].mode == "mmap"
        assert bytes(first["bin"]) == members["0.bin"]
        ds.shards[0].close()
        shards_of(ds).drop_complete()
