from cpython.object cimport PyObject
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from fastshard._core.dataset.locator cimport ColumnBatch
from fastshard._core.streaming.plan cimport RowPlan
from fastshard._core.streaming.shard cimport RowShard


cdef struct row_t:
    const uint8_t *at              # NULL until its bytes are loaded
    uint64_t offset                # in the file
    uint64_t size
    Py_ssize_t i                   # position in the shard
    Py_ssize_t shard               # index in `RowBatch.shards`


cdef struct slot_t:                # a shard of a batch
    PyObject *shard                # NULL: the slot is free
    Py_ssize_t number              # index in `RowBatch.shards`
    const uint32_t *offsets        # of its rows, all in the file; NULL: ask the table
    Py_ssize_t count               # of its rows
    const uint8_t *base            # NULL unless its bytes are read where they are
    bint cold                      # rows may have to be paged in


cdef struct target_t:              # a column to fill
    Py_ssize_t variables           # variable columns before
    uint64_t before                # bytes of fixed columns before
    uint64_t size                  # of each field
    bint varies                    # its size is in the row's header
    uint64_t skip                  # bytes before the elements
    const uint8_t *header          # these bytes
    uint64_t item                  # bytes of the elements
    uint8_t *out                   # NULL: its arrays differ


cdef enum:
    SLOTS = 64                     # a power of two


cdef class RowBatch(ColumnBatch):
    cdef row_t *rows
    cdef Py_ssize_t count, room
    cdef RowPlan plan              # of all rows
    cdef list shards, sources      # of the rows
    cdef slot_t[SLOTS] slots       # shards by their address
    cdef bint buffered             # rows of some shards are copied to a buffer first
    cdef bint cold                 # rows of some shards may have to be paged in
    cdef object buffer             # rows that are copied
    cdef bint select_shard(self, RowShard shard, slot_t *slot) except -1
    cdef int place_row(self, row_t *row) except -1
    cdef Py_ssize_t load(self, Py_ssize_t start, tuple names) except -1
    cdef int page_in(self, Py_ssize_t start, Py_ssize_t end, tuple names) except -1
    cdef int copy_rows(self, Py_ssize_t start, Py_ssize_t end) except -1
    cdef int fault(self, Py_ssize_t i) except -1
