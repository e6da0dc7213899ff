"""JSON text (RFC 8259) read in place: what is inline here is on the hot path."""

from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcmp

from fastshard._core.platform cimport fs_digits, fs_plain_run
from fastshard._core.span cimport span_of, span_t, take

cdef enum:
    MAX_DEPTH = 64                 # objects and arrays inside one another

cdef enum json_status_t:
    JSON_OK
    JSON_END                       # of an object or an array
    JSON_NO_MEMORY
    JSON_CUT                       # all that follow are faults too, at `fault_at`
    JSON_NO_VALUE
    JSON_NO_KEY
    JSON_NO_STRING
    JSON_NO_COLON
    JSON_NO_COMMA
    JSON_NO_OBJECT
    JSON_BAD_NUMBER
    JSON_NOT_UNSIGNED
    JSON_OVERFLOW
    JSON_CONTROL
    JSON_BAD_UTF8
    JSON_BAD_ESCAPE
    JSON_SURROGATE
    JSON_DEEP
    JSON_TRAILING
    JSON_STATUSES

cdef struct json_t:                # a place in a text
    span_t rest                    # what is not yet read; borrowed
    size_t size                    # of the whole text, in bytes
    size_t fault_at                # bytes from its start
    int depth                      # objects and arrays that are open

cdef struct json_string_t:
    span_t raw                     # between the quotes; checked, not unescaped
    bint escaped

cdef int json_rest_of_string(
    json_t *json, size_t plain, json_string_t *text
) noexcept nogil
cdef int json_rare_unsigned(json_t *json, uint64_t *value) noexcept nogil
cdef int json_skip(json_t *json) noexcept nogil
cdef size_t json_unescape(span_t raw, uint8_t *to) noexcept nogil


cdef inline size_t json_at(const json_t *json) noexcept nogil:
    """Bytes from the start of the text."""
    return json.size - json.rest.left


cdef inline int json_fault_at(json_t *json, int status, size_t at) noexcept nogil:
    json.fault_at = at
    return status


cdef inline int json_fault(json_t *json, int status) noexcept nogil:
    """Say that the next byte is wrong, or missing."""
    if json.rest.left == 0:
        status = JSON_CUT
    return json_fault_at(json, status, json_at(json))


cdef inline uint8_t json_next(const json_t *json) noexcept nogil:
    """The next byte, or 0, which is nowhere right."""
    return json.rest.at[0] if json.rest.left > 0 else 0


cdef inline void json_space(json_t *json) noexcept nogil:
    """Step over white space."""
    cdef uint8_t byte
    while json.rest.left > 0:
        byte = json.rest.at[0]
        if byte > c' ' or byte not in (c' ', c'\n', c'\r', c'\t'):
            break
        take(&json.rest, 1)


cdef inline int json_string(json_t *json, json_string_t *text) noexcept nogil:
    """Read a string, from its first quote to its last."""
    cdef size_t plain
    if json_next(json) != c'"':
        return json_fault(json, JSON_NO_STRING)
    take(&json.rest, 1)
    plain = fs_plain_run(json.rest.at, json.rest.left)
    if plain == json.rest.left or json.rest.at[plain] != c'"':
        return json_rest_of_string(json, plain, text)
    text.raw = span_of(json.rest.at, plain)
    text.escaped = False
    take(&json.rest, plain + 1)
    return JSON_OK


cdef inline int json_unsigned(json_t *json, uint64_t *value) noexcept nogil:
    """Read a plain integer from 0 to 2**64 - 1; a fault is at its first byte."""
    cdef size_t digits = fs_digits(json.rest.at, json.rest.left, value)
    cdef bint usual = 0 < digits < 16 and digits < json.rest.left
    if (
        not usual
        or (json.rest.at[0] == c'0' and digits > 1)
        or json.rest.at[digits] in (c'.', c'e', c'E')
    ):
        return json_rare_unsigned(json, value)
    take(&json.rest, digits)
    return JSON_OK


cdef inline int json_open(json_t *json) noexcept nogil:
    """Step over the bracket or brace that is next."""
    if json.depth == MAX_DEPTH:
        return json_fault(json, JSON_DEEP)
    json.depth += 1
    take(&json.rest, 1)
    return JSON_OK


cdef inline int json_item(json_t *json, bint first, uint8_t end) noexcept nogil:
    """Step to the next value (or key) before `end`; JSON_END: past `end`."""
    json_space(json)
    if json_next(json) == end:
        take(&json.rest, 1)
        json.depth -= 1
        return JSON_END
    if not first:
        if json_next(json) != c',':
            return json_fault(json, JSON_NO_COMMA)
        take(&json.rest, 1)
        json_space(json)
    return JSON_OK


cdef inline int json_key(json_t *json, bint first, json_string_t *key) noexcept nogil:
    """Read an object's next key, and step to its value; JSON_END: past the object."""
    cdef int status = json_item(json, first, c'}')
    if status != JSON_OK:
        return status
    if json_next(json) != c'"':
        return json_fault(json, JSON_NO_KEY)
    status = json_string(json, key)
    if status != JSON_OK:
        return status
    json_space(json)
    if json_next(json) != c':':
        return json_fault(json, JSON_NO_COLON)
    take(&json.rest, 1)
    json_space(json)
    return JSON_OK


cdef inline bint json_exactly(
    json_t *json, const char *text, size_t size
) noexcept nogil:
    """Step over this text and a space behind it, if it is what comes next."""
    if json.rest.left < size or memcmp(json.rest.at, text, size) != 0:
        return False
    take(&json.rest, size)
    if json_next(json) == c' ':
        take(&json.rest, 1)
    return True
