"""Checksums of index blocks, each compared once, when the block is first used.

A block has 64 KiB; the last may be shorter. The checksum is CRC-32C.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memchr, memcpy

from fastshard._core.platform cimport fs_claim, fs_add

from fastshard.errors import FormatError

cdef extern from "crc32c.h" nogil:
    void fs_crc32c_begin()
    uint32_t fs_crc32c(uint32_t crc, const uint8_t *at, size_t size)
    uint32_t fs_crc32c_portable(uint32_t crc, const uint8_t *at, size_t size)

fs_crc32c_begin()

cdef enum:
    CHECK_EVERY = 16               # uses of checked blocks per extra block checked

BLOCK_BYTES = 1 << SHIFT


cdef size_t count_of(uint64_t nbytes) noexcept nogil:
    """Return the number of blocks of `nbytes`."""
    return <size_t> (nbytes >> SHIFT) + (nbytes % (<uint64_t> 1 << SHIFT) != 0)


cdef blocks_t *blocks_new(
    const uint8_t *base, uint64_t nbytes, uint64_t start, const uint8_t *sums
) noexcept:
    """Return the blocks of borrowed memory, none checked; NULL: out of memory.

    `sums` holds a uint32 for each block, and is copied.
    """
    cdef size_t count = count_of(nbytes)
    cdef blocks_t *blocks = <blocks_t *> calloc(1, sizeof(blocks_t))
    cdef uint32_t *copied = <uint32_t *> malloc(count * sizeof(uint32_t) + 1)
    cdef uint8_t *checked = <uint8_t *> calloc(count + 1, 1)
    if blocks == NULL or copied == NULL or checked == NULL:
        free(blocks)
        free(copied)
        free(checked)
        return NULL
    memcpy(copied, sums, count * sizeof(uint32_t))
    blocks.base = base
    blocks.nbytes = nbytes
    blocks.start = start
    blocks.sums = copied
    blocks.checked = checked
    blocks.count = count
    blocks.left = count
    return blocks


cdef void blocks_free(blocks_t *blocks) noexcept:
    if blocks != NULL:
        free(<void *> blocks.sums)
        free(blocks.checked)
        free(blocks)


cdef bint block_matches(blocks_t *blocks, size_t k) noexcept nogil:
    """Return whether the checksum of block `k` matches."""
    cdef uint64_t start = <uint64_t> k << SHIFT
    cdef uint64_t size = min(blocks.nbytes - start, <uint64_t> 1 << SHIFT)
    return fs_crc32c(0, blocks.base + start, <size_t> size) == blocks.sums[k]


cdef size_t find_mismatch(blocks_t *blocks, size_t first, size_t end) noexcept nogil:
    """Check unchecked blocks; return the first that does not match, or `end`."""
    cdef size_t k
    for k in range(first, end):
        if blocks.checked[k]:
            continue
        if not block_matches(blocks, k):
            return k
        if fs_claim(&blocks.checked[k]):
            fs_add(&blocks.left, -1)
    return end


cdef int check_another(blocks_t *blocks) except -1:
    """Check one more block at every 16th call, so that no block stays unchecked.

    Calls are counted, modulo 256, in the byte after the blocks' own. A damaged block is
    left for its users to report.
    """
    cdef uint8_t *uses = &blocks.checked[blocks.count]
    cdef const uint8_t *found
    cdef size_t k
    uses[0] += 1
    if uses[0] % CHECK_EVERY != 0:
        return 0
    found = <const uint8_t *> memchr(blocks.checked, 0, blocks.count)
    if found != NULL:
        k = found - blocks.checked
        with nogil:
            find_mismatch(blocks, k, k + 1)
    return 0


cdef int blocks_check(
    blocks_t *blocks, const void *at, uint64_t size, object path
) except -1:
    """Raise FormatError if a block that holds some of these bytes is damaged.

    The bytes must lie in the blocks. Checksums are computed without the GIL, for pages
    may have to be read.
    """
    cdef uint64_t offset = <const uint8_t *> at - blocks.base
    cdef size_t first, end, damaged
    if size == 0:
        return 0
    first = <size_t> (offset >> SHIFT)
    end = <size_t> ((offset + size - 1) >> SHIFT) + 1
    while first < end and blocks.checked[first]:
        first += 1
    if first == end:
        return check_another(blocks)
    with nogil:
        damaged = find_mismatch(blocks, first, end)
    if damaged < end:
        raise FormatError(
            "the index is damaged: the checksum of the block that begins here is "
            "wrong; rebuild it with: fastshard index",
            path, blocks.start + (<uint64_t> damaged << SHIFT),
        )
    return 0


def crc32c(data, uint32_t before=0, *, bint portable=False):
    """Return the CRC-32C of a buffer."""
    cdef Py_buffer buffer
    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
    try:
        with nogil:
            if portable:
                before = fs_crc32c_portable(before, <uint8_t *> buffer.buf, buffer.len)
            else:
                before = fs_crc32c(before, <uint8_t *> buffer.buf, buffer.len)
    finally:
        PyBuffer_Release(&buffer)
    return before


def block_sums(data):
    """Return the checksums of a buffer's blocks, a native uint32 each."""
    cdef Py_buffer buffer
    cdef size_t k, count
    cdef uint64_t start
    cdef uint32_t *sums
    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
    try:
        count = count_of(buffer.len)
        made = PyBytes_FromStringAndSize(NULL, count * sizeof(uint32_t))
        sums = <uint32_t *> PyBytes_AS_STRING(made)
        with nogil:
            for k in range(count):
                start = <uint64_t> k << SHIFT
                sums[k] = fs_crc32c(
                    0, <uint8_t *> buffer.buf + start,
                    <size_t> min(<uint64_t> buffer.len - start, <uint64_t> 1 << SHIFT),
                )
    finally:
        PyBuffer_Release(&buffer)
    return made
