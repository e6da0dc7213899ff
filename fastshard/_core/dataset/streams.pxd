from libc.stdint cimport int64_t, uint64_t

from fastshard._core.dataset.shard cimport SampleBase, SampleDecoder, SamplesBase, Shard
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


cdef class ItemStream:
    cdef public SampleDecoder decoder  # makes the caller's items, or None
    cdef object next_item(self, bint ahead)
    cdef object next_resident(self)
    cdef object next_decoded(self)
    cdef object emit(self, object item)
    cdef Py_ssize_t left(self) except -1
    cdef Shard shard_of(self, object item)
    cdef list members_of(self, object item)
    cdef bint is_resident(self, object item) except -1


cdef class MemberStream(ItemStream):
    cdef Shard shard
    cdef const int64_t *positions  # of `buffer`; NULL: from `first` on
    cdef Py_buffer buffer          # the order's, held while this lives
    cdef Py_ssize_t first
    cdef Py_ssize_t next           # index in the order
    cdef Py_ssize_t count
    cdef Py_ssize_t position(self) noexcept


cdef class SampleStream(ItemStream):
    cdef tuple only
    cdef bint required
    cdef object decoders
    cdef bint has_resident(self, object samples)
    cdef object narrow(self, SampleBase sample)


cdef class PositionStream(SampleStream):
    cdef LookaheadRing ring
    cdef Py_ssize_t next           # index of the next sample in the order


cdef class ShardStream(SampleStream):
    cdef list sizes                # samples of each shard, or None
    cdef object error              # takes the place of `repeats` more samples
    cdef Py_ssize_t repeats
    cdef object open_shard
    cdef Py_ssize_t next_shard
    cdef object samples            # of the current shard
    cdef Py_ssize_t next_sample
    cdef Py_ssize_t sample_count   # of the current shard
    cdef int open_next(self) except -1
    cdef object retry(self, bint ahead)


cdef class IteratorBase:
    cdef ItemStream stream
    cdef object make
    cdef object describe
    cdef object on_error
    cdef Py_ssize_t consumed       # items returned, raised or skipped
    cdef Py_ssize_t skipped_count
    cdef object queue              # deque of items ahead of their turn
    cdef Py_ssize_t window         # items
    cdef uint64_t window_bytes
    cdef uint64_t queued_bytes     # of the items in the queue
    cdef readonly uint64_t wait_ns  # time that items waited for bytes in their turn
    cdef bint ended
    cdef bint invalidated
    cdef uint64_t busy             # 1 while a thread is in a call
    cdef object __weakref__
    cdef bint enter(self) noexcept
    cdef void leave(self) noexcept
    cdef object step(self)
    cdef object advance(self)
    cdef object convert(self, object item)
    cdef int finish(self) except -1


cdef object strip_traceback(object error)
