"""The walks of URLs: files and returns of an open, and of a shard's first use."""

import sys

import pytest

import fastshard
from support.servers.http import Server
from support.tars import write_tar
from support.walks import trace_walk

# Without an index no request is sent. A dataset index is read by the open, and the
# first use of a shard requests its begin, its index, and headers to check them.
OPEN = {"none": (10, 2), "auto": (22, 20)}
FIRST_USE = (22, 60)


@pytest.fixture(autouse=True)
def without_torch(monkeypatch):
    """Hide torch: where a program has imported it, its collation is prepared."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)


@pytest.fixture
def server(tmp_path):
    for i in range(2):
        write_tar(tmp_path / f"{i}.tar", {f"{j}.txt": b"x" * 100 for j in range(50)})
    fastshard.build_index(tmp_path)
    files = {f"/{path.name}": path.read_bytes() for path in tmp_path.iterdir()}
    with Server(files) as server:
        yield server


@pytest.fixture(autouse=True)
def no_index_cache(monkeypatch):
    monkeypatch.setenv("FASTSHARD_CACHE", "")


@pytest.mark.parametrize("index", OPEN)
def test_open_of_a_url(server, index):
    files, returns = OPEN[index]
    for url in (server.at("/0.tar"), f"{server.url}/{{0..1}}.tar"):
        walk = trace_walk(lambda url=url: fastshard.open(url, index=index))
        walk.check(files=files, returns=returns)


def test_first_use_of_a_shard_of_a_url(server):
    opened = [fastshard.open(f"{server.url}/{{0..1}}.tar") for _ in range(2)]
    files, returns = FIRST_USE
    trace_walk(lambda: opened.pop()[7]["txt"]).check(files=files, returns=returns)


def test_later_use_of_a_shard_of_a_url(server):
    dataset = fastshard.open(server.at("/0.tar"))
    trace_walk(lambda: dataset[8]["txt"]).check(files=2, returns=0)
