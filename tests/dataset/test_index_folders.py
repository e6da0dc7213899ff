"""Folders of indexes for local shards, local and remote; signed URLs stay hidden."""

import os

import pytest

import fastshard
from fastshard.dataset.verify import verify_dataset_index, verify_shard
from fastshard.errors import StaleIndexWarning
from support.inside.datasets import shards_of
from support.servers.http import Server
from support.tars import write_tar

NAMES = ("a 1.tar", "sub/b%41.tar", "sub/c#1.tar")


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "data"
    (folder / "sub").mkdir(parents=True)
    for name in NAMES:
        write_tar(folder / name, {"x.txt": name.encode(), "x.json": b"{}"})
    return folder


@pytest.fixture
def indexes(folder, tmp_path):
    fastshard.build_index(f"{folder}/**", out=tmp_path / "indexes")
    return tmp_path / "indexes"


@pytest.fixture
def server(indexes):
    paths = [path for path in indexes.rglob("*.fsi") if path.name != "dataset.fsi"]
    assert len(paths) == len(NAMES)
    files = {f"/i/{path.relative_to(indexes)}": path.read_bytes() for path in paths}
    with Server(files) as server:
        yield server


def test_a_url_of_a_folder_has_the_indexes_of_local_shards(folder, server):
    with fastshard.open(f"{folder}/**", index=server.at("/i")) as ds:
        assert [sample["txt"] for sample in ds] == [name.encode() for name in NAMES]
        assert len({shard.index for shard in ds.shards}) == len(NAMES)
        for shard in ds.shards:
            assert shard.index is not None
            assert shard.index.startswith(server.at("/i/"))
        assert ds.verify() == []


def test_a_shard_without_an_index_in_the_folder_is_scanned(folder, server):
    del server.files["/i/sub/c#1.fsi"]
    with fastshard.open(f"{folder}/**", index=server.at("/i")) as ds:
        assert [sample["txt"] for sample in ds] == [name.encode() for name in NAMES]
        assert ds.shards[2].index is None


def test_a_stale_index_in_the_folder_is_ignored(folder, server):
    write_tar(folder / NAMES[0], {"y.txt": b"another"})
    with (
        fastshard.open(f"{folder}/**", index=server.at("/i")) as ds,
        pytest.warns(StaleIndexWarning),
    ):
        assert ds[0]["txt"] == b"another"


def test_relative_paths_with_a_local_folder_of_indexes(folder, indexes, monkeypatch):
    monkeypatch.chdir(folder / "sub")
    names = ["b%41.tar", "c#1.tar"]
    with fastshard.open(names, index=os.path.relpath(indexes / "sub")) as ds:
        assert [shard.index is None for shard in ds.shards] == [False, False]
    with fastshard.open(["../a 1.tar", *names], index="../../indexes") as ds:
        assert [shard.index is None for shard in ds.shards] == [False] * 3


SECRET = "?sig=secret"


def test_faults_hide_the_query_of_a_signed_url(folder, indexes, server):
    shard = folder / NAMES[0]
    damaged = bytearray((indexes / "a 1.fsi").read_bytes())
    damaged[-20] ^= 1
    stale = (indexes / "sub" / "b%41.fsi").read_bytes()
    for data in (bytes(damaged), stale):
        server.files["/i/bad.fsi"] = data
        url = server.at("/i/bad.fsi") + SECRET
        opened, faults = verify_shard(shard, index=url)
        assert opened is not None
        opened.close()
        assert faults
        for fault in faults:
            assert "bad.fsi" in fault.path
            assert "secret" not in repr(fault)
    opened, faults = verify_shard(shard, index=server.at("/i/a 1.fsi") + SECRET)
    assert opened is not None
    opened.close()
    assert faults == []


def test_faults_of_remote_shards_hide_the_query(folder, indexes, server):
    server.files["/d/a.tar"] = (folder / NAMES[0]).read_bytes()
    urls = [server.at(f"/d/{name}.tar") + SECRET for name in ("a", "missing")]
    with fastshard.open(urls, index="none") as ds:
        (fault,) = ds.verify()
    assert fault.path == server.at("/d/missing.tar") + "?..."
    server.files["/d/dataset.fsi"] = (indexes / "dataset.fsi").read_bytes()
    settings = shards_of(ds).remote
    where = server.at("/d/dataset.fsi") + SECRET
    (fault,) = verify_dataset_index(where, urls, settings)
    assert "secret" not in repr(fault)
