"""One image: decoded, oriented, cropped and resized, with Pillow as the oracle."""

from __future__ import annotations

import io
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from fastshard import FormatError
from fastshard.loader import images
from fastshard.loader.crops import center_box, random_box, uniforms
from fastshard.loader.images import ImageOptions, ImageReader
from fastshard.loader.times import ThreadTimes, set_current_times

pytest.importorskip("PIL")

from PIL import Image, ImageOps

from support.images.pictures import (
    decode_by_pillow,
    encode,
    encode_lossless_jpeg,
    make_picture,
    patch_jpeg_size,
)
from support.inside.datasets import forbid_scratch, scratch_sizes

# A change of these changes the results of users' seeds.
GOLDEN_NUMBERS = [0.716016903, 0.540639352, 0.781751116]
GOLDEN_BOXES = [
    (12, 17, 372, 346),
    (40, 18, 155, 164),
    (53, 4, 392, 375),
    (96, 22, 497, 346),
]
KINDS = ["JPEG", "PNG", "GIF", "BMP", "TIFF", "PPM", "WEBP"]


def reader(*args, **options):
    return ImageReader(ImageOptions.checked(*args, **options))


def exif_of(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif.tobytes()


def resize_by_pillow(array, shape, box):
    image = Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)
    turned = image.resize(shape[::-1], Image.Resampling.BILINEAR, box=box)
    return np.asarray(turned).reshape(*shape, -1)


def is_near(a, b, most=1):
    assert a.shape == b.shape
    return int(np.abs(a.astype(int) - b).max()) <= most


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("kind", KINDS)
def test_same_pixels_as_pillow(kind, mode):
    view = encode(make_picture(), kind)

    assert np.array_equal(reader(mode=mode).read(view), decode_by_pillow(view, mode))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_of_exif_is_applied(orientation, kind):
    exif = Image.Exif()
    exif[0x0112] = orientation
    view = encode(make_picture(), kind, exif=exif.tobytes())

    with Image.open(io.BytesIO(view)) as image:
        expected = np.asarray(ImageOps.exif_transpose(image))

    assert np.array_equal(reader().read(view), expected)
    assert np.array_equal(reader(orient=False).read(view), decode_by_pillow(view))


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("crop", [None, "center"])
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_crop_is_taken_after_orientation(kind, crop, orientation, mode):
    exif = Image.Exif()
    exif[0x0112] = orientation
    view = encode(make_picture((90, 61)), kind, exif=exif.tobytes())
    whole = reader(mode=mode).read(view)
    height, width = whole.shape[:2]
    box = (0, 0, width, height)
    if crop:
        box = center_box(width, height, (50, 40))

    found = reader((50, 40), crop=crop, mode=mode).read(view)

    assert is_near(found, resize_by_pillow(whole, (50, 40), box))


@pytest.mark.parametrize(("size", "factor"), [(40, 1), (30, 2), (15, 4), (7, 8)])
def test_large_jpeg_is_decoded_at_a_fraction(size, factor, monkeypatch):
    view = encode(make_picture((101, 61)), "JPEG")
    seen = []
    decode = images.decode_jpeg

    def note(view, header, channels, factor, *args, **options):
        seen.append(factor)
        return decode(view, header, channels, factor, *args, **options)

    monkeypatch.setattr(images, "decode_jpeg", note)

    by_each = [
        reader(size, crop="center", decoder=decoder).read(view)
        for decoder in (None, "pillow")
    ]

    assert seen == [factor, factor]
    assert np.array_equal(*by_each)
    whole = decode_by_pillow(view)
    expected = resize_by_pillow(whole, (size, size), center_box(101, 61, (size, size)))
    assert np.abs(by_each[0].astype(int) - expected).mean() < 6


@pytest.mark.parametrize("decoder", [None, "pillow"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_lossless_jpeg_is_not_decoded_at_a_fraction(mode, decoder):
    array = np.asarray(make_picture((61, 53), mode)).reshape(53, 61, -1)
    view = encode_lossless_jpeg(array)
    read = {size: reader(size, mode=mode, decoder=decoder) for size in (None, 13, 6)}

    assert np.array_equal(read[None].read(view), array)
    for size in (13, 6):
        expected = resize_by_pillow(array, (size, size), (0, 0, 61, 53))
        assert is_near(read[size].read(view), expected)


@pytest.mark.parametrize("orientation", range(2, 9))
@pytest.mark.parametrize("size", [(23, 23), (11, 12), (6, 5)])
def test_fraction_is_in_place_after_each_orientation(size, orientation):
    # Sides that are not multiples of a fraction: the last block is filled up.
    picture = make_picture((97, 101))
    turned = [encode(picture, "JPEG", exif=exif_of(o)) for o in (1, orientation)]
    upright = reader(size if orientation < 5 else size[::-1]).read(turned[0])
    expected = Image.fromarray(upright)
    expected.getexif()[0x0112] = orientation

    found = reader(size).read(turned[1])

    assert is_near(found, np.asarray(ImageOps.exif_transpose(expected)))


def test_box_of_the_target_size_is_copied():
    view = encode(make_picture((54, 40)), "PNG")

    found = reader(40, crop="center").read(view)

    assert np.array_equal(found, decode_by_pillow(view)[:, 7:47])


def test_random_numbers_are_pinned():
    assert [round(next(uniforms(0, 0, i)), 9) for i in range(3)] == GOLDEN_NUMBERS
    draws = uniforms(7, 3, 1_000_000)
    found = [random_box(500, 375, (0.08, 1), (3 / 4, 4 / 3), draws) for _ in range(4)]
    assert found == GOLDEN_BOXES


def test_random_boxes_are_spread_as_those_of_torchvision():
    draws = uniforms(0, 0, 0)
    boxes = np.array(
        [random_box(500, 375, (0.08, 1), (3 / 4, 4 / 3), draws) for _ in range(4000)]
    )
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]

    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 2] <= 500).all()
    assert (boxes[:, 3] <= 375).all()
    area = width * height / (500 * 375)
    assert 0.078 < area.min() < 0.09
    assert 0.40 < area.mean() < 0.52  # large boxes need another try
    assert abs(np.log(width / height).mean()) < 0.05
    assert abs((boxes[:, 0] / np.maximum(500 - width, 1)).mean() - 0.5) < 0.03


@pytest.mark.parametrize(("width", "height"), [(1000, 10), (10, 1000)])
def test_random_box_of_a_narrow_picture_is_the_centre(width, height):
    # A share of 1 never fits: each of ten tries fails.
    ratio = (0.75, 1.4)
    x0, y0, x1, y1 = random_box(width, height, (1, 1), ratio, uniforms(0, 0, 0))

    wide, high = x1 - x0, y1 - y0
    assert (wide, high) == ((14, 10) if width > height else (10, 13))
    assert (x0, y0) == ((width - wide) // 2, (height - high) // 2)


def test_flip_mirrors_half_of_the_pictures():
    view = encode(make_picture(), "PNG")
    whole = decode_by_pillow(view)
    read = reader(flip=True).read

    found = [read(view, (0, i)) for i in range(200)]

    mirrored = [np.array_equal(one, whole[:, ::-1]) for one in found]
    assert 70 < sum(mirrored) < 130
    assert all(
        np.array_equal(one, whole)
        for one, is_mirrored in zip(found, mirrored, strict=True)
        if not is_mirrored
    )
    assert [np.array_equal(read(view, (1, i)), found[i]) for i in range(50)] != [
        True
    ] * 50


def test_a_side_that_is_too_long_to_resize_is_an_error_by_name():
    view = encode(Image.new("L", ((1 << 24) + 1, 1)), "PPM")
    with pytest.raises(FormatError, match=r"16,777,217 x 1 .* cannot be resized"):
        reader(8, mode="L").read(view)


def test_randomness_depends_on_seed_epoch_and_position_alone():
    view = encode(make_picture(), "JPEG")
    read = reader(20, crop="random", flip=True, seed=5).read

    first = read(view, (2, 9))

    assert np.array_equal(read(view, (2, 9)), first)
    others = [
        read(view, (3, 9)),
        read(view, (2, 10)),
        reader(20, crop="random", flip=True, seed=6).read(view, (2, 9)),
    ]
    assert not any(np.array_equal(first, other) for other in others)
    with pytest.raises(ValueError, match="draw"):
        read(view)


def test_truncated_jpeg_is_an_error_or_filled():
    view = encode(make_picture(), "JPEG")
    cut = view[:-150]

    with pytest.raises(FormatError, match="truncated JPEG") as raised:
        reader().read(cut)
    assert raised.value.offset == len(cut)
    whole = decode_by_pillow(view)
    times = ThreadTimes()
    set_current_times(times)
    try:
        filled = reader(truncated="fill").read(cut)
    finally:
        set_current_times(None)
    assert np.array_equal(filled[:14], whole[:14])
    assert (filled[-1] == 128).all()
    assert times.filled == 1
    by_pillow = reader(truncated="fill", decoder="pillow").read(cut)
    assert np.array_equal(filled, by_pillow)


@pytest.mark.parametrize("options", [{}, {"progressive": True}])
def test_every_cut_of_a_jpeg_is_an_error_and_its_fill_a_picture(options):
    view = encode(make_picture(), "JPEG", **options)
    scan = bytes(view).index(b"\xff\xda") + 14

    for end in range(0, len(view), 13):
        with pytest.raises(FormatError):
            reader().read(view[:end])
        if end > scan:
            found = reader(truncated="fill").read(view[:end])
            assert found.shape == (37, 53, 3)
        else:
            with pytest.raises(FormatError):
                reader(truncated="fill").read(view[:end])
    for end in (len(view) - 1, len(view) - 2):
        with pytest.raises(FormatError, match="truncated"):
            reader().read(view[:end])


@pytest.mark.parametrize("kind", ["PNG", "GIF", "WEBP", "BMP"])
def test_truncated_others_are_errors(kind):
    view = encode(make_picture(), kind)

    for end in range(0, len(view) - 20, max(1, len(view) // 40)):
        with pytest.raises(FormatError):
            reader(truncated="fill").read(view[:end])


@pytest.mark.parametrize("kind", KINDS)
def test_pictures_of_more_than_max_pixels_are_refused(kind):
    view = encode(make_picture(), kind)

    assert reader(max_pixels=53 * 37).read(view).shape == (37, 53, 3)
    with pytest.raises(FormatError, match="max_pixels=1,960"):
        reader(max_pixels=53 * 37 - 1).read(view)


@pytest.mark.parametrize("size", [(65_500, 65_500), (20_000, 4000)])
def test_bomb_is_refused_from_its_header(size):
    view = patch_jpeg_size(encode(make_picture(), "JPEG"), *size)

    with pytest.raises(FormatError, match="exceeds max_pixels"):
        reader().read(view)


def test_limit_of_pillow_does_not_apply(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    for kind in ("JPEG", "PNG", "GIF", "BMP", "PPM"):
        view = encode(make_picture(), kind)
        assert reader(decoder="pillow").read(view).shape == (37, 53, 3)


@pytest.mark.parametrize("size", [(1, 1), (65_500, 1), (1, 65_500)])
def test_sizes_at_the_limits_of_jpeg(size):
    image = Image.new("RGB", size, (200, 30, 90))
    view = encode(image, "JPEG")

    assert np.array_equal(reader().read(view), decode_by_pillow(view))
    assert reader((3, 5), crop="center").read(view).shape == (3, 5, 3)


def test_png_may_be_wider_than_jpeg():
    view = encode(Image.new("RGB", (65_535, 1), (1, 2, 3)), "PNG")

    assert (reader().read(view) == [1, 2, 3]).all()


def test_sides_beyond_libjpeg_and_of_zero_are_errors():
    view = encode(Image.new("RGB", (65_500, 1)), "JPEG")

    for size, match in [
        ((65_535, 1), "limit is 65,500"),
        ((0, 1), "0 x 1"),
        ((65_500, 0), "65500 x 0"),
    ]:
        with pytest.raises(FormatError, match=match):
            reader().read(patch_jpeg_size(view, *size))
    with pytest.raises(FormatError, match="no bytes"):
        reader().read(memoryview(b""))


def test_rows_may_be_strided_and_are_all_that_is_written():
    view = encode(make_picture(), "JPEG")
    memory = np.full((37, 60, 3), 77, np.uint8)
    row = memory[:, 2:55]

    assert reader().read(view, None, row) is row

    assert np.array_equal(row, decode_by_pillow(view))
    assert (memory[:, :2] == 77).all()
    assert (memory[:, 55:] == 77).all()


def test_contiguous_row_is_decoded_into(monkeypatch):
    view = encode(make_picture(), "JPEG")
    batch = np.empty((2, 37, 53, 3), np.uint8)
    forbid_scratch(monkeypatch)

    found = reader((37, 53)).read(view, None, batch[1])

    assert np.array_equal(batch[1], decode_by_pillow(view))
    assert found.base is batch


@pytest.mark.parametrize(
    "out",
    [
        np.empty((20, 20, 3), np.uint8)[:, :, ::-1],
        np.empty((20, 20, 3), np.int8),
        np.empty((20, 21, 3), np.uint8),
        np.empty((20, 20), np.uint8),
        np.frombuffer(bytes(1200), np.uint8).reshape(20, 20, 3),
        bytearray(1200),
    ],
)
def test_wrong_rows_are_refused_before_anything_is_decoded(out):
    with pytest.raises(ValueError, match=r"\(20, 20, 3\)"):
        reader(20).read(memoryview(b"not an image"), None, out)


def test_row_of_another_size_than_the_picture_is_refused():
    view = encode(make_picture(), "JPEG")

    with pytest.raises(ValueError, match=r"\(37, 53, 3\)"):
        reader().read(view, None, np.empty((37, 54, 3), np.uint8))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"size": 0}, ValueError),
        ({"size": (1, 2, 3)}, TypeError),
        ({"size": 1.5}, TypeError),
        ({"size": True}, TypeError),
        ({"crop": "center"}, ValueError),
        ({"size": 8, "crop": "middle"}, ValueError),
        ({"scale": (0, 1)}, ValueError),
        ({"scale": (0.5, 1.5)}, ValueError),
        ({"scale": 0.5}, TypeError),
        ({"ratio": (2, 1)}, ValueError),
        ({"flip": 1}, TypeError),
        ({"mode": "RGBA"}, ValueError),
        ({"orient": None}, TypeError),
        ({"max_pixels": 0}, ValueError),
        ({"truncated": "skip"}, ValueError),
        ({"decoder": "opencv"}, ValueError),
        ({"decoder": 3}, ValueError),
        ({"seed": 0.5}, TypeError),
    ],
)
def test_arguments_are_checked(arguments, error):
    name = next(reversed(arguments))

    with pytest.raises(error, match=name):
        ImageOptions.checked(**arguments)


def test_reader_pickles():
    first = reader(20, crop="random", flip=True, seed=3)
    second = pickle.loads(pickle.dumps(first))
    view = encode(make_picture(), "JPEG")

    assert second.options == first.options
    assert second.row_shape == (20, 20, 3)
    assert np.array_equal(second.read(view, (0, 1)), first.read(view, (0, 1)))


def test_threads_share_a_reader():
    views = [encode(make_picture((40 + i, 30)), "JPEG") for i in range(16)]
    read = reader(24, crop="random", flip=True).read
    expected = [read(view, (0, i)) for i, view in enumerate(views)]
    together = threading.Barrier(4)

    def work(k):
        together.wait()
        return [
            np.array_equal(read(view, (0, i)), expected[i])
            for _ in range(5)
            for i, view in enumerate(views)
        ]

    with ThreadPoolExecutor(4) as pool:
        assert all(all(found) for found in pool.map(work, range(4)))


def test_large_scratch_is_not_kept():
    view = encode(Image.new("RGB", (1500, 1400)), "PNG")

    reader(20).read(encode(Image.new("RGB", (1500, 1400)), "JPEG"))
    reader(20).read(view)

    assert max(scratch_sizes()) <= images.KEPT_SCRATCH


def test_times_are_counted():
    times = ThreadTimes()
    set_current_times(times)
    try:
        reader(20).read(encode(make_picture((24, 24)), "JPEG"))
    finally:
        set_current_times(None)

    assert times.decode > 0
    assert times.resize > 0
    assert times.bytes_decoded == 24 * 24 * 3
    assert times.filled == 0
