"""Encoder of MDS rows: values of common types without a call into Python."""

cimport cython
from cpython.buffer cimport (
    Py_buffer,
    PyBUF_FULL_RO,
    PyBUF_SIMPLE,
    PyBuffer_FillInfo,
    PyBuffer_IsContiguous,
    PyBuffer_Release,
    PyBuffer_ToContiguous,
    PyObject_GetBuffer,
)
from cpython.bytes cimport (
    PyBytes_AS_STRING,
    PyBytes_Check,
    PyBytes_FromStringAndSize,
    PyBytes_GET_SIZE,
)
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_Check
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from libc.math cimport fabs, isfinite
from libc.stdint cimport SIZE_MAX, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

import sys


cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(object text)
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    int PyFloat_Pack2(double x, char *at, int little) except -1


cdef enum kind_t:
    TEXT
    SIGNED
    UNSIGNED
    FLOATING
    ARRAY
    OTHER  # by a Python function


cdef struct column_t:
    kind_t kind
    Py_ssize_t size     # bytes; -1: varies, and is stored before the row's fields
    Py_ssize_t width    # of a number, bytes
    uint8_t code        # dtype of arrays; 0: stored with each
    bint numpy          # NumPy's scalars of the same type are copied
    bint shaped         # all arrays have one shape


cdef struct row_t:
    uint8_t *data       # owned
    size_t used
    size_t room


cdef size_t SMALLEST = 256           # bytes of a buffer
cdef size_t MAX_NDIM = 63
cdef double HALF_OVERFLOW = 65520    # the least that float16 rounds to infinity
cdef int64_t EXACT = 1 << 53         # integers up to it are exact as float64
cdef uint64_t MAX_FIELD = 0xFFFFFFFF


cdef int reserve(row_t *row, size_t more) except -1:
    """Make room for more bytes."""
    cdef size_t room = row.room
    cdef void *data
    if more <= room - row.used:
        return 0
    if more > SIZE_MAX // 4 - row.used:
        raise MemoryError
    while room - row.used < more:
        room = room + room // 2 + SMALLEST
    data = PyMem_Realloc(row.data, room)
    if data == NULL:
        raise MemoryError
    row.data = <uint8_t *> data
    row.room = room
    return 0


cdef int append(row_t *row, const void *data, size_t size) except -1:
    reserve(row, size)
    if size:  # else there may be no memory
        memcpy(row.data + row.used, data, size)
        row.used += size
    return 0


cdef int append_bytes(row_t *row, object data) except -1:
    return append(row, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


cdef int append_text(row_t *row, object text) except -1:
    cdef Py_ssize_t size
    cdef const char *data
    if not PyUnicode_IS_ASCII(text):  # the text would keep its UTF-8
        return append_bytes(row, (<str> text).encode("utf-8"))
    data = PyUnicode_AsUTF8AndSize(text, &size)
    return append(row, data, size)


cdef bint append_int(row_t *row, object number, column_t *column) except -1:
    """Append an int; return False if it is out of range."""
    cdef int overflow = 0
    cdef int64_t value = PyLong_AsLongLongAndOverflow(number, &overflow)
    cdef int bits = 8 * <int> column.width
    if overflow:
        return False
    if column.kind == SIGNED:
        if bits < 64 and not (-(1LL << (bits - 1)) <= value < 1LL << (bits - 1)):
            return False
    elif value < 0 or (bits < 64 and value >= 1LL << bits):
        return False
    append(row, &value, column.width)  # little-endian
    return True


cdef bint append_float(row_t *row, double value, Py_ssize_t width) except -1:
    """Append a float; return False where NumPy would warn."""
    cdef float single
    cdef char half[2]
    if width == 8:
        append(row, &value, 8)
    elif width == 4:
        single = <float> value
        if isfinite(value) and not isfinite(single):
            return False
        append(row, &single, 4)
    else:
        if not fabs(value) < HALF_OVERFLOW:  # also NaN
            return False
        PyFloat_Pack2(value, half, 1)
        append(row, half, 2)
    return True


cdef int append_scalar(row_t *row, object scalar, Py_ssize_t width) except -1:
    """Append a scalar of NumPy."""
    cdef Py_buffer view
    PyObject_GetBuffer(scalar, &view, PyBUF_SIMPLE)
    try:
        if view.len != width:
            raise SystemError("NumPy's scalar has another size")
        append(row, view.buf, width)
    finally:
        PyBuffer_Release(&view)
    return 0


cdef uint8_t code_of(const Py_buffer *view) noexcept nogil:
    """Return the code of a native dtype that can be stored, or 0."""
    cdef Py_ssize_t bits = 8 * view.itemsize
    cdef char kind
    if view.format == NULL or view.format[0] == 0 or view.format[1] != 0:
        return 0
    kind = view.format[0]
    if kind in (c'B', c'H', c'I', c'L', c'Q'):
        return <uint8_t> bits if bits <= 64 else 0
    if kind in (c'b', c'h', c'i', c'l', c'q'):
        return <uint8_t> (bits + 1) if bits <= 64 else 0
    if kind in (c'e', c'f', c'd'):
        return <uint8_t> (bits + 2) if bits <= 64 else 0
    return 0


cdef int append_shape(row_t *row, const Py_buffer *view) except -1:
    """Append number of dimensions and dimensions, in the smallest integers."""
    cdef uint64_t largest = 0
    cdef Py_ssize_t i
    cdef int k
    cdef uint8_t head
    for i in range(view.ndim):
        largest = max(largest, <uint64_t> view.shape[i])
    k = (largest >= 1 << 8) + (largest >= 1 << 16) + (largest >> 32 != 0)
    head = <uint8_t> (view.ndim << 2 | k)
    append(row, &head, 1)
    for i in range(view.ndim):
        append(row, &view.shape[i], <size_t> 1 << k)  # little-endian
    return 0


@cython.final
cdef class RowBuffer:
    """Encoded rows one after another in one block of memory."""

    cdef row_t rows
    cdef uint64_t *ends     # owned: where each row ends
    cdef size_t count, room
    cdef Py_ssize_t exports

    def __cinit__(self):
        self.rows.data = NULL
        self.rows.used = self.rows.room = 0

    def __dealloc__(self):
        PyMem_Free(self.rows.data)
        PyMem_Free(self.ends)

    cdef int add(self, const void *data, size_t size) except -1:
        """Append a row."""
        cdef size_t room
        cdef void *ends
        with cython.critical_section(self):
            if self.exports:
                raise BufferError("the rows are in use")
            if self.count == self.room:
                room = self.room + self.room // 2 + SMALLEST
                ends = PyMem_Realloc(self.ends, room * sizeof(uint64_t))
                if ends == NULL:
                    raise MemoryError
                self.ends = <uint64_t *> ends
                self.room = room
            append(&self.rows, data, size)
            self.ends[self.count] = self.rows.used
            self.count += 1
        return 0

    def append(self, bytes row not None):
        """Append a row."""
        self.add(PyBytes_AS_STRING(row), PyBytes_GET_SIZE(row))

    def pop(self):
        """Remove the last row and return it."""
        with cython.critical_section(self):
            if self.count == 0 or self.exports:
                raise BufferError("no row, or the rows are in use")
            row = self[self.count - 1]
            self.count -= 1
            self.rows.used -= len(<bytes> row)
        return row

    def clear(self):
        """Remove all rows; keep the memory."""
        with cython.critical_section(self):
            if self.exports:
                raise BufferError("the rows are in use")
            self.count = self.rows.used = 0

    def offsets(self, uint64_t start):
        """Return the offsets of rows, and the end of the last, from `start`."""
        cdef size_t i
        cdef object out
        cdef uint8_t *at
        if start > MAX_FIELD or self.rows.used > MAX_FIELD - start:
            raise OverflowError("offsets beyond 4 GiB")
        out = PyBytes_FromStringAndSize(NULL, 4 * (self.count + 1))
        at = <uint8_t *> PyBytes_AS_STRING(out)
        store(at, <uint32_t> start)
        for i in range(self.count):
            store(at + 4 * (i + 1), <uint32_t> (start + self.ends[i]))
        return out

    @property
    def nbytes(self):
        """Bytes of all rows."""
        return self.rows.used

    def __len__(self):
        return self.count

    def __getitem__(self, Py_ssize_t i):
        """Return a row."""
        cdef size_t start
        if i < 0 or <size_t> i >= self.count:
            raise IndexError(i)
        start = self.ends[i - 1] if i > 0 else 0
        return PyBytes_FromStringAndSize(
            <char *> self.rows.data + start, self.ends[i] - start
        )

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.rows.data, self.rows.used, 1, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer *view):
        self.exports -= 1


@cython.final
cdef class RowEncoder:
    """Encoder of rows of one schema."""

    cdef column_t *columns
    cdef Py_ssize_t count
    cdef size_t head        # bytes of the sizes before a row's fields
    cdef size_t last_size
    cdef tuple names, encodings, encoders, shapes, types
    cdef object array_type

    def __cinit__(self, names, encodings, sizes, encoders):
        cdef Py_ssize_t k
        self.names = tuple(names)
        self.encodings = tuple(encodings)
        self.encoders = tuple(encoders)
        self.count = len(self.names)
        if not len(self.encodings) == len(self.encoders) == len(sizes) == self.count:
            raise ValueError("names, encodings, sizes, encoders differ in length")
        self.columns = <column_t *> PyMem_Malloc(
            max(self.count, 1) * sizeof(column_t)
        )
        if self.columns == NULL:
            raise MemoryError
        import numpy
        self.array_type = numpy.ndarray
        shapes, types = [], []
        for k in range(self.count):
            shape, scalar = self.prepare(k, self.encodings[k], sizes[k], numpy)
            shapes.append(shape)
            types.append(scalar)
        self.shapes, self.types = tuple(shapes), tuple(types)

    def __dealloc__(self):
        PyMem_Free(self.columns)

    cdef tuple prepare(self, Py_ssize_t k, str encoding, object size, object numpy):
        """Fill a column; return the shape of its arrays and its type of scalars."""
        cdef column_t *column = &self.columns[k]
        name, *config = encoding.split(":")
        column.size = -1 if size is None else size
        column.kind = OTHER
        column.numpy = False
        column.code = 0
        column.width = 0
        column.shaped = False
        if column.size < 0:
            self.head += 4
        if sys.byteorder != "little":
            return None, None
        if encoding == "str":
            column.kind = TEXT
        elif encoding == "int":
            column.kind = SIGNED
            column.width = 8
        elif name == "ndarray":
            column.kind = ARRAY
            if config and config[0]:
                dtype = numpy.dtype(config[0])
                column.code = 8 * dtype.itemsize + "uif".index(dtype.kind)
            if len(config) > 1:
                column.shaped = True
                return tuple(map(int, config[1].split(","))), None
        elif name in (
            "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
            "float16", "float32", "float64",
        ):
            dtype = numpy.dtype(name)
            kinds = {"u": UNSIGNED, "i": SIGNED, "f": FLOATING}
            column.kind = kinds[dtype.kind]
            column.width = dtype.itemsize
            column.numpy = True
            return None, dtype.type
        return None, None

    def encode(self, sample):
        """Return the bytes of a row."""
        cdef row_t row
        row.data = NULL
        try:
            self.fill(&row, sample)
            return PyBytes_FromStringAndSize(<char *> row.data, row.used)
        finally:
            PyMem_Free(row.data)

    def append(self, RowBuffer rows not None, sample):
        """Append a row to others; return its size in bytes."""
        cdef row_t row
        row.data = NULL
        try:
            self.fill(&row, sample)
            rows.add(row.data, row.used)
            return row.used
        finally:
            PyMem_Free(row.data)

    cdef int fill(self, row_t *row, object sample) except -1:
        """Encode a row into memory that the caller frees."""
        cdef Py_ssize_t k
        cdef size_t start, at = 0
        cdef uint64_t size
        cdef uint32_t stored
        cdef bint plain = type(sample) is dict
        row.used = row.room = 0
        reserve(row, self.head + self.last_size)
        row.used = self.head
        for k in range(self.count):
            name = self.names[k]
            value = (<dict> sample)[name] if plain else sample[name]
            start = row.used
            if not self.append_known(row, k, value):
                row.used = start
                self.append_other(row, k, value)
            size = row.used - start
            if self.columns[k].size < 0:
                if size > MAX_FIELD:
                    raise ValueError(
                        f"a value of column {name!r} has {size:,} bytes, a field "
                        "holds less than 4 GiB"
                    )
                stored = <uint32_t> size
                store(row.data + at, stored)
                at += 4
            elif size != <uint64_t> self.columns[k].size:
                raise KeyError(
                    "Unexpected data size; was this data typed with the correct "
                    f"encoding ({self.encodings[k]})? column {name!r}"
                )
        self.last_size = row.used - self.head
        return 0

    cdef bint append_known(self, row_t *row, Py_ssize_t k, object value) except -1:
        """Append a value of a common type; return False for others."""
        cdef column_t *column = &self.columns[k]
        cdef kind_t kind = column.kind
        cdef int overflow = 0
        cdef int64_t number
        if PyBytes_Check(value):  # stored unchanged in any column
            append_bytes(row, value)
            return True
        if kind == OTHER:
            return False
        if kind == TEXT:
            if type(value) is not str:
                return False
            append_text(row, value)
            return True
        if kind == ARRAY:
            return type(value) is self.array_type and self.append_array(row, k, value)
        if column.numpy and type(value) is self.types[k]:
            append_scalar(row, value, column.width)
            return True
        if kind == FLOATING:
            if PyFloat_Check(value):
                return append_float(row, PyFloat_AS_DOUBLE(value), column.width)
            if type(value) is not int:
                return False
            number = PyLong_AsLongLongAndOverflow(value, &overflow)
            if overflow or not -EXACT <= number <= EXACT:
                return False
            return append_float(row, <double> number, column.width)
        if type(value) is not int and type(value) is not bool:
            return False
        return append_int(row, value, column)

    cdef bint append_array(self, row_t *row, Py_ssize_t k, object array) except -1:
        """Append a native array; return False for others."""
        cdef column_t *column = &self.columns[k]
        cdef Py_buffer view
        cdef uint8_t code
        cdef Py_ssize_t i
        try:
            PyObject_GetBuffer(array, &view, PyBUF_FULL_RO)
        except (BufferError, ValueError):  # a dtype without a format
            return False
        try:
            code = code_of(&view)
            if (
                code == 0
                or view.len == 0
                or not 0 < view.ndim <= <int> MAX_NDIM
                or (column.code != 0 and code != column.code)
            ):
                return False
            if column.shaped:
                shape = <tuple> self.shapes[k]
                if len(shape) != view.ndim:
                    return False
                for i in range(view.ndim):
                    if <Py_ssize_t> shape[i] != view.shape[i]:
                        return False
            if column.code == 0:
                append(row, &code, 1)
            if not column.shaped:
                append_shape(row, &view)
            reserve(row, view.len)
            if PyBuffer_IsContiguous(&view, c'C'):
                memcpy(row.data + row.used, view.buf, view.len)
            else:
                PyBuffer_ToContiguous(row.data + row.used, &view, view.len, c'C')
            row.used += view.len
        finally:
            PyBuffer_Release(&view)
        return True

    cdef int append_other(self, row_t *row, Py_ssize_t k, object value) except -1:
        """Append a value by the column's Python function."""
        try:
            data = self.encoders[k](value)
            if not PyBytes_Check(data):
                raise TypeError(f"expected bytes, got {type(data).__name__}")
        except Exception as error:
            error.add_note(f"encoding column {self.names[k]!r}")
            raise
        return append_bytes(row, data)


cdef inline void store(uint8_t *at, uint32_t value) noexcept nogil:
    """Store a little-endian integer of 32 bits."""
    at[0] = <uint8_t> value
    at[1] = <uint8_t> (value >> 8)
    at[2] = <uint8_t> (value >> 16)
    at[3] = <uint8_t> (value >> 24)
