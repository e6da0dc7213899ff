"""Sources of a dataset (paths, globs, URLs) as an ordered list of shards.

A source is parsed once, by `parse_source`; what is made of it afterwards goes by the
`Location`.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple, Protocol, TypeAlias

from fastshard._util.globs import (
    SUFFIX,
    expand_braces,
    glob,
    has_magic,
    lexists,
    list_tars,
    natural_key,
    target_exists,
)
from fastshard.errors import FastshardError, FormatError
from fastshard.index.dataset_file import NAME, DatasetIndex
from fastshard.index.wids import read_wids
from fastshard.remote.file import open_remote, read_remote, transport_for
from fastshard.remote.options import RemoteOptions, Settings, make_settings
from fastshard.remote.urls import (
    HTTP,
    Url,
    folder_of,
    join_url,
    parse_path_or_url,
    parse_url,
    redact,
    scheme_of,
)

__all__ = [
    "Listed",
    "Lister",
    "Listing",
    "Location",
    "Source",
    "expand",
    "list_remote",
    "list_shards",
    "natural_key",
    "parse_source",
]


Source: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

SEVERAL = re.compile(r"::(?=[A-Za-z][A-Za-z0-9+.-]*://)")  # not that of an IPv6 host


class Location(NamedTuple):
    """A source, parsed: what it names, and what of that is remote.

    Attributes
    ----------
    kind : {"folder", "path", "url", "list"}
        A directory on this machine; another path, a glob, a brace list of this
        machine; a URL, or several joined by ``::``; a sequence of such sources.
    parts : tuple of str or Url
        Paths and URLs in their order. Paths joined by ``::`` are one part, for that
        may be the name of a file.
    """

    kind: Literal["folder", "path", "url", "list"]
    parts: tuple[str | Url, ...]

    @property
    def urls(self) -> list[Url]:
        """The URLs that are named: secrets may be sent to their origins."""
        return [part for part in self.parts if isinstance(part, Url)]

    @property
    def is_whole(self) -> bool:
        """Whether all shards of one directory are meant."""
        if self.kind == "path":
            return str(self.parts[0]).endswith("**")
        return self.kind == "folder"

    def settings(self, options: RemoteOptions) -> Settings:
        """Return how URLs are read; secrets are for the origins of `urls`."""
        return make_settings(options, self.urls)


def parse_source(source: Source) -> Location:
    """Parse a source; looks at the disk only for a directory of its name.

    Raises
    ------
    TypeError
        It is of another type.
    ValueError
        A sequence is empty.
    """
    if isinstance(source, str | os.PathLike):
        parts = _parts_of(source)
        if isinstance(parts[0], Url):
            return Location("url", parts)
        return Location("folder" if os.path.isdir(parts[0]) else "path", parts)
    if not isinstance(source, Sequence) or isinstance(
        source, bytes | bytearray | memoryview
    ):
        raise TypeError(
            f"a source is a path or a sequence of paths, not {type(source).__name__}"
        )
    found = tuple(part for item in source for part in _parts_of(item))
    if not found:
        raise ValueError("a source of no shards")
    return Location("list", found)


def _parts_of(item: object) -> tuple[str | Url, ...]:
    """Parse one item of a source; URLs joined by ``::`` are several parts."""
    text = os.fspath(item) if isinstance(item, os.PathLike) else item
    if not isinstance(text, str):
        raise TypeError(f"paths are str or path-like, not {type(item).__name__}")
    whole = parse_path_or_url(text)
    if isinstance(whole, str) or "::" not in text:
        return (whole,)
    return tuple(map(parse_path_or_url, SEVERAL.split(text)))


class Listed(NamedTuple):
    """A shard, and how many samples it is said to hold."""

    url: str
    samples: int | None = None


class Lister(Protocol):
    """A kind of server that lists what it has."""

    def list(self, folder: str) -> Iterator[str]:
        """Return the URLs of all objects below a folder."""
        ...


def list_remote(source: str | Url, settings: Settings) -> Iterator[Listed]:
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
    source = parse_url(source)
    for word in expand_braces(source.base):
        path = word.partition("://")[2].partition("/")[2]
        if word.endswith(".json"):
            yield from _from_wids_url(word + source.query, settings)
        elif word.endswith(SUFFIX) and not has_magic(path):
            yield Listed(word + source.query)
        elif source.scheme in HTTP:
            yield from _from_index(Url(word + source.query), settings)
        else:
            yield from map(Listed, _found(word, settings))


def _from_index(url: Url, settings: Settings) -> Iterator[Listed]:
    """Find the shards that the index of a folder lists."""
    if has_magic(url.base):
        raise FastshardError(
            f"{url.redacted} is a glob, and HTTP lists nothing: give a brace list"
        )
    whole = url if url.base.endswith("/" + NAME) else Url(join_url(url.text, NAME))
    try:
        file = open_remote(whole, settings)
    except FileNotFoundError:
        raise FastshardError(
            f"{url.redacted} is no shard ({SUFFIX}), and has no {NAME} to say which "
            "shards are below it: HTTP lists nothing"
        ) from None
    folder = folder_of(whole.text)
    for shard in DatasetIndex(file.path, file=file).shards:
        yield Listed(join_url(folder, shard.name) + whole.query)


def _from_wids_url(text: str, settings: Settings) -> Iterator[Listed]:
    """Read a wids index."""
    url = Url(text)
    shards = read_wids(url.redacted, lambda _: read_remote(url, settings))
    for shard in shards:
        where = join_url(folder_of(text), shard.url)
        if scheme_of(where) != url.scheme:
            raise FormatError(f"it lists {redact(where)}", url.redacted, 0)
        yield Listed(where, shard.nsamples)


def _found(word: str, settings: Settings) -> list[str]:
    """List the shards in a folder, below it, or that a glob matches.

    Those of the hub are named by their commit, so that all are of the same.
    """
    lister: Lister = transport_for(word, settings)  # type: ignore[assignment]
    if scheme_of(word) == "hf":
        from fastshard.remote.hub import hub_for

        word = hub_for(settings).pin_revision(word)
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
        raise FastshardError(f"{redact(word)} has no shard ({SUFFIX})")
    return sorted(shards, key=natural_key)


def _matches(url: str, scheme: str, pattern: str, depth: int) -> bool:
    path = url.removeprefix(f"{scheme}://")
    parts, wanted = path.split("/"), pattern.split("/")
    return path.count("/") == depth and all(map(fnmatchcase, parts, wanted))


# What lies beside shards and is not one; a glob passes over it.
SIDECARS = (".fsi", ".json", ".idx", ".index", ".index.sqlite")

SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
MANY = 3  # names in a message
LOOKED_AT = 1000  # directories, for a hint


class Listing(NamedTuple):
    """The shards of a dataset, and how many samples each is said to hold."""

    paths: list[str]
    samples: list[int] | None  # None unless wids files name all of them
    is_remote: bool = False  # all of them: the paths are URLs


class _Shard(NamedTuple):
    path: str
    samples: int | None = None
    is_remote: bool = False


def expand(source: Source | Location, *, check: bool = True) -> list[str]:
    """Return the paths of a dataset's shards, in order; see `list_shards`."""
    return list_shards(source, check=check).paths


def list_shards(
    source: Source | Location,
    *,
    check: bool = True,
    remote: Settings | None = None,
) -> Listing:
    """List the shards that a source stands for.

    Parameters
    ----------
    source : Location, str, path-like or sequence of them
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
    location = source if isinstance(source, Location) else parse_source(source)
    if "" in location.parts:
        raise ValueError("a source with an empty path")
    settings = remote or location.settings({})
    if location.kind == "folder":
        shards = list(map(_Shard, _listed(str(location.parts[0]))))
    else:
        shards = [it for part in location.parts for it in _resolve(part, settings)]
    local = [shard.path for shard in shards if not shard.is_remote]
    if local and len(local) < len(shards):
        raise FastshardError("local and remote shards in one dataset")
    if check:
        _refuse_missing(local)
    for shard in shards:
        name = shard.path.partition("?")[0] if shard.is_remote else shard.path
        if not name.endswith(SUFFIX):
            raise FastshardError(
                f"{redact(shard.path)} is no shard: shards are {SUFFIX} files, "
                "not compressed"
            )
    paths = [shard.path for shard in shards]
    _refuse_repeated(paths, is_remote=not local)
    samples = [shard.samples for shard in shards if shard.samples is not None]
    complete = samples if len(samples) == len(paths) else None
    return Listing(paths, complete, is_remote=not local)


def _resolve(part: str | Url, settings: Settings) -> Iterator[_Shard]:
    """Find the shards of one part of a source."""
    if isinstance(part, Url):
        for url, samples in list_remote(part, settings):
            yield _Shard(url, samples, is_remote=True)
        return
    if lexists(part):
        yield from _existing(part, settings)
        return
    _refuse_remote(part)
    if "::" in part:
        for piece in part.split("::"):
            if not piece:
                raise ValueError("a source with an empty path")
            yield from _resolve(parse_path_or_url(piece), settings)
        return
    local = _without_scheme(part)
    if lexists(local):
        yield from _existing(local, settings)
        return
    for word in expand_braces(local):
        if lexists(word):
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
    shards = list_tars(folder)
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
            listed = [entry for entry in inside if not entry.name.startswith(".")]
            if any(e.name.endswith(SUFFIX) and e.is_file() for e in listed):
                yield here
            waiting += [e.path for e in listed if e.is_dir(follow_symlinks=False)]


def _globbed(pattern: str) -> list[str]:
    """List the shards that a glob matches."""
    if os.path.basename(pattern.rstrip("/" + os.sep)) == "**":
        shards = [path for folder in glob(pattern) for path in list_tars(folder)]
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
        url = parse_path_or_url(listed.url)
        if isinstance(url, Url):
            for found, _ in list_remote(url, settings):
                shards.append(_Shard(found, listed.nsamples, is_remote=True))
            continue
        _refuse_remote(url)
        where = os.path.join(os.path.dirname(path), _without_scheme(url))
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
            f"{redact(item)} is remote, of a kind that cannot be read: http, https, "
            "hf, s3, gs and az can"
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
    if "%" in path and not lexists(path):
        from urllib.parse import unquote

        path = unquote(path, errors="surrogateescape")
    return path


def _refuse_missing(paths: list[str]) -> None:
    missing = [path for path in paths if not target_exists(path)]
    if len(missing) == 1:
        raise FileNotFoundError(errno.ENOENT, "no such shard", missing[0])
    if missing:
        names = ", ".join(missing[:MANY]) + (", ..." if len(missing) > MANY else "")
        raise FileNotFoundError(
            errno.ENOENT, f"{len(missing):,} of {len(paths):,} shards missing: {names}"
        )


def _refuse_repeated(paths: list[str], *, is_remote: bool) -> None:
    """Raise for a file that is named twice; links are files of their own."""
    seen: set[str] = set()
    folders: dict[str, str] = {}
    for path in paths:
        whole = path
        if not is_remote:
            folder, name = os.path.split(path)
            if folder not in folders:
                folders[folder] = os.path.abspath(folder)
            whole = os.path.normcase(os.path.join(folders[folder], name))
        if whole in seen:
            shown = redact(path) if is_remote else path
            raise FastshardError(f"{shown} is named twice")
        seen.add(whole)
