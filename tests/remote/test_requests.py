"""Requests: bytes that are sent, servers that get secrets, redirects, heads."""

import pytest

from fastshard._util.paths.urls import Url, origin_of
from fastshard.errors import RemoteError
from fastshard.remote.requests.authorization import Bearer, FixedHeaders
from fastshard.remote.requests.heads import (
    content_length,
    parse_head,
    receive_head,
    retry_after,
)
from fastshard.remote.requests.redirects import following_url
from fastshard.remote.requests.request import Credentials, HttpRequest, range_request

URL = "http://host:81/a%20b.tar?x=1"
NOBODY = Credentials((), frozenset())


def test_bytes_of_a_range_request():
    lines = [
        "GET /a%20b.tar?x=1 HTTP/1.1",
        "Host: host:81",
        "Accept-Encoding: identity",
        "Range: bytes=5-9",
        'If-Match: "tag"',
    ]
    sent = range_request(URL, 5, 10, '"tag"', NOBODY).encode()
    assert sent.decode() == "\r\n".join([*lines, "", ""])
    weak = range_request(URL, 5, 10, 'W/"tag"', NOBODY).encode()
    assert b"If-Match" not in weak


@pytest.mark.parametrize("text", ["a\r\nX: b", "a\n", "\rb"])
def test_line_ends_in_headers_are_refused(text):
    with pytest.raises(ValueError, match="line ends"):
        HttpRequest("GET", URL, {"X": text}).encode()


def test_ways_are_for_their_servers_alone_in_order():
    ways = FixedHeaders({"Authorization": "Basic x", "X-Key": "k"}), Bearer("t")
    credentials = Credentials(ways, frozenset([origin_of(URL)]))
    sent = range_request(URL, 0, 1, "", credentials).headers
    assert (sent["Authorization"], sent["X-Key"]) == ("Bearer t", "k")
    for other in ("https://host:81/a", "http://host/a", "http://other:81/a"):
        headers = range_request(other, 0, 1, "", credentials).headers
        assert headers.keys() == {"Accept-Encoding", "Range"}


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("b.tar", "https://host/data/b.tar"),
        ("/b.tar?sig=1", "https://host/b.tar?sig=1"),
        ("//other/b", "https://other/b"),
        ("https://other/ä", "https://other/%C3%A4"),
    ],
)
def test_target_of_a_redirect(location, expected):
    url = Url("https://host/data/a.tar")
    headers = {"Location": location}
    assert following_url(url.text, 302, headers, url) == expected


@pytest.mark.parametrize(
    "location", ["http://host/b", "ftp://host/b", "file:///b", "http://[::1/", "", None]
)
def test_redirects_out_of_tls_or_http_are_refused(location):
    url = Url("https://host/a.tar?secret")
    headers = {} if location is None else {"Location": location}
    with pytest.raises(RemoteError, match="redirect") as caught:
        following_url(url.text, 302, headers, url)
    assert caught.value.status == 302
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [(None, None), ("0", 0), ("12", 12), ("-1", -1), ("1 ", -1), ("9" * 20, -1)],
)
def test_content_length(text, expected):
    assert content_length({} if text is None else {"Content-Length": text}) == expected


@pytest.mark.parametrize(("text", "expected"), [("3", 3.0), ("soon", None), ("", None)])
def test_retry_after(text, expected):
    assert retry_after({"Retry-After": text}) == expected


HEAD = (
    b'HTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\nETag: "a"\r\n'
    b"Content-Range: bytes 0-4/9\r\n\r\n"
)


@pytest.mark.parametrize("size", [1, 7, len(HEAD), len(HEAD) + 3])
def test_a_head_in_pieces(size):
    data = HEAD + b"body"
    pieces = iter([data[at : at + size] for at in range(0, len(data), size)])
    head, rest = receive_head(next(pieces), lambda: next(pieces))
    headers, found = parse_head(head)
    assert bytes(rest) + b"".join(pieces) == b"body"
    assert headers["content-range"] == found.content_range == "bytes 0-4/9"
    assert (found.status, found.length, found.tag) == (206, 5, '"a"')


def test_heads_without_an_end():
    for cut in range(len(HEAD)):
        pieces = iter([HEAD[:cut], b""])
        with pytest.raises(ConnectionError, match="inside the headers"):
            receive_head(next(pieces), lambda pieces=pieces: next(pieces))
    with pytest.raises(ValueError, match="too long"):
        receive_head(b"x" * 9000, lambda: b"x" * 9000)
