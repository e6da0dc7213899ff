"""Resize of pictures from array to array, against Pillow, in one thread.

pytest bench/bench_loader_resize.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fastshard._core.loader.images import instruction_set, resize_into
from harness import SCALE, contenders, expect
from harness.pictures import photographs

CALLS = max(int(200 * SCALE), 2)  # a round

Box = tuple[float, float, float, float]
Resize = Callable[[Any, Box, Any], None]


def resize_fastshard(source: Any, box: Box, target: Any) -> None:
    resize_into(source, box, target)


def resize_plain(source: Any, box: Box, target: Any) -> None:
    resize_into(source, box, target, level="plain")


def resize_pillow(source: Any, box: Box, target: Any) -> None:
    """Resize as Pillow does, from array to array."""
    size = target.shape[1], target.shape[0]
    image = Image.fromarray(source)
    target[...] = np.asarray(image.resize(size, Image.Resampling.BILINEAR, box=box))


def photograph(width: int, height: int) -> Any:
    chosen = photographs()[0]
    return np.array(chosen.resize((width, height), Image.Resampling.BICUBIC))


@pytest.mark.parametrize(
    ("source", "box", "side"),
    [
        ((375, 375), (0, 0, 375, 375), 224),
        ((375, 375), (0, 0, 375, 375), 112),
        ((500, 375), (62, 0, 437, 375), 224),
        ((500, 375), (100.5, 20.25, 310.5, 200.75), 224),  # nearly the target's size
        ((100, 100), (0, 0, 100, 100), 224),
        ((1600, 1200), (200, 0, 1400, 1200), 224),
    ],
    ids=["375to224", "375to112", "crop", "near", "larger", "1200to224"],
)
@contenders(
    "resize",
    fastshard=resize_fastshard,
    plain_c=resize_plain,
    Pillow=resize_pillow,
)
def bench_resize(
    benchmark: Any,
    source: tuple[int, int],
    box: Box,
    side: int,
    read: Resize,
    turn: int,
) -> None:
    pixels = photograph(*source)
    target = np.zeros((side, side, 3), np.uint8)
    want = np.zeros((side, side, 3), np.uint8)
    resize_pillow(pixels, box, want)
    read(pixels, box, target)
    assert np.abs(target.astype(int) - want).max() <= 1

    def resize() -> None:
        for _ in range(CALLS):
            read(pixels, box, target)

    wide, high = box[2] - box[0], box[3] - box[1]
    what = f"{wide:g} x {high:g} of {source[0]} x {source[1]}"
    benchmark.group = f"resize {what} -> {side} x {side} RGB, one thread"
    benchmark.extra_info["operations"] = CALLS
    benchmark.extra_info["instructions"] = instruction_set()
    if source == (375, 375) and side == 224 and instruction_set() != "plain":
        expect(benchmark, "fastshard", "Pillow", 3.5)
        expect(benchmark, "plain_c", "Pillow", 2.0)
    benchmark.pedantic(resize, rounds=5)
