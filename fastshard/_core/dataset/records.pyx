"""Records: the stored bytes of a sample with all its fields, a row or a payload.

`FieldShard` is the base class of shards whose members are fields of records,
`ColumnBatch` that of batches of samples that a format reads column by column.
"""

cimport cython
from cpython.buffer cimport PyBuffer_Release, PyObject_CheckBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromObject
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc

from fastshard._core.buffers cimport int64s_of
from fastshard._core.dataset.gather cimport Pieces
from fastshard._core.dataset.shard cimport SampleBase, Shard
from fastshard._core.dataset.streams cimport SampleLocator, location_t
from fastshard._core.io.source cimport MappedSource, Source
from fastshard._core.table.extents cimport ExtentTable, resolve_position

from array import array

from fastshard._core.dataset.gather import gather, resolve_positions
from fastshard.errors import FormatError, MemberNotFoundError

cdef enum:
    MAX_KEPT = 4 << 20             # bytes of a record that is kept
    MAX_LOADED = 16 << 20          # bytes of records that are loaded at a time

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


cdef class ColumnBatch:
    """Samples of several shards, whose columns are read together; a base class."""

    def __reduce__(self):
        raise TypeError(f"a {type(self).__name__} does not pickle")

    cdef int reserve(self, Py_ssize_t count) except -1:
        """Allocate room for this many samples; call once, before `add`."""
        raise NotImplementedError

    cdef bint add(self, object samples, Py_ssize_t i) except -1:
        """Add the sample at a position, in range; False if it is of another format."""
        raise NotImplementedError

    cdef dict stack(self, tuple names, object allocate):
        """Return the columns that have one layout, as arrays."""
        raise NotImplementedError


cdef class RecordBatch(ColumnBatch):
    """Records of several shards, in any order; a subclass finds and reads them."""

    def __cinit__(self):
        self.shards = []
        self.sources = []

    def __dealloc__(self):
        free(self.records)

    cdef int reserve(self, Py_ssize_t count) except -1:
        self.records = <record_t *> malloc((count + 1) * sizeof(record_t))
        if self.records == NULL:
            raise MemoryError
        return 0

    cdef Py_ssize_t add_shard(self, FieldShard shard) except -1:
        """Add a shard that is not among them; return its index."""
        cdef Source source = shard.open_source()
        cdef bint direct = is_direct(source)
        try:
            source.check_size()
        except FormatError as error:
            raise shard.annotate(error, 0) from None
        self.buffered = self.buffered or not direct
        self.cold = self.cold or (direct and not source.is_resident())
        self.shards.append(shard)
        self.sources.append(source)
        return len(self.shards) - 1

    cdef Py_ssize_t load(self, Py_ssize_t start, tuple names) except -1:
        """Load the bytes of records from `start` on; return the end of the loaded ones.

        Of large records in mapped files only the heads and the named fields.
        """
        cdef uint64_t nbytes = 0
        cdef Py_ssize_t end = start
        if not self.cold and not self.buffered:
            return self.count
        while end < self.count and (end == start or nbytes < MAX_LOADED):
            nbytes += self.records[end].size
            end += 1
        if self.buffered:
            self.copy_records(start, end, nbytes)
        else:
            self.page_in(start, end, names)
        return end

    cdef int page_in(self, Py_ssize_t start, Py_ssize_t end, tuple names) except -1:
        """Populate the pages of records of mapped files that are not resident."""
        cdef FieldShard shard
        cdef Pieces pieces = Pieces()
        cdef record_t *record
        cdef Py_ssize_t r, member
        cdef list columns
        cdef list fields = []      # (shard, member), of large records
        for r in range(start, end):
            record = &self.records[r]
            shard = <FieldShard> self.shards[record.shard]
            member = shard.member_at(record.i, -1)
            if shard.reads_fields(<Source> self.sources[record.shard], record.size):
                columns = shard.columns_of(names)
                for column in columns:
                    fields.append((shard, shard.member_at(record.i, column)))
                if columns:
                    member = shard.member_at(record.i, columns[0])
            pieces.add_cold(shard, member)
        pieces.page_in()           # of large ones the heads, unless they are resident
        pieces = Pieces()
        for shard, member in fields:
            pieces.add_cold(shard, member)
        pieces.page_in()
        return 0

    cdef int copy_records(
        self, Py_ssize_t start, Py_ssize_t end, uint64_t nbytes
    ) except -1:
        """Copy records to the buffer."""
        cdef Py_buffer found
        cdef const int64_t *offsets
        cdef FieldShard shard
        cdef uint8_t *to
        cdef Py_ssize_t r
        cdef list shards = []
        members = array("q", [0]) * (end - start)
        for r in range(start, end):
            shard = <FieldShard> self.shards[self.records[r].shard]
            shards.append(shard)
            members[r - start] = shard.member_at(self.records[r].i, -1)
        self.buffer = None
        self.buffer = bytearray(nbytes)
        ends = gather(shards, members, self.buffer)
        to = <uint8_t *> <char *> (<bytearray> self.buffer)
        offsets = int64s_of(ends, &found)
        try:
            for r in range(start, end):
                self.records[r].at = to + offsets[r - start]
        finally:
            PyBuffer_Release(&found)
        return 0


cdef dict sort_columns(dict found, tuple names):
    """Return the columns in the order of `names`."""
    if tuple(found) == names:
        return found
    return {name: found[name] for name in names if name in found}


cdef Py_ssize_t wrap_position(Py_ssize_t i, Py_ssize_t count) except -1:
    """Return a position in range; a negative one counts from the end."""
    if not -count <= i < count:
        raise IndexError(f"position {i} is out of range for length {count:,}")
    return i + count if i < 0 else i


cdef const int64_t *positions_of(
    object positions, Py_ssize_t count, Py_buffer *buffer
) except? NULL:
    """Return a pointer to positions; those of an array of int64 are not checked."""
    if PyObject_CheckBuffer(positions):
        try:
            return int64s_of(positions, buffer)
        except (TypeError, ValueError, BufferError):  # other numbers, or strided
            pass
    return int64s_of(resolve_positions(positions, count), buffer)


cdef dict read_batch(
    ColumnBatch batch, SampleLocator locator, object positions, tuple names,
    object allocate,
):
    """Return columns of samples by position, read by an empty batch."""
    cdef Py_buffer buffer
    cdef const int64_t *numbers
    cdef location_t location
    cdef Py_ssize_t i, k, count
    cdef object samples
    if not names:
        return {}
    numbers = positions_of(positions, locator.count, &buffer)
    try:
        count = buffer.len // 8
        batch.reserve(count)
        for k in range(count):
            i = numbers[k]         # loaded once: another thread may write the array
            locator.locate(
                i if 0 <= i < locator.count else wrap_position(i, locator.count),
                &location,
            )
            samples = locator.samples[location.shard]
            if samples is None:
                samples = locator.open_shard(location.shard)
            if locator.used is not None:
                locator.used[location.shard] = 1
            if not batch.add(samples, location.at):
                return {}
    finally:
        PyBuffer_Release(&buffer)
    return batch.stack(names, allocate)


@cython.final
cdef class SampleList:
    """Stored samples by position; a sample is made on access.

    Batches that are kept have no object for each sample.
    """

    def __cinit__(self, list samples not None):
        cdef SampleBase sample
        cdef object last = None
        cdef Py_ssize_t owner = -1
        cdef dict numbers = {}     # of owners, by their ids: some compare as sequences
        self.owners = []
        self.places = <place_t *> malloc((len(samples) + 1) * sizeof(place_t))
        if self.places == NULL:
            raise MemoryError
        for item in samples:
            sample = <SampleBase?> item
            if sample.samples is not last:
                last = sample.samples
                owner = numbers.setdefault(id(last), len(numbers))
                if owner == len(self.owners):
                    self.owners.append(last)
            self.places[self.count].owner = owner
            self.places[self.count].position = sample.position
            self.count += 1

    def __dealloc__(self):
        free(self.places)

    def __reduce__(self):
        raise TypeError("a SampleList does not pickle")

    def __len__(self):
        return self.count

    def __iter__(self):
        cdef Py_ssize_t i
        for i in range(self.count):
            yield self[i]

    def __getitem__(self, Py_ssize_t i):
        if not 0 <= i < self.count:
            raise IndexError(f"no sample {i} of {self.count:,}")
        return self.owners[self.places[i].owner][self.places[i].position]


@cython.nonecheck(True)
cdef dict stack_batch(ColumnBatch batch, object samples, tuple names, object allocate):
    """Return columns of a list or a `SampleList`, read by an empty batch."""
    cdef SampleBase sample
    cdef SampleList stored
    cdef place_t place
    cdef Py_ssize_t k
    if not names:
        return {}
    batch.reserve(len(samples))
    if type(samples) is SampleList:
        stored = <SampleList> samples
        for k in range(stored.count):
            place = stored.places[k]
            if not batch.add(stored.owners[place.owner], place.position):
                return {}
        return batch.stack(names, allocate)
    for sample in <list?> samples:
        if not batch.add(sample.samples, sample.position):
            return {}
    return batch.stack(names, allocate)
