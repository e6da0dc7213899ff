# cython: nonecheck=True
"""Rows in the order of their bytes: batches brought ahead of who reads them."""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.string cimport memset

from fastshard._core.pagering cimport MappedChunks, PageRing
from fastshard._core.prefetch cimport Prefetcher, task_t
from fastshard._core.residency cimport MOST_BROUGHT
from fastshard._core.rowcheck cimport Checking, check_rows, checking_of
from fastshard._core.rows cimport UNKNOWN, ColumnShard, Rows, mark_t
from fastshard._core.source cimport MappedSource, Source
from fastshard._core.threads cimport fs_get

from collections import deque

from fastshard.errors import FastshardError

cdef enum:
    GAP = 64 << 10                 # bytes between members of one run
    RUN = 1 << 20                  # bytes of a run, at most
    MOST_BATCHES = 64              # ahead
    WORTH_CHECKING = 8             # rows of a shard
    TRUE_ONES = 1                  # offsets of a shard
    OTHERS = 2

LAST = (1 << 63) - 1               # in the place of a shard's number: there is none


@cython.final
cdef class Batch:
    """What was asked for a batch."""

    cdef uint64_t task             # the last; 0: it is there
    cdef uint64_t nbytes
    cdef list runs                 # (source, start, end) of mapped bytes
    cdef list sources


@cython.final
cdef class Sweep:
    """Has rows in memory before they are read.

    Parameters
    ----------
    columns : list of Rows
        The fields that are read.
    order : ndarray of int64
        Positions of samples that there are.
    step : int
        Rows of a batch.
    window_bytes : int
        Bytes ahead, but for one batch.
    ring : PageRing or None
        Bounds the resident pages of the shards; all are released at the end.
    whole : bool
        Batches have `step` rows; else fewer, where these take too much memory.
    """

    cdef list columns
    cdef object order
    cdef const int64_t[::1] positions
    cdef Py_ssize_t step
    cdef uint64_t window_bytes
    cdef PageRing ring
    cdef bint drops                # pages are released: none is touched early
    cdef bint whole
    cdef bint doubtful             # some bytes could not be brought
    cdef Prefetcher prefetcher
    cdef set mapped                # sources whose pages were, or need not be
    cdef object batches            # that were asked for and not read, in order
    cdef Py_ssize_t asked          # rows
    cdef uint64_t ahead            # bytes
    cdef Batch current

    def __cinit__(
        self, list columns not None, order not None, Py_ssize_t step,
        uint64_t window_bytes, *, PageRing ring, bint whole
    ):
        if step < 1:
            raise ValueError(f"a batch has at least 1 row, not {step}")
        self.columns = columns
        self.order = order
        self.positions = order
        self.step = step
        self.window_bytes = window_bytes
        self.ring = ring
        self.drops = ring is not None
        self.whole = whole
        self.batches = deque()
        self.mapped = set()

    def __reduce__(self):
        raise TypeError("a Sweep does not pickle")

    def __next__(self):
        """Return the positions of the next batch, whose bytes are in memory."""
        cdef Batch batch
        cdef Py_ssize_t start, end
        self.pass_by()
        while self.asked < len(self.order) and len(self.batches) < MOST_BATCHES and (
            not self.batches or self.ahead < self.window_bytes
        ):
            self.ask()
        if not self.batches:
            self.close()
            raise StopIteration
        start, end, batch = self.batches.popleft()
        self.ahead -= batch.nbytes
        self.current = batch
        for source in batch.sources:
            (<Source> source).prepare()  # it is we who touch its bytes
        if batch.task > 0:
            self.prefetcher.wait(batch.task)
            if self.prefetcher.failed() > 0:
                self.doubt()
        return self.order[start:end]

    def __iter__(self):
        return self

    @property
    def is_sure(self):
        """Whether the bytes of the batch are in memory; else some could not be had."""
        return not self.doubtful

    cdef int doubt(self) except -1:
        """Have all that follows looked at before it is read, which raises."""
        cdef Rows rows
        self.doubtful = True
        for rows in self.columns:
            rows.places = None
        return 0

    def close(self):
        """End the thread, and release what was brought."""
        self.asked = len(self.order)
        if self.prefetcher is not None:
            self.prefetcher.stop()
            self.prefetcher = None
        self.pass_by()
        while self.batches:
            self.current = self.batches.popleft()[2]
            self.pass_by()
        if self.ring is not None:
            self.ring.release()

    cdef int ask(self) except -1:
        """Ask for the bytes of the next batch."""
        cdef Batch batch = Batch.__new__(Batch)
        cdef Py_ssize_t start = self.asked
        cdef Py_ssize_t end = min(start + self.step, <Py_ssize_t> len(self.order))
        cdef Rows rows
        batch.runs = []
        batch.sources = []
        end = self.end_of(start, end)
        for rows in self.columns:
            try:
                self.ask_rows(rows, start, end, batch)
            except (FastshardError, OSError):  # raised when it is read
                pass
        self.asked = end
        self.ahead += batch.nbytes
        self.batches.append((start, end, batch))
        return 0

    cdef Py_ssize_t end_of(self, Py_ssize_t start, Py_ssize_t end) except -1:
        """Where a batch that need not be whole ends: behind a quarter of the window."""
        cdef Rows rows
        cdef ColumnShard shard
        cdef uint64_t offset, size
        cdef uint64_t nbytes = 0
        cdef Py_ssize_t k
        cdef int64_t i
        if self.whole or not self.drops:
            return end
        for k in range(start, end):
            i = self.positions[k]
            for rows in self.columns:
                if rows.cells.marks[i].slot < 0:
                    continue
                try:
                    shard = rows.shard_of(i)
                except (FastshardError, OSError):  # raised when it is read
                    continue
                if shard.guess(shard.open_source(), i, &offset, &size):
                    nbytes += size
            if nbytes >= self.window_bytes // 4:
                return k + 1
        return end

    cdef int ask_rows(
        self, Rows rows, Py_ssize_t start, Py_ssize_t end, Batch batch
    ) except -1:
        cdef ColumnShard shard = None
        cdef Source source
        cdef Source last = None
        cdef bint near = True
        cdef int32_t slot
        cdef int32_t last_slot = -1
        cdef uint64_t offset, size
        cdef uint64_t run_start = 0
        cdef uint64_t run_end = 0
        cdef Py_ssize_t first = start
        cdef Py_ssize_t k
        cdef int64_t i
        for k in range(start, end):
            i = self.positions[k]
            slot = rows.cells.marks[i].slot
            if slot < 0:
                continue
            if slot != last_slot:
                if near:
                    self.check(rows, shard, first, k)
                first = k
                last_slot = slot
                shard = rows.shard_of(i)
                source = shard.open_source()
                if source is not last:
                    self.push(last, run_start, run_end, near, batch)
                    last = source
                    batch.sources.append(source)
                    near = source.is_near()
                    if near:
                        self.map_pages(source)
                    run_start = run_end = 0
            if (near and not self.drops) or not shard.guess(last, i, &offset, &size):
                continue
            size = min(size, <uint64_t> MOST_BROUGHT)
            if (
                offset < run_start or offset > run_end + GAP
                or offset + size - run_start > RUN
            ):
                self.push(last, run_start, run_end, near, batch)
                run_start = run_end = offset
            run_end = max(run_end, offset + size)
        self.push(last, run_start, run_end, near, batch)
        if near:
            self.check(rows, shard, first, end)
        return 0

    cdef int check(
        self, Rows rows, ColumnShard shard, Py_ssize_t start, Py_ssize_t end
    ) except -1:
        """Have the thread look at the headers of rows of a shard that is in memory.

        Nobody waits for that: who comes first looks at them.
        """
        cdef task_t task
        cdef Checking checking
        cdef Source source
        cdef uint64_t *sizes = rows.cells.sizes
        if self.drops or shard is None or end - start < WORTH_CHECKING or (
            fs_get(sizes + self.positions[start]) != UNKNOWN
            and fs_get(sizes + self.positions[end - 1]) != UNKNOWN
        ):
            return 0               # another scan has gone before
        source = shard.open_source()
        if source.base == NULL or not shard.file.believed:
            return 0
        if self.prefetcher is None:
            self.prefetcher = Prefetcher()
        if self.prefetcher.is_behind():
            return 0               # a full line would be waited for
        source.prepare()           # its bytes are touched
        memset(&task, 0, sizeof(task))
        checking = checking_of(
            rows, source, self.order, &self.positions[0], start, end
        )
        task.work = check_rows
        task.what = &checking.check
        self.prefetcher.push(task, checking)
        return 0

    cdef int map_pages(self, Source source) except -1:
        """Have a shard's pages mapped by the thread: each 16 are a fault otherwise.

        They are in memory, so nobody waits for that.
        """
        cdef task_t task
        if self.drops or source.base == NULL or source in self.mapped or (
            source.nbytes > MOST_BROUGHT
        ):
            return 0
        self.mapped.add(source)
        memset(&task, 0, sizeof(task))
        task.at = source.base
        task.size = source.nbytes
        if self.prefetcher is None:
            self.prefetcher = Prefetcher()
        self.prefetcher.push(task, source)
        return 0

    cdef int push(
        self, Source source, uint64_t start, uint64_t end, bint near, Batch batch
    ) except -1:
        """Have a run brought, and remember where it is."""
        cdef task_t task
        if source is None or end == start:
            return 0
        batch.nbytes += end - start
        if self.drops and isinstance(source, MappedSource):
            source.touch(start, end - start)
            batch.runs.append((source, start, end))
        if near:
            return 0
        memset(&task, 0, sizeof(task))
        task.offset = start
        task.size = end - start
        if source.base != NULL:
            task.at = source.base + start
        task.fd = source.fd
        task.ask = True
        if self.prefetcher is None:
            self.prefetcher = Prefetcher()
        batch.task = self.prefetcher.push(task, source)
        return 0

    cdef int pass_by(self) except -1:
        """Release the pages of the batch that was read."""
        cdef MappedSource source
        cdef MappedChunks chunks
        cdef uint64_t start, end
        if self.current is None:
            return 0
        runs, self.current = self.current.runs, None
        for source, start, end in runs:
            chunks = source.file.chunks
            if chunks is not None:
                chunks.ring.discard(chunks, start, end, True)
        return 0


def file_order(list columns not None, order not None):
    """Return positions in the order of one field's bytes; those without it come last.

    Shards whose offsets in the index are no true ones are walked over for it.

    Parameters
    ----------
    columns : list of Rows
        The first says the order; offsets of all are found.
    order : ndarray of int64
        Positions of samples that there are.
    """
    import numpy

    cdef const int64_t[::1] positions = order
    cdef Py_ssize_t count = positions.shape[0]
    cdef Py_ssize_t k
    cdef int64_t i
    cdef int32_t slot
    cdef const mark_t *marks
    cdef int64_t[::1] ranks
    cdef int64_t[::1] shards
    cdef int64_t[::1] offsets
    cdef bint in_order = True
    cdef Rows rows
    for rows in columns:
        find_offsets(rows, positions)
    rows = columns[0]
    marks = rows.cells.marks
    by_slot = numpy.array([*rows.numbers, LAST], numpy.int64)
    ranks = by_slot
    numbers = numpy.empty(count, numpy.int64)
    places = numpy.empty(count, numpy.int64)
    shards = numbers
    offsets = places
    with nogil:
        for k in range(count):
            i = positions[k]
            slot = marks[i].slot
            shards[k] = ranks[slot] if slot >= 0 else ranks[ranks.shape[0] - 1]
            offsets[k] = <int64_t> rows.cells.offsets[i] if slot >= 0 else k
            if k > 0 and (
                shards[k] < shards[k - 1]
                or (shards[k] == shards[k - 1] and offsets[k] < offsets[k - 1])
            ):
                in_order = False
    return order if in_order else order[numpy.lexsort((places, numbers))]


cdef int find_offsets(Rows rows, const int64_t[::1] positions) except -1:
    """Find the members of shards of which the index has no true offsets."""
    cdef ColumnShard shard
    cdef uint64_t offset, size
    cdef Py_ssize_t k
    cdef int32_t slot
    cdef bytearray states = bytearray(len(rows.numbers))  # 0: not seen
    cdef unsigned char[::1] known = states
    for k in range(positions.shape[0]):
        slot = rows.cells.marks[positions[k]].slot
        if slot < 0 or known[slot] == TRUE_ONES:
            continue
        try:
            if known[slot] == 0:
                known[slot] = TRUE_ONES  # if it cannot be opened, that is not tried again
            shard = rows.shard_of(positions[k])
            known[slot] = TRUE_ONES if shard.file.believed else OTHERS
            if known[slot] == OTHERS:
                shard.extent(shard.open_source(), positions[k], &offset, &size)
        except (FastshardError, OSError):  # raised when it is read
            pass
    return 0
