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
    "TarShard",
    "open_shard",
]

__version__ = "0.1.0"


def open_shard(
    path: str | os.PathLike[str],
    *,
    mode: Mode = "mmap",
    key: KeyRule = "first",
    lower: bool = True,
) -> TarShard:
    """Open a local tar shard: scan its headers, and map it.

    Parameters
    ----------
    path : str or path-like
        A tar file, not compressed: v7, ustar, GNU or pax.
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
        multi-volume, incremental). The error names the byte.
    OSError
        The file cannot be opened, read or mapped.
    """
    return open_tar(path, mode=mode, key=key, lower=lower)
