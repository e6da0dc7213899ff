from libc.stdint cimport int64_t, uint8_t, uint64_t

from fastshard._core.io.paging cimport MappedChunks, PageRing

cdef enum:
    READ_TIME = 50_000_000         # ns in which pages that were requested may arrive
    QUERY_EVERY = 200_000_000      # ns; a query takes about 100 us a GB
    MAX_PAGE_IN = 16 << 20         # bytes of one member that a read waits for


cdef class LocalFile:
    cdef readonly object path
    cdef readonly uint64_t nbytes  # nbytes to owner: as of the opening
    cdef readonly int64_t mtime_ns
    cdef readonly int64_t ctime_ns
    cdef readonly uint64_t device
    cdef readonly uint64_t inode
    cdef readonly uint64_t owner   # user id
    cdef readonly int fd           # -1 while closed
    cdef bint is_closed            # by `close`; else it can be opened again
    cdef str location              # absolute path, once it is a source's
    cdef Py_ssize_t slot           # in the list of kept files; -1: not kept
    cdef bint used                 # since the clock's hand passed
    cdef object is_appended        # the callback of `watch`, or None
    cdef uint64_t seen_nbytes      # size and mtime at the last check
    cdef int64_t seen_mtime_ns
    cdef object __weakref__
    cdef object load_stat(self)
    cdef int check_unchanged(self) except -1


cdef class Mapping:
    cdef uint8_t *base             # NULL for an empty file
    cdef uint64_t nbytes
    cdef object keeper             # bytes in memory, or mmap.mmap where fs_map is not
    cdef MappedChunks chunks       # in a ring; None: resident pages are not bounded
    cdef Py_buffer held            # buffer of `keeper`


cdef class MappedFile:
    cdef Mapping mapping           # shared by the handles onto one file
    cdef uint8_t *base
    cdef MappedChunks chunks       # of the mapping
    cdef readonly uint64_t nbytes
    cdef readonly object path
    cdef readonly bint writable
    cdef Py_ssize_t views          # live Views of this handle
    cdef object whole              # memoryview of the whole file; None until needed
    cdef object __weakref__
    cdef View raw_view(self, uint64_t offset, uint64_t size)
    cdef object view(self, uint64_t offset, uint64_t size)


cdef class View:
    cdef MappedFile owner
    cdef uint8_t *base
    cdef Py_ssize_t nbytes


cdef class Descriptor:
    cdef int fd
    cdef bint kept                 # counted in `kept_descriptors`
    cdef bint try_keep(self) except -1


cdef struct window_t:              # 64 pages of a file
    uint64_t pages                 # bits of those that were in the page cache
    uint64_t until                 # ns; they are queried again from then on


cdef class Residency:
    cdef MappedFile file
    cdef object location           # absolute path: the working directory may change
    cdef window_t *windows         # of the whole file; NULL: none was queried
    cdef uint64_t device
    cdef uint64_t inode
    cdef bint has_mincore          # mincore tells the truth about this file
    cdef Descriptor checked        # to stat at every read, or None
    cdef Descriptor probe          # to query extents with, or None
    cdef uint64_t query_began      # ns; 0: no thread queries
    cdef uint64_t arrival          # ns; requested pages may be on their way until then
    cdef uint64_t next_query       # ns; the whole file is queried again from then on
    cdef bint whole                # answer of the last query
    cdef bint is_resident(self) except -1
    cdef uint64_t next_stat        # ns; the size is checked by path again from then on
    cdef int check_size_now(self) except -1
    cdef int check_path(self) except -1
    cdef int check_size(self) except -1
    cdef int page_in(self, uint64_t offset, uint64_t size) except -1
    cdef bint has_resident(self, uint64_t offset, uint64_t size) noexcept
    cdef bint had_resident(
        self, uint64_t offset, uint64_t size, uint64_t now
    ) noexcept
    cdef int query_cache(self, Descriptor probe) except -1
    cdef Descriptor reopen(self)
    cdef object failure(self, uint64_t offset, int code)


cdef class Source:
    cdef const uint8_t *base       # NULL unless mapped
    cdef bint writable             # `pin` returns writable memory
    cdef readonly uint64_t nbytes
    cdef readonly object path
    cdef bint is_remote(self) noexcept
    cdef object pin(self, uint64_t offset, uint64_t size, uint8_t **at)
    cdef object lease(self, int *fd)
    cpdef object read(self, uint64_t offset, uint64_t size)
    cdef int check_size(self) except -1
    cdef bint is_resident(self) except -1
    cdef bint has_resident(self, uint64_t offset, uint64_t size) noexcept
    cdef bint had_resident(
        self, uint64_t offset, uint64_t size, uint64_t now
    ) noexcept
    cdef int check_unchanged(self) except -1
    cdef int touch(self, uint64_t offset, uint64_t size) except -1
    cdef int confine(self, uint64_t offset, uint64_t size) except -1
    cdef uint64_t touch_limit(self) noexcept
    cdef object failure(self, uint64_t offset, int code)


cdef class MappedSource(Source):
    cdef MappedFile file
    cdef readonly Residency residency  # None: pages are not checked
    cdef bint watched              # ensure residency before bytes are handed out
    cdef Py_ssize_t trusted        # reads left until the next check
    cdef int ensure_resident(self, uint64_t offset, uint64_t size) except -1


cdef class MemorySource(Source):
    cdef MappedFile file           # holds a buffer instead of a mapping


cdef class PreadSource(Source):
    cdef LocalFile file
    cdef uint64_t next_query       # ns; the page cache is queried again from then on
    cdef bint whole                # answer of the last query
    cdef LocalFile open_file(self)


cdef class RemoteSource(Source):
    cdef readonly object file      # a RemoteFile, which requests ranges
    cdef dict staged               # bytes or ReusedMemory by offset, or None
    cdef object get_staged(self, uint64_t offset, uint64_t size)
    cdef bytes request_now(self, uint64_t offset, uint64_t size)
    cdef object find_staged(self, uint64_t offset, uint64_t size, uint8_t **at)


cdef class ReusedMemory:
    cdef uint8_t *at
    cdef Py_ssize_t nbytes
    cdef Py_ssize_t capacity
    cdef MemoryPool pool           # gets the memory back, or None


cdef struct free_t:
    void *at
    Py_ssize_t capacity


cdef class MemoryPool:
    cdef free_t *free_blocks       # the last one was returned last
    cdef Py_ssize_t count
    cdef uint64_t limit            # bytes
    cdef uint64_t used             # bytes in use
    cdef readonly uint64_t spare   # bytes of the free blocks
    cdef bint is_drained           # whether blocks are freed, not kept
    cdef void *find_block(self, Py_ssize_t needed, Py_ssize_t *capacity) noexcept
    cdef void give_back(self, void *at, Py_ssize_t capacity) noexcept
    cdef void shrink(self) noexcept


cdef int64_t staged_span(object data, uint8_t **at) except -1


cdef PreadSource pread_source(LocalFile file)


cdef Source local_source(
    LocalFile file, str mode, bint prefetch, bint check_size, PageRing ring
)
