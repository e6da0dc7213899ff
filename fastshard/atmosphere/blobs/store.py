"""Store of shards as blobs of an account of the AT Protocol."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastshard._util.paths.urls import scheme_of
from fastshard._util.processes.temporaries import temporary_folder
from fastshard.atmosphere.blobs.cache import BlobName, parse_blob_url
from fastshard.atmosphere.blobs.source import BlobSource
from fastshard.atmosphere.cid import cid_of_blob
from fastshard.codecs.hashes import hash_file
from fastshard.errors import RemoteError
from fastshard.typed.sources.url import URLSource
from fastshard.typed.stores.protocol import ShardWriteResult
from fastshard.typed.stores.writing import (
    DatasetOptions,
    scan_file,
    whole_source,
    write_dataset,
)

if TYPE_CHECKING:
    from fastshard.atmosphere.client import Atmosphere

__all__ = ["PDSBlobStore", "ShardUploadResult"]

MAX_SHARD = 50_000_000  # bytes of a blob that every server accepts
MAX_DATASET = 1_000_000_000  # bytes
MIME_TYPE = "application/x-tar"


class ShardUploadResult(ShardWriteResult):
    """The URLs of shards that were uploaded, their checksums, and their blobs.

    Parameters
    ----------
    urls : list of str
        ``at://did/blob/cid``.
    blob_refs : list of dict
        The blobs as records name them, in the same order.
    checksums : dict of str to str, optional
        SHA-256 digests in hexadecimal, by URL.

    Examples
    --------
    >>> from fastshard import typed
    >>> blob = {"$type": "blob", "ref": {"$link": "bafkrei..."}, "size": 10_240}
    >>> result = typed.ShardUploadResult(["at://did:plc:abc/blob/bafkrei..."], [blob])
    >>> result.blob_refs[0]["size"]
    10240
    """

    blob_refs: list[dict[str, Any]]

    def __init__(
        self,
        urls: list[str],
        blob_refs: Sequence[Mapping[str, Any]],
        checksums: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(urls, checksums or {})
        self.blob_refs = [dict(blob) for blob in blob_refs]


class PDSBlobStore:
    """Store of shards as blobs of the account of a client.

    A server drops a blob to which no record refers: publish an entry with its
    `ShardUploadResult.blob_refs`, or write through ``Index.write_samples``.

    Parameters
    ----------
    client : Atmosphere
        With a session.

    Examples
    --------
    >>> client = typed.Atmosphere.login("alice.test", "app-password")
    >>> store = typed.PDSBlobStore(client)
    >>> isinstance(store, typed.AbstractDataStore)
    True
    """

    def __init__(self, client: Atmosphere) -> None:
        self.client = client

    def write_shards(
        self,
        ds: Any,
        *,
        prefix: str = "",
        force: bool = False,
        timeout: float | None = None,
        **options: Any,
    ) -> ShardUploadResult:
        """Upload the shards of a dataset as blobs.

        Shards of a dataset that is neither mapped nor reordered are uploaded as they
        are, unless `maxcount`, `maxsize` or `manifest` ask for others. Nothing is
        uploaded before all sizes are known.

        Parameters
        ----------
        ds : Dataset
            Or an iterable of packable samples, or an object whose
            ``ordered(batch_size=None)`` is one; their keys are numbers.
        prefix : str, optional
            Has no effect: a blob has no name.
        force : bool, default False
            Upload shards above 50 MB, which many servers refuse, and datasets above
            1 GB.
        timeout : float, optional
            Seconds for each shard. By default that of the client, plus one for each
            100 KB.
        **options
            As for `LocalDiskStore.write_shards`. By default new shards have at most
            50 MB. Manifests are not uploaded.

        Returns
        -------
        ShardUploadResult
            ``at://did/blob/cid`` URLs, their checksums, and their blobs.

        Raises
        ------
        ValueError
            There is no session, or there are no samples; or a shard, or all of them,
            are too large: nothing was uploaded.
        TypeError, OverflowError
            An option is unknown, or a mapped sample cannot be stored.
        FormatError, OSError
            A shard cannot be read.
        RemoteError
            A blob cannot be uploaded. The server drops those before it.

        Examples
        --------
        >>> client = typed.Atmosphere.login("alice.test", "app-password")
        >>> result = typed.PDSBlobStore(client).write_shards(ds, prefix="images/v1")
        >>> [url.partition("/blob/")[0] == f"at://{client.did}" for url in result]
        [True]
        >>> result.blob_refs[0]["mimeType"]
        'application/x-tar'
        """
        chosen = DatasetOptions.of(options)
        upload = BlobUpload(self.client, force=force, timeout=timeout)
        files = None if chosen.changes_shards else _local_files(ds)
        if files is None:
            return _as_upload(write_dataset(upload, ds, prefix=prefix, **options))
        if not files:
            raise ValueError("the dataset has no shards")
        with upload._shard_target(prefix):
            for path in files:
                scan_file(path, path)
                upload.publish(path, hash_file(path, ["sha256"])["sha256"])
        return upload.result()

    @contextmanager
    def _shard_target(self, prefix: str) -> Iterator[BlobUpload]:
        """Return the target of new shards."""
        with BlobUpload(self.client)._shard_target(prefix) as target:
            yield target

    def read_url(self, url: str) -> str:
        """Return the URL of a blob at its owner's server.

        Parameters
        ----------
        url : str
            ``at://did/blob/cid``; others are returned unchanged.

        Raises
        ------
        ValueError
            It is another ``at://`` URL.
        IdentityError
            The owner's server is not known.
        RemoteError
            The directory of DIDs cannot be reached.

        Examples
        --------
        >>> client = typed.Atmosphere.login("alice.test", "app-password")
        >>> store = typed.PDSBlobStore(client)
        >>> url = store.write_shards(ds)[0]
        >>> store.read_url(url).partition("?")[0].rpartition("/")[2]
        'com.atproto.sync.getBlob'
        """
        if scheme_of(url) != "at":
            return url
        blob = parse_blob_url(url)
        return self.client.get_blob_url(blob.did, blob.cid)

    def supports_streaming(self) -> bool:
        """Return True: a shard is read without a copy made by the user.

        Examples
        --------
        >>> client = typed.Atmosphere.login("alice.test", "app-password")
        >>> typed.PDSBlobStore(client).supports_streaming()
        True
        """
        return True

    def create_source(self, urls: Sequence[str]) -> BlobSource:
        """Return the source of shards of this store.

        Parameters
        ----------
        urls : sequence of str
            ``at://did/blob/cid``.

        Raises
        ------
        ValueError
            There is no URL, or one is not of a blob.

        Examples
        --------
        >>> client = typed.Atmosphere.login("alice.test", "app-password")
        >>> store = typed.PDSBlobStore(client)
        >>> url = "at://did:plc:abc/blob/bafkreia"
        >>> store.create_source([url]).list_shards() == [url]
        True
        """
        return BlobSource.from_refs(list(urls), client=self.client)

    def __repr__(self) -> str:
        return f"PDSBlobStore({self.client!r})"


class BlobUpload:
    """Target that uploads all shards together at its end.

    Attributes
    ----------
    path : str
        Of new files.
    max_bytes : int
        Of a new shard, by default.
    """

    max_bytes: int | None = MAX_SHARD

    def __init__(
        self, client: Atmosphere, *, force: bool = False, timeout: float | None = None
    ) -> None:
        self.path = ""
        self._client = client
        self._did = client.did  # raises without a session, before files are written
        self._force = force
        self._timeout = timeout
        self._files: list[str] = []
        self._blobs: list[dict[str, Any]] = []
        self._digests: list[str] = []
        self._nbytes = 0

    @contextmanager
    def _shard_target(self, prefix: str) -> Iterator[BlobUpload]:
        """Return the target of new shards; upload them at the end."""
        with temporary_folder("fastshard") as folder:
            self.path = os.path.join(folder, "data-%06d.tar")
            yield self
            for path, blob in zip(self._files, self._blobs, strict=True):
                self._upload(path, blob)

    def publish(self, path: str, digest: str) -> str:
        """Take a shard; return its URL."""
        nbytes = os.path.getsize(path)
        self._nbytes += nbytes
        if nbytes > MAX_SHARD and not self._force:
            raise ValueError(
                f"{path} has {nbytes:,} bytes; a blob has at most {MAX_SHARD:,}: write "
                "smaller shards, with maxsize=, or give force=True"
            )
        if self._nbytes > MAX_DATASET and not self._force:
            raise ValueError(
                f"the shards have more than {MAX_DATASET:,} bytes: store them "
                "elsewhere, or give force=True"
            )
        cid = cid_of_blob(bytes.fromhex(digest))
        blob = {"$type": "blob", "ref": {"$link": cid}, "mimeType": MIME_TYPE}
        self._files.append(path)
        self._blobs.append({**blob, "size": nbytes})
        self._digests.append(digest)
        return BlobName(self._did, cid).url

    def _upload(self, path: str, blob: dict[str, Any]) -> None:
        """Upload a shard."""
        found = self._client.upload_blob(
            Path(path),
            mime_type=MIME_TYPE,
            timeout=self._timeout,
            force=self._force,
        )
        if found["ref"] != blob["ref"]:
            raise RemoteError("the shard changed while it was uploaded", path)

    def result(self) -> ShardUploadResult:
        """Return the URLs, checksums and blobs of all shards."""
        urls = [BlobName(self._did, blob["ref"]["$link"]).url for blob in self._blobs]
        checksums = dict(zip(urls, self._digests, strict=True))
        return ShardUploadResult(urls, self._blobs, checksums)


def _local_files(ds: Any) -> list[str] | None:
    """Return the shards of a dataset that is all of some local files, or None."""
    source = whole_source(ds)
    if not isinstance(source, URLSource):
        return None
    paths = source.list_shards()
    return None if any(scheme_of(path) for path in paths) else paths


def _as_upload(result: ShardWriteResult) -> ShardUploadResult:
    assert isinstance(result, ShardUploadResult)
    return result
