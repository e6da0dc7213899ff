from libc.stdint cimport uint8_t, uint64_t

from fastshard._core.dataset.shard cimport Shard
from fastshard._core.io.source cimport RemoteSource, Source


cdef struct piece_t:
    const uint8_t *base            # of a mapped file, or NULL
    int fd                         # of a file to pread
    bint cold                      # it may not be resident
    uint64_t offset
    uint64_t size
    uint64_t done                  # bytes moved
    int code                       # errno of a failure
    uint8_t *to                    # destination; NULL: page in only
    bint mismatched                # moved, but its header does not match the table
    size_t owner                   # index in `Pieces.shards`
    Py_ssize_t member


cdef class Pieces:
    cdef piece_t *at
    cdef size_t count
    cdef size_t room
    cdef uint64_t nbytes
    cdef list shards               # owners of the pieces
    cdef list sources              # their sources
    cdef Shard last                # the last shard
    cdef Source source             # its source
    cdef int fd                    # to pread it; -1: it is mapped or remote
    cdef bint is_pinned            # no descriptor can be kept: pieces are read at once
    cdef RemoteSource remote       # the same if it is remote, else None
    cdef list staged               # owners of the memory that pieces point into
    cdef dict errors               # of remote or mismatched pieces, by index
    cdef size_t unstaged           # remote pieces to read
    cdef uint64_t limit            # bytes to touch between releases; 0: none
    cdef bint resident             # all pages of the last source are
    cdef uint64_t now              # ns, when the first piece was to be added
    cdef int select_shard(self, Shard shard, Py_ssize_t member) except -1
    cdef Shard shard_of(self, size_t i)
    cdef piece_t *append(
        self, Py_ssize_t member, uint64_t offset, uint64_t size
    ) except NULL
    cdef int use_built(self, piece_t *piece, Shard shard) except -1
    cdef int use_pinned(self, piece_t *piece) except -1
    cdef int use_staged(self, piece_t *piece) except -1
    cdef int read_remote(self) except -1
    cdef int grow(self) except -1
    cdef piece_t *add(self, Shard shard, Py_ssize_t member) except NULL
    cdef int add_cold(self, Shard shard, Py_ssize_t member) except -1
    cdef int add_missing(
        self, Shard shard, Py_ssize_t member, uint64_t offset, uint64_t size
    ) except -1
    cdef int page_in(self) except -1
    cdef int touch(self, size_t start, size_t end, bint moved) except -1
    cdef size_t find_end(self, size_t start, uint64_t *nbytes) noexcept
    cdef bint is_moved(self, size_t i) noexcept
    cdef int check_headers(self, size_t start, size_t end) except -1
    cdef int move(self, object threads) except -1
    cdef object failure(self, size_t i)
