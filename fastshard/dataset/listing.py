"""Sources of a dataset (paths, globs, URLs) as an ordered list of shards."""

from __future__ import annotations

import errno
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import NamedTuple, Protocol, TypeAlias

from fastshard._util.globs import (
    SUFFIX,
    expand_braces,
    glob,
    has_magic,
    leads_somewhere,
    natural_key,
    present,
    shards_in,
)
from fastshard.errors import FastshardError, FormatError
from fastshard.index.dataset_file import NAME, GlobalIndex
from fastshard.index.wids import read_wids
from fastshard.remote.file import open_remote, remote_bytes, transport_for
from fastshard.remote.options import Settings, settings_of
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
    "Listing",
    "Source",
    "expand",
    "list_remote",
    "list_shards",
    "natural_key",
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


Source: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

# What lies beside shards and is not one; a glob passes over it.
SIDECARS = (".fsi", ".json", ".idx", ".index", ".index.sqlite")

SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
MANY = 3  # names in a message
LOOKED_AT = 1000  # directories, for a hint


class Listing(NamedTuple):
    """The shards of a dataset, and how many samples each is said to hold."""

    paths: list[str]
    samples: list[int] | None  # None unless wids files name all of them


class _Shard(NamedTuple):
    path: str
    samples: int | None = None


def expand(source: Source, *, check: bool = True) -> list[str]:
    """Return the paths of a dataset's shards, in order; see `list_shards`."""
    return list_shards(source, check=check).paths


def list_shards(
    source: Source, *, check: bool = True, remote: Settings | None = None
) -> Listing:
    """List the shards that a source stands for.

    Parameters
    ----------
    source : str, path-like or sequence of them
        Each is a shard (``.tar``); a directory, for the shards that lie in it,
        or ``directory/**`` for those below it too; a glob; a brace list
        (``train-{000..099}.tar``), which may be of any of these; a wids index
        (``.json``); or several of them joined by ``::``. A name that exists is
        never taken for a pattern. Directories and globs are in natural order,
        all else as given.
        Of URLs, see `list_remote`.
    check : bool
        Look whether every local shard exists.
    remote : Settings, optional
        How URLs are read.

    Returns
    -------
    Listing
        Paths as they were given, joined with what was found below them.

    Raises
    ------
    FileNotFoundError
        Shards are missing; it names the first, and says how many.
    FastshardError
        A directory or a glob has no shard, a file is none, a file is named
        twice, or a brace list is too long; or local and remote shards are mixed.
    FormatError
        A ``.json`` is no wids index.
    ValueError, TypeError
        The source is empty, or of another type.
    OSError
        A directory cannot be read.
    """
    items = _items(source)
    settings = remote or settings_of({}, items)
    shards = [shard for item in items for shard in _resolve(item, settings)]
    local = [shard.path for shard in shards if not is_remote(shard.path)]
    if local and len(local) < len(shards):
        raise FastshardError("local and remote shards in one dataset")
    if check:
        _refuse_missing(local)
    for shard in shards:
        name = base_of(shard.path) if is_remote(shard.path) else shard.path
        if not name.endswith(SUFFIX):
            raise FastshardError(
                f"{shown(shard.path)} is no shard: shards are {SUFFIX} files, "
                "not compressed"
            )
    paths = [shard.path for shard in shards]
    _refuse_repeated(paths)
    samples = [shard.samples for shard in shards if shard.samples is not None]
    return Listing(paths, samples if len(samples) == len(paths) else None)


def _items(source: Source) -> list[str]:
    """Return what a source names, as a list of str that are not empty."""
    given: Sequence[object]
    if isinstance(source, str | os.PathLike):
        given = [source]
    elif isinstance(source, Sequence) and not isinstance(
        source, bytes | bytearray | memoryview
    ):
        given = source
    else:
        raise TypeError(
            f"a source is a path or a sequence of paths, not {type(source).__name__}"
        )
    items = [_as_str(item) for item in given]
    if not items:
        raise ValueError("a source of no shards")
    return items


def _as_str(item: object) -> str:
    path = os.fspath(item) if isinstance(item, os.PathLike) else item
    if not isinstance(path, str):
        raise TypeError(f"paths are str or path-like, not {type(item).__name__}")
    if not path:
        raise ValueError("a source with an empty path")
    return path


def _resolve(item: str, settings: Settings) -> Iterator[_Shard]:
    """Find what one str of a source stands for."""
    if is_remote(item):
        for part in parts_of(item):
            if not is_remote(part):
                yield from _resolve(part, settings)
            else:
                yield from (_Shard(*found) for found in list_remote(part, settings))
        return
    if present(item):
        yield from _existing(item, settings)
        return
    _refuse_remote(item)
    if "::" in item:
        for part in item.split("::"):
            yield from _resolve(_as_str(part), settings)
        return
    local = _without_scheme(item)
    if present(local):
        yield from _existing(local, settings)
        return
    for word in expand_braces(local):
        if present(word):
            yield from _existing(word, settings)
        elif has_magic(word):
            yield from map(_Shard, _globbed(word))
        else:
            yield _Shard(word)


def _existing(path: str, settings: Settings) -> Iterator[_Shard]:
    """Find the shards of something that is there."""
    if os.path.isdir(path):
        yield from map(_Shard, _listed(path))
    elif path.endswith(".json"):
        yield from _from_wids(path, settings)
    else:
        yield _Shard(path)


def _listed(folder: str) -> list[str]:
    shards = shards_in(folder)
    if shards:
        return shards
    below = list(itertools.islice(_folders_with_shards(folder), MANY))
    if not below:
        raise FastshardError(f"{folder} has no shard ({SUFFIX})")
    pattern = os.path.join(folder, "**")
    raise FastshardError(
        f"{folder} has no shard ({SUFFIX}) of its own, but others below it have: "
        f"{', '.join(below)}; ask for {pattern} or for one of them"
    )


def _folders_with_shards(folder: str) -> Iterator[str]:
    """Find directories for a message; what cannot be read is passed over."""
    waiting = [folder]
    for _ in range(LOOKED_AT):
        if not waiting:
            return
        here = waiting.pop(0)
        with suppress(OSError), os.scandir(here) as entries:
            inside = sorted(entries, key=lambda entry: natural_key(entry.name))
            shown = [entry for entry in inside if not entry.name.startswith(".")]
            if any(e.name.endswith(SUFFIX) and e.is_file() for e in shown):
                yield here
            waiting += [e.path for e in shown if e.is_dir(follow_symlinks=False)]


def _globbed(pattern: str) -> list[str]:
    """List the shards that a glob matches."""
    if os.path.basename(pattern.rstrip("/" + os.sep)) == "**":
        shards = [path for folder in glob(pattern) for path in shards_in(folder)]
        if not shards:
            raise FastshardError(f"{pattern} has no shard ({SUFFIX})")
        return sorted(shards, key=natural_key)
    found = [path for path in glob(pattern) if not path.endswith(SIDECARS)]
    shards = [path for path in found if not os.path.isdir(path)]
    if not shards:
        below = os.path.join(pattern, f"*{SUFFIX}")
        hint = f", only directories; ask for {below}" if found else ""
        raise FastshardError(f"{pattern} matches no shard ({SUFFIX}){hint}")
    return shards


def _from_wids(path: str, settings: Settings) -> list[_Shard]:
    """Read a wids index. Its urls are names, never patterns."""
    from fastshard.index.wids import (  # type: ignore[import-not-found, unused-ignore]
        read_wids,
    )

    shards = []
    for listed in read_wids(path):
        if is_remote(listed.url):
            found = list_remote(listed.url, settings)
            shards += [_Shard(one.url, listed.nsamples) for one in found]
            continue
        _refuse_remote(listed.url)
        url = _without_scheme(listed.url)
        where = os.path.join(os.path.dirname(path), url)
        shards.append(_Shard(where, listed.nsamples))
    if not shards:
        raise FastshardError(f"{path} lists no shard")
    return shards


def _refuse_remote(item: str) -> None:
    """Raise for what is not on this machine."""
    scheme = SCHEME.match(item)
    remote = scheme is not None and scheme[1].lower() != "file"
    if item.startswith("pipe:"):
        raise FastshardError(f"{item} is a command, and none is run")
    if remote or (scheme and _host_of(item) not in ("", "localhost")):
        raise FastshardError(
            f"{shown(item)} is remote, of a kind that cannot be read: http, https, hf, "
            "s3, gs and az can"
        )


def _host_of(url: str) -> str:
    return url[len("file://") :].partition("/")[0]


def _without_scheme(item: str) -> str:
    """Return the path of a ``file://`` URL, and all else as it is."""
    if SCHEME.match(item) is None:
        return item
    path = item[len("file://") + len(_host_of(item)) :]
    if os.name == "nt" and re.match("/[A-Za-z]:", path):
        path = path[1:]
    if "%" in path and not present(path):
        from urllib.parse import unquote

        path = unquote(path, errors="surrogateescape")
    return path


def _refuse_missing(paths: list[str]) -> None:
    missing = [path for path in paths if not leads_somewhere(path)]
    if len(missing) == 1:
        raise FileNotFoundError(errno.ENOENT, "no such shard", missing[0])
    if missing:
        names = ", ".join(missing[:MANY]) + (", ..." if len(missing) > MANY else "")
        raise FileNotFoundError(
            errno.ENOENT, f"{len(missing):,} of {len(paths):,} shards missing: {names}"
        )


def _refuse_repeated(paths: list[str]) -> None:
    """Raise for a file that is named twice; links are files of their own."""
    seen: set[str] = set()
    folders: dict[str, str] = {}
    for path in paths:
        if is_remote(path):
            if path in seen:
                raise FastshardError(f"{shown(path)} is named twice")
            seen.add(path)
            continue
        folder, name = os.path.split(path)
        if folder not in folders:
            folders[folder] = os.path.abspath(folder)
        whole = os.path.normcase(os.path.join(folders[folder], name))
        if whole in seen:
            raise FastshardError(f"{path} is named twice")
        seen.add(whole)
