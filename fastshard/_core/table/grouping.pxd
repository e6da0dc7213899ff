from libc.stdint cimport uint8_t, uint32_t

from fastshard._core.platform cimport fs_load32
from fastshard._core.table.extents cimport ExtentTable, columns_t, slots_t


# An index may hold `starts` and `members`. Then they are borrowed, may say
# anything, and may change: each number is loaded once and checked. There are no
# `key_ends` and `doubtful` then; they are found out when they are asked for.
cdef struct groups_t:
    const columns_t *columns
    bint last_dot                  # the rule for keys
    bint unique                    # no sample has a field twice
    uint32_t *key_ends             # of each member: where its key ends, or NO_KEY
    uint8_t *doubtful              # of each sample: 1 if its fields may repeat
    uint32_t *starts               # of each sample: its first place in `members`
    uint32_t *members              # positions, sample after sample
    uint32_t grouped               # how many places `members` has
    uint32_t count                 # samples


cdef inline void members_range(
    const groups_t *groups, uint32_t sample, uint32_t *start, uint32_t *end
) noexcept nogil:
    """Where a sample's members stand in `members`; nowhere, if that is absurd."""
    start[0] = fs_load32(groups.starts + sample)
    end[0] = fs_load32(groups.starts + sample + 1)
    if end[0] > groups.grouped or start[0] > end[0]:
        start[0] = end[0] = 0


cdef class Grouping:
    cdef ExtentTable table         # owns the names
    cdef groups_t groups           # built on first use
    cdef int grouped               # it is built
    cdef slots_t by_key            # key -> sample, built on the first look-up
    cdef int hashed                # it is built
    cdef object keeper             # owns `starts` and `members` where not this
    cdef readonly bint last_dot
    cdef readonly bint lower
    cdef groups_t *built(self) except NULL
    cdef hash_keys(self)
    cdef int check_all(self) except -1
    cdef groups_t *sound(self, Py_ssize_t sample) except NULL
    cdef int check(self, Py_ssize_t sample) except -1
    cdef Py_ssize_t count(self) except -1
    cdef str key(self, Py_ssize_t sample)
    cdef Py_ssize_t find(self, object key) except -2
    cdef Py_ssize_t width(self, Py_ssize_t sample) except -1
    cdef list members(self, Py_ssize_t sample)
    cdef str field(self, Py_ssize_t member)
    cdef Py_ssize_t member(self, Py_ssize_t sample, object field) except -2
    cdef Py_ssize_t repeated(self, Py_ssize_t sample) except -2
