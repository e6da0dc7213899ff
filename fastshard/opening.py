"""Opening datasets: which shards, in what order, with which index."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fastshard.dataset import Dataset
from fastshard.expand import Source, list_shards
from fastshard.formats.tar import KeyRule, Mode
from fastshard.index.global_file import NAME
from fastshard.index.known import Known, find_known
from fastshard.shardset import ShardSet

if TYPE_CHECKING:
    from fastshard.decoders import Decoder

__all__ = ["open_dataset", "root_of", "shards_of"]


def root_of(paths: Sequence[str]) -> str:
    """Return the directory that all shards lie below."""
    return os.path.commonpath([os.path.dirname(os.path.abspath(p)) for p in paths])


def open_dataset(
    source: Source,
    *,
    index: str | os.PathLike[str] = "auto",
    key: KeyRule = "first",
    lower: bool = True,
    decoders: Mapping[str, Decoder] | None = None,
    mode: Mode = "mmap",
    max_mapped: int | None = None,
) -> Dataset:
    """Open a dataset; see `fastshard.open`."""
    if mode not in ("mmap", "private", "pread"):
        raise ValueError(f'mode is "mmap", "private" or "pread", not {mode!r}')
    if key not in ("first", "last"):
        raise ValueError(f'key is "first" or "last", not {key!r}')
    if max_mapped is not None and max_mapped < 1:
        raise ValueError(f"max_mapped is at least 1, not {max_mapped}")
    where = os.fspath(index)
    paths = list_shards(source).paths
    if where == "rebuild":
        from fastshard.build import build_index

        build_index(source, key=key, again=True)
        where = "auto"
    if os.path.basename(where) == NAME:
        where = os.path.dirname(where) or "."
    if where not in ("auto", "none") and not os.path.isdir(where) and len(paths) > 1:
        raise ValueError(f"one index, {where}, for {len(paths):,} shards")
    shards = shards_of(
        paths,
        where,
        whole=is_whole(source),
        mode=mode,
        key=key,
        lower=lower,
        limit=max_mapped,
    )
    return Dataset(shards, decoders=decoders)


def is_whole(source: Source) -> bool:
    """Say whether a source means all shards of a directory."""
    if not isinstance(source, str | os.PathLike):
        return False
    name = os.fspath(source)
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
) -> ShardSet:
    """Return the shards of a dataset, with what its global index says of them."""
    root = root_of(paths)
    known: Known | None = None
    folder = index if os.path.isdir(index) else None
    if folder is not None or index == "auto":
        known = find_known(
            paths, root, folder=folder, last_dot=key == "last", whole=whole
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
    )
