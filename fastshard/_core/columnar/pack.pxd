from libc.stdint cimport uint8_t, uint64_t

from fastshard._core.dataset.npy cimport Layout, LayoutCache
from fastshard._core.io.source cimport Source


cdef class Pack:
    cdef Source source
    cdef str path
    cdef uint64_t offset           # of the member's data in the file, bytes
    cdef uint64_t first            # of the first row
    cdef uint64_t rows
    cdef uint64_t row_size         # bytes
    cdef Layout layout             # of a row as a member of its own
    cdef bytes header              # of such a member
    cdef int check_row(self, uint64_t row, str field, str member) except -1
    cdef object array(self, uint64_t row, str field, str member)


cdef Pack make_pack(
    Source source, str path, uint64_t offset, uint64_t size, const uint8_t *window,
    uint64_t window_size, LayoutCache layouts,
)
