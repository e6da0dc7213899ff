"""Buffers of numbers as pointers: a typed memoryview costs each module 20,000 lines of C.

The caller owns the `Py_buffer`, and calls `PyBuffer_Release` when it is done.
"""

from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBUF_WRITABLE, PyBuffer_Release,
    PyObject_GetBuffer,
)
from libc.stdint cimport int64_t, uint8_t


cdef inline int64_t *int64s_of(
    object values, Py_buffer *buffer, bint writable=False
) except? NULL:
    """Return the first of contiguous int64 values; `buffer.len // 8` of them.

    Raises
    ------
    TypeError
        They are no int64 values, as an array or a memoryview has them.
    BufferError
        They do not lie one after another, or are read-only.
    """
    cdef char kind
    cdef int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT
    PyObject_GetBuffer(values, buffer, flags | (PyBUF_WRITABLE if writable else 0))
    kind = buffer.format[0] if buffer.format != NULL else c'B'
    if kind == c'<' or kind == c'=' or kind == c'@':
        kind = buffer.format[1]
    if buffer.itemsize != 8 or (kind != c'l' and kind != c'q'):
        PyBuffer_Release(buffer)
        raise TypeError("the values must be int64")
    return <int64_t *> buffer.buf


cdef inline uint8_t *bytes_of(
    object values, Py_buffer *buffer, bint writable=False
) except? NULL:
    """Return the first of `buffer.len` contiguous bytes.

    Raises
    ------
    TypeError
        They are no buffer.
    BufferError
        They do not lie one after another, or are read-only.
    """
    cdef int flags = PyBUF_C_CONTIGUOUS
    PyObject_GetBuffer(values, buffer, flags | (PyBUF_WRITABLE if writable else 0))
    return <uint8_t *> buffer.buf
