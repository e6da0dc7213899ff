"""Rows of tokens packed from whole documents, by best fit in decreasing order."""

cimport cython
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc, qsort, realloc
from libc.string cimport memmove

cdef int64_t MAX_ROOM = <int64_t> 1 << 48  # rows, and segments of rows


cdef void *grow(
    void *memory, int64_t *room, int64_t more, size_t itemsize
) noexcept nogil:
    """Return memory with room for twice the items, and more; NULL: there is none."""
    cdef int64_t wanted = 2 * room[0] + more
    cdef void *moved
    if wanted > MAX_ROOM:
        return NULL
    moved = realloc(memory, wanted * itemsize)
    if moved != NULL:
        room[0] = wanted
    return moved


@cython.final
cdef class PackedRows:
    """Rows of whole documents, as a `Packer` fills them.

    Attributes
    ----------
    length : int
        Tokens of a row.
    count : int
        Number of rows.
    """

    def __cinit__(self, int64_t length):
        self.length = length
        self.starts = <int64_t *> malloc(2 * sizeof(int64_t))
        if self.starts == NULL:
            raise MemoryError
        self.starts[0] = 0
        self.rows_room = 2

    def __dealloc__(self):
        free(self.starts)
        free(self.segments)

    def __reduce__(self):
        raise TypeError("PackedRows do not pickle")

    cdef bint reserve(self, int64_t rows, int64_t segments) noexcept nogil:
        """Make room for more rows and segments; False: there is no memory."""
        cdef void *moved
        if self.count + rows + 1 > self.rows_room:
            moved = grow(self.starts, &self.rows_room, rows, sizeof(int64_t))
            if moved == NULL:
                return False
            self.starts = <int64_t *> moved
        if self.used + segments > self.room:
            moved = grow(self.segments, &self.room, segments, sizeof(segment_t))
            if moved == NULL:
                return False
            self.segments = <segment_t *> moved
        return True

    cdef void end_row(self) noexcept nogil:
        self.count += 1
        self.starts[self.count] = self.used

    cdef void add(self, int64_t document, int64_t start) noexcept nogil:
        self.segments[self.used].document = document
        self.segments[self.used].start = start
        self.used += 1


cdef int compare_items(const void *a, const void *b) noexcept nogil:
    """Order by decreasing size, then by document."""
    cdef const item_t *first = <const item_t *> a
    cdef const item_t *second = <const item_t *> b
    if first.size != second.size:
        return -1 if first.size > second.size else 1
    return -1 if first.document < second.document else 1


cdef int compare_places(const void *a, const void *b) noexcept nogil:
    """Order by row, then by document."""
    cdef const item_t *first = <const item_t *> a
    cdef const item_t *second = <const item_t *> b
    if first.row != second.row:
        return -1 if first.row < second.row else 1
    return -1 if first.document < second.document else 1


@cython.final
cdef class Packer:
    """Packs blocks of documents into rows: best fit in decreasing order of length."""

    def __cinit__(self, int64_t length, int64_t between, int64_t block):
        self.length = length
        self.between = between
        self.items = <item_t *> malloc((block + 1) * sizeof(item_t))
        self.gaps = <gap_t *> malloc((block + 1) * sizeof(gap_t))
        if self.items == NULL or self.gaps == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.items)
        free(self.gaps)

    def __reduce__(self):
        raise TypeError("a Packer does not pickle")

    cdef int pack(
        self, const int64_t *sums, PackedRows packed, Py_ssize_t start, Py_ssize_t end
    ) except -1:
        """Pack the documents from `start` to before `end` into new rows.

        `sums` are the tokens before each document, with separators.
        """
        cdef bint done
        with nogil:
            done = self.pack_block(sums, packed, start, end)
        if not done:
            raise MemoryError
        return 0

    cdef bint pack_block(
        self, const int64_t *sums, PackedRows packed, Py_ssize_t start, Py_ssize_t end
    ) noexcept nogil:
        """Pack a block; False: there is no memory."""
        cdef int64_t count = 0
        cdef int64_t whole, size, k, i
        for i in range(start, end):
            size = sums[i + 1] - sums[i] - self.between
            whole = size // self.length
            if not packed.reserve(whole, whole):
                return False
            for k in range(whole):
                packed.add(i, k * self.length)
                packed.end_row()
            if size > whole * self.length:
                self.items[count].document = i
                self.items[count].start = whole * self.length
                self.items[count].size = size - whole * self.length + self.between
                count += 1
        qsort(self.items, count, sizeof(item_t), compare_items)
        size = self.fill(count)
        qsort(self.items, count, sizeof(item_t), compare_places)
        if not packed.reserve(size, count):
            return False
        for i in range(count):
            packed.add(self.items[i].document, self.items[i].start)
            if i + 1 == count or self.items[i + 1].row != self.items[i].row:
                packed.end_row()
        return True

    cdef int64_t fill(self, int64_t count) noexcept nogil:
        """Choose the row of each item: the fullest with room; return their number."""
        cdef int64_t rows = 0
        cdef int64_t gaps = 0
        cdef int64_t i, low, high, middle, room
        cdef gap_t gap
        for i in range(count):
            low = 0
            high = gaps
            while low < high:      # the first gap that is large enough
                middle = low + (high - low) // 2
                if self.gaps[middle].room < self.items[i].size:
                    low = middle + 1
                else:
                    high = middle
            if low < gaps:
                gap = self.gaps[low]
                gaps -= 1
                memmove(
                    self.gaps + low, self.gaps + low + 1, (gaps - low) * sizeof(gap_t)
                )
            else:
                gap.room = self.length + self.between
                gap.row = rows
                rows += 1
            self.items[i].row = gap.row
            gap.room -= self.items[i].size
            # Smaller items come, of one token and a separator at least.
            if gap.room <= self.between:
                continue
            low = 0
            high = gaps
            while low < high:
                middle = low + (high - low) // 2
                if self.gaps[middle].room < gap.room or (
                    self.gaps[middle].room == gap.room
                    and self.gaps[middle].row < gap.row
                ):
                    low = middle + 1
                else:
                    high = middle
            memmove(self.gaps + low + 1, self.gaps + low, (gaps - low) * sizeof(gap_t))
            self.gaps[low] = gap
            gaps += 1
        return rows
