"""URLs of shards: which are remote, their parts, and how they are shown.

A URL's query may hold a signature, so it is never shown.
"""

from __future__ import annotations

import os
import posixpath
import re
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, unquote, urljoin, urlsplit

from fastshard.errors import FastshardError

__all__ = [
    "Origin",
    "base_of",
    "checked",
    "common_folder",
    "folder_of",
    "is_folder",
    "is_remote",
    "joined",
    "last_part",
    "origin_of",
    "relative",
    "scheme_of",
    "shown",
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


def scheme_of(text: str) -> str:
    """Return the scheme, in lower case; empty for a path."""
    match = SCHEME.match(text)
    return match[1].lower() if match else ""


def is_remote(text: str) -> bool:
    """Say whether a str is the URL of something that is read over a network."""
    return scheme_of(text) in REMOTE


@lru_cache(1024)
def checked(url: str) -> str:
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
        raise FastshardError(f"{shown(url)} is no URL: {error}") from None
    if parts.scheme.lower() not in HTTP:
        raise FastshardError(f"{shown(url)} is neither http nor https")
    if not host or re.search(r"[\x00-\x20\x7f]", url):
        raise FastshardError(f"{shown(url)!r} is no URL")
    if "@" in parts.netloc:
        raise FastshardError(
            f"{shown(url)} has a password in it; give headers= or token= in its place"
        )
    if not host.isascii():
        try:
            url = url.replace(host, host.encode("idna").decode("ascii"), 1)
        except UnicodeError:
            raise FastshardError(f"{shown(url)} has no host that there is") from None
    return quote(url.partition("#")[0], safe="%/:=&?~#+!$,;'@()*[]")


def is_folder(text: str) -> bool:
    """Say whether a str names a folder: a directory here, or a URL of no index."""
    if is_remote(text):
        return not base_of(text).endswith((".fsi", ".json", ".idx"))
    return os.path.isdir(text)


def shown(url: str) -> str:
    """Return a URL without what may be secret: user, password, query."""
    scheme = SCHEME.match(url)
    if scheme is None:
        return url
    rest, query, _ = url[scheme.end() :].partition("#")[0].partition("?")
    if "@" in query or "@" in rest.partition("/")[0]:  # a password may have any of / ?
        rest, query, _ = url[scheme.end() :].rpartition("@")[2].partition("?")
    return scheme[0] + rest + ("?..." if query else "")


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


def joined(folder: str, name: str) -> str:
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


def relative(url: str, root: str) -> str:
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


def last_part(url: str) -> str:
    """Return the name of an object in its folder."""
    return unquote(posixpath.basename(base_of(url)))
