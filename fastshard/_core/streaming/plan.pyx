"""Column plans of streaming shards, their offset tables, and the rows of MDS shards.

A row of an MDS shard has a u32 size for each variable column, then the bytes of all
columns in the order of the names. A `RowPlan` knows kind, size and place of the
columns; all shards of a schema share one. A `RowTable` finds rows and fields of one
shard and decodes them; its bytes are the caller's.

An `OffsetTable` has u32 offsets of the samples, kept on the heap. A shard of more than
4 GiB has offsets that wrapped at 2**32. Offsets are monotone, so each decrease is a
wrap; there are at most as many as the file is long.

Values have the types of mosaicml-streaming: NumPy scalars are allocated by their types
and filled here, which takes a tenth of ``numpy.frombuffer(data, dtype)[0]``.

Numbers are little-endian, as are all hosts that run this.
"""

cimport cython
from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport (
    PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE,
)
from cpython.dict cimport PyDict_Copy, PyDict_New, PyDict_SetItem
from cpython.long cimport PyLong_FromLongLong
from cpython.memoryview cimport PyMemoryView_FromObject, PyMemoryView_GET_BUFFER
from cpython.object cimport PyObject, PyTypeObject
from cpython.pycapsule cimport PyCapsule_GetName, PyCapsule_GetPointer
from cpython.tuple cimport PyTuple_GET_ITEM
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy

from fastshard._core.buffers cimport bytes_of
from fastshard._core.dataset.shape cimport MAX_DIMENSIONS, shape_t
from fastshard._core.io.source cimport MappedFile, MappedSource, View
from fastshard._core.platform cimport PY_SSIZE_T_MAX
from fastshard._core.span cimport span_of, span_t, take
from fastshard._core.text cimport decode_text

import sys
from math import prod

from fastshard._util.json import parse_json
from fastshard.errors import FormatError

cdef enum:
    OK = 0
    DECREASES = 1
    WRONG_END = 2


@cython.final
@cython.no_gc
cdef class OffsetTable:
    """Offsets of the samples of a shard, and the end of the last one."""

    def __init__(self, *args, **kwargs):
        raise TypeError("an OffsetTable cannot be created; call parse_offsets")

    def __dealloc__(self):
        free(self.values)
        free(self.wraps)

    def __len__(self):
        return self.count

    def __reduce__(self):
        raise TypeError("an OffsetTable does not pickle; pickle the reader")

    def extent(self, Py_ssize_t i):
        """Return offset and size of sample `i` in bytes."""
        cdef uint64_t offset
        if not 0 <= i < self.count:
            raise IndexError(f"sample {i} is out of range: there are {self.count:,}")
        offset = offset_of(self, i)
        return offset, offset_of(self, i + 1) - offset

    cdef uint64_t wrapped_offset(self, Py_ssize_t i) noexcept nogil:
        """Return offset `i` of a table with wraps."""
        cdef Py_ssize_t low = 0
        cdef Py_ssize_t high = self.wrap_count
        cdef Py_ssize_t middle
        while low < high:          # the first wrap after i
            middle = (low + high) >> 1
            if self.wraps[middle] <= i:
                low = middle + 1
            else:
                high = middle
        return (<uint64_t> low << 32) + self.values[i]


cdef inline Py_ssize_t max_wraps(uint64_t count, uint64_t last) noexcept nogil:
    return <Py_ssize_t> min(last >> 32, count)


cdef int check_offsets(OffsetTable table, uint64_t last, Py_ssize_t *where) noexcept \
        nogil:
    """Record the wraps; return a status and the place of a fault."""
    cdef const uint32_t *values = table.values
    cdef Py_ssize_t limit = max_wraps(table.count, last)
    cdef Py_ssize_t i
    for i in range(table.count):
        if values[i + 1] < values[i]:
            where[0] = i + 1
            if table.wrap_count == limit:
                return DECREASES
            table.wraps[table.wrap_count] = i + 1
            table.wrap_count += 1
    if (<uint64_t> table.wrap_count << 32) + values[table.count] != last:
        if table.wrap_count == 0:
            where[0] = table.count
        return WRONG_END
    return OK


cdef OffsetTable copy_offsets(
    const uint8_t *at, uint64_t count, uint64_t place, uint64_t last, str path
):
    """Copy and check the table of `count` samples, whose bytes the caller has checked.

    `place` is the table's place in the file, `last` the value of its last offset.
    """
    cdef OffsetTable table = OffsetTable.__new__(OffsetTable)
    cdef Py_ssize_t where = 0
    cdef int status
    table.values = <uint32_t *> malloc(4 * (count + 1))
    table.wraps = <Py_ssize_t *> malloc(
        sizeof(Py_ssize_t) * (max_wraps(count, last) + 1)
    )
    if table.values == NULL or table.wraps == NULL:
        raise MemoryError(f"no memory for {count:,} offsets of {path}")
    table.count = <Py_ssize_t> count
    with nogil:
        memcpy(table.values, at, 4 * (count + 1))
        status = check_offsets(table, last, &where)
    if status == DECREASES:
        raise FormatError(
            f"offset {table.values[where]:,} is before {table.values[where - 1]:,}",
            path, place + 4 * <uint64_t> where, f"sample {where - 1}",
        )
    if status == WRONG_END:
        raise FormatError(
            f"the last offset is {offset_of(table, table.count):,}, not {last:,}",
            path, place + 4 * <uint64_t> where,
        )
    return table


def parse_offsets(data, uint64_t count, uint64_t place, uint64_t last, str path):
    """Return the offset table of `count` samples."""
    cdef Py_buffer buffer
    cdef const uint8_t *at = bytes_of(data, &buffer)
    try:
        if <uint64_t> buffer.len // 4 <= count:
            raise FormatError(
                f"{count + 1:,} offsets do not fit into {buffer.len:,} bytes",
                path, place,
            )
        return copy_offsets(at, count, place, last, path)
    finally:
        PyBuffer_Release(&buffer)


cdef extern from "Python.h":
    object new_object "_PyObject_New" (PyTypeObject *kind)
    # With borrowed references, which the compiler does not count.
    PyObject *new_scalar "_PyObject_New" (PyTypeObject *kind) except NULL
    int set_item "PyDict_SetItem" (PyObject *values, PyObject *name, PyObject *value)
    PyObject *get_item "PyTuple_GET_ITEM" (PyObject *items, Py_ssize_t k)
    void release "Py_DECREF" (PyObject *thing)
    double PyOS_string_to_double(
        const char *text, char **end, PyObject *overflow
    ) except? -1.0

cdef enum:
    OTHER = 0                      # decoded in Python
    BYTES = 1
    STR = 2
    INT = 3
    NUMBER = 4                     # a NumPy scalar
    STR_INT = 5
    STR_FLOAT = 6
    ARRAY = 7
    MAX_DIGITS = 18                # of a number that surely fits int64
    MAX_FLOAT_TEXT = 64            # bytes
    FEW_COLUMNS = 8
    CODES = 67                     # codes of types are smaller
    LARGE_ROW = 64 << 10           # bytes; of larger rows only the requested fields
                                   # are brought into memory
    MAX_CONFIG = 1 << 20           # bytes

# Errors of decoders that mean that the bytes are bad.
cdef tuple BAD_BYTES = (
    ValueError, LookupError, TypeError, ArithmeticError, EOFError, RecursionError,
    SyntaxError, OSError,
)
cdef dict KINDS = {
    "bytes": BYTES, "str": STR, "int": INT, "str_int": STR_INT,
    "str_float": STR_FLOAT, "ndarray": ARRAY,
}
cdef dict NUMBERS = {
    "uint8": 8, "int8": 9, "uint16": 16, "int16": 17, "float16": 18, "uint32": 32,
    "int32": 33, "float32": 34, "uint64": 64, "int64": 65, "float64": 66,
}


# Of `npy.make_shaped_array`, which a cimport of the function would import with NumPy.
ctypedef object (*array_maker_t)(object, const shape_t *, uint8_t *, bint, object)
cdef array_maker_t array_maker = NULL
cdef PyTypeObject *scalar_types[67]  # by code; NULL: there is none
cdef PyObject *dtypes[67]
cdef list loaded = []              # owns the items of both
cdef bint fills_scalars = False    # values are where they are expected in scalars


cdef int load_numpy() except -1:
    """Import NumPy and its types on the first use."""
    global array_maker, fills_scalars
    if loaded:
        return 0
    import numpy

    from fastshard._core.dataset import npy

    maker = npy.__pyx_capi__["make_shaped_array"]
    array_maker = <array_maker_t> PyCapsule_GetPointer(maker, PyCapsule_GetName(maker))
    owned = []
    for name, code in NUMBERS.items():
        scalar = getattr(numpy, name)
        dtype = numpy.dtype(name)
        owned += [scalar, dtype]
        scalar_types[<int> code] = <PyTypeObject *> scalar
        dtypes[<int> code] = <PyObject *> dtype
    loaded.extend(owned)
    fills_scalars = fills_all_scalars(numpy)
    return 0


cdef bint fills_all_scalars(numpy) except -1:
    """Return whether scalars that are filled here have the value that was stored."""
    cdef const uint8_t *pattern = b"\x01\x02\x03\x04\x05\x06\x07\x3f"
    cdef int code
    for code in NUMBERS.values():
        made = fill_scalar(code, pattern)
        size = item_size(code)
        if made.tobytes() != (<const char *> pattern)[:size]:
            return False
    return True


cdef inline uint64_t item_size(int code) noexcept nogil:
    """Return the bytes of a number."""
    return <uint64_t> (code >> 3)


cdef inline bint is_code(int code) noexcept nogil:
    return 8 <= code < CODES and scalar_types[code] != NULL


cdef inline object fill_scalar(int code, const uint8_t *at):
    """Return a NumPy scalar with the number at `at`."""
    cdef PyTypeObject *kind = scalar_types[code]
    cdef object scalar = new_object(kind)
    copy_number(<uint8_t *> <PyObject *> scalar + sizeof(PyObject), at, code >> 3)
    return scalar


cdef inline void copy_number(uint8_t *to, const uint8_t *at, int size) noexcept nogil:
    """Copy 1, 2, 4 or 8 bytes; without a call."""
    if size == 4:
        memcpy(to, at, 4)
    elif size == 8:
        memcpy(to, at, 8)
    elif size == 2:
        memcpy(to, at, 2)
    else:
        to[0] = at[0]


cdef int fill_numbers(
    dict values, PyObject *names, const column_t *column, Py_ssize_t width,
    const uint8_t *at,
) except -1:
    """Set the scalars of a row of nothing else, which the caller has checked."""
    cdef PyObject *scalar
    cdef Py_ssize_t k
    cdef int failed, size
    for k in range(width):
        scalar = new_scalar(scalar_types[column[k].code])
        size = column[k].code >> 3
        copy_number(<uint8_t *> scalar + sizeof(PyObject), at, size)
        at += size
        failed = set_item(<PyObject *> values, get_item(names, k), scalar)
        release(scalar)
        if failed != 0:
            return -1
    return 0


cdef object make_scalar(int code, const uint8_t *at):
    """Return a NumPy scalar without knowledge of its memory."""
    import numpy

    data = (<const char *> at)[:item_size(code)]
    return numpy.frombuffer(data, <object> dtypes[code])[0]


cdef object view_of(object owner, const uint8_t *at, uint64_t size):
    """Return a memoryview of bytes of `owner`: a MappedFile or an exporter."""
    cdef const uint8_t *base
    cdef Py_ssize_t start
    if type(owner) is MappedFile:
        base = (<MappedFile> owner).base
        return (<MappedFile> owner).view(<uint64_t> (at - base), size)
    view = PyMemoryView_FromObject(owner)
    start = at - <const uint8_t *> PyMemoryView_GET_BUFFER(view).buf
    return view[start:start + <Py_ssize_t> size]


# Text

cdef object decode_int_text(const uint8_t *at, uint64_t size):
    """Return ``int(text)``; in C if it is a sign and a few ASCII digits."""
    cdef uint64_t i = 0
    cdef int64_t value = 0
    cdef bint negative = size > 0 and at[0] == c'-'
    if negative:
        i = 1
    if i < size <= MAX_DIGITS:
        while i < size and c'0' <= at[i] <= c'9':
            value = value * 10 + (at[i] - c'0')
            i += 1
        if i == size:
            return PyLong_FromLongLong(-value if negative else value)
    return int(decode_text(at, size))


cdef object decode_float_text(const uint8_t *at, uint64_t size):
    """Return ``float(text)``; without a string if it has digits and signs only."""
    cdef char text[65]
    cdef char *end
    cdef uint64_t i = 0
    cdef double value
    if 0 < size <= MAX_FLOAT_TEXT:
        while i < size and (
            c'0' <= at[i] <= c'9' or at[i] == c'.' or at[i] == c'-' or at[i] == c'e'
            or at[i] == c'+'
        ):
            text[i] = at[i]
            i += 1
        if i == size:
            text[size] = 0
            value = PyOS_string_to_double(text, &end, NULL)
            if end == text + size:
                return value
    return float(decode_text(at, size))


# Columns

cdef bint agrees(object found, object expected) except -1:
    """Return whether a value of a config is the index's; 0 counts as absent."""
    if isinstance(found, list):
        found = [None if item == 0 else item for item in found]
    return found == expected


cdef class RowSchema:
    """Names and encodings of columns, shared by the shards that have them."""

    def __cinit__(self, names, encodings, *args, **kwargs):
        self.names = tuple([sys.intern(str(name)) for name in names])
        self.encodings = tuple([str(encoding) for encoding in encodings])
        self.width = len(self.names)
        if len(self.encodings) != self.width:
            raise ValueError(
                f"{len(self.encodings):,} encodings for {self.width:,} columns"
            )
        self.places = {name: k for k, name in enumerate(self.names)}
        if len(self.places) != self.width:
            raise ValueError("a column's name occurs twice")
        self.expected = {
            "column_names": list(self.names), "column_encodings": list(self.encodings),
        }

    def __init__(self, names, encodings, expected=None):
        if expected is not None:
            self.expected = expected

    def __reduce__(self):
        raise TypeError("a schema does not pickle; pickle the reader")

    cdef Py_ssize_t find(self, object name) except -2:
        """Return a column's position, -1 if absent."""
        found = self.places.get(name)
        return -1 if found is None else found

    def mask(self, fields):
        """Return which columns to decode: a byte a column, or None for all."""
        if fields is None:
            return None
        chosen = bytearray(self.width)
        for name in [fields] if isinstance(fields, str) else fields:
            if name not in self.places:
                raise KeyError(
                    f"no column {name!r}; there are {', '.join(self.names)}"
                )
            chosen[self.places[name]] = 1
        return bytes(chosen)

    cdef int check_config(
        self, const uint8_t *at, uint64_t size, str path, uint64_t offset
    ) except -1:
        """Raise FormatError if the config inside a shard disagrees with the index.

        A config of more than `MAX_CONFIG` bytes is not compared.
        """
        cdef bytes accepted = self.accepted
        if size == 0:
            return 0               # the writer stored none
        if accepted is not None and <uint64_t> PyBytes_GET_SIZE(accepted) == size and (
            memcmp(PyBytes_AS_STRING(accepted), at, size) == 0
        ):
            return 0
        if size > MAX_CONFIG:
            return 0
        data = (<const char *> at)[:size]
        try:
            config = parse_json(data, path, offset, surrogates=True)
        except FormatError as error:
            reason = f"the config of the columns is {error.reason}"
            raise FormatError(reason, path, error.offset) from None
        if not isinstance(config, dict):
            raise FormatError("the config is not a JSON object", path, offset)
        for key, value in self.expected.items():
            if key in config and not agrees(config[key], value):
                raise FormatError(
                    f"its {key} disagree with those of index.json", path, offset
                )
        self.accepted = data
        return 0


@cython.final
cdef class RowPlan(RowSchema):
    """Kinds, sizes and places of the columns of MDS rows."""

    def __cinit__(self, names, encodings, sizes, resolver):
        self.resolver = resolver
        self.sizes = tuple([check_size(size) for size in sizes])
        if len(self.sizes) != self.width:
            raise ValueError(f"{len(self.sizes):,} sizes for {self.width:,} columns")
        self.columns = <column_t *> calloc(self.width + 1, sizeof(column_t))
        if self.columns == NULL:
            raise MemoryError
        self.decoders = [None] * self.width
        self.template = dict.fromkeys(self.names)
        self.shapes = [None] * self.width
        self.place_columns()

    def __init__(self, names, encodings, sizes, resolver):
        self.expected = {**self.expected, "column_sizes": list(self.sizes)}

    def __dealloc__(self):
        free(self.columns)

    cdef int place_columns(self) except -1:
        """Fill `columns` from the encodings and sizes."""
        cdef Py_ssize_t k
        cdef column_t *column
        cdef uint64_t before = 0
        for k in range(self.width):
            column = &self.columns[k]
            column.size = self.sizes[k] or 0
            column.before = before
            column.variables = self.variables
            if column.size == 0:
                self.variables += 1
            elif column.size > <uint64_t> PY_SSIZE_T_MAX - before:
                raise ValueError("the sizes of the columns are too large")
            before += column.size
            name, _, rest = self.encodings[k].partition(":")
            if self.encodings[k] in NUMBERS:
                column.kind = NUMBER
                column.code = NUMBERS[self.encodings[k]]
            elif name == "ndarray":
                self.set_array(k, rest)
            else:
                column.kind = KINDS.get(self.encodings[k], OTHER)
        if self.variables > (PY_SSIZE_T_MAX >> 3):
            raise ValueError("too many columns")
        self.fixed = before + 4 * <uint64_t> self.variables
        return 0

    cdef int set_array(self, Py_ssize_t k, str rest) except -1:
        """Set type and shape of a column of arrays; an invalid one is OTHER."""
        parts = rest.split(":") if rest else []
        if len(parts) > 2 or (parts and parts[0] not in NUMBERS):
            return 0
        if len(parts) == 2:
            try:
                shape = tuple([int(length) for length in parts[1].split(",")])
            except ValueError:
                return 0
            if len(shape) > MAX_DIMENSIONS or min(shape) < 1:
                return 0
            if max(shape) > <uint64_t> PY_SSIZE_T_MAX:
                return 0
            self.shapes[k] = shape
        self.columns[k].kind = ARRAY
        self.columns[k].code = NUMBERS[parts[0]] if parts else 0
        return 0

    cdef int resolve(self, Py_ssize_t k) except -1:
        """Load the decoder of a column, with its types."""
        cdef column_t *column = &self.columns[k]
        if column.kind == NUMBER or column.kind == ARRAY:
            load_numpy()
        elif column.kind == OTHER:
            self.decoders[k] = self.resolver(self.encodings[k])
        column.is_number = column.kind == NUMBER and fills_scalars
        column.resolved = True
        self.is_numbers = self.are_numbers()
        return 0

    cdef bint are_numbers(self) noexcept:
        """Return whether all columns are resolved, and scalars of the stored sizes."""
        cdef Py_ssize_t k
        for k in range(self.width):
            if not self.columns[k].is_number or (
                self.columns[k].size != item_size(self.columns[k].code)
            ):
                return False
        return True

    cdef object decode(
        self, Py_ssize_t k, const uint8_t *at, uint64_t size, object owner, bint copy
    ):
        """Return the value of a field; errors give bytes relative to the field."""
        cdef column_t *column = &self.columns[k]
        cdef int64_t value
        if not column.resolved:
            self.resolve(k)
        if column.kind == BYTES:
            if copy:
                return PyBytes_FromStringAndSize(<const char *> at, <Py_ssize_t> size)
            return view_of(owner, at, size)
        if column.kind == STR:
            return decode_text(at, size)
        if column.kind == INT:
            if size != 8:
                raise ValueError(f"a number of 8 bytes has {size:,}")
            memcpy(&value, at, 8)
            return PyLong_FromLongLong(value)
        if column.kind == NUMBER:
            if size != item_size(column.code):
                raise ValueError(
                    f"a number of {item_size(column.code)} bytes has {size:,}"
                )
            if fills_scalars:
                return fill_scalar(column.code, at)
            return make_scalar(column.code, at)
        if column.kind == ARRAY:
            return self.decode_array(k, at, size, owner, copy)
        if column.kind == STR_INT:
            return decode_int_text(at, size)
        if column.kind == STR_FLOAT:
            return decode_float_text(at, size)
        return self.decoders[k]((<const char *> at)[:size])

    cdef object layout(self, Py_ssize_t k):
        """Return dtype and shape of a column; see `RowTable.layout`."""
        cdef column_t *column = &self.columns[k]
        cdef int code = 65 if column.kind == INT else column.code
        shape = self.shapes[k]
        if column.kind not in (INT, NUMBER, ARRAY):
            return None
        load_numpy()
        if column.kind != ARRAY:   # of another size: an error when it is decoded
            is_whole = column.size == item_size(code)
            return (<object> dtypes[code], ()) if is_whole else None
        if shape is None or column.size != (code >> 3) * prod(shape):
            return None, None
        return <object> dtypes[code], shape

    cdef object decode_array(
        self, Py_ssize_t k, const uint8_t *at, uint64_t size, object owner, bint copy
    ):
        """Return the array of a field."""
        cdef shape_t shape
        cdef int code = self.columns[k].code
        cdef span_t span = span_of(at, size)
        cdef uint64_t items
        cdef bint writable = False
        shape.fortran = False
        shape.dimensions = read_array_header(
            &span, &code, shape.lengths, self.shapes[k]
        )
        items = span.left // item_size(code)
        if span.left % item_size(code) != 0 or not has_items(
            shape.lengths, shape.dimensions, items
        ):
            raise ValueError(
                f"{span.left:,} bytes do not fit {<object> dtypes[code]} of shape "
                f"{[shape.lengths[d] for d in range(shape.dimensions)]}"
            )
        if copy:
            owner = PyBytes_FromStringAndSize(<const char *> span.at, span.left)
            span.at = <const uint8_t *> PyBytes_AS_STRING(owner)
        elif type(owner) is MappedFile:
            writable = (<MappedFile> owner).writable
            owner = (<MappedFile> owner).raw_view(
                <uint64_t> (span.at - (<MappedFile> owner).base), span.left
            )
        else:
            writable = type(owner) is View and (<View> owner).owner.writable
        return array_maker(
            <object> dtypes[code], &shape, <uint8_t *> span.at, writable, owner
        )


cdef int read_array_header(
    span_t *span, int *code, Py_ssize_t *lengths, object shape
) except -1:
    """Step over an array's header; set type and lengths, return the dimensions.

    A type that the encoding has is in `code`, a shape that it has is a tuple.
    """
    cdef const uint8_t *at
    cdef uint64_t length
    cdef int d, dimensions, width
    if code[0] == 0:
        at = take(span, 1)
        if at == NULL or not is_code(at[0]):
            raise ValueError("the type of the array is unknown")
        code[0] = at[0]
    if shape is not None:
        dimensions = len(shape)
        for d in range(dimensions):
            lengths[d] = shape[d]
        return dimensions
    at = take(span, 1)
    if at == NULL:
        raise ValueError("the number of the array's dimensions is missing")
    dimensions = at[0] >> 2
    width = 1 << (at[0] & 3)
    for d in range(dimensions):
        at = take(span, width)
        length = <uint64_t> -1
        if at != NULL:
            length = 0
            memcpy(&length, at, width)
        if length > <uint64_t> PY_SSIZE_T_MAX:
            raise ValueError(f"dimension {d} of the array is missing or too large")
        lengths[d] = <Py_ssize_t> length
    return dimensions


cdef bint has_items(
    const Py_ssize_t *lengths, int dimensions, uint64_t items
) noexcept nogil:
    """Return whether an array of these lengths has so many items."""
    cdef uint64_t product = 1
    cdef int d
    for d in range(dimensions):
        if lengths[d] == 0:
            return items == 0
    for d in range(dimensions):
        if product > items // <uint64_t> lengths[d]:
            return False
        product *= lengths[d]
    return product == items


cdef object check_size(size):
    """Return a column's size in bytes, None for variable ones."""
    if size is None:
        return None
    if isinstance(size, bool) or not isinstance(size, int) or not (
        0 <= size <= PY_SSIZE_T_MAX
    ):
        raise ValueError(f"a column's size must be bytes or null, got {size!r}")
    return size or None


# Rows

cdef class RowTable:
    """Rows of one shard: their places, their fields' places, their values.

    Bytes are the caller's, checked to be as many as requested. Of a decoded field
    `owner` keeps the bytes alive: a MappedFile, a View, bytes or another exporter; it
    is used only if `copy` is false. A `mask` has a byte a column that is to be decoded.
    """

    def __cinit__(self, *args, **kwargs):
        self.head = <uint64_t> -1  # text: a field ends where the next begins

    def __reduce__(self):
        raise TypeError("rows do not pickle; pickle the reader")

    def __len__(self):
        return self.count

    cdef int row_extent(
        self, Py_ssize_t i, uint64_t *offset, uint64_t *size
    ) except -1:
        """Set the extent of row `i` in its file."""
        if not 0 <= i < self.count:
            raise IndexError(
                f"sample {i:,} is out of range: {self.path} has {self.count:,}"
            )
        offset[0] = offset_of(self.offsets, i)
        size[0] = offset_of(self.offsets, i + 1) - offset[0]
        return 0

    cdef bint is_read_by_field(self, uint64_t size) noexcept:
        """Return whether fields of a row are read one by one: the row is large."""
        return size > LARGE_ROW and self.head < LARGE_ROW

    cdef int ensure_row(
        self, MappedSource source, Py_ssize_t i, uint64_t offset, uint64_t size,
        bytes mask,
    ) except -1:
        """Populate the pages of a row; of a large one those of a mask's fields."""
        cdef const uint8_t *row = source.base + offset
        cdef uint64_t start, nbytes
        cdef Py_ssize_t k
        if mask is None or not self.is_read_by_field(size):
            return source.ensure_resident(offset, size)
        source.ensure_resident(offset, min(size, self.head))
        for k in range(self.width):
            if mask[k]:
                self.field_extent(i, row, size, k, &start, &nbytes)
                source.ensure_resident(offset + start, nbytes)
        return 0

    cdef int field_extent(
        self, Py_ssize_t i, const uint8_t *row, uint64_t row_size, Py_ssize_t k,
        uint64_t *start, uint64_t *size,
    ) except -1:
        """Set the extent of field `k` in its row."""
        raise NotImplementedError

    cdef object decode_row(
        self, Py_ssize_t i, const uint8_t *row, uint64_t size, object owner,
        bytes mask, bint copy, dict values,
    ):
        """Return the values of a row by name. Row -1 is one of unknown position.

        They are added to `values` if that is not None.
        """
        raise NotImplementedError

    cdef object decode_field(
        self, Py_ssize_t i, Py_ssize_t k, const uint8_t *at, uint64_t size,
        uint64_t start, object owner, bint copy,
    ):
        """Return the value of field `k`, which is at `start` in its row."""
        raise NotImplementedError

    cpdef object layout(self, Py_ssize_t k):
        """Return dtype and shape of the numbers or arrays of a column.

        ``(None, None)`` if each array has a header, None for other values.
        """
        return None

    cdef object fault(self, Py_ssize_t i, Py_ssize_t k, object reason, uint64_t at):
        """Return the error of a byte of row `i`, in field `k` unless that is -1."""
        cdef uint64_t offset = 0
        cdef uint64_t size = 0
        member = None if i < 0 else f"sample {i}"
        if i >= 0:
            self.row_extent(i, &offset, &size)
        if k >= 0:
            column = f"column {self.names[k]!r}"
            member = column if member is None else f"{member}, {column}"
        return FormatError(str(reason), self.path, offset + at, member)

    def row(self, Py_ssize_t i):
        """Return offset and size of a row in bytes."""
        cdef uint64_t offset = 0
        cdef uint64_t size = 0
        self.row_extent(i, &offset, &size)
        return offset, size

    def fields(self, Py_ssize_t i, data):
        """Return the extents of the fields of a row, relative to its first byte."""
        cdef Py_buffer buffer
        cdef const uint8_t *at = bytes_of(data, &buffer)
        cdef uint64_t start = 0
        cdef uint64_t size = 0
        extents = []
        try:
            for k in range(self.width):
                self.field_extent(i, at, buffer.len, k, &start, &size)
                extents.append((start, size))
        finally:
            PyBuffer_Release(&buffer)
        return extents

    def decode(self, data, Py_ssize_t i=-1, bytes mask=None, bint copy=True):
        """Return the values of a row by name."""
        cdef Py_buffer buffer
        cdef const uint8_t *at
        if mask is not None and PyBytes_GET_SIZE(mask) != self.width:
            raise ValueError(f"the mask has {len(mask)} columns, not {self.width}")
        if not copy and type(data) is not bytes:
            data = PyMemoryView_FromObject(data)  # the owner of arrays
        at = bytes_of(data, &buffer)
        try:
            return self.decode_row(i, at, buffer.len, data, mask, copy, None)
        finally:
            PyBuffer_Release(&buffer)


@cython.final
cdef class MdsRows(RowTable):
    """Rows of an MDS shard."""

    def __init__(self, str path not None, RowPlan plan not None, head, uint64_t nbytes,
                 uint64_t samples):
        cdef Py_buffer buffer
        cdef const uint8_t *at
        self.path = path
        self.schema = self.plan = plan
        self.names = plan.names
        self.width = plan.width
        self.nbytes = nbytes
        self.head = 4 * <uint64_t> plan.variables
        at = bytes_of(head, &buffer)
        try:
            self.offsets = read_table(path, plan, at, buffer.len, nbytes, samples)
        finally:
            PyBuffer_Release(&buffer)
        self.count = self.offsets.count

    cdef int check_row(
        self, Py_ssize_t i, const uint8_t *row, uint64_t size
    ) except -1:
        """Raise FormatError unless the sizes in the row's header fill the row."""
        cdef Py_ssize_t v
        cdef uint64_t header = 4 * <uint64_t> self.plan.variables
        cdef uint64_t total = self.plan.fixed
        if size < header:
            raise self.fault(
                i, -1, f"{size:,} bytes cannot hold {header} bytes of sizes", 0
            )
        for v in range(self.plan.variables):
            total += load32(row + 4 * v)  # 2**61 columns do not exist
        if total != size:
            raise self.fault(
                i, -1, f"the sizes of the fields sum up to {total:,}, not {size:,}", 0
            )
        return 0

    cdef int field_extent(
        self, Py_ssize_t i, const uint8_t *row, uint64_t row_size, Py_ssize_t k,
        uint64_t *start, uint64_t *size,
    ) except -1:
        cdef column_t *column
        cdef uint64_t place
        cdef Py_ssize_t v
        if not 0 <= k < self.width:
            raise IndexError(f"column {k} of {self.width}")
        self.check_row(i, row, row_size)
        column = &self.plan.columns[k]
        place = column.before + 4 * <uint64_t> self.plan.variables
        for v in range(column.variables):
            place += load32(row + 4 * v)
        start[0] = place
        size[0] = column.size
        if column.size == 0:
            size[0] = load32(row + 4 * column.variables)
        return check_inside(self, i, k, place, size[0], row_size)

    cdef object decode_row(
        self, Py_ssize_t i, const uint8_t *row, uint64_t size, object owner,
        bytes mask, bint copy, dict values,
    ):
        cdef RowPlan plan = self.plan
        cdef column_t *column = plan.columns
        cdef const char *chosen = NULL
        cdef Py_ssize_t width = plan.width
        cdef Py_ssize_t k = 0
        cdef uint64_t place, length
        cdef object names = plan.names
        cdef object value
        self.check_row(i, row, size)
        place = 4 * <uint64_t> plan.variables
        if mask is not None:
            chosen = PyBytes_AS_STRING(mask)
        if values is None and chosen == NULL and width > FEW_COLUMNS:
            values = PyDict_Copy(plan.template)  # faster to overwrite than to insert
        elif values is None:
            values = PyDict_New()
        if plan.is_numbers and chosen == NULL:  # which fill the row: it was checked
            fill_numbers(values, <PyObject *> names, column, width, row)
            return values
        try:
            while k < width:
                length = column.size
                if length == 0:
                    length = load32(row + 4 * column.variables)
                if length > size - place:
                    check_inside(self, i, k, place, length, size)
                if chosen == NULL or chosen[k] != 0:
                    if column.is_number and length == item_size(column.code):
                        value = fill_scalar(column.code, row + place)
                    else:
                        value = plan.decode(k, row + place, length, owner, copy)
                    PyDict_SetItem(values, <object> PyTuple_GET_ITEM(names, k), value)
                place += length
                column += 1
                k += 1
        except BAD_BYTES as error:
            raise self.explain(i, k, place, error)
        return values

    cpdef object layout(self, Py_ssize_t k):
        if not 0 <= k < self.width:
            raise IndexError(f"column {k} of {self.width}")
        return self.plan.layout(k)

    cdef object decode_field(
        self, Py_ssize_t i, Py_ssize_t k, const uint8_t *at, uint64_t size,
        uint64_t start, object owner, bint copy,
    ):
        if not 0 <= k < self.width:
            raise IndexError(f"column {k} of {self.width}")
        try:
            return self.plan.decode(k, at, size, owner, copy)
        except BAD_BYTES as error:
            raise self.explain(i, k, start, error)

    cdef object explain(self, Py_ssize_t i, Py_ssize_t k, uint64_t start, error):
        """Return the error to raise for a decoder's."""
        if not self.plan.columns[k].resolved:  # the encoding is unknown or not allowed
            return error
        if isinstance(error, FormatError):
            if error.path == self.path:
                return error
            made = self.fault(i, k, error.reason, start + error.offset)
        elif isinstance(error, UnicodeDecodeError):
            text = f"invalid UTF-8: {error.reason}"
            made = self.fault(i, k, text, start + error.start)
        else:
            text = f"{self.plan.encodings[k]}: {error}"
            made = self.fault(i, k, text, start)
        made.__cause__ = error
        return made


cdef int check_inside(
    RowTable rows, Py_ssize_t i, Py_ssize_t k, uint64_t place, uint64_t length,
    uint64_t size,
) except -1:
    """Raise FormatError if a field overruns its row."""
    if place > size or length > size - place:
        raise rows.fault(
            i, k, f"a field of {length:,} bytes overruns its row", min(place, size)
        )
    return 0


cdef OffsetTable read_table(
    str path, RowPlan plan, const uint8_t *at, uint64_t size, uint64_t nbytes,
    uint64_t samples,
):
    """Return the offset table of an MDS file, checked against the index."""
    cdef OffsetTable offsets
    cdef uint64_t count, first, head
    if size < 8 or nbytes < 8:
        raise FormatError(f"{nbytes:,} bytes cannot be an MDS shard", path, 0)
    count = load32(at)
    if count != samples:
        raise FormatError(
            f"the shard has {count:,} samples, by index.json {samples:,}", path, 0
        )
    if count + 1 > (nbytes - 4) // 4 or count + 1 > (size - 4) // 4:
        raise FormatError(
            f"the offsets of {count:,} samples do not fit into {nbytes:,} bytes",
            path, 4,
        )
    head = 4 + 4 * (count + 1)
    offsets = copy_offsets(at + 4, count, 4, nbytes, path)
    first = offset_of(offsets, 0)
    if first < head or first > nbytes:
        raise FormatError(
            f"the first sample is at {first:,}, not behind the offsets, which end at "
            f"{head:,}", path, 4,
        )
    if first <= size:
        plan.check_config(at + head, first - head, path, head)
    return offsets
