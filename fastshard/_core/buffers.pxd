"""Pointers to the items of Python buffers.

The caller owns the `Py_buffer` and must call `PyBuffer_Release`. Typed memoryviews are
not used: each module that has one gets 20,000 more lines of generated C.
"""

from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBUF_WRITABLE, PyBuffer_Release,
    PyObject_GetBuffer,
)
from libc.stdint cimport int64_t, uint8_t


cdef inline int64_t *int64s_of(
    object values, Py_buffer *buffer, bint writable=False
) except? NULL:
    """Return a pointer to `buffer.len // 8` contiguous int64 values."""
    cdef char kind
    cdef int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT
    PyObject_GetBuffer(values, buffer, flags | (PyBUF_WRITABLE if writable else 0))
    kind = buffer.format[0] if buffer.format != NULL else c'B'
    if kind == c'<' or kind == c'=' or kind == c'@':
        kind = buffer.format[1]
    if buffer.itemsize != 8 or (kind != c'l' and kind != c'q'):
        PyBuffer_Release(buffer)
        raise TypeError(
            f"expected a buffer of int64, got items of {buffer.itemsize} bytes"
        )
    return <int64_t *> buffer.buf


cdef inline uint8_t *bytes_of(
    object values, Py_buffer *buffer, bint writable=False
) except? NULL:
    """Return a pointer to `buffer.len` contiguous bytes."""
    cdef int flags = PyBUF_C_CONTIGUOUS
    PyObject_GetBuffer(values, buffer, flags | (PyBUF_WRITABLE if writable else 0))
    return <uint8_t *> buffer.buf
