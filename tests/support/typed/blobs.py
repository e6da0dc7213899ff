"""Datasets of blobs on a server in this process, and the type of their samples."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastshard import typed
from support.servers.atproto.dag import blob_cid
from support.servers.atproto.pds import Account, FakePds

__all__ = ["SAMPLES", "Caption", "Stored", "numbers_of", "store_blob", "wait_for"]

SAMPLES = 12  # of the dataset, in shards of 4


class Caption(typed.PackableSample):
    """The type of the samples."""

    text: str
    number: int


@dataclass
class Stored:
    """A dataset whose shards are blobs, and the same shards as files.

    Attributes
    ----------
    refs : list of dict
        Of `typed.BlobSource`.
    paths : list of str
    """

    server: FakePds
    account: Account
    refs: list[dict[str, Any]]
    paths: list[str]
    cache_dir: Path

    def source(self, **options: Any) -> typed.BlobSource:
        given = {"cache_dir": self.cache_dir, "timeout": 5, **options}
        given.setdefault("pds_endpoint", self.server.url)
        return typed.BlobSource(self.refs, **given)

    def dataset(self, **options: Any) -> typed.Dataset[Caption]:
        return typed.Dataset[Caption](self.source(**options))

    @property
    def downloads(self) -> int:
        return self.server.count("com.atproto.sync.getBlob")

    def files(self) -> list[Path]:
        """Return the blobs' files in the cache."""
        return sorted(self.cache_dir.glob("??/[0-9a-f]*/data"))

    def unfinished(self) -> list[Path]:
        """Return the folders of downloads that go on, or were not cleaned up."""
        return list(self.cache_dir.glob("??/.*.new"))


def numbers_of(ds: typed.Dataset[Caption]) -> list[int]:
    """Read a dataset; processes that are spawned import this, but not the tests."""
    return [sample.number for sample in ds.ordered()]


def wait_for(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """Wait until a condition holds."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def store_blob(account: Account, data: bytes) -> dict[str, Any]:
    """Store a blob as if it were uploaded and a record referred to it."""
    cid = blob_cid(data)
    blob = {"$type": "blob", "ref": {"$link": cid}, "mimeType": "application/x-tar"}
    account.blobs[cid] = data, "application/x-tar"
    records = account.records.setdefault("test.blobs", {})
    records[cid] = cid, {"blob": {**blob, "size": len(data)}}
    return {"did": account.did, "cid": cid, "size": len(data)}
