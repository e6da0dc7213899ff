# cython: nonecheck=True
"""Rows of a columnar dataset: the shard and the offset of each sample's fields.

A field has one table of members over all its shards. A member's position in it is the
position of its sample; its size is unknown until its header is read.
"""

cimport cython
from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memset

from fastshard._core.buffers cimport int64s_of
from fastshard._core.columnar.column_file cimport BLOCK, ColumnFile, parse_offset
from fastshard._core.dataset.npy cimport (
    CACHED_HEADER, Layout, find_layout, get_layout_cache, make_layout_array,
    make_member_array,
)
from fastshard._core.dataset.shard cimport (
    STAGE_EXTENT, STAGE_LIST, SampleBase, SamplesBase, Shard,
)
from fastshard._core.io.source cimport Source
from fastshard._core.parse.sqlite cimport (
    KIND_NULL, KIND_NUMBER, KIND_TEXT, TREE_END, TREE_NO_MEMORY, TREE_ROW,
    TREE_UNSUPPORTED, tree_free, tree_next, tree_open, tree_t, value_t,
)
from fastshard._core.platform cimport fs_load, fs_prefetch_line
from fastshard._core.span cimport span_of, span_t
from fastshard._core.table.extents cimport (
    ExtentTable, columns_add, columns_add_info, columns_free, columns_t,
    decode_text_before, encode_text, grown_capacity, info_at, make_table, name_at,
    resize, resolve_position,
)
from fastshard._core.threads cimport fs_atomic_load, fs_atomic_publish

from functools import partial

from fastshard._core.table.extents import find_names
from fastshard._util.options import near_fields, near_names
from fastshard.errors import (
    ClosedError, FieldNotFoundError, FormatError, SampleNotFoundError,
)

cdef enum:
    FIRST_READ = 16 << 10          # bytes prefetched of a member of unknown size
    SUFFIX_SIZE = 4                # bytes of ".npy"
    MAX_TAGS = 256                 # a tag is a byte
    ROWS_AHEAD = 4                 # samples between two prefetch stages of `read_many`
    FIELD_BYTES = 32               # memory of a row and field, while an image is read

cdef enum:                         # indexes of a row's values in `wanted`
    ID
    METADATA
    FIRST_FIELD                    # offset and shard of each field

cdef uint64_t UNKNOWN = <uint64_t> -1


@cython.final
@cython.no_gc
cdef class ShardMappings:
    """Addresses of the mapped shards of a field; keeps them mapped."""

    def __cinit__(self, size_t count):
        self.at = <mapping_t *> calloc(count + 1, sizeof(mapping_t))
        if self.at == NULL:
            raise MemoryError
        self.count = count
        self.sources = []

    def __reduce__(self):
        raise TypeError("ShardMappings do not pickle")

    def __dealloc__(self):
        free(self.at)


@cython.final
@cython.no_gc
cdef class Cells:
    """Offset, size and mark of each row of a field; all fields share the names."""

    cdef int add(self, uint64_t offset, int32_t slot) except -1:
        """Append a row."""
        cdef size_t capacity = 2 * self.capacity + 1024
        if self.count == self.capacity:
            if not (
                resize(<void **> &self.offsets, capacity, sizeof(uint64_t))
                and resize(<void **> &self.marks, capacity, sizeof(mark_t))
            ):
                raise MemoryError
            self.capacity = capacity
        self.offsets[self.count] = offset
        self.marks[self.count].slot = slot
        self.marks[self.count].layout = 0
        self.count += 1
        return 0

    cdef int finish(self, ExtentTable names) except -1:
        """Shrink the memory to its use; set all sizes to UNKNOWN."""
        if not (
            resize(<void **> &self.offsets, self.count, sizeof(uint64_t))
            and resize(<void **> &self.marks, self.count, sizeof(mark_t))
            and resize(<void **> &self.sizes, self.count, sizeof(uint64_t))
        ):
            raise MemoryError
        memset(self.sizes, 0xff, self.count * sizeof(uint64_t))
        self.names = names
        return 0

    def __dealloc__(self):
        free(self.offsets)
        free(self.sizes)
        free(self.marks)


cdef str decode_key(ExtentTable names, Py_ssize_t i):
    """Return the key of a sample: its members' name without the suffix."""
    return decode_text_before(name_at(&names.columns, <uint32_t> i), SUFFIX_SIZE)


cdef bint has_same_header(Layout one, Layout other) noexcept:
    return (
        one.header_size == other.header_size
        and memcmp(one.header, other.header, one.header_size) == 0
    )


cdef bint is_same_file(ColumnFile file, tuple first) except -1:
    """Say whether a file is the one that was opened first; it may have grown."""
    identity, was_exact = first
    if file.is_exact and was_exact:
        return identity[:2] == file.identity[:2] and identity[2] <= file.identity[2]
    return identity == file.identity


@cython.final
cdef class Rows:
    """Rows of one field: the shard and the offset of each sample's array.

    Parameters
    ----------
    field : str
    open_file : callable
        ``open_file(number)`` returns the `ColumnFile` of a shard.
    path : str
        Path of the index, for error messages.

    Attributes
    ----------
    unpickle : callable or None
        ``unpickle(data, error)`` returns an array of Python objects, or raises
        `error`, the reason why the member is not a plain array.
    """

    def __cinit__(self, str field not None, open_file, str path not None):
        self.field = field
        self.path = path
        self.open_file = open_file
        self.numbers = []
        self.cells = Cells.__new__(Cells)

    def __reduce__(self):
        raise TypeError("Rows do not pickle")

    def forget(self, ColumnFile file not None):
        """Forget a shard; reads in progress continue."""
        with cython.critical_section(self):
            self.mappings = None
            if self.slots is None:
                self.slots = {number: k for k, number in enumerate(self.numbers)}
            slot = self.slots.get(file.number)
            shard = None if slot is None else self.shards[slot]
            if shard is not None and (<ColumnShard> shard).file is file:
                self.shards[slot] = None

    cdef uint32_t find_tag(self, Layout layout) except? 0:
        """Return a tag that no other layout of the column has, or 0 if none is left."""
        if layout.header_size > CACHED_HEADER:
            return 0
        with cython.critical_section(self):
            if self.common is not None and has_same_header(self.common, layout):
                return self.common_tag
            self.tags = min(self.tags + 1, MAX_TAGS)
            if self.common is None:
                self.common = layout  # never replaced: it is read without a lock
                self.common_tag = self.tags
            return 0 if self.tags == MAX_TAGS else self.tags

    @property
    def count(self):
        """Number of samples that have the field."""
        cdef size_t i
        cdef size_t found = 0
        for i in range(self.cells.count):
            found += self.cells.marks[i].slot != ABSENT
        return found

    def data_bytes(self):
        """Return the sum of the members' sizes in bytes; read their headers.

        Raises
        ------
        FormatError, OSError
            A member cannot be found.
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
        """Append a row."""
        cdef int64_t at
        if offset is None and shard is None:
            return self.cells.add(0, ABSENT)
        at = parse_offset(offset)
        if at < 0 or type(shard) is not int or shard < 0:
            return self.cells.add(0, INVALID)
        return self.cells.add(<uint64_t> at, self.slot_of(shard, slots))

    cdef int32_t slot_of(self, object shard, dict slots) except? -1:
        """Return the slot of a shard; add one for a new shard."""
        cdef object slot = slots.get(shard)
        if slot is None:
            slot = slots[shard] = len(self.numbers)
            self.numbers.append(shard)
        return slot

    cdef int take_columns(
        self, uint64_t **offsets, const int64_t *shards, ExtentTable names
    ) except -1:
        """Set the rows of all samples; take over the memory of `offsets`."""
        cdef dict slots = {}
        cdef size_t count = names.columns.count
        cdef int32_t slot = ABSENT
        cdef int64_t last = ABSENT
        cdef size_t i
        self.cells.offsets = offsets[0]
        offsets[0] = NULL
        if not resize(<void **> &self.cells.marks, count, sizeof(mark_t)):
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
        self.identities = [None] * len(self.numbers)
        return 0

    cdef bint has(self, Py_ssize_t i) except -1:
        return self.cells.marks[i].slot != ABSENT

    cdef ColumnShard shard_of(self, Py_ssize_t i):
        """Return the shard that holds the member of a sample that has the field."""
        cdef int32_t slot = self.cells.marks[i].slot
        cdef object shard
        if slot < 0:
            raise FormatError(
                f"the index has an invalid shard or offset for field {self.field!r}",
                self.path, 0, self.table.name(i),
            )
        shard = self.shards[slot]
        if shard is None:
            shard = self.open(slot)
        return <ColumnShard> shard

    cdef bint has_common_layout(self, Py_ssize_t i) noexcept:
        """Say whether a row was checked to have the common layout."""
        return self.common_tag != 0 and self.cells.marks[i].layout == self.common_tag

    cdef object array(self, Py_ssize_t i):
        """Return the array of a sample that has the field; parse no header twice."""
        cdef ColumnShard shard = self.shard_of(i)
        cdef Source source
        cdef Layout common = self.common
        cdef uint8_t *at
        cdef uint64_t offset, size
        if common is not None and self.has_common_layout(i):
            source = shard.open_source()
            offset = fs_atomic_load(self.cells.offsets + i)
            size = common.header_size + common.nbytes
            shard.check_extent(source, i, offset, size)
            try:
                owner = source.pin(offset, size, &at)
            except (FormatError, OSError) as error:
                raise shard.annotate(error, i) from None
            return make_layout_array(common, at, owner)
        owner = shard.pin(i, &at, &size)
        if (
            common is None or size < common.header_size
            or size - common.header_size != common.nbytes
            or memcmp(at, common.header, common.header_size) != 0
        ):
            try:
                array = make_member_array(shard, i, at, size, owner, None, None)
            except FormatError as error:
                if self.unpickle is None:
                    raise
                return self.unpickle((<const char *> at)[:size], error)
            if common is None:     # the member is checked now
                self.find_tag(find_layout(at, size, get_layout_cache(shard)))
            return array
        self.cells.marks[i].layout = self.common_tag
        return make_layout_array(common, at, owner)

    cdef object open(self, int32_t slot):
        cdef ColumnFile file = <ColumnFile?> self.open_file(self.numbers[slot])
        cdef ColumnShard shard = ColumnShard.__new__(
            ColumnShard, file.source, self.table, file.path, "mmap"
        )
        first = self.identities[slot]
        if first is None:
            self.identities[slot] = file.identity, file.is_exact
        elif not is_same_file(file, first):
            raise FormatError(
                "the shard has changed since its first read; call refresh()",
                file.path, 0,
            )
        shard.direct = None        # its sizes may be unknown
        shard.file = file
        shard.cells = self.cells
        shard.layouts = file.layouts
        file.add_holder(self)
        self.shards[slot] = shard
        return shard

    cdef void prefetch(self, Py_ssize_t i, int stage) noexcept:
        cdef int32_t slot
        cdef uint64_t offset
        cdef object shard
        cdef Source source
        if stage == STAGE_LIST:
            fs_prefetch_line(self.cells.marks + i)
            fs_prefetch_line(self.cells.offsets + i)
            return
        slot = self.cells.marks[i].slot
        if stage != STAGE_EXTENT or slot < 0:
            return
        shard = self.shards[slot]
        if shard is None:
            return
        source = (<ColumnShard> shard).source
        offset = fs_load(self.cells.offsets + i)
        if source is None or source.base == NULL or not (
            BLOCK <= offset < source.nbytes
        ):
            return
        fs_prefetch_line(self.cells.sizes + i)
        if self.cells.marks[i].layout == 0:  # its headers are not checked
            fs_prefetch_line(source.base + offset - BLOCK)
            fs_prefetch_line(source.base + offset - BLOCK + 128)
        fs_prefetch_line(source.base + offset)
        fs_prefetch_line(source.base + min(offset + 64, source.nbytes - 1))


@cython.final
cdef class ColumnShard(Shard):
    """Shard of one field, with the table of all members of the field."""

    cdef int extent(
        self, Source source, Py_ssize_t i, uint64_t *offset, uint64_t *size
    ) except -1:
        cdef uint64_t found
        size[0] = fs_atomic_load(self.cells.sizes + i)  # first: it is written last
        offset[0] = fs_atomic_load(self.cells.offsets + i)
        if size[0] == UNKNOWN:
            self.file.find(offset[0], name_at(&self.table.columns, i), &found, size)
            offset[0] = found
            fs_atomic_publish(self.cells.offsets + i, found)
            fs_atomic_publish(self.cells.sizes + i, size[0])
        return self.check_extent(source, i, offset[0], size[0])

    cdef bint estimate_extent(
        self, Source source, Py_ssize_t i, uint64_t *offset, uint64_t *size
    ) noexcept:
        """Set a member's likely extent with its header: up to the next sample's."""
        cdef uint64_t end
        cdef uint64_t at = fs_load(self.cells.offsets + i)
        if at < BLOCK or at >= source.nbytes:
            return False
        size[0] = fs_atomic_load(self.cells.sizes + i)
        if size[0] == UNKNOWN:
            size[0] = max(self.file.likely_size, <uint64_t> FIRST_READ)
            if <size_t> i + 1 < self.cells.count:
                end = fs_load(self.cells.offsets + i + 1)
                if (
                    self.cells.marks[i + 1].slot == self.cells.marks[i].slot
                    and end > at + BLOCK
                ):
                    size[0] = end - BLOCK - at
        offset[0] = at - BLOCK
        size[0] = min(size[0], source.nbytes - at) + BLOCK
        return True


cdef Py_ssize_t find_missing(const int64_t *positions, Py_ssize_t count) noexcept:
    """Return the index of the first position below 0, or -1."""
    cdef Py_ssize_t k
    for k in range(count):
        if positions[k] < 0:
            return k
    return -1


@cython.final
cdef class ColumnSamples(SamplesBase):
    """Samples whose fields are stored in separate shards.

    Parameters
    ----------
    columns : list of Rows
    names : ExtentTable
        Names of the samples' members: the key and ``.npy``.
    sample_type : type
    owner : object
        Dataset with the attributes ``path``, for error messages, and ``closed``.
    has_metadata : bool
        The infos in `names` are the samples' metadata.
    """

    cdef readonly list columns     # of Rows
    cdef dict by_field
    cdef readonly ExtentTable names
    cdef readonly object owner
    cdef readonly bint has_metadata

    def __cinit__(
        self, list columns not None, ExtentTable names not None, type sample_type,
        owner, bint has_metadata=False,
    ):
        self.columns = columns
        self.by_field = {column.field: column for column in columns}
        self.names = names
        self.sample_type = sample_type
        self.owner = owner
        self.has_metadata = has_metadata

    @property
    def field_names(self):
        """Fields in the order of the index."""
        return list(self.by_field)

    def having(self, tuple fields not None):
        """Return a byte per sample: 1 if it has all these fields, else 0."""
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
            A key has no sample.
        """
        cdef Py_buffer buffer
        cdef object found = find_names(self.names, keys, ".npy")
        cdef const int64_t *positions = int64s_of(found, &buffer)
        cdef Py_ssize_t missing
        try:
            missing = find_missing(positions, len(keys))
        finally:
            PyBuffer_Release(&buffer)
        if missing >= 0:
            key = keys[missing]
            near = partial(near_names, key, self.count(), self.key_at)
            raise SampleNotFoundError(key, self.owner.path, near)
        return found

    def search_key(self, str key not None):
        """Return the position of a sample, or -1."""
        return self.search(key)

    def keys_of(self, positions):
        """Return the keys of samples: a list.

        Parameters
        ----------
        positions : buffer of int64
            Positions in range.
        """
        cdef Py_buffer buffer
        cdef const int64_t *numbers
        cdef Py_ssize_t count = self.count()
        cdef Py_ssize_t k
        cdef list found = []
        numbers = int64s_of(positions, &buffer)
        try:
            for k in range(buffer.len // 8):
                if not 0 <= numbers[k] < count:
                    raise IndexError(
                        f"position {numbers[k]} is out of range for {count:,} samples"
                    )
                found.append(self.key(numbers[k]))
            return found
        finally:
            PyBuffer_Release(&buffer)

    cdef Py_ssize_t count(self) except -1:
        if self.owner.closed:
            raise ClosedError(f"{self.owner.path} is closed")
        return self.names.columns.count

    cdef str key(self, Py_ssize_t i):
        return decode_key(self.names, i)

    cdef Py_ssize_t search(self, object key) except -2:
        cdef Py_ssize_t size
        try:
            PyUnicode_AsUTF8AndSize(key, &size)
        except UnicodeEncodeError:  # a lone surrogate: ids are UTF-8
            return -1
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

    cdef bint is_resident(self, SampleBase sample) except -1:
        cdef Rows rows
        cdef Py_ssize_t i = sample.position
        for rows in self.columns:
            if rows.has(i) and (sample.only is None or rows.field in sample.only):
                if not rows.shard_of(i).open_source().is_resident():
                    return False
        return True

    cdef void prefetch(self, Py_ssize_t i, int stage) noexcept:
        cdef Rows rows
        if stage == STAGE_LIST:
            fs_prefetch_line(self.names.columns.name_ends + i)
        for rows in self.columns:
            rows.prefetch(i, stage)

    def arrays(self, i, list columns=None, bint copy=False):
        """Return the arrays of a sample by field, optionally of some columns.

        Raises
        ------
        IndexError
            The position is out of range.
        FormatError, OSError
            An array cannot be read.
        """
        cdef Py_ssize_t at = resolve_position(i, self.count())
        cdef Rows rows
        cdef dict found = {}
        columns = self.columns if columns is None else columns
        for rows in columns:
            rows.prefetch(at, STAGE_LIST)
        for rows in columns:
            if not rows.has_common_layout(at):
                rows.prefetch(at, STAGE_EXTENT)
        for rows in columns:
            if rows.has(at):
                found[rows.field] = rows.array(at)
        if copy:
            return {field: array.copy("K") for field, array in found.items()}
        return found

    def read(self, str key not None, list columns not None, bint copy=False):
        """Return the arrays of a sample by field, and the text of its metadata.

        Returns None if there is no such sample; the text is None if it is not UTF-8.
        Needs `has_metadata`.

        Raises
        ------
        FormatError, OSError
            An array cannot be read.
        """
        cdef Py_ssize_t i = self.search(key)
        if i < 0:
            return None
        return self.arrays(i, columns, copy), self.metadata_text(i)

    def read_many(self, list keys not None, list columns not None, bint copy=False):
        """Return the result of `read` for each key, or None if a key has no sample."""
        cdef Py_buffer buffer
        cdef object found = find_names(self.names, keys, ".npy")
        cdef const int64_t *positions = int64s_of(found, &buffer)
        try:
            return self.read_positions(positions, buffer.len // 8, columns, copy)
        finally:
            PyBuffer_Release(&buffer)

    cdef list read_positions(
        self, const int64_t *positions, Py_ssize_t count, list columns, bint copy
    ):
        """Return the results of `read_many`, or None if a position is below 0."""
        cdef Py_ssize_t i, k
        cdef list found = []
        cdef int stage
        cdef Rows rows
        if find_missing(positions, count) >= 0:
            return None
        for k in range(count):
            for stage in (STAGE_LIST, STAGE_EXTENT):
                i = k + (ROWS_AHEAD if stage == STAGE_EXTENT else 2 * ROWS_AHEAD)
                if i < count:
                    for rows in columns:
                        rows.prefetch(positions[i], stage)
            i = positions[k]
            found.append((self.arrays(i, columns, copy), self.metadata_text(i)))
        return found

    cpdef metadata_text(self, Py_ssize_t i):
        """Return the text of a sample's metadata, maybe empty; None if not UTF-8."""
        cdef span_t text
        if not 0 <= i < <Py_ssize_t> self.names.columns.count:
            raise IndexError(
                f"position {i} is out of range for {self.names.columns.count:,} samples"
            )
        text = info_at(&self.names.columns, i)
        try:
            return PyUnicode_DecodeUTF8(<const char *> text.at, text.left, NULL)
        except UnicodeDecodeError:
            return None

    def columns_of(self, fields):
        """Return the columns of some fields.

        Raises
        ------
        FieldNotFoundError
            There is no such field.
        """
        for field in fields:
            if field not in self.by_field:
                near = partial(near_fields, field, list(self.by_field))
                raise FieldNotFoundError(field, self.owner.path, near)
        return [self.by_field[field] for field in fields]


def read_rows(chunks, list fields not None, opener, str path not None):
    """Read rows of an index.

    Parameters
    ----------
    chunks : iterable of list of tuple
        ``(id, offset, shard, offset, shard, ...)``: offset and shard of each field.
    fields : list of str
    opener : callable
        ``opener(field)`` returns the `open_file` of `Rows`.
    path : str
        Path of the index, for error messages.

    Returns
    -------
    columns : list of Rows
    names : ExtentTable

    Raises
    ------
    FormatError
        A sample's id is not text.
    """
    cdef columns_t columns
    cdef span_t name
    cdef Rows rows
    cdef tuple row
    cdef Py_ssize_t k
    cdef Py_ssize_t width = 2 * len(fields) + 1
    cdef list found = [Rows(field, opener(field), path) for field in fields]
    cdef list slots = [{} for _ in fields]
    cdef ExtentTable names
    memset(&columns, 0, sizeof(columns))
    try:
        for chunk in chunks:
            for row in chunk:
                if len(row) != width:
                    raise ValueError(
                        f"a row must have {width} values, got {len(row)}"
                    )
                if type(row[0]) is not str:
                    raise FormatError(
                        f"the id of row {columns.count + 1:,} is {row[0]!r}, "
                        "expected text",
                        path, 0,
                    )
                member = (<str> row[0]) + ".npy"
                keeper = encode_text(member, &name)
                if keeper is None or not columns_add(&columns, 0, 0, name):
                    raise MemoryError
                for k in range(len(found)):
                    rows = <Rows> found[k]
                    rows.add(row[2 * k + 1], row[2 * k + 2], <dict> slots[k])
        names = make_table(&columns)
    finally:
        columns_free(&columns)
    for rows in found:
        rows.finish(names)
    return found, names


cdef struct field_t:               # a field, while an image is read
    uint64_t *offsets
    int64_t *shards                # numbers, or ABSENT or INVALID


cdef struct reading_t:             # state of `read_image`
    tree_t tree
    columns_t columns              # member names, and metadata as infos
    int *wanted                    # by column of a row, as `tree_next` takes it
    size_t row_width               # columns of a row to read
    value_t *values                # of the last row
    field_t *fields
    size_t width                   # number of fields
    size_t capacity                # of the fields, in rows
    size_t max_rows
    uint8_t *name                  # of the last row's member
    size_t name_capacity           # in bytes


cdef bint add_name(reading_t *reading, span_t key) noexcept nogil:
    """Append a row with its name; False if there is no memory."""
    cdef size_t size = key.left + SUFFIX_SIZE
    if size > reading.name_capacity:
        if not resize(<void **> &reading.name, 2 * size, 1):
            return False
        reading.name_capacity = 2 * size
    memcpy(reading.name, key.at, key.left)
    memcpy(reading.name + key.left, b".npy", SUFFIX_SIZE)
    return columns_add(&reading.columns, 0, 0, span_of(reading.name, size))


cdef int reserve_row(reading_t *reading) noexcept nogil:
    """Reserve memory for the extents of one more row; return a tree_status_t."""
    cdef size_t capacity = min(grown_capacity(reading.capacity, 2.0), reading.max_rows)
    cdef size_t k
    if reading.columns.count < reading.capacity:
        return TREE_ROW
    if reading.columns.count == reading.max_rows:
        return TREE_UNSUPPORTED
    for k in range(reading.width):
        if not (
            resize(<void **> &reading.fields[k].offsets, capacity, sizeof(uint64_t))
            and resize(<void **> &reading.fields[k].shards, capacity, sizeof(int64_t))
        ):
            return TREE_NO_MEMORY
    reading.capacity = capacity
    return TREE_ROW


cdef void add_extents(reading_t *reading) noexcept nogil:
    """Store the offsets and shards of the row added last."""
    cdef size_t k
    cdef size_t i = reading.columns.count - 1
    cdef const value_t *offset
    cdef const value_t *shard
    for k in range(reading.width):
        offset = &reading.values[FIRST_FIELD + 2 * k]
        shard = offset + 1
        reading.fields[k].offsets[i] = 0
        if offset.kind == KIND_NULL and shard.kind == KIND_NULL:
            reading.fields[k].shards[i] = ABSENT
        elif (
            offset.kind == KIND_NUMBER and shard.kind == KIND_NUMBER
            and offset.number >= 0 and shard.number >= 0
        ):
            reading.fields[k].offsets[i] = <uint64_t> offset.number
            reading.fields[k].shards[i] = shard.number
        else:
            reading.fields[k].shards[i] = INVALID


cdef int read_all(reading_t *reading) noexcept nogil:
    """Read all rows; return a tree_status_t."""
    cdef const value_t *metadata = &reading.values[METADATA]
    cdef int status
    while True:
        status = tree_next(
            &reading.tree, reading.values, reading.wanted, reading.row_width
        )
        if status != TREE_ROW:
            return status
        if reading.values[ID].kind != KIND_TEXT:
            return TREE_UNSUPPORTED
        if metadata.kind != KIND_TEXT and metadata.kind != KIND_NULL:
            return TREE_UNSUPPORTED
        status = reserve_row(reading)
        if status != TREE_ROW:
            return status
        if not add_name(reading, reading.values[ID].text):
            return TREE_NO_MEMORY
        add_extents(reading)
        if not columns_add_info(
            &reading.columns,
            metadata.text if metadata.kind == KIND_TEXT else span_of(reading.name, 0),
        ):
            return TREE_NO_MEMORY


cdef bint is_text(const columns_t *columns) except -1:
    """Say whether all ids are UTF-8; decode them at once, as each ends in ASCII."""
    try:
        PyUnicode_DecodeUTF8(<const char *> columns.names, columns.names_size, NULL)
    except UnicodeDecodeError:
        return False
    return True


cdef void reading_free(reading_t *reading) noexcept nogil:
    """Free the memory that no `Rows` took over."""
    cdef size_t k
    if reading.fields != NULL:
        for k in range(reading.width):
            free(reading.fields[k].offsets)
            free(reading.fields[k].shards)
    free(reading.fields)
    free(reading.values)
    free(reading.wanted)
    free(reading.name)
    columns_free(&reading.columns)
    tree_free(&reading.tree)


cdef int select_columns(reading_t *reading, list numbers, size_t width) except -1:
    """Set the columns of a row to read."""
    cdef size_t k
    if len(numbers) != <Py_ssize_t> (FIRST_FIELD + 2 * width) or min(numbers) < 0:
        raise ValueError(
            f"expected {FIRST_FIELD + 2 * width} column numbers of at least 0 for "
            f"{width} fields, got {numbers}"
        )
    reading.width = width
    reading.row_width = max(numbers) + 1
    reading.wanted = <int *> malloc(reading.row_width * sizeof(int))
    reading.values = <value_t *> calloc(FIRST_FIELD + 2 * width, sizeof(value_t))
    reading.fields = <field_t *> calloc(width + 1, sizeof(field_t))
    if reading.wanted == NULL or reading.values == NULL or reading.fields == NULL:
        raise MemoryError
    for k in range(reading.row_width):
        reading.wanted[k] = -1
    for k in range(<size_t> len(numbers)):
        reading.wanted[<size_t> numbers[k]] = k
    return 0


def read_image(
    bytes image not None, int64_t root, list numbers not None, list fields not None,
    opener, str path not None, size_t max_bytes,
):
    """Read the rows of an index from the image of its database.

    Parameters
    ----------
    image : bytes
        Bytes of an SQLite database.
    root : int
        First page of the table of samples.
    numbers : list of int
        Column numbers of a stored row: of the id, the metadata, and the offset and
        the shard of each field.
    fields, opener, path
        As for `read_rows`.
    max_bytes : int
        Maximum memory of the extents, in bytes. A NULL takes no byte in the image, but
        32 here.

    Returns
    -------
    columns : list of Rows
    names : ExtentTable
        The metadata are its infos.
    or None
        The image is not a well-formed database, a value has an unexpected type, or
        memory exceeds `max_bytes`: read by SQL, which reports the error.
    """
    cdef reading_t reading
    cdef Rows column
    cdef ExtentTable names
    cdef size_t k
    cdef int status
    cdef list found = []
    cdef span_t span = span_of(<const uint8_t *> PyBytes_AS_STRING(image), len(image))
    memset(&reading, 0, sizeof(reading))
    try:
        select_columns(&reading, numbers, len(fields))
        reading.max_rows = max_bytes // (FIELD_BYTES * max(reading.width, <size_t> 1))
        if not tree_open(&reading.tree, span, root):
            return None
        with nogil:
            status = read_all(&reading)
        if status == TREE_NO_MEMORY:
            raise MemoryError
        if status != TREE_END or not is_text(&reading.columns):
            return None
        names = make_table(&reading.columns)
        for k in range(reading.width):
            column = Rows(fields[k], opener(fields[k]), path)
            column.take_columns(
                &reading.fields[k].offsets, reading.fields[k].shards, names
            )
            found.append(column)
        return found, names
    finally:
        reading_free(&reading)
