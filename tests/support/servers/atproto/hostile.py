"""Hostile answers of JSON servers: hooks for `XrpcServer`, by name.

A hook gets the request before the server does. `ANSWERS` are refused by every query and
procedure; `SLOW` never end by themselves, and are ended by the client's time limit.
"""

from __future__ import annotations

import gzip
import json
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

from support.servers.atproto.xrpc import Call, Reply

__all__ = [
    "ANSWERS",
    "SLOW",
    "Hook",
    "break_after",
    "endless",
    "only",
    "raw",
    "redirect",
    "say",
    "silent",
]

Hook = Callable[[Call], Reply | None]
JSON = {"content-type": "application/json"}
DRIP = 0.02  # seconds between the pieces of an answer that does not end


def only(nsid: str, hook: Hook) -> Hook:
    """Apply a hook to one method."""
    return lambda call: hook(call) if call.nsid == nsid else None


def say(value: Any, status: int = 200, **headers: str) -> Hook:
    """Answer with JSON, or bytes as they are."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    given = {name.replace("_", "-"): text for name, text in headers.items()}
    return lambda call: Reply(body, status, {**JSON, **given}, close=True)


def raw(*pieces: bytes, pause: float = 0, reset: bool = False) -> Hook:
    """Send bytes as they are, and close the connection."""

    def hook(call: Call) -> None:
        sock = call.handler.connection
        for piece in pieces:
            sock.sendall(piece)
            time.sleep(pause)
        if reset:
            linger = struct.pack("ii", 1, 0)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        raise ConnectionError

    return hook


def endless(first: bytes, piece: bytes, pause: float = DRIP) -> Hook:
    """Send the same piece again and again, until the client leaves."""

    def hook(call: Call) -> None:
        sock = call.handler.connection
        sock.sendall(first)
        until = time.monotonic() + 20
        while time.monotonic() < until:
            sock.sendall(piece)  # raises when the client has left
            time.sleep(pause)
        raise ConnectionError

    return hook


def silent(call: Call) -> None:
    """Answer nothing, until the client leaves."""
    call.handler.connection.settimeout(120)
    while call.handler.connection.recv(65536):
        pass
    raise ConnectionError


def redirect(url: str, status: int = 302) -> Hook:
    return lambda call: Reply(b"", status, {"location": url})


def loop(call: Call) -> Reply:
    return Reply(b"", 302, {"location": call.path + "?again"})


def break_after(nbytes: int, then: bytes = b"", *, reset: bool = True) -> Hook:
    """Read a part of a request's body, answer, and break the connection."""

    def hook(call: Call) -> None:
        left = nbytes
        while left > 0 and (piece := call.handler.rfile.read1(min(left, 65536))):
            left -= len(piece)
        return raw(then, reset=reset)(call)

    return hook


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
DEEP = 200_000

ANSWERS: dict[str, Hook] = {
    "HTML": say(b"<html>hello", content_type="text/html"),
    "HTML that says JSON": say(b"<html>hello"),
    "HTML with a status of an error": say(b"<html>", 404, content_type="text/html"),
    "an error with status 200": say({"error": "Oops", "message": "it failed"}),
    "an error without a message": say({"error": "Oops"}, 400),
    "an error of wrong types": say({"error": ["x"], "message": {"a": 1}}, 400),
    "an error that is long": say({"error": "E" * 9000, "message": "m" * 900_000}, 400),
    "an error that is not an object": say([1, 2], 400),
    "an error that is a larger page": say(b"[" + b"1," * (1 << 20), 400),
    "nothing": say(b""),
    "no object": say([{"did": "x"}]),
    "null": say(None),
    "a text": say("did:plc:abc"),
    "half an object": say(b'{"did": "did:pl'),
    "two objects": say(b"{}{}"),
    "a number that is not finite": say(b'{"did": NaN, "uri": Infinity}'),
    "a number of a million digits": say(b'{"a": ' + b"9" * 1_000_000 + b"}"),
    "bytes that are not text": say(b'{"did": "\xff\xfe"}'),
    "UTF-16": say('{"did": "x"}'.encode("utf-16")),
    "half a surrogate pair": say(b'{"did": "\\ud800", "records": [], "a": "\\udc00"}'),
    "a list that is deep": say(b'{"a":' + b"[" * DEEP + b"]" * DEEP + b"}"),
    "an object that is deep": say(
        b'{"a":' * 500 + b"1" + b"}" * 500
    ),
    "an empty object": say({}),
    "more than 10 MB": say(b'{"a": "' + b"a" * (11 << 20) + b'"}'),
    "a length above 10 MB": raw(HEAD + b"Content-Length: 99999999999\r\n\r\n{}"),
    "a length of 100 digits": raw(
        HEAD + b"Content-Length: " + b"9" * 100 + b"\r\n\r\n{}"
    ),
    "a compressed page": say(
        gzip.compress(b" " * (1 << 20) + b"{}"), content_encoding="gzip"
    ),
    "a coding that is not known": say({}, content_encoding="x" * 3000),
    "a redirect without a place": say(b"", 302),
    "a redirect to a file": redirect("file:///etc/passwd"),
    "a redirect to another scheme": redirect("gopher://127.0.0.1/"),
    "a redirect to no URL": redirect("http://[::1/"),
    "a redirect to itself": loop,
    "status 204": say(b"", 204),
    "status 304": say(b"", 304),
    "status 999": say({}, 999),
    "an answer that waits an hour": say({}, 429, retry_after="3600"),
}  # fmt: skip

SLOW: dict[str, Hook] = {
    "silence": silent,
    "a closed connection": raw(),
    "a connection that is reset": raw(reset=True),
    "half a status line": raw(b"HTTP/1.1 2"),
    "what is not HTTP": raw(b"SSH-2.0-OpenSSH_9.2\r\n"),
    "half the headers": raw(HEAD),
    "half a body": raw(HEAD + b"Content-Length: 100\r\n\r\n{"),
    "half a chunk": raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\n10\r\n{"),
    "chunks without sizes": raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"),
    "headers that do not end": endless(HEAD, b"X-Header: y\r\n"),
    "one header that does not end": endless(HEAD + b"X: ", b"y" * 1000, 0.001),
    "answers that are not final": endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "a body by drops": endless(HEAD + b"Content-Length: 9000\r\n\r\n{", b" "),
    "chunks by drops": endless(
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"
    ),
    "a body that does not end": endless(HEAD + b"\r\n{", b" " * 100),
    "a trailer that does not end": endless(
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", b"X: y\r\n"
    ),
    "HTML of a proxy": say(b"<html>bad gateway", 502, content_type="text/html"),
    "a server that is busy": say({}, 503),
    "too many requests": say({"error": "RateLimitExceeded"}, 429),
    "a date to wait for": say({}, 429, retry_after="Sun, 06 Nov 1994 08:49:37 GMT"),
    "a time to wait that is not a number": say({}, 429, retry_after="soon"),
}
