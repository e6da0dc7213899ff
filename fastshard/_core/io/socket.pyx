"""Receipt of an HTTP range into several buffers, without the GIL."""

cimport cython
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.errno cimport EAGAIN, EPIPE, errno
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy

from fastshard._core.buffers cimport bytes_of
from fastshard._core.pages cimport fs_exact_now
from fastshard._core.span cimport lower_ascii

import os

cdef extern from "receive.h" nogil:
    bint FS_CAN_RECEIVE
    ctypedef struct fs_slice_t:
        uint8_t *to
        size_t size
    int64_t fs_send(int fd, const uint8_t *start, size_t size, int wait_ms)
    bint fs_is_silent(int fd)
    int64_t fs_receive(
        int fd, const fs_slice_t *slices, size_t count, uint8_t *scratch, size_t room,
        int wait_ms,
    )

cdef enum:
    SCRATCH = 64 << 10             # bytes; receives bytes that no buffer wants
    MAX_HEAD = 16 << 10            # bytes of headers
    STALE = -1                     # statuses besides an errno: the peer had closed
    ENDED = -2                     # the stream ended
    OVERLONG = -3                  # headers above MAX_HEAD, or a body above `left`

cdef size_t LARGE_COPY = 32 << 10  # bytes; copies of this size release the GIL
cdef uint64_t MAX_WAIT = 200_000_000  # ns between checks for signals
CAN_RECEIVE = bool(FS_CAN_RECEIVE)


cdef size_t find(
    const uint8_t *text, size_t size, const char *pattern, size_t length
) noexcept nogil:
    """Return the offset of a lower-case pattern in a text of any case, or `size`."""
    cdef size_t at, i
    for at in range(size - length + 1 if size >= length else <size_t> 0):
        i = 0
        while i < length and lower_ascii(text[at + i]) == <uint8_t> pattern[i]:
            i += 1
        if i == length:
            return at
    return size


cdef int ms_until(uint64_t until) noexcept nogil:
    """Return the time left until a moment of `fs_exact_now`, in ms."""
    cdef uint64_t now = fs_exact_now()
    return <int> ((until - now) // 1_000_000) + 1 if until > now else 0


cdef int send_all(
    int fd, const uint8_t *start, size_t size, uint64_t until
) noexcept nogil:
    """Send a request whole; return 0 or an errno."""
    cdef int64_t sent
    while size > 0:
        sent = fs_send(fd, start, size, ms_until(until))
        if sent < 0:
            return EPIPE if errno == EAGAIN else errno  # cannot be resumed
        start += sent
        size -= sent
    return 0


@cython.final
cdef class Scatter:
    """Range of an object, and the buffers that receive parts of it.

    Parameters
    ----------
    start, end : int
        Bytes of the object.
    parts : sequence of (int, buffer)
        Offsets in the object and writable buffers, within the range, in order, without
        overlaps. Bytes between the parts are discarded.
    """

    cdef fs_slice_t *slices
    cdef Py_buffer *buffers
    cdef uint8_t *scratch
    cdef size_t count              # slices
    cdef size_t held               # buffers
    cdef size_t next               # slice that receives the next byte
    cdef readonly uint64_t left    # bytes to receive
    cdef uint8_t *head             # headers, and the part of the body behind them
    cdef size_t head_size          # bytes received into `head`
    cdef size_t head_end           # bytes of headers; 0: incomplete
    cdef bint taken                # the body in `head` was copied to the buffers

    def __cinit__(self, uint64_t start, uint64_t end, parts):
        cdef uint64_t at = start
        cdef uint64_t offset, size
        if end < start:
            raise ValueError(f"expected start <= end, got {start} and {end}")
        self.slices = <fs_slice_t *> calloc(2 * len(parts) + 1, sizeof(fs_slice_t))
        self.buffers = <Py_buffer *> calloc(len(parts) + 1, sizeof(Py_buffer))
        if self.slices == NULL or self.buffers == NULL:
            raise MemoryError
        for offset, part in parts:
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
        free(self.slices)
        free(self.scratch)
        free(self.head)

    def __reduce__(self):
        raise TypeError("a Scatter does not pickle")

    cdef int add(self, uint8_t *to, uint64_t size) except -1:
        """Append a slice; `to` NULL: discard its bytes."""
        if size > 0:
            self.slices[self.count].to = to
            self.slices[self.count].size = size
            self.count += 1
            self.left += size
        return 0

    cdef void advance(self, uint64_t size) noexcept nogil:
        """Move on by `size` bytes that were received."""
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

    def feed(self, data):
        """Copy the next bytes of the range to the buffers.

        Raises
        ------
        ValueError
            There are more bytes than are left of the range.
        """
        cdef Py_buffer buffer
        cdef const uint8_t *start = bytes_of(data, &buffer)
        cdef size_t size = buffer.len
        try:
            if size > self.left:
                raise ValueError(
                    f"got {size:,} bytes, {self.left:,} are left of the range"
                )
            if size >= LARGE_COPY:
                with nogil:        # page faults of new buffers take most of the time
                    self.copy(start, size)
            else:
                self.copy(start, size)
        finally:
            PyBuffer_Release(&buffer)

    cdef void copy(self, const uint8_t *data, size_t size) noexcept nogil:
        """Copy bytes to the slices; there must not be more than `left`."""
        cdef size_t part
        cdef fs_slice_t *slice
        while size > 0:
            slice = &self.slices[self.next]
            part = min(size, slice.size)
            if slice.to != NULL:
                memcpy(slice.to, data, part)
            self.advance(part)
            data += part
            size -= part

    @property
    def took_body(self):
        """Whether `exchange` receives the body; else the headers did not fit it."""
        return self.taken

    def receive(self, int fd, uint64_t until):
        """Receive until the range is complete, the stream ends, or time is up.

        Parameters
        ----------
        fd : int
            A socket.
        until : int
            Deadline in ns of `time.monotonic_ns`. Returns after 0.2 s in any case, for
            the caller to handle signals.

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
        cdef int status
        self.make_scratch()
        with nogil:
            status = self.receive_rest(fd, min(until, fs_exact_now() + MAX_WAIT))
        if status > 0 and status != EAGAIN:
            raise OSError(status, os.strerror(status))
        return before - self.left, status == ENDED

    cdef int make_scratch(self) except -1:
        if self.scratch == NULL:
            self.scratch = <uint8_t *> malloc(SCRATCH)
            if self.scratch == NULL:
                raise MemoryError
        return 0

    def exchange(self, int fd, request, uint64_t until):
        """Send a request, receive the headers of the response, and the body if it fits.

        The body is received only after headers of an HTTP/1.1 206 whose
        ``Content-Length`` is `left`. The caller checks all other headers afterwards.

        Parameters
        ----------
        fd : int
            An idle socket.
        request : bytes
            Empty to continue after a return without headers.
        until : int
            Deadline in ns of `time.monotonic_ns`. Returns after 0.2 s in any case, for
            the caller to handle signals.

        Returns
        -------
        head : bytes or None
            The headers without the empty line; None: they are incomplete.
        fresh : bool
            The peer had not closed the connection before the request.

        Raises
        ------
        OSError
            The connection is broken.
        ValueError
            The stream ended, or headers or body are too large.
        """
        cdef Py_buffer buffer
        cdef const uint8_t *start
        cdef int status
        if self.head == NULL:
            self.head = <uint8_t *> malloc(MAX_HEAD)
            if self.head == NULL:
                raise MemoryError
            self.make_scratch()
        start = bytes_of(request, &buffer)
        try:
            with nogil:
                status = self.exchange_until(
                    fd, start, buffer.len, min(until, fs_exact_now() + MAX_WAIT)
                )
        finally:
            PyBuffer_Release(&buffer)
        if status == STALE:
            return None, False
        if status == ENDED:
            raise ValueError("the connection was closed before the response ended")
        if status == OVERLONG:
            raise ValueError(
                f"headers of more than {MAX_HEAD:,} bytes, or a body of more than "
                f"{self.left:,}"
            )
        if status != 0 and status != EAGAIN:
            raise OSError(status, os.strerror(status))
        if self.head_end == 0:
            return None, True
        return PyBytes_FromStringAndSize(<const char *> self.head, self.head_end), True

    cdef int exchange_until(
        self, int fd, const uint8_t *request, size_t size, uint64_t until
    ) noexcept nogil:
        """Send, and receive headers and body; return 0, an errno or a status."""
        cdef int status = 0
        if size > 0:
            status = send_all(fd, request, size, until) if fs_is_silent(fd) else STALE
        if status == 0:
            status = self.receive_head(fd, until)
        if status == 0 and self.takes_body():
            status = self.receive_body(fd, until)
        return status

    cdef int receive_head(self, int fd, uint64_t until) noexcept nogil:
        """Receive until the headers are complete; return 0, an errno or a status."""
        cdef fs_slice_t rest       # of `head`
        cdef int64_t got
        cdef size_t end
        while self.head_end == 0:
            if self.head_size == MAX_HEAD:
                return OVERLONG
            rest.to = self.head + self.head_size
            rest.size = MAX_HEAD - self.head_size
            got = fs_receive(fd, &rest, 1, self.scratch, SCRATCH, ms_until(until))
            if got <= 0:
                return ENDED if got == 0 else errno
            self.head_size += got
            end = find(self.head, self.head_size, b"\r\n\r\n", 4)
            if end < self.head_size:
                self.head_end = end
        return 0

    cdef bint takes_body(self) noexcept nogil:
        """Return whether the headers are of a 206 with `left` bytes."""
        cdef size_t at, stop
        cdef uint64_t length = 0
        if self.taken:
            return True
        if self.head_size < 12 or memcmp(self.head, b"HTTP/1.1 206", 12) != 0:
            return False
        at = find(self.head, self.head_end, b"\r\ncontent-length:", 17) + 17
        while at < self.head_end and self.head[at] == c' ':
            at += 1
        stop = at
        while (
            stop < self.head_end and c'0' <= self.head[stop] <= c'9' and stop - at < 18
        ):
            length = 10 * length + (self.head[stop] - c'0')
            stop += 1
        if stop == at or (stop < self.head_end and self.head[stop] != c'\r'):
            return False
        return length == self.left

    cdef int receive_body(self, int fd, uint64_t until) noexcept nogil:
        """Copy the part of the body behind the headers, and receive the rest."""
        cdef size_t after = self.head_end + 4
        if not self.taken:
            if self.head_size - after > self.left:
                return OVERLONG
            self.taken = True
            self.copy(self.head + after, self.head_size - after)
        return self.receive_rest(fd, until)

    cdef int receive_rest(self, int fd, uint64_t until) noexcept nogil:
        """Receive until nothing is left; return 0, ENDED or an errno.

        EAGAIN: time is up.
        """
        cdef int64_t got
        while self.left > 0:
            got = fs_receive(
                fd, self.slices + self.next, self.count - self.next, self.scratch,
                SCRATCH, ms_until(until),
            )
            if got <= 0:
                return ENDED if got == 0 else errno
            self.advance(got)
            if fs_exact_now() >= until:
                return EAGAIN if self.left > 0 else 0
        return 0
