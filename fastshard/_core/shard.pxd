from libc.stdint cimport uint8_t, uint64_t

from fastshard._core.table.extents cimport ExtentTable
from fastshard._core.io.source cimport Source


ctypedef object (*array_maker_t)(Shard, Py_ssize_t, object, object)

cdef array_maker_t array_maker     # NULL until NumPy was asked for


cdef class Shard:
    cdef Source source             # None once closed
    cdef ExtentTable table
    cdef readonly str path
    cdef readonly str mode
    cdef object seen               # what arrays.pyx remembers of its members
    cdef object __weakref__
    cdef Source open_source(self)
    cdef Py_ssize_t find(self, object key) except -1
    cdef int extent(self, Source source, Py_ssize_t i, uint64_t *offset, uint64_t *size) except -1
    cdef int check_extent(
        self, Source source, Py_ssize_t i, uint64_t offset, uint64_t size
    ) except -1
    cdef bint guess(
        self, Source source, Py_ssize_t i, uint64_t *offset, uint64_t *size
    ) noexcept
    cdef int prove(self, Source source, Py_ssize_t i) except -1
    cdef object hold(self, Py_ssize_t i, uint8_t **at, uint64_t *size)
    cdef object of_member(self, object error, Py_ssize_t i)
    cdef object view_at(self, Py_ssize_t i)
