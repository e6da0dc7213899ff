"""Spans of borrowed memory: all pointer arithmetic on bytes of files is done here."""

from libc.stdint cimport uint8_t
from libc.string cimport memchr, memcmp


cdef struct span_t:                # borrowed: the caller keeps the memory alive
    const uint8_t *at
    size_t left


cdef inline span_t span_of(const uint8_t *at, size_t size) noexcept nogil:
    """Return a span of `size` bytes."""
    cdef span_t span
    span.at = at
    span.left = size
    return span


cdef inline bint is_equal(span_t one, span_t other) noexcept nogil:
    """Compare the bytes of two spans; those of an empty one may be at NULL."""
    return one.left == other.left and (
        one.left == 0 or memcmp(one.at, other.at, one.left) == 0
    )


cdef inline const uint8_t *take(span_t *span, size_t n) noexcept nogil:
    """Step over `n` bytes and return their start, or NULL if fewer are left."""
    cdef const uint8_t *start = span.at
    if n > span.left:              # compare, never add: a sum can wrap
        return NULL
    span.at += n
    span.left -= n
    return start


cdef inline bint take_until(span_t *span, uint8_t end, span_t *part) noexcept nogil:
    """Step over the next `end` byte; `part` becomes the bytes before it.

    Returns False, and does not move, if there is no `end`.
    """
    cdef const uint8_t *found
    if span.left == 0:             # `at` may be NULL, which memchr must not get
        return False
    found = <const uint8_t *> memchr(span.at, end, span.left)
    if found == NULL:
        return False
    part.at = span.at
    part.left = found - span.at
    take(span, part.left + 1)
    return True


cdef inline span_t text_of(const uint8_t *field, size_t width) noexcept nogil:
    """Return the text of a fixed-width field, which ends at its first NUL if any."""
    cdef const uint8_t *end = NULL
    if width > 0:
        end = <const uint8_t *> memchr(field, 0, width)
    return span_of(field, width if end == NULL else <size_t> (end - field))


cdef inline uint8_t lower_ascii(uint8_t byte) noexcept nogil:
    return byte + 32 if c'A' <= byte <= c'Z' else byte
