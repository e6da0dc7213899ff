from libc.stdint cimport uint8_t, uint64_t

from fastshard._core.extents cimport columns_t
from fastshard._core.span cimport span_t


cdef struct headers_t:             # where a member's headers are looked at
    uint64_t start                 # they end where its data begins
    bint whole                     # all of its own are there, extensions too

cdef headers_t headers_before(
    const columns_t *columns, Py_ssize_t i, uint64_t offset, uint64_t lowest
) noexcept nogil
cdef bint agrees(
    const uint8_t *window, headers_t headers, uint64_t nbytes, uint64_t offset,
    uint64_t size, span_t name,
) noexcept nogil
