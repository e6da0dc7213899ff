from libc.stdint cimport uint8_t, uint64_t

from fastshard._core.source cimport Source


cdef class RemoteSource(Source):
    cdef readonly object file      # what asks for ranges: a RemoteFile
    cdef dict staged               # bytes by offset; None: nothing was brought
    cdef bytes staged_at(self, uint64_t offset, uint64_t size)
