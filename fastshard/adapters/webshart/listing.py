"""Where the shards of a dataset are that is discovered, and where their indexes.

Shards are found here by walking directories; elsewhere by listing, or for HTTP, which
lists nothing, by what a ``dataset.fsi`` says.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from fastshard.adapters.webshart.index import local_index
from fastshard.dataset.listing import list_remote
from fastshard.errors import FastshardError
from fastshard.index.dataset_file import NAME
from fastshard.index.remote_sidecar import remote_sidecar_path
from fastshard.index.sidecar import FORMATS, SEARCHED, sidecar_path
from fastshard.remote.file import transport_for
from fastshard.remote.options import Settings
from fastshard.remote.urls import (
    HTTP,
    base_of,
    common_folder,
    is_remote,
    join_url,
    redact,
    relative_path,
    scheme_of,
)

__all__ = ["Found", "Located", "find_half", "find_local", "find_remote", "url_of"]

SUFFIX = ".tar"
REPO = re.compile(r"[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*(@.+)?", re.ASCII)


class Located(NamedTuple):
    """A shard.

    Attributes
    ----------
    name : str
        Its path below the root, without ``.tar``.
    path : str
        A path or a URL.
    nbytes : int or None
        Its size, if a listing says it.
    places : tuple of str
        Where its index may be, the best place first; empty if all is here.
    """

    name: str
    path: str
    nbytes: int | None = None
    places: tuple[str, ...] = ()


class Found(NamedTuple):
    """The shards of a dataset, sorted by name.

    Attributes
    ----------
    name : str
        The source.
    root : str
        The directory or the URL that the shards lie below.
    shards : list of Located
    indexes : str
        Where all is here: the directory of the indexes, or "auto".
    summaries : tuple of (str, str)
        Where a ``dataset.fsi`` may be, and what its names are to begin with.
    settings : Settings or None
        How URLs are read; None if shards and indexes are here.
    """

    name: str
    root: str
    shards: list[Located]
    indexes: str = "auto"
    summaries: tuple[tuple[str, str], ...] = ()
    settings: Settings | None = None


def url_of(source: str) -> str | None:
    """Return the URL that a source means by webshart's rules; None for a path.

    ``owner/name`` that is no path here is a dataset of the Hugging Face hub.
    """
    if is_remote(source):
        return source
    if "://" in source:
        raise FastshardError(
            f"{redact(source)} is remote, of a kind that cannot be read: http, https, "
            "hf, s3, gs and az can"
        )
    if os.path.exists(source) or not REPO.fullmatch(source):
        return None
    return f"hf://datasets/{source}"


def find_local(
    root: str, subfolder: str | None, metadata: str | None, strict: bool
) -> Found:
    """Find the shards below a directory."""
    for folder in (root, metadata):
        if folder is not None and not os.path.isdir(folder):
            raise FileNotFoundError(2, "no such directory", folder)
    index = "auto" if metadata is None else metadata
    below = root if subfolder is None else os.path.join(root, subfolder)
    names = sorted(_names_below(below, root))
    if strict:
        names = [name for name in names if local_index(root, name, index) is not None]
    shards = [Located(name, os.path.join(root, name + SUFFIX)) for name in names]
    return Found(root, root, shards, index)


def find_half(
    root: str, subfolder: str | None, metadata: str, strict: bool, settings: Settings
) -> Found:
    """Find the shards below a directory whose indexes are below a URL.

    An index beside a shard is used where there is none below the URL.
    """
    here = find_local(root, subfolder, None, False)
    below = (subfolder or "").strip("/")
    metadata, there = _metadata(metadata, settings)
    elsewhere = _places_in(metadata, there, [one.name for one in here.shards], below)
    located = []
    for one in here.shards:
        beside = local_index(root, one.name, "auto")
        places = [*elsewhere[one.name], *([] if beside is None else [beside])]
        if places or not strict:
            nbytes = os.stat(one.path).st_size
            located.append(one._replace(nbytes=nbytes, places=tuple(places)))
    summary = _joined(metadata, NAME)
    summaries = ((summary, ""),) if there is None or summary in there else ()
    return Found(root, root, located, "none", summaries, settings)


def _names_below(folder: str, root: str) -> Iterator[str]:
    def refuse(error: OSError) -> None:
        raise error

    for path, _, files in os.walk(folder, onerror=refuse):
        for file in files:
            if file.endswith(SUFFIX) and file != SUFFIX:
                whole = os.path.join(path, file.removesuffix(SUFFIX))
                yield os.path.relpath(whole, root).replace(os.sep, "/")


def find_remote(
    root: str,
    subfolder: str | None,
    metadata: str | None,
    strict: bool,
    settings: Settings,
) -> Found:
    """Find the shards below a URL.

    Parameters
    ----------
    root : str
    subfolder : str, optional
        Look below this folder of it only.
    metadata : str, optional
        A directory or the URL of a folder, which is looked in first for indexes.
    strict : bool
        Leave out those for which no listing has an index. Where nothing is listed,
        over HTTP, all stay.
    settings : Settings
    """
    below = (subfolder or "").strip("/")
    root, shards, listed = _listed(root, below, settings)
    names = {name: (path, nbytes) for name, path, nbytes in shards}
    summaries = []
    elsewhere: dict[str, list[str]] = {}
    if metadata is not None:
        metadata, there = _metadata(metadata, settings)
        elsewhere = _places_in(metadata, there, names, below)
        if there is None or _joined(metadata, NAME) in there:
            summaries.append((_joined(metadata, NAME), ""))
    prefix = f"{below}/" if below else ""
    if listed is None or join_url(root, prefix + NAME) in listed:
        summaries.append((join_url(root, prefix + NAME), prefix))
    located = []
    for name, (path, nbytes) in sorted(names.items()):
        beside = [remote_sidecar_path(path, kind, None) for kind in SEARCHED]
        places = [*elsewhere.get(name, ()), *_there(beside, listed)]
        if places or not strict:
            located.append(Located(name, path, nbytes, tuple(places)))
    return Found(root, root, located, "none", tuple(summaries), settings)


def _listed(
    root: str, below: str, settings: Settings
) -> tuple[str, list[tuple[str, str, int | None]], Collection[str] | None]:
    """Return the root, shards as (name, url, size), and all that is there, if known."""
    sizes: dict[str, int | None]
    listed: Collection[str] | None
    if scheme_of(root) in HTTP:
        source = join_url(root, below) if below else root
        sizes = dict.fromkeys(shard.path for shard in list_remote(source, settings))
        listed = None
        base = base_of(root).rstrip("/")
        # of no folder, but shards
        if not all(relative_path(url, base) for url in sizes):
            root = common_folder(list(sizes))
    else:
        root, listed = _all_below(root, below, settings)
        sizes = {url: nbytes for url, nbytes in listed.items() if _is_shard(url)}
    base = base_of(root).rstrip("/")
    shards = [
        (relative_path(url, base).removesuffix(SUFFIX), url, nbytes)
        for url, nbytes in sizes.items()
    ]
    return root, shards, listed


def _is_shard(url: str) -> bool:
    return url.endswith(SUFFIX) and not url.endswith("/" + SUFFIX)


def _all_below(
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


def _metadata(metadata: str, settings: Settings) -> tuple[str, Collection[str] | None]:
    """Return where indexes are, and all that is there; None if nothing lists it."""
    if not is_remote(metadata):
        if not os.path.isdir(metadata):
            raise FileNotFoundError(2, "no such directory", metadata)
        there = {
            os.path.join(path, file)
            for path, _, files in os.walk(metadata)
            for file in files
        }
        return metadata, there
    if scheme_of(metadata) in HTTP:
        return metadata, None
    return _all_below(metadata, "", settings)


def _places_in(
    metadata: str,
    there: Collection[str] | None,
    names: Iterable[str],
    below: str,
) -> dict[str, list[str]]:
    """Return for each shard where its index may be in another folder.

    By its name below the root; or by its last part alone, as webshart writes them, if
    that is of one shard.
    """
    lasts = Counter(name.rpartition("/")[2] for name in names)
    found = {}
    for name in names:
        last = name.rpartition("/")[2]
        wanted = [sidecar_path(name + SUFFIX, kind) for kind in SEARCHED]
        if lasts[last] == 1:
            flat = last + FORMATS["json"]
            wanted += [f"{below}/{flat}", flat] if below else [flat]
        places = [_joined(metadata, name) for name in dict.fromkeys(wanted)]
        found[name] = _there(places, there)
    return found


def _joined(folder: str, name: str) -> str:
    if is_remote(folder):
        return join_url(folder, name)
    return os.path.join(folder, *name.split("/"))


def _there(places: list[str], listed: Collection[str] | None) -> list[str]:
    """Return the places that are in a listing; all if there is none."""
    return [place for place in places if listed is None or place in listed]
