"""Splits of shards: by name, or as given."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from fastshard._util.paths.remote_options import RemoteOptions
from fastshard._util.paths.urls import Url, join_url, parse_path_or_url, scheme_of
from fastshard.dataset.paths.listing import Source, list_shards, parse_source

__all__ = [
    "DEFAULT_SPLIT",
    "DataFiles",
    "detect_split",
    "group_by_split",
    "list_splits",
]

Files: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
DataFiles: TypeAlias = Files | Mapping[str, Files]

DEFAULT_SPLIT = "train"
NAMES = {
    "train": "train|training",
    "test": "test|testing",
    "validation": "val|valid|validation|dev|development",
}
# Between dashes, at the start of the name, between slashes, at the start of the path.
PLACES = (r"[_-]({})[_-]", r"^({})[_-]", r"[/\\]({})[/\\]", r"^({})[/\\]")
PATTERNS = [
    (re.compile(place.format(names)), split)
    for place in PLACES
    for split, names in NAMES.items()
]


def detect_split(path: str) -> str | None:
    """Return the split in the name of a shard, else in its path, else None.

    ``train-000.tar``, ``x-train-000.tar`` and ``train/000.tar`` are of "train"; val,
    valid, validation, dev and development mean "validation".
    """
    whole = path.lower()
    for text in (re.split(r"[/\\]", whole)[-1], whole):
        for pattern, split in PATTERNS:
            if pattern.search(text):
                return split
    return None


def group_by_split(shards: Iterable[str]) -> dict[str, list[str]]:
    """Return shards by split, in order; "train" without a split in the name."""
    splits: dict[str, list[str]] = {}
    for shard in shards:
        splits.setdefault(detect_split(_path_of(shard)) or DEFAULT_SPLIT, []).append(
            shard
        )
    return splits


def list_splits(
    path: Source, data_files: DataFiles | None, options: RemoteOptions
) -> dict[str, list[str]]:
    """Return the shards of a path, or of files in it, by their splits."""
    if data_files is None:
        return group_by_split(_list(path, options))
    given = data_files if isinstance(data_files, Mapping) else None
    if given is None:
        given = {DEFAULT_SPLIT: data_files}  # type: ignore[dict-item]
    if not isinstance(path, str | os.PathLike):
        raise TypeError("data_files need one path that they are below, got a sequence")
    base = os.fspath(path)
    return {
        split: _list([_join(base, each) for each in _as_list(files)], options)
        for split, files in given.items()
    }


def _as_list(files: Files) -> list[str]:
    if isinstance(files, str | os.PathLike):
        return [os.fspath(files)]
    return [os.fspath(each) for each in files]


def _join(base: str, name: str) -> str:
    """Return a name below a folder or a URL; absolute ones unchanged."""
    if scheme_of(name) or os.path.isabs(name):
        return name
    if isinstance(parse_path_or_url(base), Url):
        return join_url(base, name)
    return os.path.join(base, name)


def _list(source: Source, options: RemoteOptions) -> list[str]:
    location = parse_source(source)
    return list_shards(location, remote=location.settings(options)).paths


def _path_of(shard: str) -> str:
    """Return a shard's path, or its URL without the query."""
    url = parse_path_or_url(shard)
    return url.base if isinstance(url, Url) else shard
