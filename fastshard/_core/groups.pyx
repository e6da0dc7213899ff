"""Which members make which sample, found in C and held as columns.

A key ends at the first dot (or the last) of a name's last part, the field is
what follows it. A leading ``./`` is part of neither. Names without a dot there, names whose last part begins with
one, and names below ``__x__`` belong to no sample. The convention is
WebDataset's, but members of one sample need not be neighbours. The order of
samples is that of their first members.
"""

from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memchr, memcmp

from fastshard._core.extents cimport name_at
from fastshard._core.hashing cimport slot_entry, slots_find, slots_init
from fastshard._core.platform cimport fs_load32
from fastshard._core.span cimport span_of, span_t, take

cdef enum:
    NO_KEY = 0xffffffff
    NO_SAMPLE = 0xffffffff
    MANY_FIELDS = 64               # compared pair by pair up to here


cdef const uint8_t *last_byte(span_t text, uint8_t byte) noexcept nogil:
    cdef size_t i = text.left
    while i > 0:
        i -= 1
        if text.at[i] == byte:
            return text.at + i
    return NULL


cdef bint is_meta(span_t name) noexcept nogil:
    """Whether the first part of a name is of the form ``__x__``."""
    cdef const uint8_t *slash = NULL
    cdef size_t size = name.left
    if size < 4 or name.at[0] != c'_' or name.at[1] != c'_':
        return False
    slash = <const uint8_t *> memchr(name.at, c'/', size)
    if slash != NULL:
        size = slash - name.at
    return size >= 4 and name.at[size - 1] == c'_' and name.at[size - 2] == c'_'


cdef uint32_t key_end_of(span_t name, bint last_dot) noexcept nogil:
    """Where the key of a name ends, in bytes from the name's start; or NO_KEY."""
    cdef span_t part = plain_name(name)  # the last part of the name
    cdef const uint8_t *slash = last_byte(part, c'/')
    cdef const uint8_t *dot
    if slash != NULL:
        take(&part, slash - part.at + 1)
    if part.left == 0 or part.at[0] == c'.':
        return NO_KEY
    if last_dot:
        dot = last_byte(part, c'.')
    else:
        dot = <const uint8_t *> memchr(part.at, c'.', part.left)
    return NO_KEY if dot == NULL else <uint32_t> (dot - name.at)


cdef uint32_t key_end_at(
    const groups_t *groups, uint32_t member, span_t name
) noexcept nogil:
    if groups.key_ends != NULL:
        return groups.key_ends[member]
    return key_end_of(name, groups.last_dot)  # that it has a key, the index says


cdef span_t member_key(const groups_t *groups, uint32_t member) noexcept nogil:
    """The key of a member that has one; never more than its name is now."""
    cdef span_t name = name_at(groups.columns, member)
    cdef uint32_t end = key_end_at(groups, member, name)
    return plain_name(span_of(name.at, min(<size_t> end, name.left)))


cdef span_t key_at(const void *context, uint32_t sample) noexcept nogil:
    """The key of a sample: its first member's."""
    cdef const groups_t *groups = <const groups_t *> context
    cdef uint32_t start, end
    places_of(groups, sample, &start, &end)
    if start == end:
        return span_of(groups.columns.names, 0)
    return member_key(groups, member_at(groups, start))


# While samples are found, `starts` holds the first member of each.
cdef span_t first_key_at(const void *context, uint32_t sample) noexcept nogil:
    cdef const groups_t *groups = <const groups_t *> context
    return member_key(groups, groups.starts[sample])


cdef span_t field_at(const groups_t *groups, uint32_t member) noexcept nogil:
    cdef span_t name = name_at(groups.columns, member)
    take(&name, <size_t> key_end_at(groups, member, name) + 1)
    return name


cdef bint continues(const groups_t *groups, size_t i) noexcept nogil:
    """Whether a member has the key of the one before it."""
    cdef span_t key, other
    if i == 0 or groups.key_ends[i - 1] != groups.key_ends[i]:
        return False
    key = member_key(groups, <uint32_t> i)
    other = member_key(groups, <uint32_t> i - 1)
    return key.left == other.left and memcmp(key.at, other.at, key.left) == 0


cdef size_t measure_keys(groups_t *groups, bint last_dot) noexcept nogil:
    """Fill `key_ends`; return the number of runs of neighbours with one key."""
    cdef size_t runs = 0
    cdef size_t i
    cdef span_t name
    cdef size_t count = groups.columns.count
    for i in range(count):
        name = name_at(groups.columns, <uint32_t> i)
        groups.key_ends[i] = NO_KEY
        if not is_meta(plain_name(name)):
            groups.key_ends[i] = key_end_of(name, last_dot)
        if groups.key_ends[i] != NO_KEY and not continues(groups, i):
            runs += 1
    return runs


cdef uint32_t find_samples(
    groups_t *groups, slots_t *by_key, uint32_t *sample_of, size_t most
) noexcept nogil:
    """Number the samples in `sample_of`; `starts` gets their first members.

    There are at most `most`, unless somebody changes the names meanwhile.
    """
    cdef uint32_t count = 0
    cdef uint32_t filling = 0
    cdef uint32_t *slot
    cdef size_t i
    for i in range(groups.columns.count):
        sample_of[i] = NO_SAMPLE
        if groups.key_ends[i] == NO_KEY:
            continue
        if continues(groups, i):
            sample_of[i] = sample_of[i - 1]
            continue
        slot = slots_find(
            by_key, member_key(groups, <uint32_t> i), first_key_at, groups, &filling
        )
        if slot[0] == 0:
            if count == most:
                continue
            groups.starts[count] = <uint32_t> i
            count += 1
            slot[0] = filling | count
        sample_of[i] = slot_entry(by_key, slot[0])
    return count


cdef void gather_members(groups_t *groups, const uint32_t *sample_of) noexcept nogil:
    """Turn `starts` into places in `members`, and fill it, in order."""
    cdef size_t i
    cdef uint32_t place = 0
    cdef uint32_t size
    cdef uint32_t *starts = groups.starts
    for i in range(<size_t> groups.count + 1):
        starts[i] = 0
    for i in range(groups.columns.count):
        if sample_of[i] != NO_SAMPLE:
            starts[sample_of[i]] += 1
    for i in range(<size_t> groups.count + 1):
        size = starts[i]
        starts[i] = place
        place += size
    for i in range(groups.columns.count):
        if sample_of[i] != NO_SAMPLE:
            groups.members[starts[sample_of[i]]] = <uint32_t> i
            starts[sample_of[i]] += 1
    for i in range(groups.count, 0, -1):  # each start stands at its end: step back
        starts[i] = starts[i - 1]
    starts[0] = 0


cdef inline uint8_t lowered(uint8_t byte) noexcept nogil:
    return byte + 32 if c'A' <= byte <= c'Z' else byte


cdef bint same_text(span_t a, span_t b, bint lower) noexcept nogil:
    cdef size_t i
    if a.left != b.left:
        return False
    if not lower:
        return memcmp(a.at, b.at, a.left) == 0
    for i in range(a.left):
        if lowered(a.at[i]) != lowered(b.at[i]):
            return False
    return True


cdef bint is_field(span_t own, span_t asked, bint lower) noexcept nogil:
    """Whether a member's field, lowered where that is the rule, is `asked`."""
    cdef size_t i
    if own.left != asked.left:
        return False
    for i in range(own.left):
        if (lowered(own.at[i]) if lower else own.at[i]) != asked.at[i]:
            return False
    return True


cdef bint is_ascii(span_t text) noexcept nogil:
    cdef size_t i
    cdef uint8_t bits = 0
    for i in range(text.left):
        bits |= text.at[i]
    return bits < 0x80


cdef bint may_repeat(const groups_t *groups, uint32_t sample, bint lower) noexcept nogil:
    """Whether a field may come twice: yes if it does, maybe where it is costly.

    Lowering what is not ASCII takes Python, so such fields count as doubtful.
    """
    cdef uint32_t start, end, i, k
    cdef span_t field
    places_of(groups, sample, &start, &end)
    if end - start > MANY_FIELDS:
        return True
    for i in range(start, end):
        field = field_at(groups, member_at(groups, i))
        if lower and not is_ascii(field):
            return True
        for k in range(start, i):
            if same_text(field, field_at(groups, member_at(groups, k)), lower):
                return True
    return False


cdef void free_groups(groups_t *groups) noexcept nogil:
    free(groups.key_ends)
    free(groups.starts)
    free(groups.members)
    free(groups.doubtful)


cdef int build_groups(groups_t *groups, slots_t *by_key, bint lower) noexcept nogil:
    """Fill `groups`, whose `columns` and rule are set. -1: no memory."""
    cdef size_t count = groups.columns.count
    cdef size_t runs
    cdef uint32_t *sample_of = <uint32_t *> malloc((count + 1) * sizeof(uint32_t))
    groups.key_ends = <uint32_t *> malloc((count + 1) * sizeof(uint32_t))
    groups.members = <uint32_t *> malloc((count + 1) * sizeof(uint32_t))
    if sample_of == NULL or groups.key_ends == NULL or groups.members == NULL:
        free(sample_of)
        return -1
    runs = measure_keys(groups, groups.last_dot)
    groups.starts = <uint32_t *> malloc((runs + 1) * sizeof(uint32_t))
    groups.doubtful = <uint8_t *> calloc(runs + 1, 1)
    if (
        groups.starts == NULL or groups.doubtful == NULL
        or not slots_init(by_key, runs)
    ):
        free(sample_of)
        return -1
    groups.count = find_samples(groups, by_key, sample_of, runs)
    gather_members(groups, sample_of)
    groups.grouped = groups.starts[groups.count]
    free(sample_of)
    for i in range(groups.count):
        groups.doubtful[i] = may_repeat(groups, i, lower)
    return 0


cdef int build_by_key(const groups_t *groups, slots_t *by_key) noexcept nogil:
    """Hash every sample's key; of equal ones the first stays. -1: no memory."""
    cdef uint32_t filling = 0
    cdef uint32_t *slot
    cdef uint32_t i
    if not slots_init(by_key, groups.count):
        return -1
    for i in range(groups.count):
        slot = slots_find(by_key, key_at(groups, i), key_at, groups, &filling)
        if slot[0] == 0:
            slot[0] = filling | (i + 1)
    return 0
