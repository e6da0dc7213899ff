"""Windows of tokens, gathered from the bytes of documents.

A document is a field of a sample. A `TokenTable` has the running sums of the documents'
lengths and, above them, the sum before each block of documents: a token is found by
bisection in both. Documents are not objects: windows of resident shards are copied from
their maps without the GIL, other windows are read as pieces.
"""

cimport cython
from cpython.buffer cimport PyBuffer_Release
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

from fastshard._core.buffers cimport bytes_of, int64s_of
from fastshard._core.dataset.gather cimport Pieces
from fastshard._core.dataset.shard cimport SamplesBase, Shard
from fastshard._core.dataset.streams cimport SampleLocator, location_t
from fastshard._core.io.source cimport MappedSource, Source
from fastshard._core.loader.documents cimport (
    PackedRows, Packer, add_piece, move_all, segment_t,
)
from fastshard._core.platform cimport fs_has_bit, fs_load, fs_prefetch_line
from fastshard._core.table.extents cimport columns_t, has_unchecked_blocks

from array import array

from fastshard.errors import FormatError

cdef enum:
    BLOCK = 32                     # documents between two sums of the upper level
    LINE = 64                      # bytes of a cache line
    LINE_SUMS = 8                  # numbers in one
    WARM_BYTES = 32 << 10          # bytes whose residency is asked at a time
    AHEAD = 8                      # parts whose first bytes are prefetched
    HEAD_LINES = 4                 # cache lines of them

cdef int64_t MAX_BYTES = <int64_t> 1 << 60  # of all documents
cdef int64_t MAX_LENGTH = (<int64_t> 1 << 31) - 1  # tokens of a window


cdef struct part_t:                # tokens of one document in a row of a batch
    Py_ssize_t document
    int64_t start                  # the first of them, in the document
    int64_t at                     # and in the batch
    const uint8_t *data            # their bytes
    int32_t size                   # tokens
    int32_t span                   # tokens, and the separator behind them
    int32_t number                 # of the document, from 0 in the row; -1: padding
    int32_t holder                 # index of its shard among the held


cdef struct held_t:                # a mapped shard
    const uint8_t *base
    uint64_t nbytes
    const columns_t *columns
    const uint8_t *verified        # a bit a member; NULL: no need to verify


cdef inline Py_ssize_t find_last(
    const int64_t *sums, Py_ssize_t low, Py_ssize_t high, int64_t token
) noexcept nogil:
    """Return the last of the sums before `high` that is at most `token`, else `low`."""
    cdef Py_ssize_t middle
    while high - low > 1:
        middle = low + (high - low) // 2
        if sums[middle] <= token:
            low = middle
        else:
            high = middle
    return low


@cython.final
cdef class TokenTable:
    """The documents of a dataset in order: running sums of lengths, and members.

    Attributes
    ----------
    documents : int
    total : int
        Tokens of all documents, with separators.
    """

    cdef SampleLocator locator
    cdef str field
    cdef object sums_array         # the array that owns `sums`
    cdef object members
    cdef int64_t *sums             # tokens before each document, then the total
    cdef int64_t *tops             # every `BLOCK`-th of these
    cdef Py_ssize_t blocks
    cdef readonly Py_ssize_t documents
    cdef readonly int64_t total
    cdef int64_t item              # bytes
    cdef int64_t between           # separators behind a document: 0 or 1
    cdef bytes separator
    cdef const char *token         # its bytes
    cdef bint raw

    def __cinit__(
        self, SampleLocator locator not None, str field not None, lengths, members,
        int64_t itemsize, bytes separator not None, bint raw,
    ):
        cdef Py_buffer given, kept
        cdef const int64_t *found
        cdef Py_ssize_t i
        cdef int64_t most
        if itemsize < 1 or len(separator) not in (0, itemsize):
            raise ValueError(f"a token of {itemsize} bytes, got {len(separator)}")
        if len(lengths) != locator.count or len(members) != locator.count:
            raise ValueError(
                f"expected {locator.count:,} lengths and members, got {len(lengths):,} "
                f"and {len(members):,}"
            )
        self.locator = locator
        self.field = field
        self.item = itemsize
        self.separator = separator
        self.token = separator
        self.between = 1 if separator else 0
        self.raw = raw
        self.documents = len(lengths)
        self.members = members
        self.sums_array = array("q", bytes(8 * (self.documents + 1)))
        self.sums = int64s_of(self.sums_array, &kept, True)
        PyBuffer_Release(&kept)    # the array is private: it is never resized
        found = int64s_of(lengths, &given)
        most = MAX_BYTES // itemsize
        try:
            for i in range(self.documents):
                if not 0 <= found[i] <= most - self.sums[i] - 1:
                    raise ValueError(f"more than {most:,} tokens")
                self.sums[i + 1] = self.sums[i] + found[i] + self.between
        finally:
            PyBuffer_Release(&given)
        self.total = self.sums[self.documents]
        if self.documents > 0:     # none behind the last
            self.total -= self.between
        self.blocks = self.documents // BLOCK + 1
        self.tops = <int64_t *> malloc(self.blocks * sizeof(int64_t))
        if self.tops == NULL:
            raise MemoryError
        for i in range(self.blocks):
            self.tops[i] = self.sums[i * BLOCK]

    def __dealloc__(self):
        free(self.tops)

    def __reduce__(self):
        raise TypeError("a TokenTable does not pickle; pickle the dataset")

    cdef Py_ssize_t find_block(self, int64_t token) noexcept nogil:
        """Return the block of documents that holds a token."""
        return find_last(self.tops, 0, self.blocks, token)

    cdef Py_ssize_t find_in(self, Py_ssize_t block, int64_t token) noexcept nogil:
        """Return the document that holds a token: the last that begins up to it."""
        cdef Py_ssize_t first = block * BLOCK
        cdef Py_ssize_t end = min(first + BLOCK, self.documents)
        return find_last(self.sums, first, end, token)

    cdef void prefetch_sums(self, Py_ssize_t block) noexcept nogil:
        """Prefetch the sums of a block into the CPU cache."""
        cdef const uint8_t *at = <const uint8_t *> (self.sums + block * BLOCK)
        cdef Py_ssize_t end = min((block + 1) * BLOCK, self.documents) + 1
        cdef Py_ssize_t lines = (end - block * BLOCK) // LINE_SUMS + 1
        cdef Py_ssize_t i
        for i in range(lines):
            fs_prefetch_line(at + i * LINE)

    cdef int64_t length(self, Py_ssize_t document) noexcept nogil:
        return self.sums[document + 1] - self.sums[document] - self.between

    def gather_stream(
        self, starts, Py_ssize_t length, out, documents=None, positions=None,
        bint page_in=False,
    ):
        """Copy windows of all documents after each other."""
        cdef WindowBatch batch = WindowBatch(self, out, documents, positions, page_in)
        cdef Py_buffer given
        cdef const int64_t *numbers = int64s_of(starts, &given)
        try:
            batch.begin(given.len // 8, length)
            batch.add_windows(numbers, given.len // 8)
            return batch.gather()
        finally:
            PyBuffer_Release(&given)
            batch.release()

    def gather_rows(
        self, rows, PackedRows packed not None, out, documents=None, positions=None,
        bint page_in=False,
    ):
        """Copy packed rows; see `gather_stream` and `pack`."""
        cdef WindowBatch batch = WindowBatch(self, out, documents, positions, page_in)
        cdef Py_buffer given
        cdef const int64_t *numbers = int64s_of(rows, &given)
        cdef Py_ssize_t k
        try:
            batch.begin(given.len // 8, packed.length)
            for k in range(given.len // 8):
                if not 0 <= numbers[k] < packed.count:
                    raise IndexError(f"row {numbers[k]} is out of range")
            with nogil:
                for k in range(given.len // 8):
                    batch.add_row(k, packed, numbers[k])
            return batch.gather()
        finally:
            PyBuffer_Release(&given)
            batch.release()

    def pack(self, int64_t length, int64_t block):
        """Pack documents into rows by best fit in decreasing order, block by block."""
        cdef PackedRows packed = PackedRows(length)
        cdef Packer packer = Packer(length, self.between, min(block, self.documents))
        cdef Py_ssize_t start = 0
        while start < self.documents:
            packer.pack(self.sums, packed, start, min(start + block, self.documents))
            start += block
        return packed


@cython.final
cdef class WindowBatch:
    """Windows that are gathered together, and the memory that receives them.

    They are parts of documents. Parts of mapped shards that are resident as a whole are
    copied in one pass without the GIL. If there are others, or one whose extent is not
    as expected, all are read as `Pieces`, which raise the errors.
    """

    cdef TokenTable table
    cdef bint page_in
    cdef Py_ssize_t length
    cdef Py_buffer out
    cdef Py_buffer documents
    cdef Py_buffer positions
    cdef Py_buffer members
    cdef int buffers               # number of these buffers that are held
    cdef const uint32_t *kept      # the member of each document
    cdef object target
    cdef object numbers
    cdef object offsets
    cdef part_t *parts
    cdef Py_ssize_t count
    cdef Py_ssize_t room
    cdef Pieces pieces
    cdef held_t *held
    cdef int32_t holders
    cdef bint resident             # all of these are
    cdef int32_t *places           # by shard: its index in `held` + 1; 0: not held
    cdef Shard shard               # the last document's
    cdef Py_ssize_t first          # the shard has documents from this one on
    cdef Py_ssize_t end            # and before this one
    cdef uint64_t warm             # bytes of the shard from here on
    cdef uint64_t warm_end         # to here are resident

    def __cinit__(self, TokenTable table, out, documents, positions, bint page_in):
        self.table = table
        self.target = out
        self.numbers = documents
        self.offsets = positions
        self.page_in = page_in
        self.pieces = Pieces.__new__(Pieces)

    def __dealloc__(self):
        free(self.parts)
        free(self.held)
        free(self.places)

    def __reduce__(self):
        raise TypeError("a WindowBatch does not pickle")

    cdef int begin(self, Py_ssize_t windows, Py_ssize_t length) except -1:
        """Hold the buffers; check their sizes."""
        cdef int64_t item = self.table.item
        cdef Py_ssize_t size
        if not 0 < length <= MAX_LENGTH or windows > MAX_BYTES // (length * item):
            raise ValueError(f"{windows:,} windows of {length:,} tokens")
        size = windows * length
        self.length = length
        self.kept = <const uint32_t *> bytes_of(self.table.members, &self.members)
        self.buffers = 1
        if self.page_in:
            return 0
        bytes_of(self.target, &self.out, True)
        self.buffers = 2
        if self.out.len != size * item:
            raise ValueError(
                f"expected {size * item:,} bytes of memory for {windows:,} "
                f"windows, got {self.out.len:,}"
            )
        if self.numbers is None:
            return 0
        bytes_of(self.numbers, &self.documents, True)
        self.buffers = 3
        bytes_of(self.offsets, &self.positions, True)
        self.buffers = 4
        if self.documents.len != 4 * size or self.positions.len != 4 * size:
            raise ValueError(f"expected int32 of {size:,} tokens")
        return 0

    cdef void release(self):
        """Release the buffers."""
        if self.buffers > 0:
            PyBuffer_Release(&self.members)
        if self.buffers > 1:
            PyBuffer_Release(&self.out)
        if self.buffers > 2:
            PyBuffer_Release(&self.documents)
        if self.buffers > 3:
            PyBuffer_Release(&self.positions)
        self.buffers = 0

    cdef int add_windows(self, const int64_t *tokens, Py_ssize_t count) except -1:
        """Add windows by their first tokens; their look-ups are interleaved."""
        cdef TokenTable table = self.table
        cdef Py_ssize_t *found = <Py_ssize_t *> malloc(
            (count + 1) * sizeof(Py_ssize_t)
        )
        cdef Py_ssize_t k
        if found == NULL:
            raise MemoryError
        try:
            for k in range(count):
                if not 0 <= tokens[k] < table.total:
                    raise IndexError(f"token {tokens[k]} is out of range")
            with nogil:
                for k in range(count):
                    found[k] = table.find_block(tokens[k])
                    table.prefetch_sums(found[k])
                for k in range(count):
                    found[k] = table.find_in(found[k], tokens[k])
                    fs_prefetch_line(self.kept + found[k])
                for k in range(count):
                    self.add_window(k, found[k], tokens[k] - table.sums[found[k]])
        finally:
            free(found)
        return 0

    cdef int add_window(
        self, Py_ssize_t row, Py_ssize_t document, int64_t token
    ) except -1 nogil:
        """Add the parts of the window that begins with a token of a document."""
        cdef Py_ssize_t documents = self.table.documents
        cdef int64_t at = <int64_t> row * self.length
        cdef int64_t end = at + self.length
        cdef int64_t span
        cdef int32_t number = 0
        while at < end and document < documents:
            span = self.add_part(
                at, end - at, document, token, number, document + 1 < documents
            )
            number += span > 0
            at += span
            token = 0
            document += 1
        return self.pad(at, end - at, self.table.between > 0)

    cdef int add_row(
        self, Py_ssize_t row, PackedRows packed, int64_t number
    ) except -1 nogil:
        """Add the parts of a packed row."""
        cdef int64_t at = <int64_t> row * self.length
        cdef int64_t end = at + self.length
        cdef int64_t k
        cdef int64_t first = packed.starts[number]
        cdef int64_t last = packed.starts[number + 1]
        cdef segment_t segment
        for k in range(first, last):
            segment = packed.segments[k]
            at += self.add_part(
                at, end - at, segment.document, segment.start, <int32_t> (k - first),
                k + 1 < last,
            )
        return self.pad(at, end - at, False)

    cdef int64_t add_part(
        self, int64_t at, int64_t room, Py_ssize_t document, int64_t start,
        int32_t number, bint separated,
    ) except -1 nogil:
        """Add the part of a document that fits, from a token on, and its separator.

        Returns the number of tokens.
        """
        cdef int64_t left = max(self.table.length(document) - start, <int64_t> 0)
        cdef int64_t size = min(left, room)
        cdef int64_t span = size
        if separated and self.table.between > 0 and left < room:
            span += 1
            if not self.page_in:
                memcpy(
                    self.memory_of(at + size), self.table.token, self.table.item
                )
        if span > 0:
            self.append(document, start, at, size, span, number)
        return span

    cdef int pad(self, int64_t at, int64_t room, bint separated) except -1 nogil:
        """Fill the end of a row with separators, or zeros."""
        cdef int64_t i
        cdef int64_t item = self.table.item
        if room == 0:
            return 0
        if separated and not self.page_in:
            for i in range(room):
                memcpy(self.memory_of(at + i), self.table.token, item)
        elif not self.page_in:
            memset(self.memory_of(at), 0, room * item)
        return self.append(0, 0, at, 0, room, -1)

    cdef int append(
        self, Py_ssize_t document, int64_t start, int64_t at, int64_t size,
        int64_t span, int32_t number,
    ) except -1 nogil:
        cdef part_t *part
        cdef void *moved
        if self.count == self.room:
            moved = realloc(self.parts, (2 * self.room + 64) * sizeof(part_t))
            if moved == NULL:
                with gil:
                    raise MemoryError
            self.parts = <part_t *> moved
            self.room = 2 * self.room + 64
        part = &self.parts[self.count]
        part.document = document
        part.start = start
        part.at = at
        part.data = NULL
        part.size = <int32_t> size
        part.span = <int32_t> span
        part.number = number
        part.holder = 0
        self.count += 1
        return 0

    cdef uint8_t *memory_of(self, int64_t token) noexcept nogil:
        """Return the memory of a token of the batch; NULL to page in."""
        if self.page_in:
            return NULL
        return <uint8_t *> self.out.buf + token * self.table.item

    cdef bint gather(self) except -1:
        """Copy the bytes of all parts, or page them in; number documents.

        Returns whether all shards were mapped and resident.
        """
        cdef bint done = self.hold_shards()
        if done and not self.page_in:
            with nogil:
                done = self.copy_resident()
        if not done:
            self.read_pieces()
        if self.buffers == 4:
            with nogil:
                self.fill_numbers(
                    <int32_t *> self.documents.buf, <int32_t *> self.positions.buf
                )
        return done

    cdef void fill_numbers(self, int32_t *documents, int32_t *positions) noexcept nogil:
        cdef const part_t *part
        cdef Py_ssize_t k
        cdef int32_t i
        for k in range(self.count):
            part = &self.parts[k]
            for i in range(part.span):
                documents[part.at + i] = part.number
                positions[part.at + i] = i if part.number >= 0 else 0

    # Resident shards

    cdef bint hold_shards(self) except -1:
        """Hold the shards of all parts, and prefetch the extents of their documents.

        Returns False if not all are mapped and resident.
        """
        cdef SampleLocator locator = self.table.locator
        cdef const columns_t *columns = NULL
        cdef location_t location
        cdef part_t *part
        cdef Py_ssize_t first = 0  # the documents of the last shard
        cdef Py_ssize_t end = 0
        cdef Py_ssize_t member
        cdef int32_t holder = 0
        cdef Py_ssize_t k
        self.places = <int32_t *> calloc(locator.shards + 1, sizeof(int32_t))
        if self.places == NULL:
            raise MemoryError
        self.resident = True
        for k in range(self.count):
            part = &self.parts[k]
            if part.size == 0:
                continue
            if not first <= part.document < end:
                locator.locate(part.document, &location)
                holder = self.places[location.shard] - 1
                if holder < 0:
                    holder = self.hold(location.shard, part.document)
                    if holder < 0:
                        return False
                    self.places[location.shard] = holder + 1
                columns = self.held[holder].columns
                first = part.document
                end = part.document + 1
                if locator.order is None:
                    first = locator.starts[location.shard]
                    end = locator.starts[location.shard + 1]
            part.holder = holder
            member = self.kept[part.document]
            if member >= <Py_ssize_t> columns.count:
                return False
            if self.resident and not self.page_in:
                self.check_header(holder, member)
            fs_prefetch_line(columns.offsets + member)
            fs_prefetch_line(columns.sizes + member)
        return self.resident

    cdef int check_header(self, int32_t holder, Py_ssize_t member) except -1:
        """Compare the header of a member of a held shard, unless it was compared."""
        cdef const uint8_t *verified = self.held[holder].verified
        if verified != NULL and not fs_has_bit(verified, member):
            (<Shard> self.pieces.shards[holder]).check_header(
                <Source> self.pieces.sources[holder], member
            )
        return 0

    cdef int32_t hold(self, Py_ssize_t number, Py_ssize_t document) except -2:
        """Hold a mapped shard and return its index; -1: it is not mapped."""
        cdef Shard shard = self.table.locator.open_samples(number).shard
        cdef Pieces pieces = self.pieces
        cdef MappedSource direct
        cdef held_t *held
        cdef void *moved
        if shard is None:          # several hold its samples
            return -1
        with cython.critical_section(shard):
            direct = shard.direct
        if direct is None or has_unchecked_blocks(shard.table):
            return -1
        pieces.select_shard(shard, self.kept[document])
        if pieces.source is not direct:
            return -1
        self.resident = self.resident and pieces.resident
        if self.holders & (self.holders + 1) == 0:  # no room: there are 0, 1, 3, 7, ...
            moved = realloc(self.held, 2 * (self.holders + 1) * sizeof(held_t))
            if moved == NULL:
                raise MemoryError
            self.held = <held_t *> moved
        held = &self.held[self.holders]
        held.base = direct.base
        held.nbytes = direct.nbytes
        held.columns = &shard.table.columns
        held.verified = shard.table.verified
        self.holders += 1
        return self.holders - 1

    cdef bint copy_resident(self) noexcept nogil:
        """Copy all parts from held shards; False: an extent is not as expected."""
        cdef const part_t *part
        cdef int64_t item = self.table.item
        cdef Py_ssize_t k
        cdef int line
        for k in range(self.count):
            if not self.find_data(&self.parts[k]):
                return False
        for k in range(self.count):
            if k + AHEAD < self.count:
                for line in range(HEAD_LINES):
                    fs_prefetch_line(self.parts[k + AHEAD].data + line * LINE)
            part = &self.parts[k]
            memcpy(self.memory_of(part.at), part.data, part.size * item)
        return True

    cdef bint find_data(self, part_t *part) noexcept nogil:
        """Find the bytes of a part in its shard, and prefetch the first of them.

        Returns False if the extent of its document is not as expected.
        """
        cdef const held_t *held = &self.held[part.holder]
        cdef uint64_t item = <uint64_t> self.table.item
        cdef uint64_t data = <uint64_t> self.table.length(part.document) * item
        cdef Py_ssize_t member = self.kept[part.document]
        cdef uint64_t offset, nbytes
        if part.size == 0:         # `data` is not read
            part.data = <const uint8_t *> part
            return True
        offset = fs_load(held.columns.offsets + member)
        nbytes = fs_load(held.columns.sizes + member)
        if offset > held.nbytes or nbytes > held.nbytes - offset:
            return False
        if data > nbytes or (self.table.raw and data != nbytes):
            return False
        # The part ends in the document: `start + size <= length`.
        part.data = held.base + offset + (nbytes - data) + <uint64_t> part.start * item
        return True

    # Other shards

    cdef int read_pieces(self) except -1:
        """Read all parts as pieces."""
        cdef const part_t *part
        cdef Py_ssize_t k
        for k in range(self.count):
            part = &self.parts[k]
            if part.size > 0:
                self.add_piece(part)
        return move_all(self.pieces)

    cdef int find_shard(self, Py_ssize_t document) except -1:
        """Set the shard that holds a document."""
        cdef SampleLocator locator = self.table.locator
        cdef SamplesBase samples
        cdef location_t location
        locator.locate(document, &location)
        samples = locator.open_samples(location.shard)
        self.first = document
        self.end = document + 1
        self.shard = samples.shard
        if self.shard is None:
            self.shard = samples.holder(location.at, self.table.field)
        elif locator.order is None:
            self.first = locator.starts[location.shard]
            self.end = locator.starts[location.shard + 1]
        return 0

    cdef int add_piece(self, const part_t *part) except -1:
        """Add a part to the pieces."""
        cdef TokenTable table = self.table
        cdef Pieces pieces = self.pieces
        cdef Shard shard
        cdef uint64_t offset, nbytes
        cdef uint64_t item = <uint64_t> table.item
        cdef uint64_t data = <uint64_t> table.length(part.document) * item
        cdef Py_ssize_t member = self.kept[part.document]
        cdef uint8_t *to = self.memory_of(part.at)
        if not self.first <= part.document < self.end:
            self.find_shard(part.document)
        shard = self.shard
        if member >= shard.member_count():
            raise FormatError("the shard has fewer members than before", shard.path, 0)
        if shard is not pieces.last:
            pieces.select_shard(shard, member)
            self.warm = self.warm_end = 0
        shard.extent(pieces.source, member, &offset, &nbytes)
        if data > nbytes or (table.raw and data != nbytes):
            raise FormatError(
                f"expected {data:,} bytes of tokens, as counted before, got "
                f"{nbytes:,}", shard.path, offset, shard.member_name(member),
            )
        offset += nbytes - data + <uint64_t> part.start * item
        nbytes = <uint64_t> part.size * item
        if pieces.remote is None and not pieces.resident:
            self.find_warm(offset, nbytes)
        if self.warm <= offset and offset + nbytes <= self.warm_end:
            pieces.append(member, offset, nbytes).to = to
            return 0
        return add_piece(pieces, member, offset, nbytes, to)

    cdef void find_warm(self, uint64_t offset, uint64_t nbytes) noexcept:
        """Ask whether a window's bytes from an offset on are resident, all at once."""
        cdef Source source = self.pieces.source
        cdef uint64_t size = min(
            source.nbytes - offset, max(nbytes, <uint64_t> WARM_BYTES)
        )
        if self.warm <= offset and offset + nbytes <= self.warm_end:
            return
        self.warm = self.warm_end = 0
        if source.has_resident(offset, size):
            self.warm = offset
            self.warm_end = offset + size
