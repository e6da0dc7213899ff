"""Store of shards in a bucket of S3, R2 or MinIO."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from fastshard._util.paths.urls import redact, strip_user
from fastshard._util.processes.temporaries import temporary_folder
from fastshard.remote.object_store import StoreClient, stores_for
from fastshard.remote.options import Settings
from fastshard.typed.sources.s3 import S3Source, read_env
from fastshard.typed.stores.protocol import ShardWriteResult
from fastshard.typed.stores.writing import (
    SIDECARS,
    safe_prefix,
    shard_name,
    write_dataset,
)

__all__ = ["S3DataStore"]

SCHEME = "s3://"
ENDPOINTS = ("AWS_ENDPOINT", "AWS_ENDPOINT_URL")  # the first variable that is set
REQUIRED = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


class S3DataStore:
    """Store of shards in a bucket, written through the library obstore.

    A shard is ``s3://{bucket}/{prefix}/data--{uuid}--000000.tar``; its index, and its
    manifest, are objects beside it. Shards are written to a temporary folder and
    uploaded while the next one is written, large ones in parts: an object appears whole
    or not at all. At most two shards are in the folder.

    Credentials stand in no repr, error or pickle; an unpickled store uses those of the
    environment.

    Parameters
    ----------
    credentials : Mapping, str or path-like
        With ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, and optionally
        ``AWS_ENDPOINT``, ``AWS_REGION``, ``AWS_SESSION_TOKEN``; or the path of a
        ``.env`` file with such lines.
    bucket : str

    Raises
    ------
    OSError
        The file cannot be read.
    ValueError
        A key is missing, or the endpoint has a user or a password.

    Examples
    --------
    >>> from fastshard import typed
    >>> store = typed.S3DataStore(
    ...     {
    ...         "AWS_ACCESS_KEY_ID": "...",
    ...         "AWS_SECRET_ACCESS_KEY": "...",
    ...         "AWS_ENDPOINT": "https://account.r2.cloudflarestorage.com",
    ...     },
    ...     bucket="pictures",
    ... )
    >>> store.read_url("s3://pictures/a.tar")
    'https://account.r2.cloudflarestorage.com/pictures/a.tar'
    """

    def __init__(
        self,
        credentials: Mapping[str, str] | str | os.PathLike[str],
        *,
        bucket: str,
    ) -> None:
        if isinstance(credentials, str | os.PathLike):
            path, credentials = os.fspath(credentials), read_env(credentials)
            where = f" in {path}"
        else:
            where = ""
        missing = [name for name in REQUIRED if not credentials.get(name)]
        if missing:
            raise ValueError(f"Missing required keys{where}: {', '.join(missing)}")
        for name in ENDPOINTS:  # for repr and pickles
            endpoint = str(credentials.get(name) or "")
            if strip_user(endpoint) != endpoint:
                raise ValueError(
                    f"{name}{where} has a user or a password: {redact(endpoint)}"
                )
        self.credentials: dict[str, str] = dict(credentials)
        self.bucket = bucket

    def write_shards(self, ds: Any, *, prefix: str, **options: Any) -> ShardWriteResult:
        """Write the samples of a dataset to new shards, under their keys.

        Parameters
        ----------
        ds : Dataset
            Or an iterable of packable samples, or an object whose
            ``ordered(batch_size=None)`` is one; their keys are numbers.
        prefix : str
            Of the keys of the objects. Letters with a meaning in URLs and patterns, as
            ``*``, become ``_``.
        **options
            As for `LocalDiskStore.write_shards`.

        Returns
        -------
        ShardWriteResult
            ``s3://`` URLs, and their checksums.

        Raises
        ------
        ValueError
            There are no samples, or the prefix is not a relative path.
        TypeError, OverflowError
            An option is unknown, or a mapped sample cannot be stored.
        FormatError, OSError
            A shard cannot be read or written.
        RemoteError
            A shard cannot be stored. Complete ones stay.
        FastshardError
            obstore is not installed, or was used by the parent of this process.

        Examples
        --------
        >>> urls = s3_store.write_shards(ds, prefix="images/v1")
        >>> [url.rpartition("--")[2] for url in urls]
        ['000000.tar']
        """
        return write_dataset(self, ds, prefix=prefix, **options)

    @contextmanager
    def _shard_target(self, prefix: str) -> Iterator[BucketTarget]:
        """Return the target of new shards."""
        settings = Settings(self.create_source([f"{SCHEME}{self.bucket}/x"]).options)
        folder = "/".join(filter(None, (self.bucket, safe_prefix(prefix))))
        client = stores_for(settings)
        client.check_store(f"{SCHEME}{self.bucket}/x")
        with (
            temporary_folder("fastshard") as temporary,
            ThreadPoolExecutor(1, "fastshard-upload") as thread,
        ):
            path = os.path.join(temporary, shard_name(str(uuid4())))
            target = BucketTarget(client, f"{SCHEME}{folder}", path, thread)
            yield target
            target.wait()

    def read_url(self, url: str) -> str:
        """Return the URL by which a shard is read without this store.

        Returns
        -------
        str
            With ``AWS_ENDPOINT``, an ``s3://`` URL becomes one of HTTP; others stay.

        Examples
        --------
        >>> from fastshard import typed
        >>> keys = {"AWS_ACCESS_KEY_ID": "...", "AWS_SECRET_ACCESS_KEY": "..."}
        >>> typed.S3DataStore(keys, bucket="pictures").read_url("s3://pictures/a.tar")
        's3://pictures/a.tar'
        """
        endpoint = self._endpoint
        if endpoint and url.startswith(SCHEME):
            return f"{endpoint.rstrip('/')}/{url.removeprefix(SCHEME)}"
        return url

    def create_source(self, urls: Sequence[str]) -> S3Source:
        """Return the source of shards of this store, read with its credentials.

        Parameters
        ----------
        urls : sequence of str
            ``s3://`` URLs.

        Raises
        ------
        ValueError
            A URL is not a URL of S3, or they are in several buckets.

        Examples
        --------
        >>> urls = s3_store.write_shards(ds, prefix="images/v2")
        >>> len(typed.Dataset(s3_store.create_source(urls)))
        100
        """
        named = S3Source.from_urls(urls)
        return S3Source.from_credentials(self.credentials, named.bucket, named.keys)

    def supports_streaming(self) -> bool:
        """Return True: shards are read by ranges.

        Examples
        --------
        >>> s3_store.supports_streaming()
        True
        """
        return True

    @property
    def _endpoint(self) -> str | None:
        return next(filter(None, map(self.credentials.get, ENDPOINTS)), None)

    def __repr__(self) -> str:
        endpoint = self._endpoint
        where = "" if endpoint is None else f", endpoint={redact(endpoint)!r}"
        return f"S3DataStore(bucket={self.bucket!r}{where})"

    def __reduce__(self) -> tuple[Any, ...]:
        public = (*ENDPOINTS, "AWS_REGION")
        kept = {k: v for k, v in self.credentials.items() if k in public}
        return _restore, (self.bucket, kept)


def _restore(bucket: str, credentials: dict[str, str]) -> S3DataStore:
    """Unpickle a store: its keys come from the environment."""
    store = object.__new__(S3DataStore)
    store.bucket = bucket
    store.credentials = credentials
    return store


class BucketTarget:
    """New shards of a bucket: uploaded one at a time, by a thread."""

    max_bytes: int | None = None

    def __init__(
        self, client: StoreClient, folder: str, path: str, thread: ThreadPoolExecutor
    ) -> None:
        self.path = path
        self._client = client
        self._folder = folder
        self._thread = thread
        self._upload: Future[None] | None = None

    def publish(self, path: str, digest: str) -> str:
        """Upload a shard, its index and its manifest; return the shard's URL.

        Waits for the previous upload.
        """
        self.wait()
        url = f"{self._folder}/{os.path.basename(path)}"
        self._upload = self._thread.submit(self._store, path, url)
        return url

    def result(self) -> ShardWriteResult | None:
        """Return None."""
        return None

    def wait(self) -> None:
        """Wait for the last upload."""
        upload, self._upload = self._upload, None
        if upload is not None:
            upload.result()

    def _store(self, path: str, url: str) -> None:
        self._client.upload(url, path)
        os.unlink(path)
        base, base_url = path.removesuffix(".tar"), url.removesuffix(".tar")
        for suffix in SIDECARS:
            if os.path.exists(base + suffix):
                self._client.upload(base_url + suffix, base + suffix)
                os.unlink(base + suffix)
