"""Offset tables of streaming shards: u32 offsets of the samples, kept on the heap.

A shard of more than 4 GiB has offsets that wrapped at 2**32. Offsets are monotone, so
each decrease is a wrap; there are at most as many as the file is long.
"""

cimport cython
from cpython.buffer cimport PyBuffer_Release
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from fastshard._core.buffers cimport bytes_of

from fastshard.errors import FormatError


cdef enum:
    OK = 0
    DECREASES = 1
    WRONG_END = 2


@cython.final
@cython.no_gc
cdef class OffsetTable:
    """Offsets of the samples of a shard, and the end of the last one."""

    def __init__(self, *args, **kwargs):
        raise TypeError("an OffsetTable cannot be created; call parse_offsets")

    def __dealloc__(self):
        free(self.values)
        free(self.wraps)

    def __len__(self):
        return self.count

    def __reduce__(self):
        raise TypeError("an OffsetTable does not pickle; pickle the reader")

    def extent(self, Py_ssize_t i):
        """Return offset and size of sample `i` in bytes."""
        cdef uint64_t offset
        if not 0 <= i < self.count:
            raise IndexError(f"sample {i} is out of range: there are {self.count:,}")
        offset = offset_of(self, i)
        return offset, offset_of(self, i + 1) - offset

    cdef uint64_t wrapped_offset(self, Py_ssize_t i) noexcept nogil:
        """Return offset `i` of a table with wraps."""
        cdef Py_ssize_t low = 0
        cdef Py_ssize_t high = self.wrap_count
        cdef Py_ssize_t middle
        while low < high:          # the first wrap after i
            middle = (low + high) >> 1
            if self.wraps[middle] <= i:
                low = middle + 1
            else:
                high = middle
        return (<uint64_t> low << 32) + self.values[i]


cdef inline Py_ssize_t max_wraps(uint64_t count, uint64_t last) noexcept nogil:
    return <Py_ssize_t> min(last >> 32, count)


cdef int check_offsets(OffsetTable table, uint64_t last, Py_ssize_t *where) noexcept \
        nogil:
    """Record the wraps; return a status and the place of a fault."""
    cdef const uint32_t *values = table.values
    cdef Py_ssize_t limit = max_wraps(table.count, last)
    cdef Py_ssize_t i
    for i in range(table.count):
        if values[i + 1] < values[i]:
            where[0] = i + 1
            if table.wrap_count == limit:
                return DECREASES
            table.wraps[table.wrap_count] = i + 1
            table.wrap_count += 1
    if (<uint64_t> table.wrap_count << 32) + values[table.count] != last:
        if table.wrap_count == 0:
            where[0] = table.count
        return WRONG_END
    return OK


cdef OffsetTable copy_offsets(
    const uint8_t *at, uint64_t count, uint64_t place, uint64_t last, str path
):
    """Copy and check the table of `count` samples, whose bytes the caller has checked.

    `place` is the table's place in the file, `last` the value of its last offset.
    """
    cdef OffsetTable table = OffsetTable.__new__(OffsetTable)
    cdef Py_ssize_t where = 0
    cdef int status
    table.values = <uint32_t *> malloc(4 * (count + 1))
    table.wraps = <Py_ssize_t *> malloc(
        sizeof(Py_ssize_t) * (max_wraps(count, last) + 1)
    )
    if table.values == NULL or table.wraps == NULL:
        raise MemoryError(f"no memory for {count:,} offsets of {path}")
    table.count = <Py_ssize_t> count
    with nogil:
        memcpy(table.values, at, 4 * (count + 1))
        status = check_offsets(table, last, &where)
    if status == DECREASES:
        raise FormatError(
            f"offset {table.values[where]:,} is before {table.values[where - 1]:,}",
            path, place + 4 * <uint64_t> where, f"sample {where - 1}",
        )
    if status == WRONG_END:
        raise FormatError(
            f"the last offset is {offset_of(table, table.count):,}, not {last:,}",
            path, place + 4 * <uint64_t> where,
        )
    return table


def parse_offsets(data, uint64_t count, uint64_t place, uint64_t last, str path):
    """Return the offset table of `count` samples.

    Parameters
    ----------
    data : contiguous buffer
        The table: ``uint32[count + 1]``, little-endian.
    count : int
        Number of samples.
    place : int
        Place of the table in its file, in bytes.
    last : int
        The value of the last offset.
    path : str
        The file that has the table.

    Raises
    ------
    FormatError
        The table is too short, offsets decrease, or the last one is not `last`.
    """
    cdef Py_buffer buffer
    cdef const uint8_t *at = bytes_of(data, &buffer)
    try:
        if <uint64_t> buffer.len // 4 <= count:
            raise FormatError(
                f"{count + 1:,} offsets do not fit into {buffer.len:,} bytes",
                path, place,
            )
        return copy_offsets(at, count, place, last, path)
    finally:
        PyBuffer_Release(&buffer)
