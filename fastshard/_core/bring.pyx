"""Many samples or members brought into memory at once, without the GIL."""

from libc.stdint cimport uint64_t

from fastshard._core.feeds cimport SampleFeed
from fastshard._core.pieces cimport Pieces, piece_t
from fastshard._core.residency cimport MOST_BROUGHT
from fastshard._core.samples cimport SampleBase
from fastshard._core.shard cimport Shard
from fastshard._core.source cimport Source

cdef SampleFeed feed = SampleFeed()  # knows a sample's members


cdef bint add(Pieces pieces, Shard shard, Py_ssize_t member, uint64_t most) except -1:
    """Add a member that may be far; False: there is enough."""
    cdef piece_t *piece
    if pieces.nbytes >= most:
        return False
    piece = pieces.add(shard, member)
    if piece.far:
        pieces.nbytes -= piece.size
        piece.size = min(piece.size, <uint64_t> MOST_BROUGHT)
        pieces.nbytes += piece.size
    else:
        pieces.drop_last()
    return True


cdef int bring(Pieces pieces) except -1:
    cdef size_t i
    if pieces.count == 0:
        return 0
    pieces.move(1)
    for i in range(pieces.count):
        error = pieces.failure(i)
        if error is not None:
            raise error
    return 0


def bring_samples(list samples not None, uint64_t most):
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
        shard = sample.samples.shard
        source = shard.open_source()
        if source.is_remote() or source.is_near():
            continue
        for member in feed.members_of(sample):
            if not add(pieces, shard, member, most):
                break
    bring(pieces)


def bring_members(list shards not None, list members not None, uint64_t most):
    """The same for members: one position for each shard."""
    cdef Pieces pieces = Pieces()
    cdef Shard shard
    cdef Source source
    for shard, member in zip(shards, members, strict=True):
        source = shard.open_source()
        if source.is_remote() or source.is_near():
            continue
        if not add(pieces, shard, member, most):
            break
    bring(pieces)
