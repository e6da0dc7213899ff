from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from fastshard._core.rows cimport Rows, mark_t
from fastshard._core.source cimport Source


cdef struct check_t:
    const int64_t *positions
    size_t start                   # places in them
    size_t end
    int32_t slot                   # rows of other shards are passed over
    mark_t *marks
    uint64_t *offsets
    uint64_t *sizes
    const void *names
    const uint8_t *base
    uint64_t nbytes
    const uint8_t *header          # that most rows have
    size_t header_size
    uint64_t size                  # of a member that has it
    uint8_t tag                    # of that header; 0: none is known


cdef class Checking:
    cdef check_t check
    cdef tuple held                # whose memory it is


cdef void check_rows(const void *at) noexcept nogil

cdef Checking checking_of(
    Rows rows, Source source, object order, const int64_t *positions, size_t start,
    size_t end,
)
