"""Tar shards of msgpack payloads, whose fields are inside members, and their samples.

A sample's member ``msgpack`` is its payload: a map from names to values. Of a shard of
n samples, member ``i`` below n is the payload of sample i, and member
``n * (1 + slot) + i`` its field of the name that has this slot; names get slots when
they are met. Payloads are prefetched, fetched and counted against budgets; views,
arrays and gathers ask for fields. The tar's table has the payloads' extents.
"""

cimport cython
from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp

from fastshard._core.buffers cimport bytes_of
from fastshard._core.dataset.npy cimport LayoutCache, get_layout_cache
from fastshard._core.dataset.records cimport (
    NO_EXTENTS, FieldShard, SampleList, field_t, is_direct,
)
from fastshard._core.dataset.shard cimport (
    GroupedSamples, SampleBase, SampleDecoder, SamplesBase, Shard,
)
from fastshard._core.io.source cimport MappedFile, MappedSource, Source, View
from fastshard._core.platform cimport (
    fs_has_bit, fs_load, fs_load_relaxed, fs_store_relaxed,
)
from fastshard._core.table.extents cimport (
    ExtentTable, has_unchecked_blocks, resolve_position,
)
from fastshard._core.table.grouping cimport Grouping
from fastshard._core.typed.arrays cimport (
    is_packed_array, make_packed_array, new_layout_cache,
)
from fastshard._core.typed.msgpack cimport (
    FAULT_TRAILING, VALUE_BIN, VALUE_STR, field_names, find_field, kind_name,
    make_fault, open_map, read_field, read_value, scalar_of, unpack, value_t,
)

from fastshard.errors import (
    FastshardError, FormatError, SchemaError, key_collision,
)

cdef enum:
    LARGE_PAYLOAD = 64 << 10       # bytes; of larger ones only the requested fields
    HEAD = 4096                    # bytes of a large payload that are read first
    FEW_NAMES = 16                 # are compared with each other

cdef str PAYLOAD = "msgpack"       # the field of the tar's samples


cdef inline bint is_text(const value_t *value) noexcept nogil:
    """Return whether the stored bytes of a field are the value's contents."""
    return value.kind == VALUE_STR or value.kind == VALUE_BIN


cdef object value_of(
    const uint8_t *payload, uint64_t size, const value_t *value, object owner,
    bint writable, LayoutCache layouts,
):
    """Return the value of a field, a bin that is an array as one on the payload.

    `owner` keeps the payload; a `MappedFile` gives a view.
    """
    cdef MappedFile file
    if value.kind != VALUE_BIN or not is_packed_array(
        payload + value.start, value.nbytes, layouts
    ):
        return unpack(payload, size, value, owner)
    if type(owner) is MappedFile:
        file = <MappedFile> owner
        owner = file.raw_view(payload + value.start - file.base, value.nbytes)
        writable = file.writable
    try:
        return make_packed_array(
            payload + value.start, value.nbytes, owner, writable, False, False, layouts
        )
    except FormatError as error:
        raise FormatError(
            error.reason, "", value.start + error.offset
        ) from error.__cause__


cdef bint find_value(
    const uint8_t *payload, uint64_t size, bytes name, value_t *value
) except -1:
    """Set the value of a field; return whether the payload has it."""
    cdef Py_ssize_t place = -1
    cdef int fault = find_field(
        payload, size, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name), value,
        &place,
    )
    if fault != 0:
        raise make_fault(fault, value.at)
    return place >= 0


cdef dict decode_map(
    const uint8_t *payload, uint64_t size, tuple fields, object owner, bint writable,
    LayoutCache layouts, dict values,
):
    """Add fields of a payload to `values`, all of them if they are None."""
    cdef value_t key, value
    cdef uint64_t count, k, at
    cdef object name = None
    cdef int fault
    try:
        if fields is not None:
            for name in fields:
                if find_value(payload, size, (<str?> name).encode(), &value):
                    values[name] = value_of(
                        payload, size, &value, owner, writable, layouts
                    )
            return values
        fault = open_map(payload, size, &count, &value)
        at = value.start
        for k in range(count if fault == 0 else 0):
            name = None
            fault = read_field(payload, size, at, &key, &value)
            if fault != 0:
                break
            name = scalar_of(payload, &key)
            at = value.at + value.size
            values[name] = value_of(payload, size, &value, owner, writable, layouts)
        name = None
        if fault != 0:
            raise make_fault(fault, value.at)
        if at != size:
            raise make_fault(FAULT_TRAILING, at)
    except FormatError as error:
        error.member = name
        raise
    return values


cdef int find_field_at(
    const uint8_t *payload, uint64_t size, bytes encoded, bint may_fault,
    value_t *value, Py_ssize_t *place,
):
    """Do as `find_field`, without the GIL if pages of the payload may fault."""
    cdef const char *name = PyBytes_AS_STRING(encoded)
    cdef Py_ssize_t length = PyBytes_GET_SIZE(encoded)
    cdef int fault
    if not may_fault:
        return find_field(payload, size, name, length, value, place)
    with nogil:
        fault = find_field(payload, size, name, length, value, place)
    return fault


@cython.final
cdef class PackedTable:
    """Payloads of the samples of a shard, and the names of known fields.

    Handles on a shard share it, so that members keep their positions.
    """

    def __cinit__(self, Shard tar not None, Grouping grouping not None):
        self.tar = tar
        self.grouping = grouping
        self.count = grouping.count()
        self.names, self.encoded, self.slots = [], [], {}
        self.payloads = <Py_ssize_t *> calloc(self.count + 1, sizeof(Py_ssize_t))
        if self.payloads == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.payloads)

    def __reduce__(self):
        raise TypeError("a PackedTable does not pickle")

    cdef Py_ssize_t payload(self, Py_ssize_t i) except -1:
        """Return the member that is the payload of a sample in range."""
        cdef Py_ssize_t found = fs_load_relaxed(&self.payloads[i])
        return found - 1 if found > 0 else self.look_up(i)

    cdef Py_ssize_t look_up(self, Py_ssize_t i) except -1:
        """Find the payload of a sample; raise FormatError without exactly one."""
        cdef Py_ssize_t member, again
        self.grouping.check(i)
        member = self.grouping.member(i, PAYLOAD)
        if member < 0:
            fields = [self.grouping.field(k) for k in self.grouping.members(i)]
            first = self.grouping.members(i)[0]
            raise FormatError(
                f"sample {self.grouping.key(i)!r} has no member of the field "
                f"{PAYLOAD!r}, but {', '.join(fields)}",
                self.tar.path, self.tar.table.columns.offsets[<Py_ssize_t> first],
                self.tar.member_name(first),
            )
        again = self.grouping.find_repeat(i)
        if again >= 0:
            raise FormatError(
                f"sample {self.grouping.key(i)!r} has field "
                f"{self.grouping.field(again)!r} twice",
                self.tar.path, self.tar.table.columns.offsets[again],
                self.tar.member_name(again),
            )
        fs_store_relaxed(&self.payloads[i], member + 1)
        return member

    cdef Py_ssize_t slot_of(self, str name) except -2:
        """Return the slot of a name, a new one if needed; -1: it is not UTF-8."""
        cdef object slot = self.slots.get(name)
        if slot is not None:
            return slot
        try:
            encoded = name.encode()
        except UnicodeEncodeError:
            return -1
        with cython.critical_section(self):
            slot = self.slots.get(name)
            if slot is None:       # no other thread added it
                slot = len(self.names)
                self.names.append(name)
                self.encoded.append(encoded)
                self.slots[name] = slot
        return slot


cdef class PackedShard(FieldShard):
    """Open shard of payloads; see `fastshard.Shard`."""

    def __init__(
        self, Source source, ExtentTable table, str path, str mode,
        Shard tar not None, PackedTable packed not None,
    ):
        self.tar = tar
        self.packed = packed
        self.keeps_local = True    # a field is looked up before it is read

    def with_source(self, Source source not None):
        """Return a handle that reads the same bytes from another source."""
        return PackedShard(
            source, NO_EXTENTS, self.path, self.mode, self.tar, self.packed
        )

    def __reduce__(self):
        raise TypeError("a shard of payloads does not pickle; pickle the dataset")

    @property
    def offsets(self):
        """Not known as a column: `extent_of` finds those of a member."""
        raise FastshardError(
            "fields of payloads have no columns of extents: see extent_of, and "
            "the offsets and sizes of ds.raw.shards"
        )

    @property
    def sizes(self):
        """Not known as a column: `extent_of` finds those of a member."""
        return self.offsets

    cdef Py_ssize_t member_count(self) except -1:
        return self.packed.count * (1 + len(self.packed.names))

    cdef str member_name(self, Py_ssize_t i):
        cdef Py_ssize_t slot = i // self.packed.count - 1
        cdef object field = self.packed.names[slot] if slot >= 0 else None
        return self.name_of_field(i % self.packed.count, field)

    cdef object name_of_field(self, Py_ssize_t i, object field):
        """Return the name of a sample's payload or field, for error messages."""
        name = f"sample {self.packed.grouping.key(i)!r}"
        return name if field is None else f"{name}, field {field!r}"

    cdef int find_payload(
        self, Source source, Py_ssize_t i, uint64_t *offset, uint64_t *size
    ) except -1:
        """Set the checked extent of a sample's payload."""
        return self.tar.extent(source, self.packed.payload(i), offset, size)

    cdef object hold_payload(
        self, Source source, Py_ssize_t i, uint64_t offset, uint64_t size,
        uint64_t head, const uint8_t **at,
    ):
        """Set `at` to a payload in memory; return its owner, None if it is mapped.

        The first `head` bytes of a mapped payload are resident then.
        """
        cdef uint8_t *pinned
        cdef object owner = None
        if source.base == NULL:
            owner = self.read_record(source, i, offset, size)
            at[0] = <const uint8_t *> PyBytes_AS_STRING(owner)
        elif type(source) is MappedSource and is_direct(source):
            (<MappedSource> source).ensure_resident(offset, head)
            at[0] = source.base + offset
        else:                      # its pages are counted
            owner = source.pin(offset, head, &pinned)
            at[0] = pinned
        if self.tar.table.verified != NULL:
            self.check_payload(source, i)
        return owner

    cdef int check_payload(self, Source source, Py_ssize_t i) except -1:
        """Compare the header of a member known from an unverified index."""
        cdef Py_ssize_t member
        if self.tar.table.verified != NULL:
            member = self.packed.payload(i)
            if not fs_has_bit(self.tar.table.verified, member):
                self.tar.check_header(source, member)
        return 0

    cdef int find_record(self, Source source, Py_ssize_t i, field_t *field) except -1:
        cdef Py_ssize_t count = self.packed.count
        field.record = i % count
        field.column = i // count - 1
        field.is_ready = False
        self.find_payload(source, field.record, &field.offset, &field.size)
        field.start = 0
        field.nbytes = field.size
        return 0

    cdef Py_ssize_t member_at(self, Py_ssize_t record, Py_ssize_t column) noexcept:
        return self.packed.count * (1 + column) + record

    cdef list columns_of(self, tuple names):
        found = [self.packed.slot_of(name) for name in names]
        return [slot for slot in found if slot >= 0]

    cdef bint reads_fields(self, Source source, uint64_t size) noexcept:
        return source.base != NULL and size > LARGE_PAYLOAD

    cdef uint64_t head_size(self) noexcept:
        return HEAD

    cdef object place_field(self, Source source, Py_ssize_t i, field_t *field):
        """Set the place of member `i`, resident unless its payload is large.

        `find_record` has found the payload.
        """
        cdef Py_ssize_t place = -1
        cdef const uint8_t *payload = NULL
        cdef uint64_t head
        cdef value_t value
        cdef int fault
        if field.column < 0 and source.base != NULL:
            self.check_payload(source, field.record)
            return None
        field.is_ready = not self.reads_fields(source, field.size)
        head = field.size if field.is_ready else min(field.size, <uint64_t> HEAD)
        owner = self.hold_payload(
            source, field.record, field.offset, field.size, head, &payload
        )
        if field.column < 0:
            return owner
        fault = find_field_at(
            payload, field.size, self.packed.encoded[field.column],
            not field.is_ready, &value, &place,
        )
        if fault != 0:
            raise self.fault(make_fault(fault, value.at), i, field.offset)
        if place < 0:
            raise FormatError(
                "the payload has no such field", self.path, field.offset,
                self.member_name(i),
            )
        field.kind = value.kind
        if is_text(&value):
            field.start, field.nbytes = value.start, value.nbytes
        else:
            field.start, field.nbytes = value.at, value.size
        return owner

    cdef object fault(self, object error, Py_ssize_t i, uint64_t offset):
        """Return an error of a payload at `offset` with the path, byte and member."""
        cdef Py_ssize_t sample = i % self.packed.count
        cdef object name
        if error.path:
            return error
        name = self.member_name(i)
        if error.member is not None and i == sample:
            name = self.name_of_field(sample, error.member)
        if isinstance(error, SchemaError):
            found = SchemaError(
                error.reason, self.path, offset + error.offset, name,
                self.packed.grouping.key(sample), error.field,
            )
        else:
            found = FormatError(error.reason, self.path, offset + error.offset, name)
        found.__cause__ = error.__cause__
        return found

    def array(self, key, dtype=None, shape=None):
        """Return a member as an array; see `Shard.array`.

        By default a field that is an array, in either of its forms.
        """
        cdef Py_ssize_t i = self.find(key)
        cdef field_t field
        cdef uint8_t *at
        cdef uint64_t size
        cdef object owner
        cdef Source source
        if dtype is not None or shape is not None or i < self.packed.count:
            return Shard.array(self, i, dtype, shape)
        owner = self.pin(i, &at, &size)
        try:
            return make_packed_array(
                at, size, owner, is_writable(owner), False, False,
                get_layout_cache(self),
            )
        except FormatError as error:
            found = error
        source = self.open_source()
        self.find_record(source, i, &field)
        self.place_field(source, i, &field)
        if field.kind != VALUE_BIN:
            found = FormatError(
                f"expected an array, got {kind_name(field.kind)}", "", 0
            )
        raise self.fault(found, i, field.offset + field.start) from found.__cause__

    cdef object annotate(self, object error, Py_ssize_t i):
        if isinstance(error, FormatError) and error.path:
            return error           # of the tar's member, or of a payload
        return Shard.annotate(self, error, i)


cdef bint is_writable(object owner):
    """Return whether bytes may be written to: those of a view of a writable file."""
    return type(owner) is View and (<View> owner).owner.writable


cdef class PackedSamples(GroupedSamples):
    """Samples of a shard of payloads; a Python subclass is a `Sequence`."""

    def __cinit__(
        self, PackedShard shard not None, Grouping grouping not None, type sample_type
    ):
        self.held = shard
        self.packed = shard.packed

    def having(self, tuple fields not None):
        """Return a byte per sample: 1 if it has all these fields, else 0.

        Reads all payloads.
        """
        cdef Py_ssize_t i
        cdef object found = bytearray(self.count())
        for sample in self.read_all():
            i = (<SampleBase> sample).position
            found[i] = all([
                (<SampleBase> sample).samples.member(i, field) >= 0 for field in fields
            ])
        return found

    def payload_member(self, i):
        """Return the position in the tar shard of a sample's payload."""
        return self.packed.payload(resolve_position(i, self.count()))

    def read_all(self):
        """Yield all samples, with remote payloads read together."""
        cdef Py_ssize_t count = self.count()
        cdef Py_ssize_t start
        cdef list samples
        from fastshard._core.dataset.gather import prefetch_samples
        from fastshard._core.dataset.remote_prefetch import fetch_samples

        for start in range(0, count, 256):
            samples = [self.sample_at(i) for i in range(start, min(start + 256, count))]
            if self.held.open_source().is_remote():
                fetch_samples(samples, 1 << 62, None)
            else:
                prefetch_samples(samples, 1 << 62)
            yield from samples

    cdef object sample_at(self, Py_ssize_t i):
        self.packed.payload(i)     # raises without one
        return SamplesBase.sample_at(self, i)

    cdef MappedFile resident_payload(
        self, Py_ssize_t i, uint64_t *offset, uint64_t *size
    ):
        """Set the extent of a payload that is surely resident; return its file.

        None: `pin_payload` must be called. The position may be out of range. Bytes
        that are handed out need a `raw_view` of the file.
        """
        cdef PackedShard shard = self.held
        cdef Shard tar = shard.tar
        cdef Source source
        cdef MappedSource mapped
        cdef Py_ssize_t member, trusted
        with cython.critical_section(shard):  # another thread may close it
            source = shard.source
        if type(source) is not MappedSource or not 0 <= i < self.packed.count:
            return None
        mapped = <MappedSource> source
        member = fs_load_relaxed(&self.packed.payloads[i]) - 1
        if member < 0 or mapped.file.chunks is not None or (
            has_unchecked_blocks(tar.table)
            or (
                tar.table.verified != NULL
                and not fs_has_bit(tar.table.verified, member)
            )
        ):
            return None
        offset[0] = fs_load(tar.table.columns.offsets + member)
        size[0] = fs_load(tar.table.columns.sizes + member)
        if offset[0] > mapped.nbytes or size[0] > mapped.nbytes - offset[0]:
            return None            # reported by `pin_payload`
        trusted = fs_load_relaxed(&mapped.trusted)
        if trusted > 0:
            fs_store_relaxed(&mapped.trusted, trusted - 1)
            return mapped.file
        if not mapped.is_resident():
            return None
        mapped.ensure_resident(offset[0], size[0])  # checks the file's size, if asked
        return mapped.file

    cdef object pin_payload(self, Py_ssize_t i, uint8_t **at, uint64_t *size):
        """Set the address and size of a payload, in range; return their owner.

        Its errors name the sample.
        """
        self.packed.payload(i)
        return self.held.pin(i, at, size)

    cdef bint is_read_by_field(self, Py_ssize_t i) except -1:
        """Return whether a payload, in range, is large and in a mapped file."""
        cdef Source source = self.held.open_source()
        cdef uint64_t offset, size
        if type(source) is not MappedSource or not is_direct(source):
            return False
        self.held.find_payload(source, i, &offset, &size)
        return self.held.reads_fields(source, size)

    cdef object annotate(self, object error, Py_ssize_t i):
        """Return an error of a payload with the shard's path, its byte and the sample.

        Its offset is relative to the payload; its member is the field's name, or None.
        """
        cdef uint64_t offset, size
        self.held.find_payload(self.held.open_source(), i, &offset, &size)
        return self.held.fault(error, i, offset)

    def error_of(self, error, Py_ssize_t i, str field):
        """Return an error of a field's value, of which the offset is relative."""
        if not 0 <= i < self.packed.count or self.held.closed:
            return error
        if error.member is None:
            error.member = field
        return self.annotate(error, i)

    cdef dict decode(self, Py_ssize_t i, tuple fields):
        """Return values of a sample's fields by name, of all if `fields` is None.

        Absent fields are left out.
        """
        cdef PackedShard shard = self.held
        cdef Source source = shard.open_source()
        cdef uint64_t offset, size
        cdef const uint8_t *at = NULL
        cdef object owner
        shard.find_payload(source, i, &offset, &size)
        try:
            owner = shard.hold_payload(source, i, offset, size, size, &at)
            if owner is None:
                owner = (<MappedSource> source).file
            return decode_map(
                at, size, fields, owner, is_writable(owner), get_layout_cache(shard), {}
            )
        except FormatError as error:
            raise shard.fault(error, i, offset) from error.__cause__
        except OSError as error:
            raise shard.annotate(error, i) from None

    cdef list fields(self, Py_ssize_t i):
        cdef uint8_t *at
        cdef uint64_t size
        cdef object owner = self.held.pin(i, &at, &size)
        try:
            return field_names(at, size)
        except FormatError as error:
            raise self.annotate(error, i) from None

    cdef Py_ssize_t width(self, Py_ssize_t i) except -1:
        cdef uint8_t *at
        cdef uint64_t size, count
        cdef value_t head
        cdef object owner = self.held.pin(i, &at, &size)
        cdef int fault = open_map(at, size, &count, &head)
        if fault != 0:
            raise self.annotate(make_fault(fault, head.at), i)
        if count > FEW_NAMES or has_repeats(at, size, count, head.start):
            return len(self.fields(i))
        return <Py_ssize_t> count

    cdef Py_ssize_t member(self, Py_ssize_t i, object field) except -2:
        cdef PackedShard shard = self.held
        cdef Source source = shard.open_source()
        cdef Py_ssize_t slot, place = -1
        cdef const uint8_t *payload = NULL
        cdef uint64_t offset, size
        cdef value_t value
        cdef bytes encoded
        cdef bint large
        cdef int fault
        try:
            encoded = (<str> field).encode()
        except UnicodeEncodeError:
            return -1
        shard.find_payload(source, i, &offset, &size)
        large = shard.reads_fields(source, size)
        try:
            owner = shard.hold_payload(
                source, i, offset, size,
                min(size, <uint64_t> HEAD) if large else size, &payload,
            )
        except (FormatError, OSError) as error:
            raise shard.annotate(error, i) from None
        fault = find_field_at(payload, size, encoded, large, &value, &place)
        if fault != 0:
            raise shard.fault(make_fault(fault, value.at), i, offset)
        if place < 0:
            return -1
        slot = self.packed.slot_of(field)
        return shard.member_at(i, slot)

    cdef bint is_resident(self, SampleBase sample) except -1:
        return self.held.open_source().is_resident()

    cdef list visible_members(self, SampleBase sample):
        cdef Py_ssize_t i = sample.position
        cdef uint64_t offset, size
        if sample.only is not None:
            self.held.find_payload(self.held.open_source(), i, &offset, &size)
            if self.held.reads_fields(self.held.open_source(), size):
                return [
                    (self.held, self.held.member_at(i, slot))
                    for slot in self.held.columns_of(tuple(sample.only))
                ]
        return [(self.held, i)]

    cdef SamplesBase with_shard(self, Shard shard):
        return type(self)(shard, self.grouping, self.sample_type)


cdef bint has_repeats(
    const uint8_t *payload, uint64_t size, uint64_t count, uint64_t at
) noexcept:
    """Return whether a name of few fields may come twice; True if they are damaged."""
    cdef value_t names[FEW_NAMES]
    cdef value_t value
    cdef uint64_t k, j
    for k in range(count):
        if read_field(payload, size, at, &names[k], &value) != 0:
            return True
        at = value.at + value.size
        for j in range(k):
            if names[j].nbytes == names[k].nbytes and (
                memcmp(
                    payload + names[j].start, payload + names[k].start,
                    names[k].nbytes,
                ) == 0
            ):
                return True
    return at != size


def make_packed_shard(Shard tar not None, Grouping grouping not None):
    """Return the shard of the payloads of a tar, on the tar's own source."""
    return PackedShard(
        tar.open_source(), NO_EXTENTS, tar.path, tar.mode, tar,
        PackedTable(tar, grouping),
    )


def decode_fields(SampleBase sample not None, tuple fields not None):
    """Return values of a sample's fields by name, with the key as ``"__key__"``."""
    cdef PackedSamples samples = <PackedSamples?> sample.samples
    cdef tuple asked = fields if fields else sample.only
    cdef dict values = samples.decode(sample.position, asked)
    cdef dict found
    if fields:
        for field in fields:
            if field not in values or (
                sample.only is not None and field not in sample.only
            ):
                sample.member_of(field)  # raises
    if "__key__" in values:
        raise key_collision()
    found = {"__key__": samples.key(sample.position)}
    found.update(values)
    return found


@cython.final
cdef class PackedDecoder(SampleDecoder):
    """``sample.decode()`` of a sample of `PackedSamples`."""

    def __call__(self, SampleBase sample not None):
        if sample.decoders:
            return sample.decode()
        return decode_fields(sample, ())

    cdef object decode_resident(self, SamplesBase samples, Py_ssize_t i):
        cdef PackedSamples packed
        cdef MappedFile file
        cdef uint64_t offset, size
        cdef dict values
        if not isinstance(samples, PackedSamples):
            return None
        packed = <PackedSamples> samples
        file = packed.resident_payload(i, &offset, &size)
        if file is None:
            return None
        values = {"__key__": self}
        decode_map(
            file.base + offset, size, None, file, file.writable,
            get_layout_cache(packed.held), values,
        )
        if values["__key__"] is not self:
            return None            # a field of that name: refused by `__call__`
        values["__key__"] = packed.key(i)
        return values


decode_sample = PackedDecoder()


def decode_member(SampleBase sample not None, field):
    """Return the value of one field of a sample of `PackedSamples`."""
    cdef PackedSamples samples = <PackedSamples?> sample.samples
    sample.member_of(field)
    return samples.decode(sample.position, (field,))[field]


def decode_columns(samples not None, tuple fields not None):
    """Return values of fields of samples of `PackedSamples`: lists by name."""
    cdef SampleBase sample
    cdef dict columns = {field: [] for field in fields}
    if len(fields) == 1:
        return {fields[0]: decode_column(samples, fields[0])}
    for sample in samples:
        values = (<PackedSamples?> sample.samples).decode(sample.position, fields)
        for field in fields:
            if field not in values:
                sample.member_of(field)  # raises
            (<list> columns[field]).append(values[field])
    return columns


cdef list decode_column(object samples, str field):
    """Return the values of one field of samples."""
    cdef SampleList stored = <SampleList> samples if (
        type(samples) is SampleList
    ) else SampleList(samples)
    cdef SampleBase sample
    cdef PackedSamples packed
    cdef Py_ssize_t i, k
    cdef MappedFile file
    cdef uint64_t offset, size
    cdef Py_ssize_t place
    cdef value_t value
    cdef list values = []
    cdef bytes encoded = field.encode("utf-8", "surrogatepass")  # in no payload
    cdef const char *name = PyBytes_AS_STRING(encoded)
    cdef Py_ssize_t length = PyBytes_GET_SIZE(encoded)
    for k in range(stored.count):
        packed = <PackedSamples?> stored.owners[stored.places[k].owner]
        i = stored.places[k].position
        file = packed.resident_payload(i, &offset, &size)
        if file is not None and find_field(
            file.base + offset, size, name, length, &value, &place
        ) == 0 and place >= 0 and value.kind == VALUE_STR:
            try:
                values.append(unpack(file.base + offset, size, &value, file))
                continue
            except FormatError:    # `decode` raises it with the sample's name
                pass
        found = packed.decode(i, (field,))
        if field not in found:
            sample = samples[k]
            sample.member_of(field)  # raises
        values.append(found[field])
    return values


def kind_of_field(SampleBase sample not None, field):
    """Return the type of a field's value and whether it is an array."""
    cdef PackedShard shard = (<PackedSamples?> sample.samples).held
    cdef Py_ssize_t member = sample.member_of(field)
    cdef field_t place
    cdef uint8_t *at
    cdef uint64_t size
    cdef Source source = shard.open_source()
    shard.find_record(source, member, &place)
    shard.place_field(source, member, &place)
    if place.kind != VALUE_BIN:
        return kind_name(place.kind), False
    owner = shard.pin(member, &at, &size)
    return "bytes", is_packed_array(at, size, get_layout_cache(shard))


def copy_payload(SampleBase sample not None):
    """Return a payload of the visible fields of a sample: bytes of its own."""
    cdef PackedSamples samples = <PackedSamples?> sample.samples
    cdef uint8_t *at
    cdef uint64_t size, start
    cdef value_t value
    cdef bytes encoded
    cdef list parts = []
    cdef object owner = samples.pin_payload(sample.position, &at, &size)
    if sample.only is None:
        return (<const char *> at)[:size]
    fields = sample.keys()
    parts.append(b"\xdf" + len(fields).to_bytes(4, "big"))
    for field in fields:
        encoded = field.encode()
        parts.append(b"\xdb" + len(encoded).to_bytes(4, "big") + encoded)
        if not find_value(at, size, encoded, &value):
            sample.member_of(field)  # raises
        parts.append((<const char *> at + value.at)[:value.size])
    return b"".join(parts)


def fields_of_payload(bytes payload not None):
    """Return the stored bytes of a payload's fields by name, as memoryviews."""
    cdef const uint8_t *at = <const uint8_t *> PyBytes_AS_STRING(payload)
    cdef uint64_t size = PyBytes_GET_SIZE(payload)
    cdef value_t value
    view = memoryview(payload)
    found = {}
    for name in field_names(at, size):
        find_value(at, size, name.encode(), &value)
        if is_text(&value):
            found[name] = view[value.start : value.start + value.nbytes]
        else:
            found[name] = view[value.at : value.at + value.size]
    return found


def decode_payload(bytes payload not None, fields=None):
    """Return values of a payload's fields by name; arrays are on the payload."""
    return decode_map(
        <const uint8_t *> PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload), fields,
        payload, False, new_layout_cache(), {},
    )


def unpack_value(data not None):
    """Return the value of a buffer that is one encoded msgpack value."""
    cdef Py_buffer buffer
    cdef const uint8_t *at = bytes_of(data, &buffer)
    cdef uint64_t size = <uint64_t> buffer.len
    cdef value_t value
    cdef int fault
    try:
        fault = read_value(at, size, 0, &value)
        if fault != 0:
            raise make_fault(fault, value.at)
        if value.size != size:
            raise FormatError("there are bytes after the value", "", value.size)
        return unpack(at, size, &value, data)
    finally:
        PyBuffer_Release(&buffer)


def kind_of_value(bytes payload not None, str field not None):
    """Return the type of a payload's value, as `kind_of_field`; None if absent."""
    cdef const uint8_t *at = <const uint8_t *> PyBytes_AS_STRING(payload)
    cdef value_t value
    if not find_value(at, PyBytes_GET_SIZE(payload), field.encode(), &value):
        return None
    return kind_name(value.kind), value.kind == VALUE_BIN and is_packed_array(
        at + value.start, value.nbytes, new_layout_cache()
    )


def check_payload(PackedSamples samples not None, i):
    """Decode the payload of a sample, to raise its errors."""
    samples.decode(resolve_position(i, len(samples)), None)
