"""Members that are listed in any order, brought into the shard's order."""

from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from fastshard._core.extents cimport columns_free, columns_t
from fastshard._core.platform cimport PY_SSIZE_T_MAX

cdef enum:
    DIGITS = 8                     # of an offset, eight bits each
    VALUES = 256                   # of a digit

cdef struct place_t:
    uint64_t offset
    size_t position                # before sorting


cdef void *columns_of(size_t count, size_t width) noexcept nogil:
    if count > (<size_t> PY_SSIZE_T_MAX) // width:
        return NULL
    return malloc(count * width + 1)


cdef bint sort_by_digit(
    const place_t *places, place_t *to, size_t count, const size_t *counts, int shift
) noexcept nogil:
    """Deal places out by one digit of their offsets; False: it is the same in all."""
    cdef size_t[VALUES] next_at
    cdef size_t i, digit
    cdef size_t total = 0
    for i in range(<size_t> VALUES):
        if counts[i] == count:
            return False
        next_at[i] = total
        total += counts[i]
    for i in range(count):
        digit = places[i].offset >> shift & 0xff
        to[next_at[digit]] = places[i]
        next_at[digit] += 1
    return True


cdef place_t *sort_places(place_t *places, place_t *spare, size_t count) noexcept nogil:
    """Sort by offset, digit by digit from the lowest, equal ones staying in order.

    Linear, whatever the offsets are. Returns the one of the two that is sorted.
    """
    cdef size_t[DIGITS * VALUES] counts
    cdef size_t i, digit
    cdef place_t *sorted_places = places
    cdef place_t *other = spare
    memset(counts, 0, sizeof(counts))
    for i in range(count):
        for digit in range(<size_t> DIGITS):
            counts[digit * VALUES + (places[i].offset >> 8 * digit & 0xff)] += 1
    for digit in range(<size_t> DIGITS):
        if sort_by_digit(
            sorted_places, other, count, counts + digit * VALUES, <int> (8 * digit)
        ):
            sorted_places, other = other, sorted_places
    return sorted_places


cdef void move_texts(
    const place_t *places, size_t count,
    const uint64_t *ends, const uint8_t *texts,
    uint64_t *new_ends, uint8_t *new_texts,
) noexcept nogil:
    cdef size_t i, position
    cdef uint64_t start, size
    cdef uint64_t used = 0
    for i in range(count):
        position = places[i].position
        start = ends[position - 1] if position > 0 else 0
        size = ends[position] - start
        memcpy(new_texts + used, texts + start, size)
        used += size
        new_ends[i] = used


cdef bint make_columns(columns_t *new, const columns_t *old) noexcept nogil:
    """Make room for what `old` holds; what could be made is to be freed anyway."""
    cdef size_t count = old.count
    memset(new, 0, sizeof(columns_t))
    new.count = new.room = count
    new.names_size = new.names_room = old.names_size
    new.expected = old.expected
    new.offsets = <uint64_t *> columns_of(count, sizeof(uint64_t))
    new.sizes = <uint64_t *> columns_of(count, sizeof(uint64_t))
    new.name_ends = <uint64_t *> columns_of(count, sizeof(uint64_t))
    new.names = <uint8_t *> columns_of(old.names_size, 1)
    if old.info_ends != NULL:
        new.infos_size = old.infos_size
        new.info_ends = <uint64_t *> columns_of(count, sizeof(uint64_t))
        new.infos = <uint8_t *> columns_of(old.infos_size, 1)
        if new.info_ends == NULL or new.infos == NULL:
            return False
    return not (
        new.offsets == NULL
        or new.sizes == NULL
        or new.name_ends == NULL
        or new.names == NULL
    )


cdef bint move_columns(columns_t *columns, const place_t *places) noexcept nogil:
    cdef columns_t new
    cdef size_t i
    if not make_columns(&new, columns):
        columns_free(&new)
        return False
    for i in range(columns.count):
        new.offsets[i] = places[i].offset
        new.sizes[i] = columns.sizes[places[i].position]
    move_texts(
        places, columns.count, columns.name_ends, columns.names,
        new.name_ends, new.names,
    )
    if columns.info_ends != NULL:
        move_texts(
            places, columns.count, columns.info_ends, columns.infos,
            new.info_ends, new.infos,
        )
    columns_free(columns)
    columns[0] = new
    return True


cdef bint columns_sort(columns_t *columns) noexcept nogil:
    """Sort by offset; members of one offset keep their order. False: no memory."""
    cdef size_t count = columns.count
    cdef place_t *places = <place_t *> columns_of(count, sizeof(place_t))
    cdef place_t *spare = <place_t *> columns_of(count, sizeof(place_t))
    cdef size_t i
    cdef bint moved = False
    if places != NULL and spare != NULL:
        for i in range(count):
            places[i].offset = columns.offsets[i]
            places[i].position = i
        moved = move_columns(columns, sort_places(places, spare, count))
    free(places)
    free(spare)
    return moved
