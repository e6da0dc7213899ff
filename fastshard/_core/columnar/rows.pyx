# cython: nonecheck=True
"""Rows of a columnar dataset: the shard and the offset of each sample's fields.

A field has one table of members over all its shards. A member's position in it is the
position of its sample; its size is unknown until its header is read. For an array in a
pack the table has the offset of the pack, and in the place of the size its row there.
"""

cimport cython
from cpython.buffer cimport PyBuffer_Release
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memset

from fastshard._core.buffers cimport int64s_of
from fastshard._core.columnar.column_file cimport BLOCK, ColumnFile, Pack, parse_offset
from fastshard._core.dataset.npy cimport (
    CACHED_HEADER, Layout, find_layout, get_layout_cache, make_layout_array,
    make_member_array, make_shaped_array,
)
from fastshard._core.dataset.shard cimport (
    STAGE_EXTENT, STAGE_LIST, SampleBase, SamplesBase, Shard,
)
from fastshard._core.io.source cimport Source, View
from fastshard._core.platform cimport fs_load, fs_prefetch_line
from fastshard._core.span cimport span_t
from fastshard._core.table.checksums cimport decode_row
from fastshard._core.table.extents cimport (
    ExtentTable, columns_t, info_at, name_at, resize, resolve_position,
)
from fastshard._core.table.names cimport decode_text_before
from fastshard._core.threads cimport fs_atomic_load, fs_atomic_publish

from functools import partial

from fastshard._core.table.extents import find_names
from fastshard._util.options import near_fields, near_names
from fastshard.errors import (
    ClosedError, FastshardError, FieldNotFoundError, FormatError, SampleNotFoundError,
)

cdef enum:
    FIRST_READ = 16 << 10          # bytes prefetched of a member of unknown size
    SUFFIX_SIZE = 4                # bytes of ".npy"
    MAX_TAGS = 256                 # a tag is a byte
    LINE = 64                      # bytes of a cache line
    MAX_LINES = 4                  # of a row that are prefetched
    MAX_RUN_BYTES = 64 << 10       # of rows that are read together without a mapping
    ROWS_AHEAD = 4                 # samples between two prefetch stages of `read_many`

cdef uint64_t UNKNOWN = <uint64_t> -1


@cython.final
@cython.no_gc
cdef class ShardMappings:
    """Addresses of the mapped shards of a field; keeps them mapped."""

    def __cinit__(self, size_t count, size_t pack_count=0):
        self.at = <mapping_t *> calloc(count + 1, sizeof(mapping_t))
        self.packs = <pack_t *> calloc(pack_count + 1, sizeof(pack_t))
        if self.at == NULL or self.packs == NULL:
            raise MemoryError
        self.count = count
        self.sources = []

    def __reduce__(self):
        raise TypeError("ShardMappings do not pickle")

    def __dealloc__(self):
        free(self.at)
        free(self.packs)


@cython.final
@cython.no_gc
cdef class Cells:
    """Offset, size and mark of each row of a field; all fields share the names."""

    cdef int add(self, uint64_t offset, int32_t slot, int64_t row) except -1:
        """Append a row; `row` is the one in its pack, or -1."""
        cdef size_t capacity = 2 * self.capacity + 1024
        if self.count == self.capacity:
            if not (
                resize(<void **> &self.offsets, capacity, sizeof(uint64_t))
                and resize(<void **> &self.marks, capacity, sizeof(mark_t))
                and resize(<void **> &self.sizes, capacity, sizeof(uint64_t))
            ):
                raise MemoryError
            self.capacity = capacity
        self.offsets[self.count] = offset
        self.marks[self.count].slot = slot
        self.marks[self.count].layout = <uint32_t> min(max(row, 0), <int64_t> MAX_ROW)
        self.sizes[self.count] = <uint64_t> row  # -1 is UNKNOWN
        self.count += 1
        return 0

    cdef int32_t add_pack(self, int32_t slot, uint64_t offset) except? -1:
        """Append a pack of a shard; return its number."""
        cdef size_t capacity = 2 * self.pack_capacity + 64
        if self.pack_count == self.pack_capacity:
            if capacity > MAX_ROW or not (
                resize(<void **> &self.packs, capacity, sizeof(pack_place_t))
            ):
                raise MemoryError
            self.pack_capacity = capacity
        self.packs[self.pack_count].offset = offset
        self.packs[self.pack_count].slot = slot
        self.pack_count += 1
        return <int32_t> (self.pack_count - 1)

    cdef int finish(self, ExtentTable names) except -1:
        """Shrink the memory to its use; without packs, set all sizes to UNKNOWN."""
        if not (
            resize(<void **> &self.offsets, self.count, sizeof(uint64_t))
            and resize(<void **> &self.marks, self.count, sizeof(mark_t))
            and resize(<void **> &self.sizes, self.count, sizeof(uint64_t))
            and resize(<void **> &self.packs, self.pack_count, sizeof(pack_place_t))
        ):
            raise MemoryError
        if self.pack_count == 0:
            memset(self.sizes, 0xff, self.count * sizeof(uint64_t))
        self.names = names
        return 0

    def __dealloc__(self):
        free(self.offsets)
        free(self.sizes)
        free(self.marks)
        free(self.packs)


cdef str decode_key(ExtentTable names, Py_ssize_t i):
    """Return the key of a sample: its members' name without the suffix."""
    return decode_text_before(name_at(&names.columns, <uint32_t> i), SUFFIX_SIZE)


cdef bint has_same_header(Layout one, Layout other) noexcept:
    return (
        one.header_size == other.header_size
        and memcmp(one.header, other.header, one.header_size) == 0
    )


@cython.final
cdef class Rows:
    """Rows of one field: the shard and the offset of each sample's array.

    Attributes
    ----------
    unpickle : callable or None
        ``unpickle(data, error)`` returns an array of Python objects, or raises
        `error`, the reason why the member is not a plain array.
    """

    def __cinit__(
        self, str field not None, open_file, str path not None,
        int64_t field_sum=-1,
    ):
        self.field = field
        self.field_sum = field_sum
        self.path = path
        self.open_file = open_file
        self.numbers = []
        self.tags = {}
        self.cells = Cells.__new__(Cells)

    def __reduce__(self):
        raise TypeError("Rows do not pickle")

    def forget(self, ColumnFile file not None):
        """Forget a shard; reads in progress continue."""
        cdef size_t k
        with cython.critical_section(self):
            self.mappings = None
            if self.slots is None:
                self.slots = {number: k for k, number in enumerate(self.numbers)}
            slot = self.slots.get(file.number)
            if slot is not None and self.files[slot] is file:
                self.files[slot] = self.shards[slot] = None
                for k in range(self.cells.pack_count):
                    if self.cells.packs[k].slot == slot:
                        self.packs[k] = None

    cdef uint32_t find_tag(self, Layout layout) except? 0:
        """Return a layout's tag in the column, or 0 if none is left."""
        cdef bytes header
        if layout.header_size > CACHED_HEADER:
            return 0
        with cython.critical_section(self):
            if self.common is not None and has_same_header(self.common, layout):
                return self.common_tag
            header = (<const char *> layout.header)[:layout.header_size]
            tag = self.tags.get(header)
            if tag is None:
                if len(self.tags) >= MAX_TAGS - 1:
                    return 0
                tag = self.tags[header] = len(self.tags) + 1
            if self.common is None:
                self.common = layout  # never replaced: it is read without a lock
                self.common_tag = tag
            return tag

    @property
    def count(self):
        """Number of samples that have the field."""
        cdef size_t i
        cdef size_t found = 0
        for i in range(self.cells.count):
            found += self.cells.marks[i].slot != ABSENT
        return found

    def data_bytes(self):
        """Return the sum of the arrays' sizes as members, in bytes; read all headers.
        """
        cdef Shard shard
        cdef uint64_t offset, size
        cdef uint64_t total = 0
        cdef Py_ssize_t i
        for i in range(<Py_ssize_t> self.cells.count):
            if self.has(i):
                shard = self.shard_of(i)
                shard.extent(shard.open_source(), i, &offset, &size)
                total += size
        return total

    cdef int add(
        self, span_t key, object offset, object shard, object row, dict slots,
        dict packs,
    ) except -1:
        """Append a row; `key` is the sample's id."""
        cdef int64_t at, row_in_pack
        cdef int32_t slot
        if offset is None and shard is None and row is None:
            return self.cells.add(0, ABSENT, -1)
        at = parse_offset(offset)
        row_in_pack = -1 if row is None else parse_offset(row)
        if at < 0 or type(shard) is not int or shard < 0 or (
            row is not None and row_in_pack < 0
        ):
            return self.cells.add(0, INVALID, -1)
        if row is not None and self.field_sum >= 0:
            row_in_pack = decode_row(
                <uint32_t> self.field_sum, key, shard, <uint64_t> at, row_in_pack
            )
            if row_in_pack < 0:
                return self.cells.add(<uint64_t> at, FOREIGN, -1)
        slot = self.slot_of(shard, slots)
        if row is not None:
            slot = self.pack_of(slot, <uint64_t> at, packs)
        return self.cells.add(<uint64_t> at, slot, row_in_pack)

    cdef int32_t slot_of(self, object shard, dict slots) except? -1:
        """Return the slot of a shard; add one for a new shard."""
        cdef object slot = slots.get(shard)
        if slot is None:
            slot = slots[shard] = len(self.numbers)
            self.numbers.append(shard)
        return slot

    cdef int32_t pack_of(self, int32_t slot, uint64_t offset, dict packs) except? -1:
        """Return the slot of the rows of a pack; add the pack if it is new."""
        cdef tuple key = (slot, offset)
        cdef object k = packs.get(key)
        if k is None:
            k = packs[key] = self.cells.add_pack(slot, offset)
        return PACKED - <int32_t> k

    cdef int take_columns(
        self, uint64_t **offsets, const int64_t *shards, uint64_t **rows,
        ExtentTable names
    ) except -1:
        """Set the rows of all samples; take over the memory of `offsets` and `rows`.

        `rows` has UNKNOWN for members of their own; NULL if there is no other.
        """
        cdef dict slots = {}
        cdef dict packs = {}
        cdef size_t count = names.columns.count
        cdef int32_t slot = ABSENT
        cdef int32_t pack = 0      # slot of the last pack, or 0
        cdef int64_t last = ABSENT
        cdef uint64_t at = 0
        cdef uint64_t row
        cdef size_t i
        cdef mark_t *mark
        self.cells.offsets = offsets[0]
        self.cells.sizes = rows[0]
        offsets[0] = rows[0] = NULL
        if not resize(<void **> &self.cells.marks, count, sizeof(mark_t)):
            raise MemoryError
        for i in range(count):
            if shards[i] != last:
                last = shards[i]
                pack = 0
                slot = <int32_t> last if last < 0 else self.slot_of(last, slots)
            mark = self.cells.marks + i
            mark.slot = slot
            mark.layout = 0
            row = self.cells.sizes[i] if self.cells.sizes != NULL else UNKNOWN
            if row == UNKNOWN or slot < 0:
                continue
            if pack == 0 or self.cells.offsets[i] != at:
                at = self.cells.offsets[i]
                pack = self.pack_of(slot, at, packs)
            mark.slot = pack
            mark.layout = <uint32_t> min(row, <uint64_t> MAX_ROW)
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
        self.files = [None] * len(self.numbers)
        self.shards = [None] * len(self.numbers)
        self.packs = [None] * self.cells.pack_count
        self.identities = [None] * len(self.numbers)
        return 0

    cdef bint has(self, Py_ssize_t i) except -1:
        return self.cells.marks[i].slot != ABSENT

    cdef Shard shard_of(self, Py_ssize_t i):
        """Return the shard or pack that holds the array of a sample with the field."""
        if self.cells.marks[i].slot <= PACKED:
            return self.pack_shard(i)
        return self.member_shard(i)

    cdef PackShard pack_shard(self, Py_ssize_t i):
        """Return the pack that holds the array of a sample."""
        cdef int32_t slot = self.cells.marks[i].slot
        cdef object shard = self.packs[PACKED - slot]
        return self.open_pack(slot, i) if shard is None else <PackShard> shard

    cdef PackShard open_pack(self, int32_t slot, Py_ssize_t i):
        """Open a pack; errors name sample `i`."""
        cdef int32_t k = PACKED - slot
        cdef pack_place_t *place = &self.cells.packs[k]
        cdef object found = self.shards[place.slot]
        cdef ColumnShard holder = <ColumnShard> (
            self.open(place.slot) if found is None else found
        )
        cdef ColumnFile file = holder.file
        cdef PackShard shard = PackShard.__new__(
            PackShard, file.source, self.table, file.path, "mmap"
        )
        shard.direct = None        # a member's bytes are not those of a file
        shard.builds = True
        shard.file = file
        shard.cells = self.cells
        shard.field = self.field
        shard.slot = slot
        shard.pack = file.find_pack(place.offset, self.field, self.table.name(i))
        self.packs[k] = shard
        return shard

    cdef ColumnShard member_shard(self, Py_ssize_t i):
        """Return the shard that holds the member of a sample."""
        cdef int32_t slot = self.cells.marks[i].slot
        cdef object shard
        if slot < 0:
            raise self.place_error(i)
        shard = self.shards[slot]
        if shard is None:
            shard = self.open(slot)
        return <ColumnShard> shard

    cdef object place_error(self, Py_ssize_t i):
        """Return the error of a sample's place that is not a place of an array."""
        cdef str reason = "an invalid shard, offset or row"
        if self.cells.marks[i].slot == FOREIGN:
            at = self.cells.offsets[i]
            reason = f"a row without its identity in the pack at byte {at:,}"
        reason = f"the index has {reason} for field {self.field!r}"
        return FormatError(reason, self.path, 0, self.table.name(i))

    cdef bint has_common_layout(self, Py_ssize_t i) noexcept:
        """Say whether a member was checked to have the common layout."""
        return self.common_tag != 0 and self.cells.marks[i].layout == self.common_tag

    cdef bint reads_header(self, Py_ssize_t i) noexcept:
        """Say whether `array` reads the header of a member."""
        return self.cells.marks[i].slot > PACKED and not self.has_common_layout(i)

    cdef object array(self, Py_ssize_t i):
        """Return the array of a sample that has the field; parse no header twice."""
        if self.cells.marks[i].slot <= PACKED:
            return self.pack_shard(i).row_array(i)
        return self.member_array(i)

    cdef object unmapped_array(self, Py_ssize_t i):
        """Return the array of a sample, read from a shard that is not mapped; or None.

        None also for one that `array` may refuse.
        """
        cdef int32_t slot = self.cells.marks[i].slot
        cdef bint is_packed = slot <= PACKED
        cdef uint64_t offset = fs_load(self.cells.offsets + i)
        cdef ColumnFile file
        if is_packed:
            slot = self.cells.packs[PACKED - slot].slot
        if slot < 0 or self.shards[slot] is not None:
            return None
        file = self.file_of(slot)
        if file.unmapped is None:
            return None
        try:
            if is_packed:
                return file.find_pack(offset, self.field, "").array(
                    self.cells.sizes[i], self.field, ""
                )
            return file.unmapped_array(
                offset, name_at(&self.table.columns, <uint32_t> i)
            )
        except FormatError:
            return None

    cdef object member_array(self, Py_ssize_t i):
        """Return the array of a sample whose array is a member."""
        cdef ColumnShard shard = self.member_shard(i)
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

    cdef ColumnFile file_of(self, int32_t slot):
        """Return the file of a shard; open it, or raise if it is another one now."""
        cdef object found = self.files[slot]
        cdef ColumnFile file
        if found is not None:
            return <ColumnFile> found
        file = <ColumnFile?> self.open_file(self.numbers[slot])
        first = self.identities[slot]
        if first is None:
            self.identities[slot] = file.identity, file.is_exact
        else:
            file.check_same(*first)
        file.add_holder(self)
        self.files[slot] = file
        return file

    cdef object open(self, int32_t slot):
        cdef ColumnFile file = self.file_of(slot)
        cdef ColumnShard shard = ColumnShard.__new__(
            ColumnShard, file.source, self.table, file.path, "mmap"
        )
        shard.direct = None        # its sizes may be unknown
        shard.file = file
        shard.cells = self.cells
        shard.layouts = file.layouts
        self.shards[slot] = shard
        return shard

    cdef void prefetch(self, Py_ssize_t i, int stage) noexcept:
        cdef int32_t slot
        cdef uint64_t offset
        cdef object shard
        cdef Source source
        if stage == STAGE_LIST:
            fs_prefetch_line(self.cells.marks + i)
            if self.cells.pack_count == 0:  # a row of a pack needs its mark alone
                fs_prefetch_line(self.cells.offsets + i)
            return
        slot = self.cells.marks[i].slot
        if stage == STAGE_EXTENT and slot <= PACKED:
            self.prefetch_packed(i, self.packs[PACKED - slot])
            return
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

    @property
    def has_packs(self):
        """True if the array of a sample is in a pack."""
        return self.cells.pack_count > 0

    cdef int add_arrays(
        self, const int64_t *order, Py_ssize_t count, list found
    ) except -1:
        """Add the arrays of samples to a dict of each.

        Arrays that are adjacent rows of a pack share a view.
        """
        cdef mark_t *marks = self.cells.marks
        cdef uint64_t *rows = self.cells.sizes
        cdef Py_ssize_t k = 0
        cdef Py_ssize_t end
        cdef int64_t i
        for end in range(count):
            if not 0 <= order[end] < <int64_t> self.cells.count:
                raise IndexError(f"position {order[end]} is out of range")
        while k < count:
            i = order[k]
            if marks[i].slot > PACKED:
                if self.has(i):
                    (<dict> found[k])[self.field] = self.array(i)
                k += 1
                continue
            end = k + 1
            while (
                end < count and marks[order[end]].slot == marks[i].slot
                and rows[order[end]] == rows[i] + <uint64_t> (end - k)
            ):
                end += 1
            k = self.pack_shard(i).add_run(order, k, end, found)
        return 0

    cdef void prefetch_packed(self, Py_ssize_t i, object shard) noexcept:
        """Prefetch the first bytes of a row of a pack, if it is open."""
        cdef Source source
        cdef uint64_t offset, size
        cdef size_t k
        if shard is None:
            return
        source = (<PackShard> shard).source
        if source is None or source.base == NULL or not (
            (<PackShard> shard).estimate_extent(source, i, &offset, &size)
        ):
            return
        for k in range(min(size // LINE + 1, <size_t> MAX_LINES)):
            fs_prefetch_line(source.base + offset + min(k * LINE, size - 1))


@cython.final
cdef class PackShard(Shard):
    """Pack of one field: the member of a sample is a row with an ``.npy`` header.

    The bytes of members are built. Their extents are those of the rows, and as many
    bytes before them as a header has.
    """

    cdef uint64_t row_of(self, Py_ssize_t i) except? 0:
        """Return the row of a sample in the pack; check it."""
        if self.cells.marks[i].slot != self.slot:
            raise IndexError(f"sample {decode_key(self.table, i)!r} is not in the pack")
        cdef uint64_t row = self.cells.marks[i].layout
        if row >= MAX_ROW:         # read `sizes` only then: it costs a cache miss
            row = self.cells.sizes[i]
        if row >= self.pack.rows:
            row = self.cells.sizes[i]
            self.pack.check_row(row, self.field, self.member_name(i))  # raises
        return row

    cdef object row_array(self, Py_ssize_t i):
        """Return a row as an array on the file's own memory."""
        cdef Pack pack = self.pack
        cdef Source source = self.open_source()
        cdef uint8_t *at
        cdef uint64_t row = self.row_of(i)
        cdef object owner
        try:
            owner = source.pin(pack.first + row * pack.row_size, pack.row_size, &at)
        except (FormatError, OSError) as error:
            raise self.annotate(error, i) from None
        return make_shaped_array(
            pack.layout.dtype, &pack.layout.shape, at,
            type(owner) is View and source.writable, owner,
        )

    cdef Py_ssize_t add_run(
        self, const int64_t *order, Py_ssize_t k, Py_ssize_t end, list found
    ) except -1:
        """Add adjacent rows, as arrays on one view, to dicts; return where they end."""
        cdef Pack pack = self.pack
        cdef Source source = self.open_source()
        cdef uint64_t size = pack.row_size
        cdef uint64_t row = self.row_of(order[k])
        cdef uint8_t *at
        cdef bint writable
        cdef object owner
        if source.base == NULL:    # memory that an array keeps
            end = min(end, k + 1 + <Py_ssize_t> (MAX_RUN_BYTES // size))
        self.row_of(order[end - 1])
        try:
            owner = source.pin(pack.first + row * size, (end - k) * size, &at)
        except (FormatError, OSError) as error:
            raise self.annotate(error, order[k]) from None
        writable = type(owner) is View and source.writable
        while k < end:
            (<dict> found[k])[self.field] = make_shaped_array(
                pack.layout.dtype, &pack.layout.shape, at, writable, owner
            )
            at += size
            k += 1
        return end

    def array(self, key, dtype=None, shape=None):
        """Return a row as an array without copying it; see `Shard.array`."""
        if dtype is None and shape is None:
            return self.row_array(self.find(key))
        return Shard.array(self, key, dtype, shape)

    def read(self, key):
        """Return the ``.npy`` file of a row."""
        cdef uint8_t *at
        cdef uint64_t size
        return bytes(self.pin(self.find(key), &at, &size))

    cdef int extent(
        self, Source source, Py_ssize_t i, uint64_t *offset, uint64_t *size
    ) except -1:
        cdef Pack pack = self.pack
        cdef uint64_t row = self.row_of(i)
        cdef uint64_t header_size = pack.layout.header_size
        offset[0] = pack.first + row * pack.row_size
        offset[0] -= min(header_size, offset[0])
        size[0] = header_size + pack.row_size
        return 0

    cdef bint estimate_extent(
        self, Source source, Py_ssize_t i, uint64_t *offset, uint64_t *size
    ) noexcept:
        cdef uint64_t row = self.cells.marks[i].layout
        if self.cells.marks[i].slot != self.slot:
            return False
        if row >= MAX_ROW:         # as in `row_of`
            row = self.cells.sizes[i]
        if row >= self.pack.rows:
            return False
        offset[0] = self.pack.first + row * self.pack.row_size
        size[0] = self.pack.row_size
        return True

    cdef object pin(self, Py_ssize_t i, uint8_t **at, uint64_t *size):
        """Set the address and size of an ``.npy`` file built of a row."""
        cdef Pack pack = self.pack
        cdef uint64_t header_size = pack.layout.header_size
        cdef Source source = self.open_source()
        cdef uint64_t row = self.row_of(i)
        cdef uint8_t *data
        cdef object owner, built
        try:
            owner = source.pin(pack.first + row * pack.row_size, pack.row_size, &data)
        except (FormatError, OSError) as error:
            raise self.annotate(error, i) from None
        size[0] = header_size + pack.row_size
        if source.writable:
            built = PyByteArray_FromStringAndSize(NULL, size[0])
            at[0] = <uint8_t *> PyByteArray_AS_STRING(built)
        else:
            built = PyBytes_FromStringAndSize(NULL, size[0])
            at[0] = <uint8_t *> PyBytes_AS_STRING(built)
        memcpy(at[0], PyBytes_AS_STRING(pack.header), header_size)
        memcpy(at[0] + header_size, data, pack.row_size)
        return built


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
            if found != offset[0] and self.cells.names.has_duplicates:
                reason = "the index has another offset, and two samples of one id"
                raise FormatError(reason, self.path, offset[0], self.member_name(i))
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

    Attributes
    ----------
    metadata : SampleValues or None
        Values of metadata columns, which samples have beside their fields.
    """

    cdef readonly list columns     # of Rows
    cdef public object metadata
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
        """Return a byte per sample: 1 if it has all these fields, else 0.

        A metadata column is one of them where it is not NULL.
        """
        cdef Py_ssize_t i
        cdef Rows rows
        found = bytearray(b"\1") * self.names.columns.count
        for field in fields:
            rows = self.by_field.get(field)
            values = self.values_of(field)
            if values is not None:
                for i in range(<Py_ssize_t> self.names.columns.count):
                    if values[i] is None:
                        found[i] = 0
                continue
            for i in range(<Py_ssize_t> self.names.columns.count):
                if rows is None or not rows.has(i):
                    found[i] = 0
        return found

    def find_keys(self, list keys not None):
        """Return the positions of samples: an array of int64."""
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
        """Return the keys of samples: a list."""
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
        if rows is not None:
            return i if rows.has(i) else -1
        values = self.values_of(field)
        return i if values is not None and values[i] is not None else -1

    cdef Shard holder(self, Py_ssize_t i, object field):
        cdef Rows rows = self.by_field.get(field)
        if rows is None:
            raise FastshardError(
                f"{field!r} is a metadata column of {self.owner.path}: its values are "
                f"in the index, not in a shard; sample[{field!r}] returns one"
            )
        return rows.shard_of(i)

    cdef list visible_members(self, SampleBase sample):
        cdef Py_ssize_t i = sample.position
        cdef Rows rows
        fields = self.by_field if sample.only is None else sample.only
        found = []
        for field in fields:
            rows = self.by_field.get(field)
            if rows is not None and rows.has(i):
                found.append((rows.shard_of(i), i))
        return found

    def values_of(self, field):
        """Return the values of a metadata column by position: an array or a list.

        None if there is no such column, or if a field has its name.
        """
        if self.metadata is None or field in self.by_field:
            return None
        return self.metadata.load(self, field)

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
        cdef const columns_t *names = &self.names.columns
        if stage == STAGE_LIST and names.name_width != 0:
            fs_prefetch_line(names.names + i * names.name_width)
        elif stage == STAGE_LIST:
            fs_prefetch_line(names.name_ends + i)
        elif stage == STAGE_EXTENT and names.name_width == 0:
            fs_prefetch_line(name_at(names, <uint32_t> i).at)
        for rows in self.columns:
            rows.prefetch(i, stage)

    def arrays(self, i, list columns=None, bint copy=False):
        """Return the arrays of a sample by field, optionally of some columns."""
        return self.read_arrays(
            resolve_position(i, self.count()),
            self.columns if columns is None else columns, copy, False,
        )

    cdef dict read_arrays(
        self, Py_ssize_t at, list columns, bint copy, bint unmapped
    ):
        """Return the arrays of a sample; with `unmapped` they may be read-only copies.
        """
        cdef Rows rows
        cdef dict found = {}
        cdef object array
        for rows in columns:
            rows.prefetch(at, STAGE_LIST)
        for rows in columns:
            if rows.reads_header(at):
                rows.prefetch(at, STAGE_EXTENT)
        for rows in columns:
            if rows.has(at):
                array = rows.unmapped_array(at) if unmapped else None
                found[rows.field] = rows.array(at) if array is None else array
        if copy:
            return {field: array.copy("K") for field, array in found.items()}
        return found

    def keyed_arrays(self, positions, list columns not None, list keys not None):
        """Return a dict for each of some samples: its key, and its arrays by field."""
        cdef Py_buffer buffer
        cdef const int64_t *order = int64s_of(positions, &buffer)
        cdef list found = [{"__key__": key} for key in keys]
        cdef Rows rows
        try:
            if buffer.len // 8 != len(found):
                raise ValueError(f"expected {buffer.len // 8} keys, got {len(found)}")
            for rows in columns:
                rows.add_arrays(order, len(found), found)
        finally:
            PyBuffer_Release(&buffer)
        return found

    def read(self, str key not None, list columns not None, bint copy=False):
        """Return the arrays of a sample by field, and the text of its metadata.

        Returns None if there is no such sample; the text is None if it is not UTF-8.
        Needs `has_metadata`.
        """
        cdef Py_ssize_t i = self.search(key)
        if i < 0:
            return None
        return self.read_arrays(i, columns, copy, True), self.metadata_text(i)

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
            found.append(
                (self.read_arrays(i, columns, copy, True), self.metadata_text(i))
            )
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
        """Return the columns of some fields."""
        for field in fields:
            if field not in self.by_field:
                near = partial(near_fields, field, list(self.by_field))
                raise FieldNotFoundError(field, self.owner.path, near)
        return [self.by_field[field] for field in fields]
