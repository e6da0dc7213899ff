"""Unusual headers, versions of a file that change, refusals and redirects."""

from __future__ import annotations

import time
from dataclasses import replace
from email.utils import formatdate
from typing import TYPE_CHECKING

from support.servers.behaviours import (
    BROKEN,
    ELSEWHERE,
    broken,
    doubtful,
    harmless,
    named,
)
from support.servers.messages import Answer, plain

if TYPE_CHECKING:
    from support.servers.behaviours import Behaviour
    from support.servers.http import Exchange

HOPS = 20
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def send_with_head(exchange: Exchange, head: bytes) -> None:
    """Send a head made by hand, then the right body."""
    body = b"" if exchange.request.method == "HEAD" else exchange.right.body
    exchange.send(head, body)


# Status lines and headers.


@broken
def not_http(exchange):
    """Send lines that are not HTTP."""
    exchange.send(b"not HTTP\r\nat all\r\n\r\n")
    exchange.keep = False


@broken
def empty_answer_line(exchange):
    """Send an empty line, and close the connection."""
    exchange.send(b"\r\n")
    exchange.keep = False


@doubtful
def huge_headers(exchange):
    """Send a header of 1 MiB."""
    return exchange.right.add("X-Filler", "x" * (1 << 20))


@doubtful
def many_headers(exchange):
    """Send 10,000 headers more."""
    right = exchange.right
    more = tuple((f"X-Filler-{i}", "x") for i in range(10_000))
    return replace(right, headers=right.headers + more)


@doubtful
def lf_only(exchange):
    """End lines with LF only."""
    send_with_head(exchange, exchange.right.head(b"\n"))


@doubtful
def header_folding(exchange):
    """Fold a header over two lines, as HTTP once allowed."""
    right = exchange.right
    send_with_head(exchange, right.add("X-Folded", "one\r\n two").head())


@doubtful
def null_byte_header(exchange):
    """Send a NUL inside a header."""
    return exchange.right.add("X-Null", "a\0b")


@harmless
def continue_100(exchange):
    """Send 100 Continue before the answer."""
    send_with_head(exchange, CONTINUE + exchange.right.head())


@broken
def many_100(exchange):
    """Send 100 Continue for ever."""
    while True:
        exchange.send(CONTINUE * 1000)


# Versions of a file.


@harmless
def no_etag(exchange):
    return exchange.right.drop("ETag")


@harmless
def no_validators(exchange):
    """Send neither ETag nor Last-Modified."""
    return exchange.right.drop("ETag").drop("Last-Modified")


@harmless
def weak_etag(exchange):
    right = exchange.right
    etag = right.get("ETag")
    return right.set("ETag", f"W/{etag}") if etag else right


@doubtful
def etag_changes(exchange):
    """Send another ETag each time, the same bytes, and ignore conditions."""
    request = exchange.request.without("if-match", "if-range")
    return exchange.server.answer(request).set("ETag", f'"v{exchange.nth}"')


@doubtful
def last_modified_changes(exchange):
    """Send another time each time, the same bytes, and ignore conditions."""
    request = exchange.request.without("if-match", "if-range")
    modified = formatdate(1_704_067_200 + exchange.nth, usegmt=True)
    return exchange.server.answer(request).set("Last-Modified", modified)


@doubtful
def contents_change(exchange):
    """Serve another version, with its own ETag, from the second request on."""
    right = exchange.server.answer(exchange.request.without("range", "if-match"))
    if right.status != 200 or exchange.nth == 1:
        return exchange.right
    other = bytes(255 - byte for byte in right.body)
    return exchange.server.answer_file(exchange.request, other)


# Statuses.


def refuse(status: int, *headers: tuple[str, str]) -> Behaviour:
    """Answer a status, with some text."""

    def behaviour(exchange: Exchange) -> Answer:
        answer = plain(status)
        return replace(answer, headers=answer.headers + headers)

    return behaviour


def after(seconds: float) -> str:
    return formatdate(time.time() + seconds, usegmt=True)


for _status in 204, 304, 401, 403, 404, 410, 416, 418, 429, 500, 502, 503, 504:
    named(BROKEN, f"status_{_status}", refuse(_status))
named(BROKEN, "status_429", refuse(429, ("Retry-After", "1")))
named(BROKEN, "status_429_long", refuse(429, ("Retry-After", "86400")))
named(BROKEN, "status_503_retry_after", refuse(503, ("Retry-After", "1")))


@broken
def status_429_date(exchange):
    """Ask to retry at a date that is a second or so ahead."""
    return plain(429).add("Retry-After", after(1))


@broken
def status_416_star(exchange):
    """Answer 416 with the right length of the file."""
    right = exchange.server.answer(exchange.request.without("range", "if-match"))
    return plain(416).add("Content-Range", f"bytes */{len(right.body)}")


@broken
def login_page(exchange):
    """Answer 200 with a login page, as captive portals do."""
    page = plain(200, "<html><body>Please log in</body></html>")
    return page.set("Content-Type", "text/html")


# Redirects.


def redirect_to(location: str | None, status: int = 302) -> Behaviour:
    """Redirect to a URL, sent as given; None: without a Location."""

    def behaviour(exchange: Exchange) -> Answer:
        answer = plain(status)
        return answer if location is None else answer.add("Location", location)

    return behaviour


named(BROKEN, "redirect_file", redirect_to("file:///etc/passwd"))
named(BROKEN, "redirect_ftp", redirect_to("ftp://127.0.0.1:9/file"))
named(BROKEN, "redirect_gopher", redirect_to("gopher://127.0.0.1:9/1file"))
named(BROKEN, "redirect_other_host", redirect_to("//other.invalid/file"))
named(BROKEN, "redirect_bad_port", redirect_to("http://127.0.0.1:99999/file"))
named(BROKEN, "redirect_empty", redirect_to(""))
named(BROKEN, "redirect_nowhere", redirect_to(None))


@harmless
def redirect_once(exchange):
    """Redirect to another URL of the same file."""
    location = exchange.server.url + ELSEWHERE[0] + exchange.request.target
    return moved(exchange, location)


@harmless
def redirect_relative(exchange):
    """Redirect to a path of the same file."""
    return moved(exchange, ELSEWHERE[0] + exchange.request.target)


@doubtful
def redirect_non_ascii(exchange):
    """Redirect to a path of the same file, in UTF-8 that is not quoted."""
    return moved(exchange, ELSEWHERE[1] + exchange.request.target)


@doubtful
def redirect_many(exchange):
    """Redirect twenty times, to another address each, then serve right."""
    hop, there = next_hop(exchange)
    return exchange.right if hop > HOPS else redirect_to(there)(exchange)


@broken
def redirect_loop(exchange):
    """Redirect to and fro between two addresses."""
    start, hop, _ = exchange.request.target.partition("hop=")
    there = start[:-1] if hop else next_hop(exchange)[1]
    return redirect_to(there)(exchange)


def next_hop(exchange: Exchange) -> tuple[int, str]:
    """Count redirects in the query; return the count, and the next address."""
    start, _, count = exchange.request.target.partition("hop=")
    if not count:
        start += "&" if "?" in start else "?"
    hop = int(count or 0) + 1
    return hop, f"{start}hop={hop}"


def moved(exchange: Exchange, location: str) -> Answer:
    if exchange.request.path.startswith(ELSEWHERE):
        return exchange.right
    return redirect_to(location)(exchange)
