"""Regression tests of remote shards: interruptions, redirects, claimed sizes."""

import gc
import os
import struct
import threading
import time

import numpy as np
import pytest

import fastshard
from fastshard import FastshardError, RemoteError, RemoteNotFoundError
from fastshard.index.dataset_file import seal_dataset_header
from fastshard.remote.file import RemoteFile, open_remote
from fastshard.remote.http.client import client_for
from fastshard.remote.options import make_settings
from fastshard.remote.scheduler import Request
from support.marks import forks_beside_threads, slow, thin
from support.processes import run_script
from support.servers.http import Server, redirect_to
from support.tars import write_tar
from support.threads import HANG

EACH = 60_000  # bytes of a sample
COUNT = 120


def body(i: int) -> bytes:
    return bytes([i % 250 + 1]) * EACH


@pytest.fixture(scope="module")
def shard(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "a.tar"
    members = {f"s{i:04}.bin": body(i) for i in range(COUNT)}
    return write_tar(path, members).read_bytes()


@pytest.fixture
def server(shard):
    with Server({"/a.tar": shard}) as server:
        yield server


def open_file(server, path="/a.tar", **options) -> RemoteFile:
    url = server.at(path)
    return open_remote(url, make_settings({"timeout": 2.0, **options}, [url]))


def test_an_abandoned_iteration_writes_to_no_freed_memory(server):
    ds = fastshard.open(server.at("/a.tar"))
    assert len(ds) == COUNT
    server.latency = 0.01

    for _ in thin(range(15), 4):
        for sample in ds:
            assert sample["bin"] == body(0)
            break
        gc.collect()
        others = [bytes(EACH) for _ in range(200)]
        time.sleep(0.01)
        assert not any(map(any, (other[::997] for other in others)))


def test_dropped_requests_write_to_no_freed_memory(server):
    file = open_file(server)
    server.latency = 0.05
    requests = [Request(file, at, EACH) for at in range(20_000, 3_000_000, 700_000)]
    file.start(requests)
    for request in requests:
        request.drop()
    del requests

    others = [bytes(EACH) for _ in range(200)]
    time.sleep(0.3)
    assert not any(map(any, (other[::997] for other in others)))


def test_nothing_is_written_to_a_buffer_after_an_error(tmp_path):
    with Server({"/a.tar": bytes([7]) * (20 << 20)}) as server:
        file = open_file(server, timeout=10.0)

        def slow_or_changed(exchange):
            if exchange.request.range[0] < 1 << 20:
                return exchange.right.__class__(412)
            exchange.pause(0.5)
            return exchange.right

        server.behave("/a.tar", slow_or_changed)
        out = bytearray(12 << 20)
        (error,) = file.read_into([(file, 100_000, memoryview(out))])
        assert isinstance(error, RemoteError)
        before = bytes(out)
        time.sleep(0.8)
        assert out == before


@pytest.mark.parametrize("where", ["start", "request"])
def test_an_interrupted_iteration_continues_at_its_position(server, monkeypatch, where):
    ds = fastshard.open(server.at("/a.tar"))
    assert len(ds) == COUNT
    items = iter(ds)
    original = getattr(RemoteFile, where)
    calls = []

    def interrupted(self, *args):
        calls.append(args)
        if len(calls) in (1, 3):
            raise KeyboardInterrupt
        return original(self, *args)

    monkeypatch.setattr(RemoteFile, where, interrupted)
    found = []
    while True:
        try:
            sample = next(items)
        except KeyboardInterrupt:
            continue
        except StopIteration:
            break
        found.append((sample.key, bytes(sample["bin"])))

    assert len(calls) > 3
    assert found == [(f"s{i:04}", body(i)) for i in range(COUNT)]


def test_a_token_function_that_fails_ends_no_threads(server):
    fails = [True]

    def token():
        if fails[0] and threading.current_thread() is not threading.main_thread():
            raise KeyError("locked")
        return "token"

    file = open_file(server, token=token, connections=2)
    extents = [(at, 100) for at in range(20_000, 7_000_000, 1_200_000)]
    for _ in range(3):
        with pytest.raises(RemoteError, match="KeyError"):
            file.read_many(extents)
    fails[0] = False

    assert [len(data) for data in file.read_many(extents)] == [100] * len(extents)


@pytest.mark.parametrize("status", [404, 403])
def test_a_redirect_to_a_missing_object_is_not_retried(server, status):
    server.behave("/gone.tar", redirect_to("/b.tar"))
    server.files["/b.tar"] = b""
    server.behave("/b.tar", f"status_{status}")

    with pytest.raises(RemoteError) as caught:
        open_file(server, "/gone.tar")
    assert isinstance(caught.value, RemoteNotFoundError) == (status == 404)
    assert len(server.requests) == 2


@slow
def test_a_small_object_that_trickles_ends_in_time(server):
    server.files["/i.json"] = b"{}" * 50_000
    server.behave("/i.json", "trickle")
    url = server.at("/i.json")

    begun = time.monotonic()
    with pytest.raises(RemoteError):
        client_for(make_settings({"timeout": 0.5}, [url])).whole(url)
    assert time.monotonic() - begun < HANG


def test_a_header_that_cannot_be_sent_is_not_shown():
    for headers in ({"X-Key": "sec\nret"}, {"X-Key": "sec\u20acret"}, {"a b": "c"}):
        with pytest.raises(FastshardError) as caught:
            make_settings({"headers": headers}, [])
        assert "sec" not in str(caught.value)


def with_name(index: bytes, old: bytes, new: bytes) -> bytes:
    """Return a dataset.fsi with a shard renamed, and valid checksums."""
    assert len(old) == len(new)
    changed = bytearray(index.replace(old, new))
    rows = struct.unpack_from("<Q", changed, 32)[0] * 8
    table, keys = changed[128 : len(changed) - rows], changed[len(changed) - rows :]
    return seal_dataset_header(bytes(changed[:128]), table, keys) + bytes(changed[128:])


@pytest.mark.parametrize(
    "name", [b"http://h/a.tar", b"//other/aaa.tar", b"a/../../bb.tar"]
)
def test_an_index_must_not_name_shards_outside_its_folder(tmp_path, server, name):
    old = b"a" * (len(name) - 4) + b".tar"
    with fastshard.ShardWriter(tmp_path / old.decode()) as writer:
        writer.write({"__key__": "a", "txt": "b"})
    fastshard.build_index(str(tmp_path))
    index = (tmp_path / "dataset.fsi").read_bytes()
    server.files["/d/dataset.fsi"] = with_name(index, old, name)

    with pytest.raises(FastshardError, match="not below"):
        fastshard.open(server.at("/d/") + "?sig=secret")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@forks_beside_threads  # the server's
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_that_drops_requests_leaves_the_parents_alone(server):
    file = open_file(server)
    server.latency = 0.3
    requests = [file.request(at, 100) for at in (20_000, 3_000_000)]
    file.start(requests)
    time.sleep(0.1)

    child = os.fork()
    if child == 0:
        for request in requests:
            request.drop()
        os._exit(0)
    os.waitpid(child, 0)
    server.forget()

    assert [len(request.result()) for request in requests] == [100, 100]
    assert not server.requests  # nothing was requested again


FEW_FILES = """
import resource, sys, warnings
resource.setrlimit(resource.RLIMIT_NOFILE, (80, 80))
import fastshard
url, cache = sys.argv[1:]
urls = [f"{url}/m-{i:03}.tar" for i in range(150)]
for offline in (False, True):
    ds = fastshard.open(urls, cache_dir=cache, offline=offline, index="none")
    assert [bytes(s["txt"]) for s in ds] == [b"%d" % i for i in range(150)]
print("read")
"""


def test_more_shards_are_cached_than_files_may_be_open(tmp_path):
    if os.name == "nt":
        pytest.skip("no such thing there")
    files = {}
    for i in range(150):
        path = write_tar(tmp_path / "x.tar", {f"{i}.txt": b"%d" % i})
        files[f"/m-{i:03}.tar"] = path.read_bytes()
    with Server(files) as server:
        assert "read" in run_script(tmp_path, FEW_FILES, server.url, tmp_path / "cache")


def test_a_server_without_ranges_and_a_small_cache_is_an_error(tmp_path, shard):
    files = {"/a.tar": shard, "/b.tar": shard}
    with Server(files) as server:
        for path in files:
            server.behave(path, "ok_for_range")
        enough = {"cache_dir": str(tmp_path / "a"), "index": "none"}
        ds = fastshard.open([server.at(p) for p in files], **enough)
        assert sum(len(sample["bin"]) for sample in ds) == 2 * COUNT * EACH
        few = {"cache_dir": str(tmp_path / "b"), "index": "none", "cache_limit": "1MB"}
        with pytest.raises(RemoteError, match="cache_limit"):
            fastshard.open([server.at(p) for p in files], **few)[0]["bin"]


def test_errors_leave_connections_free(server):
    file = open_file(server)
    client = client_for(file.settings)
    server.forget()
    for i in range(20):
        with pytest.raises(RemoteNotFoundError):
            client.whole(server.at(f"/none-{i}.json"))
    assert server.open_connections <= 2


def test_a_claimed_size_allocates_no_memory(server, tmp_path):
    server.files["/i.json"] = b"{}" * 10_000

    def claims(exchange):
        right = exchange.right
        headers = [
            (k, v.rpartition("/")[0] + "/" + str(2**45) if k == "Content-Range" else v)
            for k, v in right.headers
        ]
        return right.__class__(right.status, headers, right.body)

    server.behave("/i.json", claims)
    url = server.at("/i.json")
    with (
        pytest.warns(
            fastshard.CacheWarning
        ),  # the file system has no files of this size
        pytest.raises((FastshardError, OSError)),
    ):
        fastshard.open_shard(
            server.at("/a.tar"), index=url, cache_dir=str(tmp_path / "cache")
        )


def test_columns_of_numbers_come_from_few_requests(tmp_path):
    with fastshard.ShardWriter(tmp_path / "n.tar") as writer:
        for i in range(200):
            writer.write({"__key__": f"{i:04}", "npy": np.full(9, i)})
    with Server({"/n.tar": (tmp_path / "n.tar").read_bytes()}) as server:
        ds = fastshard.open(server.at("/n.tar"))
        len(ds)
        server.forget()
        assert (ds.columns(range(200), "npy")["npy"][:, 0] == np.arange(200)).all()
        assert len(server.requests) <= 3
