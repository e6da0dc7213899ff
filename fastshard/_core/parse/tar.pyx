"""Tar shards: the header machine, the scan of a local file, the walk over a remote one.

`tar_step` looks at one header (or the payload of an extension header) in the
window it is given and says what it found, or which bytes it needs. It knows
ustar (POSIX.1-1988), v7, GNU (long names, base-256 numbers) and pax
(POSIX.1-2001); `tar(5)` of libarchive describes them all.

Of repeated extension headers before one member the last of a kind counts, and
replaces the earlier ones whole, as in GNU tar, Go and libarchive. Where both a
pax path and a GNU long name are there, on which no two readers agree, the one
that came first counts, as in Python's `tarfile`.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EAGAIN, errno
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memset, strlen

from fastshard._core.pages cimport fs_now
from fastshard._core.platform cimport fs_load, fs_pread, fs_pread_cached, fs_advise_file
from fastshard._core.io.source cimport LocalFile
from fastshard._core.span cimport span_of, span_t, take, take_until, text_of
from fastshard._core.table.extents cimport (
    ExtentTable, columns_add, columns_free, columns_t, has_unchecked_blocks, name_at, make_table,
    decode_text,
)

import os

from fastshard.errors import FormatError

cdef enum:
    BLOCK = 512                    # bytes; headers and padding come in these
    MAX_EXTENSION = 1 << 20        # bytes of one extension header's payload
    MAX_EXTENSIONS = 64 << 20      # bytes of all extension headers of one member
    MAX_LENGTH_DIGITS = 7          # of a pax record: extension headers are small
    MAX_SIZE_DIGITS = 19
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

cdef enum:                         # of the scan of a local file
    ROOM = (1 << 20) + 512         # bytes: a window, and any extension's payload
    NEAR = 6 << 10                 # bytes between headers that one window joins
    FAR = 1 << 20                  # bytes between headers that a disk need not join
    HEADERS = 4 << 10              # bytes of headers that are read on a guess
    WINDOW = 256 << 10             # bytes read at once among near headers
    MISSED = 1 << 20               # bytes read at once from a disk
    AHEAD = 4 << 20                # bytes that a disk is asked for in advance
    SURE = 1 << 10                 # members from which their number can be guessed

cdef enum:                         # that a walk ends with, beyond a step's
    SCAN_PAUSED = TAR_STATUSES + 1
    SCAN_OS_ERROR
    SCAN_SHRUNK
    WALK_STOPPED

cdef enum:
    LOOKED_AT = 4 << 10            # bytes before a member's data that are compared

cdef enum pax_status_t:
    PAX_OK
    PAX_MALFORMED
    PAX_BAD_NUMBER
    PAX_BAD_NAME
    PAX_NO_MEMORY

cdef enum pax_refused_t:           # members that are not stored as they are
    PAX_NOT_REFUSED
    PAX_SPARSE
    PAX_MULTI_VOLUME
    PAX_INCREMENTAL

cdef enum pax_value_t:
    PAX_UNSAID
    PAX_SAID
    PAX_DELETED                    # a record without a value: the header's counts

cdef struct window_t:
    int fd
    int code                       # errno of a failed read
    bint asks_cache                # whether fs_pread_cached answers
    uint64_t nbytes
    uint64_t start                 # offset of the first byte held
    size_t held
    uint64_t asked_to              # offset up to which a disk was asked
    uint8_t *bytes

cdef struct scan_t:
    tar_t tar
    window_t window
    columns_t columns
    columns_t *starts              # where headers begin, as offsets; NULL: unasked
    uint64_t start                 # of the headers of the member that is next
    uint64_t stride                # running mean of bytes between headers
    size_t header_size             # bytes of the last member's headers
    uint64_t[<int> SKIPPED_KINDS] skipped

cdef uint64_t PAUSE = 50 * 1000 * 1000  # ns between looks at signals
cdef uint64_t HEADER_SIZES = <uint64_t> 1 << 33  # larger sizes may stand elsewhere

KINDS = {
    SKIPPED_HARD_LINK: "hard link",
    SKIPPED_SYMBOLIC_LINK: "symbolic link",
    SKIPPED_CHARACTER_DEVICE: "character device",
    SKIPPED_BLOCK_DEVICE: "block device",
    SKIPPED_DIRECTORY: "directory",
    SKIPPED_FIFO: "FIFO",
    SKIPPED_METADATA: "metadata",
    SKIPPED_UNKNOWN: "unknown",
}

FAULTS = {
    TAR_BAD_CHECKSUM: "not a tar header: its checksum is wrong",
    TAR_BAD_NUMBER: "a size that is negative, absurd or no number",
    TAR_HEADER_CUT: "the archive ends inside a header",
    TAR_SIZE_BEYOND: "the archive ends inside this member's data",
    TAR_PADDING_CUT: "the archive ends inside this member's padding",
    TAR_LONE_ZEROS: "one block of zeros, and more data behind it",
    TAR_EXTENSION_CUT: "the archive ends inside an extension header",
    TAR_EXTENSION_LARGE: "an extension header of more than 1 MiB",
    TAR_EXTENSIONS_LARGE: "extension headers of more than 64 MiB before one member",
    TAR_EXTENSION_ALONE: "an extension header without a member",
    TAR_BAD_PAX: "a malformed record in a pax header",
    TAR_BAD_NAME: "a name with a NUL in it",
    TAR_SPARSE: "a sparse member, which is stored condensed; unpack it with GNU tar",
    TAR_MULTI_VOLUME: "a part of a member of a multi-volume archive",
    TAR_INCREMENTAL: "a directory listing of an incremental backup",
    SCAN_SHRUNK: "the file ends here; it was longer when it was opened",
}


# The records of pax extension headers: ``"%d %s=%s\n" % (length, key, value)``.
#
# POSIX.1-2017, "pax Interchange Format". Only what changes where a member's bytes
# are or what it is called counts here; WebDataset's writer gives every member a
# header with a time alone, so all else is passed over by its length.

cdef bint equals(span_t text, const char *word) noexcept nogil:
    return text.left == strlen(word) and memcmp(text.at, word, text.left) == 0


cdef bint begins(span_t text, const char *word) noexcept nogil:
    return text.left >= strlen(word) and memcmp(text.at, word, strlen(word)) == 0


cdef bint read_decimal(span_t text, size_t max_digits, uint64_t *value) noexcept nogil:
    """Read a decimal number of digits alone, below 2**63; zeros may lead it."""
    cdef size_t i
    cdef uint64_t total = 0
    while text.left > 1 and text.at[0] == c'0':
        take(&text, 1)
    if not 0 < text.left <= max_digits:
        return False
    for i in range(text.left):
        if not c'0' <= text.at[i] <= c'9':
            return False
        total = total * 10 + (text.at[i] - c'0')  # 19 digits fit into 64 bits
    value[0] = total
    return total >> 63 == 0


cdef int pax_set_path(pax_t *pax, span_t path) noexcept nogil:
    """Copy a name. Names hold no NUL."""
    cdef uint8_t *moved
    if path.left > 0 and memchr(path.at, 0, path.left) != NULL:
        return PAX_BAD_NAME
    if path.left >= pax.path_room:
        moved = <uint8_t *> realloc(pax.path, path.left + 256)
        if moved == NULL:
            return PAX_NO_MEMORY
        pax.path = moved
        pax.path_room = path.left + 256
    if path.left > 0:
        memcpy(pax.path, path.at, path.left)
    pax.path_size = path.left
    pax.path_state = PAX_SAID
    return PAX_OK


cdef void pax_clear(pax_t *pax) noexcept nogil:
    """Forget everything but the memory."""
    pax.path_state = pax.size_state = pax.real_size_state = PAX_UNSAID
    pax.refused = PAX_NOT_REFUSED


cdef void pax_free(pax_t *pax) noexcept nogil:
    free(pax.path)
    pax.path = NULL
    pax.path_room = 0


cdef void pax_replace(pax_t *pax, pax_t *later) noexcept nogil:
    """Let a later header of the same member replace this one.

    What was refused stays so: a reader that adds headers up would refuse it.
    """
    cdef pax_t earlier = pax[0]    # swap, so that each frees its own
    pax[0] = later[0]
    later[0] = earlier
    if pax.refused == PAX_NOT_REFUSED:
        pax.refused = earlier.refused


cdef int set_number(span_t value, uint64_t *number, int *state) noexcept nogil:
    if value.left == 0:
        state[0] = PAX_DELETED
        return PAX_OK
    state[0] = PAX_SAID
    if not read_decimal(value, MAX_SIZE_DIGITS, number):
        return PAX_BAD_NUMBER
    return PAX_OK


cdef int set_gnu(pax_t *pax, span_t key, span_t value) noexcept nogil:
    if begins(key, b"GNU.sparse."):
        pax.refused = PAX_SPARSE
        if equals(key, b"GNU.sparse.name"):  # the header's name is a made-up one
            return pax_set_path(pax, value)
    elif equals(key, b"GNU.dumpdir"):
        pax.refused = PAX_INCREMENTAL
    elif begins(key, b"GNU.volume.") and not equals(key, b"GNU.volume.label"):
        pax.refused = PAX_MULTI_VOLUME
    return PAX_OK


cdef int set_value(pax_t *pax, span_t key, span_t value) noexcept nogil:
    if key.left == 0:
        return PAX_MALFORMED
    if key.at[0] == c'm':          # mtime: by far the most common
        return PAX_OK
    if equals(key, b"path"):
        if value.left == 0:
            pax.path_state = PAX_DELETED
            return PAX_OK
        if pax.refused == PAX_SPARSE and pax.path_state == PAX_SAID:
            return PAX_OK          # GNU.sparse.name is the true one
        return pax_set_path(pax, value)
    if equals(key, b"size"):
        return set_number(value, &pax.size, &pax.size_state)
    if equals(key, b"SCHILY.realsize"):
        return set_number(value, &pax.real_size, &pax.real_size_state)
    return set_gnu(pax, key, value)


cdef int parse_record(pax_t *pax, span_t *text) noexcept nogil:
    cdef span_t record = text[0]
    cdef span_t digits, key
    cdef uint64_t length
    cdef size_t used
    if not take_until(&record, c' ', &digits):
        return PAX_MALFORMED
    if not read_decimal(digits, MAX_LENGTH_DIGITS, &length):
        return PAX_MALFORMED
    used = digits.left + 1
    if length <= used or length > text.left:
        return PAX_MALFORMED
    record.left = length - used
    if record.at[record.left - 1] != c'\n':
        return PAX_MALFORMED
    record.left -= 1
    if not take_until(&record, c'=', &key):
        return PAX_MALFORMED
    take(text, length)
    return set_value(pax, key, record)


cdef int pax_parse(pax_t *pax, span_t text, size_t *fault) noexcept nogil:
    """Read the records of one header; `fault` is the byte of the bad one."""
    cdef size_t size = text.left
    cdef span_t rest
    cdef int status
    while text.left > 0:
        fault[0] = size - text.left
        if text.at[0] == 0:        # padding, which must be nothing else
            rest = text
            while rest.left > 0:
                if take(&rest, 1)[0] != 0:
                    return PAX_MALFORMED
            return PAX_OK
        status = parse_record(pax, &text)
        if status != PAX_OK:
            return status
    return PAX_OK


# The header machine.

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


# The scan of a local shard: windows of pread under `tar_step`, no GIL.
#
# Never through the mapping: a mapped scan costs up to 7.6 us a member depending
# on how the page cache was filled, and a file that shrinks would kill it.
#
# How much a window reads follows what the headers are apart. Among small members
# one large read serves many. After large members only the next header is read,
# unless that waits for the disk: then a large read costs no more than a small one.

cdef int read_window(
    window_t *window, const need_t *need, size_t want, bint near
) noexcept nogil:
    """Fill the window from `need.offset` on; 0, or a SCAN_ status."""
    cdef uint64_t left = window.nbytes - need.offset
    cdef int64_t got = -1
    want = <size_t> min(<uint64_t> min(want, <size_t> ROOM), left)
    window.start = need.offset
    window.held = 0
    if window.asks_cache:
        got = fs_pread_cached(window.fd, window.bytes, want, need.offset)
        if got >= <int64_t> need.size:
            window.held = got
            return 0
        window.asks_cache = got >= 0 or errno == EAGAIN
        if near:
            want = <size_t> min(<uint64_t> MISSED, left)
            if need.offset + want > window.asked_to:
                window.asked_to = need.offset + want + AHEAD
                fs_advise_file(window.fd, need.offset + want, AHEAD)
    while window.held < need.size:
        got = fs_pread(
            window.fd, window.bytes + window.held, want - window.held,
            need.offset + window.held,
        )
        if got <= 0:
            window.code = errno
            return SCAN_SHRUNK if got == 0 else SCAN_OS_ERROR
        window.held += got
    return 0


cdef int fill(scan_t *scan, const need_t *need) noexcept nogil:
    """Bring the bytes that a step needs into the window."""
    cdef size_t want = need.size
    if scan.stride <= NEAR:
        want = max(want, <size_t> WINDOW)
    else:
        want = max(want, min(scan.header_size, <size_t> HEADERS))
    return read_window(&scan.window, need, want, scan.stride <= FAR)


cdef int add_member(scan_t *scan) noexcept nogil:
    cdef tar_t *tar = &scan.tar
    scan.stride = (3 * scan.stride + (tar.at - scan.start)) // 4
    scan.header_size = <size_t> (tar.offset - scan.start)
    if scan.columns.count >= SURE and scan.columns.count == scan.columns.room:
        scan.columns.expected = 1.02 * <double> tar.nbytes / <double> tar.at
    if not columns_add(&scan.columns, tar.offset, tar.size, tar.name):
        return TAR_NO_MEMORY
    if scan.starts != NULL and not columns_add(
        scan.starts, scan.start, 0, span_of(tar.name.at, 0)
    ):
        return TAR_NO_MEMORY
    return TAR_MORE


cdef int walk(scan_t *scan) noexcept nogil:
    """Step on until the end, a fault, or a pause is due.

    The clock is asked once a window: those hold all that takes time.
    """
    cdef tar_t *tar = &scan.tar
    cdef window_t *window = &scan.window
    cdef need_t need
    cdef uint64_t skip
    cdef int status
    cdef uint64_t began = fs_now()
    while True:
        skip = tar.at - window.start
        if skip > window.held:
            skip = window.held
        status = tar_step(
            tar, window.bytes + skip, window.held - <size_t> skip, &need
        )
        if status == TAR_NEED:
            status = fill(scan, &need)
            if status != 0:
                return status
            if fs_now() - began > PAUSE:
                return SCAN_PAUSED
        elif status == TAR_MEMBER:
            if add_member(scan) != TAR_MORE:
                return TAR_NO_MEMORY
            scan.start = tar.at
        elif status == TAR_SKIPPED:
            scan.skipped[tar.skipped] += 1
            scan.start = tar.at
        elif status != TAR_MORE:
            return status
        elif tar.extension == 0 and not tar.pending:
            scan.start = tar.at    # a global header is no member's own


cdef object named(const tar_t *tar, int status):
    """The name of the member that is at fault, or None where none has one yet."""
    if status in (
        TAR_SPARSE, TAR_MULTI_VOLUME, TAR_INCREMENTAL, TAR_SIZE_BEYOND, TAR_PADDING_CUT
    ):
        return decode_text(tar.name)
    return None


cdef object fault_of(scan_t *scan, int status, LocalFile file):
    if status == TAR_NO_MEMORY:
        return MemoryError()
    if status == SCAN_OS_ERROR:
        return OSError(scan.window.code, os.strerror(scan.window.code), file.path)
    offset = scan.tar.fault_at
    if status == SCAN_SHRUNK:
        offset = scan.window.start + scan.window.held
    return FormatError(FAULTS[status], file.path, offset, named(&scan.tar, status))


def scan_tar(LocalFile file not None, progress=None):
    """Walk over the headers of a tar file without the GIL.

    Parameters
    ----------
    file : LocalFile
    progress : callable, optional
        Called some 20 times a second with the bytes walked over so far. What it
        raises ends the scan.

    Returns
    -------
    table : ExtentTable
        The regular members, in the file's order.
    skipped : dict of str to int
        How many of each kind are stored that are no members.
    end : int
        Where the archive ends, in bytes from the start of the file.

    Raises
    ------
    FormatError
        The file breaks the format, or holds what cannot be read as stored.
    OSError
        Reading failed.
    """
    cdef scan_t scan
    memset(&scan, 0, sizeof(scan))
    try:
        run(&scan, file, progress)
        skipped = {
            kind: scan.skipped[i] for i, kind in KINDS.items() if scan.skipped[i]
        }
        return make_table(&scan.columns), skipped, scan.tar.at
    finally:
        release(&scan)


def scan_until_fault(LocalFile file not None):
    """Find the members of a tar that stand before its first fault, if it has one.

    Parameters
    ----------
    file : LocalFile

    Returns
    -------
    table : ExtentTable
        The regular members, in the file's order, each of them whole.
    end : int
        Where the last one ends with its padding, in bytes from the start.
    fault : FormatError or None
        What stands behind; None: the archive ends as it should.

    Raises
    ------
    OSError
        Reading failed.
    """
    cdef scan_t scan
    cdef object fault = None
    cdef uint64_t end = 0
    cdef size_t last
    memset(&scan, 0, sizeof(scan))
    try:
        try:
            run(&scan, file, None)
        except FormatError as error:
            fault = error
        if scan.columns.count > 0:
            last = scan.columns.count - 1
            end = scan.columns.offsets[last] + scan.columns.sizes[last]
            end = padded(end)
        return make_table(&scan.columns), end, fault
    finally:
        release(&scan)


def scan_header_starts(LocalFile file not None, progress=None):
    """Return where the headers of each regular member begin.

    Parameters
    ----------
    file : LocalFile
    progress : callable, optional
        As for `scan_tar`.

    Returns
    -------
    starts : bytes
        A native u64 for each member: the first of its headers, those of its own
        extensions included, global ones not; bytes from the start of the file.
    end : int
        Where the archive's own end begins, its blocks of zeros.

    Raises
    ------
    FormatError, OSError
        As for `scan_tar`.
    """
    cdef scan_t scan
    cdef columns_t starts
    memset(&scan, 0, sizeof(scan))
    memset(&starts, 0, sizeof(starts))
    scan.starts = &starts
    try:
        run(&scan, file, progress)
        return (
            PyBytes_FromStringAndSize(<const char *> starts.offsets, 8 * starts.count),
            scan.start,
        )
    finally:
        columns_free(&starts)
        release(&scan)


cdef void release(scan_t *scan) noexcept:
    tar_free(&scan.tar)
    columns_free(&scan.columns)
    free(scan.window.bytes)


cdef int run(scan_t *scan, LocalFile file, object progress) except -1:
    """Walk over a whole file; `release` what it took, whatever happens."""
    cdef int status = SCAN_PAUSED
    tar_init(&scan.tar, file.nbytes)
    scan.window.fd = file.fd
    scan.window.nbytes = file.nbytes
    scan.window.asks_cache = True
    scan.window.bytes = <uint8_t *> malloc(ROOM)
    if scan.window.bytes == NULL:
        raise MemoryError
    while status == SCAN_PAUSED:
        with nogil:
            status = walk(scan)
        PyErr_CheckSignals()
        if progress is not None:
            progress(min(scan.tar.at, file.nbytes))
    if status != TAR_END:
        raise fault_of(scan, status, file)
    return 0


# A walk over the headers of a tar whose bytes somebody else brings.
#
# The same `tar_step`: it says which bytes it needs next, and goes on when it is given
# them. A walk may begin in the middle of an archive, at a header, and end where
# another one begins.

@cython.final
cdef class HeaderWalk:
    """A walk from one header of a tar on.

    Parameters
    ----------
    nbytes : int
        Of the whole archive.
    start : int
        Where the first header is.
    path : str
        For messages.
    """

    cdef tar_t tar
    cdef columns_t columns
    cdef uint64_t[<int> SKIPPED_KINDS] counts
    cdef readonly object path
    cdef uint64_t start            # of the headers of the member that is next
    cdef readonly uint64_t stride  # running mean of bytes between headers
    cdef readonly uint64_t header_size  # bytes of the last member's headers
    cdef readonly bint ended       # the archive ends here
    cdef readonly bint has_global  # a header was seen that holds for all that follow

    def __cinit__(self, uint64_t nbytes, uint64_t start, path):
        memset(&self.columns, 0, sizeof(self.columns))
        tar_init(&self.tar, nbytes)
        self.tar.at = self.start = start
        self.path = path
        self.header_size = BLOCK

    def __dealloc__(self):
        tar_free(&self.tar)
        columns_free(&self.columns)

    def __reduce__(self):
        raise TypeError("a walk does not pickle")

    @property
    def nbytes(self):
        """Bytes of the whole archive."""
        return self.tar.nbytes

    @property
    def at(self):
        """Where the headers of the member that comes next begin."""
        return self.start

    @property
    def count(self):
        """Members so far."""
        return self.columns.count

    def advance(self, bytes window not None, uint64_t offset, uint64_t stop):
        """Walk on, as far as the bytes reach.

        Parameters
        ----------
        window : bytes
            What the archive has from `offset` on; empty to begin with.
        offset : int
        stop : int
            Walk no further than to a header at or behind this offset.

        Returns
        -------
        (int, int), or None
            The offset and the number of bytes that are needed at least; None: the
            archive ended, or `stop` was reached.

        Raises
        ------
        FormatError
            The archive breaks the format.
        """
        cdef const uint8_t *bytes_at = <const uint8_t *> PyBytes_AS_STRING(window)
        cdef size_t size = len(window)
        cdef need_t need
        cdef int status
        with nogil:
            status = self.step_on(bytes_at, size, offset, stop, &need)
        if status == TAR_NEED:
            return need.offset, need.size
        if status == TAR_END:
            self.ended = True
            self.start = self.tar.at
        elif status != WALK_STOPPED:
            raise self.fault(status)
        return None

    cdef int step_on(
        self, const uint8_t *window, size_t size, uint64_t offset, uint64_t stop,
        need_t *need,
    ) noexcept nogil:
        cdef tar_t *tar = &self.tar
        cdef uint64_t skip
        cdef int status
        while True:
            if tar.extension == 0 and not tar.pending and tar.at >= stop:
                return WALK_STOPPED
            skip = size
            if offset <= tar.at and tar.at - offset < size:
                skip = tar.at - offset
            status = tar_step(tar, window + skip, size - <size_t> skip, need)
            if status == TAR_MEMBER:
                if self.columns.count == 0:
                    self.stride = tar.at - self.start
                else:
                    self.stride = (3 * self.stride + (tar.at - self.start)) // 4
                self.header_size = tar.offset - self.start
                if not columns_add(&self.columns, tar.offset, tar.size, tar.name):
                    return TAR_NO_MEMORY
                self.start = tar.at
            elif status == TAR_SKIPPED:
                self.counts[tar.skipped] += 1
                self.start = tar.at
            elif status != TAR_MORE:
                return status
            elif tar.extension == 0 and not tar.pending:
                self.has_global = True
                self.start = tar.at

    cdef object fault(self, int status):
        if status == TAR_NO_MEMORY:
            return MemoryError()
        return FormatError(
            FAULTS[status], self.path, self.tar.fault_at, named(&self.tar, status)
        )

    def append(self, HeaderWalk other not None):
        """Add what another walk found, which began where this one ended."""
        cdef size_t i
        cdef columns_t *more = &other.columns
        if other is self:
            raise ValueError("a walk behind itself")
        for i in range(more.count):
            if not columns_add(
                &self.columns, more.offsets[i], more.sizes[i], name_at(more, i)
            ):
                raise MemoryError
        for i in range(<size_t> SKIPPED_KINDS):
            self.counts[i] += other.counts[i]
        tar_free(&self.tar)
        tar_init(&self.tar, other.tar.nbytes)
        self.tar.at = other.tar.at
        self.start = other.start
        self.ended = other.ended
        self.has_global = self.has_global or other.has_global

    def jump_to(self, uint64_t start):
        """Go on at another header; what global headers said so far holds there too."""
        if self.tar.pending or self.tar.extension != 0:
            raise ValueError("a walk that stands between a header and its member")
        self.tar.at = self.start = start

    def table(self):
        """Return the members, and leave none behind."""
        return make_table(&self.columns)

    def skipped(self):
        """Return how many of each kind were passed over that are no members."""
        return {kind: self.counts[i] for i, kind in KINDS.items() if self.counts[i]}


def find_header(bytes window not None, uint64_t offset, uint64_t nbytes, uint64_t stop):
    """Look for a header in the middle of an archive, which may be a false one.

    Parameters
    ----------
    window : bytes
        What the archive has from `offset` on, a multiple of 512.
    offset, nbytes : int
        Where the window begins, and bytes of the whole archive.
    stop : int
        Look no further than here.

    Returns
    -------
    int, or None
        Where the first block is that looks like a member's own header.
    """
    cdef const uint8_t *at = <const uint8_t *> PyBytes_AS_STRING(window)
    cdef uint64_t end = min(offset + <uint64_t> len(window), stop)
    cdef tar_t tar
    cdef need_t need
    cdef int status
    while offset < end and end - offset >= BLOCK:
        if memcmp(at + MAGIC, b"ust", 3) == 0:
            tar_init(&tar, nbytes)
            tar.at = offset
            status = tar_step(&tar, at, BLOCK, &need)
            tar_free(&tar)
            if status == TAR_MEMBER or status == TAR_SKIPPED or (
                status in (TAR_MORE, TAR_NEED) and at[TYPE] in (c'x', c'L')
            ):
                return offset
        at += BLOCK
        offset += BLOCK
    return None


# Whether the headers of a tar still are what an index says.
#
# A header stands right before its member's data, so that a few of them can be
# compared without a walk over the others.

cdef span_t without_dot(span_t name) noexcept nogil:
    """A name without a leading "./", which some writers leave out."""
    if name.left >= 2 and name.at[0] == c'.' and name.at[1] == c'/':
        take(&name, 2)
    return name


cdef bint is_short(span_t name) noexcept nogil:
    """Whether every writer puts such a name into the header itself."""
    cdef size_t i
    if name.left > NAME_WIDTH - 2:
        return False
    for i in range(name.left):
        if name.at[i] >= 0x80:
            return False
    return True


cdef bint is_same(span_t listed, span_t found) noexcept nogil:
    listed = without_dot(listed)
    found = without_dot(found)
    return listed.left == found.left and (
        listed.left == 0 or memcmp(listed.at, found.at, listed.left) == 0
    )


cdef headers_t headers_before(
    const columns_t *columns, Py_ssize_t i, uint64_t offset, uint64_t lowest
) noexcept nogil:
    """Where the headers of member `i` begin: behind the member before it.

    Where that is below `lowest`, or absurd, its own block alone is looked at. The
    caller has checked that `offset` leaves room for it.
    """
    cdef headers_t headers
    cdef uint64_t before, size
    cdef uint64_t end = 0
    headers.start = offset - BLOCK
    headers.whole = False
    if i > 0:
        before = fs_load(columns.offsets + i - 1)
        size = fs_load(columns.sizes + i - 1)
        if before > offset or size > offset - before:
            return headers
        end = padded(before + size)
    if lowest <= end <= headers.start and (offset - end) % BLOCK == 0:
        headers.start = end
        headers.whole = True
    return headers


cdef bint headers_match(
    const uint8_t *window, headers_t headers, uint64_t nbytes, uint64_t offset,
    uint64_t size, span_t name,
) noexcept nogil:
    """Whether headers are those of a member with this extent and name.

    Not, where a global header tells its name or size: that is not among them.

    Parameters
    ----------
    window
        What the shard has from `headers.start` to `offset`.
    """
    cdef tar_t tar
    cdef need_t need
    cdef bint same = False
    cdef int status
    tar_init(&tar, nbytes)
    tar.at = headers.start
    while tar.at < offset:
        status = tar_step(
            &tar, window + (tar.at - headers.start), <size_t> (offset - tar.at), &need
        )
        if status == TAR_MEMBER and tar.offset == offset:
            if headers.whole:
                same = tar.size == size and is_same(name, tar.name)
            else:                  # an extension may tell a large size, another name
                same = (tar.size == size or size >= HEADER_SIZES) and (
                    not is_short(name) or is_same(name, tar.name)
                )
            break
        if status != TAR_MEMBER and status != TAR_SKIPPED and status != TAR_MORE:
            break
    tar_free(&tar)
    return same


def find_mismatches(file not None, ExtentTable table not None, positions):
    """Compare the headers of some members with a table; one read for each.

    Parameters
    ----------
    file : LocalFile or RemoteFile
    table : ExtentTable
    positions : sequence of int

    Returns
    -------
    list of int
        Positions of members that are not there, or seem not to be: a global header,
        or an extension header further away, may tell what was not looked at.
    """
    cdef uint64_t offset, size
    cdef uint64_t nbytes = file.nbytes
    cdef headers_t headers
    cdef Py_ssize_t i
    cdef bytes window
    found = []
    looks = []
    for i in positions:
        if not 0 <= i < len(table):
            raise IndexError(f"position {i} is out of range: there are {len(table):,}")
        if has_unchecked_blocks(table):
            table.check_extent(i)
            table.check_extent(max(i - 1, 0))
            table.check_name(i)
        offset = fs_load(table.columns.offsets + i)
        size = fs_load(table.columns.sizes + i)
        if offset < BLOCK or offset > nbytes or size > nbytes - offset:
            found.append(i)
            continue
        headers = headers_before(
            &table.columns, i, offset, offset - min(offset, <uint64_t> LOOKED_AT)
        )
        looks.append((i, headers.start, headers.whole, offset, size))
    windows = file.read_many([(start, offset - start) for _, start, _, offset, _ in looks])
    for (i, start, whole, offset, size), window in zip(looks, windows, strict=True):
        headers.start = start
        headers.whole = whole
        if <uint64_t> len(window) != offset - headers.start or not headers_match(
            <const uint8_t *> PyBytes_AS_STRING(window), headers, nbytes, offset, size,
            name_at(&table.columns, i),
        ):
            found.append(i)
    return found
