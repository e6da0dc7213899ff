from fastshard._core.coming cimport Coming
from fastshard._core.samples cimport SampleBase
from fastshard._core.shard cimport Shard
from fastshard._core.io.source cimport Source


cdef class Feed:
    cdef object take(self, bint ahead)
    cdef object emit(self, object item)
    cdef Py_ssize_t left(self) except -1
    cdef Shard shard_of(self, object item)
    cdef list places_of(self, object item)
    cdef bint is_near(self, object item) except -1


cdef class MemberFeed(Feed):
    cdef Shard shard
    cdef object order              # an iterator over positions


cdef class SampleFeed(Feed):
    cdef tuple only
    cdef bint required
    cdef object decoders
    cdef object narrowed(self, SampleBase sample)


cdef class PlacesFeed(SampleFeed):
    cdef Coming coming
    cdef Py_ssize_t next           # place of the sample that comes next


cdef class ShardsFeed(SampleFeed):
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
