from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef class OffsetTable:
    cdef uint32_t *values          # count + 1, modulo 2**32
    cdef Py_ssize_t *wraps         # places at which `values` decrease
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t wrap_count
    cdef uint64_t wrapped_offset(self, Py_ssize_t i) noexcept nogil


cdef inline uint64_t offset_of(OffsetTable table, Py_ssize_t i) noexcept:
    """Return offset `i`, which the caller has checked to be in 0 .. count."""
    if table.wrap_count == 0:
        return table.values[i]
    return table.wrapped_offset(i)


cdef OffsetTable copy_offsets(
    const uint8_t *at, uint64_t count, uint64_t place, uint64_t last, str path
)
