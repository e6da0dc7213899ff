from libc.stdint cimport uint8_t, uint64_t

from fastshard._core.typed.msgpack cimport value_t


cdef class PayloadBuffer:
    cdef Py_buffer buffer


cdef struct name_t:                # of a field, or an alias
    const uint8_t *text            # UTF-8
    uint64_t size
    int slot
    int rank                       # 0: the name; the smallest that is there counts


cdef struct slot_t:                # a field of the class
    int kind
    bint optional
    bint has_default


cdef struct key_t:                 # a key of a payload as it is encoded
    uint64_t start                 # in `order_t.text`
    uint64_t size
    int slot                       # -1: the class has no such field


cdef struct order_t:               # keys of payloads, in their order
    int ready                      # set once, when the rest is
    uint64_t count
    key_t *keys
    uint8_t *text


cdef enum:
    MAX_ORDERS = 8                 # kept by a plan
    MISSING = -1                   # `value_t.kind` of a field that does not exist


cdef class TypePlan:
    cdef readonly object cls       # a class, of any metaclass
    cdef readonly tuple names
    cdef readonly bint strict
    cdef readonly bint post_init
    cdef object make               # ``make(cls, strict)`` returns this plan, or None
    cdef int width
    cdef int name_count
    cdef slot_t *slots
    cdef name_t *known             # the fields' names in their order, then aliases
    cdef order_t[MAX_ORDERS] orders  # append-only
    cdef int order_count
    cdef list encoded              # bytes that `known` refers to
    cdef list defaults             # a factory, or the value
    cdef list factories            # bool by field
    cdef list declared             # the type of each, for errors
    cdef list decoders             # callable, ArrayField or None by field
    cdef bint has_views            # values that refer to the payload's memory
    cdef bint is_frozen
    cdef int add_field(self, int k, object field) except -1
    cdef int add_names(self, tuple fields) except -1
    cdef int find_values(
        self, const uint8_t *payload, uint64_t size, value_t *found
    ) except -1
    cdef int search_values(
        self, const uint8_t *payload, uint64_t size, value_t *found, uint64_t *where
    ) except -1
    cdef int find_name(
        self, const uint8_t *text, uint64_t size, int first
    ) noexcept nogil
    cdef int keep_order(self, const uint8_t *payload, uint64_t size) except -1
    cdef bint read_order(
        self, const uint8_t *payload, uint64_t size, order_t *order
    ) noexcept
    cdef object decode(
        self, const uint8_t *at, uint64_t size, object owner, bint writable,
        bint copy, bint aligned,
    )
    cdef object make_object(
        self, const uint8_t *payload, uint64_t size, const value_t *found,
        object owner, bint writable, bint copy, bint aligned,
    )
    cdef object value_of(
        self, int k, const uint8_t *payload, uint64_t size, const value_t *value,
        object owner, bint writable, bint copy, bint aligned,
    )
    cdef object default_of(self, int k, const uint8_t *payload, uint64_t size)
    cdef object array_of(
        self, int k, const uint8_t *payload, const value_t *value, object owner,
        bint writable, bint copy, bint aligned,
    )
    cdef object object_of(
        self, int k, const uint8_t *payload, const value_t *value, object owner
    )
    cdef object name_field(self, int k, object error, uint64_t start)
    cdef object other_type(self, int k, uint64_t at, object stored)
    cdef object unknown_field(self, const uint8_t *payload, const value_t *name)


cdef class FieldMap:
    cdef dict data                 # all fields, or those decoded so far
    cdef object holder             # exporter that begins with the payload, or None
    cdef const uint8_t *payload    # NULL: `data` has all fields
    cdef uint64_t size
    cdef object samples            # which name the sample in errors, or None
    cdef Py_ssize_t position       # among them
    cdef object find(self, str name, value_t *found)
    cdef object decode_field(self, str name, object default)
    cdef object load(self)
    cdef list names(self)


cdef object make_map(
    object cls, const uint8_t *payload, uint64_t size, object owner, bint copy
)
