"""One image: decoded, oriented, cropped and resized, with Pillow as the oracle."""

from __future__ import annotations

import io

import numpy as np
import pytest

from fastshard import FormatError
from fastshard.loader.images import ImageOptions, ImageReader

pytest.importorskip("PIL", reason="no PIL for this Python")

from PIL import Image, ImageOps


def make_picture(size=(53, 37), mode="RGB"):
    rng = np.random.default_rng(1)
    noise = rng.integers(0, 256, (6, 8, 3), np.uint8)
    return Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC).convert(mode)


def encode(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return memoryview(file.getvalue())


def decode_by_pillow(view, mode="RGB"):
    with Image.open(io.BytesIO(view)) as image:
        array = np.asarray(image.convert(mode))
    return array.reshape(*array.shape[:2], -1)


def reader(*args, **options):
    return ImageReader(ImageOptions.checked(*args, **options))


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "PPM", "WEBP"])
def test_same_pixels_as_pillow(kind, mode):
    view = encode(make_picture(), kind)

    assert np.array_equal(reader(mode=mode).read(view), decode_by_pillow(view, mode))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_of_exif_is_applied(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    view = encode(make_picture(), "JPEG", exif=exif.tobytes())

    with Image.open(io.BytesIO(view)) as image:
        expected = np.asarray(ImageOps.exif_transpose(image))

    assert np.array_equal(reader().read(view), expected)
    assert np.array_equal(reader(orient=False).read(view), decode_by_pillow(view))


def test_truncated_jpeg_is_an_error_or_filled():
    view = encode(make_picture(), "JPEG")

    with pytest.raises(FormatError, match="truncated"):
        reader().read(view[:-150])
    filled = reader(truncated="fill").read(view[:-150])
    assert np.array_equal(filled[:16], reader().read(view)[:16])
    assert (filled[-1] == 128).all()
