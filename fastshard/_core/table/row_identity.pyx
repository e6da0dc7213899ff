"""Rows in packs, stored with the identity of their sample.

A stored value is ``identity << 31 | row``. The identity is the CRC-32C of the field's
name, of shard, offset and row as little-endian int64, and of the sample's id, so that
each change of one bit of these, or of the value, is detected.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from fastshard._core.span cimport span_t
from fastshard._core.table.extents cimport encode_text

cdef extern from "crc32c.h" nogil:
    void fs_crc32c_begin()
    uint32_t fs_crc32c(uint32_t crc, const uint8_t *at, size_t size)

fs_crc32c_begin()

cdef enum:
    SHIFT = 31                     # bits of a row; those of a pack are fewer

ROW_BITS = SHIFT


cdef uint32_t sum_field(span_t field) noexcept nogil:
    """Return the checksum of a field's name, where those of its rows begin."""
    return fs_crc32c(0, field.at, field.left)


cdef int64_t find_sum(dict packed, str field) except -2:
    """Return the checksum of a field's name, or -1 if its rows have no identities.

    `packed` has the fields that may have packs, and whether their rows have identities.
    """
    cdef span_t name
    cdef object keeper
    if not packed.get(field):
        return -1
    keeper = encode_text(field, &name)
    if keeper is None:
        raise ValueError(f"the field {field!r:.200} is not valid Unicode")
    return sum_field(name)


cdef int64_t encode_row(
    uint32_t field, span_t key, int64_t shard, uint64_t offset, uint64_t row
) noexcept nogil:
    """Return the stored value of a row of at most 31 bits; `field` is its checksum."""
    cdef uint64_t[3] place
    cdef uint32_t identity
    place[0] = <uint64_t> shard
    place[1] = offset
    place[2] = row
    identity = fs_crc32c(field, <const uint8_t *> place, sizeof(place))
    identity = fs_crc32c(identity, key.at, key.left)
    return <int64_t> (<uint64_t> identity << SHIFT | row)


cdef int64_t decode_row(
    uint32_t field, span_t key, int64_t shard, uint64_t offset, int64_t value
) noexcept nogil:
    """Return the row in a stored value, or -1 if it is not of this sample and place."""
    cdef int64_t row = value & ((<int64_t> 1 << SHIFT) - 1)
    return row if encode_row(field, key, shard, offset, row) == value else -1


def identify_row(
    str field not None, str sample_id not None, int64_t shard, uint64_t offset,
    uint64_t row,
):
    """Return the stored value of a sample's row in a pack."""
    cdef span_t name, key
    cdef object keeper = encode_text(field, &name)
    cdef object owner = encode_text(sample_id, &key)
    if keeper is None or owner is None or row >> SHIFT:
        raise ValueError(f"no identity of row {row:,} of {sample_id!r:.200}")
    return encode_row(sum_field(name), key, shard, offset, row)


def find_row(str field not None, sample_id, shard, offset, value):
    """Return the row in a stored value, or None if it is not of this sample and place.
    """
    cdef span_t name, key
    cdef int64_t row
    cdef object keeper = encode_text(field, &name)
    cdef object owner
    if type(sample_id) is not str or keeper is None:
        return None
    for number in (shard, offset, value):
        if type(number) is not int or not 0 <= number < 1 << 63:
            return None
    owner = encode_text(sample_id, &key)
    if owner is None:
        return None
    row = decode_row(sum_field(name), key, shard, offset, value)
    return None if row < 0 else row
