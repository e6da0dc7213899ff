from libc.stdint cimport uint8_t, uint32_t

from fastshard._core.extents cimport columns_t
from fastshard._core.hashing cimport slots_t
from fastshard._core.platform cimport fs_load32
from fastshard._core.span cimport span_t, take


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

cdef int build_groups(groups_t *groups, slots_t *by_key, bint lower) noexcept nogil
cdef int build_by_key(const groups_t *groups, slots_t *by_key) noexcept nogil
cdef void free_groups(groups_t *groups) noexcept nogil
cdef span_t key_at(const void *context, uint32_t sample) noexcept nogil
cdef span_t field_at(const groups_t *groups, uint32_t member) noexcept nogil
cdef bint may_repeat(const groups_t *groups, uint32_t sample, bint lower) noexcept nogil
cdef bint is_field(span_t own, span_t asked, bint lower) noexcept nogil
cdef bint is_ascii(span_t text) noexcept nogil


cdef inline void places_of(
    const groups_t *groups, uint32_t sample, uint32_t *start, uint32_t *end
) noexcept nogil:
    """Where a sample's members stand in `members`; nowhere, if that is absurd."""
    start[0] = fs_load32(groups.starts + sample)
    end[0] = fs_load32(groups.starts + sample + 1)
    if end[0] > groups.grouped or start[0] > end[0]:
        start[0] = end[0] = 0


cdef inline span_t plain_name(span_t name) noexcept nogil:
    """A name without the ``./`` that ``tar -C folder .`` puts before each."""
    while name.left >= 2 and name.at[0] == c'.' and name.at[1] == c'/':
        take(&name, 2)
        while name.left > 0 and name.at[0] == c'/':
            take(&name, 1)
    return name


cdef inline uint32_t member_at(const groups_t *groups, uint32_t place) noexcept nogil:
    """A member's position; `Grouping.check` complains of one that is none."""
    cdef uint32_t member = fs_load32(groups.members + place)
    return member if member < groups.columns.count else 0
