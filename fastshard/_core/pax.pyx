"""The records of pax extension headers: ``"%d %s=%s\\n" % (length, key, value)``.

POSIX.1-2017, "pax Interchange Format". Only what changes where a member's bytes
are or what it is called counts here; WebDataset's writer gives every member a
header with a time alone, so all else is passed over by its length.
"""

from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcmp, memcpy, strlen

from fastshard._core.span cimport span_t, take, take_until

cdef enum:
    MAX_LENGTH_DIGITS = 7          # extension headers are at most 1 MiB
    MAX_SIZE_DIGITS = 19


cdef bint equals(span_t text, const char *word) noexcept nogil:
    return text.left == strlen(word) and memcmp(text.at, word, text.left) == 0


cdef bint begins(span_t text, const char *word) noexcept nogil:
    return text.left >= strlen(word) and memcmp(text.at, word, strlen(word)) == 0


cdef bint read_decimal(span_t text, size_t max_digits, uint64_t *value) noexcept nogil:
    """Read a decimal number of digits alone, below 2**63; zeros may lead it."""
    cdef size_t i
    cdef uint64_t total = 0
    while text.left > 1 and text.at[0] == c'0':
        take(&text, 1)
    if not 0 < text.left <= max_digits:
        return False
    for i in range(text.left):
        if not c'0' <= text.at[i] <= c'9':
            return False
        total = total * 10 + (text.at[i] - c'0')  # 19 digits fit into 64 bits
    value[0] = total
    return total >> 63 == 0


cdef int pax_set_path(pax_t *pax, span_t path) noexcept nogil:
    """Copy a name. Names hold no NUL."""
    cdef uint8_t *moved
    if path.left > 0 and memchr(path.at, 0, path.left) != NULL:
        return PAX_BAD_NAME
    if path.left >= pax.path_room:
        moved = <uint8_t *> realloc(pax.path, path.left + 256)
        if moved == NULL:
            return PAX_NO_MEMORY
        pax.path = moved
        pax.path_room = path.left + 256
    if path.left > 0:
        memcpy(pax.path, path.at, path.left)
    pax.path_size = path.left
    pax.path_state = PAX_SAID
    return PAX_OK


cdef void pax_clear(pax_t *pax) noexcept nogil:
    """Forget everything but the memory."""
    pax.path_state = pax.size_state = pax.real_size_state = PAX_UNSAID
    pax.refused = PAX_NOT_REFUSED


cdef void pax_free(pax_t *pax) noexcept nogil:
    free(pax.path)
    pax.path = NULL
    pax.path_room = 0


cdef void pax_replace(pax_t *pax, pax_t *later) noexcept nogil:
    """Let a later header of the same member replace this one.

    What was refused stays so: a reader that adds headers up would refuse it.
    """
    cdef pax_t earlier = pax[0]    # swap, so that each frees its own
    pax[0] = later[0]
    later[0] = earlier
    if pax.refused == PAX_NOT_REFUSED:
        pax.refused = earlier.refused


cdef int set_number(span_t value, uint64_t *number, int *state) noexcept nogil:
    if value.left == 0:
        state[0] = PAX_DELETED
        return PAX_OK
    state[0] = PAX_SAID
    if not read_decimal(value, MAX_SIZE_DIGITS, number):
        return PAX_BAD_NUMBER
    return PAX_OK


cdef int set_gnu(pax_t *pax, span_t key, span_t value) noexcept nogil:
    if begins(key, b"GNU.sparse."):
        pax.refused = PAX_SPARSE
        if equals(key, b"GNU.sparse.name"):  # the header's name is a made-up one
            return pax_set_path(pax, value)
    elif equals(key, b"GNU.dumpdir"):
        pax.refused = PAX_INCREMENTAL
    elif begins(key, b"GNU.volume.") and not equals(key, b"GNU.volume.label"):
        pax.refused = PAX_MULTI_VOLUME
    return PAX_OK


cdef int set_value(pax_t *pax, span_t key, span_t value) noexcept nogil:
    if key.left == 0:
        return PAX_MALFORMED
    if key.at[0] == c'm':          # mtime: by far the most common
        return PAX_OK
    if equals(key, b"path"):
        if value.left == 0:
            pax.path_state = PAX_DELETED
            return PAX_OK
        if pax.refused == PAX_SPARSE and pax.path_state == PAX_SAID:
            return PAX_OK          # GNU.sparse.name is the true one
        return pax_set_path(pax, value)
    if equals(key, b"size"):
        return set_number(value, &pax.size, &pax.size_state)
    if equals(key, b"SCHILY.realsize"):
        return set_number(value, &pax.real_size, &pax.real_size_state)
    return set_gnu(pax, key, value)


cdef int parse_record(pax_t *pax, span_t *text) noexcept nogil:
    cdef span_t record = text[0]
    cdef span_t digits, key
    cdef uint64_t length
    cdef size_t used
    if not take_until(&record, c' ', &digits):
        return PAX_MALFORMED
    if not read_decimal(digits, MAX_LENGTH_DIGITS, &length):
        return PAX_MALFORMED
    used = digits.left + 1
    if length <= used or length > text.left:
        return PAX_MALFORMED
    record.left = length - used
    if record.at[record.left - 1] != c'\n':
        return PAX_MALFORMED
    record.left -= 1
    if not take_until(&record, c'=', &key):
        return PAX_MALFORMED
    take(text, length)
    return set_value(pax, key, record)


cdef int pax_parse(pax_t *pax, span_t text, size_t *fault) noexcept nogil:
    """Read the records of one header; `fault` is the byte of the bad one."""
    cdef size_t size = text.left
    cdef span_t rest
    cdef int status
    while text.left > 0:
        fault[0] = size - text.left
        if text.at[0] == 0:        # padding, which must be nothing else
            rest = text
            while rest.left > 0:
                if take(&rest, 1)[0] != 0:
                    return PAX_MALFORMED
            return PAX_OK
        status = parse_record(pax, &text)
        if status != PAX_OK:
            return status
    return PAX_OK
