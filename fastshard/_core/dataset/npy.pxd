from libc.stdint cimport uint8_t, uint64_t

from fastshard._core.dataset.shape cimport shape_t
from fastshard._core.dataset.shard cimport Shard


cdef enum:
    CACHED_HEADER = 256            # bytes of a header that is cached, at most
    EARLIER = 64                   # slots of a cache: headers pad data to 64 bytes


cdef class Layout:
    cdef object dtype
    cdef shape_t shape
    cdef uint64_t nbytes           # of the data
    cdef size_t header_size        # bytes before the data
    cdef uint8_t[CACHED_HEADER] header
    cdef Layout copy(self)


cdef class LayoutCache:
    cdef Layout first
    cdef Layout second
    cdef Layout third
    cdef list earlier              # layouts before these, by `slot_of`; None: no others
    cdef dict dtypes               # of plain headers, by their characters; or None
    cdef Layout find(self, const uint8_t *at, uint64_t size)
    cdef int add(self, Layout layout) except -1
    cdef object find_dtype(self, bytes descr)


cdef struct stored_t:              # borrowed: whoever makes one keeps the array
    const void *dtype              # address of its descriptor
    const uint8_t *at              # first byte of the data
    uint64_t nbytes                # of the data
    int dimensions
    const Py_ssize_t *lengths
    bint fortran                   # the data lies in Fortran order, and not in C order


cdef bint has_plain_data(object array, stored_t *stored)


cdef class HeldBuffer:
    cdef Py_buffer buffer


cdef Layout find_layout(const uint8_t *at, uint64_t size, LayoutCache layouts)
cdef tuple make_row_layout(Layout pack)
cdef object make_fault(uint64_t at, str reason)

cdef object make_shaped_array(
    object dtype, const shape_t *shape, uint8_t *at, bint writable, object owner
)

cdef object make_empty_array(
    object dtype, Py_ssize_t count, tuple shape, uint64_t nbytes, uint8_t **at
)

cdef object allocate_column(
    str name, Py_ssize_t count, tuple shape, object dtype, uint64_t item,
    object allocate, uint8_t **out,
)

cdef LayoutCache get_layout_cache(Shard shard)

cdef object make_layout_array(Layout layout, uint8_t *at, object owner)

cdef object make_member_array(
    Shard shard, Py_ssize_t i, uint8_t *at, uint64_t size, object owner, object dtype,
    object shape,
)

cdef object make_array(
    uint8_t *at, uint64_t size, object dtype, object shape, bint writable,
    object owner, LayoutCache layouts,
)
