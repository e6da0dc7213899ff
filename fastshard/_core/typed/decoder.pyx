"""Decoders of payloads: to objects, without a sample between them, or field by field.

`FieldMap` has the fields of one payload, decoded when they are asked for: the base of
`DictSample`.
"""

cimport cython
from cpython.bytes cimport (
    PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE,
)
from cpython.memoryview cimport PyMemoryView_FromObject
from cpython.object cimport PyObject, PyObject_GenericGetAttr, PyTypeObject
from cpython.unicode cimport PyUnicode_Check
from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport free, malloc

from fastshard._core.dataset.shard cimport SampleBase, SampleDecoder, SamplesBase
from fastshard._core.io.source cimport MappedFile, MappedSource
from fastshard._core.typed.msgpack cimport (
    VALUE_BIN, VALUE_STR, field_names, find_field, make_fault, open_map, read_field,
    unpack, value_t,
)
from fastshard._core.typed.plan cimport MISSING, PayloadBuffer, TypePlan
from fastshard._core.typed.shard cimport PackedSamples, PackedShard, is_writable

from collections.abc import Mapping

from fastshard._core.typed.shard import copy_payload
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
        """Return the fields of a payload; its shape is checked, no value is decoded.

        Raises
        ------
        FormatError
            The payload is no map with str keys; the offset is relative to it.
        """
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

        Parameters
        ----------
        name : str

        Returns
        -------
        object

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

        Returns
        -------
        list of str

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

        Parameters
        ----------
        name : str
        default : object, default None

        Returns
        -------
        object

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

        Raises
        ------
        FieldNotFoundError
            There is no such field.
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
    """Return the fields of a payload; `owner` is a MappedFile or begins with it.

    Raises
    ------
    FormatError
        The payload is no map with str keys; the offset is relative to it.
    """
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


cdef enum:
    FIRST_PART = 4096              # bytes of a large payload that are read first
    NAME_PART = 128                # bytes of a name and the head of its value


cdef inline MappedFile find_payload(
    SamplesBase samples, Py_ssize_t i, uint64_t *offset, uint64_t *size
):
    """Set the extent of a payload that is surely resident; return its file, or None."""
    cdef PackedSamples packed
    if not isinstance(samples, PackedSamples):
        return None
    packed = <PackedSamples> samples
    if not 0 <= i < packed.packed.count:
        return None
    packed.packed.payload(i)       # looks it up
    return packed.resident_payload(i, offset, size)


cdef int page_in_names(
    MappedSource source, uint64_t offset, const uint8_t *at, uint64_t size
) except -1:
    """Page in the names of a payload's fields; page faults would read values, too."""
    cdef uint64_t count, k
    cdef uint64_t ready = FIRST_PART  # bytes of the payload that are resident
    cdef uint64_t start
    cdef value_t name, value
    cdef int fault = open_map(at, size, &count, &value)
    if fault != 0:
        return 0                   # `find_values` reports it
    start = value.start
    for k in range(count):
        if ready < size and (start > ready or ready - start < NAME_PART):
            if start >= size:
                return 0
            ready = start + min(size - start, <uint64_t> FIRST_PART)
            source.ensure_resident(offset + start, ready - start)
        with nogil:
            fault = read_field(at, size, start, &name, &value)
        if fault != 0:
            return 0
        start = value.at + value.size
    return 0


@cython.final
cdef class TypedDecoder(SampleDecoder):
    """Function from a sample of payloads to an object of a class.

    A stage of a dataset: `fastshard.Dataset.map`.

    Parameters
    ----------
    plan : TypePlan
    copy : bool, default False
        Arrays are copies: writable and C-contiguous.
    aligned : bool, default False
        Arrays whose data are not aligned for their type are copies.
    """

    cdef readonly TypePlan plan
    cdef readonly bint copy
    cdef readonly bint aligned

    def __cinit__(
        self, TypePlan plan not None, bint copy=False, bint aligned=False
    ):
        self.plan = plan
        self.copy = copy
        self.aligned = aligned

    def __call__(self, SampleBase sample not None):
        """Return the object of a sample.

        Raises
        ------
        FormatError
            The payload is no msgpack map with str keys, or a value of it is broken.
        SchemaError
            Its fields are not those of the class.
        """
        cdef PackedSamples samples = <PackedSamples?> sample.samples
        cdef Py_ssize_t i = sample.position
        cdef uint8_t *at
        cdef uint64_t size
        cdef object owner
        try:
            if sample.only is not None:
                return self.plan.from_buffer(
                    copy_payload(sample), self.copy, self.aligned
                )
            if samples.is_read_by_field(i):
                return self.decode_by_field(samples, i)
            owner = samples.pin_payload(i, &at, &size)
            return self.plan.decode(
                at, size, owner, is_writable(owner), self.copy, self.aligned
            )
        except FormatError as error:
            raise samples.annotate(error, i) from error.__cause__

    cdef object decode_by_field(self, PackedSamples samples, Py_ssize_t i):
        """Return the object of a large mapped payload; page in its fields only."""
        cdef PackedShard shard = samples.held
        cdef MappedSource source = <MappedSource?> shard.open_source()
        cdef const uint8_t *at = NULL
        cdef uint64_t offset, size
        cdef value_t *found
        cdef int k
        shard.find_payload(source, i, &offset, &size)
        if source.has_resident(offset, size):  # as after a prefetch of the whole
            shard.hold_payload(source, i, offset, size, 0, &at)
            return self.plan.decode(
                source.file.base + offset, size, source.file, source.file.writable,
                self.copy, self.aligned,
            )
        found = <value_t *> malloc((self.plan.width + 1) * sizeof(value_t))
        if found == NULL:
            raise MemoryError
        try:
            shard.hold_payload(source, i, offset, size, FIRST_PART, &at)
            page_in_names(source, offset, at, size)
            self.plan.find_values(at, size, found)
            for k in range(self.plan.width):
                if found[k].kind != MISSING:
                    source.ensure_resident(offset + found[k].at, found[k].size)
            return self.plan.make_object(
                at, size, found, source.file, source.file.writable, self.copy,
                self.aligned,
            )
        except OSError as error:
            raise shard.annotate(error, i) from None
        finally:
            free(found)

    cdef object decode_resident(self, SamplesBase samples, Py_ssize_t i):
        cdef uint64_t offset, size
        cdef MappedFile file = find_payload(samples, i, &offset, &size)
        if file is None:
            return None
        return self.plan.decode(
            file.base + offset, size, file, file.writable, self.copy, self.aligned
        )

    def __reduce__(self):
        return TypedDecoder, (self.plan, bool(self.copy), bool(self.aligned))


@cython.final
cdef class MapDecoder(SampleDecoder):
    """Function from a sample of payloads to its fields, decoded when asked for.

    Parameters
    ----------
    cls : type
        A subclass of FieldMap: `fastshard.typed.DictSample`.
    copy : bool, default False
        Copy payloads: samples do not keep the file mapped.
    """

    cdef readonly type cls
    cdef readonly bint copy

    def __cinit__(self, cls not None, bint copy=False):
        if not issubclass(cls, FieldMap):
            raise TypeError(f"expected a class of field maps, got {cls.__name__}")
        self.cls = cls
        self.copy = copy

    def __call__(self, SampleBase sample not None):
        """Return the fields of a sample.

        Raises
        ------
        FormatError
            The payload is no msgpack map with str keys.
        """
        cdef PackedSamples samples = <PackedSamples?> sample.samples
        cdef Py_ssize_t i = sample.position
        cdef uint8_t *at
        cdef uint64_t size
        cdef object owner
        try:
            if sample.only is not None:
                return self.name_sample(
                    self.cls._from_buffer(copy_payload(sample)), samples, i
                )
            owner = samples.pin_payload(i, &at, &size)
            return self.name_sample(
                make_map(self.cls, at, size, owner, self.copy), samples, i
            )
        except FormatError as error:
            raise samples.annotate(error, i) from error.__cause__

    cdef object decode_resident(self, SamplesBase samples, Py_ssize_t i):
        cdef uint64_t offset, size
        cdef MappedFile file = find_payload(samples, i, &offset, &size)
        if file is None:
            return None
        return self.name_sample(
            make_map(self.cls, file.base + offset, size, file, self.copy), samples, i
        )

    cdef object name_sample(self, object fields, SamplesBase samples, Py_ssize_t i):
        """Have later errors of the fields name the sample."""
        (<FieldMap> fields).samples = samples
        (<FieldMap> fields).position = i
        return fields

    def __reduce__(self):
        return MapDecoder, (self.cls, bool(self.copy))
