from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from fastshard._core.columnar.column_file cimport ColumnFile
from fastshard._core.dataset.npy cimport Layout
from fastshard._core.dataset.shard cimport Shard
from fastshard._core.table.extents cimport ExtentTable

cdef enum:                         # slots of rows without an array of the field
    ABSENT = -1
    INVALID = -2                   # the index has an invalid offset or shard

cdef uint64_t UNKNOWN              # the size of a member whose header was not read


cdef struct mapping_t:             # a shard
    const uint8_t *base            # NULL: not used yet, or not mapped
    uint64_t nbytes
    bint is_exact                  # as `ColumnFile.is_exact`


cdef struct mark_t:                # a row
    int32_t slot                   # of its shard, or ABSENT or INVALID
    uint32_t layout                # tag of its checked layout; 0: not checked


cdef str decode_key(ExtentTable names, Py_ssize_t i)


cdef class ShardMappings:
    cdef mapping_t *at             # by slot
    cdef size_t count
    cdef list sources              # of the mapped shards; keeps them mapped
    cdef uint64_t resident_until   # ns: all shards used so far were resident


cdef class Cells:
    cdef ExtentTable names
    cdef uint64_t *offsets
    cdef uint64_t *sizes
    cdef mark_t *marks
    cdef size_t count
    cdef size_t capacity
    cdef int add(self, uint64_t offset, int32_t slot) except -1
    cdef int finish(self, ExtentTable names) except -1


cdef class Rows:
    cdef readonly str field
    cdef str path                  # of the index
    cdef readonly list numbers     # of the shards, by slot
    cdef dict slots                # by number; None until a file is forgotten
    cdef list shards               # ColumnShard or None, by slot
    cdef list identities           # at the first open: (identity, is_exact) or None
    cdef object open_file
    cdef public object unpickle    # returns an array of objects; None: objects raise
    cdef public object layout      # of the last batch, as `read_row_layout`; or None
    cdef Cells cells
    cdef ExtentTable table
    cdef ShardMappings mappings    # of the shards used by batches, or None
    cdef int tags                  # number of tags given
    cdef Layout common             # a layout that many rows have, or None
    cdef uint32_t common_tag
    cdef object __weakref__
    cdef int add(self, object offset, object shard, dict slots) except -1
    cdef int32_t slot_of(self, object shard, dict slots) except? -1
    cdef int take_columns(
        self, uint64_t **offsets, const int64_t *shards, ExtentTable names
    ) except -1
    cdef int finish(self, ExtentTable names) except -1
    cdef object open(self, int32_t slot)
    cdef bint has(self, Py_ssize_t i) except -1
    cdef ColumnShard shard_of(self, Py_ssize_t i)
    cdef uint32_t find_tag(self, Layout layout) except? 0
    cdef bint has_common_layout(self, Py_ssize_t i) noexcept
    cdef object array(self, Py_ssize_t i)
    cdef void prefetch(self, Py_ssize_t i, int stage) noexcept


cdef class ColumnShard(Shard):
    cdef readonly ColumnFile file
    cdef Cells cells
