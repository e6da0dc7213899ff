"""A bar on a terminal, for what takes longer than a second."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

__all__ = ["counted"]

BAR_DELAY = 1  # seconds before a bar shows

T = TypeVar("T")


def counted(things: Iterable[T], total: int, doing: str) -> Iterator[T]:
    """Yield things, and show on a terminal how many of how many there were."""
    from tqdm import tqdm

    bar = tqdm(
        things,
        total=total,
        desc=doing,
        unit=" shards",
        delay=BAR_DELAY,
        leave=False,
        disable=None,  # on a terminal only
    )
    yield from bar
