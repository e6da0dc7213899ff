"""Opening of the shards of entries."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from fastshard._util.paths.globs import has_magic
from fastshard._util.paths.remote_options import select_remote
from fastshard._util.paths.urls import scheme_of
from fastshard.typed.dataset import Dataset
from fastshard.typed.sources.url import URLSource

if TYPE_CHECKING:
    from fastshard.atmosphere.client import Atmosphere
    from fastshard.catalog.entry import DatasetEntry
    from fastshard.catalog.repository import Repository
    from fastshard.typed.stores.protocol import AbstractDataStore

__all__ = ["EntryShards", "source_of"]


class EntryShards(NamedTuple):
    """Opens the shards of a repository's entries.

    Attributes
    ----------
    repo : Repository
    schema_type : callable
        ``schema_type(ref, repo)`` returns the class that a schema describes.
    client : Atmosphere or None
        Finds blobs; None: by the environment.
    """

    repo: Repository
    schema_type: Callable[[str, Repository], type[Any]]
    client: Atmosphere | None = None

    def open_entry(
        self, entry: DatasetEntry, sample_type: type[Any] | None, **options: Any
    ) -> Dataset[Any]:
        """Return the dataset of an entry."""
        kind = sample_type or self.schema_type(entry.schema_ref, self.repo)
        store = self.repo.data_store
        source = source_of(entry.data_urls, store, options, self.client)
        return Dataset(source, kind, **options)


def source_of(
    urls: Sequence[str],
    store: AbstractDataStore | None,
    options: dict[str, Any],
    client: Atmosphere | None = None,
) -> Any:
    """Return the source of the shards of an entry."""
    scheme = scheme_of(urls[0]) if urls else ""
    if any(scheme_of(url) != scheme for url in urls):
        scheme = ""
    if scheme == "at":
        from fastshard.atmosphere.blobs.source import BlobSource
        from fastshard.atmosphere.blobs.store import PDSBlobStore

        if issubclass(type(store), PDSBlobStore):
            client = cast(PDSBlobStore, store).client
        remote = select_remote(options)
        return BlobSource.from_refs(list(urls), client=client, **remote)
    if scheme == "s3":
        from fastshard.typed.stores.s3 import S3DataStore

        if issubclass(type(store), S3DataStore):  # with its credentials
            return cast(S3DataStore, store).create_source(list(urls))
    if store is not None:
        urls = [store.read_url(url) for url in urls]
    remote = select_remote(options)
    listed = [is_literal(url) for url in urls]
    if not any(listed):
        return URLSource(urls[0] if len(urls) == 1 else list(urls), **remote)
    shards: list[str] = []
    for url, literal in zip(urls, listed, strict=True):
        shards += [url] if literal else URLSource(url, **remote).list_shards()
    return URLSource._of_shards(shards, **remote)


def is_literal(url: str) -> bool:
    """Return whether a possible pattern is the name of a local file."""
    is_pattern = has_magic(url) or "{" in url or "::" in url
    return is_pattern and not scheme_of(url) and os.path.lexists(url)
