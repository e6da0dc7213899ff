"""Many members into one buffer of the caller's."""

cimport cython
from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)
from libc.stdint cimport int64_t, uint8_t, uint64_t

from fastshard._core.pieces cimport Pieces, piece_t
from fastshard._core.shard cimport Shard

from array import array


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

cdef extern from "Python.h":
    bint PyObject_CheckBuffer(object thing)


def positions_of(positions, Py_ssize_t count):
    """Return positions as an int64 buffer; negative ones count back.

    Raises
    ------
    IndexError
        There is no such position.
    TypeError
        They are not integers.
    """
    cdef int64_t[::1] numbers
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
    numbers = whole
    for k in range(len(whole)):
        i = numbers[k]
        if not -count <= i < count:
            raise IndexError(f"position {i} is out of range: there are {count:,}")
        if i < 0:
            numbers[k] = i + count
    return whole


cdef object put(Pieces pieces, Target target, object offsets):
    """Say where each piece goes; returns where each begins, and the last ends."""
    cdef int64_t[::1] places = offsets
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
        places[i] = at
        at += piece.size
    places[pieces.count] = at
    return offsets


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
    cdef const int64_t[::1] numbers = members
    cdef const int64_t[::1] skipped
    cdef Pieces pieces = Pieces()
    cdef piece_t *piece
    cdef size_t i
    cdef size_t count = numbers.shape[0]
    cdef bint single = len(shards) == 1
    if not single and len(shards) != <Py_ssize_t> count:
        raise ValueError("shards and members of different lengths")
    if skips is not None:
        skipped = skips
        if skipped.shape[0] != <Py_ssize_t> count:
            raise ValueError("members and skips of different lengths")
    for i in range(count):
        piece = pieces.add(<Shard?> shards[0 if single else i], numbers[i])
        if skips is not None:
            if not 0 <= skipped[i] <= <int64_t> piece.size:
                raise ValueError("more is left out than there is")
            piece.offset += skipped[i]
            piece.size -= skipped[i]
            pieces.nbytes -= skipped[i]
    return pieces


cdef object move(Pieces pieces, Target target, threads):
    """Move pieces to where they go; returns where each begins, and the last ends."""
    import numpy

    cdef size_t i
    offsets = put(pieces, target, numpy.empty(pieces.count + 1, numpy.int64))
    pieces.move(threads)
    for i in range(pieces.count):
        if not pieces.has_moved(i):
            error = pieces.failure(i)
            if error is not None:
                raise error
    return offsets
