# cython: nonecheck=True
"""The rows of a columnar index, read from the image of its database.

Without an object for each value, and without the GIL: ten times as fast as by SQL.
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

cdef struct field_t:
    uint64_t *offsets
    int64_t *shards                # or ABSENT or BROKEN

cdef struct rows_t:
    tree_t tree
    columns_t columns              # ids, as members are called; metadata
    value_t *values                # of the last row
    field_t *fields
    size_t width
    size_t room                    # rows that the fields have room for
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


cdef bint make_room(rows_t *rows) noexcept nogil:
    cdef size_t room = more_room(rows.room, 2.0)
    cdef size_t k
    if rows.columns.count < rows.room:
        return True
    for k in range(rows.width):
        if not (
            resized(<void **> &rows.fields[k].offsets, room, sizeof(uint64_t))
            and resized(<void **> &rows.fields[k].shards, room, sizeof(int64_t))
        ):
            return False
    rows.room = room
    return True


cdef void add_places(rows_t *rows) noexcept nogil:
    """Say where the arrays of a row are, which has a name but is not counted."""
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


cdef int read_all(rows_t *rows, const int *wanted, size_t columns) noexcept nogil:
    """Read all rows; returns a tree_status_t."""
    cdef const value_t *metadata = &rows.values[METADATA]
    cdef int status
    while True:
        status = tree_next(&rows.tree, rows.values, wanted, columns)
        if status != TREE_ROW:
            return status
        if rows.values[ID].kind != KIND_TEXT:
            return TREE_ODD
        if metadata.kind != KIND_TEXT and metadata.kind != KIND_NULL:
            return TREE_ODD
        if not make_room(rows) or not add_name(rows, rows.values[ID].text):
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


def read_image(
    bytes image not None, int64_t root, list places not None, list fields not None,
    bring, str path not None,
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

    Returns
    -------
    columns : list of Rows
    names : ExtentTable
        With the text of the metadata as what is said of a member.
    or None
        It is not as SQLite would leave it, or a value is not what it should be:
        reading by SQL tells.
    """
    cdef rows_t rows
    cdef Rows column
    cdef ExtentTable names
    cdef size_t k
    cdef size_t columns = max(places) + 1
    cdef int status = TREE_NO_MEMORY
    cdef int *wanted = <int *> malloc(columns * sizeof(int))
    cdef list found = []
    memset(&rows, 0, sizeof(rows))
    rows.width = len(fields)
    rows.values = <value_t *> calloc(FIRST_PLACE + 2 * rows.width, sizeof(value_t))
    rows.fields = <field_t *> calloc(rows.width + 1, sizeof(field_t))
    try:
        if len(places) != <Py_ssize_t> (FIRST_PLACE + 2 * rows.width) or min(places) < 0:
            raise ValueError("the places are of other fields")
        if wanted == NULL or rows.values == NULL or rows.fields == NULL:
            raise MemoryError
        for k in range(columns):
            wanted[k] = -1
        for k in range(<size_t> len(places)):
            wanted[<size_t> places[k]] = k
        if not tree_open(
            &rows.tree,
            span_of(<const uint8_t *> PyBytes_AS_STRING(image), len(image)), root,
        ):
            return None
        with nogil:
            status = read_all(&rows, wanted, columns)
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
        free(wanted)


cdef void rows_free(rows_t *rows) noexcept nogil:
    cdef size_t k
    if rows.fields != NULL:
        for k in range(rows.width):
            free(rows.fields[k].offsets)
            free(rows.fields[k].shards)
    free(rows.fields)
    free(rows.values)
    free(rows.name)
    columns_free(&rows.columns)
    tree_free(&rows.tree)
