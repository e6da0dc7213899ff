"""Many members at once as bytes of their own, copied without the GIL."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t

from fastshard._core.pieces cimport Pieces, piece_t
from fastshard._core.shard cimport Shard


cdef object prepare(Pieces pieces, Shard shard, Py_ssize_t i):
    """Check an extent and make room for its bytes."""
    cdef piece_t *piece = pieces.add(shard, i)
    cdef object room = PyBytes_FromStringAndSize(NULL, piece.size)
    piece.to = <uint8_t *> PyBytes_AS_STRING(room)
    return room


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
