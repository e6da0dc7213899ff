"""Numbers in shared memory that several processes count up."""

cimport cython
from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)
from libc.stdint cimport uint64_t

from fastshard._core.threads cimport fs_get, fs_next


@cython.final
cdef class Counters:
    """Counters of 64 bits at the start of a buffer; each step is atomic.

    Parameters
    ----------
    memory : buffer
        Writable, at an address that 8 divides; kept.
    count : int
    """

    cdef Py_buffer buffer
    cdef bint held
    cdef uint64_t *at
    cdef Py_ssize_t count

    def __cinit__(self, memory, Py_ssize_t count):
        PyObject_GetBuffer(memory, &self.buffer, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS)
        self.held = True
        if count < 0 or count > self.buffer.len // 8 or <size_t> self.buffer.buf % 8:
            raise ValueError(f"{count} counters in {self.buffer.len} bytes")
        self.at = <uint64_t *> self.buffer.buf
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, Py_ssize_t i):
        return fs_get(self.where(i))

    def add(self, Py_ssize_t i):
        """Count one up by 1."""
        fs_next(self.where(i))

    def __reduce__(self):
        raise TypeError("counters do not pickle")

    cdef uint64_t *where(self, Py_ssize_t i) except NULL:
        if not 0 <= i < self.count:
            raise IndexError(f"counter {i} of {self.count}")
        return self.at + i

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.buffer)
