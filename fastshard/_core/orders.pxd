from libc.stdint cimport int64_t

from fastshard._core.permutation cimport shuffle_t


cdef class Order:
    cdef readonly int64_t count    # places
    cdef readonly int64_t limit    # what positions are below
    cdef public object name        # what `plan.describe` found, once it was asked
    cdef int64_t at(self, int64_t place) noexcept
    cdef int64_t place(self, int64_t position) except -2
    cdef bint may_repeat(self) except -1
    cpdef Order after(self, Order first)


cdef class Stride(Order):
    cdef int64_t start
    cdef int64_t step
    cdef bint wraps
    cdef int64_t wrapped_place(self, int64_t position) except -2


cdef class Chunks(Order):
    cdef int64_t size
    cdef int64_t worker
    cdef int64_t workers


cdef class Listed(Order):
    cdef object numbers            # ndarray of int64
    cdef const int64_t[::1] positions
    cdef object sorted             # their places by position, once one was asked for
    cdef bint unique               # no position comes twice, as far as it is known


cdef class Shuffle(Order):
    cdef shuffle_t shuffle
    cdef object arguments


cdef class Chain(Order):
    cdef Order first
    cdef Order then
    cdef int depth
