# cython: nonecheck=True
"""One field of many rows put into one array, without the GIL where that can be.

Rows are copied as long as each is like the first: in a mapped shard, a header where
it should be, the same ``.npy`` header. Whatever is not goes the way that single
members go, which knows every fault.
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from fastshard._core.arrays cimport seen_of
from fastshard._core.columnfile cimport is_plain
from fastshard._core.extents cimport name_at
from fastshard._core.npyheader cimport SEEN_BYTES, Layout, layout_of
from fastshard._core.pages cimport fs_now
from fastshard._core.pieces cimport Pieces
from fastshard._core.platform cimport fs_load, fs_prefetch_line
from fastshard._core.residency cimport LOOK_EVERY
from fastshard._core.rows cimport (
    UNKNOWN, Cells, ColumnShard, Places, Rows, key_of, mark_t, place_t,
)
from fastshard._core.source cimport MappedSource, Source
from fastshard._core.threads cimport fs_get, fs_publish

from fastshard.errors import FieldNotFoundError

cdef enum:
    HEADER = 512                   # bytes before a member's data
    FAR = 24                       # rows ahead: its numbers are asked for
    NEAR = 4                       # its bytes
    AT_ONCE = 64                   # rows whose pages are looked for
    LINE = 64                      # bytes
    HEADER_LINES = 3               # of a header: what `is_plain` looks at
    MOST_LINES = 10                # of a row that are asked for

cdef uint64_t MOST_AT_ONCE = 1 << 30  # bytes that are asked for

ctypedef const uint8_t *bytes_t

cdef struct fill_t:
    const int64_t *positions
    size_t count
    Py_ssize_t rows                # that the dataset has
    mark_t *marks
    uint64_t *offsets
    uint64_t *sizes
    uint8_t tag                    # of the header that all rows have; 0: none
    const place_t *places          # by slot
    const uint8_t *header
    size_t header_size
    uint64_t size                  # of each member
    uint8_t *to
    size_t row_size                # bytes of data


cdef const uint8_t *row_at(const fill_t *fill, size_t r) noexcept nogil:
    """Where a row's member should be; NULL: nobody knows yet."""
    cdef int64_t i = fill.positions[r]
    cdef uint64_t offset
    cdef const place_t *place
    if not 0 <= i < fill.rows or fill.marks[i].slot < 0:
        return NULL
    place = &fill.places[fill.marks[i].slot]
    offset = fs_load(fill.offsets + i)
    if place.base == NULL or offset < HEADER or offset > place.nbytes or (
        fill.size > place.nbytes - offset
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
            fs_prefetch_line(rows[k] + fill.header_size)


cdef void expect(const fill_t *fill, size_t r, const uint8_t *at) noexcept nogil:
    """Ask for the memory of a row that comes."""
    cdef size_t size = fill.row_size
    cdef size_t k, lines
    cdef int64_t i = fill.positions[r]
    if at == NULL:
        return
    if fill.tag != 0 and fill.marks[i].layout == fill.tag:
        at += fill.header_size
    else:
        size += fill.header_size
        fs_prefetch_line(fill.sizes + i)
        for k in range(<size_t> HEADER_LINES):
            fs_prefetch_line(at - HEADER + k * LINE)
    lines = min(size // LINE + 1, <size_t> MOST_LINES)
    for k in range(lines):
        fs_prefetch_line(at + k * LINE)


cdef inline void expect_numbers(const fill_t *fill, size_t r) noexcept nogil:
    """Ask for what the index says of a row that comes."""
    cdef int64_t i
    if r + FAR < fill.count:
        i = fill.positions[r + FAR]
        if 0 <= i < fill.rows:
            fs_prefetch_line(fill.marks + i)
            fs_prefetch_line(fill.offsets + i)


cdef bint all_near(Places places) except -1:
    """Whether all shards that were seen are in memory."""
    cdef Source source
    for source in list(places.sources):
        if not source.is_near():
            return False
    return True


cdef bint is_alike(
    fill_t *fill, int64_t i, const place_t *place, uint64_t offset, void *columns
) noexcept nogil:
    """Whether a row has the header and the size that are looked for."""
    cdef uint64_t size = fs_get(fill.sizes + i)
    if size == UNKNOWN:
        if offset % HEADER != 0 or not place.believed or not is_plain(
            place.base + offset - HEADER, name_at(columns, <uint32_t> i), &size
        ):
            return False
        if size <= place.nbytes - offset:
            fs_publish(fill.sizes + i, size)
    if size != fill.size or size > place.nbytes - offset:
        return False
    return memcmp(place.base + offset, fill.header, fill.header_size) == 0


cdef size_t copy_rows(fill_t *fill, size_t r, void *columns) noexcept nogil:
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
                expect(fill, r + k, rows[k])
        k = (r - start) % AT_ONCE + NEAR
        if k < AT_ONCE and r + NEAR < fill.count:
            expect(fill, r + NEAR, rows[k])
        i = fill.positions[r]
        if not 0 <= i < fill.rows or fill.marks[i].slot < 0:
            return r
        place = &fill.places[fill.marks[i].slot]
        offset = fs_get(fill.offsets + i)
        if place.base == NULL or offset < HEADER or offset > place.nbytes:
            return r
        if fill.tag == 0 or fill.marks[i].layout != fill.tag:
            if not is_alike(fill, i, place, offset, columns):
                return r
            fill.marks[i].layout = fill.tag
        elif fill.size > place.nbytes - offset:
            return r
        memcpy(
            fill.to + r * fill.row_size, place.base + offset + fill.header_size,
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
    cdef bint holds_positions
    cdef bint holds_out
    cdef bytes header
    cdef Places places             # held, whoever closes the shards
    cdef uint64_t most             # bytes touched together; 0: any number

    def __cinit__(self, Rows rows not None, positions, out, bytes header not None,
                  uint64_t size, uint8_t tag):
        cdef Cells cells = rows.cells
        cdef uint64_t header_size = PyBytes_GET_SIZE(header)
        self.rows = rows
        self.header = header
        PyObject_GetBuffer(positions, &self.positions, PyBUF_C_CONTIGUOUS)
        self.holds_positions = True
        PyObject_GetBuffer(out, &self.out, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS)
        self.holds_out = True
        self.fill.positions = <const int64_t *> self.positions.buf
        self.fill.count = self.positions.len // 8
        self.fill.rows = <Py_ssize_t> cells.count
        self.fill.marks = cells.marks
        self.fill.offsets = cells.offsets
        self.fill.sizes = cells.sizes
        self.fill.tag = tag
        self.fill.header = <const uint8_t *> PyBytes_AS_STRING(header)
        self.fill.header_size = header_size
        self.fill.size = size
        if header_size > size or self.positions.itemsize != 8:
            raise ValueError("a header beyond its member, or positions of other size")
        self.fill.row_size = size - header_size
        self.fill.to = <uint8_t *> self.out.buf
        if <uint64_t> self.out.len != self.fill.row_size * self.fill.count:
            raise ValueError("an array of another size than the rows")

    cdef object run(self):
        """Copy all rows; returns the place of the first that is ragged, or None."""
        cdef size_t r = 0
        cdef size_t count = self.fill.count
        cdef void *columns = &self.rows.table.columns
        if self.most > 0:
            self.fill.count = 0
        while True:
            if self.most > 0 and r >= self.fill.count:
                self.fill.count = self.touch_rows(r, count)
            with nogil:
                r = copy_rows(&self.fill, r, columns)
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
            if not 0 <= i < self.fill.rows or self.fill.marks[i].slot < 0:
                continue           # raises in its turn
            source = self.rows.shard_of(i).open_source()
            offset = fs_get(self.fill.offsets + i)
            start = offset - min(offset, <uint64_t> HEADER)
            if offset <= source.nbytes:
                size = min(self.fill.size, source.nbytes - offset) + offset - start
                source.touch(start, size)
                source.confine(start, size)
            nbytes += self.fill.size + HEADER
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
                rows.places = Places(len(rows.numbers))
            self.places = rows.places
        self.fill.places = self.places.at
        sure = sure or now < self.places.near_until
        for r in range(self.fill.count):
            expect_numbers(&self.fill, r)
            i = self.fill.positions[r]
            if not 0 <= i < self.fill.rows:
                continue           # raises in its turn
            slot = self.fill.marks[i].slot
            if slot >= 0 and self.places.at[slot].base == NULL:
                self.open_place(slot, rows.shard_of(i))
                sure = brought
        for source in list(self.places.sources):
            self.most = max(self.most, (<Source> source).most_touched())
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
        cdef bytearray far = bytearray(self.places.count + 1)  # 1: near, 2: far; by slot
        cdef unsigned char[::1] states = far
        cdef ColumnShard shard
        cdef size_t r
        cdef int64_t i
        cdef int32_t slot
        for r in range(self.fill.count):
            i = self.fill.positions[r]
            if not 0 <= i < self.fill.rows:
                continue
            slot = self.fill.marks[i].slot
            if slot < 0 or states[slot] == 1:
                continue
            shard = self.rows.shard_of(i)
            if states[slot] == 0:
                states[slot] = 1 if shard.open_source().is_near() else 2
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
            raise IndexError(f"position {i} is out of range: there are {self.fill.rows:,}")
        if not self.rows.has(i):
            raise FieldNotFoundError(
                self.rows.field, f"sample {key_of(self.rows.table, i)!r}"
            )
        shard = self.rows.shard_of(i)
        owner = shard.hold(i, &at, &size)
        if size != self.fill.size or memcmp(at, self.fill.header, self.fill.header_size):
            self.rows.array(i)     # raises if it is no array at all
            return False
        memcpy(
            self.fill.to + r * self.fill.row_size, at + self.fill.header_size,
            self.fill.row_size,
        )
        return True

    def __dealloc__(self):
        if self.holds_positions:
            PyBuffer_Release(&self.positions)
        if self.holds_out:
            PyBuffer_Release(&self.out)


def layout_of_row(Rows rows not None, Py_ssize_t i):
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
        raise IndexError(f"position {i} is out of range: there are {rows.cells.count:,}")
    if not rows.has(i):
        raise FieldNotFoundError(rows.field, f"sample {key_of(rows.table, i)!r}")
    shard = rows.shard_of(i)
    if rows.unpickle is not None:
        array = rows.array(i)
        if array.dtype.hasobject:  # it has no bytes that could be copied
            return array.dtype, array.shape, False, None, 0, 0
    array = shard.array(i)         # checks all that there is
    owner = shard.hold(i, &at, &size)
    layout = layout_of(at, size, seen_of(shard))
    header = None
    if layout.header_size <= SEEN_BYTES:
        header = (<const char *> layout.header)[:layout.header_size]
    return (
        array.dtype, array.shape, layout.shape.fortran, header, size, rows.tag_of(layout)
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
