from fastshard._core.npyheader cimport Seen
from fastshard._core.shard cimport Shard


cdef Seen seen_of(Shard shard)
