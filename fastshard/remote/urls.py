"""URLs: which are remote, their parts, as they are sent, as they are shown.

A URL's query may hold a signature, so it is never shown.
"""

from __future__ import annotations

import os
import posixpath
import re
from functools import cached_property, lru_cache
from typing import NamedTuple, NoReturn
from urllib.parse import quote, unquote, urljoin, urlsplit

from fastshard.errors import FastshardError

__all__ = [
    "Origin",
    "Url",
    "base_of",
    "common_folder",
    "folder_of",
    "is_folder",
    "is_remote",
    "join_url",
    "normalize_url",
    "origin_of",
    "parse_path_or_url",
    "parse_url",
    "redact",
    "relative_path",
    "scheme_of",
    "url_basename",
    "without_user",
]

SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
HTTP = frozenset(("http", "https"))
STORES = frozenset(("s3", "s3a", "gs", "gcs", "az", "azure", "abfs", "abfss", "adl"))
REMOTE = HTTP | STORES | {"hf"}
PORTS = {"http": 80, "https": 443}


class Origin(NamedTuple):
    """Whom a secret may be told: scheme, host and port."""

    scheme: str
    host: str
    port: int | None


class Url:
    """A URL, parsed once. Its text may be secret, `redacted` is not.

    Attributes
    ----------
    text : str
        As it was given.
    scheme : str
        In lower case.
    base, query : str
        Without the query; the query with its question mark, or "".
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.scheme = scheme_of(text)
        self.base, question, query = text.partition("?")
        self.query = question + query

    @cached_property
    def redacted(self) -> str:
        """The URL for errors, logs and whatever is stored: see `redact`."""
        return redact(self.text)

    @cached_property
    def sent(self) -> str:
        """The URL as HTTP sends it; raises as `normalize_url` does."""
        return normalize_url(self.text)

    def __repr__(self) -> str:
        return f"<Url {self.redacted!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Url does not pickle: its text may be secret")


def parse_path_or_url(text: str) -> str | Url:
    """Parse a path or a URL: a path is returned as it is."""
    return Url(text) if is_remote(text) else text


def parse_url(url: str | Url) -> Url:
    """Parse a URL, unless that has been done."""
    return url if isinstance(url, Url) else Url(url)


def scheme_of(text: str) -> str:
    """Return the scheme, in lower case; empty for a path."""
    match = SCHEME.match(text)
    return match[1].lower() if match else ""


def is_remote(text: str) -> bool:
    """Say whether a str is the URL of something that is read over a network."""
    return scheme_of(text) in REMOTE


@lru_cache(1024)
def normalize_url(url: str) -> str:
    """Return an ``http`` or ``https`` URL as it is sent.

    Raises
    ------
    FastshardError
        It is another kind of URL, has a user or a password in it, or no host.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise FastshardError(f"{redact(url)} is no URL: {error}") from None
    if parts.scheme.lower() not in HTTP:
        raise FastshardError(f"{redact(url)} is neither http nor https")
    if not host or re.search(r"[\x00-\x20\x7f]", url):
        raise FastshardError(f"{redact(url)!r} is no URL")
    if "@" in parts.netloc:
        raise FastshardError(
            f"{redact(url)} has a password in it; give headers= or token= in its place"
        )
    if not host.isascii():
        try:
            url = url.replace(host, host.encode("idna").decode("ascii"), 1)
        except UnicodeError:
            raise FastshardError(f"{redact(url)} has no host that there is") from None
    return quote(url.partition("#")[0], safe="%/:=&?~#+!$,;'@()*[]")


def is_folder(place: str | Url) -> bool:
    """Say whether a folder is named: a directory here, or a URL of no index."""
    found = parse_path_or_url(place) if isinstance(place, str) else place
    if isinstance(found, Url):
        return not found.base.endswith((".fsi", ".json", ".idx"))
    return os.path.isdir(found)


def redact(url: str) -> str:
    """Return a URL without what may be secret: user, password, query."""
    if SCHEME.match(url) is None:
        return url
    base, query, _ = without_user(url.partition("#")[0]).partition("?")
    return base + ("?..." if query else "")


def without_user(url: str) -> str:
    """Return a URL without a user and a password."""
    scheme = SCHEME.match(url)
    if scheme is None:
        return url
    rest = url[scheme.end() :]
    base, _, query = rest.partition("?")
    if "@" in query or "@" in base.partition("/")[0]:  # a password may have any of / ?
        rest = rest.rpartition("@")[2]
    return scheme[0] + rest


@lru_cache(1024)
def origin_of(url: str) -> Origin:
    """Return the origin of an ``http`` or ``https`` URL."""
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    port = parts.port or PORTS.get(scheme)
    return Origin(scheme, (parts.hostname or "").rstrip("."), port)


def base_of(url: str) -> str:
    """Return a URL without its query."""
    return url.partition("?")[0]


def folder_of(url: str) -> str:
    """Return the URL of the folder that an object is in, without a slash."""
    return base_of(url).rpartition("/")[0]


def join_url(folder: str, name: str) -> str:
    """Return the URL of an object by its name below a folder, or by its own URL."""
    if scheme_of(name):
        return name
    if scheme_of(folder) in HTTP:
        base, question, query = folder.partition("?")
        found = urljoin(base.rstrip("/") + "/", name)
        if origin_of(found) != origin_of(base):  # a query is for its own origin
            return found
        return found + question + query
    return folder.rstrip("/") + "/" + name


def relative_path(url: str, root: str) -> str:
    """Return the name of an object below a folder; "" if it is elsewhere."""
    base, prefix = base_of(url), root.rstrip("/") + "/"
    return base[len(prefix) :] if base.startswith(prefix) else ""


def common_folder(urls: list[str]) -> str:
    """Return the folder that all objects lie below; "" for different hosts.

    Of the hub it is in one repository.
    """
    parts = [folder_of(url).split("/") for url in (min(urls), max(urls))]
    same = []
    for a, b in zip(*parts, strict=False):
        if a != b:
            break
        same.append(a)
    least = 5 if scheme_of(urls[0]) == "hf" else 3  # scheme, nothing, host; or a repo
    return "/".join(same) if len(same) >= least else ""


def url_basename(url: str) -> str:
    """Return the name of an object in its folder."""
    return unquote(posixpath.basename(base_of(url)))
