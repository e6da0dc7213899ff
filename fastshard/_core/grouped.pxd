from fastshard._core.table.grouping cimport Grouping
from fastshard._core.samples cimport SamplesBase


cdef class GroupedSamples(SamplesBase):
    cdef readonly Grouping grouping
