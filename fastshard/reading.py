"""How the bytes of a dataset are brought near, and how much memory that may take."""

from __future__ import annotations

from typing import NamedTuple

from fastshard._core.pagering import PageRing

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
        Bytes of mapped shards that may be resident; None: no bound.
    keep_cache : bool
        Leave in the page cache what was read.
    """

    prefetch: bool = True
    max_memory: int | None = None
    keep_cache: bool = True

    @property
    def window_bytes(self) -> int:
        """Bytes ahead of an iteration."""
        if self.max_memory is None:
            return MOST_AHEAD
        return max(1, min(MOST_AHEAD, self.max_memory // 4))

    def ring(self) -> PageRing | None:
        """Return what releases the pages of mapped shards; None: they stay.

        It keeps half of the bound: the window ahead of an iteration, and as much
        behind it. The rest is left to what cannot be counted: a batch that is larger
        than a quarter of it, readers in other threads.
        """
        if self.max_memory is None and self.keep_cache:
            return None
        most = 4 * MOST_AHEAD if self.max_memory is None else self.max_memory
        return PageRing(most // 2, forgets=not self.keep_cache)
