"""HTTP requests and responses, for the servers that tests start."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from urllib.parse import unquote

LARGEST_HEAD = 1 << 20  # bytes of a request before its body


@dataclass(frozen=True)
class Request:
    """A client's request."""

    method: str
    target: str  # as it came, with the query
    headers: Mapping[str, str]  # names in lower case
    version: str = "HTTP/1.1"

    @property
    def path(self) -> str:
        """Path of the target, decoded, without its query; it starts with a slash."""
        return unquote(self.target.partition("?")[0])

    @property
    def query(self) -> str:
        return self.target.partition("?")[2]

    @property
    def range(self) -> tuple[int | None, int | None] | None:
        """First and last byte of the range: (a, b), (a, None) or (None, count)."""
        found = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("range", ""))
        if found is None or found[0] == "bytes=-":
            return None
        return tuple(int(number) if number else None for number in found.groups())

    def without(self, *names: str) -> Request:
        """Return the request without some headers."""
        kept = {k: v for k, v in self.headers.items() if k not in names}
        return replace(self, headers=kept)


@dataclass(frozen=True)
class Answer:
    """A server's response; its methods return changed copies."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    version: str = "HTTP/1.1"

    def get(self, name: str) -> str | None:
        return dict(self.headers).get(name)

    def drop(self, name: str) -> Answer:
        return replace(self, headers=tuple(h for h in self.headers if h[0] != name))

    def add(self, name: str, value: object) -> Answer:
        return replace(self, headers=(*self.headers, (name, str(value))))

    def set(self, name: str, value: object) -> Answer:
        return self.drop(name).add(name, value)

    def with_body(self, body: bytes) -> Answer:
        return replace(self, body=body).set("Content-Length", len(body))

    def head(self, end: bytes = b"\r\n") -> bytes:
        """Return the status line and the headers, with the empty line after them."""
        try:
            phrase = HTTPStatus(self.status).phrase
        except ValueError:
            phrase = "Unknown"
        lines = [f"{self.version} {self.status} {phrase}"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        return b"".join(
            line.encode(errors="surrogateescape") + end for line in [*lines, ""]
        )


def slashed(path: str) -> str:
    return path if path.startswith("/") else f"/{path}"


def plain(status: int, text: str = "") -> Answer:
    """Build a response of one line of text."""
    answer = Answer(status, (("Content-Type", "text/plain"),))
    return answer.with_body((text or f"{status}\n").encode())


def part_of(whole: Answer, data: bytes, first: int | None, last: int | None) -> Answer:
    """Build the response to a request for a range."""
    total = len(data)
    if first is not None and last is not None and last < first:
        return whole.with_body(data)  # not a range: ignored
    if first is None:
        first, last = max(total - last, 0), total - 1
    if first >= total:
        return plain(416).add("Content-Range", f"bytes */{total}")
    last = total - 1 if last is None else min(last, total - 1)
    part = replace(whole, status=206)
    part = part.add("Content-Range", f"bytes {first}-{last}/{total}")
    return part.with_body(data[first : last + 1])


def keeps(request: Request) -> bool:
    wish = request.headers.get("connection", "").lower()
    return wish == "keep-alive" if request.version == "HTTP/1.0" else wish != "close"


def read_request(sock: socket.socket, rest: bytearray) -> Request | None:
    """Read the next request; ``rest`` holds the bytes after the last one."""
    while (end := rest.find(b"\r\n\r\n")) < 0:
        data = sock.recv(65536)
        if not data or len(rest) > LARGEST_HEAD:
            return None
        rest += data
    first, *lines = rest[:end].decode(errors="surrogateescape").split("\r\n")
    del rest[: end + 4]
    method, target, version = first.split(" ")
    pairs = (line.partition(":") for line in lines)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    length = int(headers.get("content-length", 0))
    while len(rest) < length and (data := sock.recv(65536)):
        rest += data
    del rest[:length]
    return Request(method, target, headers, version)
