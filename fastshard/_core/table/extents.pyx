"""Extent table: offset, size and name of each member of a shard.

The columns are C memory, 24 bytes and the name for each member. Python objects are made
on access only; the hash table of names is built on the first look-up.
"""

cimport cython
from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.number cimport PyIndex_Check, PyNumber_AsSsize_t
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

from fastshard._core.buffers cimport int64s_of
from fastshard._core.platform cimport (
    PY_SSIZE_T_MAX, fs_load_relaxed, fs_has_bit, fs_is_set, fs_load, fs_load_pointer,
    fs_prefetch_line, fs_set, fs_set_bit,
)
from fastshard._core.span cimport span_of, span_t, take
from fastshard._core.table.checksums cimport blocks_check, blocks_t
from fastshard._core.table.names cimport decode_text, encode_text

import collections.abc
import os
from array import array

cdef extern from "Python.h":
    void *PyList_GET_ITEM(list items, Py_ssize_t i)  # borrowed

cdef enum:
    DIGITS = 8                     # of an offset, eight bits each
    VALUES = 256                   # of a digit
    BATCH = 128                    # names looked up together
    BATCH_BYTES = 64 << 10         # of those names
    LINE = 64                      # bytes of a cache line

cdef struct record_t:
    uint64_t offset
    size_t position                # before the sort

cdef struct wanted_t:
    span_t name
    uint64_t hashed
    size_t ordinal                 # in the list of names

cdef double MAX_GROWTH = 256.0     # factor; untouched memory costs nothing

cdef uint64_t[2] KEY
KEY[0] = int.from_bytes(os.urandom(8), "little")
KEY[1] = int.from_bytes(os.urandom(8), "little")


# Hash table from texts to entry numbers: open addressing and SipHash-1-3.
#
# SipHash (Aumasson and Bernstein, 2012; https://www.aumasson.jp/siphash/) has a random
# key per process, so that no file can force collisions. A slot has 32 bits: the entry's
# number + 1, and above it as many bits of the hash as fit, so that most mismatches are
# rejected without reading the text.

cdef inline uint64_t rotate(uint64_t word, int bits) noexcept nogil:
    return (word << bits) | (word >> (64 - bits))


cdef inline void sip_round(uint64_t *v) noexcept nogil:
    v[0] += v[1]
    v[1] = rotate(v[1], 13) ^ v[0]
    v[0] = rotate(v[0], 32)
    v[2] += v[3]
    v[3] = rotate(v[3], 16) ^ v[2]
    v[0] += v[3]
    v[3] = rotate(v[3], 21) ^ v[0]
    v[2] += v[1]
    v[1] = rotate(v[1], 17) ^ v[2]
    v[2] = rotate(v[2], 32)


cdef inline void absorb(uint64_t *v, uint64_t word) noexcept nogil:
    v[3] ^= word
    sip_round(v)
    v[0] ^= word


cdef uint64_t hash_bytes(span_t text, const uint64_t *key) noexcept nogil:
    """Return the SipHash-1-3 of a text; `key` has two words."""
    cdef size_t i
    cdef size_t _
    cdef uint64_t[4] v
    cdef uint64_t word
    cdef uint64_t last = <uint64_t> text.left << 56
    cdef const uint8_t *part
    v[0] = key[0] ^ 0x736f6d6570736575ULL
    v[1] = key[1] ^ 0x646f72616e646f6dULL
    v[2] = key[0] ^ 0x6c7967656e657261ULL
    v[3] = key[1] ^ 0x7465646279746573ULL
    while text.left >= 8:
        part = take(&text, 8)
        memcpy(&word, part, 8)
        absorb(v, word)
    for i in range(text.left):
        last |= <uint64_t> text.at[i] << (8 * i)
    absorb(v, last)
    v[2] ^= 0xff
    for _ in range(3):
        sip_round(v)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


cdef bint slots_init(slots_t *table, size_t entries) noexcept nogil:
    """Allocate slots for `entries` at a load of at most 3/4; False: out of memory."""
    cdef size_t wanted = entries + entries // 3 + 1
    cdef size_t size = 8
    cdef uint64_t entry_mask = 1
    while size < wanted:
        size <<= 1
    while entry_mask < entries:    # entry + 1 is at most `entries`
        entry_mask = (entry_mask << 1) | 1
    table.slots = <uint32_t *> calloc(size, sizeof(uint32_t))
    table.mask = size - 1
    table.entry_mask = <uint32_t> entry_mask
    return table.slots != NULL


cdef void slots_free(slots_t *table) noexcept nogil:
    free(table.slots)
    table.slots = NULL


cdef uint64_t slots_hash(span_t text) noexcept nogil:
    """Return the hash of a text under the key of this process."""
    return hash_bytes(text, KEY)


cdef inline const uint32_t *slots_home(
    const slots_t *table, uint64_t hashed
) noexcept nogil:
    """Return the slot where the search for a text begins."""
    return &table.slots[<size_t> hashed & table.mask]


cdef uint32_t slots_likely(const slots_t *table, uint64_t hashed) noexcept nogil:
    """Return the first slot that matches a hash, without reading texts; 0: none."""
    cdef uint32_t tag = <uint32_t> (hashed >> 32) & ~table.entry_mask
    cdef size_t at = <size_t> hashed & table.mask
    while table.slots[at] != 0 and table.slots[at] & ~table.entry_mask != tag:
        at = (at + 1) & table.mask
    return table.slots[at]


cdef uint32_t *slots_find(
    const slots_t *table, span_t text, text_at_t text_at, const void *context,
    uint32_t *filling,
) noexcept nogil:
    """Return the slot of `text`, or the empty slot to insert it at.

    To insert entry `e`, store ``filling[0] | (e + 1)``.
    """
    return slots_find_hashed(
        table, slots_hash(text), text, text_at, context, filling
    )


cdef uint32_t *slots_find_hashed(
    const slots_t *table, uint64_t hashed, span_t text, text_at_t text_at,
    const void *context, uint32_t *filling,
) noexcept nogil:
    """Do the work of `slots_find` for a text whose hash is known."""
    cdef uint32_t tag = <uint32_t> (hashed >> 32) & ~table.entry_mask
    cdef size_t at = <size_t> hashed & table.mask
    cdef uint32_t slot
    cdef span_t found
    filling[0] = tag
    while True:
        slot = table.slots[at]
        if slot == 0:
            break
        if slot & ~table.entry_mask == tag:
            found = text_at(context, slot_entry(table, slot))
            if (
                found.left == text.left
                and memcmp(found.at, text.at, text.left) == 0
            ):
                break
        at = (at + 1) & table.mask
    return &table.slots[at]


# Columns, and the texts in them.

cdef bint resize(void **column, size_t count, size_t width) noexcept nogil:
    """Resize a column to `count` items of `width` bytes; False: out of memory."""
    cdef void *moved
    if count > (<size_t> PY_SSIZE_T_MAX) // width:
        return False
    moved = realloc(column[0], count * width + 1)  # + 1: realloc of 0 may free
    if moved == NULL:
        return False
    column[0] = moved
    return True


cdef bint reserve(columns_t *columns, size_t count) noexcept nogil:
    """Resize the columns of numbers to `count` members; False: out of memory."""
    if not (
        resize(<void **> &columns.offsets, count, sizeof(uint64_t))
        and resize(<void **> &columns.sizes, count, sizeof(uint64_t))
        and resize(<void **> &columns.name_ends, count, sizeof(uint64_t))
    ):
        return False
    columns.capacity = count
    return True


cdef bint reserve_names(columns_t *columns, size_t size) noexcept nogil:
    """Resize the column of names to `size` bytes; False: out of memory."""
    if not resize(<void **> &columns.names, size, 1):
        return False
    columns.names_capacity = size
    return True


cdef size_t grown_capacity(size_t used, double growth) noexcept nogil:
    """Return the capacity to grow to; a good guess avoids further growth.

    `growth` is the caller's guess. It comes from the file, so it is limited.
    """
    cdef double guess = used * min(max(growth, 2.0), MAX_GROWTH)
    return <size_t> guess + 64


cdef bint columns_add(
    columns_t *columns, uint64_t offset, uint64_t size, span_t name
) noexcept nogil:
    """Append a member; its name is copied. False: out of memory."""
    cdef size_t i = columns.count
    cdef size_t names_left = columns.names_capacity - columns.names_size
    cdef size_t wanted
    if i == columns.capacity and not reserve(
        columns, grown_capacity(i, columns.growth)
    ):
        return False
    if columns.names == NULL or name.left > names_left:  # memcpy to NULL is undefined
        wanted = grown_capacity(columns.names_size, columns.growth) + name.left
        if not reserve_names(columns, wanted):
            return False
    memcpy(columns.names + columns.names_size, name.at, name.left)
    columns.names_size += name.left
    columns.offsets[i] = offset
    columns.sizes[i] = size
    columns.name_ends[i] = columns.names_size
    columns.count = i + 1
    return True


cdef bint columns_add_info(columns_t *columns, span_t text) noexcept nogil:
    """Add info to the last member; False: out of memory."""
    cdef bint none_before = columns.info_ends == NULL
    cdef size_t wanted
    if columns.info_ends_capacity < columns.count:
        if not resize(<void **> &columns.info_ends, columns.capacity, sizeof(uint64_t)):
            return False
        columns.info_ends_capacity = columns.capacity
    if none_before:
        memset(columns.info_ends, 0, columns.count * sizeof(uint64_t))
    if columns.infos == NULL or text.left > columns.infos_capacity - columns.infos_size:
        wanted = grown_capacity(columns.infos_size, columns.growth) + text.left
        if not resize(<void **> &columns.infos, wanted, 1):
            return False
        columns.infos_capacity = wanted
    if text.left > 0:
        memcpy(columns.infos + columns.infos_size, text.at, text.left)
    columns.infos_size += text.left
    columns.info_ends[columns.count - 1] = columns.infos_size
    return True


cdef void columns_free(columns_t *columns) noexcept nogil:
    free(columns.offsets)
    free(columns.sizes)
    free(columns.name_ends)
    free(columns.names)
    free(columns.info_ends)
    free(columns.infos)
    forget(columns)


cdef void forget(columns_t *columns) noexcept nogil:
    """Drop the columns without freeing them."""
    columns.offsets = columns.sizes = columns.name_ends = columns.info_ends = NULL
    columns.names = columns.infos = NULL


cdef inline span_t text_at(
    const uint64_t *ends, const uint8_t *texts, size_t size, size_t i
) noexcept nogil:
    """Return text `i` of a column, or an empty one if its ends are invalid.

    A mapped column may hold any bytes and change: each end is loaded once.
    """
    cdef uint64_t start = fs_load(ends + i - 1) if i > 0 else 0
    cdef uint64_t end = fs_load(ends + i)
    if end > size or start > end:
        return span_of(texts, 0)
    return span_of(texts + start, <size_t> (end - start))


cdef span_t name_at(const void *columns, uint32_t i) noexcept nogil:
    """Return the name of member `i`, borrowed from the table."""
    cdef const columns_t *table = <const columns_t *> columns
    if table.name_width != 0:
        return span_of(table.names + i * table.name_width, table.name_width)
    return text_at(table.name_ends, table.names, table.names_size, i)


cdef span_t info_at(const columns_t *columns, size_t i) noexcept nogil:
    """Return the info of member `i`, borrowed from the table; it may be empty."""
    if columns.info_ends == NULL:
        return span_of(NULL, 0)
    return text_at(columns.info_ends, columns.infos, columns.infos_size, i)


cdef bint trim_infos(columns_t *columns) noexcept nogil:
    """Resize the columns of infos to their contents; False: out of memory."""
    return columns.info_ends == NULL or (
        resize(<void **> &columns.info_ends, columns.count, sizeof(uint64_t))
        and resize(<void **> &columns.infos, columns.infos_size, 1)
    )


# Sort of members that an index lists in any order.

cdef void *column_of(size_t count, size_t width) noexcept nogil:
    """Allocate a column; NULL: out of memory."""
    cdef void *column = NULL
    resize(&column, count, width)
    return column


cdef bint sort_by_digit(
    const record_t *records, record_t *to, size_t count, const size_t *counts, int shift
) noexcept nogil:
    """Distribute by one digit of the offsets; return False if all have the same."""
    cdef size_t[VALUES] next_at
    cdef size_t i, digit
    cdef size_t total = 0
    for i in range(<size_t> VALUES):
        if counts[i] == count:
            return False
        next_at[i] = total
        total += counts[i]
    for i in range(count):
        digit = records[i].offset >> shift & 0xff
        to[next_at[digit]] = records[i]
        next_at[digit] += 1
    return True


cdef record_t *sort_records(
    record_t *records, record_t *spare, size_t count
) noexcept nogil:
    """Sort by offset with a stable radix sort, linear in `count`.

    Returns the sorted one of the two arrays.
    """
    cdef size_t[DIGITS * VALUES] counts
    cdef size_t i, digit
    cdef record_t *ordered = records
    cdef record_t *other = spare
    memset(counts, 0, sizeof(counts))
    for i in range(count):
        for digit in range(<size_t> DIGITS):
            counts[digit * VALUES + (records[i].offset >> 8 * digit & 0xff)] += 1
    for digit in range(<size_t> DIGITS):
        if sort_by_digit(
            ordered, other, count, counts + digit * VALUES, <int> (8 * digit)
        ):
            ordered, other = other, ordered
    return ordered


cdef void copy_texts(
    const record_t *records, size_t count,
    const uint64_t *ends, const uint8_t *texts,
    uint64_t *new_ends, uint8_t *new_texts,
) noexcept nogil:
    """Copy a column of texts in sorted order."""
    cdef size_t i, position
    cdef uint64_t start, size
    cdef uint64_t used = 0
    for i in range(count):
        position = records[i].position
        start = ends[position - 1] if position > 0 else 0
        size = ends[position] - start
        memcpy(new_texts + used, texts + start, size)
        used += size
        new_ends[i] = used


cdef bint make_columns(columns_t *new, const columns_t *old) noexcept nogil:
    """Allocate columns as large as `old`; the caller frees them even after False."""
    cdef size_t count = old.count
    memset(new, 0, sizeof(columns_t))
    new.count = new.capacity = count
    new.names_size = new.names_capacity = old.names_size
    new.growth = old.growth
    new.offsets = <uint64_t *> column_of(count, sizeof(uint64_t))
    new.sizes = <uint64_t *> column_of(count, sizeof(uint64_t))
    new.name_ends = <uint64_t *> column_of(count, sizeof(uint64_t))
    new.names = <uint8_t *> column_of(old.names_size, 1)
    if old.info_ends != NULL:
        new.infos_size = old.infos_size
        new.info_ends = <uint64_t *> column_of(count, sizeof(uint64_t))
        new.infos = <uint8_t *> column_of(old.infos_size, 1)
        if new.info_ends == NULL or new.infos == NULL:
            return False
    return not (
        new.offsets == NULL
        or new.sizes == NULL
        or new.name_ends == NULL
        or new.names == NULL
    )


cdef bint reorder(columns_t *columns, const record_t *records) noexcept nogil:
    """Replace the columns by sorted ones; False: out of memory."""
    cdef columns_t new
    cdef size_t i
    if not make_columns(&new, columns):
        columns_free(&new)
        return False
    for i in range(columns.count):
        new.offsets[i] = records[i].offset
        new.sizes[i] = columns.sizes[records[i].position]
    copy_texts(
        records, columns.count, columns.name_ends, columns.names,
        new.name_ends, new.names,
    )
    if columns.info_ends != NULL:
        copy_texts(
            records, columns.count, columns.info_ends, columns.infos,
            new.info_ends, new.infos,
        )
    columns_free(columns)
    columns[0] = new
    return True


cdef bint is_archive_order(
    const record_t *ordered, const uint64_t *sizes, size_t count
) noexcept nogil:
    """Return whether members, here sorted by offset, were in the order of an archive.

    Links have the extent of their target and stand elsewhere: one member of each offset
    must stand behind one of the offset before. Without links that is not another order.
    """
    cdef size_t i
    cdef size_t next_at = 0        # the least position of the next target
    cdef bint found = True
    for i in range(count):
        if i == 0 or ordered[i].offset != ordered[i - 1].offset:
            if not found:
                return False
            found = False
        elif sizes[ordered[i].position] != sizes[ordered[i - 1].position]:
            return False
        if not found and ordered[i].position >= next_at:
            next_at = ordered[i].position + 1
            found = True
    return found


cdef bint columns_sort(columns_t *columns) noexcept nogil:
    """Sort members by offset, stably, unless links alone are out of that order.

    Returns False if out of memory.
    """
    cdef size_t count = columns.count
    cdef record_t *ordered
    cdef record_t *records = <record_t *> column_of(count, sizeof(record_t))
    cdef record_t *spare = <record_t *> column_of(count, sizeof(record_t))
    cdef size_t i
    cdef bint moved = False
    if records != NULL and spare != NULL:
        for i in range(count):
            records[i].offset = columns.offsets[i]
            records[i].position = i
        ordered = sort_records(records, spare, count)
        moved = is_archive_order(ordered, columns.sizes, count)
        moved = moved or reorder(columns, ordered)
    free(records)
    free(spare)
    return moved


def order_extents(list extents not None):
    """Return extents ``(offset, size, ...)`` in the order of `columns_sort`."""
    cdef Py_ssize_t i
    cdef size_t count = len(extents)
    cdef record_t *records = <record_t *> column_of(count, sizeof(record_t))
    cdef record_t *spare = <record_t *> column_of(count, sizeof(record_t))
    cdef uint64_t *sizes = <uint64_t *> column_of(count, sizeof(uint64_t))
    cdef record_t *ordered
    try:
        if records == NULL or spare == NULL or sizes == NULL:
            raise MemoryError
        for i in range(<Py_ssize_t> count):
            records[i].offset = extents[i][0]
            records[i].position = i
            sizes[i] = extents[i][1]
        ordered = sort_records(records, spare, count)
        if is_archive_order(ordered, sizes, count):
            return extents
        return [extents[ordered[i].position] for i in range(<Py_ssize_t> count)]
    finally:
        free(records)
        free(spare)
        free(sizes)


# The table.

cdef size_t common_width(const columns_t *columns) noexcept nogil:
    """Return the length of each name in bytes; 0: they differ, or there are none."""
    cdef size_t i
    cdef size_t width = columns.names_size // max(columns.count, <size_t> 1)
    if width == 0 or width * columns.count != columns.names_size:
        return 0
    for i in range(columns.count):
        if fs_load(columns.name_ends + i) != (i + 1) * width:
            return 0
    return width


cdef int build_by_name(
    const columns_t *columns, slots_t *by_name, bint *repeats
) noexcept nogil:
    """Hash all names, of duplicates the last; return -1 if out of memory."""
    cdef uint32_t filling = 0
    cdef uint32_t *slot
    cdef size_t i
    if not slots_init(by_name, columns.count):
        return -1
    for i in range(columns.count):
        slot = slots_find(
            by_name, name_at(columns, <uint32_t> i), name_at, columns, &filling
        )
        repeats[0] = repeats[0] or slot[0] != 0
        slot[0] = filling | <uint32_t> (i + 1)
    return 0


cdef Py_ssize_t resolve_position(object key, Py_ssize_t count) except -1:
    """Return a position in a sequence of `count`; negative ones count from its end."""
    cdef Py_ssize_t i
    if not PyIndex_Check(key):
        raise TypeError(f"position must be an integer, got {type(key).__name__}")
    i = PyNumber_AsSsize_t(key, IndexError)
    if i < 0:
        i += count
    if not 0 <= i < count:
        raise IndexError(f"position {key} is out of range for length {count:,}")
    return i


@cython.final
@cython.no_gc
cdef class ExtentTable:
    """Offsets, sizes and names of a shard's members, in the order of the shard."""

    def __len__(self):
        return self.columns.count

    def __reduce__(self):
        raise TypeError("an ExtentTable does not pickle; pickle the shard")

    @property
    def nbytes(self):
        """Memory of the table in bytes, without the hash table."""
        cdef size_t infos = self.columns.infos_size
        if self.columns.info_ends != NULL:
            infos += 8 * self.columns.count
        return 24 * self.columns.capacity + self.columns.names_capacity + infos

    def extent(self, i):
        """Return a member's offset and size in bytes, without checking them."""
        cdef Py_ssize_t at = resolve_position(i, len(self))
        if has_unchecked_blocks(self):
            self.check_extent(at)
        return fs_load(self.columns.offsets + at), fs_load(self.columns.sizes + at)

    def name_of(self, i):
        """Return a member's name."""
        return self.name(resolve_position(i, len(self)))

    def info(self, i):
        """Return the JSON text (bytes) that an index stores for a member, or ``b""``.

        From a JSON index this is the member's whole object.
        """
        cdef Py_ssize_t at = resolve_position(i, len(self))
        cdef span_t text
        if has_unchecked_blocks(self):
            self.check_info(at)
        text = info_at(&self.columns, at)
        return PyBytes_FromStringAndSize(<const char *> text.at, text.left)

    @property
    def data_bytes(self):
        """Sum of the sizes of all members in bytes, modulo 2**64."""
        cdef size_t i
        cdef uint64_t total = 0
        self.check_extents()
        with nogil:
            for i in range(self.columns.count):
                total += fs_load(self.columns.sizes + i)
        return total

    @property
    def has_duplicates(self):
        """True if two members have the same name."""
        if not fs_is_set(&self.hashed):
            self.build_hash()
        return self.repeats

    def twins(self, i):
        """Return the positions of other members with a member's extent: its links."""
        cdef Py_ssize_t at = resolve_position(i, len(self))
        cdef size_t k
        cdef uint64_t offset, size
        self.check_extents()
        offset = fs_load(self.columns.offsets + at)
        size = fs_load(self.columns.sizes + at)
        return [
            k for k in range(self.columns.count)
            if fs_load(self.columns.offsets + k) == offset
            and fs_load(self.columns.sizes + k) == size and k != <size_t> at
        ]

    def duplicates(self):
        """Return the positions of members whose name a later member repeats."""
        cdef Py_ssize_t i
        return [
            i for i in range(len(self)) if self.find(self.name(i)) != i
        ]

    def verify_on_use(self, index not None, is_there not None):
        """Compare each member's header when its bytes are first used.

        Call once, before the table is shared. Further calls do nothing.
        """
        if self.verified != NULL:
            return
        self.index = index
        self.is_there = is_there
        self.verified = <uint8_t *> calloc(self.columns.count // 8 + 1, 1)
        if self.verified == NULL:
            raise MemoryError

    def mark_verified(self, i):
        """Mark a member as verified: its header will not be compared."""
        cdef Py_ssize_t at = resolve_position(i, len(self))
        if self.verified != NULL:
            fs_set_bit(self.verified, at)

    def is_verified(self, i):
        """Return whether a member of a table with `verify_on_use` was verified."""
        cdef Py_ssize_t at = resolve_position(i, len(self))
        return self.verified != NULL and fs_has_bit(self.verified, at)

    cdef int check(self, const void *at, uint64_t size) except -1:
        """Raise FormatError if these bytes of a borrowed column are damaged."""
        cdef blocks_t *blocks = <blocks_t *> fs_load_pointer(
            <void **> &self.columns.blocks
        )
        if blocks == NULL:
            return 0
        blocks_check(blocks, at, size, self.keeper.path)
        if fs_load_relaxed(&blocks.left) == 0:  # `blocks` belong to `keeper`
            self.columns.blocks = NULL
        return 0

    cdef int check_extent(self, Py_ssize_t i) except -1:
        self.check(self.columns.offsets + i, sizeof(uint64_t))
        return self.check(self.columns.sizes + i, sizeof(uint64_t))

    cdef int check_text(
        self, const uint64_t *ends, const uint8_t *texts, size_t size, size_t i
    ) except -1:
        """Check a text of a column, and its ends."""
        cdef size_t before = i > 0
        cdef span_t text
        self.check(ends + i - before, (1 + before) * sizeof(uint64_t))
        text = text_at(ends, texts, size, i)
        return self.check(text.at, text.left)

    cdef int check_name(self, Py_ssize_t i) except -1:
        return self.check_text(
            self.columns.name_ends, self.columns.names, self.columns.names_size, i
        )

    cdef int check_info(self, Py_ssize_t i) except -1:
        if self.columns.info_ends == NULL:
            return 0
        return self.check_text(
            self.columns.info_ends, self.columns.infos, self.columns.infos_size, i
        )

    cdef int check_extents(self) except -1:
        """Check the whole columns of offsets and sizes."""
        self.check(self.columns.offsets, self.columns.count * sizeof(uint64_t))
        return self.check(self.columns.sizes, self.columns.count * sizeof(uint64_t))

    cdef int check_names(self) except -1:
        """Check the whole column of names."""
        self.check(self.columns.name_ends, self.columns.count * sizeof(uint64_t))
        return self.check(self.columns.names, self.columns.names_size)

    cdef int check_infos(self) except -1:
        """Check the whole column of infos."""
        if self.columns.info_ends == NULL:
            return 0
        self.check(self.columns.info_ends, self.columns.count * sizeof(uint64_t))
        return self.check(self.columns.infos, self.columns.infos_size)

    cdef str name(self, Py_ssize_t i):
        if has_unchecked_blocks(self):
            self.check_name(i)
        return decode_text(name_at(&self.columns, <uint32_t> i))

    cdef Py_ssize_t find(self, object name) except -2:
        """Return the position of the last member of this name, or -1."""
        cdef span_t text
        cdef uint32_t filling = 0
        cdef uint32_t slot
        cdef object keeper = encode_text(name, &text)
        if not fs_is_set(&self.hashed):
            self.build_hash()
        if keeper is None:
            return -1
        slot = slots_find(&self.by_name, text, name_at, &self.columns, &filling)[0]
        return -1 if slot == 0 else <Py_ssize_t> slot_entry(&self.by_name, slot)

    cdef build_hash(self):
        """Build `by_name`, without the GIL."""
        cdef slots_t built
        cdef bint repeats = False
        cdef size_t width
        cdef int status
        if self.columns.count > MAX_ENTRIES:
            raise MemoryError(
                f"cannot hash {self.columns.count:,} names: limit is {MAX_ENTRIES:,}"
            )
        self.check_names()
        with nogil:
            width = common_width(&self.columns)
            status = build_by_name(&self.columns, &built, &repeats)
        if status != 0:
            raise MemoryError
        with cython.critical_section(self):
            if not fs_is_set(&self.hashed):
                self.by_name = built
                self.repeats = repeats
                self.columns.name_width = width
                fs_set(&self.hashed)
                return
        slots_free(&built)         # another thread was faster

    def __dealloc__(self):
        if self.keeper is None:
            columns_free(&self.columns)
        slots_free(&self.by_name)
        free(self.verified)


@cython.final
cdef class Names:
    """Sequence of the names of a shard's members, decoded on access.

    Bytes that are not UTF-8 decode to lone surrogates (``surrogateescape``).
    """

    def __cinit__(self, ExtentTable table not None):
        self.table = table

    def __len__(self):
        return self.table.columns.count

    def __getitem__(self, key):
        if isinstance(key, slice):
            return [self.table.name(i) for i in range(*key.indices(len(self)))]
        return self.table.name(resolve_position(key, len(self)))

    def __contains__(self, name):
        return isinstance(name, str) and self.table.find(name) >= 0

    def __iter__(self):
        cdef Py_ssize_t i
        for i in range(len(self)):
            yield self.table.name(i)

    def __reversed__(self):
        cdef Py_ssize_t i
        for i in range(len(self) - 1, -1, -1):
            yield self.table.name(i)

    def __eq__(self, other):
        if isinstance(other, (Names, list, tuple)):
            return len(self) == len(other) and all(
                a == b for a, b in zip(self, other, strict=True)
            )
        return NotImplemented

    __hash__ = None

    def index(self, name, start=0, stop=None):
        """Return the first position of a name; raise ValueError if there is none."""
        return list(self).index(name, start, len(self) if stop is None else stop)

    def count(self, name):
        """Return how many members have this name."""
        return list(self).count(name)

    def __repr__(self):
        shown = ", ".join(repr(name) for name in self[:3])
        more = ", ..." if len(self) > 3 else ""
        return f"<{len(self):,} names: [{shown}{more}]>"

    def __reduce__(self):
        return list, (list(self),)


collections.abc.Sequence.register(Names)


cdef ExtentTable make_table(columns_t *columns):
    """Return a table that takes over the columns, trimmed to their contents."""
    cdef ExtentTable table = ExtentTable.__new__(ExtentTable)
    table.columns = columns[0]
    forget(columns)
    if not (
        reserve(&table.columns, table.columns.count)
        and reserve_names(&table.columns, table.columns.names_size)
        and trim_infos(&table.columns)
    ):
        raise MemoryError
    return table


# Look-up of many names: cache lines are prefetched a batch ahead.

cdef inline void prefetch_name(
    const uint8_t *at, const wanted_t *wanted
) noexcept nogil:
    """Prefetch the stored name that will be compared with a wanted one."""
    fs_prefetch_line(at)
    fs_prefetch_line(at + wanted.name.left - 1)


cdef void find_batch(
    const slots_t *slots, const columns_t *columns, wanted_t *wanted, size_t count,
    int64_t *found,
) noexcept nogil:
    """Look up a batch of names; each step uses memory that the last prefetched."""
    cdef size_t k
    cdef uint32_t slot
    cdef uint32_t filling = 0
    cdef uint64_t end
    cdef uint32_t[<int> BATCH] entries
    for k in range(count):
        wanted[k].hashed = slots_hash(wanted[k].name)
        fs_prefetch_line(slots_home(slots, wanted[k].hashed))
    for k in range(count):
        slot = slots_likely(slots, wanted[k].hashed)
        entries[k] = 0 if slot == 0 else slot_entry(slots, slot)
        if columns.name_width == 0:
            fs_prefetch_line(columns.name_ends + entries[k])
        else:
            prefetch_name(columns.names + entries[k] * columns.name_width, &wanted[k])
    if columns.name_width == 0:
        for k in range(count):
            end = fs_load(columns.name_ends + entries[k])
            end = min(end, <uint64_t> columns.names_size)
            end -= min(end, <uint64_t> wanted[k].name.left)
            prefetch_name(columns.names + end, &wanted[k])
    for k in range(count):
        slot = slots_find_hashed(
            slots, wanted[k].hashed, wanted[k].name, name_at, columns, &filling
        )[0]
        found[wanted[k].ordinal] = (
            -1 if slot == 0 else <int64_t> slot_entry(slots, slot)
        )


cdef void prefetch_texts(list texts, size_t start) noexcept:
    """Prefetch a batch of a list of str, in one loop to overlap misses."""
    cdef size_t k
    cdef size_t end = min(start + BATCH, <size_t> len(texts))
    for k in range(start, end):
        fs_prefetch_line(PyList_GET_ITEM(texts, k))
        fs_prefetch_line(<char *> PyList_GET_ITEM(texts, k) + LINE)


def find_names(ExtentTable names not None, list wanted not None, str suffix not None):
    """Return the positions of names as an array of int64; -1: no such name."""
    cdef const char *text = NULL
    cdef Py_ssize_t size = 0
    cdef Py_ssize_t end_size = len(suffix)
    cdef bytes end = suffix.encode("ascii")
    cdef const char *end_at = end
    cdef size_t used = 0
    cdef size_t count = 0
    cdef size_t k
    cdef wanted_t[<int> BATCH] batch
    cdef object positions = array("q", bytes(8 * len(wanted)))
    cdef Py_buffer buffer
    cdef int64_t *found
    cdef uint8_t *buffered         # the names of a batch
    if not wanted or names.columns.count == 0:
        return array("q", [-1]) * len(wanted)
    names.find(suffix)             # builds the hash table
    buffered = <uint8_t *> malloc(BATCH_BYTES)
    if buffered == NULL:
        raise MemoryError
    found = int64s_of(positions, &buffer, writable=True)
    prefetch_texts(wanted, 0)
    try:
        for k in range(<size_t> len(wanted)):
            if k % BATCH == 0:     # those of the next batch, before this one's misses
                prefetch_texts(wanted, k + BATCH)
            name = wanted[k]
            if not isinstance(name, str):
                raise TypeError(f"name must be str, got {type(name).__name__}")
            try:
                text = PyUnicode_AsUTF8AndSize(name, &size)
            except UnicodeEncodeError:
                found[k] = -1
                continue
            if <size_t> (size + end_size) > BATCH_BYTES // 2:
                found[k] = names.find(name + suffix)
                continue
            if count == BATCH or used + size + end_size > BATCH_BYTES:
                find_batch(&names.by_name, &names.columns, batch, count, found)
                count = used = 0
            memcpy(buffered + used, text, size)
            memcpy(buffered + used + size, end_at, end_size)
            batch[count].name = span_of(buffered + used, size + end_size)
            batch[count].ordinal = k
            used += size + end_size
            count += 1
        find_batch(&names.by_name, &names.columns, batch, count, found)
    finally:
        PyBuffer_Release(&buffer)
        free(buffered)
    return positions
