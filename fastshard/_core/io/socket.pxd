"""Receipt of bytes into slices of several buffers; `Scatter` owns the buffers."""

from libc.stdint cimport int64_t, uint8_t, uint64_t

cdef extern from "receive.h" nogil:
    bint FS_CAN_RECEIVE
    ctypedef struct fs_slice_t:
        uint8_t *to
        size_t size
    int64_t fs_send(int fd, const uint8_t *start, size_t size)
    bint fs_is_silent(int fd)
    bint fs_wait_for(int fd, bint output, int wait_ms)
    int fs_connect_error(int fd)
    int64_t fs_receive(
        int fd, const fs_slice_t *slices, size_t count, uint8_t *scratch, size_t room,
        int wait_ms,
    )

cdef enum:
    SCRATCH = 64 << 10             # bytes; receives bytes that no buffer wants

cdef struct scatter_t:
    fs_slice_t *slices
    size_t count                   # slices
    size_t next                    # slice that receives the next byte
    uint64_t left                  # bytes to receive

cdef void scatter_copy(
    scatter_t *scatter, const uint8_t *data, size_t size
) noexcept nogil
cdef int64_t scatter_receive(
    scatter_t *scatter, int fd, uint8_t *scratch, int wait_ms
) noexcept nogil
cdef int ms_until(uint64_t until) noexcept nogil

cdef class Scatter:
    cdef scatter_t state
    cdef Py_buffer *buffers
    cdef size_t held               # buffers
    cdef uint8_t *scratch

    cdef void populate(self) noexcept
    cdef int add(self, uint8_t *to, uint64_t size) except -1
    cdef int receive_rest(self, int fd, uint64_t until) noexcept nogil
