"""Plain HTTP clients of the standard library."""

from __future__ import annotations

import http.client
from urllib.parse import urlsplit


def connect(url, timeout=5):
    parts = urlsplit(url)
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)


def fetch(url, headers=(), method="GET", timeout=5):
    """Return a response's status, headers and body, by http.client."""
    connection = connect(url, timeout)
    parts = urlsplit(url)
    target = f"{parts.path}?{parts.query}" if parts.query else parts.path
    try:
        connection.request(method, target, headers=dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def follow(url, headers=(), hops=25):
    """Fetch a URL, following redirects on this machine."""
    for _ in range(hops):
        status, known, body = fetch(url, headers)
        if status != 302:
            return status, known, body
        location = (known["Location"] or "").encode("latin-1").decode()
        assert location.startswith(("/", "http://127.0.0.1"))
        url = location if location[0] != "/" else url[: url.index("/", 8)] + location
    raise http.client.HTTPException("too many redirects")
