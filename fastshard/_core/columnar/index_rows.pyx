# cython: nonecheck=True
"""Rows of an index: read by SQL, or from the image of its database."""

from cpython.bytes cimport PyBytes_AS_STRING
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from fastshard._core.columnar.rows cimport ABSENT, FOREIGN, INVALID, UNKNOWN, Rows
from fastshard._core.parse.sqlite cimport (
    KIND_NULL, KIND_NUMBER, KIND_TEXT, TREE_DAMAGED, TREE_END, TREE_NO_MEMORY, TREE_ROW,
    TREE_UNSUPPORTED, tree_free, tree_next, tree_open, tree_t, value_t,
)
from fastshard._core.span cimport span_of, span_t
from fastshard._core.table.checksums cimport decode_row, find_sum
from fastshard._core.table.extents cimport (
    ExtentTable, columns_add, columns_add_info, columns_free, columns_t, grown_capacity,
    make_table, resize,
)
from fastshard._core.table.names cimport encode_text

from fastshard.errors import FormatError

cdef enum:
    SUFFIX_SIZE = 4                # bytes of ".npy"
    FIELD_BYTES = 32               # memory of a row and field, while an image is read

cdef enum:                         # indexes of a row's values in `wanted`
    ID
    METADATA
    FIRST_FIELD                    # offset and shard of each field, then rows in packs


cdef list number_rows(list fields, object packed):
    """Return where a row of the index has the row in a pack of each field, or -1.

    The values before are the offset and the shard of each field.
    """
    cdef Py_ssize_t at = 2 * len(fields)
    cdef list places = []
    for field in fields:
        places.append(at if field in packed else -1)
        at += field in packed
    return places


cdef list make_columns(list fields, object opener, str path, dict packed):
    """Return the `Rows` of fields, still without rows."""
    return [
        Rows(field, opener(field), path, find_sum(packed, field)) for field in fields
    ]


def read_rows(
    chunks, list fields not None, opener, str path not None, dict packed=None,
):
    """Read rows of an index."""
    cdef columns_t columns
    cdef span_t name
    cdef Rows rows
    cdef tuple row
    cdef Py_ssize_t at, k
    cdef dict kinds = packed or {}
    cdef list places = number_rows(fields, kinds)
    cdef Py_ssize_t width = 1 + 2 * len(fields)
    cdef list found = make_columns(fields, opener, path, kinds)
    cdef list slots = [{} for _ in fields]
    cdef list packs = [{} for _ in fields]
    cdef ExtentTable names
    width += sum([place >= 0 for place in places])
    memset(&columns, 0, sizeof(columns))
    try:
        for chunk in chunks:
            for row in chunk:
                if len(row) != width:
                    raise ValueError(
                        f"a row must have {width} values, got {len(row)}"
                    )
                if type(row[0]) is not str:
                    raise FormatError(
                        f"the id of row {columns.count + 1:,} is {row[0]!r}, "
                        "expected text",
                        path, 0,
                    )
                member = (<str> row[0]) + ".npy"
                keeper = encode_text(member, &name)
                if keeper is None or not columns_add(&columns, 0, 0, name):
                    raise MemoryError
                name.left -= SUFFIX_SIZE
                for k in range(len(found)):
                    rows = <Rows> found[k]
                    at = <Py_ssize_t> places[k]
                    rows.add(
                        name, row[2 * k + 1], row[2 * k + 2],
                        row[1 + at] if at >= 0 else None,
                        <dict> slots[k], <dict> packs[k],
                    )
        names = make_table(&columns)
    finally:
        columns_free(&columns)
    for rows in found:
        rows.finish(names)
    return found, names


cdef struct field_t:               # a field, while an image is read
    uint64_t *offsets
    int64_t *shards                # numbers, or ABSENT or INVALID
    uint64_t *rows                 # in packs, or UNKNOWN; NULL: no array is packed
    Py_ssize_t row_at              # index of this value of a row, or -1
    int64_t field_sum              # as `Rows` has it


cdef struct reading_t:             # state of `read_image`
    tree_t tree
    columns_t columns              # member names, and metadata as infos
    int *wanted                    # by column of a row, as `tree_next` takes it
    size_t row_width               # columns of a row to read
    value_t *values                # of the last row
    field_t *fields
    size_t width                   # number of fields
    size_t capacity                # of the fields, in rows
    size_t max_rows
    uint8_t *name                  # of the last row's member
    size_t name_capacity           # in bytes


cdef bint add_name(reading_t *reading, span_t key) noexcept nogil:
    """Append a row with its name; False if there is no memory."""
    cdef size_t size = key.left + SUFFIX_SIZE
    if size > reading.name_capacity:
        if not resize(<void **> &reading.name, 2 * size, 1):
            return False
        reading.name_capacity = 2 * size
    memcpy(reading.name, key.at, key.left)
    memcpy(reading.name + key.left, b".npy", SUFFIX_SIZE)
    return columns_add(&reading.columns, 0, 0, span_of(reading.name, size))


cdef int reserve_row(reading_t *reading) noexcept nogil:
    """Reserve memory for the extents of one more row; return a tree_status_t."""
    cdef size_t capacity = min(grown_capacity(reading.capacity, 2.0), reading.max_rows)
    cdef size_t k
    if reading.columns.count < reading.capacity:
        return TREE_ROW
    if reading.columns.count == reading.max_rows:
        return TREE_UNSUPPORTED
    for k in range(reading.width):
        if not (
            resize(<void **> &reading.fields[k].offsets, capacity, sizeof(uint64_t))
            and resize(<void **> &reading.fields[k].shards, capacity, sizeof(int64_t))
            and (
                reading.fields[k].row_at < 0
                or resize(<void **> &reading.fields[k].rows, capacity, sizeof(uint64_t))
            )
        ):
            return TREE_NO_MEMORY
    reading.capacity = capacity
    return TREE_ROW


cdef void add_extents(reading_t *reading) noexcept nogil:
    """Store the offsets, shards and rows in packs of the row added last."""
    cdef size_t k
    cdef size_t i = reading.columns.count - 1
    cdef const value_t *offset
    cdef const value_t *shard
    cdef const value_t *row
    cdef int64_t at
    cdef field_t *field
    for k in range(reading.width):
        field = &reading.fields[k]
        offset = &reading.values[FIRST_FIELD + 2 * k]
        shard = offset + 1
        row = NULL
        if field.row_at >= 0:
            row = &reading.values[FIRST_FIELD + field.row_at]
            field.rows[i] = UNKNOWN
            if row.kind == KIND_NULL:
                row = NULL
        field.offsets[i] = 0
        if offset.kind == KIND_NULL and shard.kind == KIND_NULL and row == NULL:
            field.shards[i] = ABSENT
        elif (
            offset.kind == KIND_NUMBER and shard.kind == KIND_NUMBER
            and offset.number >= 0 and shard.number >= 0
            and (row == NULL or (row.kind == KIND_NUMBER and row.number >= 0))
        ):
            field.offsets[i] = <uint64_t> offset.number
            field.shards[i] = shard.number
            if row == NULL:
                continue
            at = row.number
            if field.field_sum >= 0:
                at = decode_row(
                    <uint32_t> field.field_sum, reading.values[ID].text, shard.number,
                    <uint64_t> offset.number, at,
                )
            if at < 0:
                field.shards[i] = FOREIGN
            else:
                field.rows[i] = <uint64_t> at
        else:
            field.shards[i] = INVALID


cdef int read_all(reading_t *reading) noexcept nogil:
    """Read all rows; return a tree_status_t."""
    cdef const value_t *metadata = &reading.values[METADATA]
    cdef int status
    while True:
        status = tree_next(
            &reading.tree, reading.values, reading.wanted, reading.row_width
        )
        if status != TREE_ROW:
            return status
        if reading.values[ID].kind != KIND_TEXT:
            return TREE_UNSUPPORTED
        if metadata.kind != KIND_TEXT and metadata.kind != KIND_NULL:
            return TREE_UNSUPPORTED
        status = reserve_row(reading)
        if status != TREE_ROW:
            return status
        if not add_name(reading, reading.values[ID].text):
            return TREE_NO_MEMORY
        add_extents(reading)
        if not columns_add_info(
            &reading.columns,
            metadata.text if metadata.kind == KIND_TEXT else span_of(reading.name, 0),
        ):
            return TREE_NO_MEMORY


cdef bint is_text(const columns_t *columns) except -1:
    """Say whether all ids are UTF-8; decode them at once, as each ends in ASCII."""
    try:
        PyUnicode_DecodeUTF8(<const char *> columns.names, columns.names_size, NULL)
    except UnicodeDecodeError:
        return False
    return True


cdef void reading_free(reading_t *reading) noexcept nogil:
    """Free the memory that no `Rows` took over."""
    cdef size_t k
    if reading.fields != NULL:
        for k in range(reading.width):
            free(reading.fields[k].offsets)
            free(reading.fields[k].shards)
            free(reading.fields[k].rows)
    free(reading.fields)
    free(reading.values)
    free(reading.wanted)
    free(reading.name)
    columns_free(&reading.columns)
    tree_free(&reading.tree)


cdef int select_columns(
    reading_t *reading, list numbers, list columns, dict packed
) except -1:
    """Set the columns of a row to read, for a list of `Rows`."""
    cdef list places = number_rows([rows.field for rows in columns], packed)
    cdef size_t width = len(columns)
    cdef size_t k
    cdef Rows column
    cdef size_t count = FIRST_FIELD + 2 * width + sum([at >= 0 for at in places])
    if len(numbers) != <Py_ssize_t> count or min(numbers) < 0:
        raise ValueError(
            f"expected {count} column numbers of at least 0 for {width} fields, "
            f"got {numbers}"
        )
    reading.width = width
    reading.row_width = max(numbers) + 1
    reading.wanted = <int *> malloc(reading.row_width * sizeof(int))
    reading.values = <value_t *> calloc(count, sizeof(value_t))
    reading.fields = <field_t *> calloc(width + 1, sizeof(field_t))
    if reading.wanted == NULL or reading.values == NULL or reading.fields == NULL:
        raise MemoryError
    for k in range(width):
        column = <Rows> columns[k]
        reading.fields[k].row_at = places[k]
        reading.fields[k].field_sum = column.field_sum
    for k in range(reading.row_width):
        reading.wanted[k] = -1
    for k in range(<size_t> len(numbers)):
        reading.wanted[<size_t> numbers[k]] = k
    return 0


def read_image(
    bytes image not None, int64_t root, list numbers not None, list fields not None,
    opener, str path not None, size_t max_bytes, dict packed=None,
):
    """Read the rows of an index from the image of its database."""
    cdef reading_t reading
    cdef dict kinds = packed or {}
    cdef list columns = make_columns(fields, opener, path, kinds)
    cdef Rows column
    cdef ExtentTable names
    cdef size_t k
    cdef int status
    cdef span_t span = span_of(<const uint8_t *> PyBytes_AS_STRING(image), len(image))
    memset(&reading, 0, sizeof(reading))
    try:
        select_columns(&reading, numbers, columns, kinds)
        reading.max_rows = max_bytes // (FIELD_BYTES * max(reading.width, <size_t> 1))
        if not tree_open(&reading.tree, span, root):
            return None
        with nogil:
            status = read_all(&reading)
        if status == TREE_NO_MEMORY:
            raise MemoryError
        if status == TREE_DAMAGED:
            raise FormatError(
                f"row {reading.columns.count + 1:,} of the table of samples is damaged",
                path, reading.tree.row_at,
            )
        if status != TREE_END or not is_text(&reading.columns):
            return None
        names = make_table(&reading.columns)
        for k in range(reading.width):
            column = <Rows> columns[k]
            column.take_columns(
                &reading.fields[k].offsets, reading.fields[k].shards,
                &reading.fields[k].rows, names,
            )
        return columns, names
    finally:
        reading_free(&reading)
