"""A bound on the resident pages of mapped files: chunks in a ring, oldest first.

Everything that is about to touch mapped bytes lists their chunks of 64 KiB, which is
how much one page fault maps. Where the page cache holds larger pieces (folios) a fault
may map a whole one, of up to 1 MiB: `confine` maps the ends of an extent, and releases
what came with them beyond it. Once too many are listed, the pages of the oldest are
released: the next touch faults them in again. Views pin their chunks: those are
released only where more are listed than the whole bound, and stay in the ring then,
for their pages come back when the view is touched. Of a private mapping, pages are
released only while no view is alive that could be written to, and only those that were
not: the others exist nowhere else.
"""

cimport cython
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc, realloc

from fastshard._core.pages cimport (
    fs_close_pagemap, fs_drop_clean_pages, fs_drop_pages, fs_evict_cached,
    fs_map_page, fs_open_pagemap,
)
from fastshard._core.threads cimport (
    fs_is_pinned, fs_lock, fs_lock_free, fs_lock_init, fs_pin, fs_unlock, fs_unpin,
)

import os

cdef enum:
    CHUNK = 64 << 10               # bytes
    MOST_SLACK = 16                # chunks
    FEWEST = 256                   # entries that there is room for
    FOLIO = 4 << 20                # bytes: no piece of the page cache is larger
    GAP = 64 << 10                 # bytes between extents of one range: headers, others
    NOT_OPENED = -2
    LISTED = 1                     # in the ring
    CONFINED = 2                   # and what else was mapped with it is not any more
    FOLIO_CHUNKS = 16              # of the largest piece that one fault maps: 1 MiB
    BOUND_IN_RINGS = 2             # pinned chunks may take: a ring keeps half of the bound

cdef int FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)


cdef int open_same_file(object path, uint64_t device, uint64_t inode) except? -1:
    """Open a file by its path; -1: another is there now, or none."""
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
    """Where the page cache has to forget from, for it drops whole folios only."""
    return start - min(start, <uint64_t> FOLIO)


cdef inline uint64_t chunk_at(MappedChunks chunks, uint64_t offset) noexcept:
    """Return the number of the chunk that has a byte of the file."""
    return (chunks.skew + offset) // CHUNK


@cython.final
@cython.no_gc
cdef class MappedChunks:
    """The chunks of one mapping: which are in a ring, and how many views each has.

    The mapping owns it, and calls `detach` before it goes.
    """

    def __init__(self, *args, **kwargs):
        raise TypeError("MappedChunks are made by a mapping")

    def __reduce__(self):
        raise TypeError("MappedChunks do not pickle")

    cdef void unpin(self, uint64_t offset, uint64_t size) noexcept:
        """Take back the pins of an extent."""
        cdef uint64_t k
        if size == 0:
            return
        for k in range(
            chunk_at(self, offset), chunk_at(self, offset + (size - 1)) + 1
        ):
            fs_unpin(self.views + k)

    cdef void detach(self) noexcept:
        self.ring.leave(self)

    def __dealloc__(self):
        free(self.views)
        free(self.states)


cdef MappedChunks chunks_of(
    PageRing ring, uint8_t *base, uint64_t nbytes, bint writable, object path,
    uint64_t device, uint64_t inode,
):
    """Return the chunks of a mapping; the file is opened again by what names it."""
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
    """Open a mapped file by its path; -1: another is there now, or none."""
    return open_same_file(chunks.path, chunks.device, chunks.inode)


@cython.final
@cython.no_gc
cdef class PageRing:
    """Chunks of mapped files whose pages may be resident.

    The lock is taken with the GIL held and nothing is waited for under it: a fork
    finds it free.

    Parameters
    ----------
    most : int
        Bytes that may be resident.
    evicts : bool
        Have the page cache forget released pages too.
    """

    def __cinit__(self, uint64_t most, *, bint evicts=False):
        fs_lock_init(&self.lock)
        self.evicts = evicts
        self.most = max(most // CHUNK, <uint64_t> 1)
        self.slack = min(self.most // 8, <uint64_t> MOST_SLACK)
        self.room = FEWEST
        self.entries = <entry_t *> malloc(FEWEST * sizeof(entry_t))
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
        """List the chunks of an extent whose bytes are about to be touched.

        With `pins` each is pinned, until `MappedChunks.unpin`.
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
        if self.listed + missing > self.most:
            self.trim(
                self.most - min(self.most, self.slack + missing), 4 * (end - start)
            )
            missing = end - start  # some of them may have been released
        if missing > 0:
            fits = self.make_room(end - start)
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
            self.forget()
        return 0

    cdef int confine(
        self, MappedChunks chunks, uint64_t offset, uint64_t size
    ) except -1:
        """Have no more mapped than the chunks of an extent; `touch` has listed them.

        Its first and last page are mapped now, without the GIL. A folio of which a
        page is mapped is not mapped whole by a later fault.
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
        with nogil:                # the caller keeps it mapped
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

    cdef uint64_t half(self) noexcept:
        """Bytes that one reader may have touched together, beside others."""
        return max(self.most * CHUNK // 2, <uint64_t> 1)

    cpdef int release(self) except -1:
        """Release all pages but pinned ones."""
        fs_lock(&self.lock)
        self.trim(0, self.count)
        fs_unlock(&self.lock)
        return self.forget()

    cdef bint make_room(self, uint64_t more) noexcept:
        """Have room for more entries; False: there is no memory."""
        cdef entry_t *moved
        cdef uint64_t room = self.room
        cdef uint64_t k
        while room < self.count + more:
            room *= 2
        if room == self.room:
            return True
        moved = <entry_t *> malloc(room * sizeof(entry_t))
        if moved == NULL:
            return False
        for k in range(self.count):
            moved[k] = self.entries[(self.head + k) & (self.room - 1)]
        free(self.entries)
        self.entries = moved
        self.room = room
        self.head = 0
        return True

    cdef void append(self, MappedChunks chunks, uint64_t at) noexcept:
        cdef entry_t *entry = &self.entries[(self.head + self.count) & (self.room - 1)]
        Py_INCREF(chunks)
        entry.chunks = <PyObject *> chunks
        entry.at = at
        chunks.states[at] = LISTED
        chunks.entries += 1
        self.count += 1
        self.listed += 1

    cdef void trim(self, uint64_t target, uint64_t most_pinned) noexcept:
        """Release the oldest chunks until `target` are left.

        Pinned ones are in use: they stay within the whole bound, and are the newest
        then. At most `most_pinned` of them are looked at.
        """
        cdef MappedChunks chunks
        cdef MappedChunks last = None
        cdef entry_t entry
        cdef uint64_t start = 0
        cdef uint64_t end = 0
        cdef int pagemap = NOT_OPENED
        cdef uint64_t left = self.count  # each is looked at once
        cdef bint pinned
        while left > 0 and self.listed > target:
            left -= 1
            entry = self.entries[self.head]
            chunks = <MappedChunks> entry.chunks
            if chunks.base == NULL or chunks.states[entry.at] == 0:
                self.head = (self.head + 1) & (self.room - 1)
                self.count -= 1
                Py_DECREF(chunks)
                continue
            pinned = fs_is_pinned(chunks.views + entry.at)
            if pinned:
                if most_pinned == 0:
                    break
                most_pinned -= 1
                if self.listed <= BOUND_IN_RINGS * self.most:  # in use: they stay
                    self.entries[(self.head + self.count) & (self.room - 1)] = entry
                    self.head = (self.head + 1) & (self.room - 1)
                    continue
            self.head = (self.head + 1) & (self.room - 1)
            self.count -= 1
            chunks.entries -= 1
            self.listed -= 1
            chunks.states[entry.at] = 0
            if pinned:             # to the other end: it may be touched again
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
        """Release the pages of bytes that were read, and are not soon read again.

        Pinned chunks stay listed, for their pages come back when a view is touched;
        of a private mapping they keep their pages. `evicts`: the page cache is to
        forget them too, if that is what the ring does; otherwise the caller sees to it.
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
            self.forget()
        return 0

    cdef void pop_stale(self) noexcept:
        """Take out the oldest entries that stand for nothing any more."""
        cdef MappedChunks chunks
        cdef entry_t entry
        while self.count > 0:
            entry = self.entries[self.head]
            chunks = <MappedChunks> entry.chunks
            if chunks.base != NULL and chunks.states[entry.at] != 0:
                break
            self.head = (self.head + 1) & (self.room - 1)
            self.count -= 1
            Py_DECREF(chunks)
        if self.count > 2 * self.listed + FEWEST:
            self.purge()

    cdef void drop(
        self, MappedChunks chunks, uint64_t start, uint64_t end, bint evicts,
        int *pagemap,
    ) noexcept:
        """Take chunks in a row out of this process's address space.

        `evicts`: the page cache is to forget them too.
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
        """Remember what the page cache is to forget; without memory it is left there."""
        cdef range_t *moved
        cdef size_t room
        if self.released_count == self.released_room:
            room = 2 * self.released_room + 16
            moved = <range_t *> realloc(self.released, room * sizeof(range_t))
            if moved == NULL:
                return
            self.released = moved
            self.released_room = room
        Py_INCREF(chunks)
        self.released[self.released_count].chunks = <PyObject *> chunks
        self.released[self.released_count].start = start
        self.released[self.released_count].end = end
        self.released_count += 1

    cdef int forget(self) except -1:
        """Have the page cache forget released pages, without the GIL."""
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
        self.released_count = self.released_room = 0
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

    cdef void leave(self, MappedChunks chunks) noexcept:
        """Forget the chunks of a file before it is unmapped."""
        fs_lock(&self.lock)
        chunks.base = NULL
        self.listed -= chunks.entries
        chunks.entries = 0
        if self.count > 2 * self.listed:
            self.purge()
        fs_unlock(&self.lock)

    cdef void purge(self) noexcept:
        """Take out all entries that stand for nothing any more."""
        cdef MappedChunks chunks
        cdef entry_t entry
        cdef uint64_t count = self.count
        cdef uint64_t k
        self.count = 0
        for k in range(count):
            entry = self.entries[(self.head + k) & (self.room - 1)]
            chunks = <MappedChunks> entry.chunks
            if chunks.base == NULL or chunks.states[entry.at] == 0:
                Py_DECREF(chunks)
                continue
            self.entries[(self.head + self.count) & (self.room - 1)] = entry
            self.count += 1

    def __dealloc__(self):
        cdef uint64_t k
        for k in range(self.count):
            Py_DECREF(<object> self.entries[(self.head + k) & (self.room - 1)].chunks)
        free(self.entries)
        free(self.released)        # empty: who fills it forgets it
        fs_lock_free(&self.lock)


@cython.final
@cython.no_gc
cdef class ReadRange:
    """Bytes of a file that were read one after another and are not yet released."""


@cython.final
cdef class PageReleaser:
    """Releases the pages behind the read position of an iteration.

    What is read in order is released in larger ranges; what is read elsewhere, once
    the items have left it.

    Parameters
    ----------
    ring : PageRing
    most : int
        Bytes that may stay.
    """

    def __cinit__(self, PageRing ring not None, uint64_t most):
        self.ring = ring
        self.most = most
        self.ranges = {}
        self.released = [] if ring.evicts else None

    def __reduce__(self):
        raise TypeError("a PageReleaser does not pickle")

    cdef int next_item(self) except -1:
        """Note that what is marked from now on is of another item."""
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
        if found.end - found.start >= self.most // <uint64_t> len(self.ranges):
            self.release(found)
        return 0

    cdef int release(self, ReadRange found) except -1:
        cdef uint64_t start = found.start
        cdef bint later = self.released is not None
        if found.end > start:
            found.start = found.end
            self.ring.discard(found.chunks, start, found.end, not later)
            if later:
                self.released.append((found.chunks, start, found.end))
        return 0

    cdef int finish(self) except -1:
        """Release the rest, and have the page cache forget it at once."""
        cdef ReadRange found
        self.released = None
        for found in self.ranges.values():
            self.release(found)
        self.ranges = {}
        return 0
