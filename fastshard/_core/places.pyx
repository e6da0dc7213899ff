"""Where the samples of a dataset are: in which shard, at which position there.

What is hot of datasets. Which shards are open is the caller's business:
`samples` and `used` are its own list and marks, seen from here.
"""

cimport cython
from cpython.number cimport PyNumber_AsSsize_t

from fastshard._core.table.order cimport Order
from fastshard._core.samples cimport SamplesBase

from array import array


@cython.final
cdef class Places:
    """Samples by their positions in a dataset.

    Parameters
    ----------
    starts : list of int
        Where each shard's samples begin, and, last, how many there are.
    samples : list of SamplesBase or None
        Of each shard, once it is open.
    used : bytearray or None
        Gets a 1 for a shard that is read.
    bring : callable
        ``bring(k)`` opens shard `k` and returns its samples.

    Attributes
    ----------
    total, count : int
        Samples of all shards, and of those that are in the order.
    """

    def __cinit__(self, list starts not None, list samples not None, bytearray used, bring):
        cdef const Py_ssize_t[::1] numbers
        self.kept = array("q", starts)
        numbers = self.kept
        self.shards = len(starts) - 1
        if self.shards != len(samples) or (used is not None and len(used) != len(samples)):
            raise ValueError("starts, shards and marks of different lengths")
        if any(a > b for a, b in zip(starts, starts[1:])) or starts[0] != 0:
            raise ValueError("starts that go back")
        self.starts = &numbers[0]
        self.total = self.count = numbers[self.shards]
        self.samples = samples
        self.used = used
        self.bring = bring

    def ordered(self, Order order not None):
        """Return the same samples in an order of their positions."""
        if order.limit > self.total:
            raise ValueError(f"positions below {order.limit} of {self.total} samples")
        cdef Places other = Places.__new__(Places, [0], [], None, None)
        other.kept = self.kept
        other.starts = self.starts
        other.total = self.total
        other.shards = self.shards
        other.samples = self.samples
        other.used = self.used
        other.bring = self.bring
        other.order = order
        other.count = order.count
        return other

    def at(self, i):
        """Return the sample at a position; negative ones count back.

        Raises
        ------
        IndexError
            There is no such position.
        """
        cdef Py_ssize_t k, at
        self.locate(self.wrapped(PyNumber_AsSsize_t(i, IndexError)), &k, &at)
        return self.sample_in(k, at)

    def __reduce__(self):
        raise TypeError("places do not pickle; pickle the dataset")

    cdef Py_ssize_t wrapped(self, Py_ssize_t i) except -1:
        cdef Py_ssize_t at = i + self.count if i < 0 else i
        if not 0 <= at < self.count:
            raise IndexError(f"position {i} is out of range: there are {self.count:,}")
        return at

    cdef Py_ssize_t shard_of(self, Py_ssize_t i) noexcept:
        """The last shard that begins at or before a position in range."""
        cdef Py_ssize_t low = 0
        cdef Py_ssize_t high = self.shards
        cdef Py_ssize_t middle
        while high - low > 1:
            middle = low + (high - low) // 2
            if self.starts[middle] <= i:
                low = middle
            else:
                high = middle
        return low

    cdef void locate(self, Py_ssize_t i, Py_ssize_t *shard, Py_ssize_t *at) noexcept:
        """The shard of the sample at a place in range, and its position there."""
        if self.order is not None:
            i = self.order.at(i)
        shard[0] = self.shard_of(i)
        at[0] = i - self.starts[shard[0]]

    cdef object sample_in(self, Py_ssize_t k, Py_ssize_t at):
        cdef object samples = self.samples[k]
        if samples is None:
            samples = self.bring(k)
        if self.used is not None:
            self.used[k] = 1
        return (<SamplesBase?> samples).item(at)
