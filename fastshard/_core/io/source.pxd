from libc.stdint cimport int64_t, uint8_t, uint64_t

from fastshard._core.io.page_ring cimport MappedChunks, PageRing

cdef enum:
    SETTLE = 50_000_000            # ns that pages may be on their way
    LOOK_EVERY = 200_000_000       # ns; asking about a GB takes some 100 us
    MAX_PAGE_IN = 16 << 20        # bytes of one member that are waited for


cdef class LocalFile:
    cdef readonly object path
    cdef readonly uint64_t nbytes  # bytes when it was opened
    cdef readonly int64_t mtime_ns # when it was last written to, then
    cdef readonly int64_t ctime_ns # when anything of it was last changed, then
    cdef readonly uint64_t device
    cdef readonly uint64_t inode
    cdef readonly uint64_t owner   # the user that it belongs to
    cdef readonly int fd           # -1 once closed
    cdef object appended           # says if what was there is there yet; or None
    cdef uint64_t seen_nbytes      # its size and time of writing, when last looked
    cdef int64_t seen_mtime_ns
    cdef object __weakref__
    cdef object describe(self)
    cdef int check_unchanged(self) except -1


cdef class Mapping:
    cdef uint8_t *base             # NULL for a file of no bytes
    cdef uint64_t nbytes
    cdef object keeper             # the standard library's mmap, where it maps
    cdef MappedChunks chunks       # in a ring; None: its pages are not bounded
    cdef Py_buffer held            # its buffer, held for as long as this lives


cdef class MappedFile:
    cdef Mapping mapping           # shared by the handles onto one file
    cdef uint8_t *base
    cdef MappedChunks chunks       # of the mapping
    cdef readonly uint64_t nbytes
    cdef readonly object path
    cdef readonly bint writable
    cdef Py_ssize_t views          # windows alive onto this handle
    cdef object whole              # a memoryview of all of it, once `view` needs one
    cdef object __weakref__
    cdef View raw_view(self, uint64_t offset, uint64_t size)
    cdef object view(self, uint64_t offset, uint64_t size)


cdef class View:
    cdef MappedFile owner
    cdef uint8_t *base
    cdef Py_ssize_t nbytes


cdef class Descriptor:
    cdef int fd
    cdef bint stays                # it counts among those that are kept
    cdef bint may_stay(self) noexcept


cdef class Residency:
    cdef MappedFile file
    cdef uint64_t device
    cdef uint64_t inode
    cdef bint told                 # the kernel says which of its pages are cached
    cdef Descriptor checked        # to ask for the size by at every read, or None
    cdef Descriptor probe          # to ask for parts by, or None
    cdef uint64_t asking           # since when a thread is, ns, or 0
    cdef uint64_t calm_from        # until then pages may be on their way, ns
    cdef uint64_t next_look        # when the cache is asked again, ns
    cdef bint whole                # what it said
    cdef bint is_resident(self) except -1
    cdef uint64_t next_size        # when the size is asked for by path again, ns
    cdef int check_size_now(self) except -1
    cdef int check_size(self) except -1
    cdef int page_in(self, uint64_t offset, uint64_t size) except -1
    cdef bint has_resident(self, uint64_t offset, uint64_t size) noexcept
    cdef int query_cache(self, Descriptor probe) except -1
    cdef Descriptor reopen(self)
    cdef object failure(self, uint64_t offset, int code)


cdef class Source:
    cdef const uint8_t *base       # NULL unless mapped
    cdef int fd                    # -1 unless read with pread
    cdef bint writable             # what `pin` gives may be written to
    cdef readonly uint64_t nbytes
    cdef readonly object path
    cdef bint is_remote(self) noexcept
    cdef object pin(self, uint64_t offset, uint64_t size, uint8_t **at)
    cpdef object read(self, uint64_t offset, uint64_t size)
    cdef int check_size(self) except -1
    cdef bint is_resident(self) except -1
    cdef bint has_resident(self, uint64_t offset, uint64_t size) noexcept
    cdef int check_unchanged(self) except -1
    cdef int touch(self, uint64_t offset, uint64_t size) except -1
    cdef int confine(self, uint64_t offset, uint64_t size) except -1
    cdef uint64_t touch_limit(self) noexcept
    cdef object failure(self, uint64_t offset, int code)


cdef class MappedSource(Source):
    cdef MappedFile file
    cdef readonly Residency residency  # None: nobody asks
    cdef bint watched              # pages are seen to before they are handed out
    cdef Py_ssize_t trusted        # reads to go until someone looks again
    cdef int ensure_resident(self, uint64_t offset, uint64_t size) except -1


cdef class PreadSource(Source):
    cdef LocalFile file
    cdef uint64_t next_look        # when the page cache is asked again, ns
    cdef bint whole                # what it said


cdef class RemoteSource(Source):
    cdef readonly object file      # what asks for ranges: a RemoteFile
    cdef dict staged               # bytes by offset; None: nothing was brought
    cdef bytes staged_at(self, uint64_t offset, uint64_t size)


cdef Source local_source(
    LocalFile file, str mode, bint prefetch, bint check_size, PageRing ring
)
