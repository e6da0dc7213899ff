from libc.stdint cimport uint8_t, uint64_t

from fastshard._core.extents cimport ExtentTable
from fastshard._core.mapped cimport View
from fastshard._core.npyheader cimport Seen
from fastshard._core.source cimport MappedSource, Source
from fastshard._core.span cimport span_t


cdef bint is_plain(const uint8_t *block, span_t name, uint64_t *size) noexcept nogil


cdef class ColumnFile:
    cdef readonly Source source
    cdef readonly str path
    cdef readonly object number
    cdef readonly bint believed             # offsets are true ones, if there is such a member
    cdef object scan               # makes the table of what a walk over it finds
    cdef ExtentTable scanned       # that table, once it was needed
    cdef object fault              # why the walk ended before the archive; or None
    cdef uint64_t likely           # bytes of the member that was found last
    cdef Seen seen
    cdef readonly tuple identity
    cdef object scanning           # a lock
    cdef list holders              # who remembers it, weakly
    cdef Py_ssize_t most_holders
    cdef int find(
        self, uint64_t offset, span_t name, uint64_t *found, uint64_t *size
    ) except -1
    cdef bint check(
        self, uint64_t offset, span_t name, uint64_t *size
    ) except -1
    cdef object held(
        self, Source source, uint64_t start, uint64_t end, const uint8_t **window
    )
    cdef object array(self, uint64_t offset, str member)
    cdef View window(
        self, MappedSource source, uint64_t offset, span_t name, uint64_t *size
    )
    cdef ExtentTable walked(self)
    cdef int held_by(self, object holder) except -1
