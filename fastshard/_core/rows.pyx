# cython: nonecheck=True
"""Rows of a columnar dataset: for each sample and field the shard and the offset.

A member is as its header says, which stands before it: its size is not known until
the header was read. The members of a field have one table for all its shards, and a
member's position there is its sample's.
"""

cimport cython
from cpython.long cimport PyLong_AsLongLongAndOverflow
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memset

from fastshard._core.arrays cimport array_as, array_held, seen_of
from fastshard._core.columnfile cimport ColumnFile
from fastshard._core.extents cimport ExtentTable, name_at, resized, text_before
from fastshard._core.npyheader cimport SEEN_BYTES, Layout, layout_of
from fastshard._core.platform cimport fs_load, fs_prefetch_line
from fastshard._core.samples cimport FAR, NEARER
from fastshard._core.shard cimport Shard
from fastshard._core.source cimport Source
from fastshard._core.threads cimport fs_get, fs_publish

from fastshard.errors import FormatError

cdef enum:
    HEADER = 512                   # bytes before a member's data
    FEW = 16 << 10                 # bytes that are brought of a member of unknown size
    SUFFIX = 4                     # bytes of ".npy"
    MOST_TAGS = 256                # that a byte can tell apart

cdef uint64_t UNKNOWN = <uint64_t> -1


@cython.final
@cython.no_gc
cdef class Places:
    """Where the shards of a field are mapped. While it is referred to, they are."""

    def __cinit__(self, size_t count):
        self.at = <place_t *> calloc(count + 1, sizeof(place_t))
        if self.at == NULL:
            raise MemoryError
        self.count = count
        self.sources = []

    def __reduce__(self):
        raise TypeError("places do not pickle")

    def __dealloc__(self):
        free(self.at)


@cython.final
@cython.no_gc
cdef class Cells:
    """The memory that holds one field's numbers; the names are everybody's."""

    cdef int add(self, uint64_t offset, int32_t slot) except -1:
        cdef size_t room = 2 * self.room + 1024
        if self.count == self.room:
            if not (
                resized(<void **> &self.offsets, room, sizeof(uint64_t))
                and resized(<void **> &self.marks, room, sizeof(mark_t))
            ):
                raise MemoryError
            self.room = room
        self.offsets[self.count] = offset
        self.marks[self.count].slot = slot
        self.marks[self.count].layout = 0
        self.count += 1
        return 0

    cdef int finish(self, ExtentTable names) except -1:
        """Give back room that is not used; no header was read yet."""
        if not (
            resized(<void **> &self.offsets, self.count, sizeof(uint64_t))
            and resized(<void **> &self.marks, self.count, sizeof(mark_t))
            and resized(<void **> &self.sizes, self.count, sizeof(uint64_t))
        ):
            raise MemoryError
        memset(self.sizes, 0xff, self.count * sizeof(uint64_t))
        self.names = names
        return 0

    def __dealloc__(self):
        free(self.offsets)
        free(self.sizes)
        free(self.marks)


cdef str key_of(ExtentTable names, Py_ssize_t i):
    """The key of a sample, which its members are called by."""
    return text_before(name_at(&names.columns, <uint32_t> i), SUFFIX)


cdef bint is_same_layout(Layout one, Layout other) noexcept:
    return (
        one.header_size == other.header_size
        and memcmp(one.header, other.header, one.header_size) == 0
    )


cdef bint is_same(ColumnFile file, tuple first) except -1:
    """Whether a file is the one that was opened first, which has at most grown."""
    identity, believed = first
    if file.believed and believed:
        return identity[:2] == file.identity[:2] and identity[2] <= file.identity[2]
    return identity == file.identity


@cython.final
cdef class Rows:
    """One field of some samples.

    Parameters
    ----------
    field : str
    bring : callable
        ``bring(number)`` returns the `ColumnFile` of a shard.
    path : str
        Of the index, for messages.

    Attributes
    ----------
    unpickle : callable or None
        ``unpickle(data, error)`` returns an array of Python objects, or raises the
        error, which says why the member is no other array.
    """

    def __cinit__(self, str field not None, bring, str path not None):
        self.field = field
        self.path = path
        self.bring = bring
        self.numbers = []
        self.cells = Cells.__new__(Cells)

    def __reduce__(self):
        raise TypeError("rows do not pickle")

    def let_go(self, ColumnFile file not None):
        """Forget a shard; who is at it goes on."""
        with cython.critical_section(self):
            self.places = None
            if self.by_number is None:
                self.by_number = {number: k for k, number in enumerate(self.numbers)}
            slot = self.by_number.get(file.number)
            shard = None if slot is None else self.shards[slot]
            if shard is not None and (<ColumnShard> shard).file is file:
                self.shards[slot] = None

    cdef uint32_t tag_of(self, Layout layout) except? 0:
        """A number that no other layout of the column has; 0: there is none for it."""
        if layout.header_size > SEEN_BYTES:
            return 0
        with cython.critical_section(self):
            if self.kept is not None and is_same_layout(self.kept, layout):
                return self.kept_tag
            self.tags = min(self.tags + 1, MOST_TAGS)
            if self.kept is None:
                self.kept = layout  # once: it is read without a lock
                self.kept_tag = self.tags
            return 0 if self.tags == MOST_TAGS else self.tags

    @property
    def count(self):
        """How many samples have the field."""
        cdef size_t i
        cdef size_t found = 0
        for i in range(self.cells.count):
            found += self.cells.marks[i].slot != ABSENT
        return found

    def data_bytes(self):
        """Return the sum of the members' sizes, in bytes; reads their headers.

        Raises
        ------
        FormatError, OSError
            One cannot be found.
        """
        cdef ColumnShard shard
        cdef uint64_t offset, size
        cdef uint64_t total = 0
        cdef Py_ssize_t i
        for i in range(<Py_ssize_t> self.cells.count):
            if self.has(i):
                shard = self.shard_of(i)
                shard.extent(shard.open_source(), i, &offset, &size)
                total += size
        return total

    cdef int add(self, object offset, object shard, dict slots) except -1:
        cdef int overflow = 0
        cdef int64_t at
        if offset is None and shard is None:
            return self.cells.add(0, ABSENT)
        if type(offset) is not int or type(shard) is not int:
            return self.cells.add(0, BROKEN)
        at = PyLong_AsLongLongAndOverflow(offset, &overflow)
        if overflow != 0 or at < 0 or shard < 0:
            return self.cells.add(0, BROKEN)
        return self.cells.add(<uint64_t> at, self.slot_of(shard, slots))

    cdef int32_t slot_of(self, object shard, dict slots) except? -1:
        """The slot of a shard, a new one if it has none yet."""
        cdef object slot = slots.get(shard)
        if slot is None:
            slot = slots[shard] = len(self.numbers)
            self.numbers.append(shard)
        return slot

    cdef int adopt(
        self, uint64_t **offsets, const int64_t *shards, ExtentTable names
    ) except -1:
        """Take the places of all samples, and the memory of their offsets."""
        cdef dict slots = {}
        cdef size_t count = names.columns.count
        cdef int32_t slot = ABSENT
        cdef int64_t last = ABSENT
        cdef size_t i
        self.cells.offsets = offsets[0]
        offsets[0] = NULL
        if not resized(<void **> &self.cells.marks, count, sizeof(mark_t)):
            raise MemoryError
        for i in range(count):
            if shards[i] != last:
                last = shards[i]
                slot = <int32_t> last if last < 0 else self.slot_of(last, slots)
            self.cells.marks[i].slot = slot
            self.cells.marks[i].layout = 0
        self.cells.count = count
        return self.finish(names)

    cdef int finish(self, ExtentTable names) except -1:
        cdef ExtentTable table = ExtentTable.__new__(ExtentTable)
        self.cells.finish(names)
        table.keeper = self.cells
        table.columns.offsets = self.cells.offsets
        table.columns.sizes = self.cells.sizes
        table.columns.name_ends = names.columns.name_ends
        table.columns.names = names.columns.names
        table.columns.names_size = names.columns.names_size
        table.columns.count = names.columns.count
        self.table = table
        self.shards = [None] * len(self.numbers)
        self.firsts = [None] * len(self.numbers)
        return 0

    cdef bint has(self, Py_ssize_t i) except -1:
        return self.cells.marks[i].slot != ABSENT

    cdef ColumnShard shard_of(self, Py_ssize_t i):
        """The shard that holds the member of a sample that has one."""
        cdef int32_t slot = self.cells.marks[i].slot
        cdef object shard
        if slot < 0:
            raise FormatError(
                f"the index says of field {self.field!r} what is no shard and offset",
                self.path, 0, self.table.name(i),
            )
        shard = self.shards[slot]
        if shard is None:
            shard = self.open(slot)
        return <ColumnShard> shard

    cdef bint is_kept(self, Py_ssize_t i) noexcept:
        """Whether a row surely has the layout that is kept."""
        return self.kept_tag != 0 and self.cells.marks[i].layout == self.kept_tag

    cdef object array(self, Py_ssize_t i):
        """The array of a sample that has one; what is known of it is not read again."""
        cdef ColumnShard shard = self.shard_of(i)
        cdef Source source
        cdef Layout kept = self.kept
        cdef uint8_t *at
        cdef uint64_t offset, size
        if kept is not None and self.is_kept(i):
            source = shard.open_source()
            offset = fs_get(self.cells.offsets + i)
            size = kept.header_size + kept.nbytes
            shard.check_extent(source, i, offset, size)
            try:
                owner = source.hold(offset, size, &at)
            except (FormatError, OSError) as error:
                raise shard.of_member(error, i) from None
            return array_as(kept, at, owner)
        owner = shard.hold(i, &at, &size)
        if (
            kept is None or size < kept.header_size
            or size - kept.header_size != kept.nbytes
            or memcmp(at, kept.header, kept.header_size) != 0
        ):
            try:
                array = array_held(shard, i, at, size, owner, None, None)
            except FormatError as error:
                if self.unpickle is None:
                    raise
                return self.unpickle((<const char *> at)[:size], error)
            if kept is None:       # now that all there is was checked
                self.tag_of(layout_of(at, size, seen_of(shard)))
            return array
        self.cells.marks[i].layout = self.kept_tag
        return array_as(kept, at, owner)

    cdef object open(self, int32_t slot):
        cdef ColumnFile file = <ColumnFile?> self.bring(self.numbers[slot])
        cdef ColumnShard shard = ColumnShard.__new__(
            ColumnShard, file.source, self.table, file.path, "mmap"
        )
        first = self.firsts[slot]
        if first is None:
            self.firsts[slot] = file.identity, file.believed
        elif not is_same(file, first):
            raise FormatError(
                "the shard was changed after some of it was read; refresh()", file.path, 0
            )
        shard.file = file
        shard.cells = self.cells
        shard.seen = file.seen
        file.held_by(self)
        self.shards[slot] = shard
        return shard

    cdef void expect(self, Py_ssize_t i, int away) noexcept:
        cdef int32_t slot
        cdef uint64_t offset
        cdef object shard
        cdef Source source
        if away == FAR:
            fs_prefetch_line(self.cells.marks + i)
            fs_prefetch_line(self.cells.offsets + i)
            return
        slot = self.cells.marks[i].slot
        if away != NEARER or slot < 0:
            return
        shard = self.shards[slot]
        if shard is None:
            return
        source = (<ColumnShard> shard).source
        offset = fs_load(self.cells.offsets + i)
        if source is None or source.base == NULL or not (
            HEADER <= offset < source.nbytes
        ):
            return
        fs_prefetch_line(self.cells.sizes + i)
        if self.cells.marks[i].layout == 0:  # nobody has looked at it yet
            fs_prefetch_line(source.base + offset - HEADER)
            fs_prefetch_line(source.base + offset - HEADER + 128)
        fs_prefetch_line(source.base + offset)
        fs_prefetch_line(source.base + min(offset + 64, source.nbytes - 1))


@cython.final
cdef class ColumnShard(Shard):
    """A shard of one field, with the table of all the field's members."""

    cdef int extent(
        self, Source source, Py_ssize_t i, uint64_t *offset, uint64_t *size
    ) except -1:
        cdef uint64_t found
        size[0] = fs_get(self.cells.sizes + i)  # first: it is written last
        offset[0] = fs_get(self.cells.offsets + i)
        if size[0] == UNKNOWN:
            self.file.find(offset[0], name_at(&self.table.columns, i), &found, size)
            offset[0] = found
            fs_publish(self.cells.offsets + i, found)
            fs_publish(self.cells.sizes + i, size[0])
        return self.check_extent(source, i, offset[0], size[0])

    cdef bint guess(
        self, Source source, Py_ssize_t i, uint64_t *offset, uint64_t *size
    ) noexcept:
        """Where a member and its header should be: the next sample's comes behind."""
        cdef uint64_t end
        cdef uint64_t at = fs_load(self.cells.offsets + i)
        if at < HEADER or at >= source.nbytes:
            return False
        size[0] = fs_get(self.cells.sizes + i)
        if size[0] == UNKNOWN:
            size[0] = max(self.file.likely, <uint64_t> FEW)
            if <size_t> i + 1 < self.cells.count:
                end = fs_load(self.cells.offsets + i + 1)
                if self.cells.marks[i + 1].slot == self.cells.marks[i].slot and end > at + HEADER:
                    size[0] = end - HEADER - at
        offset[0] = at - HEADER
        size[0] = min(size[0], source.nbytes - at) + HEADER
        return True
