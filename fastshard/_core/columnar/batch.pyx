# cython: nonecheck=True
"""Rows of a columnar dataset in batches: brought ahead, checked, put into one array.

Rows are copied without the GIL as long as each is like the first: in a mapped shard, a
header where it should be, the same ``.npy`` header. Whatever is not goes the way that
single members go, which knows every fault. A scan has another thread look at the
headers of the rows that come; what it finds is what a reader would find.
"""

cimport cython
from cpython.buffer cimport PyBuffer_Release
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from fastshard._core.dataset.npy cimport get_layout_cache
from fastshard._core.buffers cimport bytes_of, int64s_of
from fastshard._core.columnar.rows cimport (
    BLOCK, UNKNOWN, Cells, ColumnShard, ShardMappings, Rows, is_plain, key_of, mark_t, place_t,
)
from fastshard._core.table.extents cimport name_at
from fastshard._core.dataset.npy cimport CACHED_HEADER, Layout, find_layout
from fastshard._core.io.page_ring cimport MappedChunks, PageRing
from fastshard._core.pages cimport fs_now
from fastshard._core.dataset.gather cimport Pieces
from fastshard._core.platform cimport fs_load, fs_prefetch_line
from fastshard._core.io.prefetch cimport Prefetcher, task_t
from fastshard._core.io.source cimport LOOK_EVERY, MAX_PAGE_IN
from fastshard._core.io.source cimport MappedSource, Source
from fastshard._core.threads cimport fs_atomic_load, fs_atomic_publish

from collections import deque

from fastshard.errors import FastshardError, FieldNotFoundError

cdef enum:
    LINE = 64                      # bytes
    HEADER_LINES = 3               # of a tar's header: what `is_plain` looks at
    MOST_LINES = 10                # of a row that are asked for

cdef enum:                         # rows ahead
    FAR = 24                       # whose numbers are asked for
    NEAR = 4                       # whose bytes are
    CHECKED_NEAR = 10              # whose headers are, by who looks at nothing else
    AT_ONCE = 64                   # whose pages are looked for

cdef enum:                         # of a sweep
    GAP = 64 << 10                 # bytes between members of one run
    RUN = 1 << 20                  # bytes of a run, at most
    MOST_BATCHES = 64              # ahead
    WORTH_CHECKING = 8             # rows of a shard

cdef enum:                         # offsets of a shard; 0: not seen
    TRUE_ONES = 1
    OTHERS = 2

LAST = (1 << 63) - 1               # in the place of a shard's number: there is none

cdef uint64_t MOST_AT_ONCE = 1 << 30  # bytes that are asked for

ctypedef const uint8_t *bytes_t

cdef struct column_t:              # one field of all samples, and what rows are like
    mark_t *marks
    uint64_t *offsets
    uint64_t *sizes
    const void *names              # of members
    const uint8_t *header          # the ``.npy`` header that most rows have, or NULL
    size_t header_size
    uint64_t size                  # of a member that has it
    uint8_t tag                    # of that header; 0: none


cdef void column_of(Rows rows, column_t *column):
    """Point at the memory of a field, which has no header yet."""
    cdef Cells cells = rows.cells
    column.marks = cells.marks
    column.offsets = cells.offsets
    column.sizes = cells.sizes
    column.names = &rows.table.columns


cdef void set_header(column_t *column, bytes header, uint64_t size, uint8_t tag):
    """Say what rows are like; who calls keeps the header."""
    column.header = <const uint8_t *> PyBytes_AS_STRING(header)
    column.header_size = PyBytes_GET_SIZE(header)
    column.size = size
    column.tag = tag


cdef inline bint has_layout(const column_t *column, int64_t i) noexcept nogil:
    """Whether a row was checked to have the most common header."""
    return column.tag != 0 and column.marks[i].layout == column.tag


cdef inline void expect_header(const uint8_t *data) noexcept nogil:
    """Ask for the header before a member's data."""
    cdef size_t line
    for line in range(<size_t> HEADER_LINES):
        fs_prefetch_line(data - BLOCK + line * LINE)


cdef inline uint64_t size_at(
    const column_t *column, int64_t i, const place_t *place, uint64_t offset
) noexcept nogil:
    """Return a member's size, as it is known or as a plain header says; else `UNKNOWN`.

    `offset` is inside of the shard, behind a block. What a header says is noted.
    """
    cdef uint64_t size = fs_atomic_load(column.sizes + i)
    if size != UNKNOWN:
        return size
    if not place.believed or offset % BLOCK != 0 or not is_plain(
        place.base + offset - BLOCK, name_at(column.names, <uint32_t> i), &size
    ) or size > place.nbytes - offset:
        return UNKNOWN
    fs_atomic_publish(column.sizes + i, size)
    return size


cdef inline bint is_alike(
    const column_t *column, int64_t i, const place_t *place, uint64_t offset
) noexcept nogil:
    """Whether a row has the most common size and header; notes its size."""
    cdef uint64_t size = size_at(column, i, place, offset)
    return (
        size == column.size and size <= place.nbytes - offset
        and memcmp(place.base + offset, column.header, column.header_size) == 0
    )


cdef struct check_t:               # rows of one shard whose headers are looked at
    column_t column
    place_t place
    const int64_t *positions
    size_t start                   # places in them
    size_t end
    int32_t slot                   # rows of other shards are passed over


cdef void expect_checked(const check_t *check, size_t k) noexcept nogil:
    """Ask for the headers of a row that comes."""
    cdef const column_t *column = &check.column
    cdef int64_t i
    cdef uint64_t offset
    cdef const uint8_t *data
    if k + CHECKED_NEAR >= check.end:
        return
    i = check.positions[k + CHECKED_NEAR]
    offset = fs_load(column.offsets + i)
    if column.marks[i].slot != check.slot or not (
        BLOCK <= offset < check.place.nbytes
    ):
        return
    data = check.place.base + offset
    if fs_load(column.sizes + i) == UNKNOWN:
        expect_header(data)
    if column.tag != 0 and not has_layout(column, i):
        fs_prefetch_line(data)
        fs_prefetch_line(check.place.base + min(offset + LINE, check.place.nbytes - 1))


cdef void check_rows(const void *at) noexcept nogil:
    """Look at the headers of rows of one shard."""
    cdef const check_t *check = <const check_t *> at
    cdef const column_t *column = &check.column
    cdef uint64_t offset
    cdef size_t k
    cdef int64_t i
    for k in range(check.start, check.end):
        expect_checked(check, k)
        i = check.positions[k]
        if column.marks[i].slot != check.slot or has_layout(column, i):
            continue
        offset = fs_atomic_load(column.offsets + i)
        if offset < BLOCK or offset > check.place.nbytes:
            continue
        if column.tag == 0:
            size_at(column, i, &check.place, offset)
        elif is_alike(column, i, &check.place, offset):
            column.marks[i].layout = column.tag


@cython.final
@cython.no_gc
cdef class Checking:
    """Rows whose headers are looked at; holds what that needs.

    The caller has seen to it that the shard is mapped, that its offsets are true
    ones if there is such a member, and that the positions are of samples.
    """

    cdef check_t check
    cdef tuple held                # whose memory it is

    def __reduce__(self):
        raise TypeError("a Checking does not pickle")


cdef Checking checking_of(
    Rows rows, Source source, object order, const int64_t *positions, size_t start,
    size_t end,
):
    """Return what to look at: rows of a shard, from one place in an order on.

    The first of them is one of the shard; those of others are passed over.
    """
    cdef Checking checking = Checking.__new__(Checking)
    cdef check_t *check = &checking.check
    cdef bytes header = None
    column_of(rows, &check.column)
    check.positions = positions
    check.start = start
    check.end = end
    check.slot = check.column.marks[positions[start]].slot
    check.place.base = source.base
    check.place.nbytes = source.nbytes
    check.place.believed = True
    layout = rows.layout
    if layout is not None and layout[3] is not None and layout[4] >= len(layout[3]):
        header = layout[3]
        set_header(&check.column, header, layout[4], layout[5])
    checking.held = rows.table, source, order, header
    return checking


cdef struct fill_t:
    const int64_t *positions
    size_t count
    Py_ssize_t rows                # that the dataset has
    column_t column
    const place_t *places          # by slot
    uint8_t *to
    size_t row_size                # bytes of data


cdef const uint8_t *row_at(const fill_t *fill, size_t r) noexcept nogil:
    """Expected address of a row's member; NULL while its shard is not open."""
    cdef int64_t i = fill.positions[r]
    cdef uint64_t offset
    cdef const place_t *place
    if not 0 <= i < fill.rows or fill.column.marks[i].slot < 0:
        return NULL
    place = &fill.places[fill.column.marks[i].slot]
    offset = fs_load(fill.column.offsets + i)
    if place.base == NULL or offset < BLOCK or offset > place.nbytes or (
        fill.column.size > place.nbytes - offset
    ):
        return NULL
    return place.base + offset


cdef void expect_pages(
    const fill_t *fill, size_t r, bytes_t *rows
) noexcept nogil:
    """Ask for where rows are, and for a line of each: finding its page takes longest.

    In a loop of its own, so that many pages are looked for at once.
    """
    cdef size_t k
    cdef size_t count = min(fill.count - r, <size_t> AT_ONCE)
    for k in range(count):
        rows[k] = row_at(fill, r + k)
        if rows[k] != NULL:
            fs_prefetch_line(rows[k] + fill.column.header_size)


cdef void expect_row(const fill_t *fill, size_t r, const uint8_t *at) noexcept nogil:
    """Ask for the memory of a row that comes."""
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
        expect_header(at)
    lines = min(size // LINE + 1, <size_t> MOST_LINES)
    for k in range(lines):
        fs_prefetch_line(at + k * LINE)


cdef inline void expect_numbers(const fill_t *fill, size_t r) noexcept nogil:
    """Ask for what the index says of a row that comes."""
    cdef int64_t i
    if r + FAR < fill.count:
        i = fill.positions[r + FAR]
        if 0 <= i < fill.rows:
            fs_prefetch_line(fill.column.marks + i)
            fs_prefetch_line(fill.column.offsets + i)


cdef bint all_near(ShardMappings places) except -1:
    """Whether all shards used so far are resident."""
    cdef Source source
    for source in list(places.sources):
        if not source.is_resident():
            return False
    return True


cdef size_t copy_rows(const fill_t *fill, size_t r) noexcept nogil:
    """Copy rows from the r-th on; returns the first that is not as the others are."""
    cdef int64_t i
    cdef uint64_t offset
    cdef size_t k
    cdef const place_t *place
    cdef bytes_t[<int> AT_ONCE] rows
    cdef size_t start = r
    while r < fill.count:
        if (r - start) % AT_ONCE == 0:
            expect_pages(fill, r, rows)
            for k in range(min(fill.count - r, <size_t> NEAR)):
                expect_row(fill, r + k, rows[k])
        k = (r - start) % AT_ONCE + NEAR
        if k < AT_ONCE and r + NEAR < fill.count:
            expect_row(fill, r + NEAR, rows[k])
        i = fill.positions[r]
        if not 0 <= i < fill.rows or fill.column.marks[i].slot < 0:
            return r
        place = &fill.places[fill.column.marks[i].slot]
        offset = fs_atomic_load(fill.column.offsets + i)
        if place.base == NULL or offset < BLOCK or offset > place.nbytes:
            return r
        if has_layout(&fill.column, i):
            if fill.column.size > place.nbytes - offset:
                return r
        elif is_alike(&fill.column, i, place, offset):
            fill.column.marks[i].layout = fill.column.tag
        else:
            return r
        memcpy(
            fill.to + r * fill.row_size, place.base + offset + fill.column.header_size,
            fill.row_size,
        )
        r += 1
    return r


@cython.final
cdef class Filling:
    """Rows that are put into a buffer, which is held meanwhile."""

    cdef Rows rows
    cdef fill_t fill
    cdef Py_buffer positions
    cdef Py_buffer out
    cdef bytes header
    cdef ShardMappings places             # held, whoever closes the shards
    cdef uint64_t most             # bytes touched together; 0: any number

    def __cinit__(self, Rows rows not None, positions, out, bytes header not None,
                  uint64_t size, uint8_t tag):
        cdef uint64_t header_size = PyBytes_GET_SIZE(header)
        self.rows = rows
        self.header = header
        self.fill.positions = int64s_of(positions, &self.positions)
        self.fill.to = bytes_of(out, &self.out, True)
        if header_size > size:
            raise ValueError("a header beyond its member")
        self.fill.count = self.positions.len // 8
        self.fill.rows = <Py_ssize_t> rows.cells.count
        self.fill.row_size = size - header_size
        column_of(rows, &self.fill.column)
        set_header(&self.fill.column, header, size, tag)
        if <uint64_t> self.out.len != self.fill.row_size * self.fill.count:
            raise ValueError("an array of another size than the rows")

    cdef object run(self):
        """Copy all rows; returns the place of the first that is ragged, or None."""
        cdef size_t r = 0
        cdef size_t count = self.fill.count
        if self.most > 0:
            self.fill.count = 0
        while True:
            if self.most > 0 and r >= self.fill.count:
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
        """Note that rows from the r-th on are touched; returns where they end."""
        cdef uint64_t nbytes = 0
        cdef uint64_t offset, size, start
        cdef Source source
        cdef int64_t i
        while r < count and nbytes < self.most:
            i = self.fill.positions[r]
            r += 1
            if not 0 <= i < self.fill.rows or self.fill.column.marks[i].slot < 0:
                continue           # raises in its turn
            source = self.rows.shard_of(i).open_source()
            offset = fs_atomic_load(self.fill.column.offsets + i)
            start = offset - min(offset, <uint64_t> BLOCK)
            if offset <= source.nbytes:
                size = min(self.fill.column.size, source.nbytes - offset)
                size += offset - start
                source.touch(start, size)
                source.confine(start, size)
            nbytes += self.fill.column.size + BLOCK
        return r

    cdef int open_places(self, bint brought) except -1:
        """Find the shards of all rows; bring what may not be in memory."""
        cdef Rows rows = self.rows
        cdef uint64_t now = fs_now()
        cdef bint sure = brought
        cdef size_t r
        cdef int64_t i
        cdef int32_t slot
        with cython.critical_section(rows):
            if rows.places is None:
                rows.places = ShardMappings(len(rows.numbers))
            self.places = rows.places
        self.fill.places = self.places.at
        sure = sure or now < self.places.near_until
        for r in range(self.fill.count):
            expect_numbers(&self.fill, r)
            i = self.fill.positions[r]
            if not 0 <= i < self.fill.rows:
                continue           # raises in its turn
            slot = self.fill.column.marks[i].slot
            if slot >= 0 and self.places.at[slot].base == NULL:
                self.open_place(slot, rows.shard_of(i))
                sure = brought
        for source in list(self.places.sources):
            self.most = max(self.most, (<Source> source).touch_limit())
        if not sure:
            self.bring(now)
        return 0

    cdef int open_place(self, int32_t slot, ColumnShard shard) except -1:
        """Note where a shard is mapped, if it is."""
        cdef Source source = shard.open_source()
        cdef place_t *place = &self.places.at[slot]
        if not isinstance(source, MappedSource):
            return 0
        with cython.critical_section(self.places):
            self.places.sources.append(source)
            place.nbytes = source.nbytes
            place.believed = shard.file.believed
            place.base = source.base  # last: others look at it first
        return 0

    cdef int bring(self, uint64_t now) except -1:
        """Bring what may not be in memory; note if nothing of all shards is far."""
        cdef Pieces pieces = Pieces()
        cdef bytearray far = bytearray(self.places.count + 1)  # a slot; 1: near, 2: far
        cdef uint8_t *states = <uint8_t *> PyByteArray_AS_STRING(far)
        cdef ColumnShard shard
        cdef size_t r
        cdef int64_t i
        cdef int32_t slot
        for r in range(self.fill.count):
            i = self.fill.positions[r]
            if not 0 <= i < self.fill.rows:
                continue
            slot = self.fill.column.marks[i].slot
            if slot < 0 or states[slot] == 1:
                continue
            shard = self.rows.shard_of(i)
            if states[slot] == 0:
                states[slot] = 1 if shard.open_source().is_resident() else 2
            if states[slot] == 2 and pieces.nbytes < MOST_AT_ONCE:
                pieces.add_guess(shard, i)
        pieces.bring()
        if all_near(self.places):
            self.places.near_until = now + LOOK_EVERY
        return 0

    cdef bint copy_row(self, size_t r) except -1:
        """Copy one row the way that knows every fault; False: it is ragged."""
        cdef Py_ssize_t i = self.fill.positions[r]
        cdef ColumnShard shard
        cdef uint8_t *at
        cdef uint64_t size
        if not 0 <= i < self.fill.rows:
            raise IndexError(
                f"position {i} is out of range: there are {self.fill.rows:,}"
            )
        if not self.rows.has(i):
            raise FieldNotFoundError(
                self.rows.field, f"sample {key_of(self.rows.table, i)!r}"
            )
        shard = self.rows.shard_of(i)
        owner = shard.pin(i, &at, &size)
        if size != self.fill.column.size or memcmp(
            at, self.fill.column.header, self.fill.column.header_size
        ):
            self.rows.array(i)     # raises if it is no array at all
            return False
        memcpy(
            self.fill.to + r * self.fill.row_size, at + self.fill.column.header_size,
            self.fill.row_size,
        )
        return True

    def __dealloc__(self):
        PyBuffer_Release(&self.positions)  # nothing, if they were never filled
        PyBuffer_Release(&self.out)


def read_row_layout(Rows rows not None, Py_ssize_t i):
    """Return how the array of a row lies in its member.

    Returns
    -------
    dtype, shape, fortran, header, size, tag
        `header` are the bytes before the data; None where they are many. `size` is
        the member's. `tag` is for `fill_rows`.

    Raises
    ------
    FieldNotFoundError
        The sample has no such field.
    FormatError, OSError
        It cannot be read.
    """
    cdef uint8_t *at
    cdef uint64_t size
    cdef Layout layout
    cdef ColumnShard shard
    if not 0 <= i < <Py_ssize_t> rows.cells.count:
        raise IndexError(
            f"position {i} is out of range: there are {rows.cells.count:,}"
        )
    if not rows.has(i):
        raise FieldNotFoundError(rows.field, f"sample {key_of(rows.table, i)!r}")
    shard = rows.shard_of(i)
    if rows.unpickle is not None:
        array = rows.array(i)
        if array.dtype.hasobject:  # it has no bytes that could be copied
            return array.dtype, array.shape, False, None, 0, 0
    array = shard.array(i)         # checks all that there is
    owner = shard.pin(i, &at, &size)
    layout = find_layout(at, size, get_layout_cache(shard))
    header = None
    if layout.header_size <= CACHED_HEADER:
        header = (<const char *> layout.header)[:layout.header_size]
    return (
        array.dtype, array.shape, layout.shape.fortran, header, size,
        rows.tag_of(layout),
    )


def fill_rows(
    Rows rows not None, positions, out, bytes header not None, uint64_t size,
    uint8_t tag, *, bint brought=False,
):
    """Copy the data of rows into a buffer, one after another.

    Parameters
    ----------
    rows : Rows
    positions : buffer of int64
    out : buffer
        Writable and contiguous, of as many bytes as the rows' data has.
    header : bytes
        That each row must have.
    size : int
        Bytes of each member.
    tag : int
        Of that header: a row that had it is not looked at again.
    brought : bool
        Their bytes were brought into memory just now.

    Returns
    -------
    int or None
        The place of the first row of another layout; None: all were copied.

    Raises
    ------
    IndexError, FieldNotFoundError, FormatError, OSError
        A row cannot be read.
    """
    cdef Filling filling = Filling(rows, positions, out, header, size, tag)
    filling.open_places(brought)
    return filling.run()


@cython.final
cdef class Batch:
    """Bytes of one batch that are prefetched."""

    cdef uint64_t task             # the last; 0: it is there
    cdef uint64_t nbytes
    cdef list runs                 # (source, start, end) of mapped bytes
    cdef list sources


@cython.final
cdef class RowPrefetcher:
    """Has rows in memory before they are read.

    Parameters
    ----------
    columns : list of Rows
        The fields that are read.
    order : ndarray of int64
        Positions of samples that there are.
    step : int
        Rows of a batch.
    window_bytes : int
        Bytes ahead, but for one batch.
    ring : PageRing or None
        Bounds the resident pages of the shards; all are released at the end.
    whole : bool
        Batches have `step` rows; else fewer, where these take too much memory.
    """

    cdef list columns
    cdef object order
    cdef Py_buffer buffer          # of the order
    cdef const int64_t *positions  # its values
    cdef Py_ssize_t step
    cdef uint64_t window_bytes
    cdef PageRing ring
    cdef bint drops                # pages are released: none is touched early
    cdef bint whole
    cdef bint doubtful             # some bytes could not be brought
    cdef Prefetcher prefetcher
    cdef set mapped                # sources whose pages were, or need not be
    cdef object batches            # that were asked for and not read, in order
    cdef Py_ssize_t asked          # rows
    cdef uint64_t ahead            # bytes
    cdef Batch current

    def __cinit__(
        self, list columns not None, order not None, Py_ssize_t step,
        uint64_t window_bytes, *, PageRing ring, bint whole
    ):
        if step < 1:
            raise ValueError(f"a batch has at least 1 row, not {step}")
        self.columns = columns
        self.order = order
        self.positions = int64s_of(order, &self.buffer)
        self.step = step
        self.window_bytes = window_bytes
        self.ring = ring
        self.drops = ring is not None
        self.whole = whole
        self.batches = deque()
        self.mapped = set()

    def __dealloc__(self):
        PyBuffer_Release(&self.buffer)  # nothing, if it was never filled

    def __reduce__(self):
        raise TypeError("a RowPrefetcher does not pickle")

    def __next__(self):
        """Return the positions of the next batch, whose bytes are in memory."""
        cdef Batch batch
        cdef Py_ssize_t start, end
        self.pass_by()
        while self.asked < len(self.order) and len(self.batches) < MOST_BATCHES and (
            not self.batches or self.ahead < self.window_bytes
        ):
            self.ask()
        if not self.batches:
            self.close()
            raise StopIteration
        start, end, batch = self.batches.popleft()
        self.ahead -= batch.nbytes
        self.current = batch
        for source in batch.sources:
            (<Source> source).check_size()  # it is we who touch its bytes
        if batch.task > 0:
            self.prefetcher.wait(batch.task)
            if self.prefetcher.failed() > 0:
                self.doubt()
        return self.order[start:end]

    def __iter__(self):
        return self

    @property
    def is_complete(self):
        """Whether all bytes of the batch were read; False: some failed."""
        return not self.doubtful

    cdef int doubt(self) except -1:
        """Have all that follows looked at before it is read, which raises."""
        cdef Rows rows
        self.doubtful = True
        for rows in self.columns:
            rows.places = None
        return 0

    def close(self):
        """End the thread, and release what was brought."""
        self.asked = len(self.order)
        if self.prefetcher is not None:
            self.prefetcher.stop()
            self.prefetcher = None
        self.pass_by()
        while self.batches:
            self.current = self.batches.popleft()[2]
            self.pass_by()
        if self.ring is not None:
            self.ring.release()

    cdef int ask(self) except -1:
        """Ask for the bytes of the next batch."""
        cdef Batch batch = Batch.__new__(Batch)
        cdef Py_ssize_t start = self.asked
        cdef Py_ssize_t end = min(start + self.step, <Py_ssize_t> len(self.order))
        cdef Rows rows
        batch.runs = []
        batch.sources = []
        end = self.end_of(start, end)
        for rows in self.columns:
            try:
                self.ask_rows(rows, start, end, batch)
            except (FastshardError, OSError):  # raised when it is read
                pass
        self.asked = end
        self.ahead += batch.nbytes
        self.batches.append((start, end, batch))
        return 0

    cdef Py_ssize_t end_of(self, Py_ssize_t start, Py_ssize_t end) except -1:
        """Where a batch that need not be whole ends: behind a quarter of the window."""
        cdef Rows rows
        cdef ColumnShard shard
        cdef uint64_t offset, size
        cdef uint64_t nbytes = 0
        cdef Py_ssize_t k
        cdef int64_t i
        if self.whole or not self.drops:
            return end
        for k in range(start, end):
            i = self.positions[k]
            for rows in self.columns:
                if rows.cells.marks[i].slot < 0:
                    continue
                try:
                    shard = rows.shard_of(i)
                except (FastshardError, OSError):  # raised when it is read
                    continue
                if shard.estimate_extent(shard.open_source(), i, &offset, &size):
                    nbytes += size
            if nbytes >= self.window_bytes // 4:
                return k + 1
        return end

    cdef int ask_rows(
        self, Rows rows, Py_ssize_t start, Py_ssize_t end, Batch batch
    ) except -1:
        cdef ColumnShard shard = None
        cdef Source source
        cdef Source last = None
        cdef bint near = True
        cdef int32_t slot
        cdef int32_t last_slot = -1
        cdef uint64_t offset, size
        cdef uint64_t run_start = 0
        cdef uint64_t run_end = 0
        cdef Py_ssize_t first = start
        cdef Py_ssize_t k
        cdef int64_t i
        for k in range(start, end):
            i = self.positions[k]
            slot = rows.cells.marks[i].slot
            if slot < 0:
                continue
            if slot != last_slot:
                if near:
                    self.check(rows, shard, first, k)
                first = k
                last_slot = slot
                shard = rows.shard_of(i)
                source = shard.open_source()
                if source is not last:
                    self.push(last, run_start, run_end, near, batch)
                    last = source
                    batch.sources.append(source)
                    near = source.is_resident()
                    if near:
                        self.map_pages(source)
                    run_start = run_end = 0
            if (near and not self.drops) or not shard.estimate_extent(last, i, &offset, &size):
                continue
            size = min(size, <uint64_t> MAX_PAGE_IN)
            if (
                offset < run_start or offset > run_end + GAP
                or offset + size - run_start > RUN
            ):
                self.push(last, run_start, run_end, near, batch)
                run_start = run_end = offset
            run_end = max(run_end, offset + size)
        self.push(last, run_start, run_end, near, batch)
        if near:
            self.check(rows, shard, first, end)
        return 0

    cdef int check(
        self, Rows rows, ColumnShard shard, Py_ssize_t start, Py_ssize_t end
    ) except -1:
        """Have the thread look at the headers of rows of a shard that is in memory.

        Nobody waits for that: who comes first looks at them.
        """
        cdef task_t task
        cdef Checking checking
        cdef Source source
        cdef uint64_t *sizes = rows.cells.sizes
        if self.drops or shard is None or end - start < WORTH_CHECKING or (
            fs_atomic_load(sizes + self.positions[start]) != UNKNOWN
            and fs_atomic_load(sizes + self.positions[end - 1]) != UNKNOWN
        ):
            return 0               # another scan has gone before
        source = shard.open_source()
        if source.base == NULL or not shard.file.believed:
            return 0
        if self.prefetcher is None:
            self.prefetcher = Prefetcher()
        if self.prefetcher.is_backlogged():
            return 0               # a full line would be waited for
        source.check_size()           # its bytes are touched
        memset(&task, 0, sizeof(task))
        checking = checking_of(
            rows, source, self.order, self.positions, start, end
        )
        task.work = check_rows
        task.what = &checking.check
        self.prefetcher.push(task, checking)
        return 0

    cdef int map_pages(self, Source source) except -1:
        """Have a shard's pages mapped by the thread: each 16 are a fault otherwise.

        They are resident, so this does not block.
        """
        cdef task_t task
        if self.drops or source.base == NULL or source in self.mapped or (
            source.nbytes > MAX_PAGE_IN
        ):
            return 0
        self.mapped.add(source)
        memset(&task, 0, sizeof(task))
        task.at = source.base
        task.size = source.nbytes
        if self.prefetcher is None:
            self.prefetcher = Prefetcher()
        self.prefetcher.push(task, source)
        return 0

    cdef int push(
        self, Source source, uint64_t start, uint64_t end, bint near, Batch batch
    ) except -1:
        """Have a run brought, and remember where it is."""
        cdef task_t task
        if source is None or end == start:
            return 0
        batch.nbytes += end - start
        if self.drops and isinstance(source, MappedSource):
            source.touch(start, end - start)
            batch.runs.append((source, start, end))
        if near:
            return 0
        memset(&task, 0, sizeof(task))
        task.offset = start
        task.size = end - start
        if source.base != NULL:
            task.at = source.base + start
        task.fd = source.fd
        task.ask = True
        if self.prefetcher is None:
            self.prefetcher = Prefetcher()
        batch.task = self.prefetcher.push(task, source)
        return 0

    cdef int pass_by(self) except -1:
        """Release the pages of the batch that was read."""
        cdef MappedSource source
        cdef MappedChunks chunks
        cdef uint64_t start, end
        if self.current is None:
            return 0
        runs, self.current = self.current.runs, None
        for source, start, end in runs:
            chunks = source.file.chunks
            if chunks is not None:
                chunks.ring.discard(chunks, start, end, True)
        return 0


cdef int find_offsets(
    Rows rows, const int64_t *positions, Py_ssize_t count
) except -1:
    """Find the members of shards of which the index has no true offsets."""
    cdef ColumnShard shard
    cdef uint64_t offset, size
    cdef Py_ssize_t k
    cdef int32_t slot
    cdef bytearray states = bytearray(len(rows.numbers))  # by slot
    cdef uint8_t *known = <uint8_t *> PyByteArray_AS_STRING(states)
    for k in range(count):
        slot = rows.cells.marks[positions[k]].slot
        if slot < 0 or known[slot] == TRUE_ONES:
            continue
        try:
            if known[slot] == 0:
                known[slot] = TRUE_ONES  # one that cannot be opened: it is tried once
            shard = rows.shard_of(positions[k])
            known[slot] = TRUE_ONES if shard.file.believed else OTHERS
            if known[slot] == OTHERS:
                shard.extent(shard.open_source(), positions[k], &offset, &size)
        except (FastshardError, OSError):  # raised when it is read
            pass
    return 0


cdef bint find_places(
    const mark_t *marks, const uint64_t *known, const int64_t *positions,
    Py_ssize_t count, const int64_t *ranks, Py_ssize_t last, int64_t *shards,
    int64_t *offsets,
) noexcept nogil:
    """Write each sample's shard and offset; whether these are in order already.

    A shard's number stands in `ranks` at its slot; at `last`, that of no shard.
    """
    cdef bint in_order = True
    cdef Py_ssize_t k
    cdef int64_t i
    cdef int32_t slot
    for k in range(count):
        i = positions[k]
        slot = marks[i].slot
        shards[k] = ranks[slot if slot >= 0 else last]
        offsets[k] = <int64_t> known[i] if slot >= 0 else k
        if k > 0 and (
            shards[k] < shards[k - 1]
            or (shards[k] == shards[k - 1] and offsets[k] < offsets[k - 1])
        ):
            in_order = False
    return in_order


def sort_in_file_order(list columns not None, order not None):
    """Return positions in the order of one field's bytes; those without it come last.

    Shards whose offsets in the index are no true ones are walked over for it.

    Parameters
    ----------
    columns : list of Rows
        The first says the order; offsets of all are found.
    order : ndarray of int64
        Positions of samples that there are.
    """
    import numpy

    cdef Py_buffer[4] buffers
    cdef const int64_t *positions
    cdef const int64_t *ranks
    cdef int64_t *shards
    cdef int64_t *offsets
    cdef Py_ssize_t count
    cdef bint in_order
    cdef size_t k
    cdef Rows rows
    memset(buffers, 0, sizeof(buffers))
    try:
        positions = int64s_of(order, &buffers[0])
        count = buffers[0].len // 8
        for rows in columns:
            find_offsets(rows, positions, count)
        rows = columns[0]
        by_slot = numpy.array([*rows.numbers, LAST], numpy.int64)
        numbers = numpy.empty(count, numpy.int64)
        places = numpy.empty(count, numpy.int64)
        ranks = int64s_of(by_slot, &buffers[1])
        shards = int64s_of(numbers, &buffers[2], True)
        offsets = int64s_of(places, &buffers[3], True)
        with nogil:
            in_order = find_places(
                rows.cells.marks, rows.cells.offsets, positions, count, ranks,
                buffers[1].len // 8 - 1, shards, offsets,
            )
    finally:
        for k in range(4):
            PyBuffer_Release(&buffers[k])  # nothing, if it was never filled
    return order if in_order else order[numpy.lexsort((places, numbers))]
