"""Fields of one payload, decoded on access: the base of `DictSample`."""

from cpython.bytes cimport (
    PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE,
)
from cpython.memoryview cimport PyMemoryView_FromObject
from cpython.object cimport PyObject, PyObject_GenericGetAttr, PyTypeObject
from cpython.unicode cimport PyUnicode_Check
from libc.stdint cimport uint8_t, uint64_t

from fastshard._core.io.source cimport MappedFile
from fastshard._core.typed.msgpack cimport (
    VALUE_BIN, VALUE_STR, field_names, find_field, make_fault, unpack, value_t,
)
from fastshard._core.typed.plan cimport PayloadBuffer

from collections.abc import Mapping

from fastshard.errors import FieldNotFoundError, FormatError

cdef extern from "Python.h":
    const char *utf8_of "PyUnicode_AsUTF8AndSize" (
        object text, Py_ssize_t *size
    ) except NULL

# `tp_new`, whose result is a new reference; the last argument may be NULL.
ctypedef object (*maker_t)(PyTypeObject *kind, tuple args, PyObject *kwargs)

cdef object ABSENT = object()
cdef tuple last_class = (None, frozenset())  # a class, and the names that it has
cdef tuple NOTHING = ()


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
        cdef object holder = data
        if type(data) is bytes:
            payload = <const uint8_t *> PyBytes_AS_STRING(data)
            size = <uint64_t> PyBytes_GET_SIZE(data)
        else:
            holder = PayloadBuffer(data)
            payload = <const uint8_t *> (<PayloadBuffer> holder).buffer.buf
            size = <uint64_t> (<PayloadBuffer> holder).buffer.len
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
        if name.startswith("__") and name.endswith("__"):  # requested by copy, pickle
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
