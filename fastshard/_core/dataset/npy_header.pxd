"""Parser of the header literal that NumPy writes into ``.npy`` files.

Anything else that Python evaluates to the same is not of this form: text in other
quotes, numbers in other notations, tabs, comments, fields of a structured dtype.
"""

from libc.stdint cimport uint8_t
from libc.string cimport memcmp

from fastshard._core.dataset.shape cimport MAX_DIMENSIONS, shape_t
from fastshard._core.span cimport span_t, take

cdef enum:
    HAS_DESCR = 1
    HAS_ORDER = 2
    HAS_SHAPE = 4
    HAS_ALL = 7
    MAX_DIGITS = 18                # of a number that fits into 63 bits


cdef inline void skip_spaces(span_t *text) noexcept nogil:
    while text.left > 0 and text.at[0] == c' ':
        take(text, 1)


cdef inline bint take_sign(span_t *text, uint8_t sign) noexcept nogil:
    """Step over spaces, and over `sign` if it is next."""
    skip_spaces(text)
    if text.left == 0 or text.at[0] != sign:
        return False
    take(text, 1)
    return True


cdef inline bint take_word(
    span_t *text, const char *word, size_t size
) noexcept nogil:
    """Step over spaces, and over `word` if it is next."""
    skip_spaces(text)
    if text.left < size or memcmp(text.at, word, size) != 0:
        return False
    take(text, size)
    return True


cdef inline int take_key(span_t *text) noexcept nogil:
    """Step over a key and its colon; return its flag, or 0."""
    cdef int key = 0
    if take_word(text, b"'descr'", 7):
        key = HAS_DESCR
    elif take_word(text, b"'fortran_order'", 15):
        key = HAS_ORDER
    elif take_word(text, b"'shape'", 7):
        key = HAS_SHAPE
    return key if take_sign(text, c':') else 0


cdef inline bint take_digits(
    span_t *text, int most, Py_ssize_t *value
) noexcept nogil:
    """Step over at most `most` digits, the first of which is 0 only if alone."""
    cdef Py_ssize_t total = 0
    cdef int count = 0
    while text.left > 0 and c'0' <= text.at[0] <= c'9':
        if count == most or (count == 1 and total == 0):
            return False
        total = total * 10 + (text.at[0] - c'0')
        count += 1
        take(text, 1)
    value[0] = total
    return count > 0


cdef inline bint take_descr(span_t *text, span_t *descr) noexcept nogil:
    """Step over a quoted ``dtype.str``: no fields, no objects, no escapes."""
    cdef const uint8_t *start
    cdef Py_ssize_t size = 0
    cdef uint8_t kind
    if not take_sign(text, c"'"):
        return False
    start = text.at
    if text.left < 2 or (
        text.at[0] != c'<' and text.at[0] != c'>' and text.at[0] != c'|'
    ):
        return False
    kind = text.at[1]
    take(text, 2)
    if kind == c'M' or kind == c'm':
        if not take_digits(text, 2, &size) or text.left == 0:
            return False
        if text.at[0] == c'[':     # the unit, as in <M8[25us]
            take(text, 1)
            while text.left > 0 and (
                c'a' <= text.at[0] <= c'z' or c'A' <= text.at[0] <= c'Z'
                or c'0' <= text.at[0] <= c'9'
            ):
                take(text, 1)
            if text.left == 0 or text.at[0] != c']':
                return False
            take(text, 1)
    elif (
        kind != c'b' and kind != c'i' and kind != c'u' and kind != c'f'
        and kind != c'c' and kind != c'S' and kind != c'U' and kind != c'V'
    ) or not take_digits(text, 9, &size):
        return False
    descr.at = start
    descr.left = text.at - start
    if text.left == 0 or text.at[0] != c"'":
        return False
    take(text, 1)
    return True


cdef inline bint take_shape(span_t *text, shape_t *shape) noexcept nogil:
    """Step over a tuple of lengths."""
    cdef bint comma = True
    shape.dimensions = 0
    if not take_sign(text, c'('):
        return False
    while not take_sign(text, c')'):
        if not comma or shape.dimensions == MAX_DIMENSIONS:
            return False
        if not take_digits(text, MAX_DIGITS, &shape.lengths[shape.dimensions]):
            return False
        shape.dimensions += 1
        comma = take_sign(text, c',')
    return comma or shape.dimensions != 1  # (3) is a number


cdef inline bint parse_plain_header(
    span_t text, shape_t *shape, span_t *descr
) noexcept nogil:
    """Parse the literal that NumPy writes; return False if its form is another.

    ``{'descr': '<u2', 'fortran_order': False, 'shape': (663,), }`` with any number of
    spaces, the keys in any order. `descr` becomes the characters of the dtype.
    """
    cdef int found = 0
    cdef int key
    cdef bint is_read
    if not take_sign(&text, c'{'):
        return False
    while found != HAS_ALL:
        if found != 0 and not take_sign(&text, c','):
            return False
        key = take_key(&text)
        if key == 0 or found & key:
            return False
        found |= key
        if key == HAS_DESCR:
            is_read = take_descr(&text, descr)
        elif key == HAS_SHAPE:
            is_read = take_shape(&text, shape)
        else:
            shape.fortran = take_word(&text, b"True", 4)
            is_read = shape.fortran or take_word(&text, b"False", 5)
        if not is_read:
            return False
    take_sign(&text, c',')
    if not take_sign(&text, c'}'):
        return False
    while text.left > 0 and (text.at[0] == c' ' or text.at[0] == c'\n'):
        take(&text, 1)
    return text.left == 0
