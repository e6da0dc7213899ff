from libc.stdint cimport int64_t, uint8_t, uint64_t

from fastshard._core.dataset.npy cimport Layout, LayoutCache
from fastshard._core.io.source cimport MappedSource, PreadSource, Source, View
from fastshard._core.span cimport span_t
from fastshard._core.table.extents cimport ExtentTable

cdef class Pack:
    cdef Source source
    cdef str path
    cdef uint64_t offset           # of the member's data in the file, bytes
    cdef uint64_t first            # of the first row
    cdef uint64_t rows
    cdef uint64_t row_size         # bytes
    cdef Layout layout             # of a row as a member of its own
    cdef bytes header              # of such a member
    cdef int check_row(self, uint64_t row, str field, str member) except -1
    cdef object array(self, uint64_t row, str field, str member)


cdef Pack make_pack(
    Source source, str path, uint64_t offset, uint64_t size, const uint8_t *window,
    uint64_t window_size, LayoutCache layouts,
)


cdef enum:
    BLOCK = 512                    # bytes of a tar header


cdef int64_t parse_offset(object offset) except? -1
cdef bint is_plain_header(
    const uint8_t *block, span_t name, uint64_t *size
) noexcept nogil


cdef class UnmappedFile:
    cdef PreadSource source
    cdef int reads_left            # until it is mapped


cdef class ColumnFile:
    cdef Source opened             # None while it is not mapped
    cdef UnmappedFile unmapped     # None once it is mapped
    cdef readonly uint64_t nbytes  # when it was opened
    cdef readonly str path
    cdef readonly object number
    cdef readonly bint is_exact    # offsets of the index are exact
    cdef object scan               # returns a table of all members, and an error
    cdef ExtentTable scan_table    # None until a scan was needed
    cdef object fault              # error that ended the scan early, or None
    cdef uint64_t likely_size      # bytes of the last member found
    cdef readonly LayoutCache layouts
    cdef dict packs                # by the offset of their data
    cdef uint64_t device, inode, size
    cdef int64_t mtime_ns
    cdef object scanning           # a lock
    cdef object holder             # weak reference, or None
    cdef list holders              # of others, or None
    cdef Py_ssize_t holders_limit
    cdef int find(
        self, uint64_t offset, span_t name, uint64_t *found, uint64_t *size
    ) except -1
    cdef bint check_header(
        self, Source source, uint64_t offset, span_t name, uint64_t *size
    ) except -1
    cdef object map_window(
        self, Source source, uint64_t start, uint64_t end, const uint8_t **window
    )
    cdef Source open_source(self)
    cdef object array(self, uint64_t offset, str member)
    cdef PreadSource take_unmapped(self)
    cdef object unmapped_array(self, uint64_t offset, span_t name)
    cdef bytes read_unmapped(
        self, uint64_t offset, span_t name, uint64_t *start, uint64_t *size
    )
    cdef View resident_view(
        self, MappedSource source, uint64_t offset, span_t name, uint64_t *size
    )
    cdef Pack find_pack(self, uint64_t offset, str field, str member)
    cdef Pack open_pack(self, Source source, uint64_t offset)
    cdef Pack read_pack(self, Source source, uint64_t offset, span_t name)
    cdef ExtentTable scan_headers(self)
    cdef int add_holder(self, object holder) except -1
