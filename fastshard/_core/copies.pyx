"""Many members at once as bytes of their own, copied without the GIL."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport errno
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from fastshard._core.platform cimport fs_pread
from fastshard._core.shard cimport Shard
from fastshard._core.source cimport Source

import os

from fastshard.errors import FormatError

cdef struct copy_t:
    const uint8_t *base            # of a mapped shard, or NULL
    int fd                         # of one that is read
    uint64_t offset
    uint64_t size
    uint64_t done                  # bytes copied
    int code                       # errno of a failed read
    uint8_t *to


cdef void copy(copy_t *piece) noexcept nogil:
    cdef int64_t got
    if piece.base != NULL:
        memcpy(piece.to, piece.base + piece.offset, <size_t> piece.size)
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


cdef object prepare(copy_t *piece, Shard shard, Py_ssize_t i):
    """Check an extent and make room for its bytes."""
    cdef Source source = shard.open_source()
    cdef object room
    if not 0 <= i < <Py_ssize_t> shard.table.columns.count:
        raise IndexError(
            f"position {i} is out of range: {shard.path} has {len(shard):,} members"
        )
    shard.extent(i, &piece.offset, &piece.size)
    room = PyBytes_FromStringAndSize(NULL, piece.size)
    piece.base = source.base
    piece.fd = source.fd
    piece.to = <uint8_t *> PyBytes_AS_STRING(room)
    return room


cdef object failure(copy_t *piece, Shard shard, Py_ssize_t i):
    if piece.code != 0:
        return OSError(piece.code, os.strerror(piece.code), shard.path)
    return FormatError(
        "the file ends here; it was longer when it was opened",
        shard.path, piece.offset + piece.done, shard.table.name(i),
    )


def copies(list shards not None, list positions not None):
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
    cdef size_t k
    cdef size_t count = len(shards)
    cdef copy_t *pieces
    if len(positions) != <Py_ssize_t> count:
        raise ValueError("shards and positions of different lengths")
    pieces = <copy_t *> calloc(count + 1, sizeof(copy_t))
    if pieces == NULL:
        raise MemoryError
    found = []
    try:
        for k in range(count):
            try:
                found.append(prepare(&pieces[k], <Shard?> shards[k], positions[k]))
            except (IndexError, ValueError) as error:
                found.append(error)
                pieces[k].size = 0
        with nogil:                # `shards` keeps them mapped, `found` the room
            for k in range(count):
                copy(&pieces[k])
        for k in range(count):
            if pieces[k].done < pieces[k].size:
                found[k] = failure(&pieces[k], shards[k], positions[k])
    finally:
        free(pieces)
    return found
