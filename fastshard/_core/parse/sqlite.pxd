from libc.stdint cimport int64_t, uint8_t, uint32_t

from fastshard._core.span cimport span_t

cdef enum:
    MOST_LEVELS = 20               # SQLite itself goes no deeper

cdef enum tree_status_t:
    TREE_ROW
    TREE_END
    TREE_ODD                       # damaged, or no table's tree
    TREE_NO_MEMORY

cdef enum kind_t:
    KIND_NULL
    KIND_NUMBER
    KIND_TEXT
    KIND_OTHER

cdef struct value_t:               # of a column of a row
    int kind                       # a kind_t
    int64_t number
    span_t text                    # borrowed: of the image, or until the next row

cdef struct level_t:
    const uint8_t *page
    size_t cells                   # where the offsets of its cells are
    uint32_t count
    uint32_t next                  # that is looked at
    size_t room                    # bytes that rows which are left may take
    bint leaf

cdef struct tree_t:
    const uint8_t *pages
    size_t page_size
    size_t usable                  # bytes of a page: the rest is reserved
    size_t count                   # pages there are
    size_t budget                  # pages that may still be looked at
    int depth
    level_t[<int> MOST_LEVELS] levels
    uint8_t *scratch               # owned: a row that lies in several pages
    size_t scratch_size

cdef bint tree_open(tree_t *tree, span_t image, int64_t root) noexcept nogil
cdef int tree_next(
    tree_t *tree, value_t *values, const int *wanted, size_t columns
) noexcept nogil
cdef void tree_free(tree_t *tree) noexcept nogil
