from libc.stdint cimport uint8_t, uint64_t

from fastshard._core.io.source cimport MappedFile, MappedSource, Source
from fastshard._core.streaming.plan cimport RowTable

cdef enum:
    CHECK_EVERY = 5_000_000        # ns between two checks of a file by its path


cdef class OpenRows:
    cdef readonly RowTable rows
    cdef MappedSource mapped       # None: the bytes are in memory
    cdef MappedFile file           # owner of views; its base is the first byte
    cdef bytes mask                # of the columns to decode; None: all
    cdef bint copy
    cdef str path                  # of the mapped file
    cdef uint64_t device
    cdef uint64_t inode
    cdef uint64_t check_every      # ns
    cdef uint64_t next_check       # ns
    cdef bint is_current(self) except -1
    cdef const uint8_t *row(
        self, Py_ssize_t i, bytes mask, uint64_t *offset, uint64_t *size
    ) except? NULL


cdef class ReaderBase:
    cdef OpenRows opened           # None until it is needed, and after a release
    cdef RowTable loose            # rows without a file, to decode bytes; or None
    cdef int kind                  # how samples are read; see reader.pyx
    cdef object __weakref__
    cdef OpenRows get_open(self)
    cdef OpenRows reopen(self)
    cdef int decide(self) except -1
    cdef object item(self, object at)
    cdef object sample(self, Py_ssize_t i, bytes mask, bint whole)
