"""Sources of shards in a bucket of S3, R2 or MinIO, with credentials of their own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from fastshard._util.paths.remote_options import RemoteOptions
from fastshard._util.paths.urls import Url, redact
from fastshard.dataset.paths.listing import Location
from fastshard.typed.sources.listed import ListedSource

__all__ = ["S3Source", "read_env"]

SCHEME = "s3://"


class S3Source(ListedSource):
    """Shards of a bucket, read by ranges through the library obstore.

    Credentials stand in no repr, error or pickle: an unpickled source uses those of the
    environment (``AWS_ACCESS_KEY_ID`` and so on), as one without keys does.

    Parameters
    ----------
    bucket : str
    keys : sequence of str
        The shards' names in the bucket; no patterns.
    endpoint : str, optional
        URL of the server, such as ``https://account.r2.cloudflarestorage.com``; by
        default that of AWS. Plain ``http://`` is allowed.
    access_key, secret_key : str, optional
        By default those of the environment.
    region : str, optional
    session_token : str, optional
        Of temporary credentials.

    Raises
    ------
    TypeError
        `keys` is one str.
    ValueError
        Only one of `access_key` and `secret_key` is given.

    Examples
    --------
    >>> from fastshard import typed
    >>> source = typed.S3Source(
    ...     bucket="pictures",
    ...     keys=["train-0000.tar", "train-0001.tar"],
    ...     endpoint="https://account.r2.cloudflarestorage.com",
    ...     access_key="...",
    ...     secret_key="...",
    ... )
    >>> source.list_shards()
    ['s3://pictures/train-0000.tar', 's3://pictures/train-0001.tar']
    """

    def __init__(
        self,
        bucket: str,
        keys: Sequence[str],
        endpoint: str | None = None,
        access_key: str | None = None,
        secret_key: str | None = None,
        region: str | None = None,
        *,
        session_token: str | None = None,
    ) -> None:
        if isinstance(keys, str | bytes):
            raise TypeError("keys must be a sequence of str, got one str")
        if (access_key is None) != (secret_key is None):
            raise ValueError("access_key and secret_key must be given together")
        self.bucket = bucket
        self.keys = list(keys)
        self.endpoint = endpoint
        self.access_key = access_key
        self.secret_key = secret_key
        self.region = region
        self.session_token = session_token

    @classmethod
    def from_urls(
        cls,
        urls: Sequence[str],
        *,
        endpoint: str | None = None,
        access_key: str | None = None,
        secret_key: str | None = None,
        region: str | None = None,
    ) -> S3Source:
        """Return the source of the shards of ``s3://bucket/key`` URLs.

        Parameters
        ----------
        urls : sequence of str
            In one bucket.
        endpoint, access_key, secret_key, region : str, optional
            As for the class.

        Raises
        ------
        ValueError
            There is no URL, one is not a URL of S3, or they are in several buckets.

        Examples
        --------
        >>> typed.S3Source.from_urls(["s3://pictures/train-0000.tar"]).keys
        ['train-0000.tar']
        """
        if not urls:
            raise ValueError("urls cannot be empty")
        buckets: dict[str, None] = {}
        keys = []
        for url in urls:
            if not url.startswith(SCHEME):
                raise ValueError(f"Not an S3 URL: {redact(url)}")
            bucket, _, key = url.removeprefix(SCHEME).partition("/")
            if not bucket or not key:
                raise ValueError(f"Not an S3 URL with bucket and key: {redact(url)}")
            buckets[bucket] = None
            keys.append(key)
        if len(buckets) > 1:
            raise ValueError(
                f"All URLs must be in the same bucket, got {', '.join(buckets)}"
            )
        return cls(next(iter(buckets)), keys, endpoint, access_key, secret_key, region)

    @classmethod
    def from_credentials(
        cls,
        credentials: Mapping[str, str | None] | str | os.PathLike[str],
        bucket: str,
        keys: Sequence[str],
    ) -> S3Source:
        """Return a source with the credentials of a dict or of a ``.env`` file.

        Parameters
        ----------
        credentials : Mapping, str or path-like
            With ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, and optionally
            ``AWS_ENDPOINT`` (or ``AWS_ENDPOINT_URL``), ``AWS_REGION`` (or
            ``AWS_DEFAULT_REGION``), ``AWS_SESSION_TOKEN``; or the path of a file with
            such lines.
        bucket : str
        keys : sequence of str

        Raises
        ------
        OSError
            The file cannot be read.
        ValueError
            Only one of the two keys is there.

        Examples
        --------
        >>> from pathlib import Path
        >>> lines = "AWS_ACCESS_KEY_ID=name\\nAWS_SECRET_ACCESS_KEY='a secret'\\n"
        >>> size = Path(".env").write_text(lines + "AWS_ENDPOINT=https://minio.local\\n")
        >>> typed.S3Source.from_credentials(".env", "pictures", ["a.tar"])
        S3Source('pictures', ['a.tar'], endpoint='https://minio.local')
        """
        if isinstance(credentials, str | os.PathLike):
            credentials = read_env(credentials)
        known = credentials
        return cls(
            bucket,
            keys,
            known.get("AWS_ENDPOINT") or known.get("AWS_ENDPOINT_URL") or None,
            known.get("AWS_ACCESS_KEY_ID") or None,
            known.get("AWS_SECRET_ACCESS_KEY") or None,
            known.get("AWS_REGION") or known.get("AWS_DEFAULT_REGION") or None,
            session_token=known.get("AWS_SESSION_TOKEN") or None,
        )

    def list_shards(self) -> list[str]:
        """Return the URLs of the shards; the bucket is not asked.

        Returns
        -------
        list of str
            ``s3://bucket/key``.

        Examples
        --------
        >>> typed.S3Source("pictures", ["a/0.tar"]).list_shards()
        ['s3://pictures/a/0.tar']
        """
        return [f"{SCHEME}{self.bucket}/{key}" for key in self.keys]

    @property
    def location(self) -> Location:
        """The parsed source."""
        return Location("shards", tuple(map(Url, self.list_shards())))

    @property
    def options(self) -> RemoteOptions:
        """The options with which the bucket is read, credentials among them."""
        store: dict[str, Any] = {
            "endpoint": self.endpoint,
            "access_key_id": self.access_key,
            "secret_access_key": self.secret_key,
            "session_token": self.session_token,
            "region": self.region,
        }
        given = {name: value for name, value in store.items() if value is not None}
        return {"store": given} if given else {}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, S3Source):
            return NotImplemented
        return vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        parts = [repr(self.bucket), repr(self.keys)]
        if self.endpoint is not None:
            parts.append(f"endpoint={redact(self.endpoint)!r}")
        if self.region is not None:
            parts.append(f"region={self.region!r}")
        return f"S3Source({', '.join(parts)})"

    def __reduce__(self) -> tuple[Any, ...]:
        args = self.bucket, self.keys, self.endpoint, None, None, self.region
        return type(self), args


def read_env(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the variables of a ``.env`` file: lines ``NAME=value``."""
    found = {}
    with open(path, encoding="utf-8-sig") as file:
        for line in file:
            name, equals, value = line.strip().removeprefix("export ").partition("=")
            if not equals or name.lstrip().startswith("#"):
                continue
            found[name.strip()] = _unquote(value.strip())
    return found


def _unquote(value: str) -> str:
    """Return a value without its quotes, or without a comment behind it."""
    if value[:1] in ("'", '"'):
        end = value.find(value[0], 1)
        if end > 0:
            return value[1:end]
    return value.split(" #", 1)[0].rstrip()
