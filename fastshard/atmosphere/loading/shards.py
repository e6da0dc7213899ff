"""From the storage of a record to its shards: URLs, sources, datasets.

Records are written by strangers. The place of a shard in one is used as a URL alone:
never as a path, a pattern of files, or a command.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fastshard._util.paths.globs import expand_braces
from fastshard._util.paths.urls import is_remote, normalize_url, redact, strip_user
from fastshard.atmosphere.records.checked import UnknownMember
from fastshard.atmosphere.records.storage import (
    Storage,
    StorageBlobs,
    StorageExternal,
    StorageHttp,
    StorageS3,
)
from fastshard.errors import FastshardError, RecordError

if TYPE_CHECKING:
    from fastshard.atmosphere.blobs.source import BlobSource
    from fastshard.atmosphere.client import Atmosphere
    from fastshard.typed.dataset import Dataset
    from fastshard.typed.sources.listed import ListedSource

__all__ = [
    "blob_endpoint_url",
    "blob_source",
    "checksums_of_storage",
    "is_public_url",
    "open_storage",
    "s3_urls",
    "source_of_storage",
    "storage_type",
    "storage_urls",
]

TYPES = {
    StorageHttp: "http",
    StorageS3: "s3",
    StorageBlobs: "blobs",
    StorageExternal: "external",
}
BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)
REGION = re.compile(r"[a-z0-9-]{1,50}", re.ASCII)  # a part of a host's name


def storage_type(storage: Storage) -> str:
    """Return "http", "s3", "blobs" or "external"."""
    if isinstance(storage, UnknownMember):
        raise ValueError(f"Unknown storage type: {storage.type[:200]!r}")
    return TYPES[type(storage)]


def storage_urls(storage: Storage, did: str) -> list[str]:
    """Return a URL for each shard, or the patterns of older records, as they are.

    Those of blobs are ``at://did/blob/cid``; none for an unknown storage.
    """
    if isinstance(storage, StorageHttp):
        return [shard.url for shard in storage.shards]
    if isinstance(storage, StorageS3):
        return [f"s3://{storage.bucket}/{shard.key}" for shard in storage.shards]
    if isinstance(storage, StorageBlobs):
        return [f"at://{did}/blob/{each.blob.cid}" for each in storage.blobs]
    return list(storage.urls) if isinstance(storage, StorageExternal) else []


def s3_urls(storage: StorageS3) -> list[str]:
    """Return URLs of the shards: of ``http`` if the storage names its server.

    Records choose the server, so it gets no credentials.
    """
    if storage.endpoint is None:
        return storage_urls(storage, "")
    base = f"{storage.endpoint.rstrip('/')}/{quote(storage.bucket, safe='')}"
    return [f"{base}/{quote(shard.key, safe='/~')}" for shard in storage.shards]


def checksums_of_storage(storage: Storage, urls: list[str]) -> dict[str, str]:
    """Return the SHA-256 digests of shards, in hexadecimal, by their URLs."""
    if isinstance(storage, StorageBlobs):
        found = [each.checksum for each in storage.blobs]
    elif isinstance(storage, StorageHttp | StorageS3):
        found = [each.checksum for each in storage.shards]
    else:
        return {}
    return {
        url: checksum.digest.lower()
        for url, checksum in zip(urls, found, strict=True)
        if checksum is not None and checksum.algorithm == "sha256"
    }


def blob_endpoint_url(endpoint: str, did: str, cid: str) -> str:
    """Return the URL of a blob at its server."""
    owner = quote(did, safe=":")  # a did:web: of a port has a percent sign
    return f"{endpoint}/xrpc/com.atproto.sync.getBlob?did={owner}&cid={cid}"


def is_public_url(url: str) -> bool:
    """Return whether a text is a URL that others can read, without a password."""
    return is_remote(url) and strip_user(url) == url


def open_storage(
    client: Atmosphere,
    storage: Storage,
    uri: str,
    did: str,
    sample_type: type[Any],
    **options: Any,
) -> Dataset[Any]:
    """Return the dataset of a storage."""
    from fastshard.typed.dataset import Dataset

    if client._options["private_hosts"] is False:
        options.setdefault("private_hosts", False)
    source = source_of_storage(
        client, storage, uri, did, in_bucket=bool(options.get("store"))
    )
    return Dataset(source, sample_type, **options)


def source_of_storage(
    client: Atmosphere, storage: Storage, uri: str, did: str, *, in_bucket: bool = False
) -> ListedSource:
    """Return the source of the shards of a storage."""
    storage_type(storage)  # a known one
    if isinstance(storage, StorageBlobs):
        return blob_source(client, storage, did)
    if isinstance(storage, StorageS3):
        if storage.endpoint is None or in_bucket:
            return _s3_source(storage, uri)
        return _url_source(s3_urls(storage), uri, expand=False)
    return _url_source(storage_urls(storage, did), uri, expand=True)


def blob_source(client: Atmosphere, storage: StorageBlobs, did: str) -> BlobSource:
    """Return the source of the blobs of a repository that a storage names."""
    from fastshard.atmosphere.blobs.source import BlobSource

    refs = [
        {"did": did, "cid": each.blob.cid, "size": each.blob.size}
        for each in storage.blobs
    ]
    return BlobSource(refs, client=client)


def _s3_source(storage: StorageS3, uri: str) -> ListedSource:
    from fastshard.typed.sources.s3 import S3Source

    if BUCKET.fullmatch(storage.bucket) is None:
        raise RecordError("not the name of a bucket", uri, "storage.bucket")
    region = storage.region
    if region is not None and REGION.fullmatch(region) is None:
        raise RecordError("not the name of a region", uri, "storage.region")
    keys = [shard.key for shard in storage.shards]
    return S3Source(storage.bucket, keys, region=region)


def _url_source(urls: list[str], uri: str, *, expand: bool) -> ListedSource:
    from fastshard.typed.sources.url import URLSource

    shards = []
    for i, url in enumerate(urls):
        place = f"storage, shard {i}"
        if not is_public_url(url):
            shown = redact(url[:200])
            reason = f"expected the URL of a shard, without a password, got {shown!r}"
            raise RecordError(reason, uri, place)
        try:
            words = expand_braces(url) if expand and "{" in url else [url]
            if url.lower().startswith("http"):
                normalize_url(words[0])
        except FastshardError as error:
            raise RecordError(str(error), uri, place) from None
        shards += words
    return URLSource._of_shards(shards)
