from cpython.buffer cimport Py_buffer
from libc.stdint cimport uint8_t, uint64_t

from fastshard._core.pagering cimport MappedChunks


cdef class Mapping:
    cdef uint8_t *base             # NULL for a file of no bytes
    cdef uint64_t nbytes
    cdef object keeper             # the standard library's mmap, where it maps
    cdef MappedChunks chunks       # in a ring; None: its pages are not bounded
    cdef Py_buffer held            # its buffer, held for as long as this lives


cdef class MappedFile:
    cdef Mapping mapping           # shared by the handles onto one file
    cdef uint8_t *base
    cdef MappedChunks chunks       # of the mapping
    cdef readonly uint64_t nbytes
    cdef readonly object path
    cdef readonly bint writable
    cdef Py_ssize_t views          # windows alive onto this handle
    cdef object __weakref__
    cdef View window(self, uint64_t offset, uint64_t size)


cdef class View:
    cdef MappedFile owner
    cdef uint8_t *base
    cdef Py_ssize_t nbytes
