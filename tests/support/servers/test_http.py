"""Tests of the tests' HTTP server: each behaviour matches its name."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time

import pytest

from support.marks import needs, not_sanitized
from support.servers.clients import connect, fetch, follow
from support.servers.http import (
    BEHAVIOURS,
    BROKEN,
    DOUBTFUL,
    HARMLESS,
    Server,
    redirect_to,
)

DATA = bytes(range(256)) * 4
SLOW = {"many_100", "slow_headers", "trickle", "stall", "never_answer"}

pytestmark = not_sanitized  # nothing of it is in C


@pytest.fixture
def server():
    with Server({"a.tar": DATA, "/sub/é.tar": b"two"}) as server:
        yield server


def exchange_bytes(server, request):
    """Send bytes; return all that is received until the connection ends."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as sock:
        sock.sendall(request)
        return b"".join(iter(lambda: sock.recv(65536), b""))


@pytest.mark.parametrize(
    ("asked", "first", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=5-99", 5, 100),
        ("bytes=1000-", 1000, 1024),
        ("bytes=1000-5000", 1000, 1024),
        ("bytes=-10", 1014, 1024),
        ("bytes=-5000", 0, 1024),
    ],
)
def test_ranges(server, asked, first, end):
    status, headers, body = fetch(server.at("a.tar"), {"Range": asked})

    assert status == 206
    assert headers["Content-Range"] == f"bytes {first}-{end - 1}/1024"
    assert headers["Content-Length"] == str(end - first)
    assert body == DATA[first:end]


@pytest.mark.parametrize("asked", ["bytes=1024-", "bytes=-0"])
def test_ranges_that_hold_nothing(server, asked):
    status, headers, _ = fetch(server.at("a.tar"), {"Range": asked})

    assert (status, headers["Content-Range"]) == (416, "bytes */1024")


@pytest.mark.parametrize(
    "asked", ["bytes=9-5", "bytes=-", "lines=1-2", "bytes=0-1,4-5"]
)
def test_other_ranges_are_ignored(server, asked):
    assert fetch(server.at("a.tar"), {"Range": asked})[::2] == (200, DATA)


def test_conditions(server):
    url = server.at("a.tar")
    _, headers, _ = fetch(url, method="HEAD")
    part = {"Range": "bytes=0-3"}

    assert fetch(url, {"If-Match": headers["ETag"]})[0] == 200
    assert fetch(url, {"If-Match": '"x", ' + headers["ETag"]})[0] == 200
    assert fetch(url, {"If-Match": '"x"'})[0] == 412
    for validator in headers["ETag"], headers["Last-Modified"]:
        assert fetch(url, {**part, "If-Range": validator})[0] == 206
    assert fetch(url, {**part, "If-Range": '"x"'})[0] == 200

    server.files["a.tar"] = b"other"
    assert fetch(url, {"If-Match": headers["ETag"]})[0] == 412
    assert fetch(url)[1]["Last-Modified"] != headers["Last-Modified"]


def test_head_names_and_missing_files(server):
    status, headers, body = fetch(server.at("a.tar"), method="HEAD")

    assert (status, headers["Content-Length"], body) == (200, "1024", b"")
    assert fetch(server.at("sub/é.tar"))[2] == b"two"
    assert fetch(server.at("b.tar"))[0] == 404
    assert fetch(server.at("a.tar"), method="PUT")[0] == 405


def test_requests_are_recorded(server):
    connection = connect(server.url)
    for asked in "bytes=1-2", "bytes=-3":
        connection.request("GET", "/a.tar?x=1", headers={"Range": asked, "X-One": "1"})
        connection.getresponse().read()
    connection.close()

    first, second = server.requests
    assert (first.method, first.path, first.query) == ("GET", "/a.tar", "x=1")
    assert (first.range, second.range) == ((1, 2), (None, 3))
    assert first.headers["x-one"] == "1"
    assert (server.bytes_sent, server.connections, server.peak) == (5, 1, 1)
    server.forget()
    assert (server.requests, server.bytes_sent, server.peak) == ([], 0, 0)


def test_a_large_body_is_sent_and_counted_whole(server):
    server.files["large"] = bytes(3_000_001)

    assert fetch(server.at("large"))[2] == server.files["large"]
    assert server.bytes_sent == 3_000_001


def test_latency_and_the_peak_of_requests():
    with Server({"a": DATA}, latency=0.2) as server:
        start = time.monotonic()
        threads = [
            threading.Thread(target=fetch, args=(server.at("a"),)) for _ in range(5)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert time.monotonic() - start >= 0.2
        assert server.peak == 5


def test_two_requests_at_once_on_a_connection(server):
    ask = b"GET /a.tar HTTP/1.1\r\nHost: x\r\nRange: bytes=%d-%d\r\n%b\r\n"
    asked = ask % (0, 3, b"") + ask % (4, 7, b"Connection: close\r\n")

    got = exchange_bytes(server, asked)

    assert got.count(b"HTTP/1.1 206") == 2
    assert got.endswith(DATA[4:8])


def test_nothing_is_left_after_a_stop():
    threads = threading.active_count()
    with Server({"a": DATA}) as server:
        server.behave("a", "never_answer")
        idle = socket.create_connection(("127.0.0.1", server.port))
        waiting = connect(server.url)
        waiting.request("GET", "/a")

    assert threading.active_count() == threads
    with pytest.raises(ConnectionError):
        waiting.getresponse()
    waiting.close()
    idle.close()


def test_behaviours_take_turns(server):
    server.behave("a.tar", "status_500", 2)
    server.behave("a.tar", "status_403", 1)
    server.behave(None, "status_404", 1)

    got = [fetch(server.at("a.tar"))[0] for _ in range(5)]
    server.behave(None, "status_500")
    server.behave_well()

    assert got == [500, 500, 403, 404, 200]
    assert fetch(server.at("sub/é.tar"))[0] == 200


def test_each_behaviour_has_one_outcome():
    assert set(BEHAVIOURS) == HARMLESS | DOUBTFUL | BROKEN
    assert len(HARMLESS) + len(DOUBTFUL) + len(BROKEN) == len(BEHAVIOURS)


@pytest.mark.parametrize("name", sorted(HARMLESS))
def test_harmless_behaviours_serve_right(server, name):
    server.behave(None, name)

    for _ in range(2):
        status, _, body = follow(server.at("a.tar"), {"Range": "bytes=3-900"})
        assert (status, body) == (206, DATA[3:901])


# The others are slow, or more than this simple client understands.
READ_BY_HTTP_CLIENT = (
    DOUBTFUL
    - SLOW
    - {
        "gzip_unasked",
        "huge_content_length",
        "huge_headers",
        "long_body",
        "many_headers",
        "ok_for_range",
        "ok_for_range_chunked",
        "redirect_non_ascii",
    }
)


@pytest.mark.parametrize("name", sorted(READ_BY_HTTP_CLIENT))
def test_a_lenient_client_reads_right_bytes(server, name):
    server.behave(None, name)

    status, _, body = follow(server.at("a.tar"), {"Range": "bytes=3-900"})

    assert (status, body) == (206, DATA[3:901])


@pytest.mark.parametrize("name", sorted(BROKEN - SLOW))
def test_broken_behaviours_do_not_serve_right(server, name):
    server.behave(None, name)
    try:
        status, headers, body = follow(server.at("a.tar"), {"Range": "bytes=3-900"})
    except (AssertionError, OSError, OverflowError, ValueError):
        return
    except http.client.HTTPException:
        return
    right = status, headers["Content-Range"], body
    assert right != (206, "bytes 3-900/1024", DATA[3:901])


@pytest.mark.parametrize("name", sorted(BROKEN & SLOW - {"many_100"}))
def test_silence_until_the_client_goes(server, name):
    server.behave(None, name)

    with pytest.raises(TimeoutError):
        fetch(server.at("a.tar"), timeout=0.05)
    for _ in range(100):
        if server.open_connections == 0:
            break
        time.sleep(0.01)
    assert server.open_connections == server.in_progress == 0


@pytest.mark.parametrize("name", sorted(BEHAVIOURS))
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_stop_ends_each_behaviour(name, method):
    ask = f"{method} /a HTTP/1.1\r\nHost: x\r\nRange: bytes=2-\r\n\r\n"
    with Server({"a": DATA}) as server:
        server.behave(None, name)
        sock = socket.create_connection(("127.0.0.1", server.port), timeout=5)
        sock.sendall(ask.encode())
        if name not in ("close_at_once", "never_answer"):
            assert sock.recv(1)
    sock.close()


def test_contents_that_change_are_another_version(server):
    server.behave("a.tar", "contents_change")
    url = server.at("a.tar")

    _, first, body = fetch(url, {"Range": "bytes=0-3"})
    _, second, other = fetch(url, {"Range": "bytes=0-3"})

    assert body == DATA[:4] != other
    assert first["ETag"] != second["ETag"]
    assert fetch(url, {"If-Match": first["ETag"]})[0] == 412
    assert fetch(url, {"If-Match": second["ETag"]})[0] == 200


def test_bytes_after_an_answer(server):
    server.behave(None, "long_body_silent")
    got = exchange_bytes(server, b"GET /a.tar HTTP/1.1\r\nConnection: close\r\n\r\n")
    head, _, body = got.partition(b"\r\n\r\n")

    assert b"Content-Length: 1024" in head
    assert body.startswith(DATA)
    assert len(body) > 1024


def test_redirects_go_to_the_given_url(server):
    server.behave(None, redirect_to("http://x.invalid/é", 307), 1)
    server.behave(None, "redirect_nowhere", 1)

    status, headers, _ = fetch(server.at("a.tar"))
    assert status == 307
    assert headers["Location"].encode("latin-1").decode() == "http://x.invalid/é"
    assert fetch(server.at("a.tar"))[1]["Location"] is None


def test_a_server_with_a_certificate():
    needs("openssl")
    with Server({"a": DATA}, tls=True) as server:
        context = ssl.create_default_context(cadata=server.certificate)
        connection = http.client.HTTPSConnection(
            "localhost", server.port, context=context, timeout=5
        )
        for _ in range(2):
            connection.request("GET", "/a")
            assert connection.getresponse().read() == DATA
        connection.close()
        assert server.connections == 1

        with pytest.raises(ssl.SSLCertVerificationError):
            http.client.HTTPSConnection("localhost", server.port).request("GET", "/a")
