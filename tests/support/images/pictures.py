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


def encode_lossless_jpeg(array: np.ndarray) -> memoryview:
    """Return a lossless JPEG of uint8 ``[height, width, 1 or 3]``, of gray or RGB.

    Each sample is predicted by the one to its left; in the first column, by the one
    above. Categories 0 to 8 of a difference are codes of 4 bits.
    """
    height, width, count = array.shape
    parts = [bytes([k, 0x11, 0]) for k in range(count)]
    frame = bytes([8, *divmod(height, 256), *divmod(width, 256), count])
    table = bytes([0, 0, 0, 0, 9, *[0] * 12, *range(9)])
    scan = bytes([count]) + b"".join(bytes([k, 0]) for k in range(count))
    segments = [
        (0xEE, b"Adobe\0\x64" + bytes(5)),
        (0xC3, frame + b"".join(parts)),
        (0xC4, table),
        (0xDA, scan + bytes([1, 0, 0])),
    ]
    wide = array.astype(int)
    before = np.empty_like(wide)
    before[:, 1:] = wide[:, :-1]
    before[1:, 0] = wide[:-1, 0]
    before[0, 0] = 128
    bits = []
    for difference in (wide - before).ravel().tolist():
        size = abs(difference).bit_length()
        bits.append(f"{size:04b}")
        if size:
            value = difference if difference > 0 else difference + (1 << size) - 1
            bits.append(f"{value:0{size}b}")
    text = "".join(bits)
    text += "1" * (-len(text) % 8)
    coded = int(text, 2).to_bytes(len(text) // 8, "big").replace(b"\xff", b"\xff\0")
    heads = [
        bytes([0xFF, code]) + (len(body) + 2).to_bytes(2, "big") + body
        for code, body in segments
    ]
    return memoryview(b"\xff\xd8" + b"".join(heads) + coded + b"\xff\xd9")
