"""fastshard reads sharded datasets at memory speed.

>>> import fastshard
>>> with fastshard.open_shard("train-0000.tar") as shard:
...     view = shard["000042.jpg"]
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from fastshard._core.shard import Shard
from fastshard._util.options import check_names
from fastshard.errors import (
    AmbiguousKeyError,
    CacheWarning,
    ClosedError,
    FastshardError,
    FieldNotFoundError,
    FormatError,
    InfoNotFoundError,
    MemberNotFoundError,
    MissingLibraryError,
    QueryError,
    QueryTimeoutError,
    RaggedError,
    RemoteError,
    RemoteNotFoundError,
    SampleNotFoundError,
    ShardNotFoundError,
    StaleIndexError,
    StaleIndexWarning,
    StateError,
    WriterLockedError,
)
from fastshard.formats.sample import Sample, Samples
from fastshard.formats.tar import KeyRule, Mode, TarShard, open_tar
from fastshard.remote.options import RemoteOptions, settings_of
from fastshard.remote.urls import is_remote

if TYPE_CHECKING:
    from fastshard.adapters.webshart.batch import BatchProcessor, read_files_batch
    from fastshard.adapters.webshart.discover import (
        DiscoveredDataset,
        ShardReader,
        discover_dataset,
        discover_dataset_async,
        discover_datasets_batch,
    )
    from fastshard.dataset.batch import collate
    from fastshard.dataset.build_index import build_index, merge_indexes
    from fastshard.dataset.combine import mix, zip_by_key
    from fastshard.dataset.dataset import Dataset
    from fastshard.dataset.listing import Source
    from fastshard.formats.decoders import Decoder
    from fastshard.formats.writer import ShardWriter

__all__ = [
    "AmbiguousKeyError",
    "BatchProcessor",
    "CacheWarning",
    "ClosedError",
    "Dataset",
    "DiscoveredDataset",
    "FastshardError",
    "FieldNotFoundError",
    "FormatError",
    "InfoNotFoundError",
    "MemberNotFoundError",
    "MissingLibraryError",
    "QueryError",
    "QueryTimeoutError",
    "RaggedError",
    "RemoteError",
    "RemoteNotFoundError",
    "RemoteOptions",
    "Sample",
    "SampleNotFoundError",
    "Samples",
    "Shard",
    "ShardNotFoundError",
    "ShardReader",
    "ShardWriter",
    "StaleIndexError",
    "StaleIndexWarning",
    "StateError",
    "TarShard",
    "WriterLockedError",
    "build_index",
    "collate",
    "discover_dataset",
    "discover_dataset_async",
    "discover_datasets_batch",
    "merge_indexes",
    "mix",
    "open",
    "open_shard",
    "read_files_batch",
    "zip_by_key",
]

__version__ = "0.1.0"

_LATER = {  # what is imported when it is asked for: by name, its module
    "BatchProcessor": "fastshard.adapters.webshart.batch",
    "Dataset": "fastshard.dataset.dataset",
    "DiscoveredDataset": "fastshard.adapters.webshart.discover",
    "ShardReader": "fastshard.adapters.webshart.discover",
    "ShardWriter": "fastshard.formats.writer",
    "build_index": "fastshard.dataset.build_index",
    "collate": "fastshard.dataset.batch",
    "discover_dataset": "fastshard.adapters.webshart.discover",
    "discover_dataset_async": "fastshard.adapters.webshart.discover",
    "discover_datasets_batch": "fastshard.adapters.webshart.discover",
    "merge_indexes": "fastshard.dataset.build_index",
    "mix": "fastshard.dataset.combine",
    "read_files_batch": "fastshard.adapters.webshart.batch",
    "zip_by_key": "fastshard.dataset.combine",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_LATER[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})


def open(  # noqa: A001
    source: Source,
    *,
    index: str | os.PathLike[str] = "auto",
    key: KeyRule = "first",
    lower: bool = True,
    decoders: Mapping[str, Decoder] | None = None,
    mode: Mode = "mmap",
    max_mapped: int | None = None,
    max_memory: int | str | None = None,
    keep_cache: bool = True,
    prefetch: bool = True,
    check_size: bool = False,
    **remote: Unpack[RemoteOptions],
) -> Dataset:
    """Open a dataset of tar shards, on this machine or elsewhere.

    Parameters
    ----------
    source : str, path-like or sequence of them
        A tar; a directory, for the shards in it (``directory/**``: also below
        it); a glob; a brace list, ``train-{000..099}.tar``; a list of these; or
        a wids index. Shards of directories and globs are ordered naturally, 2
        before 10; lists keep their order. Or URLs of these: ``http(s)://``,
        ``hf://datasets/owner/name``, ``s3://``, ``gs://``, ``az://``. HTTP lists no
        directories: the ``dataset.fsi`` there says what is in it.
    index : {"auto", "none", "rebuild"} or path-like
        As for `open_shard`, for each shard; and ``"auto"`` uses a fresh
        ``dataset.fsi`` of the shards' directory, with which no shard is touched
        to count samples. ``"rebuild"`` makes all of them first. A directory
        holds indexes that were made with ``out=``.
    key : {"first", "last"}
        At which dot of a name's last part a sample's key ends.
    lower : bool
        Lower-case the fields of samples, as WebDataset does.
    decoders : Mapping of str to callable, optional
        ``fn(view) -> value`` by suffix of the field, for `Sample.decode`; they
        come before those that are built in. With
        `fastshard.formats.decoders.NpzDecoder` the memory of an ``.npz`` field has a
        limit.
    mode : {"mmap", "private", "pread"}
        As for `open_shard`.
    max_mapped : int, optional
        How many shards may be mapped at a time; otherwise a quarter of what the
        system allows (``vm.max_map_count``), at most 16,384.
    max_memory : int or str, optional
        How much of the mapped shards may be resident in this process: bytes, or
        ``"1GiB"``. Pages that were read longest ago are released, however they were
        read; views of them stay valid, and fault their bytes in again. Pages that
        were written to in ``mode="private"`` stay.
    keep_cache : bool
        Whether what was read stays in the page cache. False is for datasets that
        are larger than memory and read once.
    prefetch : bool
        Whether bytes that are not in memory are brought before they are handed out,
        without the GIL, and ahead of iterations.
    check_size : bool
        As for `open_shard`.
    **remote
        How URLs are read: see `RemoteOptions`.

    Returns
    -------
    Dataset
        A sequence of samples. Shards are opened when they are first needed.

    Raises
    ------
    FileNotFoundError
        A shard is not there.
    FastshardError
        There are no shards, or not all of one format.
    RemoteError
        What is remote cannot be read.
    """
    from fastshard.dataset.open import open_dataset

    known = (*(open.__kwdefaults__ or ()), *RemoteOptions.__optional_keys__)
    check_names("open", remote, known)
    return open_dataset(
        source,
        index=index,
        key=key,
        lower=lower,
        decoders=decoders,
        mode=mode,
        max_mapped=max_mapped,
        max_memory=max_memory,
        keep_cache=keep_cache,
        prefetch=prefetch,
        check_size=check_size,
        remote=remote,
    )


def open_shard(
    path: str | os.PathLike[str],
    *,
    index: str | os.PathLike[str] = "auto",
    mode: Mode = "mmap",
    key: KeyRule = "first",
    lower: bool = True,
    prefetch: bool = True,
    check_size: bool = False,
    **remote: Unpack[RemoteOptions],
) -> TarShard:
    """Open a tar shard: find its members, and map it if it is on this machine.

    Parameters
    ----------
    path : str or path-like
        A tar file, not compressed: v7, ustar, GNU or pax; or the URL of one.
    index : {"auto", "none", "rebuild"} or path-like
        Where its members are listed.

        ``"auto"``
            A fresh index beside it is used: ``.fsi``, else ``.json``. A stale or
            broken one is passed over with a `StaleIndexWarning`. Without one the
            headers are scanned.
        ``"none"``
            The headers are scanned; no index is looked for.
        ``"rebuild"``
            The headers are scanned, and an ``.fsi`` is written beside it.
        a path
            That index (``.fsi``, ``.json``, ``.idx``, ``.tar.idx``), which must
            be fresh; or a directory to look for one in.
    mode : {"mmap", "private", "pread"}
        How its bytes are read.

        ``"mmap"``
            Mapped and read-only. Nothing is copied. No other process may
            truncate the file: touching what is gone kills this one (SIGBUS).
        ``"private"``
            Mapped copy-on-write: views and arrays are writable, and the file
            never changes. What in-place operations of NumPy and torch need.
        ``"pread"``
            Never mapped: each view is a copy of its own, and a file that was
            written to, but for what was appended, gives a `FormatError`. Keeps
            one descriptor open.
    key : {"first", "last"}
        At which dot of a name's last part a sample's key ends.
    lower : bool
        Lower-case the fields of samples, as WebDataset does.
    prefetch : bool
        Whether a member that is not in memory is brought, without the GIL, before a
        view of it is returned; of a large one the first 16 MiB.
    check_size : bool
        Where it is mapped: keep a descriptor, and raise a `FormatError` at every
        read after the file became shorter.
    **remote
        How a URL is read: see `RemoteOptions`. `mode`, `prefetch` and `check_size`
        are for files.

    Returns
    -------
    TarShard
        A sequence of views by position or name, with ``samples``, ``names``,
        ``offsets``, ``sizes``. Close it, or use it in a ``with`` statement.

    Raises
    ------
    FormatError
        The file is no tar, is cut or damaged, is compressed, is a directory or
        a device, or holds members that are not stored as they are (sparse,
        multi-volume, incremental). The error names the byte. Or an index that
        was named is broken.
    StaleIndexError
        An index that was named is of another shard, or of an earlier state.
    OSError
        The file cannot be opened, read or mapped.
    RemoteError
        A URL cannot be read.
    """
    known = (*(open_shard.__kwdefaults__ or ()), *RemoteOptions.__optional_keys__)
    check_names("open_shard", remote, known)
    name = os.fspath(path)
    settings = None
    if isinstance(name, str) and is_remote(name):
        settings = settings_of(remote, [name])
    return open_tar(
        path,
        index=index,
        mode=mode,
        key=key,
        lower=lower,
        prefetch=prefetch,
        check_size=check_size,
        remote=settings,
    )
