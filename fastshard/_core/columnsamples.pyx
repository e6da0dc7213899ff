# cython: nonecheck=True
"""The samples of a columnar dataset: rows of its index, whose fields lie in shards."""

cimport cython
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t
from libc.string cimport memset

from fastshard._core.extents cimport (
    ExtentTable, checked_position, columns_add, columns_free, columns_t, info_at,
    table_of, text_to,
)
from fastshard._core.platform cimport fs_prefetch_line
from fastshard._core.rows cimport Rows, key_of
from fastshard._core.samples cimport FAR, NEARER, SampleBase, SamplesBase
from fastshard._core.shard cimport Shard
from fastshard._core.span cimport span_t

from fastshard._core.lookup import find_all
from fastshard.errors import (
    ClosedError, FieldNotFoundError, FormatError, SampleNotFoundError,
)

cdef enum:
    COMING = 4                     # samples until one is read


@cython.final
cdef class ColumnSamples(SamplesBase):
    """Samples whose fields lie in shards of their own.

    Parameters
    ----------
    columns : list of Rows
    names : ExtentTable
        The samples' names, as members are called: with ``.npy``.
    sample_type : type
    owner : object
        What they belong to: ``path`` for messages, ``closed``.
    has_metadata : bool
        Whether the names' infos are the samples' metadata.
    """

    def __cinit__(
        self, list columns not None, ExtentTable names not None, type sample_type, owner,
        bint has_metadata=False,
    ):
        self.columns = columns
        self.by_field = {column.field: column for column in columns}
        self.names = names
        self.sample_type = sample_type
        self.owner = owner
        self.has_metadata = has_metadata

    @property
    def field_names(self):
        """The fields, in the order of the index."""
        return list(self.by_field)

    def having(self, tuple fields not None):
        """Return for each sample whether it has all these fields: 0 or 1 a byte."""
        cdef Py_ssize_t i
        cdef Rows rows
        found = bytearray(b"\1") * self.names.columns.count
        for field in fields:
            rows = self.by_field.get(field)
            for i in range(<Py_ssize_t> self.names.columns.count):
                if rows is None or not rows.has(i):
                    found[i] = 0
        return found

    def find_keys(self, list keys not None):
        """Return the positions of samples: an array of int64.

        Raises
        ------
        SampleNotFoundError
            There is no sample of one of the keys.
        """
        cdef int64_t[::1] positions
        cdef Py_ssize_t k
        found = find_all(self.names, keys, ".npy")
        positions = found
        for k in range(len(keys)):
            if positions[k] < 0:
                raise SampleNotFoundError(keys[k], self.owner.path)
        return found

    def search_key(self, str key not None):
        """Return the position of a sample, or -1."""
        return self.search(key)

    def keys_of(self, positions):
        """Return the keys of samples: a list.

        Parameters
        ----------
        positions : buffer of int64
            Of samples that there are.
        """
        cdef const int64_t[::1] numbers = positions
        cdef Py_ssize_t count = self.count()
        cdef Py_ssize_t k
        cdef list found = []
        for k in range(numbers.shape[0]):
            if not 0 <= numbers[k] < count:
                raise IndexError(f"position {numbers[k]} is out of range")
            found.append(self.key(numbers[k]))
        return found

    cdef Py_ssize_t count(self) except -1:
        if self.owner.closed:
            raise ClosedError(f"{self.owner.path} is closed")
        return self.names.columns.count

    cdef str key(self, Py_ssize_t i):
        return key_of(self.names, i)

    cdef Py_ssize_t search(self, object key) except -2:
        cdef Py_ssize_t size
        try:
            PyUnicode_AsUTF8AndSize(key, &size)
        except UnicodeEncodeError:  # ids are UTF-8; half a surrogate pair is in none
            return -1
        return self.names.find(f"{key}.npy")

    cdef str where(self):
        return self.owner.path

    cdef list fields(self, Py_ssize_t i):
        cdef Rows rows
        return [rows.field for rows in self.columns if rows.has(i)]

    cdef Py_ssize_t member(self, Py_ssize_t i, object field) except -2:
        cdef Rows rows = self.by_field.get(field)
        return i if rows is not None and rows.has(i) else -1

    cdef Shard holder(self, Py_ssize_t i, object field):
        cdef Rows rows = self.by_field[field]
        return rows.shard_of(i)

    cdef bint is_near(self, SampleBase sample) except -1:
        cdef Rows rows
        cdef Py_ssize_t i = sample.position
        for rows in self.columns:
            if rows.has(i) and (sample.only is None or rows.field in sample.only):
                if not rows.shard_of(i).open_source().is_near():
                    return False
        return True

    cdef void expect(self, Py_ssize_t i, int away) noexcept:
        cdef Rows rows
        if away == FAR:
            fs_prefetch_line(self.names.columns.name_ends + i)
        for rows in self.columns:
            rows.expect(i, away)

    def arrays(self, i, list columns=None, bint copy=False):
        """Return the arrays of a sample by field; of some columns only.

        Raises
        ------
        IndexError
            There is no such position.
        FormatError, OSError
            An array cannot be read.
        """
        cdef Py_ssize_t at = checked_position(i, self.count())
        cdef Rows rows
        cdef dict found = {}
        columns = self.columns if columns is None else columns
        for rows in columns:
            rows.expect(at, FAR)
        for rows in columns:
            if not rows.is_kept(at):
                rows.expect(at, NEARER)
        for rows in columns:
            if rows.has(at):
                found[rows.field] = rows.array(at)
        if copy:
            return {field: array.copy("K") for field, array in found.items()}
        return found

    def read(self, str key not None, list columns not None, bint copy=False):
        """Return the arrays of a sample by field, and the text of its metadata.

        None where there is no such sample, and as a text that is no UTF-8. Needs
        `has_metadata`.

        Raises
        ------
        FormatError, OSError
            An array cannot be read.
        """
        cdef Py_ssize_t i = self.search(key)
        if i < 0:
            return None
        return self.arrays(i, columns, copy), self.metadata_text(i)

    def read_many(self, list keys not None, list columns not None, bint copy=False):
        """Return what `read` does, of many; None where one of them is not there."""
        cdef Py_ssize_t i, k
        cdef list found = []
        cdef object places = find_all(self.names, keys, ".npy")
        cdef int64_t[::1] positions = places
        cdef Py_ssize_t count = positions.shape[0]
        cdef int away
        cdef Rows rows
        for k in range(count):
            if positions[k] < 0:
                return None
        for k in range(count):
            for away in (FAR, NEARER):
                i = k + (COMING if away == NEARER else 2 * COMING)
                if i < count:      # its memory is asked for before its turn
                    for rows in columns:
                        rows.expect(positions[i], away)
            i = positions[k]
            found.append((self.arrays(i, columns, copy), self.metadata_text(i)))
        return found

    cpdef metadata_text(self, Py_ssize_t i):
        """Return the text of a sample's metadata, maybe empty; None: it is no UTF-8."""
        cdef span_t text
        if not 0 <= i < <Py_ssize_t> self.names.columns.count:
            raise IndexError(f"position {i} is out of range")
        text = info_at(&self.names.columns, i)
        try:
            return PyUnicode_DecodeUTF8(<const char *> text.at, text.left, NULL)
        except UnicodeDecodeError:
            return None

    def columns_of(self, fields):
        """Return the columns of some fields.

        Raises
        ------
        FieldNotFoundError
            There is no such field.
        """
        for field in fields:
            if field not in self.by_field:
                raise FieldNotFoundError(field, self.owner.path)
        return [self.by_field[field] for field in fields]


def read_rows(chunks, list fields not None, bring, str path not None):
    """Read rows of an index.

    Parameters
    ----------
    chunks : iterable of list of tuple
        ``(id, offset, shard, offset, shard, ...)``, the latter of each field.
    fields : list of str
    bring : callable
        ``bring(field)`` returns what `Rows` takes.
    path : str
        Of the index, for messages.

    Returns
    -------
    columns : list of Rows
    names : ExtentTable

    Raises
    ------
    FormatError
        A sample's id is no text.
    """
    cdef columns_t columns
    cdef span_t name
    cdef Rows rows
    cdef tuple row
    cdef Py_ssize_t k
    cdef Py_ssize_t width = 2 * len(fields) + 1
    cdef list found = [Rows(field, bring(field), path) for field in fields]
    cdef list slots = [{} for _ in fields]
    cdef ExtentTable names
    memset(&columns, 0, sizeof(columns))
    try:
        for chunk in chunks:
            for row in chunk:
                if len(row) != width:
                    raise ValueError(f"a row of {len(row)} values instead of {width}")
                if type(row[0]) is not str:
                    raise FormatError(
                        f"the id of row {columns.count + 1:,} is {row[0]!r}, no text",
                        path, 0,
                    )
                member = (<str> row[0]) + ".npy"
                keeper = text_to(member, &name)
                if keeper is None or not columns_add(&columns, 0, 0, name):
                    raise MemoryError
                for k in range(len(found)):
                    rows = <Rows> found[k]
                    rows.add(row[2 * k + 1], row[2 * k + 2], <dict> slots[k])
        names = table_of(&columns)
    finally:
        columns_free(&columns)
    for rows in found:
        rows.finish(names)
    return found, names
