"""Discovery of shards and of their candidate indexes, local or remote.

Directories are walked, stores and the hub are listed. HTTP lists no folders: the
folder's ``dataset.fsi`` is read.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from fastshard._util.paths.suggestion import suggest_path
from fastshard._util.paths.urls import (
    HTTP,
    base_of,
    common_folder,
    is_remote,
    join_url,
    redact,
    relative_path,
    scheme_of,
)
from fastshard.adapters.webshart.index import find_local_index
from fastshard.errors import FastshardError, ShardNotFoundError
from fastshard.index.dataset_file import NAME
from fastshard.index.remote_sidecar import remote_sidecar_path
from fastshard.index.sidecar import FORMATS, SEARCHED, sidecar_path
from fastshard.remote.file import transport_for
from fastshard.remote.options import Settings

__all__ = [
    "DiscoveredShard",
    "Discovery",
    "find_local",
    "find_remote",
    "find_with_remote_indexes",
    "url_of",
]

SUFFIX = ".tar"
REPO = re.compile(r"[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*(@.+)?", re.ASCII)


class DiscoveredShard(NamedTuple):
    """A shard of a discovered dataset.

    Attributes
    ----------
    name : str
        Path relative to the root, without ``.tar``.
    path : str
        A path or a URL.
    nbytes : int or None
        Size, if a listing has it.
    indexes : tuple of str
        Candidate paths and URLs of its index, the best first; empty if shards and
        indexes are local.
    """

    name: str
    path: str
    nbytes: int | None = None
    indexes: tuple[str, ...] = ()


class Discovery(NamedTuple):
    """The result of a discovery: shards sorted by name, and their indexes.

    Attributes
    ----------
    name : str
        The source.
    root : str
        The directory or URL above all shards.
    shards : list of DiscoveredShard
    indexes : str
        The directory of the indexes, or "auto", if shards and indexes are local.
    summaries : tuple of (str, str)
        Candidate paths and URLs of a ``dataset.fsi``, each with the prefix that makes
        its names relative to the root.
    settings : Settings or None
        How URLs are read; None if shards and indexes are local.
    """

    name: str
    root: str
    shards: list[DiscoveredShard]
    indexes: str = "auto"
    summaries: tuple[tuple[str, str], ...] = ()
    settings: Settings | None = None


def url_of(source: str) -> str | None:
    """Return the URL of a source by webshart's rules, or None for a path.

    ``owner/name`` is a dataset of the Hugging Face hub, unless the path exists.
    """
    if is_remote(source):
        return source
    if "://" in source:
        raise FastshardError(
            f"{redact(source)} cannot be read: expected a local path or an http, "
            "https, hf, s3, gs or az URL"
        )
    if os.path.exists(source) or not REPO.fullmatch(source):
        return None
    return f"hf://datasets/{source}"


def find_local(
    root: str, subfolder: str | None, metadata: str | None, strict: bool
) -> Discovery:
    """Find the shards below a directory."""
    for folder in (root, metadata):
        if folder is not None and not os.path.isdir(folder):
            reason = f"no such directory: {folder}{suggest_path(folder)}"
            raise ShardNotFoundError(reason, folder)
    index = "auto" if metadata is None else metadata
    below = root if subfolder is None else os.path.join(root, subfolder)
    names = sorted(_names_below(below, root))
    if strict:
        names = [
            name for name in names if find_local_index(root, name, index) is not None
        ]
    shards = [
        DiscoveredShard(name, os.path.join(root, name + SUFFIX)) for name in names
    ]
    return Discovery(root, root, shards, index)


def find_with_remote_indexes(
    root: str, subfolder: str | None, metadata: str, strict: bool, settings: Settings
) -> Discovery:
    """Find the shards below a directory whose indexes are below a URL.

    An index beside a shard is the last candidate.
    """
    local = find_local(root, subfolder, None, False)
    below = (subfolder or "").strip("/")
    metadata, listed = _list_metadata(metadata, settings)
    names = [shard.name for shard in local.shards]
    remote = _find_candidates(metadata, listed, names, below)
    shards = []
    for shard in local.shards:
        beside = find_local_index(root, shard.name, "auto")
        indexes = [*remote[shard.name], *([] if beside is None else [beside])]
        if indexes or not strict:
            nbytes = os.stat(shard.path).st_size
            shards.append(shard._replace(nbytes=nbytes, indexes=tuple(indexes)))
    summary = _join(metadata, NAME)
    summaries = ((summary, ""),) if listed is None or summary in listed else ()
    return Discovery(root, root, shards, "none", summaries, settings)


def _names_below(folder: str, root: str) -> Iterator[str]:
    """Iterate over the names of shards below a directory, relative to the root."""

    def fail(error: OSError) -> None:
        raise error

    for path, _, files in os.walk(folder, onerror=fail):
        for file in files:
            if file.endswith(SUFFIX) and file != SUFFIX:
                name = os.path.join(path, file.removesuffix(SUFFIX))
                yield os.path.relpath(name, root).replace(os.sep, "/")


def find_remote(
    root: str,
    subfolder: str | None,
    metadata: str | None,
    strict: bool,
    settings: Settings,
) -> Discovery:
    """Find the shards below a URL."""
    below = (subfolder or "").strip("/")
    root, found, listed = _list_shards(root, below, settings)
    names = {name: (path, nbytes) for name, path, nbytes in found}
    summaries = []
    preferred: dict[str, list[str]] = {}
    if metadata is not None:
        metadata, other = _list_metadata(metadata, settings)
        preferred = _find_candidates(metadata, other, names, below)
        if other is None or _join(metadata, NAME) in other:
            summaries.append((_join(metadata, NAME), ""))
    prefix = f"{below}/" if below else ""
    if listed is None or join_url(root, prefix + NAME) in listed:
        summaries.append((join_url(root, prefix + NAME), prefix))
    shards = []
    for name, (path, nbytes) in sorted(names.items()):
        beside = [remote_sidecar_path(path, kind, None) for kind in SEARCHED]
        indexes = [*preferred.get(name, ()), *_select_listed(beside, listed)]
        if indexes or not strict:
            shards.append(DiscoveredShard(name, path, nbytes, tuple(indexes)))
    return Discovery(root, root, shards, "none", tuple(summaries), settings)


def _list_shards(
    root: str, below: str, settings: Settings
) -> tuple[str, list[tuple[str, str, int | None]], Collection[str] | None]:
    """Return the root, shards as (name, URL, size), and all listed URLs or None."""
    sizes: dict[str, int | None]
    listed: Collection[str] | None
    if scheme_of(root) in HTTP:
        from fastshard.dataset.paths.remote_listing import list_remote

        source = join_url(root, below) if below else root
        sizes = dict.fromkeys(shard.path for shard in list_remote(source, settings))
        listed = None
        base = base_of(root).rstrip("/")
        # A root that is not a folder names shards.
        if not all(relative_path(url, base) for url in sizes):
            root = common_folder(list(sizes))
    else:
        root, listed = _list_below(root, below, settings)
        sizes = {url: nbytes for url, nbytes in listed.items() if _is_shard(url)}
    base = base_of(root).rstrip("/")
    shards = [
        (relative_path(url, base).removesuffix(SUFFIX), url, nbytes)
        for url, nbytes in sizes.items()
    ]
    return root, shards, listed


def _is_shard(url: str) -> bool:
    return url.endswith(SUFFIX) and not url.endswith("/" + SUFFIX)


def _list_below(
    root: str, below: str, settings: Settings
) -> tuple[str, dict[str, int | None]]:
    """List a folder of the hub or of a store: the root, and sizes by URL."""
    root = root.rstrip("/")
    if scheme_of(root) == "hf":
        from fastshard.remote.hub import hub_for

        hub = hub_for(settings)
        root = hub.pin_revision(root)
        return root, dict(hub.list_files(join_url(root, below) if below else root))
    lister = transport_for(root, settings)
    urls = lister.list(join_url(root, below) if below else root)  # type: ignore[attr-defined]
    return root, dict.fromkeys(urls)


def _list_metadata(
    metadata: str, settings: Settings
) -> tuple[str, Collection[str] | None]:
    """Return the folder of indexes, and all files in it or None without a listing."""
    if not is_remote(metadata):
        if not os.path.isdir(metadata):
            raise FileNotFoundError(2, "no such directory", metadata)
        listed = {
            os.path.join(path, file)
            for path, _, files in os.walk(metadata)
            for file in files
        }
        return metadata, listed
    if scheme_of(metadata) in HTTP:
        return metadata, None
    return _list_below(metadata, "", settings)


def _find_candidates(
    metadata: str,
    listed: Collection[str] | None,
    names: Iterable[str],
    below: str,
) -> dict[str, list[str]]:
    """Return the candidate indexes of each shard in another folder.

    An index has the shard's name relative to the root, or, as webshart writes it, only
    the last part of the name, if that is unique.
    """
    counts = Counter(name.rpartition("/")[2] for name in names)
    found = {}
    for name in names:
        last = name.rpartition("/")[2]
        wanted = [sidecar_path(name + SUFFIX, kind) for kind in SEARCHED]
        if counts[last] == 1:
            flat = last + FORMATS["json"]
            wanted += [f"{below}/{flat}", flat] if below else [flat]
        paths = [_join(metadata, name) for name in dict.fromkeys(wanted)]
        found[name] = _select_listed(paths, listed)
    return found


def _join(folder: str, name: str) -> str:
    if is_remote(folder):
        return join_url(folder, name)
    return os.path.join(folder, *name.split("/"))


def _select_listed(paths: list[str], listed: Collection[str] | None) -> list[str]:
    """Return the paths that are in a listing, or all without a listing."""
    return [path for path in paths if listed is None or path in listed]
