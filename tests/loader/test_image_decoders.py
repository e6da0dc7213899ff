"""Decoders of images: choice, and results of odd files, with Pillow as oracle."""

from __future__ import annotations

import io
import math
import os
import warnings
from pathlib import Path
from struct import pack

import numpy as np
import pytest

from fastshard import FormatError, MissingLibraryError
from fastshard.codecs.images import PLUGINS, READERS
from fastshard.loader import image_decoders, images
from fastshard.loader.image_header import KINDS, read_header
from fastshard.loader.images import ImageOptions, ImageReader

pytest.importorskip("PIL")

from PIL import Image, ImageOps

from support.images.damage import iterate_damaged
from support.images.pictures import decode_by_pillow, encode, make_picture
from support.images.use import ImageUse
from support.inside.datasets import hide_library
from support.marks import slow

PILLOW_IMAGES = os.environ.get("FASTSHARD_PILLOW_IMAGES")  # Tests/images of its sdist


def reader(*args, **options):
    return ImageReader(ImageOptions.checked(*args, **options))


def is_taken_by_pillow(view):
    try:
        decode_by_pillow(view)
    except OSError:
        return False
    return True


def test_kinds_are_those_of_the_decoders_by_extension():
    assert KINDS == READERS


@pytest.mark.parametrize("decoder", [None, "pillow"])
@pytest.mark.parametrize("wanted", ["RGB", "L"])
@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_jpeg_is_bit_equal(mode, subsampling, progressive, wanted, decoder):
    options = {} if mode == "L" else {"subsampling": subsampling}
    view = encode(
        make_picture((93, 61), mode), "JPEG", progressive=progressive, **options
    )

    found = reader(mode=wanted, decoder=decoder).read(view)

    assert np.array_equal(found, decode_by_pillow(view, wanted))


@pytest.mark.parametrize("options", [{"restart_marker_blocks": 3}, {"keep_rgb": True}])
def test_jpeg_with_restarts_or_of_rgb_is_bit_equal(options):
    view = encode(make_picture((93, 61)), "JPEG", **options)

    assert np.array_equal(reader().read(view), decode_by_pillow(view))


@pytest.mark.parametrize("wanted", ["RGB", "L"])
def test_cmyk_is_bit_equal(wanted):
    view = encode(make_picture((93, 61), "CMYK"), "JPEG")

    found = reader(mode=wanted).read(view)

    assert np.array_equal(found, decode_by_pillow(view, wanted))


@pytest.mark.parametrize("wanted", ["RGB", "L"])
def test_cmyk_without_pillow_or_by_simplejpeg_is_within_2(wanted, monkeypatch):
    view = encode(make_picture((93, 61), "CMYK"), "JPEG")
    expected = decode_by_pillow(view, wanted).astype(int)
    pytest.importorskip("simplejpeg")

    by_name = reader(mode=wanted, decoder="simplejpeg").read(view)
    hide_library(monkeypatch, "PIL.JpegImagePlugin")
    without = reader(mode=wanted).read(view)

    assert np.abs(by_name - expected).max() <= 2
    assert np.abs(without - expected).max() <= 2


def test_jpeg_that_simplejpeg_refuses_goes_to_pillow():
    # Factors of 1 x 3: a subsampling that TurboJPEG does not name.
    raw = bytearray(encode(make_picture((48, 48)), "JPEG", subsampling="4:4:4"))
    frame = raw.index(b"\xff\xc0")
    raw[frame + 11] = 0x13
    view = memoryview(bytes(raw))

    try:
        expected = decode_by_pillow(view)
    except OSError:
        with pytest.raises(FormatError):
            reader().read(view)
    else:
        assert np.array_equal(reader().read(view), expected)


def test_bytes_behind_the_end_do_no_harm():
    view = encode(make_picture(), "JPEG")

    found = reader().read(memoryview(bytes(view) + b"trailing \xff\xd8 bytes" * 20))

    assert np.array_equal(found, decode_by_pillow(view))


@pytest.mark.parametrize("decoder", [None, "pillow"])
def test_jpeg_without_its_end_marker_is_truncated(decoder):
    pictures = [make_picture((60 + i, 50)) for i in range(40)]
    views = [encode(picture, "JPEG")[:-2] for picture in pictures]
    assert any(is_taken_by_pillow(view) for view in views)

    for view, picture in zip(views, pictures, strict=True):
        with pytest.raises(FormatError, match="truncated JPEG"):
            reader(decoder=decoder).read(view)
        filled = reader(decoder=decoder, truncated="fill").read(view)
        assert np.array_equal(filled, decode_by_pillow(encode(picture, "JPEG")))


@pytest.mark.parametrize("decoder", [None, "pillow"])
def test_option_of_pillow_to_load_truncated_images_does_not_count(decoder, monkeypatch):
    monkeypatch.setattr("PIL.ImageFile.LOAD_TRUNCATED_IMAGES", True)
    view = encode(make_picture(), "JPEG")

    with pytest.raises(FormatError, match="truncated JPEG"):
        reader(decoder=decoder).read(view[: len(view) * 3 // 4])


def test_jpeg_of_two_sizes_is_refused(monkeypatch):
    header = image_decoders.ImageHeader

    def mistake(view):
        found = read_header(view)
        return header(found.kind, 10, 10, found.orientation, found.jpeg)

    monkeypatch.setattr(images, "read_header", mistake)
    monkeypatch.setattr(images, "plain_shape", lambda *_: (10, 10, 3))

    for decoder in (None, "pillow"):
        with pytest.raises(FormatError, match="two sizes"):
            reader(decoder=decoder).read(encode(make_picture(), "JPEG"))


@pytest.mark.parametrize(
    "shape", [(10, 10, 3), (37, 52, 3), (53, 37, 3), (37, 54, 3), (60, 60, 3)]
)
@pytest.mark.parametrize("sides", [(53, 37), (37838, 37838), (65500, 65500)])
def test_row_of_another_size_than_the_decoder_reads_is_refused(shape, sides):
    raw = bytearray(encode(make_picture((53, 37)), "JPEG"))
    frame = raw.index(b"\xff\xc0")
    raw[frame + 5 : frame + 9] = pack(">HH", *sides[::-1])
    pytest.importorskip("simplejpeg")
    memory = np.full(math.prod(shape) + 8192, 85, np.uint8)
    row = memory[4096:-4096].reshape(shape)

    assert not image_decoders.decode_plain(memoryview(raw), row)

    assert (memory[:4096] == 85).all()
    assert (memory[-4096:] == 85).all()


@pytest.mark.parametrize("bits", [12, 16])
def test_jpeg_of_other_bits_is_an_error_by_name(bits):
    raw = bytearray(encode(make_picture(), "JPEG"))
    raw[raw.index(b"\xff\xc0") + 4] = bits

    with pytest.raises(FormatError, match=f"{bits} bits"):
        reader().read(memoryview(raw))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
@pytest.mark.parametrize("wanted", ["RGB", "L"])
def test_png_modes_equal_pillow(mode, wanted):
    view = encode(make_picture(mode=mode), "PNG")

    assert np.array_equal(
        reader(mode=wanted).read(view), decode_by_pillow(view, wanted)
    )


def test_transparency_is_dropped_without_a_warning():
    image = make_picture().convert("P")
    expected = np.asarray(image.convert("RGB"))

    for transparency in (3, bytes(range(256))):
        view = encode(image, "PNG", transparency=transparency)
        assert np.array_equal(reader().read(view), expected)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_16_bits_become_the_high_byte(kind):
    values = np.arange(53 * 37, dtype=np.uint16).reshape(37, 53) * 33
    view = encode(Image.fromarray(values), kind)
    high = (values >> 8).astype(np.uint8)[:, :, None]

    assert np.array_equal(reader(mode="L").read(view), high)
    assert np.array_equal(reader().read(view), np.repeat(high, 3, 2))


@pytest.mark.parametrize(("dtype", "mode"), [("i4", "I"), ("f4", "F")])
def test_values_of_32_bits_are_an_error_by_name(dtype, mode):
    view = encode(Image.fromarray(np.ones((3, 4), dtype)), "TIFF")

    with pytest.raises(FormatError, match=f"mode {mode}"):
        reader().read(view)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "TIFF", "PNG"])
def test_first_picture_of_several(kind):
    first = make_picture()
    options = {"lossless": True} if kind == "WEBP" else {}
    view = encode(
        first, kind, save_all=True, append_images=[first.rotate(90)], **options
    )

    found = reader().read(view)

    assert np.array_equal(found, decode_by_pillow(view))
    if kind != "GIF":
        assert np.array_equal(found, np.asarray(first))


def test_kind_is_told_by_the_first_bytes():
    view = encode(make_picture(), "EPS")

    with pytest.raises(FormatError, match="known kind"):
        reader().read(view)


def test_tiff_of_large_tiles_is_refused():
    sizes = {256: 4, 257: 4, 258: 8, 259: 5, 262: 1, 277: 1, 322: 1 << 20, 323: 1 << 20}
    entries = sorted((sizes | {324: 8, 325: 16}).items())
    raw = pack("<4sIH", b"II*\0", 8, len(entries))
    for tag, value in entries:
        raw += pack("<HHII", tag, 4, 1, value)
    view = memoryview(raw + bytes(40))

    with pytest.raises(FormatError, match="tiles of more than max_pixels"):
        reader().read(view)


def test_own_decoder_gets_the_view():
    pixels = np.arange(12 * 10 * 3, dtype=np.uint8).reshape(12, 10, 3)
    seen = []

    def decode(view):
        seen.append(bytes(view))
        return pixels

    found = reader(decoder=decode).read(memoryview(b"anything"))

    assert seen == [b"anything"]
    assert np.array_equal(found, pixels)
    assert reader(5, decoder=decode, crop="center").read(b"x").shape == (5, 5, 3)
    gray = reader(decoder=decode, mode="L").read(memoryview(b"x"))
    assert np.array_equal(
        gray[:, :, 0], np.asarray(Image.fromarray(pixels).convert("L"))
    )


@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 1), (4, 5, 4)])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_own_decoder_of_other_channels(shape, mode):
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)

    found = reader(decoder=lambda view: pixels, mode=mode).read(memoryview(b"x"))

    plain = pixels[:, :, 0] if shape[-1] == 1 else pixels
    image = Image.fromarray(plain).convert("RGB").convert(mode)
    assert np.array_equal(found, np.asarray(image).reshape(4, 5, -1))


@pytest.mark.parametrize(
    ("result", "error"),
    [
        (None, TypeError),
        (np.zeros((2, 2, 3), np.float32), ValueError),
        (np.zeros((2, 2, 2), np.uint8), ValueError),
        (np.zeros(4, np.uint8), ValueError),
        (np.zeros((0, 2, 3), np.uint8), FormatError),
        (np.zeros((9, 9, 3), np.uint8), FormatError),
    ],
)
def test_result_of_own_decoder_is_checked(result, error):
    with pytest.raises(error):
        reader(decoder=lambda view: result, max_pixels=80).read(memoryview(b"x"))


def test_own_decoder_does_not_see_a_bomb():
    def decode(view):
        raise AssertionError

    with pytest.raises(FormatError, match="max_pixels"):
        reader(decoder=decode, max_pixels=50).read(encode(make_picture(), "JPEG"))


def test_without_simplejpeg_pillow_decodes(monkeypatch):
    view = encode(make_picture(), "JPEG")
    hide_library(monkeypatch, "simplejpeg")
    hide_library(monkeypatch, "imagecodecs")

    assert np.array_equal(reader().read(view), decode_by_pillow(view))
    for name in ("simplejpeg", "imagecodecs"):
        with pytest.raises(MissingLibraryError, match=f"needs {name}: pip install"):
            reader(decoder=name).read(view)


def test_features_without_pillow_name_it(monkeypatch):
    for module, _ in PLUGINS.values():
        hide_library(monkeypatch, f"PIL.{module}")
    hide_library(monkeypatch, "simplejpeg")
    hide_library(monkeypatch, "imagecodecs")

    for kind in ("PNG", "JPEG"):
        with pytest.raises(MissingLibraryError, match=r"Pillow .*fastshard\[images\]"):
            reader().read(encode(make_picture(), kind))


def test_without_pillow_simplejpeg_decodes_and_fills(monkeypatch):
    pytest.importorskip("simplejpeg")
    view = encode(make_picture(), "JPEG")
    expected = decode_by_pillow(view)
    hide_library(monkeypatch, "PIL.JpegImagePlugin")

    assert np.array_equal(reader(decoder="simplejpeg").read(view), expected)
    with pytest.raises(FormatError, match="truncated"):
        reader(decoder="simplejpeg").read(view[:-100])
    filled = reader(decoder="simplejpeg", truncated="fill").read(view[:-100])
    assert filled.shape == expected.shape


def test_memory_errors_pass(monkeypatch):
    def fail(*args, **options):
        raise MemoryError

    monkeypatch.setattr(Image.Image, "convert", fail)

    with pytest.raises(MemoryError):
        reader().read(encode(make_picture(), "PNG"))


def test_filled_pictures_have_no_old_bytes_of_memory(monkeypatch):
    """This file stops the decoder in the middle."""
    ((_, data),) = iterate_damaged(67, 68)
    reader = ImageReader(ImageOptions.checked(truncated="fill"))
    shape = reader.shape_of(memoryview(data))
    found = []
    for value in (7, 99):
        out = np.full(shape, value, "u1")
        found.append(reader.read(memoryview(data), None, out))
    assert np.array_equal(*found)


def test_damaged_files_are_pictures_or_errors():
    use = ImageUse()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _, raw in iterate_damaged(0, 300):
            use.try_one(raw)

    assert use.pictures > 100
    assert use.refused > 500


@slow
def test_many_damaged_files_are_pictures_or_errors():
    use = ImageUse()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _, raw in iterate_damaged(300, 20_000):
            use.try_one(raw)


@pytest.mark.skipif(PILLOW_IMAGES is None, reason="FASTSHARD_PILLOW_IMAGES is not set")
@pytest.mark.parametrize("decoder", [None, "pillow"])
@pytest.mark.parametrize("orient", [False, True])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_pictures_of_pillows_own_tests(mode, orient, decoder):
    """Equal to Pillow but for 16 bits (the high byte), I and F (errors)."""
    compared = 0
    for path in sorted(Path(PILLOW_IMAGES or "").rglob("*")):
        if not path.is_file():
            continue
        raw = path.read_bytes()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected, stored = _decode_whole(raw, mode, orient)
            try:
                found = reader(mode=mode, orient=orient, decoder=decoder).read(raw)
            except FormatError:
                assert expected is None or stored in ("I", "F"), path
                continue
        if stored.startswith("I"):
            continue
        assert expected is not None, path
        assert found.shape == expected.shape, path
        assert np.array_equal(found, expected), path
        compared += 1
    assert compared > 300


def _decode_whole(raw, mode, orient):
    try:
        image = Image.open(io.BytesIO(raw), formats=READERS)
        image.load()
        stored = image.mode
        if orient:
            image = ImageOps.exif_transpose(image)
        array = np.asarray(image.convert(mode))
    except Exception:
        return None, ""
    return array.reshape(*array.shape[:2], -1), stored
