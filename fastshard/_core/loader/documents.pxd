from libc.stdint cimport int64_t, uint8_t, uint64_t

from fastshard._core.dataset.gather cimport Pieces

cdef int add_piece(
    Pieces pieces, Py_ssize_t member, uint64_t offset, uint64_t size, uint8_t *to
) except -1
cdef int move_all(Pieces pieces) except -1


cdef struct segment_t:             # a document in a row, or a part of a long one
    int64_t document
    int64_t start                  # its first token


cdef class PackedRows:
    cdef readonly int64_t length
    cdef readonly int64_t count
    cdef int64_t *starts           # first segment of each row, then their number
    cdef segment_t *segments
    cdef int64_t used              # segments
    cdef int64_t rows_room
    cdef int64_t room

    cdef bint reserve(self, int64_t rows, int64_t segments) noexcept nogil
    cdef void end_row(self) noexcept nogil
    cdef void add(self, int64_t document, int64_t start) noexcept nogil


cdef struct item_t:                # a document, or the end of a long one, to pack
    int64_t document
    int64_t start
    int64_t size                   # with a separator
    int64_t row                    # in the block, once it is packed


cdef struct gap_t:                 # a row with room
    int64_t room
    int64_t row


cdef class Packer:
    cdef int64_t length
    cdef int64_t between
    cdef item_t *items
    cdef gap_t *gaps               # by room, then by row

    cdef int pack(
        self, const int64_t *sums, PackedRows packed, Py_ssize_t start, Py_ssize_t end
    ) except -1
    cdef bint pack_block(
        self, const int64_t *sums, PackedRows packed, Py_ssize_t start, Py_ssize_t end
    ) noexcept nogil
    cdef int64_t fill(self, int64_t count) noexcept nogil
