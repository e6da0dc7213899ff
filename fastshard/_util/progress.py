"""Progress bars on a terminal, for work of more than a second."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, TypeVar

__all__ = ["bar_type", "byte_bar", "iterate_with_bar"]

BAR_DELAY = 1  # seconds before a bar shows

T = TypeVar("T")


@cache
def bar_type() -> Any:
    """Return a tqdm class without a monitor thread: a fork warns of threads."""
    from tqdm import tqdm

    return type("Bar", (tqdm,), {"monitor_interval": 0})


def byte_bar(total: int | None, doing: str) -> Any:
    """Return a progress bar in bytes, a context manager; None is an unknown total."""
    return bar_type()(
        total=total,
        desc=doing,
        unit="B",
        unit_scale=True,
        miniters=1,  # otherwise a fast start delays later updates
        delay=BAR_DELAY,
        leave=False,
        disable=None,  # on a terminal only
    )


def iterate_with_bar(items: Iterable[T], total: int, doing: str) -> Iterator[T]:
    """Yield items, and show their number on a terminal."""
    bar = bar_type()(
        items,
        total=total,
        desc=doing,
        unit=" shards",
        delay=BAR_DELAY,
        leave=False,
        disable=None,  # on a terminal only
    )
    yield from bar
