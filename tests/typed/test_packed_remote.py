"""Packed shards over HTTP: payloads by ranges, in few requests."""

import pickle
from functools import partial

import numpy as np
import pytest

import fastshard
from fastshard.errors import RemoteShardNotFoundError
from support.servers.http import Server
from support.typed import packed
from support.typed.packed import compact, write_payloads

pytest.importorskip("msgspec")

pack = partial(packed.pack, encode=compact)
COUNT = 40


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packed")
    for k in range(2):
        payloads = [
            (f"{k}-{i:02}", pack({"n": i, "x": np.full(500, i), "text": f"t{i}"}))
            for i in range(COUNT)
        ]
        write_payloads(folder / f"{k}.tar", payloads)
        fastshard.open_shard(folder / f"{k}.tar").save_index()
    return {f"/d/{path.name}": path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("cached", [False, True])
def test_values_over_http(files, tmp_path, cached):
    options = {"cache_dir": tmp_path / "cache"} if cached else {}
    with Server(dict(files)) as server:
        ds = fastshard.open(f"{server.url}/d/{{0,1}}.tar", packed=True, **options)
        assert len(ds) == 2 * COUNT
        for i, sample in enumerate(ds):
            values = sample.decode()
            assert values["n"] == sample.decode("n")["n"] == i % COUNT
            assert values["x"].tolist() == [i % COUNT] * 500
            assert sample.text("text") == f"t{i % COUNT}"
            assert sample.open("text").read() == sample.text("text").encode()
        assert ds["1-07"].array("x")[0] == 7
        assert ds[7].open("text").read(2) == b"t7"
        found = ds.columns([3, 50, -1], ("x", "n", "text"))
        assert found["n"].tolist() == found["x"][:, 0].tolist() == [3, 10, 39]
        assert found["text"] == ["t3", "t10", "t39"]
        again = pickle.loads(pickle.dumps(ds.select_fields("text").shuffle(1)))
        assert sorted(len(sample) for sample in again) == [1] * 2 * COUNT
        assert ds.raw[3].keys() == ["msgpack"]


def test_payloads_of_neighbours_are_one_range(files):
    with Server(dict(files)) as server:
        ds = fastshard.open(f"{server.url}/d/0.tar", packed=True)
        len(ds)

        def requests(read):
            before = len(server.requests)
            read()
            return len(server.requests) - before

        assert requests(lambda: ds.get_many(range(20))) <= 2
        assert requests(lambda: ds.columns(range(20), ("x", "n"))) <= 2
        assert requests(lambda: list(ds.decode())) <= 3
        assert requests(lambda: list(ds.batches(10))) <= 3
        assert requests(lambda: ds.select_fields("n", missing="skip")) <= 3
        sample = ds[5]
        assert requests(lambda: [sample.view(name) for name in ("n", "x", "text")]) == 1
        with pytest.raises(fastshard.FieldNotFoundError, match="nope"):
            ds.select_fields("nope", missing="skip")


def test_a_shard_that_is_not_there(files):
    with Server(dict(files)) as server:
        ds = fastshard.open(f"{server.url}/d/{{0,9}}.tar", packed=True)
        with pytest.raises(RemoteShardNotFoundError):
            ds[COUNT]
