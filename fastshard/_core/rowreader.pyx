# cython: nonecheck=True
"""The arrays of single rows of an index, without a table of all."""

cimport cython
from cpython.long cimport PyLong_AsLongLongAndOverflow
from libc.stdint cimport int64_t, uint64_t

from fastshard._core.columnfile cimport ColumnFile

from fastshard.errors import FormatError


@cython.final
cdef class RowReader:
    """Makes arrays of what an index says of a sample.

    Parameters
    ----------
    fields : list of str
    bring : callable
        ``bring(field, shard)`` returns a `ColumnFile`.
    path : str
        Of the index, for messages.
    """

    cdef readonly list fields
    cdef list files                # of each field, by shard
    cdef object bring
    cdef str path
    cdef object __weakref__

    def __cinit__(self, list fields not None, bring, str path not None):
        self.fields = fields
        self.files = [{} for _ in fields]
        self.bring = bring
        self.path = path

    def __reduce__(self):
        raise TypeError("a RowReader does not pickle")

    def arrays(self, tuple row not None, str sample_id not None, bint copy=False):
        """Return the arrays of a row by field; those that the sample has.

        Parameters
        ----------
        row : tuple
            ``(offset, shard, offset, shard, ...)``, and whatever follows.
        sample_id : str
        copy : bool
            Copy them; otherwise they are on the shards' own memory.

        Raises
        ------
        FormatError
            An array cannot be read, or the row has what is no shard and offset.
        OSError
            A shard cannot be read.
        """
        cdef Py_ssize_t k
        cdef Py_ssize_t width = len(self.fields)
        cdef dict found = {}
        cdef str member = sample_id + ".npy"
        if len(row) < 2 * width:
            raise ValueError("a row of other fields")
        for k in range(width):
            if row[2 * k] is None and row[2 * k + 1] is None:
                continue
            array = self.array(k, row[2 * k], row[2 * k + 1], member)
            found[self.fields[k]] = array.copy("K") if copy else array
        return found

    def array_of(
        self, Py_ssize_t k, offset, shard, str sample_id not None, bint copy=False
    ):
        """Return the array of field `k`; see `arrays`."""
        if not 0 <= k < len(self.fields):
            raise IndexError(f"field {k} of {len(self.fields)}")
        array = self.array(k, offset, shard, sample_id + ".npy")
        return array.copy("K") if copy else array

    def file(self, Py_ssize_t k, offset, shard, str member not None):
        """Return the open shard of field `k`, and the offset that a row has, as int.

        Raises
        ------
        FormatError
            They are no shard and offset.
        """
        cdef ColumnFile file
        cdef int overflow = 0
        cdef int64_t at = -1
        if not 0 <= k < len(self.fields):
            raise IndexError(f"field {k} of {len(self.fields)}")
        if type(offset) is int and type(shard) is int and shard >= 0:
            at = PyLong_AsLongLongAndOverflow(offset, &overflow)
        if at < 0 or overflow != 0:
            raise FormatError(
                f"the index says of field {self.fields[k]!r} {offset!r:.80} and "
                f"{shard!r:.80}, which are no offset and shard", self.path, 0, member,
            )
        file = (<dict> self.files[k]).get(shard)
        if file is None:
            file = <ColumnFile?> self.bring(self.fields[k], shard)
            file.held_by(self)
            (<dict> self.files[k])[shard] = file
        return file, at

    def let_go(self, ColumnFile file not None):
        """Forget a shard; who is at it goes on."""
        for files in self.files:
            if files.get(file.number) is file:
                files.pop(file.number, None)

    cdef object array(self, Py_ssize_t k, object offset, object shard, str member):
        cdef object file = (<dict> self.files[k]).get(shard)
        cdef int overflow = 0
        cdef int64_t at = -1
        if type(offset) is int:
            at = PyLong_AsLongLongAndOverflow(offset, &overflow)
        if file is None or at < 0:
            file, at = self.file(k, offset, shard, member)
        return (<ColumnFile> file).array(<uint64_t> at, member)
