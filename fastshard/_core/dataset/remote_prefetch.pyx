"""Prefetch of remote items: the byte ranges of the items ahead, requested in groups.

The extents of a group are requested together, so that ranges are coalesced and read
concurrently; items are returned in the stream's order. A request that fails ahead of
its item's turn is sent again in its turn: only that response counts.
"""

cimport cython
from libc.stdint cimport uint64_t

from fastshard._core.dataset.shard cimport SampleBase, Shard, members_of_fields
from fastshard._core.dataset.streams cimport (
    IteratorBase, ItemStream, MemberStream, SampleStream, strip_traceback,
)
from fastshard._core.io.source cimport RemoteSource
from fastshard._core.pages cimport fs_exact_now

from fastshard._core.dataset.shard import stage_bytes
from fastshard.errors import FastshardError

cdef enum:
    MAX_ITEMS = 4096               # in the queue, however small they are
    FIRST_GROUP = 256 << 10        # bytes: the first item should arrive soon
    MAX_GROUP = 8 << 20            # bytes of later groups

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


@cython.final
cdef class RemotePrefetchIterator(IteratorBase):
    """Iterator over a stream of remote items that requests their ranges ahead.

    Parameters
    ----------
    stream, window, window_bytes, make, describe, on_error, skipped
        As for `IteratorBase`. If the window is 0, each item is requested in its turn.
    """

    cdef object overflow           # RequestedItem that did not fit into the last group
    cdef object pending            # item of the stream that is not requested yet
    cdef list unsent               # requests of queued items that are not sent
    cdef uint64_t group            # bytes of the next group
    cdef bint blocked              # the next item failed ahead of its turn

    def __cinit__(self, *args, **options):
        self.window = min(self.window, <Py_ssize_t> MAX_ITEMS)
        self.group = min(<uint64_t> FIRST_GROUP, self.window_bytes)
        self.unsent = []

    def __del__(self):
        self.finish()

    cdef object advance(self):
        cdef RequestedItem requested
        cdef uint64_t begun = fs_exact_now()
        self.fill()
        if not self.queue:
            self.finish()
            raise StopIteration
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
        self.wait_ns += fs_exact_now() - begun
        self.pop(requested)        # last: KeyboardInterrupt loses no item
        return self.convert(item)

    cdef int pop(self, RequestedItem requested) except -1:
        """Remove the first item from the queue."""
        self.queue.popleft()
        self.queued_bytes -= requested.nbytes
        self.consumed += 1
        return 0

    cdef object receive(self, RequestedItem requested):
        """Wait for an item's bytes; return the item as the caller gets it."""
        if not requested.requests:
            return self.stream.emit(requested.item)
        shard = self.stream.shard_of(requested.item)
        staged = None
        try:
            staged = collect(requested, shard)
        except (FastshardError, OSError):
            if not requested.ahead:
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
        cdef RequestedItem other
        cdef list failed
        for request in list_requests(requested):
            request.wait()
        failed = renew_failed(requested)
        failed[0].file.read_now(failed)
        requested.ahead = False
        if any(request.has_failed() for request in failed):
            return 0
        for other in self.queue:
            self.unsent += renew_failed(other)
        self.send()
        return 0

    cdef int fill(self) except -1:
        """Request groups of items until the window is full."""
        self.send()                # requests left by an interrupt
        self.blocked = self.blocked and len(self.queue) > 0
        while not self.ended or self.overflow is not None or self.pending is not None:
            if self.queue and (
                self.blocked or self.window == 0 or len(self.queue) >= MAX_ITEMS
                or self.queued_bytes + self.group // 2 > self.window_bytes
            ):
                return 0
            self.request_group()
        return 0

    cdef int request_group(self) except -1:
        """Queue and request a group of items.

        After an interrupt, as KeyboardInterrupt, the next call continues.
        """
        cdef RequestedItem requested
        cdef uint64_t nbytes = 0
        cdef Py_ssize_t items = 0
        cdef bint ahead
        cdef uint64_t limit = self.group
        if self.queued_bytes < self.window_bytes:
            limit = min(limit, self.window_bytes - self.queued_bytes)
        while items < MAX_ITEMS and (self.window > 0 or items == 0):
            ahead = len(self.queue) > 0
            if self.overflow is not None:
                requested = self.overflow
            else:
                requested = self.next_item(ahead)
            self.overflow = None
            if requested is None:
                break
            if items > 0 and nbytes + requested.nbytes > limit:
                self.overflow = requested  # the first of the next group
                break
            items += 1
            nbytes += requested.nbytes
            requested.ahead = ahead
            self.unsent += list_requests(requested)
            self.queued_bytes += requested.nbytes
            self.queue.append(requested)
        self.send()
        self.group = min(<uint64_t> MAX_GROUP, min(4 * self.group, self.window_bytes))
        return 0

    cdef int send(self) except -1:
        cdef list requests = self.unsent
        if requests:
            requests[0].file.start(requests)
            self.unsent = []
        return 0

    cdef RequestedItem next_item(self, bint ahead):
        """Return the stream's next item with unsent requests.

        None at the end, or if the item fails ahead of its turn with an error that may
        be transient: the item is tried again in its turn.
        """
        cdef RequestedItem requested
        if self.pending is None:
            if self.ended:
                return None
            try:
                item = self.stream.next_item(ahead)
            except StopIteration:
                self.ended = True
                return None
            if ahead and isinstance(item, OSError):
                self.blocked = True
                return None
            self.pending = item
        requested = make_requests(self.stream, self.pending)
        if ahead and isinstance(requested.item, OSError):
            self.blocked = True    # the item stays pending
            return None
        self.pending = None
        return requested

    cdef int finish(self) except -1:
        """Cancel the requests; release the shards."""
        cdef RequestedItem requested
        self.ended = True
        self.overflow = self.pending = None
        self.unsent = []
        for requested in self.queue:
            cancel_requests(requested)
        self.queue.clear()
        self.queued_bytes = 0
        self.stream = None         # releases the shards
        return 0


cdef RequestedItem make_requests(ItemStream stream, object item):
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
                add_request(requested, shard, member)
    except (FastshardError, OSError) as error:  # raised in the item's turn
        requested.item = error
        requested.requests = []
        requested.nbytes = 0
    return requested


cdef int add_request(RequestedItem requested, Shard shard, Py_ssize_t member) except -1:
    """Add the request for a member, or its bytes if they are staged."""
    cdef RemoteSource source = shard.open_source()
    cdef uint64_t offset, size
    shard.extent(source, member, &offset, &size)
    data = source.get_staged(offset, size)
    if data is None:
        data = source.file.request(offset, size)
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
            staged[offset] = data if isinstance(data, bytes) else data.result()
        except (FastshardError, OSError) as error:
            raise shard.annotate(error, member) from None
    return staged


cdef list list_requests(RequestedItem requested):
    return [data for data in requested.requests if not isinstance(data, bytes)]


cdef list renew_failed(RequestedItem requested):
    """Replace failed requests by new, unsent ones; return the new ones."""
    cdef list renewed = []
    for i, data in enumerate(requested.requests):
        if not isinstance(data, bytes) and data.has_failed():
            requested.requests[i] = data.file.request(data.offset, data.size)
            renewed.append(requested.requests[i])
    return renewed


cdef int cancel_requests(RequestedItem requested) except -1:
    for request in list_requests(requested):
        request.drop()
    return 0


cdef SampleStream any_sample = SampleStream()  # lists the members of any sample


@cython.nonecheck(True)
def fetch_samples(list samples not None, uint64_t most, only=None):
    """Read the bytes of remote samples concurrently, and stage them.

    Parameters
    ----------
    samples : list of SampleBase
        Samples of local shards are skipped.
    most : int
        Maximum number of bytes; at least one sample is read. The rest is read on use.
    only : tuple of str, optional
        Fields to read; default the visible ones.

    Raises
    ------
    FormatError, RemoteError
        A field cannot be read.
    """
    cdef SampleBase sample
    cdef RequestedItem requested
    cdef uint64_t nbytes = 0
    requests = []
    items = []
    for sample in samples:
        if nbytes >= most:
            break
        if not sample.samples.shard.open_source().is_remote():
            continue
        if only is None:
            requested = make_requests(any_sample, sample)
        else:
            requested = request_fields(sample, only)
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
cdef RequestedItem request_fields(SampleBase sample, tuple only):
    """Return a sample with unsent requests for those of some fields that it has."""
    cdef RequestedItem requested = RequestedItem.__new__(RequestedItem)
    requested.item = sample
    requested.requests, requested.offsets, requested.members = [], [], []
    try:
        for shard, member in members_of_fields(sample, only):
            add_request(requested, shard, member)
    except (FastshardError, OSError) as error:
        requested.item = error
    return requested


def fetch_members(list shards not None, list members not None):
    """Return views of members; those of remote shards are read concurrently.

    Parameters
    ----------
    shards : list of Shard
    members : list of int
        A position for each shard.
    """
    cdef Shard shard
    cdef RequestedItem requested
    items = []
    requests = []
    for shard, member in zip(shards, members, strict=True):
        requested = make_requests(MemberStream(shard, ()), member)
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
