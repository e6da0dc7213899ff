"""Bounded walk of msgpack values, without the GIL and without recursion."""

from libc.stdint cimport uint8_t, uint64_t


cdef enum:                         # kinds of values
    VALUE_NIL
    VALUE_BOOL
    VALUE_INT
    VALUE_FLOAT
    VALUE_STR
    VALUE_BIN
    VALUE_LIST
    VALUE_MAP
    VALUE_EXT

cdef enum:                         # contents of a container, at any depth
    HAS_EXT = 1
    HAS_ODD_KEY = 2                # a key that is not a str

cdef enum:
    MAX_DEPTH = 512                # containers in containers


cdef enum:                         # faults; 0: no fault
    FAULT_CUT = 1
    FAULT_TOO_MANY
    FAULT_NOT_MSGPACK
    FAULT_TOO_DEEP
    FAULT_NO_MAP
    FAULT_NO_STR_KEY
    FAULT_TRAILING


cdef struct value_t:               # bytes from the start of the payload
    int kind
    int flags                      # of a container, or HAS_EXT
    uint64_t at                    # the encoded value, head included
    uint64_t size
    uint64_t start                 # contents: of str, bin, ext; entries of a container
    uint64_t nbytes


# These return 0, or a fault; then `found.at` is the faulty byte: `make_fault`.
cdef int read_value(
    const uint8_t *payload, uint64_t size, uint64_t at, value_t *found
) noexcept nogil

cdef int open_map(
    const uint8_t *payload, uint64_t size, uint64_t *count, value_t *found
) noexcept nogil

cdef int read_field(
    const uint8_t *payload, uint64_t size, uint64_t at, value_t *name, value_t *found
) noexcept nogil

cdef int find_field(
    const uint8_t *payload, uint64_t size, const char *name, Py_ssize_t length,
    value_t *found, Py_ssize_t *place,
) noexcept nogil

cdef inline uint64_t load_big(const uint8_t *at, int width) noexcept nogil:
    """Return a big-endian number of 1, 2, 4 or 8 bytes."""
    if width == 1:
        return at[0]
    if width == 2:
        return <uint64_t> at[0] << 8 | at[1]
    if width == 4:
        return (
            <uint64_t> at[0] << 24 | <uint64_t> at[1] << 16
            | <uint64_t> at[2] << 8 | at[3]
        )
    return load_big(at, 4) << 32 | load_big(at + 4, 4)


cdef object make_fault(int fault, uint64_t at)
cdef str kind_name(int kind)
cdef list field_names(const uint8_t *payload, uint64_t size)
cdef object unpack(
    const uint8_t *payload, uint64_t size, const value_t *value, object owner
)
cdef object scalar_of(const uint8_t *payload, const value_t *value)
