"""Names in shards as str: bytes that are not UTF-8 become lone surrogates."""

from cpython.bytes cimport PyBytes_AS_STRING
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.stdint cimport uint8_t

from fastshard._core.span cimport span_of, span_t

cdef extern from "Python.h":
    bint PyUnicode_IS_COMPACT_ASCII(object text)


cdef inline str decode_text(span_t text):
    """Decode a name; bytes that are not UTF-8 become lone surrogates."""
    return PyUnicode_DecodeUTF8(<const char *> text.at, text.left, "surrogateescape")


cdef inline str decode_text_before(span_t text, size_t end):
    """Decode a name without its last `end` bytes."""
    text.left -= min(end, text.left)
    return decode_text(text)


cdef inline object encode_text(object name, span_t *text):
    """Invert `decode_text`: set `text`, and return the object that keeps it alive.

    Returns None if no bytes decode to `name`, which has another lone surrogate; then
    `text` is empty.
    """
    cdef Py_ssize_t size = 0
    cdef const char *at
    cdef object keeper = name
    text[0] = span_of(NULL, 0)
    if type(name) is not str:      # a subclass, such as numpy.str_
        keeper = name = str.__str__(name)
    if not PyUnicode_IS_COMPACT_ASCII(name):
        try:
            keeper = name.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            return None
        text[0] = span_of(<const uint8_t *> PyBytes_AS_STRING(keeper), len(keeper))
        return keeper
    at = PyUnicode_AsUTF8AndSize(name, &size)
    text[0] = span_of(<const uint8_t *> at, size)
    return keeper
