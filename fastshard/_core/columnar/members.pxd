"""Members of a field, and the header that those of its common layout have."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from fastshard._core.columnar.column_file cimport BLOCK, is_plain_header
from fastshard._core.columnar.rows cimport UNKNOWN, Cells, Rows, mapping_t, mark_t
from fastshard._core.platform cimport fs_prefetch_line
from fastshard._core.table.extents cimport name_at
from fastshard._core.threads cimport fs_atomic_load, fs_atomic_publish

cdef enum:
    LINE = 64                      # bytes of a cache line
    HEADER_LINES = 3               # of a tar header that `is_plain_header` reads


cdef struct column_t:              # a field of all samples, and its common layout
    mark_t *marks
    uint64_t *offsets
    uint64_t *sizes
    const void *names              # columns_t of the members' names
    const uint8_t *header          # common ``.npy`` header, or NULL
    size_t header_size
    uint64_t size                  # of a member with this header
    uint8_t tag                    # of this layout; 0: none


cdef inline void set_column(Rows rows, column_t *column):
    """Set the addresses of a field's memory; no header is set."""
    cdef Cells cells = rows.cells
    column.marks = cells.marks
    column.offsets = cells.offsets
    column.sizes = cells.sizes
    column.names = &rows.table.columns


cdef inline void set_header(
    column_t *column, bytes header, uint64_t size, uint8_t tag
):
    """Set the common layout; the caller keeps `header` alive."""
    column.header = <const uint8_t *> PyBytes_AS_STRING(header)
    column.header_size = PyBytes_GET_SIZE(header)
    column.size = size
    column.tag = tag


cdef inline bint has_layout(const column_t *column, int64_t i) noexcept nogil:
    """Say whether a row was checked to have the common layout."""
    return column.tag != 0 and column.marks[i].layout == column.tag


cdef inline void prefetch_header(const uint8_t *data) noexcept nogil:
    """Prefetch the tar header before a member's data."""
    cdef size_t line
    for line in range(<size_t> HEADER_LINES):
        fs_prefetch_line(data - BLOCK + line * LINE)


cdef inline uint64_t size_at(
    const column_t *column, int64_t i, const mapping_t *mapping, uint64_t offset
) noexcept nogil:
    """Return a member's size if it is known or its header is plain, else UNKNOWN.

    `offset` must be in the shard, at least a block from its start. The size is stored.
    """
    cdef uint64_t size = fs_atomic_load(column.sizes + i)
    if size != UNKNOWN:
        return size
    if not mapping.is_exact or offset % BLOCK != 0 or not is_plain_header(
        mapping.base + offset - BLOCK, name_at(column.names, <uint32_t> i), &size
    ) or size > mapping.nbytes - offset:
        return UNKNOWN
    fs_atomic_publish(column.sizes + i, size)
    return size


cdef inline bint is_alike(
    const column_t *column, int64_t i, const mapping_t *mapping, uint64_t offset
) noexcept nogil:
    """Say whether a row has the common size and header; store its size."""
    cdef uint64_t size = size_at(column, i, mapping, offset)
    return (
        size == column.size and size <= mapping.nbytes - offset
        and memcmp(mapping.base + offset, column.header, column.header_size) == 0
    )
