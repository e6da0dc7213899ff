"""Headers of images: kinds, sizes, orientation, scans; Pillow as the oracle."""

from __future__ import annotations

import io
from struct import pack

import numpy as np
import pytest

from fastshard import FormatError
from fastshard.loader.image_header import (
    count_scans,
    read_exif_orientation,
    read_header,
)

pytest.importorskip("PIL")

from PIL import Image, ImageOps

from fastshard.loader.images import ImageOptions, ImageReader
from support.images.pictures import encode, make_picture

XMP = b"http://ns.adobe.com/xap/1.0/\0"


def with_segment(view, code, content):
    """Return a JPEG with a segment behind its first marker."""
    raw = bytes(view)
    return memoryview(
        raw[:2] + bytes([0xFF, code]) + pack(">H", len(content) + 2) + content + raw[2:]
    )


def exif_block(tag, *, order="<", kind=3, count=1, start=8, tags=1):
    mark = b"II*\0" if order == "<" else b"MM\0*"
    value = pack(order + "H", tag) + b"\0\0" if kind == 3 else pack(order + "I", tag)
    entry = pack(order + "HHI", 0x0112, kind, count) + value
    return mark + pack(order + "IH", start, tags) + entry + bytes(4)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "WEBP"])
@pytest.mark.parametrize("size", [(1, 1), (53, 37), (300, 2)])
def test_kind_and_size(kind, size):
    header = read_header(encode(make_picture(size), kind))

    assert header[:3] == (kind, *size)


@pytest.mark.parametrize("lossless", [True, False])
@pytest.mark.parametrize("alpha", [True, False])
def test_size_of_each_form_of_webp(lossless, alpha):
    image = make_picture((77, 5)).convert("RGBA" if alpha else "RGB")

    assert read_header(encode(image, "WEBP", lossless=lossless))[1:3] == (77, 5)
    frames = encode(image, "WEBP", save_all=True, append_images=[image.rotate(9)])
    assert read_header(frames)[1:3] == (77, 5)


def test_size_of_a_gif_whose_first_image_exceeds_its_screen():
    raw = bytearray(encode(make_picture((30, 20)), "GIF"))
    raw[6:10] = pack("<HH", 3, 4)

    header = read_header(memoryview(raw))

    with Image.open(io.BytesIO(raw)) as image:
        assert header[1:3] == image.size == (30, 20)


@pytest.mark.parametrize("progressive", [True, False])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_frame_of_a_jpeg(mode, progressive):
    view = encode(make_picture(mode=mode), "JPEG", progressive=progressive)

    facts = read_header(view).jpeg

    components = {"RGB": 3, "L": 1, "CMYK": 4}[mode]
    assert (facts.precision, facts.components) == (8, components)
    assert facts.process == (0xC2 if progressive else 0xC0)
    assert facts.is_one_scan is not progressive
    assert bytes(view[facts.scan : facts.scan + 2]) == b"\xff\xda"
    scans, end = count_scans(view, facts.scan)
    assert scans == bytes(view).count(b"\xff\xda")
    assert end == len(view) - 2


def test_scans_of_a_truncated_jpeg():
    view = encode(make_picture(), "JPEG", progressive=True)
    scan = read_header(view).jpeg.scan
    starts = [i for i in range(len(view)) if bytes(view[i : i + 2]) == b"\xff\xda"]

    assert count_scans(view[: starts[2] + 5], scan) == (2, starts[2])
    assert count_scans(view[:-2], scan) == (len(starts), len(view) - 2)


def test_marker_of_a_scan_inside_a_comment_is_ignored():
    view = with_segment(encode(make_picture(), "JPEG"), 0xFE, b"\xff\xda" * 300)

    assert count_scans(view, read_header(view).jpeg.scan)[0] == 1
    assert ImageReader(ImageOptions()).read(view).shape == (37, 53, 3)


@pytest.mark.parametrize(("scans", "is_read"), [(99, True), (101, False)])
def test_jpeg_of_more_than_100_scans_is_refused(scans, is_read):
    view = encode(make_picture((16, 16)), "JPEG", progressive=True)
    raw = bytes(view)
    at = [i for i in range(len(raw)) if raw[i : i + 2] == b"\xff\xda"]
    # The last scan, again and again; whether decoders take it is theirs to say.
    again = raw[at[-1] : -2] * (scans - len(at))
    bomb = memoryview(raw[:-2] + again + b"\xff\xd9")

    try:
        ImageReader(ImageOptions()).read(bomb)
    except FormatError as error:
        assert ("more than 100 scans" in error.reason) is not is_read
    else:
        assert is_read


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("value", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 257])
def test_orientation_of_exif(value, order):
    exif = exif_block(value, order=order)
    view = with_segment(encode(make_picture(), "JPEG"), 0xE1, b"Exif\0\0" + exif)

    with Image.open(io.BytesIO(view)) as image:
        expected = np.asarray(ImageOps.exif_transpose(image))

    orientation = value if 1 <= value <= 8 else 1
    assert read_exif_orientation(exif) == orientation
    assert read_header(view).orientation == orientation
    assert np.array_equal(ImageReader(ImageOptions()).read(view), expected)


@pytest.mark.parametrize(
    "exif",
    [
        b"",
        b"II*\0",
        b"XX*\0" + exif_block(6)[4:],
        exif_block(6, start=1 << 31),
        exif_block(6, start=0xFFFFFFFF),
        exif_block(6, count=3),
        exif_block(6, count=0),
        exif_block(6, kind=2),
        exif_block(6)[:-8],
        exif_block(6, tags=0),
        b"II*\0" + bytes(200),
    ],
)
def test_damaged_orientation_is_1(exif):
    view = with_segment(encode(make_picture(), "JPEG"), 0xE1, b"Exif\0\0" + exif)

    assert read_header(view).orientation == 1
    assert ImageReader(ImageOptions()).read(view).shape == (37, 53, 3)


ORIENTATION = pack("<HHIHH", 0x0112, 3, 1, 6, 0)
OTHER = pack("<HHIHH", 0x0112, 3, 1, 3, 0)
CUT_OFF = pack("<HHII", 0x010F, 2, 8, 9999)
TOO_LARGE = pack("<HHII", 0x010F, 2, 9999, 9999)


@pytest.mark.parametrize(
    ("entries", "values"),
    [
        ([pack("<HHIHH", 0x0112, 3, 2, 6, 3)], b""),
        ([pack("<HHII", 0x0112, 5, 1, 26)], pack("<II", 6, 1)),
        ([pack("<HHII", 0x0112, 5, 1, 30)], pack("<II", 6, 1)),  # 4 bytes too far
        ([pack("<HHII", 0x0112, 10, 1, 26)], pack("<ii", -12, -2)),
        ([pack("<HHII", 0x0112, 5, 1, 26)], pack("<II", 6, 0)),
        ([pack("<HHII", 0x0112, 5, 1, 26)], pack("<II", 13, 2)),
        ([pack("<HHIf", 0x0112, 11, 1, 6)], b""),
        ([pack("<HHII", 0x0112, 12, 1, 26)], pack("<d", 6)),
        ([pack("<HHII", 0x0112, 13, 1, 6)], b""),
        ([pack("<HHII", 0x0112, 99, 1, 6)], b""),
        ([pack("<HHII", 0x0112, 7, 1, 6)], b""),
        ([ORIENTATION, OTHER], b""),
        ([pack("<HHIHH", 0x0112, 3, 0, 6, 0), ORIENTATION], b""),
        ([CUT_OFF, ORIENTATION], b""),
        ([TOO_LARGE, ORIENTATION], b""),
    ],
)
@pytest.mark.parametrize("xmp", [b"", b'tiff:Orientation="8"'])
@pytest.mark.parametrize("start", [b"Exif\0\0", b"Exif\0\0Exif\0\0"])
@pytest.mark.filterwarnings("ignore")
def test_odd_tag_counts_as_for_pillow(entries, values, xmp, start):
    exif = b"II*\0" + pack("<IH", 8, len(entries)) + b"".join(entries)
    view = with_segment(encode(make_picture(), "JPEG"), 0xE1, XMP + xmp)
    view = with_segment(view, 0xE1, start + exif + bytes(4) + values)

    with Image.open(io.BytesIO(view)) as image:
        expected = np.asarray(ImageOps.exif_transpose(image))

    assert np.array_equal(ImageReader(ImageOptions()).read(view), expected)


def test_xmp_does_not_count_beside_a_damaged_exif():
    view = with_segment(encode(make_picture(), "JPEG"), 0xE1, b"Exif\0\0XX*\0")
    view = with_segment(view, 0xE1, XMP + b'tiff:Orientation="8"')

    with Image.open(io.BytesIO(view)) as image:
        assert ImageOps.exif_transpose(image).size == image.size
    assert read_header(view).orientation == 1


def test_directory_that_says_more_tags_than_it_has_is_read():
    view = encode(make_picture(), "JPEG")
    exif = exif_block(6, tags=60_000)

    assert read_header(with_segment(view, 0xE1, b"Exif\0\0" + exif)).orientation == 6


@pytest.mark.parametrize("text", [b'tiff:Orientation="8"', b"tiff:Orientation>8<"])
def test_orientation_of_xmp_counts_without_that_of_exif(text):
    view = with_segment(encode(make_picture(), "JPEG"), 0xE1, XMP + b"<x " + text)

    with Image.open(io.BytesIO(view)) as image:
        expected = np.asarray(ImageOps.exif_transpose(image))

    assert np.array_equal(ImageReader(ImageOptions()).read(view), expected)
    both = with_segment(view, 0xE1, b"Exif\0\0" + exif_block(3))
    assert read_header(both).orientation == 3


def test_exif_in_several_segments_is_joined():
    exif = exif_block(6)
    view = encode(make_picture(), "JPEG")
    view = with_segment(view, 0xE1, b"Exif\0\0" + exif[12:])
    view = with_segment(view, 0xE1, b"Exif\0\0" + exif[:12])

    with Image.open(io.BytesIO(view)) as image:
        assert ImageOps.exif_transpose(image).size == (37, 53)
    assert read_header(view).orientation == 6


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "WEBP"])
def test_every_cut_of_a_header_is_an_error_or_read(kind):
    view = encode(make_picture(), kind)
    whole = read_header(view)

    for n in range(min(len(view), 700)):
        try:
            assert read_header(view[:n]) == whole
        except FormatError as error:
            assert error.offset <= n


@pytest.mark.parametrize(
    ("raw", "match"),
    [
        (b"", "no bytes"),
        (b"hello", "known kind"),
        (b"%!PS-Adobe-3.0 EPSF", "known kind"),
        (b"\xff\xd8", "truncated JPEG"),
        (b"\xff\xd8\xff\xd9", "without a scan"),
        (b"\xff\xd8\xff\xda\0\x04\1\1", "before its frame"),
        (b"\xff\xd8\xff\xc0\0\x04\x08\1", "damaged JPEG frame"),
        (b"\xff\xd8" + b"\xff\xc0\0\x08\x08\0\1\0\1\1" * 2, "two frames"),
        (b"\xff\xd8\xff\xe0\0\1", "truncated JPEG"),
        (b"\xff\xd8" + b"\xff\xe0\0\2" * 5000, "4,096 segments"),
        (b"GIF89a" + bytes(7) + b";", "without an image"),
        (b"RIFF\0\0\0\0WEBPVP9 " + bytes(20), "damaged WEBP"),
    ],
)
def test_a_non_header_is_an_error(raw, match):
    with pytest.raises(FormatError, match=match) as raised:
        read_header(memoryview(raw))
    assert raised.value.path == "<view>"
    assert 0 <= raised.value.offset <= len(raw)
