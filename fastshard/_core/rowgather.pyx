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
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy

from fastshard._core.arrays cimport seen_of
from fastshard._core.columnfile cimport is_plain
from fastshard._core.extents cimport name_at
from fastshard._core.npyheader cimport SEEN_BYTES, Layout, layout_of
from fastshard._core.pieces cimport Pieces
from fastshard._core.platform cimport fs_load, fs_prefetch_line
from fastshard._core.rows cimport UNKNOWN, Cells, ColumnShard, Rows
from fastshard._core.source cimport MappedSource, Source
from fastshard._core.threads cimport fs_get, fs_put

from fastshard.errors import FieldNotFoundError

cdef enum:
    HEADER = 512                   # bytes before a member's data
    FAR = 24                       # rows ahead: its numbers are asked for
    NEAR = 10                      # its bytes
    LINE = 64                      # bytes
    MOST_LINES = 10                # of a row that are asked for

cdef uint64_t MOST_BROUGHT = 1 << 30  # bytes that are asked for at once

cdef enum:                         # of a shard
    UNSEEN
    NEAR_BY                        # its bytes can be had without waiting
    FAR_AWAY                       # they may have to be brought

cdef struct place_t:               # a shard
    const uint8_t *base            # NULL: not seen, or not mapped
    uint64_t nbytes
    bint believed
    int state

cdef struct fill_t:
    const int64_t *positions
    size_t count
    Py_ssize_t rows                # that the dataset has
    const int32_t *slots
    uint64_t *offsets
    uint64_t *sizes
    place_t *places                # by slot
    const uint8_t *header          # that all rows have
    size_t header_size
    uint64_t size                  # of each member
    uint8_t *to
    size_t row_size                # bytes of data


cdef void expect(const fill_t *fill, size_t r) noexcept nogil:
    """Ask for the memory of a row that comes."""
    cdef int64_t i
    cdef uint64_t offset
    cdef size_t k, lines
    cdef const place_t *place
    if r + NEAR >= fill.count:
        return
    i = fill.positions[r + NEAR]
    if not 0 <= i < fill.rows or fill.slots[i] < 0:
        return
    place = &fill.places[fill.slots[i]]
    offset = fs_load(fill.offsets + i)
    if place.base == NULL or offset < HEADER or offset > place.nbytes or (
        fill.size > place.nbytes - offset
    ):
        return
    if fs_load(fill.sizes + i) == UNKNOWN:
        fs_prefetch_line(place.base + offset - HEADER)
        fs_prefetch_line(place.base + offset - HEADER + 2 * LINE)
    lines = min(<size_t> (fill.size + LINE - 1) // LINE, <size_t> MOST_LINES)
    for k in range(lines):
        fs_prefetch_line(place.base + offset + k * LINE)


cdef size_t copy_rows(fill_t *fill, size_t r, void *columns) noexcept nogil:
    """Copy rows from the r-th on; returns the first that is not as the others are."""
    cdef int64_t i
    cdef uint64_t offset, size
    cdef const place_t *place
    while r < fill.count:
        expect(fill, r)
        i = fill.positions[r]
        if not 0 <= i < fill.rows or fill.slots[i] < 0:
            return r
        place = &fill.places[fill.slots[i]]
        if place.base == NULL:
            return r
        size = fs_get(fill.sizes + i)
        offset = fs_get(fill.offsets + i)
        if offset < HEADER or offset > place.nbytes:
            return r
        if size == UNKNOWN:
            if offset % HEADER != 0 or not place.believed or not is_plain(
                place.base + offset - HEADER, name_at(columns, <uint32_t> i), &size
            ):
                return r
            if size <= place.nbytes - offset:
                fs_put(fill.sizes + i, size)
        if size != fill.size or size > place.nbytes - offset or (
            memcmp(place.base + offset, fill.header, fill.header_size) != 0
        ):
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
    cdef list sources              # of the places, held whoever closes them

    def __cinit__(self, Rows rows not None, positions, out, bytes header not None,
                  uint64_t size):
        cdef Cells cells = rows.cells
        cdef uint64_t header_size = PyBytes_GET_SIZE(header)
        self.rows = rows
        self.header = header
        self.sources = []
        PyObject_GetBuffer(positions, &self.positions, PyBUF_C_CONTIGUOUS)
        self.holds_positions = True
        PyObject_GetBuffer(out, &self.out, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS)
        self.holds_out = True
        self.fill.positions = <const int64_t *> self.positions.buf
        self.fill.count = self.positions.len // 8
        self.fill.rows = <Py_ssize_t> cells.count
        self.fill.slots = cells.slots
        self.fill.offsets = cells.offsets
        self.fill.sizes = cells.sizes
        self.fill.header = <const uint8_t *> PyBytes_AS_STRING(header)
        self.fill.header_size = header_size
        self.fill.size = size
        if header_size > size or self.positions.itemsize != 8:
            raise ValueError("a header beyond its member, or positions of other size")
        self.fill.row_size = size - header_size
        self.fill.to = <uint8_t *> self.out.buf
        if <uint64_t> self.out.len != self.fill.row_size * self.fill.count:
            raise ValueError("an array of another size than the rows")
        self.fill.places = <place_t *> calloc(len(rows.shards) + 1, sizeof(place_t))
        if self.fill.places == NULL:
            raise MemoryError

    cdef object run(self):
        """Copy all rows; returns the place of the first that is ragged, or None."""
        cdef size_t r = 0
        cdef void *columns = &self.rows.table.columns
        while True:
            with nogil:
                r = copy_rows(&self.fill, r, columns)
            if r == self.fill.count:
                return None
            if not self.copy_row(r):
                return r
            r += 1

    cdef int open_places(self, bint brought) except -1:
        """Find the shards of all rows; bring what may not be in memory."""
        cdef Pieces pieces = None
        cdef ColumnShard shard
        cdef Source source
        cdef place_t *place
        cdef size_t r
        cdef int64_t i
        for r in range(self.fill.count):
            if r + FAR < self.fill.count:
                i = self.fill.positions[r + FAR]
                if 0 <= i < self.fill.rows:
                    fs_prefetch_line(self.fill.slots + i)
                    fs_prefetch_line(self.fill.offsets + i)
                    fs_prefetch_line(self.fill.sizes + i)
            i = self.fill.positions[r]
            if not 0 <= i < self.fill.rows or self.fill.slots[i] < 0:
                continue           # raises in its turn
            place = &self.fill.places[self.fill.slots[i]]
            if place.state == UNSEEN:
                shard = self.rows.shard_of(i)
                source = shard.open_source()
                place.state = NEAR_BY
                if isinstance(source, MappedSource):
                    self.sources.append(source)
                    place.nbytes = source.nbytes
                    place.believed = shard.file.believed
                    place.base = source.base
                if not brought and not source.is_near():
                    place.state = FAR_AWAY
            if place.state == FAR_AWAY:
                if pieces is None:
                    pieces = Pieces()
                if pieces.nbytes < MOST_BROUGHT:
                    pieces.add_guess(self.rows.shard_of(i), i)
        if pieces is not None:
            pieces.bring()
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
            raise FieldNotFoundError(self.rows.field, f"sample {self.rows.key(i)!r}")
        shard = self.rows.shard_of(i)
        owner = shard.hold(i, &at, &size)
        if size != self.fill.size or memcmp(at, self.fill.header, self.fill.header_size):
            shard.array(i)         # raises if it is no array at all
            return False
        memcpy(
            self.fill.to + r * self.fill.row_size, at + self.fill.header_size,
            self.fill.row_size,
        )
        return True

    def __dealloc__(self):
        free(self.fill.places)
        if self.holds_positions:
            PyBuffer_Release(&self.positions)
        if self.holds_out:
            PyBuffer_Release(&self.out)


def layout_of_row(Rows rows not None, Py_ssize_t i):
    """Return how the array of a row lies in its member.

    Returns
    -------
    dtype, shape, fortran, header, size
        `header` are the bytes before the data; None where they are many. `size` is
        the member's.

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
        raise FieldNotFoundError(rows.field, f"sample {rows.key(i)!r}")
    shard = rows.shard_of(i)
    array = shard.array(i)         # checks all that there is
    owner = shard.hold(i, &at, &size)
    layout = layout_of(at, size, seen_of(shard))
    header = None
    if layout.header_size <= SEEN_BYTES:
        header = (<const char *> layout.header)[:layout.header_size]
    return array.dtype, array.shape, layout.shape.fortran, header, size


def fill_rows(
    Rows rows not None, positions, out, bytes header not None, uint64_t size, *,
    bint brought=False,
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
    cdef Filling filling = Filling(rows, positions, out, header, size)
    filling.open_places(brought)
    return filling.run()
