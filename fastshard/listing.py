"""Which shards a remote source stands for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple, Protocol

from fastshard._util.globs import SUFFIX, expand_braces, has_magic, natural_key
from fastshard.errors import FastshardError, FormatError
from fastshard.index.dataset_file import NAME, GlobalIndex
from fastshard.index.wids import read_wids
from fastshard.remote.file import open_remote, remote_bytes, transport_for
from fastshard.remote.options import Settings
from fastshard.remote.urls import (
    HTTP,
    base_of,
    folder_of,
    is_remote,
    joined,
    scheme_of,
    shown,
)

__all__ = [
    "Listed",
    "Lister",
    "list_remote",
    "parts_of",
    "sources_in",
]

SEVERAL = re.compile(
    r"::(?=[A-Za-z][A-Za-z0-9+.-]*://)"
)  # but not that of an IPv6 host


class Listed(NamedTuple):
    """A shard, and how many samples it is said to hold."""

    url: str
    samples: int | None = None


class Lister(Protocol):
    """A kind of server that lists what it has."""

    def list(self, folder: str) -> Iterator[str]:
        """Return the URLs of all objects below a folder."""
        ...


def parts_of(source: str) -> list[str]:
    """Split what is joined by ``::``."""
    return SEVERAL.split(source)


def sources_in(source: object) -> list[str]:
    """Return the URLs that a source names: whom secrets may be told."""
    given = source if isinstance(source, Sequence) else ()
    items = [source] if isinstance(source, str) else given
    urls = [item for item in items if isinstance(item, str) and is_remote(item)]
    return [part for item in urls for part in parts_of(item) if is_remote(part)]


def list_remote(source: str, settings: Settings) -> Iterator[Listed]:
    """Find the shards of a URL.

    A shard; a brace list; a wids index; or a folder. What is in a folder is listed by
    stores and the hub; over HTTP, its ``dataset.fsi`` is asked for, for HTTP lists
    nothing. Of stores and the hub, globs too, and ``folder/**``.

    Raises
    ------
    FastshardError
        There is none.
    RemoteError
        It cannot be read.
    """
    base, question, query = source.partition("?")
    for word in expand_braces(base):
        url = word + question + query
        path = word.partition("://")[2].partition("/")[2]
        if word.endswith(".json"):
            yield from _from_wids_url(url, settings)
        elif word.endswith(SUFFIX) and not has_magic(path):
            yield Listed(url)
        elif scheme_of(url) in HTTP:
            yield from _from_index(url, settings)
        else:
            yield from map(Listed, _found(word, settings))


def _from_index(url: str, settings: Settings) -> Iterator[Listed]:
    """Find the shards that the index of a folder lists."""
    base = base_of(url)
    if has_magic(base):
        raise FastshardError(
            f"{shown(url)} is a glob, and HTTP lists nothing: give a brace list"
        )
    whole = url if base.endswith("/" + NAME) else joined(url, NAME)
    try:
        file = open_remote(whole, settings)
    except FileNotFoundError:
        raise FastshardError(
            f"{shown(url)} is no shard ({SUFFIX}), and has no {NAME} to say which "
            "shards are below it: HTTP lists nothing"
        ) from None
    _, question, query = whole.partition("?")
    for shard in GlobalIndex(file.path, file=file).shards:
        yield Listed(joined(folder_of(whole), shard.name) + question + query)


def _from_wids_url(url: str, settings: Settings) -> Iterator[Listed]:
    """Read a wids index."""
    shards = read_wids(shown(url), lambda _: remote_bytes(url, settings))
    for shard in shards:
        where = joined(folder_of(url), shard.url)
        if scheme_of(where) != scheme_of(url):
            raise FormatError(f"it lists {shown(where)}", shown(url), 0)
        yield Listed(where, shard.nsamples)


def _found(word: str, settings: Settings) -> list[str]:
    """List the shards in a folder, below it, or that a glob matches.

    Those of the hub are named by their commit, so that all are of the same.
    """
    lister: Lister = transport_for(word, settings)  # type: ignore[assignment]
    if scheme_of(word) == "hf":
        from fastshard.remote.hub import hub_for

        word = hub_for(settings).pinned(word)
    scheme, _, path = word.partition("://")
    below = path.endswith("/**")
    pattern = path.removesuffix("**").rstrip("/")
    fixed = pattern.split("/")
    if has_magic(pattern):
        magic = next(i for i, part in enumerate(fixed) if has_magic(part))
        fixed = fixed[:magic]
    folder = f"{scheme}://{'/'.join(fixed)}"
    shards = [url for url in lister.list(folder) if url.endswith(SUFFIX)]
    if has_magic(pattern):
        depth = pattern.count("/")
        shards = [url for url in shards if _matches(url, scheme, pattern, depth)]
    elif not below:
        shards = [url for url in shards if folder_of(url) == folder]
    if not shards:
        raise FastshardError(f"{shown(word)} has no shard ({SUFFIX})")
    return sorted(shards, key=natural_key)


def _matches(url: str, scheme: str, pattern: str, depth: int) -> bool:
    path = url.removeprefix(f"{scheme}://")
    parts, wanted = path.split("/"), pattern.split("/")
    return path.count("/") == depth and all(map(fnmatchcase, parts, wanted))
