"""Receipt of a range of bytes into several buffers, without the GIL."""

cimport cython
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.errno cimport EAGAIN, errno
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from fastshard._core.buffers cimport bytes_of
from fastshard._core.pages cimport fs_exact_now, fs_pages_cached, fs_populate_buffer

import os

cdef enum:
    ENDED = -2                     # status besides an errno: the stream ended

cdef enum:
    LARGE_COPY = 32 << 10          # bytes; copies of this size release the GIL
cdef uint64_t MAX_WAIT = 200_000_000  # ns between checks for signals
CAN_RECEIVE = bool(FS_CAN_RECEIVE)


cdef int ms_until(uint64_t until) noexcept nogil:
    """Return the time left until a moment of `fs_exact_now`, in ms."""
    cdef uint64_t now = fs_exact_now()
    cdef uint64_t left = (until - now) // 1_000_000 + 1 if until > now else 0
    return <int> min(left, <uint64_t> 1_000_000)


cdef void scatter_advance(scatter_t *scatter, uint64_t size) noexcept nogil:
    """Move on by `size` bytes that were received."""
    cdef fs_slice_t *slice
    scatter.left -= size
    while size > 0:
        slice = &scatter.slices[scatter.next]
        if size < slice.size:
            slice.size -= size
            if slice.to != NULL:
                slice.to += size
            return
        size -= slice.size
        scatter.next += 1


cdef void scatter_copy(
    scatter_t *scatter, const uint8_t *data, size_t size
) noexcept nogil:
    """Copy bytes to the slices; there must not be more than `left`."""
    cdef size_t part
    cdef fs_slice_t *slice
    while size > 0:
        slice = &scatter.slices[scatter.next]
        part = min(size, slice.size)
        if slice.to != NULL:
            memcpy(slice.to, data, part)
        scatter_advance(scatter, part)
        data += part
        size -= part


cdef int64_t scatter_receive(
    scatter_t *scatter, int fd, uint8_t *scratch, int wait_ms
) noexcept nogil:
    """Receive once; return as `fs_receive`. `scratch` has SCRATCH bytes."""
    cdef int64_t got = fs_receive(
        fd, scatter.slices + scatter.next, scatter.count - scatter.next, scratch,
        SCRATCH, wait_ms,
    )
    if got > 0:
        scatter_advance(scatter, got)
    return got


@cython.final
cdef class Scatter:
    """Range of an object, and the buffers that receive parts of it."""

    def __cinit__(self, uint64_t start, uint64_t end, parts):
        cdef uint64_t at = start
        cdef uint64_t offset, size
        cdef size_t count = len(parts)
        if end < start:
            raise ValueError(f"expected start <= end, got {start} and {end}")
        self.state.slices = <fs_slice_t *> calloc(2 * count + 1, sizeof(fs_slice_t))
        self.buffers = <Py_buffer *> calloc(count + 1, sizeof(Py_buffer))
        if self.state.slices == NULL or self.buffers == NULL:
            raise MemoryError
        for offset, part in parts:
            if self.held == count:
                raise ValueError("parts were added meanwhile")
            PyObject_GetBuffer(part, &self.buffers[self.held], PyBUF_WRITABLE)
            self.held += 1
            size = self.buffers[self.held - 1].len
            if offset < at or offset > end or size > end - offset:
                raise ValueError(
                    f"part of {size:,} bytes at {offset:,} overlaps the one before "
                    f"or is outside the range {start:,} to {end:,}"
                )
            self.add(NULL, offset - at)
            self.add(<uint8_t *> self.buffers[self.held - 1].buf, size)
            at = offset + size
        self.add(NULL, end - at)

    def __dealloc__(self):
        cdef size_t i
        for i in range(self.held):
            PyBuffer_Release(&self.buffers[i])
        free(self.buffers)
        free(self.state.slices)
        free(self.scratch)

    def __reduce__(self):
        raise TypeError("a Scatter does not pickle")

    cdef int add(self, uint8_t *to, uint64_t size) except -1:
        """Append a slice; `to` NULL: discard its bytes."""
        if size > 0:
            self.state.slices[self.state.count].to = to
            self.state.slices[self.state.count].size = size
            self.state.count += 1
            self.state.left += size
        return 0

    cdef void populate(self) noexcept:
        """Allocate the pages of large buffers; other threads may receive meanwhile.

        Those of memory that is filled again have pages: to populate them takes longer
        than to look.
        """
        cdef size_t i
        cdef uint8_t *at
        cdef uint64_t size
        for i in range(self.held):
            at = <uint8_t *> self.buffers[i].buf
            size = self.buffers[i].len
            if size >= LARGE_COPY:
                with nogil:
                    if fs_pages_cached(at, size) != 1:
                        fs_populate_buffer(at, size)

    @property
    def left(self):
        """Bytes to receive."""
        return self.state.left

    def feed(self, data):
        """Copy the next bytes of the range to the buffers."""
        cdef Py_buffer buffer
        cdef const uint8_t *start = bytes_of(data, &buffer)
        cdef size_t size = buffer.len
        try:
            if size > self.state.left:
                raise ValueError(
                    f"got {size:,} bytes, {self.state.left:,} are left of the range"
                )
            if size >= LARGE_COPY:
                with nogil:        # page faults of new buffers take most of the time
                    scatter_copy(&self.state, start, size)
            else:
                scatter_copy(&self.state, start, size)
        finally:
            PyBuffer_Release(&buffer)

    def receive(self, int fd, uint64_t until):
        """Receive until the range is complete, the stream ends, or time is up."""
        cdef uint64_t before = self.state.left
        cdef int status
        if self.scratch == NULL:
            self.scratch = <uint8_t *> malloc(SCRATCH)
            if self.scratch == NULL:
                raise MemoryError
        with nogil:
            status = self.receive_rest(fd, min(until, fs_exact_now() + MAX_WAIT))
        if status > 0 and status != EAGAIN:
            raise OSError(status, os.strerror(status))
        return before - self.state.left, status == ENDED

    cdef int receive_rest(self, int fd, uint64_t until) noexcept nogil:
        """Receive until nothing is left; return 0, ENDED or an errno.

        EAGAIN: time is up.
        """
        cdef int64_t got
        while self.state.left > 0:
            got = scatter_receive(&self.state, fd, self.scratch, ms_until(until))
            if got <= 0:
                return ENDED if got == 0 else errno
            if fs_exact_now() >= until:
                return EAGAIN if self.state.left > 0 else 0
        return 0
