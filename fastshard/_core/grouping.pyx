"""Members grouped into samples by key.

A key ends at the first dot (or the last) of a name's last part, the field is
what follows it. Names without a dot there, names whose last part begins with
one, and names below ``__x__`` belong to no sample. The convention is
WebDataset's, but members of one sample need not be neighbours. The order of
samples is that of their first members.
"""

cimport cython
from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memchr, memcmp, memset

from fastshard._core.extents cimport ExtentTable, name_at, text_from, text_to
from fastshard._core.hashing cimport (
    MAX_ENTRIES, slot_entry, slots_find, slots_free, slots_init,
)
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


cdef uint32_t key_size_of(span_t name, bint last_dot) noexcept nogil:
    cdef const uint8_t *slash = last_byte(name, c'/')
    cdef const uint8_t *dot
    cdef span_t part = name        # the last part of the name
    if is_meta(name):
        return NO_KEY
    if slash != NULL:
        take(&part, slash - name.at + 1)
    if part.left == 0 or part.at[0] == c'.':
        return NO_KEY
    if last_dot:
        dot = last_byte(part, c'.')
    else:
        dot = <const uint8_t *> memchr(part.at, c'.', part.left)
    return NO_KEY if dot == NULL else <uint32_t> (dot - name.at)


cdef span_t key_at(const void *context, uint32_t sample) noexcept nogil:
    """The key of a sample whose first member is known."""
    cdef const groups_t *groups = <const groups_t *> context
    cdef uint32_t first = groups.members[groups.starts[sample]]
    return span_of(name_at(groups.columns, first).at, groups.key_sizes[first])


# While samples are found, `starts` holds the first member of each.
cdef span_t first_key_at(const void *context, uint32_t sample) noexcept nogil:
    cdef const groups_t *groups = <const groups_t *> context
    cdef uint32_t first = groups.starts[sample]
    return span_of(name_at(groups.columns, first).at, groups.key_sizes[first])


cdef span_t field_at(const groups_t *groups, uint32_t member) noexcept nogil:
    cdef span_t name = name_at(groups.columns, member)
    take(&name, <size_t> groups.key_sizes[member] + 1)
    return name


cdef bint same_key(const groups_t *groups, size_t a, size_t b) noexcept nogil:
    cdef uint32_t size = groups.key_sizes[a]
    return size == groups.key_sizes[b] and memcmp(
        name_at(groups.columns, <uint32_t> a).at,
        name_at(groups.columns, <uint32_t> b).at, size,
    ) == 0


cdef size_t measure_keys(groups_t *groups, bint last_dot) noexcept nogil:
    """Fill `key_sizes`; return the number of runs of neighbours with one key."""
    cdef size_t runs = 0
    cdef size_t i
    cdef size_t count = groups.columns.count
    for i in range(count):
        groups.key_sizes[i] = key_size_of(
            name_at(groups.columns, <uint32_t> i), last_dot
        )
        if groups.key_sizes[i] != NO_KEY and not (
            i > 0 and same_key(groups, i, i - 1)
        ):
            runs += 1
    return runs


cdef uint32_t find_samples(groups_t *groups, uint32_t *sample_of) noexcept nogil:
    """Number the samples in `sample_of`; `starts` gets their first members."""
    cdef uint32_t count = 0
    cdef uint32_t filling = 0
    cdef uint32_t *slot
    cdef size_t i
    cdef span_t key
    for i in range(groups.columns.count):
        if groups.key_sizes[i] == NO_KEY:
            sample_of[i] = NO_SAMPLE
            continue
        if i > 0 and same_key(groups, i, i - 1):
            sample_of[i] = sample_of[i - 1]
            continue
        key = span_of(
            name_at(groups.columns, <uint32_t> i).at, groups.key_sizes[i]
        )
        slot = slots_find(&groups.by_key, key, first_key_at, groups, &filling)
        if slot[0] == 0:
            groups.starts[count] = <uint32_t> i
            count += 1
            slot[0] = filling | count
        sample_of[i] = slot_entry(&groups.by_key, slot[0])
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
    cdef uint32_t start = groups.starts[sample]
    cdef uint32_t end = groups.starts[sample + 1]
    cdef uint32_t i, k
    cdef span_t field
    if end - start > MANY_FIELDS:
        return True
    for i in range(start, end):
        field = field_at(groups, groups.members[i])
        if lower and not is_ascii(field):
            return True
        for k in range(start, i):
            if same_text(field, field_at(groups, groups.members[k]), lower):
                return True
    return False


cdef void free_groups(groups_t *groups) noexcept nogil:
    free(groups.key_sizes)
    free(groups.starts)
    free(groups.members)
    free(groups.doubtful)
    slots_free(&groups.by_key)


cdef int build_groups(groups_t *groups, bint last_dot, bint lower) noexcept nogil:
    """Fill `groups`, whose `columns` are set. -1: no memory."""
    cdef size_t count = groups.columns.count
    cdef size_t runs
    cdef uint32_t *sample_of = <uint32_t *> malloc((count + 1) * sizeof(uint32_t))
    groups.key_sizes = <uint32_t *> malloc((count + 1) * sizeof(uint32_t))
    groups.members = <uint32_t *> malloc((count + 1) * sizeof(uint32_t))
    if sample_of == NULL or groups.key_sizes == NULL or groups.members == NULL:
        free(sample_of)
        return -1
    runs = measure_keys(groups, last_dot)
    groups.starts = <uint32_t *> malloc((runs + 1) * sizeof(uint32_t))
    groups.doubtful = <uint8_t *> calloc(runs + 1, 1)
    if (
        groups.starts == NULL or groups.doubtful == NULL
        or not slots_init(&groups.by_key, runs)
    ):
        free(sample_of)
        return -1
    groups.count = find_samples(groups, sample_of)
    gather_members(groups, sample_of)
    free(sample_of)
    for i in range(groups.count):
        groups.doubtful[i] = may_repeat(groups, i, lower)
    return 0


@cython.final
@cython.no_gc
cdef class Grouping:
    """Which members make which sample; built on first use, without the GIL.

    Parameters
    ----------
    table : ExtentTable
    last_dot : bool
        Keys end at the last dot of a name's last part, not at the first.
    lower : bool
        Fields are lower-cased.
    """

    def __cinit__(self, ExtentTable table not None, bint last_dot, bint lower):
        self.table = table
        self.last_dot = last_dot
        self.lower = lower

    def __reduce__(self):
        raise TypeError("a Grouping does not pickle; pickle the shard")

    cdef groups_t *built(self) except NULL:
        cdef groups_t groups
        cdef int status
        if self.groups.columns != NULL:
            return &self.groups
        if self.table.columns.count >= MAX_ENTRIES:
            raise MemoryError("too many members to group into samples")
        memset(&groups, 0, sizeof(groups))
        groups.columns = &self.table.columns
        with nogil:
            status = build_groups(&groups, self.last_dot, self.lower)
        if status != 0 or self.groups.columns != NULL:  # another thread was faster
            free_groups(&groups)
        if status != 0:
            raise MemoryError
        if self.groups.columns == NULL:
            self.groups = groups
        return &self.groups

    cdef Py_ssize_t count(self) except -1:
        return self.built().count

    def field_counts(self):
        """Return how many members hold each field, in order of appearance."""
        cdef groups_t *groups = self.built()
        cdef uint32_t i
        counts = {}
        for i in range(groups.starts[groups.count]):
            field = self.field(groups.members[i])
            counts[field] = counts.get(field, 0) + 1
        return counts

    def repeats(self):
        """Return the positions of members whose sample has their field before."""
        cdef Py_ssize_t sample, member
        found = []
        for sample in range(self.count()):
            member = self.repeated(sample)
            if member >= 0:
                found.append(member)
        return found

    cdef str key(self, Py_ssize_t sample):
        return text_from(key_at(self.built(), <uint32_t> sample))

    cdef Py_ssize_t find(self, object key) except -2:
        """Return the sample of this key, or -1."""
        cdef groups_t *groups = self.built()
        cdef span_t text
        cdef uint32_t filling = 0
        cdef uint32_t slot
        cdef object keeper = text_to(key, &text)
        if keeper is None:
            return -1
        slot = slots_find(&groups.by_key, text, key_at, groups, &filling)[0]
        return -1 if slot == 0 else <Py_ssize_t> slot_entry(&groups.by_key, slot)

    cdef list members(self, Py_ssize_t sample):
        """Return the positions of a sample's members, in the shard's order."""
        cdef groups_t *groups = self.built()
        cdef uint32_t i
        return [
            groups.members[i]
            for i in range(groups.starts[sample], groups.starts[sample + 1])
        ]

    cdef str field(self, Py_ssize_t member):
        """Return the field of a member that belongs to a sample."""
        cdef str field = text_from(field_at(self.built(), <uint32_t> member))
        return field.lower() if self.lower else field

    cdef Py_ssize_t member(self, Py_ssize_t sample, object field) except -2:
        """Return the position of the member that holds a field, or -1."""
        cdef groups_t *groups = self.built()
        cdef uint32_t i
        cdef span_t text, own
        cdef bint matches
        cdef object keeper = text_to(field, &text)
        if keeper is None:
            return -1
        for i in range(groups.starts[sample], groups.starts[sample + 1]):
            own = field_at(groups, groups.members[i])
            if self.lower and not is_ascii(own):  # Python knows how to lower those
                matches = text_from(own).lower() == field
            else:
                matches = is_field(own, text, self.lower)
            if matches:
                return groups.members[i]
        return -1

    cdef Py_ssize_t repeated(self, Py_ssize_t sample) except -2:
        """Return the first member whose field an earlier one has too, or -1."""
        if not self.built().doubtful[sample]:
            return -1
        seen = set()
        for member in self.members(sample):
            field = self.field(member)
            if field in seen:
                return member
            seen.add(field)
        return -1

    def __dealloc__(self):
        free_groups(&self.groups)
