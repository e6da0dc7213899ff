from libc.stdint cimport uint8_t, uint64_t

from fastshard._core.dataset.shard cimport Shard
from fastshard._core.io.source cimport Source
from fastshard._core.streaming.plan cimport MdsRows, RowPlan
from fastshard._core.streaming.shard cimport RowShard


cdef struct row_t:
    const uint8_t *at              # NULL until its bytes are loaded
    uint64_t offset                # in the file
    uint64_t size
    Py_ssize_t i                   # position in the shard
    Py_ssize_t shard               # index in `RowBatch.shards`


cdef struct target_t:              # a column to fill
    Py_ssize_t column
    Py_ssize_t variables           # variable columns before
    uint64_t before                # bytes of fixed columns before
    uint64_t size                  # of each field
    bint varies                    # its size is in the row's header
    uint64_t skip                  # bytes before the elements
    const uint8_t *header          # these bytes
    uint64_t item                  # bytes of the elements
    uint8_t *out                   # NULL: its arrays differ


cdef class RowBatch:
    cdef row_t *rows
    cdef Py_ssize_t count, room
    cdef RowPlan plan              # of all rows
    cdef list shards, sources      # of the rows
    cdef RowShard last             # the last shard
    cdef Source source             # its source
    cdef bint direct               # its bytes are read where they are mapped
    cdef bint resident             # all its pages are resident
    cdef bint buffered             # rows of some shards are copied to a buffer first
    cdef bint cold                 # rows of some shards may have to be paged in
    cdef object buffer             # rows that are copied
    cdef int reserve(self, Py_ssize_t count) except -1
    cdef bint select_shard(self, RowShard shard) except -1
    cdef bint add(self, object samples, Py_ssize_t i) except -1
    cdef Py_ssize_t load(self, Py_ssize_t start, tuple names) except -1
    cdef int page_in(self, Py_ssize_t start, Py_ssize_t end, tuple names) except -1
    cdef int copy_rows(self, Py_ssize_t start, Py_ssize_t end) except -1
    cdef int fault(self, Py_ssize_t i) except -1
    cdef dict stack(self, tuple names, object allocate)
