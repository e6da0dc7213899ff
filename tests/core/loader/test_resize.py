"""Resize, orientation and luma of pictures, against Pillow."""

import ctypes
import math
import mmap
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from fastshard._core.loader.images import (
    gray_into,
    instruction_set,
    orient_into,
    resize_into,
)

Image = pytest.importorskip("PIL.Image")

LEVELS = ("plain", "sse4.1", "avx2")
LEVELS = LEVELS[: LEVELS.index(instruction_set()) + 1]
MODES = {1: "L", 3: "RGB", 4: "CMYK"}
CANARY = 77


def picture(height, width, channels=3, seed=0, extreme=False):
    rng = np.random.default_rng([seed, height, width, channels])
    pixels = rng.integers(0, 256, (height, width, channels), dtype=np.uint8)
    return (pixels > 127).astype(np.uint8) * np.uint8(255) if extreme else pixels


def to_pillow(pixels):
    channels = pixels.shape[2]
    return Image.fromarray(pixels[..., 0] if channels == 1 else pixels, MODES[channels])


def resized_by_pillow(pixels, box, height, width):
    bilinear = Image.Resampling.BILINEAR
    resized = to_pillow(pixels).resize((width, height), bilinear, box=box)
    return np.asarray(resized).reshape(height, width, pixels.shape[2])


def strided(height, width, channels):
    """Return rows with canaries around them, and all of the memory."""
    memory = np.full((height + 2, width * channels + 64), CANARY, np.uint8)
    inner = memory[1:-1, 32:]
    shape = height, width, channels
    return as_strided(inner, shape, (memory.strides[0], channels, 1)), memory


def resized(pixels, box, height, width, **options):
    """Return the result of each instruction set, equal and inside the rows."""
    channels = pixels.shape[2]
    results = []
    for level in LEVELS:
        out, memory = strided(height, width, channels)
        resize_into(pixels, box, out, level=level, **options)
        results.append(out.copy())
        out[:] = CANARY
        assert (memory == CANARY).all(), level
        assert (results[-1] == results[0]).all(), level
    return results[0]


def assert_as_pillow(pixels, box, height, width):
    ours = resized(pixels, box, height, width).astype(int)
    assert np.abs(ours - resized_by_pillow(pixels, box, height, width)).max() <= 1


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("extreme", [False, True])
def test_within_one_of_pillow_at_all_ratios(channels, extreme):
    rng = np.random.default_rng([channels, extreme])
    for seed in range(150):
        height, width = map(int, rng.integers(1, 160, 2))
        x0, x1 = np.sort(rng.random(2) * width).tolist()
        y0, y1 = np.sort(rng.random(2) * height).tolist()
        box = x0, y0, max(x1, min(x0 + 0.01, width)), max(y1, min(y0 + 0.01, height))
        if seed % 3 == 0:
            box = 0, 0, width, height
        across, down = np.exp(rng.uniform(math.log(1 / 40), math.log(8), 2))
        target = (
            max(1, min(300, round((box[3] - box[1]) * down))),
            max(1, min(300, round((box[2] - box[0]) * across))),
        )
        assert_as_pillow(picture(height, width, channels, seed, extreme), box, *target)


@pytest.mark.parametrize("ratio", [1 / 40, 1 / 13.4, 1 / 4, 224 / 375, 1, 1.7, 8])
@pytest.mark.parametrize("side", [1, 2, 13, 400])
def test_whole_pictures_within_one_of_pillow(side, ratio):
    target = max(1, round(side * ratio))
    if target > 500:
        side, target = 60, 480
    assert_as_pillow(picture(side, side), (0, 0, side, side), target, target)


@pytest.mark.parametrize("target", [1, 2, 7, 8, 9, 40])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_boxes_of_one_pixel(channels, target):
    pixels = picture(5, 7, channels)
    for x in range(7):
        for y in range(5):
            assert_as_pillow(pixels, (x, y, x + 1, y + 1), target, target)
    assert_as_pillow(pixels, (2.25, 1.5, 2.75, 1.625), target, target)


@pytest.mark.parametrize("shape", [(1, 9000), (9000, 1), (2, 20_000), (300, 2)])
def test_long_pictures(shape):
    """Rows of several strips."""
    height, width = shape
    pixels = picture(height, width)
    for target in (shape, (3, 2500), (2500, 3), (1, 100)):
        if max(target[0] / height, target[1] / width) <= 8:
            assert_as_pillow(pixels, (0, 0, width, height), *target)
            mirrored = resized(pixels, (0, 0, width, height), *target, flip=True)
            plain = resized(pixels, (0, 0, width, height), *target)
            assert (mirrored[:, ::-1] == plain).all()


@pytest.mark.parametrize("shape", [(1, 1 << 24, 1), (1 << 24, 1, 1)])
def test_sides_are_at_most_those_that_float32_counts(shape):
    pixels = np.full(shape, 200, np.uint8)
    height, width, _ = shape
    box = (max(0, width - 3), max(0, height - 3), width, height)
    assert (resized(pixels, box, 8, 8) == 200).all()

    larger = np.zeros((height + (height > 1), width + (width > 1), 1), np.uint8)
    with pytest.raises(ValueError, match="at most 16,777,216 pixels"):
        resize_into(larger, (0, 0, 1, 1), np.zeros((8, 8, 1), np.uint8))


def test_ratios_beyond_the_tables():
    pixels = picture(3, 20_000)
    for target in ((3, 1), (1, 2), (2, 60)):  # from 333 pixels to one, and more
        assert_as_pillow(pixels, (0, 0, 20_000, 3), *target)
        turned = pixels.transpose(1, 0, 2).copy()
        assert_as_pillow(turned, (0, 0, 3, 20_000), *target[::-1])


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("value", [0, 1, 127, 254, 255])
def test_flat_areas_stay_flat(value, channels):
    pixels = np.full((90, 130, channels), value, np.uint8)
    for target in ((2, 3), (41, 57), (90, 131), (200, 300)):
        assert (resized(pixels, (0.3, 0.1, 129.9, 89), *target) == value).all()


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_whole_boxes_of_the_size_are_copied(channels):
    pixels = picture(40, 50, channels)
    assert (resized(pixels, (3, 5, 33, 25), 20, 30) == pixels[5:25, 3:33]).all()
    mirrored = resized(pixels, (3, 5, 33, 25), 20, 30, flip=True)
    assert (mirrored == pixels[5:25, 3:33][:, ::-1]).all()


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("width", [*range(1, 20), 33, 224])
def test_flip_mirrors(width, channels):
    pixels = picture(31, 75, channels)
    box = 1.5, 0, 70.25, 30
    mirrored = resized(pixels, box, 9, width, flip=True)
    assert (mirrored[:, ::-1] == resized(pixels, box, 9, width)).all()


def test_only_the_box_and_the_filter_are_read():
    """Pixels that the filter does not cover leave no trace."""
    pixels = picture(100, 120)
    for target in ((10, 10), (20, 30), (80, 90)):
        box = 40, 30, 70, 60
        reach = math.ceil(max(1, 30 / target[0], 30 / target[1]))
        other = np.full_like(pixels, 255)
        inner = np.s_[30 - reach : 60 + reach, 40 - reach : 70 + reach]
        other[inner] = pixels[inner]
        assert (resized(pixels, box, *target) == resized(other, box, *target)).all()


def test_rows_of_the_source_may_be_strided():
    pixels = picture(60, 80)
    part = pixels[50:10:-2, 7:71]
    want = resized(part.copy(), (1, 2, 60, 19.5), 13, 17)
    assert (resized(part, (1, 2, 60, 19.5), 13, 17) == want).all()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("shape", [(1, 1), (1, 40), (37, 70), (64, 33)])
@pytest.mark.parametrize("channels", [1, 3])
def test_orientation_as_exif_transpose(orientation, shape, channels):
    from PIL import ImageOps

    pixels = picture(*shape, channels)
    image = to_pillow(pixels)
    image.getexif()[0x0112] = orientation
    want = np.asarray(ImageOps.exif_transpose(image))
    want = want.reshape(*want.shape[:2], channels)

    for flip in (False, True):
        out, memory = strided(*want.shape)
        orient_into(pixels, out, orientation, flip)
        assert (out == (want[:, ::-1] if flip else want)).all()
        out[:] = CANARY
        assert (memory == CANARY).all()


def test_gray_is_that_of_pillow():
    pixels = picture(200, 301)
    out, memory = strided(200, 301, 1)
    gray_into(pixels, out)
    assert (out[..., 0] == np.asarray(to_pillow(pixels).convert("L"))).all()
    out[:] = CANARY
    assert (memory == CANARY).all()


def read_only(array):
    array.flags.writeable = False
    return array


GOOD = np.zeros((4, 5, 3), np.uint8)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda out: resize_into(GOOD[..., 0], (0, 0, 1, 1), out), "src must be uint8"),
        (lambda out: resize_into(GOOD.view("i1"), (0, 0, 1, 1), out), "src must be"),
        (lambda out: resize_into(GOOD[:0], (0, 0, 1, 1), out), "src must be uint8"),
        (lambda out: resize_into(GOOD[:, ::2], (0, 0, 1, 1), out), "be contiguous"),
        (lambda out: resize_into(GOOD, (0, 0, 6, 1), out), "width 5 and height 4"),
        (lambda out: resize_into(GOOD, (-1, 0, 1, 1), out), "box must be"),
        (lambda out: resize_into(GOOD, (0, 0, 1, 4.01), out), "box must be"),
        (lambda out: resize_into(GOOD, (1, 0, 1, 1), out), "not empty"),
        (lambda out: resize_into(GOOD, (2, 0, 1, 1), out), "not empty"),
        (lambda out: resize_into(GOOD, (0, 0, math.nan, 1), out), "box must be"),
        (lambda out: resize_into(GOOD, (0, 0, math.inf, 1), out), "box must be"),
        (lambda out: resize_into(GOOD, (0, 0, 1), out), "box must be"),
        (lambda out: resize_into(GOOD, None, out), "box must be"),
        (lambda out: resize_into(GOOD, (0, 0, 1, 1), out[..., :1].copy()), "channels"),
        (lambda out: resize_into(GOOD, (0, 0, 1, 1), out[:, :0]), "out must be uint8"),
        (lambda out: resize_into(GOOD, (0, 0, 1, 1), out[:, ::-1]), "be contiguous"),
        (lambda out: resize_into(GOOD, (0, 0, 1, 1), read_only(out)), "writable"),
        (lambda out: resize_into(GOOD, (0, 0, 1, 1), out, level="mmx"), "level must"),
        (lambda out: orient_into(GOOD, out, 0), "orientation must be 1 to 8"),
        (lambda out: orient_into(GOOD, out, 9), "orientation must be 1 to 8"),
        (lambda out: orient_into(GOOD, out, 6), r"shape \[5, 4, 3\]"),
        (lambda out: orient_into(GOOD, out[:1], 1), r"shape \[4, 5, 3\]"),
        (lambda out: gray_into(GOOD, out), r"shape \[4, 5, 1\]"),
        (lambda out: gray_into(GOOD[..., :1].copy(), out), "3 channels"),
    ],
)
def test_wrong_arguments(call, text):
    out = np.zeros((4, 5, 3), np.uint8)
    with pytest.raises(ValueError, match=text):
        call(out)
    assert not out.any()


def test_no_buffers():
    with pytest.raises(TypeError):
        resize_into([[1]], (0, 0, 1, 1), np.zeros((1, 1, 1), np.uint8))


@pytest.fixture
def no_switches():
    """Let a thread have the GIL only when another releases it."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)
    yield
    sys.setswitchinterval(interval)


def test_threads_resize_at_once():
    pixels = picture(1500, 1500)
    box = 0, 0, 1500, 1500
    want = resized(pixels, box, 700, 700)
    outs = [np.zeros_like(want) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(partial(resize_into, pixels, box), outs))
    for out in outs:
        assert (out == want).all()


@pytest.mark.usefixtures("no_switches")
def test_other_threads_run_during_a_resize():
    pixels = picture(1500, 1500)
    out = np.zeros((700, 700, 3), np.uint8)
    is_resizing = False
    seen = []

    def look(begin):
        begin.wait()
        seen.append(is_resizing)

    for _ in range(500):  # a loaded machine may run the other thread too late
        begin = threading.Event()
        thread = threading.Thread(target=look, args=(begin,))
        thread.start()
        is_resizing = True
        begin.set()
        resize_into(pixels, (0, 0, 1500, 1500), out)
        is_resizing = False
        thread.join()
        if seen[-1]:
            return
    pytest.fail("no thread ran during 500 resizes")


def guarded(nbytes):
    """Return memory that ends at a page that cannot be touched, and its mapping."""
    pages = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    mapping = mmap.mmap(-1, pages + mmap.PAGESIZE)
    memory = np.frombuffer(mapping, np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    last = ctypes.c_void_p(memory.ctypes.data + pages)
    assert libc.mprotect(last, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    return memory[pages - nbytes : pages], mapping


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_no_byte_behind_the_pictures_is_touched(channels):
    """Sources and targets end at a page without access: a touch ends the process."""
    rng = np.random.default_rng(channels)
    for _ in range(60):
        height, width, to_height, to_width = map(int, rng.integers(1, 60, 4))
        memory, _source = guarded(height * width * channels)
        pixels = memory.reshape(height, width, channels)
        pixels[:] = picture(height, width, channels)
        memory, _target = guarded(to_height * to_width * channels)
        out = memory.reshape(to_height, to_width, channels)
        for level in LEVELS:
            for flip in (False, True):
                box = 0, 0, width, height
                resize_into(pixels, box, out, level=level, flip=flip)
        turned, _turned = guarded(height * width * channels)
        orient_into(pixels, turned.reshape(width, height, channels), 6)
