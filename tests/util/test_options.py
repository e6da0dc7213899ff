"""Errors for unknown arguments and values suggest the nearest valid one."""

import inspect

import numpy as np
import pytest

import fastshard
from fastshard.columnar import ShardedDatasetReader, ShardedDatasetWriter
from support.tars import write_tar


@pytest.fixture
def tar(tmp_path):
    return write_tar(tmp_path / "t.tar", {"a.txt": b"1", "b.txt": b"2"})


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("call", [fastshard.open, fastshard.open_shard])
@pytest.mark.parametrize(
    ("name", "near"),
    [("idnex", "index"), ("prefech", "prefetch"), ("time_out", "timeout")],
)
def test_an_unknown_argument(tar, call, name, near, remote):
    source = "http://127.0.0.1:9/t.tar" if remote else tar
    with pytest.raises(TypeError, match=rf"no argument {name}=; did you mean {near}="):
        call(source, **{name: 1})


def test_max_mem_is_max_memory(tar):
    with pytest.raises(TypeError, match=r"open\(\) .* did you mean max_memory="):
        fastshard.open(tar, max_mem="1GiB")
    with pytest.raises(TypeError, match=r"quux=: it takes .*index=, .*mode=, .*token="):
        fastshard.open(tar, quux=1)


def test_remote_options_are_accepted(tar):
    with fastshard.open(tar, timeout=3, connections=2) as ds:
        assert len(ds) == 2
    fastshard.open_shard(tar, timeout=3).close()


@pytest.mark.parametrize("call", [fastshard.open, fastshard.open_shard])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"index": "atuo"}, "'atuo'; did you mean auto"),
        ({"index": "rebuilt"}, "did you mean rebuild"),
        (
            {"index": "frobnicate"},
            'must be "auto", "none", "rebuild" or an existing path',
        ),
        ({"mode": "nmap"}, '"private" or "pread", got \'nmap\'; did you mean mmap'),
        ({"key": "frist"}, "did you mean first"),
    ],
)
def test_an_invalid_value(tar, call, options, message):
    with pytest.raises(ValueError, match=message):
        call(tar, **options)


def test_an_index_that_is_a_path_is_looked_for(tar, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for index in ("atuo.fsi", "./atuo", tmp_path / "atuo"):
        with pytest.raises((OSError, ValueError)) as caught:
            fastshard.open_shard(tar, index=index)
        assert "did you mean" not in str(caught.value)
    fastshard.build_index(tar, out=tmp_path / "word")
    with fastshard.open(tar, index="word") as ds:
        assert len(ds) == 2


@pytest.mark.parametrize(
    ("make", "name", "near"),
    [
        (fastshard.ShardWriter, "max_cuont", "max_count"),
        (ShardedDatasetReader, "max_mem", "max_memory"),
        (ShardedDatasetWriter, "allow_pickel", "allow_pickle"),
    ],
)
def test_unknown_arguments_of_classes(tmp_path, make, name, near):
    with pytest.raises(TypeError, match=rf"^{make.__name__}\(\) .*mean {near}="):
        make(tmp_path / "x", **{name: 1})
    assert near in inspect.signature(make).parameters
    assert "kwargs" not in inspect.signature(make).parameters


def test_a_missing_column(tar, tmp_path):
    fastshard.build_index(tar, hashes=True)
    with fastshard.open(tar) as ds:
        for fn in (
            lambda key, sizes, info: info["w"] > 1,
            lambda key, sizes, info: info["txt"]["w"] > 1,
        ):
            with pytest.raises(KeyError) as caught:
                ds.filter(fn)
            error = caught.value
            assert isinstance(error, fastshard.InfoNotFoundError)
            message = str(error)
            assert message.startswith("no column 'w' in the index of ")
            assert "'sha256'" in message
            assert "fastshard index --hash" in message
            sample, position = error.__notes__
            assert sample == f"sample 'a', position 0 of {tar}"
            assert position == "position 0 of the dataset"
        with pytest.raises(KeyError, match=r"info\['txt'\]\['sha256'\]"):
            ds.filter(lambda key, sizes, info: info["sha256"])
        with pytest.raises(fastshard.InfoNotFoundError, match=r"'w'.*'sha256'"):
            ds.info("w")
        infos = ds[0].infos()
        assert "txt" in infos
        assert "w" not in infos
        assert infos.get("w") is None
        assert infos["txt"].get("w", 5) == 5
        assert dict(infos["txt"]).keys() == {"sha256"}


def test_an_index_without_columns(tar):
    missing = pytest.raises(
        KeyError, match="which has no columns; it has the columns of"
    )
    with fastshard.open(tar, index="none") as ds, missing:
        ds.filter(lambda key, sizes, info: info["txt"]["w"])


def test_a_metadata_key_that_is_missing(tmp_path):
    with ShardedDatasetWriter(tmp_path / "c") as writer:
        writer.add_fields(["x"])
        writer.add_sample({"x": np.zeros(1)}, sample_id="s", metadata={"h": 1})
    with fastshard.open(tmp_path / "c") as ds:
        assert len(ds.filter(lambda key, sizes, info: info["metadata"]["h"])) == 1
        for fn in (
            lambda key, sizes, info: info["w"],
            lambda key, sizes, info: info["metadata"]["w"],
        ):
            with pytest.raises(KeyError, match=r"'w' in the metadata .*'h'.*add_sampl"):
                ds.filter(fn)
        with pytest.raises(KeyError, match=r"info\['metadata'\]\['h'\]"):
            ds.filter(lambda key, sizes, info: info["h"])
