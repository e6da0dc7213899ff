from libc.stdint cimport int64_t

from fastshard._core.dataset.shard cimport SampleDecoder, SamplesBase
from fastshard._core.table.order cimport Order


cdef enum:
    RING = 32                      # a power of two above the first prefetch distance


cdef struct location_t:
    Py_ssize_t shard
    Py_ssize_t at                  # position of the sample in the shard


cdef class SampleLocator:
    cdef object starts_array       # the array that owns `starts`
    cdef const int64_t *starts     # first position of each shard, then the total
    cdef readonly Py_ssize_t total  # samples of all shards
    cdef readonly Py_ssize_t count  # samples of the order
    cdef Order order               # None: storage order
    cdef Py_ssize_t shards
    cdef list samples              # SamplesBase or None, by shard
    cdef bytearray used
    cdef object open_shard
    cdef SampleDecoder decoder     # of what `at` returns; None: samples
    cdef SampleLocator copy(self)
    cdef Py_ssize_t wrap(self, Py_ssize_t i) except -1
    cdef Py_ssize_t find_shard(self, Py_ssize_t i) noexcept
    cdef void locate(self, Py_ssize_t i, location_t *location) noexcept
    cdef SamplesBase open_samples(self, Py_ssize_t shard)
    cdef object sample_at(self, location_t location)


cdef class LookaheadRing:
    cdef SampleLocator locator
    cdef tuple positions           # None: all, from 0 on
    cdef Py_ssize_t count
    cdef Py_ssize_t located        # positions looked up so far
    cdef location_t[RING] ring
    cdef object sample(self, Py_ssize_t i)
    cdef int advance(self, Py_ssize_t i, location_t *location) except -1
    cdef void prefetch(self, const location_t *location, int stage) noexcept
