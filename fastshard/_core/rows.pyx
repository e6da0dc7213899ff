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
from libc.string cimport memset

from fastshard._core.arrays cimport array_at
from fastshard._core.columnfile cimport ColumnFile
from fastshard._core.extents cimport (
    ExtentTable, checked_position, columns_add, columns_free, columns_t, name_at,
    resized, table_of, text_before, text_to,
)
from fastshard._core.platform cimport fs_load, fs_prefetch_line
from fastshard._core.samples cimport FAR, NEARER, SampleBase, SamplesBase
from fastshard._core.shard cimport Shard
from fastshard._core.source cimport Source
from fastshard._core.span cimport span_t
from fastshard._core.threads cimport fs_get, fs_put

from fastshard._core.lookup import find_all
from fastshard.errors import (
    ClosedError, FieldNotFoundError, FormatError, SampleNotFoundError,
)

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
                and resized(<void **> &self.slots, room, sizeof(int32_t))
            ):
                raise MemoryError
            self.room = room
        self.offsets[self.count] = offset
        self.slots[self.count] = slot
        self.count += 1
        return 0

    cdef int finish(self, ExtentTable names) except -1:
        """Give back room that is not used; no header was read yet."""
        if not (
            resized(<void **> &self.offsets, self.count, sizeof(uint64_t))
            and resized(<void **> &self.slots, self.count, sizeof(int32_t))
            and resized(<void **> &self.sizes, self.count, sizeof(uint64_t))
            and resized(<void **> &self.layouts, self.count, 1)
        ):
            raise MemoryError
        memset(self.layouts, 0, self.count)
        memset(self.sizes, 0xff, self.count * sizeof(uint64_t))
        self.names = names
        return 0

    def __dealloc__(self):
        free(self.offsets)
        free(self.sizes)
        free(self.slots)
        free(self.layouts)


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
            for slot, shard in enumerate(self.shards):
                if shard is not None and (<ColumnShard> shard).file is file:
                    self.shards[slot] = None

    def next_tag(self):
        """Return a number that no other layout of the column has; 0: none is left."""
        with cython.critical_section(self):
            self.tags = min(self.tags + 1, MOST_TAGS)
            return 0 if self.tags == MOST_TAGS else self.tags

    @property
    def count(self):
        """How many samples have the field."""
        cdef size_t i
        cdef size_t found = 0
        for i in range(self.cells.count):
            found += self.cells.slots[i] != ABSENT
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
        cdef object slot
        if offset is None and shard is None:
            return self.cells.add(0, ABSENT)
        if type(offset) is not int or type(shard) is not int:
            return self.cells.add(0, BROKEN)
        at = PyLong_AsLongLongAndOverflow(offset, &overflow)
        if overflow != 0 or at < 0 or shard < 0:
            return self.cells.add(0, BROKEN)
        slot = slots.get(shard)
        if slot is None:
            slot = slots[shard] = len(self.numbers)
            self.numbers.append(shard)
        return self.cells.add(<uint64_t> at, slot)

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

    cdef str key(self, Py_ssize_t i):
        return text_before(name_at(&self.table.columns, <uint32_t> i), SUFFIX)

    cdef bint has(self, Py_ssize_t i) except -1:
        return self.cells.slots[i] != ABSENT

    cdef ColumnShard shard_of(self, Py_ssize_t i):
        """The shard that holds the member of a sample that has one."""
        cdef int32_t slot = self.cells.slots[i]
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
            fs_prefetch_line(self.cells.slots + i)
            fs_prefetch_line(self.cells.offsets + i)
            fs_prefetch_line(self.cells.sizes + i)
            return
        slot = self.cells.slots[i]
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
        if fs_load(self.cells.sizes + i) == UNKNOWN:
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
        cdef uint64_t nbytes = source.nbytes
        size[0] = fs_get(self.cells.sizes + i)  # first: it is written last
        offset[0] = fs_get(self.cells.offsets + i)
        if size[0] == UNKNOWN:
            self.file.find(offset[0], name_at(&self.table.columns, i), &found, size)
            offset[0] = found
            fs_put(self.cells.offsets + i, found)
            fs_put(self.cells.sizes + i, size[0])
        if offset[0] > nbytes or size[0] > nbytes - offset[0]:
            raise FormatError(
                f"an extent of {size[0]:,} bytes reaches beyond the file",
                self.path, offset[0], self.table.name(i),
            )
        return 0

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
                if self.cells.slots[i + 1] == self.cells.slots[i] and end > at + HEADER:
                    size[0] = end - HEADER - at
        offset[0] = at - HEADER
        size[0] = min(size[0], source.nbytes - at) + HEADER
        return True


@cython.final
cdef class ColumnSamples(SamplesBase):
    """Samples whose fields lie in shards of their own.

    Parameters
    ----------
    columns : list of Rows
    names : ExtentTable
        The samples' names, as members are called: with ``.npy``.
    sample_type : type
    owner : object
        What they belong to: ``path`` for messages, ``closed``.
    """

    def __cinit__(
        self, list columns not None, ExtentTable names not None, type sample_type, owner
    ):
        self.columns = columns
        self.by_field = {column.field: column for column in columns}
        self.names = names
        self.sample_type = sample_type
        self.owner = owner

    @property
    def field_names(self):
        """The fields, in the order of the index."""
        return list(self.by_field)

    def having(self, tuple fields not None):
        """Return for each sample whether it has all these fields: 0 or 1 a byte."""
        cdef Py_ssize_t i
        cdef Rows rows
        found = bytearray(b"\1") * self.names.columns.count
        for field in fields:
            rows = self.by_field.get(field)
            for i in range(<Py_ssize_t> self.names.columns.count):
                if rows is None or not rows.has(i):
                    found[i] = 0
        return found

    def find_keys(self, list keys not None):
        """Return the positions of samples: an array of int64.

        Raises
        ------
        SampleNotFoundError
            There is no sample of one of the keys.
        """
        cdef int64_t[::1] positions
        cdef Py_ssize_t k
        found = find_all(self.names, keys, ".npy")
        positions = found
        for k in range(len(keys)):
            if positions[k] < 0:
                raise SampleNotFoundError(keys[k], self.owner.path)
        return found

    def search_key(self, str key not None):
        """Return the position of a sample, or -1."""
        return self.search(key)

    def keys_of(self, positions):
        """Return the keys of samples: a list.

        Parameters
        ----------
        positions : buffer of int64
            Of samples that there are.
        """
        cdef const int64_t[::1] numbers = positions
        cdef Py_ssize_t count = self.count()
        cdef Py_ssize_t k
        cdef list found = []
        for k in range(numbers.shape[0]):
            if not 0 <= numbers[k] < count:
                raise IndexError(f"position {numbers[k]} is out of range")
            found.append(self.key(numbers[k]))
        return found

    cdef Py_ssize_t count(self) except -1:
        if self.owner.closed:
            raise ClosedError(f"{self.owner.path} is closed")
        return self.names.columns.count

    cdef str key(self, Py_ssize_t i):
        return text_before(name_at(&self.names.columns, <uint32_t> i), SUFFIX)

    cdef Py_ssize_t search(self, object key) except -2:
        return self.names.find(f"{key}.npy")

    cdef str where(self):
        return self.owner.path

    cdef list fields(self, Py_ssize_t i):
        cdef Rows rows
        return [rows.field for rows in self.columns if rows.has(i)]

    cdef Py_ssize_t member(self, Py_ssize_t i, object field) except -2:
        cdef Rows rows = self.by_field.get(field)
        return i if rows is not None and rows.has(i) else -1

    cdef Shard holder(self, Py_ssize_t i, object field):
        cdef Rows rows = self.by_field[field]
        return rows.shard_of(i)

    cdef bint is_near(self, SampleBase sample) except -1:
        cdef Rows rows
        cdef Py_ssize_t i = sample.position
        for rows in self.columns:
            if rows.has(i) and (sample.only is None or rows.field in sample.only):
                if not rows.shard_of(i).open_source().is_near():
                    return False
        return True

    cdef void expect(self, Py_ssize_t i, int away) noexcept:
        cdef Rows rows
        if away == FAR:
            fs_prefetch_line(self.names.columns.name_ends + i)
        for rows in self.columns:
            rows.expect(i, away)

    def arrays(self, i, list columns=None, bint copy=False):
        """Return the arrays of a sample by field; of some columns only.

        Raises
        ------
        IndexError
            There is no such position.
        FormatError, OSError
            An array cannot be read.
        """
        cdef Py_ssize_t at = checked_position(i, self.count())
        cdef Rows rows
        cdef dict found = {}
        columns = self.columns if columns is None else columns
        for rows in columns:
            rows.expect(at, FAR)
        for rows in columns:
            rows.expect(at, NEARER)
        for rows in columns:
            if rows.has(at):
                found[rows.field] = array_at(rows.shard_of(at), at, None, None)
        if copy:
            return {field: array.copy() for field, array in found.items()}
        return found

    def columns_of(self, fields):
        """Return the columns of some fields.

        Raises
        ------
        FieldNotFoundError
            There is no such field.
        """
        for field in fields:
            if field not in self.by_field:
                raise FieldNotFoundError(field, self.owner.path)
        return [self.by_field[field] for field in fields]


def read_rows(chunks, list fields not None, bring, str path not None):
    """Read rows of an index.

    Parameters
    ----------
    chunks : iterable of list of tuple
        ``(id, offset, shard, offset, shard, ...)``, the latter of each field.
    fields : list of str
    bring : callable
        ``bring(field)`` returns what `Rows` takes.
    path : str
        Of the index, for messages.

    Returns
    -------
    columns : list of Rows
    names : ExtentTable

    Raises
    ------
    FormatError
        A sample's id is no text.
    """
    cdef columns_t columns
    cdef span_t name
    cdef Rows rows
    cdef tuple row
    cdef Py_ssize_t k
    cdef Py_ssize_t width = 2 * len(fields) + 1
    cdef list found = [Rows(field, bring(field), path) for field in fields]
    cdef list slots = [{} for _ in fields]
    cdef ExtentTable names
    memset(&columns, 0, sizeof(columns))
    try:
        for chunk in chunks:
            for row in chunk:
                if len(row) != width:
                    raise ValueError(f"a row of {len(row)} values instead of {width}")
                if type(row[0]) is not str:
                    raise FormatError(
                        f"the id of row {columns.count + 1:,} is {row[0]!r}, no text",
                        path, 0,
                    )
                member = (<str> row[0]) + ".npy"
                keeper = text_to(member, &name)
                if keeper is None or not columns_add(&columns, 0, 0, name):
                    raise MemoryError
                for k in range(len(found)):
                    rows = <Rows> found[k]
                    rows.add(row[2 * k + 1], row[2 * k + 2], <dict> slots[k])
        names = table_of(&columns)
    finally:
        columns_free(&columns)
    for rows in found:
        rows.finish(names)
    return found, names
