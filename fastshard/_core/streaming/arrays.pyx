"""Arrays of streaming shards: fields on their bytes, columns of many rows.

Imported with NumPy, on the first use of an array or of one of its numbers.
"""

from libc.stdint cimport uint8_t
from libc.string cimport memcpy

from fastshard._core.dataset.npy cimport make_shaped_array, shape_t
from fastshard._core.streaming cimport plan as plan_module


cdef object make_array(
    object dtype, int dimensions, const Py_ssize_t *lengths, uint8_t *at, bint writable,
    object owner,
):
    """Return an array on memory that `owner` keeps alive."""
    cdef shape_t shape
    shape.dimensions = dimensions
    shape.fortran = False
    memcpy(shape.lengths, lengths, sizeof(Py_ssize_t) * dimensions)
    return make_shaped_array(dtype, &shape, at, writable, owner)


plan_module.array_maker = make_array
