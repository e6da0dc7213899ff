from libc.stdint cimport uint8_t, uint64_t

from fastshard._core.io.source cimport RemoteSource
from fastshard._core.dataset.shard cimport Shard
from fastshard._core.io.source cimport Source


cdef struct piece_t:
    const uint8_t *base            # of a mapped file, or NULL
    int fd                         # of one that is read
    bint far                       # it may have to be waited for
    uint64_t offset
    uint64_t size
    uint64_t done                  # bytes moved
    int code                       # errno of what failed
    uint8_t *to                    # NULL: bring it, and leave it there
    bint wrong                     # it was moved, and is not what it should be
    size_t owner                   # its place among the shards
    Py_ssize_t member


cdef class Pieces:
    cdef piece_t *at
    cdef size_t count
    cdef size_t room
    cdef uint64_t nbytes
    cdef list shards               # whose members the pieces are
    cdef list sources
    cdef Shard last                # the last of them
    cdef Source source             # and where its bytes are
    cdef RemoteSource remote       # the same, if that is elsewhere
    cdef list held                 # bytes that were brought before
    cdef dict errors               # why some could not be brought, by piece
    cdef size_t wanted             # pieces that must be asked for
    cdef uint64_t most             # bytes touched together; 0: any number
    cdef bint near
    cdef int turn_to(self, Shard shard, Py_ssize_t member) except -1
    cdef Shard shard_of(self, size_t i)
    cdef piece_t *append(
        self, Py_ssize_t member, uint64_t offset, uint64_t size
    ) except NULL
    cdef int find_staged(self, piece_t *piece) except -1
    cdef int fetch(self) except -1
    cdef int grow(self) except -1
    cdef piece_t *add(self, Shard shard, Py_ssize_t member) except NULL
    cdef int add_guess(self, Shard shard, Py_ssize_t member) except -1
    cdef int bring(self) except -1
    cdef int touch(self, size_t start, size_t end, bint moved) except -1
    cdef size_t end_of(self, size_t start, uint64_t *nbytes) noexcept
    cdef bint has_moved(self, size_t i) noexcept
    cdef int prove(self, size_t start, size_t end) except -1
    cdef int move(self, object threads) except -1
    cdef object failure(self, size_t i)
