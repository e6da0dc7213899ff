"""Datasets as webshart finds and reads them: files numbered by sorted name.

For code that was written for webshart: ``import fastshard as webshart``. Names,
arguments and results are webshart's; what is faulty there is done right here.
Only local datasets can be read.
"""

from __future__ import annotations

import os
import warnings
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from fastshard.errors import FastshardError
from fastshard.index import FOUND, sidecar
from fastshard.index.contents import Contents
from fastshard.paired import Files
from fastshard.shardset import ShardSet

if TYPE_CHECKING:
    from fastshard.formats.tar import TarShard

__all__ = [
    "DiscoveredDataset",
    "ShardReader",
    "discover_dataset",
    "discover_dataset_async",
    "discover_datasets_batch",
]

SUFFIX = ".tar"
MEGABYTE = 1 << 20  # bytes
GIGABYTE = 1 << 30  # bytes


def discover_dataset(
    source: str | os.PathLike[str],
    hf_token: str | None = None,
    subfolder: str | None = None,
    metadata: str | os.PathLike[str] | None = None,
    *,
    strict_index: bool = False,
) -> DiscoveredDataset:
    """Find the tar shards below a directory, sorted by name; opens none of them.

    Parameters
    ----------
    source : str or path-like
        A directory.
    hf_token : str, optional
        Not used: remote datasets cannot be read yet. It is not kept.
    subfolder : str, optional
        Look below this directory of `source` only.
    metadata : str or path-like, optional
        The directory that holds the indexes, ``<metadata>/<shard's name>.json``;
        otherwise they are beside the shards.
    strict_index : bool
        Leave out shards without an index, as webshart does; otherwise they are
        scanned when they are first read.

    Returns
    -------
    DiscoveredDataset

    Raises
    ------
    FastshardError
        There are no shards, or the source is remote.
    FileNotFoundError
        There is no such directory.
    """
    root = _local(os.fspath(source), "source")
    index = "auto" if metadata is None else _local(os.fspath(metadata), "metadata")
    below = root if subfolder is None else os.path.join(root, subfolder)
    names = sorted(_names_below(below, root))
    if strict_index:
        names = [name for name in names if _index_of(root, name, index) is not None]
    if not names:
        raise FastshardError(f"no shards found in dataset {root}")
    return DiscoveredDataset(root, names, index)


async def discover_dataset_async(
    source: str | os.PathLike[str],
    hf_token: str | None = None,
    subfolder: str | None = None,
    metadata: str | os.PathLike[str] | None = None,
) -> DiscoveredDataset:
    """Do what `discover_dataset` does, in a thread."""
    import asyncio

    return await asyncio.to_thread(
        discover_dataset, source, hf_token, subfolder, metadata
    )


def discover_datasets_batch(
    sources: Sequence[str],
    hf_token: str | None = None,
    subfolders: Sequence[str | None] | None = None,
    *,
    errors: str = "none",
) -> list[DiscoveredDataset | None]:
    """Find several datasets; None stands for one that cannot be found.

    Parameters
    ----------
    sources : sequence of str
    hf_token : str, optional
        Not used.
    subfolders : sequence of str or None, optional
        One for each source.
    errors : {"none", "raise"}
        ``"raise"`` tells why one cannot be found.
    """
    if errors not in ("none", "raise"):
        raise ValueError(f'errors is "none" or "raise", not {errors!r}')
    folders = [None] * len(sources) if subfolders is None else subfolders
    found: list[DiscoveredDataset | None] = []
    for source, folder in zip(sources, folders, strict=True):
        try:
            found.append(discover_dataset(source, subfolder=folder))
        except (FastshardError, OSError):
            if errors == "raise":
                raise
            found.append(None)
    return found


def _local(source: str, what: str) -> str:
    """Refuse a remote source, by webshart's rules."""
    if "://" in source:
        raise FastshardError(f"the {what} {source} is remote, and cannot be read yet")
    if os.path.isdir(source):
        return source
    parts = source.split("/")
    if len(parts) == 2 and all(parts) and not source.startswith("."):
        raise FastshardError(
            f"the {what} {source} is no directory here; as a repository of the Hub "
            "it is remote, and cannot be read yet"
        )
    raise FileNotFoundError(2, "no such directory", source)


def _names_below(folder: str, root: str) -> Iterator[str]:
    def refuse(error: OSError) -> None:
        raise error

    for path, _, files in os.walk(folder, onerror=refuse):
        for file in files:
            if file.endswith(SUFFIX) and file != SUFFIX:
                whole = os.path.join(path, file.removesuffix(SUFFIX))
                yield os.path.relpath(whole, root).replace(os.sep, "/")


def _index_of(root: str, name: str, index: str) -> str | None:
    """Return the index of a shard, the JSON one first, as webshart would."""
    for kind in reversed(FOUND):
        path = sidecar(f"{name}{SUFFIX}", kind)
        whole = os.path.join(root if index == "auto" else index, path)
        if os.path.exists(whole):
            return whole
    return None


class DiscoveredDataset:
    """The shards of a dataset, and their files by number; see `discover_dataset`.

    Attributes
    ----------
    name : str
        The source.
    is_remote : bool
        False.
    num_shards : int
    """

    def __init__(self, root: str, names: list[str], index: str) -> None:
        self.name = root
        self.is_remote = False
        self.num_shards = len(names)
        self._names = names
        self._index = index
        paths = [os.path.join(root, name + SUFFIX) for name in names]
        self._set = ShardSet(
            paths, index=index, root=root, mode="mmap", key="last", lower=False
        )
        self._files: list[Files | None] = [None] * len(names)
        self._read = [False] * len(names)

    def _number(self, shard_index: int) -> int:
        if not 0 <= shard_index < self.num_shards:
            raise IndexError(
                f"shard {shard_index} is out of range: there are {self.num_shards:,}"
            )
        return shard_index

    def _listed(self, shard_index: int) -> Files:
        """Return a shard's files, by its index if it has one."""
        k = self._number(shard_index)
        files = self._files[k]
        if files is None:
            contents = self._indexed(k)
            if contents is None:
                files, self._read[k] = Files(self._set.shard(k).parts()[1]), True
            else:
                files = Files(contents.table)
            self._files[k] = files
        return files

    def _indexed(self, k: int) -> Contents | None:
        """Read a shard's index, and not the shard."""
        path = _index_of(self.name, self._names[k], self._index)
        if path is None:
            return None
        if path.endswith(".json"):
            from fastshard.index.jsonfile import read_json

            return read_json(path, None)[0]
        from fastshard.index.binary import read_binary

        return read_binary(path).contents(True, False)

    def _opened(self, shard_index: int) -> tuple[TarShard, Files]:
        """Open a shard; its files are what it holds now, whatever an index says."""
        k = self._number(shard_index)
        shard = self._set.shard(k)
        files = self._files[k]
        if files is None or not self._read[k]:
            files = self._files[k] = Files(shard.parts()[1])
            self._read[k] = True
        return shard, files

    def open_shard(self, shard_index: int) -> ShardReader:
        """Open a shard to read its files.

        Raises
        ------
        IndexError
            There is no such shard.
        FormatError
            The shard or its index is broken: an extent lies outside the shard.
        OSError
            It cannot be read.
        """
        return ShardReader(*self._opened(shard_index))

    @property
    def total_files(self) -> int:
        """Files of all shards; those without an index are scanned."""
        return sum(len(self._listed(k)) for k in range(self.num_shards))

    @property
    def total_size(self) -> int:
        """Bytes of all shards."""
        return sum(self._size(k) for k in range(self.num_shards))

    def _size(self, k: int) -> int:
        return os.stat(self._set.paths[k]).st_size

    def quick_stats(self) -> tuple[int, int]:
        """Return the bytes of all shards and the number of files, by indexes alone.

        Shards without an index are not opened: their files are not counted, and
        a UserWarning says how many shards that are.
        """
        files = 0
        unknown = 0
        for k in range(self.num_shards):
            if self._files[k] is None and self._indexed(k) is None:
                unknown += 1
            else:
                files += len(self._listed(k))
        if unknown:
            warnings.warn(
                f"{unknown:,} shards of {self.name} have no index: "
                "their files are not counted",
                stacklevel=2,
            )
        return self.total_size, files

    def get_shard_info(self, index: int) -> dict[str, Any]:
        """Return a shard's name, paths, size in bytes, and numbers of files."""
        files = self._listed(index)
        name = self._names[index]
        return {
            "name": name,
            "tar_path": self._set.paths[index],
            "json_path": _index_of(self.name, name, self._index),
            "num_files": len(files),
            "num_samples": len(files.samples),
            "size": self._size(index),
        }

    def get_shard_by_name(self, shard_name: str) -> dict[str, Any]:
        """Return what `get_shard_info` does, by the shard's name."""
        if shard_name not in self._names:
            raise FastshardError(f"no shard {shard_name!r} in {self.name}")
        return self.get_shard_info(self._names.index(shard_name))

    def get_shard_file_count(self, shard_index: int) -> int:
        """Return how many files a shard holds."""
        return len(self._listed(shard_index))

    def get_shard_sample_count(self, shard_index: int) -> int:
        """Return how many samples a shard holds: files without paired sidecars."""
        return len(self._listed(shard_index).samples)

    def list_files_in_shard(self, shard_index: int) -> list[str]:
        """Return the names of a shard's files, sorted."""
        return self._listed(shard_index).names()

    def list_samples_in_shard(self, shard_index: int) -> list[str]:
        """Return the names of a shard's samples, sorted."""
        return self._listed(shard_index).sample_names()

    def find_file_location(self, file_index: int) -> tuple[int, int]:
        """Return the shard, and the number in it, of a file of all shards.

        Raises
        ------
        IndexError
            There is no such file.
        """
        counts = [len(self._listed(k)) for k in range(self.num_shards)]
        starts = list(accumulate(counts, initial=0))
        if not 0 <= file_index < starts[-1]:
            raise IndexError(
                f"file {file_index} is out of range: there are {starts[-1]:,}"
            )
        k = bisect_right(starts, file_index) - 1
        return k, file_index - starts[k]

    def get_stats(self) -> dict[str, Any]:
        """Return the number of shards, and of each its files and bytes."""
        details = [
            {
                "index": k,
                "name": name,
                "num_files": len(self._listed(k)),
                "size": self._size(k),
                "metadata_loaded": True,
            }
            for k, name in enumerate(self._names)
        ]
        return {
            "total_shards": self.num_shards,
            "from_cache": False,
            "shard_details": details,
        }

    def get_detailed_stats(self) -> dict[str, Any]:
        """Return totals, averages, and what `get_stats` has of each shard."""
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
        """Print the number of shards; with `detailed` a line for each too."""
        rule = "-" * 50
        print(f"\nDataset Summary: {self.name}\n{'=' * 50}")
        print(f"Total shards: {self.num_shards}")
        if detailed:
            print(f"\nShard Details:\n{rule}")
            print(f"{'Shard Name':<30} {'Size (MB)':<12} {'Files':<10}\n{rule}")
            for detail in self.get_detailed_stats()["shard_details"]:
                print(
                    f"{detail['name']:<30} {detail['size_mb']:<12.2f} "
                    f"{detail['num_files']:<10}"
                )

    def __repr__(self) -> str:
        return (
            f"DiscoveredDataset(name={self.name!r}, shards={self.num_shards}, "
            "remote=false)"
        )


class ShardReader:
    """An open shard, whose files are numbered by sorted name."""

    def __init__(self, shard: TarShard, files: Files) -> None:
        self._shard = shard
        self._files = files

    @property
    def num_files(self) -> int:
        """How many files it holds."""
        return len(self._files)

    @property
    def num_samples(self) -> int:
        """How many samples: files without paired sidecars."""
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
            There is no such file.
        """
        return self._shard.read(self._files.position(file_index))

    def read_sample(self, sample_index: int) -> bytes:
        """Return a sample's bytes, by its number."""
        return self._shard.read(self._files.sample(sample_index))

    def read_sample_json(self, sample_index: int) -> bytes | None:
        """Return the bytes of a sample's paired JSON; None if it has none."""
        member = self._files.sample_json(sample_index)
        return None if member is None else self._shard.read(member)

    def __repr__(self) -> str:
        return (
            f"ShardReader(num_files={self.num_files}, num_samples={self.num_samples})"
        )
