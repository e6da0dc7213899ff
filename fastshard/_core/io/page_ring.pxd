from cpython.object cimport PyObject
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from fastshard._core.threads cimport fs_lock_t


cdef struct entry_t:               # one chunk; owns a reference
    PyObject *chunks
    uint64_t at                    # its number


cdef struct range_t:               # chunks in a row; owns a reference
    PyObject *chunks
    uint64_t start
    uint64_t end


cdef class MappedChunks:
    cdef readonly PageRing ring
    cdef uint8_t *base             # NULL once it is unmapped
    cdef uint64_t nbytes
    cdef uint64_t skew             # bytes before `base` in the first chunk
    cdef uint64_t count            # chunks
    cdef uint32_t *views           # alive, by chunk
    cdef uint8_t *states           # by chunk: LISTED, CONFINED or 0; under the lock
    cdef uint64_t entries          # in the ring
    cdef bint writable
    cdef object path
    cdef uint64_t device
    cdef uint64_t inode
    cdef void unpin(self, uint64_t offset, uint64_t size) noexcept
    cdef void detach(self) noexcept


cdef class PageRing:
    cdef fs_lock_t lock            # held with the GIL, and no object is made under it
    cdef bint evicts
    cdef uint64_t most             # chunks
    cdef uint64_t slack            # chunks released at a time, beyond what must be
    cdef entry_t *entries          # oldest first
    cdef uint64_t room             # a power of two
    cdef uint64_t head
    cdef uint64_t count
    cdef uint64_t listed           # entries of files that are mapped
    cdef range_t *released         # to be forgotten by the page cache
    cdef size_t released_count
    cdef size_t released_room
    cdef int touch(
        self, MappedChunks chunks, uint64_t offset, uint64_t size, bint pins
    ) except -1
    cdef uint64_t half(self) noexcept
    cdef bint make_room(self, uint64_t more) noexcept
    cdef void append(self, MappedChunks chunks, uint64_t at) noexcept
    cdef void trim(self, uint64_t target, uint64_t steps) noexcept
    cdef void drop(
        self, MappedChunks chunks, uint64_t start, uint64_t end, bint evicts,
        int *pagemap,
    ) noexcept
    cdef void note_released(
        self, MappedChunks chunks, uint64_t start, uint64_t end
    ) noexcept
    cdef void leave(self, MappedChunks chunks) noexcept
    cdef void purge(self) noexcept
    cdef int discard(
        self, MappedChunks chunks, uint64_t start, uint64_t end, bint evicts
    ) except -1
    cdef void pop_stale(self) noexcept
    cdef int forget(self) except -1
    cdef int confine(
        self, MappedChunks chunks, uint64_t offset, uint64_t size
    ) except -1
    cpdef int release(self) except -1


cdef class ReadRange:
    cdef MappedChunks chunks
    cdef uint64_t start
    cdef uint64_t end
    cdef uint64_t item             # that it was last added to for


cdef class PageReleaser:
    cdef PageRing ring
    cdef uint64_t most
    cdef dict ranges               # by file
    cdef list released             # (chunks, start, end) that the page cache is to
                                   # forget; None: that is done at once
    cdef uint64_t items
    cdef int next_item(self) except -1
    cdef int mark_read(
        self, MappedChunks chunks, uint64_t offset, uint64_t size
    ) except -1
    cdef int release(self, ReadRange found) except -1
    cdef int finish(self) except -1


cdef MappedChunks chunks_of(
    PageRing ring, uint8_t *base, uint64_t nbytes, bint writable, object path,
    uint64_t device, uint64_t inode,
)
cdef int open_same_file(object path, uint64_t device, uint64_t inode) except? -1
cdef int reopen_file(MappedChunks chunks) except? -1
cdef uint64_t folio_start(uint64_t start) noexcept nogil
