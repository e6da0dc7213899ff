"""Samples and datasets for tests, made of a type.

Examples
--------
>>> import numpy as np
>>> from numpy.typing import NDArray
>>> from fastshard import typed
>>> from fastshard.typed import testing
>>> @typed.packable
... class Point:
...     position: NDArray[np.float32]
...     label: str
>>> points = testing.make_samples(Point, n=100, seed=1)
>>> points[7].label, points[7].position.shape
('label_7', (4, 4))
>>> ds = testing.make_dataset("points", points)
>>> len(ds), ds[7].label
(100, 'label_7')
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any, TypeVar, cast

from fastshard.typed.dataset import Dataset
from fastshard.typed.fields import declared_fields
from fastshard.typed.kinds.base import SampleMaker
from fastshard.typed.write.samples import write_samples

__all__ = ["make_dataset", "make_samples"]

T = TypeVar("T")


def make_samples(sample_type: type[T], n: int = 10, seed: int | None = None) -> list[T]:
    """Return samples of a type with values made for their fields.

    Texts are ``"name_0"``, ``"name_1"``, integers count, bools alternate, literals and
    enumerations take turns; floats, bytes and arrays, ``[4, 4]`` of the declared dtype
    or else float32, are random. Lists have three items. A field that may be None and
    has a default keeps it.

    Parameters
    ----------
    sample_type : type
        A packable class.
    n : int, default 10
    seed : int, optional
        The same seed gives the same samples.

    Raises
    ------
    TypeError
        The class is not packable.
    MissingLibraryError, ImportError
        The library of a field's kind is not installed.

    Examples
    --------
    >>> from fastshard import typed
    >>> from fastshard.typed.testing import make_samples
    >>> @typed.packable
    ... class Row:
    ...     name: str
    ...     count: int
    ...     flag: bool
    >>> make_samples(Row, n=2)
    [Row(name='name_0', count=0, flag=True), Row(name='name_1', count=1, flag=False)]
    """
    import numpy as np

    rng = np.random.default_rng(seed)
    return [_make_sample(sample_type, i, rng) for i in range(n)]


def make_dataset(
    path: str | os.PathLike[str],
    samples: Sequence[T],
    *,
    name: str = "test",
    sample_type: type[T] | None = None,
) -> Dataset[T]:
    """Write samples to a shard and return their dataset.

    Parameters
    ----------
    path : str or path-like
        A folder, which is made if need be.
    samples : sequence
        Of one type.
    name : str, default "test"
        The shard is ``name-000000.tar``.
    sample_type : type, optional
        By default that of the samples.

    Raises
    ------
    ValueError
        There are no samples.

    Examples
    --------
    >>> from fastshard import typed
    >>> from fastshard.typed.testing import make_dataset, make_samples
    >>> @typed.packable
    ... class Row:
    ...     name: str
    >>> make_dataset("rows", make_samples(Row)).head(1)
    [Row(name='name_0')]
    """
    if not samples:
        raise ValueError("samples must be non-empty")
    os.makedirs(path, exist_ok=True)
    shard = os.path.join(path, f"{name}-000000.tar")
    write_samples(samples, shard)
    return Dataset(shard, sample_type or type(samples[0]))


def _make_sample(cls: type[T], i: int, rng: Any) -> T:
    """Return sample `i` of a class."""
    wanted = {field.name: field for field in dataclasses.fields(cast(Any, cls))}
    maker = SampleMaker(i, rng, lambda inner: _make_sample(inner, i, rng))
    values = {}
    for each in declared_fields(cls):
        field = wanted[each.name]
        if not field.init or (each.kind.optional and each.plan.has_default):
            continue
        values[each.name] = each.kind.make(each.name, maker)
    return cls(**values)
