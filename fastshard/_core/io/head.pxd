"""Heads of HTTP responses with a range, parsed by RFC 9112.

Only one response is accepted: 206, the requested range, its length, the object's tag.
Headers that are ambiguous are refused.
"""

from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memchr, memcmp

from fastshard._core.span cimport (
    is_equal, lower_ascii, span_of, span_t, take, take_until,
)


cdef enum:                         # headers that must not be repeated
    CONNECTION = 1
    CONTENT_ENCODING = 2
    CONTENT_LENGTH = 4
    CONTENT_RANGE = 8
    ETAG = 16
    LAST_MODIFIED = 32

cdef struct expected_t:            # borrowed
    span_t range                   # value of Content-Range
    span_t tag
    uint64_t size                  # bytes of the body


cdef inline span_t strip(span_t text) noexcept nogil:
    """Remove blanks and tabs around a value."""
    while text.left > 0 and (text.at[0] == c' ' or text.at[0] == c'\t'):
        take(&text, 1)
    while text.left > 0 and (
        text.at[text.left - 1] == c' ' or text.at[text.left - 1] == c'\t'
    ):
        text.left -= 1
    return text


cdef inline bint is_text(span_t text, const char *lower, size_t size) noexcept nogil:
    """Return whether a text of any case is `lower`."""
    cdef size_t i
    if text.left != size:
        return False
    for i in range(size):
        if lower_ascii(text.at[i]) != <uint8_t> lower[i]:
            return False
    return True


cdef inline bint is_name(span_t text) noexcept nogil:
    """Return whether a text may be the name of a header: visible ASCII characters."""
    cdef size_t i
    for i in range(text.left):
        if not c'!' <= text.at[i] <= c'~':
            return False
    return text.left > 0


cdef inline bint is_value(span_t text) noexcept nogil:
    """Return whether a text has no control characters but tabs."""
    cdef size_t i
    for i in range(text.left):
        if (text.at[i] < c' ' and text.at[i] != c'\t') or text.at[i] == 127:
            return False
    return True


cdef inline bint is_number(span_t text, uint64_t value) noexcept nogil:
    """Return whether a text is the decimal number `value`, without other zeros."""
    cdef size_t at = text.left
    if at == 0:
        return False
    while at > 0:
        at -= 1
        if text.at[at] != <uint8_t> (c'0' + value % 10):
            return False
        value //= 10
        if value == 0:
            return at == 0
    return False


cdef inline int header_of(span_t name) noexcept nogil:
    """Return the bit of a header that must not be repeated, 0 for others."""
    if is_text(name, b"connection", 10):
        return CONNECTION
    if is_text(name, b"content-encoding", 16):
        return CONTENT_ENCODING
    if is_text(name, b"content-length", 14):
        return CONTENT_LENGTH
    if is_text(name, b"content-range", 13):
        return CONTENT_RANGE
    if is_text(name, b"etag", 4):
        return ETAG
    if is_text(name, b"last-modified", 13):
        return LAST_MODIFIED
    return 0


cdef inline bint next_line(span_t *head, span_t *line) noexcept nogil:
    """Step over a line and its CRLF."""
    if not take_until(head, c'\n', line):
        return False
    if line.left == 0 or line.at[line.left - 1] != c'\r':
        return False
    line.left -= 1
    return True


cdef inline bint is_expected(
    span_t head, const expected_t *expected, bint *keeps
) noexcept nogil:
    """Return whether headers, with their empty line, are the expected ones."""
    cdef span_t line, name, value
    cdef span_t tag = span_of(NULL, 0)
    cdef span_t modified = span_of(NULL, 0)
    cdef int seen = 0
    cdef int header
    keeps[0] = True
    if not next_line(&head, &line) or line.left < 12:
        return False
    if memcmp(line.at, b"HTTP/1.1 206", 12) != 0 or not is_value(line):
        return False
    if line.left > 12 and line.at[12] != c' ':
        return False
    while True:
        if not next_line(&head, &line):
            return False
        if line.left == 0:
            break
        value = line
        if not take_until(&value, c':', &name) or not is_name(name):
            return False           # also a folded line
        value = strip(value)
        if not is_value(value) or is_text(name, b"transfer-encoding", 17):
            return False
        header = header_of(name)
        if header == 0:
            continue
        if seen & header:
            return False
        seen |= header
        if header == CONNECTION:
            keeps[0] = is_text(value, b"keep-alive", 10)
        elif header == CONTENT_ENCODING:
            if not is_text(value, b"identity", 8):
                return False
        elif header == CONTENT_LENGTH:
            if not is_number(value, expected.size):
                return False
        elif header == CONTENT_RANGE:
            if not is_equal(value, expected.range):
                return False
        elif header == ETAG:
            tag = value
        else:
            modified = value
    if head.left != 0 or not seen & CONTENT_LENGTH or not seen & CONTENT_RANGE:
        return False
    return is_equal(tag if tag.left else modified, expected.tag)


cdef inline size_t head_length(
    const uint8_t *head, size_t size, size_t at
) noexcept nogil:
    """Return the length of headers with their empty line; 0: they are incomplete.

    `at` : bytes that were searched before.
    """
    cdef const uint8_t *found
    at = at - 3 if at > 3 else 0
    while size - at >= 4:
        found = <const uint8_t *> memchr(head + at, c'\r', size - at - 3)
        if found == NULL:
            return 0
        if memcmp(found, b"\r\n\r\n", 4) == 0:
            return (found - head) + 4
        at = (found - head) + 1
    return 0
