"""Iterators over members and samples that read ahead of their caller.

While all of a shard is in the page cache its items are handed out as they come.
Otherwise the members of coming items are joined into runs, which a `Prefetcher`
brings; an item is handed out when its bytes are there. Of remote shards the ranges of
coming items are asked for, in groups.
"""

cimport cython
from cpython.buffer cimport PyBuffer_Release
from cpython.memoryview cimport PyMemoryView_FromObject
from cpython.number cimport PyNumber_AsSsize_t
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memset

from fastshard._core.buffers cimport int64s_of
from fastshard._core.table.extents cimport ExtentTable, has_unchecked_blocks
from fastshard._core.io.page_ring cimport (
    MappedChunks, PageReleaser, PageRing, chunks_of, folio_start, reopen_file,
)
from fastshard._core.pages cimport fs_exact_now, fs_now, fs_pause
from fastshard._core.dataset.shard cimport SampleLocator
from fastshard._core.platform cimport fs_load_relaxed, fs_has_bit, fs_load, fs_store_relaxed
from fastshard._core.io.prefetch cimport Prefetcher, task_t
from fastshard._core.io.source cimport RemoteSource
from fastshard._core.io.source cimport MAX_PAGE_IN, SETTLE, Descriptor
from fastshard._core.dataset.shard cimport FAR, NEAR, NEARER, SampleBase, SamplesBase
from fastshard._core.dataset.shard cimport Shard
from fastshard._core.io.source cimport MappedSource, Source
from fastshard._core.threads cimport fs_atomic_load, fs_atomic_next, fs_atomic_store

import os
import sysconfig
from array import array
from collections import deque

from fastshard._core.dataset.gather import resolve_positions
from fastshard._core.dataset.shard import stage
from fastshard._core.dataset.shard import add_notes
from fastshard._util.sizes import parse_size
from fastshard.errors import ClosedError, FastshardError, FormatError, is_transient

cdef enum:
    GAP = 64 << 10                 # bytes between members of one run: headers, others
    RUN = 1 << 20                  # bytes of a run, at most
    RUNS_AHEAD = 32 << 20          # bytes ahead where one run follows another
    MOST_ITEMS = 32768             # that wait, however small they are
    MOST_REMOTE = 4096             # the same of remote ones
    MOST_FORGOTTEN = 4             # tasks that are not waited for
    AT_ONCE = 256                  # items taken at a time: the GIL is held meanwhile
    LONG_READAHEAD = 1 << 20       # bytes: the kernel itself reads ahead far enough
    FIRST_GROUP = 256 << 10        # bytes: the first item should come soon
    GROUP = 8 << 20                # bytes of later groups, at most

cdef uint64_t MOST_AHEAD = 64 << 20  # bytes of a scan
cdef uint64_t HELD_AT_MOST = 500_000  # ns
cdef bint WITHOUT_GIL = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))

cdef extern from "Python.h":
    ctypedef struct PyInterpreterState:
        pass
    ctypedef struct PyThreadState:
        pass
    PyInterpreterState *PyInterpreterState_Get()
    PyThreadState *PyInterpreterState_ThreadHead(PyInterpreterState *interpreter)
    PyThreadState *PyThreadState_Next(PyThreadState *thread)
    bint PyExceptionInstance_Check(object thing)


cdef object fresh(object error):
    """An error that is raised for one item of several, without their tracebacks."""
    return error.with_traceback(None)


# Items whose bytes are there: nothing is asked of the kernel, nothing waits

cdef inline MappedSource near_source(Shard shard):
    """Return the source of a shard that was wholly in memory a moment ago.

    None: `Source.is_resident` knows. Each call counts as a read; see `Source.trusted`.
    """
    cdef Source source
    cdef Py_ssize_t trusted
    with cython.critical_section(shard):  # without a GIL another thread may close it
        source = shard.source
    if type(source) is not MappedSource:
        return None
    trusted = fs_load_relaxed(&(<MappedSource> source).trusted)
    if trusted <= 0:
        return None
    fs_store_relaxed(&(<MappedSource> source).trusted, trusted - 1)
    return <MappedSource> source


cdef inline object near_view(Shard shard, Py_ssize_t i):
    """Return a view of a member; None: `Shard.view_at` has to be asked."""
    cdef MappedSource source = near_source(shard)
    cdef ExtentTable table = shard.table
    cdef uint64_t offset, size
    if source is None or source.file.chunks is not None or has_unchecked_blocks(table) or (
        table.verified != NULL and not fs_has_bit(table.verified, i)
    ):
        return None
    size = fs_atomic_load(table.columns.sizes + i)  # first: a column's is written last
    offset = fs_load(table.columns.offsets + i)
    if offset > source.nbytes or size > source.nbytes - offset:
        return None
    return source.file.view(offset, size)


# Samples in an order that jumps
#
# What finds a sample lies in five columns, its bytes in a sixth place, and each of
# them waits for the one before. Asked for some samples ahead, they come side by side.

@cython.final
cdef class LookaheadRing:
    """Samples of `places`, one after another.

    Parameters
    ----------
    places : SampleLocator
    positions : tuple, optional
        Positions in any order; all without it.
    """

    def __cinit__(self, SampleLocator places not None, tuple positions=None):
        self.places = places
        self.positions = positions
        self.count = places.count if positions is None else len(positions)

    def __reduce__(self):
        raise TypeError("what is coming does not pickle")

    def every(self):
        """Return all samples as a list."""
        cdef Py_ssize_t i
        return [self.sample(i) for i in range(self.count)]

    cdef object sample(self, Py_ssize_t i):
        """Return the i-th sample, which is asked for once, or again if it failed.

        Raises
        ------
        IndexError
            There is no such position.
        """
        cdef place_t place
        self.look_ahead(i)
        place = self.ring[i % RING]
        return self.places.sample_in(place.shard, place.at)

    cdef int look_ahead(self, Py_ssize_t i) except -1:
        cdef Py_ssize_t end = min(i + FAR + 1, self.count)
        cdef Py_ssize_t place
        cdef place_t *found
        while self.known < end:
            place = self.known
            if self.positions is not None:
                place = self.places.wrapped(
                    PyNumber_AsSsize_t(self.positions[place], IndexError)
                )
            found = &self.ring[self.known % RING]
            self.places.locate(place, &found.shard, &found.at)
            self.known += 1
            self.expect(found, FAR)
        if i + NEARER < end:
            self.expect(&self.ring[(i + NEARER) % RING], NEARER)
        if i + NEAR < end:
            self.expect(&self.ring[(i + NEAR) % RING], NEAR)
        return 0

    cdef void expect(self, const place_t *place, int away) noexcept:
        """Ask for what the step after this one reads of a sample."""
        cdef object samples = self.places.samples[place.shard]
        if samples is not None and isinstance(samples, SamplesBase):
            (<SamplesBase> samples).expect(place.at, away)


# Feeds: members or samples, in the order they come in
#
# A feed gives an item, or the exception that stands at its place: one that cannot be
# had does not end the iteration. An `OSError` that is met while reading ahead is not
# the item's verdict, for it may pass: the feed stays where it is, and tries again when
# it is asked for the item in its turn.

cdef class ItemStream:
    """Items in order, and the members whose bytes each of them has."""

    def __reduce__(self):
        raise TypeError("a feed does not pickle")

    cdef object take(self, bint ahead):
        """Return the next item, or the exception in its place; StopIteration.

        An `OSError` that is returned `ahead` of the item's turn consumes nothing.
        """
        raise NotImplementedError

    cdef object take_near(self):
        """Return what the caller gets for the next item, whose bytes are there.

        None: `take` has to be asked, and consumes it. An error is that of the item,
        which is consumed.
        """
        return None

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

    cdef bint is_resident(self, object item) except -1:
        """Whether an item's bytes need not be waited for."""
        raise NotImplementedError


@cython.final
cdef class MemberStream(ItemStream):
    """The members of a shard, as views.

    Parameters
    ----------
    shard : Shard
    order : iterable of int
        Their positions, all of which there are.
    """

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
        PyBuffer_Release(&self.buffer)  # nothing, where there is none

    cdef Py_ssize_t position(self) noexcept:
        """Position of the member that comes next; there is one."""
        if self.positions != NULL:
            return <Py_ssize_t> self.positions[self.next]
        return self.first + self.next

    cdef object take(self, bint ahead):
        cdef Py_ssize_t i
        self.shard.open_source()
        if self.next == self.count:
            raise StopIteration
        i = self.position()
        self.next += 1
        return i

    cdef object take_near(self):
        cdef object view
        if self.next == self.count:
            return None
        view = near_view(self.shard, self.position())
        self.next += view is not None
        return view

    cdef Py_ssize_t left(self) except -1:
        return self.count - self.next

    cdef object emit(self, object item):
        return self.shard.view_at(item)

    cdef Shard shard_of(self, object item):
        return self.shard

    cdef list places_of(self, object item):
        return [(self.shard, item)]

    cdef bint is_resident(self, object item) except -1:
        return self.shard.open_source().is_resident()


cdef class SampleStream(ItemStream):
    """Samples, narrowed to some fields."""

    cdef object take(self, bint ahead):
        raise StopIteration

    cdef bint has_near(self, object samples):
        """Whether the bytes of some samples surely are in memory."""
        return (
            isinstance(samples, SamplesBase)
            and (<SamplesBase> samples).shard is not None
            and near_source((<SamplesBase> samples).shard) is not None
        )

    cdef object narrowed(self, SampleBase sample):
        if self.only is not None or self.decoders is not None:
            sample.show(self.only, self.required, self.decoders)
        return sample

    cdef Shard shard_of(self, object item):
        return (<SampleBase> item).samples.shard

    cdef list places_of(self, object item):
        return (<SampleBase> item).samples.places(item)

    cdef bint is_resident(self, object item) except -1:
        return (<SampleBase> item).samples.is_resident(item)


@cython.final
cdef class PositionStream(SampleStream):
    """The samples of a dataset in its order.

    Parameters
    ----------
    places : SampleLocator
    only, required, decoders
        As for `SampleBase.narrow`.
    """

    def __cinit__(self, SampleLocator places not None, only, bint required, decoders):
        self.coming = LookaheadRing(places)
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

    cdef object take_near(self):
        cdef LookaheadRing coming = self.coming
        cdef Py_ssize_t i = self.next
        cdef place_t place
        if i == coming.count:
            return None
        coming.look_ahead(i)
        place = coming.ring[i % RING]
        if not self.has_near(coming.places.samples[place.shard]):
            return None
        self.next = i + 1
        return self.narrowed(coming.places.sample_in(place.shard, place.at))

    cdef Py_ssize_t left(self) except -1:
        return self.coming.count - self.next


@cython.final
cdef class ShardStream(SampleStream):
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

    cdef object take_near(self):
        cdef Py_ssize_t i = self.next_sample
        if self.repeats > 0 or i == self.samples_there or not self.has_near(self.samples):
            return None
        self.next_sample = i + 1
        return self.narrowed((<SamplesBase> self.samples).sample_at(i))

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


# Iterators over feeds

cdef class IteratorBase:
    """What iterators over a feed have in common, wherever its bytes are.

    Parameters
    ----------
    feed : ItemStream
    window : int
        Items to have ahead.
    window_bytes : int
        Bytes to have ahead at most, but for one item.
    make : callable, optional
        Makes of an item what the caller gets.
    describe : callable, optional
        ``describe(n, skipped)`` returns the state after `n` items; its ``release()``
        is called when the iteration is closed.
    on_error : callable, optional
        ``on_error(error, position)`` says whether to go on after an item's error;
        without it every error is raised.
    skipped : int
        Items that were passed over before this iteration.
    """

    def __cinit__(self, ItemStream feed not None, Py_ssize_t window, uint64_t window_bytes,
                  *, make=None, describe=None, on_error=None, Py_ssize_t skipped=0,
                  **options):
        if window < 0:
            raise ValueError(f"a window is at least 0, not {window}")
        self.feed = feed
        self.make = make
        self.describe = describe
        self.on_error = on_error
        self.skipped_so_far = skipped
        self.window = window
        self.window_bytes = max(window_bytes, <uint64_t> 1)
        self.queue = deque()

    def __iter__(self):
        return self

    def __length_hint__(self):
        if not self.enter():
            return 0               # another thread is in it
        try:
            return len(self.queue) + (0 if self.ended else self.feed.left())
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
        """Begin a call; False: another thread is in one."""
        if WITHOUT_GIL:
            return fs_atomic_next(&self.entered) == 0
        if self.entered != 0:
            return False
        self.entered = 1
        return True

    cdef void leave(self) noexcept:
        if WITHOUT_GIL:
            fs_atomic_store(&self.entered, 0)
        else:
            self.entered = 0

    cdef object step(self):
        """Return the next item; pass over those whose errors `on_error` takes."""
        cdef Py_ssize_t before
        while True:
            if self.invalidated:
                self.ended = True
                self.finish()
                raise ClosedError("the dataset is closed")
            if self.on_error is None:
                return self.advance()
            before = self.taken_so_far
            try:
                return self.advance()
            except StopIteration:
                raise
            except Exception as error:
                if self.taken_so_far == before:
                    raise          # no item's error: it would come again
                if not self.on_error(error, self.taken_so_far - 1):
                    raise
                self.skipped_so_far += 1

    cdef object made(self, object item):
        """Return what the caller gets for an item; an error names the item."""
        if self.make is None:
            return item
        try:
            return self.make(item)
        except Exception as error:
            failure = add_notes(
                error, item, f"position {self.taken_so_far - 1:,} of the iteration"
            )
            if failure is error:
                raise
            raise failure from error

    @property
    def buffered(self):
        """Bytes of the items that were asked for and not yet handed out."""
        return self.ahead

    @property
    def position(self):
        """Position of the item that comes next, in what is iterated over."""
        return self.taken_so_far

    @property
    def skipped(self):
        """Items that were passed over, those before the state it began from included."""
        return self.skipped_so_far

    def state_dict(self):
        """Return what `Dataset.resume` goes on from: all so far is done, or skipped."""
        return self.state_after(self.taken_so_far, self.skipped_so_far)

    def state_after(self, Py_ssize_t done, Py_ssize_t skipped):
        """Return the state after some items of this iteration.

        Parameters
        ----------
        done : int
        skipped : int
            Items passed over, as `skipped` counts them.
        """
        if self.describe is None:
            raise TypeError("an iteration over members has no state")
        return self.describe(done, skipped)

    def close(self):
        """End the iteration, and its thread.

        It keeps no shard open: a state is to be had while the dataset is referenced.
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
        """Have the next step raise: what is iterated over was closed."""
        self.invalidated = True

    def __reduce__(self):
        raise TypeError("an iterator does not pickle")

    cdef object advance(self):
        raise NotImplementedError

    cdef int finish(self) except -1:
        return 0


# Local items, whose pages are brought

cdef uint64_t readahead_of(uint64_t device) except? 0:
    """How far the kernel reads ahead of who reads in order; 128 KB if it is not said."""
    if not hasattr(os, "major"):
        return 128 << 10
    try:
        name = f"{os.major(device)}:{os.minor(device)}"
        with open(f"/sys/class/bdi/{name}/read_ahead_kb") as file:
            return int(file.read()) << 10
    except (OSError, ValueError):
        return 128 << 10


@cython.final
@cython.no_gc
cdef class Run:
    """Extents of one source that follow each other, and are brought by one task."""

    cdef Source source
    cdef uint64_t start
    cdef uint64_t end
    cdef uint64_t item             # that it was last added to for
    cdef uint64_t task             # 0: not pushed yet
    cdef bint follows              # it goes on where the one before ended


@cython.final
cdef class Waiting:
    """An item that comes, and the runs that its bytes are in."""

    cdef object item
    cdef Run run                   # the last of them; None: its bytes are there
    cdef list runs                 # those before
    cdef uint64_t nbytes
    cdef bint failed               # its members could not be located ahead

    cdef int add(self, Run run) except -1:
        if self.run is not None and self.run is not run:
            if self.runs is None:
                self.runs = []
            self.runs.append(self.run)
        self.run = run
        return 0


@cython.final
@cython.no_gc
cdef class OwnChunks:
    """The chunks of a source whose mapping is in no ring; keeps it mapped."""

    cdef MappedSource source
    cdef MappedChunks chunks

    def __dealloc__(self):
        if self.chunks is not None:
            self.chunks.detach()


cdef OwnChunks own_chunks(PageRing ring, MappedSource source):
    cdef OwnChunks own = OwnChunks.__new__(OwnChunks)
    cdef uint64_t device = 0
    cdef uint64_t inode = 0
    if source.residency is not None:
        device = source.residency.device
        inode = source.residency.inode
    own.source = source
    own.chunks = chunks_of(
        ring, source.file.base, source.nbytes, False, source.path, device, inode
    )
    return own


@cython.final
cdef class PrefetchIterator(IteratorBase):
    """An iterator over a feed.

    Parameters
    ----------
    feed : ItemStream
    window : int
        Items to have ahead; more of them where they follow each other in a file,
        up to 32 MiB. 0: nothing is brought.
    window_bytes : int
        Bytes to have ahead at most, but for one item.
    ring : PageRing, optional
        Bounds the pages that are resident; all are released at the end.
    make : callable, optional
        Makes of an item what the caller gets.
    describe, on_error, skipped
        As for `IteratorBase`.
    """

    cdef Prefetcher prefetcher     # None until there is something to bring
    cdef PageRing ring
    cdef PageReleaser releaser     # None without a ring
    cdef list forgotten            # tasks that have the page cache forget
    cdef MappedChunks last_forgotten
    cdef Descriptor descriptor     # of its file
    cdef dict chunks               # of sources that are in no ring of their own
    cdef uint64_t let_in           # when others could last have the GIL, ns
    cdef dict runs                 # those being put together, by source
    cdef uint64_t put_so_far       # items
    cdef bint in_order             # the last extent joined the one before
    cdef uint64_t device           # of the last run, and whether its readahead is long
    cdef bint long_readahead
    cdef bint blocked              # the next item failed ahead of its turn
    cdef object current            # the item handed out last

    def __cinit__(self, *args, PageRing ring=None, **options):
        self.window = min(self.window, <Py_ssize_t> MOST_ITEMS)
        self.ring = ring
        if ring is not None:
            self.releaser = PageReleaser(ring, self.window_bytes // 4)
        self.forgotten = []
        self.chunks = {}
        self.runs = {}

    cdef object advance(self):
        cdef Waiting waiting
        cdef object item
        cdef bint near
        if self.current is not None:
            item, self.current = self.current, None
            self.pass_by(item)
        if not self.queue:
            if self.ended:
                self.finish()
                raise StopIteration
            if self.ring is None:
                self.taken_so_far += 1  # first: an error is the item's
                item = self.feed.take_near()
                if item is not None:
                    return item if self.make is None else self.made(item)
                self.taken_so_far -= 1
            self.blocked = False
            item = self.take(False)
            if PyExceptionInstance_Check(item):
                self.taken_so_far += 1
                raise fresh(item)
            try:
                near = self.is_resident(item)
            except Exception:
                self.taken_so_far += 1
                raise
            if near:
                self.taken_so_far += 1
                return self.hand_out(item)
            self.put(item)
        self.fill()
        self.push_runs()
        waiting = self.queue.popleft()
        self.taken_so_far += 1            # its turn has come, whatever comes of it
        self.ahead -= waiting.nbytes
        if PyExceptionInstance_Check(waiting.item):
            raise fresh(waiting.item)
        if waiting.run is not None:
            self.wait_for(waiting)
        if waiting.failed:
            self.locate(waiting.item)
        return self.hand_out(waiting.item)

    cdef int wait_for(self, Waiting waiting) except -1:
        """Wait for an item's bytes; raise if they could not be had."""
        cdef Run run
        cdef bint waited = self.prefetcher.wait(waiting.run.task)
        if waiting.runs is not None:
            for run in waiting.runs:
                waited |= self.prefetcher.wait(run.task)
        if waited:
            self.let_in = fs_exact_now()
        else:
            self.let_others_in()
        if self.prefetcher.failed() != 0:
            self.examine(waiting.item)
        return 0

    cdef int let_others_in(self) except -1:
        """Release the GIL now and then where nothing has to be waited for.

        A thread that wakes up gets it only after the switch interval (5 ms), or when
        it is released for long enough to be taken.
        """
        cdef uint64_t now = fs_exact_now()
        if WITHOUT_GIL or now - self.let_in < HELD_AT_MOST:
            return 0
        self.let_in = now
        if PyThreadState_Next(PyInterpreterState_ThreadHead(PyInterpreterState_Get())) == NULL:
            return 0               # there are no others
        with nogil:
            fs_pause()
        self.let_in = fs_exact_now()
        return 0

    cdef object hand_out(self, object item):
        if self.ring is not None:
            self.current = item
        return self.made(self.feed.emit(item))

    cdef object take(self, bint ahead):
        try:
            return self.feed.take(ahead)
        except StopIteration:
            self.ended = True
            if not self.queue:
                self.finish()
            raise

    cdef bint is_resident(self, object item) except -1:
        return self.window == 0 or self.feed.is_resident(item)

    cdef int fill(self) except -1:
        """Take what comes, once half of what may wait was handed out."""
        cdef Py_ssize_t count = len(self.queue)
        cdef Py_ssize_t end = count + AT_ONCE
        cdef uint64_t most = min(<uint64_t> RUNS_AHEAD, self.window_bytes)
        if 2 * count > self.window and not (self.in_order and 2 * self.ahead <= most):
            return 0
        end = min(end, <Py_ssize_t> MOST_ITEMS)
        while not self.ended and not self.blocked and self.ahead < self.window_bytes and count < end and (
            count < self.window or (self.in_order and self.ahead < most)
        ):
            try:
                item = self.take(True)
            except StopIteration:
                break
            if isinstance(item, OSError):
                self.blocked = True  # it is taken again in its turn
                break
            self.put(item)
            count += 1
        return 0

    cdef int put(self, object item) except -1:
        """Append an item to what waits, and its members to the runs."""
        cdef Waiting waiting = Waiting.__new__(Waiting)
        waiting.item = item
        self.queue.append(waiting)
        if PyExceptionInstance_Check(item):
            return 0
        self.put_so_far += 1
        try:
            self.want_members(waiting)
        except (FastshardError, OSError):
            waiting.failed = True
        self.ahead += waiting.nbytes
        return 0

    cdef int want_members(self, Waiting waiting) except -1:
        """Have an item's members brought."""
        cdef Shard shard
        cdef Source source
        cdef uint64_t offset, size
        for shard, member in self.feed.places_of(waiting.item):
            source = shard.open_source()
            if source.is_resident() or not shard.guess(source, member, &offset, &size):
                continue           # what is nowhere raises when it is asked for
            size = min(size, min(<uint64_t> MAX_PAGE_IN, self.window_bytes))
            waiting.nbytes += size
            self.want(waiting, source, offset, size)
        return 0

    cdef int want(
        self, Waiting waiting, Source source, uint64_t offset, uint64_t size
    ) except -1:
        """Add an extent to the run of its source, or begin another."""
        cdef uint64_t part
        cdef Run run = self.runs.get(source)
        cdef bint joins = (
            run is not None and offset >= run.end and offset - run.end <= GAP
        )
        self.in_order = joins
        if not joins:
            self.push_left()
            if run is not None:
                self.push(run)
            run = self.begin(source, offset, False)
        while size > 0:
            if run.end - run.start >= RUN or offset - run.start >= RUN:
                self.push(run)
                run = self.begin(source, offset, True)
            part = min(size, <uint64_t> RUN - (offset - run.start))
            offset += part
            size -= part
            run.end = offset
            run.item = self.put_so_far
            waiting.add(run)
        return 0

    cdef Run begin(self, Source source, uint64_t offset, bint follows):
        cdef Run run = Run.__new__(Run)
        run.source = source
        run.start = run.end = offset
        run.follows = follows
        run.item = self.put_so_far
        self.runs[source] = run
        return run

    cdef bint reads_far(self, Source source) except -1:
        """Whether the kernel by itself reads far ahead of who reads in order."""
        cdef uint64_t device
        if not isinstance(source, MappedSource):
            return False
        device = (<MappedSource> source).residency.device
        if device != self.device:
            self.device = device
            self.long_readahead = readahead_of(device) >= LONG_READAHEAD
        return self.long_readahead

    cdef int push(self, Run run) except -1:
        """Give a run to the thread, if it has anything."""
        cdef task_t task
        cdef Source source = run.source
        if run.end == run.start:
            return 0
        memset(&task, 0, sizeof(task))
        task.size = run.end - run.start
        task.offset = run.start
        if source.base != NULL:
            task.at = source.base + run.start
        task.fd = source.fd
        self.touch(source, run.start, task.size)
        task.ask = not (run.follows and self.reads_far(source))
        if self.prefetcher is None:
            self.prefetcher = Prefetcher()
        run.task = self.prefetcher.push(task, source)
        if isinstance(source, MappedSource):  # whoever asks now may be told too much
            (<MappedSource> source).residency.calm_from = fs_now() + SETTLE
        return 0

    cdef int push_left(self) except -1:
        """Push the runs of sources that the items have left."""
        cdef Run run
        for run in list(self.runs.values()):
            if run.item + 1 < self.put_so_far:
                self.push(run)
                del self.runs[run.source]
        return 0

    cdef int push_runs(self) except -1:
        """Push all; what comes next may go on where they end."""
        cdef Run run
        cdef uint64_t item
        for run in list(self.runs.values()):
            if run.end > run.start:
                self.push(run)
                item = run.item
                run = self.begin(run.source, run.end, True)
                run.item = item
        return 0

    cdef int locate(self, object item) except -1:
        """Raise what hinders locating an item's members, in its turn."""
        cdef Shard shard
        for shard, _ in self.feed.places_of(item):
            shard.open_source()
        return 0

    cdef int examine(self, object item) except -1:
        """Raise what is wrong with an item's bytes, after some could not be brought."""
        cdef Shard shard
        cdef Source source
        cdef uint64_t offset, size
        for shard, member in self.feed.places_of(item):
            source = shard.open_source()
            if not isinstance(source, MappedSource):
                continue
            shard.extent(source, member, &offset, &size)
            try:
                (<MappedSource> source).residency.page_in(offset, size)
            except (FormatError, OSError) as error:
                raise shard.of_member(error, member) from None
        return 0

    cdef int pass_by(self, object item) except -1:
        """Note that an item was read: its pages may be released."""
        cdef Shard shard
        cdef Source source
        cdef MappedChunks chunks
        cdef uint64_t offset, size
        self.releaser.next_item()
        for shard, member in self.feed.places_of(item):
            if shard.closed:
                continue
            source = shard.open_source()
            chunks = self.chunks_in(source)
            if chunks is not None and shard.guess(source, member, &offset, &size):
                self.releaser.mark_read(chunks, offset, size)
        if self.releaser.released:
            self.forget()
        return 0

    cdef int forget(self) except -1:
        """Have the page cache forget what was released.

        The thread does it, between what it brings: what was asked for and is not yet
        mapped would be forgotten, too.
        """
        cdef task_t task
        cdef uint64_t start, end
        if self.prefetcher is None:
            self.prefetcher = Prefetcher()
        released, self.releaser.released = self.releaser.released, []
        for chunks, start, end in released:
            if self.last_forgotten is not chunks:
                self.descriptor = Descriptor.__new__(Descriptor)
                self.descriptor.fd = reopen_file(chunks)
                self.last_forgotten = chunks
            if self.descriptor.fd < 0:
                continue           # the file is not there any more
            memset(&task, 0, sizeof(task))
            task.forget = True
            task.fd = self.descriptor.fd
            task.offset = folio_start(start)
            task.size = end - task.offset
            self.forgotten.append(self.prefetcher.push(task, self.descriptor))
            if len(self.forgotten) > MOST_FORGOTTEN:  # a window was read since
                self.prefetcher.wait(self.forgotten.pop(0))
        return 0

    cdef int touch(self, Source source, uint64_t offset, uint64_t size) except -1:
        """List bytes that are touched: in the ring of their mapping, or in our own."""
        cdef MappedChunks chunks = self.chunks_in(source)
        if chunks is None:
            return 0
        return chunks.ring.touch(chunks, offset, size, False)

    cdef MappedChunks chunks_in(self, Source source):
        """The chunks of a source, whose ring may be our own; None: not bounded."""
        cdef OwnChunks own
        cdef MappedSource mapped
        if self.ring is None or not isinstance(source, MappedSource):
            return None
        mapped = <MappedSource> source
        if mapped.file.chunks is not None:
            return mapped.file.chunks
        if mapped.writable:        # nobody counted the views that may be written to
            return None
        own = self.chunks.get(source)
        if own is None:
            own = self.chunks[source] = own_chunks(self.ring, mapped)
        return own.chunks

    cdef int finish(self) except -1:
        """Release the rest, and end the thread."""
        cdef Waiting waiting
        if self.feed is None:
            return 0
        try:
            if self.current is not None:
                self.pass_by(self.current)
            for waiting in self.queue:
                if self.ring is not None and not PyExceptionInstance_Check(waiting.item):
                    self.pass_by(waiting.item)
            if self.prefetcher is not None:
                self.prefetcher.stop()  # before: it brings pages
            if self.ring is not None:
                self.releaser.finish()
                self.ring.release()
        finally:
            self.chunks = {}
            self.queue.clear()
            self.ahead = 0
            self.current = None
            self.runs = {}
            self.releaser = None
            self.descriptor = None
            self.last_forgotten = None
            if self.prefetcher is not None:
                self.prefetcher.stop()
            self.prefetcher = None
            self.feed = None       # and the shards with it
        return 0


# Remote items, whose ranges are asked for
#
# Items are taken from a feed in groups; the extents of a group are planned together,
# and come side by side. What comes is handed out in the feed's order. A request that
# fails while it is ahead is sent again when its item's turn comes: only the answer to
# that one counts.

@cython.final
cdef class Asked:
    """An item, and what was asked for it."""

    cdef object item
    cdef list wanted               # a request, or bytes, for each of its members
    cdef list offsets
    cdef list members
    cdef uint64_t nbytes
    cdef bint ahead                # sent before the item's turn


@cython.final
cdef class RemotePrefetchIterator(IteratorBase):
    """An iterator over a feed of remote items.

    Parameters
    ----------
    feed, window, window_bytes, make, describe, on_error, skipped
        As for `IteratorBase`. Of a window of 0 each item is asked for in its turn.
    """

    cdef object held               # an Asked that did not fit into the group before
    cdef object coming             # an item that was taken, and is not yet Asked
    cdef list unsent               # requests of what waits, that are not sent
    cdef uint64_t group            # bytes of the next group
    cdef bint blocked              # the next item failed ahead of its turn

    def __cinit__(self, *args, **options):
        self.window = min(self.window, <Py_ssize_t> MOST_REMOTE)
        self.group = min(<uint64_t> FIRST_GROUP, self.window_bytes)
        self.unsent = []

    def __del__(self):
        self.finish()

    cdef object advance(self):
        cdef Asked asked
        self.fill()
        if not self.queue:
            self.finish()
            raise StopIteration
        asked = self.queue[0]
        if PyExceptionInstance_Check(asked.item):
            self.pass_on(asked)
            raise fresh(asked.item)
        try:
            item = self.finished(asked)
        except Exception:
            drop(asked)            # nobody waits for its other members
            self.pass_on(asked)
            raise
        self.pass_on(asked)       # Ctrl-C before this loses nothing
        return self.made(item)

    cdef int pass_on(self, Asked asked) except -1:
        self.queue.popleft()
        self.ahead -= asked.nbytes
        self.taken_so_far += 1
        return 0

    cdef object finished(self, Asked asked):
        """Wait for an item's bytes, and put them where it finds them."""
        if not asked.wanted:
            return self.feed.emit(asked.item)
        shard = self.feed.shard_of(asked.item)
        staged = None
        try:
            staged = brought(asked, shard)
        except (FastshardError, OSError):
            if not asked.ahead:
                raise
        if staged is None:
            self.ask_again(asked)
            staged = brought(asked, shard)
        if isinstance(self.feed, MemberStream):
            return memoryview(staged[asked.offsets[0]])
        stage(asked.item, staged)
        return self.feed.emit(asked.item)

    cdef int ask_again(self, Asked asked) except -1:
        """Send the failed requests of the item whose turn it is, in this thread.

        Once they succeed, those of the items behind it are sent too.
        """
        cdef Asked other
        cdef list failed
        for request in requests_of(asked):
            request.wait()
        failed = renewed(asked)
        failed[0].file.read_now(failed)
        asked.ahead = False
        if any(request.has_failed() for request in failed):
            return 0
        for other in self.queue:
            self.unsent += renewed(other)
        self.send()
        return 0

    cdef int fill(self) except -1:
        """Ask for groups of items until enough is on its way."""
        self.send()                # what an interruption left
        self.blocked = self.blocked and len(self.queue) > 0
        while not self.ended or self.held is not None or self.coming is not None:
            if self.queue and (
                self.blocked or self.window == 0 or len(self.queue) >= MOST_REMOTE
                or self.ahead + self.group // 2 > self.window_bytes
            ):
                return 0
            self.ask()
        return 0

    cdef int ask(self) except -1:
        """Take a group of items and ask for their bytes.

        Whatever interrupts this, Ctrl-C say, it goes on where it was.
        """
        cdef Asked asked
        cdef uint64_t nbytes = 0
        cdef Py_ssize_t items = 0
        cdef bint ahead
        cdef uint64_t most = self.group
        if self.ahead < self.window_bytes:
            most = min(most, self.window_bytes - self.ahead)
        while items < MOST_REMOTE and (self.window > 0 or items == 0):
            ahead = len(self.queue) > 0
            asked = self.held if self.held is not None else self.next_item(ahead)
            self.held = None
            if asked is None:
                break
            if items > 0 and nbytes + asked.nbytes > most:
                self.held = asked  # the first of the next group
                break
            items += 1
            nbytes += asked.nbytes
            asked.ahead = ahead
            self.unsent += requests_of(asked)
            self.ahead += asked.nbytes
            self.queue.append(asked)
        self.send()
        self.group = min(<uint64_t> GROUP, min(4 * self.group, self.window_bytes))
        return 0

    cdef int send(self) except -1:
        cdef list requests = self.unsent
        if requests:
            requests[0].file.start(requests)
            self.unsent = []
        return 0

    cdef Asked next_item(self, bint ahead):
        """Take an item, and note what has to be asked for.

        None at the end, or where an item that is taken ahead of its turn fails in a
        way that may pass: it is taken again in its turn.
        """
        cdef Asked asked
        if self.coming is None:
            if self.ended:
                return None
            try:
                item = self.feed.take(ahead)
            except StopIteration:
                self.ended = True
                return None
            if ahead and isinstance(item, OSError):
                self.blocked = True
                return None
            self.coming = item
        asked = asked_of(self.feed, self.coming)
        if ahead and isinstance(asked.item, OSError):
            self.blocked = True    # it stays the one that is coming
            return None
        self.coming = None
        return asked

    cdef int finish(self) except -1:
        cdef Asked asked
        self.ended = True
        self.held = self.coming = None
        self.unsent = []
        for asked in self.queue:
            drop(asked)
        self.queue.clear()
        self.ahead = 0
        self.feed = None           # and the shards with it
        return 0


cdef Asked asked_of(ItemStream feed, object item):
    """Return an item with requests for its members, which are not sent yet."""
    cdef Asked asked = Asked.__new__(Asked)
    cdef Shard shard
    asked.item = item
    asked.wanted, asked.offsets, asked.members = [], [], []
    if PyExceptionInstance_Check(item):
        return asked
    try:
        shard = feed.shard_of(item)
        if shard.open_source().is_remote():
            for shard, member in feed.places_of(item):
                want(asked, shard, member)
    except (FastshardError, OSError) as error:  # it comes in its turn
        asked.item = error
        asked.wanted = []
        asked.nbytes = 0
    return asked


cdef int want(Asked asked, Shard shard, Py_ssize_t member) except -1:
    cdef RemoteSource source = shard.open_source()
    cdef uint64_t offset, size
    shard.extent(source, member, &offset, &size)
    data = source.staged_at(offset, size)
    if data is None:
        data = source.file.request(offset, size)
        asked.nbytes += size
    asked.wanted.append(data)
    asked.offsets.append(offset)
    asked.members.append(member)
    return 0


cdef dict brought(Asked asked, Shard shard):
    """Wait for the members of an item; return their bytes by offset."""
    staged = {}
    for offset, member, data in zip(
        asked.offsets, asked.members, asked.wanted, strict=True
    ):
        try:
            staged[offset] = data if isinstance(data, bytes) else data.result()
        except (FastshardError, OSError) as error:
            raise shard.of_member(error, member) from None
    return staged


cdef list requests_of(Asked asked):
    return [data for data in asked.wanted if not isinstance(data, bytes)]


cdef list renewed(Asked asked):
    """Put new requests, not sent yet, in the place of those that failed; return them."""
    cdef list made = []
    for i, data in enumerate(asked.wanted):
        if not isinstance(data, bytes) and data.has_failed():
            asked.wanted[i] = data.file.request(data.offset, data.size)
            made.append(asked.wanted[i])
    return made


cdef int drop(Asked asked) except -1:
    """Tell that nobody waits for what was asked for an item."""
    for request in requests_of(asked):
        request.drop()
    return 0


cdef SampleStream feed_of_samples = SampleStream()  # knows a sample's members


def fetch_samples(list samples not None, uint64_t most, only=None):
    """Bring the bytes of remote samples, all asked for at once, and stage them.

    Parameters
    ----------
    samples : list of SampleBase
        Those of local shards are left alone.
    most : int
        Bytes, but for one sample; what is beyond is asked for when it is read.
    only : tuple of str, optional
        The fields to bring; otherwise those that a sample shows.

    Raises
    ------
    FormatError, RemoteError
        A field cannot be read.
    """
    cdef SampleBase sample
    cdef Asked asked
    cdef uint64_t nbytes = 0
    requests = []
    coming = []
    for sample in samples:
        if nbytes >= most:
            break
        if not sample.samples.shard.open_source().is_remote():
            continue
        asked = asked_of(feed_of_samples, sample) if only is None else some(sample, only)
        nbytes += asked.nbytes
        requests += requests_of(asked)
        coming.append((sample, asked))
    if requests:
        requests[0].file.start(requests)
    try:
        for sample, asked in coming:
            if PyExceptionInstance_Check(asked.item):
                raise asked.item
            stage(sample, brought(asked, sample.samples.shard))
    finally:
        for request in requests:
            request.drop()


cdef Asked some(SampleBase sample, tuple only):
    """As `asked_of`, for fields of a sample; one that is not there is left out."""
    cdef Asked asked = Asked.__new__(Asked)
    asked.item = sample
    asked.wanted, asked.offsets, asked.members = [], [], []
    try:
        for field in only:
            if field in sample:
                want(asked, sample.samples.shard, sample.member_of(field))
    except (FastshardError, OSError) as error:
        asked.item = error
    return asked


def fetch_members(list shards not None, list members not None):
    """Return views of members, of remote shards all asked for at once.

    Parameters
    ----------
    shards : list of Shard
    members : list of int
        A position for each shard.
    """
    cdef Shard shard
    cdef Asked asked
    coming = []
    requests = []
    for shard, member in zip(shards, members, strict=True):
        asked = asked_of(MemberStream(shard, ()), member)
        requests += requests_of(asked)
        coming.append((shard, asked))
    if requests:
        requests[0].file.start(requests)
    try:
        return [view_of(shard, asked) for shard, asked in coming]
    finally:
        for request in requests:
            request.drop()


cdef object view_of(Shard shard, Asked asked):
    if PyExceptionInstance_Check(asked.item):
        raise asked.item
    if not asked.wanted:           # a local shard
        return shard.view_at(asked.item)
    return memoryview(brought(asked, shard)[asked.offsets[0]])


# Members of one shard

def scan_members(Shard shard not None, order, window, max_memory, keep_cache):
    """Iterate over views of members; see `Shard.scan`."""
    cdef uint64_t ahead = MOST_AHEAD
    cdef PageRing ring = None
    count = len(shard)
    order = range(count) if order is None else resolve_positions(order, count)
    if max_memory is not None or not keep_cache:
        most = parse_size(max_memory) if max_memory is not None else 4 * MOST_AHEAD
        ahead = max(1, min(ahead, most // 4))
        ring = PageRing(most // 2, evicts=not keep_cache)  # as `Reading.ring`
    if shard.open_source().is_remote():
        return RemotePrefetchIterator(MemberStream(shard, order), window, ahead)
    return PrefetchIterator(MemberStream(shard, order), window, ahead, ring=ring)
