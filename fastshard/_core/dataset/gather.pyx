"""Many members at once: moved into memory of the caller's, or paged in, without the GIL.

What is not in the page cache is asked for well before it is waited for. Threads
are started when there is enough to move: one costs as much as some 100 KB.
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS, PyBUF_WRITABLE, PyBUF_WRITE, PyBuffer_Release,
    PyObject_CheckBuffer, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.errno cimport errno
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

from fastshard._core.buffers cimport int64s_of
from fastshard._core.pages cimport fs_advise_pages, fs_populate_pages
from fastshard._core.platform cimport (
    fs_has_bit, fs_pread, fs_prefetch, fs_advise_file,
)
from fastshard._core.io.source cimport RemoteSource
from fastshard._core.io.source cimport MAX_PAGE_IN
from fastshard._core.dataset.shard cimport SampleBase
from fastshard._core.dataset.shard cimport Shard
from fastshard._core.io.source cimport Source
from fastshard._core.threads cimport (
    fs_atomic_load, fs_atomic_next, fs_thread_join, fs_thread_start, fs_thread_t,
)

import os
from array import array

from fastshard.errors import FormatError

cdef enum:
    MOST_THREADS = 64
    USUAL_THREADS = 4              # more gain nothing: memory is the limit
    AHEAD = 256                    # pieces asked for before one is waited for
    BYTES_AHEAD = 4 << 20          # of each piece
    STEP = 1 << 20                 # bytes brought and copied at a time

cdef uint64_t WORTH_A_THREAD = 4 << 20  # bytes for each
cdef uint64_t TAKEN = 128 << 10    # bytes that a thread takes at a time, about

cdef struct work_t:                # what threads share
    piece_t *pieces
    uint64_t count
    uint64_t taken                 # pieces that a thread took at a time
    uint64_t next                  # batch of them that nobody took yet
    uint64_t asked                 # pieces that the kernel knows of


cdef void ask(const piece_t *piece) noexcept nogil:
    cdef uint64_t size = min(piece.size, <uint64_t> BYTES_AHEAD)
    if not piece.far:
        return
    if piece.base != NULL:
        fs_advise_pages(piece.base + piece.offset, size)
    else:
        fs_advise_file(piece.fd, piece.offset, size)


cdef void move_mapped(piece_t *piece) noexcept nogil:
    cdef const uint8_t *start = piece.base + piece.offset
    cdef uint64_t size
    if not piece.far:
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


cdef void move_read(piece_t *piece) noexcept nogil:
    cdef int64_t got
    if piece.to == NULL:           # asked for: who reads it waits without the GIL
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


cdef void *run(void *argument) noexcept nogil:
    """Move batches of pieces until none is left."""
    cdef work_t *work = <work_t *> argument
    cdef piece_t *piece
    cdef uint64_t i, end, known
    while True:
        i = fs_atomic_next(&work.next) * work.taken
        if i >= work.count:
            return NULL
        end = min(i + work.taken, work.count)
        while fs_atomic_load(&work.asked) < min(end + AHEAD, work.count):
            known = fs_atomic_next(&work.asked)
            if known < work.count:
                ask(&work.pieces[known])
        while i < end:
            piece = &work.pieces[i]
            if i + 1 < end and not piece[1].far and piece[1].base != NULL:
                fs_prefetch(piece[1].base + piece[1].offset)
            if piece.base != NULL:
                move_mapped(piece)
            else:
                move_read(piece)
            i += 1


cdef void move_all(piece_t *pieces, size_t count, uint64_t nbytes, int threads) noexcept nogil:
    cdef fs_thread_t[MOST_THREADS] others
    cdef work_t work
    cdef int started = 0
    memset(&work, 0, sizeof(work))
    work.pieces = pieces
    work.count = count
    work.taken = min(max(TAKEN * count // (nbytes + 1), <uint64_t> 1), <uint64_t> 64)
    while started < threads - 1:
        if fs_thread_start(&others[started], run, &work) != 0:
            break                  # those that there are do it
        started += 1
    run(&work)
    while started > 0:
        started -= 1
        fs_thread_join(others[started])


cdef int threads_for(uint64_t nbytes, object threads) except -1:
    """How many threads: those wanted, as long as each has enough to do."""
    wanted = min(USUAL_THREADS, os.cpu_count() or 1) if threads is None else threads
    if wanted < 1:
        raise ValueError(f"threads is at least 1, not {threads!r}")
    return max(1, min(wanted, MOST_THREADS, nbytes // WORTH_A_THREAD))


@cython.final
cdef class Pieces:
    """Extents of members, checked, and where their bytes go."""

    def __cinit__(self):
        self.shards = []
        self.sources = []
        self.held = []
        self.errors = {}

    def __reduce__(self):
        raise TypeError("pieces do not pickle")

    cdef piece_t *add(self, Shard shard, Py_ssize_t member) except NULL:
        """Add a member; the caller says where to."""
        cdef piece_t *piece
        cdef uint64_t offset, size
        if not 0 <= member < <Py_ssize_t> shard.table.columns.count:
            raise IndexError(
                f"position {member} is out of range: {shard.path} has "
                f"{shard.table.columns.count:,} members"
            )
        if shard is not self.last:
            self.turn_to(shard, member)
        shard.extent(self.source, member, &offset, &size)
        piece = self.append(member, offset, size)
        if self.remote is not None:
            self.find_staged(piece)
        else:
            piece.far = not self.near and not self.source.has_resident(offset, size)
        return piece

    cdef piece_t *append(
        self, Py_ssize_t member, uint64_t offset, uint64_t size
    ) except NULL:
        """Append a part of the source whose turn it is."""
        cdef piece_t *piece
        if self.count == self.room:
            self.grow()
        piece = &self.at[self.count]
        memset(piece, 0, sizeof(piece_t))
        piece.offset = offset
        piece.size = size
        piece.base = self.source.base
        piece.fd = self.source.fd
        piece.owner = len(self.shards) - 1
        piece.member = member
        self.count += 1
        self.nbytes += size
        return piece

    cdef int add_guess(self, Shard shard, Py_ssize_t member) except -1:
        """Add what is likely to hold a member, to be brought, if it may be far."""
        cdef piece_t *piece
        cdef uint64_t offset, size
        if shard is not self.last:
            self.turn_to(shard, member)
        if self.most > 0 and self.nbytes >= self.most:
            return 0               # it would be released before it is read
        if not shard.estimate_extent(self.source, member, &offset, &size):
            return 0               # raises when it is read
        if self.near or self.source.has_resident(offset, size):
            return 0
        piece = self.append(member, offset, min(size, <uint64_t> MAX_PAGE_IN))
        piece.far = True
        return 0

    cdef int bring(self) except -1:
        """Bring all pieces; raise what is wrong with the first that cannot be."""
        cdef size_t i
        if self.count == 0:
            return 0
        self.move(1)
        for i in range(self.count):
            error = self.failure(i)
            if error is not None:
                raise error
        return 0

    cdef int turn_to(self, Shard shard, Py_ssize_t member) except -1:
        """Members of this shard come now, this one first."""
        cdef Source source = shard.open_source()
        try:
            source.check_size()
        except FormatError as error:
            raise shard.annotate(error, member) from None
        self.near = source.is_resident()
        self.source = source
        self.remote = source if isinstance(source, RemoteSource) else None
        self.most = max(self.most, source.touch_limit())
        self.last = shard
        self.shards.append(shard)
        self.sources.append(source)  # held, whoever closes the shard meanwhile
        return 0

    cdef int find_staged(self, piece_t *piece) except -1:
        """Point at bytes that were brought before, or note that they are wanted."""
        cdef bytes data = self.remote.staged_at(piece.offset, piece.size)
        if data is None:
            self.wanted += 1
            return 0
        self.held.append(data)
        piece.base = <uint8_t *> PyBytes_AS_STRING(data)
        piece.offset = 0
        return 0

    cdef int fetch(self) except -1:
        """Have remote pieces brought, straight to where they go."""
        cdef piece_t *piece
        cdef size_t i
        wants = []
        numbers = []
        for i in range(self.count):
            piece = &self.at[i]
            if piece.base != NULL or piece.fd >= 0 or piece.done == piece.size:
                continue
            file = (<RemoteSource?> self.sources[piece.owner]).file
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
        """Move all bytes. What failed has `done` below `size`: see `failure`."""
        cdef int count = threads_for(self.nbytes, threads)
        cdef size_t start = 0
        cdef size_t end
        cdef uint64_t nbytes
        if self.wanted > 0:
            self.fetch()
        if self.most == 0:
            with nogil:
                move_all(self.at, self.count, self.nbytes, count)
            return self.prove(0, self.count)
        while start < self.count:  # no more at a time than may be resident
            end = self.end_of(start, &nbytes)
            count = threads_for(nbytes, threads)
            self.touch(start, end, False)
            with nogil:
                move_all(self.at + start, end - start, nbytes, count)
            self.prove(start, end)
            self.touch(start, end, True)  # another thread may have had them released
            start = end
        return 0

    cdef int prove(self, size_t start, size_t end) except -1:
        """Compare the headers of members of which an index alone tells."""
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
                piece.wrong = True
        return 0

    cdef size_t end_of(self, size_t start, uint64_t *nbytes) noexcept:
        """Where the pieces end that are moved together, and how many bytes they are."""
        cdef size_t i = start
        nbytes[0] = 0
        while i < self.count and (i == start or nbytes[0] < self.most):
            nbytes[0] += self.at[i].size
            i += 1
        return i

    cdef int touch(self, size_t start, size_t end, bint moved) except -1:
        """Note that the bytes of some pieces are touched."""
        cdef piece_t *piece
        cdef Source source
        cdef size_t i
        for i in range(start, end):
            piece = &self.at[i]
            source = <Source> self.sources[piece.owner]
            source.touch(piece.offset, piece.size)
            if moved or not piece.far:
                source.confine(piece.offset, piece.size)
        return 0

    cdef bint has_moved(self, size_t i) noexcept:
        """Whether piece `i` surely was moved; else `failure` knows."""
        cdef piece_t *piece = &self.at[i]
        if piece.wrong:
            return False
        return piece.done == piece.size and (piece.base != NULL or piece.to == NULL)

    cdef object failure(self, size_t i):
        """Why piece `i` was not moved; or None: it was, and nothing speaks against it."""
        cdef piece_t *piece = &self.at[i]
        cdef Shard shard = self.shard_of(i)
        cdef Source source = self.sources[piece.owner]
        if self.has_moved(i):
            return None
        error = self.errors.get(i)
        if piece.wrong:
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


# Into one buffer of the caller's

@cython.final
cdef class Target:
    """The caller's buffer, held while it is written to."""

    cdef Py_buffer buffer
    cdef bint held
    cdef uint64_t row              # bytes of each row; 0: members one after another
    cdef uint64_t rows

    def __cinit__(self, out):
        if not PyObject_CheckBuffer(out) and hasattr(out, "__array__"):
            import numpy

            out = numpy.asarray(out)  # a tensor: on its own memory
        PyObject_GetBuffer(out, &self.buffer, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS)
        self.held = True
        if self.buffer.ndim > 1:
            self.rows = self.buffer.shape[0]
            self.row = self.buffer.len // self.rows if self.rows > 0 else 0

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.buffer)


def resolve_positions(positions, Py_ssize_t count):
    """Return positions as an int64 buffer; negative ones count back.

    Raises
    ------
    IndexError
        There is no such position.
    TypeError
        They are not integers.
    """
    cdef Py_buffer buffer
    cdef int64_t *numbers
    cdef int64_t i
    cdef Py_ssize_t k
    kind = getattr(getattr(positions, "dtype", None), "kind", "")
    if kind == "u" and len(positions) and int(positions.max()) >= count:
        raise IndexError(
            f"position {int(positions.max())} is out of range: there are {count:,}"
        )
    if kind in ("i", "u"):
        whole = array("q", positions.astype("q").tobytes())
    else:
        try:
            whole = array("q", positions)
        except OverflowError:
            raise IndexError(
                f"a position is out of range: there are {count:,}"
            ) from None
    numbers = int64s_of(whole, &buffer, writable=True)
    try:
        for k in range(buffer.len // 8):
            i = numbers[k]
            if not -count <= i < count:
                raise IndexError(f"position {i} is out of range: there are {count:,}")
            if i < 0:
                numbers[k] = i + count
    finally:
        PyBuffer_Release(&buffer)
    return whole


cdef int put(Pieces pieces, Target target, int64_t *offsets) except -1:
    """Say where each piece goes, and note where each begins and the last ends."""
    cdef uint64_t at = 0
    cdef size_t i
    cdef piece_t *piece
    if target.row > 0 and pieces.count > target.rows:
        raise ValueError(f"{pieces.count:,} members into {target.rows:,} rows")
    for i in range(pieces.count):
        piece = &pieces.at[i]
        if target.row > 0 and piece.size != target.row:
            raise ValueError(
                f"member {pieces.shard_of(i).table.name_of(piece.member)!r} of "
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


def gather(list shards not None, members, out, *, skips=None, threads=None):
    """Copy members into one buffer; the GIL is released.

    Parameters
    ----------
    shards : list of Shard
        One for each member, or one for all.
    members : sequence of int
        Positions of members that there are.
    out : buffer
        Writable and contiguous. One dimension: members are put one after another.
        More: one member a row.
    skips : sequence of int, optional
        Bytes at the start of each member that are left out.
    threads : int, optional

    Returns
    -------
    ndarray of int64 [members + 1]
        Where each begins in `out`, and where the last ends.
    """
    cdef Target target = Target(out)
    return move(pieces_of(shards, members, skips), target, threads)


def pack(list shards not None, members, allocate, *, threads=None):
    """Copy members one after another into a buffer of their size; the GIL is released.

    Parameters
    ----------
    shards, members, threads
        As for `gather`.
    allocate : callable
        ``allocate(nbytes)`` returns a writable buffer.

    Returns
    -------
    buffer, ndarray of int64 [members + 1]
        What was allocated; where each member begins in it, and where the last ends.
    """
    cdef Pieces pieces = pieces_of(shards, members, None)
    out = allocate(pieces.nbytes)
    return out, move(pieces, Target(out), threads)


cdef Pieces pieces_of(list shards, members, skips):
    """Return the extents of members, without what is left out of each."""
    cdef Pieces pieces = Pieces()
    cdef Py_buffer buffer
    cdef const int64_t *numbers = int64s_of(members, &buffer)
    cdef Py_ssize_t i, count
    cdef bint single = len(shards) == 1
    try:
        count = buffer.len // 8
        if not single and len(shards) != count:
            raise ValueError("shards and members of different lengths")
        for i in range(count):
            pieces.add(<Shard?> shards[0 if single else i], numbers[i])
    finally:
        PyBuffer_Release(&buffer)
    if skips is not None:
        leave_out(pieces, skips)
    return pieces


cdef int leave_out(Pieces pieces, skips) except -1:
    """Leave out some bytes at the start of each piece."""
    cdef Py_buffer buffer
    cdef const int64_t *skipped = int64s_of(skips, &buffer)
    cdef piece_t *piece
    cdef size_t i
    try:
        if buffer.len // 8 != <Py_ssize_t> pieces.count:
            raise ValueError("members and skips of different lengths")
        for i in range(pieces.count):
            piece = &pieces.at[i]
            if not 0 <= skipped[i] <= <int64_t> piece.size:
                raise ValueError("more is left out than there is")
            piece.offset += skipped[i]
            piece.size -= skipped[i]
            pieces.nbytes -= skipped[i]
    finally:
        PyBuffer_Release(&buffer)
    return 0


cdef object move(Pieces pieces, Target target, threads):
    """Move pieces to where they go; returns where each begins, and the last ends."""
    import numpy

    cdef Py_buffer buffer
    cdef size_t i
    offsets = numpy.empty(pieces.count + 1, numpy.int64)
    int64s_of(offsets, &buffer, writable=True)
    try:
        put(pieces, target, <int64_t *> buffer.buf)
    finally:
        PyBuffer_Release(&buffer)
    pieces.move(threads)
    for i in range(pieces.count):
        if not pieces.has_moved(i):
            error = pieces.failure(i)
            if error is not None:
                raise error
    return offsets


def read_members(Shard shard not None, positions, out, threads):
    """Copy members of one shard into a buffer; see `Shard.read_into`."""
    return gather([shard], resolve_positions(positions, len(shard)), out, threads=threads)


# Bytes of their own

cdef object prepare(Pieces pieces, Shard shard, Py_ssize_t i):
    """Check an extent and make room for its bytes."""
    cdef piece_t *piece = pieces.add(shard, i)
    cdef object room = PyBytes_FromStringAndSize(NULL, piece.size)
    piece.to = <uint8_t *> PyBytes_AS_STRING(room)
    return room


def copy_members(list shards not None, list positions not None):
    """Copy members out of shards.

    Parameters
    ----------
    shards : list of Shard
    positions : list of int
        One for each shard: a member of it.

    Returns
    -------
    list of bytes or Exception
        In the order given. What cannot be read is the exception that says why:
        `IndexError`, `FormatError`, `OSError` or `ClosedError`.
    """
    cdef Pieces pieces = Pieces()
    cdef Py_ssize_t k
    cdef size_t i
    if len(positions) != len(shards):
        raise ValueError("shards and positions of different lengths")
    found = []
    places = []                    # of each piece, in `found`
    for k in range(len(shards)):
        try:
            found.append(prepare(pieces, <Shard?> shards[k], positions[k]))
            places.append(k)
        except (IndexError, ValueError, OSError) as error:
            found.append(error)
    pieces.move(None)
    for i in range(pieces.count):
        error = pieces.failure(i)
        if error is not None:
            found[places[i]] = error
    return found


# Into the page cache

def prefetch_samples(list samples not None, uint64_t most):
    """Bring the fields of samples that are not in memory, all asked for at once.

    Parameters
    ----------
    samples : list of SampleBase
    most : int
        Bytes; what is beyond is brought when it is asked for.

    Raises
    ------
    FormatError, OSError
        A field cannot be read.
    """
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
            pieces.add_guess(shard, member)
    pieces.bring()


def prefetch_members(list shards not None, list members not None, uint64_t most):
    """The same for members: one position for each shard."""
    cdef Pieces pieces = Pieces()
    cdef Shard shard
    cdef Source source
    for shard, member in zip(shards, members, strict=True):
        source = shard.open_source()
        if source.is_remote() or source.is_resident():
            continue
        if pieces.nbytes >= most:
            break
        pieces.add_guess(shard, member)
    pieces.bring()
