from cpython.object cimport PyObject
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from fastshard._core.threads cimport fs_cond_t, fs_lock_t, fs_thread_t

cdef struct entry_t:               # one chunk
    PyObject *chunks               # owned reference to a MappedChunks
    uint64_t at                    # number of the chunk


cdef struct range_t:               # bytes of a file, from `start` to `end`
    PyObject *chunks               # owned reference to a MappedChunks
    uint64_t start
    uint64_t end


cdef class MappedChunks:
    cdef readonly PageRing ring
    cdef uint8_t *base             # NULL once unmapped
    cdef uint64_t nbytes
    cdef uint64_t skew             # bytes of the first chunk before `base`
    cdef uint64_t count            # chunks
    cdef uint32_t *views           # live views of each chunk
    cdef uint8_t *states           # of each chunk: LISTED, CONFINED or 0; locked
    cdef uint64_t entries          # chunks in the ring
    cdef bint writable
    cdef object path
    cdef uint64_t device
    cdef uint64_t inode
    cdef void unpin(self, uint64_t offset, uint64_t size) noexcept
    cdef void detach(self) noexcept


cdef class PageRing:
    cdef fs_lock_t lock            # taken with the GIL held; allocate no object in it
    cdef bint evicts               # released pages are dropped from the page cache too
    cdef uint64_t max_chunks
    cdef uint64_t slack            # chunks released beyond the bound, to do it seldom
    cdef entry_t *entries          # oldest first
    cdef uint64_t capacity         # entries; a power of two
    cdef uint64_t head
    cdef uint64_t count
    cdef uint64_t listed           # entries that are not stale
    cdef range_t *released         # to be dropped from the page cache
    cdef size_t released_count
    cdef size_t released_capacity
    cdef int touch(
        self, MappedChunks chunks, uint64_t offset, uint64_t size, bint pins
    ) except -1
    cdef uint64_t half_bound(self) noexcept
    cdef bint reserve(self, uint64_t more) noexcept
    cdef void append(self, MappedChunks chunks, uint64_t at) noexcept
    cdef void trim(self, uint64_t target, uint64_t max_pinned) noexcept
    cdef void drop(
        self, MappedChunks chunks, uint64_t start, uint64_t end, bint evicts,
        int *pagemap,
    ) noexcept
    cdef void note_released(
        self, MappedChunks chunks, uint64_t start, uint64_t end
    ) noexcept
    cdef void remove(self, MappedChunks chunks) noexcept
    cdef void purge(self) noexcept
    cdef int discard(
        self, MappedChunks chunks, uint64_t start, uint64_t end, bint evicts
    ) except -1
    cdef void pop_stale(self) noexcept
    cdef int evict_released(self) except -1
    cdef int confine(
        self, MappedChunks chunks, uint64_t offset, uint64_t size
    ) except -1
    cpdef int release(self) except -1


cdef class ReadRange:
    cdef MappedChunks chunks
    cdef uint64_t start
    cdef uint64_t end
    cdef uint64_t item             # number of the item that last extended it


cdef class PageReleaser:
    cdef PageRing ring
    cdef uint64_t max_bytes
    cdef dict ranges               # ReadRange by MappedChunks
    cdef list released             # (chunks, start, end) for the caller to evict from
                                   # the page cache; None: the ring evicts at once
    cdef uint64_t items            # items so far
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


ctypedef void (*callback_t)(const void *) noexcept nogil


cdef struct task_t:
    callback_t callback            # call it with `argument`; NULL: not a callback
    const void *argument
    const uint8_t *at              # pages to populate, or NULL
    int fd                         # a file to read ahead in, or to evict a part of
    uint64_t offset
    uint64_t size
    bint evict                     # drop the extent of `fd` from the page cache
    bint advise                    # advise the kernel of it before its turn


cdef struct queue_t:               # each counter has one writer
    task_t *tasks                  # a ring
    uint64_t capacity              # tasks; a power of two
    uint64_t pushed                # tasks so far; written by the consumer
    uint64_t finished              # tasks so far; written by the thread
    uint64_t failed                # tasks so far; written by the thread
    uint64_t sleeps                # the thread waits for `more`
    uint64_t waits                 # the consumer waits for `done`
    uint64_t stops                 # the thread is to end
    fs_lock_t lock
    fs_cond_t more                 # a task was pushed
    fs_cond_t done                 # a task was finished


cdef class Prefetcher:
    cdef queue_t *queue
    cdef fs_thread_t thread
    cdef bint running
    cdef unsigned generation       # of the process that started the thread
    cdef list owners               # of each task in the ring: keeps its memory
    cdef uint64_t released         # tasks whose owners were released
    cdef uint64_t push(self, task_t task, object owner) except 0
    cdef bint wait(self, uint64_t task) except -1
    cdef bint is_backlogged(self) noexcept
    cdef uint64_t failure_count(self) noexcept
    cdef int release(self) except -1
    cdef int stop(self) except -1
    cdef int start(self) except -1
    cdef queue_t *current_queue(self) except NULL
