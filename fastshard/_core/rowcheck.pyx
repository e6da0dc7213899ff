"""Headers of rows looked at by another thread, before those rows are read.

What is found is what a reader would find: sizes, and which rows have a ``.npy``
header that is known. Whatever is not as expected is left to who reads the row.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from fastshard._core.columnfile cimport is_plain
from fastshard._core.extents cimport name_at
from fastshard._core.platform cimport fs_load, fs_prefetch_line
from fastshard._core.rows cimport UNKNOWN, Cells, Rows
from fastshard._core.source cimport Source
from fastshard._core.threads cimport fs_get, fs_publish

cdef enum:
    HEADER = 512                   # bytes before a member's data
    NEAR = 10                      # rows ahead whose headers are asked for
    LINE = 64                      # bytes
    LINES = 3                      # of a header: what `is_plain` looks at


cdef void expect(const check_t *check, size_t k) noexcept nogil:
    """Ask for the headers of a row that comes."""
    cdef int64_t i
    cdef uint64_t offset
    cdef size_t line
    if k + NEAR >= check.end:
        return
    i = check.positions[k + NEAR]
    offset = fs_load(check.offsets + i)
    if check.marks[i].slot != check.slot or offset < HEADER or offset >= check.nbytes:
        return
    if fs_load(check.sizes + i) == UNKNOWN:
        for line in range(<size_t> LINES):
            fs_prefetch_line(check.base + offset - HEADER + line * LINE)
    if check.tag != 0 and check.marks[i].layout != check.tag:
        fs_prefetch_line(check.base + offset)
        fs_prefetch_line(check.base + min(offset + LINE, check.nbytes - 1))


cdef void check_rows(const void *at) noexcept nogil:
    """Look at the headers of rows of one shard."""
    cdef const check_t *check = <const check_t *> at
    cdef uint64_t offset, size
    cdef size_t k
    cdef int64_t i
    for k in range(check.start, check.end):
        expect(check, k)
        i = check.positions[k]
        if check.marks[i].slot != check.slot:
            continue
        size = fs_get(check.sizes + i)
        offset = fs_get(check.offsets + i)
        if offset < HEADER or offset > check.nbytes or offset % HEADER != 0:
            continue
        if size == UNKNOWN:
            if not is_plain(
                check.base + offset - HEADER, name_at(check.names, <uint32_t> i), &size
            ) or size > check.nbytes - offset:
                continue
            fs_publish(check.sizes + i, size)
        if (
            check.tag != 0 and check.marks[i].layout != check.tag
            and size == check.size and size <= check.nbytes - offset
            and memcmp(check.base + offset, check.header, check.header_size) == 0
        ):
            check.marks[i].layout = check.tag


@cython.final
@cython.no_gc
cdef class Checking:
    """Rows whose headers are looked at; holds what that needs.

    The caller has seen to it that the shard is mapped, that its offsets are true
    ones if there is such a member, and that the positions are of samples.
    """

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
    cdef Cells cells = rows.cells
    cdef check_t *check = &checking.check
    cdef bytes header = None
    check.positions = positions
    check.start = start
    check.end = end
    check.slot = cells.marks[positions[start]].slot
    check.marks = cells.marks
    check.offsets = cells.offsets
    check.sizes = cells.sizes
    check.names = &rows.table.columns
    check.base = source.base
    check.nbytes = source.nbytes
    layout = rows.layout
    if layout is not None and layout[3] is not None and layout[4] >= len(layout[3]):
        header = layout[3]
        check.header = <const uint8_t *> PyBytes_AS_STRING(header)
        check.header_size = PyBytes_GET_SIZE(header)
        check.size = layout[4]
        check.tag = layout[5]
    checking.held = rows.table, source, order, header
    return checking
