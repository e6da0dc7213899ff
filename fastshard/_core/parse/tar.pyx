"""Parser of tar headers, and its users: local scan, remote walk, header comparison.

`tar_step` parses one header, or the payload of an extension header, in the window that
it is given, and returns its kind or the bytes it needs. It supports ustar
(POSIX.1-1988), v7, GNU (long names, base-256 numbers) and pax (POSIX.1-2001); `tar(5)`
of libarchive describes them all.

If extension headers of one kind repeat before a member, the last replaces the others
whole, as in GNU tar, Go and libarchive. If a member has both a pax path and a GNU long
name, on which readers disagree, the first wins, as in Python's `tarfile`.

More than 1,000 lines: `tar_step` is inlined into its users, which makes a scan faster,
and each further extension module would add 22,000 lines of generated C.
"""

cimport cython
from cpython.bytes cimport (
    PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE,
)
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EAGAIN, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memset, strlen

from fastshard._core.pages cimport fs_now
from fastshard._core.platform cimport fs_load, fs_pread, fs_pread_cached, fs_advise_file
from fastshard._core.io.source cimport LocalFile
from fastshard._core.parse.links cimport (
    links_add, links_append, links_free, links_resolve, links_t,
)
from fastshard._core.span cimport (
    is_equal, span_of, span_t, take, take_until, text_of,
)
from fastshard._core.table.extents cimport (
    ExtentTable, columns_add, columns_free, columns_t, has_unchecked_blocks, make_table,
    name_at,
)
from fastshard._core.table.names cimport decode_text

import os
from collections import namedtuple

from fastshard.errors import FormatError

cdef enum:
    BLOCK = 512                    # bytes; unit of headers and padding
    MAX_EXTENSION = 1 << 20        # bytes of one extension header's payload
    MAX_EXTENSIONS = 64 << 20      # bytes of all extension headers of one member
    MAX_REPEATED = 64 << 20        # bytes of names beyond the size of the archive
    MAX_LENGTH_DIGITS = 7          # of a pax record, which MAX_EXTENSION bounds
    MAX_SIZE_DIGITS = 19
    # Offsets and widths of header fields in bytes.
    NAME = 0
    NAME_WIDTH = 100
    SIZE = 124
    SIZE_WIDTH = 12
    SIZE_DIGITS = 11
    CHECKSUM = 148
    CHECKSUM_WIDTH = 8
    CHECKSUM_DIGITS = 6
    TYPE = 156
    LINK = 157                     # NAME_WIDTH bytes
    MAGIC = 257
    PREFIX = 345
    PREFIX_WIDTH = 155
    STAR_PREFIX_WIDTH = 131        # star stores two times behind it
    STAR_MAGIC = 508

cdef enum:                         # of the scan of a local file
    MAX_WINDOW = (1 << 20) + 512   # bytes; holds any extension's payload
    NEAR_STRIDE = 6 << 10          # bytes between headers, up to which WINDOW is read
    FAR_STRIDE = 1 << 20           # bytes between headers, up to which DISK_WINDOW is
    MAX_GUESS = 4 << 10            # bytes read beyond need, to include the next headers
    WINDOW = 256 << 10             # bytes read at once where headers are near
    DISK_WINDOW = 1 << 20          # bytes read at once from a disk
    READAHEAD = 4 << 20            # bytes that the kernel is advised of in advance
    MIN_SAMPLE = 1 << 10           # members before their total is extrapolated

cdef enum:                         # further statuses of a scan or walk
    SCAN_PAUSED = TAR_STATUSES + 1
    SCAN_OS_ERROR
    SCAN_SHRUNK
    WALK_STOPPED

cdef enum:
    COMPARED = 4 << 10             # bytes before a member's data that are compared
    MAX_UNREAD = 100               # links that lead to no member, listed at most

cdef enum pax_status_t:
    PAX_OK
    PAX_MALFORMED
    PAX_BAD_NUMBER
    PAX_BAD_NAME
    PAX_NO_MEMORY

cdef enum pax_unsupported_t:       # members that are not stored as they are
    PAX_SUPPORTED
    PAX_SPARSE
    PAX_MULTI_VOLUME
    PAX_INCREMENTAL

cdef enum pax_value_t:
    PAX_UNSET
    PAX_SET
    PAX_DELETED                    # an empty value: the header's own applies

cdef struct window_t:
    int fd
    int code                       # errno of a failed read
    bint has_cached_reads          # fs_pread_cached works
    uint64_t nbytes                # of the file
    uint64_t start                 # offset of the first byte held
    size_t held                    # bytes
    uint64_t advised_to            # offset up to which the kernel was advised
    uint8_t *bytes                 # owned; MAX_WINDOW bytes

cdef struct scan_t:
    tar_t tar
    window_t window
    columns_t columns
    columns_t *starts              # collects offsets of first headers; NULL: do not
    links_t links                  # members only once they are resolved
    uint64_t start                 # offset of the next member's first header
    uint64_t stride                # running mean of bytes between headers
    size_t header_size             # bytes of the last member's headers
    uint64_t[<int> SKIPPED_KINDS] skipped  # entries of each kind

cdef uint64_t PAUSE = 50 * 1000 * 1000  # ns between checks for signals
cdef uint64_t HEADER_SIZES = <uint64_t> 1 << 33  # larger sizes may be in an extension

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

# A link that leads to no member; `offset` is that of its header.
UnreadLink = namedtuple("UnreadLink", "offset kind name target")

# All of an archive: members with the links that lead to them; other entries by kind;
# the end of the archive; links that lead to no member, the first 100; offset of the
# first lone block of zeros before a header, or None.
Scan = namedtuple("Scan", "table skipped end unread lone_zeros")

FAULTS = {
    TAR_BAD_CHECKSUM: "not a tar header: its checksum is wrong",
    TAR_BAD_NUMBER: "invalid size field",
    TAR_HEADER_CUT: "the archive ends inside a header",
    TAR_SIZE_BEYOND: "the archive ends inside this member's data",
    TAR_PADDING_CUT: "the archive ends inside this member's padding",
    TAR_LONE_ZEROS: "a block of zeros is followed by data",
    TAR_EXTENSION_CUT: "the archive ends inside an extension header",
    TAR_EXTENSION_LARGE: "the extension header exceeds 1 MiB",
    TAR_EXTENSIONS_LARGE: "the extension headers of one member exceed 64 MiB",
    TAR_EXTENSION_ALONE: "an extension header is not followed by a member",
    TAR_BAD_PAX: "malformed record in a pax header",
    TAR_BAD_NAME: "the name contains a NUL",
    TAR_NAMES_LARGE: "a global header repeats a long name: the names exceed the file",
    TAR_SPARSE: "sparse members are not supported; unpack with GNU tar",
    TAR_MULTI_VOLUME: "members of multi-volume archives are not supported",
    TAR_INCREMENTAL: "directory listings of incremental backups are not supported",
    SCAN_SHRUNK: "the file was truncated during the scan",
}


# Records of pax extension headers: ``"%d %s=%s\n" % (length, key, value)``.
#
# POSIX.1-2017, "pax Interchange Format". Only keys that affect a member's extent or
# name are read; others are skipped by their length. WebDataset's writer gives every
# member a header with just a time.

cdef bint equals(span_t text, const char *word) noexcept nogil:
    return text.left == strlen(word) and memcmp(text.at, word, text.left) == 0


cdef bint begins(span_t text, const char *word) noexcept nogil:
    return text.left >= strlen(word) and memcmp(text.at, word, strlen(word)) == 0


cdef bint read_decimal(span_t text, size_t max_digits, uint64_t *value) noexcept nogil:
    """Read decimal digits of a number below 2**63; leading zeros are allowed."""
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


cdef int text_set(text_t *text, span_t name) noexcept nogil:
    """Copy a name."""
    cdef uint8_t *moved
    if name.left >= text.capacity:
        moved = <uint8_t *> realloc(text.at, name.left + 256)
        if moved == NULL:
            return PAX_NO_MEMORY
        text.at = moved
        text.capacity = name.left + 256
    if name.left > 0:
        memcpy(text.at, name.at, name.left)
    text.size = name.left
    text.state = PAX_SET
    return PAX_OK


cdef int pax_set_path(pax_t *pax, span_t path) noexcept nogil:
    """Copy a member's name; return PAX_BAD_NAME if it contains a NUL."""
    if path.left > 0 and memchr(path.at, 0, path.left) != NULL:
        return PAX_BAD_NAME
    return text_set(&pax.path, path)


cdef void pax_clear(pax_t *pax) noexcept nogil:
    """Reset all values; keep the memory."""
    pax.path.state = pax.link.state = PAX_UNSET
    pax.size_state = pax.real_size_state = PAX_UNSET
    pax.unsupported = PAX_SUPPORTED


cdef void text_free(text_t *text) noexcept nogil:
    free(text.at)
    text.at = NULL
    text.capacity = 0


cdef void pax_free(pax_t *pax) noexcept nogil:
    text_free(&pax.path)
    text_free(&pax.link)


cdef void pax_replace(pax_t *pax, pax_t *later) noexcept nogil:
    """Replace by a later header of the same member.

    `unsupported` stays set: readers that merge the headers would refuse the member.
    """
    cdef pax_t earlier = pax[0]    # swap: each keeps memory to free
    pax[0] = later[0]
    later[0] = earlier
    if pax.unsupported == PAX_SUPPORTED:
        pax.unsupported = earlier.unsupported


cdef int set_number(span_t value, uint64_t *number, int *state) noexcept nogil:
    """Set a number from a record's value; an empty value deletes it."""
    if value.left == 0:
        state[0] = PAX_DELETED
        return PAX_OK
    state[0] = PAX_SET
    if not read_decimal(value, MAX_SIZE_DIGITS, number):
        return PAX_BAD_NUMBER
    return PAX_OK


cdef int set_gnu(pax_t *pax, span_t key, span_t value) noexcept nogil:
    """Handle GNU's keys, which mark unsupported members."""
    if begins(key, b"GNU.sparse."):
        pax.unsupported = PAX_SPARSE
        if equals(key, b"GNU.sparse.name"):  # the header's name is synthetic
            return pax_set_path(pax, value)
    elif equals(key, b"GNU.dumpdir"):
        pax.unsupported = PAX_INCREMENTAL
    elif begins(key, b"GNU.volume.") and not equals(key, b"GNU.volume.label"):
        pax.unsupported = PAX_MULTI_VOLUME
    return PAX_OK


cdef int set_value(pax_t *pax, span_t key, span_t value) noexcept nogil:
    """Handle one record; return a pax_status_t."""
    if key.left == 0:
        return PAX_MALFORMED
    if key.at[0] == c'm':          # mtime: by far the most common
        return PAX_OK
    if equals(key, b"path"):
        if value.left == 0:
            pax.path.state = PAX_DELETED
            return PAX_OK
        if pax.unsupported == PAX_SPARSE and pax.path.state == PAX_SET:
            return PAX_OK          # GNU.sparse.name is the real name
        return pax_set_path(pax, value)
    if equals(key, b"linkpath"):
        if value.left == 0:
            pax.link.state = PAX_DELETED
            return PAX_OK
        return text_set(&pax.link, value)
    if equals(key, b"size"):
        return set_number(value, &pax.size, &pax.size_state)
    if equals(key, b"SCHILY.realsize"):
        return set_number(value, &pax.real_size, &pax.real_size_state)
    return set_gnu(pax, key, value)


cdef int parse_record(pax_t *pax, span_t *text) noexcept nogil:
    """Step over one record and handle it; return a pax_status_t."""
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
    """Parse the records of one header; `fault` is set to the offset of a bad one."""
    cdef size_t size = text.left
    cdef span_t rest
    cdef int status
    while text.left > 0:
        fault[0] = size - text.left
        if text.at[0] == 0:        # the rest must be padding
            rest = text
            while rest.left > 0:
                if take(&rest, 1)[0] != 0:
                    return PAX_MALFORMED
            return PAX_OK
        status = parse_record(pax, &text)
        if status != PAX_OK:
            return status
    return PAX_OK


# The step over one header.

cdef void tar_init(tar_t *tar, uint64_t nbytes) noexcept nogil:
    """Initialize the state for a shard of `nbytes`. Free it with `tar_free`."""
    memset(tar, 0, sizeof(tar_t))
    tar.nbytes = nbytes


cdef void tar_free(tar_t *tar) noexcept nogil:
    pax_free(&tar.local)
    pax_free(&tar.gnu)
    pax_free(&tar.global_)
    pax_free(&tar.parsed)


cdef bint all_zero(const uint8_t *block) noexcept nogil:
    cdef size_t i
    cdef uint8_t bits = 0
    for i in range(<size_t> BLOCK):
        bits |= block[i]
    return bits == 0


cdef inline bint is_blank(uint8_t byte) noexcept nogil:
    """Return whether a byte is C's white space, which other readers strip."""
    return byte == c' ' or c'\t' <= byte <= c'\r'


cdef bint read_octal(
    const uint8_t *field, size_t width, uint64_t *value
) noexcept nogil:
    """Read octal digits, padded with blanks or ended by a NUL; no digits: 0."""
    cdef span_t text = text_of(field, width)
    cdef uint64_t total = 0        # 12 digits at most: 36 bits
    while text.left > 0 and is_blank(text.at[0]):
        take(&text, 1)
    while text.left > 0 and not is_blank(text.at[0]):
        if not c'0' <= text.at[0] <= c'7':
            return False
        total = total * 8 + (take(&text, 1)[0] - c'0')
    while text.left > 0:
        if not is_blank(take(&text, 1)[0]):
            return False
    value[0] = total
    return True


cdef bint read_number(
    const uint8_t *field, size_t width, uint64_t *value
) noexcept nogil:
    """Read octal digits, or GNU's base-256 number below 2**63."""
    cdef size_t i
    cdef uint64_t total = 0
    if field[0] < 0x80:
        return read_octal(field, width, value)
    if field[0] != 0x80:           # 0xff: negative; others: invalid
        return False
    for i in range(<size_t> 1, width):
        if total >> 55 != 0:       # the next byte would reach bit 63
            return False
        total = total << 8 | field[i]
    value[0] = total
    return True


cdef uint64_t sum_of_bytes(const uint8_t *block) noexcept nogil:
    """Return the sum of a block's bytes, added in 16-bit lanes of 8 bytes at a time."""
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
    """Return whether the checksum matches, as a sum of unsigned or signed bytes."""
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
    """Round a size, below 2**63, up to whole blocks."""
    return (size + (BLOCK - 1)) & ~<uint64_t> (BLOCK - 1)


cdef int fault(tar_t *tar, int status, uint64_t offset) noexcept nogil:
    tar.fault_at = offset
    return status


cdef int need_bytes(tar_t *tar, size_t size, need_t *need) noexcept nogil:
    need.offset = tar.at
    need.size = size
    return TAR_NEED


cdef inline const text_t *effective(
    const text_t *local, const text_t *gnu, bint gnu_first, const text_t *global_
) noexcept nogil:
    """Return the name that an extension gives; it may be unset."""
    cdef const text_t *first = gnu if gnu_first else local
    cdef const text_t *second = local if gnu_first else gnu
    if first.state != PAX_UNSET:
        return first
    return global_ if second.state == PAX_UNSET else second


cdef void set_name(tar_t *tar, const uint8_t *block) noexcept nogil:
    """Set `name` from an extension, or from the header's prefix and name."""
    cdef span_t prefix, name
    cdef size_t width = PREFIX_WIDTH
    cdef const text_t *path = effective(
        &tar.local.path, &tar.gnu.path, tar.gnu_first, &tar.global_.path
    )
    if path.state == PAX_SET:
        tar.name = span_of(path.at, path.size)
        return
    name = text_of(block + NAME, NAME_WIDTH)
    if memcmp(block + MAGIC, b"ustar\0", 6) != 0 or block[PREFIX] == 0:
        tar.name = name            # v7 has no prefix, GNU stores times there
        return
    if memcmp(block + STAR_MAGIC, b"tar\0", 4) == 0:
        width = STAR_PREFIX_WIDTH
    prefix = text_of(block + PREFIX, width)
    memcpy(tar.joined, prefix.at, prefix.left)
    tar.joined[prefix.left] = c'/'
    memcpy(tar.joined + prefix.left + 1, name.at, name.left)
    tar.name = span_of(tar.joined, prefix.left + 1 + name.left)


cdef void set_target(tar_t *tar, const uint8_t *block) noexcept nogil:
    """Set `target` of a link from an extension, or from the header."""
    cdef const text_t *link = effective(
        &tar.local.link, &tar.gnu.link, tar.gnu_link_first, &tar.global_.link
    )
    if link.state == PAX_SET:
        tar.target = span_of(link.at, link.size)
    else:
        tar.target = text_of(block + LINK, NAME_WIDTH)


cdef bint set_size(tar_t *tar, const uint8_t *block) noexcept nogil:
    """Set `size` from an extension, or from the header."""
    if tar.local.size_state == PAX_SET:
        tar.size = tar.local.size
        return True
    if tar.local.size_state == PAX_UNSET and tar.global_.size_state == PAX_SET:
        tar.size = tar.global_.size
        return True
    return read_number(block + SIZE, SIZE_WIDTH, &tar.size)


cdef int check_supported(tar_t *tar, uint8_t kind) noexcept nogil:
    """Return the fault of a member that is not stored as it is, or 0."""
    cdef int unsupported = tar.local.unsupported
    if unsupported == PAX_SUPPORTED:
        unsupported = tar.global_.unsupported
    if kind == c'S' or unsupported == PAX_SPARSE:
        return TAR_SPARSE
    if kind == c'M' or unsupported == PAX_MULTI_VOLUME:
        return TAR_MULTI_VOLUME
    if kind == c'D' or unsupported == PAX_INCREMENTAL:
        return TAR_INCREMENTAL
    if tar.local.real_size_state == PAX_SET and tar.local.real_size != tar.size:
        return TAR_SPARSE
    return 0


cdef int skipped_kind(uint8_t kind) noexcept nogil:
    """Return the tar_skipped_t of a type flag."""
    if c'1' <= kind <= c'6':
        return SKIPPED_HARD_LINK + (kind - c'1')
    if kind in (c'V', c'A', c'E', c'I', c'N'):
        return SKIPPED_METADATA    # volume label, ACL, attributes, inode
    return SKIPPED_UNKNOWN


cdef inline bint is_link(int skipped) noexcept nogil:
    return skipped == SKIPPED_HARD_LINK or skipped == SKIPPED_SYMBOLIC_LINK


cdef bint is_regular(tar_t *tar, uint8_t kind, const uint8_t *block) noexcept nogil:
    """Return whether a header is of a file; in v7 directories end in a slash."""
    cdef span_t name
    if kind == c'0' or kind == c'7':
        return True
    name = text_of(block + NAME, NAME_WIDTH)
    return kind == 0 and not (name.left > 0 and name.at[name.left - 1] == c'/')


cdef int finish_header(tar_t *tar, const uint8_t *block) noexcept nogil:
    """Parse a header that is not an extension: a member or an entry to skip."""
    cdef uint8_t kind = block[TYPE]
    cdef uint64_t left = tar.nbytes - tar.at - BLOCK
    cdef int status = TAR_MEMBER
    set_name(tar, block)
    if not set_size(tar, block):
        return fault(tar, TAR_BAD_NUMBER, tar.at + SIZE)
    status = check_supported(tar, kind)
    if status != 0:
        return fault(tar, status, tar.at)
    status = TAR_MEMBER
    if not is_regular(tar, kind, block):
        status = TAR_SKIPPED
        tar.skipped = SKIPPED_DIRECTORY if kind == 0 else skipped_kind(kind)
        if kind == 0 or c'1' <= kind <= c'6':
            tar.size = 0           # no data, whatever the field says
        if is_link(tar.skipped):
            set_target(tar, block)
    if tar.size > left:
        return fault(tar, TAR_SIZE_BEYOND, tar.at)
    if padded(tar.size) > left:
        return fault(tar, TAR_PADDING_CUT, tar.at)
    tar.offset = tar.at + BLOCK
    tar.at = tar.offset + padded(tar.size)
    tar.pending = False
    return status


cdef int begin_extension(tar_t *tar, const uint8_t *block) noexcept nogil:
    """Parse the header of an extension; its payload is the next step's."""
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
    """Parse the payload of an extension header into `local`, `gnu` or `global_`."""
    cdef uint8_t kind = tar.extension
    cdef size_t at = 0
    cdef int status = PAX_OK
    if kind == c'g':
        status = pax_parse(
            &tar.global_, span_of(payload, tar.extension_size), &at
        )
    elif kind == c'L':
        if tar.gnu.path.state == PAX_UNSET:
            tar.gnu_first = tar.local.path.state == PAX_UNSET
        status = pax_set_path(&tar.gnu, text_of(payload, tar.extension_size))
    elif kind == c'K':             # long name of a link's target
        if tar.gnu.link.state == PAX_UNSET:
            tar.gnu_link_first = tar.local.link.state == PAX_UNSET
        status = text_set(&tar.gnu.link, text_of(payload, tar.extension_size))
    else:
        status = pax_parse(
            &tar.parsed, span_of(payload, tar.extension_size), &at
        )
        if status == PAX_OK:
            pax_replace(&tar.local, &tar.parsed)
            pax_clear(&tar.parsed)
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
    """Parse the end of an archive: two blocks of zeros, or one at the end of file.

    Returns TAR_MORE behind a lone block that a header follows.
    """
    if tar.pending:
        return fault(tar, TAR_EXTENSION_ALONE, tar.at)
    if tar.nbytes - tar.at < 2 * BLOCK:
        tar.at = tar.nbytes
        return TAR_END
    if size < 2 * BLOCK:
        return need_bytes(tar, 2 * BLOCK, need)
    if all_zero(window + BLOCK):
        tar.at += 2 * BLOCK
        return TAR_END
    if not checksum_fits(window + BLOCK):
        return fault(tar, TAR_LONE_ZEROS, tar.at)
    if not tar.has_lone_zeros:
        tar.has_lone_zeros = True
        tar.lone_zeros = tar.at
    tar.at += BLOCK
    tar.after_zeros = tar.at
    return TAR_MORE


cdef int check_names(tar_t *tar, const columns_t *columns) noexcept nogil:
    """Bound the bytes of names, which a global header may repeat for each member."""
    if columns.names_size > tar.nbytes + MAX_REPEATED:
        return fault(tar, TAR_NAMES_LARGE, tar.at)
    return TAR_MORE


cdef int add_link(tar_t *tar, links_t *links, size_t before) noexcept nogil:
    """Append the link of the last step; return TAR_MORE or a fault."""
    cdef uint64_t header = tar.offset - BLOCK
    cdef int status
    if not links_add(links, before, header, tar.skipped, tar.name, tar.target):
        return TAR_NO_MEMORY
    status = check_names(tar, &links.names)
    return status if status != TAR_MORE else check_names(tar, &links.targets)


cdef int read_header(
    tar_t *tar, const uint8_t *window, size_t size, need_t *need
) noexcept nogil:
    """Parse the header at `tar.at`."""
    cdef uint64_t left = tar.nbytes - tar.at
    cdef int status
    if left == 0:
        if tar.pending:
            return fault(tar, TAR_EXTENSION_ALONE, tar.at)
        return TAR_END
    if left < BLOCK:
        return fault(tar, TAR_HEADER_CUT, tar.at)
    if size < BLOCK:
        return need_bytes(tar, BLOCK, need)
    if window[0] == 0 and all_zero(window):
        status = read_zeros(tar, window, size, need)
        if status != TAR_MORE:
            return status
        window += BLOCK
    if not checksum_fits(window):
        return fault(tar, TAR_BAD_CHECKSUM, tar.at)
    if window[TYPE] in (c'x', c'X', c'g', c'L', c'K'):
        return begin_extension(tar, window)
    return finish_header(tar, window)


cdef int tar_step(
    tar_t *tar, const uint8_t *window, size_t size, need_t *need
) noexcept nogil:
    """Parse the next header or payload; return a tar_status_t.

    `window` holds `size` bytes of the shard from `tar.at` on; it may be empty. Call
    until TAR_END or a fault.
    """
    if tar.extension == 0:
        if not tar.pending:
            pax_clear(&tar.local)
            pax_clear(&tar.gnu)
            tar.gnu_first = tar.gnu_link_first = False
            tar.extensions = 0
        return read_header(tar, window, size, need)
    if size < tar.extension_size:
        return need_bytes(tar, tar.extension_size, need)
    return read_payload(tar, window)


# The scan of a local shard, without the GIL: `tar_step` over windows read with pread.
#
# A mapping is not used: scanning one takes up to 7.6 us a member, depending on the page
# cache, and truncation of the file would kill the process.
#
# The size of a window depends on the distance of headers. Among small members one large
# read serves many. After large members only the next header is read, unless the read
# waits for a disk, where a large read takes no longer than a small one.

cdef int read_window(
    window_t *window, const need_t *need, size_t want, bint near
) noexcept nogil:
    """Fill the window from `need.offset` on; return 0 or a SCAN_ status."""
    cdef uint64_t left = window.nbytes - need.offset
    cdef int64_t got = -1
    want = <size_t> min(<uint64_t> min(want, <size_t> MAX_WINDOW), left)
    window.start = need.offset
    window.held = 0
    if window.has_cached_reads:
        got = fs_pread_cached(window.fd, window.bytes, want, need.offset)
        if got >= <int64_t> need.size:
            window.held = got
            return 0
        window.has_cached_reads = got >= 0 or errno == EAGAIN
        if near:
            want = <size_t> min(<uint64_t> DISK_WINDOW, left)
            if need.offset + want > window.advised_to:
                window.advised_to = need.offset + want + READAHEAD
                fs_advise_file(window.fd, need.offset + want, READAHEAD)
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


cdef int fill_window(scan_t *scan, const need_t *need) noexcept nogil:
    """Choose the size of the next window, and read it."""
    cdef size_t want = need.size
    if scan.stride <= NEAR_STRIDE:
        want = max(want, <size_t> WINDOW)
    else:
        want = max(want, min(scan.header_size, <size_t> MAX_GUESS))
    return read_window(&scan.window, need, want, scan.stride <= FAR_STRIDE)


cdef int add_member(scan_t *scan) noexcept nogil:
    """Append the member of the last step; return TAR_MORE or a fault."""
    cdef tar_t *tar = &scan.tar
    scan.start = max(scan.start, tar.after_zeros)
    scan.stride = (3 * scan.stride + (tar.at - scan.start)) // 4
    scan.header_size = <size_t> (tar.offset - scan.start)
    if scan.columns.count >= MIN_SAMPLE and scan.columns.count == scan.columns.capacity:
        scan.columns.growth = 1.02 * <double> tar.nbytes / <double> tar.at
    if not columns_add(&scan.columns, tar.offset, tar.size, tar.name):
        return TAR_NO_MEMORY
    if scan.starts != NULL and not columns_add(
        scan.starts, scan.start, 0, span_of(tar.name.at, 0)
    ):
        return TAR_NO_MEMORY
    return check_names(tar, &scan.columns)


cdef int scan_headers(scan_t *scan) noexcept nogil:
    """Scan until the end, a fault or SCAN_PAUSED; the clock is read once a window."""
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
            status = fill_window(scan, &need)
            if status != 0:
                return status
            if fs_now() - began > PAUSE:
                return SCAN_PAUSED
        elif status == TAR_MEMBER:
            status = add_member(scan)
            if status != TAR_MORE:
                return status
            scan.start = tar.at
        elif status == TAR_SKIPPED:
            if is_link(tar.skipped):
                status = add_link(tar, &scan.links, scan.columns.count)
                if status != TAR_MORE:
                    return status
            else:
                scan.skipped[tar.skipped] += 1
            scan.start = tar.at
        elif status != TAR_MORE:
            return status
        elif tar.extension == 0 and not tar.pending:
            scan.start = tar.at    # global headers belong to no member


cdef object faulty_name(const tar_t *tar, int status):
    """Return the name of the faulty member, or None if it is not known yet."""
    if status in (
        TAR_SPARSE, TAR_MULTI_VOLUME, TAR_INCREMENTAL, TAR_SIZE_BEYOND, TAR_PADDING_CUT
    ):
        return decode_text(tar.name)
    return None


cdef object make_error(scan_t *scan, int status, LocalFile file):
    """Return the exception of a failed scan."""
    if status == TAR_NO_MEMORY:
        return MemoryError()
    if status == SCAN_OS_ERROR:
        return OSError(scan.window.code, os.strerror(scan.window.code), file.path)
    offset = scan.tar.fault_at
    if status == SCAN_SHRUNK:
        offset = scan.window.start + scan.window.held
    name = faulty_name(&scan.tar, status)
    return FormatError(FAULTS[status], file.path, offset, name)


def scan_tar(LocalFile file not None, progress=None):
    """Scan the headers of a tar file, without the GIL."""
    cdef scan_t scan
    memset(&scan, 0, sizeof(scan))
    try:
        scan_file(&scan, file, progress)
        return make_scan(
            &scan.columns, &scan.links, scan.skipped, &scan.tar, scan.tar.at
        )
    finally:
        free_scan(&scan)


cdef int resolve(columns_t *members, links_t *links) except -1:
    """Make members of the links that lead to one, without the GIL."""
    cdef bint done
    if links.names.count == 0:
        return 0
    with nogil:
        done = links_resolve(links, members)
    if not done:
        raise MemoryError
    return 0


cdef list list_unread(links_t *links):
    """Return the first links that lead to no member."""
    cdef size_t i
    return [
        UnreadLink(
            links.names.offsets[i],
            KINDS[<int> links.names.sizes[i]],
            decode_text(name_at(&links.names, <uint32_t> i)),
            decode_text(name_at(&links.targets, <uint32_t> i)),
        )
        for i in range(min(links.names.count, <size_t> MAX_UNREAD))
    ]


cdef object make_scan(
    columns_t *members, links_t *links, uint64_t *skipped, const tar_t *tar,
    uint64_t end,
):
    """Return the `Scan` of a whole archive; it takes over the members."""
    cdef size_t i
    resolve(members, links)
    for i in range(links.names.count):
        skipped[links.names.sizes[i]] += 1
    return Scan(
        make_table(members),
        {kind: skipped[i] for i, kind in KINDS.items() if skipped[i]},
        end,
        list_unread(links),
        tar.lone_zeros if tar.has_lone_zeros else None,
    )


def scan_until_fault(LocalFile file not None, *, bint links=False):
    """Scan a tar file up to its first fault, if any."""
    cdef scan_t scan
    cdef object fault = None
    cdef uint64_t end = 0
    cdef size_t last
    memset(&scan, 0, sizeof(scan))
    try:
        try:
            scan_file(&scan, file, None)
        except FormatError as error:
            fault = error
        if scan.columns.count > 0:
            last = scan.columns.count - 1
            end = scan.columns.offsets[last] + scan.columns.sizes[last]
            end = padded(end)
        if links:
            resolve(&scan.columns, &scan.links)
        return make_table(&scan.columns), end, fault
    finally:
        free_scan(&scan)


def scan_header_starts(LocalFile file not None, progress=None):
    """Return the regular members, and the offsets of their first headers."""
    cdef scan_t scan
    cdef columns_t starts
    memset(&scan, 0, sizeof(scan))
    memset(&starts, 0, sizeof(starts))
    scan.starts = &starts
    try:
        scan_file(&scan, file, progress)
        offsets = PyBytes_FromStringAndSize(
            <const char *> starts.offsets, 8 * starts.count
        )
        return make_table(&scan.columns), offsets, scan.start
    finally:
        columns_free(&starts)
        free_scan(&scan)


cdef void free_scan(scan_t *scan) noexcept:
    tar_free(&scan.tar)
    columns_free(&scan.columns)
    links_free(&scan.links)
    free(scan.window.bytes)


cdef int scan_file(scan_t *scan, LocalFile file, object progress) except -1:
    """Scan a whole file. The caller calls `free_scan`, also after an exception."""
    cdef int status = SCAN_PAUSED
    tar_init(&scan.tar, file.nbytes)
    scan.window.fd = file.fd
    scan.window.nbytes = file.nbytes
    scan.window.has_cached_reads = True
    scan.window.bytes = <uint8_t *> malloc(MAX_WINDOW)
    if scan.window.bytes == NULL:
        raise MemoryError
    while status == SCAN_PAUSED:
        with nogil:
            status = scan_headers(scan)
        PyErr_CheckSignals()
        if progress is not None:
            progress(min(scan.tar.at, file.nbytes))
    if status != TAR_END:
        raise make_error(scan, status, file)
    return 0


# The walk over the headers of a tar whose bytes the caller reads, such as a remote one.
#
# A walk may begin at any header of the archive and end where another walk begins.

@cython.final
cdef class HeaderWalk:
    """Walk over the headers of a tar, which asks its caller for bytes."""

    cdef tar_t tar
    cdef columns_t columns
    cdef links_t links
    cdef uint64_t[<int> SKIPPED_KINDS] counts  # links not included
    cdef readonly object path
    cdef uint64_t start            # offset of the next member's first header
    cdef readonly uint64_t stride  # running mean of bytes between headers
    cdef readonly uint64_t header_size  # bytes of the last member's headers
    cdef readonly bint ended       # reached the end of the archive
    cdef readonly bint has_global  # met a global header

    def __cinit__(self, uint64_t nbytes, uint64_t start, path):
        memset(&self.columns, 0, sizeof(self.columns))
        memset(&self.links, 0, sizeof(self.links))
        tar_init(&self.tar, nbytes)
        self.tar.at = self.start = start
        self.tar.after_zeros = 0
        self.path = path
        self.header_size = BLOCK

    def __dealloc__(self):
        tar_free(&self.tar)
        columns_free(&self.columns)
        links_free(&self.links)

    def __reduce__(self):
        raise TypeError("a HeaderWalk does not pickle")

    @property
    def nbytes(self):
        """Size of the whole archive in bytes."""
        return self.tar.nbytes

    @property
    def at(self):
        """Offset of the first header of the next member."""
        return self.start

    @property
    def count(self):
        """Number of regular members so far."""
        return self.columns.count

    @property
    def link_count(self):
        """Number of links so far."""
        return self.links.names.count

    def advance(self, bytes window not None, uint64_t offset, uint64_t stop):
        """Walk as far as the bytes reach."""
        cdef const uint8_t *bytes_at = <const uint8_t *> PyBytes_AS_STRING(window)
        cdef size_t size = len(window)
        cdef need_t need
        cdef int status
        with nogil:
            status = self.walk_window(bytes_at, size, offset, stop, &need)
        if status == TAR_NEED:
            return need.offset, need.size
        if status == TAR_END:
            self.ended = True
            self.start = self.tar.at
        elif status != WALK_STOPPED:
            raise self.fault(status)
        return None

    cdef int walk_window(
        self, const uint8_t *window, size_t size, uint64_t offset, uint64_t stop,
        need_t *need,
    ) noexcept nogil:
        """Walk as far as a window reaches; return TAR_NEED, TAR_END or a fault."""
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
                self.start = max(self.start, tar.after_zeros)
                if self.columns.count == 0:
                    self.stride = tar.at - self.start
                else:
                    self.stride = (3 * self.stride + (tar.at - self.start)) // 4
                self.header_size = tar.offset - self.start
                if not columns_add(&self.columns, tar.offset, tar.size, tar.name):
                    return TAR_NO_MEMORY
                if check_names(tar, &self.columns) != TAR_MORE:
                    return TAR_NAMES_LARGE
                self.start = tar.at
            elif status == TAR_SKIPPED:
                if is_link(tar.skipped):
                    status = add_link(tar, &self.links, self.columns.count)
                    if status != TAR_MORE:
                        return status
                else:
                    self.counts[tar.skipped] += 1
                self.start = tar.at
            elif status != TAR_MORE:
                return status
            elif tar.extension == 0 and not tar.pending:
                self.has_global = True
                self.start = tar.at

    cdef object fault(self, int status):
        """Return the exception of a failed walk."""
        if status == TAR_NO_MEMORY:
            return MemoryError()
        return FormatError(
            FAULTS[status], self.path, self.tar.fault_at, faulty_name(&self.tar, status)
        )

    def append(self, HeaderWalk other not None):
        """Append the members of a walk that began where this one ended."""
        cdef size_t i
        cdef columns_t *more = &other.columns
        if other is self:
            raise ValueError("cannot append a walk to itself")
        if not links_append(&self.links, &other.links, self.columns.count):
            raise MemoryError
        for i in range(more.count):
            if not columns_add(
                &self.columns, more.offsets[i], more.sizes[i], name_at(more, i)
            ):
                raise MemoryError
        for i in range(<size_t> SKIPPED_KINDS):
            self.counts[i] += other.counts[i]
        tar_free(&self.tar)
        if not self.tar.has_lone_zeros:
            self.tar.lone_zeros = other.tar.lone_zeros
        self.move_to(other.tar.at, self.tar.has_lone_zeros or other.tar.has_lone_zeros)
        self.start = other.start
        self.ended = other.ended
        self.has_global = self.has_global or other.has_global

    cdef void move_to(self, uint64_t at, bint has_lone_zeros) noexcept:
        """Restart at a header; keep the record of lone zeros."""
        cdef uint64_t lone_zeros = self.tar.lone_zeros
        tar_init(&self.tar, self.tar.nbytes)
        self.tar.at = at
        self.tar.has_lone_zeros = has_lone_zeros
        self.tar.lone_zeros = lone_zeros

    def jump_to(self, uint64_t start):
        """Continue at another header. Global headers met so far stay in effect."""
        if self.tar.pending or self.tar.extension != 0:
            raise ValueError("cannot jump between an extension header and its member")
        self.tar.at = self.start = start
        self.tar.after_zeros = 0

    def table(self):
        """Move the regular members to a table."""
        return make_table(&self.columns)

    def scan(self):
        """Return the `Scan` of an archive that was walked over whole; end the walk."""
        return make_scan(
            &self.columns, &self.links, self.counts, &self.tar, self.start
        )


def find_header(bytes window not None, uint64_t offset, uint64_t nbytes, uint64_t stop):
    """Find a likely header in the middle of an archive; member data may contain one."""
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


# Comparison of headers with an index.
#
# A header precedes its member's data, so that a few can be compared without a scan.

cdef span_t strip_dot_slash(span_t name) noexcept nogil:
    """Strip a leading ``./``, which some writers of indexes omit."""
    if name.left >= 2 and name.at[0] == c'.' and name.at[1] == c'/':
        take(&name, 2)
    return name


cdef bint fits_header(span_t name) noexcept nogil:
    """Return whether all writers store such a name in the header itself."""
    cdef size_t i
    if name.left > NAME_WIDTH - 2:
        return False
    for i in range(name.left):
        if name.at[i] >= 0x80:
            return False
    return True


cdef bint same_name(span_t listed, span_t found) noexcept nogil:
    """Return whether names are equal but for a leading ``./``."""
    return is_equal(strip_dot_slash(listed), strip_dot_slash(found))


cdef headers_t headers_before(
    const columns_t *columns, Py_ssize_t i, uint64_t offset, uint64_t lowest
) noexcept nogil:
    """Return the headers of member `i`, which begin behind the member before it.

    If that is below `lowest` or invalid, only the block before its data is compared.
    The caller has checked that `offset` is at least one block.
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
    """Return whether headers describe a member with this extent and name.

    False negatives occur if a global header sets the name or size. `window` holds the
    bytes of the shard from `headers.start` to `offset`.
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
                same = tar.size == size and same_name(name, tar.name)
            else:                  # extensions may set a large size or the name
                same = (tar.size == size or size >= HEADER_SIZES) and (
                    not fits_header(name) or same_name(name, tar.name)
                )
            break
        if status != TAR_MEMBER and status != TAR_SKIPPED and status != TAR_MORE:
            break
    tar_free(&tar)
    return same


def find_mismatches(file not None, ExtentTable table not None, positions):
    """Compare the headers of members with a table, with one read for each."""
    cdef uint64_t offset, size
    cdef uint64_t nbytes = file.nbytes
    cdef headers_t headers
    cdef Py_ssize_t i
    cdef bytes window
    found = []
    reads = []
    for i in positions:
        if not 0 <= i < len(table):
            raise IndexError(
                f"position {i} is out of range: there are {len(table):,} members"
            )
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
            &table.columns, i, offset, offset - min(offset, <uint64_t> COMPARED)
        )
        reads.append((i, headers.start, headers.whole, offset, size))
    windows = file.read_many(
        [(start, offset - start) for _, start, _, offset, _ in reads]
    )
    for (i, start, whole, offset, size), window in zip(reads, windows, strict=True):
        headers.start = start
        headers.whole = whole
        if <uint64_t> len(window) != offset - headers.start or not headers_match(
            <const uint8_t *> PyBytes_AS_STRING(window), headers, nbytes, offset, size,
            name_at(&table.columns, i),
        ):
            found.append(i)
    return found


cdef inline void write_octal(uint8_t *to, int digits, uint64_t value) noexcept nogil:
    """Write a number as octal digits."""
    cdef int k
    for k in range(digits - 1, -1, -1):
        to[k] = c'0' + <uint8_t> (value & 7)
        value >>= 3


def fill_header(bytes template not None, bytes name not None, uint64_t size):
    """Return the header of a member: a template with its name, size and checksum."""
    cdef Py_ssize_t length = PyBytes_GET_SIZE(name)
    cdef uint8_t *at
    cdef unsigned int checksum = 0
    cdef int k
    if PyBytes_GET_SIZE(template) != BLOCK or length > NAME_WIDTH or (
        size >> (3 * SIZE_DIGITS) != 0
    ):
        raise ValueError("the name or the size does not fit a header")
    block = PyBytes_FromStringAndSize(PyBytes_AS_STRING(template), BLOCK)
    at = <uint8_t *> PyBytes_AS_STRING(block)
    memcpy(at, PyBytes_AS_STRING(name), length)
    write_octal(at + SIZE, SIZE_DIGITS, size)
    for k in range(BLOCK):
        checksum += at[k]
    write_octal(at + CHECKSUM, CHECKSUM_DIGITS, checksum)
    at[CHECKSUM + CHECKSUM_DIGITS] = 0
    return block
