"""Shards whose members are fields inside rows or payloads: a base class."""

cimport cython

from fastshard._core.dataset.shard cimport Shard
from fastshard._core.io.source cimport Source
from fastshard._core.table.extents cimport ExtentTable, resolve_position

from fastshard.errors import MemberNotFoundError

cdef ExtentTable NO_EXTENTS = ExtentTable.__new__(ExtentTable)


cdef class FieldShard(Shard):
    """Shard of members without names, whose extents are computed, in no table.

    A subclass has `with_source`, which returns a handle on the same bytes.
    """

    def __cinit__(self, *args, **kwargs):
        self.direct = None         # extents are not in a table

    def __copy__(self):
        return self.with_source(self.parts()[0])

    @property
    def names(self):
        """The members' names, a lazy sequence of str."""
        self.open_source()
        return MemberNames(self)

    cdef Py_ssize_t find(self, object key) except -1:
        self.open_source()
        if isinstance(key, str):
            raise MemberNotFoundError(key, self.path, list)
        return resolve_position(key, self.member_count())

    cdef int check_header(self, Source source, Py_ssize_t i) except -1:
        return 0


@cython.final
cdef class MemberNames:
    """Sequence of the names of a shard's members, made on access."""

    cdef Shard shard

    def __cinit__(self, Shard shard not None):
        self.shard = shard

    def __len__(self):
        return self.shard.member_count()

    def __getitem__(self, key):
        if isinstance(key, slice):
            return [
                self.shard.member_name(i) for i in range(*key.indices(len(self)))
            ]
        return self.shard.member_name(resolve_position(key, len(self)))

    def __reduce__(self):
        raise TypeError("names do not pickle; use list(names)")
