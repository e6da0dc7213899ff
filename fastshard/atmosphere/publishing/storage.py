"""Storage of records, from URLs and blobs of shards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from fastshard._util.paths.globs import expand_braces
from fastshard._util.paths.urls import redact
from fastshard.atmosphere.loading.shards import is_public_url
from fastshard.atmosphere.records.checksum import ShardChecksum
from fastshard.atmosphere.records.storage import (
    BlobEntry,
    BlobRef,
    HttpShardEntry,
    S3ShardEntry,
    StorageBlobs,
    StorageHttp,
    StorageS3,
)

__all__ = [
    "blob_storage",
    "check_public",
    "http_storage",
    "s3_storage",
    "storage_of_urls",
]

S3 = "s3://"
SECRETS = frozenset(  # parameters of URLs that give access without a password
    (
        "x-amz-signature",
        "x-amz-security-token",
        "x-goog-signature",
        "awsaccesskeyid",
        "signature",
        "sig",
        "token",
        "access_token",
        "api_key",
    )
)


def check_public(url: str) -> str:
    """Return a URL that is public, and free of secrets."""
    if not isinstance(url, str):
        raise TypeError(f"a URL must be a str, got {type(url).__name__}")
    if not is_public_url(url):
        raise ValueError(
            f"{redact(url)[:300]!r} is not a URL that others can read, or holds a "
            "password: store the shards elsewhere, with data_store="
        )
    names = {name.lower() for name, _ in parse_qsl(urlsplit(url).query)}
    if names & SECRETS:
        raise ValueError(
            f"the URL {redact(url)[:300]!r} holds a signature, which a public record "
            "would give away"
        )
    return url


def storage_of_urls(
    urls: Iterable[str],
    checksums: Mapping[str, str] | None = None,
    *,
    region: str | None = None,
    endpoint: str | None = None,
) -> StorageHttp | StorageS3:
    """Return the storage of shards that URLs or brace patterns name."""
    shards = [shard for url in urls for shard in expand_braces(check_public(url))]
    if not shards:
        raise ValueError("urls is empty, expected URLs of shards")
    known = checksums or {}
    sums = [_checksum(known.get(shard)) for shard in shards]
    buckets = {shard.removeprefix(S3).partition("/")[0] for shard in shards}
    if all(shard.startswith(S3) for shard in shards) and len(buckets) == 1:
        bucket = buckets.pop()
        keys = [shard.removeprefix(f"{S3}{bucket}/") for shard in shards]
        return s3_storage(bucket, keys, sums, region=region, endpoint=endpoint)
    return http_storage(shards, sums)


def http_storage(
    urls: Sequence[str], checksums: Sequence[ShardChecksum | None] | None = None
) -> StorageHttp:
    """Return the storage of shards that URLs name."""
    sums = _pair("urls", urls, checksums)
    return StorageHttp(
        [
            HttpShardEntry(check_public(url), each)
            for url, each in zip(urls, sums, strict=True)
        ]
    )


def s3_storage(
    bucket: str,
    keys: Sequence[str],
    checksums: Sequence[ShardChecksum | None] | None = None,
    *,
    region: str | None = None,
    endpoint: str | None = None,
) -> StorageS3:
    """Return the storage of shards in a bucket."""
    sums = _pair("keys", keys, checksums)
    if endpoint is not None:
        check_public(endpoint)
    shards = [S3ShardEntry(key, each) for key, each in zip(keys, sums, strict=True)]
    return StorageS3(bucket, shards, region, endpoint)


def blob_storage(
    blobs: Sequence[BlobRef | Mapping[str, Any]],
    checksums: Sequence[ShardChecksum | None] | None = None,
) -> StorageBlobs:
    """Return the storage of shards that are blobs."""
    sums = _pair("blob_refs", blobs, checksums)
    refs = [
        blob if isinstance(blob, BlobRef) else BlobRef.from_record(dict(blob))
        for blob in blobs
    ]
    return StorageBlobs(
        [BlobEntry(ref, each) for ref, each in zip(refs, sums, strict=True)]
    )


def _pair(
    name: str,
    shards: Sequence[Any],
    checksums: Sequence[ShardChecksum | None] | None,
) -> Sequence[ShardChecksum | None]:
    """Return the checksum of each shard, or None."""
    if isinstance(shards, str | bytes):
        raise TypeError(f"{name} must be a list, got {type(shards).__name__}")
    if not shards:
        raise ValueError(f"{name} must name a shard or more")
    if not checksums:
        return [None] * len(shards)
    if len(checksums) != len(shards):
        raise ValueError(
            f"checksums length ({len(checksums)}) must match {name} length "
            f"({len(shards)})"
        )
    return checksums


def _checksum(digest: str | None) -> ShardChecksum | None:
    return None if digest is None else ShardChecksum("sha256", digest)
