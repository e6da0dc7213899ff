from libc.stdint cimport uint8_t, uint32_t, uint64_t

from fastshard._core.platform cimport fs_load_pointer
from fastshard._core.span cimport span_t
from fastshard._core.table.checksums cimport blocks_t

cdef enum:
    MAX_ENTRIES = 0xfffffffe       # the limit of 32-bit slots

# Returns the text of an entry. `context` is passed through from the caller.
ctypedef span_t (*text_at_t)(const void *context, uint32_t entry) noexcept nogil

cdef struct slots_t:               # a hash table of entry numbers; holds no texts
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
    """Return the entry of a slot that is not empty."""
    return (slot & table.entry_mask) - 1


cdef struct columns_t:             # columns of a table, one value a member
    uint64_t *offsets
    uint64_t *sizes
    uint64_t *name_ends            # end of each name in `names`; each begins where the
    uint8_t *names                 # one before ends
    size_t count                   # members
    size_t names_size              # bytes
    size_t capacity                # members
    size_t names_capacity          # bytes
    uint64_t *info_ends            # NULL: no member has info
    uint8_t *infos                 # JSON objects as an index stores them; may be empty
    size_t infos_size              # bytes
    size_t info_ends_capacity      # members
    size_t infos_capacity          # bytes
    double growth                  # guess of final by present count
    size_t name_width              # bytes of each name; 0: unknown, or they differ
    blocks_t *blocks               # blocks to check before use; NULL: all are checked

cdef bint resize(void **column, size_t count, size_t width) noexcept nogil
cdef size_t grown_capacity(size_t used, double growth) noexcept nogil
cdef bint columns_add(
    columns_t *columns, uint64_t offset, uint64_t size, span_t name
) noexcept nogil
cdef bint columns_add_info(columns_t *columns, span_t text) noexcept nogil
cdef bint columns_sort(columns_t *columns) noexcept nogil
cdef void columns_free(columns_t *columns) noexcept nogil
cdef span_t name_at(const void *columns, uint32_t i) noexcept nogil
cdef span_t info_at(const columns_t *columns, size_t i) noexcept nogil
cdef Py_ssize_t resolve_position(object key, Py_ssize_t count) except -1


cdef class ExtentTable:
    cdef columns_t columns
    cdef slots_t by_name           # built on the first look-up
    cdef int hashed                # flag: `by_name` is built
    cdef bint repeats              # two members share a name; valid once hashed
    cdef object keeper             # owner of borrowed columns; None: the table
    cdef uint8_t *verified         # a bit a member; NULL: no need to verify
    cdef readonly object index     # path of the index, for errors of `verify_on_use`
    cdef object is_there           # callback of `verify_on_use`
    cdef public bint scanned       # all headers were compared; the rest differ
    cdef object __weakref__
    cdef Py_ssize_t find(self, object name) except -2
    cdef str name(self, Py_ssize_t i)
    cdef build_hash(self)
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
    """Return whether the table borrows from an index that has unchecked blocks."""
    return fs_load_pointer(<void **> &table.columns.blocks) != NULL
