"""Plans of types: from a payload to an object of a class, at once or field by field.

A `TypePlan` knows names, kinds and defaults of a class's fields. Payloads of a dataset
mostly have the same keys in the same order: the orders met are kept, and a payload is
compared with them key by key. Any other payload is searched by name. A `FieldMap`
decodes a field of its payload when it is asked for.
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.bytes cimport (
    PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE,
)
from cpython.list cimport PyList_GET_ITEM
from cpython.memoryview cimport PyMemoryView_FromObject, PyMemoryView_GET_BUFFER
from cpython.object cimport PyObject, PyObject_GenericGetAttr, PyTypeObject
from cpython.pycapsule cimport PyCapsule_GetName, PyCapsule_GetPointer
from cpython.tuple cimport PyTuple_GET_ITEM
from cpython.unicode cimport PyUnicode_Check
from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy

from fastshard._core.io.source cimport MappedFile
from fastshard._core.platform cimport fs_is_set, fs_set
from fastshard._core.typed.msgpack cimport (
    FAULT_TRAILING, HAS_EXT, VALUE_BIN, VALUE_BOOL, VALUE_FLOAT, VALUE_INT, VALUE_NIL,
    VALUE_STR, field_names, find_field, kind_name, make_fault, open_map, read_field,
    read_value, scalar_of, unpack, value_t,
)

import sys
from collections.abc import Mapping

from fastshard.errors import FieldNotFoundError, FormatError, SchemaError

cdef extern from "Python.h":
    int set_generic "PyObject_GenericSetAttr" (
        object thing, object name, object value
    ) except -1
    int set_attribute "PyObject_SetAttr" (
        object thing, object name, object value
    ) except -1
    const char *utf8_of "PyUnicode_AsUTF8AndSize" (
        object text, Py_ssize_t *size
    ) except NULL

# `tp_new`, whose result is a new reference; the last argument may be NULL.
ctypedef object (*maker_t)(PyTypeObject *kind, tuple args, PyObject *kwargs)
ctypedef object (*array_maker_t)(
    object field, const uint8_t *at, uint64_t size, object owner, bint writable,
    bint copy, bint aligned,
)

cdef enum:
    INT = 0
    FLOAT
    BOOL
    STR
    BYTES
    NONE
    ARRAY
    OBJECT
    FEW_FIELDS = 32
    MAX_KEYS = 256                 # of an order that is kept
    MAX_TEXT = 8192                # bytes of its keys
    OTHER_ORDER = -1               # no fault: the keys are others
    NO_MEMORY = -2

cdef dict KINDS = {
    "int": INT, "float": FLOAT, "bool": BOOL, "str": STR, "bytes": BYTES,
    "none": NONE, "array": ARRAY, "object": OBJECT,
}
cdef int[6] EXPECTED               # kind of value, by kind of field
EXPECTED[:] = [
    VALUE_INT, VALUE_FLOAT, VALUE_BOOL, VALUE_STR, VALUE_BIN, VALUE_NIL
]
cdef tuple NOTHING = ()
cdef object ABSENT = object()
cdef tuple last_class = (None, frozenset())  # of a field map, and the names it has
cdef array_maker_t array_maker = NULL  # of arrays.pyx, which imports NumPy
cdef object arrays = None


cdef int load_arrays() except -1:
    """Import NumPy and the constructors of arrays."""
    global array_maker, arrays
    if arrays is None:
        from fastshard._core.typed import arrays as module

        maker = module.__pyx_capi__["make_field_array"]
        array_maker = <array_maker_t> PyCapsule_GetPointer(
            maker, PyCapsule_GetName(maker)
        )
        arrays = module
    return 0


@cython.final
@cython.no_gc
cdef class PayloadBuffer:
    """Exporter of a caller's buffer, held until the last view or array is deleted."""

    def __cinit__(self, exporter):
        PyObject_GetBuffer(exporter, &self.buffer, PyBUF_SIMPLE)

    def __dealloc__(self):
        PyBuffer_Release(&self.buffer)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(
            view, self, self.buffer.buf, self.buffer.len, self.buffer.readonly, flags
        )

    def __reduce__(self):
        raise TypeError("a PayloadBuffer does not pickle")


cdef object hold_payload(object data, const uint8_t **at, uint64_t *size):
    """Set the bytes of a payload; return their owner: bytes, or a PayloadBuffer."""
    cdef PayloadBuffer held
    if type(data) is bytes:
        at[0] = <const uint8_t *> PyBytes_AS_STRING(data)
        size[0] = <uint64_t> PyBytes_GET_SIZE(data)
        return data
    held = PayloadBuffer(data)
    at[0] = <const uint8_t *> held.buffer.buf
    size[0] = <uint64_t> held.buffer.len
    return held


cdef object view_of(object owner, const uint8_t *at, uint64_t size):
    """Return a memoryview of bytes of `owner`: a MappedFile or an exporter."""
    cdef const uint8_t *base
    if type(owner) is MappedFile:
        base = (<MappedFile> owner).base
        return (<MappedFile> owner).view(<uint64_t> (at - base), size)
    view = PyMemoryView_FromObject(owner)
    base = <const uint8_t *> PyMemoryView_GET_BUFFER(view).buf
    return view[at - base:at - base + <Py_ssize_t> size]


@cython.final
cdef class TypePlan:
    """Fields of a class, and how payloads become its objects."""

    def __cinit__(
        self, cls not None, fields, bint post_init=False, bint strict=False,
        make=None,
    ):
        fields = tuple(fields)
        if not isinstance(cls, type):
            raise TypeError(f"expected a class, got {type(cls).__name__}")
        self.cls = cls
        self.names = tuple([sys.intern(field.name) for field in fields])
        self.post_init = post_init
        self.strict = strict
        self.make = make
        self.width = len(fields)
        self.is_frozen = cls.__setattr__ is not object.__setattr__ and (
            getattr(getattr(cls, "__dataclass_params__", None), "frozen", False)
        )
        self.slots = <slot_t *> calloc(self.width + 1, sizeof(slot_t))
        if self.slots == NULL:
            raise MemoryError
        self.defaults, self.factories, self.decoders = [], [], []
        self.declared = []
        for k, field in enumerate(fields):
            self.add_field(k, field)
        self.add_names(fields)

    def __dealloc__(self):
        cdef int k
        for k in range(MAX_ORDERS):
            free_order(&self.orders[k])
        free(self.slots)
        free(self.known)

    def __reduce__(self):
        if self.make is None:
            raise TypeError("a TypePlan does not pickle; pickle the class")
        return self.make, (self.cls, bool(self.strict))

    def __repr__(self):
        return f"TypePlan({self.cls.__name__}; {', '.join(self.names)})"

    cdef int add_field(self, int k, object field) except -1:
        cdef slot_t *slot = &self.slots[k]
        if field.kind not in KINDS:
            raise ValueError(f"unknown kind {field.kind!r} of field {field.name!r}")
        slot.kind = KINDS[field.kind]
        slot.optional = field.optional
        slot.has_default = field.has_default or field.factory is not None
        self.factories.append(field.factory is not None)
        self.defaults.append(
            field.default if field.factory is None else field.factory
        )
        decoder = None
        if slot.kind == ARRAY:
            load_arrays()
            decoder = arrays.ArrayField(field.dtype)
        elif slot.kind == OBJECT:
            decoder = field.decode
            if not callable(decoder):
                raise TypeError(f"field {field.name!r} has no decoder")
        declared = field.kind
        if slot.kind == ARRAY:
            declared = "an array" if field.dtype is None else f"array of {field.dtype}"
        self.declared.append(f"{declared} or None" if slot.optional else declared)
        self.has_views = self.has_views or decoder is not None
        self.decoders.append(decoder)
        return 0

    cdef int add_names(self, tuple fields) except -1:
        """Fill `known`."""
        cdef Py_ssize_t i
        cdef name_t *name
        cdef bytes text
        every = [(field.name, k, 0) for k, field in enumerate(fields)]
        every += [
            (alias, k, rank)
            for k, field in enumerate(fields)
            for rank, alias in enumerate(field.aliases, 1)
        ]
        self.encoded = [spelled.encode() for spelled, _, _ in every]
        self.name_count = len(every)
        self.known = <name_t *> calloc(self.name_count + 1, sizeof(name_t))
        if self.known == NULL:
            raise MemoryError
        for i in range(self.name_count):
            name = &self.known[i]
            text = self.encoded[i]
            name.text = <const uint8_t *> <const char *> text
            name.size = len(text)
            name.slot, name.rank = every[i][1], every[i][2]
        return 0

    # From a payload to the values of fields

    cdef int find_values(
        self, const uint8_t *payload, uint64_t size, value_t *found
    ) except -1:
        """Find the value of each field and check the payload; `found` has `width`.

        A field that does not exist has the kind `MISSING`.
        """
        cdef int k
        cdef int fault = OTHER_ORDER
        cdef order_t *order
        cdef uint64_t at = 0
        for k in range(MAX_ORDERS):
            order = &self.orders[k]
            if not fs_is_set(&order.ready):
                break
            fault = match_order(order, payload, size, found, self.width, &at)
            if fault != OTHER_ORDER:
                break
        if fault == OTHER_ORDER:
            fault = self.search_values(payload, size, found, &at)
            if fault == 0:
                self.keep_order(payload, size)
        if fault == NO_MEMORY:
            raise MemoryError
        if fault != 0:
            raise make_fault(fault, at)
        return 0

    cdef int search_values(
        self, const uint8_t *payload, uint64_t size, value_t *found, uint64_t *where
    ) except -1:
        """Find the fields by name, for keys in any order; return a fault."""
        cdef uint64_t count, i
        cdef value_t name, value
        cdef int fault, k, next
        cdef int *ranks
        cdef uint64_t at
        fault = open_map(payload, size, &count, &value)
        if fault != 0:
            where[0] = value.at
            return fault
        ranks = <int *> malloc((self.width + 1) * sizeof(int))
        if ranks == NULL:
            return NO_MEMORY
        for k in range(self.width):
            found[k].kind = MISSING
        try:
            next = 0
            at = value.start
            for i in range(count):
                fault = read_field(payload, size, at, &name, &value)
                if fault != 0:
                    where[0] = value.at
                    return fault
                k = self.find_name(payload + name.start, name.nbytes, next)
                at = value.at + value.size
                if k < 0:
                    if self.strict:
                        raise self.unknown_field(payload, &name)
                    continue
                next = k + 1
                take_value(&self.known[k], &value, found, ranks)
        finally:
            free(ranks)
        if at != size:
            where[0] = at
            return FAULT_TRAILING
        return 0

    cdef int find_name(
        self, const uint8_t *text, uint64_t size, int first
    ) noexcept nogil:
        """Return the number in `known` of a name or an alias, or -1."""
        cdef int k
        if first < self.name_count and is_name(&self.known[first], text, size):
            return first
        for k in range(self.name_count):
            if is_name(&self.known[k], text, size):
                return k
        return -1

    cdef int keep_order(self, const uint8_t *payload, uint64_t size) except -1:
        """Keep the order of a payload's keys, if there is room."""
        cdef order_t order
        if self.order_count == MAX_ORDERS:
            return 0
        order.ready = 0
        order.keys = NULL
        order.text = NULL
        if not self.read_order(payload, size, &order):
            free_order(&order)
            return 0
        with cython.critical_section(self):
            if self.order_count < MAX_ORDERS:
                self.orders[self.order_count] = order
                fs_set(&self.orders[self.order_count].ready)
                self.order_count += 1
                order.keys = NULL
                order.text = NULL
        free_order(&order)
        return 0

    cdef bint read_order(
        self, const uint8_t *payload, uint64_t size, order_t *order
    ) noexcept:
        """Set the order of a payload's keys; False if it is not one to keep.

        Not kept are orders of many or long keys, and those in which a field occurs
        twice.
        """
        cdef value_t name, value
        cdef uint64_t at, i
        cdef uint64_t used = 0
        cdef int k
        cdef key_t *key
        if open_map(payload, size, &order.count, &value) != 0 or (
            order.count > MAX_KEYS
        ):
            return False
        order.keys = <key_t *> calloc(order.count + 1, sizeof(key_t))
        order.text = <uint8_t *> malloc(MAX_TEXT)
        if order.keys == NULL or order.text == NULL:
            return False
        at = value.start
        for i in range(order.count):
            key = &order.keys[i]
            if read_field(payload, size, at, &name, &value) != 0 or (
                name.size > MAX_TEXT - used
            ):
                return False
            memcpy(order.text + used, payload + name.at, name.size)
            key.start = used
            key.size = name.size
            k = self.find_name(
                order.text + used + (name.start - name.at), name.nbytes, <int> i
            )
            key.slot = -1 if k < 0 else self.known[k].slot
            if k >= 0 and has_slot(order, i, key.slot):
                return False
            used += name.size
            at = value.at + value.size
        return True

    # From values to an object

    cdef object decode(
        self, const uint8_t *at, uint64_t size, object owner, bint writable,
        bint copy, bint aligned,
    ):
        """Return the object of a payload."""
        cdef value_t few[FEW_FIELDS]
        cdef value_t *found = few
        if self.width > FEW_FIELDS:
            found = <value_t *> malloc(self.width * sizeof(value_t))
            if found == NULL:
                raise MemoryError
        try:
            self.find_values(at, size, found)
            return self.make_object(
                at, size, found, owner, writable, copy, aligned
            )
        finally:
            if found != few:
                free(found)

    cdef object make_object(
        self, const uint8_t *payload, uint64_t size, const value_t *found,
        object owner, bint writable, bint copy, bint aligned,
    ):
        cdef PyTypeObject *kind = <PyTypeObject *> self.cls
        cdef object made = (<maker_t> kind.tp_new)(kind, NOTHING, NULL)
        cdef int k
        if self.has_views and type(owner) is MappedFile:
            # One view of the payload, which all arrays have.
            owner = (<MappedFile> owner).raw_view(
                <uint64_t> (payload - (<MappedFile> owner).base), size
            )
        for k in range(self.width):
            value = self.value_of(
                k, payload, size, &found[k], owner, writable, copy, aligned
            )
            if self.is_frozen:
                set_generic(made, <object> PyTuple_GET_ITEM(self.names, k), value)
            else:
                set_attribute(made, <object> PyTuple_GET_ITEM(self.names, k), value)
        if self.post_init:
            made.__post_init__()
        return made

    cdef object value_of(
        self, int k, const uint8_t *payload, uint64_t size, const value_t *value,
        object owner, bint writable, bint copy, bint aligned,
    ):
        """Return the value of a field; raise SchemaError if it is of another type."""
        cdef slot_t *slot = &self.slots[k]
        if value.kind == MISSING:
            return self.default_of(k, payload, size)
        if value.kind == VALUE_NIL and slot.optional:
            return None
        if slot.kind == ARRAY:
            if value.kind == VALUE_BIN:
                return self.array_of(
                    k, payload, value, owner, writable, copy, aligned
                )
        elif slot.kind == OBJECT:
            return self.object_of(k, payload, value, owner)
        elif value.kind == EXPECTED[slot.kind]:
            try:
                return scalar_of(payload, value)
            except FormatError as error:  # of text
                raise self.name_field(k, error, 0) from None
        elif slot.kind == FLOAT and value.kind == VALUE_INT:
            return float(scalar_of(payload, value))
        raise self.other_type(k, value.at, kind_name(value.kind))

    cdef object default_of(self, int k, const uint8_t *payload, uint64_t size):
        if self.slots[k].has_default:
            default = self.defaults[k]
            return default() if self.factories[k] else default
        if self.slots[k].optional:
            return None
        names = field_names(payload, size)
        raise SchemaError(
            f"{self.cls.__name__} has a field {self.names[k]!r} without a default, "
            f"the payload only {', '.join(map(repr, names)) or 'none'}",
            "", 0, None, None, self.names[k],
        )

    cdef object array_of(
        self, int k, const uint8_t *payload, const value_t *value, object owner,
        bint writable, bint copy, bint aligned,
    ):
        cdef object field = <object> PyList_GET_ITEM(self.decoders, k)
        try:
            array = array_maker(
                field, payload + value.start, value.nbytes, owner, writable, copy,
                aligned,
            )
        except FormatError as error:
            raise self.name_field(k, error, value.start) from error.__cause__
        if array is None:
            data = (<const char *> payload + value.start)[:value.nbytes]
            stored = arrays.describe_dtype(data)
            raise self.other_type(k, value.at, f"an array of {stored}")
        return array

    cdef object object_of(
        self, int k, const uint8_t *payload, const value_t *value, object owner
    ):
        """Return a value that Python decodes."""
        if value.flags & HAS_EXT:
            raise self.name_field(
                k, FormatError("an extension type, which samples have not", "", 0),
                value.at,
            )
        try:
            return self.decoders[k](view_of(owner, payload + value.at, value.size))
        except FormatError as error:
            raise self.name_field(k, error, value.at) from error.__cause__
        except (ImportError, MemoryError):
            raise
        except Exception as error:
            reason = f"{error}" or type(error).__name__
            if is_broken(error):
                fault = FormatError(f"invalid msgpack: {reason}", "", value.at)
                raise self.name_field(k, fault, 0) from error
            raise SchemaError(
                f"{self.cls.__name__} declares another type: {reason}", "", value.at,
                None, None, self.names[k],
            ) from error

    # Errors

    cdef object name_field(self, int k, object error, uint64_t start):
        """Return an error of a value with the field, and its byte in the payload.

        An error inside a nested sample names the fields on the way: ``box.width``.
        """
        cdef str name = self.names[k]
        offset = start + error.offset
        if isinstance(error, SchemaError):
            if error.field is not None:
                name = f"{name}.{error.field}"
            return SchemaError(error.reason, "", offset, None, None, name)
        if error.member is not None:  # of a nested sample's `from_buffer`
            inner = error.member.removeprefix("field '").removesuffix("'")
            name = f"{name}.{inner}"
        return FormatError(error.reason, "", offset, name)

    cdef object other_type(self, int k, uint64_t at, object stored):
        declared = self.declared[k]
        return SchemaError(
            f"{self.cls.__name__} declares {declared}, the payload has {stored}",
            "", at, None, None, self.names[k],
        )

    cdef object unknown_field(self, const uint8_t *payload, const value_t *name):
        text = (<const char *> payload + name.start)[:name.nbytes].decode(
            "utf-8", "backslashreplace"
        )
        return SchemaError(
            f"{self.cls.__name__} is strict and has no field {text!r}", "", name.at,
            None, None, text,
        )

    # From buffers

    def from_buffer(self, data not None, bint copy=False, bint aligned=False):
        """Return the object of a payload."""
        cdef const uint8_t *at
        cdef uint64_t size
        cdef object owner = hold_payload(data, &at, &size)
        cdef bint writable = type(owner) is PayloadBuffer and not (
            (<PayloadBuffer> owner).buffer.readonly
        )
        try:
            return self.decode(at, size, owner, writable, copy, aligned)
        except FormatError as error:
            if error.path or isinstance(error, SchemaError):
                raise
            member = None if error.member is None else f"field {error.member!r}"
            raise FormatError(
                error.reason, "<bytes>", error.offset, member
            ) from error.__cause__


cdef bint is_broken(object error) except -1:
    """Return whether an error of msgspec is due to the bytes, not their types."""
    if isinstance(error, UnicodeDecodeError):
        return True
    msgspec = sys.modules.get("msgspec")
    return msgspec is not None and isinstance(error, msgspec.DecodeError) and (
        not isinstance(error, msgspec.ValidationError)
    )


# Orders and names

cdef inline bint is_name(
    const name_t *name, const uint8_t *text, uint64_t size
) noexcept nogil:
    return name.size == size and memcmp(name.text, text, size) == 0


cdef bint has_slot(const order_t *order, uint64_t count, int slot) noexcept nogil:
    """Return whether one of the first keys names a field."""
    cdef uint64_t i
    for i in range(count):
        if order.keys[i].slot == slot:
            return True
    return False


cdef void free_order(order_t *order) noexcept:
    free(order.keys)
    free(order.text)


cdef void take_value(
    const name_t *name, const value_t *value, value_t *found, int *ranks
) noexcept nogil:
    """Set a field's value: of the name before aliases, of equal names the last."""
    cdef int slot = name.slot
    if found[slot].kind == MISSING or name.rank <= ranks[slot]:
        found[slot] = value[0]
        ranks[slot] = name.rank


cdef int match_order(
    const order_t *order, const uint8_t *payload, uint64_t size, value_t *found,
    int width, uint64_t *where,
) noexcept nogil:
    """Find the values of a payload whose keys are those of an order.

    Returns `OTHER_ORDER` if they are not, or a fault at the byte `where`.
    """
    cdef uint64_t count, at, i
    cdef value_t skipped
    cdef value_t *value = &skipped
    cdef const key_t *key
    cdef int fault, k
    if open_map(payload, size, &count, value) != 0 or count != order.count:
        return OTHER_ORDER
    at = value.start
    for k in range(width):
        found[k].kind = MISSING
    for i in range(count):
        key = &order.keys[i]
        if key.size > size - at or (
            memcmp(payload + at, order.text + key.start, key.size) != 0
        ):
            return OTHER_ORDER
        value = &skipped if key.slot < 0 else &found[key.slot]
        fault = read_value(payload, size, at + key.size, value)
        if fault != 0:
            where[0] = value.at
            return fault
        at = value.at + value.size
    where[0] = at
    return 0 if at == size else FAULT_TRAILING


cdef class FieldMap:
    """Values by name, of a dict or of a payload.

    The payload stays as it is: a field is found by walking the map, and decoded once.

    Parameters
    ----------
    _data : mapping, optional
    **values : object
        The fields, instead of `_data`.
    """

    def __cinit__(self, _data=None, **values):
        if _data is None:
            self.data = values
        elif values:
            raise TypeError("fields are given by a mapping or by name, not by both")
        elif isinstance(_data, (dict, Mapping)):
            self.data = dict(_data)
        else:
            raise TypeError(f"expected a mapping, got {type(_data).__name__}")

    @classmethod
    def _from_buffer(cls, data not None):
        """Return the fields of a payload; its shape is checked, no value is decoded."""
        cdef const uint8_t *payload
        cdef uint64_t size
        cdef object holder = hold_payload(data, &payload, &size)
        return make_map(cls, payload, size, holder, False)

    cdef object find(self, str name, value_t *found):
        """Find a field of the payload; return whether there is one."""
        cdef Py_ssize_t length, place
        cdef const char *text
        cdef int fault
        try:
            text = utf8_of(name, &length)
        except UnicodeEncodeError:
            return False
        fault = find_field(
            self.payload, self.size, text, length, found, &place
        )
        if fault != 0:
            raise make_fault(fault, found.at)
        return place >= 0

    cdef object decode_field(self, str name, object default):
        """Return a field's value, `default` if there is none."""
        cdef value_t found
        value = self.data.get(name, ABSENT)
        if value is not ABSENT:
            return value
        if self.payload == NULL or not self.find(name, &found):
            return default
        try:
            value = unpack(self.payload, self.size, &found, self.holder)
        except FormatError as error:
            if self.samples is not None:
                found_in = self.samples.error_of(error, self.position, name)
                raise found_in from error.__cause__
            if error.member is not None:
                raise
            raise FormatError(
                error.reason, error.path, error.offset, f"field {name!r}"
            ) from error.__cause__
        # Of two threads that decode a field both get the value of the first.
        return self.data.setdefault(name, value)

    cdef object load(self):
        """Return the dict of all fields, in the payload's order."""
        if self.payload == NULL:
            return self.data
        return {name: self.decode_field(name, None) for name in self.names()}

    cdef list names(self):
        """Return the names of the payload's fields; an error names the sample."""
        try:
            return field_names(self.payload, self.size)
        except FormatError as error:
            if self.samples is None:
                raise
            found_in = self.samples.error_of(error, self.position, None)
            raise found_in from error.__cause__

    def __getattribute__(self, str name not None):
        # A field is found before the usual look-up makes an AttributeError of it.
        cdef tuple known = last_class
        if known[0] is type(self) and name not in <frozenset> known[1]:
            value = self.decode_field(name, ABSENT)
            if value is not ABSENT:
                return value
        return PyObject_GenericGetAttr(self, name)

    def __getattr__(self, str name not None):
        global last_class
        if last_class[0] is not type(self):
            last_class = type(self), frozenset(dir(type(self)))
        if name.startswith("__") and name.endswith("__"):  # asked for by copy, pickle
            raise AttributeError(name)
        value = self.decode_field(name, ABSENT)
        if value is ABSENT:
            raise AttributeError(
                f"'{type(self).__name__}' has no field {name!r}. "
                f"Available fields: {self.keys()}"
            )
        return value

    def __setattr__(self, name, value):
        raise AttributeError(
            f"'{type(self).__name__}' is read-only: make one with other fields"
        )

    def __getitem__(self, name):
        """Return a field's value.

        Raises
        ------
        FieldNotFoundError
            There is no such field; it is a KeyError, too.
        FormatError
            The field's bytes are broken.

        Examples
        --------
        >>> typed.DictSample(text="a cat")["text"]
        'a cat'
        """
        value = ABSENT
        if PyUnicode_Check(name):
            value = self.decode_field(name, ABSENT)
        if value is ABSENT:
            known = ", ".join(map(repr, self.keys()))
            raise FieldNotFoundError(name, f"the sample, which has {known or 'none'}")
        return value

    def __contains__(self, name):
        cdef value_t found
        if not PyUnicode_Check(name):
            return False
        if name in self.data:
            return True
        return self.payload != NULL and self.find(name, &found)

    def __len__(self):
        return len(self.keys())

    def keys(self):
        """Return the names of the fields, in their order.

        Examples
        --------
        >>> typed.DictSample(text="a cat", label=1).keys()
        ['text', 'label']
        """
        if self.payload == NULL:
            return list(self.data)
        return self.names()

    def get(self, name, default=None):
        """Return a field's value, another one if there is no such field.

        Raises
        ------
        FormatError
            The field's bytes are broken.

        Examples
        --------
        >>> typed.DictSample(text="a cat").get("label", 0)
        0
        """
        if not PyUnicode_Check(name):
            return default
        return self.decode_field(name, default)

    def to_dict(self):
        """Return a dict of all fields.

        Returns
        -------
        dict of str to object
            Another one each time, with the same values.

        Raises
        ------
        FormatError
            A field's bytes are broken.

        Examples
        --------
        >>> typed.DictSample(text="a cat", label=1).to_dict()
        {'text': 'a cat', 'label': 1}
        """
        return dict(self.load())

    def _payload_bytes(self):
        """Return the payload, None if the fields are those of a dict."""
        if self.payload == NULL:
            return None
        return PyBytes_FromStringAndSize(
            <const char *> self.payload, <Py_ssize_t> self.size
        )

    def _extent(self, str name not None):
        """Return a view of a field's bytes in the payload, None if it has no payload.
        """
        cdef value_t found
        if self.payload == NULL:
            return None
        if not self.find(name, &found):
            return self[name]      # raises
        view = PyMemoryView_FromObject(self.holder)
        if found.kind == VALUE_STR or found.kind == VALUE_BIN:
            return view[found.start:found.start + found.nbytes]
        return view[found.at:found.at + found.size]


cdef object make_map(
    object cls, const uint8_t *payload, uint64_t size, object owner, bint copy
):
    """Return the fields of a payload; `owner` is a MappedFile or begins with it."""
    cdef FieldMap made
    cdef value_t found
    cdef Py_ssize_t place
    cdef int fault
    cdef PyTypeObject *kind
    cdef object holder = owner
    if copy:
        holder = PyBytes_FromStringAndSize(<const char *> payload, <Py_ssize_t> size)
        payload = <const uint8_t *> PyBytes_AS_STRING(holder)
    elif type(owner) is MappedFile:
        holder = (<MappedFile> owner).raw_view(
            <uint64_t> (payload - (<MappedFile> owner).base), size
        )
    fault = find_field(payload, size, "", 0, &found, &place)
    if fault != 0:
        raise make_fault(fault, found.at)
    kind = <PyTypeObject *> cls
    made = (<maker_t> kind.tp_new)(kind, NOTHING, NULL)
    made.payload = payload
    made.size = size
    made.holder = holder
    return made
