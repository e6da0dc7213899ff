from libc.stdint cimport uint8_t, uint32_t

from fastshard._core.platform cimport fs_load32
from fastshard._core.table.extents cimport ExtentTable, columns_t, slots_t


# `starts` and `members` may be borrowed from an index. They may then hold any number
# and change at any time, so that each is loaded once and checked. `key_ends` and
# `repeat_flags` are NULL then, and are computed when needed.
cdef struct groups_t:
    const columns_t *columns
    bint last_dot                  # keys end at the last dot, not the first
    bint unique                    # no sample has a field twice
    uint32_t *key_ends             # of each member: end of key in its name, or NO_KEY
    uint8_t *repeat_flags          # of each sample: 1 if a field may come twice
    uint32_t *starts               # of each sample: index of its first in `members`
    uint32_t *members              # positions of members, sample after sample
    uint32_t grouped               # length of `members`
    uint32_t count                 # samples


cdef inline void members_range(
    const groups_t *groups, uint32_t sample, uint32_t *start, uint32_t *end
) noexcept nogil:
    """Set the range of a sample in `members`; empty if the index is damaged."""
    start[0] = fs_load32(groups.starts + sample)
    end[0] = fs_load32(groups.starts + sample + 1)
    if end[0] > groups.grouped or start[0] > end[0]:
        start[0] = end[0] = 0


cdef class Grouping:
    cdef ExtentTable table         # owns the names
    cdef groups_t groups           # built on first use
    cdef int grouped               # flag: `groups` is built
    cdef slots_t by_key            # key -> sample, built on the first look-up
    cdef int hashed                # flag: `by_key` is built
    cdef object keeper             # owner of borrowed columns; None: this owns them
    cdef readonly bint last_dot
    cdef readonly bint lower
    cdef groups_t *get_groups(self) except NULL
    cdef build_hash(self)
    cdef int check_all(self) except -1
    cdef groups_t *check_index(self, Py_ssize_t sample) except NULL
    cdef int check(self, Py_ssize_t sample) except -1
    cdef Py_ssize_t count(self) except -1
    cdef str key(self, Py_ssize_t sample)
    cdef Py_ssize_t find(self, object key) except -2
    cdef Py_ssize_t width(self, Py_ssize_t sample) except -1
    cdef list members(self, Py_ssize_t sample)
    cdef str field(self, Py_ssize_t member)
    cdef Py_ssize_t member(self, Py_ssize_t sample, object field) except -2
    cdef Py_ssize_t find_repeat(self, Py_ssize_t sample) except -2
