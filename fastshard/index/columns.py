"""Tables made of numbers and names that Python has read."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate

from fastshard._core.borrowed import IndexMemory, borrowed_table
from fastshard._core.extents import ExtentTable

__all__ = ["Extent", "table_from"]

Extent = tuple[int, int, bytes]  # offset, size, name


def table_from(extents: Sequence[Extent], path: str) -> ExtentTable:
    """Return a table of extents that were checked; it is in the shard's order.

    Parameters
    ----------
    extents : sequence of (offset, size, name)
        In any order; names are bytes, as tar stores them.
    path : str
        The index, for messages.
    """
    ordered = sorted(extents, key=lambda extent: extent[0])
    count = len(ordered)
    names = [name for _, _, name in ordered]
    columns = (
        array("Q", [offset for offset, _, _ in ordered]),
        array("Q", [size for _, size, _ in ordered]),
        array("Q", accumulate(map(len, names))),
    )
    raw = b"".join(column.tobytes() for column in columns) + b"".join(names)
    width = 8 * count
    return borrowed_table(
        IndexMemory(raw, path),
        count,
        0,
        width,
        2 * width,
        3 * width,
        len(raw) - 3 * width,
        0,
        0,
        0,
    )
