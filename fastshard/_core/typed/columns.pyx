"""Columns of many payloads: numbers and arrays of one layout, copied without the GIL.

Payloads are found first, then each is walked once for all columns. Those in mapped
files are read there, those of other sources are copied to a buffer, some MB at a time.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

from fastshard._core.dataset.npy cimport Layout, allocate_column, get_layout_cache
from fastshard._core.dataset.records cimport (
    RecordBatch, is_direct, read_batch, record_t, sort_columns, stack_batch,
)
from fastshard._core.dataset.streams cimport SampleLocator
from fastshard._core.io.source cimport Source
from fastshard._core.platform cimport fs_prefetch_line
from fastshard._core.typed.arrays cimport find_packed_layout, is_packed_array
from fastshard._core.typed.msgpack cimport (
    FAULT_TRAILING, VALUE_BIN, VALUE_BOOL, VALUE_FLOAT, VALUE_INT, find_field,
    load_big, make_fault, open_map, read_field, value_t,
)
from fastshard._core.typed.shard cimport PackedSamples, PackedShard

import numpy

cdef enum:
    AHEAD = 3                      # payloads
    MOST_AHEAD = 1024              # bytes of a payload that are prefetched
    LEAD = 10                      # bytes of an npy header before its text
    LINE = 64                      # bytes of a cache line

cdef struct target_t:              # a column
    const uint8_t *name
    uint64_t name_size
    int kind                       # of its values
    uint64_t size                  # of a bin: header and data
    uint64_t skip                  # bytes of the header
    uint64_t item                  # bytes of an item of the column
    const uint8_t *header
    uint64_t text                  # bytes of an npy header without padding, or 0
    uint8_t *out                   # NULL: the values differ, or one is absent
    Py_ssize_t seen                # 1 + the last payload that had it

cdef object INTS = numpy.dtype(numpy.int64)
cdef object FLOATS = numpy.dtype(numpy.float64)
cdef object BOOLS = numpy.dtype(numpy.bool_)


cdef inline bint copy_number(
    const uint8_t *payload, const value_t *value, uint8_t *to
) noexcept nogil:
    """Write a number as an item of a column; False if it is out of range."""
    cdef uint8_t lead = payload[value.at]
    cdef uint64_t bits = 0
    cdef unsigned int single_bits
    cdef int64_t number
    cdef double real
    cdef float single
    if value.nbytes > 0:
        bits = load_big(payload + value.start, <int> value.nbytes)
    if value.kind == VALUE_BOOL:
        to[0] = lead == 0xc3
    elif value.kind == VALUE_FLOAT:
        if value.nbytes == 8:
            memcpy(&real, &bits, 8)
        else:
            single_bits = <unsigned int> bits
            memcpy(&single, &single_bits, 4)
            real = single
        memcpy(to, &real, 8)
    else:
        if value.nbytes == 0:
            number = <signed char> lead
        elif lead < 0xd0:          # unsigned
            if bits > <uint64_t> INT64_MAX:
                return False
            number = <int64_t> bits
        else:                      # the sign is that of the first byte
            number = <int64_t> (bits << (64 - 8 * value.nbytes))
            number = number >> (64 - 8 * value.nbytes)
        memcpy(to, &number, 8)
    return True


cdef uint64_t text_size(const uint8_t *header, uint64_t size) noexcept:
    """Return the size of an npy header of version 1 without padding; 0: of others."""
    if size < LEAD or memcmp(header, b"\x93NUMPY\x01\x00", 8) != 0:
        return 0
    while size > LEAD and (header[size - 1] == c' ' or header[size - 1] == c'\n'):
        size -= 1
    return size


cdef bint has_same_text(
    const uint8_t *at, uint64_t size, const target_t *target
) noexcept nogil:
    """Return whether a bin is an array of a column with another padding.

    Headers that align the data in the file are of different lengths.
    """
    cdef uint64_t skip, k
    if target.text == 0 or size < target.item or size - target.item < target.text:
        return False
    skip = size - target.item
    if memcmp(at, target.header, 8) != 0 or (
        LEAD + (<uint64_t> at[8] | <uint64_t> at[9] << 8) != skip
    ) or memcmp(at + LEAD, target.header + LEAD, target.text - LEAD) != 0:
        return False
    for k in range(target.text, skip):
        if at[k] != c' ' and at[k] != c'\n':
            return False
    return True


cdef inline void copy_value(
    const uint8_t *payload, const value_t *value, target_t *target, Py_ssize_t r
) noexcept nogil:
    """Copy a value to its place in a column; drop the column if it differs."""
    cdef uint8_t *to = target.out + <uint64_t> r * target.item
    cdef const uint8_t *at = payload + value.start
    target.seen = r + 1
    if value.kind != target.kind:
        target.out = NULL
    elif value.kind != VALUE_BIN:
        if not copy_number(payload, value, to):
            target.out = NULL
    elif value.nbytes == target.size and (
        memcmp(at, target.header, target.skip) == 0
    ):
        memcpy(to, at + target.skip, target.item)
    elif has_same_text(at, value.nbytes, target):
        memcpy(to, at + (value.nbytes - target.item), target.item)
    else:
        target.out = NULL


cdef inline int copy_fields(
    const record_t *payload, Py_ssize_t r, target_t *targets, Py_ssize_t width,
    uint64_t *where,
) noexcept nogil:
    """Copy the fields of a payload to the columns; return its fault, at `where`."""
    cdef uint64_t count, k, at
    cdef value_t name, value
    cdef target_t *target
    cdef Py_ssize_t t = 0
    cdef Py_ssize_t tried
    cdef int fault = open_map(payload.at, payload.size, &count, &value)
    if fault != 0:
        where[0] = value.at
        return fault
    at = value.start
    for k in range(count):
        fault = read_field(payload.at, payload.size, at, &name, &value)
        if fault != 0:
            where[0] = value.at
            return fault
        at = value.at + value.size
        for tried in range(width):  # those in the order of the fields at once
            target = &targets[t]
            t = t + 1 if t + 1 < width else 0
            if name.nbytes == target.name_size and (
                memcmp(payload.at + name.start, target.name, name.nbytes) == 0
            ):
                if target.out != NULL:
                    copy_value(payload.at, &value, target, r)
                break
        else:
            continue
    if at != payload.size:
        where[0] = at
        return FAULT_TRAILING
    for t in range(width):
        if targets[t].seen != r + 1:
            targets[t].out = NULL
    return 0


cdef inline void prefetch_payload(const record_t *payload) noexcept nogil:
    """Prefetch the first bytes of a payload; the processor continues from there."""
    cdef uint64_t at = 0
    cdef uint64_t end = min(payload.size, <uint64_t> MOST_AHEAD)
    while at < end:
        fs_prefetch_line(payload.at + at)
        at += <uint64_t> LINE


cdef Py_ssize_t fill_columns(
    const record_t *payloads, Py_ssize_t start, Py_ssize_t end, target_t *targets,
    Py_ssize_t width, int *fault, uint64_t *where,
) noexcept nogil:
    """Copy fields of some payloads to the columns; return the first invalid, or -1."""
    cdef Py_ssize_t r
    for r in range(start, min(end, start + AHEAD)):
        prefetch_payload(&payloads[r])
    for r in range(start, end):
        if r + AHEAD < end:
            prefetch_payload(&payloads[r + AHEAD])
        fault[0] = copy_fields(&payloads[r], r, targets, width, where)
        if fault[0] != 0:
            return r
    return -1


@cython.final
cdef class PayloadBatch(RecordBatch):
    """Payloads of packed shards, in any order."""

    cdef dict numbers              # of shards, their indexes in `shards`
    cdef PackedShard last          # the shard of the payload added last
    cdef Py_ssize_t last_number
    cdef Source source             # of that shard
    cdef const uint8_t *base       # of that source; NULL: its payloads are copied
    cdef bint unverified           # a table is of an index that is not checked whole

    def __cinit__(self):
        self.numbers = {}

    cdef int select_shard(self, PackedShard shard) except -1:
        """Select the shard that the next payloads are of."""
        cdef object number = self.numbers.get(shard)
        if number is None:
            number = self.numbers[shard] = self.add_shard(shard)
            self.unverified = self.unverified or shard.tar.table.verified != NULL
        self.last = shard
        self.last_number = number
        self.source = <Source> self.sources[self.last_number]
        self.base = self.source.base if is_direct(self.source) else NULL
        return 0

    cdef bint add(self, object samples, Py_ssize_t i) except -1:
        """Add the payload of a sample in range; False for samples of another class."""
        cdef record_t *payload
        if not isinstance(samples, PackedSamples):
            return False
        if (<PackedSamples> samples).held is not self.last:
            self.select_shard((<PackedSamples> samples).held)
        payload = &self.records[self.count]
        payload.i = i
        payload.shard = self.last_number
        self.last.find_payload(self.source, i, &payload.offset, &payload.size)
        payload.at = NULL
        if self.base != NULL:
            payload.at = self.base + payload.offset
            fs_prefetch_line(payload.at)
        self.count += 1
        return True

    cdef PackedShard shard_of(self, Py_ssize_t r):
        return <PackedShard> self.shards[self.records[r].shard]

    cdef Py_ssize_t load(self, Py_ssize_t start, tuple names) except -1:
        cdef Py_ssize_t end = RecordBatch.load(self, start, names)
        if self.unverified:
            self.check_headers(start, end)
        return end

    cdef int check_headers(self, Py_ssize_t start, Py_ssize_t end) except -1:
        """Compare the headers of members known from an unverified index."""
        cdef PackedShard shard
        cdef Py_ssize_t r
        for r in range(start, end):
            shard = self.shard_of(r)
            shard.check_payload(
                <Source> self.sources[self.records[r].shard], self.records[r].i
            )
        return 0

    cdef dict stack(self, tuple names, object allocate):
        """Return the columns that have one layout, as arrays."""
        cdef PayloadColumns columns = PayloadColumns(self, len(names))
        cdef Py_ssize_t start = 0
        cdef Py_ssize_t end, bad
        cdef uint64_t where = 0
        cdef int fault = 0
        while start < self.count:
            end = self.load(start, names)
            if start == 0:
                columns.begin(names, allocate)
            with nogil:
                bad = fill_columns(
                    self.records, start, end, columns.targets, columns.width, &fault,
                    &where,
                )
            if bad >= 0:
                self.fault(bad, fault, where)
            start = end
        return columns.finish(names)

    cdef int fault(self, Py_ssize_t r, int fault, uint64_t where) except -1:
        """Raise the error of an invalid payload."""
        cdef record_t *payload = &self.records[r]
        raise self.shard_of(r).fault(
            make_fault(fault, where), payload.i, payload.offset
        )


@cython.final
cdef class PayloadColumns:
    """Arrays that are filled with the fields of a batch of payloads."""

    cdef PayloadBatch batch
    cdef target_t *targets
    cdef Py_ssize_t width
    cdef list names, arrays
    cdef list held                 # own the names and headers of the targets

    def __cinit__(self, PayloadBatch batch not None, Py_ssize_t most):
        self.batch = batch
        self.names, self.arrays, self.held = [], [], []
        self.targets = <target_t *> malloc((most + 1) * sizeof(target_t))
        if self.targets == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.targets)

    def __reduce__(self):
        raise TypeError("PayloadColumns do not pickle")

    cdef int begin(self, tuple names, object allocate) except -1:
        """Allocate the columns by the first payload, in the order of its fields."""
        cdef record_t *first = &self.batch.records[0]
        cdef list found = []
        cdef value_t value
        cdef Py_ssize_t place = -1
        cdef int fault
        for name in dict.fromkeys(names):
            try:
                encoded = (<str?> name).encode()
            except UnicodeEncodeError:
                continue
            fault = find_field(
                first.at, first.size, PyBytes_AS_STRING(encoded),
                PyBytes_GET_SIZE(encoded), &value, &place,
            )
            if fault != 0:
                self.batch.fault(0, fault, value.at)
            if place >= 0:
                found.append((place, name, encoded))
        for _, name, encoded in sorted(found):
            find_field(
                first.at, first.size, PyBytes_AS_STRING(encoded),
                PyBytes_GET_SIZE(encoded), &value, &place,
            )
            self.add(name, encoded, &value, allocate)
        return 0

    cdef int add(
        self, str name, bytes encoded, const value_t *value, object allocate
    ) except -1:
        """Add a column by its first value, unless that has no layout."""
        cdef record_t *first = &self.batch.records[0]
        cdef target_t *target = &self.targets[self.width]
        cdef const uint8_t *at = first.at + value.start
        cdef PackedShard shard = self.batch.shard_of(0)
        cdef Layout layout
        cdef tuple shape = ()
        cdef Py_ssize_t k
        target.name = <const uint8_t *> PyBytes_AS_STRING(encoded)
        target.name_size = PyBytes_GET_SIZE(encoded)
        target.kind = value.kind
        target.size = target.skip = target.text = 0
        target.header = NULL
        target.seen = 0
        target.item = 8
        if value.kind == VALUE_INT:
            dtype = INTS
        elif value.kind == VALUE_FLOAT:
            dtype = FLOATS
        elif value.kind == VALUE_BOOL:
            dtype = BOOLS
            target.item = 1
        elif value.kind == VALUE_BIN and is_packed_array(
            at, value.nbytes, get_layout_cache(shard)
        ):
            layout = find_packed_layout(at, value.nbytes, get_layout_cache(shard))
            if layout.shape.fortran and layout.shape.dimensions > 1:
                return 0           # its bytes are not in the order of a stack
            dtype = layout.dtype
            shape = tuple(
                [layout.shape.lengths[k] for k in range(layout.shape.dimensions)]
            )
            target.size = value.nbytes
            target.skip = layout.header_size
            target.item = target.size - target.skip
            header = (<const char *> at)[:target.skip]
            self.held.append(header)
            target.header = <const uint8_t *> PyBytes_AS_STRING(header)
            target.text = text_size(target.header, target.skip)
        else:
            return 0
        self.held.append(encoded)
        made = allocate_column(
            name, self.batch.count, shape, dtype, target.item, allocate, &target.out
        )
        if made is not None:
            self.names.append(name)
            self.arrays.append(made)
            self.width += 1
        return 0

    cdef dict finish(self, tuple names):
        """Return the columns whose values did not differ, in the order of `names`."""
        cdef dict found = {}
        cdef Py_ssize_t t
        for t in range(self.width):
            if self.targets[t].out != NULL or self.batch.count == 0:
                found[self.names[t]] = self.arrays[t]
        return sort_columns(found, names)


def read_columns(
    SampleLocator locator not None, positions, tuple names not None, allocate=None
):
    """Return columns of samples by position."""
    return read_batch(PayloadBatch(), locator, positions, names, allocate)


def stack_columns(samples not None, tuple names not None, allocate=None):
    """Return columns of samples, as `read_columns` does."""
    return stack_batch(PayloadBatch(), samples, names, allocate)
