"""Datasets with webshart's methods; see `discover_dataset`."""

from __future__ import annotations

import os
import threading
import warnings
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeVar

from fastshard._util.terminal import write_line
from fastshard.adapters.webshart.files import Files
from fastshard.adapters.webshart.index import (
    MultiIndexTarSet,
    find_local_index,
    read_local_index,
    request_url,
)
from fastshard.adapters.webshart.listing import Discovery
from fastshard.dataset.tarset import TarSet
from fastshard.errors import FormatError, ShardNotFoundError, StaleIndexWarning
from fastshard.index.dataset_file import DatasetIndex, ShardRecord
from fastshard.remote.file import open_remote, try_open_remote
from fastshard.remote.urls import is_remote

if TYPE_CHECKING:
    from fastshard.formats.tar import TarShard

__all__ = ["DiscoveredDataset", "ShardReader"]

T = TypeVar("T")

SUFFIX = ".tar"
MEGABYTE = 1 << 20  # bytes
GIGABYTE = 1 << 30  # bytes


class DiscoveredDataset:
    """Dataset of tar shards whose files are numbered; see `discover_dataset`.

    Attributes
    ----------
    name : str
        The source.
    is_remote : bool
    num_shards : int
    """

    def __init__(self, discovery: Discovery) -> None:
        self.name = discovery.name
        self.is_remote = is_remote(discovery.root)
        self.num_shards = len(discovery.shards)
        self._discovery = discovery
        self._names = [shard.name for shard in discovery.shards]
        paths = [shard.path for shard in discovery.shards]
        options: dict[str, Any] = {"root": discovery.root}
        options["remote"] = discovery.settings if self.is_remote else None
        options |= {"mode": "mmap", "key": "last", "lower": False}
        self._set: TarSet
        if discovery.settings is None:
            self._set = TarSet(paths, index=discovery.indexes, **options)
        else:
            indexes = [shard.indexes for shard in discovery.shards]
            self._set = MultiIndexTarSet(paths, indexes, discovery.settings, **options)
        self._files: list[Files | None] = [None] * len(paths)
        self._verified = [False] * len(paths)  # files read from the shard itself
        self._records: dict[str, ShardRecord] | None = None
        self._lock = threading.Lock()

    def _check_number(self, shard_index: int) -> int:
        """Return a shard's number, or raise IndexError if it is out of range."""
        if not 0 <= shard_index < self.num_shards:
            raise IndexError(
                f"Shard index {shard_index} out of range. "
                f"Dataset has {self.num_shards} shards."
            )
        return shard_index

    def _files_of(self, shard_index: int) -> Files:
        """Return a shard's files, from its index if it has one."""
        k = self._check_number(shard_index)
        files = self._indexed_files_of(k)
        if files is None:
            files = Files(self._set.shard(k).parts()[1])
            self._files[k], self._verified[k] = files, True
        return files

    def _indexed_files_of(self, k: int) -> Files | None:
        """Return a shard's files from its index, or None without an index."""
        if self._files[k] is None:
            contents = None
            if isinstance(self._set, MultiIndexTarSet):
                contents = self._set.contents(k)
            elif path := self._index_of(k):
                contents = read_local_index(path)
            if contents is not None:
                self._files[k] = Files(contents.table)
        return self._files[k]

    def _index_of(self, k: int) -> str | None:
        """Return the path or URL of a shard's index, or None."""
        if not isinstance(self._set, MultiIndexTarSet):
            return find_local_index(
                self._discovery.root, self._names[k], self._discovery.indexes
            )
        index = self._set.index_option(k)
        return None if index == "none" else self._public_path(index)

    def _public_path(self, path: str) -> str:
        """Return a path unchanged, or the redacted URL of requests."""
        settings = self._discovery.settings
        if settings is None or not is_remote(path):
            return path
        return request_url(path, settings)

    def _open(self, shard_index: int) -> tuple[TarShard, Files]:
        """Return an open shard and its own files, not those of an unchecked index."""
        k = self._check_number(shard_index)
        shard = self._set.shard(k)
        files = self._files[k]
        if files is None or not self._verified[k]:
            files = self._files[k] = Files(shard.parts()[1])
            self._verified[k] = True
        return shard, files

    def _map_shards(self, task: Callable[[int], T]) -> list[T]:
        """Call a task with each shard's number, in threads if URLs are read."""
        if self._discovery.settings is not None:
            return list(self._set.map_shards(task, "reading indexes"))
        return [task(k) for k in range(self.num_shards)]

    def _shard_records(self) -> dict[str, ShardRecord]:
        """Return the records of the ``dataset.fsi`` by shard name, if there is one."""
        with self._lock:  # only one thread reads the file
            if self._records is None:
                self._records = self._read_records()
            return self._records

    def _read_records(self) -> dict[str, ShardRecord]:
        """Read the first valid ``dataset.fsi``."""
        for path, prefix in self._discovery.summaries:
            index = self._read_dataset_index(path)
            if index is not None:
                return {
                    prefix + record.name.removesuffix(SUFFIX): record
                    for record in index.shards
                }
        return {}

    def _read_dataset_index(self, path: str) -> DatasetIndex | None:
        """Read a ``dataset.fsi``, or return None if it is absent or damaged."""
        settings = self._discovery.settings
        try:
            if settings is None or not is_remote(path):
                return DatasetIndex(path)
            file = try_open_remote(path, settings)
            return None if file is None else DatasetIndex(file.path, file=file)
        except FormatError as error:
            warnings.warn(f"broken index: {error}", StaleIndexWarning, stacklevel=5)
            return None

    def _count(self, k: int, scan: bool = True) -> int | None:
        """Return the number of a shard's files, or None if that needs a scan."""
        files = self._files[k]
        if files is None:
            record = self._shard_records().get(self._names[k])
            nbytes = self._discovery.shards[k].nbytes
            if record is not None and nbytes in (None, record.shard_bytes):
                return record.members
            files = self._files_of(k) if scan else self._indexed_files_of(k)
        return None if files is None else len(files)

    def open_shard(self, shard_index: int) -> ShardReader:
        """Open a shard to read its files.

        Raises
        ------
        IndexError
            The shard number is out of range.
        FormatError
            The shard or its index is broken: an extent lies outside the shard.
        OSError
            The shard cannot be read.
        """
        return ShardReader(*self._open(shard_index))

    @property
    def total_files(self) -> int:
        """Number of files of all shards; shards without an index are scanned."""
        return sum(self._map_shards(self.get_shard_file_count))

    @property
    def total_size(self) -> int:
        """Bytes of all shards."""
        return sum(self._map_shards(self._size))

    def _size(self, k: int) -> int:
        """Return a shard's bytes; if remote, from a listing or index if possible."""
        path, nbytes = self._set.paths[k], self._discovery.shards[k].nbytes
        settings = self._discovery.settings
        if settings is None or not self.is_remote:
            return os.stat(path).st_size
        if nbytes is not None:
            return nbytes
        record = self._shard_records().get(self._names[k])
        if record is not None:
            return record.shard_bytes
        return open_remote(path, settings).nbytes

    def quick_stats(self) -> tuple[int, int]:
        """Return the bytes of all shards, and the number of files in their indexes.

        Shards without an index are not opened, and their files not counted; a
        UserWarning has the number of these shards.
        """
        counts = self._map_shards(lambda k: self._count(k, scan=False))
        unknown = counts.count(None)
        if unknown:
            warnings.warn(
                f"{unknown:,} shards of {self.name} have no index: "
                "their files are not counted",
                stacklevel=2,
            )
        return self.total_size, sum(count for count in counts if count is not None)

    def get_shard_info(self, index: int) -> dict[str, Any]:
        """Return a shard's name, paths, bytes, and its numbers of files and samples."""
        files = self._files_of(index)
        name = self._names[index]
        return {
            "name": name,
            "tar_path": self._public_path(self._set.paths[index]),
            "json_path": self._index_of(index),
            "num_files": len(files),
            "num_samples": len(files.samples),
            "size": self._size(index),
        }

    def get_shard_by_name(self, shard_name: str) -> dict[str, Any]:
        """Return `get_shard_info` for the shard of a name."""
        if shard_name not in self._names:
            raise ShardNotFoundError(
                f"Shard '{shard_name}' not found in dataset {self.name}"
            )
        return self.get_shard_info(self._names.index(shard_name))

    def get_shard_file_count(self, shard_index: int) -> int:
        """Return the number of a shard's files."""
        count = self._count(self._check_number(shard_index))
        assert count is not None
        return count

    def get_shard_sample_count(self, shard_index: int) -> int:
        """Return the number of a shard's samples: files other than paired sidecars."""
        return len(self._files_of(shard_index).samples)

    def list_files_in_shard(self, shard_index: int) -> list[str]:
        """Return the names of a shard's files, sorted."""
        return self._files_of(shard_index).names()

    def list_samples_in_shard(self, shard_index: int) -> list[str]:
        """Return the names of a shard's samples, sorted."""
        return self._files_of(shard_index).sample_names()

    def find_file_location(self, file_index: int) -> tuple[int, int]:
        """Convert a file's number in the dataset to (shard, number in the shard).

        Raises
        ------
        IndexError
            The file number is out of range.
        """
        counts = self._map_shards(self.get_shard_file_count)
        starts = list(accumulate(counts, initial=0))
        if not 0 <= file_index < starts[-1]:
            raise IndexError(
                f"File index {file_index} out of range: there are {starts[-1]:,} files"
            )
        k = bisect_right(starts, file_index) - 1
        return k, file_index - starts[k]

    def get_stats(self) -> dict[str, Any]:
        """Return the number of shards, and each shard's files and bytes."""
        counts = self._map_shards(self.get_shard_file_count)
        details = [
            {
                "index": k,
                "name": name,
                "num_files": count,
                "size": self._size(k),
                "metadata_loaded": True,
            }
            for k, (name, count) in enumerate(zip(self._names, counts, strict=True))
        ]
        return {
            "total_shards": self.num_shards,
            "from_cache": False,
            "shard_details": details,
        }

    def get_detailed_stats(self) -> dict[str, Any]:
        """Return totals, averages, and the shard details of `get_stats`."""
        details = self.get_stats()["shard_details"]
        for detail in details:
            del detail["metadata_loaded"]
            detail["size_mb"] = detail["size"] / MEGABYTE
        counts = [detail["num_files"] for detail in details]
        size = sum(detail["size"] for detail in details)
        return {
            "total_shards": self.num_shards,
            "total_files": sum(counts),
            "total_size": size,
            "total_size_gb": size / GIGABYTE,
            "average_files_per_shard": sum(counts) / self.num_shards,
            "average_size_per_shard": size / self.num_shards,
            "average_size_per_shard_mb": size / self.num_shards / MEGABYTE,
            "min_files_in_shard": min(counts),
            "max_files_in_shard": max(counts),
            "shard_details": details,
            "from_cache": False,
        }

    def print_summary(self, detailed: bool | None = None) -> None:
        """Print the number of shards; with `detailed`, also a line for each."""
        rule = "-" * 50
        write_line("")
        write_line(f"Dataset Summary: {self.name}")
        write_line("=" * 50)
        write_line(f"Total shards: {self.num_shards}")
        if detailed:
            write_line("")
            write_line("Shard Details:")
            write_line(rule)
            write_line(f"{'Shard Name':<30} {'Size (MB)':<12} {'Files':<10}")
            write_line(rule)
            for detail in self.get_detailed_stats()["shard_details"]:
                write_line(
                    f"{detail['name']:<30} {detail['size_mb']:<12.2f} "
                    f"{detail['num_files']:<10}"
                )

    def __repr__(self) -> str:
        return (
            f"DiscoveredDataset(name={self.name!r}, shards={self.num_shards}, "
            f"remote={str(self.is_remote).lower()})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the discovery; raises for a literal token, see `Settings`."""
        return DiscoveredDataset, (self._discovery,)


class ShardReader:
    """Open shard; its files are numbered by sorted name."""

    def __init__(self, shard: TarShard, files: Files) -> None:
        self._shard = shard
        self._files = files

    @property
    def num_files(self) -> int:
        """Number of files."""
        return len(self._files)

    @property
    def num_samples(self) -> int:
        """Number of samples: files other than paired sidecars."""
        return len(self._files.samples)

    def filenames(self) -> list[str]:
        """Return the files' names, sorted."""
        return self._files.names()

    def sample_filenames(self) -> list[str]:
        """Return the samples' names, sorted."""
        return self._files.sample_names()

    def read_file(self, file_index: int) -> bytes:
        """Return a file's bytes, by its number.

        Raises
        ------
        IndexError
            The file number is out of range.
        """
        return self._shard.read(self._files.position(file_index))

    def read_sample(self, sample_index: int) -> bytes:
        """Return a sample's bytes, by its number."""
        return self._shard.read(self._files.sample(sample_index))

    def read_sample_json(self, sample_index: int) -> bytes | None:
        """Return the bytes of a sample's paired JSON, or None."""
        member = self._files.sample_json(sample_index)
        return None if member is None else self._shard.read(member)

    def __repr__(self) -> str:
        return (
            f"ShardReader(num_files={self.num_files}, num_samples={self.num_samples})"
        )
