"""Prefetch of remote items: the byte ranges of the items ahead, requested in groups.

The extents of a group are requested together, so that ranges are coalesced and read
concurrently; items are returned in the stream's order. A request that fails ahead of
its item's turn is sent again in its turn: only that response counts.

Small items that follow each other in a shard share a block: one request, one buffer and
one handle on the shard, from which each field is copied when it is read. After a
failure the items of a block are requested each for itself.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from fastshard._core.dataset.shard cimport (
    GroupedSamples, SampleBase, SamplesBase, Shard, members_of_fields,
)
from fastshard._core.dataset.streams cimport (
    IteratorBase, ItemStream, MemberStream, SampleStream, strip_traceback,
)
from fastshard._core.io.source cimport (
    MemoryPool, RemoteSource, ReusedMemory, Source, staged_span,
)
from fastshard._core.pages cimport fs_exact_now
from fastshard._core.platform cimport fs_load32
from fastshard._core.table.grouping cimport groups_t, members_range

from fastshard._core.dataset.shard import stage_bytes
from fastshard.errors import ClosedError, FastshardError, FormatError

cdef enum:
    MAX_ITEMS = 4096               # in the queue, each with requests of its own
    MAX_BLOCK_ITEMS = 16384        # in the queue, in blocks
    MAX_BLOCK = 256 << 10          # bytes of a block, which a kept sample keeps alive
    MAX_SMALL = 32 << 10           # bytes of an item in a block, headers included
    MAX_BLOCK_GAP = 4 << 10        # bytes between the items of a block
    FIRST_GROUP = 256 << 10        # bytes: the first item should arrive soon
    MAX_GROUP = 8 << 20            # bytes of later groups
    FIRST_AHEAD = 8 << 20          # bytes in the queue, raised if too few

cdef uint64_t LONG_WAIT = 20_000_000  # ns
cdef uint64_t LONG_PAUSE = 10_000_000  # ns between two calls of the consumer
cdef uint64_t MIN_REUSING = 64 << 20  # bytes of the limit; batches below use no pool

cdef extern from "Python.h":
    bint PyExceptionInstance_Check(object thing)


@cython.final
cdef class RequestedItem:
    """Item ahead of its turn, with the requests for its members."""

    cdef object item
    cdef list requests             # of each member: a request, or its bytes
    cdef list offsets
    cdef list members
    cdef uint64_t nbytes           # of the requests
    cdef bint ahead                # requested before the item's turn
    cdef bint is_unsent            # of a block that failed; nothing is requested yet


@cython.final
cdef class ItemBlock:
    """Small items that follow each other in a shard, with one request for all.

    Attributes
    ----------
    items : list
        Of the stream; None once they were returned. Samples whose fields are members
        are made in their turn, from their positions here: thousands that wait would
        cost the garbage collector more than their making.
    samples : SamplesBase or None
        Those that the items are of; None: the items are members.
    staged : SamplesBase or None
        The samples on a handle that has the block's bytes.
    only, decoders : tuple or None, Mapping or None
        Of each sample, if `items` has positions of samples.
    """

    cdef list items
    cdef Shard shard
    cdef SamplesBase samples
    cdef SamplesBase staged
    cdef bint has_positions        # `items` are positions of samples
    cdef tuple only
    cdef object decoders
    cdef uint64_t start            # offsets in the shard
    cdef uint64_t end
    cdef object request            # None: not requested yet
    cdef object data               # bytes or ReusedMemory; None: not received yet
    cdef Py_ssize_t next           # index of the next item to return


@cython.final
cdef class RemotePrefetchIterator(IteratorBase):
    """Iterator over a stream of remote items that requests their ranges ahead."""

    cdef object overflow           # RequestedItem that did not fit into the last group
    cdef object pending            # item of the stream that is not requested yet
    cdef list unsent               # requests of queued items that are not sent
    cdef uint64_t group            # bytes of the next group
    cdef bint blocked              # the next item failed ahead of its turn
    cdef uint64_t ahead_bytes      # in the queue, at most `window_bytes`
    cdef uint64_t least_ahead      # of that, however fast responses come
    cdef object tail               # the request that was sent last, or None
    cdef bint was_idle             # all requests had been received in a long pause
    cdef uint64_t returned         # moment when an item was waited for last
    cdef uint64_t idle_bytes       # requested since then
    cdef uint64_t idle_wait_ns     # waited since then
    cdef MemoryPool pool           # memory for requests
    cdef ItemBlock current         # block that items are returned from, or None
    cdef ItemBlock block           # block that is not queued yet, or None
    cdef uint64_t block_bytes      # of a block
    cdef Py_ssize_t block_items    # in the queue and `current`, not returned yet
    cdef object samples            # those of the last item, with `is_plain` of them
    cdef bint is_plain
    cdef RemoteSource plain_source  # the last one for which `has_no_bytes` is true

    def __cinit__(self, *args, **options):
        self.window = min(self.window, <Py_ssize_t> MAX_ITEMS)
        self.group = min(<uint64_t> FIRST_GROUP, self.window_bytes)
        self.block_bytes = min(<uint64_t> MAX_BLOCK, self.window_bytes // 4)
        self.ahead_bytes = min(self.window_bytes, <uint64_t> FIRST_AHEAD)
        self.least_ahead = self.ahead_bytes
        self.pool = MemoryPool(self.window_bytes + self.window_bytes // 4)
        self.unsent = []

    def __del__(self):
        self.finish()

    def close(self):
        """End the iteration, cancel its requests, and release the shards.

        No thread stores bytes in a disk cache afterwards.
        """
        requests = self.queued_requests()
        IteratorBase.close(self)
        drop_all(requests)

    def invalidate(self):
        """Make the next call raise ClosedError, and cancel the requests.

        Another thread may be in the iterator, which then raises, too.
        """
        IteratorBase.invalidate(self)
        drop_all(self.queued_requests())

    cdef list queued_requests(self):
        cdef list found = []
        for queued in list(self.queue):
            if isinstance(queued, RequestedItem):
                found += list_requests(queued)
            elif (<ItemBlock> queued).request is not None:
                found.append((<ItemBlock> queued).request)
        return found

    def __length_hint__(self):
        cdef Py_ssize_t count
        if not self.enter():
            return 0               # another thread is in a call
        try:
            count = 0 if self.ended else self.stream.left()
            count += self.block_items + (self.pending is not None)
            for queued in self.queue:
                count += isinstance(queued, RequestedItem)
            return count + (0 if self.block is None else len(self.block.items))
        finally:
            self.leave()

    cdef object advance(self):
        cdef RequestedItem requested
        cdef uint64_t begun
        if self.current is not None:
            return self.next_of_block(self.current)
        begun = fs_exact_now()
        self.check_idle(begun)
        self.fill()
        if not self.queue:
            self.finish()
            raise StopIteration
        if isinstance(self.queue[0], ItemBlock):
            if self.receive_block(self.queue[0]):
                self.add_wait(begun)
                return self.next_of_block(self.current)
        requested = self.queue[0]
        if PyExceptionInstance_Check(requested.item):
            self.pop(requested)
            raise strip_traceback(requested.item)
        try:
            item = self.receive(requested)
        except Exception:
            cancel_requests(requested)  # of its other members
            self.pop(requested)
            raise
        self.add_wait(begun)
        self.pop(requested)        # last: KeyboardInterrupt loses no item
        return self.convert(item)

    cdef int pop(self, RequestedItem requested) except -1:
        """Remove the first item from the queue."""
        self.queue.popleft()
        self.queued_bytes -= requested.nbytes
        self.consumed += 1
        return 0

    cdef object next_of_block(self, ItemBlock block):
        """Return the next item of a received block."""
        cdef SampleBase sample
        cdef Py_ssize_t i = block.next
        item = block.items[i]
        if block.samples is None:
            item = view_of(block, item)
        elif block.has_positions:
            item = self.stream.emit(sample_of(block, block.staged, item))
        else:
            sample = <SampleBase> item
            sample.samples = block.staged
            item = self.stream.emit(sample)
        block.items[i] = None
        block.next = i + 1
        self.block_items -= 1
        self.consumed += 1
        if block.next == len(block.items):
            self.queued_bytes -= block.end - block.start
            self.current = None
        if self.make is None:
            return item
        return self.convert(item)

    cdef bint receive_block(self, ItemBlock block) except -1:
        """Wait for the first block of the queue and make it the current one.

        False: it could not be read, and its items are in the queue in its place.
        """
        try:
            if block.data is None:
                block.data = block.request.result()
            if block.samples is not None:
                block.staged = stage_block(block)
        except (FastshardError, OSError):
            self.split_block(block)
            return False
        block.request = None       # it refers to the buffer
        self.queue.popleft()
        self.current = block
        return True

    cdef int split_block(self, ItemBlock block) except -1:
        """Replace the first block of the queue by its items, to be requested in turn.

        The first one is requested now; if that succeeds, `retry` sends the others.
        """
        cdef RequestedItem requested
        cdef list items = [
            make_requests(self.stream, item, self.pool) for item in list_items(block)
        ]
        self.queue.popleft()
        self.queued_bytes -= block.end - block.start
        self.block_items -= len(items)
        for requested in reversed(items):
            requested.ahead = True
            requested.is_unsent = len(list_requests(requested)) > 0
            self.queued_bytes += requested.nbytes
            self.queue.appendleft(requested)
        return 0

    cdef object receive(self, RequestedItem requested):
        """Wait for an item's bytes; return the item as the caller gets it."""
        if not requested.requests:
            return self.stream.emit(requested.item)
        shard = self.stream.shard_of(requested.item)
        staged = None
        if not requested.is_unsent:
            try:
                staged = collect(requested, shard)
            except (FastshardError, OSError):
                if not requested.ahead and not self.invalidated:
                    raise
        if staged is None:
            self.retry(requested)
            staged = collect(requested, shard)
        if isinstance(self.stream, MemberStream):
            return memoryview(staged[requested.offsets[0]])
        stage_bytes(requested.item, staged)
        return self.stream.emit(requested.item)

    cdef int retry(self, RequestedItem requested) except -1:
        """Send an item's failed requests again, in this thread.

        If they succeed, send the failed requests of the items behind it, too.
        """
        cdef list failed
        self.check_valid()
        if requested.is_unsent:
            failed = list_requests(requested)
        else:
            for request in list_requests(requested):
                request.wait()
            failed = renew_failed(requested)
        failed[0].file.read_now(failed)
        requested.ahead = requested.is_unsent = False
        if any(request.has_failed() for request in failed):
            return 0
        for other in self.queue:
            if isinstance(other, ItemBlock):
                self.renew_block(other)
            else:
                self.renew(other)
        self.send()
        return 0

    cdef int renew(self, RequestedItem other) except -1:
        """Request a queued item again if it failed, or for the first time."""
        if other.is_unsent:
            self.unsent += list_requests(other)
            other.is_unsent = False
        else:
            self.unsent += renew_failed(other)
        return 0

    cdef int renew_block(self, ItemBlock block) except -1:
        """Request a failed queued block again."""
        if block.data is None and block.request.has_failed():
            block.request = request_block(block, self.pool)
            self.unsent.append(block.request)
        return 0

    cdef int fill(self) except -1:
        """Request groups of items until the window is full."""
        if self.block is not None:  # left by an interrupt
            self.queue_block()
        self.send()
        self.blocked = self.blocked and len(self.queue) > 0
        while not self.ended or self.overflow is not None or self.pending is not None:
            if self.queue and (
                self.blocked or self.window == 0 or len(self.queue) >= MAX_ITEMS
                or self.block_items >= MAX_BLOCK_ITEMS
                or self.queued_bytes + self.group // 2 > self.ahead_bytes
            ):
                return 0
            self.request_group()
        return 0

    cdef int request_group(self) except -1:
        """Queue and request a group of items.

        After an interrupt, as KeyboardInterrupt, the next call continues.
        """
        cdef RequestedItem requested
        cdef uint64_t before = self.queued_bytes
        cdef uint64_t nbytes
        cdef Py_ssize_t items = 0
        cdef bint ahead
        cdef uint64_t limit = self.group
        if self.queued_bytes < self.ahead_bytes:
            limit = min(limit, self.ahead_bytes - self.queued_bytes)
        while items < MAX_ITEMS and (self.window > 0 or items == 0):
            ahead = len(self.queue) > 0 or self.block is not None
            if self.overflow is None and self.window > 0:
                if self.pending is None:
                    self.load_pending(ahead)
                if self.pending is None:
                    break
                if self.add_to_block(self.pending, limit, before):
                    self.pending = None
                    items += 1
                    continue
                if self.block is not None:
                    self.queue_block()
                    continue       # the item may begin another block
                ahead = len(self.queue) > 0
            if self.overflow is not None:
                requested = self.overflow
            else:
                requested = self.next_item(ahead)
            self.overflow = None
            if requested is None:
                break
            nbytes = self.queued_bytes - before
            if items > 0 and nbytes + requested.nbytes > limit:
                self.overflow = requested  # the first of the next group
                break
            items += 1
            requested.ahead = ahead
            self.unsent += list_requests(requested)
            self.queued_bytes += requested.nbytes
            self.queue.append(requested)
        if self.block is not None:
            self.queue_block()
        self.send()
        self.idle_bytes += self.queued_bytes - before
        if self.idle_bytes > self.ahead_bytes:
            self.was_idle = False
        self.group = min(
            <uint64_t> MAX_GROUP, min(4 * self.group, self.ahead_bytes // 2 + 1)
        )
        return 0

    cdef bint add_to_block(
        self, object item, uint64_t limit, uint64_t before
    ) except -1:
        """Add an item to the block that is not queued yet, or begin one.

        False: the item is not small, or does not follow the block closely, or the
        group has its bytes.
        """
        cdef ItemBlock block = self.block
        cdef Shard shard
        cdef SamplesBase samples = None
        cdef SampleBase sample = None
        cdef uint64_t start, end
        if isinstance(item, SampleBase):
            sample = <SampleBase> item
            samples = sample.samples
            shard = samples.shard
        elif isinstance(self.stream, MemberStream) and isinstance(item, int):
            shard = (<MemberStream> self.stream).shard
        else:
            return False
        if block is not None and (
            block.samples is not samples or block.shard is not shard
        ):
            return False
        if shard is None or not self.find_span(shard, item, &start, &end):
            return False
        if block is not None:
            if start < block.end or start - block.end > MAX_BLOCK_GAP or (
                end - block.start > self.block_bytes
            ):
                return False
            if block.has_positions:
                if sample.only is not block.only or (
                    sample.decoders is not block.decoders
                ):
                    return False
                item = sample.position
            block.items.append(item)
            block.end = end
            return True
        if self.queued_bytes - before + (end - start) > limit and (
            self.queued_bytes > before
        ):
            return False
        block = ItemBlock.__new__(ItemBlock)
        if sample is not None and self.is_plain:
            block.has_positions = True
            block.only, block.decoders = sample.only, sample.decoders
            item = sample.position
        block.items = [item]
        block.shard = shard
        block.samples = samples
        block.start = start
        block.end = end
        self.block = block
        return True

    cdef bint find_span(
        self, Shard shard, object item, uint64_t *start, uint64_t *end
    ) except -1:
        """Set the span of a small item's members; False: not small, or not remote."""
        cdef SampleBase sample
        cdef const groups_t *groups
        cdef uint32_t first, last, k, member
        cdef Shard holder
        cdef uint64_t floor = 0, ceiling = 0
        cdef Source source
        try:
            source = shard.open_source()
            if source is not self.plain_source:
                if not source.is_remote() or not has_no_bytes(<RemoteSource> source):
                    return False
                self.plain_source = <RemoteSource> source
            if not isinstance(item, SampleBase):
                widen(shard, source, item, &floor, &ceiling)
            else:
                sample = <SampleBase> item
                if sample.samples is not self.samples:
                    self.samples = sample.samples
                    self.is_plain = getattr(self.samples, "has_plain_members", False)
                if self.is_plain and sample.only is None:
                    groups = &(<GroupedSamples?> sample.samples).grouping.groups
                    members_range(groups, <uint32_t> sample.position, &first, &last)
                    for k in range(first, last):
                        member = fs_load32(groups.members + k)
                        if member >= groups.columns.count:
                            return False
                        widen(shard, source, member, &floor, &ceiling)
                else:
                    for holder, place in sample.samples.visible_members(sample):
                        if holder is not shard:
                            return False
                        widen(shard, source, place, &floor, &ceiling)
        except (FastshardError, OSError):
            return False           # raised in the item's turn
        start[0] = floor
        end[0] = ceiling
        return 0 < ceiling and ceiling - floor <= min(
            <uint64_t> MAX_SMALL, self.block_bytes
        )

    cdef int queue_block(self) except -1:
        """Queue the block that is not queued yet, and its request."""
        cdef ItemBlock block = self.block
        cdef RequestedItem requested
        cdef list requests = None
        if len(block.items) > 1:
            try:
                block.request = request_block(block, self.pool)
            except (FastshardError, OSError):  # raised in the turn of each item
                block.request = None
        if block.request is None:
            requests = [
                make_requests(self.stream, item, self.pool)
                for item in list_items(block)
            ]
            for requested in requests:
                requested.ahead = len(self.queue) > 0
                self.unsent += list_requests(requested)
                self.queued_bytes += requested.nbytes
                self.queue.append(requested)
        else:
            self.unsent.append(block.request)
            self.queued_bytes += block.end - block.start
            self.block_items += len(block.items)
            self.queue.append(block)
        self.block = None
        return 0

    cdef int send(self) except -1:
        cdef list requests = self.unsent
        cdef uint64_t needed
        if requests:
            self.check_valid()
            requests[0].file.start(requests)
            self.tail = requests[len(requests) - 1]
            self.unsent = []
            needed = self.tail.file.flight_bytes()
            self.ahead_bytes = min(self.window_bytes, max(self.least_ahead, needed))
        return 0

    cdef int check_valid(self) except -1:
        """Raise ClosedError if another thread has closed the dataset."""
        if self.invalidated:
            raise ClosedError("the dataset is closed")
        return 0

    cdef int check_idle(self, uint64_t now) except -1:
        """Record that all requests were received while the consumer paused."""
        if now - self.returned < LONG_PAUSE:
            return 0
        if self.tail is not None and self.tail.is_done():
            self.was_idle = True
            self.idle_wait_ns = self.idle_bytes = 0
        return 0

    cdef int add_wait(self, uint64_t begun) except -1:
        """Add the waiting time of an item; read further ahead if it is long.

        After all requests had been received in a long pause, a long wait says that the
        consumer takes many items at once now and then: more of them are to be in memory
        by then. Without the pause, as between a server and a consumer of equal speed,
        more memory would only be slower: a small window is filled again while it is in
        the CPU's cache.
        """
        cdef uint64_t nanoseconds
        self.returned = fs_exact_now()
        nanoseconds = self.returned - begun
        self.wait_ns += nanoseconds
        self.idle_wait_ns += nanoseconds
        if self.was_idle and self.idle_wait_ns > LONG_WAIT:
            self.was_idle = False
            self.least_ahead = min(self.window_bytes, 2 * self.least_ahead)
        return 0

    cdef int load_pending(self, bint ahead) except -1:
        """Set `pending` to the stream's next item.

        None at the end, or if the item fails ahead of its turn with an error that may
        be transient: the item is tried again in its turn.
        """
        if self.ended:
            return 0
        try:
            item = self.stream.next_item(ahead)
        except StopIteration:
            self.ended = True
            return 0
        if ahead and isinstance(item, OSError):
            self.blocked = True
            return 0
        self.pending = item
        return 0

    cdef RequestedItem next_item(self, bint ahead):
        """Return the stream's next item with unsent requests; None as `load_pending`.
        """
        cdef RequestedItem requested
        if self.pending is None:
            self.load_pending(ahead)
        if self.pending is None:
            return None
        requested = make_requests(self.stream, self.pending, self.pool)
        if ahead and isinstance(requested.item, OSError):
            self.blocked = True    # the item stays pending
            return None
        self.pending = None
        return requested

    cdef int finish(self) except -1:
        """Cancel the requests; release the shards."""
        self.ended = True
        self.overflow = self.pending = self.samples = self.plain_source = None
        self.block = self.current = self.pool = self.tail = None
        self.block_items = 0
        self.unsent = []
        for queued in self.queue:
            if isinstance(queued, RequestedItem):
                cancel_requests(queued)
            elif (<ItemBlock> queued).request is not None:
                (<ItemBlock> queued).request.drop()
        self.queue.clear()
        self.queued_bytes = 0
        self.stream = None         # releases the shards
        return 0


cdef bint has_no_bytes(RemoteSource source) except -1:
    """Return whether a source has neither prefetched bytes nor a disk cache.

    The cache has the bytes of members, not those between the members of a block.
    """
    return source.staged is None and getattr(source.file, "entry", source) is None


cdef int widen(
    Shard shard, Source source, Py_ssize_t member, uint64_t *start, uint64_t *end
) except -1:
    """Widen a span by the extent of a member; an end of 0 is that of no span."""
    cdef uint64_t offset, size
    shard.extent(source, member, &offset, &size)
    if end[0] == 0 or offset < start[0]:
        start[0] = offset
    end[0] = max(end[0], offset + size)
    return 0


cdef object request_block(ItemBlock block, object pool):
    """Return a new, unsent request for the bytes of a block."""
    cdef RemoteSource source = block.shard.open_source()
    return request_extent(source, block.start, block.end - block.start, pool)


cdef object request_extent(
    RemoteSource source, uint64_t offset, uint64_t size, object pool
):
    """Return a new, unsent request, for bytes of a pool if it is not None."""
    if pool is None:
        return source.file.request(offset, size)
    return source.file.request(offset, size, pool.take(size))


cdef SamplesBase stage_block(ItemBlock block):
    """Return a block's samples on a handle that has the bytes of the block."""
    cdef RemoteSource source = block.shard.open_source()
    cdef Shard handle = block.shard.with_source(
        RemoteSource(source.file, {block.start: block.data})
    )
    handle.layouts = block.shard.layouts
    return block.samples.with_shard(handle)


cdef SampleBase sample_of(ItemBlock block, SamplesBase samples, Py_ssize_t position):
    """Return a sample of a block that has positions, as the stream narrowed it."""
    cdef SampleBase sample = <SampleBase> samples.sample_at(position)
    sample.only = block.only
    sample.decoders = block.decoders
    return sample


cdef list list_items(ItemBlock block):
    """Return the items of a block, or the exceptions in their places."""
    if not block.has_positions:
        return block.items
    items = []
    for position in block.items:
        try:
            items.append(sample_of(block, block.samples, position))
        except (FastshardError, OSError) as error:
            items.append(strip_traceback(error))
    return items


cdef object view_of(ItemBlock block, Py_ssize_t member):
    """Return a view of a copy of a member's bytes."""
    cdef uint64_t offset, size
    cdef uint8_t *at
    staged_span(block.data, &at)
    block.shard.extent(block.shard.open_source(), member, &offset, &size)
    if offset < block.start or offset > block.end or size > block.end - offset:
        raise FormatError(
            "the member's extent has changed", block.shard.path, offset,
            block.shard.member_name(member),
        )
    return memoryview(
        PyBytes_FromStringAndSize(
            <const char *> at + (offset - block.start), size
        )
    )


cdef RequestedItem make_requests(ItemStream stream, object item, object pool):
    """Return an item with unsent requests for its members."""
    cdef RequestedItem requested = RequestedItem.__new__(RequestedItem)
    cdef Shard shard
    requested.item = item
    requested.requests, requested.offsets, requested.members = [], [], []
    if PyExceptionInstance_Check(item):
        return requested
    try:
        shard = stream.shard_of(item)
        if shard.open_source().is_remote():
            for shard, member in stream.members_of(item):
                add_request(requested, shard, member, pool)
    except (FastshardError, OSError) as error:  # raised in the item's turn
        requested.item = error
        requested.requests = []
        requested.nbytes = 0
    return requested


cdef int add_request(
    RequestedItem requested, Shard shard, Py_ssize_t member, object pool
) except -1:
    """Add the request for a member, or its bytes if they are staged."""
    cdef RemoteSource source = shard.open_source()
    cdef uint64_t offset, size
    shard.extent(source, member, &offset, &size)
    data = source.get_staged(offset, size)
    if data is None:
        data = request_extent(source, offset, size, pool)
        requested.nbytes += size
    requested.requests.append(data)
    requested.offsets.append(offset)
    requested.members.append(member)
    return 0


cdef dict collect(RequestedItem requested, Shard shard):
    """Wait for an item's members; return their bytes by offset."""
    staged = {}
    for offset, member, data in zip(
        requested.offsets, requested.members, requested.requests, strict=True
    ):
        try:
            staged[offset] = data if is_data(data) else data.result()
        except (FastshardError, OSError) as error:
            raise shard.annotate(error, member) from None
    return staged


cdef bint is_data(object data) noexcept:
    """Return whether an item's entry is prefetched bytes, not a request."""
    return isinstance(data, (bytes, ReusedMemory))


cdef list list_requests(RequestedItem requested):
    return [data for data in requested.requests if not is_data(data)]


cdef list renew_failed(RequestedItem requested):
    """Replace failed requests by new, unsent ones; return the new ones."""
    cdef list renewed = []
    for i, data in enumerate(requested.requests):
        if not is_data(data) and data.has_failed():
            requested.requests[i] = data.file.request(data.offset, data.size)
            renewed.append(requested.requests[i])
    return renewed


cdef int drop_all(list requests) except -1:
    """Cancel requests; wait until none stores bytes."""
    if requests:
        requests[0].file.drop(requests)
    return 0


cdef int cancel_requests(RequestedItem requested) except -1:
    for request in list_requests(requested):
        request.drop()
    return 0


cdef SampleStream any_sample = SampleStream()  # lists the members of any sample


@cython.nonecheck(True)
def fetch_samples(list samples not None, uint64_t most, only=None):
    """Read the bytes of remote samples concurrently, and stage them."""
    cdef SampleBase sample
    cdef RequestedItem requested
    cdef uint64_t nbytes = 0
    cdef Source source
    requests = []
    items = []
    for sample in samples:
        if nbytes >= most:
            break
        source = sample.samples.shard.open_source()
        if not source.is_remote():
            continue
        pool = None
        if most >= MIN_REUSING:
            pool = (<RemoteSource?> source).file.memory_pool()
        if only is None:
            requested = make_requests(any_sample, sample, pool)
        else:
            requested = request_fields(sample, only, pool)
        nbytes += requested.nbytes
        requests += list_requests(requested)
        items.append((sample, requested))
    if requests:
        requests[0].file.start(requests)
    try:
        for sample, requested in items:
            if PyExceptionInstance_Check(requested.item):
                raise requested.item
            stage_bytes(sample, collect(requested, sample.samples.shard))
    finally:
        for request in requests:
            request.drop()


@cython.nonecheck(True)
cdef RequestedItem request_fields(SampleBase sample, tuple only, object pool):
    """Return a sample with unsent requests for those of some fields that it has."""
    cdef RequestedItem requested = RequestedItem.__new__(RequestedItem)
    requested.item = sample
    requested.requests, requested.offsets, requested.members = [], [], []
    try:
        for shard, member in members_of_fields(sample, only):
            add_request(requested, shard, member, pool)
    except (FastshardError, OSError) as error:
        requested.item = error
    return requested


def fetch_members(list shards not None, list members not None):
    """Return views of members; those of remote shards are read concurrently."""
    cdef Shard shard
    cdef RequestedItem requested
    items = []
    requests = []
    for shard, member in zip(shards, members, strict=True):
        requested = make_requests(MemberStream(shard, ()), member, None)
        requests += list_requests(requested)
        items.append((shard, requested))
    if requests:
        requests[0].file.start(requests)
    try:
        return [receive_view(shard, requested) for shard, requested in items]
    finally:
        for request in requests:
            request.drop()


cdef object receive_view(Shard shard, RequestedItem requested):
    """Wait for a member; return its view."""
    if PyExceptionInstance_Check(requested.item):
        raise requested.item
    if not requested.requests:     # a local shard
        return shard.view_at(requested.item)
    return memoryview(collect(requested, shard)[requested.offsets[0]])
