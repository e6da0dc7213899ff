"""Shapes of arrays, without the C API of NumPy, which `npy` imports."""

cdef enum:
    MAX_DIMENSIONS = 64            # NumPy 2's own limit (NPY_MAXDIMS)

cdef struct shape_t:
    int dimensions
    bint fortran
    Py_ssize_t[MAX_DIMENSIONS] lengths
