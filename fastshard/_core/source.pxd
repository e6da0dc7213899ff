from libc.stdint cimport int64_t, uint8_t, uint64_t

from fastshard._core.mapped cimport MappedFile
from fastshard._core.residency cimport Residency


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
    cdef int check(self) except -1


cdef class Source:
    cdef const uint8_t *base       # NULL unless mapped
    cdef int fd                    # -1 unless read with pread
    cdef bint writable             # what `hold` gives may be written to
    cdef readonly uint64_t nbytes
    cdef readonly object path
    cdef bint is_remote(self) noexcept
    cdef object hold(self, uint64_t offset, uint64_t size, uint8_t **at)
    cpdef object read(self, uint64_t offset, uint64_t size)
    cdef int prepare(self) except -1
    cdef bint is_near(self) except -1
    cdef bint has(self, uint64_t offset, uint64_t size) noexcept
    cdef int settle(self) except -1
    cdef int touch(self, uint64_t offset, uint64_t size) except -1
    cdef int confine(self, uint64_t offset, uint64_t size) except -1
    cdef uint64_t most_touched(self) noexcept
    cdef object failure(self, uint64_t offset, int code)


cdef class MappedSource(Source):
    cdef MappedFile file
    cdef readonly Residency residency  # None: nobody asks
    cdef bint watched              # pages are seen to before they are handed out
    cdef Py_ssize_t trusted        # reads to go until someone looks again
    cdef int look(self, uint64_t offset, uint64_t size) except -1


cdef class PreadSource(Source):
    cdef LocalFile file
    cdef uint64_t next_look        # when the page cache is asked again, ns
    cdef bint whole                # what it said
