"""Columns of many MDS rows: numbers and arrays of one layout, copied without the GIL.

Rows are found first, then each is read once for all columns. Rows that lie in mapped
files are read there, those of other sources are copied to a buffer, some MB at a time.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.object cimport PyObject
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

from fastshard._core.dataset.npy cimport allocate_column, make_empty_array
from fastshard._core.dataset.records cimport (
    RecordBatch, is_direct, read_batch, record_t, sort_columns, stack_batch,
)
from fastshard._core.dataset.streams cimport SampleLocator
from fastshard._core.io.source cimport Source
from fastshard._core.platform cimport fs_prefetch_line
from fastshard._core.streaming.plan cimport MdsRows, RowPlan, column_t, offset_of
from fastshard._core.streaming.shard cimport RowSamples, RowShard

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
        made = allocate_column(
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
    """Return columns of samples by position."""
    return read_batch(RowBatch(), locator, positions, names, allocate)


def stack_columns(list samples not None, tuple names not None, allocate=None):
    """Return columns of samples, as `read_columns` does."""
    return stack_batch(RowBatch(), samples, names, allocate)
