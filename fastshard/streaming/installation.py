"""Readers of fastshard under an installed mosaicml-streaming.

Its datasets make readers by the table ``streaming.base.format._readers``, and read the
samples by them; downloads, decompression and eviction stay its own.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Collection
from typing import Any

from fastshard._core.streaming.reader import OpenRows
from fastshard.codecs.libraries import import_library
from fastshard.streaming.index import FileInfo
from fastshard.streaming.read import local_files
from fastshard.streaming.read.base import Reader
from fastshard.streaming.read.jsonl import JSONReader
from fastshard.streaming.read.mds import MDSReader
from fastshard.streaming.read.xsv import CSVReader, TSVReader, XSVReader

__all__ = ["install", "uninstall"]


class CachedReader(Reader):
    """Base of readers of files that mosaicml-streaming downloads and evicts.

    A missing raw file raises FileNotFoundError at each read: the dataset then downloads
    or decompresses it.

    Attributes
    ----------
    has_remote : bool
        Files come from another place: eviction may remove the only copy here.
    """

    installed = True
    has_remote = False

    def evict(self, *, force: bool = False) -> int:
        """Remove the files of the shard; see `Reader.evict`."""
        self._release()
        return local_files.evict(self, force=force or self.has_remote)

    def set_up_local(self, listing: Collection[str], safe_keep_zip: bool) -> int:
        """Bring the files to a consistent state; see `Reader.set_up_local`.

        Files of a shard that is not whole are removed if there is a remote: the dataset
        counts the bytes that it downloads.
        """
        nbytes = super().set_up_local(listing, safe_keep_zip)
        if not nbytes and self.has_remote:
            folder = os.path.join(self.dirname, self.split)
            files = [file for pair in self.file_pairs for file in pair if file]
            if any(os.path.join(folder, file.basename) in listing for file in files):
                self.evict()
        return nbytes

    def _open_file(self, raw: FileInfo, packed: FileInfo | None) -> OpenRows:
        opened = super()._open_file(raw, packed)
        opened.check_always()
        return opened


class CachedCSVReader(CachedReader, CSVReader):
    """CSV shard of mosaicml-streaming's cache."""


class CachedJSONReader(CachedReader, JSONReader):
    """JSON shard of mosaicml-streaming's cache."""


class CachedMDSReader(CachedReader, MDSReader):
    """MDS shard of mosaicml-streaming's cache."""


class CachedTSVReader(CachedReader, TSVReader):
    """TSV shard of mosaicml-streaming's cache."""


class CachedXSVReader(CachedReader, XSVReader):
    """XSV shard of mosaicml-streaming's cache."""


READERS: dict[str, type[Reader]] = {
    "csv": CachedCSVReader,
    "json": CachedJSONReader,
    "mds": CachedMDSReader,
    "tsv": CachedTSVReader,
    "xsv": CachedXSVReader,
}
MARK = "_fastshard_original"  # attribute of a function in the place of another
_originals: dict[str, Any] = {}  # their readers, by format


def install() -> None:
    """Make an installed mosaicml-streaming read its shards by fastshard.

    Datasets that are made from now on, `StreamingDataset` and `LocalDataset`, have
    readers of this package: subclasses of `MDSReader` and the others. Downloads,
    decompression, eviction, ``keep_zip`` and ``cache_limit`` are those of
    mosaicml-streaming. Columns of pickles need ``allow_unsafe_types=True``, which
    `LocalDataset` lacks. A dataset that is pickled to a spawned worker keeps them.
    `uninstall` gives mosaicml-streaming its own readers again.

    Raises
    ------
    MissingLibraryError
        mosaicml-streaming is not installed.

    Examples
    --------
    >>> from fastshard.streaming import install, uninstall
    >>> from streaming.base.local import LocalDataset
    >>> install()
    >>> LocalDataset("dataset")[7]["id"]
    7
    >>> uninstall()
    """
    table = find_table()
    for name, cls in READERS.items():
        if table.get(name) is not cls:
            _originals[name] = table.get(name)
            table[name] = cls
    stream = importlib.import_module("streaming.base.stream").Stream
    if not hasattr(stream.get_shards, MARK):
        stream.get_shards = tell_of_remote(stream.get_shards)


def uninstall() -> None:
    """Restore mosaicml-streaming's own readers; see `install`.

    Datasets that exist keep theirs.

    Raises
    ------
    MissingLibraryError
        mosaicml-streaming is not installed.

    Examples
    --------
    >>> from fastshard.streaming import uninstall
    >>> import streaming.base
    >>> uninstall()
    """
    table = find_table()
    for name, cls in READERS.items():
        if table.get(name) is cls:
            table[name] = _originals.pop(name)
    stream = importlib.import_module("streaming.base.stream").Stream
    original = getattr(stream.get_shards, MARK, None)
    if original is not None:
        stream.get_shards = original


def find_table() -> dict[str, Any]:
    """Return the table of readers of mosaicml-streaming."""
    need = "mosaicml-streaming is not installed"
    module = import_library("streaming.base.format", need, "mosaicml-streaming")
    table: dict[str, Any] = module._readers
    return table


def tell_of_remote(get_shards: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Wrap ``Stream.get_shards`` to pass our readers whether a remote exists."""

    @functools.wraps(get_shards)
    def get_marked_shards(self: Any, *args: Any, **kwargs: Any) -> list[Any]:
        shards = get_shards(self, *args, **kwargs)
        remote = bool(self.remote) and not is_same_folder(self.remote, self.local)
        for shard in shards:
            if isinstance(shard, CachedReader):
                shard.has_remote = remote
        return shards

    setattr(get_marked_shards, MARK, get_shards)
    return get_marked_shards


def is_same_folder(remote: str, local: str) -> bool:
    """Return whether a remote is the local directory itself."""
    path = remote.removeprefix("file://")
    return os.path.realpath(path) == os.path.realpath(local)
