"""A JSON index: text in, an extent table out, in one pass without the GIL.

    {"filesize": 10240, "files": {"a.jpg": {"offset": 512, "length": 4}}}
    {"files": [{"path": "a.jpg", "offset": 512, "size": 4}]}

Keys come in any order, those that are not known are checked as JSON and skipped.
What a member's object holds beyond its extent and name is kept as text.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memchr, memcmp

from fastshard._core.extents cimport (
    columns_add, columns_add_info, columns_free, columns_t, name_at, resized, table_of,
    text_from,
)
from fastshard._core.hashing cimport slots_find, slots_free, slots_init, slots_t
from fastshard._core.jsontext cimport *
from fastshard._core.sorting cimport columns_sort
from fastshard._core.span cimport span_of, span_t

from fastshard.errors import FormatError

cdef enum:
    MAX_KEYS = 256                 # at the top level
    LONGEST_KEY = 8 * 6            # bytes of the longest known key, all of it escaped
    SURE = 1 << 10                 # members from which their number can be guessed

cdef enum key_t:                   # of a member's object; a bit each
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
    INDEX_NO_OFFSET                # from here on the member's name is known
    INDEX_NO_SIZE
    INDEX_OUTSIDE

cdef struct member_t:
    size_t at                      # where its object begins, in bytes
    uint64_t offset
    uint64_t size
    json_string_t name
    int seen                       # bits of key_t
    bint has_name
    bint has_info

cdef struct index_t:
    json_t json
    columns_t columns
    columns_t keys                 # at the top level: only names
    slots_t seen                   # the same, hashed
    uint8_t *unescaped             # the last string that was not plain
    size_t unescaped_room
    span_t name                    # of the last member
    uint64_t nbytes                # of the shard
    uint64_t filesize
    bint bounded                   # whether `nbytes` is known
    bint has_filesize
    bint has_files
    bint disordered

FAULTS = {
    JSON_CUT: "the text ends inside the JSON",
    JSON_NO_VALUE: "no JSON value",
    JSON_NO_KEY: "no key (a string) where an object needs one",
    JSON_NO_STRING: "not a string",
    JSON_NO_COLON: "no colon behind a key",
    JSON_NO_COMMA: "neither a comma nor the end of what is open",
    JSON_NO_OBJECT: "not an object",
    JSON_BAD_NUMBER: "a malformed number",
    JSON_NOT_UNSIGNED: "not an unsigned integer in plain digits",
    JSON_OVERFLOW: "an integer beyond 64 bits",
    JSON_CONTROL: "a control character in a string",
    JSON_BAD_UTF8: "bytes that are not UTF-8",
    JSON_BAD_ESCAPE: "a malformed escape in a string",
    JSON_SURROGATE: "a lone surrogate, which stands for no byte",
    JSON_DEEP: f"more than {MAX_DEPTH} objects and arrays inside one another",
    JSON_TRAILING: "more text behind the JSON",
    INDEX_TWICE: "an offset, size or name that is given twice",
    INDEX_KEY_TWICE: "a key that is given twice",
    INDEX_MANY_KEYS: f"more than {MAX_KEYS} keys",
    INDEX_NO_FILES: "no key 'files': not an index of a shard",
    INDEX_BAD_FILES: "'files' is neither an object nor an array",
    INDEX_NUL: "a name with a NUL in it",
    INDEX_NO_NAME: "a member without a name",
    INDEX_NO_OFFSET: "a member without an offset",
    INDEX_NO_SIZE: "a member without a length or size",
}


cdef inline bint same(span_t text, const char *word, size_t size) noexcept nogil:
    return text.left == size and memcmp(text.at, word, size) == 0


cdef inline int kind_of(span_t key) noexcept nogil:
    if same(key, b"offset", 6):
        return KEY_OFFSET
    if same(key, b"length", 6) or same(key, b"size", 4):
        return KEY_SIZE
    if same(key, b"path", 4) or same(key, b"fname", 5) or same(key, b"filename", 8):
        return KEY_NAME
    return KEY_OTHER


cdef int kind_of_escaped(span_t raw) noexcept nogil:
    cdef uint8_t[LONGEST_KEY] plain
    if raw.left > LONGEST_KEY:
        return KEY_OTHER
    return kind_of(span_of(plain, json_unescape(raw, plain)))


cdef int unescape(index_t *index, span_t raw, span_t *plain) noexcept nogil:
    """Give a string's bytes, which last until the next call."""
    if index.unescaped_room < raw.left:
        if not resized(<void **> &index.unescaped, raw.left, 1):
            return JSON_NO_MEMORY
        index.unescaped_room = raw.left
    plain[0] = span_of(index.unescaped, json_unescape(raw, index.unescaped))
    return JSON_OK


cdef int read_value(
    index_t *index, member_t *member, const json_string_t *key
) noexcept nogil:
    """Read what a key of a member's object has."""
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
    """Check that nothing is missing and that the extent lies in the shard."""
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
    """Append a checked member; `text` is its object. False: no memory."""
    cdef columns_t *columns = &index.columns
    cdef size_t i = columns.count
    if i > 0 and member.offset < columns.offsets[i - 1]:
        index.disordered = True
    if i >= SURE and i == columns.room:
        columns.expected = 1.02 * <double> index.json.size / json_at(&index.json)
    if not columns_add(columns, member.offset, member.size, index.name):
        return False
    if not member.has_info:
        text.left = 0
        if columns.info_ends == NULL:
            return True
    return columns_add_info(columns, text)


cdef inline bint read_usual(index_t *index, member_t *member) noexcept nogil:
    """Read an offset and a size as nearly all writers put them first.

    False: they look otherwise, nothing is read, and `json_key` has to look closer.
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
    """Read the object of a member, whose name may be known already."""
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
    """Read all members, listed in an object or an array."""
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
    """Remember a key of the top level, which must be a new one."""
    cdef uint32_t filling = 0
    cdef uint32_t *slot = slots_find(&index.seen, key, name_at, &index.keys, &filling)
    if slot[0] != 0:
        return INDEX_KEY_TWICE
    if index.keys.count == MAX_KEYS:
        return INDEX_MANY_KEYS
    slot[0] = filling | <uint32_t> (index.keys.count + 1)
    return JSON_OK if columns_add(&index.keys, 0, 0, key) else JSON_NO_MEMORY


cdef int read_top_value(index_t *index, const json_string_t *text) noexcept nogil:
    """Read what a key of the top level has."""
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


cdef object fault_of(const index_t *index, int status, str path):
    member = None
    if status == JSON_NO_MEMORY:
        return MemoryError()
    if status >= INDEX_NO_OFFSET:
        member = text_from(index.name)
    if status == INDEX_OUTSIDE:
        reason = f"an extent beyond the shard's {index.nbytes:,} bytes"
    else:
        reason = FAULTS[status]
    return FormatError(reason, path, index.json.fault_at, member)


def parse_index(text, str path not None, nbytes=None):
    """Parse the text of a JSON index.

    Parameters
    ----------
    text : bytes-like
        The whole file.
    path : str
        Its name, for errors.
    nbytes : int, optional
        The shard's size in bytes, which no extent may go beyond.

    Returns
    -------
    table : ExtentTable
        The members by offset; those of equal offsets as the text has them.
    filesize : int or None
        The shard's size in bytes that the index records, if it does.

    Raises
    ------
    FormatError
        The text is no strict JSON or no such index, or an extent is outside.
    """
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
                raise fault_of(index, status, path)
        finally:
            PyBuffer_Release(&buffer)
        return table_of(&index.columns), index.filesize if index.has_filesize else None
    finally:
        columns_free(&index.columns)
        columns_free(&index.keys)
        slots_free(&index.seen)
        free(index.unescaped)
        free(index)
