"""Columns of rows of one open shard; those of a dataset are in `columns`."""

from cpython.buffer cimport PyBuffer_Release
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from fastshard._core.buffers cimport bytes_of, int64s_of
from fastshard._core.streaming.reader cimport OpenRows

import numpy


def read_columns(OpenRows opened not None, positions, fields):
    """Return columns at positions by name: an array of fixed fields, a list of others.

    Parameters
    ----------
    opened : OpenRows
    positions : array of int64
        Checked to be positions of the shard.
    fields : iterable of str, optional
        None: all columns.
    """
    cdef Py_ssize_t k
    names = opened.rows.names
    mask = opened.rows.schema.mask(fields)
    if mask is None:
        mask = opened.mask
    columns = {}
    for k in range(opened.rows.width):
        if mask is None or (<bytes> mask)[k] != 0:
            layout = opened.rows.layout(k)
            if layout is None or layout[0] is None:
                columns[names[k]] = read_values(opened, positions, k, mask)
            else:
                columns[names[k]] = read_numbers(
                    opened, positions, k, mask, layout[0], layout[1]
                )
    return columns


cdef list read_values(
    OpenRows opened, object positions, Py_ssize_t k, bytes mask
):
    """Return the values of column `k`."""
    cdef uint64_t offset = 0
    cdef uint64_t size = 0
    cdef uint64_t start = 0
    cdef const uint8_t *row
    cdef Py_ssize_t i
    values = []
    for i in positions.tolist():
        row = opened.row(i, mask, &offset, &size)
        opened.rows.field_extent(i, row, size, k, &start, &size)
        values.append(opened.rows.decode_field(
            i, k, row + start, size, start, opened.file, opened.copy
        ))
    return values


cdef object read_numbers(
    OpenRows opened, object positions, Py_ssize_t k, bytes mask, object dtype,
    object shape,
):
    """Return the numbers or arrays of column `k`, which have one layout, stacked."""
    cdef Py_buffer numbers, buffer
    cdef const int64_t *places
    cdef uint64_t offset = 0
    cdef uint64_t size = 0
    cdef uint64_t start = 0
    cdef const uint8_t *row
    cdef uint8_t *to
    cdef Py_ssize_t n
    cdef Py_ssize_t count = len(positions)
    stack = numpy.empty((count, *shape), dtype)
    if count == 0:
        return stack
    places = int64s_of(positions, &numbers)
    to = bytes_of(stack.reshape(-1).view("u1"), &buffer, True)
    try:
        for n in range(count):
            row = opened.row(places[n], mask, &offset, &size)
            opened.rows.field_extent(places[n], row, size, k, &start, &size)
            memcpy(to, row + start, size)  # the size is the layout's
            to += size
    finally:
        PyBuffer_Release(&buffer)
        PyBuffer_Release(&numbers)
    return stack
