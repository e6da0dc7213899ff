"""What an iteration goes over: members or samples, in the order they come in.

A feed gives an item, or the exception that stands at its place: one that cannot be
had does not end the iteration. An `OSError` that is met while reading ahead is not the
item's verdict, for it may pass: the feed stays where it is, and tries again when it is
asked for the item in its turn.
"""

cimport cython

from fastshard._core.coming cimport Coming
from fastshard._core.places cimport Places
from fastshard._core.samples cimport SampleBase, SamplesBase
from fastshard._core.shard cimport Shard

from operator import length_hint

from fastshard.errors import ClosedError, FastshardError, is_transient


cdef class Feed:
    """Items in order, and the members whose bytes each of them has."""

    def __reduce__(self):
        raise TypeError("a feed does not pickle")

    cdef object take(self, bint ahead):
        """Return the next item, or the exception in its place; StopIteration.

        An `OSError` that is returned `ahead` of the item's turn consumes nothing.
        """
        raise NotImplementedError

    cdef object emit(self, object item):
        """Return what the caller gets for an item."""
        return item

    cdef Py_ssize_t left(self) except -1:
        """How many items are likely to come."""
        return 0

    cdef Shard shard_of(self, object item):
        """The shard that holds all of an item; None: there are several."""
        raise NotImplementedError

    cdef list places_of(self, object item):
        """The members of an item, each as (shard, member)."""
        raise NotImplementedError

    cdef bint is_near(self, object item) except -1:
        """Whether an item's bytes need not be waited for."""
        raise NotImplementedError


@cython.final
cdef class MemberFeed(Feed):
    """The members of a shard, as views.

    Parameters
    ----------
    shard : Shard
    order : iterable of int
        Their positions, all of which there are.
    """

    def __cinit__(self, Shard shard not None, order):
        self.shard = shard
        self.order = iter(order)

    cdef object take(self, bint ahead):
        self.shard.open_source()
        return next(self.order)

    cdef Py_ssize_t left(self) except -1:
        return length_hint(self.order, 0)

    cdef object emit(self, object item):
        self.shard.open_source()
        return self.shard.view_at(item)

    cdef Shard shard_of(self, object item):
        return self.shard

    cdef list places_of(self, object item):
        return [(self.shard, item)]

    cdef bint is_near(self, object item) except -1:
        return self.shard.open_source().is_near()


cdef class SampleFeed(Feed):
    """Samples, narrowed to some fields."""

    cdef object take(self, bint ahead):
        raise StopIteration

    cdef object narrowed(self, SampleBase sample):
        if self.only is not None or self.decoders is not None:
            sample.narrow(self.only, self.required, self.decoders)
        return sample

    cdef Shard shard_of(self, object item):
        return (<SampleBase> item).samples.shard

    cdef list places_of(self, object item):
        return (<SampleBase> item).samples.places(item)

    cdef bint is_near(self, object item) except -1:
        return (<SampleBase> item).samples.is_near(item)


@cython.final
cdef class PlacesFeed(SampleFeed):
    """The samples of a dataset in its order.

    Parameters
    ----------
    places : Places
    only, required, decoders
        As for `SampleBase.narrow`.
    """

    def __cinit__(self, Places places not None, only, bint required, decoders):
        self.coming = Coming(places)
        self.only = only
        self.required = required
        self.decoders = decoders

    cdef object take(self, bint ahead):
        cdef Py_ssize_t i = self.next
        if i == self.coming.count:
            raise StopIteration
        try:
            item = self.narrowed(self.coming.sample(i))
        except (FastshardError, OSError) as error:
            if ahead and isinstance(error, OSError):
                return error
            item = error
        self.next = i + 1          # after others, as Ctrl-C, it comes again
        return item

    cdef Py_ssize_t left(self) except -1:
        return self.coming.count - self.next


@cython.final
cdef class ShardsFeed(SampleFeed):
    """All samples of some shards, which need not have been counted.

    A shard that cannot be opened gives its exception in the place of each of its
    samples; once, where they are not counted. After a failure that may pass, each of
    its samples tries again.

    Parameters
    ----------
    sizes : list of int or None
        How many samples each shard has.
    bring : callable
        ``bring(k)`` opens shard `k` and returns its samples.
    only, required, decoders
        As for `SampleBase.narrow`.
    """

    def __cinit__(self, list sizes not None, bring, only, bint required, decoders):
        self.sizes = sizes
        self.bring = bring
        self.only = only
        self.required = required
        self.decoders = decoders

    cdef object take(self, bint ahead):
        cdef Py_ssize_t i
        if self.repeats > 0:
            item = self.repeated(ahead)
            if item is not None:
                return item
        while self.next_sample == self.samples_there:
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
            return self.narrowed((<SamplesBase> self.samples).sample_at(i))
        except (FastshardError, OSError) as error:
            return error

    cdef object repeated(self, bint ahead):
        """Return the error of a shard that did not open; None: now it is open."""
        if is_transient(self.error):
            try:
                samples = <SamplesBase?> self.bring(self.next_shard - 1)
                count = len(samples)
            except ClosedError:
                raise
            except (FastshardError, OSError) as error:
                self.error = error
            else:
                self.samples = samples
                self.samples_there = count
                self.next_sample = max(0, count - self.repeats)
                self.repeats = 0
                self.error = None
                return None
        if not (ahead and isinstance(self.error, OSError)):
            self.repeats -= 1
        return self.error

    cdef int open_next(self) except -1:
        k = self.next_shard
        self.next_sample = self.samples_there = 0
        try:
            self.samples = <SamplesBase?> self.bring(k)
            self.samples_there = len(self.samples)  # groups the members
            self.next_shard = k + 1
        except (FastshardError, OSError):
            self.next_shard = k + 1
            raise                  # others, as Ctrl-C, leave it to the next step
        return 0
