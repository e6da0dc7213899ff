"""Samples and datasets for tests: made of a type, written to a folder.

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
from fastshard.typed.kinds.annotations import Kind
from fastshard.typed.write.samples import write_samples

__all__ = ["make_dataset", "make_samples"]

T = TypeVar("T")

SHAPE = (4, 4)  # of arrays
LENGTH = 3  # of lists
NBYTES = 16


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

    Returns
    -------
    list

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

    Returns
    -------
    Dataset

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
    values = {}
    for each in declared_fields(cls):
        field = wanted[each.name]
        if not field.init or (each.kind.optional and each.plan.has_default):
            continue
        values[each.name] = _make_value(each.kind, each.name, i, rng)
    return cls(**values)


def _make_value(kind: Kind, name: str, i: int, rng: Any) -> Any:
    """Return the value of a field of sample `i`."""
    match kind.name:
        case "int":
            return i
        case "float":
            return float(rng.random())
        case "bool":
            return i % 2 == 0
        case "bytes":
            return rng.bytes(NBYTES)
        case "none":
            return None
        case "array":
            return _make_array(kind.scalars, name, i, rng)
        case "list" | "tuple" | "dict":
            return _make_container(kind, name, i, rng)
        case "union":
            chosen = next(each for each in kind.items if each.name != "none")
            return _make_value(chosen, name, i, rng)
        case "literal":
            return kind.values[i % len(kind.values)]
        case "enum":
            members = list(cast(Any, kind.cls))
            return members[i % len(members)]
        case "sample":
            return _make_sample(cast(Any, kind.cls), i, rng)
        case "sparse" | "arrow_tensor" | "dataframe" | "safetensors":
            return _make_library_value(kind.name, rng)
    return f"{name}_{i}"


def _make_container(kind: Kind, name: str, i: int, rng: Any) -> Any:
    """Return a list, a tuple or a dict of three items, or of those that it declares."""
    names = [f"{name}_{i}_{j}" for j in range(LENGTH)]
    if kind.name == "dict":
        if not kind.items:
            return dict.fromkeys(names, i)
        return {each: _make_value(kind.items[1], each, i, rng) for each in names}
    if not kind.items:
        values = names
    elif kind.name == "tuple" and not kind.is_variadic:
        values = [_make_value(item, name, i, rng) for item in kind.items]
    elif kind.items[0].name in ("str", "any"):
        values = names
    else:
        values = [_make_value(kind.items[0], each, i, rng) for each in names]
    return tuple(values) if kind.name == "tuple" else values


def _make_array(scalars: tuple[Any, ...], name: str, i: int, rng: Any) -> Any:
    """Return an array of the first declared dtype, or of float32."""
    import numpy as np

    scalar = scalars[0] if scalars else np.float32
    usual = (np.float32, np.int64, np.complex64, np.str_)
    if isinstance(scalar, type) and issubclass(scalar, np.generic):
        # An abstract one, as `np.floating`, has a usual dtype below it.
        scalar = next((each for each in usual if issubclass(each, scalar)), scalar)
    dtype = np.dtype(scalar)
    if dtype.kind in "iu":
        high = min(np.iinfo(dtype).max, 100)
        return rng.integers(0, high, SHAPE, endpoint=True).astype(dtype)
    if dtype.kind in "mM":
        return rng.integers(0, 100, SHAPE).astype(dtype)
    if dtype.kind == "b":
        return rng.random(SHAPE) < 0.5
    if dtype.kind in "US":
        texts = [f"{name}_{i}_{j}" for j in range(SHAPE[0] * SHAPE[1])]
        return np.array(texts, dtype).reshape(SHAPE)
    if dtype.kind == "c":
        return (rng.standard_normal(SHAPE) + 1j * rng.standard_normal(SHAPE)).astype(
            dtype
        )
    if dtype.kind == "f":
        return rng.standard_normal(SHAPE).astype(dtype)
    return np.zeros(SHAPE, dtype)


def _make_library_value(kind: str, rng: Any) -> Any:
    """Return a value of a kind that needs a library."""
    import numpy as np

    values = rng.standard_normal(SHAPE).astype(np.float32)
    if kind == "sparse":
        from scipy.sparse import csr_matrix

        return csr_matrix(np.where(values > 0, values, 0))
    if kind == "arrow_tensor":
        import pyarrow

        return pyarrow.Tensor.from_numpy(values)
    if kind == "dataframe":
        import pandas

        return pandas.DataFrame(values, columns=list("abcd"))
    return {"values": values}
