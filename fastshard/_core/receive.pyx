"""A range of bytes that goes to several buffers, received without the GIL."""

cimport cython
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.errno cimport EAGAIN, errno
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from fastshard._core.pages cimport fs_exact_now

import os

cdef extern from "receive.h" nogil:
    bint FS_CAN_RECEIVE
    ctypedef struct fs_slice_t:
        uint8_t *to
        size_t size
    int64_t fs_receive(
        int fd, const fs_slice_t *slices, size_t count, uint8_t *scratch, size_t room,
        int wait_ms,
    )

cdef enum:
    SCRATCH = 64 << 10             # bytes that are passed over at a time

cdef size_t LARGE_COPY = 32 << 10  # bytes
cdef uint64_t LONGEST = 200_000_000  # ns without a look at signals
CAN_RECEIVE = bool(FS_CAN_RECEIVE)


@cython.final
cdef class Scatter:
    """A range, and the buffers that parts of it go to.

    Parameters
    ----------
    start, end : int
        Bytes of the object.
    parts : sequence of (int, buffer)
        Offsets of the object and writable buffers, within the range, in order,
        without overlaps. Bytes between them are passed over.
    """

    cdef fs_slice_t *slices
    cdef Py_buffer *buffers
    cdef uint8_t *scratch
    cdef size_t count              # slices
    cdef size_t held               # buffers
    cdef size_t next               # the slice that comes next
    cdef readonly uint64_t left    # bytes to come

    def __cinit__(self, uint64_t start, uint64_t end, parts):
        cdef uint64_t at = start
        cdef uint64_t offset, size
        if end < start:
            raise ValueError("a range that ends before it begins")
        self.slices = <fs_slice_t *> calloc(2 * len(parts) + 1, sizeof(fs_slice_t))
        self.buffers = <Py_buffer *> calloc(len(parts) + 1, sizeof(Py_buffer))
        if self.slices == NULL or self.buffers == NULL:
            raise MemoryError
        for offset, part in parts:
            PyObject_GetBuffer(part, &self.buffers[self.held], PyBUF_WRITABLE)
            self.held += 1
            size = self.buffers[self.held - 1].len
            if offset < at or offset > end or size > end - offset:
                raise ValueError("parts that overlap, or lie outside their range")
            self.add(NULL, offset - at)
            self.add(<uint8_t *> self.buffers[self.held - 1].buf, size)
            at = offset + size
        self.add(NULL, end - at)

    def __dealloc__(self):
        cdef size_t i
        for i in range(self.held):
            PyBuffer_Release(&self.buffers[i])
        free(self.buffers)
        free(self.slices)
        free(self.scratch)

    def __reduce__(self):
        raise TypeError("buffers that are written to do not pickle")

    cdef int add(self, uint8_t *to, uint64_t size) except -1:
        if size > 0:
            self.slices[self.count].to = to
            self.slices[self.count].size = size
            self.count += 1
            self.left += size
        return 0

    cdef void passed(self, uint64_t size) noexcept nogil:
        """Note that bytes came."""
        cdef fs_slice_t *slice
        self.left -= size
        while size > 0:
            slice = &self.slices[self.next]
            if size < slice.size:
                slice.size -= size
                if slice.to != NULL:
                    slice.to += size
                return
            size -= slice.size
            self.next += 1

    def feed(self, const uint8_t[::1] data not None):
        """Take the bytes that come next.

        Raises
        ------
        ValueError
            They are more than the range has.
        """
        cdef size_t size = data.shape[0]
        if size > self.left:
            raise ValueError("more bytes than the range has")
        if size >= LARGE_COPY:
            with nogil:  # most of its time goes into pages that are met first
                self.copy(&data[0], size)
        elif size > 0:
            self.copy(&data[0], size)

    cdef void copy(self, const uint8_t *data, size_t size) noexcept nogil:
        cdef size_t part
        cdef fs_slice_t *slice
        while size > 0:
            slice = &self.slices[self.next]
            part = min(size, slice.size)
            if slice.to != NULL:
                memcpy(slice.to, data, part)
            self.passed(part)
            data += part
            size -= part

    def receive(self, int fd, uint64_t until):
        """Receive bytes until all came, the stream ends, or a moment has come.

        Parameters
        ----------
        fd : int
            A socket.
        until : int
            When to stop, in ns of `time.monotonic_ns`; it returns after 0.2 s, too.

        Returns
        -------
        got : int
            Bytes received.
        ended : bool
            The stream ended.

        Raises
        ------
        OSError
            The connection is broken.
        """
        cdef uint64_t before = self.left
        cdef int64_t step = 1
        cdef uint64_t now
        cdef int code = 0
        if self.scratch == NULL:
            self.scratch = <uint8_t *> calloc(1, SCRATCH)
            if self.scratch == NULL:
                raise MemoryError
        with nogil:
            now = fs_exact_now()
            until = min(until, now + LONGEST)
            while self.left > 0:
                step = fs_receive(
                    fd, self.slices + self.next, self.count - self.next, self.scratch,
                    SCRATCH, <int> ((until - now) // 1_000_000) + 1 if until > now else 0,
                )
                if step <= 0:
                    code = errno if step < 0 else 0
                    break
                self.passed(step)
                now = fs_exact_now()
                if now >= until:
                    break
        if code != 0 and code != EAGAIN:
            raise OSError(code, os.strerror(code))
        return before - self.left, step == 0
