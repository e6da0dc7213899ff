"""Batched reads of files of discovered datasets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from fastshard._core.dataset.gather import copy_members
from fastshard._core.dataset.shard import Shard
from fastshard.adapters.webshart.discover import DiscoveredDataset, discover_dataset
from fastshard.errors import FastshardError

__all__ = ["BatchProcessor", "read_files_batch"]

Request = tuple[int, int] | tuple[int, int, int]
Opened = tuple[Shard, Sequence[int]]  # a shard, and the positions of its files

THREADS = 16  # settings to open remote shards


def read_files_batch(
    dataset_or_datasets: DiscoveredDataset | Sequence[DiscoveredDataset],
    file_requests: Sequence[Request],
    *,
    errors: str = "none",
) -> list[bytes | None]:
    """Read many files; copy their bytes without the GIL.

    Parameters
    ----------
    dataset_or_datasets : DiscoveredDataset, or a sequence of them
        Where the files are.
    file_requests : sequence of tuple
        ``(shard, file)``, or ``(dataset, shard, file)`` for several datasets; files are
        numbered by sorted name.
    errors : {"none", "raise"}, default "none"
        Return None for a file that cannot be read, as webshart does; or raise the first
        error.

    Returns
    -------
    list of bytes or None
        In the order of the requests.

    Raises
    ------
    IndexError, FormatError, OSError
        A file cannot be read, with ``errors="raise"``.
    ValueError
        `errors` is neither value.

    Examples
    --------
    >>> import fastshard
    >>> dataset = fastshard.discover_dataset("data/")
    >>> fastshard.read_files_batch(dataset, [(0, 0), (3, 4), (9, 0)])
    [b'0', b'6', None]
    """
    if errors not in ("none", "raise"):
        raise ValueError(f'errors must be "none" or "raise", got {errors!r}')
    if isinstance(dataset_or_datasets, DiscoveredDataset):
        datasets: Sequence[DiscoveredDataset] = [dataset_or_datasets]
        requests = [((0, shard), file) for shard, file in file_requests]  # type: ignore[misc]
    else:
        datasets = dataset_or_datasets
        requests = [((a, b), file) for a, b, file in file_requests]  # type: ignore[misc]
    found: list[Any] = [None] * len(requests)
    shards: list[Shard] = []
    positions: list[int] = []
    slots: list[int] = []  # of `found`, for each of `positions`
    opened = _open_all(datasets, list(dict.fromkeys(key for key, _ in requests)))
    for i, (key, file) in enumerate(requests):
        try:
            shard, order = _unwrap(opened[key])
            if file < 0:
                raise IndexError(f"file {file} is out of range")
            positions.append(order[file])
        except (FastshardError, OSError, IndexError) as error:
            found[i] = error
        else:
            shards.append(shard)
            slots.append(i)
    for i, data in zip(slots, copy_members(shards, positions), strict=True):
        found[i] = data
    for i, data in enumerate(found):
        if isinstance(data, Exception):
            if errors == "raise":
                raise data
            found[i] = None
    return found


def _open_all(
    datasets: Sequence[DiscoveredDataset], keys: Sequence[tuple[int, int]]
) -> dict[tuple[int, int], Opened | Exception]:
    """Open shards by (dataset, shard), remote ones in threads; return errors too."""

    def attempt(key: tuple[int, int]) -> Opened | Exception:
        try:
            return _open(datasets, *key)
        except (FastshardError, OSError, IndexError) as error:
            return error

    if len(keys) < 2 or not any(dataset.is_remote for dataset in datasets):
        return {key: attempt(key) for key in keys}
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(THREADS) as pool:
        return dict(zip(keys, pool.map(attempt, keys), strict=True))


def _open(datasets: Sequence[DiscoveredDataset], dataset: int, shard: int) -> Opened:
    if not 0 <= dataset < len(datasets):
        raise IndexError(
            f"dataset {dataset} is out of range for {len(datasets):,} datasets"
        )
    reader, files = datasets[dataset]._open(shard)
    return reader, files.order


def _unwrap(opened: Opened | Exception) -> Opened:
    if isinstance(opened, Exception):
        raise opened
    return opened


class BatchProcessor:
    """Read all files of a dataset, in batches.

    Examples
    --------
    >>> import fastshard
    >>> processor = fastshard.BatchProcessor()
    >>> processor.process_dataset("data/", max_files=4, callback=len)
    [1, 10, 144, 6]
    """

    def process_dataset(
        self,
        source: str,
        batch_size: int = 50,
        max_files: int | None = None,
        callback: Callable[[bytes], Any] | None = None,
        **options: Any,
    ) -> list[Any]:
        """Read the files of a dataset, shard after shard.

        Parameters
        ----------
        source : str
            As for `discover_dataset`.
        batch_size : int, default 50
            Number of files to read at a time.
        max_files : int, optional
            Maximum number of files; by default all.
        callback : callable, optional
            Called with the bytes of each file.
        **options
            As for `discover_dataset`: ``hf_token``, ``subfolder``, ``metadata`` and so
            on.

        Returns
        -------
        list
            The callback's result for each file, or its bytes; None for a file that
            cannot be read.

        Raises
        ------
        FastshardError, FileNotFoundError, RemoteError
            As for `discover_dataset`.
        FormatError, OSError
            A shard without an index cannot be scanned.
        ValueError
            `batch_size` is below 1.

        Examples
        --------
        >>> fastshard.BatchProcessor().process_dataset("data/", max_files=2)
        [b'0', b'{"size":4}']
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        dataset = discover_dataset(source, **options)
        every = (
            (shard, file)
            for shard in range(dataset.num_shards)
            for file in range(dataset.get_shard_file_count(shard))
        )
        requests = list(islice(every, max_files))
        results: list[Any] = []
        for at in range(0, len(requests), batch_size):
            batch = read_files_batch(dataset, requests[at : at + batch_size])
            if callback is None:
                results += batch
            else:
                results += [data if data is None else callback(data) for data in batch]
        return results
