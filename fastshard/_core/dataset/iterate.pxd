from libc.stdint cimport int64_t, uint64_t

from fastshard._core.dataset.shard cimport SampleLocator
from fastshard._core.dataset.shard cimport SampleBase
from fastshard._core.dataset.shard cimport Shard


cdef enum:
    RING = 32                      # a power of two above FAR


cdef struct place_t:
    Py_ssize_t shard
    Py_ssize_t at                  # of the sample among those of the shard


cdef class LookaheadRing:
    cdef SampleLocator places
    cdef tuple positions           # places; None: from 0 on
    cdef Py_ssize_t count
    cdef Py_ssize_t known          # places that were looked up
    cdef place_t[RING] ring
    cdef object sample(self, Py_ssize_t i)
    cdef int look_ahead(self, Py_ssize_t i) except -1
    cdef void expect(self, const place_t *place, int away) noexcept


cdef class ItemStream:
    cdef object take(self, bint ahead)
    cdef object take_near(self)
    cdef object emit(self, object item)
    cdef Py_ssize_t left(self) except -1
    cdef Shard shard_of(self, object item)
    cdef list places_of(self, object item)
    cdef bint is_resident(self, object item) except -1


cdef class MemberStream(ItemStream):
    cdef Shard shard
    cdef const int64_t *positions  # of `buffer`; NULL: from `first` on
    cdef Py_buffer buffer          # of the order, while this lives
    cdef Py_ssize_t first
    cdef Py_ssize_t next           # place in the order
    cdef Py_ssize_t count
    cdef Py_ssize_t position(self) noexcept


cdef class SampleStream(ItemStream):
    cdef tuple only
    cdef bint required
    cdef object decoders
    cdef bint has_near(self, object samples)
    cdef object narrowed(self, SampleBase sample)


cdef class PositionStream(SampleStream):
    cdef LookaheadRing coming
    cdef Py_ssize_t next           # place of the sample that comes next


cdef class ShardStream(SampleStream):
    cdef list sizes                # of each shard: samples, or None
    cdef object error              # that stands for `repeats` more samples
    cdef Py_ssize_t repeats
    cdef object bring
    cdef Py_ssize_t next_shard
    cdef object samples            # of the shard that is read
    cdef Py_ssize_t next_sample
    cdef Py_ssize_t samples_there
    cdef int open_next(self) except -1
    cdef object repeated(self, bint ahead)


cdef class IteratorBase:
    cdef ItemStream feed
    cdef object make
    cdef object describe
    cdef object on_error
    cdef Py_ssize_t taken_so_far   # items that were handed out, raised or passed over
    cdef Py_ssize_t skipped_so_far # those passed over
    cdef object queue              # deque of what waits
    cdef Py_ssize_t window
    cdef uint64_t window_bytes
    cdef uint64_t ahead            # bytes of what waits
    cdef bint ended
    cdef bint invalidated
    cdef uint64_t entered          # 1 while a thread is in it
    cdef object __weakref__
    cdef bint enter(self) noexcept
    cdef void leave(self) noexcept
    cdef object step(self)
    cdef object advance(self)
    cdef object made(self, object item)
    cdef int finish(self) except -1
