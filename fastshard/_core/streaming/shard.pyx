"""Shards of rows, whose fields are found behind the rows' headers, and their samples.

Of a shard of n rows and c columns, member ``i * c + k`` is field k of row i, and member
``n * c + i`` the whole row i. Rows are warmed, fetched and counted against budgets;
views, arrays and gathers ask for fields.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Copy
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcmp, memcpy

from fastshard._core.dataset.records cimport NO_EXTENTS, FieldShard, field_t, is_direct
from fastshard._core.dataset.shard cimport (
    STAGE_BYTES, STAGE_EXTENT, STAGE_LIST, SampleBase, SampleDecoder, SamplesBase,
    Shard,
)
from fastshard._core.io.source cimport MappedSource, RemoteSource, Source
from fastshard._core.platform cimport fs_prefetch_line
from fastshard._core.streaming.plan cimport MdsRows, RowTable
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
    """Open shard of rows; see `fastshard.Shard`."""

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
    """Rows of a shard as samples."""

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
    """Return values of a sample's fields by name, with the key as ``"__key__"``."""
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
