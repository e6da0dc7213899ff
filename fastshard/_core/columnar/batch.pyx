# cython: nonecheck=True
"""Rows of a columnar dataset copied into one array: batches, and windows of steps.

Rows are copied without the GIL while each matches the first: a plain tar header and
the same ``.npy`` header, in a mapped shard, or a row of a pack whose rows have this
layout. A row that does not match is read as a single member, which raises every error.
Windows are slices along the first axis of a field's arrays.
"""

cimport cython
from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

from fastshard._core.buffers cimport bytes_of, int64s_of
from fastshard._core.columnar.column_file cimport BLOCK
from fastshard._core.columnar.members cimport (
    LINE, column_t, has_layout, is_alike, prefetch_header, set_column, set_header,
)
from fastshard._core.columnar.rows cimport (
    MAX_ROW, PACKED, ColumnShard, PackShard, Rows, ShardMappings, decode_key, mapping_t,
    mark_t, pack_t,
)
from fastshard._core.dataset.gather cimport Pieces
from fastshard._core.dataset.npy cimport (
    CACHED_HEADER, Layout, find_layout, get_layout_cache, has_plain_data,
    make_empty_array, stored_t,
)
from fastshard._core.dataset.records cimport ColumnBatch, read_batch, stack_batch
from fastshard._core.dataset.shard cimport Shard
from fastshard._core.dataset.streams cimport SampleLocator
from fastshard._core.io.source cimport QUERY_EVERY, MappedSource, Source
from fastshard._core.pages cimport fs_advise_pages, fs_now, fs_populate_pages
from fastshard._core.platform cimport fs_load, fs_prefetch_line
from fastshard._core.threads cimport fs_atomic_load

from array import array

from fastshard._core.columnar.rows import ColumnSamples
from fastshard.errors import FieldNotFoundError, FormatError, RaggedError

cdef enum:
    MAX_LINES = 10                 # of a row that are prefetched
    PLAIN_AXES = 8                 # of rows that `stack_rows` stacks

cdef enum:                         # prefetch distances, in rows
    CELLS_AHEAD = 24               # mark and offset
    BYTES_AHEAD = 4                # data
    PAGES_AHEAD = 64               # address translations
    PACKED_AHEAD = 4               # data of rows in packs

cdef uint64_t MAX_PAGED_IN = 1 << 30  # bytes

ctypedef const uint8_t *bytes_t


cdef struct fill_t:
    const int64_t *positions
    size_t count
    Py_ssize_t rows                # of the dataset
    column_t column
    const mapping_t *mappings      # by slot
    const pack_t *packs            # by number; NULL: there are none
    uint8_t *to
    size_t row_size                # bytes of data in a row


cdef const uint8_t *row_at(const fill_t *fill, size_t r) noexcept nogil:
    """Return the likely address of a row's member, or NULL if its shard is not open."""
    cdef int64_t i = fill.positions[r]
    cdef uint64_t offset
    cdef const mapping_t *mapping
    if not 0 <= i < fill.rows or fill.column.marks[i].slot < 0:
        return NULL
    mapping = &fill.mappings[fill.column.marks[i].slot]
    offset = fs_load(fill.column.offsets + i)
    if mapping.base == NULL or offset < BLOCK or offset > mapping.nbytes or (
        fill.column.size > mapping.nbytes - offset
    ):
        return NULL
    return mapping.base + offset


cdef void prefetch_pages(const fill_t *fill, size_t r, bytes_t *rows) noexcept nogil:
    """Find the addresses of the next rows, and prefetch a line of each.

    In a loop of its own, so that their address translations overlap.
    """
    cdef size_t k
    cdef size_t count = min(fill.count - r, <size_t> PAGES_AHEAD)
    for k in range(count):
        rows[k] = row_at(fill, r + k)
        if rows[k] != NULL:
            fs_prefetch_line(rows[k] + fill.column.header_size)


cdef void prefetch_row(const fill_t *fill, size_t r, const uint8_t *at) noexcept nogil:
    """Prefetch the memory of a row."""
    cdef size_t size = fill.row_size
    cdef size_t k, lines
    cdef int64_t i = fill.positions[r]
    if at == NULL:
        return
    if has_layout(&fill.column, i):
        at += fill.column.header_size
    else:
        size += fill.column.header_size
        fs_prefetch_line(fill.column.sizes + i)
        prefetch_header(at)
    lines = min(size // LINE + 1, <size_t> MAX_LINES)
    for k in range(lines):
        fs_prefetch_line(at + k * LINE)


cdef inline void prefetch_cells(const fill_t *fill, size_t r) noexcept nogil:
    """Prefetch the mark of row `r`, and its offset if there are no packs."""
    cdef int64_t i
    if r < fill.count:
        i = fill.positions[r]
        if 0 <= i < fill.rows:
            fs_prefetch_line(fill.column.marks + i)
            if fill.packs == NULL:
                fs_prefetch_line(fill.column.offsets + i)


cdef inline const uint8_t *packed_row(const fill_t *fill, size_t r) noexcept nogil:
    """Return the address of a row in a mapped pack of the common layout, or NULL."""
    cdef int64_t i = fill.positions[r]
    cdef mark_t mark
    cdef const pack_t *pack
    if not 0 <= i < fill.rows:
        return NULL
    mark = fill.column.marks[i]
    if mark.slot > PACKED:
        return NULL
    pack = &fill.packs[PACKED - mark.slot]
    if mark.layout >= pack.rows or pack.tag != fill.column.tag:
        return NULL
    return pack.base + mark.layout * fill.row_size


cdef size_t find_packed(const fill_t *fill, size_t r, bytes_t *rows) noexcept nogil:
    """Find the addresses of the next rows of packs; return their number.

    A line of each is prefetched, in a loop of its own, so that their address
    translations overlap.
    """
    cdef size_t k
    cdef size_t count = min(fill.count - r, <size_t> PAGES_AHEAD)
    for k in range(count):
        rows[k] = packed_row(fill, r + k)
        if rows[k] == NULL:
            return k
        if k == 0 or rows[k] != rows[k - 1] + fill.row_size:
            fs_prefetch_line(rows[k])
    return count


cdef inline void prefetch_lines(const uint8_t *at, size_t lines) noexcept nogil:
    cdef size_t line
    for line in range(lines):
        fs_prefetch_line(at + line * LINE)


cdef void copy_found(
    const fill_t *fill, size_t r, const bytes_t *rows, size_t count
) noexcept nogil:
    """Copy rows of packs from their addresses, adjacent ones together."""
    cdef uint64_t size = fill.row_size
    cdef size_t lines = min(size // LINE + 1, <size_t> MAX_LINES)
    cdef size_t end
    cdef size_t k = 0
    for end in range(1, min(count, <size_t> PACKED_AHEAD)):
        if rows[end] != rows[end - 1] + size:
            prefetch_lines(rows[end], lines)
    while k < count:
        end = k + PACKED_AHEAD
        if end < count and rows[end] != rows[end - 1] + size:
            prefetch_lines(rows[end], lines)
        end = k + 1
        while end < count and rows[end] == rows[end - 1] + size:
            end += 1
        memcpy(fill.to + (r + k) * size, rows[k], (end - k) * size)
        k = end


cdef size_t copy_packed(const fill_t *fill, size_t r) noexcept nogil:
    """Copy rows of packs from index `r` on; return the index of the first mismatch.

    The addresses of the next rows are found before the last ones are copied.
    """
    cdef bytes_t[<int> PAGES_AHEAD] one
    cdef bytes_t[<int> PAGES_AHEAD] other
    cdef bytes_t *rows = one
    cdef bytes_t *next_rows = other
    cdef size_t next_count
    cdef size_t count = find_packed(fill, r, rows)
    while count > 0:
        next_count = 0
        if count == PAGES_AHEAD:
            next_count = find_packed(fill, r + count, next_rows)
        copy_found(fill, r, rows, count)
        r += count
        count = next_count
        rows, next_rows = next_rows, rows
    return r


cdef size_t end_of_members(const fill_t *fill, size_t r) noexcept nogil:
    """Return the index of the next packed row, from index `r` on."""
    cdef int64_t i
    if fill.packs == NULL:
        return fill.count
    while r < fill.count:
        i = fill.positions[r]
        if 0 <= i < fill.rows and fill.column.marks[i].slot <= PACKED:
            break
        r += 1
    return r


cdef size_t copy_rows(const fill_t *fill, size_t r) noexcept nogil:
    """Copy rows from index `r` on; return the index of the first mismatch."""
    cdef size_t end
    cdef fill_t part
    while r < fill.count:
        end = r if fill.packs == NULL else copy_packed(fill, r)
        if end == r:
            part = fill[0]
            part.count = end_of_members(fill, r)
            end = copy_members(&part, r)
            if end < part.count or end == r:
                return end
        r = end
    return r


cdef size_t copy_members(const fill_t *fill, size_t r) noexcept nogil:
    """Copy members from index `r` on; return the index of the first mismatch."""
    cdef int64_t i
    cdef uint64_t offset
    cdef size_t k
    cdef const mapping_t *mapping
    cdef bytes_t[<int> PAGES_AHEAD] rows
    cdef size_t start = r
    while r < fill.count:
        if (r - start) % PAGES_AHEAD == 0:
            prefetch_pages(fill, r, rows)
            for k in range(min(fill.count - r, <size_t> BYTES_AHEAD)):
                prefetch_row(fill, r + k, rows[k])
        k = (r - start) % PAGES_AHEAD + BYTES_AHEAD
        if k < PAGES_AHEAD and r + BYTES_AHEAD < fill.count:
            prefetch_row(fill, r + BYTES_AHEAD, rows[k])
        i = fill.positions[r]
        if not 0 <= i < fill.rows or fill.column.marks[i].slot < 0:
            return r
        mapping = &fill.mappings[fill.column.marks[i].slot]
        offset = fs_atomic_load(fill.column.offsets + i)
        if mapping.base == NULL or offset < BLOCK or offset > mapping.nbytes:
            return r
        if has_layout(&fill.column, i):
            if fill.column.size > mapping.nbytes - offset:
                return r
        elif is_alike(&fill.column, i, mapping, offset):
            fill.column.marks[i].layout = fill.column.tag
        else:
            return r
        memcpy(
            fill.to + r * fill.row_size,
            mapping.base + offset + fill.column.header_size, fill.row_size,
        )
        r += 1
    return r


@cython.final
cdef class RowCopy:
    """Copy of rows into memory that the caller keeps; `copy_to` sets it."""

    cdef Rows rows
    cdef fill_t fill
    cdef Py_buffer positions
    cdef bytes header
    cdef ShardMappings mappings    # keeps the shards mapped
    cdef uint64_t touch_limit      # bytes to touch between releases; 0: no limit
    cdef uint32_t number           # of the batch

    def __cinit__(self, Rows rows not None, positions, bytes header not None,
                  uint64_t size, uint8_t tag):
        cdef uint64_t header_size = PyBytes_GET_SIZE(header)
        self.rows = rows
        self.header = header
        self.fill.positions = int64s_of(positions, &self.positions)
        if header_size > size:
            raise ValueError(
                f"the header of {header_size:,} bytes exceeds its member of {size:,}"
            )
        self.fill.count = self.positions.len // 8
        self.fill.rows = <Py_ssize_t> rows.cells.count
        self.fill.row_size = size - header_size
        set_column(rows, &self.fill.column)
        set_header(&self.fill.column, header, size, tag)

    cdef uint64_t nbytes(self) noexcept:
        """Return the size of all rows' data in bytes."""
        return self.fill.row_size * self.fill.count

    cdef object copy_to(self, uint8_t *to, bint paged_in):
        """Copy all rows; return the index of the first of another layout, or None."""
        cdef size_t r = 0
        cdef size_t count = self.fill.count
        self.fill.to = to
        self.open_shards(paged_in)
        if self.touch_limit > 0:
            self.fill.count = 0
        while True:
            if self.touch_limit > 0 and r >= self.fill.count:
                self.fill.count = self.touch_rows(r, count)
            with nogil:
                r = copy_rows(&self.fill, r)
            if r == count:
                return None
            if r == self.fill.count:
                continue
            if not self.copy_row(r):
                return r
            r += 1

    cdef size_t touch_rows(self, size_t r, size_t count) except? 0:
        """Mark rows from index `r` as touched; return the end of the part to copy."""
        cdef uint64_t nbytes = 0
        cdef uint64_t offset, size, start
        cdef Source source
        cdef Shard shard
        cdef int64_t i
        while r < count and nbytes < self.touch_limit:
            i = self.fill.positions[r]
            r += 1
            if not 0 <= i < self.fill.rows:
                continue           # raises when it is copied
            if self.fill.column.marks[i].slot <= PACKED:
                shard = self.rows.pack_shard(i)
                source = shard.open_source()
                if shard.estimate_extent(source, i, &offset, &size):
                    source.touch(offset, size)
                    source.confine(offset, size)
                nbytes += self.fill.column.size
                continue
            if self.fill.column.marks[i].slot < 0:
                continue           # raises when it is copied
            source = self.rows.member_shard(i).open_source()
            offset = fs_atomic_load(self.fill.column.offsets + i)
            start = offset - min(offset, <uint64_t> BLOCK)
            if offset <= source.nbytes:
                size = min(self.fill.column.size, source.nbytes - offset)
                size += offset - start
                source.touch(start, size)
                source.confine(start, size)
            nbytes += self.fill.column.size + BLOCK
        return r

    cdef int open_shards(self, bint paged_in) except -1:
        """Open the shards of all rows; page in rows of those that may not be resident.

        Only shards are asked that were not resident, or whose answer is too old.
        """
        cdef Rows rows = self.rows
        cdef uint64_t now = fs_now()
        cdef bint are_resident = True
        cdef pack_t *pack
        cdef mapping_t *mapping
        cdef size_t r
        cdef int64_t i
        cdef int32_t slot
        with cython.critical_section(rows):
            if rows.mappings is None:
                rows.mappings = ShardMappings(len(rows.numbers), rows.cells.pack_count)
            self.mappings = rows.mappings
            self.mappings.batches += 1
            self.number = self.mappings.batches
        self.fill.mappings = self.mappings.at
        if rows.cells.pack_count > 0 and self.fill.column.tag != 0:
            self.fill.packs = self.mappings.packs
        for r in range(<size_t> CELLS_AHEAD):
            prefetch_cells(&self.fill, r)
        for r in range(self.fill.count):
            prefetch_cells(&self.fill, r + CELLS_AHEAD)
            i = self.fill.positions[r]
            if not 0 <= i < self.fill.rows:
                continue           # raises when it is copied
            slot = self.fill.column.marks[i].slot
            if slot >= 0:
                mapping = &self.mappings.at[slot]
                if mapping.base == NULL:
                    self.add_mapping(slot, rows.member_shard(i))
                if paged_in or mapping.resident_until > now or (
                    mapping.missing_in == self.number
                ):
                    continue
                if self.is_shard_resident(rows.member_shard(i), i):
                    mapping.resident_until = now + QUERY_EVERY
                else:
                    mapping.missing_in = self.number
                    are_resident = False
            elif slot <= PACKED:
                pack = &self.mappings.packs[PACKED - slot]
                if pack.rows == 0:
                    self.add_pack(PACKED - slot, rows.pack_shard(i))
                if paged_in or pack.resident_until > now or (
                    pack.missing_in == self.number
                ):
                    continue
                if self.is_shard_resident(rows.pack_shard(i), i):
                    pack.resident_until = now + QUERY_EVERY
                else:
                    pack.missing_in = self.number
                    are_resident = False
        self.touch_limit = self.mappings.touch_limit
        if not are_resident:
            self.page_in(now)
        return 0

    cdef bint is_shard_resident(self, Shard shard, Py_ssize_t i) except -1:
        """Return whether a shard is in memory, and so needs no page-in.

        If it is not, the file's size is checked; errors name sample `i`.
        """
        cdef Source source = shard.open_source()
        if source.is_resident():
            return True
        try:
            source.check_size()
        except FormatError as error:
            raise shard.annotate(error, i) from None
        return False

    cdef int add_mapping(self, int32_t slot, ColumnShard shard) except -1:
        """Store the address of a shard, if it is mapped."""
        cdef Source source = shard.open_source()
        cdef mapping_t *mapping = &self.mappings.at[slot]
        if not isinstance(source, MappedSource):
            return 0
        with cython.critical_section(self.mappings):
            self.add_source(source)
            mapping.nbytes = source.nbytes
            mapping.is_exact = shard.file.is_exact
            mapping.base = source.base  # last: readers check it first
        return 0

    cdef int add_pack(self, int32_t k, PackShard shard) except -1:
        """Store the address of a pack, if it is mapped."""
        cdef Source source = shard.open_source()
        cdef pack_t *pack = &self.mappings.packs[k]
        cdef list sources = self.mappings.sources
        cdef uint32_t tag
        if not isinstance(source, MappedSource):
            return 0
        tag = self.rows.find_tag(shard.pack.layout)
        with cython.critical_section(self.mappings):
            if len(sources) == 0 or sources[len(sources) - 1] is not source:
                self.add_source(source)
            pack.base = source.base + shard.pack.first
            pack.tag = tag
            pack.rows = <uint32_t> min(shard.pack.rows, <uint64_t> MAX_ROW)  # last
        return 0

    cdef int add_source(self, Source source) except -1:
        """Keep a mapped shard open."""
        cdef ShardMappings mappings = self.mappings
        mappings.touch_limit = max(mappings.touch_limit, source.touch_limit())
        mappings.sources.append(source)
        return 0

    cdef int page_in(self, uint64_t now) except -1:
        """Page in the missing rows of shards that are not resident."""
        cdef Pieces pieces = None
        cdef Shard shard
        cdef Source source
        cdef uint64_t offset, size
        cdef size_t r
        cdef int64_t i
        cdef int32_t slot
        for r in range(self.fill.count):
            i = self.fill.positions[r]
            if not 0 <= i < self.fill.rows:
                continue
            slot = self.fill.column.marks[i].slot
            if PACKED < slot < 0 or self.number != (
                self.mappings.at[slot].missing_in if slot >= 0
                else self.mappings.packs[PACKED - slot].missing_in
            ):
                continue
            shard = self.rows.shard_of(i)
            source = shard.open_source()
            if not shard.estimate_extent(source, i, &offset, &size) or (
                source.had_resident(offset, size, now)
            ):
                continue
            if pieces is None:
                pieces = Pieces()
            pieces.add_missing(shard, i, offset, size)
            if pieces.nbytes >= MAX_PAGED_IN:
                break
        if pieces is not None:
            pieces.page_in()
        return 0

    cdef bint copy_row(self, size_t r) except -1:
        """Copy a row as one member, which raises all errors; False: other layout."""
        cdef Py_ssize_t i = self.fill.positions[r]
        cdef Shard shard
        cdef uint8_t *at
        cdef uint64_t size
        if not 0 <= i < self.fill.rows:
            raise IndexError(
                f"position {i} is out of range for {self.fill.rows:,} samples"
            )
        if not self.rows.has(i):
            raise FieldNotFoundError(
                self.rows.field, f"sample {decode_key(self.rows.table, i)!r}"
            )
        shard = self.rows.shard_of(i)
        owner = shard.pin(i, &at, &size)
        if size != self.fill.column.size or memcmp(
            at, self.fill.column.header, self.fill.column.header_size
        ):
            self.rows.array(i)     # raises if it is not an array
            return False
        memcpy(
            self.fill.to + r * self.fill.row_size, at + self.fill.column.header_size,
            self.fill.row_size,
        )
        return True

    def __dealloc__(self):
        PyBuffer_Release(&self.positions)  # no-op if never acquired


def read_row_layout(Rows rows not None, Py_ssize_t i):
    """Return the layout of a row's member."""
    cdef uint8_t *at
    cdef uint64_t size
    cdef Layout layout
    cdef Shard shard
    cdef Py_ssize_t count = rows.cells.count
    if not 0 <= i < count:
        raise IndexError(f"position {i} is out of range for {count:,} samples")
    if not rows.has(i):
        raise FieldNotFoundError(rows.field, f"sample {decode_key(rows.table, i)!r}")
    shard = rows.shard_of(i)
    if rows.unpickle is not None:
        array = rows.array(i)
        if array.dtype.hasobject:  # its bytes cannot be copied
            return array.dtype, array.shape, False, None, 0, 0
    array = shard.array(i)         # checks the whole member
    if shard.builds:
        layout = (<PackShard> shard).pack.layout
        size = layout.header_size + layout.nbytes
    else:
        owner = shard.pin(i, &at, &size)
        layout = find_layout(at, size, get_layout_cache(shard))
    header = None
    if layout.header_size <= CACHED_HEADER:
        header = (<const char *> layout.header)[:layout.header_size]
    return (
        array.dtype, array.shape, layout.shape.fortran, header, size,
        rows.find_tag(layout),
    )


def fill_rows(
    Rows rows not None, positions, out, bytes header not None, uint64_t size,
    uint8_t tag, *, bint is_resident=False,
):
    """Copy the data of rows into a buffer, one after another."""
    cdef RowCopy row_copy = RowCopy(rows, positions, header, size, tag)
    cdef Py_buffer buffer
    cdef uint8_t *to = bytes_of(out, &buffer, True)
    try:
        if <uint64_t> buffer.len != row_copy.nbytes():
            raise ValueError(
                f"the array must have {row_copy.nbytes():,} bytes, got {buffer.len:,}"
            )
        return row_copy.copy_to(to, is_resident)
    finally:
        PyBuffer_Release(&buffer)


def stack_rows(list columns not None, positions, *, bint is_resident=False):
    """Return rows of each field as a new array, if they have the last batch's layout.
    """
    cdef Rows rows
    cdef dict stacks = {}
    for rows in columns:
        stack = None if rows.layout is None else stack_field(
            rows, positions, rows.layout, is_resident
        )
        if stack is not None:
            stacks[rows.field] = stack
    return stacks


cdef object stack_field(Rows rows, positions, tuple layout, bint is_resident):
    """Return rows of one plain layout as a new array, or None."""
    cdef RowCopy row_copy
    cdef uint8_t *to
    dtype, shape, fortran, header, size, tag = layout
    if header is None or fortran or len(shape) > PLAIN_AXES or dtype.itemsize == 0:
        return None
    row_copy = RowCopy(rows, positions, header, size, tag)
    stack = make_empty_array(
        dtype, row_copy.fill.count, shape, row_copy.nbytes(), &to
    )
    if stack.dtype != dtype:       # its elements are arrays
        return None
    return stack if row_copy.copy_to(to, is_resident) is None else None


cdef enum:
    MAX_HEADER = 4096              # bytes read of a member that is not mapped


cdef object axes_error(Rows rows, Py_ssize_t i):
    return RaggedError(
        f"field {rows.field!r} of sample {decode_key(rows.table, i)!r} is an array "
        "without axes: windows are along the first axis"
    )


cdef int64_t unmapped_steps(Rows rows, ColumnShard shard, Py_ssize_t i) except -2:
    """Return the steps of a member by its first bytes, or -1: read it whole."""
    cdef uint64_t offset, size
    cdef uint8_t *at
    cdef Layout layout
    cdef Source source = shard.open_source()
    shard.extent(source, i, &offset, &size)
    size = min(size, <uint64_t> MAX_HEADER)
    owner = source.pin(offset, size, &at)
    try:
        layout = find_layout(at, size, get_layout_cache(shard))
    except FormatError:            # raised again when it is read whole
        return -1
    if layout.shape.dimensions == 0:
        raise axes_error(rows, i)
    return layout.shape.lengths[0]


cdef int64_t steps_of(Rows rows, Py_ssize_t i) except -2:
    """Return the length of the first axis of a sample's array."""
    cdef int64_t steps
    cdef ColumnShard shard
    cdef PackShard pack
    if rows.cells.marks[i].slot <= PACKED:
        pack = rows.pack_shard(i)
        pack.row_of(i)             # checks it
        if pack.pack.layout.shape.dimensions == 0:
            raise axes_error(rows, i)
        return pack.pack.layout.shape.lengths[0]
    if rows.has_common_layout(i) and rows.common.shape.dimensions > 0:
        return rows.common.shape.lengths[0]
    shard = rows.member_shard(i)
    if shard.open_source().base == NULL:
        steps = unmapped_steps(rows, shard, i)
        if steps >= 0:
            return steps
    found = rows.array(i)
    if found.ndim == 0:
        raise axes_error(rows, i)
    return len(found)


def count_steps(Rows rows not None):
    """Return the length of the first axis of each sample's array; reads headers."""
    cdef Py_buffer buffer
    cdef Py_ssize_t i
    cdef object found = array("q", bytes(8 * rows.cells.count))
    cdef int64_t *steps = int64s_of(found, &buffer, True)
    try:
        for i in range(<Py_ssize_t> rows.cells.count):
            steps[i] = steps_of(rows, i) if rows.has(i) else -1
    finally:
        PyBuffer_Release(&buffer)
    return found


@cython.final
cdef class WindowReader:
    """Reader of windows of one field, by sample and first step."""

    cdef Rows rows
    cdef Py_buffer samples_buffer
    cdef Py_buffer starts_buffer
    cdef const int64_t *samples
    cdef const int64_t *starts
    cdef Py_ssize_t count
    cdef Py_ssize_t length

    def __cinit__(self, Rows rows not None, samples, starts, Py_ssize_t length):
        self.rows = rows
        self.samples = int64s_of(samples, &self.samples_buffer)
        self.starts = int64s_of(starts, &self.starts_buffer)
        self.count = self.samples_buffer.len // 8
        self.length = length
        if self.starts_buffer.len != self.samples_buffer.len:
            raise ValueError("expected as many starts as samples")

    def __reduce__(self):
        raise TypeError("a WindowReader does not pickle")

    cdef object array_of(self, Py_ssize_t k):
        """Return the whole array of window `k`, which has the window's steps."""
        cdef Py_ssize_t i = self.samples[k]
        cdef Py_ssize_t start = self.starts[k]
        if not 0 <= i < <Py_ssize_t> self.rows.cells.count:
            raise IndexError(f"position {i} is out of range")
        if not self.rows.has(i):
            raise FieldNotFoundError(
                self.rows.field, f"sample {decode_key(self.rows.table, i)!r}"
            )
        found = self.rows.array(i)
        if found.ndim == 0:
            raise axes_error(self.rows, i)
        if not 0 <= start <= <Py_ssize_t> len(found) - self.length:
            raise RaggedError(
                f"field {self.rows.field!r} of sample "
                f"{decode_key(self.rows.table, i)!r} has {len(found):,} steps, fewer "
                "than when windows were counted: the dataset has changed"
            )
        return found

    def views(self):
        """Return the windows: a list of views of the arrays."""
        cdef Py_ssize_t k
        cdef list found = []
        for k in range(self.count):
            start = self.starts[k]
            found.append(self.array_of(k)[start:start + self.length])
        return found

    def copy(self, allocate):
        """Return the windows in one array; None if dtypes or shapes differ."""
        cdef Py_buffer out
        cdef uint8_t *to
        cdef uint64_t size = 0
        cdef Py_ssize_t k
        cdef list arrays = []      # keeps the memory
        cdef bytes_t *found = <bytes_t *> malloc(
            max(self.count, 1) * sizeof(bytes_t)
        )
        if found == NULL:
            raise MemoryError
        try:
            for k in range(self.count):
                arrays.append(self.array_of(k))
            if not self.locate(arrays, found, &size):
                return None
            first = arrays[0]
            shape = self.count, self.length, *first.shape[1:]
            stack = allocate(shape, first.dtype)
            if stack.shape != shape or stack.dtype != first.dtype:
                raise ValueError(
                    f"expected an array {shape} of {first.dtype}, got {stack.shape} "
                    f"of {stack.dtype}"
                )
            if stack.nbytes == 0:
                return stack
            to = bytes_of(stack.reshape(-1).view("u1"), &out, True)
            try:
                if <uint64_t> out.len != size * self.count:
                    raise ValueError(f"the array has {out.len:,} bytes")
                with nogil:
                    for k in range(self.count):
                        memcpy(to + k * size, found[k], size)
            finally:
                PyBuffer_Release(&out)
            return stack
        finally:
            free(found)

    cdef bint locate(self, list arrays, bytes_t *found, uint64_t *size) except -1:
        """Set the address of each window's bytes, and their size.

        False if arrays differ, are not in C order, or hold objects.
        """
        cdef stored_t stored, first
        cdef uint64_t steps
        cdef Py_ssize_t k
        cdef int axis
        if not arrays or arrays[0].dtype.hasobject:
            return False
        for k in range(self.count):
            if not has_plain_data(arrays[k], &stored):
                return False
            if stored.fortran and stored.dimensions > 1:
                return False
            if k == 0:
                first = stored
            if stored.dimensions != first.dimensions or (
                stored.dtype != first.dtype and arrays[k].dtype != arrays[0].dtype
            ):
                return False
            for axis in range(1, stored.dimensions):
                if stored.lengths[axis] != first.lengths[axis]:
                    return False
            steps = max(<uint64_t> stored.lengths[0], <uint64_t> 1)
            size[0] = stored.nbytes // steps
            found[k] = stored.at + <uint64_t> self.starts[k] * size[0]
        size[0] *= self.length
        return True

    def page_in(self):
        """Bring the windows of shards that are not resident into memory."""
        cdef Shard shard
        cdef Shard last = None
        cdef Source source
        cdef bint resident = True
        cdef stored_t stored
        cdef uint64_t step, size
        cdef Py_ssize_t k
        cdef Py_ssize_t count = 0
        cdef list arrays = []
        cdef bytes_t *found = <bytes_t *> malloc(
            max(self.count, 1) * sizeof(bytes_t)
        )
        cdef uint64_t *sizes = <uint64_t *> malloc(
            max(self.count, 1) * sizeof(uint64_t)
        )
        try:
            if found == NULL or sizes == NULL:
                raise MemoryError
            for k in range(self.count):
                window = self.array_of(k)
                shard = self.rows.shard_of(self.samples[k])
                if shard is not last:
                    source = shard.open_source()
                    resident = source.base == NULL or source.is_resident()
                    last = shard
                if resident or not has_plain_data(window, &stored):
                    continue
                if stored.fortran and stored.dimensions > 1:
                    continue
                step = stored.nbytes // max(
                    <uint64_t> stored.lengths[0], <uint64_t> 1
                )
                size = step * self.length
                if size > 0:
                    arrays.append(window)
                    found[count] = stored.at + <uint64_t> self.starts[k] * step
                    sizes[count] = size
                    count += 1
            with nogil:
                for k in range(count):
                    fs_advise_pages(found[k], sizes[k])
                for k in range(count):
                    fs_populate_pages(found[k], sizes[k])
        finally:
            free(found)
            free(sizes)

    def __dealloc__(self):
        PyBuffer_Release(&self.samples_buffer)
        PyBuffer_Release(&self.starts_buffer)


@cython.final
cdef class PositionBatch(ColumnBatch):
    """Positions of samples in one table of rows."""

    cdef object stack_rows
    cdef object samples            # ColumnSamples; None: no sample was added
    cdef object order              # array of int64
    cdef int64_t *positions        # of the array
    cdef Py_ssize_t count

    def __cinit__(self, stack_rows not None):
        self.stack_rows = stack_rows

    cdef int reserve(self, Py_ssize_t count) except -1:
        cdef Py_buffer buffer
        self.order = array("q", bytes(8 * count))
        self.positions = int64s_of(self.order, &buffer, writable=True)
        PyBuffer_Release(&buffer)  # the array is private: it is not resized
        return 0

    cdef bint add(self, object samples, Py_ssize_t i) except -1:
        if samples is not self.samples:
            if self.samples is not None or type(samples) is not ColumnSamples:
                return False
            self.samples = samples
        self.positions[self.count] = i
        self.count += 1
        return True

    cdef dict stack(self, tuple names, object allocate):
        if self.samples is None:
            return {}
        return self.stack_rows(self.samples, self.order, names, allocate)


def read_fields(
    SampleLocator locator not None, positions, tuple names not None, stack_rows
):
    """Return fields of samples by position, those that `stack_rows` stacks."""
    return read_batch(PositionBatch(stack_rows), locator, positions, names, None)


def stack_samples(list samples not None, tuple names not None, allocate, stack_rows):
    """Return fields of samples, those that `stack_rows` stacks."""
    return stack_batch(PositionBatch(stack_rows), samples, names, allocate)
