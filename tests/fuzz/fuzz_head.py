"""Fuzzer of the parser of response heads, compared with a plain one.

Not part of the suite. Heads are damaged at random; a seed reproduces them::

    python tests/fuzz/fuzz_head.py --seeds 0 100000

A build with sanitizers (see ``tests/sanitize.sh``) finds more. It stops at the first
difference.
"""

from __future__ import annotations

import random
import re
import sys

from fastshard._core.io.exchange import parse_head

RANGE, TAG, SIZE = b"bytes 10-19/100", b'"tag"', 10
ONCE = (b"connection", b"content-encoding", b"content-length")
ONCE += (b"content-range", b"etag", b"last-modified")
PIECES = (
    *(b"\r\n", b"\n", b"\r", b":", b" ", b"\t", b"\x00", b"\x7f", b"\xff", b"0", b"10"),
    *(b"Content-Length: 10", b"content-range: bytes 10-19/100", b"Connection: close"),
    *(b"Transfer-Encoding: chunked", b"Content-Encoding: identity", b'ETag: "tag"'),
    *(b'Last-Modified: "tag"', b"HTTP/1.1 206", b"206", b"200", b"a:", b"\r\n\r\n"),
)
HEAD = (
    b"HTTP/1.1 206 Partial Content\r\nServer: any\r\nContent-Length: 10\r\n"
    b'Content-Range: bytes 10-19/100\r\nETag: "tag"\r\nConnection: keep-alive\r\n\r\n'
)


def parse_plainly(head: bytes) -> bool | None:
    """Return the answer of an independent parser."""
    if not head.endswith(b"\r\n\r\n"):
        return None
    first, *lines = head[:-4].split(b"\r\n")
    if not re.fullmatch(rb"HTTP/1\.1 206( [^\x00-\x08\x0a-\x1f\x7f]*)?", first):
        return None
    fields: dict[bytes, bytes] = {}
    for line in lines:
        match = re.fullmatch(
            rb"([\x21-\x39\x3b-\x7e]+):([^\x00-\x08\x0a-\x1f\x7f]*)", line
        )
        if match is None:
            return None
        name = match[1].lower()
        if name == b"transfer-encoding" or (name in ONCE and name in fields):
            return None
        fields[name] = match[2].strip(b" \t")
    if fields.get(b"content-encoding", b"identity").lower() != b"identity":
        return None
    expected = fields.get(b"content-length"), fields.get(b"content-range")
    if expected != (b"%d" % SIZE, RANGE):
        return None
    if (fields.get(b"etag") or fields.get(b"last-modified")) != TAG:
        return None
    return fields.get(b"connection", b"keep-alive").lower() == b"keep-alive"


def damage(seed: int) -> bytes:
    """Return a head with a few pieces inserted, removed or replaced."""
    numbers = random.Random(seed)
    head = HEAD
    for _ in range(numbers.randrange(1, 5)):
        at = numbers.randrange(len(head) + 1)
        end = at + numbers.choice((0, 0, 1, 2, numbers.randrange(40)))
        head = head[:at] + numbers.choice((*PIECES, b"")) + head[end:]
    return head


def main(first: int, last: int) -> None:
    """Compare the answers to the heads of some seeds."""
    accepted = 0
    for seed in range(first, last):
        head = damage(seed)
        answer = parse_head(head, RANGE, TAG, SIZE)
        assert answer == parse_plainly(head), (seed, head)
        accepted += answer is not None
    print(f"{last - first:,} heads, {accepted:,} accepted")


if __name__ == "__main__":
    main(int(sys.argv[-2]), int(sys.argv[-1]))
