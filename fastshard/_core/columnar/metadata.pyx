"""JSON of flat metadata: a dict of str to str, int, float, bool or None."""

cimport cython
from cpython.dict cimport PyDict_Next
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.long cimport PyLong_CheckExact
from cpython.mem cimport PyMem_Free
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_CheckExact, PyUnicode_DecodeASCII
from libc.math cimport isfinite
from libc.string cimport memcpy, strlen

cdef extern from "Python.h":
    bint PyUnicode_IS_COMPACT_ASCII(object text)
    char *PyUnicode_DATA(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)
    long long PyLong_AsLongLongAndOverflow(object number, int *overflow) except? -1
    char *PyOS_double_to_string(
        double value, char kind, int precision, int flags, int *type
    ) except NULL
    int Py_DTSF_ADD_DOT_0

cdef enum:
    MAX_TEXT = 1024                # bytes; longer metadata is left to `json`
    MAX_NUMBER = 32                # bytes of an int64 or a float


cdef struct text_t:
    size_t size
    char[MAX_TEXT] bytes


cdef inline bint put(text_t *text, const char *more, size_t size) noexcept:
    """Append bytes; return False if there is no room."""
    if size > MAX_TEXT - text.size:
        return False
    memcpy(text.bytes + text.size, more, size)
    text.size += size
    return True


cdef bint put_str(text_t *text, object value) noexcept:
    """Append a quoted str; return False if `json` would escape a character of it."""
    cdef Py_ssize_t size, i
    cdef const char *letters
    cdef bint is_plain = True
    if not PyUnicode_IS_COMPACT_ASCII(value):
        return False
    size = PyUnicode_GET_LENGTH(value)
    letters = PyUnicode_DATA(value)
    if <size_t> size > MAX_TEXT:
        return False
    for i in range(size):
        is_plain &= (
            c' ' <= letters[i] <= c'~' and letters[i] != c'"' and letters[i] != c'\\'
        )
    return is_plain and put(text, b'"', 1) and put(text, letters, size) and put(
        text, b'"', 1
    )


cdef bint put_int(text_t *text, object value) except -1:
    """Append an int; return False if it is no int64."""
    cdef int overflow = 0
    cdef long long number = PyLong_AsLongLongAndOverflow(value, &overflow)
    cdef unsigned long long rest
    cdef char[MAX_NUMBER] digits
    cdef int at = MAX_NUMBER
    if overflow:
        return False
    rest = -<unsigned long long> number if number < 0 else <unsigned long long> number
    while True:
        at -= 1
        digits[at] = c'0' + rest % 10
        rest //= 10
        if rest == 0:
            break
    if number < 0:
        at -= 1
        digits[at] = c'-'
    return put(text, digits + at, MAX_NUMBER - at)


cdef bint put_float(text_t *text, double value) except -1:
    """Append a float as `repr` writes it; return False for NaN and infinities."""
    cdef char *digits
    cdef bint fits
    if not isfinite(value):
        return False
    digits = PyOS_double_to_string(value, c'r', 0, Py_DTSF_ADD_DOT_0, NULL)
    fits = put(text, digits, strlen(digits))
    PyMem_Free(digits)
    return fits


cdef bint put_value(text_t *text, object value) except -1:
    if PyUnicode_CheckExact(value):
        return put_str(text, value)
    if value is None:
        return put(text, b"null", 4)
    if value is True:
        return put(text, b"true", 4)
    if value is False:
        return put(text, b"false", 5)
    if PyLong_CheckExact(value):
        return put_int(text, value)
    if PyFloat_CheckExact(value):
        return put_float(text, PyFloat_AS_DOUBLE(value))
    return False


def encode_flat(dict metadata not None):
    """Return the text that `json.dumps` makes of a short, flat dict.

    Parameters
    ----------
    metadata : dict

    Returns
    -------
    str or None
        None if it takes `json` itself: a key or value of another type, characters
        to escape, a NaN, a large integer, or a long text.
    """
    cdef PyObject *key
    cdef PyObject *value
    cdef Py_ssize_t at = 0
    cdef text_t text
    text.size = 1
    text.bytes[0] = c'{'
    with cython.critical_section(metadata):
        while PyDict_Next(metadata, &at, &key, &value):
            if text.size > 1 and not put(&text, b", ", 2):
                return None
            if not PyUnicode_CheckExact(<object> key):
                return None
            if not put_str(&text, <object> key) or not put(&text, b": ", 2):
                return None
            if not put_value(&text, <object> value):
                return None
    if not put(&text, b"}", 1):
        return None
    return PyUnicode_DecodeASCII(text.bytes, text.size, NULL)
