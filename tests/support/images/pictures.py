"""Pictures for tests, encoded and decoded by Pillow."""

from __future__ import annotations

import io
from typing import Any

import numpy as np


def make_picture(size: tuple[int, int] = (53, 37), mode: str = "RGB") -> Any:
    """Return a smooth picture of a width and a height."""
    from PIL import Image

    rng = np.random.default_rng(1)
    noise = rng.integers(0, 256, (6, 8, 3), np.uint8)
    return Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC).convert(mode)


def encode(image: Any, kind: str, **options: Any) -> memoryview:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return memoryview(file.getvalue())


def decode_by_pillow(view: memoryview, mode: str = "RGB") -> np.ndarray:
    from PIL import Image

    with Image.open(io.BytesIO(view)) as image:
        array = np.asarray(image.convert(mode))
    return array.reshape(*array.shape[:2], -1)


def patch_jpeg_size(view: memoryview, width: int, height: int) -> memoryview:
    """Return a JPEG whose frame says another size."""
    raw = bytearray(view)
    at = min(raw.find(code) for code in (b"\xff\xc0", b"\xff\xc2") if code in raw)
    raw[at + 5 : at + 9] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    return memoryview(bytes(raw))
