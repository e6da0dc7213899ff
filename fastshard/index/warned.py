"""Saying that an index is passed over."""

from __future__ import annotations

import warnings

from fastshard.errors import FormatError, StaleIndexError, StaleIndexWarning

__all__ = ["warn_passed_over"]


def warn_passed_over(error: FormatError) -> None:
    """Warn where the function's caller's callers open a shard or a dataset."""
    what = "stale" if isinstance(error, StaleIndexError) else "broken"
    warnings.warn(f"{what} index: {error}", StaleIndexWarning, stacklevel=5)
