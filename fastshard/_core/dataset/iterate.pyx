"""Iterators over local shards that prefetch the pages of the items ahead.

Items of a shard that is wholly resident are returned as they are. Otherwise the
members of the next items are merged into extents, which a `Prefetcher` reads in a
thread of its own; an item is returned when its bytes are resident.
"""

cimport cython
from libc.stdint cimport uint64_t
from libc.string cimport memset

from fastshard._core.dataset.shard cimport Shard
from fastshard._core.dataset.streams cimport IteratorBase, MemberStream, strip_traceback
from fastshard._core.io.paging cimport (
    MappedChunks, PageReleaser, PageRing, Prefetcher, chunks_of, folio_start,
    reopen_file, task_t,
)
from fastshard._core.io.source cimport (
    MAX_PAGE_IN, READ_TIME, Descriptor, MappedSource, Source,
)
from fastshard._core.pages cimport fs_exact_now, fs_now, fs_pause

import os
import sysconfig

from fastshard._core.dataset.gather import resolve_positions
from fastshard._core.dataset.remote_prefetch import RemotePrefetchIterator
from fastshard._util.sizes import parse_size
from fastshard.errors import FastshardError, FormatError

cdef enum:
    MAX_GAP = 64 << 10             # bytes between merged members: headers, others
    MAX_EXTENT = 1 << 20           # bytes of a merged extent
    ORDERED_AHEAD = 32 << 20       # bytes ahead if the members are in file order
    MAX_ITEMS = 32768              # in the queue, however small they are
    MAX_DROPS = 4                  # unfinished tasks that drop pages from the cache
    FILL_STEP = 256                # items queued at a time; the GIL is held meanwhile
    LONG_READAHEAD = 1 << 20       # bytes: the kernel's readahead then suffices

cdef uint64_t SCAN_AHEAD = 64 << 20  # bytes
cdef uint64_t MAX_GIL_HELD = 500_000  # ns
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


cdef uint64_t read_readahead(uint64_t device) except? 0:
    """Return the kernel's readahead of a device in bytes, 128 KB if unknown."""
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
cdef class MergedExtent:
    """Adjacent extents of one source, prefetched as one task."""

    cdef Source source
    cdef uint64_t start
    cdef uint64_t end
    cdef uint64_t item             # number of the last item that was added
    cdef uint64_t task             # 0: not pushed yet
    cdef bint follows              # starts at the end of the one before


@cython.final
cdef class QueuedItem:
    """Item ahead of its turn, with the extents that hold its bytes."""

    cdef object item
    cdef MergedExtent extent       # the last one; None: the bytes are resident
    cdef list earlier              # the extents before it, or None
    cdef uint64_t nbytes
    cdef bint failed               # its members could not be located

    cdef int add(self, MergedExtent extent) except -1:
        if self.extent is not None and self.extent is not extent:
            if self.earlier is None:
                self.earlier = []
            self.earlier.append(self.extent)
        self.extent = extent
        return 0


@cython.final
@cython.no_gc
cdef class ChunkOwner:
    """Chunks of a source that has no ring of its own; keeps the source mapped."""

    cdef MappedSource source
    cdef MappedChunks chunks

    def __dealloc__(self):
        if self.chunks is not None:
            self.chunks.detach()


cdef ChunkOwner add_to_ring(PageRing ring, MappedSource source):
    """List a source's pages in a ring."""
    cdef ChunkOwner owner = ChunkOwner.__new__(ChunkOwner)
    cdef uint64_t device = 0
    cdef uint64_t inode = 0
    if source.residency is not None:
        device = source.residency.device
        inode = source.residency.inode
    owner.source = source
    owner.chunks = chunks_of(
        ring, source.file.base, source.nbytes, False, source.path, device, inode
    )
    return owner


@cython.final
cdef class PrefetchIterator(IteratorBase):
    """Iterator over a stream of local items that prefetches their pages.

    `Dataset.iter` and `Shard.scan` make it; `fastshard.SampleIterator` says how it is
    used.
    """

    cdef Prefetcher prefetcher     # None until the first task
    cdef PageRing ring
    cdef PageReleaser releaser     # None without a ring
    cdef list drops                # tasks that drop pages from the page cache
    cdef MappedChunks dropped_chunks  # chunks of the last such task
    cdef Descriptor descriptor     # of their file
    cdef dict owners               # ChunkOwner by source, of sources without a ring
    cdef uint64_t gil_taken        # when other threads could last run, ns
    cdef dict extents              # MergedExtent by source, not pushed yet
    cdef uint64_t queued_count     # items queued so far
    cdef bint in_order             # the last member was merged with the one before
    cdef uint64_t device           # of the last extent
    cdef bint long_readahead       # of that device
    cdef bint blocked              # the next item failed ahead of its turn
    cdef object current            # the item returned last

    def __cinit__(self, *args, PageRing ring=None, **options):
        self.window = min(self.window, <Py_ssize_t> MAX_ITEMS)
        self.ring = ring
        if ring is not None:
            self.releaser = PageReleaser(ring, self.window_bytes // 4)
        self.drops = []
        self.owners = {}
        self.extents = {}

    cdef object advance(self):
        cdef QueuedItem queued
        cdef object item
        cdef bint resident
        if self.current is not None:
            item, self.current = self.current, None
            self.mark_read(item)
        if not self.queue:
            if self.ended:
                self.finish()
                raise StopIteration
            if self.ring is None:
                if self.stream.decoder is not None:
                    item = self.stream.next_decoded()
                    if item is not None:
                        self.consumed += 1
                        return item
                self.consumed += 1  # first: the item's error has precedence
                item = self.stream.next_resident()
                if item is not None:
                    return item if self.make is None else self.convert(item)
                self.consumed -= 1
            self.blocked = False
            item = self.next_item(False)
            if PyExceptionInstance_Check(item):
                self.consumed += 1
                raise strip_traceback(item)
            try:
                resident = self.window == 0 or self.stream.is_resident(item)
            except Exception:
                self.consumed += 1
                raise
            if resident:
                self.consumed += 1
                return self.emit(item)
            self.enqueue(item)
        self.fill()
        self.push_all()
        queued = self.queue.popleft()
        self.consumed += 1         # its turn has come, readable or not
        self.queued_bytes -= queued.nbytes
        if PyExceptionInstance_Check(queued.item):
            raise strip_traceback(queued.item)
        if queued.extent is not None:
            self.wait_for(queued)
        if queued.failed:
            self.open_sources(queued.item)
        return self.emit(queued.item)

    cdef int wait_for(self, QueuedItem queued) except -1:
        """Wait for an item's bytes; raise the error if they cannot be read."""
        cdef MergedExtent extent
        cdef uint64_t begun = fs_now()
        cdef bint waited = self.prefetcher.wait(queued.extent.task)
        if queued.earlier is not None:
            for extent in queued.earlier:
                waited |= self.prefetcher.wait(extent.task)
        if waited:
            self.gil_taken = fs_exact_now()
            self.wait_ns += fs_now() - begun
        else:
            self.yield_gil()
        if self.prefetcher.failure_count() != 0:
            self.read_again(queued.item)
        return 0

    cdef int yield_gil(self) except -1:
        """Release the GIL now and then if the iterator never waits.

        A waiting thread gets the GIL only after the switch interval (5 ms), or if it
        is released long enough to be taken.
        """
        cdef uint64_t now = fs_exact_now()
        if WITHOUT_GIL or now - self.gil_taken < MAX_GIL_HELD:
            return 0
        self.gil_taken = now
        if PyThreadState_Next(
            PyInterpreterState_ThreadHead(PyInterpreterState_Get())
        ) == NULL:
            return 0               # the only thread
        with nogil:
            fs_pause()
        self.gil_taken = fs_exact_now()
        return 0

    cdef object emit(self, object item):
        """Return an item in the caller's form."""
        if self.ring is not None:
            self.current = item
        return self.convert(self.stream.emit(item))

    cdef object next_item(self, bint ahead):
        """Return the stream's next item; see `ItemStream.next_item`."""
        try:
            return self.stream.next_item(ahead)
        except StopIteration:
            self.ended = True
            if not self.queue:
                self.finish()
            raise

    cdef int fill(self) except -1:
        """Fill the queue once half of it was returned."""
        cdef Py_ssize_t count = len(self.queue)
        cdef Py_ssize_t end = count + FILL_STEP
        cdef uint64_t limit = min(<uint64_t> ORDERED_AHEAD, self.window_bytes)
        if 2 * count > self.window and not (
            self.in_order and 2 * self.queued_bytes <= limit
        ):
            return 0
        end = min(end, <Py_ssize_t> MAX_ITEMS)
        while not self.ended and not self.blocked and (
            self.queued_bytes < self.window_bytes and count < end
        ) and (
            count < self.window or (self.in_order and self.queued_bytes < limit)
        ):
            try:
                item = self.next_item(True)
            except StopIteration:
                break
            if isinstance(item, OSError):
                self.blocked = True  # tried again in its turn
                break
            self.enqueue(item)
            count += 1
        return 0

    cdef int enqueue(self, object item) except -1:
        """Append an item to the queue, and its members to the extents."""
        cdef QueuedItem queued = QueuedItem.__new__(QueuedItem)
        queued.item = item
        self.queue.append(queued)
        if PyExceptionInstance_Check(item):
            return 0
        self.queued_count += 1
        try:
            self.add_members(queued)
        except (FastshardError, OSError):
            queued.failed = True
        self.queued_bytes += queued.nbytes
        return 0

    cdef int add_members(self, QueuedItem queued) except -1:
        """Add the members of an item that may not be resident."""
        cdef Shard shard
        cdef Source source
        cdef uint64_t offset, size
        for shard, member in self.stream.members_of(queued.item):
            source = shard.open_source()
            if source.is_resident() or not (
                shard.estimate_extent(source, member, &offset, &size)
            ):
                continue           # an extent outside the file raises in its turn
            size = min(size, min(<uint64_t> MAX_PAGE_IN, self.window_bytes))
            queued.nbytes += size
            self.add_extent(queued, source, offset, size)
        return 0

    cdef int add_extent(
        self, QueuedItem queued, Source source, uint64_t offset, uint64_t size
    ) except -1:
        """Merge an extent with the last one of its source, or begin another."""
        cdef uint64_t part
        cdef MergedExtent extent = self.extents.get(source)
        cdef bint joins = (
            extent is not None and offset >= extent.end
            and offset - extent.end <= MAX_GAP
        )
        self.in_order = joins
        if not joins:
            self.push_stale()
            if extent is not None:
                self.push(extent)
            extent = self.begin_extent(source, offset, False)
        while size > 0:
            if extent.end - extent.start >= MAX_EXTENT or (
                offset - extent.start >= MAX_EXTENT
            ):
                self.push(extent)
                extent = self.begin_extent(source, offset, True)
            part = min(size, <uint64_t> MAX_EXTENT - (offset - extent.start))
            offset += part
            size -= part
            extent.end = offset
            extent.item = self.queued_count
            queued.add(extent)
        return 0

    cdef MergedExtent begin_extent(self, Source source, uint64_t offset, bint follows):
        cdef MergedExtent extent = MergedExtent.__new__(MergedExtent)
        extent.source = source
        extent.start = extent.end = offset
        extent.follows = follows
        extent.item = self.queued_count
        self.extents[source] = extent
        return extent

    cdef bint has_long_readahead(self, Source source) except -1:
        """Return whether the kernel reads far ahead of a sequential reader."""
        cdef uint64_t device
        if not isinstance(source, MappedSource):
            return False
        device = (<MappedSource> source).residency.device
        if device != self.device:
            self.device = device
            self.long_readahead = read_readahead(device) >= LONG_READAHEAD
        return self.long_readahead

    cdef int push(self, MergedExtent extent) except -1:
        """Push an extent to the prefetching thread, unless it is empty."""
        cdef task_t task
        cdef Source source = extent.source
        if extent.end == extent.start:
            return 0
        memset(&task, 0, sizeof(task))
        task.size = extent.end - extent.start
        task.offset = extent.start
        if source.base != NULL:
            task.at = source.base + extent.start
        self.touch(source, extent.start, task.size)
        task.advise = not (extent.follows and self.has_long_readahead(source))
        if self.prefetcher is None:
            self.prefetcher = Prefetcher()
        lease = source.lease(&task.fd)
        if lease is None:
            return 0               # read without being prefetched
        extent.task = self.prefetcher.push(task, lease)
        if isinstance(source, MappedSource):  # residency is not exact while it is read
            (<MappedSource> source).residency.arrival = fs_now() + READ_TIME
        return 0

    cdef int push_stale(self) except -1:
        """Push the extents of sources that the last item did not use."""
        cdef MergedExtent extent
        for extent in list(self.extents.values()):
            if extent.item + 1 < self.queued_count:
                self.push(extent)
                del self.extents[extent.source]
        return 0

    cdef int push_all(self) except -1:
        """Push all extents; begin new ones at their ends."""
        cdef MergedExtent extent
        cdef uint64_t item
        for extent in list(self.extents.values()):
            if extent.end > extent.start:
                self.push(extent)
                item = extent.item
                extent = self.begin_extent(extent.source, extent.end, True)
                extent.item = item
        return 0

    cdef int open_sources(self, object item) except -1:
        """Raise an error from locating the item's members."""
        cdef Shard shard
        for shard, _ in self.stream.members_of(item):
            shard.open_source()
        return 0

    cdef int read_again(self, object item) except -1:
        """Raise the error of an item's bytes, after a task failed."""
        cdef Shard shard
        cdef Source source
        cdef uint64_t offset, size
        for shard, member in self.stream.members_of(item):
            source = shard.open_source()
            if not isinstance(source, MappedSource):
                continue
            shard.extent(source, member, &offset, &size)
            try:
                (<MappedSource> source).residency.page_in(offset, size)
            except (FormatError, OSError) as error:
                raise shard.annotate(error, member) from None
        return 0

    cdef int mark_read(self, object item) except -1:
        """Mark an item's pages as read, so that they can be released."""
        cdef Shard shard
        cdef Source source
        cdef MappedChunks chunks
        cdef uint64_t offset, size
        self.releaser.next_item()
        for shard, member in self.stream.members_of(item):
            if shard.closed:
                continue
            source = shard.open_source()
            chunks = self.find_chunks(source)
            if chunks is not None and (
                shard.estimate_extent(source, member, &offset, &size)
            ):
                self.releaser.mark_read(chunks, offset, size)
        if self.releaser.released:
            self.drop_released()
        return 0

    cdef int drop_released(self) except -1:
        """Drop released pages from the page cache.

        In the prefetching thread, between its reads: pages that are read ahead and
        not mapped yet would be dropped, too.
        """
        cdef task_t task
        cdef uint64_t start, end
        if self.prefetcher is None:
            self.prefetcher = Prefetcher()
        released, self.releaser.released = self.releaser.released, []
        for chunks, start, end in released:
            if self.dropped_chunks is not chunks:
                self.descriptor = Descriptor.__new__(Descriptor)
                self.descriptor.fd = reopen_file(chunks)
                self.dropped_chunks = chunks
            if self.descriptor.fd < 0:
                continue           # the file was deleted or replaced
            memset(&task, 0, sizeof(task))
            task.evict = True
            task.fd = self.descriptor.fd
            task.offset = folio_start(start)
            task.size = end - task.offset
            self.drops.append(self.prefetcher.push(task, self.descriptor))
            if len(self.drops) > MAX_DROPS:  # a window was read since
                self.prefetcher.wait(self.drops.pop(0))
        return 0

    cdef int touch(self, Source source, uint64_t offset, uint64_t size) except -1:
        """List pages as touched in the ring that bounds them."""
        cdef MappedChunks chunks = self.find_chunks(source)
        if chunks is None:
            return 0
        return chunks.ring.touch(chunks, offset, size, False)

    cdef MappedChunks find_chunks(self, Source source):
        """Return the chunks of a source in its ring or ours; None: not bounded."""
        cdef ChunkOwner owner
        cdef MappedSource mapped
        if self.ring is None or not isinstance(source, MappedSource):
            return None
        mapped = <MappedSource> source
        if mapped.file.chunks is not None:
            return mapped.file.chunks
        if mapped.writable:        # its views are not counted; pages may be dirty
            return None
        owner = self.owners.get(source)
        if owner is None:
            owner = self.owners[source] = add_to_ring(self.ring, mapped)
        return owner.chunks

    cdef int finish(self) except -1:
        """End the thread; release the remaining pages and the shards."""
        cdef QueuedItem queued
        if self.stream is None:
            return 0
        try:
            if self.current is not None:
                self.mark_read(self.current)
            for queued in self.queue:
                if self.ring is not None and (
                    not PyExceptionInstance_Check(queued.item)
                ):
                    self.mark_read(queued.item)
            if self.prefetcher is not None:
                self.prefetcher.stop()  # first: it maps pages
            if self.ring is not None:
                self.releaser.finish()
                self.ring.release()
        finally:
            self.owners = {}
            self.queue.clear()
            self.queued_bytes = 0
            self.current = None
            self.extents = {}
            self.releaser = None
            self.descriptor = None
            self.dropped_chunks = None
            if self.prefetcher is not None:
                self.prefetcher.stop()
            self.prefetcher = None
            self.stream = None     # releases the shards
        return 0


def scan_members(Shard shard not None, order, window, max_memory, keep_cache):
    """Iterate over views of members; see `Shard.scan`."""
    cdef uint64_t ahead = SCAN_AHEAD
    cdef PageRing ring = None
    count = len(shard)
    order = range(count) if order is None else resolve_positions(order, count)
    if max_memory is not None or not keep_cache:
        limit = parse_size(max_memory) if max_memory is not None else 4 * SCAN_AHEAD
        ahead = max(1, min(ahead, limit // 4))
        ring = PageRing(limit // 2, evicts=not keep_cache)  # as `Reading.ring`
    if shard.open_source().is_remote():
        return RemotePrefetchIterator(MemberStream(shard, order), window, ahead)
    return PrefetchIterator(MemberStream(shard, order), window, ahead, ring=ring)
