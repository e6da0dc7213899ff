from libc.stdint cimport uint8_t, uint64_t

from fastshard._core.dataset.records cimport FieldShard
from fastshard._core.dataset.shard cimport GroupedSamples, Shard
from fastshard._core.io.source cimport MappedFile, Source
from fastshard._core.table.grouping cimport Grouping


cdef class PackedTable:
    cdef Grouping grouping
    cdef Shard tar
    cdef Py_ssize_t *payloads      # by sample: 1 + its member; 0: not looked up
    cdef readonly Py_ssize_t count  # of samples
    cdef list names                # of fields, by slot
    cdef list encoded              # the same in UTF-8
    cdef dict slots                # by name
    cdef Py_ssize_t payload(self, Py_ssize_t i) except -1
    cdef Py_ssize_t look_up(self, Py_ssize_t i) except -1
    cdef Py_ssize_t slot_of(self, str name) except -2


cdef class PackedShard(FieldShard):
    cdef readonly Shard tar        # names, extents and headers of the members
    cdef PackedTable packed
    cdef int find_payload(
        self, Source source, Py_ssize_t i, uint64_t *offset, uint64_t *size
    ) except -1
    cdef object hold_payload(
        self, Source source, Py_ssize_t i, uint64_t offset, uint64_t size,
        uint64_t head, const uint8_t **at,
    )
    cdef int check_payload(self, Source source, Py_ssize_t i) except -1
    cdef object fault(self, object error, Py_ssize_t i, uint64_t offset)
    cdef object name_of_field(self, Py_ssize_t i, object field)


cdef bint is_writable(object owner)


cdef class PackedSamples(GroupedSamples):
    cdef PackedShard held
    cdef PackedTable packed
    cdef MappedFile resident_payload(
        self, Py_ssize_t i, uint64_t *offset, uint64_t *size
    )
    cdef dict decode(self, Py_ssize_t i, tuple fields)
    cdef object pin_payload(self, Py_ssize_t i, uint8_t **at, uint64_t *size)
    cdef bint is_read_by_field(self, Py_ssize_t i) except -1
    cdef object annotate(self, object error, Py_ssize_t i)
