"""Batches compared byte by byte."""

from __future__ import annotations

import itertools
from collections import deque
from typing import Any

import numpy as np

__all__ = ["assert_same", "assert_same_batches"]


def assert_same(found: Any, expected: Any) -> None:
    """Compare batches: types, order of keys, dtypes, shapes, every byte."""
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for name in expected:
            assert_same(found[name], expected[name])
    elif isinstance(expected, np.ndarray):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.tobytes() == expected.tobytes()
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert found == expected


def assert_same_batches(
    ds: Any, size: int, *, threads: int = 2, ahead: int = 2, hold: int = 1, **both: Any
) -> int:
    """Compare a loader's batches with those of `batches`; return their number.

    A batch is compared again, for as long as it is lent, after each later one.
    """
    lent: deque[tuple[Any, Any]] = deque(maxlen=hold)
    count = 0
    end = object()
    with ds.loader(size, threads=threads, ahead=ahead, hold=hold, **both) as loader:
        pairs = itertools.zip_longest(loader, ds.batches(size, **both), fillvalue=end)
        for found, expected in pairs:
            assert found is not end, f"{count} batches are too few"
            assert expected is not end, f"{count} batches, and one more"
            for pair in (*itertools.islice(lent, 1, None), (found, expected)):
                assert_same(*pair)
            lent.append((found, expected))
            count += 1
    return count
