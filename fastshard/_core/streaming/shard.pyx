"""Shards of rows, whose fields are found behind the rows' headers, their samples and columns.

Of a shard of n rows and c columns, member ``i * c + k`` is field k of row i, and member
``n * c + i`` the whole row i. Rows are warmed, fetched and counted against budgets;
views, arrays and gathers ask for fields.

Columns of many MDS rows are numbers and arrays of one layout, copied without the GIL:
rows are found first, then each is read once for all columns. Rows that lie in mapped
files are read there, those of other sources are copied to a buffer, some MB at a time.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Copy
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

from fastshard._core.dataset.field_shard cimport (
    NO_EXTENTS, FieldShard, RecordBatch, field_t, is_direct, record_t,
)
from fastshard._core.dataset.locator cimport (
    SampleLocator, make_column, read_batch, sort_columns, stack_batch,
)
from fastshard._core.dataset.npy cimport make_empty_array
from fastshard._core.dataset.shard cimport (
    STAGE_BYTES, STAGE_EXTENT, STAGE_LIST, SampleBase, SampleDecoder, SamplesBase,
    Shard,
)
from fastshard._core.io.source cimport MappedSource, RemoteSource, Source
from fastshard._core.platform cimport fs_prefetch_line
from fastshard._core.streaming.plan cimport (
    MdsRows, RowPlan, RowTable, column_t, offset_of,
)
from fastshard._core.table.extents cimport ExtentTable

from array import array

from fastshard.errors import FormatError, key_collision

cdef extern from "Python.h":
    object PyUnicode_New(Py_ssize_t size, Py_UCS4 largest)
    void *PyUnicode_DATA(object text)

cdef str decimal_text(Py_ssize_t value):
    """Return ``str(value)`` of a number that is not negative."""
    cdef char digits[20]
    cdef int at = 20
    if value < 10:
        return str(value)          # interned
    while value > 0:
        at -= 1
        digits[at] = <char> (c'0' + value % 10)
        value //= 10
    text = PyUnicode_New(20 - at, 127)
    memcpy(PyUnicode_DATA(text), digits + at, 20 - at)
    return <str> text


cdef class RowShard(FieldShard):
    """Open shard of rows; see `fastshard.Shard`.

    Parameters
    ----------
    source : Source
        The file of rows.
    path, mode : str
    rows : RowTable
    facts : object
        What samples ask for encodings and decoders.
    """

    def __init__(
        self, Source source, ExtentTable table, str path, str mode,
        RowTable rows not None, facts,
    ):
        self.rows = rows
        self.facts = facts
        self.members = (rows.width + 1) * rows.count

    def with_source(self, Source source not None):
        """Return a handle that reads the same bytes from another source."""
        return RowShard(
            source, NO_EXTENTS, self.path, self.mode, self.rows, self.facts
        )

    def __reduce__(self):
        raise TypeError("a shard of rows does not pickle; pickle the dataset")

    @property
    def offsets(self):
        """Offset of each member's bytes: uint64 [members]; reads the rows' headers."""
        return self.extents()[:, 0]

    @property
    def sizes(self):
        """Size of each member in bytes: uint64 [members]; reads the rows' headers."""
        return self.extents()[:, 1]

    def extents(self):
        """Return offset and size of all members: uint64 [members, 2]."""
        import numpy

        cdef Source source = self.open_source()
        cdef uint64_t offset, size
        cdef Py_ssize_t i
        found = array("Q", bytes(16 * self.members))
        for i in range(self.members):
            self.extent(source, i, &offset, &size)
            found[2 * i] = offset
            found[2 * i + 1] = size
        return numpy.frombuffer(found, numpy.uint64).reshape(-1, 2)

    cdef Py_ssize_t member_count(self) except -1:
        return self.members

    cdef str member_name(self, Py_ssize_t i):
        cdef Py_ssize_t fields = self.rows.width * self.rows.count
        if i >= fields:
            return f"sample {i - fields}"
        column = self.rows.names[i % self.rows.width]
        return f"sample {i // self.rows.width}, column {column!r}"

    cdef int find_record(self, Source source, Py_ssize_t i, field_t *field) except -1:
        cdef Py_ssize_t width = self.rows.width
        cdef Py_ssize_t fields = width * self.rows.count
        if i >= fields:
            field.record = i - fields
            field.column = -1
        else:
            field.record = i // width
            field.column = i - field.record * width
        self.rows.row_extent(field.record, &field.offset, &field.size)
        field.start = 0
        field.nbytes = field.size
        field.is_ready = False
        return self.check_extent(source, i, field.offset, field.size)

    cdef Py_ssize_t member_at(self, Py_ssize_t record, Py_ssize_t column) noexcept:
        if column < 0:
            return self.rows.width * self.rows.count + record
        return record * self.rows.width + column

    cdef list columns_of(self, tuple names):
        found = self.rows.names
        return [found.index(name) for name in names if name in found]

    cdef bint reads_fields(self, Source source, uint64_t size) noexcept:
        return source.base != NULL and self.rows.is_read_by_field(size)

    cdef uint64_t head_size(self) noexcept:
        return self.rows.head

    cdef object place_field(self, Source source, Py_ssize_t i, field_t *field):
        cdef const uint8_t *row
        cdef object data = None
        self.find_record(source, i, field)
        if field.column < 0:
            return None
        if source.base != NULL:
            row = source.base + field.offset
            if self.rows.head > 0 and type(source) is MappedSource:
                (<MappedSource> source).ensure_resident(
                    field.offset, min(field.size, self.rows.head)
                )
        else:
            data = self.read_record(source, field.record, field.offset, field.size)
            row = <const uint8_t *> PyBytes_AS_STRING(data)
        self.rows.field_extent(
            field.record, row, field.size, field.column, &field.start, &field.nbytes
        )
        if field.start > field.size or field.nbytes > field.size - field.start:
            raise FormatError(
                "a field overruns its row", self.path, field.offset,
                self.member_name(i),
            )
        return data

    def array(self, key, dtype=None, shape=None):
        """Return a member as an array; see `Shard.array`.

        By default a field of an ``ndarray`` encoding is decoded without a copy.
        """
        cdef Py_ssize_t i = self.find(key)
        cdef Py_ssize_t column
        cdef uint64_t size
        cdef uint8_t *at
        if dtype is None and i < self.rows.width * self.rows.count:
            column = i % self.rows.width
            if column in self.facts.array_columns:
                owner = self.pin(i, &at, &size)
                return self.rows.decode_field(
                    i // self.rows.width, column, at, size, 0, owner, False
                )
        return Shard.array(self, i, dtype, shape)

    cdef object annotate(self, object error, Py_ssize_t i):
        if isinstance(error, FormatError) and error.member is not None:
            return error           # of the table of rows, which names its column
        return Shard.annotate(self, error, i)

    cdef object decode(self, Py_ssize_t row, bytes mask, bint copy, dict values):
        """Return values of a row by column, added to `values` unless that is None."""
        cdef Source source = self.open_source()
        cdef MappedSource mapped
        cdef field_t field
        cdef object data
        cdef uint8_t *at
        cdef Py_ssize_t i = self.member_at(row, -1)
        self.find_record(source, i, &field)
        try:
            if type(source) is MappedSource and is_direct(source):
                mapped = <MappedSource> source
                self.rows.ensure_row(mapped, row, field.offset, field.size, mask)
                return self.rows.decode_row(
                    row, mapped.base + field.offset, field.size, mapped.file, mask,
                    copy, values,
                )
            data = source.pin(field.offset, field.size, &at)
        except (FormatError, OSError) as error:
            raise self.annotate(error, i) from None
        return self.rows.decode_row(row, at, field.size, data, mask, copy, values)


@cython.final
cdef class RowSamples(SamplesBase):
    """Rows of a shard as samples.

    Parameters
    ----------
    shard : RowShard
    sample_type : type
    first : int
        Position in the dataset of the shard's first row.
    key_column : int
        Column of the keys; -1: keys are positions in the dataset.
    """

    def __cinit__(
        self, RowShard shard not None, type sample_type not None, Py_ssize_t first,
        Py_ssize_t key_column,
    ):
        self.shard = self.held = shard
        self.rows = shard.rows
        self.sample_type = sample_type
        self.first = first
        self.key_column = key_column
        if key_column >= 0:
            chosen = bytearray(self.rows.width)
            chosen[key_column] = 1
            self.key_mask = bytes(chosen)
        elif isinstance(self.rows, MdsRows) and "__key__" not in self.rows.names:
            self.template = dict.fromkeys(["__key__", *self.rows.names])
        self.places = {name: k for k, name in enumerate(self.rows.names)}
        self.names = [
            name for k, name in enumerate(self.rows.names) if k != key_column
        ]
        self.has_key_field = "__key__" in self.names

    def having(self, tuple fields not None):
        """Return a byte per sample: 1 if it has all these fields, else 0."""
        has_all = all(field in self.places for field in fields)
        return bytearray(b"\1" if has_all else b"\0") * self.rows.count

    def search_key(self, str key not None):
        """Return the position of the sample with this key, or -1."""
        return self.search(key)

    cdef Py_ssize_t count(self) except -1:
        self.held.open_source()
        return self.rows.count

    cdef str key(self, Py_ssize_t i):
        cdef dict values
        if self.key_column < 0:
            return decimal_text(self.first + i)
        values = self.held.decode(i, self.key_mask, True, None)
        key = values[self.rows.names[self.key_column]]
        if type(key) is str:
            return key
        raise self.held.rows.fault(i, self.key_column, "the key is not text", 0)

    cdef object decode_resident(self, Py_ssize_t i):
        """Return a decoded row by position, or None; see `SampleDecoder`."""
        cdef Source source = self.held.open_source()
        cdef MappedSource mapped
        cdef dict values
        cdef uint64_t offset = 0
        cdef uint64_t size = 0
        if self.template is None or type(source) is not MappedSource or (
            not 0 <= i < self.rows.count
        ):
            return None
        mapped = <MappedSource> source
        if mapped.file.chunks is not None or not mapped.is_resident():
            return None
        self.rows.row_extent(i, &offset, &size)
        if offset > mapped.nbytes or size > mapped.nbytes - offset:
            return None
        mapped.ensure_resident(offset, size)
        values = PyDict_Copy(self.template)
        values["__key__"] = decimal_text(self.first + i)
        return self.rows.decode_row(
            i, mapped.base + offset, size, mapped.file, None, True, values
        )

    def search_all(self, str key not None):
        """Return the positions of all samples with this key."""
        cdef list found = []
        cdef Py_ssize_t i = self.search_from(key, 0)
        while i >= 0:
            found.append(i)
            i = -1 if self.key_column < 0 else self.search_from(key, i + 1)
        return found

    cdef Py_ssize_t search(self, object key) except -2:
        return self.search_from(key, 0)

    cdef Py_ssize_t search_from(self, object key, Py_ssize_t start) except -2:
        """Return the position of a sample with this key, at or after `start`, or -1."""
        cdef Py_ssize_t i
        cdef uint8_t *at
        cdef uint64_t size
        cdef bytes wanted
        if self.key_column < 0:
            if not key.isdecimal() or not key.isascii() or len(key) > 18:
                return -1
            i = int(key) - self.first
            if str(int(key)) != key or not 0 <= i < self.rows.count:
                return -1
            return i
        if self.rows.head == <uint64_t> -1:  # text may be escaped
            for i in range(start, self.rows.count):
                if self.key(i) == key:
                    return i
            return -1
        try:
            wanted = key.encode()
        except UnicodeEncodeError:
            return -1
        for i in range(start, self.rows.count):
            owner = self.held.pin(i * self.rows.width + self.key_column, &at, &size)
            if size == <uint64_t> PyBytes_GET_SIZE(wanted) and (
                memcmp(at, PyBytes_AS_STRING(wanted), size) == 0
            ):
                return i
        return -1

    cdef str where(self):
        return self.shard.path

    cdef list fields(self, Py_ssize_t i):
        return list(self.names)

    cdef Py_ssize_t width(self, Py_ssize_t i) except -1:
        return len(self.names)

    cdef Py_ssize_t member(self, Py_ssize_t i, object field) except -2:
        cdef object place = self.places.get(field)
        if place is None:
            return -1
        return i * self.rows.width + <Py_ssize_t> place

    cdef bint is_resident(self, SampleBase sample) except -1:
        return self.shard.open_source().is_resident()

    cdef list visible_members(self, SampleBase sample):
        cdef uint64_t offset, size
        if sample.only is not None:
            self.rows.row_extent(sample.position, &offset, &size)
            if self.held.reads_fields(self.held.open_source(), size):
                return SamplesBase.visible_members(self, sample)
        return [(self.shard, self.held.member_at(sample.position, -1))]

    cdef SamplesBase with_shard(self, Shard shard):
        return RowSamples(shard, self.sample_type, self.first, self.key_column)

    cdef void prefetch(self, Py_ssize_t i, int stage) noexcept:
        cdef Source source = self.shard.source
        cdef uint64_t offset, size
        if i >= self.rows.count:
            return
        if stage == STAGE_LIST:
            fs_prefetch_line(self.rows.offsets.values + i)
        elif stage == STAGE_BYTES and source is not None and source.base != NULL:
            if self.held.estimate_extent(
                source, self.held.member_at(i, -1), &offset, &size
            ):
                fs_prefetch_line(source.base + offset)

    cdef bytes mask_of(self, tuple fields):
        """Return the mask of some columns, None for all fields."""
        cdef tuple last = self.last
        if fields is None:
            if self.key_column < 0:
                return None
            fields = tuple(self.names)
        if last is not None and last[0] == fields:
            return last[1]
        chosen = bytearray(self.rows.width)
        for field in fields:
            chosen[self.places[field]] = 1
        mask = bytes(chosen)
        self.last = (fields, mask)
        return mask


def make_row_shard(
    Source source not None, str path not None, str mode not None,
    RowTable rows not None, facts,
):
    """Return the shard of a table of rows, read from a source."""
    return RowShard(source, NO_EXTENTS, path, mode, rows, facts)


def decode_fields(SampleBase sample not None, tuple fields not None):
    """Return values of a sample's fields by name, with the key as ``"__key__"``.

    Parameters
    ----------
    sample : SampleBase
        Of `RowSamples`.
    fields : tuple of str
        Empty: all visible ones.

    Raises
    ------
    FastshardError
        A field is named ``"__key__"``, as the key in the result is.
    FieldNotFoundError
        The sample has no such field.
    FormatError
        The bytes are not of the columns' encodings.
    """
    cdef RowSamples samples = <RowSamples?> sample.samples
    cdef dict found, values
    cdef tuple asked = fields if fields else sample.only
    if fields:
        for field in fields:
            sample.member_of(field)
    elif asked is not None:
        asked = tuple([field for field in asked if field in samples.places])
    if samples.has_key_field and (asked is None or "__key__" in asked):
        raise key_collision()
    values = {"__key__": samples.key(sample.position)}
    if asked is None or len(asked) < 2:
        return samples.held.decode(
            sample.position, samples.mask_of(asked), True, values
        )
    found = samples.held.decode(sample.position, samples.mask_of(asked), True, None)
    for field in asked:
        values[field] = found[field]
    return values


@cython.final
cdef class RowDecoder(SampleDecoder):
    """``sample.decode()`` of a sample of `RowSamples`."""

    def __call__(self, SampleBase sample not None):
        if sample.decoders:
            return sample.decode()
        return decode_fields(sample, ())

    cdef object decode_resident(self, SamplesBase samples, Py_ssize_t i):
        if type(samples) is not RowSamples:
            return None
        return (<RowSamples> samples).decode_resident(i)


decode_sample = RowDecoder()


def decode_member(SampleBase sample not None, field, bint copy=True):
    """Return the value of one field of a sample of `RowSamples`."""
    cdef RowSamples samples = <RowSamples?> sample.samples
    sample.member_of(field)
    return samples.held.decode(
        sample.position, samples.mask_of((field,)), copy, None
    )[field]


cdef enum:
    LINE = 64                      # bytes of a cache line
    MAX_LINES = 4                  # of a row that are prefetched
    AHEAD = 8                      # rows
    BLOCK = 32                     # rows
    NONE = -1


cdef inline uint32_t load32(const uint8_t *at) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, at, 4)
    return value


cdef inline void copy_item(
    uint8_t *to, const uint8_t *at, uint64_t size
) noexcept nogil:
    """Copy an item; the usual sizes in a few instructions."""
    if size == 8:
        memcpy(to, at, 8)
    elif size == 4:
        memcpy(to, at, 4)
    elif size == 2:
        memcpy(to, at, 2)
    elif size == 1:
        to[0] = at[0]
    else:
        memcpy(to, at, size)


cdef inline void prefetch_row(const record_t *row) noexcept nogil:
    cdef uint64_t k
    if row.at == NULL:
        return
    for k in range(min(row.size // LINE + 1, <uint64_t> MAX_LINES)):
        fs_prefetch_line(row.at + k * LINE)


cdef inline bint copy_fields(
    const record_t *row, Py_ssize_t r, target_t *targets, Py_ssize_t width,
    uint64_t header,
) noexcept nogil:
    """Copy the fields of a row of variable columns; False if one overruns the row."""
    cdef target_t *target
    cdef const uint8_t *at = row.at
    cdef uint64_t extra = header
    cdef uint64_t place, size
    cdef Py_ssize_t v = 0
    cdef Py_ssize_t t
    for t in range(width):
        target = &targets[t]
        while v < target.variables:
            extra += load32(at + 4 * v)
            v += 1
        place = extra + target.before
        size = load32(at + 4 * v) if target.varies else target.size
        if place > row.size or size > row.size - place:
            return False
        if target.out == NULL:
            continue
        if size != target.size or (
            target.skip > 0 and memcmp(at + place, target.header, target.skip) != 0
        ):
            target.out = NULL      # the arrays differ
            continue
        copy_item(
            target.out + <uint64_t> r * target.item, at + place + target.skip,
            target.item,
        )
    return True


cdef inline void copy_column(
    uint8_t *to, const uint8_t **at, Py_ssize_t count, uint64_t before, uint64_t item
) noexcept nogil:
    """Copy items of some rows to consecutive places."""
    cdef Py_ssize_t r
    if item == 8:
        for r in range(count):
            memcpy(to + 8 * r, at[r] + before, 8)
    elif item == 4:
        for r in range(count):
            memcpy(to + 4 * r, at[r] + before, 4)
    else:
        for r in range(count):
            copy_item(to + <uint64_t> r * item, at[r] + before, item)


cdef Py_ssize_t fill_fixed(
    const record_t *rows, Py_ssize_t start, Py_ssize_t end, const target_t *targets,
    Py_ssize_t width, uint64_t fixed,
) noexcept nogil:
    """Copy fields of rows of fixed columns; return the first invalid row, or -1."""
    cdef const uint8_t *at[BLOCK]
    cdef const target_t *target
    cdef Py_ssize_t r, t
    cdef Py_ssize_t count = min(end - start, <Py_ssize_t> BLOCK)
    for r in range(count):
        prefetch_row(&rows[start + r])
    while start < end:
        count = min(end - start, <Py_ssize_t> BLOCK)
        for r in range(count):
            if rows[start + r].size != fixed:
                return start + r
            at[r] = rows[start + r].at
        for r in range(start + count, min(end, start + count + BLOCK)):
            prefetch_row(&rows[r])
        for t in range(width):
            target = &targets[t]
            copy_column(
                target.out + <uint64_t> start * target.item, at, count, target.before,
                target.item,
            )
        start += count
    return NONE


cdef Py_ssize_t fill_columns(
    const record_t *rows, Py_ssize_t start, Py_ssize_t end, target_t *targets,
    Py_ssize_t width, uint64_t variables, uint64_t fixed,
) noexcept nogil:
    """Copy fields of some rows to the columns; return the first invalid row, or -1.

    `fixed` is the size of a row without its variable fields.
    """
    cdef const record_t *row
    cdef uint64_t total
    cdef uint64_t v
    cdef Py_ssize_t r
    if variables == 0:
        return fill_fixed(rows, start, end, targets, width, fixed)
    for r in range(start, min(end, start + AHEAD)):
        prefetch_row(&rows[r])
    for r in range(start, end):
        if r + AHEAD < end:
            prefetch_row(&rows[r + AHEAD])
        row = &rows[r]
        if row.size < 4 * variables:
            return r
        total = fixed
        for v in range(variables):
            total += load32(row.at + 4 * v)
        if total != row.size or not copy_fields(
            row, r, targets, width, 4 * variables
        ):
            return r
    return NONE


@cython.final
cdef class RowBatch(RecordBatch):
    """Rows of MDS shards of one schema, in any order."""

    cdef bint select_shard(self, RowShard shard, slot_t *slot) except -1:
        """Set the slot of a shard; False if it has other columns."""
        cdef Source source
        cdef RowPlan plan
        if type(shard.rows) is not MdsRows:
            return False
        plan = (<MdsRows> shard.rows).plan
        if self.plan is None:
            self.plan = plan
        elif plan is not self.plan:
            return False
        slot.number = self.add_shard(shard)
        source = self.sources[slot.number]
        slot.base = source.base if is_direct(source) else NULL
        slot.offsets = NULL
        if shard.rows.offsets.wrap_count == 0 and shard.rows.nbytes <= source.nbytes:
            slot.offsets = shard.rows.offsets.values  # these increase to `rows.nbytes`
        slot.count = shard.rows.count
        slot.shard = <PyObject *> shard
        return True

    cdef bint add(self, object samples, Py_ssize_t i) except -1:
        """Add row `i` of samples, which is in range; False if it has other columns."""
        cdef PyObject *shard
        cdef slot_t *slot
        cdef record_t *row
        if type(samples) is not RowSamples:
            return False
        shard = <PyObject *> (<RowSamples> samples).held
        slot = &self.slots[(<size_t> shard >> 6) % SLOTS]
        if slot.shard != shard and not self.select_shard(<RowShard> shard, slot):
            return False
        row = &self.records[self.count]
        row.i = i
        row.shard = slot.number
        row.at = NULL
        if slot.offsets != NULL and 0 <= i < slot.count:
            row.offset = slot.offsets[i]
            row.size = slot.offsets[i + 1] - row.offset
        else:
            self.place_row(row)
        if slot.base != NULL:
            row.at = slot.base + row.offset
        self.count += 1
        return True

    cdef int place_row(self, record_t *row) except -1:
        """Set the extent of a row by the table of its shard, and check it."""
        cdef RowShard shard = <RowShard> self.shards[row.shard]
        cdef Source source = <Source> self.sources[row.shard]
        shard.rows.row_extent(row.i, &row.offset, &row.size)
        return shard.check_extent(
            source, shard.member_at(row.i, -1), row.offset, row.size
        )

    cdef int fault(self, Py_ssize_t r) except -1:
        """Raise the error of an invalid row."""
        cdef record_t *row = &self.records[r]
        cdef MdsRows rows = (<RowShard> self.shards[row.shard]).rows
        rows.check_row(row.i, row.at, row.size)
        raise rows.fault(row.i, -1, "the row has changed", 0)

    cdef dict stack(self, tuple names, object allocate):
        """Return the columns that have one layout, as arrays."""
        cdef Columns columns = Columns(self, len(names))
        cdef Py_ssize_t start = 0
        cdef Py_ssize_t end, bad
        if self.count == 0:
            return {}
        while start < self.count:
            end = self.load(start, names)
            if start == 0:
                columns.begin(names, allocate)
            with nogil:
                bad = fill_columns(
                    self.records, start, end, columns.targets, columns.width,
                    self.plan.variables, self.plan.fixed,
                )
            if bad >= 0:
                self.fault(bad)
            start = end
        return columns.finish(names)


cdef inline void place_target(target_t *target, const column_t *column) noexcept:
    """Set the place of a column, without a buffer to fill."""
    target.variables = column.variables
    target.before = column.before
    target.varies = column.size == 0
    target.size = target.item = column.size
    target.skip = 0
    target.header = NULL
    target.out = NULL


cdef list places_of(RowPlan plan, tuple names):
    """Return the columns of these names that are there, in the order of the plan."""
    return sorted([
        plan.places[name] for name in dict.fromkeys(names) if name in plan.places
    ])


@cython.final
cdef class Layouts:
    """Places, dtypes and shapes of columns, all known without a row."""

    cdef tuple asked               # names, some of them without a layout
    cdef list names, dtypes, shapes
    cdef target_t *targets
    cdef Py_ssize_t width

    def __cinit__(self, tuple asked not None, Py_ssize_t most):
        self.asked = asked
        self.names, self.dtypes, self.shapes = [], [], []
        self.targets = <target_t *> malloc((most + 1) * sizeof(target_t))
        if self.targets == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.targets)

    def __reduce__(self):
        raise TypeError("Layouts do not pickle")


cdef Layouts layouts_of(RowPlan plan, tuple names):
    """Return the layouts of columns, kept with the plan; None if rows tell some."""
    cdef Layouts layouts = None
    with cython.critical_section(plan):
        layouts = <Layouts> plan.layouts
    if layouts is not None and layouts.asked == names:
        return layouts
    places = places_of(plan, names)
    layouts = Layouts(names, len(places))
    for k in places:
        layout = plan.layout(k)
        if layout is None:
            continue
        dtype, shape = layout
        if dtype is None:
            return None
        place_target(
            &layouts.targets[layouts.width], &plan.columns[<Py_ssize_t> k]
        )
        layouts.names.append(plan.names[k])
        layouts.dtypes.append(dtype)
        layouts.shapes.append(shape)
        layouts.width += 1
    with cython.critical_section(plan):
        plan.layouts = layouts
    return layouts


@cython.final
cdef class Columns:
    """Arrays that are filled with the fields of a batch of rows."""

    cdef RowBatch batch
    cdef target_t *targets
    cdef Py_ssize_t width
    cdef list names, arrays
    cdef list headers              # own the headers of the targets

    def __cinit__(self, RowBatch batch not None, Py_ssize_t most):
        self.batch = batch
        self.names, self.arrays, self.headers = [], [], []
        self.targets = <target_t *> malloc((most + 1) * sizeof(target_t))
        if self.targets == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.targets)

    def __reduce__(self):
        raise TypeError("Columns do not pickle")

    cdef int begin(self, tuple names, object allocate) except -1:
        """Allocate the columns by the first row."""
        cdef RowPlan plan = self.batch.plan
        cdef Layouts layouts
        if allocate is None:
            layouts = layouts_of(plan, names)
            if layouts is not None:
                return self.allocate(layouts)
        for k in places_of(plan, names):
            self.add(k, allocate)
        return 0

    cdef int allocate(self, Layouts layouts) except -1:
        """Allocate the columns of known layouts."""
        cdef Py_ssize_t t
        cdef target_t *target
        memcpy(self.targets, layouts.targets, layouts.width * sizeof(target_t))
        self.names = layouts.names
        for t in range(layouts.width):
            target = &self.targets[t]
            self.arrays.append(make_empty_array(
                layouts.dtypes[t], self.batch.count, layouts.shapes[t],
                <uint64_t> self.batch.count * target.item, &target.out,
            ))
        self.width = layouts.width
        return 0

    cdef int add(self, Py_ssize_t k, object allocate) except -1:
        """Add column `k` unless its values have no layout."""
        cdef RowPlan plan = self.batch.plan
        cdef record_t *row = &self.batch.records[0]
        cdef MdsRows rows = (<RowShard> self.batch.shards[row.shard]).rows
        cdef column_t *column = &plan.columns[k]
        cdef target_t *target = &self.targets[self.width]
        cdef uint64_t start = 0
        cdef uint64_t size = column.size
        layout = plan.layout(k)
        if layout is None:
            return 0
        dtype, shape = layout
        place_target(target, column)
        if dtype is None:
            rows.field_extent(row.i, row.at, row.size, k, &start, &size)
            first = rows.decode_field(
                row.i, k, row.at + start, size, start, None, True
            )
            dtype, shape = first.dtype, first.shape
            target.skip = size - <uint64_t> first.nbytes
            header = (<const char *> row.at + start)[:target.skip]
            self.headers.append(header)
            target.header = <const uint8_t *> PyBytes_AS_STRING(header)
        target.size = size
        target.item = size - target.skip
        made = make_column(
            plan.names[k], self.batch.count, shape, dtype, target.item, allocate,
            &target.out,
        )
        if made is not None:
            self.names.append(plan.names[k])
            self.arrays.append(made)
            self.width += 1
        return 0

    cdef dict finish(self, tuple names):
        """Return the columns whose arrays did not differ, in the order of `names`."""
        cdef dict found = {}
        cdef Py_ssize_t t
        for t in range(self.width):
            if self.targets[t].out != NULL:
                found[self.names[t]] = self.arrays[t]
        return sort_columns(found, names)


def read_columns(
    SampleLocator locator not None, positions, tuple names not None, allocate=None
):
    """Return columns of samples by position.

    Parameters
    ----------
    locator : SampleLocator
    positions : sequence of int, or array
        Negative ones count from the end.
    names : tuple of str
        Columns; those that are not there are left out.
    allocate : callable, optional
        ``allocate(name, shape, dtype)`` returns a C-contiguous array to fill; by
        default a new one.

    Returns
    -------
    dict of str to ndarray
        The columns whose values are numbers or arrays of one layout. Empty if the
        samples are not all MDS rows of one schema.

    Raises
    ------
    IndexError
        A position is out of range.
    FormatError, OSError
        A row cannot be read.
    """
    return read_batch(RowBatch(), locator, positions, names, allocate)


def stack_columns(list samples not None, tuple names not None, allocate=None):
    """Return columns of samples, as `read_columns` does.

    Parameters
    ----------
    samples : list of SampleBase
    names, allocate
        As for `read_columns`.
    """
    return stack_batch(RowBatch(), samples, names, allocate)
