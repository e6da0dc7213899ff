"""Options for URLs and local files, where they do nothing."""

import os
from pathlib import Path

import pytest

import fastshard
from fastshard import FastshardError
from fastshard.columnar import ShardedDatasetWriter
from support.servers.http import Server
from support.tars import write_numbers

FOR_URLS = {
    "token": "secret",
    "headers": {"a": "b"},
    "timeout": 5,
    "attempts": 2,
    "offline": True,
    "private_hosts": False,
    "store": {"region": "x"},
    "revision": "main",
    "endpoint": "https://hub.test",
    "connections": 4,
    "cache_limit": "1GB",
}


@pytest.fixture
def folder(tmp_path):
    return write_numbers(tmp_path / "data", 20)


@pytest.mark.parametrize("name", FOR_URLS)
def test_an_option_for_urls_is_refused_for_local_files(folder, tmp_path, name):
    given = {name: FOR_URLS[name]}
    calls = [
        lambda: fastshard.open(folder, **given),
        lambda: fastshard.open([folder / "n-000.tar"], **given),
        lambda: fastshard.open(f"{folder}/*.tar", **given),
        lambda: fastshard.open(folder, packed=True, **given),
        lambda: fastshard.open_shard(folder / "n-000.tar", **given),
        lambda: fastshard.build_index(folder, **given),
        lambda: fastshard.merge_indexes(folder, **given),
        lambda: fastshard.discover_dataset(folder, **given),
        lambda: fastshard.convert(folder, tmp_path / "out", to="mds", **given),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=f"{name}= .* nothing for local files"):
            call()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", FOR_URLS)
def test_formats_refuse_an_option_for_urls(streaming_data, tmp_path, name):
    with ShardedDatasetWriter(tmp_path / "columns"):
        pass
    for root in (streaming_data["mds/none"].root, tmp_path / "columns"):
        with pytest.raises(ValueError, match=f"{name}= .* nothing for local files"):
            fastshard.open(root, **{name: FOR_URLS[name]})


def test_calls_without_a_cache_refuse_it_for_local_files(folder, tmp_path):
    calls = fastshard.build_index, fastshard.merge_indexes, fastshard.discover_dataset
    for call in calls:
        with pytest.raises(ValueError, match=r"cache_dir= .* nothing for local files"):
            call(folder, cache_dir=tmp_path / "cache")
        with pytest.raises(TypeError, match=r"no argument quux\b"):
            call(folder, quux=1)


def test_columnar_datasets_have_no_cache(tmp_path):
    with ShardedDatasetWriter(tmp_path / "columns"):
        pass
    with pytest.raises(ValueError, match="cache_dir= is not an option of columnar"):
        fastshard.open(tmp_path / "columns", cache_dir=tmp_path / "cache")


def test_defaults_are_silent(folder, monkeypatch, recwarn):
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("FASTSHARD_CACHE", os.devnull)
    given = dict.fromkeys(FOR_URLS) | {"offline": False, "private_hosts": True}
    given |= {"headers": {}, "store": {}}
    del given["connections"], given["timeout"]
    assert len(fastshard.open(folder, cache_dir=None, **given)) == 20
    assert not recwarn


@pytest.mark.parametrize("given", [{"mode": "pread"}, {"mode": "private"}])
@pytest.mark.parametrize("where", ["url", "cache"])
def test_options_of_mappings_are_refused_for_ranges(folder, tmp_path, given, where):
    path = folder / "n-000.tar"
    options = {"cache_dir": tmp_path / "cache"} if where == "cache" else {}
    with Server({"/n.tar": path.read_bytes()}) as server:
        source = server.at("/n.tar") if where == "url" else path
        for more in (given, {"check_size": True}):
            for function in (fastshard.open, fastshard.open_shard):
                with pytest.raises(ValueError, match="does nothing for URLs"):
                    function(source, **more, **options)


def test_a_wids_index_of_urls_takes_options_for_urls(folder, tmp_path):
    data = (folder / "n-000.tar").read_bytes()
    with Server({"/n.tar": data}) as server:
        index = tmp_path / "shardindex.json"
        index.write_text(
            '{"wids_version": 1, "shardlist": '
            f'[{{"url": "{server.at("/n.tar")}", "nsamples": 10}}]}}'
        )
        assert len(fastshard.open(index, timeout=5)) == 10


def test_a_limit_without_a_cache_is_refused():
    with pytest.raises(FastshardError, match="cache_limit= needs a cache"):
        fastshard.open("https://host.test/a.tar", cache_limit="1GB")


def test_a_missing_path_is_named_first_by_its_options(tmp_path):
    with pytest.raises(ValueError, match="token="):
        fastshard.open(Path(tmp_path, "nothing.tar"), token="x")


def test_options_of_mappings_are_refused_for_rows_read_by_ranges(
    streaming_data, tmp_path
):
    for name, is_refused in (("mds/none", True), ("mds/zstd", False)):
        for given in ({"mode": "private"}, {"check_size": True}):
            options = {"cache_dir": tmp_path / "cache", **given}
            if is_refused:
                with pytest.raises(ValueError, match="does nothing for URLs"):
                    fastshard.open(streaming_data[name].root, **options)
            else:  # decompressed files are mapped
                assert len(fastshard.open(streaming_data[name].root, **options))
