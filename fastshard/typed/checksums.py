"""Comparison of shards with the checksums of an index entry."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import IO, Any, Protocol, cast

from fastshard._util.paths.urls import scheme_of
from fastshard.errors import FastshardError
from fastshard.formats.registry import scheme_format
from fastshard.typed.sources.opening import source_of_paths
from fastshard.typed.sources.protocol import DataSource
from fastshard.typed.sources.url import URLSource

__all__ = ["ChecksumEntry", "checksums_of", "verify_checksums"]

CHUNK = 1 << 20  # bytes that are read at a time


class ChecksumEntry(Protocol):
    """Argument of `verify_checksums`: URLs of shards, and metadata with checksums."""

    @property
    def data_urls(self) -> Sequence[str]:
        """Paths or URLs of the shards."""

    @property
    def metadata(self) -> Mapping[str, Any] | None:
        """``metadata["checksums"]`` has hexadecimal SHA-256 digests by URL."""


def verify_checksums(
    entry: ChecksumEntry, *, remote: bool = False, source: DataSource | None = None
) -> dict[str, str]:
    """Compare the SHA-256 checksums of shards with those of an entry.

    Parameters
    ----------
    entry : object
        With ``data_urls``, and ``metadata["checksums"]``: a dict of hexadecimal digests
        by URL.
    remote : bool, default False
        Read the shards of URLs too; by default they are skipped.
    source : DataSource, optional
        Opens the shards that it lists. By default shards of an index's entry are opened
        as by ``entry.open()``, with the credentials of its store.

    Returns
    -------
    dict of str to str
        By URL ``"ok"``, ``"mismatch"``, ``"skipped"``: there is no checksum, or the
        shard is remote; or ``"error:"`` and the reason why it cannot be read.

    Examples
    --------
    >>> import hashlib
    >>> from pathlib import Path
    >>> from types import SimpleNamespace
    >>> from fastshard import typed
    >>> path = "data/train-0000.tar"
    >>> digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    >>> urls = [path, "data/train-0001.tar"]
    >>> entry = SimpleNamespace(data_urls=urls, metadata={"checksums": {path: digest}})
    >>> typed.verify_checksums(entry)
    {'data/train-0000.tar': 'ok', 'data/train-0001.tar': 'skipped'}
    """
    metadata = entry.metadata
    found = metadata.get("checksums") if isinstance(metadata, Mapping) else None
    stored = dict(found) if isinstance(found, Mapping) else {}
    of_record = getattr(entry, "checksums", None)  # a record has them by shard
    stored |= of_record if isinstance(of_record, Mapping) else {}
    opened = Opener(entry, source)
    return {
        url: _verify(url, stored[url], remote, opened) if url in stored else "skipped"
        for url in entry.data_urls
    }


class Opener:
    """Opens the shards of an entry."""

    def __init__(self, entry: ChecksumEntry, source: DataSource | None) -> None:
        self._entry = entry
        self._given = source

    def open(self, url: str) -> IO[bytes]:
        """Open a shard; its name is not a pattern."""
        source = self._source
        if source is not None:
            shards, urls = source.list_shards(), list(self._entry.data_urls)
            if url in shards:
                return source.open_shard(url)
            is_found = self._given is None and len(shards) == len(urls)
            if is_found:  # blobs of a record, whose URLs name their server
                return source.open_shard(shards[urls.index(url)])
        if scheme_of(url) == "file":
            files = URLSource(url)
            if len(shards := files.list_shards()) != 1:
                raise ValueError(f"{url} names {len(shards):,} shards")
            return files.open_shard(shards[0])
        return URLSource._of_shards([url]).open_shard(url)

    @cached_property
    def _source(self) -> DataSource | None:
        """The source of all shards, if known."""
        if self._given is not None:
            return self._given
        of_record = getattr(self._entry, "_shard_source", None)
        if of_record is not None:
            return cast(DataSource, of_record())
        urls = self._entry.data_urls
        opener = getattr(self._entry, "_opener", None)
        if opener is not None and all(scheme_of(url) == "s3" for url in urls):
            from fastshard.typed.dict_sample import DictSample

            found: DataSource = opener.open_entry(self._entry, DictSample).source
            return found
        schemes = set(map(scheme_of, urls))
        if len(schemes) == 1 and scheme_format(schemes.pop()) is not None:
            return source_of_paths(list(urls))
        return None


def _verify(url: str, stored: object, remote: bool, shards: Opener) -> str:
    """Return the result for one shard."""
    if scheme_of(url) not in ("", "file") and not remote:
        return "skipped"
    if not isinstance(stored, str):
        return f"error:the checksum must be a str, is {type(stored).__name__}"
    try:
        with shards.open(url) as file:
            digest = _digest(file)
    except (OSError, FastshardError, ValueError) as error:
        return f"error:{error}"
    return "ok" if digest == stored.lower() else "mismatch"


def _digest(file: IO[bytes]) -> str:
    sha256 = hashlib.sha256()
    while chunk := file.read(CHUNK):
        sha256.update(chunk)
    return sha256.hexdigest()


def checksums_of(metadata: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the digests by URL in metadata; skip values of other types."""
    found = metadata.get("checksums") if isinstance(metadata, Mapping) else None
    if not isinstance(found, Mapping):
        return {}
    return {
        url: digest
        for url, digest in found.items()
        if isinstance(url, str) and isinstance(digest, str)
    }
