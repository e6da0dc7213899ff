"""Checksums of shards: compared with those that an entry of an index has."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import IO, Any, Protocol

from fastshard.errors import FastshardError
from fastshard.remote.urls import scheme_of
from fastshard.typed.sources.url import URLSource

__all__ = ["ChecksumEntry", "verify_checksums"]

CHUNK = 1 << 20  # bytes that are read at a time


class ChecksumEntry(Protocol):
    """Argument of `verify_checksums`: URLs of shards, and metadata with checksums."""

    @property
    def data_urls(self) -> Sequence[str]:
        """Paths or URLs of the shards."""

    @property
    def metadata(self) -> Mapping[str, Any] | None:
        """``metadata["checksums"]`` has hexadecimal SHA-256 digests by URL."""


def verify_checksums(entry: ChecksumEntry, *, remote: bool = False) -> dict[str, str]:
    """Compare the SHA-256 checksums of shards with those of an entry.

    Parameters
    ----------
    entry : object
        With ``data_urls``, and ``metadata["checksums"]``: a dict of hexadecimal digests
        by URL.
    remote : bool, default False
        Read the shards of URLs too; by default they are skipped.

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
    stored: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
    return {
        url: _verify(url, stored[url], remote) if url in stored else "skipped"
        for url in entry.data_urls
    }


def _verify(url: str, stored: object, remote: bool) -> str:
    """Return how the checksum of a shard compares."""
    if scheme_of(url) not in ("", "file") and not remote:
        return "skipped"
    if not isinstance(stored, str):
        return f"error:the checksum is no str, but {type(stored).__name__}"
    try:
        with URLSource._of_shards([url]).open_shard(url) as file:
            digest = _digest(file)
    except (OSError, FastshardError) as error:
        return f"error:{error}"
    return "ok" if digest == stored.lower() else "mismatch"


def _digest(file: IO[bytes]) -> str:
    sha256 = hashlib.sha256()
    while chunk := file.read(CHUNK):
        sha256.update(chunk)
    return sha256.hexdigest()
