"""Listing of URLs: shards, and directories of formats, on servers that list objects."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from fastshard._util.paths.globs import (
    SUFFIX,
    expand_braces,
    has_magic,
    matches_parts,
    natural_key,
)
from fastshard._util.paths.urls import (
    HTTP,
    STORES,
    Url,
    folder_of,
    join_url,
    parse_url,
    redact,
    scheme_of,
)
from fastshard.dataset.paths.found import ListedShard, select_shards
from fastshard.dataset.paths.not_found import Tally
from fastshard.errors import (
    FastshardError,
    FormatError,
    RemoteError,
    RemoteNotFoundError,
    RemoteShardNotFoundError,
    ShardNotFoundError,
)
from fastshard.formats.foreign import HEAD, describe_file, is_foreign_tar, is_tar_head
from fastshard.formats.registry import formats
from fastshard.index.dataset_file import NAME, DatasetIndex
from fastshard.index.wids import read_wids
from fastshard.remote.errors import NoRangesError
from fastshard.remote.file import (
    RemoteFile,
    open_remote,
    read_remote,
    transport_for,
    try_open_remote,
)
from fastshard.remote.http.response import REFUSALS
from fastshard.remote.options import Settings

__all__ = [
    "Lister",
    "RemoteFolder",
    "UrlListing",
    "list_remote",
    "list_urls",
    "may_be_folder",
    "remote_folders",
]

HUB_PARTS = 3  # datasets/owner/name


class Lister(Protocol):
    """A client of a server that lists objects."""

    def list(self, folder: str) -> Iterator[str]:
        """Return the URLs of all objects below a folder."""
        ...


def list_remote(
    source: str | Url, settings: Settings, left_out: list[str] | None = None
) -> Iterator[ListedShard]:
    """List the shards of a URL.

    The URL is of a shard, a wids index or a folder, or a brace list of these. Stores
    and the hub list folders and also take globs and ``folder/**``. HTTP lists no
    folders: the folder's ``dataset.fsi`` is read; without one a URL of any name is a
    shard if it begins with a tar header, as is an object of a store. Hidden names and
    folders count as they do locally; `left_out` notes further tars.
    """
    source = parse_url(source)
    others = [] if left_out is None else left_out
    for word in expand_braces(source.base):
        if word.endswith(".json"):
            yield from _read_remote_wids(word + source.query, settings)
        elif word.endswith(SUFFIX) and not has_magic(word):
            yield ListedShard(word + source.query, is_remote=True)
        elif source.scheme in HTTP:
            yield from _list_http(Url(word + source.query), settings)
        else:
            try:
                urls = _list_folder_url(word, settings, others)
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
    """List the shards in the index of a folder, or a tar without the suffix."""
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
    """Return whether an object begins with a tar header."""
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
    """List the objects below the folder of a URL or a glob."""
    lister: Lister = transport_for(word, settings)  # type: ignore[assignment]
    if scheme_of(word) == "hf":
        from fastshard.remote.hub import hub_for

        word = hub_for(settings).pin_revision(word)
    folder, pattern = _split_pattern(word)
    return UrlListing(word, folder, pattern, lister.list(folder))


def _list_folder_url(word: str, settings: Settings, left_out: list[str]) -> list[str]:
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
    shards = select_shards(found, left_out)
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
    """Return advice for a listing without shards."""
    if not shards:
        for folders in tally.marked.values():
            folders[:] = [each for each in folders if each != folder]
        return tally.advise(is_local=False)
    shown = ", ".join(redact(url) for url in sorted(shards, key=natural_key)[:3])
    return f"the folder has other ones: {shown}; `{redact(folder)}/**` takes all"


class RemoteFolder:
    """A folder of remote objects; each object is opened once, by a request."""

    is_remote = True

    def __init__(self, path: str, settings: Settings) -> None:
        self.path = path
        self._settings = settings
        self._opened: dict[str, RemoteFile | None] = {}

    def below(self, name: str) -> RemoteFolder:
        """Return a folder below this one."""
        return RemoteFolder(join_url(self.path, name), self._settings)

    def has(self, name: str) -> bool:
        """Return whether there is an object of this name."""
        return self._open(name) is not None

    def folders(self) -> list[str]:
        """Return no names: HTTP lists no folders."""
        return []

    def read(self, name: str, most: int) -> bytes | None:
        """Return the first `most` bytes of an object, or None if it does not exist."""
        file = self._open(name)
        return None if file is None else file.read(0, min(file.nbytes, most))

    def _open(self, name: str) -> RemoteFile | None:
        if name not in self._opened:
            url = join_url(self.path, name)
            self._opened[name] = try_open_remote(url, self._settings)
        return self._opened[name]


def remote_folders(
    url: Url, options: Mapping[str, Any], settings: Settings, deep: bool
) -> Iterator[Url]:
    """Yield the folders that a URL's glob or brace list names."""
    is_file = url.base.endswith(SUFFIX)
    for word in [url.base] if is_file else expand_braces(url.base):
        if not (deep and has_magic(word)):
            yield Url(word + url.query)
            continue
        found = _match_folders(word, options, settings)
        if not found:
            raise RemoteShardNotFoundError("no dataset matches", redact(word))
        yield from map(Url, found)


def _match_folders(
    word: str, options: Mapping[str, Any], settings: Settings
) -> list[str]:
    """Return the folders that match a glob and have the mark of a format."""
    if scheme_of(word) in HTTP:  # which lists no folders
        return []
    _, folder, pattern, urls = list_urls(word, settings)
    marks = [
        "/".join(filter(None, (each.subfolder(options), each.mark)))
        for each in formats()
        if each.is_remote and each.mark
    ]
    found = set()
    for url in urls:
        parts = url.removeprefix(folder + "/").split("/")
        for mark in marks:
            if matches_parts(parts, [*pattern, *mark.split("/")]):
                found.add(url.removesuffix(f"/{mark}"))
    return sorted(found, key=natural_key)


def may_be_folder(url: Url) -> bool:
    """Return whether a URL may be of a folder; it names no files and is not a pattern.

    The hub's own listing reports unknown datasets and offline mode.
    """
    path = url.base.partition("://")[2]
    if url.scheme == "hf" and (
        len(path.strip("/").split("/")) < HUB_PARTS or os.environ.get("HF_HUB_OFFLINE")
    ):
        return False
    is_file = path.endswith((SUFFIX, ".json", ".fsi"))
    return not is_file and not has_magic(url.base)
