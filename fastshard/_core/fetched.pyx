"""Iterating over remote items, whose ranges are asked for before they are needed.

Items are taken from a feed in groups; the extents of a group are planned together,
and come side by side. What comes is handed out in the feed's order. A request that
fails while it is ahead is sent again when its item's turn comes: only the answer to
that one counts.
"""

cimport cython
from libc.stdint cimport uint64_t

from fastshard._core.feeds cimport Feed, MemberFeed, SampleFeed
from fastshard._core.io.source cimport RemoteSource
from fastshard._core.samples cimport SampleBase
from fastshard._core.shard cimport Shard
from fastshard._core.taking cimport Taking

from fastshard._core.remote import stage
from fastshard.errors import FastshardError

cdef enum:
    FIRST_GROUP = 256 << 10        # bytes: the first item should come soon
    GROUP = 8 << 20                # bytes of later groups, at most
    MOST_ITEMS = 4096              # that wait, however small they are


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
cdef class Fetched(Taking):
    """An iterator over a feed of remote items.

    Parameters
    ----------
    feed, window, window_bytes, make, describe, on_error, skipped
        As for `Taking`. Of a window of 0 each item is asked for in its turn.
    """

    cdef object held               # an Asked that did not fit into the group before
    cdef object coming             # an item that was taken, and is not yet Asked
    cdef list unsent               # requests of what waits, that are not sent
    cdef uint64_t group            # bytes of the next group
    cdef bint blocked              # the next item failed ahead of its turn

    def __cinit__(self, *args, **options):
        self.window = min(self.window, <Py_ssize_t> MOST_ITEMS)
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
        if isinstance(asked.item, Exception):
            self.pass_on(asked)
            raise asked.item.with_traceback(None)
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
        if isinstance(self.feed, MemberFeed):
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
                self.blocked or self.window == 0 or len(self.queue) >= MOST_ITEMS
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
        while items < MOST_ITEMS and (self.window > 0 or items == 0):
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


cdef Asked asked_of(Feed feed, object item):
    """Return an item with requests for its members, which are not sent yet."""
    cdef Asked asked = Asked.__new__(Asked)
    cdef Shard shard
    asked.item = item
    asked.wanted, asked.offsets, asked.members = [], [], []
    if isinstance(item, Exception):
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


cdef SampleFeed feed_of_samples = SampleFeed()  # knows a sample's members


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
            if isinstance(asked.item, Exception):
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
                want(asked, sample.samples.shard, sample.member(field))
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
        asked = asked_of(MemberFeed(shard, ()), member)
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
    if isinstance(asked.item, Exception):
        raise asked.item
    if not asked.wanted:           # a local shard
        return shard.view_at(asked.item)
    return memoryview(brought(asked, shard)[asked.offsets[0]])
