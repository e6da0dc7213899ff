"""Shards that are blobs: opened as local files of the disk cache."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from fastshard._core.io.source import LocalFile
from fastshard.atmosphere.blobs.cache import BlobSettings, fetch_url, find_url
from fastshard.atmosphere.client import MAX_BLOB
from fastshard.errors import FormatError, ShardNotFoundError
from fastshard.formats.tar import Progress, TarOptions, TarShard, open_local_tar
from fastshard.index.binary import write_binary
from fastshard.index.freshness import compute_fingerprint, settle_identity
from fastshard.index.sidecar import sidecar_path
from fastshard.typed.shardset import PackedSet

if TYPE_CHECKING:
    from fastshard._core.io.paging import PageRing
    from fastshard.dataset.verify import Fault

__all__ = ["BlobSet", "open_blob"]

AHEAD = 2  # shards that are downloaded while an earlier one is read
ATTEMPTS = 3  # to open a file that another process may evict


def open_blob(
    url: str,
    path: str,
    options: TarOptions,
    progress: Progress | None = None,
    ring: PageRing | None = None,
) -> TarShard:
    """Open a blob's file as a shard named by its URL."""
    options = options._replace(index_source="auto")
    found = open_local_tar(path, options, progress=progress, ring=ring)
    source, table = found.parts()
    return TarShard(
        source,
        table,
        url,
        options.mode,
        location=path,
        index="auto",
        contents=found._contents,
        grouping=found._grouping,
        identity=found._identity,
        options=options,
    )


def index_blob(shard: TarShard) -> None:
    """Write an index beside the file of a shard opened without one.

    It is not synced: the checksums of a torn one are wrong, and it is made again.
    """
    with LocalFile(shard._location) as file:
        write_binary(
            sidecar_path(shard._location, "fsi"),
            shard._contents,
            shard._grouping,
            shard_bytes=file.nbytes,
            identity=settle_identity(file),
            fingerprint=compute_fingerprint(file, shard._contents.table),
            sync=False,
        )


class BlobSet(PackedSet):
    """The shards of a dataset of blobs, in order.

    A shard is downloaded into the cache when it is opened, with the next ones behind
    it, and mapped from there. Its index is stored beside it.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        settings = self._settings
        self._most_ahead = AHEAD
        if settings.cache_limit is not None:  # mapped files keep their disk space
            most = max(settings.sizes.values(), default=MAX_BLOB) or 1
            fitting = settings.cache_limit // most
            self.limit = max(1, min(self.limit, fitting))
            self._most_ahead = max(0, min(AHEAD, fitting - 2))  # else it evicts shards
            if len(self) > self.limit:
                self.used = self.used or bytearray(len(self))
        self._is_ahead = False  # set after a cache miss
        self._ahead: set[int] = set()  # shards that threads are downloading
        self._pid = os.getpid()  # of those threads

    @property
    def is_local(self) -> bool:
        return True

    @property
    def _settings(self) -> BlobSettings:
        assert isinstance(self.remote, BlobSettings)
        return self.remote

    def open_shard(self, k: int) -> Any:
        """Open shard `k`."""
        self.check_open()
        url = self.paths[k]
        options = TarOptions("auto", **(self.options | {"remote": None}))
        for attempt in range(ATTEMPTS):
            path = None if self._is_ahead else find_url(url, self._settings)
            if path is None:
                self._is_ahead = True
                self._download_ahead(k)
                path = fetch_url(url, self._settings)
            try:
                shard = open_blob(url, path, options, self._check_cancelled, self.ring)
            except ShardNotFoundError:  # evicted by another process
                if attempt + 1 == ATTEMPTS:
                    raise
                continue
            except FormatError as error:
                raise FormatError(
                    error.reason, url, error.offset, error.member
                ) from None
            break
        if not shard.index:
            self.background.start(index_blob, shard)
        return self.keep(k, self.wrap_samples(shard.samples))

    def _download_ahead(self, k: int) -> None:
        """Start to download the shards after `k`, in threads."""
        if self._pid != os.getpid():  # threads do not survive fork
            self._ahead, self._pid = set(), os.getpid()
        most = self._most_ahead
        for j in range(k + 1, min(k + 1 + most, len(self))):
            if (
                self.open_samples[j] is None
                and j not in self._ahead
                and len(self._ahead) < most
            ):
                self._ahead.add(j)
                if self.background.start(self._download, j) is None:
                    self._ahead.discard(j)

    def _download(self, j: int) -> None:
        """Download shard `j`; an error recurs when it is opened."""
        try:
            if not self.closed:
                fetch_url(self.paths[j], self._settings)
        finally:
            self._ahead.discard(j)

    def verify(self, *, hashes: bool = False) -> list[Fault]:
        """Return the faults of all shards; all blobs are downloaded."""
        files = self.map_shards(lambda k: fetch_url(self.paths[k], self._settings), "")
        urls = dict(zip(files, self.paths, strict=True))
        options = {name: self.options[name] for name in ("key", "lower")}
        local = PackedSet(list(urls), index="none", root="", mode="pread", **options)
        return [fault._replace(path=urls[fault.path]) for fault in local.verify()]

    def _open_file(self, path: str) -> LocalFile:
        return LocalFile(fetch_url(path, self._settings))
