"""fastshard reads sharded datasets at memory speed.

>>> import fastshard
>>> with fastshard.open_shard("train-0000.tar") as shard:
...     view = shard["000042.jpg"]
"""

from __future__ import annotations

import os

from fastshard._core.shard import Shard
from fastshard.errors import (
    ClosedError,
    FastshardError,
    FieldNotFoundError,
    FormatError,
    MemberNotFoundError,
    SampleNotFoundError,
    StaleIndexError,
    StaleIndexWarning,
)
from fastshard.formats.base import Sample, Samples
from fastshard.formats.tar import KeyRule, Mode, TarShard, open_tar

__all__ = [
    "ClosedError",
    "FastshardError",
    "FieldNotFoundError",
    "FormatError",
    "MemberNotFoundError",
    "Sample",
    "SampleNotFoundError",
    "Samples",
    "Shard",
    "StaleIndexError",
    "StaleIndexWarning",
    "TarShard",
    "open_shard",
]

__version__ = "0.1.0"


def open_shard(
    path: str | os.PathLike[str],
    *,
    index: str | os.PathLike[str] = "auto",
    mode: Mode = "mmap",
    key: KeyRule = "first",
    lower: bool = True,
) -> TarShard:
    """Open a local tar shard: find its members, and map it.

    Parameters
    ----------
    path : str or path-like
        A tar file, not compressed: v7, ustar, GNU or pax.
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
            Never mapped: each view is a copy of its own, and a file that
            became shorter gives a `FormatError`. Keeps one descriptor open.
    key : {"first", "last"}
        At which dot of a name's last part a sample's key ends.
    lower : bool
        Lower-case the fields of samples, as WebDataset does.

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
    """
    return open_tar(path, index=index, mode=mode, key=key, lower=lower)
