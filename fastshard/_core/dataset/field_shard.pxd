from libc.stdint cimport uint8_t, uint64_t

from fastshard._core.dataset.shard cimport Shard
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
