from libc.stdint cimport uint8_t, uint64_t

from fastshard._core.dataset.shard cimport Shard
from fastshard._core.dataset.streams cimport SampleLocator
from fastshard._core.io.source cimport MappedSource, MemorySource, Source
from fastshard._core.table.extents cimport ExtentTable

cdef ExtentTable NO_EXTENTS


cdef struct field_t:               # of a record
    Py_ssize_t record              # its sample
    Py_ssize_t column              # number of the field; -1: the whole record
    uint64_t offset                # of the record in the file
    uint64_t size                  # of the record
    uint64_t start                 # of the field in the record
    uint64_t nbytes                # of the field
    int kind                       # of the value, if its format tells kinds apart
    bint is_ready                  # mapped bytes of the field are resident


cdef class FieldShard(Shard):
    cdef tuple kept                # (record, bytes) of the last one read, or None
    cdef bint keeps_local          # also those of a local file, for one more call
    cdef int find_record(self, Source source, Py_ssize_t i, field_t *field) except -1
    cdef Py_ssize_t member_at(self, Py_ssize_t record, Py_ssize_t column) noexcept
    cdef list columns_of(self, tuple names)
    cdef object place_field(self, Source source, Py_ssize_t i, field_t *field)
    cdef bint reads_fields(self, Source source, uint64_t size) noexcept
    cdef uint64_t head_size(self) noexcept
    cdef object read_record(
        self, Source source, Py_ssize_t record, uint64_t offset, uint64_t size
    )


cdef inline bint is_direct(Source source) noexcept:
    """Return whether records are read where they are in memory."""
    return type(source) is MemorySource or (
        type(source) is MappedSource and (<MappedSource> source).file.chunks is None
    )


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
cdef dict sort_columns(dict found, tuple names)
