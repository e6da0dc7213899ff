"""Types and lenses of the indexes in ``tests/data/typed_index.tar.xz``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fastshard import typed

pd = pytest.importorskip("pandas")


@typed.packable
class Vec:
    """A vector with a name."""

    idx: int
    x: NDArray
    label: str


Vec1 = Vec  # "Vec" 1.0.0


@typed.packable  # type: ignore[no-redef]
class Vec:
    """A vector with a name and a weight."""

    idx: int
    x: NDArray
    label: str
    weight: float | None


Vec2 = Vec  # "Vec" 1.0.1
Vec = Vec1  # type: ignore[misc]


@typed.packable
class Doc:
    text: str
    pages: int
    score: float
    done: bool
    raw: bytes
    note: str | None
    tags: list[str]
    grid: list[list[int]]
    emb: NDArray[np.float64]
    mask: NDArray | None
    table: pd.DataFrame


@typed.packable
class Name:
    label: str


@typed.packable
class Length:
    n: int


def get_name(sample: Vec1) -> Name:
    return Name(label=sample.label)


def put_name(view: Name, sample: Vec1) -> Vec1:
    return Vec1(idx=sample.idx, x=sample.x, label=view.label)


def get_upper(sample: Vec1) -> Name:
    return Name(label=sample.label.upper())


def get_length(sample: Vec1) -> Length:
    return Length(n=len(sample.x))


# Not registered: two of them are of the same types.
vec_name = typed.Lens(get_name, put_name)
vec_upper = typed.Lens(get_upper)
vec_length = typed.Lens(get_length)


def closure(n: int) -> typed.Lens[Any, Any]:
    """Return a lens that no name leads to."""

    def get(sample: Vec1) -> Length:
        return Length(n=n)

    return typed.Lens(get)


def vec(i: int) -> Vec1:
    """Return a sample as those of the fixtures' shards."""
    x = np.arange(4, dtype="f4") + i
    return Vec1(idx=i, x=x, label=("cat", "dog", "eel")[i % 3])
