"""Batches compared byte by byte."""

from __future__ import annotations

import itertools
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
    ds: Any, size: int, *, threads: int = 2, ahead: int = 2, **both: Any
) -> int:
    """Compare a loader's batches with those of `batches`; return their number.

    All are kept and compared again at the end: none is written over.
    """
    if "collate" not in both:
        both.setdefault("ragged", "list")
    kept: list[tuple[Any, Any]] = []
    end = object()
    with ds.loader(size, threads=threads, ahead=ahead, **both) as loader:
        pairs = itertools.zip_longest(loader, ds.batches(size, **both), fillvalue=end)
        for found, expected in pairs:
            assert found is not end, f"{len(kept)} batches are too few"
            assert expected is not end, f"{len(kept)} batches, and one more"
            assert_same(found, expected)
            kept.append((found, expected))
    for pair in kept:
        assert_same(*pair)
    return len(kept)
