from libc.stdint cimport int64_t, uint64_t

from fastshard._core.dataset.locator cimport LookaheadRing
from fastshard._core.dataset.shard cimport SampleBase, SampleDecoder, Shard


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
