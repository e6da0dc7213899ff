"""Rows of JSON, CSV, TSV and XSV shards: lines of a text file, offsets in a meta file.

A JSON row is read by the scanner of the standard library, with the rules of
``json.loads``: NaN, Infinity, integers of any size. XSV has no quotes: a row is its
values between separators, and a newline at its end.
"""

cimport cython
from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_SetItem
from cpython.tuple cimport PyTuple_GET_ITEM
from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memchr, memcmp

from fastshard._core.buffers cimport bytes_of
from fastshard._core.span cimport span_of, span_t, take
from fastshard._core.streaming.plan cimport (
    OffsetTable, RowSchema, RowTable, copy_offsets, decode_float_text, decode_int_text,
    load32, offset_of,
)
from fastshard._core.text cimport decode_text

import json

from fastshard.errors import FormatError

cdef extern from *:
    dict new_dict "__Pyx_PyDict_NewPresized" (Py_ssize_t n)

cdef enum:
    OTHER = 0
    STR = 1
    INT = 2
    FLOAT = 3

cdef object scan_json
from fastshard._util.json import scan_json

cdef dict KINDS = {"str": STR, "int": INT, "float": FLOAT}


cdef OffsetTable read_meta(
    RowTable rows, object meta, str meta_path, uint64_t samples, uint64_t first
):
    """Return the offset table of a meta file, checked against the index."""
    cdef Py_buffer buffer
    cdef const uint8_t *at = bytes_of(meta, &buffer)
    cdef uint64_t size = buffer.len
    cdef uint64_t count, head
    cdef OffsetTable offsets
    try:
        if size < 8:
            raise FormatError(f"{size:,} bytes cannot be a meta file", meta_path, 0)
        count = load32(at)
        if count != samples:
            raise FormatError(
                f"the shard has {count:,} samples, by index.json {samples:,}",
                meta_path, 0,
            )
        if count + 1 > (size - 4) // 4:
            raise FormatError(
                f"the offsets of {count:,} samples do not fit into {size:,} bytes",
                meta_path, 4,
            )
        head = 4 + 4 * (count + 1)
        offsets = copy_offsets(at + 4, count, 4, rows.nbytes, meta_path)
        if offset_of(offsets, 0) != first:
            raise FormatError(
                f"the first sample is at {offset_of(offsets, 0):,}, not {first:,}",
                meta_path, 4,
            )
        rows.schema.check_config(at + head, size - head, meta_path, head)
    finally:
        PyBuffer_Release(&buffer)
    return offsets


cdef int set_up(RowTable rows, str path, RowSchema schema, uint64_t nbytes) except -1:
    rows.path = path
    rows.schema = schema
    rows.names = schema.names
    rows.width = schema.width
    rows.nbytes = nbytes
    return 0


# JSON

@cython.final
cdef class JsonSchema(RowSchema):
    """Columns of JSON rows."""

    def __cinit__(self, names, encodings, str newline not None):
        self.newline = newline
        self.keys = [json.dumps(name)[1:-1].encode() for name in self.names]

    def __init__(self, names, encodings, newline):
        columns = dict(zip(self.names, self.encodings))
        self.expected = {"columns": columns, "newline": newline}


cdef bint is_blank(uint8_t byte) noexcept nogil:
    return byte == c' ' or byte == c'\n' or byte == c'\r' or byte == c'\t'


cdef void skip_blanks(span_t *span) noexcept nogil:
    while span.left > 0 and is_blank(span.at[0]):
        take(span, 1)


cdef bint take_byte(span_t *span, uint8_t byte) noexcept nogil:
    """Step over blanks and `byte`; return False if another byte follows."""
    skip_blanks(span)
    if span.left == 0 or span.at[0] != byte:
        return False
    take(span, 1)
    return True


cdef bint take_string(span_t *span, span_t *text) noexcept nogil:
    """Step over a string; `text` becomes the content of its quotes, still escaped."""
    cdef const uint8_t *start
    if not take_byte(span, c'"'):
        return False
    start = span.at
    while span.left > 0:
        if span.at[0] == c'"':
            text[0] = span_of(start, span.at - start)
            take(span, 1)
            return True
        if span.at[0] == c'\\' and take(span, 1) == NULL:
            return False
        if take(span, 1) == NULL:
            return False
    return False


cdef bint take_value(span_t *span) noexcept nogil:
    """Step over a value, up to a comma, bracket or brace that is not in it."""
    cdef size_t depth = 0
    cdef span_t text
    cdef uint8_t byte
    while True:
        skip_blanks(span)
        if span.left == 0:
            return depth == 0
        byte = span.at[0]
        if byte == c'"':
            if not take_string(span, &text):
                return False
            continue
        if byte == c'[' or byte == c'{':
            depth += 1
        elif byte == c']' or byte == c'}':
            if depth == 0:
                return True
            depth -= 1
        elif byte == c',' and depth == 0:
            return True
        take(span, 1)


cdef bint find_value(
    span_t span, const uint8_t *key, size_t key_size, str name, uint64_t *start,
    uint64_t *size,
) except -1:
    """Find a key of a row's object; the last one of its name counts.

    Returns False if there is none, or the row is not an object.
    """
    cdef const uint8_t *row = span.at
    cdef uint64_t start_now
    cdef const uint8_t *end
    cdef span_t text
    cdef bint found = False
    cdef bint same
    if not take_byte(&span, c'{'):
        return False
    while take_string(&span, &text):
        same = text.left == key_size and memcmp(text.at, key, key_size) == 0
        if not same and text.left >= 2:
            same = is_key(&text, name)
        if not take_byte(&span, c':'):
            return False
        skip_blanks(&span)
        start_now = <uint64_t> (span.at - row)
        if not take_value(&span):
            return False
        if same:
            end = span.at
            while end > row + start_now and is_blank(end[-1]):
                end -= 1
            start[0] = start_now
            size[0] = <uint64_t> (end - row) - start_now
            found = True
        if not take_byte(&span, c','):
            break
    return found


cdef bint is_key(span_t *text, str name) except -1:
    """Return whether a key in another spelling, escaped or in UTF-8, is a name."""
    cdef size_t k
    for k in range(text.left):
        if text.at[k] == c'\\' or text.at[k] >= 0x80:
            break
    else:
        return False
    try:
        spelled = (<const char *> text.at)[:text.left].decode()
        return scan_json(f'"{spelled}"', 0)[0] == name
    except ValueError:
        return False


@cython.final
cdef class JsonRows(RowTable):
    """Rows of a JSON shard."""

    def __init__(self, str path not None, JsonSchema schema not None,
                 str meta_path not None, meta, uint64_t nbytes, uint64_t samples):
        set_up(self, path, schema, nbytes)
        self.json_schema = schema
        self.offsets = read_meta(self, meta, meta_path, samples, 0)
        self.count = self.offsets.count

    cdef int field_extent(
        self, Py_ssize_t i, const uint8_t *row, uint64_t row_size, Py_ssize_t k,
        uint64_t *start, uint64_t *size,
    ) except -1:
        cdef bytes key
        if not 0 <= k < self.width:
            raise IndexError(f"column {k} of {self.width}")
        key = self.json_schema.keys[k]
        if not find_value(
            span_of(row, row_size), <const uint8_t *> PyBytes_AS_STRING(key),
            PyBytes_GET_SIZE(key), self.names[k], start, size,
        ):
            raise self.fault(i, k, "the row is not a JSON object with this column", 0)
        return 0

    cdef object decode_row(
        self, Py_ssize_t i, const uint8_t *row, uint64_t size, object owner,
        bytes mask, bint copy, dict values,
    ):
        cdef Py_ssize_t k
        row_values = self.decode_json(i, -1, row, size, 0)
        if type(row_values) is not dict:
            raise self.fault(i, -1, "the row is not a JSON object", 0)
        if mask is None:
            if values is None:
                return row_values
            values.update(<dict> row_values)
            return values
        if values is None:
            values = {}
        for k in range(self.width):
            if PyBytes_AS_STRING(mask)[k] != 0:
                if self.names[k] not in <dict> row_values:
                    raise self.fault(i, k, "the row lacks the column", 0)
                values[self.names[k]] = (<dict> row_values)[self.names[k]]
        return values

    cdef object decode_field(
        self, Py_ssize_t i, Py_ssize_t k, const uint8_t *at, uint64_t size,
        uint64_t start, object owner, bint copy,
    ):
        if not 0 <= k < self.width:
            raise IndexError(f"column {k} of {self.width}")
        return self.decode_json(i, k, at, size, start)

    cdef object decode_json(
        self, Py_ssize_t i, Py_ssize_t k, const uint8_t *at, uint64_t size,
        uint64_t start,
    ):
        """Return ``json.loads(text)``."""
        cdef const uint8_t *first = at
        cdef object text
        while size > 0 and is_blank(at[0]):
            at += 1
            size -= 1
        while size > 0 and is_blank(at[size - 1]):
            size -= 1
        start += at - first
        try:
            text = decode_text(at, size)
            value, end = scan_json(text, 0)
            if end != len(text):
                raise json.JSONDecodeError("Extra data", text, end)
            return value
        except StopIteration as error:
            at_byte = start + len(text[:error.value].encode())
            failed, reason = error, "invalid JSON: Expecting value"
        except json.JSONDecodeError as error:
            at_byte = start + len(text[:error.pos].encode())
            failed, reason = error, f"invalid JSON: {error.msg}"
        except UnicodeDecodeError as error:
            at_byte = start + error.start
            failed, reason = error, f"invalid UTF-8: {error.reason}"
        except (ValueError, RecursionError) as error:  # too many digits, too deep
            at_byte, failed, reason = start, error, f"invalid JSON: {error}"
        raise self.fault(i, k, reason, at_byte) from failed


# XSV

@cython.final
cdef class XsvSchema(RowSchema):
    """Columns of XSV rows."""

    def __cinit__(self, names, encodings, str newline not None,
                  str separator not None, *, bint lenient=False):
        cdef Py_ssize_t k
        if not newline or not separator:
            raise ValueError("newline and separator must not be empty")
        self.newline = newline
        self.separator = separator
        self.lenient = lenient
        self.newline_bytes = newline.encode()
        self.separator_bytes = separator.encode()
        self.header = (separator.join(self.names) + newline).encode()
        self.kinds = <int *> calloc(self.width + 1, sizeof(int))
        if self.kinds == NULL:
            raise MemoryError
        for k in range(self.width):
            self.kinds[k] = KINDS.get(self.encodings[k], OTHER)

    def __init__(self, names, encodings, newline, separator, *, lenient=False):
        expected = {"newline": newline, "separator": separator}
        self.expected = {**self.expected, **expected}

    def __dealloc__(self):
        free(self.kinds)


cdef span_t next_value(span_t *rest, bytes separator, bint *more) noexcept:
    """Step over a value and the separator behind it; `more` is whether there is one."""
    cdef const uint8_t *mark = <const uint8_t *> PyBytes_AS_STRING(separator)
    cdef size_t width = PyBytes_GET_SIZE(separator)
    cdef span_t value = rest[0]
    cdef span_t at = rest[0]
    cdef const uint8_t *found
    more[0] = False
    while at.left >= width:
        found = <const uint8_t *> memchr(at.at, mark[0], at.left)
        if found == NULL:
            break
        take(&at, found - at.at)
        if at.left < width:
            break
        if memcmp(at.at, mark, width) == 0:
            value.left = at.at - value.at
            take(&at, width)
            rest[0] = at
            more[0] = True
            return value
        take(&at, 1)
    take(rest, rest.left)
    return value


@cython.final
cdef class XsvRows(RowTable):
    """Rows of an XSV shard."""

    def __init__(self, str path not None, XsvSchema schema not None,
                 str meta_path not None, meta, uint64_t nbytes, uint64_t samples,
                 head=None):
        cdef Py_buffer buffer
        cdef const uint8_t *at
        cdef bytes header = schema.header
        cdef bint same
        set_up(self, path, schema, nbytes)
        self.xsv_schema = schema
        self.offsets = read_meta(self, meta, meta_path, samples, len(header))
        self.count = self.offsets.count
        if head is None:
            return
        at = bytes_of(head, &buffer)
        same = buffer.len >= len(header) and memcmp(
            at, PyBytes_AS_STRING(header), len(header)
        ) == 0
        PyBuffer_Release(&buffer)
        if not same:
            raise FormatError(
                "the header disagrees with the columns of index.json", path, 0
            )

    cdef uint64_t body(
        self, Py_ssize_t i, const uint8_t *row, uint64_t size
    ) except? 0:
        """Return the size of a row without its newline."""
        cdef bytes newline = self.xsv_schema.newline_bytes
        cdef uint64_t width = PyBytes_GET_SIZE(newline)
        if size < width or memcmp(
            row + size - width, PyBytes_AS_STRING(newline), width
        ) != 0:
            raise self.fault(i, -1, "the row does not end with the newline", size)
        return size - width

    cdef int field_extent(
        self, Py_ssize_t i, const uint8_t *row, uint64_t row_size, Py_ssize_t k,
        uint64_t *start, uint64_t *size,
    ) except -1:
        cdef span_t rest = span_of(row, self.body(i, row, row_size))
        cdef span_t value
        cdef Py_ssize_t column = 0
        cdef bint more = True
        if not 0 <= k < self.width:
            raise IndexError(f"column {k} of {self.width}")
        while more and (column < self.width or not self.xsv_schema.lenient):
            value = next_value(&rest, self.xsv_schema.separator_bytes, &more)
            if column == k:
                start[0] = value.at - row
                size[0] = value.left
            column += 1
        return self.check_count(i, column, more)

    cdef int check_count(self, Py_ssize_t i, Py_ssize_t found, bint more) except -1:
        """Raise FormatError if a row has too few or too many columns."""
        if found == self.width and not (more and not self.xsv_schema.lenient):
            return 0
        number = f"more than {self.width}" if more else f"{found}"
        raise self.fault(
            i, -1, f"the row has {number} columns, by index.json {self.width}", 0
        )

    cdef object decode_row(
        self, Py_ssize_t i, const uint8_t *row, uint64_t size, object owner,
        bytes mask, bint copy, dict values,
    ):
        cdef span_t rest = span_of(row, self.body(i, row, size))
        cdef span_t value = rest
        cdef Py_ssize_t width = self.width
        cdef Py_ssize_t k = 0
        cdef bint more = width > 0
        cdef const char *chosen = NULL
        cdef object names = self.names
        if mask is not None:
            chosen = PyBytes_AS_STRING(mask)
        if values is None:
            values = new_dict(width)
        try:
            while more and k < width:
                value = next_value(&rest, self.xsv_schema.separator_bytes, &more)
                if chosen == NULL or chosen[k] != 0:
                    PyDict_SetItem(
                        values, <object> PyTuple_GET_ITEM(names, k),
                        self.decode_value(k, value.at, value.left),
                    )
                k += 1
        except (ValueError, OverflowError) as error:
            raise self.explain(i, k, value.at - row, error)
        if k != width or more:
            self.check_count(i, k, more)
        return values

    cdef object decode_field(
        self, Py_ssize_t i, Py_ssize_t k, const uint8_t *at, uint64_t size,
        uint64_t start, object owner, bint copy,
    ):
        if not 0 <= k < self.width:
            raise IndexError(f"column {k} of {self.width}")
        try:
            return self.decode_value(k, at, size)
        except (ValueError, OverflowError) as error:
            raise self.explain(i, k, start, error)

    cdef object decode_value(self, Py_ssize_t k, const uint8_t *at, uint64_t size):
        cdef int kind = self.xsv_schema.kinds[k]
        if kind == STR:
            return decode_text(at, size)
        if kind == INT:
            return decode_int_text(at, size)
        if kind == FLOAT:
            return decode_float_text(at, size)
        raise ValueError(f"Unsupported encoding: {self.xsv_schema.encodings[k]}.")

    cdef object explain(self, Py_ssize_t i, Py_ssize_t k, uint64_t start, error):
        """Return the error to raise for one of `decode_value`."""
        if self.xsv_schema.kinds[k] == OTHER:
            return error
        if isinstance(error, UnicodeDecodeError):
            text = f"invalid UTF-8: {error.reason}"
            made = self.fault(i, k, text, start + error.start)
        else:
            made = self.fault(i, k, str(error), start)
        made.__cause__ = error
        return made
