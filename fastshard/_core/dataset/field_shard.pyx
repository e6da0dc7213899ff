"""Shards whose members are fields of records: the base class.

A record is the stored bytes of a sample with all its fields: a row, or a payload.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromObject
from libc.stdint cimport uint8_t, uint64_t

from fastshard._core.dataset.shard cimport Shard
from fastshard._core.io.source cimport MappedSource, Source
from fastshard._core.table.extents cimport ExtentTable, resolve_position

from fastshard.errors import FormatError, MemberNotFoundError

cdef enum:
    MAX_KEPT = 4 << 20             # bytes of a record that is kept

cdef ExtentTable NO_EXTENTS = ExtentTable.__new__(ExtentTable)


cdef class FieldShard(Shard):
    """Shard of members without names, whose extents are computed, in no table.

    A subclass has `with_source`, which returns a handle on the same bytes, and finds
    records and the places of fields in them. Of large records in mapped files only the
    heads and the fields asked for are read.
    """

    def __cinit__(self, *args, **kwargs):
        self.direct = None         # extents are not in a table

    def __copy__(self):
        return self.with_source(self.parts()[0])

    @property
    def names(self):
        """The members' names, a lazy sequence of str."""
        self.open_source()
        return MemberNames(self)

    cdef Py_ssize_t find(self, object key) except -1:
        self.open_source()
        if isinstance(key, str):
            raise MemberNotFoundError(key, self.path, list)
        return resolve_position(key, self.member_count())

    cdef int check_header(self, Source source, Py_ssize_t i) except -1:
        return 0

    cdef int find_record(self, Source source, Py_ssize_t i, field_t *field) except -1:
        """Set record, column and the checked extent of the record of member `i`."""
        raise NotImplementedError

    cdef Py_ssize_t member_at(self, Py_ssize_t record, Py_ssize_t column) noexcept:
        """Return the member that is a field, or for -1 the whole record."""
        return -1

    cdef list columns_of(self, tuple names):
        """Return the numbers of the named fields that there are."""
        raise NotImplementedError

    cdef object place_field(self, Source source, Py_ssize_t i, field_t *field):
        """Set the place of member `i` in its record, which `find_record` found."""
        raise NotImplementedError

    cdef bint reads_fields(self, Source source, uint64_t size) noexcept:
        """Return whether fields are read one by one: of large records in memory."""
        return False

    cdef uint64_t head_size(self) noexcept:
        """Return the size of the head of a large record, which tells fields' places."""
        return 0

    cdef object read_record(
        self, Source source, Py_ssize_t record, uint64_t offset, uint64_t size
    ):
        """Return the bytes of a record of a file that is not mapped.

        Those of a remote file are kept for the next field.
        """
        cdef tuple kept = None
        cdef object data
        cdef bint remote = source.is_remote()
        if not remote and not self.keeps_local:
            return source.read(offset, size)
        with cython.critical_section(self):
            kept = self.kept
            if not remote:
                self.kept = None
        if kept is not None and kept[0] == record:
            return kept[1]
        data = source.read(offset, size)
        if size <= MAX_KEPT:
            kept = (record, data)
            with cython.critical_section(self):
                self.kept = kept
        return data

    cdef int extent(
        self, Source source, Py_ssize_t i, uint64_t *offset, uint64_t *size
    ) except -1:
        cdef field_t field
        try:
            self.find_record(source, i, &field)
            if field.column >= 0:
                self.place_field(source, i, &field)
        except (FormatError, OSError) as error:
            raise self.annotate(error, i) from None
        offset[0] = field.offset + field.start
        size[0] = field.nbytes
        return 0

    cdef bint estimate_extent(
        self, Source source, Py_ssize_t i, uint64_t *offset, uint64_t *size
    ) noexcept:
        """Set the extent of the member's record, of a large one that of the field.

        Until the head is resident, which tells the field's place, it is the head's.
        """
        cdef field_t field
        cdef uint64_t head
        try:
            self.find_record(source, i, &field)
            offset[0] = field.offset
            size[0] = field.size
            if field.column < 0 or not self.reads_fields(source, field.size):
                return True
            head = min(field.size, self.head_size())
            if head > 0 and not source.has_resident(field.offset, head):
                size[0] = head
                return True
            self.place_field(source, i, &field)
            offset[0] = field.offset + field.start
            size[0] = field.nbytes
        except Exception:          # reading the member reports it
            return False
        return True

    cdef object pin(self, Py_ssize_t i, uint8_t **at, uint64_t *size):
        cdef Source source = self.open_source()
        cdef field_t field
        cdef object data
        try:
            self.find_record(source, i, &field)
            data = self.place_field(source, i, &field)
            size[0] = field.nbytes
            if data is None or source.base != NULL:
                return source.pin(field.offset + field.start, field.nbytes, at)
        except (FormatError, OSError) as error:
            raise self.annotate(error, i) from None
        if field.nbytes != <uint64_t> PyBytes_GET_SIZE(data):
            data = (PyBytes_AS_STRING(data) + field.start)[:field.nbytes]
        at[0] = <uint8_t *> PyBytes_AS_STRING(data)
        return data

    cdef object make_view(self, Py_ssize_t i):
        cdef Source source = self.open_source()
        cdef MappedSource mapped
        cdef field_t field
        cdef uint8_t *at
        cdef uint64_t size
        if type(source) is not MappedSource or (
            (<MappedSource> source).file.chunks is not None
        ):
            owner = self.pin(i, &at, &size)
            return PyMemoryView_FromObject(owner)
        mapped = <MappedSource> source
        try:
            self.find_record(mapped, i, &field)
            self.place_field(mapped, i, &field)
            if not field.is_ready:
                mapped.ensure_resident(field.offset + field.start, field.nbytes)
        except (FormatError, OSError) as error:
            raise self.annotate(error, i) from None
        return mapped.file.view(field.offset + field.start, field.nbytes)


@cython.final
cdef class MemberNames:
    """Sequence of the names of a shard's members, made on access."""

    cdef Shard shard

    def __cinit__(self, Shard shard not None):
        self.shard = shard

    def __len__(self):
        return self.shard.member_count()

    def __getitem__(self, key):
        if isinstance(key, slice):
            return [
                self.shard.member_name(i) for i in range(*key.indices(len(self)))
            ]
        return self.shard.member_name(resolve_position(key, len(self)))

    def __reduce__(self):
        raise TypeError("names do not pickle; use list(names)")
