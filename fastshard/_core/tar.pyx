"""The header walk of a tar shard, as a state machine over windows of bytes.

`tar_step` looks at one header (or the payload of an extension header) in the
window it is given and says what it found, or which bytes it needs. It knows
ustar (POSIX.1-1988), v7, GNU (long names, base-256 numbers) and pax
(POSIX.1-2001); `tar(5)` of libarchive describes them all.

Of repeated extension headers before one member the last of a kind counts, and
replaces the earlier ones whole, as in GNU tar, Go and libarchive. Where both a
pax path and a GNU long name are there, on which no two readers agree, the one
that came first counts, as in Python's `tarfile`.
"""

from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from fastshard._core.pax cimport (
    PAX_BAD_NAME, PAX_BAD_NUMBER, PAX_INCREMENTAL, PAX_MULTI_VOLUME, PAX_NO_MEMORY,
    PAX_OK, PAX_SAID, PAX_SPARSE, PAX_UNSAID, pax_clear, pax_free, pax_parse,
    pax_replace, pax_set_path, pax_t,
)
from fastshard._core.span cimport span_of, span_t, take, text_of

cdef enum:
    BLOCK = 512                    # bytes; headers and padding come in these
    MAX_EXTENSION = 1 << 20        # bytes of one extension header's payload
    MAX_EXTENSIONS = 64 << 20      # bytes of all extension headers of one member
    # Where a header's fields begin, and their widths in bytes.
    NAME = 0
    NAME_WIDTH = 100
    SIZE = 124
    SIZE_WIDTH = 12
    CHECKSUM = 148
    CHECKSUM_WIDTH = 8
    TYPE = 156
    MAGIC = 257
    PREFIX = 345
    PREFIX_WIDTH = 155
    STAR_PREFIX_WIDTH = 131        # star keeps two times behind it
    STAR_MAGIC = 508


cdef void tar_init(tar_t *tar, uint64_t nbytes) noexcept nogil:
    """Begin a walk over a shard of `nbytes`; end it with `tar_free`."""
    memset(tar, 0, sizeof(tar_t))
    tar.nbytes = nbytes


cdef void tar_free(tar_t *tar) noexcept nogil:
    pax_free(&tar.next)
    pax_free(&tar.gnu)
    pax_free(&tar.every)
    pax_free(&tar.fresh)


cdef bint all_zero(const uint8_t *block) noexcept nogil:
    cdef size_t i
    cdef uint8_t bits = 0
    for i in range(<size_t> BLOCK):
        bits |= block[i]
    return bits == 0


cdef bint read_octal(const uint8_t *field, size_t width, uint64_t *value) noexcept nogil:
    """Read octal digits between spaces; a NUL ends them, none are zero."""
    cdef span_t text = text_of(field, width)
    cdef uint64_t total = 0        # 12 digits at most: 36 bits
    while text.left > 0 and text.at[0] == c' ':
        take(&text, 1)
    while text.left > 0 and text.at[0] != c' ':
        if not c'0' <= text.at[0] <= c'7':
            return False
        total = total * 8 + (take(&text, 1)[0] - c'0')
    while text.left > 0:
        if take(&text, 1)[0] != c' ':
            return False
    value[0] = total
    return True


cdef bint read_number(const uint8_t *field, size_t width, uint64_t *value) noexcept nogil:
    """Read octal digits, or GNU's big-endian binary of a number below 2**63."""
    cdef size_t i
    cdef uint64_t total = 0
    if field[0] < 0x80:
        return read_octal(field, width, value)
    if field[0] != 0x80:           # 0xff: a negative number; else: no number
        return False
    for i in range(<size_t> 1, width):
        if total >> 55 != 0:       # the next byte would reach bit 63
            return False
        total = total << 8 | field[i]
    value[0] = total
    return True


cdef uint64_t sum_of_bytes(const uint8_t *block) noexcept nogil:
    """Sum a block, eight bytes at a time in lanes of 16 bits."""
    cdef size_t i
    cdef uint64_t lanes = 0x00ff00ff00ff00ffULL
    cdef uint64_t sums = 0         # a lane reaches 64 * 2 * 255 < 2**16
    cdef uint64_t word
    for i in range(<size_t> BLOCK // 8):
        memcpy(&word, block + 8 * i, 8)
        sums += (word & lanes) + (word >> 8 & lanes)
    sums = (sums & 0x0000ffff0000ffffULL) + (sums >> 16 & 0x0000ffff0000ffffULL)
    return (sums & 0xffffffffULL) + (sums >> 32)


cdef bint checksum_fits(const uint8_t *block) noexcept nogil:
    """Whether the checksum is right, as a sum of unsigned or of signed bytes."""
    cdef uint64_t stored
    cdef uint64_t total = sum_of_bytes(block) + CHECKSUM_WIDTH * c' '
    if not read_octal(block + CHECKSUM, CHECKSUM_WIDTH, &stored):
        return False
    for i in range(<size_t> CHECKSUM, <size_t> CHECKSUM + CHECKSUM_WIDTH):
        total -= block[i]
    if total == stored:
        return True
    for i in range(<size_t> BLOCK):
        if block[i] >= 0x80 and not CHECKSUM <= i < CHECKSUM + CHECKSUM_WIDTH:
            total -= 256
    return total == stored


cdef inline uint64_t padded(uint64_t size) noexcept nogil:
    """Round up to whole blocks; sizes are below 2**63."""
    return (size + (BLOCK - 1)) & ~<uint64_t> (BLOCK - 1)


cdef int fault(tar_t *tar, int status, uint64_t offset) noexcept nogil:
    tar.fault_at = offset
    return status


cdef int need_bytes(tar_t *tar, size_t size, need_t *need) noexcept nogil:
    need.offset = tar.at
    need.size = size
    return TAR_NEED


cdef pax_t *said_path(tar_t *tar) noexcept nogil:
    """Return what has the member's name; its state may be that none has."""
    cdef pax_t *first = &tar.gnu if tar.gnu_first else &tar.next
    cdef pax_t *second = &tar.next if tar.gnu_first else &tar.gnu
    if first.path_state != PAX_UNSAID:
        return first
    return &tar.every if second.path_state == PAX_UNSAID else second


cdef void find_name(tar_t *tar, const uint8_t *block) noexcept nogil:
    """Set `name`: an extension's, or the header's own behind its prefix."""
    cdef span_t prefix, name
    cdef size_t width = PREFIX_WIDTH
    cdef pax_t *said = said_path(tar)
    if said.path_state == PAX_SAID:
        tar.name = span_of(said.path, said.path_size)
        return
    name = text_of(block + NAME, NAME_WIDTH)
    if memcmp(block + MAGIC, b"ustar\0", 6) != 0 or block[PREFIX] == 0:
        tar.name = name            # v7 has no prefix, GNU has times there
        return
    if memcmp(block + STAR_MAGIC, b"tar\0", 4) == 0:
        width = STAR_PREFIX_WIDTH
    prefix = text_of(block + PREFIX, width)
    memcpy(tar.joined, prefix.at, prefix.left)
    tar.joined[prefix.left] = c'/'
    memcpy(tar.joined + prefix.left + 1, name.at, name.left)
    tar.name = span_of(tar.joined, prefix.left + 1 + name.left)


cdef bint find_size(tar_t *tar, const uint8_t *block) noexcept nogil:
    """Set `size`: an extension's, or the header's own."""
    if tar.next.size_state == PAX_SAID:
        tar.size = tar.next.size
        return True
    if tar.next.size_state == PAX_UNSAID and tar.every.size_state == PAX_SAID:
        tar.size = tar.every.size
        return True
    return read_number(block + SIZE, SIZE_WIDTH, &tar.size)


cdef int refusal(tar_t *tar, uint8_t kind) noexcept nogil:
    """Why a member cannot be read as it is stored, or 0."""
    cdef int refused = tar.next.refused if tar.next.refused else tar.every.refused
    if kind == c'S' or refused == PAX_SPARSE:
        return TAR_SPARSE
    if kind == c'M' or refused == PAX_MULTI_VOLUME:
        return TAR_MULTI_VOLUME
    if kind == c'D' or refused == PAX_INCREMENTAL:
        return TAR_INCREMENTAL
    if tar.next.real_size_state == PAX_SAID and tar.next.real_size != tar.size:
        return TAR_SPARSE
    return 0


cdef int skipped_kind(uint8_t kind) noexcept nogil:
    if c'1' <= kind <= c'6':
        return SKIPPED_HARD_LINK + (kind - c'1')
    if kind in (c'V', c'A', c'E', c'I', c'N'):
        return SKIPPED_METADATA    # volume label, access lists, attributes, inode
    return SKIPPED_UNKNOWN


cdef bint is_regular(tar_t *tar, uint8_t kind, const uint8_t *block) noexcept nogil:
    """Whether it is a file; in v7 a name that ends in a slash is a directory."""
    cdef span_t name
    if kind == c'0' or kind == c'7':
        return True
    name = text_of(block + NAME, NAME_WIDTH)
    return kind == 0 and not (name.left > 0 and name.at[name.left - 1] == c'/')


cdef int finish_header(tar_t *tar, const uint8_t *block) noexcept nogil:
    """Read a header that is no extension: a member, or something to skip."""
    cdef uint8_t kind = block[TYPE]
    cdef uint64_t left = tar.nbytes - tar.at - BLOCK
    cdef int status = TAR_MEMBER
    find_name(tar, block)
    if not find_size(tar, block):
        return fault(tar, TAR_BAD_NUMBER, tar.at + SIZE)
    status = refusal(tar, kind)
    if status != 0:
        return fault(tar, status, tar.at)
    status = TAR_MEMBER
    if not is_regular(tar, kind, block):
        status = TAR_SKIPPED
        tar.skipped = SKIPPED_DIRECTORY if kind == 0 else skipped_kind(kind)
        if kind == 0 or c'1' <= kind <= c'6':
            tar.size = 0           # whatever the field says, nothing is stored
    if tar.size > left:
        return fault(tar, TAR_SIZE_BEYOND, tar.at)
    if padded(tar.size) > left:
        return fault(tar, TAR_PADDING_CUT, tar.at)
    tar.offset = tar.at + BLOCK
    tar.at = tar.offset + padded(tar.size)
    tar.pending = False
    return status


cdef int begin_extension(tar_t *tar, const uint8_t *block) noexcept nogil:
    cdef uint64_t size
    if not read_number(block + SIZE, SIZE_WIDTH, &size):
        return fault(tar, TAR_BAD_NUMBER, tar.at + SIZE)
    if size > MAX_EXTENSION:
        return fault(tar, TAR_EXTENSION_LARGE, tar.at)
    if padded(size) > tar.nbytes - tar.at - BLOCK:
        return fault(tar, TAR_EXTENSION_CUT, tar.at)
    tar.extensions += BLOCK + padded(size)
    if tar.extensions > MAX_EXTENSIONS:
        return fault(tar, TAR_EXTENSIONS_LARGE, tar.at)
    tar.extension = block[TYPE]
    tar.extension_size = size
    tar.pending = tar.pending or tar.extension != c'g'
    tar.at += BLOCK
    return TAR_MORE


cdef int read_payload(tar_t *tar, const uint8_t *payload) noexcept nogil:
    """Read the payload of an extension header into `next`, `gnu` or `every`."""
    cdef uint8_t kind = tar.extension
    cdef size_t at = 0
    cdef int status = PAX_OK
    if kind == c'g':
        status = pax_parse(
            &tar.every, span_of(payload, tar.extension_size), &at
        )
    elif kind == c'L':
        if tar.gnu.path_state == PAX_UNSAID:
            tar.gnu_first = tar.next.path_state == PAX_UNSAID
        status = pax_set_path(&tar.gnu, text_of(payload, tar.extension_size))
    elif kind != c'K':             # K: the long name of a link's target
        status = pax_parse(
            &tar.fresh, span_of(payload, tar.extension_size), &at
        )
        if status == PAX_OK:
            pax_replace(&tar.next, &tar.fresh)
            pax_clear(&tar.fresh)
    if status == PAX_OK:
        tar.at += padded(tar.extension_size)
        tar.extension = 0
        return TAR_MORE
    tar.fault_at = tar.at + at
    if status == PAX_BAD_NUMBER:
        return TAR_BAD_NUMBER
    if status == PAX_BAD_NAME:
        return TAR_BAD_NAME
    return TAR_NO_MEMORY if status == PAX_NO_MEMORY else TAR_BAD_PAX


cdef int read_zeros(
    tar_t *tar, const uint8_t *window, size_t size, need_t *need
) noexcept nogil:
    """Two blocks of zeros end an archive; the file may end after the first."""
    if tar.pending:
        return fault(tar, TAR_EXTENSION_ALONE, tar.at)
    if tar.nbytes - tar.at < 2 * BLOCK:
        tar.at = tar.nbytes
        return TAR_END
    if size < 2 * BLOCK:
        return need_bytes(tar, 2 * BLOCK, need)
    if not all_zero(window + BLOCK):
        return fault(tar, TAR_LONE_ZEROS, tar.at)
    tar.at += 2 * BLOCK
    return TAR_END


cdef int read_header(
    tar_t *tar, const uint8_t *window, size_t size, need_t *need
) noexcept nogil:
    cdef uint64_t left = tar.nbytes - tar.at
    if left == 0:
        if tar.pending:
            return fault(tar, TAR_EXTENSION_ALONE, tar.at)
        return TAR_END
    if left < BLOCK:
        return fault(tar, TAR_HEADER_CUT, tar.at)
    if size < BLOCK:
        return need_bytes(tar, BLOCK, need)
    if window[0] == 0 and all_zero(window):
        return read_zeros(tar, window, size, need)
    if not checksum_fits(window):
        return fault(tar, TAR_BAD_CHECKSUM, tar.at)
    if window[TYPE] in (c'x', c'X', c'g', c'L', c'K'):
        return begin_extension(tar, window)
    return finish_header(tar, window)


cdef int tar_step(
    tar_t *tar, const uint8_t *window, size_t size, need_t *need
) noexcept nogil:
    """Look at the next header.

    `window` holds the `size` bytes of the shard from `tar.at` on; it may be
    empty. Call until the answer is TAR_END or a fault.
    """
    if tar.extension == 0:
        if not tar.pending:
            pax_clear(&tar.next)
            pax_clear(&tar.gnu)
            tar.gnu_first = False
            tar.extensions = 0
        return read_header(tar, window, size, need)
    if size < tar.extension_size:
        return need_bytes(tar, tar.extension_size, need)
    return read_payload(tar, window)
