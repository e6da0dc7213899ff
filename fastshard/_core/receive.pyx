"""Bytes from a socket into memory of the caller's, without the GIL."""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.errno cimport EAGAIN, errno
from libc.stdint cimport int64_t, uint8_t, uint64_t

from fastshard._core.pages cimport fs_exact_now

import os

cdef extern from "receive.h" nogil:
    bint FS_CAN_RECEIVE
    int64_t fs_receive(int fd, uint8_t *to, size_t size, int wait_ms)

CAN_RECEIVE = bool(FS_CAN_RECEIVE)
cdef uint64_t LONGEST = 200_000_000  # ns without a look at signals


def receive_into(int fd, view, uint64_t until):
    """Receive bytes until a buffer is full, the stream ends, or a moment has come.

    Parameters
    ----------
    fd : int
        A socket.
    view : buffer
        Writable, contiguous.
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
    cdef Py_buffer buffer
    cdef size_t got = 0
    cdef int64_t step = 0
    cdef uint64_t now
    cdef int code = 0
    PyObject_GetBuffer(view, &buffer, PyBUF_WRITABLE)
    try:
        with nogil:
            now = fs_exact_now()
            until = min(until, now + LONGEST)
            while got < <size_t> buffer.len:
                step = fs_receive(
                    fd, <uint8_t *> buffer.buf + got, <size_t> buffer.len - got,
                    <int> ((until - now) // 1_000_000) + 1 if until > now else 0,
                )
                if step <= 0:
                    code = errno if step < 0 else 0
                    break
                got += step
                now = fs_exact_now()
                if now >= until:
                    break
    finally:
        PyBuffer_Release(&buffer)
    if code != 0 and code != EAGAIN:
        raise OSError(code, os.strerror(code))
    return got, step == 0 and got < <size_t> buffer.len
