"""JSON: indexes of shards read, flat metadata written.

    {"filesize": 10240, "files": {"a.jpg": {"offset": 512, "length": 4}}}
    {"files": [{"path": "a.jpg", "offset": 512, "size": 4}]}

An index becomes an extent table in one pass without the GIL. Keys come in any order;
the values of unknown keys are validated as JSON and skipped. The object of a member
that has more than its extent and name is kept as text.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.dict cimport PyDict_Next
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.long cimport PyLong_CheckExact
from cpython.mem cimport PyMem_Free
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_CheckExact, PyUnicode_DecodeASCII
from libc.math cimport isfinite
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memchr, memcmp, memcpy, strlen

from fastshard._core.platform cimport fs_count_plain, fs_parse_digits
from fastshard._core.span cimport span_of, span_t, take
from fastshard._core.table.extents cimport (
    columns_add, columns_add_info, columns_free, columns_sort, columns_t, make_table,
    name_at, resize, slots_find, slots_free, slots_init, slots_t,
)
from fastshard._core.table.names cimport decode_text

from fastshard.errors import FormatError

cdef enum:
    MAX_DEPTH = 64                 # nested objects and arrays
    NO_DIGITS = -1
    MAX_KEYS = 256                 # at the top level
    MAX_KEY = 8 * 6                # bytes of the longest known key, fully escaped
    MIN_SAMPLE = 1 << 10           # members before their total is extrapolated

cdef uint64_t LARGEST = <uint64_t> -1

cdef enum key_t:                   # keys of a member's object, a bit each
    KEY_OTHER
    KEY_OFFSET
    KEY_SIZE
    KEY_NAME = 4

cdef enum index_status_t:
    INDEX_TWICE = JSON_STATUSES
    INDEX_KEY_TWICE
    INDEX_MANY_KEYS
    INDEX_NO_FILES
    INDEX_BAD_FILES
    INDEX_NUL
    INDEX_NO_NAME
    INDEX_NO_OFFSET                # from here on: the member's name is known
    INDEX_NO_SIZE
    INDEX_OUTSIDE

cdef struct member_t:
    size_t at                      # offset of its object in bytes
    uint64_t offset
    uint64_t size
    json_string_t name
    int seen                       # bits of key_t
    bint has_name
    bint has_info

cdef struct index_t:
    json_t json
    columns_t columns
    columns_t keys                 # of the top level, as names
    slots_t seen                   # hash table of `keys`
    uint8_t *unescaped             # owned; the last string with escapes
    size_t unescaped_capacity
    span_t name                    # of the last member
    uint64_t nbytes                # of the shard
    uint64_t filesize
    bint bounded                   # `nbytes` is known
    bint has_filesize
    bint has_files
    bint disordered                # members are not in order of offset

FAULTS = {
    JSON_CUT: "the text ends inside the JSON",
    JSON_NO_VALUE: "expected a JSON value",
    JSON_NO_KEY: "expected a key (a string)",
    JSON_NO_STRING: "expected a string",
    JSON_NO_COLON: "expected a colon",
    JSON_NO_COMMA: "expected a comma, or the end of the object or array",
    JSON_NO_OBJECT: "expected an object",
    JSON_BAD_NUMBER: "malformed number",
    JSON_NOT_UNSIGNED: "expected an unsigned integer in plain digits",
    JSON_OVERFLOW: "integer exceeds 64 bits",
    JSON_CONTROL: "control character in a string",
    JSON_BAD_UTF8: "invalid UTF-8",
    JSON_BAD_ESCAPE: "malformed escape in a string",
    JSON_SURROGATE: "lone surrogate that does not stand for a byte",
    JSON_DEEP: f"objects and arrays nested more than {MAX_DEPTH} deep",
    JSON_TRAILING: "text after the end of the JSON",
    INDEX_TWICE: "duplicate offset, size or name",
    INDEX_KEY_TWICE: "duplicate key",
    INDEX_MANY_KEYS: f"more than {MAX_KEYS} keys",
    INDEX_NO_FILES: "no key 'files': not an index of a shard",
    INDEX_BAD_FILES: "'files' must be an object or an array",
    INDEX_NUL: "name contains a NUL",
    INDEX_NO_NAME: "member has no name",
    INDEX_NO_OFFSET: "member has no offset",
    INDEX_NO_SIZE: "member has no length or size",
}


# Strict parser of JSON text (RFC 8259), in place.
#
# It allocates nothing and does not recurse; time is linear in the length of the text. A
# lone surrogate from U+DC80 to U+DCFF stands for a byte that is not UTF-8, as in
# Python's ``surrogateescape``; others are faults unless `any_surrogate` is set.

cdef inline size_t json_at(const json_t *json) noexcept nogil:
    """Return the offset in the text in bytes."""
    return json.size - json.rest.left


cdef inline int json_fault_at(json_t *json, int status, size_t at) noexcept nogil:
    """Record a fault at an offset, and return its status."""
    json.fault_at = at
    return status


cdef inline int json_fault(json_t *json, int status) noexcept nogil:
    """Record a fault at the next byte, or JSON_CUT at the end; return the status."""
    if json.rest.left == 0:
        status = JSON_CUT
    return json_fault_at(json, status, json_at(json))


cdef inline uint8_t json_next(const json_t *json) noexcept nogil:
    """Return the next byte, or 0, which is never valid, at the end."""
    return json.rest.at[0] if json.rest.left > 0 else 0


cdef inline void json_space(json_t *json) noexcept nogil:
    """Step over white space."""
    cdef uint8_t byte
    while json.rest.left > 0:
        byte = json.rest.at[0]
        if byte > c' ' or byte not in (c' ', c'\n', c'\r', c'\t'):
            break
        take(&json.rest, 1)


cdef size_t utf8_size(span_t text) noexcept nogil:
    """Return the bytes of a UTF-8 character that is not ASCII; 0: invalid."""
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
    """Return the value of a ``\\uXXXX`` escape, or NO_DIGITS."""
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
    """Return whether two code units are a surrogate pair."""
    return 0xd800 <= first <= 0xdbff and 0xdc00 <= second <= 0xdfff


cdef int skip_escape(json_t *json) noexcept nogil:
    """Validate the next escape; a surrogate pair counts as one."""
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
        if is_pair(value, second):
            take(&json.rest, 6)
        elif not json.any_surrogate:
            return json_fault(json, JSON_SURROGATE)
    take(&json.rest, 6)
    return JSON_OK


cdef int json_rest_of_string(
    json_t *json, size_t plain, json_string_t *text
) noexcept nogil:
    """Read a string after its first `plain` bytes, which are validated already."""
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
        plain = fs_count_plain(json.rest.at, json.rest.left)
    text.raw = span_of(start, json.rest.at - start)
    take(&json.rest, 1)
    return JSON_OK


cdef inline int json_string(json_t *json, json_string_t *text) noexcept nogil:
    """Read a string, from its first quote to its last."""
    cdef size_t plain
    if json_next(json) != c'"':
        return json_fault(json, JSON_NO_STRING)
    take(&json.rest, 1)
    plain = fs_count_plain(json.rest.at, json.rest.left)
    if plain == json.rest.left or json.rest.at[plain] != c'"':
        return json_rest_of_string(json, plain, text)
    text.raw = span_of(json.rest.at, plain)
    text.escaped = False
    take(&json.rest, plain + 1)
    return JSON_OK


cdef size_t put_character(uint32_t value, uint8_t *to) noexcept nogil:
    """Write a character as UTF-8, or the byte of a lone surrogate; return the size."""
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
    """Return the byte of a one-letter escape."""
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
    """Step over an escape, and write its bytes; return how many."""
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
    """Write the bytes of a validated string; return how many.

    There are never more than in `raw`, even if another thread modifies the text.
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
        take(&json.rest, 1)        # no digit may follow
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


cdef int json_any_unsigned(json_t *json, uint64_t *value) noexcept nogil:
    """Read an unsigned 64-bit integer of any length; faults are at its first byte."""
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


cdef inline int json_unsigned(json_t *json, uint64_t *value) noexcept nogil:
    """Read an unsigned 64-bit integer, fast for fewer than 16 digits."""
    cdef size_t digits = fs_parse_digits(json.rest.at, json.rest.left, value)
    cdef bint usual = 0 < digits < 16 and digits < json.rest.left
    if (
        not usual
        or (json.rest.at[0] == c'0' and digits > 1)
        or json.rest.at[digits] in (c'.', c'e', c'E')
    ):
        return json_any_unsigned(json, value)
    take(&json.rest, digits)
    return JSON_OK


cdef inline int json_open(json_t *json) noexcept nogil:
    """Step over an opening bracket or brace."""
    if json.depth == MAX_DEPTH:
        return json_fault(json, JSON_DEEP)
    json.depth += 1
    take(&json.rest, 1)
    return JSON_OK


cdef inline int json_item(json_t *json, bint first, uint8_t end) noexcept nogil:
    """Step to the next value (or key); at `end` step over it and return JSON_END."""
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
    """Read an object's next key, and step to its value; JSON_END: no more keys."""
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
    """Step over a text and one space behind it if they come next."""
    if json.rest.left < size or memcmp(json.rest.at, text, size) != 0:
        return False
    take(&json.rest, size)
    if json_next(json) == c' ':
        take(&json.rest, 1)
    return True


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
    """Step over any value, and validate it."""
    cdef int base = json.depth
    cdef uint64_t objects = 0      # a bit for each open value: 1 if it is an object
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


# The index.

cdef inline bint same(span_t text, const char *word, size_t size) noexcept nogil:
    return text.left == size and memcmp(text.at, word, size) == 0


cdef inline int kind_of(span_t key) noexcept nogil:
    """Return the key_t of a key of a member's object."""
    if same(key, b"offset", 6):
        return KEY_OFFSET
    if same(key, b"length", 6) or same(key, b"size", 4):
        return KEY_SIZE
    if same(key, b"path", 4) or same(key, b"fname", 5) or same(key, b"filename", 8):
        return KEY_NAME
    return KEY_OTHER


cdef int kind_of_escaped(span_t raw) noexcept nogil:
    cdef uint8_t[MAX_KEY] plain
    if raw.left > MAX_KEY:
        return KEY_OTHER
    return kind_of(span_of(plain, json_unescape(raw, plain)))


cdef int unescape(index_t *index, span_t raw, span_t *plain) noexcept nogil:
    """Unescape a string; `plain` is valid until the next call."""
    if index.unescaped_capacity < raw.left:
        if not resize(<void **> &index.unescaped, raw.left, 1):
            return JSON_NO_MEMORY
        index.unescaped_capacity = raw.left
    plain[0] = span_of(index.unescaped, json_unescape(raw, index.unescaped))
    return JSON_OK


cdef int read_value(
    index_t *index, member_t *member, const json_string_t *key
) noexcept nogil:
    """Read the value of a key of a member's object."""
    cdef int kind = kind_of_escaped(key.raw) if key.escaped else kind_of(key.raw)
    if kind == KEY_OTHER:
        member.has_info = True
        return json_skip(&index.json)
    if member.seen & kind:
        return json_fault(&index.json, INDEX_TWICE)
    member.seen |= kind
    if kind == KEY_OFFSET:
        return json_unsigned(&index.json, &member.offset)
    if kind == KEY_SIZE:
        return json_unsigned(&index.json, &member.size)
    member.has_name = True
    return json_string(&index.json, &member.name)


cdef int check_member(index_t *index, const member_t *member) noexcept nogil:
    """Check that a member is complete and that its extent is in the shard."""
    cdef int status
    index.name = member.name.raw
    if not member.has_name:
        return INDEX_NO_NAME
    if member.name.escaped:
        status = unescape(index, member.name.raw, &index.name)
        if status != JSON_OK:
            return status
        if index.name.left > 0 and memchr(index.name.at, 0, index.name.left) != NULL:
            return INDEX_NUL
    if not member.seen & KEY_OFFSET:
        return INDEX_NO_OFFSET
    if not member.seen & KEY_SIZE:
        return INDEX_NO_SIZE
    if index.bounded and (
        member.offset > index.nbytes or member.size > index.nbytes - member.offset
    ):
        return INDEX_OUTSIDE
    return JSON_OK


cdef bint add_member(
    index_t *index, const member_t *member, span_t text
) noexcept nogil:
    """Append a checked member; `text` is its object. False: out of memory."""
    cdef columns_t *columns = &index.columns
    cdef size_t i = columns.count
    if i > 0 and member.offset < columns.offsets[i - 1]:
        index.disordered = True
    if i >= MIN_SAMPLE and i == columns.capacity:
        columns.growth = 1.02 * <double> index.json.size / json_at(&index.json)
    if not columns_add(columns, member.offset, member.size, index.name):
        return False
    if not member.has_info:
        text.left = 0
        if columns.info_ends == NULL:
            return True
    return columns_add_info(columns, text)


cdef inline bint read_usual(index_t *index, member_t *member) noexcept nogil:
    """Read offset and size if they come first, as most writers store them.

    Returns False and reads nothing otherwise: use `json_key` then.
    """
    cdef json_t json = index.json
    if not (
        json_exactly(&json, b'"offset":', 9)
        and json_unsigned(&json, &member.offset) == JSON_OK
        and json_exactly(&json, b",", 1)
        and (json_exactly(&json, b'"length":', 9) or json_exactly(&json, b'"size":', 7))
        and json_unsigned(&json, &member.size) == JSON_OK
    ):
        return False
    index.json.rest = json.rest
    member.seen = KEY_OFFSET | KEY_SIZE
    return True


cdef int read_member(index_t *index, member_t *member) noexcept nogil:
    """Read the object of a member; `has_name` tells if the name is set already."""
    cdef json_t *json = &index.json
    cdef span_t text = json.rest
    cdef json_string_t key
    cdef bint first
    cdef int status
    member.at = json_at(json)
    member.seen = 0
    member.has_info = False
    if json_next(json) != c'{':
        return json_fault(json, JSON_NO_OBJECT)
    status = json_open(json)
    first = not read_usual(index, member)
    while status == JSON_OK:
        status = json_key(json, first, &key)
        if status == JSON_OK:
            status = read_value(index, member, &key)
        first = False
    if status != JSON_END:
        return status
    status = check_member(index, member)
    if status != JSON_OK:
        return json_fault_at(json, status, member.at)
    text.left -= json.rest.left
    return JSON_OK if add_member(index, member, text) else JSON_NO_MEMORY


cdef int read_files(index_t *index) noexcept nogil:
    """Read all members, in an object or an array."""
    cdef json_t *json = &index.json
    cdef member_t member
    cdef bint first = True
    cdef bint named = json_next(json) == c'{'
    cdef int status
    if not named and json_next(json) != c'[':
        return json_fault(json, INDEX_BAD_FILES)
    status = json_open(json)
    while status == JSON_OK:
        if named:
            status = json_key(json, first, &member.name)
        else:
            status = json_item(json, first, c']')
        member.has_name = named
        first = False
        if status == JSON_OK:
            status = read_member(index, &member)
    return JSON_OK if status == JSON_END else status


cdef int note_key(index_t *index, span_t key) noexcept nogil:
    """Record a key of the top level; return INDEX_KEY_TWICE if it is a duplicate."""
    cdef uint32_t filling = 0
    cdef uint32_t *slot = slots_find(&index.seen, key, name_at, &index.keys, &filling)
    if slot[0] != 0:
        return INDEX_KEY_TWICE
    if index.keys.count == MAX_KEYS:
        return INDEX_MANY_KEYS
    slot[0] = filling | <uint32_t> (index.keys.count + 1)
    return JSON_OK if columns_add(&index.keys, 0, 0, key) else JSON_NO_MEMORY


cdef int read_top_value(index_t *index, const json_string_t *text) noexcept nogil:
    """Read the value of a key of the top level."""
    cdef span_t key = text.raw
    cdef int status = JSON_OK
    if text.escaped:
        status = unescape(index, text.raw, &key)
    if status == JSON_OK:
        status = note_key(index, key)
    if status == JSON_NO_MEMORY:
        return status
    if status != JSON_OK:
        return json_fault(&index.json, status)
    if same(key, b"files", 5):
        index.has_files = True
        return read_files(index)
    if same(key, b"filesize", 8):
        index.has_filesize = True
        return json_unsigned(&index.json, &index.filesize)
    return json_skip(&index.json)


cdef int read_index(index_t *index) noexcept nogil:
    """Read the whole text; return a json_status_t or index_status_t."""
    cdef json_t *json = &index.json
    cdef json_string_t key
    cdef bint first = True
    cdef size_t start
    cdef int status
    json_space(json)
    start = json_at(json)
    if json_next(json) != c'{':
        return json_fault(json, JSON_NO_OBJECT)
    status = json_open(json)
    while status == JSON_OK:
        status = json_key(json, first, &key)
        if status == JSON_OK:
            status = read_top_value(index, &key)
        first = False
    if status != JSON_END:
        return status
    json_space(json)
    if json.rest.left > 0:
        return json_fault(json, JSON_TRAILING)
    if not index.has_files:
        return json_fault_at(json, INDEX_NO_FILES, start)
    return JSON_OK


cdef object make_error(const index_t *index, int status, str path):
    """Return the exception of a failed parse."""
    member = None
    if status == JSON_NO_MEMORY:
        return MemoryError()
    if status >= INDEX_NO_OFFSET:
        member = decode_text(index.name)
    if status == INDEX_OUTSIDE:
        reason = f"extent ends beyond the shard's {index.nbytes:,} bytes"
    else:
        reason = FAULTS[status]
    return FormatError(reason, path, index.json.fault_at, member)


def parse_index(text, str path not None, nbytes=None):
    """Parse the text of a JSON index."""
    cdef Py_buffer buffer
    cdef int status = JSON_NO_MEMORY
    cdef index_t *index = <index_t *> calloc(1, sizeof(index_t))
    if index == NULL:
        raise MemoryError
    try:
        if nbytes is not None:
            index.bounded = True
            index.nbytes = nbytes
        PyObject_GetBuffer(text, &buffer, PyBUF_SIMPLE)
        try:
            index.json.rest = span_of(<const uint8_t *> buffer.buf, buffer.len)
            index.json.size = buffer.len
            with nogil:
                if slots_init(&index.seen, MAX_KEYS):
                    status = read_index(index)
                if status == JSON_OK and index.disordered:
                    if not columns_sort(&index.columns):
                        status = JSON_NO_MEMORY
            if status != JSON_OK:
                raise make_error(index, status, path)
        finally:
            PyBuffer_Release(&buffer)
        filesize = index.filesize if index.has_filesize else None
        return make_table(&index.columns), filesize
    finally:
        columns_free(&index.columns)
        columns_free(&index.keys)
        slots_free(&index.seen)
        free(index.unescaped)
        free(index)


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
    """Append an int; return False if it is not an int64."""
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
    """Return the text of `json.dumps` for a short, flat dict."""
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
