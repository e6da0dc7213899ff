from libc.stdint cimport uint8_t, uint64_t

from fastshard._core.span cimport span_t
from fastshard._core.table.extents cimport columns_t

cdef enum tar_status_t:
    TAR_NEED                       # call again with a window that holds `need`
    TAR_MORE                       # read one of several headers of a member
    TAR_MEMBER                     # read a member: `offset`, `size` and `name` are set
    TAR_SKIPPED                    # read an entry other than a member: `skipped` is set
    TAR_END                        # the archive ends at `at`
    TAR_FAULT                      # from here on: faults, at `fault_at`
    TAR_NO_MEMORY
    TAR_BAD_CHECKSUM
    TAR_BAD_NUMBER
    TAR_HEADER_CUT
    TAR_SIZE_BEYOND
    TAR_PADDING_CUT
    TAR_LONE_ZEROS
    TAR_EXTENSION_CUT
    TAR_EXTENSION_LARGE
    TAR_EXTENSIONS_LARGE
    TAR_EXTENSION_ALONE
    TAR_BAD_PAX
    TAR_BAD_NAME
    TAR_NAMES_LARGE
    TAR_SPARSE                     # members not stored as they are: `name` is set
    TAR_MULTI_VOLUME
    TAR_INCREMENTAL
    TAR_STATUSES

cdef enum tar_skipped_t:           # kinds of entries that are not members
    SKIPPED_HARD_LINK
    SKIPPED_SYMBOLIC_LINK
    SKIPPED_CHARACTER_DEVICE
    SKIPPED_BLOCK_DEVICE
    SKIPPED_DIRECTORY
    SKIPPED_FIFO
    SKIPPED_METADATA
    SKIPPED_UNKNOWN
    SKIPPED_KINDS

cdef struct need_t:
    uint64_t offset                # bytes from the start of the shard
    size_t size                    # bytes, at least

cdef struct text_t:                # a name from an extension header
    uint8_t *at                    # owned
    size_t size
    size_t capacity
    int state                      # a pax_value_t

cdef struct pax_t:                 # values of extension headers
    text_t path
    text_t link                    # name of a link's target
    uint64_t size
    uint64_t real_size             # of a sparse file, as star writes it
    int size_state                 # a pax_value_t, like the one below
    int real_size_state
    int unsupported                # a pax_unsupported_t

cdef struct tar_t:                 # the state of a walk over the headers
    uint64_t nbytes                # bytes in the shard
    uint64_t at                    # offset of the next byte to parse
    uint64_t fault_at              # offset of a fault
    uint64_t offset                # of the member's first data byte
    uint64_t size                  # of the member, in bytes
    span_t name                    # of the member; valid until the next step
    span_t target                  # name of a link's target; valid as `name`
    int skipped                    # a tar_skipped_t
    bint has_lone_zeros            # read on behind a lone block of zeros
    uint64_t lone_zeros            # offset of the first one
    uint64_t after_zeros           # offset behind the last one
    uint8_t[257] joined            # prefix "/" name
    pax_t local                    # of this member's last pax header (type x)
    pax_t gnu                      # of its last GNU long names (types L and K)
    bint gnu_first                 # L came before any x with a path
    bint gnu_link_first            # K came before any x with a linkpath
    pax_t global_                  # of global pax headers (type g)
    pax_t parsed                   # of the header that is being parsed
    uint8_t extension              # type of the header whose payload comes next, or 0
    size_t extension_size          # bytes of that payload
    uint64_t extensions            # bytes of this member's extension headers so far
    bint pending                   # extension headers were read, their member not yet

cdef struct headers_t:             # headers of a member; they end where its data begins
    uint64_t start                 # offset of the first header to compare
    bint whole                     # includes all of its extension headers

cdef void tar_init(tar_t *tar, uint64_t nbytes) noexcept nogil
cdef void tar_free(tar_t *tar) noexcept nogil
cdef int tar_step(
    tar_t *tar, const uint8_t *window, size_t size, need_t *need
) noexcept nogil
cdef headers_t headers_before(
    const columns_t *columns, Py_ssize_t i, uint64_t offset, uint64_t lowest
) noexcept nogil
cdef bint headers_match(
    const uint8_t *window, headers_t headers, uint64_t nbytes, uint64_t offset,
    uint64_t size, span_t name,
) noexcept nogil
