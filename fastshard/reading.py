"""How the bytes of a dataset are brought near, and how much memory that may take."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["WINDOW", "Reading"]

WINDOW = 32  # items ahead of an iteration
MOST_AHEAD = 64 << 20  # bytes ahead of it


class Reading(NamedTuple):
    """What `fastshard.open` was told about memory.

    Attributes
    ----------
    prefetch : bool
        Bring bytes before they are touched.
    max_memory : int or None
        Bytes that an iteration may keep in memory; None: no bound.
    keep_cache : bool
        Leave in the page cache what was read.
    """

    prefetch: bool = True
    max_memory: int | None = None
    keep_cache: bool = True

    @property
    def window_bytes(self) -> int:
        """Bytes ahead: as much again lies behind, and it need not be exact."""
        if self.max_memory is None:
            return MOST_AHEAD
        return max(1, min(MOST_AHEAD, self.max_memory // 4))

    @property
    def gives_back(self) -> bool:
        """Whether what was read is given back."""
        return self.max_memory is not None or not self.keep_cache
