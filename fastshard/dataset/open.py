"""Opening datasets: which shards, in what order, with which index."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack, cast

from fastshard._util.options import check_choice, check_index, check_names
from fastshard._util.sizes import parse_size
from fastshard.dataset.dataset import Dataset
from fastshard.dataset.listing import Location, Source, list_shards, parse_source
from fastshard.dataset.order.worker import guard_collation
from fastshard.dataset.shardset import ReadOptions, ShardSet
from fastshard.dataset.tarset import TarSet, common_root
from fastshard.errors import FastshardError
from fastshard.formats.folder import LocalFolder, RemoteFolder
from fastshard.formats.registry import Format, find_format, formats
from fastshard.formats.tar import KeyRule, Mode
from fastshard.index.dataset_file import NAME
from fastshard.index.dataset_lookup import (
    DatasetIndexView,
    find_dataset_index,
    find_remote_dataset_index,
)
from fastshard.remote.options import RemoteOptions, Settings
from fastshard.remote.urls import Url, is_folder

if TYPE_CHECKING:
    from fastshard.formats.decoders import Decoder

__all__ = ["open"]


def open(  # noqa: A001
    source: Source,
    *,
    index: str | os.PathLike[str] = "auto",
    key: KeyRule = "first",
    lower: bool = True,
    decoders: Mapping[str, Decoder] | None = None,
    mode: Mode = "mmap",
    max_mapped: int | None = None,
    max_memory: int | str | None = None,
    keep_cache: bool = True,
    prefetch: bool = True,
    check_size: bool = False,
    **remote: Unpack[RemoteOptions],
) -> Dataset:
    """Open a dataset of tar shards, on this machine or elsewhere.

    Parameters
    ----------
    source : str, path-like or sequence of them
        A tar; a directory, for the shards in it (``directory/**``: also below
        it); a glob; a brace list, ``train-{000..099}.tar``; a list of these; or
        a wids index. Shards of directories and globs are ordered naturally, 2
        before 10; lists keep their order. Or URLs of these: ``http(s)://``,
        ``hf://datasets/owner/name``, ``s3://``, ``gs://``, ``az://``. HTTP lists no
        directories: the ``dataset.fsi`` there says what is in it.
    index : {"auto", "none", "rebuild"} or path-like
        As for `open_shard`, for each shard; and ``"auto"`` uses a fresh
        ``dataset.fsi`` of the shards' directory, with which no shard is touched
        to count samples. ``"rebuild"`` makes all of them first. A directory
        holds indexes that were made with ``out=``.
    key : {"first", "last"}
        At which dot of a name's last part a sample's key ends.
    lower : bool
        Lower-case the fields of samples, as WebDataset does.
    decoders : Mapping of str to callable, optional
        ``fn(view) -> value`` by suffix of the field, for `Sample.decode`; they
        come before those that are built in. With
        `fastshard.formats.decoders.NpzDecoder` the memory of an ``.npz`` field has a
        limit.
    mode : {"mmap", "private", "pread"}
        As for `open_shard`.
    max_mapped : int, optional
        How many shards may be mapped at a time; otherwise a quarter of what the
        system allows (``vm.max_map_count``), at most 16,384.
    max_memory : int or str, optional
        How much of the mapped shards may be resident in this process: bytes, or
        ``"1GiB"``. Pages that were read longest ago are released, however they were
        read; views of them stay valid, and fault their bytes in again. Pages that
        were written to in ``mode="private"`` stay.
    keep_cache : bool
        Whether what was read stays in the page cache. False is for datasets that
        are larger than memory and read once.
    prefetch : bool
        Whether bytes that are not in memory are brought before they are handed out,
        without the GIL, and ahead of iterations.
    check_size : bool
        As for `open_shard`.
    **remote
        How URLs are read: see `RemoteOptions`.

    Returns
    -------
    Dataset
        A sequence of samples. Shards are opened when they are first needed.

    Raises
    ------
    FileNotFoundError
        A shard is not there.
    FastshardError
        There are no shards, or not all of one format.
    RemoteError
        What is remote cannot be read.
    """
    check_choice("mode", mode, ("mmap", "private", "pread"))
    check_choice("key", key, ("first", "last"))
    if max_mapped is not None and max_mapped < 1:
        raise ValueError(f"max_mapped is at least 1, not {max_mapped}")
    guard_collation()
    where = os.fspath(index)
    check_index(where)
    most = None if max_memory is None else parse_size(max_memory)
    reading = ReadOptions(prefetch, most, keep_cache)
    given = {"index": where, "key": key, "lower": lower, "check_size": check_size}
    location = parse_source(source)
    found = _format_of(location, remote)
    if found is not None:
        shards = _open_format(found, location, given, remote, mode, max_mapped, reading)
        return Dataset(shards, decoders=decoders)
    known = (*(open.__kwdefaults__ or ()), *RemoteOptions.__optional_keys__)
    check_names("open", remote, known)
    settings = location.settings(remote)
    listing = list_shards(location, remote=settings)
    if listing.is_remote and where == "rebuild":
        raise FastshardError('index="rebuild" is for local shards')
    if where == "rebuild":
        from fastshard.dataset.build_index import build_index

        build_index(source, key=key, again=True)
        where = "auto"
    if os.path.basename(where) == NAME:
        where = os.path.dirname(where) or "."
    folder = where if where not in ("auto", "none") and is_folder(where) else None
    if where not in ("auto", "none") and folder is None and len(listing.paths) > 1:
        raise ValueError(f"one index, {where}, for {len(listing.paths):,} shards")
    shards = make_tar_set(
        listing.paths,
        where,
        folder=folder,
        whole=location.is_whole,
        mode=mode,
        key=key,
        lower=lower,
        limit=max_mapped,
        reading=reading,
        check_size=check_size,
        remote=settings if listing.is_remote else None,
    )
    return Dataset(shards, decoders=decoders)


def _format_of(location: Location, remote: RemoteOptions) -> Format | None:
    """Return the format of a directory; None: the source is tars."""
    (place, *others) = location.parts
    if location.kind == "folder":
        return find_format(LocalFolder(str(place)))
    if location.kind == "url" and not others and any(it.is_remote for it in formats()):
        assert isinstance(place, Url)
        settings = location.settings(_common(remote))
        return find_format(RemoteFolder(place.text, settings))
    return None


def _common(options: Mapping[str, Any]) -> RemoteOptions:
    """Return the options that every URL takes, without those of a format."""
    known = RemoteOptions.__optional_keys__
    kept = {name: value for name, value in options.items() if name in known}
    return cast(RemoteOptions, kept)


def _open_format(
    found: Format,
    location: Location,
    given: dict[str, Any],
    options: Mapping[str, Any],
    mode: Mode,
    limit: int | None,
    reading: ReadOptions,
) -> ShardSet:
    """Open the shards of a dataset with the options that its format takes."""
    known = (
        *(open.__kwdefaults__ or ()),
        *RemoteOptions.__optional_keys__,
        *found.options,
    )
    check_names("open", options, known)
    plain = {"index": "auto", "key": "first", "lower": True, "check_size": False}
    changed = {name for name in plain if given[name] != plain[name]}
    if changed - found.options:
        lacking = ", ".join(name for name in plain if name not in found.options)
        raise ValueError(f"a {found.name} dataset takes no {lacking}")
    settings = location.settings(_common(options))
    own = {name: value for name, value in options.items() if name in found.options}
    own |= {name: given[name] for name in changed}
    if found.is_remote:
        own["remote"] = settings if location.kind == "url" else None
    (place,) = location.parts
    root = place.text if isinstance(place, Url) else place
    shards: ShardSet = found.open_set(
        root, mode=mode, limit=limit, reading=reading, **own
    )
    return shards


def make_tar_set(
    paths: Sequence[str],
    index: str,
    *,
    folder: str | None,
    whole: bool,
    mode: Mode,
    key: KeyRule,
    lower: bool,
    limit: int | None = None,
    reading: ReadOptions = ReadOptions(),  # noqa: B008 - immutable
    check_size: bool = False,
    remote: Settings | None = None,
) -> TarSet:
    """Return the shards of a dataset, with what its ``dataset.fsi`` says of them.

    Parameters
    ----------
    paths, index
        As for `TarSet`.
    folder : str, optional
        The index, if that is a directory or the URL of a folder.
    whole : bool
        They are all that their directory has.
    mode, key, lower, limit, reading, check_size, remote
        As for `TarSet`.
    """
    root = common_root(paths)
    known: DatasetIndexView | None = None
    if remote is not None and (folder is not None or index == "auto"):
        last_dot = key == "last"
        known = find_remote_dataset_index(
            paths, root, folder=folder, last_dot=last_dot, whole=whole, settings=remote
        )
    elif folder is not None or index == "auto":
        known = find_dataset_index(
            paths,
            root,
            folder=folder,
            last_dot=key == "last",
            whole=whole,
            copied=mode == "pread",
        )
    return TarSet(
        paths,
        index=index,
        root=root,
        mode=mode,
        key=key,
        lower=lower,
        limit=limit,
        known=known,
        reading=reading,
        check_size=check_size,
        remote=remote,
    )
