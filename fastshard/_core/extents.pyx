"""The extent table: offset, size and name of each member of a shard.

Columns in C memory, 24 bytes and its name a member. No Python object is made
for a member until it is asked for; the hash of names is built on first use.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.number cimport PyIndex_Check, PyNumber_AsSsize_t
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memset

from fastshard._core.blocks cimport blocks_check, blocks_t
from fastshard._core.hashing cimport (
    MAX_ENTRIES, slot_entry, slots_find, slots_free, slots_init, slots_t,
)
from fastshard._core.platform cimport (
    PY_SSIZE_T_MAX, fs_glance, fs_has_bit, fs_is_set, fs_load, fs_load_pointer, fs_set,
    fs_set_bit,
)
from fastshard._core.span cimport span_of, span_t

import collections.abc

cdef double MAX_GUESS = 256.0     # times what is used; untouched room costs nothing

cdef extern from "Python.h":
    bint PyUnicode_IS_COMPACT_ASCII(object text)


cdef bint resized(void **column, size_t count, size_t width) noexcept nogil:
    cdef void *moved
    if count > (<size_t> PY_SSIZE_T_MAX) // width:
        return False
    moved = realloc(column[0], count * width + 1)  # + 1: never of no bytes
    if moved == NULL:
        return False
    column[0] = moved
    return True


cdef bint make_room(columns_t *columns, size_t count) noexcept nogil:
    if not (
        resized(<void **> &columns.offsets, count, sizeof(uint64_t))
        and resized(<void **> &columns.sizes, count, sizeof(uint64_t))
        and resized(<void **> &columns.name_ends, count, sizeof(uint64_t))
    ):
        return False
    columns.room = count
    return True


cdef bint make_names_room(columns_t *columns, size_t size) noexcept nogil:
    if not resized(<void **> &columns.names, size, 1):
        return False
    columns.names_room = size
    return True


cdef size_t more_room(size_t used, double expected) noexcept nogil:
    """How much to make room for: a good guess leaves no holes in the heap.

    The guess comes from the file, so it counts up to a limit.
    """
    cdef double guess = used * min(max(expected, 2.0), MAX_GUESS)
    return <size_t> guess + 64


cdef bint columns_add(
    columns_t *columns, uint64_t offset, uint64_t size, span_t name
) noexcept nogil:
    """Append a member, whose name is copied; False: no memory."""
    cdef size_t i = columns.count
    cdef size_t names_left = columns.names_room - columns.names_size
    cdef size_t wanted
    if i == columns.room and not make_room(columns, more_room(i, columns.expected)):
        return False
    if columns.names == NULL or name.left > names_left:  # copying to NULL is no copy
        wanted = more_room(columns.names_size, columns.expected) + name.left
        if not make_names_room(columns, wanted):
            return False
    memcpy(columns.names + columns.names_size, name.at, name.left)
    columns.names_size += name.left
    columns.offsets[i] = offset
    columns.sizes[i] = size
    columns.name_ends[i] = columns.names_size
    columns.count = i + 1
    return True


cdef bint columns_add_info(columns_t *columns, span_t text) noexcept nogil:
    """Say more of the last member; False: no memory."""
    cdef bint none_before = columns.info_ends == NULL
    cdef size_t wanted
    if columns.info_ends_room < columns.count:
        if not resized(<void **> &columns.info_ends, columns.room, sizeof(uint64_t)):
            return False
        columns.info_ends_room = columns.room
    if none_before:
        memset(columns.info_ends, 0, columns.count * sizeof(uint64_t))
    if columns.infos == NULL or text.left > columns.infos_room - columns.infos_size:
        wanted = more_room(columns.infos_size, columns.expected) + text.left
        if not resized(<void **> &columns.infos, wanted, 1):
            return False
        columns.infos_room = wanted
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
    columns.offsets = columns.sizes = columns.name_ends = columns.info_ends = NULL
    columns.names = columns.infos = NULL


cdef inline span_t text_at(
    const uint64_t *ends, const uint8_t *texts, size_t size, size_t i
) noexcept nogil:
    """Text `i` of a column of texts, or none where its ends are no ends.

    A mapped column may hold anything, and change: each end is loaded once.
    """
    cdef uint64_t start = fs_load(ends + i - 1) if i > 0 else 0
    cdef uint64_t end = fs_load(ends + i)
    if end > size or start > end:
        return span_of(texts, 0)
    return span_of(texts + start, <size_t> (end - start))


cdef span_t name_at(const void *columns, uint32_t i) noexcept nogil:
    """The name of member `i`, borrowed from the table."""
    cdef const columns_t *table = <const columns_t *> columns
    if table.name_width != 0:
        return span_of(table.names + i * table.name_width, table.name_width)
    return text_at(table.name_ends, table.names, table.names_size, i)


cdef span_t info_at(const columns_t *columns, size_t i) noexcept nogil:
    """What an index says of member `i` beyond its extent; borrowed, may be empty."""
    if columns.info_ends == NULL:
        return span_of(NULL, 0)
    return text_at(columns.info_ends, columns.infos, columns.infos_size, i)


cdef bint trim_infos(columns_t *columns) noexcept nogil:
    return columns.info_ends == NULL or (
        resized(<void **> &columns.info_ends, columns.count, sizeof(uint64_t))
        and resized(<void **> &columns.infos, columns.infos_size, 1)
    )


cdef ExtentTable table_of(columns_t *columns):
    """Make a table that owns the columns; trims the room they do not use."""
    cdef ExtentTable table = ExtentTable.__new__(ExtentTable)
    table.columns = columns[0]
    forget(columns)
    if not (
        make_room(&table.columns, table.columns.count)
        and make_names_room(&table.columns, table.columns.names_size)
        and trim_infos(&table.columns)
    ):
        raise MemoryError
    return table


cdef size_t common_width(const columns_t *columns) noexcept nogil:
    """How long each name is; 0: they differ, or there are none."""
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
    """Hash every name; of equal ones the last stays. -1: no memory."""
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


cdef str text_from(span_t text):
    """Decode a name; bytes that are not UTF-8 become lone surrogates."""
    return PyUnicode_DecodeUTF8(<const char *> text.at, text.left, "surrogateescape")


cdef str text_before(span_t text, size_t end):
    """The same without the last `end` bytes of it."""
    text.left -= min(end, text.left)
    return text_from(text)


cdef object text_to(object name, span_t *text):
    """Encode a name as `text_from` decoded it; return what keeps `text` alive.

    None where no name decodes to this (a lone surrogate that stands for no byte).
    """
    cdef Py_ssize_t size = 0
    cdef const char *at
    cdef object keeper = name
    if type(name) is not str:      # a subclass, such as numpy.str_
        keeper = name = str.__str__(name)
    if not PyUnicode_IS_COMPACT_ASCII(name):
        try:
            keeper = name.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            return None
        text[0] = span_of(<const uint8_t *> PyBytes_AS_STRING(keeper), len(keeper))
        return keeper
    at = PyUnicode_AsUTF8AndSize(name, &size)
    text[0] = span_of(<const uint8_t *> at, size)
    return keeper


@cython.final
@cython.no_gc
cdef class ExtentTable:
    """Offsets, sizes and names of a shard's members, in the shard's order."""

    def __len__(self):
        return self.columns.count

    def __reduce__(self):
        raise TypeError("an ExtentTable does not pickle; pickle the shard")

    @property
    def nbytes(self):
        """Bytes of memory that the table takes, hashes left out."""
        cdef size_t infos = self.columns.infos_size
        if self.columns.info_ends != NULL:
            infos += 8 * self.columns.count
        return 24 * self.columns.room + self.columns.names_room + infos

    def extent(self, i):
        """Return a member's offset and size, in bytes, as the table has them."""
        cdef Py_ssize_t at = checked_position(i, len(self))
        if is_doubtful(self):
            self.check_extent(at)
        return fs_load(self.columns.offsets + at), fs_load(self.columns.sizes + at)

    def name_of(self, i):
        """Return a member's name."""
        return self.name(checked_position(i, len(self)))

    def info(self, i):
        """Return the JSON text (bytes) that an index has of a member, or none.

        Where a JSON index is the source it is the member's whole entry.
        """
        cdef Py_ssize_t at = checked_position(i, len(self))
        cdef span_t text
        if is_doubtful(self):
            self.check_info(at)
        text = info_at(&self.columns, at)
        return PyBytes_FromStringAndSize(<const char *> text.at, text.left)

    @property
    def data_bytes(self):
        """The sum of all members' sizes, in bytes; modulo 2**64."""
        cdef size_t i
        cdef uint64_t total = 0
        self.check_extents()
        with nogil:
            for i in range(self.columns.count):
                total += fs_load(self.columns.sizes + i)
        return total

    @property
    def has_duplicates(self):
        """Whether two members have the same name."""
        if not fs_is_set(&self.hashed):
            self.hash_names()
        return self.repeats

    def duplicates(self):
        """Return the positions of members whose name a later one has too."""
        cdef Py_ssize_t i
        return [
            i for i in range(len(self)) if self.find(self.name(i)) != i
        ]

    def doubt(self, index not None, is_there not None):
        """Have each member's header compared when its bytes are first used; see `Shard.prove`.

        Parameters
        ----------
        index : str
            What the table was read from, for messages.
        is_there : callable
            ``is_there(table, i, source) -> bool``: whether member `i` is where the
            table says, although its own block says otherwise.

        Notes
        -----
        Done once, before the table is shared.
        """
        if self.proven != NULL:
            return
        self.index = index
        self.is_there = is_there
        self.proven = <uint8_t *> calloc(self.columns.count // 8 + 1, 1)
        if self.proven == NULL:
            raise MemoryError

    def prove(self, i):
        """Note that a member is where the table says: its header is not looked at."""
        cdef Py_ssize_t at = checked_position(i, len(self))
        if self.proven != NULL:
            fs_set_bit(self.proven, at)

    def is_proven(self, i):
        """Say whether a member is in doubt no more, if the table was."""
        cdef Py_ssize_t at = checked_position(i, len(self))
        return self.proven != NULL and fs_has_bit(self.proven, at)

    cdef int check(self, const void *at, uint64_t size) except -1:
        """Complain of damage in some bytes of the index that the columns stand in."""
        cdef blocks_t *blocks = <blocks_t *> fs_load_pointer(
            <void **> &self.columns.blocks
        )
        if blocks == NULL:
            return 0
        blocks_check(blocks, at, size, self.keeper.path)
        if fs_glance(&blocks.left) == 0:  # the memory's owner keeps them
            self.columns.blocks = NULL
        return 0

    cdef int check_extent(self, Py_ssize_t i) except -1:
        self.check(self.columns.offsets + i, sizeof(uint64_t))
        return self.check(self.columns.sizes + i, sizeof(uint64_t))

    cdef int check_text(
        self, const uint64_t *ends, const uint8_t *texts, size_t size, size_t i
    ) except -1:
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
        """The same of a whole column, as the next two."""
        self.check(self.columns.offsets, self.columns.count * sizeof(uint64_t))
        return self.check(self.columns.sizes, self.columns.count * sizeof(uint64_t))

    cdef int check_names(self) except -1:
        self.check(self.columns.name_ends, self.columns.count * sizeof(uint64_t))
        return self.check(self.columns.names, self.columns.names_size)

    cdef int check_infos(self) except -1:
        if self.columns.info_ends == NULL:
            return 0
        self.check(self.columns.info_ends, self.columns.count * sizeof(uint64_t))
        return self.check(self.columns.infos, self.columns.infos_size)

    cdef str name(self, Py_ssize_t i):
        if is_doubtful(self):
            self.check_name(i)
        return text_from(name_at(&self.columns, <uint32_t> i))

    cdef Py_ssize_t find(self, object name) except -2:
        """Return the position of the last member of this name, or -1."""
        cdef span_t text
        cdef uint32_t filling = 0
        cdef uint32_t slot
        cdef object keeper = text_to(name, &text)
        if not fs_is_set(&self.hashed):
            self.hash_names()
        if keeper is None:
            return -1
        slot = slots_find(&self.by_name, text, name_at, &self.columns, &filling)[0]
        return -1 if slot == 0 else <Py_ssize_t> slot_entry(&self.by_name, slot)

    cdef hash_names(self):
        cdef slots_t built
        cdef bint repeats = False
        cdef size_t width
        cdef int status
        if self.columns.count > MAX_ENTRIES:
            raise MemoryError("too many members to look up by name")
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
        free(self.proven)


@cython.final
cdef class Names:
    """The names of a shard's members: a `Sequence` of str, made when asked for.

    Bytes that are not UTF-8 come as lone surrogates (``surrogateescape``).
    """

    def __cinit__(self, ExtentTable table not None):
        self.table = table

    def __len__(self):
        return self.table.columns.count

    def __getitem__(self, key):
        if isinstance(key, slice):
            return [self.table.name(i) for i in range(*key.indices(len(self)))]
        return self.table.name(checked_position(key, len(self)))

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
        """Return the first position of a name; ValueError if there is none."""
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


cdef Py_ssize_t checked_position(object key, Py_ssize_t count) except -1:
    """Resolve an index of a sequence of `count`; negative ones count back."""
    cdef Py_ssize_t i
    if not PyIndex_Check(key):
        raise TypeError(f"positions are integers, not {type(key).__name__}")
    i = PyNumber_AsSsize_t(key, IndexError)
    if i < 0:
        i += count
    if not 0 <= i < count:
        raise IndexError(f"position {key} is out of range: there are {count:,}")
    return i
