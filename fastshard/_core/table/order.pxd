from libc.stdint cimport int64_t


cdef class Order:
    cdef readonly int64_t count    # places
    cdef readonly int64_t limit    # what positions are below
    cdef public object name        # what `plan.describe` found, once it was asked
    cdef int64_t at(self, int64_t place) noexcept
    cdef int64_t place(self, int64_t position) except -2
    cdef bint may_repeat(self) except -1
    cpdef Order after(self, Order first)
