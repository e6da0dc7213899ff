from libc.stdint cimport uint64_t

from fastshard._core.span cimport span_t
from fastshard._core.table.extents cimport columns_t

cdef struct links_t:               # links of an archive, in its order
    columns_t names                # offsets: of headers; sizes: a tar_skipped_t
    columns_t targets              # names of targets; offsets: members before the link

cdef bint links_add(
    links_t *links, size_t before, uint64_t header, int kind, span_t name, span_t target
) noexcept nogil
cdef bint links_append(
    links_t *links, const links_t *more, size_t before
) noexcept nogil
cdef void links_free(links_t *links) noexcept nogil
cdef bint links_resolve(links_t *links, columns_t *members) noexcept nogil
