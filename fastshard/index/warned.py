"""Saying that an index is passed over, or that it is an old one."""

from __future__ import annotations

import warnings

from fastshard.errors import FormatError, StaleIndexError, StaleIndexWarning

__all__ = ["warn_old", "warn_passed_over"]

_told = False  # of an old index, in this process


def warn_passed_over(error: FormatError) -> None:
    """Warn where the function's caller's callers open a shard or a dataset."""
    what = "stale" if isinstance(error, StaleIndexError) else "broken"
    warnings.warn(f"{what} index: {error}", StaleIndexWarning, stacklevel=5)


def warn_old(path: str) -> None:
    """Warn once in a process of an index of the format's version 1, which is read."""
    global _told
    if _told:
        return
    _told = True
    warnings.warn(
        f"old index: {path} is of version 1 of its format, and so are others perhaps; "
        "they are read, and their shards' headers compared; "
        "renew them with: fastshard index",
        StaleIndexWarning,
        stacklevel=5,
    )
