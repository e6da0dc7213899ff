"""Documents: fields of samples that hold tokens, raw or behind a header.

Their lengths are read from the shards; whole documents are packed into rows of tokens
by best fit in decreasing order.
"""

cimport cython
from cpython.buffer cimport PyBuffer_Release
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, qsort, realloc
from libc.string cimport memmove

from fastshard._core.buffers cimport bytes_of, int64s_of
from fastshard._core.dataset.gather cimport Pieces, piece_t
from fastshard._core.dataset.npy cimport Layout, LayoutCache, find_layout
from fastshard._core.dataset.shard cimport SampleBase, SamplesBase, Shard

from array import array

from fastshard.errors import FormatError

cdef enum:
    HEAD = 128                     # bytes of NumPy's headers of one axis
    MAX_HEAD = (1 << 20) + 12      # bytes of the largest header
    HEADS = 4096                   # headers read together

cdef int64_t MAX_MEMBER = <int64_t> 1 << 32


cdef Py_ssize_t member_of(SamplesBase samples, Py_ssize_t i, str field) except -1:
    """Return the position of the member that holds a field."""
    cdef Py_ssize_t member = samples.member(i, field)
    if member < 0:
        member = (<SampleBase?> samples.item(i)).member_of(field)
    if member >= MAX_MEMBER:
        raise ValueError(f"a shard has more than {MAX_MEMBER:,} members")
    return member


cdef inline Shard holder_of(SamplesBase samples, Py_ssize_t i, str field):
    return samples.shard if samples.shard is not None else samples.holder(i, field)


cdef object make_error(Shard shard, Py_ssize_t member, uint64_t at, str reason):
    """Return an error at a byte of a member."""
    cdef uint64_t offset, size
    shard.extent(shard.open_source(), member, &offset, &size)
    return FormatError(reason, shard.path, offset + at, shard.member_name(member))


@cython.final
cdef class DocumentLengths:
    """Lengths of a shard's documents, as they are read.

    Attributes
    ----------
    dtype : numpy.dtype or None
    lengths : array of int64 [positions]
    members : array of uint32 [positions]
        The positions in their shards of the members that hold the documents.
    """

    cdef SamplesBase samples
    cdef object positions
    cdef str field
    cdef readonly object dtype
    cdef readonly object lengths
    cdef readonly object members

    def __cinit__(self, SamplesBase samples not None, positions, str field, dtype):
        self.samples = samples
        self.positions = positions
        self.field = field
        self.dtype = dtype
        self.lengths = array("q", bytes(8 * len(positions)))
        self.members = array("I", bytes(4 * len(positions)))

    def __reduce__(self):
        raise TypeError("DocumentLengths do not pickle")

    cdef object type_error(self, Shard shard, Py_ssize_t member, object found):
        return make_error(
            shard, member, 0,
            f"expected tokens of {self.dtype}, as in the other documents or given as "
            f"dtype, got {found}",
        )

    cdef int check_type(self, Shard shard, Py_ssize_t member, object dtype) except -1:
        """Compare a document's type with that of the others."""
        if self.dtype is None:
            if dtype.kind not in "biufc":
                raise make_error(
                    shard, member, 0, f"tokens must be numbers, got {dtype}"
                )
            self.dtype = dtype
        elif dtype is not self.dtype and dtype != self.dtype:
            raise self.type_error(shard, member, dtype)
        return 0

    def read_raw(self):
        """Read the lengths of documents without a header: sizes, of the index alone."""
        cdef Py_buffer places, lengths, members
        cdef const int64_t *numbers = int64s_of(self.positions, &places)
        cdef int64_t *found = int64s_of(self.lengths, &lengths, True)
        cdef uint32_t *kept = <uint32_t *> bytes_of(self.members, &members, True)
        cdef uint64_t item = self.dtype.itemsize
        cdef uint64_t offset, size
        cdef Py_ssize_t k, i, member
        cdef Shard shard
        cdef Shard last = None
        cdef object source = None
        try:
            for k in range(lengths.len // 8):
                i = numbers[k]
                member = member_of(self.samples, i, self.field)
                shard = holder_of(self.samples, i, self.field)
                if shard is not last:
                    source = shard.open_source()
                    last = shard
                shard.extent(source, member, &offset, &size)
                if size % item != 0:
                    raise make_error(
                        shard, member, size,
                        f"{size:,} bytes are not a multiple of the {item} bytes of "
                        f"a {self.dtype} token",
                    )
                found[k] = size // item
                kept[k] = <uint32_t> member
        finally:
            PyBuffer_Release(&places)
            PyBuffer_Release(&lengths)
            PyBuffer_Release(&members)

    def take_known(self, known):
        """Take the lengths of documents from an index; False if one is too large."""
        cdef Py_buffer places, lengths, members, given
        cdef const int64_t *numbers = int64s_of(self.positions, &places)
        cdef int64_t *found = int64s_of(self.lengths, &lengths, True)
        cdef uint32_t *kept = <uint32_t *> bytes_of(self.members, &members, True)
        cdef const int64_t *stored = int64s_of(known, &given)
        cdef uint64_t item = self.dtype.itemsize
        cdef uint64_t offset, size
        cdef Py_ssize_t k, member
        cdef Shard shard
        try:
            if given.len != lengths.len:
                return False
            for k in range(lengths.len // 8):
                member = member_of(self.samples, numbers[k], self.field)
                shard = holder_of(self.samples, numbers[k], self.field)
                shard.extent(shard.open_source(), member, &offset, &size)
                if stored[k] < 0 or <uint64_t> stored[k] > size // item:
                    return False
                found[k] = stored[k]
                kept[k] = <uint32_t> member
            return True
        finally:
            PyBuffer_Release(&places)
            PyBuffer_Release(&lengths)
            PyBuffer_Release(&members)
            PyBuffer_Release(&given)

    def read_arrays(self):
        """Read the lengths of arrays behind a header of the shard's format."""
        cdef Py_buffer places, lengths, members
        cdef const int64_t *numbers = int64s_of(self.positions, &places)
        cdef int64_t *found = int64s_of(self.lengths, &lengths, True)
        cdef uint32_t *kept = <uint32_t *> bytes_of(self.members, &members, True)
        cdef Py_ssize_t k, i, member
        try:
            for k in range(lengths.len // 8):
                i = numbers[k]
                member = member_of(self.samples, i, self.field)
                kept[k] = <uint32_t> member
                found[k] = self.array_length(
                    holder_of(self.samples, i, self.field), member
                )
        finally:
            PyBuffer_Release(&places)
            PyBuffer_Release(&lengths)
            PyBuffer_Release(&members)

    cdef int64_t array_length(self, Shard shard, Py_ssize_t member) except -1:
        """Return the length of a document that its shard returns as an array."""
        cdef uint64_t offset, size
        document = shard.array(member)
        self.check_type(shard, member, document.dtype)
        if document.ndim != 1:
            raise axes_error(shard, member, document.ndim)
        shard.extent(shard.open_source(), member, &offset, &size)
        if <uint64_t> document.nbytes > size:
            raise make_error(shard, member, size, "an array beyond its member")
        return len(document)

    def read_headers(self):
        """Read the lengths of ``.npy`` documents from their headers."""
        cdef Py_ssize_t start
        cdef Py_ssize_t count = len(self.positions)
        cdef uint8_t *room = <uint8_t *> malloc(HEAD * HEADS)
        if room == NULL:
            raise MemoryError
        try:
            for start in range(0, count, HEADS):
                self.read_some(room, start, min(start + HEADS, count))
        finally:
            free(room)

    cdef int read_some(self, uint8_t *room, Py_ssize_t start, Py_ssize_t end) except -1:
        """Read the headers of some documents together; built ones are arrays."""
        cdef Py_buffer places, lengths, members
        cdef const int64_t *numbers = int64s_of(self.positions, &places)
        cdef int64_t *found = int64s_of(self.lengths, &lengths, True)
        cdef uint32_t *kept = <uint32_t *> bytes_of(self.members, &members, True)
        cdef LayoutCache layouts = LayoutCache.__new__(LayoutCache)
        cdef Pieces pieces = Pieces.__new__(Pieces)
        cdef Py_ssize_t k, i, member
        cdef Py_ssize_t piece = 0
        cdef Shard shard
        try:
            for k in range(start, end):
                i = numbers[k]
                member = member_of(self.samples, i, self.field)
                kept[k] = <uint32_t> member
                shard = holder_of(self.samples, i, self.field)
                if shard.builds:
                    found[k] = self.array_length(shard, member)
                else:
                    add_part(pieces, shard, member, HEAD, room + (k - start) * HEAD)
            move_all(pieces)
            for k in range(start, end):
                shard = holder_of(self.samples, numbers[k], self.field)
                if not shard.builds:
                    found[k] = self.parse(
                        shard, kept[k], room + (k - start) * HEAD,
                        pieces.at[piece].size, layouts,
                    )
                    piece += 1
        finally:
            PyBuffer_Release(&places)
            PyBuffer_Release(&lengths)
            PyBuffer_Release(&members)
        return 0

    cdef int64_t parse(
        self, Shard shard, Py_ssize_t member, const uint8_t *head, uint64_t size,
        LayoutCache layouts,
    ) except -1:
        """Return the length of a document, by the first bytes of its member."""
        cdef uint64_t offset, whole
        cdef uint64_t needed = header_size(head, size)
        cdef bytearray longer
        cdef Pieces pieces
        cdef Layout layout
        shard.extent(shard.open_source(), member, &offset, &whole)
        try:
            if needed <= size:
                layout = find_layout(head, size, layouts)
            else:
                longer = bytearray(min(needed, <uint64_t> MAX_HEAD, whole))
                pieces = Pieces.__new__(Pieces)
                add_part(
                    pieces, shard, member, len(longer), <uint8_t *> <char *> longer
                )
                move_all(pieces)
                layout = find_layout(
                    <uint8_t *> <char *> longer, len(longer), layouts
                )
        except FormatError as error:
            if error.path:
                raise
            raise make_error(shard, member, error.offset, error.reason) from (
                error.__cause__
            )
        if layout.shape.dimensions != 1:
            raise axes_error(shard, member, layout.shape.dimensions)
        self.check_type(shard, member, layout.dtype)
        if layout.header_size > whole or whole - layout.header_size != layout.nbytes:
            raise make_error(
                shard, member, whole,
                f"not a .npy array: expected {layout.nbytes:,} bytes of data by its "
                f"header, got {max(whole, layout.header_size) - layout.header_size:,}",
            )
        return layout.shape.lengths[0]


cdef object axes_error(Shard shard, Py_ssize_t member, object axes):
    return make_error(
        shard, member, 0, f"tokens must be of one dimension, got an array of {axes}"
    )


cdef uint64_t header_size(const uint8_t *at, uint64_t size) noexcept nogil:
    """Return the size of a ``.npy`` header in bytes; 0 if it is not one."""
    if size < 12 or at[0] != 0x93:
        return 0
    if at[6] == 1:
        return 10 + <uint64_t> at[8] + (<uint64_t> at[9] << 8)
    return 12 + (
        <uint64_t> at[8] | <uint64_t> at[9] << 8 | <uint64_t> at[10] << 16
        | <uint64_t> at[11] << 24
    )


cdef int add_part(
    Pieces pieces, Shard shard, Py_ssize_t member, uint64_t most, uint8_t *to
) except -1:
    """Add at most the first bytes of a member."""
    cdef uint64_t offset, size
    if shard is not pieces.last:
        pieces.select_shard(shard, member)
    shard.extent(pieces.source, member, &offset, &size)
    return add_piece(pieces, member, offset, min(size, most), to)


cdef int add_piece(
    Pieces pieces, Py_ssize_t member, uint64_t offset, uint64_t size, uint8_t *to
) except -1:
    """Add bytes of a member of the selected shard."""
    cdef piece_t *piece = pieces.append(member, offset, size)
    piece.to = to
    if pieces.remote is not None:
        pieces.use_staged(piece)
    else:
        piece.cold = not pieces.resident and not pieces.source.has_resident(
            offset, size
        )
    return 0


cdef int move_all(Pieces pieces) except -1:
    """Move all pieces; raise the error of the first that fails."""
    cdef size_t i
    pieces.move(None)
    for i in range(pieces.count):
        if not pieces.is_moved(i):
            error = pieces.failure(i)
            if error is not None:
                raise error
    return 0


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
