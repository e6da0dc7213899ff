# cython: nonecheck=True
"""Packs: members whose rows are the arrays of many samples."""

cimport cython
from libc.stdint cimport uint8_t, uint64_t

from fastshard._core.dataset.npy cimport (
    Layout, LayoutCache, find_layout, make_fault, make_row_layout, make_shaped_array,
)
from fastshard._core.io.source cimport Source, View

from fastshard.errors import FormatError

cdef enum:
    VERSION_AT = 6                 # offset of the major version in ``.npy``
    SHAPE_AT = 8                   # offset that errors of the shape name
    MAX_LAYOUTS = 64               # of rows that are cached

cdef dict row_layouts = {}         # (layout, header) by the header of a pack


@cython.final
@cython.no_gc
cdef class Pack:
    """Pack whose headers are checked: all rows lie in the file as it was opened."""

    def __reduce__(self):
        raise TypeError("a Pack does not pickle")

    cdef int check_row(self, uint64_t row, str field, str member) except -1:
        """Raise FormatError if the pack has no such row."""
        if row >= self.rows:
            raise FormatError(
                f"field {field!r} is row {row:,} of a pack of {self.rows:,} rows",
                self.path, self.offset, member,
            )
        return 0

    cdef object array(self, uint64_t row, str field, str member):
        """Return a row as an array on the file's own memory."""
        cdef uint8_t *at
        cdef object owner
        cdef Source source = self.source
        self.check_row(row, field, member)
        try:
            owner = source.pin(self.first + row * self.row_size, self.row_size, &at)
        except FormatError as error:
            raise FormatError(
                error.reason, self.path, error.offset, member
            ) from error.__cause__
        return make_shaped_array(
            self.layout.dtype, &self.layout.shape, at,
            type(owner) is View and source.writable, owner,
        )


cdef tuple find_row_layout(Layout layout):
    """Return the layout and the header of the rows of a pack; cached."""
    cdef bytes key = (<const char *> layout.header)[:layout.header_size]
    found = row_layouts.get(key)
    if found is None:
        found = make_row_layout(layout)
        if len(row_layouts) >= MAX_LAYOUTS:
            row_layouts.clear()
        row_layouts[key] = found
    return <tuple> found


cdef Pack make_pack(
    Source source, str path, uint64_t offset, uint64_t size, const uint8_t *window,
    uint64_t window_size, LayoutCache layouts,
):
    """Return the pack of a member.

    Parameters
    ----------
    source, path
        Of the shard.
    offset, size
        Of the member; it lies in the file.
    window, window_size
        The first bytes of the member.
    layouts : LayoutCache

    Raises
    ------
    FormatError
        The member is not a pack. The offset is relative to its first byte.
    """
    cdef Layout layout
    cdef Pack pack
    if window_size > VERSION_AT and 2 <= window[VERSION_AT] <= 3:
        raise make_fault(VERSION_AT, f"a pack of version {window[VERSION_AT]}.0")
    layout = find_layout(window, window_size, layouts)
    if layout.shape.fortran:
        raise make_fault(SHAPE_AT, "a pack in Fortran order")
    if layout.shape.dimensions == 0:
        raise make_fault(SHAPE_AT, "a pack without rows: it has no axis")
    if layout.nbytes == 0:
        raise make_fault(SHAPE_AT, "a pack without rows, or with rows of 0 bytes")
    if size < layout.header_size or size - layout.header_size != layout.nbytes:
        raise make_fault(
            size,
            f"expected {layout.nbytes:,} bytes of rows by its header, got "
            f"{max(size, <uint64_t> layout.header_size) - layout.header_size:,}",
        )
    pack = Pack.__new__(Pack)
    pack.source = source
    pack.path = path
    pack.offset = offset
    pack.first = offset + layout.header_size
    pack.rows = <uint64_t> layout.shape.lengths[0]
    pack.row_size = layout.nbytes // pack.rows
    pack.layout, pack.header = (
        find_row_layout(layout) if layout.header_size <= sizeof(layout.header)
        else make_row_layout(layout)
    )
    return pack
