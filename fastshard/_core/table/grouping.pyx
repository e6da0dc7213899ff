"""Grouping of members into samples by key; tables and groupings on index memory.

A key ends at the first dot (or the last) of the last part of a name; the field follows
it. A leading ``./`` belongs to neither. Names without a dot there, names whose last
part begins with a dot, and names below ``__x__`` belong to no sample. The convention is
WebDataset's, but members of a sample need not be adjacent. Samples are in the order of
their first members.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo, PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memchr, memcmp, memcpy, memset

from fastshard._core.buffers cimport bytes_of
from fastshard._core.io.source cimport MappedFile
from fastshard._core.platform cimport fs_is_set, fs_load32, fs_set
from fastshard._core.span cimport lower_ascii, span_of, span_t, take
from fastshard._core.table.checksums cimport (
    SHIFT, blocks_check, blocks_free, blocks_new, block_matches, blocks_t, count_of,
)
from fastshard._core.table.extents cimport (
    MAX_ENTRIES, ExtentTable, columns_t, has_unchecked_blocks, hash_bytes, name_at,
    slot_entry, slots_find, slots_free, slots_init, slots_t,
)
from fastshard._core.table.names cimport decode_text, encode_text

from fastshard.errors import FormatError

cdef enum:
    NO_KEY = 0xffffffff
    NO_SAMPLE = 0xffffffff
    MAX_PAIRWISE = 64              # fields of a sample compared pair by pair

cdef uint64_t MAX_POSITION = 0xffffffff  # of a sample, in a key row


# Samples as columns.

cdef inline span_t plain_name(span_t name) noexcept nogil:
    """Strip the ``./`` that ``tar -C folder .`` puts before each name."""
    while name.left >= 2 and name.at[0] == c'.' and name.at[1] == c'/':
        take(&name, 2)
        while name.left > 0 and name.at[0] == c'/':
            take(&name, 1)
    return name


cdef inline uint32_t member_at(const groups_t *groups, uint32_t k) noexcept nogil:
    """Return entry `k` of `members`, or 0 if invalid: see `Grouping.check`."""
    cdef uint32_t member = fs_load32(groups.members + k)
    return member if member < groups.columns.count else 0


cdef const uint8_t *last_byte(span_t text, uint8_t byte) noexcept nogil:
    cdef size_t i = text.left
    while i > 0:
        i -= 1
        if text.at[i] == byte:
            return text.at + i
    return NULL


cdef bint is_meta(span_t name) noexcept nogil:
    """Return whether the first part of a name is of the form ``__x__``."""
    cdef const uint8_t *slash = NULL
    cdef size_t size = name.left
    if size < 4 or name.at[0] != c'_' or name.at[1] != c'_':
        return False
    slash = <const uint8_t *> memchr(name.at, c'/', size)
    if slash != NULL:
        size = slash - name.at
    return size >= 4 and name.at[size - 1] == c'_' and name.at[size - 2] == c'_'


cdef uint32_t key_end_of(span_t name, bint last_dot) noexcept nogil:
    """Return the end of the key in bytes from the start of the name, or NO_KEY."""
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
    """Return the end of the key of a member that has one."""
    if groups.key_ends != NULL:
        return groups.key_ends[member]
    return key_end_of(name, groups.last_dot)  # NO_KEY only in a damaged index


cdef span_t member_key(const groups_t *groups, uint32_t member) noexcept nogil:
    """Return the key of a member that has one, within the bounds of its name."""
    cdef span_t name = name_at(groups.columns, member)
    cdef uint32_t end = key_end_at(groups, member, name)
    return plain_name(span_of(name.at, min(<size_t> end, name.left)))


cdef span_t key_at(const void *context, uint32_t sample) noexcept nogil:
    """Return the key of a sample: that of its first member."""
    cdef const groups_t *groups = <const groups_t *> context
    cdef uint32_t start, end
    members_range(groups, sample, &start, &end)
    if start == end:
        return span_of(groups.columns.names, 0)
    return member_key(groups, member_at(groups, start))


cdef span_t first_key_at(const void *context, uint32_t sample) noexcept nogil:
    """Return the key of a sample while `starts` still holds first members."""
    cdef const groups_t *groups = <const groups_t *> context
    return member_key(groups, groups.starts[sample])


cdef span_t field_at(const groups_t *groups, uint32_t member) noexcept nogil:
    """Return the field of a member that has a key, not lower-cased."""
    cdef span_t name = name_at(groups.columns, member)
    take(&name, <size_t> key_end_at(groups, member, name) + 1)
    return name


cdef bint continues(const groups_t *groups, size_t i) noexcept nogil:
    """Return whether a member has the key of the one before it."""
    cdef span_t key, other
    if i == 0 or groups.key_ends[i - 1] != groups.key_ends[i]:
        return False
    key = member_key(groups, <uint32_t> i)
    other = member_key(groups, <uint32_t> i - 1)
    return key.left == other.left and memcmp(key.at, other.at, key.left) == 0


cdef size_t measure_keys(groups_t *groups, bint last_dot) noexcept nogil:
    """Fill `key_ends`; return the number of key changes, an upper bound of samples."""
    cdef size_t changes = 0
    cdef size_t i
    cdef span_t name
    cdef size_t count = groups.columns.count
    for i in range(count):
        name = name_at(groups.columns, <uint32_t> i)
        groups.key_ends[i] = NO_KEY
        if not is_meta(plain_name(name)):
            groups.key_ends[i] = key_end_of(name, last_dot)
        if groups.key_ends[i] != NO_KEY and not continues(groups, i):
            changes += 1
    return changes


cdef uint32_t find_samples(
    groups_t *groups, slots_t *by_key, uint32_t *sample_of, size_t max_samples
) noexcept nogil:
    """Set `sample_of` of each member and `starts` to first members; return the count.

    There are no more than `max_samples`, unless mapped names change meanwhile.
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
            if count == max_samples:
                continue
            groups.starts[count] = <uint32_t> i
            count += 1
            slot[0] = filling | count
        sample_of[i] = slot_entry(by_key, slot[0])
    return count


cdef void gather_members(groups_t *groups, const uint32_t *sample_of) noexcept nogil:
    """Turn `starts` into indices of `members`, and fill `members` in order."""
    cdef size_t i
    cdef uint32_t total = 0
    cdef uint32_t size
    cdef uint32_t *starts = groups.starts
    for i in range(<size_t> groups.count + 1):
        starts[i] = 0
    for i in range(groups.columns.count):
        if sample_of[i] != NO_SAMPLE:
            starts[sample_of[i]] += 1
    for i in range(<size_t> groups.count + 1):
        size = starts[i]
        starts[i] = total
        total += size
    for i in range(groups.columns.count):
        if sample_of[i] != NO_SAMPLE:
            groups.members[starts[sample_of[i]]] = <uint32_t> i
            starts[sample_of[i]] += 1
    for i in range(groups.count, 0, -1):  # each start is now at the end: shift back
        starts[i] = starts[i - 1]
    starts[0] = 0


cdef bint same_text(span_t a, span_t b, bint lower) noexcept nogil:
    cdef size_t i
    if a.left != b.left:
        return False
    if not lower:
        return memcmp(a.at, b.at, a.left) == 0
    for i in range(a.left):
        if lower_ascii(a.at[i]) != lower_ascii(b.at[i]):
            return False
    return True


cdef bint is_field(span_t own, span_t wanted, bint lower) noexcept nogil:
    """Return whether a field, lower-cased if `lower`, equals `wanted`."""
    cdef size_t i
    if own.left != wanted.left:
        return False
    for i in range(own.left):
        if (lower_ascii(own.at[i]) if lower else own.at[i]) != wanted.at[i]:
            return False
    return True


cdef bint is_ascii(span_t text) noexcept nogil:
    cdef size_t i
    cdef uint8_t bits = 0
    for i in range(text.left):
        bits |= text.at[i]
    return bits < 0x80


cdef bint may_repeat(
    const groups_t *groups, uint32_t sample, bint lower
) noexcept nogil:
    """Return whether a field of a sample may repeat; false positives are allowed.

    Samples with many fields, and fields to lower-case that are not ASCII, count as
    repeating: Python decides about them, in `Grouping.find_repeat`.
    """
    cdef uint32_t start, end, i, k
    cdef span_t field
    members_range(groups, sample, &start, &end)
    if end - start > MAX_PAIRWISE:
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
    free(groups.repeat_flags)


cdef int build_groups(groups_t *groups, slots_t *by_key, bint lower) noexcept nogil:
    """Fill `groups`, whose `columns` and `last_dot` are set; -1: out of memory."""
    cdef size_t count = groups.columns.count
    cdef size_t bound              # of the number of samples
    cdef uint32_t *sample_of = <uint32_t *> malloc((count + 1) * sizeof(uint32_t))
    groups.key_ends = <uint32_t *> malloc((count + 1) * sizeof(uint32_t))
    groups.members = <uint32_t *> malloc((count + 1) * sizeof(uint32_t))
    if sample_of == NULL or groups.key_ends == NULL or groups.members == NULL:
        free(sample_of)
        return -1
    bound = measure_keys(groups, groups.last_dot)
    groups.starts = <uint32_t *> malloc((bound + 1) * sizeof(uint32_t))
    groups.repeat_flags = <uint8_t *> calloc(bound + 1, 1)
    if (
        groups.starts == NULL or groups.repeat_flags == NULL
        or not slots_init(by_key, bound)
    ):
        free(sample_of)
        return -1
    groups.count = find_samples(groups, by_key, sample_of, bound)
    gather_members(groups, sample_of)
    groups.grouped = groups.starts[groups.count]
    free(sample_of)
    for i in range(groups.count):
        groups.repeat_flags[i] = may_repeat(groups, i, lower)
    return 0


cdef int build_by_key(const groups_t *groups, slots_t *by_key) noexcept nogil:
    """Hash the keys of all samples, of duplicates the first; -1: out of memory."""
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


# Samples as Python objects.

@cython.final
@cython.no_gc
cdef class Grouping:
    """Grouping of a table's members into samples; built on first use, without the GIL.
    """

    def __cinit__(self, ExtentTable table not None, bint last_dot, bint lower):
        self.table = table
        self.last_dot = last_dot
        self.lower = lower

    def __reduce__(self):
        raise TypeError("a Grouping does not pickle; pickle the shard")

    cdef groups_t *get_groups(self) except NULL:
        """Return the groups; build them first if needed."""
        cdef groups_t groups
        cdef slots_t by_key
        cdef int status
        if fs_is_set(&self.grouped):
            return &self.groups
        if self.table.columns.count >= MAX_ENTRIES:
            raise MemoryError(
                f"cannot group {self.table.columns.count:,} members: the limit is "
                f"{MAX_ENTRIES - 1:,}"
            )
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

    cdef build_hash(self):
        """Build `by_key` of samples that an index lists."""
        cdef groups_t *groups = self.get_groups()
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
        """Raise FormatError if index blocks of the samples or names are damaged."""
        cdef groups_t *groups = self.get_groups()
        if not has_unchecked_blocks(self.table):
            return 0
        self.table.check_names()
        if self.keeper is not None:
            self.table.check(groups.starts, 4 * (<uint64_t> groups.count + 1))
            self.table.check(groups.members, 4 * <uint64_t> groups.grouped)
        return 0

    cdef groups_t *check_index(self, Py_ssize_t sample) except NULL:
        """Check the index blocks of a sample, and return the groups."""
        cdef groups_t *groups = self.get_groups()
        cdef uint32_t start, end, i
        if self.keeper is None or not has_unchecked_blocks(self.table):
            return groups
        self.table.check(groups.starts + sample, 2 * sizeof(uint32_t))
        members_range(groups, <uint32_t> sample, &start, &end)
        self.table.check(groups.members + start, (end - start) * sizeof(uint32_t))
        for i in range(start, end):
            self.table.check_name(member_at(groups, i))
        return groups

    cdef int check(self, Py_ssize_t sample) except -1:
        """Raise FormatError if an index lists a sample with invalid members."""
        cdef groups_t *groups = self.check_index(sample)
        cdef uint32_t start, end, i
        if self.keeper is None:
            return 0
        members_range(groups, <uint32_t> sample, &start, &end)
        for i in range(start, end):
            if fs_load32(groups.members + i) >= groups.columns.count:
                end = start
                break
        if start == end:
            raise FormatError(
                f"the index lists sample {sample:,} with members that do not exist",
                self.keeper.path, 0,
            )
        return 0

    cdef Py_ssize_t count(self) except -1:
        """Return the number of samples."""
        return self.get_groups().count

    def field_counts(self, uint32_t limit=0xFFFFFFFF):
        """Return the number of members of each field, in order of first appearance."""
        cdef groups_t *groups = self.get_groups()
        cdef uint32_t i
        self.check_all()
        counts = {}
        for i in range(min(<uint32_t> groups.grouped, limit)):
            field = self.field(member_at(groups, i))
            counts[field] = counts.get(field, 0) + 1
        return counts

    def repeats(self):
        """Return for each sample with repeats the first member whose field repeats."""
        cdef Py_ssize_t sample, member
        found = []
        for sample in range(self.count()):
            member = self.find_repeat(sample)
            if member >= 0:
                found.append(member)
        return found

    @property
    def may_repeat(self):
        """True if a field may repeat in a sample; False: the index rules it out."""
        return not self.groups.unique

    def having(self, tuple fields not None):
        """Return a byte for each sample: 1 if it has all these fields, else 0."""
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
        """Return the key of a sample."""
        return decode_text(key_at(self.check_index(sample), <uint32_t> sample))

    cdef Py_ssize_t find(self, object key) except -2:
        """Return the sample of a key, or -1. A leading ``./`` is ignored."""
        cdef groups_t *groups = self.get_groups()
        cdef span_t text
        cdef uint32_t filling = 0
        cdef uint32_t slot
        cdef object keeper = encode_text(key, &text)
        if keeper is None:
            return -1
        if not fs_is_set(&self.hashed):
            self.build_hash()
        text = plain_name(text)
        slot = slots_find(&self.by_key, text, key_at, groups, &filling)[0]
        return -1 if slot == 0 else <Py_ssize_t> slot_entry(&self.by_key, slot)

    cdef Py_ssize_t width(self, Py_ssize_t sample) except -1:
        """Return the number of members of a sample."""
        cdef groups_t *groups = self.check_index(sample)
        cdef uint32_t start, end
        members_range(groups, <uint32_t> sample, &start, &end)
        return end - start

    cdef list members(self, Py_ssize_t sample):
        """Return the positions of a sample's members, in the shard's order."""
        cdef groups_t *groups = self.check_index(sample)
        cdef uint32_t start, end, i
        members_range(groups, <uint32_t> sample, &start, &end)
        return [member_at(groups, i) for i in range(start, end)]

    cdef str field(self, Py_ssize_t member):
        """Return the field of a member that belongs to a sample."""
        cdef groups_t *groups = self.get_groups()
        cdef str field
        if has_unchecked_blocks(self.table):
            self.table.check_name(member)
        field = decode_text(field_at(groups, <uint32_t> member))
        return field.lower() if self.lower else field

    cdef Py_ssize_t member(self, Py_ssize_t sample, object field) except -2:
        """Return the position of the member that holds a field, or -1."""
        cdef groups_t *groups = self.check_index(sample)
        cdef uint32_t start, end, member, i
        cdef span_t text, own
        cdef bint matches
        cdef object keeper = encode_text(field, &text)
        if keeper is None:
            return -1
        members_range(groups, <uint32_t> sample, &start, &end)
        for i in range(start, end):
            member = member_at(groups, i)
            own = field_at(groups, member)
            if self.lower and not is_ascii(own):  # str.lower knows Unicode
                matches = decode_text(own).lower() == field
            else:
                matches = is_field(own, text, self.lower)
            if matches:
                return member
        return -1

    cdef Py_ssize_t find_repeat(self, Py_ssize_t sample) except -2:
        """Return the first member of a sample whose field repeats, or -1."""
        cdef groups_t *groups = self.check_index(sample)
        if groups.unique:
            return -1
        if groups.repeat_flags != NULL:
            if not groups.repeat_flags[sample]:
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


# Tables and groupings on index memory, without copies.
#
# The memory is a mapped file, or bytes if the index was read. Its numbers may have any
# value and may change: these functions check only that each column lies in the memory;
# values are checked at use. Block checksums are compared at once if the index was read,
# and at the first use of each block if it is mapped.

@cython.final
@cython.no_gc
cdef class IndexMemory:
    """Memory of an index file, mapped or copied."""

    cdef object owner
    cdef readonly object path
    cdef uint8_t *base
    cdef readonly uint64_t nbytes
    cdef blocks_t *blocks          # NULL: no checksums

    def __cinit__(
        self, owner not None, path not None, bytes sums=None, uint64_t start=0,
        uint64_t end=0,
    ):
        self.owner = owner
        self.path = path
        if isinstance(owner, MappedFile):
            self.base = (<MappedFile> owner).base
            self.nbytes = (<MappedFile> owner).nbytes
        else:
            self.base = <uint8_t *> PyBytes_AS_STRING(owner)
            self.nbytes = len(owner)
        if sums is None:
            return
        if start > end or end > self.nbytes or (
            <size_t> len(sums) != 4 * count_of(end - start)
        ):
            raise ValueError(
                f"{len(sums):,} bytes of checksums do not fit blocks from {start:,} to "
                f"{end:,} of {self.nbytes:,}"
            )
        self.blocks = blocks_new(
            self.base + start, end - start, start,
            <const uint8_t *> PyBytes_AS_STRING(sums),
        )
        if self.blocks == NULL:
            raise MemoryError
        if not isinstance(owner, MappedFile):  # bytes never change: check once
            blocks_check(self.blocks, self.base + start, end - start, path)

    def __dealloc__(self):
        blocks_free(self.blocks)

    def find_damage(self):
        """Compare all checksums; return the offsets of blocks that do not match."""
        cdef size_t k
        cdef bint matches
        found = []
        if self.blocks == NULL:
            return found
        for k in range(self.blocks.count):
            with nogil:
                matches = block_matches(self.blocks, k)
            if not matches:
                found.append(self.blocks.start + (<uint64_t> k << SHIFT))
        return found

    cdef blocks_t *unchecked(self) noexcept:
        """Return the blocks, or NULL if all are checked."""
        if self.blocks == NULL or self.blocks.left == 0:
            return NULL
        return self.blocks

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.base, self.nbytes, 1, flags)

    def read(self, uint64_t offset, uint64_t size):
        """Return a copy of an extent."""
        return PyBytes_FromStringAndSize(<const char *> self.at(offset, size, 1), size)

    def __reduce__(self):
        raise TypeError("the memory of an index does not pickle; pickle the shard")

    cdef uint8_t *at(self, uint64_t offset, uint64_t count, size_t width) except NULL:
        """Return a pointer to a column of `count` items of `width` bytes.

        Raises FormatError if it does not lie in the memory, or is not aligned.
        """
        if (
            offset > self.nbytes or count > (self.nbytes - offset) // width
            or offset % width != 0
        ):
            raise FormatError(
                f"a column of {count:,} items of {width} bytes at byte {offset:,} is "
                f"outside the index of {self.nbytes:,} bytes", self.path, 0,
            )
        return self.base + offset


def borrow_table(
    IndexMemory memory not None, uint64_t count, uint64_t offsets, uint64_t sizes,
    uint64_t name_ends, uint64_t names, uint64_t names_size, uint64_t info_ends,
    uint64_t infos, uint64_t infos_size,
):
    """Return a table whose columns lie in an index."""
    cdef ExtentTable table = ExtentTable.__new__(ExtentTable)
    table.keeper = memory
    table.columns.offsets = <uint64_t *> memory.at(offsets, count, 8)
    table.columns.sizes = <uint64_t *> memory.at(sizes, count, 8)
    table.columns.name_ends = <uint64_t *> memory.at(name_ends, count, 8)
    table.columns.names = memory.at(names, names_size, 1)
    table.columns.names_size = names_size
    if info_ends != 0:
        table.columns.info_ends = <uint64_t *> memory.at(info_ends, count, 8)
        table.columns.infos = memory.at(infos, infos_size, 1)
        table.columns.infos_size = infos_size
    table.columns.count = count
    table.columns.blocks = memory.unchecked()
    return table


def borrow_grouping(
    ExtentTable table not None, IndexMemory memory not None, uint64_t samples,
    uint64_t starts, uint64_t grouped, uint64_t members, bint last_dot, bint lower,
    bint unique,
):
    """Return a grouping whose columns lie in an index."""
    cdef Grouping grouping = Grouping(table, last_dot, lower)
    cdef groups_t *groups = &grouping.groups
    if samples > grouped or grouped > table.columns.count or grouped >= MAX_ENTRIES:
        raise FormatError(
            f"the index lists {samples:,} samples and {grouped:,} members of samples, "
            f"but {table.columns.count:,} members", memory.path, 0,
        )
    groups.starts = <uint32_t *> memory.at(starts, samples + 1, 4)
    groups.members = <uint32_t *> memory.at(members, grouped, 4)
    groups.count = <uint32_t> samples
    groups.grouped = <uint32_t> grouped
    groups.last_dot = last_dot
    groups.unique = unique
    groups.columns = &table.columns
    grouping.keeper = memory
    fs_set(&grouping.grouped)
    return grouping


cdef object copy_column(const void *column, size_t size):
    """Return a copy of a column."""
    return PyBytes_FromStringAndSize(<const char *> column, size)


def copy_columns(ExtentTable table not None):
    """Return copies of a table's columns."""
    cdef size_t width = 8 * table.columns.count
    cdef bint has_info = table.columns.info_ends != NULL
    table.check_extents()
    table.check_names()
    table.check_infos()
    return {
        "offsets": copy_column(table.columns.offsets, width),
        "sizes": copy_column(table.columns.sizes, width),
        "name_ends": copy_column(table.columns.name_ends, width),
        "names": copy_column(table.columns.names, table.columns.names_size),
        "info_ends": copy_column(table.columns.info_ends, width if has_info else 0),
        "infos": copy_column(table.columns.infos, table.columns.infos_size),
    }


cdef inline bint take_stem(
    const columns_t *columns, uint32_t i, span_t suffix, span_t *stem
) noexcept nogil:
    """Set the name of a member without its suffix; return whether that is its key."""
    cdef span_t name = name_at(columns, i)
    if name.left <= suffix.left or name.left > columns.names_size:
        return False
    stem.at = name.at
    stem.left = name.left - suffix.left
    if memcmp(name.at + stem.left, suffix.at, suffix.left) != 0:
        return False
    if name.at[0] == c'.' or name.at[0] == c'_':
        return False               # may be below ``./`` or ``__x__``
    return (
        memchr(stem.at, c'.', stem.left) == NULL
        and memchr(stem.at, c'\n', stem.left) == NULL
    )


def copy_keys(ExtentTable table not None, bytes suffix not None):
    """Return the keys of samples of one member each, a line each, in order."""
    cdef size_t count = table.columns.count
    cdef size_t width = len(suffix), at = 0
    cdef const columns_t *columns = &table.columns
    cdef span_t end = span_of(<const uint8_t *> PyBytes_AS_STRING(suffix), width)
    cdef span_t stem
    cdef uint8_t *out
    cdef uint32_t i
    table.check_names()
    if count == 0 or columns.names_size // count < width:
        return None
    lines = PyBytes_FromStringAndSize(NULL, columns.names_size + count)
    out = <uint8_t *> PyBytes_AS_STRING(lines)
    with nogil:
        for i in range(<uint32_t> count):
            if not take_stem(columns, i, end, &stem):
                at = 0
                break
            if stem.left >= columns.names_size + count - at:
                at = 0             # the index was changed meanwhile
                break
            memcpy(out + at, stem.at, stem.left)
            out[at + stem.left] = c'\n'
            at += stem.left + 1
    return lines[:at - 1] if at > 0 else None


def has_keys(ExtentTable table not None, bytes suffix not None, text, ends):
    """Return whether samples of one member each have the keys of a column of text."""
    cdef size_t count = table.columns.count
    cdef const columns_t *columns = &table.columns
    cdef span_t end = span_of(
        <const uint8_t *> PyBytes_AS_STRING(suffix), <size_t> len(suffix)
    )
    cdef Py_buffer keys, places
    cdef const uint8_t *keys_at
    cdef const int32_t *ends_at
    cdef bint same
    table.check_names()
    keys_at = bytes_of(text, &keys)
    try:
        ends_at = <const int32_t *> bytes_of(ends, &places)
        try:
            if places.itemsize != sizeof(int32_t):
                raise TypeError(
                    f"ends must be int32, got items of {places.itemsize} bytes"
                )
            if count == 0 or <size_t> places.len // 4 <= count or keys.len == 0:
                return False
            with nogil:
                same = same_keys(columns, end, keys_at, <size_t> keys.len, ends_at)
        finally:
            PyBuffer_Release(&places)
    finally:
        PyBuffer_Release(&keys)
    return same


cdef bint same_keys(
    const columns_t *columns, span_t suffix, const uint8_t *text, size_t size,
    const int32_t *ends,
) noexcept nogil:
    """Return whether each name is its key and the suffix; see `has_keys`."""
    cdef span_t stem
    cdef size_t at = 0
    cdef uint32_t i
    if ends[0] != 0:
        return False
    for i in range(<uint32_t> columns.count):
        if not take_stem(columns, i, suffix, &stem) or size - at < stem.left:
            return False
        if ends[i + 1] < 0 or <size_t> ends[i + 1] != at + stem.left:
            return False
        if memcmp(text + at, stem.at, stem.left) != 0:
            return False
        at += stem.left
    return True


def copy_samples(Grouping grouping not None):
    """Return copies of a grouping's columns."""
    cdef groups_t *groups = grouping.get_groups()
    grouping.check_all()
    return (
        copy_column(groups.starts, 4 * (<size_t> groups.count + 1)),
        copy_column(groups.members, 4 * <size_t> groups.grouped),
    )


# Key rows: the keys of a dataset, to be sorted and searched.
#
# A row is a uint64: 32 bits of a key's hash above 32 bits of the sample's position in
# the dataset. Equal keys have equal hashes, so that a key's candidates are adjacent in
# sorted rows. The hash is SipHash-1-3 with a seed of 16 bytes that is stored with the
# rows.

cdef int seed_words(bytes seed, uint64_t *words) except -1:
    if len(seed) != 16:
        raise ValueError(f"seed must have 16 bytes, got {len(seed)}")
    memcpy(words, <const char *> seed, 16)
    return 0


cdef span_t stored_key_at(const groups_t *groups, uint32_t sample) noexcept nogil:
    """Return the key of a sample with the leading ``./`` of its first member."""
    cdef span_t key = key_at(groups, sample)
    cdef span_t name
    cdef uint32_t start, end
    members_range(groups, sample, &start, &end)
    if start == end:
        return key
    name = name_at(groups.columns, member_at(groups, start))
    return span_of(name.at, name.left - plain_name(name).left + key.left)


def write_key_rows(
    Grouping grouping not None, uint64_t first, bytes seed not None, rows not None, *,
    bint older=False,
):
    """Write a key row for each sample of a shard, without the GIL."""
    cdef uint64_t[2] words
    cdef groups_t *groups = grouping.get_groups()
    cdef Py_buffer buffer
    cdef uint64_t *row
    cdef uint32_t i
    cdef span_t key
    grouping.check_all()
    seed_words(seed, words)
    row = <uint64_t *> bytes_of(rows, &buffer, writable=True)
    try:
        if buffer.itemsize != sizeof(uint64_t):
            raise TypeError(
                f"rows must be uint64, got items of {buffer.itemsize} bytes"
            )
        if buffer.len // 8 != groups.count:
            raise ValueError(
                f"expected {groups.count:,} rows, one a sample, got {buffer.len // 8:,}"
            )
        if first > MAX_POSITION or groups.count > MAX_POSITION - first:
            raise OverflowError(
                f"key rows hold positions up to {MAX_POSITION:,}, got "
                f"{first + groups.count:,}"
            )
        with nogil:
            for i in range(groups.count):
                key = stored_key_at(groups, i) if older else key_at(groups, i)
                row[i] = (hash_bytes(key, words) >> 32) << 32 | (first + i)
    finally:
        PyBuffer_Release(&buffer)


def hash_key(str key not None, bytes seed not None):
    """Return the upper 32 bits of a key's rows; None if no name can have the key."""
    cdef uint64_t[2] words
    cdef span_t text
    cdef object keeper = encode_text(key, &text)
    seed_words(seed, words)
    return None if keeper is None else hash_bytes(text, words) >> 32


def normalize_key(str key not None):
    """Return a key without a leading ``./``."""
    cdef Py_ssize_t start = 0
    while key.startswith("./", start):
        start += 2
        while key.startswith("/", start):
            start += 1
    return key[start:] if start else key
