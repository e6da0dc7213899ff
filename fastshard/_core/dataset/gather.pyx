"""Bulk reads: copy many members into one buffer, or page them in, without the GIL.

The kernel is advised of uncached pages well before they are touched. Threads are
started for large reads only: starting one costs as much as copying some 100 KB.
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS, PyBUF_WRITABLE, PyBUF_WRITE, PyBuffer_Release,
    PyObject_CheckBuffer, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.errno cimport errno
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

from fastshard._core.buffers cimport int64s_of
from fastshard._core.dataset.shard cimport SampleBase, Shard
from fastshard._core.io.source cimport MAX_PAGE_IN, RemoteSource, Source
from fastshard._core.pages cimport fs_advise_pages, fs_now, fs_populate_pages
from fastshard._core.platform cimport (
    fs_advise_file, fs_has_bit, fs_pread, fs_prefetch,
)
from fastshard._core.threads cimport (
    fs_atomic_load, fs_atomic_next, fs_thread_join, fs_thread_start, fs_thread_t,
)

import os
from array import array

from fastshard.errors import FastshardError, FormatError

cdef enum:
    MAX_THREADS = 64
    DEFAULT_THREADS = 4            # more gain nothing: memory is the limit
    PIECES_AHEAD = 256             # advised before the first is waited for
    BYTES_AHEAD = 4 << 20          # of each piece
    STEP = 1 << 20                 # bytes paged in and copied at a time

cdef uint64_t BYTES_PER_THREAD = 4 << 20
cdef uint64_t BATCH_BYTES = 128 << 10  # about the share of a thread at a time

cdef struct work_t:                # shared by the threads
    piece_t *pieces
    uint64_t count
    uint64_t batch                 # pieces that a thread takes at a time
    uint64_t next                  # number of the next batch
    uint64_t advised               # pieces that the kernel is advised of


cdef void advise(const piece_t *piece) noexcept nogil:
    """Advise the kernel of a piece that may not be resident."""
    cdef uint64_t size = min(piece.size, <uint64_t> BYTES_AHEAD)
    if not piece.cold:
        return
    if piece.base != NULL:
        fs_advise_pages(piece.base + piece.offset, size)
    else:
        fs_advise_file(piece.fd, piece.offset, size)


cdef void copy_mapped(piece_t *piece) noexcept nogil:
    """Page in a piece of a mapped file; copy it to its destination, if any."""
    cdef const uint8_t *start = piece.base + piece.offset
    cdef uint64_t size
    if not piece.cold:
        if piece.to != NULL:
            memcpy(piece.to, start, <size_t> piece.size)
        piece.done = piece.size
    while piece.done < piece.size:
        size = min(piece.size - piece.done, <uint64_t> STEP)
        if piece.done + size > BYTES_AHEAD:
            fs_advise_pages(start + piece.done, size)
        piece.code = fs_populate_pages(start + piece.done, size)
        if piece.code != 0:
            return
        if piece.to != NULL:
            memcpy(piece.to + piece.done, start + piece.done, <size_t> size)
        piece.done += size


cdef void read_piece(piece_t *piece) noexcept nogil:
    """Read a piece with pread, if it has a destination."""
    cdef int64_t got
    if piece.to == NULL:           # advised; its reader waits without the GIL
        piece.done = piece.size
    while piece.done < piece.size:
        got = fs_pread(
            piece.fd, piece.to + piece.done, <size_t> (piece.size - piece.done),
            piece.offset + piece.done,
        )
        if got <= 0:
            piece.code = errno if got < 0 else 0
            return
        piece.done += got


cdef void *move_batches(void *argument) noexcept nogil:
    """Move batches of pieces until none is left; the body of a thread."""
    cdef work_t *work = <work_t *> argument
    cdef piece_t *piece
    cdef uint64_t i, end, k
    while True:
        i = fs_atomic_next(&work.next) * work.batch
        if i >= work.count:
            return NULL
        end = min(i + work.batch, work.count)
        while fs_atomic_load(&work.advised) < min(end + PIECES_AHEAD, work.count):
            k = fs_atomic_next(&work.advised)
            if k < work.count:
                advise(&work.pieces[k])
        while i < end:
            piece = &work.pieces[i]
            if i + 1 < end and not piece[1].cold and piece[1].base != NULL:
                fs_prefetch(piece[1].base + piece[1].offset)
            if piece.base != NULL:
                copy_mapped(piece)
            else:
                read_piece(piece)
            i += 1


cdef void move_pieces(
    piece_t *pieces, size_t count, uint64_t nbytes, int threads
) noexcept nogil:
    """Move all pieces with some threads, this one included."""
    cdef fs_thread_t[MAX_THREADS] others
    cdef work_t work
    cdef int started = 0
    memset(&work, 0, sizeof(work))
    work.pieces = pieces
    work.count = count
    work.batch = min(
        max(BATCH_BYTES * count // (nbytes + 1), <uint64_t> 1), <uint64_t> 64
    )
    while started < threads - 1:
        if fs_thread_start(&others[started], move_batches, &work) != 0:
            break                  # fewer threads do it
        started += 1
    move_batches(&work)
    while started > 0:
        started -= 1
        fs_thread_join(others[started])


cdef int choose_threads(uint64_t nbytes, object threads) except -1:
    """Return the number of threads: the requested one, or fewer for few bytes."""
    count = min(DEFAULT_THREADS, os.cpu_count() or 1) if threads is None else threads
    if count < 1:
        raise ValueError(f"threads must be at least 1, got {threads!r}")
    return max(1, min(count, MAX_THREADS, nbytes // BYTES_PER_THREAD))


@cython.final
cdef class Pieces:
    """Checked extents of members, with their destinations."""

    def __cinit__(self):
        self.shards = []
        self.sources = []
        self.staged = []
        self.errors = {}
        self.now = fs_now()

    def __reduce__(self):
        raise TypeError("Pieces do not pickle")

    cdef piece_t *add(self, Shard shard, Py_ssize_t member) except NULL:
        """Add a member; the caller sets its destination."""
        cdef piece_t *piece
        cdef uint64_t offset, size
        if not 0 <= member < shard.member_count():
            raise IndexError(
                f"position {member} is out of range: {shard.path} has "
                f"{shard.member_count():,} members"
            )
        if shard is not self.last:
            self.select_shard(shard, member)
        shard.extent(self.source, member, &offset, &size)
        piece = self.append(member, offset, size)
        if shard.builds:
            self.use_built(piece, shard)
        elif self.is_pinned:
            self.use_pinned(piece)
        elif self.remote is not None:
            self.use_staged(piece)
        else:
            piece.cold = (
                not self.resident and not self.source.has_resident(offset, size)
            )
        return piece

    cdef piece_t *append(
        self, Py_ssize_t member, uint64_t offset, uint64_t size
    ) except NULL:
        """Append an extent of the selected shard."""
        cdef piece_t *piece
        if self.count == self.room:
            self.grow()
        piece = &self.at[self.count]
        memset(piece, 0, sizeof(piece_t))
        piece.offset = offset
        piece.size = size
        piece.base = self.source.base
        piece.fd = self.fd
        piece.owner = len(self.shards) - 1
        piece.member = member
        self.count += 1
        self.nbytes += size
        return piece

    cdef int add_cold(self, Shard shard, Py_ssize_t member) except -1:
        """Add the likely extent of a member to page in, unless it is resident."""
        cdef uint64_t offset, size
        if shard is not self.last:
            self.select_shard(shard, member)
        if not shard.estimate_extent(self.source, member, &offset, &size):
            return 0               # raises when it is read
        if not self.resident and not self.source.had_resident(offset, size, self.now):
            self.add_missing(shard, member, offset, size)
        return 0

    cdef int add_missing(
        self, Shard shard, Py_ssize_t member, uint64_t offset, uint64_t size
    ) except -1:
        """Add the extent of a member to page in."""
        cdef piece_t *piece
        if shard is not self.last:
            self.select_shard(shard, member)
        if self.is_pinned or (self.limit > 0 and self.nbytes >= self.limit):
            return 0               # would be released before it is read
        piece = self.append(member, offset, min(size, <uint64_t> MAX_PAGE_IN))
        piece.cold = True
        return 0

    cdef int page_in(self) except -1:
        """Page in all pieces; raise the error of the first that fails."""
        cdef size_t i
        if self.count == 0:
            return 0
        self.move(1)
        for i in range(self.count):
            error = self.failure(i)
            if error is not None:
                raise error
        return 0

    cdef int select_shard(self, Shard shard, Py_ssize_t member) except -1:
        """Select the shard that the next members belong to; errors name `member`."""
        cdef Source source = shard.open_source()
        try:
            source.check_size()
        except FormatError as error:
            raise shard.annotate(error, member) from None
        self.resident = source.is_resident()
        self.source = source
        self.remote = source if isinstance(source, RemoteSource) else None
        self.limit = max(self.limit, source.touch_limit())
        self.last = shard
        self.shards.append(shard)
        self.sources.append(source)  # keeps it open if the shard is closed
        lease = source.lease(&self.fd)
        self.is_pinned = lease is None
        if lease is not source:
            self.staged.append(lease)
        return 0

    cdef int use_built(self, piece_t *piece, Shard shard) except -1:
        """Point a piece at the bytes that its shard builds."""
        cdef uint8_t *at
        cdef uint64_t size
        self.staged.append(shard.pin(piece.member, &at, &size))
        piece.base = at
        piece.offset = 0
        piece.size = size
        return 0

    cdef int use_pinned(self, piece_t *piece) except -1:
        """Read a piece now, and point it at the copy."""
        cdef uint8_t *at
        try:
            self.staged.append(self.source.pin(piece.offset, piece.size, &at))
        except (FormatError, OSError) as error:
            self.errors[self.count - 1] = error
            piece.fd = -1
            return 0
        piece.base = at
        piece.offset = 0
        return 0

    cdef int use_staged(self, piece_t *piece) except -1:
        """Point a remote piece at staged bytes, or count it as unstaged."""
        cdef uint8_t *at
        cdef object data = self.remote.find_staged(piece.offset, piece.size, &at)
        if data is None:
            self.unstaged += 1
            return 0
        self.staged.append(data)
        piece.base = at
        piece.offset = 0
        return 0

    cdef int read_remote(self) except -1:
        """Read unstaged remote pieces to their destinations."""
        cdef piece_t *piece
        cdef size_t i
        wants = []
        numbers = []
        for i in range(self.count):
            piece = &self.at[i]
            if piece.base != NULL or piece.fd >= 0 or piece.done == piece.size:
                continue
            if not isinstance(self.sources[piece.owner], RemoteSource):
                continue           # a local piece that could not be read
            file = (<RemoteSource> self.sources[piece.owner]).file
            if piece.to != NULL:
                to = PyMemoryView_FromMemory(<char *> piece.to, piece.size, PyBUF_WRITE)
                wants.append((file, piece.offset, to))
                numbers.append(i)
            piece.done = piece.size
        if not wants:
            return 0
        for i, error in zip(numbers, wants[0][0].read_into(wants), strict=True):
            if error is not None:
                self.errors[i] = error
        return 0

    cdef Shard shard_of(self, size_t i):
        return self.shards[self.at[i].owner]

    cdef int grow(self) except -1:
        cdef size_t room = 2 * self.room + 64
        cdef void *moved = realloc(self.at, room * sizeof(piece_t))
        if moved == NULL:
            raise MemoryError
        self.at = <piece_t *> moved
        self.room = room
        return 0

    cdef int move(self, object threads) except -1:
        """Move all pieces; one that failed has `done` below `size`, see `failure`."""
        cdef int count = choose_threads(self.nbytes, threads)
        cdef size_t start = 0
        cdef size_t end
        cdef uint64_t nbytes
        if self.unstaged > 0:
            self.read_remote()
        if self.limit == 0:
            with nogil:
                move_pieces(self.at, self.count, self.nbytes, count)
            return self.check_headers(0, self.count)
        while start < self.count:  # no more at a time than the ring allows
            end = self.find_end(start, &nbytes)
            count = choose_threads(nbytes, threads)
            self.touch(start, end, False)
            with nogil:
                move_pieces(self.at + start, end - start, nbytes, count)
            self.check_headers(start, end)
            self.touch(start, end, True)  # another thread may have released them
            start = end
        return 0

    cdef int check_headers(self, size_t start, size_t end) except -1:
        """Compare the headers of members known from an unverified index."""
        cdef Shard shard
        cdef piece_t *piece
        cdef bint doubtful = False
        cdef size_t i
        for shard in self.shards:
            doubtful = doubtful or shard.table.verified != NULL
        if not doubtful:
            return 0
        for i in range(start, end):
            piece = &self.at[i]
            shard = self.shard_of(i)
            if piece.to == NULL or piece.done < piece.size or (
                shard.table.verified == NULL
                or fs_has_bit(shard.table.verified, piece.member)
            ):
                continue
            try:
                shard.check_header(self.sources[piece.owner], piece.member)
            except (FormatError, OSError) as error:
                self.errors[i] = error
                piece.mismatched = True
        return 0

    cdef size_t find_end(self, size_t start, uint64_t *nbytes) noexcept:
        """Return the end of the pieces to move together; set their number of bytes."""
        cdef size_t i = start
        nbytes[0] = 0
        while i < self.count and (i == start or nbytes[0] < self.limit):
            nbytes[0] += self.at[i].size
            i += 1
        return i

    cdef int touch(self, size_t start, size_t end, bint moved) except -1:
        """Mark the pages of some pieces as touched."""
        cdef piece_t *piece
        cdef Source source
        cdef size_t i
        for i in range(start, end):
            piece = &self.at[i]
            source = <Source> self.sources[piece.owner]
            source.touch(piece.offset, piece.size)
            if moved or not piece.cold:
                source.confine(piece.offset, piece.size)
        return 0

    cdef bint is_moved(self, size_t i) noexcept:
        """Return whether piece `i` was surely moved; otherwise ask `failure`."""
        cdef piece_t *piece = &self.at[i]
        if piece.mismatched:
            return False
        return piece.done == piece.size and (piece.base != NULL or piece.to == NULL)

    cdef object failure(self, size_t i):
        """Return the error of piece `i`, or None if it was moved."""
        cdef piece_t *piece = &self.at[i]
        cdef Shard shard = self.shard_of(i)
        cdef Source source = self.sources[piece.owner]
        if self.is_moved(i):
            return None
        error = self.errors.get(i)
        if piece.mismatched:
            return error
        if error is not None:
            return shard.annotate(error, piece.member)
        if piece.done < piece.size:
            error = source.failure(piece.offset + piece.done, piece.code)
            return shard.annotate(error, piece.member)
        try:
            source.check_unchanged()
        except (FormatError, OSError) as error:
            return shard.annotate(error, piece.member)
        return None

    def __dealloc__(self):
        free(self.at)


# Reads into a buffer of the caller

@cython.final
cdef class Target:
    """Buffer of the caller, held while it is written."""

    cdef Py_buffer buffer
    cdef bint held
    cdef uint64_t row              # bytes of a row; 0: members are concatenated
    cdef uint64_t rows

    def __cinit__(self, out):
        if not PyObject_CheckBuffer(out) and hasattr(out, "__array__"):
            import numpy

            out = numpy.asarray(out)  # a tensor: shares its memory
        PyObject_GetBuffer(out, &self.buffer, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS)
        self.held = True
        if self.buffer.ndim > 1:
            self.rows = self.buffer.shape[0]
            self.row = self.buffer.len // self.rows if self.rows > 0 else 0

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.buffer)


cdef object copy_ints(list numbers):
    """Return a list of plain ints as an array of int64; None: some are not, or large.

    An ``array`` made of the list takes ten times as long for each.
    """
    cdef Py_buffer buffer
    cdef int64_t *to
    cdef int overflow = 0
    with cython.critical_section(numbers):
        whole = array("q", bytes(8 * len(numbers)))
        to = int64s_of(whole, &buffer, writable=True)
        try:
            for number in numbers:  # which runs no Python code
                if not PyLong_CheckExact(number):
                    return None
                to[0] = PyLong_AsLongLongAndOverflow(number, &overflow)
                if overflow != 0:
                    return None
                to += 1
        finally:
            PyBuffer_Release(&buffer)
    return whole


def resolve_positions(positions, Py_ssize_t count):
    """Return positions as an array of int64; negative ones count from the end."""
    cdef Py_buffer buffer
    cdef int64_t *numbers
    cdef int64_t i
    cdef Py_ssize_t k
    kind = getattr(getattr(positions, "dtype", None), "kind", "")
    if kind == "u" and len(positions) and int(positions.max()) >= count:
        raise IndexError(
            f"position {int(positions.max())} is out of range for length {count:,}"
        )
    if kind in ("i", "u"):
        whole = array("q", positions.astype("q").tobytes())
    else:
        whole = copy_ints(<list> positions) if type(positions) is list else None
    if whole is None:
        try:
            whole = array("q", positions)
        except OverflowError:
            raise IndexError(
                f"a position is out of range for length {count:,}"
            ) from None
    numbers = int64s_of(whole, &buffer, writable=True)
    try:
        for k in range(buffer.len // 8):
            i = numbers[k]
            if not -count <= i < count:
                raise IndexError(f"position {i} is out of range for length {count:,}")
            if i < 0:
                numbers[k] = i + count
    finally:
        PyBuffer_Release(&buffer)
    return whole


cdef int assign_targets(Pieces pieces, Target target, int64_t *offsets) except -1:
    """Set the destination of each piece; write their offsets and the last one's end."""
    cdef uint64_t at = 0
    cdef size_t i
    cdef piece_t *piece
    if target.row > 0 and pieces.count > target.rows:
        raise ValueError(
            f"{pieces.count:,} members do not fit into {target.rows:,} rows"
        )
    for i in range(pieces.count):
        piece = &pieces.at[i]
        if target.row > 0 and piece.size != target.row:
            raise ValueError(
                f"member {pieces.shard_of(i).member_name(piece.member)!r} of "
                f"{pieces.shard_of(i).path} has {piece.size:,} bytes, and a row has "
                f"{target.row:,}"
            )
        if piece.size > <uint64_t> target.buffer.len - at:
            raise ValueError(
                f"{pieces.nbytes:,} bytes do not fit into {target.buffer.len:,}"
            )
        piece.to = <uint8_t *> target.buffer.buf + at
        offsets[i] = at
        at += piece.size
    offsets[pieces.count] = at
    return 0


def gather(
    list shards not None, members, out, *, skips=None, sizes=None, threads=None
):
    """Copy members into one buffer without the GIL."""
    cdef Target target = Target(out)
    return move(make_pieces(shards, members, skips, sizes), target, threads)


def pack(list shards not None, members, allocate, *, threads=None):
    """Concatenate members in a new buffer without the GIL."""
    cdef Pieces pieces = make_pieces(shards, members, None, None)
    out = allocate(pieces.nbytes)
    return out, move(pieces, Target(out), threads)


cdef Pieces make_pieces(list shards, members, skips, sizes):
    """Return the extents of members, or of parts of them."""
    cdef Pieces pieces = Pieces()
    cdef Py_buffer buffer
    cdef const int64_t *numbers = int64s_of(members, &buffer)
    cdef Py_ssize_t i, count
    cdef bint single = len(shards) == 1
    try:
        count = buffer.len // 8
        if not single and len(shards) != count:
            raise ValueError(
                f"expected a shard for each of {count:,} members, got {len(shards):,}"
            )
        for i in range(count):
            pieces.add(<Shard?> shards[0 if single else i], numbers[i])
    finally:
        PyBuffer_Release(&buffer)
    if skips is not None:
        cut_pieces(pieces, skips, True)
    if sizes is not None:
        cut_pieces(pieces, sizes, False)
    return pieces


cdef int cut_pieces(Pieces pieces, numbers, bint starts) except -1:
    """Remove some bytes at the start of each piece, or leave some bytes of each."""
    cdef Py_buffer buffer
    cdef const int64_t *given = int64s_of(numbers, &buffer)
    cdef piece_t *piece
    cdef uint64_t before
    cdef size_t i
    what = "skip" if starts else "size"
    try:
        if buffer.len // 8 != <Py_ssize_t> pieces.count:
            raise ValueError(
                f"expected {pieces.count:,} {what}s, got {buffer.len // 8:,}"
            )
        for i in range(pieces.count):
            piece = &pieces.at[i]
            before = piece.size
            if not 0 <= given[i] <= <int64_t> before:
                raise ValueError(
                    f"a {what} must be between 0 and the member's {before:,} bytes, "
                    f"got {given[i]:,}"
                )
            if starts:
                piece.offset += given[i]
                piece.size -= given[i]
            else:
                piece.size = given[i]
            pieces.nbytes -= before - piece.size
    finally:
        PyBuffer_Release(&buffer)
    return 0


cdef object move(Pieces pieces, Target target, threads):
    """Copy pieces into a buffer; return their offsets, and the end of the last."""
    import numpy

    cdef Py_buffer buffer
    cdef size_t i
    offsets = numpy.empty(pieces.count + 1, numpy.int64)
    int64s_of(offsets, &buffer, writable=True)
    try:
        assign_targets(pieces, target, <int64_t *> buffer.buf)
    finally:
        PyBuffer_Release(&buffer)
    pieces.move(threads)
    for i in range(pieces.count):
        if not pieces.is_moved(i):
            error = pieces.failure(i)
            if error is not None:
                raise error
    return offsets


def read_members(Shard shard not None, positions, out, threads):
    """Copy members of one shard into a buffer; see `Shard.read_into`."""
    return gather(
        [shard], resolve_positions(positions, len(shard)), out, threads=threads
    )


# Copies

cdef object add_copy(Pieces pieces, Shard shard, Py_ssize_t i):
    """Add a member with a new bytes object as its destination; return the object."""
    cdef piece_t *piece = pieces.add(shard, i)
    cdef object room = PyBytes_FromStringAndSize(NULL, piece.size)
    piece.to = <uint8_t *> PyBytes_AS_STRING(room)
    return room


def copy_members(list shards not None, list positions not None):
    """Return copies of members' bytes."""
    cdef Pieces pieces = Pieces()
    cdef Py_ssize_t k
    cdef size_t i
    if len(positions) != len(shards):
        raise ValueError(
            f"expected a position for each of {len(shards):,} shards, "
            f"got {len(positions):,}"
        )
    found = []
    indexes = []                   # in `found`, of each piece
    for k in range(len(shards)):
        try:
            found.append(add_copy(pieces, <Shard?> shards[k], positions[k]))
            indexes.append(k)
        except (IndexError, ValueError, OSError) as error:
            found.append(error)
    pieces.move(None)
    for i in range(pieces.count):
        error = pieces.failure(i)
        if error is not None:
            found[indexes[i]] = error
    return found


# Prefetch into the page cache

@cython.nonecheck(True)
def prefetch_samples(list samples not None, uint64_t most):
    """Page in the fields of samples that are not resident."""
    cdef Pieces pieces = Pieces()
    cdef SampleBase sample
    cdef Shard shard
    cdef Source source
    for sample in samples:
        if sample.samples.is_resident(sample):
            continue
        for shard, member in sample.samples.visible_members(sample):
            source = shard.open_source()
            if source.is_remote() or source.is_resident():
                continue
            if pieces.nbytes >= most:
                break
            pieces.add_cold(shard, member)
    pieces.page_in()


def count_bytes(samples not None):
    """Return the stored bytes of the visible fields of samples; others count 0."""
    cdef Shard shard
    cdef uint64_t offset, size
    cdef uint64_t total = 0
    for item in samples:
        sample = getattr(item, "stored", item)  # of a sample with decoded images
        if not isinstance(sample, SampleBase) or (<SampleBase> sample).samples is None:
            continue
        try:
            for shard, member in (<SampleBase> sample).samples.visible_members(sample):
                shard.extent(shard.open_source(), member, &offset, &size)
                total += size
        except (FastshardError, OSError):
            continue
    return total


def prefetch_members(list shards not None, list members not None, uint64_t most):
    """Page in members that are not resident: one position for each shard."""
    cdef Pieces pieces = Pieces()
    cdef Shard shard
    cdef Source source
    for shard, member in zip(shards, members, strict=True):
        source = shard.open_source()
        if source.is_remote() or source.is_resident():
            continue
        if pieces.nbytes >= most:
            break
        pieces.add_cold(shard, member)
    pieces.page_in()
