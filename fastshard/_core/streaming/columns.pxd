from cpython.object cimport PyObject
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from fastshard._core.dataset.records cimport RecordBatch, record_t
from fastshard._core.streaming.plan cimport RowPlan
from fastshard._core.streaming.shard cimport RowShard


cdef struct slot_t:                # a shard of a batch
    PyObject *shard                # NULL: the slot is free
    Py_ssize_t number              # index in `RowBatch.shards`
    const uint32_t *offsets        # of its rows, all in the file; NULL: ask the table
    Py_ssize_t count               # of its rows
    const uint8_t *base            # NULL unless its bytes are read where they are


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


cdef class RowBatch(RecordBatch):
    cdef RowPlan plan              # of all rows
    cdef slot_t[SLOTS] slots       # shards by their address
    cdef bint select_shard(self, RowShard shard, slot_t *slot) except -1
    cdef int place_row(self, record_t *row) except -1
    cdef int fault(self, Py_ssize_t r) except -1
