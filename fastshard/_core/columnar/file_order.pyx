# cython: nonecheck=True
"""Order of a field's arrays in its files."""

from cpython.buffer cimport PyBuffer_Release
from cpython.bytearray cimport PyByteArray_AS_STRING
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memset

from fastshard._core.buffers cimport int64s_of
from fastshard._core.columnar.rows cimport (
    PACKED, ColumnShard, Rows, mark_t, pack_place_t,
)

from fastshard.errors import FastshardError

cdef enum:                         # offsets of a shard; 0: unknown
    EXACT = 1
    INEXACT = 2

NO_SHARD = (1 << 63) - 1           # sorts after all shard numbers

cdef uint64_t MAX_OFFSET = 1 << 62  # bytes


cdef int find_offsets(Rows rows, const int64_t *positions, Py_ssize_t count) except -1:
    """Find the members of shards for which the index holds no exact offsets."""
    cdef ColumnShard shard
    cdef uint64_t offset, size
    cdef Py_ssize_t k
    cdef int32_t slot
    cdef bytearray by_slot = bytearray(len(rows.numbers))
    cdef uint8_t *kinds = <uint8_t *> PyByteArray_AS_STRING(by_slot)
    for k in range(count):
        slot = rows.cells.marks[positions[k]].slot
        if slot < 0 or kinds[slot] == EXACT:
            continue
        try:
            if kinds[slot] == 0:
                kinds[slot] = EXACT  # so that a shard that fails is opened once
            shard = rows.member_shard(positions[k])
            kinds[slot] = EXACT if shard.file.is_exact else INEXACT
            if kinds[slot] == INEXACT:
                shard.extent(shard.open_source(), positions[k], &offset, &size)
        except (FastshardError, OSError):  # raised when it is read
            pass
    return 0


cdef bint write_extents(
    const mark_t *marks, const pack_place_t *packs, const uint64_t *cells,
    const int64_t *positions, Py_ssize_t count, const int64_t *ranks, Py_ssize_t last,
    int64_t *shards, int64_t *offsets,
) noexcept nogil:
    """Write each sample's shard and offset; say whether they are in order.

    `ranks` has the number of the shard in each slot, and at `last` NO_SHARD.
    """
    cdef bint in_order = True
    cdef Py_ssize_t k
    cdef int64_t i
    cdef int32_t slot
    for k in range(count):
        i = positions[k]
        slot = marks[i].slot
        offsets[k] = k
        if slot >= 0:
            offsets[k] = <int64_t> cells[i]
        elif slot <= PACKED:       # a row has at least one byte
            slot = packs[PACKED - slot].slot
            offsets[k] = <int64_t> min(cells[i], MAX_OFFSET) + marks[i].layout
        shards[k] = ranks[slot if slot >= 0 else last]
        if k > 0 and (
            shards[k] < shards[k - 1]
            or (shards[k] == shards[k - 1] and offsets[k] < offsets[k - 1])
        ):
            in_order = False
    return in_order


def sort_in_file_order(list columns not None, order not None):
    """Return positions in file order of one field; samples without the field come last.

    Shards without exact offsets in the index are scanned.

    Parameters
    ----------
    columns : list of Rows
        The first column sets the order; exact offsets of all are found.
    order : ndarray of int64
        Positions in range.
    """
    import numpy

    cdef Py_buffer[4] buffers
    cdef const int64_t *positions
    cdef const int64_t *ranks
    cdef int64_t *shards
    cdef int64_t *offsets
    cdef Py_ssize_t count
    cdef bint in_order
    cdef size_t k
    cdef Rows rows
    memset(buffers, 0, sizeof(buffers))
    try:
        positions = int64s_of(order, &buffers[0])
        count = buffers[0].len // 8
        for rows in columns:
            find_offsets(rows, positions, count)
        rows = columns[0]
        by_slot = numpy.array([*rows.numbers, NO_SHARD], numpy.int64)
        numbers = numpy.empty(count, numpy.int64)
        by_offset = numpy.empty(count, numpy.int64)
        ranks = int64s_of(by_slot, &buffers[1])
        shards = int64s_of(numbers, &buffers[2], True)
        offsets = int64s_of(by_offset, &buffers[3], True)
        with nogil:
            in_order = write_extents(
                rows.cells.marks, rows.cells.packs, rows.cells.offsets, positions,
                count, ranks, buffers[1].len // 8 - 1, shards, offsets,
            )
    finally:
        for k in range(4):
            PyBuffer_Release(&buffers[k])  # no-op if never acquired
    return order if in_order else order[numpy.lexsort((by_offset, numbers))]
