"""Readers of streaming shards: samples by position, and columns, from the mapped file.

`fastshard.streaming.Reader` derives from `ReaderBase` and inherits its indexing, so
that ``reader[i]`` runs no Python code. A class that overrides how samples are read,
`get_item`, `get_sample_data` or `decode_sample`, is asked by these methods.

Raw files may be removed and written again under a reader: it checks path and size of
its file every 5 ms at most, and opens a file that is another one.
"""

cimport cython
from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.long cimport PyLong_AsSsize_t
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from fastshard._core.buffers cimport bytes_of, int64s_of
from fastshard._core.io.source cimport (
    LocalFile, MappedFile, MappedSource, MemorySource, local_source,
)
from fastshard._core.pages cimport fs_now
from fastshard._core.streaming.plan cimport RowTable

import numpy
import os
import sys

from fastshard.errors import FormatError

cdef enum:
    UNDECIDED = 0
    BY_ROWS = 1                    # compiled
    BY_METHODS = 2                 # get_item, or a method that it calls, is overridden

cdef tuple METHODS = ("get_item", "get_sample_data", "decode_sample")


@cython.final
@cython.no_gc
cdef class OpenRows:
    """Open raw file of a shard; immutable but for the time of its next check."""

    def __cinit__(self, raw, str path not None, uint64_t nbytes):
        cdef LocalFile file
        if isinstance(raw, str):
            file = LocalFile(raw)
            try:
                check_size(path, file.nbytes, nbytes)
                source = local_source(file, "mmap", True, False, None)
                if isinstance(source, MappedSource):
                    self.mapped = source
                    self.file = self.mapped.file
                else:              # the file system maps no files
                    self.file = MemorySource(source.read(0, nbytes), path).file
            finally:
                file.close()
            self.path = raw
            self.device = file.device
            self.inode = file.inode
        else:
            self.file = MemorySource(raw, path).file
            check_size(path, self.file.nbytes, nbytes)
        self.copy = True
        self.check_every = CHECK_EVERY
        self.next_check = fs_now() + CHECK_EVERY

    def __reduce__(self):
        raise TypeError("an open file does not pickle; pickle the reader")

    def view(self, uint64_t size):
        """Return a view of at most `size` of the first bytes."""
        size = min(size, self.file.nbytes)
        if self.mapped is not None:
            self.mapped.ensure_resident(0, size)
        return self.file.view(0, size)

    def set_rows(self, RowTable rows not None, bytes mask, bint copy):
        """Set the rows of the file and how they are decoded, before the first read."""
        if rows.nbytes != self.file.nbytes:
            raise ValueError("the rows are of another file")
        self.rows = rows
        self.mask = mask
        self.copy = copy

    def check_always(self):
        """Check at each read whether the file is still at its path."""
        self.check_every = self.next_check = 0

    cdef bint is_current(self) except -1:
        """Return whether the file is still at its path; at most every 5 ms."""
        cdef uint64_t now = fs_now()
        if now < self.next_check or self.mapped is None:
            return True
        try:
            status = os.stat(self.path)
        except OSError:
            return False
        if (status.st_dev, status.st_ino) != (self.device, self.inode):
            return False
        if <uint64_t> status.st_size < self.file.nbytes:
            raise FormatError(
                "the file was truncated after it was mapped", self.path, status.st_size
            )
        self.next_check = now + self.check_every
        return True

    cdef const uint8_t *row(
        self, Py_ssize_t i, bytes mask, uint64_t *offset, uint64_t *size
    ) except? NULL:
        """Return the start of a row, with a mask's fields in memory; set its extent."""
        self.rows.row_extent(i, offset, size)
        if self.mapped is not None:
            self.rows.ensure_row(self.mapped, i, offset[0], size[0], mask)
        return self.file.base + offset[0]


cdef int check_size(str path, uint64_t found, uint64_t nbytes) except -1:
    if found != nbytes:
        raise FormatError(
            f"the file has {found:,} bytes, by index.json {nbytes:,}",
            path, min(found, nbytes),
        )
    return 0


cdef class ReaderBase:
    """Indexing of readers; a subclass has `size` and `get_item`.

    A subclass whose samples are compiled rows has ``_open_rows()``, which returns an
    `OpenRows` with its rows set, and ``_make_rows()``, which returns the rows of an
    empty shard with the same columns.
    """

    def __cinit__(self, *args, **kwargs):
        self.kind = UNDECIDED

    def __len__(self):
        return self.size

    def __getitem__(self, at):
        """Return a sample, or a list of samples for a slice, a list or an array."""
        cdef OpenRows opened
        cdef Py_ssize_t i
        if type(at) is int and self.kind == BY_ROWS:
            with cython.critical_section(self):
                opened = self.opened
            if opened is not None:
                try:
                    i = PyLong_AsSsize_t(at)
                except OverflowError:
                    raise out_of_range(self, at) from None
                if i < 0:
                    i += opened.rows.count
                if not 0 <= i < opened.rows.count:
                    raise out_of_range(self, at)
                return self.sample(i, None, False)
        return self.item(at)

    cdef object item(self, object at):
        """Implement `__getitem__` except for positions in an open file."""
        if isinstance(at, int) or is_numpy_integer(at):
            size = self.size
            i = int(at)
            if i < 0:
                i += size
            if not 0 <= i < size:
                raise out_of_range(self, at)
            if self.kind == UNDECIDED:
                self.decide()
            return self.get_item(i) if self.kind == BY_METHODS else (
                self.sample(i, None, False)
            )
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(self.size))]
        if isinstance(at, list) or is_numpy_array(at):
            return [self[each] for each in at]
        raise ValueError(
            f"Unsupported argument type passed to __getitem__: {type(at)}."
        )

    def __getitems__(self, positions):
        """Return the samples at several positions, for torch's fetchers."""
        return [self[i] for i in positions]

    cdef int decide(self) except -1:
        """Choose once between compiled rows and methods to read samples."""
        cls = type(self)
        self.kind = BY_METHODS
        for base in cls.__mro__:
            if "_open_rows" in vars(base):
                if all([getattr(cls, name) == getattr(base, name) for name in METHODS]):
                    self.kind = BY_ROWS
                break
        return 0

    def _has_rows(self):
        """Return whether samples are compiled rows."""
        if self.kind == UNDECIDED:
            self.decide()
        return self.kind == BY_ROWS

    def _release(self):
        """Drop the open file; views of it stay valid."""
        with cython.critical_section(self):
            self.opened = None
            self.loose = None

    cdef OpenRows get_open(self):
        """Return the open file of the raw file now at its path."""
        cdef OpenRows opened
        with cython.critical_section(self):
            opened = self.opened
        if opened is None or not opened.is_current():
            opened = self.reopen()
        return opened

    cdef OpenRows reopen(self):
        cdef OpenRows opened
        self._release()
        opened = self._open_rows()
        if opened.rows is None:
            raise ValueError("the rows of the open file are not set")
        if self.kind == UNDECIDED:
            self.decide()
        with cython.critical_section(self):
            self.opened = opened
        return opened

    cdef object sample(self, Py_ssize_t i, bytes mask, bint whole):
        """Return row `i`, of the columns of a mask; None: by default, or all."""
        cdef OpenRows opened = self.get_open()
        cdef uint64_t offset = 0
        cdef uint64_t size = 0
        cdef const uint8_t *row
        if mask is None and not whole:
            mask = opened.mask
        row = opened.row(i, mask, &offset, &size)
        return opened.rows.decode_row(
            i, row, size, opened.file, mask, opened.copy, None
        )

    def _sample(self, i, fields):
        """Return the sample at a position that is checked; None: the default fields."""
        if fields is None:
            return self.sample(i, None, False)
        return self.sample(i, self.get_open().rows.schema.mask(fields), True)

    def _sample_bytes(self, i):
        """Return the stored bytes of a sample."""
        cdef OpenRows opened = self.get_open()
        cdef uint64_t offset = 0
        cdef uint64_t size = 0
        cdef const uint8_t *row = opened.row(i, None, &offset, &size)
        return PyBytes_FromStringAndSize(<const char *> row, <Py_ssize_t> size)

    def _decode(self, data):
        """Return the values of a sample's bytes; opens no file."""
        cdef RowTable rows
        with cython.critical_section(self):
            rows = self.loose
        if rows is None:
            rows = self._make_rows()
            with cython.critical_section(self):
                self.loose = rows
        return rows.decode(data, -1, rows.schema.mask(self.fields), self.copy)

    def _get_open(self):
        """Return the open file of the compiled rows."""
        return self.get_open()


cdef object out_of_range(ReaderBase reader, object at):
    return IndexError(f"sample {at} is out of range: the shard has {reader.size:,}")


cdef bint is_numpy_integer(object at) except -1:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(at, numpy.integer)


cdef bint is_numpy_array(object at) except -1:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(at, numpy.ndarray)


def read_columns(OpenRows opened not None, positions, fields):
    """Return columns at positions by name: an array of fixed fields, a list of others.
    """
    cdef Py_ssize_t k
    names = opened.rows.names
    mask = opened.rows.schema.mask(fields)
    if mask is None:
        mask = opened.mask
    columns = {}
    for k in range(opened.rows.width):
        if mask is None or (<bytes> mask)[k] != 0:
            layout = opened.rows.layout(k)
            if layout is None or layout[0] is None:
                columns[names[k]] = read_values(opened, positions, k, mask)
            else:
                columns[names[k]] = read_numbers(
                    opened, positions, k, mask, layout[0], layout[1]
                )
    return columns


cdef list read_values(
    OpenRows opened, object positions, Py_ssize_t k, bytes mask
):
    """Return the values of column `k`."""
    cdef uint64_t offset = 0
    cdef uint64_t size = 0
    cdef uint64_t start = 0
    cdef const uint8_t *row
    cdef Py_ssize_t i
    values = []
    for i in positions.tolist():
        row = opened.row(i, mask, &offset, &size)
        opened.rows.field_extent(i, row, size, k, &start, &size)
        values.append(opened.rows.decode_field(
            i, k, row + start, size, start, opened.file, opened.copy
        ))
    return values


cdef object read_numbers(
    OpenRows opened, object positions, Py_ssize_t k, bytes mask, object dtype,
    object shape,
):
    """Return the numbers or arrays of column `k`, which have one layout, stacked."""
    cdef Py_buffer numbers, buffer
    cdef const int64_t *places
    cdef uint64_t offset = 0
    cdef uint64_t size = 0
    cdef uint64_t start = 0
    cdef const uint8_t *row
    cdef uint8_t *to
    cdef Py_ssize_t n
    cdef Py_ssize_t count = len(positions)
    stack = numpy.empty((count, *shape), dtype)
    if count == 0:
        return stack
    places = int64s_of(positions, &numbers)
    to = bytes_of(stack.reshape(-1).view("u1"), &buffer, True)
    try:
        for n in range(count):
            row = opened.row(places[n], mask, &offset, &size)
            opened.rows.field_extent(places[n], row, size, k, &start, &size)
            memcpy(to, row + start, size)  # the size is the layout's
            to += size
    finally:
        PyBuffer_Release(&buffer)
        PyBuffer_Release(&numbers)
    return stack
