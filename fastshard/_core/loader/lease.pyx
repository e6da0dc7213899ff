"""Leases of memory: the bytes are used again once no array refers to them.

A lease exports the bytes of a buffer and is the last base of the arrays on them.
Slices, reshapes, memoryviews and tensors keep it; a weak reference to the first array
would not do, for NumPy's views of views refer past it.

A lease may end in any thread, in a garbage collection and under any lock: it only takes
a lock that no other code runs under. Those that a forked child inherits end without an
effect: its parent has the memory, too.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo, PyBuffer_Release
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdint cimport uint8_t
from libc.string cimport memmove

from fastshard._core.buffers cimport bytes_of
from fastshard._core.threads cimport (
    fs_generation, fs_lock, fs_lock_free, fs_lock_init, fs_lock_t, fs_unlock,
    fs_watch_forks,
)

if fs_watch_forks() != 0:
    raise MemoryError("cannot register a fork handler")

cdef struct spare_t:
    PyObject *memory               # a buffer; this refers to it
    size_t at                      # its address
    Py_ssize_t nbytes


@cython.final
@cython.no_gc
cdef class Spares:
    """Buffers that no lease holds, kept for later leases.

    Parameters
    ----------
    most : int
        Number of buffers that are kept; the one that came first is dropped for another.
    """

    cdef spare_t *spares           # the last one came last
    cdef Py_ssize_t count
    cdef Py_ssize_t most
    cdef fs_lock_t lock            # of the three; no Python code runs under it
    cdef unsigned generation       # of the process that made this

    def __cinit__(self, Py_ssize_t most):
        if most < 0:
            raise ValueError(f"most must not be negative, got {most}")
        self.spares = <spare_t *> PyMem_RawCalloc(most + 1, sizeof(spare_t))
        if self.spares == NULL:
            raise MemoryError
        fs_lock_init(&self.lock)
        self.most = most
        self.generation = fs_generation()

    @property
    def is_inherited(self):
        """True in a forked child of the process that made this: nothing is kept."""
        return self.generation != fs_generation()

    def __len__(self):
        return self.count

    def __reduce__(self):
        raise TypeError("Spares do not pickle")

    def take(self, Py_ssize_t nbytes, size_t alignment=1):
        """Remove and return a buffer of `nbytes` to twice as many, or None.

        Parameters
        ----------
        nbytes : int
        alignment : int
            Its address is a multiple of this.

        Returns
        -------
        object or None
            Of those that fit, the one that came last: processors may have it cached.
        """
        cdef PyObject *found = NULL
        cdef spare_t *spare
        cdef Py_ssize_t i
        if self.generation != fs_generation():
            return None            # the lock may be held by a thread of the parent
        fs_lock(&self.lock)
        for i in range(self.count - 1, -1, -1):
            spare = self.spares + i
            if spare.nbytes // 2 <= nbytes <= spare.nbytes and (
                spare.at % alignment == 0
            ):
                found = spare.memory
                self.remove(i)
                break
        fs_unlock(&self.lock)
        if found == NULL:
            return None
        memory = <object> found
        Py_DECREF(memory)          # the list's reference
        return memory

    def close(self):
        """Drop the buffers, and from now on those whose leases end."""
        cdef spare_t *spares
        cdef Py_ssize_t count
        if self.generation != fs_generation():
            return
        spares = <spare_t *> PyMem_RawCalloc(1, sizeof(spare_t))
        if spares == NULL:
            raise MemoryError
        fs_lock(&self.lock)
        spares, self.spares = self.spares, spares
        count, self.count = self.count, 0
        self.most = 0
        fs_unlock(&self.lock)
        drop_all(spares, count)

    cdef void remove(self, Py_ssize_t i) noexcept:
        """Remove a buffer from the list, under the lock."""
        self.count -= 1
        memmove(
            self.spares + i, self.spares + i + 1, (self.count - i) * sizeof(spare_t)
        )

    cdef void add(self, object memory, uint8_t *at, Py_ssize_t nbytes) noexcept:
        """Keep a buffer whose lease ended."""
        cdef spare_t spare = spare_t(<PyObject *> memory, <size_t> at, nbytes)
        cdef PyObject *dropped = NULL
        if self.generation != fs_generation():
            return
        fs_lock(&self.lock)
        if self.most > 0:
            if self.count == self.most:
                dropped = self.spares[0].memory
                self.remove(0)
            Py_INCREF(memory)
            self.spares[self.count] = spare
            self.count += 1
        fs_unlock(&self.lock)
        if dropped != NULL:
            Py_DECREF(<object> dropped)  # without the lock: may run code of others

    def __dealloc__(self):
        if self.spares != NULL:
            drop_all(self.spares, self.count)
            fs_lock_free(&self.lock)


cdef void drop_all(spare_t *spares, Py_ssize_t count) noexcept:
    """Free a list and its references."""
    cdef Py_ssize_t i
    for i in range(count):
        Py_DECREF(<object> spares[i].memory)
    PyMem_RawFree(spares)


@cython.final
@cython.no_gc
cdef class MemoryLease:
    """Writable buffer on the memory of another, which it keeps.

    When it is freed, `spares` keep the memory or a counter is incremented.

    Parameters
    ----------
    memory : buffer
        Writable, contiguous.
    spares : Spares, optional
    counters : Counters, optional
        Of memory that processes share: the other one sees that the lease ended.
    counter : int
        Which of `counters`.

    Attributes
    ----------
    is_lost : bool
        True: nothing happens when the lease ends.
    """

    cdef object memory
    cdef Py_buffer buffer
    cdef bint is_held              # whether `buffer` is
    cdef Spares spares
    cdef object counters
    cdef Py_ssize_t counter
    cdef unsigned generation       # of the process that made this
    cdef public bint is_lost
    cdef object __weakref__

    def __cinit__(
        self, memory, Spares spares=None, counters=None, Py_ssize_t counter=0
    ):
        bytes_of(memory, &self.buffer, writable=True)
        self.is_held = True
        self.memory = memory
        self.spares = spares
        self.counters = counters
        self.counter = counter
        self.generation = fs_generation()

    def __len__(self):
        return self.buffer.len

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.buffer.buf, self.buffer.len, 0, flags)

    def __reduce__(self):
        raise TypeError("a MemoryLease does not pickle")

    def __dealloc__(self):
        cdef uint8_t *at = <uint8_t *> self.buffer.buf
        cdef Py_ssize_t nbytes = self.buffer.len
        if not self.is_held:
            return
        PyBuffer_Release(&self.buffer)
        if self.is_lost or self.generation != fs_generation():
            return
        if self.counters is not None:
            self.counters.add(self.counter)
        elif self.spares is not None:
            self.spares.add(self.memory, at, nbytes)
