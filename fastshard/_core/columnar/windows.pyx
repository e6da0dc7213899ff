# cython: nonecheck=True
"""Windows of steps: slices along the first axis of a field's arrays."""

cimport cython
from cpython.buffer cimport PyBuffer_Release
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from fastshard._core.buffers cimport bytes_of, int64s_of
from fastshard._core.columnar.rows cimport (
    PACKED, ColumnShard, PackShard, Rows, decode_key,
)
from fastshard._core.dataset.npy cimport (
    Layout, find_layout, get_layout_cache, has_plain_data, stored_t,
)
from fastshard._core.dataset.shard cimport Shard
from fastshard._core.io.source cimport Source
from fastshard._core.pages cimport fs_advise_pages, fs_populate_pages

from array import array

from fastshard.errors import FieldNotFoundError, FormatError, RaggedError

cdef enum:
    MAX_HEADER = 4096              # bytes read of a member that is not mapped

ctypedef const uint8_t *bytes_t


cdef object axes_error(Rows rows, Py_ssize_t i):
    return RaggedError(
        f"field {rows.field!r} of sample {decode_key(rows.table, i)!r} is an array "
        "without axes: windows are along the first axis"
    )


cdef int64_t unmapped_steps(Rows rows, ColumnShard shard, Py_ssize_t i) except -2:
    """Return the steps of a member by its first bytes, or -1: read it whole."""
    cdef uint64_t offset, size
    cdef uint8_t *at
    cdef Layout layout
    cdef Source source = shard.open_source()
    shard.extent(source, i, &offset, &size)
    size = min(size, <uint64_t> MAX_HEADER)
    owner = source.pin(offset, size, &at)
    try:
        layout = find_layout(at, size, get_layout_cache(shard))
    except FormatError:            # raised again when it is read whole
        return -1
    if layout.shape.dimensions == 0:
        raise axes_error(rows, i)
    return layout.shape.lengths[0]


cdef int64_t steps_of(Rows rows, Py_ssize_t i) except -2:
    """Return the length of the first axis of a sample's array."""
    cdef int64_t steps
    cdef ColumnShard shard
    cdef PackShard pack
    if rows.cells.marks[i].slot <= PACKED:
        pack = rows.pack_shard(i)
        pack.row_of(i)             # checks it
        if pack.pack.layout.shape.dimensions == 0:
            raise axes_error(rows, i)
        return pack.pack.layout.shape.lengths[0]
    if rows.has_common_layout(i) and rows.common.shape.dimensions > 0:
        return rows.common.shape.lengths[0]
    shard = rows.member_shard(i)
    if shard.open_source().base == NULL:
        steps = unmapped_steps(rows, shard, i)
        if steps >= 0:
            return steps
    found = rows.array(i)
    if found.ndim == 0:
        raise axes_error(rows, i)
    return len(found)


def count_steps(Rows rows not None):
    """Return the length of the first axis of each sample's array; reads headers.

    Returns
    -------
    array of int64 [samples]
        -1 for samples without the field.

    Raises
    ------
    RaggedError
        An array has no axes.
    FormatError, OSError
        An array cannot be read.
    """
    cdef Py_buffer buffer
    cdef Py_ssize_t i
    cdef object found = array("q", bytes(8 * rows.cells.count))
    cdef int64_t *steps = int64s_of(found, &buffer, True)
    try:
        for i in range(<Py_ssize_t> rows.cells.count):
            steps[i] = steps_of(rows, i) if rows.has(i) else -1
    finally:
        PyBuffer_Release(&buffer)
    return found


@cython.final
cdef class WindowReader:
    """Reader of windows of one field, by sample and first step.

    Parameters
    ----------
    rows : Rows
    samples, starts : buffer of int64
        The position of each window's sample, and its first step.
    length : int
        Steps of a window.
    """

    cdef Rows rows
    cdef Py_buffer samples_buffer
    cdef Py_buffer starts_buffer
    cdef const int64_t *samples
    cdef const int64_t *starts
    cdef Py_ssize_t count
    cdef Py_ssize_t length

    def __cinit__(self, Rows rows not None, samples, starts, Py_ssize_t length):
        self.rows = rows
        self.samples = int64s_of(samples, &self.samples_buffer)
        self.starts = int64s_of(starts, &self.starts_buffer)
        self.count = self.samples_buffer.len // 8
        self.length = length
        if self.starts_buffer.len != self.samples_buffer.len:
            raise ValueError("expected as many starts as samples")

    def __reduce__(self):
        raise TypeError("a WindowReader does not pickle")

    cdef object array_of(self, Py_ssize_t k):
        """Return the whole array of window `k`, which has the window's steps."""
        cdef Py_ssize_t i = self.samples[k]
        cdef Py_ssize_t start = self.starts[k]
        if not 0 <= i < <Py_ssize_t> self.rows.cells.count:
            raise IndexError(f"position {i} is out of range")
        if not self.rows.has(i):
            raise FieldNotFoundError(
                self.rows.field, f"sample {decode_key(self.rows.table, i)!r}"
            )
        found = self.rows.array(i)
        if found.ndim == 0:
            raise axes_error(self.rows, i)
        if not 0 <= start <= <Py_ssize_t> len(found) - self.length:
            raise RaggedError(
                f"field {self.rows.field!r} of sample "
                f"{decode_key(self.rows.table, i)!r} has {len(found):,} steps, fewer "
                "than when windows were counted: the dataset has changed"
            )
        return found

    def views(self):
        """Return the windows: a list of views of the arrays."""
        cdef Py_ssize_t k
        cdef list found = []
        for k in range(self.count):
            start = self.starts[k]
            found.append(self.array_of(k)[start:start + self.length])
        return found

    def copy(self, allocate):
        """Return the windows in one array, or None if they differ in dtype or shape.

        Parameters
        ----------
        allocate : callable
            ``allocate(shape, dtype)`` returns a C-contiguous array.
        """
        cdef Py_buffer out
        cdef uint8_t *to
        cdef uint64_t size = 0
        cdef Py_ssize_t k
        cdef list arrays = []      # keeps the memory
        cdef bytes_t *found = <bytes_t *> malloc(
            max(self.count, 1) * sizeof(bytes_t)
        )
        if found == NULL:
            raise MemoryError
        try:
            for k in range(self.count):
                arrays.append(self.array_of(k))
            if not self.locate(arrays, found, &size):
                return None
            first = arrays[0]
            shape = self.count, self.length, *first.shape[1:]
            stack = allocate(shape, first.dtype)
            if stack.shape != shape or stack.dtype != first.dtype:
                raise ValueError(
                    f"expected an array {shape} of {first.dtype}, got {stack.shape} "
                    f"of {stack.dtype}"
                )
            if stack.nbytes == 0:
                return stack
            to = bytes_of(stack.reshape(-1).view("u1"), &out, True)
            try:
                if <uint64_t> out.len != size * self.count:
                    raise ValueError(f"the array has {out.len:,} bytes")
                with nogil:
                    for k in range(self.count):
                        memcpy(to + k * size, found[k], size)
            finally:
                PyBuffer_Release(&out)
            return stack
        finally:
            free(found)

    cdef bint locate(self, list arrays, bytes_t *found, uint64_t *size) except -1:
        """Set the address of each window's bytes, and their size.

        False if arrays differ, are not in C order, or hold objects.
        """
        cdef stored_t stored, first
        cdef uint64_t steps
        cdef Py_ssize_t k
        cdef int axis
        if not arrays or arrays[0].dtype.hasobject:
            return False
        for k in range(self.count):
            if not has_plain_data(arrays[k], &stored):
                return False
            if stored.fortran and stored.dimensions > 1:
                return False
            if k == 0:
                first = stored
            if stored.dimensions != first.dimensions or (
                stored.dtype != first.dtype and arrays[k].dtype != arrays[0].dtype
            ):
                return False
            for axis in range(1, stored.dimensions):
                if stored.lengths[axis] != first.lengths[axis]:
                    return False
            steps = max(<uint64_t> stored.lengths[0], <uint64_t> 1)
            size[0] = stored.nbytes // steps
            found[k] = stored.at + <uint64_t> self.starts[k] * size[0]
        size[0] *= self.length
        return True

    def page_in(self):
        """Bring the windows of shards that are not resident into memory."""
        cdef Shard shard
        cdef Shard last = None
        cdef Source source
        cdef bint resident = True
        cdef stored_t stored
        cdef uint64_t step, size
        cdef Py_ssize_t k
        cdef Py_ssize_t count = 0
        cdef list arrays = []
        cdef bytes_t *found = <bytes_t *> malloc(
            max(self.count, 1) * sizeof(bytes_t)
        )
        cdef uint64_t *sizes = <uint64_t *> malloc(
            max(self.count, 1) * sizeof(uint64_t)
        )
        try:
            if found == NULL or sizes == NULL:
                raise MemoryError
            for k in range(self.count):
                window = self.array_of(k)
                shard = self.rows.shard_of(self.samples[k])
                if shard is not last:
                    source = shard.open_source()
                    resident = source.base == NULL or source.is_resident()
                    last = shard
                if resident or not has_plain_data(window, &stored):
                    continue
                if stored.fortran and stored.dimensions > 1:
                    continue
                step = stored.nbytes // max(
                    <uint64_t> stored.lengths[0], <uint64_t> 1
                )
                size = step * self.length
                if size > 0:
                    arrays.append(window)
                    found[count] = stored.at + <uint64_t> self.starts[k] * step
                    sizes[count] = size
                    count += 1
            with nogil:
                for k in range(count):
                    fs_advise_pages(found[k], sizes[k])
                for k in range(count):
                    fs_populate_pages(found[k], sizes[k])
        finally:
            free(found)
            free(sizes)

    def __dealloc__(self):
        PyBuffer_Release(&self.samples_buffer)
        PyBuffer_Release(&self.starts_buffer)
