"""A type of samples, functions of them that pickle, and shards of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastshard import typed
from support.typed.packed import write_shard

__all__ = ["Photo", "is_odd", "label_of", "row", "write_photos"]


@typed.packable
class Photo:
    """A picture of two by three pixels, and its number."""

    number: int
    label: str
    image: NDArray[np.float32]


def row(i: int) -> dict[str, Any]:
    """Return the values of the i-th sample."""
    image = np.arange(6, dtype="f4").reshape(2, 3) + i
    return {"number": i, "label": f"photo {i}", "image": image}


def write_photos(folder: Path, shards: int = 3, each: int = 10) -> str:
    """Write shards of photos; return their pattern."""
    for k in range(shards):
        rows = [row(i) for i in range(each * k, each * (k + 1))]
        write_shard(folder / f"photos-{k}.tar", rows, start=each * k)
    return str(folder / f"photos-{{0..{shards - 1}}}.tar")


def is_odd(photo: Photo) -> bool:
    """Return whether a photo's number is odd."""
    return photo.number % 2 == 1


def label_of(photo: Photo) -> str:
    """Return a photo's label."""
    return photo.label
