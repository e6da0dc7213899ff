from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from fastshard._core.span cimport span_t


cdef enum:
    SHIFT = 16                     # a block is 2**16 bytes

cdef struct blocks_t:              # the part of an index that has checksums
    const uint8_t *base            # its first byte; borrowed
    uint64_t nbytes
    uint64_t start                 # offset of `base` in the file
    const uint32_t *sums           # of each block; owned
    uint8_t *checked               # of each block: 1 once its checksum matched
    size_t count                   # blocks
    Py_ssize_t left                # blocks not checked yet

cdef size_t count_of(uint64_t nbytes) noexcept nogil
cdef blocks_t *blocks_new(
    const uint8_t *base, uint64_t nbytes, uint64_t start, const uint8_t *sums
) noexcept
cdef void blocks_free(blocks_t *blocks) noexcept
cdef bint block_matches(blocks_t *blocks, size_t k) noexcept nogil
cdef int blocks_check(
    blocks_t *blocks, const void *at, uint64_t size, object path
) except -1
cdef uint32_t sum_field(span_t field) noexcept nogil
cdef int64_t find_sum(dict packed, str field) except -2
cdef int64_t encode_row(
    uint32_t field, span_t key, int64_t shard, uint64_t offset, uint64_t row
) noexcept nogil
cdef int64_t decode_row(
    uint32_t field, span_t key, int64_t shard, uint64_t offset, int64_t value
) noexcept nogil
