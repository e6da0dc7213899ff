"""Store of shards in a local folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from os.path import join
from pathlib import Path
from typing import Any
from uuid import uuid4

from fastshard._util.files import make_directory
from fastshard.typed.stores.protocol import ShardWriteResult
from fastshard.typed.stores.writing import safe_prefix, shard_name, write_dataset

__all__ = ["LocalDiskStore"]

ROOT = "~/.atdata/data"


class LocalDiskStore:
    """Store of shards in a folder.

    A shard is ``{root}/{prefix}/data--{8 hexadecimal digits}--000000.tar``; the digits
    are new for each write. It appears whole or not at all, and its index after it.

    Parameters
    ----------
    root : str or path-like, optional
        The folder, by default ``~/.atdata/data``; made if it does not exist.

    Attributes
    ----------
    root : Path
        Absolute.

    Raises
    ------
    OSError
        The folder cannot be made.

    Examples
    --------
    >>> from fastshard import typed
    >>> store = typed.LocalDiskStore("store")
    >>> urls = store.write_shards(ds, prefix="images/v1", maxcount=60)
    >>> [url.rpartition("--")[2] for url in urls]
    ['000000.tar', '000001.tar']
    >>> len(typed.Dataset(urls))
    100
    """

    root: Path

    def __init__(self, root: str | os.PathLike[str] | None = None) -> None:
        self.root = Path(ROOT if root is None else root).expanduser().resolve()
        make_directory(str(self.root))

    def write_shards(self, ds: Any, *, prefix: str, **options: Any) -> ShardWriteResult:
        """Write the samples of a dataset to new shards, under their keys.

        Shards of a dataset that is neither mapped nor reordered are copied, byte by
        byte, unless `maxcount`, `maxsize` or `manifest` ask for others.

        Parameters
        ----------
        ds : Dataset
            Or an iterable of packable samples, or an object whose
            ``ordered(batch_size=None)`` is one; their keys are numbers.
        prefix : str
            Folder below `root`. Letters with a meaning in URLs and patterns, as ``*``,
            become ``_``.
        **options
            ``maxcount``, ``maxsize``, ``manifest``: as for `write_samples`, by default
            at most 100,000 samples and 3 GB; for manifests ``schema_version``,
            ``source_job_id``, ``parent_shards``, ``pipeline_version``. ``cache_local``
            has no effect.

        Returns
        -------
        ShardWriteResult
            Absolute paths, and their checksums.

        Raises
        ------
        ValueError
            There are no samples, or the prefix is not a relative path.
        TypeError, OverflowError
            An option is unknown, or a mapped sample cannot be stored.
        FormatError, OSError
            A shard cannot be read or written. Complete ones stay.

        Examples
        --------
        >>> from fastshard import typed
        >>> result = typed.LocalDiskStore("store").write_shards(ds, prefix="images")
        >>> len(result), list(result.checksums) == result
        (1, True)
        """
        return write_dataset(self, ds, prefix=prefix, **options)

    @contextmanager
    def _shard_target(self, prefix: str) -> Iterator[FolderTarget]:
        """Return the target of new shards."""
        folder = join(self.root, safe_prefix(prefix))
        make_directory(folder)
        names = (shard_name(uuid4().hex[:8]) for _ in count())
        name = next(x for x in names if not os.path.lexists(join(folder, x % 0)))
        yield FolderTarget(join(folder, name))

    def read_url(self, url: str) -> str:
        """Return the path of a shard, unchanged.

        Examples
        --------
        >>> from fastshard import typed
        >>> typed.LocalDiskStore("store").read_url("/data/a.tar")
        '/data/a.tar'
        """
        return url

    def supports_streaming(self) -> bool:
        """Return True: shards are mapped.

        Examples
        --------
        >>> from fastshard import typed
        >>> typed.LocalDiskStore("store").supports_streaming()
        True
        """
        return True

    def __repr__(self) -> str:
        return f"LocalDiskStore({str(self.root)!r})"


class FolderTarget:
    """Target folder: shards stay at the paths where they are written."""

    max_bytes: int | None = None

    def __init__(self, path: str) -> None:
        self.path = path

    def publish(self, path: str, digest: str) -> str:
        """Return the path."""
        return path

    def result(self) -> ShardWriteResult | None:
        """Return None."""
        return None
