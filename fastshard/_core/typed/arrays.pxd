"""Arrays of typed samples on the bytes of a msgpack bin.

Importing this module imports NumPy: `plan` takes its functions when it needs them.
"""

from libc.stdint cimport uint8_t, uint64_t

from fastshard._core.dataset.npy cimport Layout, LayoutCache


cdef class ArrayField:
    cdef readonly object expected  # dtype or scalar type; None: any
    cdef object viewed             # dtype of the array on these bytes, if another
    cdef object accepted           # the dtype that was last found to agree
    cdef LayoutCache layouts


# The layout of a bin that is wholly an array; raises FormatError, relative to `at`.
cdef Layout find_packed_layout(const uint8_t *at, uint64_t size, LayoutCache layouts)
cdef bint is_packed_array(const uint8_t *at, uint64_t size, LayoutCache layouts)
cdef object make_packed_array(
    const uint8_t *at, uint64_t size, object owner, bint writable, bint copy,
    bint aligned, LayoutCache layouts,
)
cdef object make_field_array(
    object field, const uint8_t *at, uint64_t size, object owner, bint writable,
    bint copy, bint aligned,
)
cdef LayoutCache new_layout_cache()
# Whether a stored dtype is the expected one of a field, in any byte order.
cdef bint agrees(object dtype, object expected) except -1
