"""URLs whose host is an IPv6 address: brackets are not a glob, colons not a list."""

import socket

import numpy as np
import pytest

import fastshard
import fastshard.typed
from fastshard._util.paths.globs import has_magic
from fastshard.cli import main
from support.builders import BUILDERS
from support.servers.http import Server

SAMPLES = 60  # in three shards
FORMATS = "tar", "mds", "packed"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    samples = [(f"k{i:03}", {"x": np.full(40, i, "f4")}) for i in range(SAMPLES)]
    samples = [(key, {**one, "y": np.full(3, 7, "f4")}) for key, one in samples]
    for name in FORMATS:
        BUILDERS[name].build(folder / name, samples)
    fastshard.build_index(folder / "tar")
    return folder


@pytest.fixture(scope="module")
def url(folder):
    """Return the URL of a server on the loopback address of IPv6."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    files = {f"/{path.relative_to(folder)}": path.read_bytes() for path in paths}
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"no IPv6 on this machine: {error}")
    with Server(files, host="::1") as server:
        assert server.url.startswith("http://[::1]:")
        yield server.url


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("{}/tar", 60),
        ("{}/tar/", 60),
        ("{}/tar/dataset.fsi", 60),
        ("{}/tar/s-00025.tar", 25),
        ("{0}/tar/s-00025.tar::{0}/tar/s-00050.tar", 35),
        ("{}/tar/s-000{{00,50}}.tar", 35),
        ("{}/tar/s-000{{00..50..25}}.tar", 60),
        ("{}/mds", 60),
        ("{}/mds/", 60),
    ],
)
def test_sources_at_an_ipv6_host(url, tmp_path, source, count):
    for options in ({}, {"cache_dir": tmp_path}):
        with fastshard.open(source.format(url), **options) as ds:
            assert len(ds) == len(list(ds)) == count
            assert ds.verify() in ([], None)


@pytest.mark.parametrize("source", ["{}/tar/s-*.tar", "{}/t[a]r"])
def test_globs_at_an_ipv6_host_are_refused(url, source):
    with pytest.raises(fastshard.FastshardError, match="is a glob, but HTTP lists no"):
        fastshard.open(source.format(url))


def test_a_local_shard_and_one_at_an_ipv6_host_are_told_apart(url, folder):
    source = f"{folder}/tar/s-00000.tar::{url}/tar/s-00025.tar"
    with pytest.raises(fastshard.FastshardError, match="1 local ones of 2"):
        fastshard.open(source)


def test_shards_and_indexes_at_an_ipv6_host(url, folder, tmp_path):
    with fastshard.open_shard(f"{url}/tar/s-00000.tar") as shard:
        assert shard.array("k003.x.npy")[0] == 3
    with fastshard.open(folder / "tar", index=f"{url}/tar") as ds:
        assert len(ds) == SAMPLES
    made = fastshard.build_index(f"{url}/tar/s-000{{00,25,50}}.tar", out=tmp_path)
    assert len(made) == 4


def test_typed_datasets_at_an_ipv6_host(url):
    sample = fastshard.typed.DictSample
    dataset = fastshard.typed.Dataset[sample](f"{url}/packed/s-000{{00,25,50}}.tar")
    assert len(dataset) == SAMPLES
    assert dataset[3].array("y").tolist() == [7, 7, 7]


@pytest.mark.parametrize("command", ["ls", "stat", "verify"])
@pytest.mark.parametrize("name", ["tar", "mds"])
def test_commands_at_an_ipv6_host(url, capsys, command, name):
    assert main([command, f"{url}/{name}/"]) == 0
    assert "glob" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://[::1]:8000/data/", False),
        ("https://[2001:db8::1]/a.tar", False),
        ("http://[::1]", False),
        ("http://[::1]/a[0-9].tar", True),
        ("http://host/a*.tar", True),
        ("s3://bucket/a?.tar", True),
        ("a[0-9].tar", True),
        ("[::1]/a.tar", True),
        ("data/a.tar", False),
        ("file:///data/*.tar", True),
    ],
)
def test_characters_of_globs_are_looked_for_behind_the_host(text, expected):
    assert has_magic(text) is expected
