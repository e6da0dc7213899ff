from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from fastshard._core.io.source cimport MappedSource

cdef class OffsetTable:
    cdef uint32_t *values          # count + 1, modulo 2**32
    cdef Py_ssize_t *wraps         # places at which `values` decrease
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t wrap_count
    cdef uint64_t wrapped_offset(self, Py_ssize_t i) noexcept nogil


cdef inline uint64_t offset_of(OffsetTable table, Py_ssize_t i) noexcept:
    """Return offset `i`, which the caller has checked to be in 0 .. count."""
    if table.wrap_count == 0:
        return table.values[i]
    return table.wrapped_offset(i)


cdef OffsetTable copy_offsets(
    const uint8_t *at, uint64_t count, uint64_t place, uint64_t last, str path
)


cdef struct column_t:
    int kind                       # of the encoding; see plan.pyx
    int code                       # of its type of numbers; 0: none, or in each field
    bint resolved                  # its decoder and types are loaded
    bint is_number                 # a scalar to be filled; set when resolved
    uint64_t size                  # bytes of a field; 0: in the header of each row
    uint64_t before                # bytes of the fixed columns before
    Py_ssize_t variables           # variable columns before


cdef class RowSchema:
    cdef readonly tuple names
    cdef readonly tuple encodings  # parallel to `names`
    cdef readonly Py_ssize_t width
    cdef dict expected             # by key of a config
    cdef bytes accepted            # the config that was last found to agree
    cdef dict places               # name to its column
    cdef int check_config(
        self, const uint8_t *at, uint64_t size, str path, uint64_t offset
    ) except -1
    cdef Py_ssize_t find(self, object name) except -2


cdef class RowPlan(RowSchema):
    cdef readonly tuple sizes      # None for variable columns
    cdef column_t *columns
    cdef Py_ssize_t variables      # variable columns
    cdef uint64_t fixed            # bytes of a row without its variable fields
    cdef dict template             # None by name
    cdef bint is_numbers           # all columns are scalars to be filled, resolved
    cdef list decoders             # callables, None for compiled ones
    cdef list shapes               # tuples, None unless the encoding has the shape
    cdef object layouts            # of the columns that were last read, or None
    cdef object resolver           # encoding to a callable; raises if there is none
    cdef int place_columns(self) except -1
    cdef int set_array(self, Py_ssize_t k, str rest) except -1
    cdef int resolve(self, Py_ssize_t k) except -1
    cdef bint are_numbers(self) noexcept
    cdef object layout(self, Py_ssize_t k)
    cdef object decode(
        self, Py_ssize_t k, const uint8_t *at, uint64_t size, object owner, bint copy
    )
    cdef object decode_array(
        self, Py_ssize_t k, const uint8_t *at, uint64_t size, object owner, bint copy
    )


cdef class RowTable:
    cdef readonly str path         # of the file with the rows
    cdef readonly uint64_t nbytes  # of that file
    cdef readonly RowSchema schema
    cdef readonly tuple names
    cdef readonly Py_ssize_t count  # samples
    cdef readonly Py_ssize_t width  # columns
    cdef readonly OffsetTable offsets
    cdef uint64_t head             # bytes of a row that tell its fields' places
    cdef bint is_read_by_field(self, uint64_t size) noexcept
    cdef int ensure_row(
        self, MappedSource source, Py_ssize_t i, uint64_t offset, uint64_t size,
        bytes mask,
    ) except -1
    cdef int row_extent(
        self, Py_ssize_t i, uint64_t *offset, uint64_t *size
    ) except -1
    cdef int field_extent(
        self, Py_ssize_t i, const uint8_t *row, uint64_t row_size, Py_ssize_t k,
        uint64_t *start, uint64_t *size,
    ) except -1
    cdef object decode_row(
        self, Py_ssize_t i, const uint8_t *row, uint64_t size, object owner,
        bytes mask, bint copy, dict values,
    )
    cdef object decode_field(
        self, Py_ssize_t i, Py_ssize_t k, const uint8_t *at, uint64_t size,
        uint64_t start, object owner, bint copy,
    )
    cpdef object layout(self, Py_ssize_t k)
    cdef object fault(self, Py_ssize_t i, Py_ssize_t k, object reason, uint64_t at)


cdef class MdsRows(RowTable):
    cdef RowPlan plan
    cdef int check_row(
        self, Py_ssize_t i, const uint8_t *row, uint64_t size
    ) except -1
    cdef object explain(self, Py_ssize_t i, Py_ssize_t k, uint64_t start, error)


cdef object view_of(object owner, const uint8_t *at, uint64_t size)

cdef object decode_int_text(const uint8_t *at, uint64_t size)
cdef object decode_float_text(const uint8_t *at, uint64_t size)


cdef inline uint32_t load32(const uint8_t *at) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, at, 4)
    return value
