"""Borrowed memory: the only pointer arithmetic on bytes that a file holds."""

from libc.stdint cimport uint8_t
from libc.string cimport memchr


cdef struct span_t:                # borrowed: whoever makes one keeps it alive
    const uint8_t *at
    size_t left


cdef inline span_t span_of(const uint8_t *at, size_t size) noexcept nogil:
    cdef span_t span
    span.at = at
    span.left = size
    return span


cdef inline const uint8_t *take(span_t *span, size_t n) noexcept nogil:
    """Step over `n` bytes and return their start, or NULL if fewer are left."""
    cdef const uint8_t *start = span.at
    if n > span.left:              # compare, never add: a sum can wrap
        return NULL
    span.at += n
    span.left -= n
    return start


cdef inline bint take_until(span_t *span, uint8_t end, span_t *part) noexcept nogil:
    """Step over the bytes before `end` and `end` itself; `part` is the former."""
    cdef const uint8_t *found
    if span.left == 0:             # memchr must not be given a NULL
        return False
    found = <const uint8_t *> memchr(span.at, end, span.left)
    if found == NULL:
        return False
    part.at = span.at
    part.left = found - span.at
    take(span, part.left + 1)
    return True


cdef inline span_t text_of(const uint8_t *field, size_t width) noexcept nogil:
    """The text of a fixed-width field that a NUL ends, or its width does."""
    cdef const uint8_t *end = NULL
    if width > 0:
        end = <const uint8_t *> memchr(field, 0, width)
    return span_of(field, width if end == NULL else <size_t> (end - field))
