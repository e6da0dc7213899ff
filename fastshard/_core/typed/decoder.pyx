"""Decoders of the samples of payloads to objects, without a sample between them."""

cimport cython
from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport free, malloc

from fastshard._core.dataset.shard cimport SampleBase, SampleDecoder, SamplesBase
from fastshard._core.io.source cimport MappedFile, MappedSource
from fastshard._core.typed.msgpack cimport open_map, read_field, value_t
from fastshard._core.typed.plan cimport MISSING, FieldMap, TypePlan, make_map
from fastshard._core.typed.shard cimport PackedSamples, PackedShard, is_writable

from fastshard._core.typed.shard import copy_payload
from fastshard.errors import FormatError

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
        """Return the object of a sample."""
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
    """Function from a sample of payloads to its fields, decoded on access."""

    cdef readonly type cls
    cdef readonly bint copy

    def __cinit__(self, cls not None, bint copy=False):
        if not issubclass(cls, FieldMap):
            raise TypeError(f"expected a class of field maps, got {cls.__name__}")
        self.cls = cls
        self.copy = copy

    def __call__(self, SampleBase sample not None):
        """Return the fields of a sample."""
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
        """Add the sample's name to later errors of the fields."""
        (<FieldMap> fields).samples = samples
        (<FieldMap> fields).position = i
        return fields

    def __reduce__(self):
        return MapDecoder, (self.cls, bool(self.copy))
