from libc.stdint cimport uint8_t, uint64_t

from fastshard._core.dataset.locator cimport SampleLocator


cdef class ColumnBatch:
    cdef int reserve(self, Py_ssize_t count) except -1
    cdef bint add(self, object samples, Py_ssize_t i) except -1
    cdef dict stack(self, tuple names, object allocate)


cdef struct place_t:
    Py_ssize_t owner               # index in `SampleList.owners`
    Py_ssize_t position


cdef class SampleList:
    cdef list owners
    cdef place_t *places
    cdef Py_ssize_t count


cdef dict read_batch(
    ColumnBatch batch, SampleLocator locator, object positions, tuple names,
    object allocate,
)
cdef dict stack_batch(ColumnBatch batch, object samples, tuple names, object allocate)
cdef object make_column(
    str name, Py_ssize_t count, tuple shape, object dtype, uint64_t item,
    object allocate, uint8_t **out,
)
cdef dict sort_columns(dict found, tuple names)
