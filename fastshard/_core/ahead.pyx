"""Iterating with what comes next brought into memory before it is asked for.

While all of a shard is in the page cache its items are handed out as they come.
Otherwise the members of coming items are joined into runs, which a `Prefetcher`
brings; an item is handed out when its bytes are there.
"""

cimport cython
from libc.stdint cimport uint64_t
from libc.string cimport memset

from fastshard._core.io.page_ring cimport (
    MappedChunks, PageReleaser, PageRing, chunks_of, folio_start, opened_again,
)
from fastshard._core.pages cimport fs_exact_now, fs_now, fs_pause
from fastshard._core.io.prefetch cimport Prefetcher, task_t
from fastshard._core.io.source cimport MOST_BROUGHT, SETTLE, Descriptor
from fastshard._core.shard cimport Shard
from fastshard._core.io.source cimport MappedSource, Source
from fastshard._core.taking cimport Taking

import os
import sysconfig

from fastshard.errors import FastshardError, FormatError

cdef enum:
    GAP = 64 << 10                 # bytes between members of one run: headers, others
    RUN = 1 << 20                  # bytes of a run, at most
    RUNS_AHEAD = 32 << 20          # bytes ahead where one run follows another
    MOST_ITEMS = 32768             # that wait, however small they are
    MOST_FORGOTTEN = 4             # tasks that are not waited for
    AT_ONCE = 256                  # items taken at a time: the GIL is held meanwhile
    LONG_READAHEAD = 1 << 20       # bytes: the kernel itself reads ahead far enough

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


cdef object fresh(object error):
    """An error that is raised for one item of several, without their tracebacks."""
    return error.with_traceback(None)


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
            self.chunks.unmapped()


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
cdef class Ahead(Taking):
    """An iterator over a feed.

    Parameters
    ----------
    feed : Feed
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
        As for `Taking`.
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
            self.blocked = False
            item = self.take(False)
            if isinstance(item, Exception):
                self.taken_so_far += 1
                raise fresh(item)
            try:
                near = self.is_near(item)
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
        if isinstance(waiting.item, Exception):
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

    cdef bint is_near(self, object item) except -1:
        return self.window == 0 or self.feed.is_near(item)

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
        if isinstance(item, Exception):
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
            if source.is_near() or not shard.guess(source, member, &offset, &size):
                continue           # what is nowhere raises when it is asked for
            size = min(size, min(<uint64_t> MOST_BROUGHT, self.window_bytes))
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
                (<MappedSource> source).residency.bring(offset, size)
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
                self.descriptor.fd = opened_again(chunks)
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
                if self.ring is not None and not isinstance(waiting.item, Exception):
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
