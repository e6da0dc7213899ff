from fastshard._core.dataset.shard cimport Shard
from fastshard._core.table.extents cimport ExtentTable

cdef ExtentTable NO_EXTENTS


cdef class FieldShard(Shard):
    pass
