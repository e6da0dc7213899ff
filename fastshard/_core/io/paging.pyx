"""Pages of mapped files: populated ahead of their reader, released behind it.

A `Prefetcher` is a native thread that populates pages. The consumer pushes tasks into a
ring and waits, without the GIL, for the one it needs. The thread advises the kernel of
all queued tasks, then performs them in order. It starts with the first task and ends
with the iteration. A child of fork has no thread: it notices by the fork generation,
copies the remaining tasks into a queue of its own, and starts a thread when it next
needs one. It never waits for the parent's thread.

A `PageRing` bounds the resident pages: a ring of chunks, oldest first. Readers list the
chunks of an extent before they touch its bytes. A chunk is 64 KiB, the amount that one
page fault maps. Where the page cache holds larger units (folios), a fault may map up to
1 MiB: `confine` faults in both ends of an extent, then releases the pages that came
with them.

When too many chunks are listed, the pages of the oldest are released; the next touch
faults them in again. Views pin their chunks: those are released only if more than the
whole bound is listed, and stay in the ring, for their pages come back when the view is
touched. Pages of a private mapping are released only while no writable view is alive,
and only clean ones: dirty pages exist nowhere else.

`Counters` are shared between processes; each operation is atomic.
"""

cimport cython
from cpython.buffer cimport PyBuffer_Release
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport INT64_MAX, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy

from fastshard._core.buffers cimport bytes_of
from fastshard._core.pages cimport (
    fs_advise_pages, fs_close_pagemap, fs_drop_clean_pages, fs_drop_pages,
    fs_evict_cached, fs_map_page, fs_open_pagemap, fs_populate_pages,
)
from fastshard._core.platform cimport fs_advise_file
from fastshard._core.threads cimport (
    fs_atomic_load, fs_atomic_next, fs_atomic_store, fs_cond_broadcast, fs_cond_free,
    fs_cond_init, fs_cond_wait, fs_generation, fs_is_pinned, fs_lock, fs_lock_free,
    fs_lock_init, fs_pin, fs_thread_join, fs_thread_start, fs_unlock, fs_unpin,
    fs_watch_forks,
)

import os

cdef enum:
    CHUNK = 64 << 10               # bytes
    MAX_SLACK = 16                 # chunks
    MIN_CAPACITY = 256             # entries
    FOLIO = 4 << 20                # bytes; no folio of the page cache is larger
    GAP = 64 << 10                 # bytes between extents of one range, such as headers
    NOT_OPENED = -2                # a pagemap descriptor
    LISTED = 1                     # in the ring
    CONFINED = 2                   # listed, and its neighbours were released
    FOLIO_CHUNKS = 16              # chunks that one fault maps at most: 1 MiB
    PINNED_BOUND = 2               # times `max_chunks`, half of the user's bound

cdef int FLAGS = (
    os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
)


cdef int open_same_file(object path, uint64_t device, uint64_t inode) except? -1:
    """Open a file by its path; return -1 if the path names another file."""
    cdef int fd
    try:
        fd = os.open(path, FLAGS)
    except OSError:
        return -1
    try:
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino) == (device, inode):
            return fd
    except OSError:
        pass
    os.close(fd)
    return -1


cdef uint64_t folio_start(uint64_t start) noexcept nogil:
    """Return where to evict from: the page cache drops whole folios only."""
    return start - min(start, <uint64_t> FOLIO)


cdef inline uint64_t chunk_at(MappedChunks chunks, uint64_t offset) noexcept:
    """Return the number of the chunk that has a byte of the file."""
    return (chunks.skew + offset) // CHUNK


@cython.final
@cython.no_gc
cdef class MappedChunks:
    """Chunks of one mapping: their states in a ring and their counts of views.

    Owned by the mapping, which calls `detach` before it unmaps.
    """

    def __init__(self, *args, **kwargs):
        raise TypeError("MappedChunks cannot be created; map a file with a ring")

    def __reduce__(self):
        raise TypeError("MappedChunks do not pickle")

    cdef void unpin(self, uint64_t offset, uint64_t size) noexcept:
        """Undo the pins of `PageRing.touch`."""
        cdef uint64_t k
        if size == 0:
            return
        for k in range(
            chunk_at(self, offset), chunk_at(self, offset + (size - 1)) + 1
        ):
            fs_unpin(self.views + k)

    cdef void detach(self) noexcept:
        """Leave the ring, before the mapping is unmapped."""
        self.ring.remove(self)

    def __dealloc__(self):
        free(self.views)
        free(self.states)


cdef MappedChunks chunks_of(
    PageRing ring, uint8_t *base, uint64_t nbytes, bint writable, object path,
    uint64_t device, uint64_t inode,
):
    """Return the chunks of a mapping; `path`, `device`, `inode` are its file's."""
    cdef MappedChunks chunks = MappedChunks.__new__(MappedChunks)
    chunks.ring = ring
    chunks.nbytes = nbytes
    chunks.writable = writable
    chunks.path = path
    chunks.skew = <uint64_t> (<uintptr_t> base % CHUNK)
    chunks.count = (chunks.skew + nbytes + CHUNK - 1) // CHUNK
    chunks.views = <uint32_t *> calloc(chunks.count, sizeof(uint32_t))
    chunks.states = <uint8_t *> calloc(chunks.count, 1)
    if chunks.views == NULL or chunks.states == NULL:
        raise MemoryError
    chunks.device = device
    chunks.inode = inode
    chunks.base = base
    return chunks


cdef int reopen_file(MappedChunks chunks) except? -1:
    """Open a mapped file by its path; return -1 if the path names another file."""
    return open_same_file(chunks.path, chunks.device, chunks.inode)


@cython.final
@cython.no_gc
cdef class PageRing:
    """Ring of the chunks of mapped files whose pages may be resident.

    The lock is taken with the GIL held, and no code blocks under it, so that it is free
    when the process forks.
    """

    def __cinit__(self, uint64_t most, *, bint evicts=False):
        fs_lock_init(&self.lock)
        self.evicts = evicts
        self.max_chunks = max(most // CHUNK, <uint64_t> 1)
        self.slack = min(self.max_chunks // 8, <uint64_t> MAX_SLACK)
        self.capacity = MIN_CAPACITY
        self.entries = <entry_t *> malloc(MIN_CAPACITY * sizeof(entry_t))
        if self.entries == NULL:
            raise MemoryError

    @property
    def nbytes(self):
        """Bytes of the chunks in the ring."""
        return self.listed * CHUNK

    def __reduce__(self):
        raise TypeError("a PageRing does not pickle")

    cdef int touch(
        self, MappedChunks chunks, uint64_t offset, uint64_t size, bint pins
    ) except -1:
        """List the chunks of an extent that is about to be touched.

        `pins`: pin each until `MappedChunks.unpin`.
        """
        cdef uint64_t start, end, k
        cdef uint64_t missing = 0
        cdef bint fits = True
        if size == 0:
            return 0
        start = chunk_at(chunks, offset)
        end = chunk_at(chunks, offset + (size - 1)) + 1
        fs_lock(&self.lock)
        for k in range(start, end):
            missing += chunks.states[k] == 0
        if self.listed + missing > self.max_chunks:
            self.trim(
                self.max_chunks - min(self.max_chunks, self.slack + missing),
                4 * (end - start),
            )
            missing = end - start  # chunks of the extent may have been released
        if missing > 0:
            fits = self.reserve(end - start)
            if fits:
                for k in range(start, end):
                    if chunks.states[k] == 0:
                        self.append(chunks, k)
        if pins and fits:
            for k in range(start, end):
                fs_pin(chunks.views + k)
        fs_unlock(&self.lock)
        if not fits:
            raise MemoryError
        if self.released_count > 0:
            self.evict_released()
        return 0

    cdef int confine(
        self, MappedChunks chunks, uint64_t offset, uint64_t size
    ) except -1:
        """Release the neighbours of an extent whose chunks `touch` has listed.

        Its first and last page are mapped first, without the GIL: a later fault does
        not map a whole folio of which a page is mapped.
        """
        cdef uint64_t start, end, k
        cdef bint opens, closes
        cdef int pagemap = NOT_OPENED
        if size == 0:
            return 0
        start = chunk_at(chunks, offset)
        end = chunk_at(chunks, offset + (size - 1)) + 1
        opens = chunks.states[start] != CONFINED
        closes = chunks.states[end - 1] != CONFINED
        if not (opens or closes):
            return 0
        with nogil:                # the caller keeps the file mapped
            if opens:
                fs_map_page(chunks.base + offset)
            if closes and end - 1 > start or not opens:
                fs_map_page(chunks.base + offset + size - 1)
        fs_lock(&self.lock)
        if opens:
            k = start
            while k % FOLIO_CHUNKS > 0 and chunks.states[k - 1] == 0:
                k -= 1
            self.drop(chunks, k, start, False, &pagemap)
        if closes:
            k = end
            while k % FOLIO_CHUNKS > 0 and k < chunks.count and chunks.states[k] == 0:
                k += 1
            self.drop(chunks, end, k, False, &pagemap)
        for k in range(start, end):
            if chunks.states[k] == LISTED:
                chunks.states[k] = CONFINED
        fs_unlock(&self.lock)
        if pagemap >= 0:
            fs_close_pagemap(pagemap)
        return 0

    cdef uint64_t half_bound(self) noexcept:
        """Return the bytes that one of several readers may touch at once."""
        return max(self.max_chunks * CHUNK // 2, <uint64_t> 1)

    cpdef int release(self) except -1:
        """Release all pages except pinned ones."""
        fs_lock(&self.lock)
        self.trim(0, self.count)
        fs_unlock(&self.lock)
        return self.evict_released()

    cdef bint reserve(self, uint64_t more) noexcept:
        """Grow to hold `more` entries; return False if there is no memory."""
        cdef entry_t *moved
        cdef uint64_t capacity = self.capacity
        cdef uint64_t k
        while capacity < self.count + more:
            capacity *= 2
        if capacity == self.capacity:
            return True
        moved = <entry_t *> malloc(capacity * sizeof(entry_t))
        if moved == NULL:
            return False
        for k in range(self.count):
            moved[k] = self.entries[(self.head + k) & (self.capacity - 1)]
        free(self.entries)
        self.entries = moved
        self.capacity = capacity
        self.head = 0
        return True

    cdef void append(self, MappedChunks chunks, uint64_t at) noexcept:
        """List a chunk; there must be room for it."""
        cdef uint64_t slot = (self.head + self.count) & (self.capacity - 1)
        cdef entry_t *entry = &self.entries[slot]
        Py_INCREF(chunks)
        entry.chunks = <PyObject *> chunks
        entry.at = at
        chunks.states[at] = LISTED
        chunks.entries += 1
        self.count += 1
        self.listed += 1

    cdef void trim(self, uint64_t target, uint64_t max_pinned) noexcept:
        """Release the oldest chunks until `target` are left.

        Pinned chunks are in use: they move to the new end of the ring, and are released
        only above the whole bound. At most `max_pinned` of them are visited.
        """
        cdef MappedChunks chunks
        cdef MappedChunks last = None
        cdef entry_t entry
        cdef uint64_t start = 0
        cdef uint64_t end = 0
        cdef int pagemap = NOT_OPENED
        cdef uint64_t left = self.count  # each entry is visited once
        cdef bint pinned
        while left > 0 and self.listed > target:
            left -= 1
            entry = self.entries[self.head]
            chunks = <MappedChunks> entry.chunks
            if chunks.base == NULL or chunks.states[entry.at] == 0:
                self.head = (self.head + 1) & (self.capacity - 1)
                self.count -= 1
                Py_DECREF(chunks)
                continue
            pinned = fs_is_pinned(chunks.views + entry.at)
            if pinned:
                if max_pinned == 0:
                    break
                max_pinned -= 1
                if self.listed <= PINNED_BOUND * self.max_chunks:
                    self.entries[(self.head + self.count) & (self.capacity - 1)] = entry
                    self.head = (self.head + 1) & (self.capacity - 1)
                    continue
            self.head = (self.head + 1) & (self.capacity - 1)
            self.count -= 1
            chunks.entries -= 1
            self.listed -= 1
            chunks.states[entry.at] = 0
            if pinned:             # may be touched again: to the new end
                self.append(chunks, entry.at)
            Py_DECREF(chunks)      # its mapping has another reference
            if pinned and chunks.writable:
                continue
            if chunks is not last or entry.at != end:
                self.drop(last, start, end, self.evicts, &pagemap)
                last = chunks
                start = entry.at
            end = entry.at + 1
        self.drop(last, start, end, self.evicts, &pagemap)
        if pagemap >= 0:
            fs_close_pagemap(pagemap)

    cdef int discard(
        self, MappedChunks chunks, uint64_t start, uint64_t end, bint evicts
    ) except -1:
        """Release the pages of bytes that will not be read again soon.

        Pinned chunks stay listed, for their pages come back when a view is touched; in
        a private mapping they keep their pages. `evicts`: drop the pages from the page
        cache too if the ring does; else the caller is responsible for it.
        """
        cdef uint64_t first, last, k
        cdef uint64_t run
        cdef bint pinned
        cdef int pagemap = NOT_OPENED
        if end <= start:
            return 0
        first = run = chunk_at(chunks, start)
        last = chunk_at(chunks, end - 1) + 1
        fs_lock(&self.lock)
        if chunks.base != NULL:
            for k in range(first, last):
                pinned = fs_is_pinned(chunks.views + k)
                if pinned and chunks.writable:
                    self.drop(chunks, run, k, False, &pagemap)
                    run = k + 1
                elif pinned:
                    chunks.states[k] = min(chunks.states[k], <uint8_t> LISTED)
                elif chunks.states[k] != 0:
                    chunks.states[k] = 0
                    chunks.entries -= 1
                    self.listed -= 1
            self.drop(chunks, run, last, False, &pagemap)
            if evicts and self.evicts:
                self.note_released(chunks, start, end)
        self.pop_stale()
        fs_unlock(&self.lock)
        if pagemap >= 0:
            fs_close_pagemap(pagemap)
        if self.released_count > 0:
            self.evict_released()
        return 0

    cdef void pop_stale(self) noexcept:
        """Remove stale entries from the old end of the ring."""
        cdef MappedChunks chunks
        cdef entry_t entry
        while self.count > 0:
            entry = self.entries[self.head]
            chunks = <MappedChunks> entry.chunks
            if chunks.base != NULL and chunks.states[entry.at] != 0:
                break
            self.head = (self.head + 1) & (self.capacity - 1)
            self.count -= 1
            Py_DECREF(chunks)
        if self.count > 2 * self.listed + MIN_CAPACITY:
            self.purge()

    cdef void drop(
        self, MappedChunks chunks, uint64_t start, uint64_t end, bint evicts,
        int *pagemap,
    ) noexcept:
        """Release the pages of adjacent chunks from the address space.

        `evicts`: note them for `evict_released`. `pagemap` is opened when needed.
        """
        cdef uint64_t offset, size
        if end == start:
            return
        offset = start * CHUNK - min(start * CHUNK, chunks.skew)
        size = min(end * CHUNK - chunks.skew, chunks.nbytes) - offset
        if not chunks.writable:
            fs_drop_pages(chunks.base + offset, size)
        else:
            if pagemap[0] == NOT_OPENED:
                pagemap[0] = fs_open_pagemap()
            if pagemap[0] >= 0:
                fs_drop_clean_pages(pagemap[0], chunks.base + offset, size)
        if evicts:
            self.note_released(chunks, offset, offset + size)

    cdef void note_released(
        self, MappedChunks chunks, uint64_t start, uint64_t end
    ) noexcept:
        """Note bytes for `evict_released`; without memory they stay cached."""
        cdef range_t *moved
        cdef size_t capacity
        if self.released_count == self.released_capacity:
            capacity = 2 * self.released_capacity + 16
            moved = <range_t *> realloc(self.released, capacity * sizeof(range_t))
            if moved == NULL:
                return
            self.released = moved
            self.released_capacity = capacity
        Py_INCREF(chunks)
        self.released[self.released_count].chunks = <PyObject *> chunks
        self.released[self.released_count].start = start
        self.released[self.released_count].end = end
        self.released_count += 1

    cdef int evict_released(self) except -1:
        """Drop the noted pages from the page cache, without the GIL."""
        cdef MappedChunks chunks
        cdef range_t *released
        cdef size_t count
        cdef size_t k
        cdef uint64_t start, end
        cdef int fd = -1
        cdef list held = []
        fs_lock(&self.lock)
        released = self.released
        count = self.released_count
        self.released = NULL
        self.released_count = self.released_capacity = 0
        fs_unlock(&self.lock)
        try:
            for k in range(count):
                chunks = <MappedChunks> released[k].chunks
                if not held or chunks is not held[0]:
                    if fd >= 0:
                        os.close(fd)
                    held = [chunks]
                    fd = reopen_file(chunks)
                start = folio_start(released[k].start)
                end = released[k].end
                if fd >= 0:
                    with nogil:
                        fs_evict_cached(fd, start, end - start)
        finally:
            if fd >= 0:
                os.close(fd)
            for k in range(count):
                Py_DECREF(<object> released[k].chunks)
            free(released)
        return 0

    cdef void remove(self, MappedChunks chunks) noexcept:
        """Make the entries of a mapping stale, before it is unmapped."""
        fs_lock(&self.lock)
        chunks.base = NULL
        self.listed -= chunks.entries
        chunks.entries = 0
        if self.count > 2 * self.listed:
            self.purge()
        fs_unlock(&self.lock)

    cdef void purge(self) noexcept:
        """Remove all stale entries."""
        cdef MappedChunks chunks
        cdef entry_t entry
        cdef uint64_t count = self.count
        cdef uint64_t k
        self.count = 0
        for k in range(count):
            entry = self.entries[(self.head + k) & (self.capacity - 1)]
            chunks = <MappedChunks> entry.chunks
            if chunks.base == NULL or chunks.states[entry.at] == 0:
                Py_DECREF(chunks)
                continue
            self.entries[(self.head + self.count) & (self.capacity - 1)] = entry
            self.count += 1

    def __dealloc__(self):
        cdef uint64_t k
        for k in range(self.count):
            Py_DECREF(
                <object> self.entries[(self.head + k) & (self.capacity - 1)].chunks
            )
        free(self.entries)
        free(self.released)        # empty: callers of `note_released` evict at once
        fs_lock_free(&self.lock)


@cython.final
@cython.no_gc
cdef class ReadRange:
    """Range of a file that was read, and is not yet released."""


@cython.final
cdef class PageReleaser:
    """Release of the pages behind the read position of an iteration.

    Bytes read in order are released in large ranges; others when an item later than the
    next one is read elsewhere.
    """

    def __cinit__(self, PageRing ring not None, uint64_t most):
        self.ring = ring
        self.max_bytes = most
        self.ranges = {}
        self.released = [] if ring.evicts else None

    def __reduce__(self):
        raise TypeError("a PageReleaser does not pickle")

    cdef int next_item(self) except -1:
        """Begin another item: later calls of `mark_read` are of it."""
        self.items += 1
        return 0

    cdef int mark_read(
        self, MappedChunks chunks, uint64_t offset, uint64_t size
    ) except -1:
        """Note that an extent was read."""
        cdef ReadRange found = self.ranges.get(chunks)
        cdef ReadRange other
        if found is None or offset < found.end or offset - found.end > GAP:
            for other in list(self.ranges.values()):
                if other is found or other.item + 1 < self.items:
                    self.release(other)
                    del self.ranges[other.chunks]
            found = ReadRange.__new__(ReadRange)
            found.chunks = chunks
            found.start = offset
            self.ranges[chunks] = found
        found.end = offset + size
        found.item = self.items
        if found.end - found.start >= self.max_bytes // <uint64_t> len(self.ranges):
            self.release(found)
        return 0

    cdef int release(self, ReadRange found) except -1:
        """Release the pages of a range, which then begins at its end."""
        cdef uint64_t start = found.start
        cdef bint later = self.released is not None
        if found.end > start:
            found.start = found.end
            self.ring.discard(found.chunks, start, found.end, not later)
            if later:
                self.released.append((found.chunks, start, found.end))
        return 0

    cdef int finish(self) except -1:
        """Release all ranges, and evict them from the page cache at once."""
        cdef ReadRange found
        self.released = None
        for found in self.ranges.values():
            self.release(found)
        self.ranges = {}
        return 0


cdef enum:
    CAPACITY = 4096                # tasks; a power of two

if fs_watch_forks() != 0:
    raise MemoryError("cannot register a fork handler")


cdef void queue_free(queue_t *queue) noexcept nogil:
    if queue == NULL:
        return
    fs_lock_free(&queue.lock)
    fs_cond_free(&queue.more)
    fs_cond_free(&queue.done)
    free(queue.tasks)
    free(queue)


cdef queue_t *queue_new() noexcept nogil:
    cdef queue_t *queue = <queue_t *> calloc(1, sizeof(queue_t))
    if queue == NULL:
        return NULL
    queue.capacity = CAPACITY
    queue.tasks = <task_t *> calloc(CAPACITY, sizeof(task_t))
    if queue.tasks == NULL:
        free(queue)
        return NULL
    fs_lock_init(&queue.lock)
    fs_cond_init(&queue.more)
    fs_cond_init(&queue.done)
    return queue


cdef void advise(const task_t *task) noexcept nogil:
    if task.at != NULL:
        fs_advise_pages(task.at, task.size)
    elif not task.evict:
        fs_advise_file(task.fd, task.offset, task.size)


cdef bint perform(const task_t *task, bint populated) noexcept nogil:
    """Perform a task; return False if its pages cannot be populated.

    Callbacks touch the pages of earlier tasks: they are called only if `populated`.
    """
    if task.callback != NULL:
        if populated:
            task.callback(task.argument)
    elif task.evict:
        fs_evict_cached(task.fd, task.offset, task.size)
    elif task.at != NULL:
        return fs_populate_pages(task.at, task.size) == 0
    return True


cdef void step(queue_t *queue) noexcept nogil:
    """Perform the next task."""
    cdef task_t *task = &queue.tasks[queue.finished & (queue.capacity - 1)]
    if not perform(task, queue.failed == 0):
        fs_atomic_store(&queue.failed, queue.failed + 1)
    fs_atomic_store(&queue.finished, queue.finished + 1)


cdef bint sleep(queue_t *queue) noexcept nogil:
    """Wait for a task; return False if the thread is to end."""
    fs_lock(&queue.lock)
    fs_atomic_store(&queue.sleeps, 1)
    while (
        fs_atomic_load(&queue.pushed) == queue.finished
        and not fs_atomic_load(&queue.stops)
    ):
        fs_cond_wait(&queue.more, &queue.lock)
    fs_atomic_store(&queue.sleeps, 0)
    fs_unlock(&queue.lock)
    return not fs_atomic_load(&queue.stops)


cdef void *run(void *argument) noexcept nogil:
    """Perform tasks until stopped: the body of the thread."""
    cdef queue_t *queue = <queue_t *> argument
    cdef uint64_t advised = queue.finished
    cdef task_t *task
    while not fs_atomic_load(&queue.stops):
        if fs_atomic_load(&queue.pushed) == queue.finished:
            if not sleep(queue):
                break
        while (
            advised < fs_atomic_load(&queue.pushed)
            and not fs_atomic_load(&queue.stops)
        ):
            task = &queue.tasks[advised & (queue.capacity - 1)]
            if task.advise:
                advise(task)
            advised += 1
        if fs_atomic_load(&queue.stops):
            break
        step(queue)
        if fs_atomic_load(&queue.waits):
            fs_lock(&queue.lock)
            fs_cond_broadcast(&queue.done)
            fs_unlock(&queue.lock)
    return NULL


@cython.final
@cython.no_gc
cdef class Prefetcher:
    """Thread with a queue of tasks, for one consumer at a time."""

    def __cinit__(self):
        self.queue = queue_new()
        if self.queue == NULL:
            raise MemoryError
        self.owners = [None] * CAPACITY

    def __reduce__(self):
        raise TypeError("a Prefetcher does not pickle")

    cdef queue_t *current_queue(self) except NULL:
        """Return the queue; in a child of fork make a new one first."""
        cdef queue_t *old = self.queue
        cdef queue_t *queue
        if not self.running or self.generation == fs_generation():
            return old
        queue = queue_new()
        if queue == NULL:
            raise MemoryError
        memcpy(queue.tasks, old.tasks, CAPACITY * sizeof(task_t))
        queue.pushed = old.pushed
        queue.finished = fs_atomic_load(&old.finished)
        queue.failed = fs_atomic_load(&old.failed)
        self.queue = queue
        self.running = False
        free(old.tasks)            # not `queue_free`: the parent may have held the lock
        free(old)
        return queue

    cdef int start(self) except -1:
        """Start the thread unless it runs; if that fails, perform all tasks now."""
        cdef queue_t *queue = self.queue
        if self.running:
            return 0
        queue.stops = 0
        if fs_thread_start(&self.thread, run, queue) != 0:
            with nogil:            # the limit of threads is reached
                while queue.finished < queue.pushed:
                    step(queue)
            return 0
        self.generation = fs_generation()
        self.running = True
        return 0

    cdef uint64_t push(self, task_t task, object owner) except 0:
        """Add a task and return its number, from 1 on; `owner` keeps its memory."""
        cdef queue_t *queue = self.current_queue()
        cdef uint64_t slot = queue.pushed & (queue.capacity - 1)
        if queue.pushed - fs_atomic_load(&queue.finished) == queue.capacity:
            self.wait(queue.pushed - queue.capacity + 1)
            queue = self.queue
        self.release()
        self.owners[slot] = owner
        queue.tasks[slot] = task
        fs_atomic_store(&queue.pushed, queue.pushed + 1)
        self.start()
        if fs_atomic_load(&queue.sleeps):
            fs_lock(&queue.lock)
            fs_cond_broadcast(&queue.more)
            fs_unlock(&queue.lock)
        return queue.pushed

    cdef bint wait(self, uint64_t task) except -1:
        """Wait without the GIL for the end of a task; return False if it has ended."""
        cdef queue_t *queue = self.queue
        if fs_atomic_load(&queue.finished) >= task:
            return False
        queue = self.current_queue()
        self.start()
        with nogil:
            fs_lock(&queue.lock)
            fs_atomic_store(&queue.waits, 1)
            while fs_atomic_load(&queue.finished) < task:
                fs_cond_wait(&queue.done, &queue.lock)
            fs_atomic_store(&queue.waits, 0)
            fs_unlock(&queue.lock)
        return True

    cdef bint is_backlogged(self) noexcept:
        """Return whether the queue is so long that an optional task is useless."""
        cdef uint64_t waiting = self.queue.pushed - fs_atomic_load(&self.queue.finished)
        return waiting > self.queue.capacity // 2

    cdef uint64_t failure_count(self) noexcept:
        """Return the number of tasks that failed."""
        return fs_atomic_load(&self.queue.failed)

    cdef int release(self) except -1:
        """Release the owners of finished tasks."""
        cdef uint64_t finished = fs_atomic_load(&self.queue.finished)
        cdef Py_ssize_t slot
        while self.released < finished:
            slot = <Py_ssize_t> (self.released & (CAPACITY - 1))
            self.released += 1
            self.owners[slot] = None
        return 0

    cdef int stop(self) except -1:
        """Stop the thread after its current task, and join it."""
        cdef queue_t *queue = self.current_queue()
        if not self.running:
            return 0
        self.running = False
        with nogil:
            fs_lock(&queue.lock)
            fs_atomic_store(&queue.stops, 1)
            fs_cond_broadcast(&queue.more)
            fs_unlock(&queue.lock)
            fs_thread_join(self.thread)
        return 0

    def __dealloc__(self):
        if self.queue != NULL:
            self.stop()
            queue_free(self.queue)


@cython.final
cdef class Counters:
    """Array of atomic 64-bit counters at the start of a buffer."""

    cdef Py_buffer buffer
    cdef bint held
    cdef uint64_t *at
    cdef Py_ssize_t count

    def __cinit__(self, memory, Py_ssize_t count):
        self.at = <uint64_t *> bytes_of(memory, &self.buffer, writable=True)
        self.held = True
        if count < 0 or count > self.buffer.len // 8 or <size_t> self.at % 8:
            raise ValueError(
                f"{count} counters need an aligned buffer of {8 * count} bytes, "
                f"got {self.buffer.len}"
            )
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, Py_ssize_t i):
        return fs_atomic_load(self.address_of(i))

    def add(self, Py_ssize_t i):
        """Increment a counter by 1."""
        fs_atomic_next(self.address_of(i))

    def __reduce__(self):
        raise TypeError("Counters do not pickle")

    cdef uint64_t *address_of(self, Py_ssize_t i) except NULL:
        if not 0 <= i < self.count:
            raise IndexError(
                f"counter {i} is out of range: there are {self.count} counters"
            )
        return self.at + i

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.buffer)


cdef extern from "writeback.h" nogil:
    void fs_start_writeback(int fd, uint64_t offset, uint64_t size)


def start_writeback(int fd, uint64_t offset, uint64_t size):
    """Start to write a range of a file to the disk, and do not wait for it.

    A later `os.fsync` has less left to do. A hint: failures are ignored. Systems other
    than Linux do nothing.
    """
    if offset <= <uint64_t> INT64_MAX and size <= <uint64_t> INT64_MAX - offset:
        with nogil:
            fs_start_writeback(fd, offset, size)
