"""Datasets loaded by name from an index."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from fastshard._util.paths.globs import has_magic
from fastshard._util.paths.remote_options import select_remote
from fastshard._util.paths.urls import scheme_of
from fastshard.typed.dataset import Dataset

if TYPE_CHECKING:
    from fastshard.catalog.index import Index

__all__ = [
    "EntryIndex",
    "IndexedEntry",
    "are_blobs",
    "is_reference",
    "load_blobs",
    "load_named",
]

BLOB = re.compile("at://[^/]+/blob/")
REFERENCES = ("@", "at://", "atdata://")


class IndexedEntry(Protocol):
    """An entry of an index: the shards of a dataset, and its schema."""

    @property
    def data_urls(self) -> Sequence[str]:
        """Paths or URLs of the shards."""

    @property
    def schema_ref(self) -> str:
        """The name of the schema in the index."""


class EntryIndex(Protocol):
    """Interface of an index for `load_dataset`: datasets by name."""

    def get_label(self, name: str, version: str | None = None, /) -> IndexedEntry:
        """Return the entry of a label; raise KeyError for an unknown one."""

    def get_dataset(self, name: str, /) -> IndexedEntry:
        """Return the entry of a name; raise KeyError for an unknown one."""

    def get_schema_type(self, ref: str, /) -> type[Any]:
        """Return the class that a schema describes."""


def load_named(
    path: str,
    sample_type: type[Any] | None,
    index: Index | EntryIndex | None,
    atmosphere: Any,
    options: dict[str, Any],
) -> Dataset[Any] | None:
    """Return the dataset that a name has in an index."""
    by_reference = is_reference(path)
    if not by_reference and (index is None or scheme_of(path)):
        return None
    from fastshard.catalog.default import get_default_index
    from fastshard.catalog.index import Index

    if index is None:
        index = get_default_index()
    if not isinstance(index, Index):
        return look_up(path, sample_type, index, options) if by_reference else None
    if atmosphere is not None:
        index = index.with_atmosphere(atmosphere)
    try:
        entry = index.get_dataset(path)
    except (KeyError, ValueError):
        if by_reference or not is_like_path(path):
            raise
        return None
    return entry.open(sample_type, **options)


def load_blobs(
    path: Any, sample_type: type[Any], atmosphere: Any, options: dict[str, Any]
) -> Dataset[Any]:
    """Return the dataset of the URLs of blobs."""
    from fastshard.atmosphere.blobs.source import BlobSource

    urls = [path] if isinstance(path, str) else list(path)
    remote = select_remote(options)
    source = BlobSource.from_refs(urls, client=atmosphere, **remote)
    return Dataset(source, sample_type, **options)


def is_reference(path: str) -> bool:
    """Return whether a path must be a reference into an index."""
    return path.startswith(REFERENCES)


def are_blobs(path: object) -> bool:
    """Return whether a path, or the first of several, is the URL of a blob."""
    first = path[0] if isinstance(path, list | tuple) and path else path
    return isinstance(first, str) and BLOB.match(first) is not None


def is_like_path(path: str) -> bool:
    """Return whether a path names shards, existing or not."""
    return (
        path.endswith(".tar")
        or "{" in path
        or has_magic(path)
        or os.path.lexists(os.path.expanduser(path))
    )


def look_up(
    path: str,
    sample_type: type[Any] | None,
    index: EntryIndex,
    options: dict[str, Any],
) -> Dataset[Any]:
    """Return the dataset of a reference in a foreign index."""
    from fastshard.catalog.opening import source_of
    from fastshard.catalog.references import parse_dataset_ref

    name, version = path, None
    if path.startswith("@"):
        _, name, version, owner = parse_dataset_ref(path, ())
        name = f"@{owner}/{name}"
    try:
        entry = index.get_label(name, version)
    except (KeyError, AttributeError):
        if version is not None:
            raise
        entry = index.get_dataset(name)
    kind = sample_type or index.get_schema_type(entry.schema_ref)
    store = getattr(index, "data_store", None)
    source = source_of(list(entry.data_urls), store, options)
    return Dataset(source, kind, **options)
