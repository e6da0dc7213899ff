"""Offset tables of streaming shards."""

import struct
from itertools import pairwise

import pytest

from fastshard import FormatError
from fastshard._core.streaming.plan import parse_offsets

GIB4 = 1 << 32


def table(offsets):
    """Return offsets as a shard stores them, modulo 2**32."""
    return struct.pack(f"<{len(offsets)}I", *[offset % GIB4 for offset in offsets])


def parse(offsets, last=None):
    last = offsets[-1] if last is None else last
    return parse_offsets(table(offsets), len(offsets) - 1, 4, last, "a.mds")


def test_extents_lie_between_neighbouring_offsets():
    found = parse([100, 100, 130, 131])

    assert len(found) == 3
    assert [found.extent(i) for i in range(3)] == [(100, 0), (100, 30), (130, 1)]


@pytest.mark.parametrize("i", [-1, 2])
def test_a_position_outside_is_refused(i):
    with pytest.raises(IndexError, match=f"sample {i} is out of range"):
        parse([0, 1, 2]).extent(i)


def test_offsets_that_wrapped_are_read():
    offsets = [*range(20, 5 * GIB4, GIB4 // 3)]

    found = parse(offsets)

    assert found.wrap_count == offsets[-1] // GIB4
    extents = [found.extent(i) for i in range(len(found))]
    assert extents == [(a, b - a) for a, b in pairwise(offsets)]


def test_offsets_that_decrease_are_refused():
    with pytest.raises(FormatError, match="offset 50 is before 60") as caught:
        parse([40, 60, 50, 70])

    assert caught.value.offset == 4 + 4 * 2
    assert caught.value.member == "sample 1"


@pytest.mark.parametrize("last", [69, 71, 70 + GIB4])
def test_the_last_offset_is_checked(last):
    with pytest.raises(FormatError, match=f"the last offset is 70, not {last:,}"):
        parse([40, 60, 70], last)


def test_more_decreases_than_the_file_has_room_for_are_refused():
    with pytest.raises(FormatError, match="is before"):
        parse([10, GIB4 - 1, 5, 4, GIB4 + 7], GIB4 + 7)


def test_a_truncated_table_is_refused():
    for n in range(12):
        with pytest.raises(FormatError, match="3 offsets do not fit"):
            parse_offsets(table([1, 2, 3])[:n], 2, 4, 3, "a.mds")


def test_a_huge_count_allocates_nothing():
    with pytest.raises(FormatError, match="do not fit"):
        parse_offsets(b"1234", (1 << 63) + 1, 4, 1 << 63, "a.mds")
