from libc.stdint cimport int64_t


cdef class Order:
    cdef readonly int64_t count    # ordinals
    cdef readonly int64_t limit    # positions are below it
    cdef public object name        # cache of `plan.order_digest`, or None
    cdef int64_t at(self, int64_t ordinal) noexcept
    cdef int64_t ordinal_of(self, int64_t position) except -2
    cdef bint may_repeat(self) except -1
    cpdef Order after(self, Order first)
