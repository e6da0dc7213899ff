# cython: nonecheck=True
"""What is hot of samples: making one, and finding where its fields are.

Which samples there are, and in which members their fields lie, a format says: it
subclasses `SamplesBase`.
"""

from libc.stdint cimport int64_t

from fastshard._core.table.extents cimport checked_position
from fastshard._core.shard cimport Shard

from array import array

from fastshard.errors import FieldNotFoundError, SampleNotFoundError


cdef class SamplesBase:
    """Samples by position or key; what a format has to say of them."""

    def __len__(self):
        return self.count()

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
        self.count()               # raises if closed
        if not isinstance(key, str):
            raise TypeError(f"keys are str, not {type(key).__name__}")
        return self.search(key) >= 0

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
        return self.key(checked_position(i, len(self)))

    def __reduce__(self):
        raise TypeError("samples do not pickle; pickle the shard")

    cdef Py_ssize_t find(self, object key) except -1:
        cdef Py_ssize_t i
        cdef Py_ssize_t count = self.count()
        if not isinstance(key, str):
            return checked_position(key, count)
        i = self.search(key)
        if i < 0:
            from fastshard._util.options import near_names

            near = near_names(key, count, self.key_at)
            raise SampleNotFoundError(key, self.where(), near)
        return i

    cdef object item(self, Py_ssize_t i):
        """Return the sample at a position, which need not be one."""
        return self.sample_at(checked_position(i, self.count()))

    cdef object sample_at(self, Py_ssize_t i):
        """Return the sample at a position that there is."""
        cdef SampleBase sample = self.sample_type.__new__(self.sample_type)
        sample.samples = self
        sample.position = i
        return sample

    cdef Py_ssize_t count(self) except -1:
        """How many samples there are; raises if they are closed."""
        raise NotImplementedError

    cdef str key(self, Py_ssize_t i):
        raise NotImplementedError

    cdef Py_ssize_t search(self, object key) except -2:
        """The position of the sample of this key, or -1."""
        raise NotImplementedError

    cdef str where(self):
        """What holds the samples, for messages."""
        raise NotImplementedError

    cdef list fields(self, Py_ssize_t i):
        """The fields of a sample, in the order they are stored."""
        raise NotImplementedError

    cdef Py_ssize_t width(self, Py_ssize_t i) except -1:
        """How many fields a sample has."""
        return len(self.fields(i))

    cdef Py_ssize_t member(self, Py_ssize_t i, object field) except -2:
        """The position of the member that holds a field, in its shard; or -1."""
        raise NotImplementedError

    cdef Shard holder(self, Py_ssize_t i, object field):
        """The shard that holds a field, which the sample has."""
        return self.shard

    cdef bint is_near(self, SampleBase sample) except -1:
        """Whether the bytes of the fields that it shows need not be waited for."""
        raise NotImplementedError

    cdef list places(self, SampleBase sample):
        """The fields that it shows and has, each as (shard, member)."""
        cdef Py_ssize_t member
        found = []
        for field in self.fields(sample.position) if sample.only is None else sample.only:
            member = self.member(sample.position, field)
            if member >= 0:
                found.append((self.holder(sample.position, field), member))
        return found

    cdef void expect(self, Py_ssize_t i, int away) noexcept:
        """Ask for the memory that a sample which comes soon will need.

        `away` says how soon: FAR, NEARER, or NEAR, one after the other.
        """


cdef class SampleBase:
    """One sample of a shard: its fields, and their bytes."""

    @property
    def shard(self):
        """The shard that holds the sample; None: its fields lie in several."""
        return self.samples.shard

    @property
    def key(self):
        """The sample's key."""
        return self.samples.key(self.position)

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
        if self.only is not None:
            return [field for field in self.only if field in self]
        return self.samples.fields(self.position)

    def __len__(self):
        return self.width()

    cdef Py_ssize_t width(self) except -1:
        """How many fields it shows."""
        cdef Py_ssize_t count = 0
        if self.only is None:
            return self.samples.width(self.position)
        for field in self.only:
            count += self.samples.member(self.position, field) >= 0
        return count

    def __iter__(self):
        return iter(self.keys())

    def __contains__(self, field):
        return isinstance(field, str) and (
            self.only is None or field in self.only
        ) and (
            self.samples.member(self.position, field) >= 0
        )

    def __getitem__(self, field):
        """Return the bytes of a field; see `Shard.__getitem__`.

        Raises
        ------
        FieldNotFoundError
            The sample has no such field.
        """
        cdef Py_ssize_t member = self.member(field)
        return self.samples.holder(self.position, field).view_at(member)

    def place(self, field):
        """Return the shard that holds a field, and its member's position there."""
        cdef Py_ssize_t member = self.member(field)
        return self.samples.holder(self.position, field), member

    cpdef Py_ssize_t member(self, field) except -1:
        """Return the position of the member that holds a field, in its shard."""
        cdef Py_ssize_t member
        if not isinstance(field, str):
            raise TypeError(f"fields are str, not {type(field).__name__}")
        member = -1
        if self.only is None or field in self.only:
            member = self.samples.member(self.position, field)
        if member < 0:
            raise FieldNotFoundError(
                field,
                f"sample {self.key!r} of {self.samples.where()}, "
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
        found[i] = sample.member(field)
        shards[i] = sample.samples.holder(sample.position, field)
    return shards, members


def first_of_other_width(list samples not None):
    """Return the first of some samples with more or fewer fields than the first; or -1."""
    cdef Py_ssize_t i
    cdef Py_ssize_t width = (<SampleBase?> samples[0]).width() if samples else 0
    for i in range(len(samples)):
        if (<SampleBase?> samples[i]).width() != width:
            return i
    return -1


def noted(error, item, str where=None):
    """Add notes to an error that say which sample it is of; return what to raise.

    Parameters
    ----------
    error : Exception
        Out of a function of the caller's. `StopIteration`, which would end an
        iteration early, gives a `RuntimeError`.
    item : object
        What the function was called with.
    where : str, optional
        The item's position, and in what.
    """
    if isinstance(error, StopIteration):
        error = RuntimeError("a function that a dataset was mapped with raised StopIteration")
    for note in (*named(item), where):
        if note and note not in getattr(error, "__notes__", ()):  # it may come again
            error.add_note(note)
    return error


def named(item):
    """Return what names the samples of an item, as far as it is known: a list."""
    if isinstance(item, tuple):    # of zip_by_key
        return [name for part in item for name in named(part)]
    try:
        if isinstance(item, SampleBase):
            shard = (<SampleBase> item).samples
            where = "" if shard is None else f" of {(<SamplesBase> shard).where()}"
            return [f"sample {item.key!r}, position {item.position:,}{where}"]
        if isinstance(item, dict) and "__key__" in item:
            return [f"sample {item['__key__']!r}"]
    except Exception:              # a shard that was closed: the first error counts
        pass
    return []
