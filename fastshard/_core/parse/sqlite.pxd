"""Reader of the rows of a table in an SQLite database image, in order of rowid.

Follows "Database File Format", sqlite.org: 1.3 header, 1.6 b-tree pages, 2.1 records.
Any deviation returns TREE_UNSUPPORTED; the caller then reads with SQLite itself. Where
SQLite would take a damaged row for a sound one, it is TREE_DAMAGED.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy

from fastshard._core.span cimport span_of, span_t, take

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


cdef enum:
    FILE_HEADER = 100              # bytes, at the beginning of the first page
    RESERVED_AT = 20               # offsets in the file header
    ENCODING_AT = 56
    UTF_8 = 1
    MIN_USABLE = 480               # bytes of a page
    MAX_ROW = 64 << 20             # bytes; connections of readers have this limit
    INNER_PAGE = 5                 # page types of a table's b-tree
    LEAF_PAGE = 13
    INNER_HEADER = 12              # bytes
    LEAF_HEADER = 8
    RIGHTMOST_AT = 8


cdef inline uint32_t number_at(const uint8_t *at, int width) noexcept nogil:
    """Return a big-endian unsigned number of at most 4 bytes."""
    cdef uint32_t found = 0
    cdef int k
    for k in range(width):
        found = found << 8 | at[k]
    return found


cdef inline bint take_varint(span_t *span, uint64_t *value) noexcept nogil:
    """Step over a varint; return False if it is cut off."""
    cdef uint64_t found = 0
    cdef const uint8_t *at
    cdef int k
    for k in range(8):
        at = take(span, 1)
        if at == NULL:
            return False
        found = found << 7 | (at[0] & 0x7f)
        if at[0] < 0x80:
            value[0] = found
            return True
    at = take(span, 1)             # the ninth byte has eight bits
    if at == NULL:
        return False
    value[0] = found << 8 | at[0]
    return True


cdef inline const uint8_t *page_at(tree_t *tree, size_t number) noexcept nogil:
    """Return a page and charge it to the budget; NULL: no such page, or none left."""
    if not 0 < number <= tree.count or tree.budget == 0:
        return NULL
    tree.budget -= 1               # a valid tree visits each page once
    return tree.pages + (number - 1) * tree.page_size


cdef inline bint descend(tree_t *tree, size_t number) noexcept nogil:
    """Descend to a page; return False if it is not a valid page of a table."""
    cdef const uint8_t *page = page_at(tree, number)
    cdef size_t header = FILE_HEADER if number == 1 else 0
    cdef level_t *level
    if page == NULL or tree.depth == MAX_LEVELS:
        return False
    if page[header] != INNER_PAGE and page[header] != LEAF_PAGE:
        return False
    level = &tree.levels[tree.depth]
    level.page = page
    level.leaf = page[header] == LEAF_PAGE
    level.cells = header + (LEAF_HEADER if level.leaf else INNER_HEADER)
    level.count = number_at(page + header + 3, 2)
    level.next = 0
    level.budget = tree.usable
    tree.depth += 1
    if level.count == 0 and (tree.depth > 1 or not level.leaf):
        return False               # only a root leaf may be empty
    return level.count <= (tree.usable - level.cells) // 2


cdef inline bint tree_open(tree_t *tree, span_t image, int64_t root) noexcept nogil:
    """Open a zeroed tree at the root page of a table; False: unsupported image or page.

    The image is borrowed: it must outlive the tree.
    """
    cdef size_t size
    if image.left < FILE_HEADER or memcmp(image.at, b"SQLite format 3", 16) != 0:
        return False
    size = number_at(image.at + 16, 2)
    size = 65536 if size == 1 else size
    if size < 512 or size & (size - 1) or image.left % size:
        return False
    if number_at(image.at + ENCODING_AT, 4) != UTF_8:
        return False
    tree.pages = image.at
    tree.page_size = size
    tree.usable = size - image.at[RESERVED_AT]
    tree.count = tree.budget = image.left // size
    return tree.usable >= MIN_USABLE and root > 0 and descend(tree, <size_t> root)


cdef inline void tree_free(tree_t *tree) noexcept nogil:
    free(tree.scratch)
    tree.scratch = NULL


cdef inline span_t cell_at(
    const tree_t *tree, const level_t *level, size_t i
) noexcept nogil:
    """Return the span from a cell to the end of its page; empty if it is outside."""
    cdef size_t at = number_at(level.page + level.cells + 2 * i, 2)
    if not level.cells + 2 * level.count <= at < tree.usable:
        return span_of(level.page, 0)
    return span_of(level.page + at, tree.usable - at)


cdef inline bint find_leaf(tree_t *tree, span_t *cell) noexcept nogil:
    """Step to the next leaf cell; `cell.at` is NULL at the end. False: unsupported."""
    cdef level_t *level
    cdef const uint8_t *child
    cell[0] = span_of(NULL, 0)
    while tree.depth > 0:
        level = &tree.levels[tree.depth - 1]
        if level.next > level.count or (level.leaf and level.next == level.count):
            tree.depth -= 1
            continue
        level.next += 1
        if level.leaf:
            cell[0] = cell_at(tree, level, level.next - 1)
            return True
        if level.next <= level.count:
            cell[0] = cell_at(tree, level, level.next - 1)
            child = take(cell, 4)
        else:
            child = level.page + level.cells - INNER_HEADER + RIGHTMOST_AT
        if child == NULL or not descend(tree, number_at(child, 4)):
            return False
        cell[0] = span_of(NULL, 0)
    return True


cdef inline size_t local_size(const tree_t *tree, uint64_t size) noexcept nogil:
    """Return the bytes of a row in its leaf: 1.6, "Cell Payload Overflow Pages"."""
    cdef size_t most = tree.usable - 35
    cdef size_t least = (tree.usable - 12) * 32 // 255 - 23
    cdef size_t found
    if size <= most:
        return <size_t> size
    found = least + <size_t> ((size - least) % (tree.usable - 4))
    return found if found <= most else least


cdef inline int gather_row(
    tree_t *tree, span_t rest, size_t size, span_t *row
) noexcept nogil:
    """Copy a row with overflow pages to `scratch`; return a tree_status_t."""
    cdef size_t done = local_size(tree, size)
    cdef size_t part
    cdef const uint8_t *at = take(&rest, done)
    cdef const uint8_t *next = take(&rest, 4)
    cdef void *moved
    if at == NULL or next == NULL:
        return TREE_UNSUPPORTED
    if size > tree.scratch_size:
        moved = realloc(tree.scratch, 2 * size)
        if moved == NULL:
            return TREE_NO_MEMORY
        tree.scratch = <uint8_t *> moved
        tree.scratch_size = 2 * size
    memcpy(tree.scratch, at, done)
    while done < size:
        next = page_at(tree, number_at(next, 4))
        if next == NULL:
            return TREE_UNSUPPORTED
        part = min(size - done, tree.usable - 4)
        memcpy(tree.scratch + done, next + 4, part)
        done += part
    row[0] = span_of(tree.scratch, size)
    return TREE_ROW


cdef inline bint take_number(span_t *body, int width, int64_t *found) noexcept nogil:
    """Step over a big-endian two's complement number of at most 8 bytes."""
    cdef const uint8_t *at = take(body, width)
    cdef uint64_t bits = 0
    cdef int k
    if at == NULL:
        return False
    if width > 0 and at[0] & 0x80:
        bits = <uint64_t> -1
    for k in range(width):
        bits = bits << 8 | at[k]
    found[0] = <int64_t> bits
    return True


cdef inline bint take_real(span_t *body) noexcept nogil:
    """Step over a float; return False if it is a NaN, which SQLite reads as NULL."""
    cdef int64_t bits
    if not take_number(body, 8, &bits):
        return False
    return <uint64_t> bits << 1 <= <uint64_t> 0x7ff << 53


cdef inline bint take_value(
    span_t *body, uint64_t serial, value_t *value
) noexcept nogil:
    """Step over a value of a record of this serial type: 2.1, "Record Format"."""
    cdef size_t size
    value.kind = KIND_NUMBER
    if serial == 0:
        value.kind = KIND_NULL
        return True
    if serial <= 6:
        return take_number(
            body, serial if serial < 5 else 6 if serial == 5 else 8, &value.number
        )
    if serial == 8 or serial == 9:
        value.number = <int64_t> serial - 8
        return True
    if serial == 10 or serial == 11:
        return False
    value.kind = KIND_OTHER
    if serial == 7:
        return take_real(body)
    if serial & 1:
        value.kind = KIND_TEXT
    serial = (serial - 12) // 2
    if serial > body.left:
        return False
    size = <size_t> serial
    value.text = span_of(body.at, size)
    return take(body, size) != NULL


cdef inline bint skip_values(span_t header, span_t body) noexcept nogil:
    """Say whether a record's other values end where it does."""
    cdef uint64_t serial
    cdef value_t other
    while header.left > 0:
        if not take_varint(&header, &serial) or not take_value(&body, serial, &other):
            return False
    return body.left == 0


cdef inline int read_record(
    span_t row, value_t *values, const int *wanted, size_t columns
) noexcept nogil:
    """Read the columns of a record; see `tree_next`. Return a tree_status_t."""
    cdef span_t header = row
    cdef uint64_t size, serial
    cdef size_t column
    cdef value_t other
    if not take_varint(&header, &size) or size > row.left:
        return TREE_UNSUPPORTED
    if size < row.left - header.left:
        return TREE_UNSUPPORTED
    header.left -= <size_t> (row.left - size)
    take(&row, <size_t> size)
    for column in range(columns):
        if header.left == 0:       # column added after the row was written: NULL
            if wanted[column] >= 0:
                values[wanted[column]].kind = KIND_NULL
            continue
        if not take_varint(&header, &serial):
            return TREE_UNSUPPORTED
        if not take_value(
            &row, serial,
            &other if wanted[column] < 0 else &values[wanted[column]],
        ):
            return TREE_UNSUPPORTED
    return TREE_ROW if skip_values(header, row) else TREE_DAMAGED


cdef inline int tree_next(
    tree_t *tree, value_t *values, const int *wanted, size_t columns
) noexcept nogil:
    """Read the next row; return a tree_status_t.

    `wanted` gives for each of the first `columns` of a row its index in `values`, or
    -1. `values` are valid after TREE_ROW, until the next call.
    """
    cdef span_t cell, row
    cdef uint64_t size, rowid
    cdef size_t local
    cdef level_t *level
    cdef int status = TREE_ROW
    if not find_leaf(tree, &cell):
        return TREE_UNSUPPORTED
    if cell.at == NULL:
        return TREE_END
    if not take_varint(&cell, &size) or not take_varint(&cell, &rowid):
        return TREE_UNSUPPORTED
    if size > min(tree.count * tree.page_size, <size_t> MAX_ROW):
        return TREE_UNSUPPORTED
    tree.row_at = cell.at - tree.pages
    if tree.has_row and <int64_t> rowid <= tree.rowid:
        return TREE_DAMAGED        # a page or a cell that is read twice
    tree.has_row = True
    tree.rowid = <int64_t> rowid
    level = &tree.levels[tree.depth - 1]
    local = local_size(tree, size)
    if local > level.budget or local > cell.left:
        return TREE_UNSUPPORTED
    level.budget -= local          # rows of a page cannot exceed the page
    row = span_of(cell.at, local)
    if local < size:
        status = gather_row(tree, cell, <size_t> size, &row)
    if status == TREE_ROW:
        status = read_record(row, values, wanted, columns)
    return status
