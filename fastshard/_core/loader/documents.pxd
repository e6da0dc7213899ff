from libc.stdint cimport uint8_t, uint64_t

from fastshard._core.dataset.gather cimport Pieces


cdef int add_piece(
    Pieces pieces, Py_ssize_t member, uint64_t offset, uint64_t size, uint8_t *to
) except -1
cdef int move_all(Pieces pieces) except -1
