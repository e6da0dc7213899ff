from fastshard._core.extents cimport ExtentTable
from fastshard._core.groups cimport groups_t
from fastshard._core.hashing cimport slots_t


cdef class Grouping:
    cdef ExtentTable table         # owns the names
    cdef groups_t groups           # built on first use
    cdef int grouped               # it is built
    cdef slots_t by_key            # key -> sample, built on the first look-up
    cdef int hashed                # it is built
    cdef object keeper             # owns `starts` and `members` where not this
    cdef readonly bint last_dot
    cdef readonly bint lower
    cdef groups_t *built(self) except NULL
    cdef hash_keys(self)
    cdef int check_all(self) except -1
    cdef groups_t *sound(self, Py_ssize_t sample) except NULL
    cdef int check(self, Py_ssize_t sample) except -1
    cdef Py_ssize_t count(self) except -1
    cdef str key(self, Py_ssize_t sample)
    cdef Py_ssize_t find(self, object key) except -2
    cdef Py_ssize_t width(self, Py_ssize_t sample) except -1
    cdef list members(self, Py_ssize_t sample)
    cdef str field(self, Py_ssize_t member)
    cdef Py_ssize_t member(self, Py_ssize_t sample, object field) except -2
    cdef Py_ssize_t repeated(self, Py_ssize_t sample) except -2
