"""URLs: parsing, normalization, redaction.

A query may hold a signature, so it never appears in errors, logs or files.
"""

from __future__ import annotations

import os
import posixpath
import re
from contextlib import suppress
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from typing import NamedTuple, NoReturn
from urllib.parse import parse_qsl, quote, unquote, urljoin, urlsplit

from fastshard._util.paths.globs import lexists
from fastshard.errors import FastshardError

__all__ = [
    "Origin",
    "Url",
    "base_of",
    "common_folder",
    "expiry_of",
    "folder_of",
    "is_folder",
    "is_remote",
    "is_url",
    "join_url",
    "normalize_url",
    "origin_of",
    "parse_path_or_url",
    "parse_url",
    "redact",
    "relative_path",
    "scheme_of",
    "strip_user",
    "url_basename",
]

SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
FILE = re.compile(r"file:(?://(?:localhost)?(?=/)|(?!//))", re.IGNORECASE)
HTTP = frozenset(("http", "https"))
STORES = frozenset(("s3", "s3a", "gs", "gcs", "az", "azure", "abfs", "abfss", "adl"))
REMOTE = HTTP | STORES | {"hf"}
PORTS = {"http": 80, "https": 443}


class Origin(NamedTuple):
    """Scheme, host and port: the scope of a secret."""

    scheme: str
    host: str
    port: int | None


class Url:
    """Parsed URL; it does not pickle, since its text may hold a secret.

    Attributes
    ----------
    text : str
        As given.
    scheme : str
        In lower case.
    base : str
        The text without the query.
    query : str
        The query with its question mark, or "".
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.scheme: str = scheme_of(text)
        self.base: str = base_of(text)
        self.query: str = text[len(self.base) :]

    @cached_property
    def redacted(self) -> str:
        """The URL for errors, logs and files; see `redact`."""
        return redact(self.text)

    @cached_property
    def normalized(self) -> str:
        """The URL as HTTP sends it; raises as `normalize_url` does."""
        return normalize_url(self.text)

    def __repr__(self) -> str:
        return f"<Url {self.redacted!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Url does not pickle: its text may be secret")


def parse_path_or_url(text: str) -> str | Url:
    """Parse a URL; return a path unchanged, and of a ``file:`` URL its path."""
    return Url(text) if is_remote(text) else _strip_file_scheme(text)


def _strip_file_scheme(text: str) -> str:
    """Return the path of ``file:PATH``, ``file://`` or ``file://localhost`` and a path.

    A file of that name, and a URL of another host, are returned unchanged.
    """
    found = FILE.match(text)
    if found is None or lexists(text):
        return text
    path = text[found.end() :]
    if os.name == "nt" and re.match("/[A-Za-z]:", path):
        path = path[1:]
    if "%" in path and not lexists(path):
        path = unquote(path, errors="surrogateescape")
    return path


def parse_url(url: str | Url) -> Url:
    """Parse a URL; return a parsed one unchanged."""
    return url if isinstance(url, Url) else Url(url)


def scheme_of(text: str) -> str:
    """Return the scheme, in lower case; empty for a path."""
    match = SCHEME.match(text)
    return match[1].lower() if match else ""


def is_remote(text: str) -> bool:
    """Return whether a str is a URL that is read over a network."""
    return scheme_of(text) in REMOTE


def is_url(text: str) -> bool:
    """Return whether a str is a URL, also that of a cached blob; not a path.

    The letter of a drive is not a scheme.
    """
    scheme = scheme_of(text)
    return len(scheme) > 1 and scheme != "file"


@lru_cache(1024)
def normalize_url(url: str) -> str:
    """Return an ``http`` or ``https`` URL as HTTP sends it: ASCII, percent-encoded."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        # An error text of urllib may quote a password.
        reason = "" if "@" in url else f": {error}"
        raise FastshardError(f"{redact(url)} is not a URL{reason}") from None
    if parts.scheme.lower() not in HTTP:
        raise FastshardError(f"expected an http or https URL, got {redact(url)}")
    if not host or re.search(r"[\x00-\x20\x7f]", url):
        raise FastshardError(
            f"{redact(url)!r} is not a URL: it has no host, or a space or control "
            "character"
        )
    if "@" in parts.netloc:
        raise FastshardError(
            f"{redact(url)} contains a user or password; use headers= or token= instead"
        )
    if not host.isascii():
        try:
            name = parts.netloc.partition(":")[0]  # `hostname` is lower-case
            url = url.replace(name, host.encode("idna").decode("ascii"), 1)
        except UnicodeError:
            raise FastshardError(f"{redact(url)} has no valid host name") from None
    return quote(url.partition("#")[0], safe="%/:=&?~#+!$,;'@()*[]")


def is_folder(location: str | Url) -> bool:
    """Return whether a path is a directory, or a URL may be a folder.

    Any URL may, except one with the suffix of an index file.
    """
    parsed = parse_path_or_url(location) if isinstance(location, str) else location
    if isinstance(parsed, Url):
        return not parsed.base.endswith((".fsi", ".json", ".idx"))
    return os.path.isdir(parsed)


def redact(url: str) -> str:
    """Return a URL without user, password, query and fragment, which may be secret."""
    if SCHEME.match(url) is None:
        return url
    # The user first: a password may contain "#".
    base, query, _ = strip_user(url).partition("#")[0].partition("?")
    return base + ("?..." if query else "")


def strip_user(url: str) -> str:
    """Return a URL without its user and password."""
    scheme = SCHEME.match(url)
    if scheme is None:
        return url
    rest = url[scheme.end() :]
    base, _, query = rest.partition("?")
    if "@" in query or "@" in base.partition("/")[0]:  # a password may contain / or ?
        rest = rest.rpartition("@")[2]
    return scheme[0] + rest


def expiry_of(url: str) -> float | None:
    """Return when the signature of a URL expires, s since 1970; None if unknown.

    Those of CloudFront, Amazon S3, Google Cloud Storage and Azure are known.
    """
    query = {name.lower(): text for name, text in parse_qsl(urlsplit(url).query)}
    with suppress(ValueError, OverflowError):
        if "expires" in query:
            return float(query["expires"])
        for scheme in ("x-amz", "x-goog"):
            if f"{scheme}-date" in query:
                signed = datetime.strptime(query[f"{scheme}-date"], "%Y%m%dT%H%M%S%z")
                return signed.timestamp() + float(query.get(f"{scheme}-expires", ""))
        if "se" in query and "sig" in query:
            until = datetime.fromisoformat(query["se"])
            return (until if until.tzinfo else until.replace(tzinfo=UTC)).timestamp()
    return None


@lru_cache(1024)
def origin_of(url: str) -> Origin:
    """Return the origin of an ``http`` or ``https`` URL."""
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    port = parts.port or PORTS.get(scheme)
    return Origin(scheme, (parts.hostname or "").rstrip("."), port)


def base_of(url: str) -> str:
    """Return a URL without its query, a path unchanged."""
    return url.partition("?")[0] if SCHEME.match(url) else url


def folder_of(url: str) -> str:
    """Return the URL of an object's folder, without a trailing slash."""
    return base_of(url).rpartition("/")[0]


def join_url(folder: str, name: str) -> str:
    """Join a folder's URL and a name; return a name that is a URL unchanged."""
    if scheme_of(name):
        return name
    if scheme_of(folder) in HTTP:
        base, question, query = folder.partition("?")
        url = urljoin(base.rstrip("/") + "/", name)
        if origin_of(url) != origin_of(base):  # the query may be secret
            return url
        return url + question + query
    return folder.rstrip("/") + "/" + name


def relative_path(url: str, root: str) -> str:
    """Return an object's path relative to a folder; "" for an object elsewhere."""
    base, prefix = base_of(url), root.rstrip("/") + "/"
    return base[len(prefix) :] if base.startswith(prefix) else ""


def common_folder(urls: list[str]) -> str:
    """Return the deepest folder above all objects; "" without a common host.

    On the hub they must be in one repository.
    """
    parts = [folder_of(url).split("/") for url in (min(urls), max(urls))]
    common = []
    for a, b in zip(*parts, strict=False):
        if a != b:
            break
        common.append(a)
    # "scheme:", "" and the host; on the hub the latter is "datasets/owner/name".
    min_parts = 5 if scheme_of(urls[0]) == "hf" else 3
    return "/".join(common) if len(common) >= min_parts else ""


def url_basename(url: str) -> str:
    """Return the last part of a URL's path, percent-decoded; of a path unchanged."""
    name = posixpath.basename(base_of(url))
    return unquote(name) if SCHEME.match(url) else name
