"""Headers of tar members, made of a template."""

from cpython.bytes cimport (
    PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE,
)
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcpy

cdef enum:
    BLOCK = 512                    # bytes
    NAME_WIDTH = 100
    SIZE_AT = 124
    SIZE_DIGITS = 11
    CHECKSUM_AT = 148
    CHECKSUM_DIGITS = 6


cdef inline void write_octal(uint8_t *to, int digits, uint64_t value) noexcept nogil:
    """Write a number as octal digits."""
    cdef int k
    for k in range(digits - 1, -1, -1):
        to[k] = c'0' + <uint8_t> (value & 7)
        value >>= 3


def fill_header(bytes template not None, bytes name not None, uint64_t size):
    """Return the header of a member: a template with its name, size and checksum.

    Parameters
    ----------
    template : bytes
        A block without name and size, with spaces for the checksum.
    name : bytes
        At most 100.
    size : int
        Bytes of the data, below 8**11.

    Raises
    ------
    ValueError
        The name or the size does not fit.
    """
    cdef Py_ssize_t length = PyBytes_GET_SIZE(name)
    cdef uint8_t *at
    cdef unsigned int checksum = 0
    cdef int k
    if PyBytes_GET_SIZE(template) != BLOCK or length > NAME_WIDTH or (
        size >> (3 * SIZE_DIGITS) != 0
    ):
        raise ValueError("the name or the size does not fit a header")
    block = PyBytes_FromStringAndSize(PyBytes_AS_STRING(template), BLOCK)
    at = <uint8_t *> PyBytes_AS_STRING(block)
    memcpy(at, PyBytes_AS_STRING(name), length)
    write_octal(at + SIZE_AT, SIZE_DIGITS, size)
    for k in range(BLOCK):
        checksum += at[k]
    write_octal(at + CHECKSUM_AT, CHECKSUM_DIGITS, checksum)
    at[CHECKSUM_AT + CHECKSUM_DIGITS] = 0
    return block
