"""Datasets as webshart finds and reads them: files numbered by sorted name.

For code that was written for webshart: ``import fastshard as webshart``. Names,
arguments and results are webshart's; what is faulty there is done right here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Unpack

from fastshard.adapters.webshart.dataset import DiscoveredDataset, ShardReader
from fastshard.adapters.webshart.listing import (
    find_half,
    find_local,
    find_remote,
    url_of,
)
from fastshard.errors import FastshardError
from fastshard.remote.options import RemoteOptions, Settings, make_settings
from fastshard.remote.urls import normalize_url, origin_of

__all__ = [
    "DiscoveredDataset",
    "ShardReader",
    "discover_dataset",
    "discover_dataset_async",
    "discover_datasets_batch",
]

Token = str | Callable[[], str | None] | None

THREADS = 16  # in which datasets are looked for


def discover_dataset(
    source: str | os.PathLike[str],
    hf_token: Token = None,
    subfolder: str | None = None,
    metadata: str | os.PathLike[str] | None = None,
    *,
    strict_index: bool = False,
    **remote: Unpack[RemoteOptions],
) -> DiscoveredDataset:
    """Find the tar shards of a dataset, sorted by name; opens none of them.

    Parameters
    ----------
    source : str or path-like
        A directory, whose shards are found at any depth. Or, if there is none of that
        name, ``owner/name`` of the Hugging Face hub; or a URL: of the hub
        (``hf://datasets/owner/name``), of a store's folder, or over HTTP of a folder
        with a ``dataset.fsi``.
    hf_token : str or callable, optional
        Sent to the hub and to nobody else; otherwise that of a login is.
    subfolder : str, optional
        Look below this folder of `source` only.
    metadata : str or path-like, optional
        Where indexes are looked for first, as ``<metadata>/<shard's name>.json``: a
        directory, ``owner/name`` of the hub, or a URL. Otherwise they are beside the
        shards.
    strict_index : bool
        Leave out shards without an index, as webshart does; otherwise they are
        scanned when they are first read. Over HTTP, where nothing is listed, all stay.
    **remote
        How URLs are read: see `RemoteOptions`. A ``token`` is for the source, or for
        the metadata of one that is here.

    Returns
    -------
    DiscoveredDataset

    Raises
    ------
    FastshardError
        There are no shards.
    FileNotFoundError
        There is no such directory, or no such dataset.
    RemoteError
        It cannot be listed.
    """
    where = os.fspath(source)
    other = None if metadata is None else os.fspath(metadata)
    root = url_of(where)
    indexes = None if other is None else url_of(other)
    if root is not None:
        settings = _settings(root, hf_token, remote)
        found = find_remote(root, subfolder, indexes or other, strict_index, settings)
    elif indexes is not None:
        settings = _settings(indexes, hf_token, remote)
        found = find_half(where, subfolder, indexes, strict_index, settings)
    else:
        found = find_local(where, subfolder, other, strict_index)
    if not found.shards:
        raise FastshardError(f"No shards found in dataset {where}")
    return DiscoveredDataset(found._replace(name=where))


def _settings(root: str, hf_token: Token, remote: RemoteOptions) -> Settings:
    """Return settings by which a token for the hub is told to the hub alone."""
    if hf_token is None:
        return make_settings(remote, [root])
    if remote.get("token") is not None:
        raise TypeError("hf_token= and token= are both given")
    options: RemoteOptions = {**remote, "token": hf_token}
    endpoint = Settings(options).endpoint
    return Settings(options, frozenset((origin_of(normalize_url(endpoint)),)))


async def discover_dataset_async(
    source: str | os.PathLike[str],
    hf_token: Token = None,
    subfolder: str | None = None,
    metadata: str | os.PathLike[str] | None = None,
    *,
    strict_index: bool = False,
    **remote: Unpack[RemoteOptions],
) -> DiscoveredDataset:
    """Do what `discover_dataset` does, in a thread."""
    import asyncio

    return await asyncio.to_thread(
        discover_dataset,
        source,
        hf_token,
        subfolder,
        metadata,
        strict_index=strict_index,
        **remote,
    )


def discover_datasets_batch(
    sources: Sequence[str],
    hf_token: Token = None,
    subfolders: Sequence[str | None] | None = None,
    *,
    errors: str = "none",
    **remote: Unpack[RemoteOptions],
) -> list[DiscoveredDataset | None]:
    """Find several datasets at the same time; None stands for one that is not found.

    Parameters
    ----------
    sources : sequence of str
    hf_token : str or callable, optional
        As for `discover_dataset`.
    subfolders : sequence of str or None, optional
        One for each source.
    errors : {"none", "raise"}
        ``"raise"`` tells why one cannot be found.
    **remote
        As for `discover_dataset`.
    """
    if errors not in ("none", "raise"):
        raise ValueError(f'errors is "none" or "raise", not {errors!r}')
    folders = [None] * len(sources) if subfolders is None else subfolders
    if len(folders) != len(sources):
        raise ValueError(f"{len(folders):,} subfolders for {len(sources):,} sources")
    pairs = list(zip(sources, folders, strict=True))

    def find(pair: tuple[str, str | None]) -> DiscoveredDataset | None:
        try:
            return discover_dataset(pair[0], hf_token, pair[1], **remote)
        except (FastshardError, OSError):
            if errors == "raise":
                raise
            return None

    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(find, pairs))
