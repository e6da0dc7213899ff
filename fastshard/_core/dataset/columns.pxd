from libc.stdint cimport uint8_t, uint64_t

from fastshard._core.dataset.field_shard cimport FieldShard
from fastshard._core.dataset.locator cimport SampleLocator


cdef class ColumnBatch:
    cdef int reserve(self, Py_ssize_t count) except -1
    cdef bint add(self, object samples, Py_ssize_t i) except -1
    cdef dict stack(self, tuple names, object allocate)


cdef struct record_t:
    const uint8_t *at              # NULL until its bytes are loaded
    uint64_t offset                # in the file
    uint64_t size
    Py_ssize_t i                   # sample in the shard
    Py_ssize_t shard               # index in `RecordBatch.shards`


cdef class RecordBatch(ColumnBatch):
    cdef record_t *records
    cdef Py_ssize_t count
    cdef list shards               # FieldShard
    cdef list sources              # of the shards; keep their bytes if one is closed
    cdef bint buffered             # records of some shards are copied to a buffer first
    cdef bint cold                 # records of some shards may have to be paged in
    cdef object buffer             # records that are copied
    cdef Py_ssize_t add_shard(self, FieldShard shard) except -1
    cdef Py_ssize_t load(self, Py_ssize_t start, tuple names) except -1
    cdef int page_in(self, Py_ssize_t start, Py_ssize_t end, tuple names) except -1
    cdef int copy_records(
        self, Py_ssize_t start, Py_ssize_t end, uint64_t nbytes
    ) except -1


cdef struct place_t:
    Py_ssize_t owner               # index in `SampleList.owners`
    Py_ssize_t position


cdef class SampleList:
    cdef list owners
    cdef place_t *places
    cdef Py_ssize_t count


cdef dict read_batch(
    ColumnBatch batch, SampleLocator locator, object positions, tuple names,
    object allocate,
)
cdef dict stack_batch(ColumnBatch batch, object samples, tuple names, object allocate)
cdef object make_column(
    str name, Py_ssize_t count, tuple shape, object dtype, uint64_t item,
    object allocate, uint8_t **out,
)
cdef dict sort_columns(dict found, tuple names)
