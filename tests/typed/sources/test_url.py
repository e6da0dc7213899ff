"""Sources of paths and URLs."""

import io
import pickle
from pathlib import Path

import pytest

import fastshard
from fastshard import typed
from support.inside.typed import url_source_of_shards
from support.servers.http import Server
from support.tars import write_tar


def make(folder, *names):
    return [str(write_tar(folder / name, {"0.txt": name.encode()})) for name in names]


def test_a_url_is_a_source():
    source = typed.URLSource("http://example.com/data.tar")
    assert isinstance(source, typed.DataSource)
    assert source.list_shards() == ["http://example.com/data.tar"]
    assert repr(source) == "URLSource('http://example.com/data.tar')"
    assert not isinstance(object(), typed.DataSource)


@pytest.mark.parametrize(
    ("url", "shards"),
    [
        ("data-{000..002}.tar", ["data-000.tar", "data-001.tar", "data-002.tar"]),
        (
            "s3://bucket/{train,test}-{0..1}.tar",
            [f"s3://bucket/{s}-{i}.tar" for s in ("train", "test") for i in (0, 1)],
        ),
        (["b.tar", "a-{1..2}.tar"], ["b.tar", "a-1.tar", "a-2.tar"]),
        (Path("a.tar"), ["a.tar"]),
    ],
)
def test_brace_lists_need_no_files(url, shards):
    source = typed.URLSource(url)
    assert source.list_shards() == shards
    assert source.url == url


def test_directories_and_globs_are_listed_in_natural_order(tmp_path):
    paths = make(tmp_path, "x-2.tar", "x-10.tar")
    assert typed.URLSource(tmp_path).list_shards() == paths
    assert typed.URLSource(f"{tmp_path}/x-*.tar").list_shards() == paths
    with pytest.raises(FileNotFoundError):
        typed.URLSource(f"{tmp_path}/y-*.tar").list_shards()


def test_the_list_is_the_callers(tmp_path):
    make(tmp_path, "a.tar")
    source = typed.URLSource(tmp_path)
    source.list_shards().clear()
    assert len(source.list_shards()) == 1


def test_names_with_commas_and_braces_stay_names(tmp_path):
    paths = make(tmp_path, "a,1.tar", "a{0,1}.tar", "b*.tar")
    source = typed.URLSource(paths)
    assert source.list_shards() == paths
    for path in paths:
        with source.open_shard(path) as file:
            assert file.read() == Path(path).read_bytes()
    exact = url_source_of_shards(["http://host/a{0,1}.tar", "http://host/b*.tar"])
    assert exact.list_shards() == ["http://host/a{0,1}.tar", "http://host/b*.tar"]
    assert pickle.loads(pickle.dumps(exact)).list_shards() == exact.list_shards()


def test_shards_are_opened_one_after_another(tmp_path):
    paths = make(tmp_path, "a.tar", "b.tar")
    names = []
    for name, file in typed.URLSource(paths).shards:
        names.append(name)
        with file:
            assert file.read() == Path(name).read_bytes()
    assert names == paths


def test_an_unknown_shard_is_a_key_error(tmp_path):
    (path,) = make(tmp_path, "a.tar")
    with pytest.raises(KeyError, match=r"Shard not found: b\.tar"):
        typed.URLSource(path).open_shard("b.tar")


@pytest.mark.parametrize(
    "url", ["pipe:cat a.tar", " PIPE:cat a.tar", ["a.tar", "pipe:cat a.tar"]]
)
def test_commands_are_never_run(url):
    with pytest.raises(fastshard.FastshardError, match="commands are never run"):
        typed.URLSource(url)


def test_the_former_name_of_the_list_warns():
    for source in (typed.URLSource("a-{0..1}.tar"), typed.S3Source("b", ["a.tar"])):
        with pytest.warns(DeprecationWarning, match="list_shards") as caught:
            assert source.shard_list == source.list_shards()
        assert caught[0].filename == __file__


def test_remote_shards_are_seekable_files(tmp_path):
    (path,) = make(tmp_path, "a.tar")
    data = Path(path).read_bytes()
    with Server({"/a.tar": data}) as server:
        source = typed.URLSource(f"{server.url}/a.tar", timeout=5)
        with source.open_shard(f"{server.url}/a.tar") as file:
            file.seek(512)
            assert file.read(3) == data[512:515]
            file.seek(-10, io.SEEK_END)
            assert file.read() == data[-10:]
        ((name, file),) = source.shards
        with file:
            assert (name, file.read()) == (f"{server.url}/a.tar", data)


def test_secrets_are_neither_shown_nor_pickled():
    url = "https://host/a.tar?signature=verysecret"
    source = typed.URLSource(url, token="averysecrettoken")
    assert "secret" not in repr(source)
    with pytest.raises(KeyError) as caught:
        source.open_shard("https://host/b.tar?signature=verysecret")
    assert "secret" not in str(caught.value)
    with pytest.raises(fastshard.FastshardError, match="not pickled") as caught:
        pickle.dumps(source)
    assert "secret" not in str(caught.value)


def test_sources_pickle_and_compare():
    source = typed.URLSource(["a.tar", "b.tar"], timeout=5)
    assert pickle.loads(pickle.dumps(source)) == source
    assert source != typed.URLSource(["a.tar", "b.tar"])
    assert source != typed.URLSource("a.tar", timeout=5)
    assert source != "a.tar"
