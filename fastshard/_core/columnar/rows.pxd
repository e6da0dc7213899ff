from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from fastshard._core.table.extents cimport ExtentTable
from fastshard._core.io.source cimport View
from fastshard._core.dataset.npy cimport Layout, LayoutCache
from fastshard._core.dataset.shard cimport Shard
from fastshard._core.io.source cimport MappedSource, Source
from fastshard._core.span cimport span_t

cdef enum:
    BLOCK = 512                    # bytes of a tar's header

cdef enum:                         # slots of rows that have no array of a field
    ABSENT = -1
    BROKEN = -2                    # what the index has of it is no extent

cdef uint64_t UNKNOWN              # the size of a member whose header was not read


cdef struct place_t:               # a shard
    const uint8_t *base            # NULL: not seen, or not mapped
    uint64_t nbytes
    bint believed


cdef struct mark_t:                # of a row
    int32_t slot                   # of its shard; or ABSENT or BROKEN
    uint32_t layout                # which of the column's it surely has; 0: not seen


cdef bint is_plain(const uint8_t *block, span_t name, uint64_t *size) noexcept nogil


cdef class ColumnFile:
    cdef readonly Source source
    cdef readonly str path
    cdef readonly object number
    cdef readonly bint believed    # offsets are true where there is such a member
    cdef object scan               # makes the table of what a walk over it finds
    cdef ExtentTable scanned       # that table, once it was needed
    cdef object fault              # why the walk ended before the archive; or None
    cdef uint64_t likely           # bytes of the member that was found last
    cdef LayoutCache seen
    cdef readonly tuple identity
    cdef object scanning           # a lock
    cdef list holders              # who remembers it, weakly
    cdef Py_ssize_t most_holders
    cdef int find(
        self, uint64_t offset, span_t name, uint64_t *found, uint64_t *size
    ) except -1
    cdef bint check(
        self, uint64_t offset, span_t name, uint64_t *size
    ) except -1
    cdef object held(
        self, Source source, uint64_t start, uint64_t end, const uint8_t **window
    )
    cdef object array(self, uint64_t offset, str member)
    cdef View window(
        self, MappedSource source, uint64_t offset, span_t name, uint64_t *size
    )
    cdef ExtentTable walked(self)
    cdef int held_by(self, object holder) except -1


cdef str key_of(ExtentTable names, Py_ssize_t i)


cdef class ShardMappings:
    cdef place_t *at               # by slot
    cdef size_t count
    cdef list sources              # of those that are mapped, held whoever closes them
    cdef uint64_t near_until       # ns: all that were seen are in memory


cdef class Cells:
    cdef ExtentTable names
    cdef uint64_t *offsets
    cdef uint64_t *sizes
    cdef mark_t *marks
    cdef size_t count
    cdef size_t room
    cdef int add(self, uint64_t offset, int32_t slot) except -1
    cdef int finish(self, ExtentTable names) except -1


cdef class Rows:
    cdef readonly str field
    cdef str path                  # of the index
    cdef readonly list numbers     # of shards, by slot
    cdef dict by_number            # their slots; None until one is let go
    cdef list shards               # those that are open, by slot; or None
    cdef list firsts               # what each was when it was opened first, or None
    cdef object bring
    cdef public object unpickle    # makes arrays of objects; None: they are refused
    cdef public object layout      # of the arrays that were stacked last, or None
    cdef Cells cells
    cdef ExtentTable table
    cdef ShardMappings places             # of the shards that were seen; None: of none
    cdef int tags                  # that layouts have
    cdef Layout kept               # one that many rows have; None: none was seen yet
    cdef uint32_t kept_tag         # its own
    cdef object __weakref__
    cdef int add(self, object offset, object shard, dict slots) except -1
    cdef int32_t slot_of(self, object shard, dict slots) except? -1
    cdef int adopt(
        self, uint64_t **offsets, const int64_t *shards, ExtentTable names
    ) except -1
    cdef int finish(self, ExtentTable names) except -1
    cdef object open(self, int32_t slot)
    cdef bint has(self, Py_ssize_t i) except -1
    cdef ColumnShard shard_of(self, Py_ssize_t i)
    cdef uint32_t tag_of(self, Layout layout) except? 0
    cdef bint is_kept(self, Py_ssize_t i) noexcept
    cdef object array(self, Py_ssize_t i)
    cdef void prefetch(self, Py_ssize_t i, int stage) noexcept


cdef class ColumnShard(Shard):
    cdef readonly ColumnFile file
    cdef Cells cells
