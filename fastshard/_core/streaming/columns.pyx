"""Columns of many MDS rows: numbers and arrays of one layout, copied without the GIL.

Rows are found first, then each is read once for all columns. Rows that lie in mapped
files are read there, those of other sources are copied to a buffer, some MB at a time.
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

from fastshard._core.buffers cimport int64s_of
from fastshard._core.dataset.gather cimport Pieces
from fastshard._core.dataset.locator cimport SampleLocator, location_t
from fastshard._core.dataset.shard cimport SampleBase
from fastshard._core.io.source cimport MappedSource, MemorySource, Source
from fastshard._core.platform cimport fs_prefetch_line
from fastshard._core.streaming.offsets cimport offset_of
from fastshard._core.streaming.plan cimport MdsRows, RowPlan, column_t
from fastshard._core.streaming.shard cimport RowSamples, RowShard

from array import array

from fastshard._core.dataset.gather import gather, resolve_positions
from fastshard.errors import FormatError

cdef enum:
    LINE = 64                      # bytes of a cache line
    MAX_LINES = 4                  # of a row that are prefetched
    AHEAD = 8                      # rows
    MAX_LOADED = 16 << 20          # bytes of rows that are loaded at a time
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


cdef inline void prefetch_row(const row_t *row) noexcept nogil:
    cdef uint64_t k
    if row.at == NULL:
        return
    for k in range(min(row.size // LINE + 1, <uint64_t> MAX_LINES)):
        fs_prefetch_line(row.at + k * LINE)


cdef inline bint copy_fields(
    const row_t *row, Py_ssize_t r, target_t *targets, Py_ssize_t width,
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


cdef Py_ssize_t fill_columns(
    const row_t *rows, Py_ssize_t start, Py_ssize_t end, target_t *targets,
    Py_ssize_t width, uint64_t variables, uint64_t fixed,
) noexcept nogil:
    """Copy fields of some rows to the columns; return the first invalid row, or -1.

    `fixed` is the size of a row without its variable fields.
    """
    cdef const row_t *row
    cdef target_t *target
    cdef uint64_t total
    cdef uint64_t v
    cdef Py_ssize_t r, t
    for r in range(start, min(end, start + AHEAD)):
        prefetch_row(&rows[r])
    for r in range(start, end):
        if r + AHEAD < end:
            prefetch_row(&rows[r + AHEAD])
        row = &rows[r]
        if variables == 0:
            if row.size != fixed:
                return r
            for t in range(width):
                target = &targets[t]
                copy_item(
                    target.out + <uint64_t> r * target.item, row.at + target.before,
                    target.item,
                )
            continue
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
cdef class RowBatch:
    """Rows of MDS shards of one schema, in any order."""

    def __cinit__(self):
        self.shards = []
        self.sources = []

    def __dealloc__(self):
        free(self.rows)

    def __reduce__(self):
        raise TypeError("a RowBatch does not pickle")

    cdef int reserve(self, Py_ssize_t count) except -1:
        self.rows = <row_t *> malloc((count + 1) * sizeof(row_t))
        if self.rows == NULL:
            raise MemoryError
        self.room = count
        return 0

    cdef bint select_shard(self, RowShard shard) except -1:
        """Select the shard of the next rows; False if it has other columns."""
        cdef Source source
        cdef RowPlan plan
        if type(shard.rows) is not MdsRows:
            return False
        plan = (<MdsRows> shard.rows).plan
        if self.plan is None:
            self.plan = plan
        elif plan is not self.plan:
            return False
        source = shard.open_source()
        try:
            source.check_size()
        except FormatError as error:
            raise shard.annotate(error, 0) from None
        self.direct = type(source) is MappedSource and (
            (<MappedSource> source).file.chunks is None
        )
        if type(source) is MemorySource:
            self.direct = True
        self.resident = self.direct and source.is_resident()
        self.buffered = self.buffered or not self.direct
        self.last = shard
        self.source = source
        self.shards.append(shard)
        self.sources.append(source)  # keeps the bytes if the shard is closed
        return True

    cdef bint add(self, object samples, Py_ssize_t i) except -1:
        """Add row `i` of samples, which is in range; False if it has other columns."""
        cdef RowShard shard
        cdef row_t *row
        if type(samples) is not RowSamples:
            return False
        shard = (<RowSamples> samples).held
        if shard is not self.last and not self.select_shard(shard):
            return False
        row = &self.rows[self.count]
        row.i = i
        row.shard = len(self.shards) - 1
        shard.rows.row_extent(i, &row.offset, &row.size)
        shard.check_extent(
            self.source, shard.rows.width * shard.rows.count + i, row.offset, row.size
        )
        row.at = NULL
        if self.direct:
            row.at = self.source.base + row.offset
            self.cold = self.cold or not self.resident
        self.count += 1
        return True

    cdef Py_ssize_t load(self, Py_ssize_t start, tuple names) except -1:
        """Load the bytes of rows from `start` on; return the end of the loaded ones.

        Of large rows in mapped files only the header and the named fields.
        """
        cdef uint64_t nbytes = 0
        cdef Py_ssize_t end = start
        if not self.cold and not self.buffered:
            return self.count
        while end < self.count and (end == start or nbytes < MAX_LOADED):
            nbytes += self.rows[end].size
            end += 1
        if self.buffered:
            self.copy_rows(start, end)
            return end
        self.page_in(start, end, names)
        return end

    cdef int page_in(self, Py_ssize_t start, Py_ssize_t end, tuple names) except -1:
        """Populate the pages of rows of mapped files that are not resident."""
        cdef RowShard shard
        cdef Pieces pieces = Pieces()
        cdef Py_ssize_t width = self.plan.width
        cdef Py_ssize_t r, k
        cdef list large = []
        columns = [self.plan.places[name] for name in names if name in self.plan.places]
        for r in range(start, end):
            shard = <RowShard> self.shards[self.rows[r].shard]
            if columns and shard.reads_fields(
                self.sources[self.rows[r].shard], self.rows[r].size
            ):
                pieces.add_cold(shard, self.rows[r].i * width + <Py_ssize_t> columns[0])
                large.append(r)
            else:
                pieces.add_cold(shard, width * shard.rows.count + self.rows[r].i)
        pieces.page_in()           # of large rows the headers, unless they are resident
        pieces = Pieces()
        for r in large:
            shard = <RowShard> self.shards[self.rows[r].shard]
            for k in columns:
                pieces.add_cold(shard, self.rows[r].i * width + k)
        pieces.page_in()
        return 0

    cdef int copy_rows(self, Py_ssize_t start, Py_ssize_t end) except -1:
        """Copy rows to the buffer."""
        cdef Py_buffer buffer
        cdef RowShard shard
        cdef const int64_t *offsets
        cdef uint64_t nbytes = 0
        cdef Py_ssize_t r
        shards = []
        members = array("q", [0]) * (end - start)
        for r in range(start, end):
            shard = <RowShard> self.shards[self.rows[r].shard]
            shards.append(shard)
            members[r - start] = (
                shard.rows.width * shard.rows.count + self.rows[r].i
            )
            nbytes += self.rows[r].size
        self.buffer = None
        self.buffer = bytearray(nbytes)
        found = gather(shards, members, self.buffer)
        offsets = int64s_of(found, &buffer)
        try:
            for r in range(start, end):
                self.rows[r].at = address_of(self.buffer) + offsets[r - start]
        finally:
            PyBuffer_Release(&buffer)
        return 0

    cdef int fault(self, Py_ssize_t r) except -1:
        """Raise the error of an invalid row."""
        cdef row_t *row = &self.rows[r]
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
                    self.rows, start, end, columns.targets, columns.width,
                    self.plan.variables, self.plan.fixed,
                )
            if bad >= 0:
                self.fault(bad)
            start = end
        return columns.finish()


cdef const uint8_t *address_of(bytearray buffer) noexcept:
    cdef char *at = buffer
    return <const uint8_t *> at


@cython.final
cdef class Columns:
    """Arrays that are filled with the fields of a batch of rows."""

    cdef RowBatch batch
    cdef target_t *targets
    cdef Py_ssize_t width
    cdef list names, arrays
    cdef list headers              # own the headers of the targets
    cdef list buffers              # exports of the arrays

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
        places = sorted([
            plan.places[name] for name in dict.fromkeys(names) if name in plan.places
        ])
        for k in places:
            self.add(k, allocate)
        return 0

    cdef int add(self, Py_ssize_t k, object allocate) except -1:
        """Add column `k` unless its values have no layout."""
        cdef RowPlan plan = self.batch.plan
        cdef row_t *row = &self.batch.rows[0]
        cdef MdsRows rows = (<RowShard> self.batch.shards[row.shard]).rows
        cdef column_t *column = &plan.columns[k]
        cdef target_t *target = &self.targets[self.width]
        cdef uint64_t start = 0
        cdef uint64_t size = column.size
        cdef Py_buffer buffer
        layout = plan.layout(k)
        if layout is None:
            return 0
        dtype, shape = layout
        target.column = k
        target.variables = column.variables
        target.before = column.before
        target.varies = column.size == 0
        target.skip = 0
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
        made = allocate(plan.names[k], (self.batch.count, *shape), dtype)
        try:
            PyObject_GetBuffer(made, &buffer, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS)
        except (BufferError, ValueError):
            return 0               # strided: filled by the caller
        target.out = <uint8_t *> buffer.buf
        nbytes = buffer.len
        PyBuffer_Release(&buffer)  # `arrays` keeps it
        if nbytes != <uint64_t> self.batch.count * target.item:
            raise ValueError(f"{made.nbytes:,} bytes are no array of {shape}")
        self.names.append(plan.names[k])
        self.arrays.append(made)
        self.width += 1
        return 0

    cdef dict finish(self):
        """Return the columns whose arrays did not differ."""
        cdef Py_ssize_t t
        return {
            self.names[t]: self.arrays[t]
            for t in range(self.width) if self.targets[t].out != NULL
        }


def read_columns(
    SampleLocator locator not None, positions, tuple names not None, allocate not None
):
    """Return columns of samples by position.

    Parameters
    ----------
    locator : SampleLocator
    positions : sequence of int, or array
        Negative ones count from the end.
    names : tuple of str
        Columns; those that are not there are left out.
    allocate : callable
        ``allocate(name, shape, dtype)`` returns a C-contiguous array to fill.

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
    cdef RowBatch batch = RowBatch()
    cdef Py_buffer buffer
    cdef int64_t *numbers
    cdef location_t location
    cdef Py_ssize_t k, count
    cdef object samples = None
    cdef Py_ssize_t shard = NONE
    if not names:
        return {}
    found = resolve_positions(positions, locator.count)
    numbers = int64s_of(found, &buffer)
    try:
        count = buffer.len // 8
        batch.reserve(count)
        for k in range(count):
            locator.locate(numbers[k], &location)
            if location.shard != shard:
                shard = location.shard
                samples = locator.samples[shard]
                if samples is None:
                    samples = locator.open_shard(shard)
                if locator.used is not None:
                    locator.used[shard] = 1
            if not batch.add(samples, location.at):
                return {}
    finally:
        PyBuffer_Release(&buffer)
    return batch.stack(names, allocate)


@cython.nonecheck(True)
def stack_columns(list samples not None, tuple names not None, allocate not None):
    """Return columns of samples, as `read_columns` does.

    Parameters
    ----------
    samples : list of SampleBase
    names, allocate
        As for `read_columns`.
    """
    cdef RowBatch batch = RowBatch()
    cdef SampleBase sample
    if not names:
        return {}
    batch.reserve(len(samples))
    for sample in samples:
        if not batch.add(sample.samples, sample.position):
            return {}
    return batch.stack(names, allocate)
