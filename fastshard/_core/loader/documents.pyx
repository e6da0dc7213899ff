"""Lengths of documents: fields of samples that hold tokens, raw or behind a header."""

cimport cython
from cpython.buffer cimport PyBuffer_Release
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc

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

    Parameters
    ----------
    samples : SamplesBase
    positions : array of int64
        Positions of samples in range.
    field : str
    dtype : numpy.dtype or None
        Of a token; None: that of the first document.

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
        """Take the lengths of documents from an index; False if one is too large.

        Parameters
        ----------
        known : array of int64 [positions]
        """
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
