from libc.stdint cimport uint8_t, uint64_t

from fastshard._core.span cimport span_t
from fastshard._core.table.extents cimport columns_t

cdef enum tar_status_t:
    TAR_NEED                       # give a window of `need`, then step again
    TAR_MORE                       # a part of a member's headers was read
    TAR_MEMBER                     # `offset`, `size` and `name` are a member's
    TAR_SKIPPED                    # what was passed over is no member: `skipped`
    TAR_END                        # the archive ends at `at`
    TAR_FAULT                      # all that follow are faults, at `fault_at`
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
    TAR_SPARSE                     # what cannot be read as stored: `name` is set
    TAR_MULTI_VOLUME
    TAR_INCREMENTAL
    TAR_STATUSES

cdef enum tar_skipped_t:           # kinds of what is stored but no member
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
    size_t size                    # at least so many bytes from there

cdef struct pax_t:                 # what extension headers say of members
    uint8_t *path                  # owned
    size_t path_size
    size_t path_room
    uint64_t size
    uint64_t real_size             # of a sparse file, by star
    int path_state                 # three of what `pax_value_t` has
    int size_state
    int real_size_state
    int refused                    # a pax_refused_t

cdef struct tar_t:                 # the state of a walk over the headers
    uint64_t nbytes                # bytes in the shard
    uint64_t at                    # offset of the next byte to look at
    uint64_t fault_at              # offset of a fault
    uint64_t offset                # of the member's first data byte
    uint64_t size                  # of the member, in bytes
    span_t name                    # of the member; valid until the next step
    int skipped                    # a tar_skipped_t
    uint8_t[257] joined            # prefix "/" name
    pax_t next                     # from this member's last pax header: x
    pax_t gnu                      # from its last GNU long name: L
    bint gnu_first                 # L came before any x that has a path
    pax_t every                    # from headers for all that follow: g
    pax_t fresh                    # of the header that is being read
    uint8_t extension              # type of the header whose payload is awaited
    size_t extension_size
    uint64_t extensions            # bytes of this member's extension headers so far
    bint pending                   # an extension header waits for its member

cdef struct headers_t:             # where a member's headers are looked at
    uint64_t start                 # they end where its data begins
    bint whole                     # all of its own are there, extensions too

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
