"""A bar on a terminal, for what takes longer than a second."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, TypeVar

__all__ = ["bar_type", "byte_bar", "iterate_with_bar"]

BAR_DELAY = 1  # seconds before a bar shows

T = TypeVar("T")


@cache
def bar_type() -> Any:
    """Return tqdm without its own thread: a fork warns of threads."""
    from tqdm import tqdm

    return type("Bar", (tqdm,), {"monitor_interval": 0})


def byte_bar(total: int | None, doing: str) -> Any:
    """Return a bar of bytes, a context; ``total=None`` where they are not known."""
    return bar_type()(
        total=total,
        desc=doing,
        unit="B",
        unit_scale=True,
        miniters=1,  # else a quick start delays what follows
        delay=BAR_DELAY,
        leave=False,
        disable=None,  # on a terminal only
    )


def iterate_with_bar(things: Iterable[T], total: int, doing: str) -> Iterator[T]:
    """Yield things, and show on a terminal how many of how many there were."""
    bar = bar_type()(
        things,
        total=total,
        desc=doing,
        unit=" shards",
        delay=BAR_DELAY,
        leave=False,
        disable=None,  # on a terminal only
    )
    yield from bar
