"""Members grouped into samples by key, by name and position.

A key ends at the first dot (or the last) of a name's last part, the field is
what follows it. A leading ``./`` is part of neither. Names without a dot there,
names whose last part begins with one, and names below ``__x__`` belong to no
sample. The convention is WebDataset's, but members of one sample need not be
neighbours. The order of samples is that of their first members.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo, PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memchr, memcmp, memcpy, memset

from fastshard._core.buffers cimport bytes_of
from fastshard._core.io.source cimport MappedFile
from fastshard._core.platform cimport fs_is_set, fs_load32, fs_set
from fastshard._core.span cimport span_of, span_t, take
from fastshard._core.table.checksums cimport (
    SHIFT, blocks_check, blocks_free, blocks_new, blocks_right, blocks_t, count_of,
)
from fastshard._core.table.extents cimport (
    MAX_ENTRIES, ExtentTable, hash_bytes, has_unchecked_blocks, name_at, slot_entry, slots_find,
    slots_free, slots_init, slots_t, decode_text, encode_text,
)

from fastshard.errors import FormatError

cdef enum:
    NO_KEY = 0xffffffff
    NO_SAMPLE = 0xffffffff
    MANY_FIELDS = 64               # compared pair by pair up to here

cdef uint64_t MOST = 0xffffffff    # positions that a row of a key can hold


# Samples, found in C and held as columns.

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
    members_range(groups, sample, &start, &end)
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
    members_range(groups, sample, &start, &end)
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


# Samples as Python sees them.

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
        if not has_unchecked_blocks(self.table):
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
        if self.keeper is None or not has_unchecked_blocks(self.table):
            return groups
        self.table.check(groups.starts + sample, 2 * sizeof(uint32_t))
        members_range(groups, <uint32_t> sample, &start, &end)
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
        members_range(groups, <uint32_t> sample, &start, &end)
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
        return decode_text(key_at(self.sound(sample), <uint32_t> sample))

    cdef Py_ssize_t find(self, object key) except -2:
        """Return the sample of this key, or -1; a ``./`` before it is no part of it."""
        cdef groups_t *groups = self.built()
        cdef span_t text
        cdef uint32_t filling = 0
        cdef uint32_t slot
        cdef object keeper = encode_text(key, &text)
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
        members_range(groups, <uint32_t> sample, &start, &end)
        return end - start

    cdef list members(self, Py_ssize_t sample):
        """Return the positions of a sample's members, in the shard's order."""
        cdef groups_t *groups = self.sound(sample)
        cdef uint32_t start, end, i
        members_range(groups, <uint32_t> sample, &start, &end)
        return [member_at(groups, i) for i in range(start, end)]

    cdef str field(self, Py_ssize_t member):
        """Return the field of a member that belongs to a sample."""
        cdef groups_t *groups = self.built()
        cdef str field
        if has_unchecked_blocks(self.table):
            self.table.check_name(member)
        field = decode_text(field_at(groups, <uint32_t> member))
        return field.lower() if self.lower else field

    cdef Py_ssize_t member(self, Py_ssize_t sample, object field) except -2:
        """Return the position of the member that holds a field, or -1."""
        cdef groups_t *groups = self.sound(sample)
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
            if self.lower and not is_ascii(own):  # Python knows how to lower those
                matches = decode_text(own).lower() == field
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


# Tables and groupings on memory that holds an index: nothing is copied.
#
# The memory is a mapped file, or bytes where the index was read. Its numbers may
# be anything, and may change: here it is only checked that each column lies in
# the memory; what a column says is checked where it is used. Checksums of its blocks
# are compared at once where it was read, and block by block, when one is first used,
# where it is mapped.

@cython.final
@cython.no_gc
cdef class IndexMemory:
    """The bytes of an index file, mapped or copied.

    Parameters
    ----------
    owner : MappedFile or bytes
    path : str
        For messages.
    sums : bytes, optional
        Checksums of the blocks from `start` to `end`; see `block_sums`.
    start, end : int
        Bytes of the file.

    Raises
    ------
    FormatError
        The memory is bytes, and a checksum is wrong.
    """

    cdef object owner
    cdef readonly object path
    cdef uint8_t *base
    cdef readonly uint64_t nbytes
    cdef blocks_t *blocks          # NULL: there are no checksums

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
            raise ValueError("checksums of other blocks than there are")
        self.blocks = blocks_new(
            self.base + start, end - start, start,
            <const uint8_t *> PyBytes_AS_STRING(sums),
        )
        if self.blocks == NULL:
            raise MemoryError
        if not isinstance(owner, MappedFile):  # it is ours, and never changes
            blocks_check(self.blocks, self.base + start, end - start, path)

    def __dealloc__(self):
        blocks_free(self.blocks)

    def find_damage(self):
        """Return where blocks begin whose checksums are wrong; all are compared now."""
        cdef size_t k
        cdef bint right
        found = []
        if self.blocks == NULL:
            return found
        for k in range(self.blocks.count):
            with nogil:
                right = blocks_right(self.blocks, k)
            if not right:
                found.append(self.blocks.start + (<uint64_t> k << SHIFT))
        return found

    cdef blocks_t *unchecked(self) noexcept:
        """The blocks, or NULL: none needs to be checked."""
        if self.blocks == NULL or self.blocks.left == 0:
            return NULL
        return self.blocks

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.base, self.nbytes, 1, flags)

    def read(self, uint64_t offset, uint64_t size):
        """Return bytes of their own."""
        return PyBytes_FromStringAndSize(<const char *> self.at(offset, size, 1), size)

    def __reduce__(self):
        raise TypeError("the memory of an index does not pickle; pickle the shard")

    cdef uint8_t *at(self, uint64_t offset, uint64_t count, size_t width) except NULL:
        """Where a column begins, whose items must lie in the memory."""
        if (
            offset > self.nbytes or count > (self.nbytes - offset) // width
            or offset % width != 0
        ):
            raise FormatError("the index ends before its columns do", self.path, 0)
        return self.base + offset


def borrow_table(
    IndexMemory memory not None, uint64_t count, uint64_t offsets, uint64_t sizes,
    uint64_t name_ends, uint64_t names, uint64_t names_size, uint64_t info_ends,
    uint64_t infos, uint64_t infos_size,
):
    """Return a table whose columns stand at these bytes of an index.

    Parameters
    ----------
    memory : IndexMemory
    count : int
        Members.
    offsets, sizes, name_ends, names, info_ends, infos : int
        Where each column begins. `info_ends` 0: there is no info.
    names_size, infos_size : int
        Bytes of all names, of all infos.

    Raises
    ------
    FormatError
        A column reaches beyond the index.
    """
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
    """Return the samples that an index lists.

    Parameters
    ----------
    table : ExtentTable
    memory : IndexMemory
    samples, grouped : int
        Samples, and members that belong to one.
    starts, members : int
        Where the columns begin: ``starts`` has one more number than samples.
    last_dot, lower : bool
        As for `Grouping`.
    unique : bool
        The index says that no sample has a field twice.

    Raises
    ------
    FormatError
        There are more samples than members, or a column reaches beyond the index.
    """
    cdef Grouping grouping = Grouping(table, last_dot, lower)
    cdef groups_t *groups = &grouping.groups
    if samples > grouped or grouped > table.columns.count or grouped >= MAX_ENTRIES:
        raise FormatError("more samples than members", memory.path, 0)
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


cdef object copied(const void *column, size_t size):
    """Return the bytes of a column."""
    return PyBytes_FromStringAndSize(<const char *> column, size)


def copy_columns(ExtentTable table not None):
    """Return copies of a table's columns.

    Returns
    -------
    dict of str to bytes
        ``offsets``, ``sizes``, ``name_ends``: native 64-bit numbers, one a
        member; ``names``; ``info_ends`` and ``infos``, empty without info.
    """
    cdef size_t width = 8 * table.columns.count
    cdef bint has_info = table.columns.info_ends != NULL
    table.check_extents()
    table.check_names()
    table.check_infos()
    return {
        "offsets": copied(table.columns.offsets, width),
        "sizes": copied(table.columns.sizes, width),
        "name_ends": copied(table.columns.name_ends, width),
        "names": copied(table.columns.names, table.columns.names_size),
        "info_ends": copied(table.columns.info_ends, width if has_info else 0),
        "infos": copied(table.columns.infos, table.columns.infos_size),
    }


def copy_samples(Grouping grouping not None):
    """Return copies of a grouping's columns.

    Returns
    -------
    starts, members : bytes
        Native 32-bit numbers; `starts` has one more than there are samples.
    """
    cdef groups_t *groups = grouping.built()
    grouping.check_all()
    return (
        copied(groups.starts, 4 * (<size_t> groups.count + 1)),
        copied(groups.members, 4 * <size_t> groups.grouped),
    )


# Keys of a whole dataset as rows that can be sorted and searched.
#
# A row is one u64: 32 bits of a key's hash above 32 bits of the sample's position
# in the dataset. Equal keys have equal hashes, so that a key's candidates stand
# together in sorted rows. The hash is SipHash-1-3 with a seed of 16 bytes that is
# stored with the rows.

cdef int seed_words(bytes seed, uint64_t *words) except -1:
    if len(seed) != 16:
        raise ValueError(f"a seed has 16 bytes, not {len(seed)}")
    memcpy(words, <const char *> seed, 16)
    return 0


cdef span_t stored_key_at(const groups_t *groups, uint32_t sample) noexcept nogil:
    """The key of a sample with the ``./`` that stands before its first member."""
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
    """Write a row for each sample of a shard; makes them without the GIL.

    Parameters
    ----------
    grouping : Grouping
    first : int
        Position of the shard's first sample in the dataset.
    seed : bytes
        16 of them.
    rows : writable buffer of uint64 [samples]
    older : bool
        As earlier releases wrote them, to whom a leading ``./`` was part of a key.
    """
    cdef uint64_t[2] words
    cdef groups_t *groups = grouping.built()
    cdef Py_buffer buffer
    cdef uint64_t *row
    cdef uint32_t i
    cdef span_t key
    grouping.check_all()
    seed_words(seed, words)
    row = <uint64_t *> bytes_of(rows, &buffer, writable=True)
    try:
        if buffer.itemsize != sizeof(uint64_t):
            raise TypeError("the rows must be uint64")
        if buffer.len // 8 != groups.count:
            raise ValueError(f"{groups.count:,} samples, and {buffer.len // 8:,} rows")
        if first > MOST or groups.count > MOST - first:
            raise OverflowError("too many samples for a table of keys")
        with nogil:
            for i in range(groups.count):
                key = stored_key_at(groups, i) if older else key_at(groups, i)
                row[i] = (hash_bytes(key, words) >> 32) << 32 | (first + i)
    finally:
        PyBuffer_Release(&buffer)


def hash_key(str key not None, bytes seed not None):
    """Return the 32 bits that a key's rows begin with; None if no name has it."""
    cdef uint64_t[2] words
    cdef span_t text
    cdef object keeper = encode_text(key, &text)
    seed_words(seed, words)
    return None if keeper is None else hash_bytes(text, words) >> 32


def normalize_key(str key not None):
    """Return a key without a leading ``./``, which is part of no key."""
    cdef Py_ssize_t start = 0
    while key.startswith("./", start):
        start += 2
        while key.startswith("/", start):
            start += 1
    return key[start:] if start else key
