from libc.stdint cimport uint8_t, uint64_t

from fastshard._core.npyheader cimport Layout, Seen
from fastshard._core.shard cimport Shard


cdef Seen seen_of(Shard shard)

cdef object array_as(Layout layout, uint8_t *at, object owner)

cdef object array_held(
    Shard shard, Py_ssize_t i, uint8_t *at, uint64_t size, object owner, object dtype,
    object shape,
)

cdef object make_array(
    uint8_t *at, uint64_t size, object dtype, object shape, bint writable,
    object owner, Seen seen,
)
