from fastshard._core.pagering cimport PageRing
from fastshard._core.source cimport LocalFile, Source


cdef Source local_source(
    LocalFile file, str mode, bint prefetch, bint check_size, PageRing ring
)
