"""Fields of one payload, decoded on access."""

from libc.stdint cimport uint8_t, uint64_t

from fastshard._core.typed.msgpack cimport value_t


cdef class FieldMap:
    cdef dict data                 # all fields, or those decoded so far
    cdef object holder             # exporter that begins with the payload, or None
    cdef const uint8_t *payload    # NULL: `data` has all fields
    cdef uint64_t size
    cdef object samples            # which name the sample in errors, or None
    cdef Py_ssize_t position       # among them
    cdef object find(self, str name, value_t *found)
    cdef object decode_field(self, str name, object default)
    cdef object load(self)
    cdef list names(self)

cdef object make_map(
    object cls, const uint8_t *payload, uint64_t size, object owner, bint copy
)
