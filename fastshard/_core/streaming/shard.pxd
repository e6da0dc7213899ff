from cpython.object cimport PyObject
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from fastshard._core.dataset.field_shard cimport FieldShard, RecordBatch, record_t
from fastshard._core.dataset.shard cimport SamplesBase
from fastshard._core.streaming.plan cimport RowPlan, RowTable

cdef class RowShard(FieldShard):
    cdef readonly RowTable rows
    cdef readonly object facts     # what Python samples ask: encodings, decoders
    cdef Py_ssize_t members        # fields, then rows
    cdef object decode(self, Py_ssize_t row, bytes mask, bint copy, dict values)


cdef class RowSamples(SamplesBase):
    cdef RowShard held
    cdef RowTable rows
    cdef readonly Py_ssize_t first # position of the first row in the dataset
    cdef Py_ssize_t key_column     # -1: keys are positions
    cdef bytes key_mask            # of `RowTable.decode_row`, for keys alone
    cdef dict places               # column by name
    cdef readonly list names       # of the fields
    cdef dict template             # of decoded rows, None by name; or None
    cdef bint has_key_field        # a field is named as the key is in decoded samples
    cdef tuple last                # (fields, mask) of the last `decode`
    cdef Py_ssize_t search_from(self, object key, Py_ssize_t start) except -2
    cdef object decode_resident(self, Py_ssize_t i)
    cdef bytes mask_of(self, tuple fields)


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
