# cython: nonecheck=True
"""Reads of rows in the order of their files: sorted, and prefetched in batches.

A scan checks the headers of the next rows in its prefetching thread.
"""

cimport cython
from cpython.buffer cimport PyBuffer_Release
from cpython.bytearray cimport PyByteArray_AS_STRING
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memset

from fastshard._core.buffers cimport int64s_of
from fastshard._core.columnar.column_file cimport BLOCK
from fastshard._core.columnar.members cimport (
    LINE, column_t, has_layout, is_alike, prefetch_header, set_column, set_header,
    size_at,
)
from fastshard._core.columnar.rows cimport (
    PACKED, UNKNOWN, ColumnShard, Rows, mapping_t, mark_t, pack_place_t,
)
from fastshard._core.dataset.shard cimport Shard
from fastshard._core.io.paging cimport MappedChunks, PageRing, Prefetcher, task_t
from fastshard._core.io.source cimport MAX_PAGE_IN, MappedSource, Source
from fastshard._core.platform cimport fs_load, fs_prefetch_line
from fastshard._core.threads cimport fs_atomic_load

from collections import deque

from fastshard.errors import FastshardError

cdef enum:                         # offsets of a shard; 0: unknown
    EXACT = 1
    INEXACT = 2

NO_SHARD = (1 << 63) - 1           # sorts after all shard numbers

cdef uint64_t MAX_OFFSET = 1 << 62  # bytes


cdef int find_offsets(Rows rows, const int64_t *positions, Py_ssize_t count) except -1:
    """Find the members of shards for which the index holds no exact offsets."""
    cdef ColumnShard shard
    cdef uint64_t offset, size
    cdef Py_ssize_t k
    cdef int32_t slot
    cdef bytearray by_slot = bytearray(len(rows.numbers))
    cdef uint8_t *kinds = <uint8_t *> PyByteArray_AS_STRING(by_slot)
    for k in range(count):
        slot = rows.cells.marks[positions[k]].slot
        if slot < 0 or kinds[slot] == EXACT:
            continue
        try:
            if kinds[slot] == 0:
                kinds[slot] = EXACT  # so that a shard that fails is opened once
            shard = rows.member_shard(positions[k])
            kinds[slot] = EXACT if shard.file.is_exact else INEXACT
            if kinds[slot] == INEXACT:
                shard.extent(shard.open_source(), positions[k], &offset, &size)
        except (FastshardError, OSError):  # raised when it is read
            pass
    return 0


cdef bint write_extents(
    const mark_t *marks, const pack_place_t *packs, const uint64_t *cells,
    const int64_t *positions, Py_ssize_t count, const int64_t *ranks, Py_ssize_t last,
    int64_t *shards, int64_t *offsets,
) noexcept nogil:
    """Write each sample's shard and offset; say whether they are in order.

    `ranks` has the number of the shard in each slot, and at `last` NO_SHARD.
    """
    cdef bint in_order = True
    cdef Py_ssize_t k
    cdef int64_t i
    cdef int32_t slot
    for k in range(count):
        i = positions[k]
        slot = marks[i].slot
        offsets[k] = k
        if slot >= 0:
            offsets[k] = <int64_t> cells[i]
        elif slot <= PACKED:       # a row has at least one byte
            slot = packs[PACKED - slot].slot
            offsets[k] = <int64_t> min(cells[i], MAX_OFFSET) + marks[i].layout
        shards[k] = ranks[slot if slot >= 0 else last]
        if k > 0 and (
            shards[k] < shards[k - 1]
            or (shards[k] == shards[k - 1] and offsets[k] < offsets[k - 1])
        ):
            in_order = False
    return in_order


def sort_in_file_order(list columns not None, order not None):
    """Return positions in file order of one field; samples without the field come last.

    Shards without exact offsets in the index are scanned.
    """
    import numpy

    cdef Py_buffer[4] buffers
    cdef const int64_t *positions
    cdef const int64_t *ranks
    cdef int64_t *shards
    cdef int64_t *offsets
    cdef Py_ssize_t count
    cdef bint in_order
    cdef size_t k
    cdef Rows rows
    memset(buffers, 0, sizeof(buffers))
    try:
        positions = int64s_of(order, &buffers[0])
        count = buffers[0].len // 8
        for rows in columns:
            find_offsets(rows, positions, count)
        rows = columns[0]
        by_slot = numpy.array([*rows.numbers, NO_SHARD], numpy.int64)
        numbers = numpy.empty(count, numpy.int64)
        by_offset = numpy.empty(count, numpy.int64)
        ranks = int64s_of(by_slot, &buffers[1])
        shards = int64s_of(numbers, &buffers[2], True)
        offsets = int64s_of(by_offset, &buffers[3], True)
        with nogil:
            in_order = write_extents(
                rows.cells.marks, rows.cells.packs, rows.cells.offsets, positions,
                count, ranks, buffers[1].len // 8 - 1, shards, offsets,
            )
    finally:
        for k in range(4):
            PyBuffer_Release(&buffers[k])  # no-op if never acquired
    return order if in_order else order[numpy.lexsort((by_offset, numbers))]


cdef enum:
    CHECKED_AHEAD = 10             # rows whose headers are prefetched
    MAX_GAP = 64 << 10             # bytes between members that are merged
    MAX_EXTENT = 1 << 20           # bytes of a merged extent
    MAX_BATCHES = 64               # ahead
    MIN_CHECKED = 8                # rows of a shard that are worth a task


cdef struct check_t:               # rows of one shard whose headers are checked
    column_t column
    mapping_t mapping
    const int64_t *positions
    size_t start                   # indexes in `positions`
    size_t end
    int32_t slot                   # rows of other shards are skipped


cdef void prefetch_checked(const check_t *check, size_t k) noexcept nogil:
    """Prefetch the headers of a row ahead of row `k`."""
    cdef const column_t *column = &check.column
    cdef uint64_t nbytes = check.mapping.nbytes
    cdef int64_t i
    cdef uint64_t offset
    cdef const uint8_t *data
    if k + CHECKED_AHEAD >= check.end:
        return
    i = check.positions[k + CHECKED_AHEAD]
    offset = fs_load(column.offsets + i)
    if column.marks[i].slot != check.slot or not BLOCK <= offset < nbytes:
        return
    data = check.mapping.base + offset
    if fs_load(column.sizes + i) == UNKNOWN:
        prefetch_header(data)
    if column.tag != 0 and not has_layout(column, i):
        fs_prefetch_line(data)
        fs_prefetch_line(check.mapping.base + min(offset + LINE, nbytes - 1))


cdef void check_rows(const void *at) noexcept nogil:
    """Check the headers of rows of one shard; `at` is a check_t."""
    cdef const check_t *check = <const check_t *> at
    cdef const column_t *column = &check.column
    cdef uint64_t offset
    cdef size_t k
    cdef int64_t i
    for k in range(check.start, check.end):
        prefetch_checked(check, k)
        i = check.positions[k]
        if column.marks[i].slot != check.slot or has_layout(column, i):
            continue
        offset = fs_atomic_load(column.offsets + i)
        if offset < BLOCK or offset > check.mapping.nbytes:
            continue
        if column.tag == 0:
            size_at(column, i, &check.mapping, offset)
        elif is_alike(column, i, &check.mapping, offset):
            column.marks[i].layout = column.tag


@cython.final
@cython.no_gc
cdef class HeaderCheck:
    """Task that checks the headers of rows; owns the memory it reads.

    The shard must be mapped, its offsets exact, and the positions in range.
    """

    cdef check_t check
    cdef tuple owners              # of the memory

    def __reduce__(self):
        raise TypeError("a HeaderCheck does not pickle")


cdef HeaderCheck make_header_check(
    Rows rows, Source source, object order, const int64_t *positions, size_t start,
    size_t end,
):
    """Return the check of the rows of one shard in a part of an order.

    The row at `start` selects the shard; rows of others are skipped.
    """
    cdef HeaderCheck header_check = HeaderCheck.__new__(HeaderCheck)
    cdef check_t *check = &header_check.check
    cdef bytes header = None
    set_column(rows, &check.column)
    check.positions = positions
    check.start = start
    check.end = end
    check.slot = check.column.marks[positions[start]].slot
    check.mapping.base = source.base
    check.mapping.nbytes = source.nbytes
    check.mapping.is_exact = True
    layout = rows.layout
    if layout is not None and layout[3] is not None and layout[4] >= len(layout[3]):
        header = layout[3]
        set_header(&check.column, header, layout[4], layout[5])
    header_check.owners = rows.table, source, order, header
    return header_check


@cython.final
cdef class Batch:
    """Prefetched bytes of one batch."""

    cdef uint64_t task             # the last one; 0: the bytes are resident
    cdef uint64_t nbytes
    cdef list extents              # (source, start, end) of mapped bytes
    cdef list sources


@cython.final
cdef class RowPrefetcher:
    """Iterator over batches of rows that prefetches the next ones."""

    cdef list columns
    cdef object order
    cdef Py_buffer buffer          # of the order
    cdef const int64_t *positions  # of the buffer
    cdef Py_ssize_t step
    cdef uint64_t window_bytes
    cdef PageRing ring
    cdef bint drops                # pages are released: touch none ahead
    cdef bint whole
    cdef bint has_failed           # some bytes could not be paged in
    cdef Prefetcher prefetcher
    cdef set mapped                # sources whose pages are mapped
    cdef object batches            # deque of (start, end, Batch) not returned yet
    cdef Py_ssize_t next_row       # the first that is not prefetched
    cdef uint64_t ahead            # bytes of the batches
    cdef Batch current             # the batch returned last

    def __cinit__(
        self, list columns not None, order not None, Py_ssize_t step,
        uint64_t window_bytes, *, PageRing ring, bint whole
    ):
        if step < 1:
            raise ValueError(f"step must be at least 1, got {step}")
        self.columns = columns
        self.order = order
        self.positions = int64s_of(order, &self.buffer)
        self.step = step
        self.window_bytes = window_bytes
        self.ring = ring
        self.drops = ring is not None
        self.whole = whole
        self.batches = deque()
        self.mapped = set()

    def __dealloc__(self):
        PyBuffer_Release(&self.buffer)  # no-op if never acquired

    def __reduce__(self):
        raise TypeError("a RowPrefetcher does not pickle")

    def __next__(self):
        """Return the positions of the next batch; its bytes are resident."""
        cdef Batch batch
        cdef Py_ssize_t start, end
        self.release_pages()
        while self.next_row < len(self.order) and len(self.batches) < MAX_BATCHES and (
            not self.batches or self.ahead < self.window_bytes
        ):
            self.prefetch_batch()
        if not self.batches:
            self.close()
            raise StopIteration
        start, end, batch = self.batches.popleft()
        self.ahead -= batch.nbytes
        self.current = batch
        for source in batch.sources:
            (<Source> source).check_size()  # before its bytes are touched
        if batch.task > 0:
            self.prefetcher.wait(batch.task)
            if self.prefetcher.failure_count() > 0:
                self.distrust()
        return self.order[start:end]

    def __iter__(self):
        return self

    @property
    def is_complete(self):
        """True if all bytes of the batches so far could be read."""
        return not self.has_failed

    cdef int distrust(self) except -1:
        """Make later batches ask for residency again, which raises the error."""
        cdef Rows rows
        self.has_failed = True
        for rows in self.columns:
            rows.mappings = None
        return 0

    def close(self):
        """End the thread; release the pages of all batches."""
        self.next_row = len(self.order)
        if self.prefetcher is not None:
            self.prefetcher.stop()
            self.prefetcher = None
        self.release_pages()
        while self.batches:
            self.current = self.batches.popleft()[2]
            self.release_pages()
        if self.ring is not None:
            self.ring.release()

    cdef int prefetch_batch(self) except -1:
        """Prefetch the next batch."""
        cdef Batch batch = Batch.__new__(Batch)
        cdef Py_ssize_t start = self.next_row
        cdef Py_ssize_t end = min(start + self.step, <Py_ssize_t> len(self.order))
        cdef Rows rows
        batch.extents = []
        batch.sources = []
        end = self.end_of(start, end)
        for rows in self.columns:
            try:
                self.prefetch_rows(rows, start, end, batch)
            except (FastshardError, OSError):  # raised when it is read
                pass
        self.next_row = end
        self.ahead += batch.nbytes
        self.batches.append((start, end, batch))
        return 0

    cdef Py_ssize_t end_of(self, Py_ssize_t start, Py_ssize_t end) except -1:
        """Return the end of a batch: a quarter of the window, unless `whole`."""
        cdef Rows rows
        cdef Shard shard
        cdef uint64_t offset, size
        cdef uint64_t nbytes = 0
        cdef Py_ssize_t k
        cdef int64_t i
        if self.whole or not self.drops:
            return end
        for k in range(start, end):
            i = self.positions[k]
            for rows in self.columns:
                if PACKED < rows.cells.marks[i].slot < 0:
                    continue
                try:
                    shard = rows.shard_of(i)
                except (FastshardError, OSError):  # raised when it is read
                    continue
                if shard.estimate_extent(shard.open_source(), i, &offset, &size):
                    nbytes += size
            if nbytes >= self.window_bytes // 4:
                return k + 1
        return end

    cdef int prefetch_rows(
        self, Rows rows, Py_ssize_t start, Py_ssize_t end, Batch batch
    ) except -1:
        """Prefetch one field of a batch, in merged extents."""
        cdef Shard shard = None
        cdef Source source
        cdef Source last = None
        cdef bint resident = True
        cdef int32_t slot
        cdef int32_t last_slot = -1
        cdef uint64_t offset, size
        cdef uint64_t extent_start = 0
        cdef uint64_t extent_end = 0
        cdef Py_ssize_t first = start
        cdef Py_ssize_t k
        cdef int64_t i
        for k in range(start, end):
            i = self.positions[k]
            slot = rows.cells.marks[i].slot
            if PACKED < slot < 0:
                continue
            if slot != last_slot:
                if resident:
                    self.check(rows, shard, first, k)
                first = k
                last_slot = slot
                shard = rows.shard_of(i)
                source = shard.open_source()
                if source is not last:
                    self.push(last, extent_start, extent_end, resident, batch)
                    last = source
                    batch.sources.append(source)
                    resident = source.is_resident()
                    if resident:
                        self.map_pages(source)
                    extent_start = extent_end = 0
            if (resident and not self.drops) or not (
                shard.estimate_extent(last, i, &offset, &size)
            ):
                continue
            size = min(size, <uint64_t> MAX_PAGE_IN)
            if (
                offset < extent_start or offset > extent_end + MAX_GAP
                or offset + size - extent_start > MAX_EXTENT
            ):
                self.push(last, extent_start, extent_end, resident, batch)
                extent_start = extent_end = offset
            extent_end = max(extent_end, offset + size)
        self.push(last, extent_start, extent_end, resident, batch)
        if resident:
            self.check(rows, shard, first, end)
        return 0

    cdef int check(
        self, Rows rows, Shard holder, Py_ssize_t start, Py_ssize_t end
    ) except -1:
        """Push a task that checks the headers of rows of a resident shard.

        The task is never waited for: rows not checked yet are checked when copied.
        """
        cdef task_t task
        cdef HeaderCheck header_check
        cdef Source source
        cdef uint64_t *sizes = rows.cells.sizes
        cdef ColumnShard shard
        if holder is None or holder.builds:
            return 0
        shard = <ColumnShard> holder
        if self.drops or end - start < MIN_CHECKED or (
            fs_atomic_load(sizes + self.positions[start]) != UNKNOWN
            and fs_atomic_load(sizes + self.positions[end - 1]) != UNKNOWN
        ):
            return 0               # checked by an earlier scan
        source = shard.open_source()
        if source.base == NULL or not shard.file.is_exact:
            return 0
        if self.prefetcher is None:
            self.prefetcher = Prefetcher()
        if self.prefetcher.is_backlogged():
            return 0               # a push to a full queue blocks
        source.check_size()        # before its bytes are touched
        memset(&task, 0, sizeof(task))
        header_check = make_header_check(
            rows, source, self.order, self.positions, start, end
        )
        task.callback = check_rows
        task.argument = &header_check.check
        self.prefetcher.push(task, header_check)
        return 0

    cdef int map_pages(self, Source source) except -1:
        """Push a task that maps the pages of a resident shard.

        Otherwise every 16 pages take a page fault in the caller's thread.
        """
        cdef task_t task
        if self.drops or source.base == NULL or source in self.mapped or (
            source.nbytes > MAX_PAGE_IN
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
        self, Source source, uint64_t start, uint64_t end, bint resident, Batch batch
    ) except -1:
        """Push an extent to the prefetching thread, and add it to the batch."""
        cdef task_t task
        if source is None or end == start:
            return 0
        batch.nbytes += end - start
        if self.drops and isinstance(source, MappedSource):
            source.touch(start, end - start)
            batch.extents.append((source, start, end))
        if resident:
            return 0
        memset(&task, 0, sizeof(task))
        task.offset = start
        task.size = end - start
        if source.base != NULL:
            task.at = source.base + start
        task.advise = True
        if self.prefetcher is None:
            self.prefetcher = Prefetcher()
        lease = source.lease(&task.fd)
        if lease is not None:
            batch.task = self.prefetcher.push(task, lease)
        return 0

    cdef int release_pages(self) except -1:
        """Release the pages of the batch that was read."""
        cdef MappedSource source
        cdef MappedChunks chunks
        cdef uint64_t start, end
        if self.current is None:
            return 0
        extents, self.current = self.current.extents, None
        for source, start, end in extents:
            chunks = source.file.chunks
            if chunks is not None:
                chunks.ring.discard(chunks, start, end, True)
        return 0
