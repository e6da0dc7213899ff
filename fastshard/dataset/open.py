"""Opening datasets: which shards, in what order, with which index."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fastshard._util.options import check_choice, check_index
from fastshard._util.sizes import parse_size
from fastshard.dataset.dataset import Dataset
from fastshard.dataset.listing import Source, list_shards, sources_in
from fastshard.dataset.order.worker import guard_collation
from fastshard.dataset.shardset import Reading, ShardSet, root_of
from fastshard.errors import FastshardError
from fastshard.formats import format_of
from fastshard.formats.tar import KeyRule, Mode
from fastshard.index.dataset_file import NAME
from fastshard.index.dataset_lookup import Known, find_known, find_remote_known
from fastshard.remote.options import RemoteOptions, Settings, settings_of
from fastshard.remote.urls import is_folder, is_remote

if TYPE_CHECKING:
    from fastshard.formats.decoders import Decoder

__all__ = ["open_dataset"]


def open_dataset(
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
    remote: RemoteOptions | None = None,
) -> Dataset:
    """Open a dataset; see `fastshard.open`."""
    check_choice("mode", mode, ("mmap", "private", "pread"))
    check_choice("key", key, ("first", "last"))
    if max_mapped is not None and max_mapped < 1:
        raise ValueError(f"max_mapped is at least 1, not {max_mapped}")
    guard_collation()
    where = os.fspath(index)
    check_index(where)
    most = None if max_memory is None else parse_size(max_memory)
    reading = Reading(prefetch, most, keep_cache)
    other = format_of(source)
    if other is not None:
        if index != "auto" or key != "first" or not lower or check_size:
            raise ValueError(
                f"a {other.name} dataset takes no index, key, lower, check_size"
            )
        settings_of(remote or {}, [])  # no argument that there is not
        root = os.fspath(source)  # type: ignore[arg-type]
        found = other.open_set(root, mode=mode, limit=max_mapped, reading=reading)
        return Dataset(found, decoders=decoders)
    settings = settings_of(remote or {}, sources_in(source))
    paths = list_shards(source, remote=settings).paths
    away = is_remote(paths[0])
    if away and where == "rebuild":
        raise FastshardError('index="rebuild" is for local shards')
    if where == "rebuild":
        from fastshard.dataset.build_index import build_index

        build_index(source, key=key, again=True)
        where = "auto"
    if os.path.basename(where) == NAME:
        where = os.path.dirname(where) or "."
    if where not in ("auto", "none") and not is_folder(where) and len(paths) > 1:
        raise ValueError(f"one index, {where}, for {len(paths):,} shards")
    shards = shards_of(
        paths,
        where,
        whole=is_whole(source),
        mode=mode,
        key=key,
        lower=lower,
        limit=max_mapped,
        reading=reading,
        check_size=check_size,
        remote=settings if away else None,
    )
    return Dataset(shards, decoders=decoders)


def is_whole(source: Source) -> bool:
    """Say whether a source means all shards of a directory."""
    if not isinstance(source, str | os.PathLike):
        return False
    name = os.fspath(source)
    if is_remote(name):
        return False
    return os.path.isdir(name) or name.endswith("**")


def shards_of(
    paths: Sequence[str],
    index: str,
    *,
    whole: bool,
    mode: Mode,
    key: KeyRule,
    lower: bool,
    limit: int | None = None,
    reading: Reading = Reading(),  # noqa: B008 - immutable
    check_size: bool = False,
    remote: Settings | None = None,
) -> ShardSet:
    """Return the shards of a dataset, with what its global index says of them."""
    root = root_of(paths)
    known: Known | None = None
    folder = index if index not in ("auto", "none") and is_folder(index) else None
    if remote is not None and (folder is not None or index == "auto"):
        last_dot = key == "last"
        known = find_remote_known(
            paths, root, folder=folder, last_dot=last_dot, whole=whole, settings=remote
        )
    elif folder is not None or index == "auto":
        known = find_known(
            paths,
            root,
            folder=folder,
            last_dot=key == "last",
            whole=whole,
            copied=mode == "pread",
        )
    return ShardSet(
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
