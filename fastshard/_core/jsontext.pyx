"""JSON text (RFC 8259), read strictly: the parts that are not on the hot path.

Nothing is built and nothing recurses: a text of any shape costs time in
proportion to its length, and no memory. A lone surrogate from U+DC80 to U+DCFF
stands for a byte that is not UTF-8, as in Python's ``surrogateescape``.
"""

from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from fastshard._core.platform cimport fs_plain_run
from fastshard._core.span cimport span_of, span_t, take

cdef enum:
    NO_DIGITS = -1

cdef uint64_t LARGEST = <uint64_t> -1


cdef size_t utf8_size(span_t text) noexcept nogil:
    """Bytes of the character that begins with a byte >= 0x80; 0: it is none."""
    cdef uint8_t lead = text.at[0]
    cdef uint8_t low = 0x80        # the bounds of the second byte
    cdef uint8_t high = 0xbf
    cdef size_t size, i
    if lead < 0xc2 or lead > 0xf4:
        return 0
    size = 2 if lead < 0xe0 else 3 if lead < 0xf0 else 4
    if size > text.left:
        return 0
    if lead == 0xe0:
        low = 0xa0                 # below: overlong
    elif lead == 0xed:
        high = 0x9f                # above: surrogates
    elif lead == 0xf0:
        low = 0x90
    elif lead == 0xf4:
        high = 0x8f                # above: beyond U+10FFFF
    if not low <= text.at[1] <= high:
        return 0
    for i in range(2, size):
        if text.at[i] & 0xc0 != 0x80:
            return 0
    return size


cdef int32_t hex_digits(span_t text) noexcept nogil:
    """The value of the four digits behind a backslash and a `u`, or NO_DIGITS."""
    cdef int32_t value = 0
    cdef uint8_t digit
    cdef size_t i
    if text.left < 6 or text.at[0] != c'\\' or text.at[1] != c'u':
        return NO_DIGITS
    for i in range(2, 6):
        digit = text.at[i]
        if c'0' <= digit <= c'9':
            digit -= c'0'
        elif c'a' <= digit | 0x20 <= c'f':
            digit = (digit | 0x20) - c'a' + 10
        else:
            return NO_DIGITS
        value = value * 16 + digit
    return value


cdef bint is_pair(int32_t first, int32_t second) noexcept nogil:
    return 0xd800 <= first <= 0xdbff and 0xdc00 <= second <= 0xdfff


cdef int skip_escape(json_t *json) noexcept nogil:
    """Check the escape that is next, both halves of a pair."""
    cdef int32_t value, second
    cdef span_t after = json.rest
    if json.rest.left < 2:
        return json_fault_at(json, JSON_CUT, json.size)
    if json.rest.at[1] != c'u':
        if json.rest.at[1] not in (
            c'"', c'\\', c'/', c'b', c'f', c'n', c'r', c't'
        ):
            return json_fault(json, JSON_BAD_ESCAPE)
        take(&json.rest, 2)
        return JSON_OK
    value = hex_digits(json.rest)
    if value == NO_DIGITS:
        return json_fault(json, JSON_BAD_ESCAPE)
    if 0xd800 <= value <= 0xdfff and not 0xdc80 <= value <= 0xdcff:
        take(&after, 6)
        second = hex_digits(after)
        if not is_pair(value, second):
            return json_fault(json, JSON_SURROGATE)
        take(&json.rest, 6)
    take(&json.rest, 6)
    return JSON_OK


cdef int json_rest_of_string(
    json_t *json, size_t plain, json_string_t *text
) noexcept nogil:
    """Read on behind the `plain` bytes of a string that are checked already."""
    cdef const uint8_t *start = json.rest.at
    cdef size_t size
    cdef int status
    text.escaped = False
    while True:
        take(&json.rest, plain)
        if json.rest.left == 0:
            return json_fault(json, JSON_CUT)
        if json.rest.at[0] == c'"':
            break
        if json.rest.at[0] == c'\\':
            text.escaped = True
            status = skip_escape(json)
            if status != JSON_OK:
                return status
        elif json.rest.at[0] < c' ':
            return json_fault(json, JSON_CONTROL)
        while json.rest.left > 0 and json.rest.at[0] >= 0x80:
            size = utf8_size(json.rest)
            if size == 0:
                return json_fault(json, JSON_BAD_UTF8)
            take(&json.rest, size)
        plain = fs_plain_run(json.rest.at, json.rest.left)
    text.raw = span_of(start, json.rest.at - start)
    take(&json.rest, 1)
    return JSON_OK


cdef size_t put_character(uint32_t value, uint8_t *to) noexcept nogil:
    """Write a character as UTF-8, or the byte that a lone surrogate stands for."""
    if value < 0x80 or 0xdc80 <= value <= 0xdcff:
        to[0] = <uint8_t> value
        return 1
    if value < 0x800:
        to[0] = <uint8_t> (0xc0 | value >> 6)
        to[1] = <uint8_t> (0x80 | (value & 0x3f))
        return 2
    if value < 0x10000:
        to[0] = <uint8_t> (0xe0 | value >> 12)
        to[1] = <uint8_t> (0x80 | (value >> 6 & 0x3f))
        to[2] = <uint8_t> (0x80 | (value & 0x3f))
        return 3
    to[0] = <uint8_t> (0xf0 | value >> 18)
    to[1] = <uint8_t> (0x80 | (value >> 12 & 0x3f))
    to[2] = <uint8_t> (0x80 | (value >> 6 & 0x3f))
    to[3] = <uint8_t> (0x80 | (value & 0x3f))
    return 4


cdef uint8_t plain_escape(uint8_t letter) noexcept nogil:
    """The byte that a backslash and this letter mean."""
    if letter == c'b':
        return c'\b'
    if letter == c'f':
        return c'\f'
    if letter == c'n':
        return c'\n'
    if letter == c'r':
        return c'\r'
    if letter == c't':
        return c'\t'
    return letter


cdef size_t unescape_one(span_t *raw, uint8_t *to) noexcept nogil:
    cdef int32_t value = hex_digits(raw[0])
    cdef int32_t second
    if value == NO_DIGITS:
        take(raw, 1)
        if raw.left == 0:
            return 0
        to[0] = plain_escape(take(raw, 1)[0])
        return 1
    take(raw, 6)
    if 0xd800 <= value <= 0xdbff:
        second = hex_digits(raw[0])
        if is_pair(value, second):
            take(raw, 6)
            value = 0x10000 + ((value - 0xd800) << 10) + (second - 0xdc00)
    return put_character(<uint32_t> value, to)


cdef size_t json_unescape(span_t raw, uint8_t *to) noexcept nogil:
    """Write the bytes of a checked string and return how many.

    Never more than `raw` has, even if another thread writes to the text.
    """
    cdef size_t used = 0
    while raw.left > 0:
        if raw.at[0] == c'\\':
            used += unescape_one(&raw, to + used)
        else:
            to[used] = take(&raw, 1)[0]
            used += 1
    return used


cdef bint is_digit(const json_t *json) noexcept nogil:
    return c'0' <= json_next(json) <= c'9'


cdef size_t skip_digits(json_t *json) noexcept nogil:
    cdef size_t left = json.rest.left
    while is_digit(json):
        take(&json.rest, 1)
    return left - json.rest.left


cdef int skip_number(json_t *json) noexcept nogil:
    if json_next(json) == c'-':
        take(&json.rest, 1)
    if json_next(json) == c'0':
        take(&json.rest, 1)        # and no digit may follow
        if is_digit(json):
            return json_fault(json, JSON_BAD_NUMBER)
    elif skip_digits(json) == 0:
        return json_fault(json, JSON_BAD_NUMBER)
    if json_next(json) == c'.':
        take(&json.rest, 1)
        if skip_digits(json) == 0:
            return json_fault(json, JSON_BAD_NUMBER)
    if json_next(json) in (c'e', c'E'):
        take(&json.rest, 1)
        if json_next(json) in (c'+', c'-'):
            take(&json.rest, 1)
        if skip_digits(json) == 0:
            return json_fault(json, JSON_BAD_NUMBER)
    return JSON_OK


cdef int json_rare_unsigned(json_t *json, uint64_t *value) noexcept nogil:
    """Read a plain integer from 0 to 2**64 - 1; a fault is at its first byte."""
    cdef size_t start = json_at(json)
    cdef uint64_t total = 0
    cdef uint8_t digit
    cdef bint fits = True
    cdef int status
    if json.rest.left == 0:
        return json_fault(json, JSON_CUT)
    if not is_digit(json):
        return json_fault(json, JSON_NOT_UNSIGNED)
    if json.rest.at[0] == c'0':
        take(&json.rest, 1)
        if is_digit(json):
            return json_fault(json, JSON_BAD_NUMBER)
    while is_digit(json):
        digit = take(&json.rest, 1)[0] - c'0'
        if total > (LARGEST - digit) // 10:
            fits = False
        total = total * 10 + digit
    if json_next(json) in (c'.', c'e', c'E'):
        return json_fault_at(json, JSON_NOT_UNSIGNED, start)
    value[0] = total
    return JSON_OK if fits else json_fault_at(json, JSON_OVERFLOW, start)


cdef int skip_word(json_t *json, const char *word, size_t size) noexcept nogil:
    if json.rest.left < size or memcmp(json.rest.at, word, size) != 0:
        return json_fault(json, JSON_NO_VALUE)
    take(&json.rest, size)
    return JSON_OK


cdef int skip_scalar(json_t *json) noexcept nogil:
    cdef json_string_t text
    cdef uint8_t first = json_next(json)
    if first == c'"':
        return json_string(json, &text)
    if first == c't':
        return skip_word(json, b"true", 4)
    if first == c'f':
        return skip_word(json, b"false", 5)
    if first == c'n':
        return skip_word(json, b"null", 4)
    if first == c'-' or is_digit(json):
        return skip_number(json)
    return json_fault(json, JSON_NO_VALUE)


cdef int json_skip(json_t *json) noexcept nogil:
    """Step over a value of any kind, and check it."""
    cdef int base = json.depth
    cdef uint64_t objects = 0      # a bit for each that is open: is it no array?
    cdef json_string_t key
    cdef bint first
    cdef int status
    while True:
        first = json_next(json) in (c'{', c'[')
        if first:
            objects = objects << 1 | (json_next(json) == c'{')
            status = json_open(json)
        else:
            status = skip_scalar(json)
        while status == JSON_OK and json.depth > base:
            if objects & 1:
                status = json_key(json, first, &key)
            else:
                status = json_item(json, first, c']')
            if status != JSON_END:
                break
            objects >>= 1
            first = False
            status = JSON_OK
        if status != JSON_OK or json.depth == base:
            return status
