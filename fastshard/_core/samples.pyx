# cython: nonecheck=True
"""What is hot of samples: making one, and finding the member of a field."""

cimport cython
from libc.stdint cimport int64_t

from fastshard._core.extents cimport checked_position
from fastshard._core.grouping cimport Grouping
from fastshard._core.shard cimport Shard

from array import array

from fastshard.errors import FieldNotFoundError, FormatError, SampleNotFoundError


cdef class SamplesBase:
    """A shard's samples, by position or key.

    Parameters
    ----------
    shard : Shard
    grouping : Grouping
    sample_type : type
        The subclass of `SampleBase` to make.
    """

    def __cinit__(
        self, Shard shard not None, Grouping grouping not None, type sample_type
    ):
        self.shard = shard
        self.grouping = grouping
        self.sample_type = sample_type

    def __len__(self):
        self.shard.open_source()
        return self.grouping.count()

    def __getitem__(self, key):
        """Return a sample by position or key, or a list by a slice.

        Raises
        ------
        SampleNotFoundError
            There is no sample of this key.
        IndexError
            There is no sample at this position.
        FormatError
            Two members of the sample have the same field.
        """
        cdef Py_ssize_t i
        if isinstance(key, slice):
            return [self.sample_at(i) for i in range(*key.indices(len(self)))]
        return self.sample_at(self.find(key))

    def __contains__(self, key):
        self.shard.open_source()
        if not isinstance(key, str):
            raise TypeError(f"keys are str, not {type(key).__name__}")
        return self.grouping.find(key) >= 0

    def __iter__(self):
        cdef Py_ssize_t i
        for i in range(len(self)):
            yield self.sample_at(i)

    def position(self, key):
        """Return the position of the sample of this key."""
        if not isinstance(key, str):
            raise TypeError(f"keys are str, not {type(key).__name__}")
        return self.find(key)

    def key_at(self, i):
        """Return the key of the sample at a position."""
        return self.grouping.key(checked_position(i, len(self)))

    def members_at(self, i):
        """Return the positions of the members of the sample at a position."""
        return self.grouping.members(checked_position(i, len(self)))

    def __reduce__(self):
        raise TypeError("samples do not pickle; pickle the shard")

    cdef Py_ssize_t find(self, object key) except -1:
        cdef Py_ssize_t i
        self.shard.open_source()
        if not isinstance(key, str):
            return checked_position(key, self.grouping.count())
        i = self.grouping.find(key)
        if i < 0:
            raise SampleNotFoundError(key, self.shard.path)
        return i

    cdef object item(self, Py_ssize_t i):
        """Return the sample at a position, which need not be one."""
        self.shard.open_source()
        return self.sample_at(checked_position(i, self.grouping.count()))

    cdef object sample_at(self, Py_ssize_t i):
        cdef SampleBase sample
        cdef Py_ssize_t again
        self.grouping.check(i)
        again = self.grouping.repeated(i)
        if again >= 0:
            raise FormatError(
                f"sample {self.grouping.key(i)!r} has field "
                f"{self.grouping.field(again)!r} twice",
                self.shard.path, self.shard.table.columns.offsets[again],
                self.shard.table.name(again),
            )
        sample = self.sample_type.__new__(self.sample_type)
        sample.samples = self
        sample.position = i
        return sample


cdef class SampleBase:
    """One sample of a shard: its fields, and their bytes."""

    @property
    def shard(self):
        """The shard that holds the sample."""
        return self.samples.shard

    @property
    def key(self):
        """The sample's key."""
        return self.samples.grouping.key(self.position)

    cpdef narrow(self, tuple only, bint required, object decoders):
        """Show some fields only, and decode with some decoders.

        Parameters
        ----------
        only : tuple of str, or None
            The fields; None for all.
        required : bool
            Whether the sample must have them.
        decoders : Mapping, or None

        Raises
        ------
        FieldNotFoundError
            `required`, and it has not.
        """
        if only is not None and required:
            for field in only:
                self.member(field)
        self.only = only
        self.decoders = decoders

    def keys(self):
        """Return the fields: in the shard's order, or in the one selected."""
        cdef Grouping grouping = self.samples.grouping
        if self.only is not None:
            return [field for field in self.only if field in self]
        return [
            grouping.field(member) for member in grouping.members(self.position)
        ]

    def __len__(self):
        return self.width()

    cdef Py_ssize_t width(self) except -1:
        """How many fields it shows."""
        cdef Py_ssize_t count = 0
        if self.only is None:
            return self.samples.grouping.width(self.position)
        for field in self.only:
            count += self.samples.grouping.member(self.position, field) >= 0
        return count

    def __iter__(self):
        return iter(self.keys())

    def __contains__(self, field):
        return isinstance(field, str) and (
            self.only is None or field in self.only
        ) and (
            self.samples.grouping.member(self.position, field) >= 0
        )

    def __getitem__(self, field):
        """Return the bytes of a field; see `Shard.__getitem__`.

        Raises
        ------
        FieldNotFoundError
            The sample has no such field.
        """
        return self.samples.shard.view_at(self.member(field))

    cpdef Py_ssize_t member(self, field) except -1:
        """Return the position of the member that holds a field."""
        cdef Py_ssize_t member
        if not isinstance(field, str):
            raise TypeError(f"fields are str, not {type(field).__name__}")
        member = -1
        if self.only is None or field in self.only:
            member = self.samples.grouping.member(self.position, field)
        if member < 0:
            raise FieldNotFoundError(
                field,
                f"sample {self.key!r} of {self.samples.shard.path}, "
                f"which has {', '.join(self.keys())}",
            )
        return member


def members_of(list samples not None, field):
    """Return the shards that hold a field of some samples, and its positions there.

    Returns
    -------
    list of Shard, array of int64

    Raises
    ------
    FieldNotFoundError
        A sample has no such field.
    """
    cdef Py_ssize_t i
    cdef SampleBase sample
    cdef list shards = [None] * len(samples)
    cdef object members = array("q", bytes(8 * len(samples)))
    cdef int64_t[::1] found = members
    for i in range(len(samples)):
        sample = <SampleBase?> samples[i]
        shards[i] = sample.samples.shard
        found[i] = sample.member(field)
    return shards, members


def first_of_other_width(list samples not None):
    """Return the first of some samples with more or fewer fields than the first; or -1."""
    cdef Py_ssize_t i
    cdef Py_ssize_t width = (<SampleBase?> samples[0]).width() if samples else 0
    for i in range(len(samples)):
        if (<SampleBase?> samples[i]).width() != width:
            return i
    return -1
