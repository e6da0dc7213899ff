"""Listing of shards: from a source (paths, globs, URLs) to ordered paths.

`parse_source` parses a source once, to a `Location`; the other modules read that.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, Protocol, TypeAlias

from fastshard._util.paths.globs import (
    SUFFIX,
    expand_braces,
    glob,
    has_magic,
    lexists,
    list_tars,
    matches_parts,
    natural_key,
    target_exists,
)
from fastshard._util.paths.remote_options import RemoteOptions
from fastshard._util.paths.urls import (
    HTTP,
    STORES,
    Url,
    folder_of,
    join_url,
    parse_path_or_url,
    parse_url,
    redact,
    scheme_of,
)
from fastshard.dataset.paths.left_out import LeftOut
from fastshard.dataset.paths.not_found import (
    Tally,
    describe_local,
    folder_error,
    glob_error,
    missing_error,
)
from fastshard.errors import (
    FastshardError,
    FormatError,
    RemoteError,
    RemoteNotFoundError,
    RemoteShardNotFoundError,
    ShardNotFoundError,
)
from fastshard.formats.folder import LocalFolder
from fastshard.formats.foreign import (
    HEAD,
    describe_file,
    is_foreign_tar,
    is_tar_head,
)
from fastshard.formats.registry import formats
from fastshard.index.dataset_file import NAME, DatasetIndex
from fastshard.index.wids import read_wids
from fastshard.remote.file import open_remote, read_remote, transport_for
from fastshard.remote.options import Settings, make_settings
from fastshard.remote.retry import NoRangesError

__all__ = [
    "ListedShard",
    "Lister",
    "Listing",
    "Location",
    "Source",
    "check_unique",
    "list_remote",
    "list_shards",
    "list_urls",
    "natural_key",
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
        several joined by ``::``; a sequence of such sources; shards, whose names are no
        patterns.
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
        return make_settings(options, self.urls)


def parse_source(source: Source | Location) -> Location:
    """Parse a source; the disk is read only to find out if it is a directory.

    A parsed one is returned unchanged.

    Raises
    ------
    TypeError
        The source, or an item of it, is of another type.
    ShardNotFoundError
        A sequence is empty.
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


class ListedShard(NamedTuple):
    """A shard, and the number of samples that a wids index lists for it."""

    path: str  # or URL
    samples: int | None = None
    is_remote: bool = False
    is_tar: bool = False  # by its first block, with any name


class Lister(Protocol):
    """A client of a server that lists objects."""

    def list(self, folder: str) -> Iterator[str]:
        """Return the URLs of all objects below a folder."""
        ...


def list_remote(
    source: str | Url, settings: Settings, left_out: LeftOut | None = None
) -> Iterator[ListedShard]:
    """List the shards of a URL.

    The URL is of a shard, a wids index or a folder, or a brace list of these. Stores
    and the hub list folders and also take globs and ``folder/**``. HTTP lists no
    folders: the folder's ``dataset.fsi`` is read; without one a URL of any name is a
    shard if it begins with a tar header, as is an object of a store. Hidden names and
    folders count as they do locally; `left_out` notes further tars.

    Raises
    ------
    RemoteShardNotFoundError
        There are no shards.
    RemoteError
        The URL cannot be read.
    """
    source = parse_url(source)
    for word in expand_braces(source.base):
        if word.endswith(".json"):
            yield from _read_remote_wids(word + source.query, settings)
        elif word.endswith(SUFFIX) and not has_magic(word):
            yield ListedShard(word + source.query, is_remote=True)
        elif source.scheme in HTTP:
            yield from _list_http(Url(word + source.query), settings)
        else:
            try:
                urls = _list_folder_url(word, settings, left_out or LeftOut())
            except RemoteNotFoundError as error:
                whole = Url(word + source.query)
                if _is_object(whole, settings) and _is_tar(whole, settings):
                    yield ListedShard(whole.text, is_remote=True, is_tar=True)
                    continue
                if isinstance(error, ShardNotFoundError):
                    raise
                raise RemoteShardNotFoundError.of(error) from error
            for url in urls:
                yield ListedShard(url, is_remote=True)


def _is_object(url: Url, settings: Settings) -> bool:
    """Return whether a URL may be of an object of a store, not of a folder."""
    is_folder = url.base.endswith("/") or has_magic(url.base)
    return url.scheme in STORES and not is_folder and not settings.offline


def _list_http(url: Url, settings: Settings) -> Iterator[ListedShard]:
    """List the shards in the index of a folder, or a tar whose name says nothing."""
    try:
        shards = list(_read_dataset_index(url, settings))
    except RemoteError as error:
        refused = error.status is not None and 400 <= error.status < 500
        if not refused or url.base.endswith(("/", NAME)) or settings.offline:
            raise
        if not _is_tar(url, settings):
            raise
        shards = [ListedShard(url.text, is_remote=True, is_tar=True)]
    yield from shards


def _is_tar(url: Url, settings: Settings) -> bool:
    """Return whether an object begins with a tar header.

    Raises
    ------
    FastshardError
        It is something else.
    RemoteError
        It is refused, or cannot be read by ranges.
    """
    from fastshard.remote.http_response import REFUSALS

    try:
        file = open_remote(url, settings)
        head = file.read(0, min(file.nbytes, HEAD))
    except NoRangesError:
        raise
    except RemoteError as error:
        if error.status in REFUSALS:
            raise
        return False
    if not is_tar_head(head):
        raise FastshardError(describe_file(url.redacted, head))
    return True


def _read_dataset_index(url: Url, settings: Settings) -> Iterator[ListedShard]:
    """List the shards in the ``dataset.fsi`` of a folder."""
    if has_magic(url.base):
        raise FastshardError(
            f"{url.redacted} is a glob, but HTTP lists no folders: use a brace list"
        )
    whole = url if url.base.endswith("/" + NAME) else Url(join_url(url.text, NAME))
    try:
        file = open_remote(whole, settings)
    except RemoteNotFoundError as error:
        raise RemoteShardNotFoundError(
            f"neither a shard ({SUFFIX}) nor a folder with a {NAME}; HTTP lists no "
            "folders: name the shards by a brace list, or make that index by "
            "`fastshard index`",
            url.redacted,
            error.status,
        ) from None
    folder = folder_of(whole.text)
    for shard in DatasetIndex(file.path, file=file).shards:
        path = join_url(folder, shard.name) + whole.query
        yield ListedShard(path, is_remote=True)


def _read_remote_wids(text: str, settings: Settings) -> Iterator[ListedShard]:
    """List the shards of a remote wids index."""
    url = Url(text)
    shards = read_wids(url.redacted, lambda _: read_remote(url, settings))
    for shard in shards:
        path = join_url(folder_of(text), shard.url)
        if scheme_of(path) != url.scheme:
            raise FormatError(
                f"expected {url.scheme} URLs, got {redact(path)}", url.redacted, 0
            )
        yield ListedShard(path, shard.nsamples, is_remote=True)


class UrlListing(NamedTuple):
    """Objects below the folder of a URL, which may be a glob.

    Attributes
    ----------
    word : str
        The URL; of the hub pinned to one commit, as those of the objects.
    folder : str
        The folder above all that a glob matches.
    pattern : list of str
        The parts of the glob below it.
    urls : iterator of str
    """

    word: str
    folder: str
    pattern: list[str]
    urls: Iterator[str]


def list_urls(word: str, settings: Settings) -> UrlListing:
    """List the objects below the folder of a URL or a glob.

    Raises
    ------
    RemoteError
        The folder cannot be listed.
    """
    lister: Lister = transport_for(word, settings)  # type: ignore[assignment]
    if scheme_of(word) == "hf":
        from fastshard.remote.hub import hub_for

        word = hub_for(settings).pin_revision(word)
    folder, pattern = _split_pattern(word)
    return UrlListing(word, folder, pattern, lister.list(folder))


def _list_folder_url(word: str, settings: Settings, left_out: LeftOut) -> list[str]:
    """List the shards in a remote folder, below it, or that match a glob."""
    word, folder, pattern, urls = list_urls(word, settings)
    if pattern[-1:] in ([], ["**"]):
        pattern.append("*")
    tally = Tally()
    others, found = [], []
    for url in urls:
        parts = url.removeprefix(folder + "/").split("/")
        tally.count(url, is_hidden=any(part.startswith(".") for part in parts))
        if not url.endswith(SUFFIX) and not is_foreign_tar(parts[-1]):
            continue
        if matches_parts(parts, pattern):
            found.append(url)
        elif matches_parts(parts, ("**", f"*{SUFFIX}")):
            others.append(url)
    shards = left_out.select(found)
    if not shards and word.startswith("hf://") and word.rstrip("/").count("/") == 4:
        shards = _in_one_folder(others)
    if not shards:
        raise RemoteShardNotFoundError(
            f"no shard ({SUFFIX}): {_advise_remote(tally, others, folder)}",
            redact(word),
        )
    return sorted(shards, key=natural_key)


def _split_pattern(word: str) -> tuple[str, list[str]]:
    """Return the fixed folder of a URL, and the parts of the pattern below it."""
    scheme, _, path = word.partition("://")
    parts = path.rstrip("/").split("/")
    is_magic = [has_magic(part) for part in parts]
    fixed = is_magic.index(True) if any(is_magic) else len(parts)
    return f"{scheme}://{'/'.join(parts[:fixed])}", parts[fixed:]


def _in_one_folder(shards: list[str]) -> list[str]:
    """Return the shards of a repository if one folder has all, such as ``data/``."""
    return shards if len(set(map(folder_of, shards))) == 1 else []


def _advise_remote(tally: Tally, shards: list[str], folder: str) -> str:
    """Return what a listing without the wanted shards has, and what to do."""
    if not shards:
        for folders in tally.marked.values():
            folders[:] = [each for each in folders if each != folder]
        return tally.advise(is_local=False)
    shown = ", ".join(redact(url) for url in sorted(shards, key=natural_key)[:3])
    return f"the folder has other ones: {shown}; `{redact(folder)}/**` takes all"


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
    """List the shards of a source.

    Parameters
    ----------
    source : Location, str, path-like or sequence of them
        Each is a shard (``.tar``); a directory, for the shards in it, or
        ``directory/**`` for those below it too; a glob; a brace list
        (``train-{000..099}.tar``) of any of these; a wids index (``.json``); or
        several of them joined by ``::``. A name that exists is never a pattern.
        Directories and globs are in natural order, all else in the given order.
        For URLs see `list_remote`.
    check : bool
        Check that every local shard exists.
    remote : Settings, optional
        How URLs are read.

    Returns
    -------
    Listing
        Paths of a relative source are relative; those in wids indexes are absolute.

    Raises
    ------
    ShardNotFoundError
        Shards are missing: the error has the first path and their number. Or the
        source is empty, or a directory, glob or URL without a shard.
    FastshardError
        A file is not a shard or is listed twice, a brace list is too long, or local
        and remote shards are mixed.
    FormatError
        A ``.json`` is not a wids index.
    TypeError
        The source is of another type.
    OSError
        A directory cannot be read.
    """
    location = parse_source(source)
    if "" in location.parts:
        raise ShardNotFoundError("a source must not be, or have, an empty path")
    settings = remote
    if settings is None and not location.is_local:
        settings = location.settings({})
    left_out = LeftOut()
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
    left_out.warn(stacklevel=4)
    samples = [shard.samples for shard in shards if shard.samples is not None]
    complete = samples if len(samples) == len(paths) else None
    return Listing(paths, complete, is_remote=not local)


def _name_shard(part: str | Url) -> ListedShard:
    """Return the shard of a part that is no pattern."""
    if isinstance(part, Url):
        return ListedShard(part.text, is_remote=True)
    return ListedShard(part)


def _resolve(
    part: str | Url, settings: Settings | None, left_out: LeftOut
) -> Iterator[ListedShard]:
    """List the shards of one part of a source; `settings` are None if it is local."""
    if isinstance(part, Url):
        assert settings is not None
        yield from list_remote(part, settings, left_out)
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
    path: str, settings: Settings | None, left_out: LeftOut
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


def _list_folder(folder: str, left_out: LeftOut) -> list[str]:
    """List the shards in a directory."""
    shards = left_out.select(list_tars(folder, also=is_foreign_tar))
    if not shards:
        raise folder_error(folder)
    return shards


def _list_glob(pattern: str, left_out: LeftOut) -> list[str]:
    """List the shards that match a glob."""
    if os.path.basename(pattern.rstrip("/" + os.sep)) == "**":
        folders = glob(pattern)
        found = [p for each in folders for p in list_tars(each, also=is_foreign_tar)]
        shards = left_out.select(found)
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
    shards = []
    for listed in read_wids(path):
        url = parse_path_or_url(listed.url)
        if isinstance(url, Url):
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
