from fastshard._core.extents cimport columns_t

cdef bint columns_sort(columns_t *columns) noexcept nogil
