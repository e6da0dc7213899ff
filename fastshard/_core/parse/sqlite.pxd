from libc.stdint cimport int64_t, uint8_t, uint32_t

from fastshard._core.span cimport span_t

cdef enum:
    MAX_LEVELS = 20                # SQLite's own limit

cdef enum tree_status_t:
    TREE_ROW
    TREE_END
    TREE_UNSUPPORTED               # damaged, or not the b-tree of a table
    TREE_NO_MEMORY
    TREE_DAMAGED                   # a row that SQLite reads, and never writes

cdef enum kind_t:
    KIND_NULL
    KIND_NUMBER
    KIND_TEXT
    KIND_OTHER

cdef struct value_t:               # one column of a row
    int kind                       # a kind_t
    int64_t number
    span_t text                    # borrowed; valid until the next row

cdef struct level_t:
    const uint8_t *page
    size_t cells                   # offset in the page of the array of cell offsets
    uint32_t count                 # cells
    uint32_t next                  # cell
    size_t budget                  # bytes of the page that its rows may still take
    bint leaf

cdef struct tree_t:
    const uint8_t *pages
    size_t page_size
    size_t usable                  # bytes of a page; the rest is reserved
    size_t count                   # pages
    size_t budget                  # pages that may still be visited
    int depth
    level_t[<int> MAX_LEVELS] levels
    bint has_row                   # one was read
    int64_t rowid                  # of the last row
    size_t row_at                  # its offset in the image
    uint8_t *scratch               # owned; a row assembled from several pages
    size_t scratch_size

cdef bint tree_open(tree_t *tree, span_t image, int64_t root) noexcept nogil
cdef int tree_next(
    tree_t *tree, value_t *values, const int *wanted, size_t columns
) noexcept nogil
cdef void tree_free(tree_t *tree) noexcept nogil
