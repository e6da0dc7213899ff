"""Discovery of datasets with webshart's interface: files numbered by sorted name.

For code written for webshart: ``import fastshard as webshart``. Names, arguments and
results are webshart's; its bugs are not reproduced.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Unpack

from fastshard._util.paths.remote_options import RemoteOptions, check_local
from fastshard._util.paths.urls import normalize_url, origin_of, redact
from fastshard.adapters.webshart.dataset import DiscoveredDataset, ShardReader
from fastshard.adapters.webshart.listing import (
    find_local,
    find_remote,
    find_with_remote_indexes,
    url_of,
)
from fastshard.errors import (
    FastshardError,
    RemoteNotFoundError,
    RemoteShardNotFoundError,
    ShardNotFoundError,
)
from fastshard.remote.options import Settings, make_settings

__all__ = [
    "DiscoveredDataset",
    "ShardReader",
    "discover_dataset",
    "discover_dataset_async",
    "discover_datasets_batch",
]

Token = str | Callable[[], str | None] | None

THREADS = 16  # for discovery of several datasets


def discover_dataset(
    source: str | os.PathLike[str],
    hf_token: Token = None,
    subfolder: str | None = None,
    metadata: str | os.PathLike[str] | None = None,
    *,
    strict_index: bool = False,
    **remote: Unpack[RemoteOptions],
) -> DiscoveredDataset:
    """Find the tar shards of a dataset, sorted by name, without opening them.

    webshart's call. For samples with fields, shuffles and batches use `fastshard.open`.

    Parameters
    ----------
    source : str or path-like
        A directory, searched at any depth; or, if it does not exist, ``owner/name`` of
        the Hugging Face hub; or a URL: of the hub (``hf://datasets/owner/name``), of a
        store's folder, or over HTTP of a folder with a ``dataset.fsi``.
    hf_token : str or callable, optional
        Sent to the hub only; by default the token of a login.
    subfolder : str, optional
        Search only below this folder of `source`.
    metadata : str or path-like, optional
        First choice of indexes, as ``<metadata>/<shard's name>.json``: a directory,
        ``owner/name`` of the hub, or a URL. Second choice are those beside the shards.
    strict_index : bool, default False
        Leave out shards without an index, as webshart does; by default they are scanned
        on first use. HTTP has no listings: all shards stay.
    **remote
        How URLs are read: see `RemoteOptions`. A ``token`` is for a remote source, or
        for the remote metadata of a local one.

    Returns
    -------
    DiscoveredDataset
        Its shards and files are numbered.

    Raises
    ------
    ShardNotFoundError
        There are no shards, or the directory or the dataset does not exist.
    RemoteError
        The source cannot be listed.
    TypeError
        Both `hf_token` and ``token`` are given, or an option is misspelt.
    ValueError
        An option for URLs does nothing, for all is local.

    Examples
    --------
    >>> import fastshard
    >>> dataset = fastshard.discover_dataset("data/")
    >>> dataset.num_shards, dataset.total_files
    (4, 400)
    """
    path = os.fspath(source)
    metadata_path = None if metadata is None else os.fspath(metadata)
    root = url_of(path)
    indexes = None if metadata_path is None else url_of(metadata_path)
    if root is not None:
        settings = _settings(root, hf_token, remote)
        preferred = indexes or metadata_path
        try:
            found = find_remote(root, subfolder, preferred, strict_index, settings)
        except RemoteNotFoundError as error:
            raise RemoteShardNotFoundError.of(error) from error
    elif indexes is not None:
        settings = _settings(indexes, hf_token, remote)
        found = find_with_remote_indexes(
            path, subfolder, indexes, strict_index, settings
        )
    else:
        check_local(remote, caches=False)
        found = find_local(path, subfolder, metadata_path, strict_index)
    if not found.shards:
        reason = f"No shards found in dataset {path}"
        if root is not None:
            raise RemoteShardNotFoundError(reason, redact(root))
        raise ShardNotFoundError(reason, path)
    return DiscoveredDataset(found._replace(name=path))


def _settings(root: str, hf_token: Token, remote: RemoteOptions) -> Settings:
    """Return settings that send a token for the hub to the hub only."""
    if hf_token is None:
        return make_settings(remote, [root])
    if remote.get("token") is not None:
        raise TypeError("expected hf_token= or token=, got both")
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
    """Find the tar shards of a dataset in a thread, for ``await``.

    Parameters
    ----------
    source, hf_token, subfolder, metadata, strict_index, **remote
        As for `discover_dataset`.

    Returns
    -------
    DiscoveredDataset
        Its shards and files are numbered.

    Raises
    ------
    FastshardError, FileNotFoundError, RemoteError, TypeError
        As for `discover_dataset`.

    Examples
    --------
    >>> import asyncio
    >>> import fastshard
    >>> asyncio.run(fastshard.discover_dataset_async("data/"))
    DiscoveredDataset(name='data/', shards=4, remote=false)
    """
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
    """Find several datasets concurrently; None for each that is not found.

    Parameters
    ----------
    sources : sequence of str
        As for `discover_dataset`.
    hf_token : str or callable, optional
        As for `discover_dataset`.
    subfolders : sequence of str or None, optional
        One for each source.
    errors : {"none", "raise"}, default "none"
        For a source that is not found: None in the list, or its error.
    **remote
        As for `discover_dataset`.

    Returns
    -------
    list of DiscoveredDataset or None
        In the order of the sources.

    Raises
    ------
    FastshardError, OSError
        As for `discover_dataset`, with ``errors="raise"``.
    ValueError
        `subfolders` and `sources` differ in number, or `errors` is neither value.

    Examples
    --------
    >>> import fastshard
    >>> fastshard.discover_datasets_batch(["data/", "no/such/directory/"])
    [DiscoveredDataset(name='data/', shards=4, remote=false), None]
    """
    if errors not in ("none", "raise"):
        raise ValueError(f'errors must be "none" or "raise", got {errors!r}')
    folders = [None] * len(sources) if subfolders is None else subfolders
    if len(folders) != len(sources):
        raise ValueError(
            f"expected {len(sources):,} subfolders, one for each source, got "
            f"{len(folders):,}"
        )
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
