"""Boxes of crops: centred or at random by seed, epoch and position."""

from __future__ import annotations

import math
from collections.abc import Iterator
from hashlib import blake2b
from struct import Struct
from typing import TypeAlias

__all__ = ["Box", "center_box", "random_box", "uniforms"]

# x0, y0, x1, y1 in pixels, as Pillow's ``box=``.
Box: TypeAlias = tuple[float, float, float, float]

TRIES = 10  # of a random box, then the centre is taken
WORDS = Struct("<8Q")


def uniforms(seed: int, epoch: int, position: int) -> Iterator[float]:
    """Yield numbers of [0, 1) that depend on the arguments alone.

    Block n of eight numbers is the BLAKE2b of ``"seed:epoch:position:n"``.
    """
    block = 0
    while True:
        text = f"{seed}:{epoch}:{position}:{block}".encode()
        for word in WORDS.unpack(blake2b(text, person=b"images").digest()):
            yield (word >> 11) * 2.0**-53
        block += 1


def center_box(width: int, height: int, shape: tuple[int, int]) -> Box:
    """Return the largest centred box with the sides' ratio of a target.

    Its left and upper sides are whole pixels, so that a box of the target's own size
    is copied.
    """
    high, wide = shape
    box_width = min(float(width), height * wide / high)
    box_height = min(float(height), width * high / wide)
    x0 = float((width - box_width) // 2)
    y0 = float((height - box_height) // 2)
    return x0, y0, x0 + box_width, y0 + box_height


def random_box(
    width: int,
    height: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    draws: Iterator[float],
) -> Box:
    """Return a box as torchvision's RandomResizedCrop draws it."""
    area = width * height
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(TRIES):
        target = area * (scale[0] + (scale[1] - scale[0]) * next(draws))
        aspect = math.exp(low + (high - low) * next(draws))
        down, right = next(draws), next(draws)
        w = round(math.sqrt(target * aspect))
        h = round(math.sqrt(target / aspect))
        if 0 < w <= width and 0 < h <= height:
            y0 = int(down * (height - h + 1))
            x0 = int(right * (width - w + 1))
            return float(x0), float(y0), float(x0 + w), float(y0 + h)
    w, h = width, height
    if width / height < ratio[0]:
        h = max(1, min(height, round(width / ratio[0])))
    elif width / height > ratio[1]:
        w = max(1, min(width, round(height * ratio[1])))
    x0, y0 = (width - w) // 2, (height - h) // 2
    return float(x0), float(y0), float(x0 + w), float(y0 + h)
