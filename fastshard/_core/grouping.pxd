from libc.stdint cimport uint8_t, uint32_t

from fastshard._core.extents cimport ExtentTable, columns_t
from fastshard._core.hashing cimport slots_t


cdef struct groups_t:
    const columns_t *columns
    uint32_t *key_sizes            # of each member: bytes of its key, or NO_KEY
    uint32_t *starts               # of each sample: its first place in `members`
    uint32_t *members              # positions, sample after sample
    uint8_t *doubtful              # of each sample: 1 if its fields may repeat
    uint32_t count                 # samples
    slots_t by_key                 # key -> sample


cdef class Grouping:
    cdef ExtentTable table         # owns the names
    cdef groups_t groups           # its `columns` are NULL until it is built
    cdef bint last_dot
    cdef bint lower
    cdef groups_t *built(self) except NULL
    cdef Py_ssize_t count(self) except -1
    cdef str key(self, Py_ssize_t sample)
    cdef Py_ssize_t find(self, object key) except -2
    cdef list members(self, Py_ssize_t sample)
    cdef str field(self, Py_ssize_t member)
    cdef Py_ssize_t member(self, Py_ssize_t sample, object field) except -2
    cdef Py_ssize_t repeated(self, Py_ssize_t sample) except -2
