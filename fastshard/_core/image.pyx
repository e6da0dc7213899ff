# cython: nonecheck=True
"""The rows of a columnar index, read from the image of its database.

Without an object for each value, and without the GIL.
"""

from cpython.bytes cimport PyBytes_AS_STRING
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from fastshard._core.btree cimport (
    KIND_NULL, KIND_NUMBER, KIND_TEXT, TREE_END, TREE_NO_MEMORY, TREE_ODD, TREE_ROW,
    tree_free, tree_next, tree_open, tree_t, value_t,
)
from fastshard._core.extents cimport (
    ExtentTable, columns_add, columns_add_info, columns_free, columns_t, more_room,
    resized, table_of,
)
from fastshard._core.rows cimport ABSENT, BROKEN, Rows
from fastshard._core.span cimport span_of, span_t

cdef enum:
    ID                             # what `wanted` numbers: the first values
    METADATA
    FIRST_PLACE                    # the offset and the shard of each field follow

cdef enum:
    EACH = 32                      # bytes that a place takes, while it is read

cdef struct field_t:
    uint64_t *offsets
    int64_t *shards                # or ABSENT or BROKEN

cdef struct rows_t:
    tree_t tree
    columns_t columns              # ids, as members are called; metadata
    int *wanted                    # of each column of a row, as `tree_next` takes it
    size_t columns_there           # of a row that are looked at
    value_t *values                # of the last row
    field_t *fields
    size_t width
    size_t room                    # rows that the fields have room for
    size_t most_rows
    uint8_t *name                  # of the last row
    size_t name_room


cdef bint add_name(rows_t *rows, span_t key) noexcept nogil:
    """Begin a row. False: no memory."""
    cdef size_t size = key.left + 4
    if size > rows.name_room:
        if not resized(<void **> &rows.name, 2 * size, 1):
            return False
        rows.name_room = 2 * size
    memcpy(rows.name, key.at, key.left)
    memcpy(rows.name + key.left, b".npy", 4)
    return columns_add(&rows.columns, 0, 0, span_of(rows.name, size))


cdef int make_room(rows_t *rows) noexcept nogil:
    """Have room for the places of one more row; returns a tree_status_t."""
    cdef size_t room = min(more_room(rows.room, 2.0), rows.most_rows)
    cdef size_t k
    if rows.columns.count < rows.room:
        return TREE_ROW
    if rows.columns.count == rows.most_rows:
        return TREE_ODD
    for k in range(rows.width):
        if not (
            resized(<void **> &rows.fields[k].offsets, room, sizeof(uint64_t))
            and resized(<void **> &rows.fields[k].shards, room, sizeof(int64_t))
        ):
            return TREE_NO_MEMORY
    rows.room = room
    return TREE_ROW


cdef void add_places(rows_t *rows) noexcept nogil:
    """Say where the arrays of the row are that was named last."""
    cdef size_t k
    cdef size_t i = rows.columns.count - 1
    cdef const value_t *offset
    cdef const value_t *shard
    for k in range(rows.width):
        offset = &rows.values[FIRST_PLACE + 2 * k]
        shard = offset + 1
        rows.fields[k].offsets[i] = 0
        if offset.kind == KIND_NULL and shard.kind == KIND_NULL:
            rows.fields[k].shards[i] = ABSENT
        elif (
            offset.kind == KIND_NUMBER and shard.kind == KIND_NUMBER
            and offset.number >= 0 and shard.number >= 0
        ):
            rows.fields[k].offsets[i] = <uint64_t> offset.number
            rows.fields[k].shards[i] = shard.number
        else:
            rows.fields[k].shards[i] = BROKEN


cdef int read_all(rows_t *rows) noexcept nogil:
    """Read all rows; returns a tree_status_t."""
    cdef const value_t *metadata = &rows.values[METADATA]
    cdef int status
    while True:
        status = tree_next(&rows.tree, rows.values, rows.wanted, rows.columns_there)
        if status != TREE_ROW:
            return status
        if rows.values[ID].kind != KIND_TEXT:
            return TREE_ODD
        if metadata.kind != KIND_TEXT and metadata.kind != KIND_NULL:
            return TREE_ODD
        status = make_room(rows)
        if status != TREE_ROW:
            return status
        if not add_name(rows, rows.values[ID].text):
            return TREE_NO_MEMORY
        add_places(rows)
        if not columns_add_info(
            &rows.columns,
            metadata.text if metadata.kind == KIND_TEXT else span_of(rows.name, 0),
        ):
            return TREE_NO_MEMORY


cdef bint is_text(const columns_t *columns) except -1:
    """Whether all ids are UTF-8: each ends in ASCII, so all of them together are."""
    try:
        PyUnicode_DecodeUTF8(<const char *> columns.names, columns.names_size, NULL)
    except UnicodeDecodeError:
        return False
    return True


cdef void rows_free(rows_t *rows) noexcept nogil:
    """Free what nobody has taken over."""
    cdef size_t k
    if rows.fields != NULL:
        for k in range(rows.width):
            free(rows.fields[k].offsets)
            free(rows.fields[k].shards)
    free(rows.fields)
    free(rows.values)
    free(rows.wanted)
    free(rows.name)
    columns_free(&rows.columns)
    tree_free(&rows.tree)


cdef int prepare(rows_t *rows, list places, size_t width) except -1:
    """Note which values of a row are wanted."""
    cdef size_t k
    if len(places) != <Py_ssize_t> (FIRST_PLACE + 2 * width) or min(places) < 0:
        raise ValueError("the places are of other fields")
    rows.width = width
    rows.columns_there = max(places) + 1
    rows.wanted = <int *> malloc(rows.columns_there * sizeof(int))
    rows.values = <value_t *> calloc(FIRST_PLACE + 2 * width, sizeof(value_t))
    rows.fields = <field_t *> calloc(width + 1, sizeof(field_t))
    if rows.wanted == NULL or rows.values == NULL or rows.fields == NULL:
        raise MemoryError
    for k in range(rows.columns_there):
        rows.wanted[k] = -1
    for k in range(<size_t> len(places)):
        rows.wanted[<size_t> places[k]] = k
    return 0


def read_image(
    bytes image not None, int64_t root, list places not None, list fields not None,
    bring, str path not None, size_t most,
):
    """Read the samples of an index.

    Parameters
    ----------
    image : bytes
        Of an SQLite database.
    root : int
        The first page of the table of samples.
    places : list of int
        Which columns of a row these are, as it is stored: the id, the metadata, and
        of each field the offset and the shard.
    fields, bring, path
        As for `read_rows`.
    most : int
        Bytes that may be taken for where arrays are. A row that has none of a field
        says so in no byte, and here in 32.

    Returns
    -------
    columns : list of Rows
    names : ExtentTable
        With the text of the metadata as what is said of a member.
    or None
        It is not as SQLite would leave it, a value is not what it should be, or it
        takes too much: reading by SQL tells.
    """
    cdef rows_t rows
    cdef Rows column
    cdef ExtentTable names
    cdef size_t k
    cdef int status
    cdef list found = []
    cdef span_t span = span_of(<const uint8_t *> PyBytes_AS_STRING(image), len(image))
    memset(&rows, 0, sizeof(rows))
    try:
        prepare(&rows, places, len(fields))
        rows.most_rows = most // (EACH * max(rows.width, <size_t> 1))
        if not tree_open(&rows.tree, span, root):
            return None
        with nogil:
            status = read_all(&rows)
        if status == TREE_NO_MEMORY:
            raise MemoryError
        if status != TREE_END or not is_text(&rows.columns):
            return None
        names = table_of(&rows.columns)
        for k in range(rows.width):
            column = Rows(fields[k], bring(fields[k]), path)
            column.adopt(&rows.fields[k].offsets, rows.fields[k].shards, names)
            found.append(column)
        return found, names
    finally:
        rows_free(&rows)
