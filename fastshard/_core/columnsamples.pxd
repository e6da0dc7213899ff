from fastshard._core.extents cimport ExtentTable
from fastshard._core.samples cimport SamplesBase


cdef class ColumnSamples(SamplesBase):
    cdef readonly ExtentTable names
    cdef readonly list columns     # of Rows
    cdef dict by_field
    cdef readonly object owner
    cdef readonly bint has_metadata  # the infos of the names
    cpdef metadata_text(self, Py_ssize_t i)
