"""Streaming datasets over HTTP: index, offset tables, rows by ranges, caches."""

import json
import pickle

import pytest

import fastshard
from fastshard import FormatError, RemoteError, RemoteShardNotFoundError
from support.servers.http import Server
from support.streaming.expected import described


def served(root):
    return {
        f"/d/{path.relative_to(root).as_posix()}": path.read_bytes()
        for path in root.rglob("*")
        if path.is_file()
    }


def check_values(ds, data):
    assert len(ds) == len(data.samples)
    for sample, expected in zip(ds, data.samples, strict=True):
        values = sample.decode()
        del values["__key__"]
        for field, value in values.items():
            facts = expected["fields"][field]
            assert described(value) == (facts["type"], facts["sha256"])
            assert sample[field].nbytes == sample.view(field).nbytes


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize(
    "name",
    ["mds/none", "mds/zstd", "json/none", "csv/gz", "edge/merged", "edge/splits#train"],
)
def test_same_values_as_of_local_files(streaming_data, tmp_path, name, cached):
    data = streaming_data[name]
    options = {"cache_dir": tmp_path / "cache"} if cached else {}
    if data.split:
        options["split"] = data.split
    with Server(served(data.root)) as server:
        ds = fastshard.open(f"{server.url}/d", **options)
        check_values(ds, data)
        first = ds[0].decode()
        assert pickle.loads(pickle.dumps(ds))[0].decode().keys() == first.keys()
        assert ds.verify() == []


def test_a_missing_split_is_a_shard_not_found(streaming_data):
    with Server(served(streaming_data["edge/splits#train"].root)) as server:
        url = f"{server.url}/d"
        with pytest.raises(RemoteShardNotFoundError, match="no split 'nope'") as caught:
            fastshard.open(url, split="nope")
        assert caught.value.url == url
        assert "nope/index.json does not exist" in str(caught.value)


def test_counting_asks_for_the_index_alone(streaming_data):
    data = streaming_data["mds/none"]
    with Server(served(data.root)) as server:
        ds = fastshard.open(f"{server.url}/d")
        assert len(ds) == len(data.samples)
        assert ds.stats
        assert {each.path for each in server.requests} == {"/d/index.json"}
        ds[0].decode()
        shards = {each.path for each in server.requests} - {"/d/index.json"}
        assert shards == {"/d/shard.00000.mds"}


def test_a_decompressed_shard_is_kept_in_the_cache(streaming_data, tmp_path):
    data = streaming_data["mds/zstd"]
    with Server(served(data.root)) as server:
        for _ in range(2):
            ds = fastshard.open(f"{server.url}/d", cache_dir=tmp_path / "cache")
            check_values(ds, data)
            assert ds.shards[0].mode == "mmap"
    kept = list((tmp_path / "cache" / "decompressed").glob("*/*"))
    assert len(kept) == len(data.shards)


def test_a_shard_of_another_size_than_the_index_states(streaming_data):
    files = served(streaming_data["mds/none"].root)
    files["/d/shard.00000.mds"] += b"x"
    with (
        Server(files) as server,
        pytest.raises(FormatError, match="the index states") as caught,
    ):
        fastshard.open(f"{server.url}/d")[0].decode()
    assert caught.value.path.endswith("/d/shard.00000.mds")


def test_a_missing_shard(streaming_data):
    files = served(streaming_data["mds/none"].root)
    del files["/d/shard.00000.mds"]
    with Server(files) as server:
        ds = fastshard.open(f"{server.url}/d")
        with pytest.raises(RemoteShardNotFoundError):
            ds[0].decode()
        assert ds[-1].decode()["__key__"] == str(len(ds) - 1)


def test_hashes_are_checked_before_and_after_decompression(streaming_data):
    files = served(streaming_data["mds/zstd"].root)
    with Server(files) as server:
        ds = fastshard.open(f"{server.url}/d", validate_hash="sha1")
        assert len([sample.decode() for sample in ds]) == len(ds)
    index = json.loads(files["/d/index.json"])
    for key in ("zip_data", "raw_data"):
        wrong = json.loads(json.dumps(index))
        wrong["shards"][0][key]["hashes"]["sha1"] = "0" * 40
        changed = files | {"/d/index.json": json.dumps(wrong).encode()}
        with Server(changed) as server:
            ds = fastshard.open(f"{server.url}/d", validate_hash="sha1")
            with pytest.raises(FormatError, match="sha1"):
                ds[0].decode()


def test_names_that_are_urls_stay_below_the_folder(streaming_data):
    files = served(streaming_data["mds/none"].root)
    index = json.loads(files["/d/index.json"])
    with Server({"/x.mds": files["/d/shard.00000.mds"]}) as other:
        index["shards"][0]["raw_data"]["basename"] = f"{other.url}/x.mds"
        files["/d/index.json"] = json.dumps(index).encode()
        with (
            Server(files) as server,
            pytest.raises((FormatError, RemoteError, RemoteShardNotFoundError)),
        ):
            fastshard.open(f"{server.url}/d")[0].decode()
        assert not other.requests
