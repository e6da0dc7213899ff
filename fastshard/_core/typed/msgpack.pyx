"""Msgpack payloads: a bounded walk, fields by name, untyped values.

A payload is one map whose keys are str. The walk needs no GIL and no recursion, makes
no objects, and reads no byte twice for a check. Accepted values are decoded here
(scalars) or by msgspec (containers).
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.long cimport PyLong_FromLongLong, PyLong_FromUnsignedLongLong
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.buffer cimport PyBUF_READ, PyBuffer_Release
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from fastshard._core.buffers cimport bytes_of
from fastshard._core.text cimport decode_text

from fastshard.errors import FormatError, MissingLibraryError

cdef tuple FAULTS = (
    "",
    "a msgpack value is cut off",
    "a msgpack container claims more entries than there are bytes",
    "0xc1 begins no msgpack value",
    f"msgpack containers are nested deeper than {MAX_DEPTH}",
    "the payload is not a msgpack map",
    "a key of the map is not a str",
    "there are bytes after the map",
)
cdef tuple KINDS = (
    "None", "bool", "int", "float", "str", "bytes", "list", "dict", "an extension type"
)
cdef object decode_container = None  # of msgspec


# The walk

cdef inline int read_head(
    const uint8_t *payload, uint64_t size, uint64_t at, value_t *found, uint64_t *count
) noexcept nogil:
    """Read the head of a value; `count` is the number of values in a container.

    A scalar, str, bin or ext is then complete; a container has no size yet.
    """
    cdef uint8_t lead
    cdef int width = 0             # bytes of the length, or of the number
    cdef uint64_t left
    found.at = at
    found.flags = 0
    count[0] = 0
    if at >= size:
        return FAULT_CUT
    lead = payload[at]
    left = size - at - 1
    found.start = at + 1
    found.nbytes = 0
    if lead < 0x80 or lead >= 0xe0:  # fixint
        found.kind = VALUE_INT
        found.size = 1
        return 0
    if lead >= 0xa0 and lead < 0xc0:
        found.kind = VALUE_STR
        found.nbytes = lead & 0x1f
    elif lead < 0xa0:
        found.kind = VALUE_LIST if lead >= 0x90 else VALUE_MAP
        count[0] = lead & 0xf
        if found.kind == VALUE_MAP:
            count[0] *= 2
    elif lead == 0xc0:
        found.kind = VALUE_NIL
    elif lead == 0xc1:
        return FAULT_NOT_MSGPACK
    elif lead <= 0xc3:
        found.kind = VALUE_BOOL
    elif lead <= 0xc6:             # bin 8, 16, 32
        found.kind = VALUE_BIN
        width = 1 << (lead - 0xc4)
    elif lead <= 0xc9:             # ext 8, 16, 32
        found.kind = VALUE_EXT
        width = 1 << (lead - 0xc7)
    elif lead <= 0xcb:
        found.kind = VALUE_FLOAT
        found.nbytes = 4 if lead == 0xca else 8
    elif lead <= 0xd3:             # uint 8 to 64, int 8 to 64
        found.kind = VALUE_INT
        found.nbytes = 1 << (lead & 3)
    elif lead <= 0xd8:             # fixext 1 to 16, behind a byte of type
        found.kind = VALUE_EXT
        found.nbytes = 1 << (lead - 0xd4)
    elif lead <= 0xdb:             # str 8, 16, 32
        found.kind = VALUE_STR
        width = 1 << (lead - 0xd9)
    else:                          # array 16, 32, map 16, 32
        found.kind = VALUE_LIST if lead <= 0xdd else VALUE_MAP
        width = 4 if lead & 1 else 2
    if width > 0:
        if <uint64_t> width > left:
            return FAULT_CUT
        found.nbytes = load_big(payload + at + 1, width)
        found.start += width
        left -= width
    if found.kind == VALUE_LIST or found.kind == VALUE_MAP:
        if width > 0:
            count[0] = found.nbytes
            found.nbytes = 0
            if found.kind == VALUE_MAP:
                count[0] *= 2
        return FAULT_TOO_MANY if count[0] > left else 0  # a value has a byte at least
    if found.kind == VALUE_EXT:
        found.flags = HAS_EXT
        if left == 0:
            return FAULT_CUT
        found.start += 1           # the type
        left -= 1
    if found.nbytes > left:
        return FAULT_CUT
    found.size = found.start - at + found.nbytes
    return 0


cdef int read_entries(
    const uint8_t *payload, uint64_t size, uint64_t count, value_t *found
) noexcept nogil:
    """Walk the entries of a container, of which the head is read."""
    cdef uint64_t left[MAX_DEPTH]  # values to come
    cdef bint is_map[MAX_DEPTH]
    cdef int depth = 0
    cdef uint64_t at = found.start
    cdef value_t value
    cdef int fault
    left[0] = count
    is_map[0] = found.kind == VALUE_MAP
    while True:
        while left[depth] == 0:
            if depth == 0:
                found.size = at - found.at
                found.nbytes = at - found.start
                return 0
            depth -= 1
        fault = read_head(payload, size, at, &value, &count)
        if fault != 0:
            found.at = at
            return fault
        # Keys are the values of which an even number is left.
        if is_map[depth] and left[depth] % 2 == 0 and value.kind != VALUE_STR:
            found.flags |= HAS_ODD_KEY
        found.flags |= value.flags
        left[depth] -= 1
        if value.kind == VALUE_LIST or value.kind == VALUE_MAP:
            if depth == MAX_DEPTH - 1:
                found.at = at
                return FAULT_TOO_DEEP
            depth += 1
            left[depth] = count
            is_map[depth] = value.kind == VALUE_MAP
            at = value.start
        else:
            at = value.start + value.nbytes


cdef int read_value(
    const uint8_t *payload, uint64_t size, uint64_t at, value_t *found
) noexcept nogil:
    """Read the whole value at a byte of a payload.

    Returns 0, or a fault, of which `found.at` is the byte.
    """
    cdef uint64_t count
    cdef int fault = read_head(payload, size, at, found, &count)
    if fault != 0:
        return fault
    if found.kind == VALUE_LIST or found.kind == VALUE_MAP:
        return read_entries(payload, size, count, found)
    return 0


cdef int open_map(
    const uint8_t *payload, uint64_t size, uint64_t *count, value_t *found
) noexcept nogil:
    """Read the head of the payload's map: `count` fields from `found.start` on."""
    cdef int fault = read_head(payload, size, 0, found, count)
    if fault != 0:
        return fault
    if found.kind != VALUE_MAP:
        return FAULT_NO_MAP
    count[0] //= 2
    return 0


cdef int read_field(
    const uint8_t *payload, uint64_t size, uint64_t at, value_t *name, value_t *found
) noexcept nogil:
    """Read the name and the value at a byte of the payload's map."""
    cdef uint64_t count
    cdef int fault = read_head(payload, size, at, name, &count)
    if fault != 0:
        found.at = at
        return fault
    if name.kind != VALUE_STR:
        found.at = at
        return FAULT_NO_STR_KEY
    return read_value(payload, size, at + name.size, found)


cdef int find_field(
    const uint8_t *payload, uint64_t size, const char *name, Py_ssize_t length,
    value_t *found, Py_ssize_t *place,
) noexcept nogil:
    """Find a field of the payload's map by its UTF-8 name, and check the map.

    Of several fields of this name the last counts. `place` is the field's number in
    the map, -1 if there is none.
    """
    cdef uint64_t count, k
    cdef uint64_t at
    cdef value_t key, value
    cdef int fault = open_map(payload, size, &count, &value)
    place[0] = -1
    if fault != 0:
        found[0] = value
        return fault
    at = value.start
    for k in range(count):
        fault = read_field(payload, size, at, &key, &value)
        if fault != 0:
            found[0] = value
            return fault
        at = value.at + value.size
        if key.nbytes == <uint64_t> length and (
            memcmp(payload + key.start, name, length) == 0
        ):
            found[0] = value
            place[0] = <Py_ssize_t> k
    if at != size:
        found.at = at
        return FAULT_TRAILING
    return 0


cdef object make_fault(int fault, uint64_t at):
    """Return the error of a fault at a byte of a payload; the caller adds the path."""
    return FormatError(FAULTS[fault], "", at)


# Values

cdef str kind_name(int kind):
    """Return the Python type of a kind of value, for error messages."""
    return KINDS[kind]


cdef list field_names(const uint8_t *payload, uint64_t size):
    """Return the names of the fields in their order, each once."""
    cdef uint64_t count, k
    cdef uint64_t at
    cdef value_t key, value
    cdef int fault = open_map(payload, size, &count, &value)
    cdef dict names = {}
    if fault != 0:
        raise make_fault(fault, value.at)
    at = value.start
    for k in range(count):
        fault = read_field(payload, size, at, &key, &value)
        if fault != 0:
            raise make_fault(fault, value.at)
        names[text_of(payload, &key)] = None
        at = value.at + value.size
    if at != size:
        raise make_fault(FAULT_TRAILING, at)
    return list(names)


cdef object text_of(const uint8_t *payload, const value_t *value):
    try:
        return decode_text(payload + value.start, value.nbytes)
    except UnicodeDecodeError as error:
        raise FormatError(
            f"a str is not UTF-8: {error.reason}", "", value.start + error.start
        ) from None


cdef object scalar_of(const uint8_t *payload, const value_t *value):
    """Return the object of a value that is neither a container nor an extension."""
    cdef const uint8_t *at = payload + value.start
    cdef uint64_t bits
    cdef uint32_t half
    cdef double number
    cdef float single
    if value.kind == VALUE_INT:
        return int_of(payload, value)
    if value.kind == VALUE_STR:
        return text_of(payload, value)
    if value.kind == VALUE_BIN:
        return PyBytes_FromStringAndSize(<const char *> at, <Py_ssize_t> value.nbytes)
    if value.kind == VALUE_FLOAT:
        if value.nbytes == 8:
            bits = load_big(at, 8)
            memcpy(&number, &bits, 8)
            return number
        half = <uint32_t> load_big(at, 4)
        memcpy(&single, &half, 4)
        return <double> single
    if value.kind == VALUE_BOOL:
        return (at - 1)[0] == 0xc3
    return None


cdef object int_of(const uint8_t *payload, const value_t *value):
    cdef uint8_t lead = payload[value.at]
    cdef uint64_t bits
    if value.nbytes == 0:
        return PyLong_FromLongLong(<int8_t> lead)
    bits = load_big(payload + value.start, <int> value.nbytes)
    if lead < 0xd0:
        return PyLong_FromUnsignedLongLong(bits)
    if value.nbytes == 1:
        return PyLong_FromLongLong(<int8_t> bits)
    if value.nbytes == 2:
        return PyLong_FromLongLong(<int16_t> bits)
    if value.nbytes == 4:
        return PyLong_FromLongLong(<int32_t> bits)
    return PyLong_FromLongLong(<int64_t> bits)


cdef object unpack(
    const uint8_t *payload, uint64_t size, const value_t *value, object owner
):
    """Return the object of a value that `read_value` found; `owner` keeps the payload.

    A bin becomes bytes. Extension types are refused, also inside containers.
    """
    if value.flags & HAS_EXT:
        raise FormatError("an extension type, which samples have not", "", value.at)
    if value.kind != VALUE_LIST and value.kind != VALUE_MAP:
        return scalar_of(payload, value)
    if decode_container is None:
        load_msgspec()
    # Released before this returns: msgspec copies values decoded without a type.
    view = PyMemoryView_FromMemory(
        <char *> payload + value.at, <Py_ssize_t> value.size, PyBUF_READ
    )
    try:
        return decode_container(view)
    except (ValueError, TypeError, RecursionError) as error:
        raise FormatError(f"invalid msgpack: {error}", "", value.at) from None


cdef int load_msgspec() except -1:
    global decode_container
    try:
        import msgspec.msgpack
    except ImportError as error:
        raise MissingLibraryError(
            "msgspec is needed for typed samples: pip install 'fastshard[typed]' "
            f"({error})"
        ) from error
    decode_container = msgspec.msgpack.Decoder().decode
    return 0


def unpack_map(data not None):
    """Return the fields of a payload as a dict, decoded without a type."""
    cdef Py_buffer buffer
    cdef const uint8_t *payload = bytes_of(data, &buffer)
    cdef uint64_t size = <uint64_t> buffer.len
    cdef uint64_t at, count, k
    cdef value_t key, value
    cdef int fault
    cdef dict fields = {}
    try:
        fault = open_map(payload, size, &count, &value)
        at = value.start
        k = 0
        while fault == 0 and k < count:
            fault = read_field(payload, size, at, &key, &value)
            if fault == 0:
                at = value.at + value.size
                fields[text_of(payload, &key)] = unpack(payload, size, &value, data)
                k += 1
        if fault == 0 and at != size:
            fault = FAULT_TRAILING
            value.at = at
        if fault != 0:
            raise make_fault(fault, value.at)
        return fields
    finally:
        PyBuffer_Release(&buffer)


def extents_of_fields(data not None):
    """Return the fields of a payload without decoding them."""
    cdef Py_buffer buffer
    cdef const uint8_t *payload = bytes_of(data, &buffer)
    cdef uint64_t size = <uint64_t> buffer.len
    cdef value_t value
    cdef Py_ssize_t place
    cdef int fault
    fields = {}
    try:
        for name in field_names(payload, size):
            encoded = name.encode()
            fault = find_field(
                payload, size, encoded, len(encoded), &value, &place
            )
            if fault != 0:         # the bytes changed
                raise make_fault(fault, value.at)
            fields[name] = (
                KINDS[value.kind], value.at, value.size, value.start, value.nbytes
            )
        return fields
    finally:
        PyBuffer_Release(&buffer)
