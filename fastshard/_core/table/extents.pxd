from libc.stdint cimport uint8_t, uint32_t, uint64_t

from fastshard._core.platform cimport fs_load_pointer
from fastshard._core.span cimport span_t
from fastshard._core.table.checksums cimport blocks_t

cdef enum:
    MAX_ENTRIES = 0xfffffffe       # what a slot of 32 bits can number

# Gives the text of an entry; `context` is the caller's.
ctypedef span_t (*text_at_t)(const void *context, uint32_t entry) noexcept nogil

cdef struct slots_t:               # a hash table of entry numbers, no texts in it
    uint32_t *slots                # 0: empty; else high bits of the hash | entry + 1
    size_t mask                    # slots - 1
    uint32_t entry_mask            # the bits of a slot that hold entry + 1

cdef uint64_t hash_bytes(span_t text, const uint64_t *key) noexcept nogil
cdef bint slots_init(slots_t *table, size_t entries) noexcept nogil
cdef void slots_free(slots_t *table) noexcept nogil
cdef uint32_t *slots_find(
    const slots_t *table, span_t text, text_at_t text_at, const void *context,
    uint32_t *filling,
) noexcept nogil


cdef inline uint32_t slot_entry(const slots_t *table, uint32_t slot) noexcept nogil:
    """The entry in a slot that is not empty."""
    return (slot & table.entry_mask) - 1


cdef struct columns_t:             # what a table holds, one value a member
    uint64_t *offsets
    uint64_t *sizes
    uint64_t *name_ends            # where a name ends in `names`; it begins where
    uint8_t *names                 # the one before ends
    size_t count
    size_t names_size
    size_t room                    # members that the columns have room for
    size_t names_room
    uint64_t *info_ends            # NULL where no member has more to say
    uint8_t *infos                 # JSON objects, as an index has them; or nothing
    size_t infos_size
    size_t info_ends_room          # members
    size_t infos_room              # bytes
    double expected                # times what is there: a guess at the whole
    size_t name_width              # of each name; 0: not known, or they differ
    blocks_t *blocks               # what is checked before it is used; NULL: all is

cdef bint resize(void **column, size_t count, size_t width) noexcept nogil
cdef size_t more_room(size_t used, double expected) noexcept nogil
cdef bint columns_add(
    columns_t *columns, uint64_t offset, uint64_t size, span_t name
) noexcept nogil
cdef bint columns_add_info(columns_t *columns, span_t text) noexcept nogil
cdef bint columns_sort(columns_t *columns) noexcept nogil
cdef void columns_free(columns_t *columns) noexcept nogil
cdef span_t name_at(const void *columns, uint32_t i) noexcept nogil
cdef span_t info_at(const columns_t *columns, size_t i) noexcept nogil
cdef str decode_text(span_t text)
cdef str decode_text_before(span_t text, size_t end)
cdef object encode_text(object name, span_t *text)
cdef Py_ssize_t resolve_position(object key, Py_ssize_t count) except -1


cdef class ExtentTable:
    cdef columns_t columns
    cdef slots_t by_name           # built on the first look-up
    cdef int hashed                # it is built
    cdef bint repeats              # and has met a name twice
    cdef object keeper             # owns the columns where the table does not
    cdef uint8_t *verified           # a bit a member: see `verify_on_use`; NULL: all are
    cdef readonly object index     # the index to blame, while members are in doubt
    cdef object is_there           # says of one whose block differs whether it is there
    cdef public bint scanned       # all headers were compared: what is in doubt is wrong
    cdef object __weakref__
    cdef Py_ssize_t find(self, object name) except -2
    cdef str name(self, Py_ssize_t i)
    cdef hash_names(self)
    cdef int check(self, const void *at, uint64_t size) except -1
    cdef int check_extent(self, Py_ssize_t i) except -1
    cdef int check_text(
        self, const uint64_t *ends, const uint8_t *texts, size_t size, size_t i
    ) except -1
    cdef int check_name(self, Py_ssize_t i) except -1
    cdef int check_info(self, Py_ssize_t i) except -1
    cdef int check_extents(self) except -1
    cdef int check_names(self) except -1
    cdef int check_infos(self) except -1


cdef class Names:
    cdef ExtentTable table


cdef ExtentTable make_table(columns_t *columns)


cdef inline bint has_unchecked_blocks(ExtentTable table) noexcept:
    """Whether the table is of an index of which some blocks are not checked."""
    return fs_load_pointer(<void **> &table.columns.blocks) != NULL
