"""Wrong ranges, lengths and codings; connections that end or stall."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from support.servers.behaviours import (
    TICK,
    broken,
    doubtful,
    harmless,
    of_bodies,
    of_ranges,
)
from support.servers.messages import Answer

if TYPE_CHECKING:
    from support.servers.http import Exchange


def with_range(answer: Answer, first: int, last: int, total: object) -> Answer:
    return answer.set("Content-Range", f"bytes {first}-{last}/{total}")


# Content-Range.


@broken
@of_ranges
def wrong_content_range_start(right, first, last, total):
    """Send a Content-Range that starts one byte later."""
    return with_range(right, first + 1, last, total)


@broken
@of_ranges
def wrong_content_range_end(right, first, last, total):
    """Send a Content-Range that ends one byte later."""
    return with_range(right, first, last + 1, total)


@broken
@of_ranges
def wrong_content_range_both(right, first, last, total):
    """Send a Content-Range of the right length, one byte later."""
    return with_range(right, first + 1, last + 1, total)


@doubtful
@of_ranges
def wrong_content_range_total(right, first, last, total):
    """Send a Content-Range with a larger total."""
    return with_range(right, first, last, total + 1)


@broken
@of_ranges
def content_range_garbage(right, first, last, total):
    """Send a Content-Range that cannot be parsed."""
    return right.set("Content-Range", "bytes -1-0x10/many")


@broken
@of_ranges
def no_content_range(right, first, last, total):
    """Answer 206 without Content-Range."""
    return right.drop("Content-Range")


@doubtful
@of_ranges
def star_total(right, first, last, total):
    """Send a Content-Range without a total."""
    return with_range(right, first, last, "*")


@doubtful
def ok_for_range(exchange):
    """Answer 200 with the whole file, as servers without ranges do."""
    return exchange.server.answer(exchange.request.without("range"))


@doubtful
def ok_for_range_chunked(exchange):
    """Answer 200 with the whole file, in chunks."""
    send_chunked(exchange, ok_for_range(exchange))


@broken
@of_ranges
def status_206_multipart(right, first, last, total):
    """Send the range as multipart/byteranges."""
    head = f"--edge\r\nContent-Range: bytes {first}-{last}/{total}\r\n\r\n".encode()
    right = right.drop("Content-Range").with_body(
        head + right.body + b"\r\n--edge--\r\n"
    )
    return right.set("Content-Type", "multipart/byteranges; boundary=edge")


# Lengths of bodies, and their coding.


@broken
@of_bodies
def short_body(exchange, right):
    """Close the connection after half of the body."""
    exchange.send(right.head(), half(right.body))
    exchange.keep = False


@broken
@of_bodies
def short_length(exchange, right):
    """Send half of the body, with the length of that half."""
    return right.with_body(half(right.body))


@doubtful
@of_bodies
def long_body(exchange, right):
    """Send more than was asked, with a Content-Length of all of it."""
    return right.with_body(right.body + b"more" * 100)


@doubtful
@of_bodies
def long_body_silent(exchange, right):
    """Send more than was asked, with the Content-Length that was asked."""
    exchange.send(right.head(), right.body + b"more" * 100)


@doubtful
@of_bodies
def trailing_garbage(exchange, right):
    """Send lines after an answer, on a connection that stays."""
    exchange.send(right.head(), right.body)
    exchange.send(b"\r\ngarbage: after the answer\r\n\r\n")


@doubtful
def huge_content_length(exchange):
    """Claim a length of 2**63."""
    return exchange.right.set("Content-Length", 2**63).add("Connection", "close")


@doubtful
def negative_content_length(exchange):
    """Claim a length of -1."""
    return exchange.right.set("Content-Length", -1).add("Connection", "close")


@doubtful
def two_content_lengths(exchange):
    """Claim two lengths, the right one first."""
    right = exchange.right
    return right.add("Content-Length", int(right.get("Content-Length")) + 10)


@doubtful
@of_bodies
def gzip_unasked(exchange, right):
    """Compress the body."""
    return right.with_body(gzip.compress(right.body)).add("Content-Encoding", "gzip")


@harmless
def chunked(exchange):
    """Send in chunks, without a length."""
    send_chunked(exchange, exchange.right)


@broken
@of_bodies
def chunked_cut(exchange, right):
    """Close the connection inside a chunk."""
    exchange.send(chunked_head(right) + b"%x\r\n" % len(right.body), half(right.body))
    exchange.keep = False


@broken
@of_bodies
def chunked_without_end(exchange, right):
    """Close the connection after half of the chunks."""
    exchange.send(chunked_head(right) + b"".join(chunks(half(right.body))))
    exchange.keep = False


@broken
@of_bodies
def chunked_bad_size(exchange, right):
    """Send a chunk whose size is not a number."""
    exchange.send(chunked_head(right) + b"zz\r\n", right.body)
    exchange.keep = False


@broken
@of_bodies
def chunked_huge_size(exchange, right):
    """Send a chunk that claims 2**72 - 1 bytes."""
    exchange.send(chunked_head(right) + b"f" * 18 + b"\r\n", half(right.body))
    exchange.keep = False


@harmless
def http10(exchange):
    """Answer as HTTP/1.0, and close the connection."""
    return replace(exchange.right, version="HTTP/1.0").set("Connection", "close")


@doubtful
def http10_no_length(exchange):
    """Answer as HTTP/1.0, the body ending with the connection."""
    return http10(exchange).drop("Content-Length")


# Connections and time.


@broken
@of_bodies
def reset_midway(exchange, right):
    """Reset the connection after half of the body."""
    exchange.send(right.head(), half(right.body))
    exchange.reset()


@broken
def close_at_once(exchange):
    """Close the connection instead of an answer."""
    exchange.keep = False


@doubtful
@of_bodies
def trickle(exchange, right):
    """Send the body byte by byte, slowly."""
    exchange.send(right.head())
    for i in range(len(right.body)):
        exchange.pause(TICK)
        exchange.send(b"", right.body[i : i + 1])


@doubtful
def slow_headers(exchange):
    """Send the headers byte by byte, slowly."""
    right = exchange.right
    for byte in right.head():
        exchange.send(bytes([byte]))
        exchange.pause(TICK)
    if exchange.request.method != "HEAD":
        exchange.send(b"", right.body)


@broken
@of_bodies
def stall(exchange, right):
    """Stall after half of the body."""
    exchange.send(right.head(), half(right.body))
    exchange.hang()


@broken
def never_answer(exchange):
    """Accept the request and send nothing."""
    exchange.hang()


# Parts.


def half(body: bytes) -> bytes:
    return body[: len(body) // 2]


def chunks(body: bytes, size: int = 1000) -> Iterator[bytes]:
    for start in range(0, len(body), size):
        piece = body[start : start + size]
        yield b"%x\r\n%b\r\n" % (len(piece), piece)


def chunked_head(answer: Answer) -> bytes:
    return answer.drop("Content-Length").add("Transfer-Encoding", "chunked").head()


def send_chunked(exchange: Exchange, answer: Answer) -> None:
    if exchange.request.method == "HEAD" or answer.status not in (200, 206):
        exchange.answer(answer)
    else:
        coded = b"".join([*chunks(answer.body), b"0\r\n\r\n"])
        exchange.send(chunked_head(answer), coded)
