"""Samples by their position in a dataset, with CPU prefetch for random access."""

cimport cython
from cpython.buffer cimport PyBuffer_Release
from cpython.number cimport PyNumber_AsSsize_t

from fastshard._core.buffers cimport int64s_of
from fastshard._core.dataset.shard cimport (
    STAGE_BYTES, STAGE_EXTENT, STAGE_LIST, SampleDecoder, SamplesBase, call_decoder,
    decode_item,
)
from fastshard._core.table.order cimport Order

from array import array


@cython.final
cdef class SampleLocator:
    """Map from a position in a dataset to a shard and a position there.

    Attributes
    ----------
    total, count : int
        Samples of all shards, and samples of the order.
    """

    def __cinit__(
        self, list starts not None, list samples not None, bytearray used, open_shard
    ):
        cdef Py_buffer buffer
        self.starts_array = array("q", starts)
        self.starts = int64s_of(self.starts_array, &buffer)
        PyBuffer_Release(&buffer)  # the array is private: it is never resized
        self.shards = len(starts) - 1
        if self.shards != len(samples) or (
            used is not None and len(used) != len(samples)
        ):
            raise ValueError(
                f"starts of {self.shards:,} shards, samples of {len(samples):,}: "
                "expected one of each a shard, and of used"
            )
        if any(a > b for a, b in zip(starts, starts[1:])) or starts[0] != 0:
            raise ValueError("starts must begin with 0 and not decrease")
        self.total = self.count = <Py_ssize_t> self.starts[self.shards]
        self.samples = samples
        self.used = used
        self.open_shard = open_shard

    def ordered(self, Order order not None):
        """Return a locator of the same samples in another order."""
        if order.limit > self.total:
            raise ValueError(
                f"the order has positions below {order.limit:,}, "
                f"the shards {self.total:,} samples"
            )
        cdef SampleLocator other = self.copy()
        other.order = order
        other.count = order.count
        return other

    def decoding(self, SampleDecoder decoder not None):
        """Return a locator whose `at` returns decoded samples."""
        cdef SampleLocator other = self.copy()
        other.decoder = decoder
        return other

    cdef SampleLocator copy(self):
        cdef SampleLocator other = SampleLocator.__new__(
            SampleLocator, [0], [], None, None
        )
        other.starts_array = self.starts_array
        other.starts = self.starts
        other.total = self.total
        other.count = self.count
        other.order = self.order
        other.shards = self.shards
        other.samples = self.samples
        other.used = self.used
        other.open_shard = self.open_shard
        return other

    def at(self, i):
        """Return the sample at a position, decoded with a decoder.

        A negative position counts from the end.
        """
        cdef location_t location
        self.locate(self.wrap(PyNumber_AsSsize_t(i, IndexError)), &location)
        if self.decoder is None:
            return self.sample_at(location)
        item = decode_item(self.decoder, self.samples[location.shard], location.at)
        if item is None:
            item = call_decoder(
                self.decoder, self.sample_at(location),
                f"position {i:,} of the dataset",
            )
        elif self.used is not None:
            self.used[location.shard] = 1
        return item

    def __reduce__(self):
        raise TypeError("a SampleLocator does not pickle; pickle the dataset")

    cdef Py_ssize_t wrap(self, Py_ssize_t i) except -1:
        """Return a position in range; a negative one counts from the end."""
        cdef Py_ssize_t at = i + self.count if i < 0 else i
        if not 0 <= at < self.count:
            raise IndexError(
                f"position {i} is out of range: there are {self.count:,} samples"
            )
        return at

    cdef Py_ssize_t find_shard(self, Py_ssize_t i) noexcept:
        """Return the last shard that starts at or before a position in range."""
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

    cdef void locate(self, Py_ssize_t i, location_t *location) noexcept:
        """Set the location of the sample at a position in range."""
        if self.order is not None:
            i = self.order.at(i)
        location.shard = self.find_shard(i)
        location.at = i - self.starts[location.shard]

    cdef SamplesBase open_samples(self, Py_ssize_t shard):
        """Return the samples of a shard; open it on first use."""
        cdef object samples = self.samples[shard]
        if samples is None:
            samples = self.open_shard(shard)
        if self.used is not None:
            self.used[shard] = 1
        return <SamplesBase?> samples

    cdef object sample_at(self, location_t location):
        """Return the sample at a location; open its shard on first use."""
        return self.open_samples(location.shard).item(location.at)


@cython.final
cdef class LookaheadRing:
    """CPU prefetch for random access: look up samples a few positions ahead.

    A sample's extents lie in five columns and its bytes elsewhere; each look-up waits
    for the one before. The ring starts the look-ups of the next samples in stages, so
    that their cache misses overlap.
    """

    def __cinit__(self, SampleLocator locator not None, tuple positions=None):
        self.locator = locator
        self.positions = positions
        self.count = locator.count if positions is None else len(positions)

    def __reduce__(self):
        raise TypeError("a LookaheadRing does not pickle")

    def every(self):
        """Return all samples as a list."""
        cdef Py_ssize_t i
        return [self.sample(i) for i in range(self.count)]

    cdef object sample(self, Py_ssize_t i):
        """Return the i-th sample. Call once for each `i`, in order; retry if it raised.
        """
        cdef location_t location
        self.advance(i, &location)
        return self.locator.sample_at(location)

    cdef int advance(self, Py_ssize_t i, location_t *location) except -1:
        """Set the location of the i-th sample; prefetch those after it."""
        cdef Py_ssize_t end = min(i + STAGE_LIST + 1, self.count)
        cdef Py_ssize_t position
        cdef location_t *found
        while self.located < end:
            position = self.located
            if self.positions is not None:
                position = self.locator.wrap(
                    PyNumber_AsSsize_t(self.positions[position], IndexError)
                )
            found = &self.ring[self.located % RING]
            self.locator.locate(position, found)
            self.located += 1
            self.prefetch(found, STAGE_LIST)
        if i + STAGE_EXTENT < end:
            self.prefetch(&self.ring[(i + STAGE_EXTENT) % RING], STAGE_EXTENT)
        if i + STAGE_BYTES < end:
            self.prefetch(&self.ring[(i + STAGE_BYTES) % RING], STAGE_BYTES)
        location[0] = self.ring[i % RING]
        return 0

    cdef void prefetch(self, const location_t *location, int stage) noexcept:
        """Prefetch the memory of one stage of a sample's look-up."""
        cdef object samples = self.locator.samples[location.shard]
        if samples is not None and isinstance(samples, SamplesBase):
            (<SamplesBase> samples).prefetch(location.at, stage)
