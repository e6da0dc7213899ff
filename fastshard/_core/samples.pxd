from fastshard._core.grouping cimport Grouping
from fastshard._core.shard cimport Shard


cdef class SamplesBase:
    cdef readonly Shard shard
    cdef readonly Grouping grouping
    cdef object sample_type
    cdef Py_ssize_t find(self, object key) except -1
    cdef object item(self, Py_ssize_t i)
    cdef object sample_at(self, Py_ssize_t i)


cdef class SampleBase:
    cdef SamplesBase samples
    cdef tuple only                # the fields that it shows; None: all
    cdef public object decoders    # of the caller's own; None: none
    cdef Py_ssize_t width(self) except -1
    cpdef narrow(self, tuple only, bint required, object decoders)
    cdef readonly Py_ssize_t position
    cpdef Py_ssize_t member(self, field) except -1
