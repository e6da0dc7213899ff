"""Samples and members of a dataset: located by position, streamed in order.

`SampleLocator` maps positions to shards, `LookaheadRing` prefetches for random access.
Streams are the items of iterators, `IteratorBase` and `CallGuard` their base and guard.
"""

cimport cython
from cpython.buffer cimport PyBuffer_Release
from cpython.number cimport PyNumber_AsSsize_t
from libc.stdint cimport uint64_t

from fastshard._core.buffers cimport int64s_of
from fastshard._core.dataset.shard cimport (
    STAGE_BYTES, STAGE_EXTENT, STAGE_LIST, SampleBase, SampleDecoder, SamplesBase,
    Shard, call_decoder, decode_item, resident_view, use_resident,
)
from fastshard._core.io.source cimport MappedSource, Source
from fastshard._core.table.order cimport Order
from fastshard._core.threads cimport fs_atomic_next, fs_atomic_store

import sysconfig
from array import array
from collections import deque

from fastshard._core.dataset.shard import add_notes
from fastshard.errors import ClosedError, FastshardError, is_transient

cdef bint WITHOUT_GIL = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


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


cdef object strip_traceback(object error):
    """Return an error without its traceback; it may be raised for several items."""
    return error.with_traceback(None)


# A stream returns an item, or the exception that takes its place: an item that cannot
# be read does not end the iteration. An `OSError` met ahead of the item's turn may be
# transient: the stream stays where it is and tries again in the item's turn.

cdef class ItemStream:
    """Items in order, with the members that hold the bytes of each."""

    def __reduce__(self):
        raise TypeError(f"a {type(self).__name__} does not pickle")

    cdef object next_item(self, bint ahead):
        """Return the next item or the exception in its place; raise StopIteration.

        If `ahead` of the item's turn, an `OSError` is returned without consuming it.
        """
        raise NotImplementedError

    cdef object next_resident(self):
        """Return the next item in the caller's form, if its bytes are resident.

        None: `next_item` must be called, nothing was consumed. An error that is
        raised is the item's, which is consumed.
        """
        return None

    cdef object next_decoded(self):
        """Return the next item decoded by `decoder`, if its bytes are resident.

        None: another method must be called, nothing was consumed.
        """
        return None

    cdef object emit(self, object item):
        """Return an item in the caller's form."""
        return item

    cdef Py_ssize_t left(self) except -1:
        """Return the likely number of items left."""
        return 0

    cdef Shard shard_of(self, object item):
        """Return the shard that holds all of an item, or None for several shards."""
        raise NotImplementedError

    cdef list members_of(self, object item):
        """Return the members of an item as (shard, member)."""
        raise NotImplementedError

    cdef bint is_resident(self, object item) except -1:
        """Return whether reading an item does not block."""
        raise NotImplementedError


@cython.final
cdef class MemberStream(ItemStream):
    """Members of a shard, as views."""

    def __cinit__(self, Shard shard not None, order):
        self.shard = shard
        if type(order) is range and order.step == 1:
            self.first = order.start
            self.count = len(order)
            return
        if type(order) is not array or order.typecode != "q":
            order = array("q", order)
        self.positions = int64s_of(order, &self.buffer)
        self.count = self.buffer.len // 8

    def __dealloc__(self):
        PyBuffer_Release(&self.buffer)  # no-op for a range

    cdef Py_ssize_t position(self) noexcept:
        """Return the position of the next member; one must be left."""
        if self.positions != NULL:
            return <Py_ssize_t> self.positions[self.next]
        return self.first + self.next

    cdef object next_item(self, bint ahead):
        cdef Py_ssize_t i
        self.shard.open_source()
        if self.next == self.count:
            raise StopIteration
        i = self.position()
        self.next += 1
        return i

    cdef object next_resident(self):
        cdef object view
        if self.next == self.count:
            return None
        view = resident_view(self.shard, self.position())
        self.next += view is not None
        return view

    cdef Py_ssize_t left(self) except -1:
        return self.count - self.next

    cdef object emit(self, object item):
        return self.shard.view_at(item)

    cdef Shard shard_of(self, object item):
        return self.shard

    cdef list members_of(self, object item):
        return [(self.shard, item)]

    cdef bint is_resident(self, object item) except -1:
        return self.shard.open_source().is_resident()


cdef class SampleStream(ItemStream):
    """Samples, narrowed to some fields."""

    cdef object next_item(self, bint ahead):
        raise StopIteration

    cdef bint has_resident(self, object samples):
        """Return whether the bytes of some samples are known to be resident."""
        return (
            isinstance(samples, SamplesBase)
            and (<SamplesBase> samples).shard is not None
            and use_resident((<SamplesBase> samples).shard)
        )

    cdef object narrow(self, SampleBase sample):
        if self.only is not None or self.decoders is not None:
            sample.show(self.only, self.required, self.decoders)
        return sample

    cdef Shard shard_of(self, object item):
        return (<SampleBase> item).samples.shard

    cdef list members_of(self, object item):
        return (<SampleBase> item).samples.visible_members(item)

    cdef bint is_resident(self, object item) except -1:
        return (<SampleBase> item).samples.is_resident(item)


@cython.final
cdef class PositionStream(SampleStream):
    """Samples of a dataset in its order."""

    def __cinit__(self, SampleLocator locator not None, only, bint required, decoders):
        self.ring = LookaheadRing(locator)
        self.only = only
        self.required = required
        self.decoders = decoders

    cdef object next_item(self, bint ahead):
        cdef Py_ssize_t i = self.next
        if i == self.ring.count:
            raise StopIteration
        try:
            item = self.narrow(self.ring.sample(i))
        except (FastshardError, OSError) as error:
            if ahead and isinstance(error, OSError):
                return error
            item = error
        self.next = i + 1          # not after other errors, as KeyboardInterrupt
        return item

    cdef object next_resident(self):
        cdef LookaheadRing ring = self.ring
        cdef Py_ssize_t i = self.next
        cdef location_t location
        if i == ring.count:
            return None
        ring.advance(i, &location)
        if not self.has_resident(ring.locator.samples[location.shard]):
            return None
        self.next = i + 1
        return self.narrow(ring.locator.sample_at(location))

    cdef object next_decoded(self):
        cdef SampleLocator locator = self.ring.locator
        cdef Py_ssize_t i = self.next
        cdef location_t location
        if i == self.ring.count or self.only is not None or self.decoders:
            return None
        self.ring.advance(i, &location)
        item = decode_item(
            self.decoder, locator.samples[location.shard], location.at
        )
        if item is not None:
            self.next = i + 1
            if locator.used is not None:
                locator.used[location.shard] = 1
        return item

    cdef Py_ssize_t left(self) except -1:
        return self.ring.count - self.next


@cython.final
cdef class ShardStream(SampleStream):
    """All samples of some shards, which need not be counted before.

    A shard that cannot be opened yields its exception in place of each of its
    samples, or once if they are not counted. After a transient error each of these
    samples tries to open the shard again.
    """

    def __cinit__(
        self, list sizes not None, open_shard, only, bint required, decoders
    ):
        self.sizes = sizes
        self.open_shard = open_shard
        self.only = only
        self.required = required
        self.decoders = decoders

    cdef object next_item(self, bint ahead):
        cdef Py_ssize_t i
        if self.repeats > 0:
            item = self.retry(ahead)
            if item is not None:
                return item
        while self.next_sample == self.sample_count:
            if self.next_shard == len(self.sizes):
                self.samples = self.error = None
                raise StopIteration
            try:
                self.open_next()
            except ClosedError:
                raise
            except (FastshardError, OSError) as error:
                if ahead and isinstance(error, OSError):
                    self.next_shard -= 1
                    return error
                size = self.sizes[self.next_shard - 1]
                if size == 0:
                    continue
                self.repeats = 0 if size is None else size - 1
                self.error = error
                return error
        i = self.next_sample
        self.next_sample = i + 1
        try:
            return self.narrow((<SamplesBase> self.samples).sample_at(i))
        except (FastshardError, OSError) as error:
            return error

    cdef object next_resident(self):
        cdef Py_ssize_t i = self.next_sample
        if self.repeats > 0 or i == self.sample_count or (
            not self.has_resident(self.samples)
        ):
            return None
        self.next_sample = i + 1
        return self.narrow((<SamplesBase> self.samples).sample_at(i))

    cdef object next_decoded(self):
        cdef Py_ssize_t i = self.next_sample
        if self.repeats > 0 or i == self.sample_count or (
            self.only is not None or self.decoders
        ):
            return None
        item = decode_item(self.decoder, self.samples, i)
        if item is not None:
            self.next_sample = i + 1
        return item

    cdef object retry(self, bint ahead):
        """Return the error of a shard that does not open, or None if it opens now."""
        if is_transient(self.error):
            try:
                samples = <SamplesBase?> self.open_shard(self.next_shard - 1)
                count = len(samples)
            except ClosedError:
                raise
            except (FastshardError, OSError) as error:
                self.error = error
            else:
                self.samples = samples
                self.sample_count = count
                self.next_sample = max(0, count - self.repeats)
                self.repeats = 0
                self.error = None
                return None
        if not (ahead and isinstance(self.error, OSError)):
            self.repeats -= 1
        return self.error

    cdef int open_next(self) except -1:
        """Open the next shard; a FastshardError or OSError moves past it."""
        k = self.next_shard
        self.next_sample = self.sample_count = 0
        try:
            self.samples = <SamplesBase?> self.open_shard(k)
            self.sample_count = len(self.samples)  # groups the members
            self.next_shard = k + 1
        except (FastshardError, OSError):
            self.next_shard = k + 1
            raise                  # others, as KeyboardInterrupt: open it again
        return 0


cdef bint take_turn(uint64_t *busy) noexcept:
    """Begin a call; False if another thread is in one."""
    if WITHOUT_GIL:
        return fs_atomic_next(busy) == 0
    if busy[0] != 0:
        return False
    busy[0] = 1
    return True


cdef void end_turn(uint64_t *busy) noexcept:
    if WITHOUT_GIL:
        fs_atomic_store(busy, 0)
    else:
        busy[0] = 0


@cython.final
cdef class CallGuard:
    """Guard of an iterator that is written in Python: one call at a time.

    It is taken and released around the call in C, where no signal handler runs. Python
    code has a gap between ``lock.acquire()`` and ``try`` in which Ctrl-C leaves the
    lock held, and from CPython 3.14 on between ``with lock`` and its body too.
    """

    cdef uint64_t busy

    def call(self, function):
        """Return ``function()``."""
        if not take_turn(&self.busy):
            raise ValueError("another thread is in this iterator")
        try:
            return function()
        finally:
            end_turn(&self.busy)

    def __reduce__(self):
        raise TypeError("a CallGuard does not pickle")


cdef class IteratorBase:
    """Iterator over a stream: state, errors, and the queue of items ahead."""

    def __cinit__(
        self, ItemStream stream not None, Py_ssize_t window, uint64_t window_bytes, *,
        make=None, describe=None, on_error=None, Py_ssize_t skipped=0, **options,
    ):
        if window < 0:
            raise ValueError(f"window must be at least 0, got {window}")
        self.stream = stream
        self.make = make
        self.describe = describe
        self.on_error = on_error
        self.skipped_count = skipped
        self.window = window
        self.window_bytes = max(window_bytes, <uint64_t> 1)
        self.queue = deque()

    def __iter__(self):
        return self

    def __length_hint__(self):
        if not self.enter():
            return 0               # another thread is in a call
        try:
            return len(self.queue) + (0 if self.ended else self.stream.left())
        finally:
            self.leave()

    def __next__(self):
        if not self.enter():
            raise ValueError("another thread is in this iterator")
        try:
            if self.on_error is None and not self.invalidated:
                return self.advance()
            return self.step()
        finally:
            self.leave()

    cdef bint enter(self) noexcept:
        """Begin a call; False if another thread is in one."""
        return take_turn(&self.busy)

    cdef void leave(self) noexcept:
        end_turn(&self.busy)

    cdef object step(self):
        """Return the next item; skip items that fail if `on_error` says so."""
        cdef Py_ssize_t before
        while True:
            if self.invalidated:
                self.ended = True
                self.finish()
                raise ClosedError("the dataset is closed")
            if self.on_error is None:
                return self.advance()
            before = self.consumed
            try:
                return self.advance()
            except StopIteration:
                raise
            except Exception as error:
                if self.consumed == before:
                    raise          # not the error of an item: it would repeat
                if not self.on_error(error, self.consumed - 1):
                    raise
                self.skipped_count += 1

    cdef object convert(self, object item):
        """Call `make` with an item; add the item's name to its errors."""
        if self.make is None:
            return item
        try:
            return self.make(item)
        except Exception as error:
            failure = add_notes(
                error, item, f"position {self.consumed - 1:,} of the iteration"
            )
            if failure is error:
                raise
            raise failure from error

    @property
    def is_mapped(self):
        """True if `next` maps or decodes items."""
        return self.make is not None or self.stream.decoder is not None

    @property
    def buffered(self):
        """Bytes of prefetched items that are not returned yet."""
        return self.queued_bytes

    def __repr__(self):
        skipped = f"; {self.skipped_count:,} skipped" if self.skipped_count else ""
        return f"{type(self).__name__}(position {self.consumed:,}{skipped})"

    @property
    def position(self):
        """Position of the next item in the order."""
        return self.consumed

    @property
    def skipped(self):
        """Items skipped so far, including those before the state resumed from."""
        return self.skipped_count

    def state_dict(self):
        """Return the state to resume from; see `Dataset.resume`."""
        return self.state_after(self.consumed, self.skipped_count)

    def state_after(self, Py_ssize_t done, Py_ssize_t skipped):
        """Return the state after some items of this iteration."""
        if self.describe is None:
            raise TypeError("an iteration over members has no state")
        return self.describe(done, skipped)

    def close(self):
        """End the iteration and its thread, and release the shards.

        `state_dict` works afterwards while the dataset is referenced.
        """
        if not self.enter():
            raise ValueError("another thread is in this iterator")
        self.ended = True
        try:
            self.finish()
            self.make = self.on_error = None
            if self.describe is not None:
                self.describe.release()
        finally:
            self.leave()

    def invalidate(self):
        """Make the next call raise ClosedError, after the dataset was closed."""
        self.invalidated = True

    def __reduce__(self):
        raise TypeError(f"a {type(self).__name__} does not pickle")

    cdef object advance(self):
        """Return the next item; raise StopIteration at the end."""
        raise NotImplementedError

    cdef int finish(self) except -1:
        """End the iteration; release its shards and memory."""
        return 0
