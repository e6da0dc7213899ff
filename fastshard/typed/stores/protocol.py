"""The protocol of a store of shards."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

__all__ = ["AbstractDataStore", "ShardTarget", "ShardWriteResult", "TargetStore"]


class ShardWriteResult(list[str]):
    """The URLs of written shards, and their checksums.

    Parameters
    ----------
    urls : list of str
    checksums : dict of str to str
        SHA-256 digests in hexadecimal, by URL.

    Examples
    --------
    >>> from fastshard import typed
    >>> result = typed.ShardWriteResult(["a.tar"], {"a.tar": "2cf24dba..."})
    >>> result[0], result.checksums["a.tar"]
    ('a.tar', '2cf24dba...')
    """

    checksums: dict[str, str]

    def __init__(self, urls: list[str], checksums: Mapping[str, str]) -> None:
        super().__init__(urls)
        self.checksums = dict(checksums)


@runtime_checkable
class AbstractDataStore(Protocol):
    """A store of shards: takes those of a dataset, and resolves their URLs.

    `LocalDiskStore` and `S3DataStore` are stores, and every object with these three
    methods is one.

    Examples
    --------
    >>> from fastshard import typed
    >>> isinstance(typed.LocalDiskStore("store"), typed.AbstractDataStore)
    True
    """

    def write_shards(self, ds: Any, *, prefix: str, **kwargs: Any) -> list[str]:
        """Write the samples of a dataset to new shards below a prefix.

        Returns their URLs; a `ShardWriteResult` has their checksums.
        """

    def read_url(self, url: str) -> str:
        """Return the URL by which a shard is read."""

    def supports_streaming(self) -> bool:
        """Return whether shards are read without a copy of the whole."""


class ShardTarget(Protocol):
    """Target of new shards: local files, one by one.

    Attributes
    ----------
    path : str
        Of the files, with a slot for their number, ``%06d``.
    max_bytes : int or None
        Maximum size of a file, unless the user gives another.
    """

    path: str
    max_bytes: int | None

    def publish(self, path: str, digest: str) -> str:
        """Take a finished file with its index and manifest; return its URL."""

    def result(self) -> ShardWriteResult | None:
        """Return the result of all shards, or None for their URLs and checksums."""


class TargetStore(Protocol):
    """Base class of stores that take shards while they are written."""

    def _shard_target(self, prefix: str) -> AbstractContextManager[ShardTarget]:
        """Return the target of new shards; all are stored when it ends.

        After an exception, unstored shards are dropped.
        """
