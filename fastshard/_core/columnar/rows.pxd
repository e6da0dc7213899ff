from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from fastshard._core.columnar.column_file cimport ColumnFile, Pack
from fastshard._core.dataset.npy cimport Layout
from fastshard._core.dataset.shard cimport Shard
from fastshard._core.span cimport span_t
from fastshard._core.table.extents cimport ExtentTable

cdef enum:                         # slots of rows whose array is not a member
    ABSENT = -1
    INVALID = -2                   # the index has an invalid offset, shard or row
    FOREIGN = -3                   # the identity of its row in a pack is another's
    PACKED = -4                    # in the first pack; in pack k: PACKED - k

cdef uint64_t UNKNOWN              # the size of a member whose header was not read


cdef struct mapping_t:             # a shard
    const uint8_t *base            # NULL: not used yet, or not mapped
    uint64_t nbytes
    uint64_t resident_until        # ns: it was resident, and is not asked again before
    bint is_exact                  # as `ColumnFile.is_exact`
    uint32_t missing_in            # the last batch that found it not resident


cdef struct pack_t:                # a pack
    const uint8_t *base            # of its rows
    uint32_t rows                  # at most MAX_ROW; 0: not used yet, or not mapped
    uint32_t tag                   # of the layout of its rows; 0: none
    uint64_t resident_until        # ns, as that of its shard
    uint32_t missing_in            # as that of its shard


cdef struct pack_place_t:          # as the index has it
    uint64_t offset
    int32_t slot                   # of the shard


cdef struct mark_t:                # a row
    int32_t slot                   # of its shard, or one of the above
    uint32_t layout                # tag of its checked layout; 0: not checked
                                   # if packed, its row in the pack; at most MAX_ROW


cdef enum:
    MAX_ROW = 0x7fffffff


cdef str decode_key(ExtentTable names, Py_ssize_t i)


cdef class ShardMappings:
    cdef mapping_t *at             # by slot
    cdef pack_t *packs
    cdef size_t count
    cdef list sources              # of the mapped shards; keeps them mapped
    cdef uint64_t touch_limit      # bytes to touch between releases; 0: no limit
    cdef uint32_t batches          # so far; numbers wrap around


cdef class Cells:
    cdef ExtentTable names
    cdef uint64_t *offsets         # of a packed row: of its pack
    cdef uint64_t *sizes           # of a packed row: its row in the pack
    cdef mark_t *marks
    cdef pack_place_t *packs
    cdef size_t count
    cdef size_t capacity
    cdef size_t pack_count
    cdef size_t pack_capacity
    cdef int add(self, uint64_t offset, int32_t slot, int64_t row) except -1
    cdef int32_t add_pack(self, int32_t slot, uint64_t offset) except? -1
    cdef int finish(self, ExtentTable names) except -1


cdef class Rows:
    cdef readonly str field
    cdef int64_t field_sum         # of the field's name; -1: rows have no identities
    cdef str path                  # of the index
    cdef readonly list numbers     # of the shards, by slot
    cdef dict slots                # by number; None until a file is forgotten
    cdef list files                # ColumnFile or None, by slot
    cdef list shards               # ColumnShard or None, by slot: those that are mapped
    cdef list packs                # PackShard or None
    cdef list identities           # at the first open: (identity, is_exact) or None
    cdef object open_file
    cdef public object unpickle    # returns an array of objects; None: objects raise
    cdef public object layout      # of the last batch, as `read_row_layout`; or None
    cdef Cells cells
    cdef ExtentTable table
    cdef ShardMappings mappings    # of the shards used by batches, or None
    cdef dict tags                 # by the header of a layout
    cdef Layout common             # a layout that many rows have, or None
    cdef uint32_t common_tag
    cdef object __weakref__
    cdef int add(
        self, span_t key, object offset, object shard, object row, dict slots,
        dict packs,
    ) except -1
    cdef int32_t slot_of(self, object shard, dict slots) except? -1
    cdef int32_t pack_of(self, int32_t slot, uint64_t offset, dict packs) except? -1
    cdef int take_columns(
        self, uint64_t **offsets, const int64_t *shards, uint64_t **rows,
        ExtentTable names
    ) except -1
    cdef int finish(self, ExtentTable names) except -1
    cdef ColumnFile file_of(self, int32_t slot)
    cdef object open(self, int32_t slot)
    cdef object unmapped_array(self, Py_ssize_t i)
    cdef bint has(self, Py_ssize_t i) except -1
    cdef Shard shard_of(self, Py_ssize_t i)
    cdef ColumnShard member_shard(self, Py_ssize_t i)
    cdef PackShard pack_shard(self, Py_ssize_t i)
    cdef PackShard open_pack(self, int32_t slot, Py_ssize_t i)
    cdef uint32_t find_tag(self, Layout layout) except? 0
    cdef bint reads_header(self, Py_ssize_t i) noexcept
    cdef object place_error(self, Py_ssize_t i)
    cdef bint has_common_layout(self, Py_ssize_t i) noexcept
    cdef object array(self, Py_ssize_t i)
    cdef object member_array(self, Py_ssize_t i)
    cdef int add_arrays(
        self, const int64_t *order, Py_ssize_t count, list found
    ) except -1
    cdef void prefetch(self, Py_ssize_t i, int stage) noexcept
    cdef void prefetch_packed(self, Py_ssize_t i, object shard) noexcept


cdef class ColumnShard(Shard):
    cdef readonly ColumnFile file
    cdef Cells cells


cdef class PackShard(Shard):
    cdef readonly ColumnFile file
    cdef Cells cells
    cdef Pack pack
    cdef str field
    cdef int32_t slot              # in the marks of its rows
    cdef uint64_t row_of(self, Py_ssize_t i) except? 0
    cdef object row_array(self, Py_ssize_t i)
    cdef Py_ssize_t add_run(
        self, const int64_t *order, Py_ssize_t k, Py_ssize_t end, list found
    ) except -1
