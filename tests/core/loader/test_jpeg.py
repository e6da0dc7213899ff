"""Walk over the segments and scans of a JPEG, against one in plain Python."""

from __future__ import annotations

import random

import pytest

from fastshard import FormatError
from fastshard._core.loader.images import count_scans, plain_shape, read_jpeg


def count_by_walk(raw, at, most):
    count = 0
    while True:
        while at < len(raw):
            is_marker = (
                at + 1 < len(raw)
                and raw[at] == 0xFF
                and raw[at + 1] not in (0, 1, 0xFF, *range(0xD0, 0xD8))
            )
            if is_marker:
                break
            at += 1
        if at >= len(raw):
            return count, len(raw)
        code, mark = raw[at + 1], at
        at += 2
        if code == 0xD9:
            return count, mark
        if code == 0xD8:
            continue
        size = int.from_bytes(raw[at : at + 2], "big")
        if at + 2 > len(raw) or size < 2 or at + size > len(raw):
            return count, mark
        at += size
        if code == 0xDA:
            count += 1
            if count > most:
                return count, mark


def make_soup(rng):
    parts = []
    for _ in range(rng.randrange(12)):
        code = rng.choice((0xDA, 0xDA, 0xDA, 0xC4, 0xD3, 0xD8, 0, 1, 0xFF, 0xFE, 0xD9))
        size = rng.choice((0, 1, 2, 3, 5, 300))
        parts.append(bytes([0xFF, code]) + size.to_bytes(2, "big"))
        parts.append(rng.randbytes(rng.choice((0, 1, 3, 3, 8))))
    return b"".join(parts)[: rng.choice((None, None, 7, 20))]


def test_scans_are_those_of_a_walk_in_python():
    rng = random.Random(5)
    found = set()
    for _ in range(5000):
        raw = make_soup(rng)
        start, most = rng.randrange(len(raw) + 1), rng.choice((0, 2, 100))

        result = count_scans(raw, start, most)

        assert result == count_by_walk(raw, start, most)
        found.add(result[0])
    assert found >= {0, 1, 2, 3}


def test_start_outside_the_bytes_is_refused():
    for start in (-1, 4):
        with pytest.raises(ValueError, match="start must be 0 to 3"):
            count_scans(b"abc", start, 100)


def test_any_bytes_are_a_header_or_an_error():
    rng = random.Random(6)
    for _ in range(5000):
        raw = b"\xff\xd8" + make_soup(rng)
        try:
            width, height, *_, scan, exif, xmp = read_jpeg(raw)
        except FormatError as error:
            assert 0 <= error.offset <= len(raw)
        else:
            assert raw[scan : scan + 2] == b"\xff\xda"
            assert 0 <= width < 65_536
            assert 0 <= height < 65_536
            extents = [*exif, *([xmp] if xmp else [])]
            assert all(at + size <= len(raw) for at, size in extents)


def make_jpeg(factors=(0x22, 0x11, 0x11), process=0xC0, bits=8, extra=b""):
    parts = b"".join(bytes([i, factor, 0]) for i, factor in enumerate(factors))
    frame = bytes([bits, 0, 37, 0, 53, len(factors)]) + parts
    scan = bytes([len(factors)]) + bytes(2 * len(factors) + 3)
    segments = [(process, frame), (0xDA, scan)]
    coded = [
        bytes([0xFF, code]) + (len(data) + 2).to_bytes(2, "big") + data
        for code, data in segments
    ]
    return b"\xff\xd8" + extra + b"".join(coded)


def test_shape_of_a_plain_jpeg():
    assert plain_shape(make_jpeg(), 3, 53 * 37) == (37, 53, 3)
    assert plain_shape(make_jpeg([0x11]), 3, 1 << 26) == (37, 53, 3)
    assert plain_shape(memoryview(make_jpeg([0x11])), 1, 1 << 26) == (37, 53, 1)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x89PNG",
        make_jpeg(process=0xC2),
        make_jpeg(bits=12),
        make_jpeg([0x14, 0x11, 0x11]),
        make_jpeg([0x22, 0x21, 0x11]),
        make_jpeg([0x11] * 4),
        make_jpeg()[:20],
        make_jpeg(extra=make_jpeg()[2:24]),
        make_jpeg(extra=b"\xff\xe1\0\x0aExif\0\0II"),
        memoryview(make_jpeg())[::2],
        memoryview(make_jpeg()).cast("b"),
        "text",
        7,
    ],
)
def test_jpeg_that_is_not_plain_has_no_shape(raw):
    assert plain_shape(raw, 3, 1 << 26) is None


def test_shape_of_a_plain_jpeg_is_bounded():
    assert plain_shape(make_jpeg(), 3, 53 * 37 - 1) is None
    assert plain_shape(make_jpeg(), 1, 1 << 26) is None
