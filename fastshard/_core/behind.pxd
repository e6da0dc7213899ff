from libc.stdint cimport uint64_t

from fastshard._core.prefetch cimport Prefetcher
from fastshard._core.residency cimport Descriptor
from fastshard._core.source cimport MappedSource


cdef class Part:
    cdef MappedSource source
    cdef uint64_t start
    cdef uint64_t end
    cdef uint64_t item             # that was passed by last


cdef class Behind:
    cdef dict parts                # by source
    cdef uint64_t most             # bytes
    cdef uint64_t passed_so_far    # items
    cdef Descriptor descriptor     # of one of the sources, to forget by
    cdef MappedSource descriptor_of
    cdef list forgotten            # tasks that forget
    cdef int pass_by(self, list places, Prefetcher forgetter) except -1
    cdef Part begin(
        self, Part last, MappedSource source, uint64_t offset, Prefetcher forgetter
    )
    cdef int give_back(self, Part part, Prefetcher forgetter) except -1
    cdef int forget(
        self, MappedSource source, uint64_t start, uint64_t end, Prefetcher forgetter
    ) except -1
    cdef int finish(self, Prefetcher forgetter) except -1
