"""First requests of objects by the fast path: common responses, hostile servers."""

import random
import socket
import time

import pytest

from fastshard import RemoteError, RemoteNotFoundError
from fastshard._core.io.exchange import Scatter
from fastshard.remote.deadline import Deadline
from fastshard.remote.errors import RetryError
from fastshard.remote.file import open_remote
from fastshard.remote.http.client import client_for
from fastshard.remote.http.fast import FastHttp
from fastshard.remote.http.response import PlainResponse
from fastshard.remote.options import make_settings
from fastshard.remote.traffic import traffic
from support.marks import slow
from support.servers.http import BEHAVIOURS, BROKEN, HARMLESS, Server
from support.threads import SOON

DATA = random.Random(3).randbytes(60_000)
SUITE = sorted(BEHAVIOURS)[::12]


@pytest.fixture
def server():
    with Server({"/a.tar": DATA, "/b.tar": DATA[::-1]}) as server:
        yield server


@pytest.fixture
def asked(monkeypatch):
    """Return the list of results of `FastHttp.ask`."""
    returned = []
    ask = FastHttp.ask

    def recorded(self, *args):
        returned.append(ask(self, *args))
        return returned[-1]

    monkeypatch.setattr(FastHttp, "ask", recorded)
    return returned


def reached(server, **options):
    """Return settings with which the server sent a common response before."""
    url = server.at("/a.tar")
    settings = make_settings({"timeout": 0.6, **options}, [url])
    assert open_remote(url, settings).nbytes == len(DATA)
    return settings


def test_only_the_first_request_is_of_urllib3(server, asked):
    settings = reached(server, timeout=30.0)
    before = traffic.counts()
    server.forget()

    for _ in range(5):
        file = open_remote(server.at("/b.tar"), settings)
        assert file.head == DATA[::-1][: len(file.head)]
        assert file.tag.startswith('"')
        assert file.mtime_ns > 0
        with pytest.raises(RemoteNotFoundError) as caught:
            open_remote(server.at("/none.fsi"), settings)
        assert (caught.value.status, caught.value.attempts) == (404, 1)
        assert client_for(settings).whole(server.at("/b.tar"))[1] == DATA[::-1]
    assert [response.status for response in asked] == [206, 404, 206] * 5
    assert server.connections == 1
    assert traffic.counts() == (before[0] + 15, *before[1:])


@pytest.mark.parametrize(
    "behaviour",
    [pytest.param(b, marks=() if b in SUITE else slow) for b in sorted(BEHAVIOURS)],
)
def test_a_hostile_server_gives_right_bytes_or_an_error(server, asked, behaviour):
    settings = reached(server, attempts=2)
    server.behave("/b.tar", behaviour)

    begun = time.monotonic()
    try:
        file = open_remote(server.at("/b.tar"), settings)
        found = file.read(0, 1000)
    except RemoteError as error:
        assert behaviour not in HARMLESS, error
    else:
        assert behaviour not in BROKEN
        assert file.nbytes == len(DATA) or behaviour == "wrong_content_range_total"
        assert found == DATA[::-1][:1000]
    assert len(asked) >= 1
    assert time.monotonic() - begun < SOON


def test_uncommon_responses_end_the_attempts(server, asked):
    """A server whose responses only urllib3 understands gets no request twice."""
    settings = reached(server, timeout=30.0)
    server.behave("/b.tar", "chunked")

    for _ in range(6):
        file = open_remote(server.at("/b.tar"), settings)
        assert file.head == DATA[::-1][: len(file.head)]
    assert asked[:3] == [None] * 3
    server.forget()
    open_remote(server.at("/b.tar"), settings)
    assert len(server.requests) == 1


def test_connections_that_the_server_closed_are_not_used(server, asked):
    settings = reached(server, timeout=30.0)
    server.behave("/b.tar", lambda exchange: exchange.right.set("Connection", "close"))

    for _ in range(5):
        assert open_remote(server.at("/b.tar"), settings).nbytes == len(DATA)
    assert all(asked)


HEAD = (
    b"HTTP/1.1 206 Partial Content\r\nServer: any\r\nContent-Length: 10\r\n"
    b'Content-Range: bytes 10-19/100\r\nETag: "tag"\r\n\r\n'
)


def receive(data: bytes, *, ends: bool = True):
    """Return the response in some bytes, its body, and the released connections."""
    ours, theirs = socket.socketpair()
    released: list[socket.socket] = []
    with ours, theirs:
        theirs.sendall(data)
        if ends:
            theirs.shutdown(socket.SHUT_WR)
        response = PlainResponse(ours, Deadline(0.2), released.append)
        body = bytearray(10)
        response.receive(Scatter(0, 10, [(0, memoryview(body))]))
        response.release_conn()
        response.close()
        return response, bytes(body), released


def test_a_common_response():
    response, body, released = receive(HEAD + b"0123456789")

    assert response.status == 206
    assert response.headers.get("etag") == response.headers["ETag"] == '"tag"'
    assert body == b"0123456789"
    assert len(released) == 1
    assert response.is_complete()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"206", b"302"),
        (b"206", b"503"),
        (b"206", b"2060"),
        (b"HTTP/1.1", b"HTTP/1.0"),
        (b"any", b"any\r\n folded"),
        (b"any", b"a\x00y"),
        (b"any", b"a\ny"),
        (b"Server:", b"Server :"),
        (b"Server:", b":"),
        (b"Server: any", b"no colon"),
        (b"Server: any", b"Transfer-Encoding: chunked"),
        (b"Server: any", b"content-length: 10"),
        (b"Server: any", b'ETag: "other"'),
        (b": 10\r", b": +10\r"),
        (b": 10\r", b": 9\r"),
        (b": 10\r", b": \r"),
        (b": 10\r", b": 99999999999999999999\r"),
        (b"Content-Length", b"X-Length"),
        (b"any", b"a" * 17_000),
    ],
)
def test_responses_that_are_left_to_urllib3(old, new):
    assert old in HEAD
    with pytest.raises((ValueError, OSError)):
        receive(HEAD.replace(old, new) + b"0123456789")


def test_a_dropped_connection():
    head = HEAD.replace(b"Server: any", b"Connection: close")
    assert receive(head + b"0123456789")[2] == []


def test_every_truncation_is_an_error_or_no_body():
    for n in range(len(HEAD)):
        with pytest.raises(OSError, match="ended inside the headers"):
            receive(HEAD[:n])
    for n in range(10):
        response, _, released = receive(HEAD + b"0123456789"[:n])
        assert not response.is_complete()
        assert released == []


def test_time_is_up_inside_the_headers():
    with pytest.raises((TimeoutError, RetryError)):
        receive(HEAD[:40], ends=False)


def test_changed_responses_are_refused_or_say_the_same():
    numbers = random.Random(7)
    for _ in range(500):
        head = bytearray(HEAD)
        for _ in range(numbers.randrange(1, 4)):
            head[numbers.randrange(len(head))] = numbers.randrange(256)
        try:
            response, _, _ = receive(bytes(head) + b"0123456789")
        except (ValueError, OSError, RetryError):
            continue
        assert head.startswith(b"HTTP/1.1 %d" % response.status)
        assert response.status in (200, 206, 404)
