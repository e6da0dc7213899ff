"""Encoder of samples to msgpack payloads, arrays as npy or compact in a bin."""

cimport cython
from cpython.buffer cimport (
    PyBUF_SIMPLE,
    PyBuffer_Release,
    PyObject_CheckBuffer,
    PyObject_GetBuffer,
)
from cpython.bytes cimport (
    PyBytes_AS_STRING,
    PyBytes_CheckExact,
    PyBytes_FromStringAndSize,
    PyBytes_GET_SIZE,
)
from cpython.dict cimport PyDict_CheckExact, PyDict_Size
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.list cimport PyList_CheckExact
from cpython.long cimport (
    PyLong_AsLongLongAndOverflow,
    PyLong_AsUnsignedLongLong,
    PyLong_CheckExact,
)
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.tuple cimport PyTuple_CheckExact
from cpython.unicode cimport PyUnicode_Check, PyUnicode_CheckExact
from libc.stdint cimport SIZE_MAX, int64_t, uint8_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from fastshard._core.dataset.npy cimport has_plain_data, stored_t
from fastshard._core.dataset.shape cimport MAX_DIMENSIONS, shape_t
from fastshard._core.typed.arrays cimport ArrayField, agrees

from fastshard.errors import SchemaError


cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(object text)
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL


cdef enum:
    ALIGNMENT = 64      # bytes from the payload's start that an array's data begins at
    MAX_DEPTH = 511     # of containers, as other writers of msgpack have it
    SMALLEST = 256      # bytes of a buffer
    FEWEST_HEADERS = 8
    NIL = 0xC0
    FALSE = 0xC2
    TRUE = 0xC3
    BIN = 0xC4
    FLOAT64 = 0xCB
    UINT = 0xCC
    INT = 0xD0
    STR = 0xD9
    ARRAY16 = 0xDC
    MAP16 = 0xDE


cdef enum:              # kinds of values
    NIL_BIT = 1
    BOOL_BIT = 2
    INT_BIT = 4
    FLOAT_BIT = 8
    STR_BIT = 16
    BIN_BIT = 32
    OTHER_BIT = 64


cdef dict KIND_BITS = {
    "none": NIL_BIT,
    "bool": BOOL_BIT,
    "int": INT_BIT,
    "float": FLOAT_BIT | INT_BIT,
    "str": STR_BIT,
    "bytes": BIN_BIT,
    "array": BIN_BIT,
}
cdef uint64_t MAX_SIZE = 0xFFFFFFFF    # bytes of a field, entries of a container
cdef bytes NPY_MAGIC = b"\x93NUMPY"


cdef struct payload_t:
    uint8_t *data       # owned
    size_t used
    size_t room


cdef uint8_t *make_room(payload_t *out, size_t size) except NULL:
    """Return the address of `size` more bytes; `used` already counts them."""
    cdef size_t room = out.room
    cdef void *data
    if size > room - out.used:
        if size > SIZE_MAX // 4 - out.used:
            raise MemoryError
        while room - out.used < size:
            room = room + room // 2 + SMALLEST
        data = PyMem_Realloc(out.data, room)
        if data == NULL:
            raise MemoryError
        out.data = <uint8_t *> data
        out.room = room
    out.used += size
    return out.data + out.used - size


cdef int put(payload_t *out, const void *data, size_t size) except -1:
    cdef uint8_t *at = make_room(out, size)
    if size:                       # else there may be no memory
        memcpy(at, data, size)
    return 0


cdef inline void store(uint8_t *at, uint64_t value, int width) noexcept nogil:
    """Store a big-endian integer."""
    cdef int i
    for i in range(width - 1, -1, -1):
        at[i] = <uint8_t> value
        value >>= 8


cdef int put_number(
    payload_t *out, uint8_t lead, uint64_t value, int width
) except -1:
    """Append a type's byte and a big-endian integer."""
    cdef uint8_t *at = make_room(out, 1 + width)
    at[0] = lead
    store(at + 1, value, width)
    return 0


cdef int put_byte(payload_t *out, uint8_t value) except -1:
    make_room(out, 1)[0] = value
    return 0


cdef inline int width_of(uint64_t value) noexcept nogil:
    """Return the logarithm of the least number of bytes, 1, 2, 4 or 8."""
    return (value >= 1 << 8) + (value >= 1 << 16) + (value >> 32 != 0)


cdef inline uint8_t kind_bit(uint8_t lead) noexcept nogil:
    """Return the bit of an encoded value's kind, by its first byte."""
    if lead < 0x80 or lead >= 0xE0 or UINT <= lead < STR:
        return INT_BIT
    if 0xA0 <= lead < NIL or STR <= lead < ARRAY16:
        return STR_BIT
    if lead == NIL:
        return NIL_BIT
    if lead == FALSE or lead == TRUE:
        return BOOL_BIT
    if BIN <= lead <= BIN + 2:
        return BIN_BIT
    return FLOAT_BIT if lead == FLOAT64 else OTHER_BIT


cdef int allowed_kinds(str declared):
    """Return the bits of a field's allowed kinds; all for one that is not plain."""
    if declared is None:
        return 0xFF
    return (
        KIND_BITS[declared.removesuffix("?")] | (NIL_BIT if "?" in declared else 0)
    )


cdef int put_int(payload_t *out, object number) except -1:
    cdef int overflow = 0
    cdef int64_t value = PyLong_AsLongLongAndOverflow(number, &overflow)
    cdef uint64_t large
    cdef int k
    if overflow > 0:
        try:
            large = PyLong_AsUnsignedLongLong(number)
        except OverflowError:
            overflow = -1
        else:
            return put_number(out, UINT + 3, large, 8)
    if overflow:
        raise OverflowError(
            f"an int must be -2**63 to 2**64 - 1, got one of {number.bit_length()} bits"
        )
    if value >= 0:
        if value < 128:
            return put_byte(out, <uint8_t> value)
        k = width_of(<uint64_t> value)
        return put_number(out, UINT + k, <uint64_t> value, 1 << k)
    if value >= -32:
        return put_byte(out, <uint8_t> value)
    k = (value < -128) + (value < -(1 << 15)) + (value < -(1LL << 31))
    return put_number(out, INT + k, <uint64_t> value, 1 << k)


cdef int put_float(payload_t *out, double value) except -1:
    cdef uint64_t bits
    memcpy(&bits, &value, 8)
    return put_number(out, FLOAT64, bits, 8)


cdef int put_size(payload_t *out, uint8_t lead, uint64_t size) except -1:
    """Append the head of a bin or str: `lead` is the type's byte of 8 bits."""
    cdef int k
    if size > MAX_SIZE:
        raise ValueError(f"a value has less than 4 GiB in msgpack, got {size:,} bytes")
    k = width_of(size)
    return put_number(out, lead + k, size, 1 << k)


cdef int put_text(payload_t *out, object text) except -1:
    cdef Py_ssize_t size
    cdef const char *data
    if PyUnicode_IS_ASCII(text):
        encoded = None
        data = PyUnicode_AsUTF8AndSize(text, &size)
    else:                          # the text would keep its UTF-8
        encoded = (<str> text).encode("utf-8")
        data = PyBytes_AS_STRING(encoded)
        size = PyBytes_GET_SIZE(encoded)
    if size < 32:
        put_byte(out, <uint8_t> (0xA0 | size))
    else:
        put_size(out, STR, size)
    return put(out, data, size)


cdef int put_count(
    payload_t *out, uint8_t fixed, uint8_t lead, uint64_t count
) except -1:
    """Append the head of an array or map: `lead` is the type's byte of 16 bits."""
    if count < 16:
        return put_byte(out, <uint8_t> (fixed | count))
    if count > MAX_SIZE:
        raise ValueError(f"msgpack holds less than 2**32 entries, got {count:,}")
    if count < 1 << 16:
        return put_number(out, lead, count, 2)
    return put_number(out, lead + 1, count, 4)


cdef int put_buffer(payload_t *out, object value) except -1:
    """Append a bin of a contiguous buffer."""
    cdef Py_buffer view
    PyObject_GetBuffer(value, &view, PyBUF_SIMPLE)
    try:
        put_size(out, BIN, view.len)
        put(out, view.buf, view.len)
    finally:
        PyBuffer_Release(&view)
    return 0


@cython.final
cdef class ArrayHeader:
    """Header of arrays of one dtype and shape, immutable."""

    cdef object dtype   # keeps its address
    cdef shape_t shape
    cdef bytes text     # of npy without padding and newline, or of a compact array
    cdef int version    # of npy

    cdef bint fits(self, const stored_t *stored) noexcept:
        cdef size_t size = stored.dimensions * sizeof(Py_ssize_t)
        return (
            <const void *> self.dtype == stored.dtype
            and self.shape.dimensions == stored.dimensions
            and self.shape.fortran == stored.fortran
            # Without dimensions `lengths` is NULL, which memcmp must not get.
            and (size == 0 or memcmp(self.shape.lengths, stored.lengths, size) == 0)
        )


cdef ArrayHeader make_header(object array, const stored_t *stored, object describe):
    cdef ArrayHeader header = ArrayHeader.__new__(ArrayHeader)
    if stored.dimensions > MAX_DIMENSIONS:
        raise ValueError(f"expected at most {MAX_DIMENSIONS} dimensions")
    header.dtype = array.dtype
    header.shape.dimensions = stored.dimensions
    header.shape.fortran = stored.fortran
    if stored.dimensions > 0:      # NULL otherwise
        memcpy(
            header.shape.lengths, stored.lengths,
            stored.dimensions * sizeof(Py_ssize_t),
        )
    header.version, header.text = describe(array, bool(stored.fortran))
    return header


cdef int put_npy(
    payload_t *out, ArrayHeader header, const stored_t *stored
) except -1:
    """Append a bin of an npy array; its data begin at a multiple of 64 bytes."""
    cdef size_t text = PyBytes_GET_SIZE(header.text)
    cdef size_t lead = 10 if header.version == 1 else 12    # bytes before the text
    cdef size_t head, padding = 0
    cdef uint64_t size = 0
    cdef uint8_t *at
    cdef int k, i
    for k in range(3):             # the head of a bin of 8, 16 or 32 bits
        head = 1 + (1 << k) + lead + text + 1
        padding = (ALIGNMENT - (out.used + head) % ALIGNMENT) % ALIGNMENT
        size = lead + text + 1 + padding + stored.nbytes
        if stored.nbytes <= MAX_SIZE and k >= width_of(size):
            break
    else:
        raise ValueError(
            f"a value has less than 4 GiB in msgpack, got {stored.nbytes:,} bytes"
        )
    put_number(out, BIN + k, size, 1 << k)
    at = make_room(out, lead + text + padding + 1)
    memcpy(at, PyBytes_AS_STRING(NPY_MAGIC), 6)
    at[6] = <uint8_t> header.version
    at[7] = 0
    for i in range(<int> lead - 8):    # little-endian
        at[8 + i] = <uint8_t> ((text + padding + 1) >> (8 * i))
    memcpy(at + lead, PyBytes_AS_STRING(header.text), text)
    memset(at + lead + text, c' ', padding)
    at[lead + text + padding] = c'\n'
    return put(out, stored.at, stored.nbytes)


cdef int put_compact(
    payload_t *out, ArrayHeader header, const stored_t *stored
) except -1:
    put_size(out, BIN, PyBytes_GET_SIZE(header.text) + stored.nbytes)
    put(out, PyBytes_AS_STRING(header.text), PyBytes_GET_SIZE(header.text))
    return put(out, stored.at, stored.nbytes)


@cython.final
cdef class PayloadEncoder:
    """Encoder of samples to payloads: msgpack maps of fields.

    Arrays in C order, or of npy in Fortran order, need no call of `convert`.
    """

    cdef tuple names, keys
    cdef frozenset own
    cdef dict dtypes
    cdef list expected  # of `dtypes`: a dtype, a scalar type or None by field
    cdef object convert, describe
    cdef bint compact
    cdef dict kinds
    cdef bytes allowed  # kinds of values by field, as bits of `kind_bit`
    # Of the last array of each field, by its place, and of those of nested objects.
    cdef list headers
    cdef size_t last_size

    def __cinit__(
        self, names, convert not None, describe not None, bint compact, own=(),
        kinds=(), dtypes=None,
    ):
        self.names = tuple(names)
        self.kinds = dict(kinds)
        self.allowed = bytes(allowed_kinds(self.kinds.get(name)) for name in self.names)
        self.own = frozenset(own)
        self.keys = tuple(encode_key(name) for name in self.names)
        self.convert = convert
        self.describe = describe
        self.compact = compact
        self.headers = [None] * (len(self.names) + <Py_ssize_t> FEWEST_HEADERS)
        self.dtypes = dict(dtypes or {})
        self.expected = [
            ArrayField(self.dtypes.get(name)).expected for name in self.names
        ]

    def encode(self, sample):
        """Return the payload of an object's attributes."""
        cdef payload_t out
        cdef Py_ssize_t i
        cdef bytes key
        cdef size_t start
        cdef const uint8_t *allowed = <const uint8_t *> PyBytes_AS_STRING(self.allowed)
        self.begin(&out)
        try:
            put_count(&out, 0x80, MAP16, len(self.names))
            for i in range(len(self.names)):
                value = getattr(sample, self.names[i])
                key = <bytes> self.keys[i]
                put(&out, PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))
                start = out.used
                self.put_field(&out, self.names[i], value, i)
                if not allowed[i] & kind_bit(out.data[start]):
                    self.refuse(self.names[i], value)
            return self.end(&out)
        finally:
            PyMem_Free(out.data)

    def encode_map(self, dict values not None):
        """Return the payload of values by field."""
        cdef payload_t out
        cdef Py_ssize_t i = 0
        self.begin(&out)
        try:
            put_count(&out, 0x80, MAP16, PyDict_Size(values))
            for name, value in values.items():
                put_key(&out, name)
                self.put_field(&out, name, value, self.later_slot(i))
                i += 1
            return self.end(&out)
        finally:
            PyMem_Free(out.data)

    cdef object refuse(self, str name, object value):
        """Raise TypeError for a value that readers of the class refuse."""
        kind = self.kinds[name]
        declared = kind.removesuffix("?") + (" or None" if kind.endswith("?") else "")
        if kind.startswith("none"):
            declared = "None"
        raise TypeError(
            f"field {name!r}: cannot store {type(value).__name__}, it is declared "
            f"{declared}"
        )

    cdef int begin(self, payload_t *out) except -1:
        out.data = NULL
        out.used = out.room = 0
        make_room(out, max(self.last_size, <size_t> SMALLEST))
        out.used = 0
        return 0

    cdef object end(self, payload_t *out):
        self.last_size = out.used
        return PyBytes_FromStringAndSize(<char *> out.data, out.used)

    cdef int put_field(
        self, payload_t *out, object name, object value, Py_ssize_t slot
    ) except -1:
        """Append a field's value; errors name the field."""
        try:
            if self.own and name in self.own and value is not None:
                if not PyBytes_CheckExact(value):
                    value = self.convert(value, name)
            if not self.put_plain(out, value, 1):
                self.put_other(out, name, value, 1, slot)
        except SchemaError as error:
            raise SchemaError(error.reason, "", error.offset, field=name) from None
        except (TypeError, ValueError, OverflowError) as error:
            kind = ValueError if isinstance(error, UnicodeError) else type(error)
            raise kind(f"field {name!r}: {error}") from error
        return 0

    cdef bint put_plain(self, payload_t *out, object value, int depth) except -1:
        """Append a value of a plain type; return False for others."""
        if PyUnicode_CheckExact(value):
            put_text(out, value)
        elif value is None:
            put_byte(out, NIL)
        elif value is True:
            put_byte(out, TRUE)
        elif value is False:
            put_byte(out, FALSE)
        elif PyLong_CheckExact(value):
            put_int(out, value)
        elif PyFloat_CheckExact(value):
            put_float(out, PyFloat_AS_DOUBLE(value))
        elif PyBytes_CheckExact(value):
            put_size(out, BIN, PyBytes_GET_SIZE(value))
            put(out, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
        elif PyList_CheckExact(value) or PyTuple_CheckExact(value):
            self.put_list(out, value, depth)
        elif PyDict_CheckExact(value):
            self.put_map(out, value, depth, False)
        else:
            return False
        return True

    cdef int put_other(
        self, payload_t *out, object name, object value, int depth, Py_ssize_t slot
    ) except -1:
        """Append an array, or a value that `convert` makes plain.

        `slot` is negative where arrays are not allowed.
        """
        if slot >= 0 and self.put_array(out, value, slot):
            return 0
        value = self.convert(value, name)
        if PyTuple_CheckExact(value) and len(<tuple> value) == 1:
            return self.put_map(out, (<tuple> value)[0], depth, True)
        if self.put_plain(out, value, depth):
            return 0
        if slot >= 0 and self.put_array(out, value, slot):
            return 0
        if not PyObject_CheckBuffer(value):
            raise TypeError(f"cannot store {type(value).__name__}")
        return put_buffer(out, value)

    cdef bint put_array(
        self, payload_t *out, object array, Py_ssize_t slot
    ) except -1:
        """Append an array; return False for other objects and strided arrays."""
        cdef stored_t stored
        cdef ArrayHeader header
        if not has_plain_data(array, &stored):
            return False
        if self.compact and (stored.fortran or array.dtype.names is not None):
            self.check_dtype(out, array, slot)
            return False
        header = self.headers[slot]
        if header is None or not header.fits(&stored):
            header = make_header(array, &stored, self.describe)
            if header.version < 0:
                return False
            self.check_dtype(out, array, slot)
            if array.dtype.names is None:    # else the dtype is mutable
                self.headers[slot] = header
        if header.version == 0:
            put_compact(out, header, &stored)
        else:
            put_npy(out, header, &stored)
        return True

    cdef int check_dtype(
        self, payload_t *out, object array, Py_ssize_t slot
    ) except -1:
        """Raise SchemaError for an array of another dtype than the field's."""
        if slot >= len(self.expected):
            return 0
        expected = self.expected[slot]
        if expected is not None and not agrees(array.dtype, expected):
            if isinstance(expected, type):
                expected = expected.__name__
            raise SchemaError(
                f"array of {array.dtype} in place of array of {expected}", "", out.used
            )
        return 0

    cdef inline Py_ssize_t later_slot(self, Py_ssize_t place) noexcept:
        """Return a slot for an array outside of the fields of `encode`."""
        return len(self.names) + place % <Py_ssize_t> FEWEST_HEADERS

    cdef int put_list(self, payload_t *out, object values, int depth) except -1:
        cdef Py_ssize_t count = len(values), done = 0
        check_depth(depth)
        put_count(out, 0x90, ARRAY16, count)
        for value in values:
            if not self.put_plain(out, value, depth + 1):
                self.put_other(out, None, value, depth + 1, -1)
            done += 1
        if done != count:
            raise RuntimeError("a list changed while it was encoded")
        return 0

    cdef int put_map(
        self, payload_t *out, dict values, int depth, bint arrays
    ) except -1:
        """Append a dict; `arrays`: it has an object's fields, which may be arrays."""
        cdef Py_ssize_t count = PyDict_Size(values), done = 0
        check_depth(depth)
        put_count(out, 0x80, MAP16, count)
        for key, value in values.items():
            put_key(out, key)
            if not self.put_plain(out, value, depth + 1):
                self.put_other(
                    out, key if arrays else None, value, depth + 1,
                    self.later_slot(done) if arrays else -1,
                )
            done += 1
        if done != count:
            raise RuntimeError("a dict changed while it was encoded")
        return 0

    def __reduce__(self):
        return PayloadEncoder, (
            self.names, self.convert, self.describe, self.compact, self.own,
            self.kinds, self.dtypes,
        )


cdef int check_depth(int depth) except -1:
    if depth > MAX_DEPTH:
        raise ValueError(f"nested deeper than {<int> MAX_DEPTH} lists and maps")
    return 0


cdef int put_key(payload_t *out, object key) except -1:
    if not PyUnicode_Check(key):
        raise TypeError(f"keys of a map must be str, got {type(key).__name__} {key!r}")
    return put_text(out, key)


cdef bytes encode_key(object name):
    """Return a field's name as msgpack."""
    cdef payload_t out
    out.data = NULL
    out.used = out.room = 0
    make_room(&out, SMALLEST)
    out.used = 0
    try:
        put_key(&out, name)
        return PyBytes_FromStringAndSize(<char *> out.data, out.used)
    finally:
        PyMem_Free(out.data)
