"""CRC-32C checksums: of index blocks, and of the identity of rows in packs.

A block has 64 KiB; the last may be shorter. Each is compared once, when the block is
first used. A row in a pack is stored as ``identity << 31 | row``. The identity is the
checksum of the field's name, of shard, offset and row as little-endian int64, and of
the sample's id, so that each change of one bit of these, or of the value, is detected.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memchr, memcpy

from fastshard._core.platform cimport fs_add, fs_claim
from fastshard._core.span cimport span_t
from fastshard._core.table.names cimport encode_text

from fastshard.errors import FormatError

cdef extern from "crc32c.h" nogil:
    void fs_crc32c_begin()
    uint32_t fs_crc32c(uint32_t crc, const uint8_t *at, size_t size)
    uint32_t fs_crc32c_portable(uint32_t crc, const uint8_t *at, size_t size)

fs_crc32c_begin()

cdef enum:
    CHECK_EVERY = 16               # uses of checked blocks per extra block checked
    ROW_SHIFT = 31                 # bits of a row; those of a pack are fewer

BLOCK_BYTES = 1 << SHIFT
ROW_BITS = ROW_SHIFT


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


cdef uint32_t sum_field(span_t field) noexcept nogil:
    """Return the checksum of a field's name, where those of its rows begin."""
    return fs_crc32c(0, field.at, field.left)


cdef int64_t find_sum(dict packed, str field) except -2:
    """Return the checksum of a field's name, or -1 if its rows have no identities.

    `packed` has the fields that may have packs, and whether their rows have identities.
    """
    cdef span_t name
    cdef object keeper
    if not packed.get(field):
        return -1
    keeper = encode_text(field, &name)
    if keeper is None:
        raise ValueError(f"the field {field!r:.200} is not valid Unicode")
    return sum_field(name)


cdef int64_t encode_row(
    uint32_t field, span_t key, int64_t shard, uint64_t offset, uint64_t row
) noexcept nogil:
    """Return the stored value of a row of at most 31 bits; `field` is its checksum."""
    cdef uint64_t[3] place
    cdef uint32_t identity
    place[0] = <uint64_t> shard
    place[1] = offset
    place[2] = row
    identity = fs_crc32c(field, <const uint8_t *> place, sizeof(place))
    identity = fs_crc32c(identity, key.at, key.left)
    return <int64_t> (<uint64_t> identity << ROW_SHIFT | row)


cdef int64_t decode_row(
    uint32_t field, span_t key, int64_t shard, uint64_t offset, int64_t value
) noexcept nogil:
    """Return the row in a stored value, or -1 if it is not of this sample and place."""
    cdef int64_t row = value & ((<int64_t> 1 << ROW_SHIFT) - 1)
    return row if encode_row(field, key, shard, offset, row) == value else -1


def identify_row(
    str field not None, str sample_id not None, int64_t shard, uint64_t offset,
    uint64_t row,
):
    """Return the stored value of a sample's row in a pack."""
    cdef span_t name, key
    cdef object keeper = encode_text(field, &name)
    cdef object owner = encode_text(sample_id, &key)
    if keeper is None or owner is None or row >> ROW_SHIFT:
        raise ValueError(f"no identity of row {row:,} of {sample_id!r:.200}")
    return encode_row(sum_field(name), key, shard, offset, row)


def find_row(str field not None, sample_id, shard, offset, value):
    """Return the row in a stored value, or None if it is not of this sample and place.
    """
    cdef span_t name, key
    cdef int64_t row
    cdef object keeper = encode_text(field, &name)
    cdef object owner
    if type(sample_id) is not str or keeper is None:
        return None
    for number in (shard, offset, value):
        if type(number) is not int or not 0 <= number < 1 << 63:
            return None
    owner = encode_text(sample_id, &key)
    if owner is None:
        return None
    row = decode_row(sum_field(name), key, shard, offset, value)
    return None if row < 0 else row
