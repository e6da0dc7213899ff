"""Listing of shards: from a source (paths, globs, URLs) to ordered paths.

`parse_source` parses a source once, to a `Location`; the other modules read that.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from fastshard._util.paths.globs import (
    SUFFIX,
    expand_braces,
    glob,
    has_magic,
    lexists,
    list_tars,
    natural_key,
    target_exists,
)
from fastshard._util.paths.urls import (
    Url,
    parse_path_or_url,
    redact,
)
from fastshard.dataset.paths.found import ListedShard, select_shards, warn_left_out
from fastshard.dataset.paths.not_found import (
    describe_local,
    folder_error,
    glob_error,
    missing_error,
)
from fastshard.errors import (
    FastshardError,
    ShardNotFoundError,
)
from fastshard.formats.folder import LocalFolder
from fastshard.formats.foreign import (
    describe_file,
    is_foreign_tar,
)
from fastshard.formats.registry import formats

if TYPE_CHECKING:
    from fastshard._util.paths.remote_options import RemoteOptions
    from fastshard.remote.options import Settings

__all__ = [
    "Listing",
    "Location",
    "Source",
    "check_unique",
    "list_shards",
    "parse_source",
]


Source: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
SEPARATOR = re.compile(r"::(?![0-9A-Fa-f:.]*(?:%[^\]]*)?\])")  # not of an IPv6 host
URL_SEPARATOR = re.compile(r"::(?=[A-Za-z][A-Za-z0-9+.-]*://)")
SIDECARS = (".fsi", ".json", ".idx", ".index", ".index.sqlite")  # skipped by globs


class Location(NamedTuple):
    """A parsed source.

    Attributes
    ----------
    kind : {"folder", "path", "url", "list", "shards"}
        A local directory; another local path, a glob or a brace list; a URL, or
        several joined by ``::``; a sequence of such sources; shards, whose names are
        not patterns.
    parts : tuple of str or Url
        Paths and URLs in order. Paths joined by ``::`` are one part, since that may
        be the name of a file.
    """

    kind: Literal["folder", "path", "url", "list", "shards"]
    parts: tuple[str | Url, ...]

    @property
    def urls(self) -> list[Url]:
        """The URLs in the source; secrets may be sent to their origins."""
        return [part for part in self.parts if isinstance(part, Url)]

    @property
    def is_local(self) -> bool:
        """True if all shards are local files; a wids index may list URLs."""
        return not any(
            isinstance(part, Url) or "://" in part or "json" in part
            for part in self.parts
        )

    @property
    def is_whole(self) -> bool:
        """True if the source is all shards of one directory."""
        if self.kind == "path":
            return str(self.parts[0]).endswith("**")
        return self.kind == "folder"

    def settings(self, options: RemoteOptions) -> Settings:
        """Return options for reading URLs, with secrets for the origins of `urls`."""
        from fastshard.remote.options import make_settings

        return make_settings(options, self.urls)


def parse_source(source: Source | Location) -> Location:
    """Parse a source; the disk is read only to find out if it is a directory.

    A parsed one is returned unchanged.
    """
    if isinstance(source, Location):
        return source
    if isinstance(source, str | os.PathLike):
        parts = _parse_item(source)
        if isinstance(parts[0], Url):
            return Location("url", parts)
        return Location("folder" if os.path.isdir(parts[0]) else "path", parts)
    if not isinstance(source, Sequence) or isinstance(
        source, bytes | bytearray | memoryview
    ):
        raise TypeError(
            "a source must be a path, a URL or a sequence of them, "
            f"got {type(source).__name__}"
        )
    found = tuple(part for item in source for part in _parse_item(item))
    if not found:
        raise ShardNotFoundError(
            "a source must name at least one shard, got an empty sequence"
        )
    return Location("list", found)


def _parse_item(item: object) -> tuple[str | Url, ...]:
    """Parse one item of a source; split URLs joined by ``::``."""
    text = os.fspath(item) if isinstance(item, os.PathLike) else item
    if not isinstance(text, str):
        raise TypeError(f"a path must be str or path-like, got {type(item).__name__}")
    whole = parse_path_or_url(text)
    if isinstance(whole, str) or "::" not in text:
        return (whole,)
    return tuple(map(parse_path_or_url, URL_SEPARATOR.split(text)))


class Listing(NamedTuple):
    """The shards of a dataset, in order."""

    paths: list[str]
    samples: list[int] | None  # of each shard, if wids indexes list all of them
    is_remote: bool = False  # all paths are URLs


def list_shards(
    source: Source | Location,
    *,
    check: bool = True,
    remote: Settings | None = None,
) -> Listing:
    """List the shards of a source."""
    location = parse_source(source)
    if "" in location.parts:
        raise ShardNotFoundError("a source must not be, or have, an empty path")
    settings = remote
    if settings is None and not location.is_local:
        settings = location.settings({})
    left_out: list[str] = []
    if location.kind == "folder":
        found = _list_folder(str(location.parts[0]), left_out)
        shards = list(map(ListedShard, found))
    elif location.kind == "shards":
        shards = list(map(_name_shard, location.parts))
    else:
        shards = [
            shard
            for part in location.parts
            for shard in _resolve(part, settings, left_out)
        ]
    local = [shard.path for shard in shards if not shard.is_remote]
    if local and len(local) < len(shards):
        raise FastshardError(
            f"expected only local or only remote shards, got {len(local):,} local ones "
            f"of {len(shards):,}"
        )
    if check:
        _check_present(local)
    for shard in shards:
        name = shard.path.partition("?")[0] if shard.is_remote else shard.path
        is_known = shard.is_tar or name.endswith(SUFFIX)
        if not is_known and location.kind != "shards":
            raise FastshardError(
                describe_file(redact(shard.path))
                if shard.is_remote
                else describe_local(shard.path)
            )
    paths = [shard.path for shard in shards]
    check_unique(paths, is_remote=not local)
    if left_out:
        warn_left_out(left_out, stacklevel=4)
    samples = [shard.samples for shard in shards if shard.samples is not None]
    complete = samples if len(samples) == len(paths) else None
    return Listing(paths, complete, is_remote=not local)


def _name_shard(part: str | Url) -> ListedShard:
    """Return the shard of a part that is not a pattern."""
    if isinstance(part, Url):
        return ListedShard(part.text, is_remote=True)
    return ListedShard(part)


def _resolve(
    part: str | Url, settings: Settings | None, left_out: list[str]
) -> Iterator[ListedShard]:
    """List the shards of one part of a source; `settings` are None if it is local."""
    if isinstance(part, Url):
        assert settings is not None
        from fastshard.dataset.paths.remote_listing import list_remote

        yield from list(list_remote(part, settings, left_out))
        return
    if lexists(part):
        yield from _list_existing(part, settings, left_out)
        return
    _check_local(part)
    if "::" in part:
        for piece in SEPARATOR.split(part):
            if not piece:
                raise ShardNotFoundError(
                    "a source must not have an empty path between ::"
                )
            yield from _resolve(parse_path_or_url(piece), settings, left_out)
        return
    for word in expand_braces(part):
        if lexists(word):
            yield from _list_existing(word, settings, left_out)
        elif has_magic(word):
            yield from map(ListedShard, _list_glob(word, left_out))
        else:
            yield ListedShard(word)


def _list_existing(
    path: str, settings: Settings | None, left_out: list[str]
) -> Iterator[ListedShard]:
    """List the shards of a path that exists."""
    if os.path.isdir(path):
        yield from map(ListedShard, _list_folder(path, left_out))
    elif path.endswith(".json"):
        assert settings is not None
        _check_no_mark(path)
        yield from _read_wids(path, settings)
    else:
        yield ListedShard(path)


def _check_no_mark(path: str) -> None:
    """Raise FastshardError for a file that marks a dataset of a format."""
    folder, name = os.path.split(path)
    for each in formats():
        if name == each.mark and each.marks(LocalFolder(folder or os.curdir)):
            kind = each.title or each.name
            raise FastshardError(
                f"{path} is the index of the {kind} dataset {folder or os.curdir}: "
                "open that directory"
            )


def _list_folder(folder: str, left_out: list[str]) -> list[str]:
    """List the shards in a directory."""
    shards = list_tars(folder, also=_is_other_tar)
    if not all(path.endswith(SUFFIX) for path in shards):
        shards = select_shards(shards, left_out)
    if not shards:
        raise folder_error(folder)
    return shards


def _is_other_tar(name: str) -> bool:
    """Return whether a file is a tar that is not a shard; quick for indexes."""
    return not name.endswith(SIDECARS) and is_foreign_tar(name)


def _list_glob(pattern: str, left_out: list[str]) -> list[str]:
    """List the shards that match a glob."""
    if os.path.basename(pattern.rstrip("/" + os.sep)) == "**":
        folders = glob(pattern)
        found = [p for each in folders for p in list_tars(each, also=_is_other_tar)]
        shards = select_shards(found, left_out)
        if not shards:
            raise glob_error(pattern)
        return sorted(shards, key=natural_key)
    found = [path for path in glob(pattern) if not path.endswith(SIDECARS)]
    shards = [path for path in found if not os.path.isdir(path)]
    if not shards:
        raise glob_error(pattern, found)
    return shards


def _read_wids(path: str, settings: Settings) -> list[ListedShard]:
    """List the shards of a local wids index; its URLs are names, never patterns."""
    from fastshard.index.wids import read_wids

    shards = []
    for listed in read_wids(path):
        url = parse_path_or_url(listed.url)
        if isinstance(url, Url):
            from fastshard.dataset.paths.remote_listing import list_remote

            shards += [
                shard._replace(samples=listed.nsamples)
                for shard in list_remote(url, settings)
            ]
            continue
        _check_local(url)
        name = os.path.join(os.path.dirname(path), url)
        shards.append(ListedShard(name, listed.nsamples))
    if not shards:
        raise ShardNotFoundError(f"{path} lists no shard", path)
    return shards


def _check_local(item: str) -> None:
    """Raise FastshardError for a command, or a URL that cannot be read."""
    if item.startswith("pipe:"):
        raise FastshardError(f"{item} is a command; commands are never run")
    if SCHEME.match(item):
        raise FastshardError(
            f"{redact(item)} cannot be read: expected a local path or an http, https, "
            "hf, s3, gs or az URL"
        )


def _check_present(paths: list[str]) -> None:
    """Raise ShardNotFoundError if a shard does not exist."""
    missing = [path for path in paths if not target_exists(path)]
    if missing:
        raise missing_error(missing, len(paths))


def check_unique(paths: list[str], *, is_remote: bool) -> None:
    """Raise FastshardError for a file listed twice; a link counts as another file."""
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
            name = redact(path) if is_remote else path
            raise FastshardError(f"{name} is listed twice")
        seen.add(whole)
