"""Many samples or members brought into memory at once, without the GIL."""

from libc.stdint cimport uint64_t

from fastshard._core.pieces cimport Pieces
from fastshard._core.samples cimport SampleBase
from fastshard._core.shard cimport Shard
from fastshard._core.io.source cimport Source


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
        if sample.samples.is_near(sample):
            continue
        for shard, member in sample.samples.places(sample):
            source = shard.open_source()
            if source.is_remote() or source.is_near():
                continue
            if pieces.nbytes >= most:
                break
            pieces.add_guess(shard, member)
    pieces.bring()


def bring_members(list shards not None, list members not None, uint64_t most):
    """The same for members: one position for each shard."""
    cdef Pieces pieces = Pieces()
    cdef Shard shard
    cdef Source source
    for shard, member in zip(shards, members, strict=True):
        source = shard.open_source()
        if source.is_remote() or source.is_near():
            continue
        if pieces.nbytes >= most:
            break
        pieces.add_guess(shard, member)
    pieces.bring()
