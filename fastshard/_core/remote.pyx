"""Samples of remote shards with their bytes."""

from fastshard._core.grouped cimport GroupedSamples
from fastshard._core.io.source cimport RemoteSource
from fastshard._core.samples cimport SampleBase
from fastshard._core.shard cimport Shard


def stage(SampleBase sample not None, dict staged not None):
    """Give a sample a handle of its own on its shard, which has its bytes.

    Parameters
    ----------
    sample : SampleBase
        Of a remote shard.
    staged : dict of int to bytes
        By their offsets in the shard.
    """
    cdef GroupedSamples samples = sample.samples
    cdef Shard shard = samples.shard
    cdef Shard handle = shard.with_source(
        RemoteSource((<RemoteSource?> shard.open_source()).file, staged)
    )
    handle.seen = shard.seen
    sample.samples = type(samples)(handle, samples.grouping, samples.sample_type)
