from fastshard._core.grouping cimport Grouping
from fastshard._core.samples cimport SamplesBase


cdef class GroupedSamples(SamplesBase):
    cdef readonly Grouping grouping
