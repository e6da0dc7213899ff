from libc.stdint cimport int64_t, uint32_t, uint64_t

from fastshard._core.span cimport span_t

cdef uint32_t sum_field(span_t field) noexcept nogil
cdef int64_t find_sum(dict packed, str field) except -2
cdef int64_t encode_row(
    uint32_t field, span_t key, int64_t shard, uint64_t offset, uint64_t row
) noexcept nogil
cdef int64_t decode_row(
    uint32_t field, span_t key, int64_t shard, uint64_t offset, int64_t value
) noexcept nogil
