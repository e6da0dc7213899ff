"""Directories of formats other than tar shards in a source: one, or several."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from fastshard._util.paths.globs import (
    SUFFIX,
    expand_braces,
    glob,
    has_magic,
    lexists,
)
from fastshard._util.paths.remote_options import select_remote
from fastshard._util.paths.urls import Url, parse_path_or_url
from fastshard.dataset.paths.listing import (
    SEPARATOR,
    Listing,
    Location,
    check_unique,
    list_shards,
)
from fastshard.dataset.paths.not_found import (
    glob_error,
    missing_error,
    unmarked_error,
)
from fastshard.errors import (
    FastshardError,
    RemoteShardNotFoundError,
    ShardNotFoundError,
)
from fastshard.formats.folder import LocalFolder
from fastshard.formats.registry import (
    Format,
    find_format,
    find_local_format,
    formats,
)

if TYPE_CHECKING:
    from fastshard.dataset.paths.remote_listing import RemoteFolder
    from fastshard.remote.options import Settings

__all__ = ["FormatFolders", "find_folders", "first_folder", "list_or_find"]

Folder: TypeAlias = "LocalFolder | RemoteFolder"


class FormatFolders(NamedTuple):
    """Datasets of a format, in the order of their source.

    Attributes
    ----------
    format : Format
    roots : list of str
        Their directories, or URLs.
    settings : Settings or None
        How URLs are read.
    """

    format: Format
    roots: list[str]
    settings: Settings | None


def find_folders(
    location: Location,
    options: Mapping[str, Any],
    *,
    deep: bool = False,
    settings: Settings | None = None,
) -> FormatFolders | None:
    """Return the datasets of a format that a source names, or None for tars.

    The first directory tells the format. Globs that end with a slash name directories;
    others are searched if there is no tar.
    """
    if location.kind == "folder":
        path = str(location.parts[0])
        known = find_local_format(path, options)
        return None if known is None else FormatFolders(known, [path], None)
    settings = settings or _settings(location, options)
    folders = _folders(location, options, settings, deep)
    first = next(folders, None)
    found = None if first is None else find_format(first, options)
    if first is None or found is None:
        return None
    others = list(_check_all(found, folders, options))
    roots = [first.path, *(folder.path for folder in others)]
    if any(folder.is_remote != first.is_remote for folder in others):
        raise FastshardError("expected only local or only remote directories, got both")
    bare = [root.partition("?")[0].rstrip("/" + os.sep) for root in roots]
    check_unique(bare, is_remote=first.is_remote)
    return FormatFolders(found, roots, settings if first.is_remote else None)


def list_or_find(
    location: Location, options: Mapping[str, Any], settings: Settings | None
) -> Listing | FormatFolders:
    """List the tar shards of a source, or the datasets that its pattern matches."""
    try:
        return list_shards(location, remote=settings)
    except ShardNotFoundError as error:
        where = error.url if isinstance(error, RemoteShardNotFoundError) else error.path
        found = None
        if where is not None and has_magic(where):
            with suppress(ShardNotFoundError):  # the first error is the better one
                found = find_folders(location, options, deep=True, settings=settings)
        if found is None:
            raise
        return found


def first_folder(location: Location, options: Mapping[str, Any]) -> Folder | None:
    """Return the first possible dataset directory of a source; None for files."""
    settings = _settings(location, options)
    return next(_folders(location, options, settings, deep=False), None)


def _settings(location: Location, options: Mapping[str, Any]) -> Settings | None:
    """Return how the URLs of a source are read; None if no format reads URLs."""
    if not location.urls or not any(each.is_remote for each in formats()):
        return None
    return location.settings(select_remote(options))


def _check_all(
    found: Format, folders: Iterable[Folder], options: Mapping[str, Any]
) -> Iterator[Folder]:
    """Yield directories; raise ShardNotFoundError for a local one of another kind.

    Opening the dataset reports a URL.
    """
    for folder in folders:
        below = found.subfolder(options)
        if isinstance(folder, LocalFolder):
            if not lexists(folder.path):
                raise missing_error([folder.path], 1)
            if not found.marks(folder.below(below) if below else folder):
                reason = found.explain_missing(folder, options)
                if reason is not None:
                    raise ShardNotFoundError(reason, os.path.join(folder.path, below))
                raise unmarked_error(folder.path, found.title or found.name, found.mark)
        yield folder


def _folders(
    location: Location,
    options: Mapping[str, Any],
    settings: Settings | None,
    deep: bool,
) -> Iterator[Folder]:
    """Yield the directories of a source; nothing for one that begins with a file."""
    is_first = True
    if location.kind == "shards":
        return
    for part in location.parts:
        if isinstance(part, Url):
            if settings is None or (is_first and part.base.endswith(SUFFIX)):
                return
            from fastshard.dataset.paths.remote_listing import (
                RemoteFolder,
                may_be_folder,
                remote_folders,
            )

            for url in remote_folders(part, options, settings, deep):
                if is_first and not may_be_folder(url):
                    return
                is_first = False
                yield RemoteFolder(url.text, settings)
            continue
        for path in _local_paths(part, options, deep):
            if is_first and not os.path.isdir(path):
                return
            is_first = False
            yield LocalFolder(path)
        if is_first:
            return


def _local_paths(part: str, options: Mapping[str, Any], deep: bool) -> Iterator[str]:
    """Yield the paths of a glob or a brace list, or a path itself."""
    if part.endswith(SUFFIX):
        yield part
        return
    words = [part]
    if not lexists(part):
        pieces = SEPARATOR.split(part) if "::" in part else [part]
        paths = [p for p in map(parse_path_or_url, pieces) if not isinstance(p, Url)]
        words = [w for p in paths for w in ([p] if lexists(p) else expand_braces(p))]
    for word in words:
        if lexists(word) or not has_magic(word):
            yield word
        elif os.path.basename(word.rstrip("/" + os.sep)) != "**":
            yield from _match_paths(word)
        elif deep:
            marked = [f for f in glob(word) if find_local_format(f, options)]
            if not marked:
                raise glob_error(word)
            yield from marked


def _match_paths(pattern: str) -> list[str]:
    """Return the directories that a glob matches, or the first possible file."""
    found = glob(pattern)
    if pattern[-1:] in ("/", os.sep):
        found = list(filter(os.path.isdir, found))
    if not found:
        raise glob_error(pattern)
    return next(([path] for path in found if not os.path.isdir(path)), found)
