"""Datasets with webshart's methods; see `discover_dataset`."""

from __future__ import annotations

import os
import threading
import warnings
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeVar

from fastshard._util.paths.urls import is_remote
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

if TYPE_CHECKING:
    from fastshard.formats.tar import TarShard

__all__ = ["DiscoveredDataset", "ShardReader"]

T = TypeVar("T")

SUFFIX = ".tar"
MEGABYTE = 1 << 20  # bytes
GIGABYTE = 1 << 30  # bytes


class DiscoveredDataset:
    """Dataset of tar shards whose files are numbered; made by `discover_dataset`.

    The shards are sorted by name, and the files of a shard by theirs: a file's number
    is its place in that order. A sample, here, is a file that is not a sidecar: a
    ``.json`` or ``.txt`` beside a file of the same name with another extension is its
    sidecar.

    These are webshart's calls. `fastshard.open` has more: samples with fields,
    shuffles, batches.

    Attributes
    ----------
    name : str
        The source.
    is_remote : bool
        Whether the shards are read over a network.
    num_shards : int
        Number of shards.

    Examples
    --------
    >>> import fastshard
    >>> dataset = fastshard.discover_dataset("data/")
    >>> dataset
    DiscoveredDataset(name='data/', shards=4, remote=false)
    >>> dataset.open_shard(0).read_file(0)
    b'0'
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

        Parameters
        ----------
        shard_index : int
            The shard's number, from 0.

        Returns
        -------
        ShardReader
            Valid also when the dataset is gone. Reads copy.

        Raises
        ------
        IndexError
            The shard number is out of range.
        FormatError
            The shard or its index is broken: an extent lies outside the shard.
        OSError
            The shard cannot be read.

        Examples
        --------
        >>> dataset = fastshard.discover_dataset("data/")
        >>> dataset.open_shard(3)
        ShardReader(num_files=100, num_samples=50)
        """
        return ShardReader(*self._open(shard_index))

    @property
    def total_files(self) -> int:
        """Number of files of all shards; shards without an index are scanned.

        Raises
        ------
        FormatError, OSError
            A shard or its index is broken, or cannot be read.

        Examples
        --------
        >>> fastshard.discover_dataset("data/").total_files
        400
        """
        return sum(self._map_shards(self.get_shard_file_count))

    @property
    def total_size(self) -> int:
        """Bytes of all shards.

        Raises
        ------
        OSError
            A shard does not exist, or its size is unavailable.

        Examples
        --------
        >>> fastshard.discover_dataset("data/").total_size
        413696
        """
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

        Returns
        -------
        size : int
            Bytes.
        files : int
            Number of files.

        Raises
        ------
        FormatError, OSError
            An index is broken, or a shard's size cannot be read.

        Examples
        --------
        >>> fastshard.discover_dataset("data/").quick_stats()
        (413696, 400)
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
        """Return a shard's name, paths, bytes, and its numbers of files and samples.

        Returns
        -------
        dict
            ``name``, ``tar_path``, ``json_path`` (of its index, None without one),
            ``num_files``, ``num_samples``, ``size`` in bytes. URLs are without
            credentials.

        Raises
        ------
        IndexError
            The shard number is out of range.
        FormatError, OSError
            The shard or its index is broken, or cannot be read.

        Examples
        --------
        >>> info = fastshard.discover_dataset("data/").get_shard_info(0)
        >>> info["name"], info["num_files"], info["size"]
        ('train-0000', 100, 103424)
        """
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
        """Return `get_shard_info` for the shard of a name.

        Parameters
        ----------
        shard_name : str
            The shard's path below the source, without ``.tar``.

        Raises
        ------
        ShardNotFoundError
            There is no such shard.
        FormatError, OSError
            The shard or its index is broken, or cannot be read.

        Examples
        --------
        >>> info = fastshard.discover_dataset("data/").get_shard_by_name("train-0002")
        >>> info["tar_path"]
        'data/train-0002.tar'
        """
        if shard_name not in self._names:
            raise ShardNotFoundError(
                f"Shard '{shard_name}' not found in dataset {self.name}"
            )
        return self.get_shard_info(self._names.index(shard_name))

    def get_shard_file_count(self, shard_index: int) -> int:
        """Return the number of a shard's files.

        Returns
        -------
        int
            Of the index, if there is one; else the shard is scanned.

        Raises
        ------
        IndexError
            The shard number is out of range.
        FormatError, OSError
            The shard or its index is broken, or cannot be read.

        Examples
        --------
        >>> fastshard.discover_dataset("data/").get_shard_file_count(0)
        100
        """
        count = self._count(self._check_number(shard_index))
        assert count is not None
        return count

    def get_shard_sample_count(self, shard_index: int) -> int:
        """Return the number of a shard's samples: files other than paired sidecars.

        Raises
        ------
        IndexError, FormatError, OSError
            As for `get_shard_file_count`.

        Examples
        --------
        >>> fastshard.discover_dataset("data/").get_shard_sample_count(0)
        50
        """
        return len(self._files_of(shard_index).samples)

    def list_files_in_shard(self, shard_index: int) -> list[str]:
        """Return the names of a shard's files, sorted.

        Returns
        -------
        list of str
            A name's place is the file's number.

        Raises
        ------
        IndexError, FormatError, OSError
            As for `get_shard_file_count`.

        Examples
        --------
        >>> fastshard.discover_dataset("data/").list_files_in_shard(0)[:3]
        ['000000.cls', '000000.json', '000000.npy']
        """
        return self._files_of(shard_index).names()

    def list_samples_in_shard(self, shard_index: int) -> list[str]:
        """Return the names of a shard's samples, sorted.

        Returns
        -------
        list of str
            Names of files other than paired sidecars. A name's place is the sample's
            number.

        Raises
        ------
        IndexError, FormatError, OSError
            As for `get_shard_file_count`.

        Examples
        --------
        >>> fastshard.discover_dataset("data/").list_samples_in_shard(0)[:3]
        ['000000.cls', '000000.npy', '000001.cls']
        """
        return self._files_of(shard_index).sample_names()

    def find_file_location(self, file_index: int) -> tuple[int, int]:
        """Convert a file's number in the dataset to its shard and its number there.

        Parameters
        ----------
        file_index : int
            Number among the files of all shards, from 0.

        Returns
        -------
        shard : int
            The shard's number.
        file : int
            The file's number in the shard.

        Raises
        ------
        IndexError
            The file number is out of range.
        FormatError, OSError
            A shard or its index is broken, or cannot be read.

        Examples
        --------
        >>> fastshard.discover_dataset("data/").find_file_location(150)
        (1, 50)
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
        """Return the number of shards, and each shard's files and bytes.

        Returns
        -------
        dict
            ``total_shards``, ``from_cache``, and ``shard_details``: a list of dicts
            with ``index``, ``name``, ``num_files``, ``size`` in bytes,
            ``metadata_loaded``.

        Raises
        ------
        FormatError, OSError
            A shard or its index is broken, or cannot be read.

        Examples
        --------
        >>> figures = fastshard.discover_dataset("data/").get_stats()
        >>> figures["shard_details"][0]["num_files"]
        100
        """
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
        """Return totals, averages, and the shard details of `get_stats`.

        Returns
        -------
        dict
            ``total_shards``, ``total_files``, ``total_size`` in bytes and
            ``total_size_gb`` in GiB, ``average_files_per_shard``,
            ``average_size_per_shard``, ``average_size_per_shard_mb`` in MiB,
            ``min_files_in_shard``, ``max_files_in_shard``, ``shard_details``,
            ``from_cache``.

        Raises
        ------
        FormatError, OSError
            A shard or its index is broken, or cannot be read.

        Examples
        --------
        >>> figures = fastshard.discover_dataset("data/").get_detailed_stats()
        >>> figures["total_files"], figures["average_files_per_shard"]
        (400, 100.0)
        """
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
        """Print the number of shards; with `detailed`, also a line for each.

        Parameters
        ----------
        detailed : bool, optional
            Whether each shard has a line, with its megabytes and files.

        Raises
        ------
        FormatError, OSError
            With `detailed`: a shard or its index is broken, or cannot be read.

        Examples
        --------
        >>> fastshard.discover_dataset("data/").print_summary()
        <BLANKLINE>
        Dataset Summary: data/
        ==================================================
        Total shards: 4
        """
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
    """Open shard whose files are numbered by sorted name.

    Made by `DiscoveredDataset.open_shard`.

    Examples
    --------
    >>> import fastshard
    >>> shard = fastshard.discover_dataset("data/").open_shard(0)
    >>> shard.filenames()[0], shard.read_file(0)
    ('000000.cls', b'0')
    """

    def __init__(self, shard: TarShard, files: Files) -> None:
        self._shard = shard
        self._files = files

    @property
    def num_files(self) -> int:
        """Number of files.

        Examples
        --------
        >>> fastshard.discover_dataset("data/").open_shard(0).num_files
        100
        """
        return len(self._files)

    @property
    def num_samples(self) -> int:
        """Number of samples: files other than paired sidecars.

        Examples
        --------
        >>> fastshard.discover_dataset("data/").open_shard(0).num_samples
        50
        """
        return len(self._files.samples)

    def filenames(self) -> list[str]:
        """Return the files' names, sorted.

        Returns
        -------
        list of str
            A name's place is the file's number.

        Examples
        --------
        >>> fastshard.discover_dataset("data/").open_shard(0).filenames()[:2]
        ['000000.cls', '000000.json']
        """
        return self._files.names()

    def sample_filenames(self) -> list[str]:
        """Return the samples' names, sorted.

        Returns
        -------
        list of str
            A name's place is the sample's number.

        Examples
        --------
        >>> fastshard.discover_dataset("data/").open_shard(0).sample_filenames()[:2]
        ['000000.cls', '000000.npy']
        """
        return self._files.sample_names()

    def read_file(self, file_index: int) -> bytes:
        """Return a file's bytes, by its number.

        Returns
        -------
        bytes
            A copy.

        Raises
        ------
        IndexError
            The file number is out of range.
        FormatError, OSError
            The shard is broken, or cannot be read.

        Examples
        --------
        >>> fastshard.discover_dataset("data/").open_shard(0).read_file(3)
        b'text 0'
        """
        return self._shard.read(self._files.position(file_index))

    def read_sample(self, sample_index: int) -> bytes:
        """Return a sample's bytes, by its number.

        Returns
        -------
        bytes
            A copy.

        Raises
        ------
        IndexError
            The sample number is out of range.
        FormatError, OSError
            The shard is broken, or cannot be read.

        Examples
        --------
        >>> fastshard.discover_dataset("data/").open_shard(0).read_sample(2)
        b'1'
        """
        return self._shard.read(self._files.sample(sample_index))

    def read_sample_json(self, sample_index: int) -> bytes | None:
        """Return the bytes of a sample's paired JSON, or None.

        Returns
        -------
        bytes or None
            A copy; None if the sample has no ``.json`` beside it.

        Raises
        ------
        IndexError
            The sample number is out of range.
        FormatError, OSError
            The shard is broken, or cannot be read.

        Examples
        --------
        >>> fastshard.discover_dataset("data/").open_shard(0).read_sample_json(2)
        b'{"size":4}'
        """
        member = self._files.sample_json(sample_index)
        return None if member is None else self._shard.read(member)

    def __repr__(self) -> str:
        return (
            f"ShardReader(num_files={self.num_files}, num_samples={self.num_samples})"
        )
