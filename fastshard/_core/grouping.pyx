"""Members grouped into samples by key, by name and position."""

cimport cython
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from fastshard._core.extents cimport ExtentTable, is_doubtful, text_from, text_to
from fastshard._core.groups cimport *
from fastshard._core.hashing cimport (
    MAX_ENTRIES, slot_entry, slots_find, slots_free,
)
from fastshard._core.platform cimport fs_is_set, fs_load32, fs_set
from fastshard._core.span cimport span_t

from fastshard.errors import FormatError


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
        cdef slots_t by_key
        cdef int status
        if fs_is_set(&self.grouped):
            return &self.groups
        if self.table.columns.count >= MAX_ENTRIES:
            raise MemoryError("too many members to group into samples")
        memset(&groups, 0, sizeof(groups))
        memset(&by_key, 0, sizeof(by_key))
        groups.columns = &self.table.columns
        groups.last_dot = self.last_dot
        self.table.check_names()
        with nogil:
            status = build_groups(&groups, &by_key, self.lower)
        if status == 0:
            with cython.critical_section(self):
                if not fs_is_set(&self.grouped):
                    self.groups = groups
                    self.by_key = by_key
                    if by_key.slots != NULL:
                        fs_set(&self.hashed)
                    fs_set(&self.grouped)
                    return &self.groups
        free_groups(&groups)       # another thread was faster
        slots_free(&by_key)
        if status != 0:
            raise MemoryError
        return &self.groups

    cdef hash_keys(self):
        """Make `by_key` for samples that an index lists."""
        cdef groups_t *groups = self.built()
        cdef slots_t built
        cdef int status
        self.check_all()
        with nogil:
            status = build_by_key(groups, &built)
        if status != 0:
            raise MemoryError
        with cython.critical_section(self):
            if not fs_is_set(&self.hashed):
                self.by_key = built
                fs_set(&self.hashed)
                return
        slots_free(&built)         # another thread was faster

    cdef int check_all(self) except -1:
        """Complain of damage in what an index lists of samples, and in names."""
        cdef groups_t *groups = self.built()
        if not is_doubtful(self.table):
            return 0
        self.table.check_names()
        if self.keeper is not None:
            self.table.check(groups.starts, 4 * (<uint64_t> groups.count + 1))
            self.table.check(groups.members, 4 * <uint64_t> groups.grouped)
        return 0

    cdef groups_t *sound(self, Py_ssize_t sample) except NULL:
        """The groups, in which all that an index says of a sample is checked."""
        cdef groups_t *groups = self.built()
        cdef uint32_t start, end, i
        if self.keeper is None or not is_doubtful(self.table):
            return groups
        self.table.check(groups.starts + sample, 2 * sizeof(uint32_t))
        places_of(groups, <uint32_t> sample, &start, &end)
        self.table.check(groups.members + start, (end - start) * sizeof(uint32_t))
        for i in range(start, end):
            self.table.check_name(member_at(groups, i))
        return groups

    cdef int check(self, Py_ssize_t sample) except -1:
        """Complain of a sample that an index lists and that cannot be."""
        cdef groups_t *groups = self.sound(sample)
        cdef uint32_t start, end, i
        if self.keeper is None:
            return 0
        places_of(groups, <uint32_t> sample, &start, &end)
        for i in range(start, end):
            if fs_load32(groups.members + i) >= groups.columns.count:
                end = start
                break
        if start == end:
            raise FormatError(
                f"sample {sample:,} is listed with members that do not exist",
                self.keeper.path, 0,
            )
        return 0

    cdef Py_ssize_t count(self) except -1:
        return self.built().count

    def field_counts(self):
        """Return how many members hold each field, in order of appearance."""
        cdef groups_t *groups = self.built()
        cdef uint32_t i
        self.check_all()
        counts = {}
        for i in range(groups.grouped):
            field = self.field(member_at(groups, i))
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

    @property
    def may_repeat(self):
        """Whether a sample may have a field twice; an index may say that none has."""
        return not self.groups.unique

    def having(self, tuple fields not None):
        """Return for each sample whether it has all these fields: 0 or 1 a byte."""
        cdef Py_ssize_t sample
        cdef Py_ssize_t count = self.count()
        found = bytearray(b"\1") * count
        for sample in range(count):
            for field in fields:
                if self.member(sample, field) < 0:
                    found[sample] = 0
                    break
        return found

    cdef str key(self, Py_ssize_t sample):
        return text_from(key_at(self.sound(sample), <uint32_t> sample))

    cdef Py_ssize_t find(self, object key) except -2:
        """Return the sample of this key, or -1; a ``./`` before it is no part of it."""
        cdef groups_t *groups = self.built()
        cdef span_t text
        cdef uint32_t filling = 0
        cdef uint32_t slot
        cdef object keeper = text_to(key, &text)
        if keeper is None:
            return -1
        if not fs_is_set(&self.hashed):
            self.hash_keys()
        text = plain_name(text)
        slot = slots_find(&self.by_key, text, key_at, groups, &filling)[0]
        return -1 if slot == 0 else <Py_ssize_t> slot_entry(&self.by_key, slot)

    cdef Py_ssize_t width(self, Py_ssize_t sample) except -1:
        """Return how many members a sample has."""
        cdef groups_t *groups = self.sound(sample)
        cdef uint32_t start, end
        places_of(groups, <uint32_t> sample, &start, &end)
        return end - start

    cdef list members(self, Py_ssize_t sample):
        """Return the positions of a sample's members, in the shard's order."""
        cdef groups_t *groups = self.sound(sample)
        cdef uint32_t start, end, i
        places_of(groups, <uint32_t> sample, &start, &end)
        return [member_at(groups, i) for i in range(start, end)]

    cdef str field(self, Py_ssize_t member):
        """Return the field of a member that belongs to a sample."""
        cdef groups_t *groups = self.built()
        cdef str field
        if is_doubtful(self.table):
            self.table.check_name(member)
        field = text_from(field_at(groups, <uint32_t> member))
        return field.lower() if self.lower else field

    cdef Py_ssize_t member(self, Py_ssize_t sample, object field) except -2:
        """Return the position of the member that holds a field, or -1."""
        cdef groups_t *groups = self.sound(sample)
        cdef uint32_t start, end, member, i
        cdef span_t text, own
        cdef bint matches
        cdef object keeper = text_to(field, &text)
        if keeper is None:
            return -1
        places_of(groups, <uint32_t> sample, &start, &end)
        for i in range(start, end):
            member = member_at(groups, i)
            own = field_at(groups, member)
            if self.lower and not is_ascii(own):  # Python knows how to lower those
                matches = text_from(own).lower() == field
            else:
                matches = is_field(own, text, self.lower)
            if matches:
                return member
        return -1

    cdef Py_ssize_t repeated(self, Py_ssize_t sample) except -2:
        """Return the first member whose field an earlier one has too, or -1."""
        cdef groups_t *groups = self.sound(sample)
        if groups.unique:
            return -1
        if groups.doubtful != NULL:
            if not groups.doubtful[sample]:
                return -1
        elif not may_repeat(groups, <uint32_t> sample, self.lower):
            return -1
        seen = set()
        for member in self.members(sample):
            field = self.field(member)
            if field in seen:
                return member
            seen.add(field)
        return -1

    def __dealloc__(self):
        slots_free(&self.by_key)
        if self.keeper is None:
            free_groups(&self.groups)
