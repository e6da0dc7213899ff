"""Ranges by the loop of plain HTTP: hostile responses, outages, cancelling, forks."""

import gc
import os
import random
import sysconfig
import threading
import time

import pytest

import fastshard
from fastshard import RemoteError
from fastshard._core.io.exchange import (
    CAN_LOOP,
    COMPLETE,
    ExchangeLoop,
    RangeExchange,
    Scatter,
    parse_head,
)
from fastshard._core.io.source import batch_memory
from fastshard.remote.file import RemoteFile, fetch, open_remote
from fastshard.remote.http.client import client_for
from fastshard.remote.http.fast import FastHttp
from fastshard.remote.options import make_settings
from fastshard.remote.scheduler import Request
from fastshard.remote.traffic import traffic
from support.inside.remote import is_running, loop_of, sockets_of
from support.marks import forks_beside_threads, slow, thin
from support.servers.http import BEHAVIOURS, BROKEN, HARMLESS, Server
from support.tars import write_tar
from support.threads import HANG, SOON, in_threads

pytestmark = pytest.mark.skipif(not CAN_LOOP, reason="this system has no event queue")

EACH = 1_100_000  # bytes between extents, which are not merged
DATA = random.Random(5).randbytes(251) * 50_000
EXTENTS = [(at, 4000) for at in range(100_000, len(DATA) - 4000, EACH)]
OTHER_TAGS = {"no_etag", "no_validators", "weak_etag"}  # responses with another tag


@pytest.fixture
def server():
    with Server({"/a.tar": DATA}) as server:
        yield server


def open_file(server, **options) -> RemoteFile:
    """Open an object; a first read makes the server's address known."""
    url = server.at("/a.tar")
    file = open_remote(url, make_settings({"timeout": 0.6, **options}, [url]))
    file.read(50_000, 10)
    return file


def is_right(file, extents=EXTENTS) -> bool:
    return file.read_many(extents) == [DATA[at : at + size] for at, size in extents]


@pytest.fixture
def looped(monkeypatch):
    """Return a list of whether the loop took each range read."""
    taken = []
    begin = FastHttp.begin

    def counted(self, url, expected, reads):
        left = begin(self, url, expected, reads)
        taken.extend(read not in left for read in reads)
        return left

    monkeypatch.setattr(FastHttp, "begin", counted)
    return taken


def test_batches_are_read_by_the_loop(server, looped):
    file = open_file(server, timeout=30.0, connections=4)
    before = traffic.counts()
    server.forget()

    for _ in range(3):
        assert is_right(file)
    assert looped == [True] * 3 * len(EXTENTS)
    assert len(server.requests) == 3 * len(EXTENTS)
    assert traffic.counts() == (before[0] + 3 * len(EXTENTS), *before[1:])
    assert server.connections <= 6  # with one of the open and one of the single read
    assert not any("python" in r.headers.get("user-agent", "") for r in server.requests)


def test_no_more_connections_than_allowed(server):
    file = open_file(server, timeout=30.0, connections=3)
    server.latency = 0.02

    in_threads(lambda _: is_right(file) or pytest.fail("wrong bytes"), 3)
    assert server.peak <= 3


@pytest.mark.parametrize("behaviour", thin(sorted(BEHAVIOURS), 12))
def test_a_hostile_server_gives_right_bytes_or_an_error(server, looped, behaviour):
    file = open_file(server, attempts=2)
    server.behave("/a.tar", behaviour)
    out = bytearray(12_000)
    requests = [
        Request(file, at, 4000, memoryview(out)[4000 * i :][:4000])
        for i, (at, _) in enumerate(EXTENTS[:3])
    ]

    begun = time.monotonic()
    errors = fetch(requests)
    assert looped == [True] * 3
    for i, error in enumerate(errors):
        if error is None:
            at = EXTENTS[i][0]
            assert behaviour not in BROKEN
            assert out[4000 * i :][:4000] == DATA[at : at + 4000]
        else:
            assert isinstance(error, RemoteError)
            assert behaviour not in HARMLESS - OTHER_TAGS, error
    assert time.monotonic() - begun < SOON
    before = bytes(out)
    time.sleep(0.02)
    assert out == before


@pytest.mark.parametrize(
    "behaviour", ["short_body", "reset_midway", "close_at_once", "status_503"]
)
def test_failures_are_repeated_by_urllib3(server, behaviour):
    file = open_file(server, timeout=10.0)
    server.behave("/a.tar", behaviour, times=5)

    assert is_right(file)


@pytest.mark.parametrize(
    "seconds",
    [pytest.param(s, marks=[slow] if s > 0.3 else []) for s in (0.3, 1, 5, 20)],
)
def test_an_outage_is_survived(server, seconds):
    file = open_file(server, timeout=60.0)
    server.behave("/a.tar", "close_at_once")
    timer = threading.Timer(seconds, server.behave_well)
    timer.start()

    begun = time.monotonic()
    assert is_right(file)
    assert time.monotonic() - begun > seconds - 0.1
    timer.join()


def test_time_is_up_for_a_silent_server(server):
    file = open_file(server, attempts=1)
    server.behave("/a.tar", "never_answer")

    begun = time.monotonic()
    with pytest.raises(RemoteError):
        file.read_many(EXTENTS)
    assert time.monotonic() - begun < SOON


def test_dropped_reads_end_and_others_continue(server):
    file = open_file(server, timeout=2 * HANG, connections=2)
    server.behave("/a.tar", "stall", times=2)
    requests = [file.request(*extent) for extent in EXTENTS]
    file.start(requests)
    time.sleep(0.1)
    begun = time.monotonic()
    for request in requests[:3]:
        request.drop()

    assert all(request.wait() is not None for request in requests[:2])
    for request, (at, size) in zip(requests[3:], EXTENTS[3:], strict=True):
        assert request.result() == DATA[at : at + size]
    assert time.monotonic() - begun < HANG


def test_the_thread_ends_and_connections_close(server):
    file = open_file(server, timeout=30.0)
    assert is_right(file)
    client = client_for(file.settings)
    loop = loop_of(client)
    assert loop is not None
    until = time.monotonic() + 10
    while is_running(loop) and time.monotonic() < until:
        time.sleep(0.02)
    assert not is_running(loop)
    assert not sockets_of(loop)
    assert is_right(file)  # by another thread

    del file, client, loop
    gc.collect()
    until = time.monotonic() + 10
    while server.open_connections and time.monotonic() < until:
        time.sleep(0.02)
    assert server.open_connections == 0


def test_memory_of_batches_is_used_again_and_freed(tmp_path, monkeypatch):
    """Kept views keep their bytes; free memory is kept only while batches come."""
    monkeypatch.setattr("fastshard.remote.http.fast.IDLE", 0.2)
    bodies = [random.Random(i).randbytes(20_000 + 9 * i) for i in range(60)]
    members = {f"{i:03}.bin": body for i, body in enumerate(bodies)}
    tar = write_tar(tmp_path / "a.tar", members).read_bytes()
    with Server({"/a.tar": tar}) as server:
        ds = fastshard.open(server.at("/a.tar"), connections=4, timeout=30.0)
        rng = random.Random(3)
        kept, most_spare = [], 0
        for _ in range(12):
            batch = rng.sample(range(len(bodies)), 20)
            samples = ds.get_many(batch)
            views = [(i, s["bin"]) for i, s in zip(batch, samples, strict=True)]
            assert all(view.readonly and view == bodies[i] for i, view in views)
            kept += rng.sample(views, 3)
            most_spare = max(most_spare, batch_memory.spare)
        assert most_spare > 0 or sysconfig.get_config_var("Py_GIL_DISABLED")
        del samples, views
        assert all(view == bodies[i] for i, view in kept)
        until = time.monotonic() + 10
        while batch_memory.spare and time.monotonic() < until:
            time.sleep(0.02)
        assert batch_memory.spare == 0
        assert all(view == bodies[i] for i, view in kept)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@forks_beside_threads  # the server's
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_of_fork_reads_by_itself(server):
    file = open_file(server, timeout=30.0)
    server.latency = 0.3
    requests = [file.request(*extent) for extent in EXTENTS]
    file.start(requests)
    time.sleep(0.1)

    child = os.fork()
    if child == 0:
        right = is_right(file)
        for request, (at, size) in zip(requests, EXTENTS, strict=True):
            right = right and request.result() == DATA[at : at + size]
        os._exit(0 if right else 1)
    for request, (at, size) in zip(requests, EXTENTS, strict=True):
        assert request.result() == DATA[at : at + size]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert is_right(file)


def test_a_server_that_closes_each_connection(server):
    file = open_file(server, timeout=30.0, connections=3)

    def closing(exchange):
        return exchange.right.set("Connection", "close")

    server.behave("/a.tar", closing)
    assert is_right(file)


def test_two_servers_share_the_connections(server):
    with Server({"/a.tar": DATA}) as other:
        urls = [server.at("/a.tar"), other.at("/a.tar")]
        settings = make_settings({"timeout": 30.0, "connections": 2}, urls)
        files = [open_remote(url, settings) for url in urls]
        for file in files:
            file.read(50_000, 10)
        requests = [Request(file, *extent) for extent in EXTENTS for file in files]

        assert fetch(requests) == [None] * len(requests)
        for i, request in enumerate(requests):
            at, size = EXTENTS[i // 2]
            assert request.result() == DATA[at : at + size]


RANGE, TAG = b"bytes 10-19/100", b'"tag"'
HEAD = (
    b"HTTP/1.1 206 Partial Content\r\nServer: any\r\nContent-Length: 10\r\n"
    b'Content-Range: bytes 10-19/100\r\nETag: "tag"\r\n\r\n'
)


def parse(head):
    return parse_head(head, RANGE, TAG, 10)


def test_heads_that_are_accepted():
    assert parse(HEAD) is True
    assert parse(HEAD.replace(b"Content-Length", b"content-LENGTH")) is True
    assert parse(HEAD.replace(b": 10\r", b":10 \t\r")) is True
    assert parse(HEAD.replace(b"Server: any", b"Connection: keep-alive")) is True
    assert parse(HEAD.replace(b"Server: any", b"Connection: close")) is False
    assert parse(HEAD.replace(b"Server: any", b"Content-Encoding: identity")) is True
    assert parse(HEAD.replace(b"ETag", b"Last-Modified")) is True


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"206", b"200"),
        (b"206", b"2060"),
        (b"HTTP/1.1", b"HTTP/1.0"),
        (b"any", b"any\r\n folded"),
        (b"any", b"a\x00y"),
        (b"any", b"a\ny"),
        (b"Server:", b"Server :"),
        (b"Server:", b":"),
        (b"Server: any", b"no colon"),
        (b"Server: any", b"Transfer-Encoding: chunked"),
        (b"Server: any", b"Content-Length: 10"),
        (b"Server: any", b"Content-Encoding: gzip"),
        (b": 10\r", b": 010\r"),
        (b": 10\r", b": +10\r"),
        (b": 10\r", b": 11\r"),
        (b": 10\r", b": 18446744073709551626\r"),
        (b": 10\r", b": \r"),
        (b"10-19", b"10-20"),
        (b"/100", b"/*"),
        (b'"tag"', b'"other"'),
        (b'"tag"', b'W/"tag"'),
        (b"ETag", b"X-Tag"),
        (b"Content-Range", b"X-Range"),
        (b"Content-Length", b"X-Length"),
        (b"\r\n\r\n", b"\r\n"),
        (b"\r\n\r\n", b"\r\n\r\nmore"),
    ],
)
def test_heads_that_are_refused(old, new):
    assert old in HEAD
    assert parse(HEAD.replace(old, new)) is None


def test_every_truncation_of_a_head_is_refused():
    assert all(parse(HEAD[:n]) is None for n in range(len(HEAD)))


def test_changed_heads_are_refused_or_say_the_same():
    numbers = random.Random(7)
    for _ in range(5_000):
        head = bytearray(HEAD)
        for _ in range(numbers.randrange(1, 4)):
            head[numbers.randrange(len(head))] = numbers.randrange(256)
        if parse(bytes(head)) is not None:
            lines = bytes(head).split(b"\r\n")
            assert lines[0].startswith(b"HTTP/1.1 206")
            fields = {
                name.lower(): value.strip(b" \t")
                for name, _, value in (line.partition(b":") for line in lines[1:-2])
            }
            assert fields[b"content-length"] == b"10"
            assert fields[b"content-range"] == RANGE
            assert TAG in (fields.get(b"etag"), fields.get(b"last-modified"))


def test_an_exchange_whose_read_is_claimed_is_not_added():
    loop = ExchangeLoop(2)
    exchange = RangeExchange(b"GET", RANGE, TAG, Scatter(0, 0, []))
    claim = threading.Lock()
    claim.acquire()

    assert loop.submit(exchange, claim) == (False, False)
    assert loop.run(0.0) == []
    assert exchange.status != COMPLETE
    with pytest.raises(TypeError):
        exchange.__reduce__()
