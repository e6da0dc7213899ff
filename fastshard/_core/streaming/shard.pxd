from fastshard._core.dataset.records cimport FieldShard
from fastshard._core.dataset.shard cimport SamplesBase
from fastshard._core.streaming.plan cimport RowTable


cdef class RowShard(FieldShard):
    cdef readonly RowTable rows
    cdef readonly object facts     # encodings and decoders, for Python samples
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
