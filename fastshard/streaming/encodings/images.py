"""MDS encodings of images and of lists of images."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fastshard.errors import FormatError
from fastshard.formats.decoders import open_image
from fastshard.streaming.encodings.base import (
    Buffer,
    Encoding,
    check_type,
    fail,
    pillow,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "ImageListEncoding",
    "JPEGArrayEncoding",
    "JPEGEncoding",
    "PILEncoding",
    "PNGEncoding",
]

MODES = {  # bits of a pixel
    **dict.fromkeys(("L", "P"), 8),
    **dict.fromkeys(("LA", "La", "PA", "I;16", "I;16L", "I;16B", "I;16N"), 16),
    **dict.fromkeys(("RGB", "YCbCr", "LAB", "HSV"), 24),
    **dict.fromkeys(("RGBA", "RGBX", "RGBa", "CMYK", "I", "F"), 32),
    "1": 1,  # rows are padded to bytes
}


class PILEncoding(Encoding):
    """Pixels of a Pillow image, with its size and mode."""

    def encode(self, obj: Any) -> bytes:
        check_type(obj, pillow().Image)
        mode: bytes = obj.mode.encode()
        head = struct.pack("<3I", *obj.size, len(mode))
        return head + mode + bytes(obj.tobytes())

    def decode(self, data: Buffer) -> Any:
        view = memoryview(data)
        if len(view) < 12:
            fail(f"{len(view)} bytes of an image, its header has 12", 0)
        width, height, length = struct.unpack_from("<3I", view)
        if length > len(view) - 12:
            fail("the mode of an image exceeds its bytes", 8)
        mode = str(view[12 : 12 + length], "latin-1")
        bits = MODES.get(mode)
        if bits is None:
            fail(f"an image of unknown mode {mode[:16]!r}", 12)
        pixels = view[12 + length :]
        if (width * bits + 7) // 8 * height != len(pixels):
            fail(
                f"{len(pixels):,} bytes for an image of {width} x {height} pixels of "
                f"mode {mode!r}",
                0,
            )
        return pillow().frombytes(mode, (width, height), bytes(pixels))


class JPEGEncoding(Encoding):
    """JPEG file. An image that was opened from a file is stored as that file."""

    def encode(self, obj: Any) -> bytes:
        check_type(obj, pillow().Image)
        if isinstance(obj, pillow("JpegImagePlugin").JpegImageFile) and obj.filename:
            with suppress(FileNotFoundError):
                stored: bytes = Path(obj.filename).read_bytes()
                return stored
        return save_image(obj, "JPEG")

    def decode(self, data: Buffer) -> Any:
        return decode_image(data)


class PNGEncoding(Encoding):
    """PNG file."""

    def encode(self, obj: Any) -> bytes:
        check_type(obj, pillow().Image)
        return save_image(obj, "PNG")

    def decode(self, data: Buffer) -> Any:
        return decode_image(data)


class JPEGArrayEncoding(Encoding):
    """JPEG files one after another: from bytes, to images."""

    def encode(self, obj: Sequence[Buffer]) -> bytes:
        return join_items([memoryview(item).cast("B") for item in obj])

    def decode(self, data: Buffer) -> list[Any]:
        ends = decode_ends(data, 0)
        if not len(ends):
            fail("an array of no images", 0)
        return decode_items(decode_image, data, ends, 4)


class ImageListEncoding(Encoding):
    """List of images of one encoding."""

    def __init__(self, item: Encoding) -> None:
        self._item = item

    def encode(self, obj: list[Any]) -> bytes:
        check_type(obj, list)
        return bytes(4) + join_items([self._item.encode(item) for item in obj])

    def decode(self, data: Buffer) -> list[Any]:
        if bytes(data[:4]) != bytes(4):  # reserved
            fail("a list of images begins with four zero bytes", 0)
        return decode_items(self._item.decode, data, decode_ends(data, 4), 8)


def save_image(image: Any, kind: str) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format=kind)
    return stream.getvalue()


def decode_image(data: Buffer) -> Any:
    """Return an image that reads its pixels at first use, from a copy of the bytes."""
    return open_image(io.BytesIO(data), rare=True)


def join_items(items: Sequence[bytes | memoryview]) -> bytes:
    """Return the number of items, their sizes, and the items."""
    sizes = [len(items), *map(len, items)]
    return b"".join([struct.pack(f"<{len(sizes)}I", *sizes), *items])


def decode_ends(data: Buffer, at: int) -> NDArray[np.int64]:
    """Return where the items of `join_items` end, for a list at an offset."""
    left = len(data) - at
    if left < 4:
        fail("no number of images", min(at, len(data)))
    (count,) = struct.unpack_from("<I", data, at)
    if count > (left - 4) // 4:
        fail(f"{left - 4:,} bytes for the sizes of {count:,} images", at)
    sizes = np.frombuffer(data, "<u4", count, at + 4)
    ends: NDArray[np.int64] = sizes.cumsum(dtype=np.int64) + (at + 4 + 4 * count)
    end = ends[-1] if count else at + 4
    if end != len(data):
        fail(f"{count:,} images end at byte {end:,} of {len(data):,}", at)
    return ends


def decode_items(
    decode: Callable[[Buffer], Any], data: Buffer, ends: NDArray[np.int64], head: int
) -> list[Any]:
    """Decode items behind a header and a table of sizes."""
    view = memoryview(data)
    start = head + 4 * len(ends)
    items = []
    for i, end in enumerate(map(int, ends)):
        try:
            items.append(decode(view[start:end]))
        except FormatError as error:
            fail(f"image {i}: {error.reason}", start + error.offset, error)
        start = end
    return items
