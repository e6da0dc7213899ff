"""Commands ``cache warm`` and ``cache clear`` of ``at://`` URLs."""

from __future__ import annotations

import os
from collections.abc import Callable

from fastshard._util.paths.remote_options import RemoteOptions
from fastshard._util.paths.urls import redact
from fastshard.atmosphere.at_uri import AtUri
from fastshard.atmosphere.blobs.cache import MIDDLE, BlobSettings, fetch_url
from fastshard.atmosphere.blobs.shards import index_blob, open_blob
from fastshard.atmosphere.blobs.source import BlobSource
from fastshard.atmosphere.client import Atmosphere
from fastshard.atmosphere.loading.shards import blob_source
from fastshard.atmosphere.records.storage import (
    StorageBlobs,
    storage_from_record,
)
from fastshard.errors import FastshardError, FormatError
from fastshard.formats.tar import TarOptions
from fastshard.remote.options import Settings

__all__ = ["download", "resolve"]


def resolve(url: str, options: RemoteOptions) -> tuple[list[str], BlobSettings]:
    """Return the blobs of ``at://did/blob/cid``, or of an entry's record."""
    source = _find(url, options)
    return source.list_shards(), source.settings(options)


def _find(url: str, options: RemoteOptions) -> BlobSource:
    client = Atmosphere(timeout=options.get("timeout", 60.0))
    try:
        if MIDDLE in url:
            return BlobSource.from_refs([url], client=client)
        uri = AtUri.parse(url)
    except ValueError as error:
        raise FastshardError(str(error)) from None
    record = client.get_record(uri)
    found = record.get("storage")
    if not isinstance(found, dict):
        raise FastshardError(f"{url} is not the record of a dataset")
    storage = storage_from_record(found, uri=url)
    if not isinstance(storage, StorageBlobs):
        raise FastshardError(
            f"the shards of {url} are not blobs: `fastshard datasets show` prints "
            "their URLs"
        )
    return blob_source(client, storage, record.uri.authority)


def download(
    url: str,
    settings: Settings,
    progress: Callable[[int, int], object] | None = None,
) -> int:
    """Download a blob into the cache, and index it; return its size in bytes."""
    assert isinstance(settings, BlobSettings)
    path = fetch_url(url, settings)
    nbytes = os.path.getsize(path)
    try:
        with open_blob(url, path, TarOptions()) as shard:
            if not shard.index:
                index_blob(shard)
    except FormatError as error:
        raise FormatError(error.reason, redact(url), error.offset) from None
    if progress is not None:
        progress(nbytes, nbytes)
    return nbytes
