from libc.stdint cimport int64_t, uint8_t, uint64_t

from fastshard._core.mapped cimport MappedFile


cdef class LocalFile:
    cdef readonly object path
    cdef readonly uint64_t nbytes  # bytes when it was opened
    cdef readonly int64_t mtime_ns # when it was last written to, then
    cdef readonly int fd           # -1 once closed
    cdef object __weakref__


cdef class Source:
    cdef const uint8_t *base       # NULL unless mapped
    cdef int fd                    # -1 unless read with pread
    cdef bint writable             # what `hold` gives may be written to
    cdef readonly uint64_t nbytes
    cdef readonly object path
    cdef object hold(self, uint64_t offset, uint64_t size, uint8_t **at)
    cpdef object read(self, uint64_t offset, uint64_t size)


cdef class MappedSource(Source):
    cdef MappedFile file


cdef class PreadSource(Source):
    cdef LocalFile file
