"""Positions of samples of a columnar dataset, whose fields are stacked together."""

cimport cython
from cpython.buffer cimport PyBuffer_Release
from libc.stdint cimport int64_t

from fastshard._core.buffers cimport int64s_of
from fastshard._core.dataset.columns cimport ColumnBatch, read_batch, stack_batch
from fastshard._core.dataset.locator cimport SampleLocator

from array import array

from fastshard._core.columnar.rows import ColumnSamples


@cython.final
cdef class PositionBatch(ColumnBatch):
    """Positions of samples that are all of one table of rows.

    Parameters
    ----------
    stack_rows : callable
        ``stack_rows(samples, positions, names, allocate)`` returns the columns.
    """

    cdef object stack_rows
    cdef object samples            # ColumnSamples; None: no sample was added
    cdef object order              # array of int64
    cdef int64_t *positions        # of the array
    cdef Py_ssize_t count

    def __cinit__(self, stack_rows not None):
        self.stack_rows = stack_rows

    cdef int reserve(self, Py_ssize_t count) except -1:
        cdef Py_buffer buffer
        self.order = array("q", bytes(8 * count))
        self.positions = int64s_of(self.order, &buffer, writable=True)
        PyBuffer_Release(&buffer)  # the array is private: it is not resized
        return 0

    cdef bint add(self, object samples, Py_ssize_t i) except -1:
        if samples is not self.samples:
            if self.samples is not None or type(samples) is not ColumnSamples:
                return False
            self.samples = samples
        self.positions[self.count] = i
        self.count += 1
        return True

    cdef dict stack(self, tuple names, object allocate):
        if self.samples is None:
            return {}
        return self.stack_rows(self.samples, self.order, names, allocate)


def read_fields(
    SampleLocator locator not None, positions, tuple names not None, stack_rows
):
    """Return fields of samples by position, those that `stack_rows` stacks.

    Parameters
    ----------
    locator : SampleLocator
    positions : sequence of int, or array
        Negative ones count from the end.
    names : tuple of str
    stack_rows : callable
        As of `PositionBatch`.

    Raises
    ------
    IndexError
        A position is out of range.
    """
    return read_batch(PositionBatch(stack_rows), locator, positions, names, None)


def stack_samples(list samples not None, tuple names not None, allocate, stack_rows):
    """Return fields of samples, those that `stack_rows` stacks.

    Parameters
    ----------
    samples : list of SampleBase
    names : tuple of str
    allocate : callable
        ``allocate(name, shape, dtype)`` returns the array to fill.
    stack_rows : callable
        As of `PositionBatch`.
    """
    return stack_batch(PositionBatch(stack_rows), samples, names, allocate)
