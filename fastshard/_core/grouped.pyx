# cython: nonecheck=True
"""The samples of one shard: its members, grouped by key."""

from libc.stdint cimport uint32_t, uint64_t

from fastshard._core.table.extents cimport checked_position, columns_t
from fastshard._core.table.grouping cimport Grouping
from fastshard._core.table.grouping cimport groups_t
from fastshard._core.platform cimport fs_is_set, fs_load, fs_load32, fs_prefetch_line
from fastshard._core.samples cimport FAR, NEARER, SampleBase, SamplesBase
from fastshard._core.shard cimport Shard
from fastshard._core.io.source cimport Source

from fastshard.errors import FormatError


cdef class GroupedSamples(SamplesBase):
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

    def members_at(self, i):
        """Return the positions of the members of the sample at a position."""
        return self.grouping.members(checked_position(i, len(self)))

    def having(self, tuple fields not None):
        """Return for each sample whether it has all these fields: 0 or 1 a byte."""
        return self.grouping.having(fields)

    cdef Py_ssize_t count(self) except -1:
        self.shard.open_source()
        return self.grouping.count()

    cdef str key(self, Py_ssize_t i):
        return self.grouping.key(i)

    cdef Py_ssize_t search(self, object key) except -2:
        return self.grouping.find(key)

    cdef str where(self):
        return self.shard.path

    cdef list fields(self, Py_ssize_t i):
        cdef Grouping grouping = self.grouping
        return [grouping.field(member) for member in grouping.members(i)]

    cdef Py_ssize_t width(self, Py_ssize_t i) except -1:
        return self.grouping.width(i)

    cdef Py_ssize_t member(self, Py_ssize_t i, object field) except -2:
        return self.grouping.member(i, field)

    cdef bint is_near(self, SampleBase sample) except -1:
        return self.shard.open_source().is_near()

    cdef list places(self, SampleBase sample):
        if sample.only is not None:
            return SamplesBase.places(self, sample)
        return [
            (self.shard, member) for member in self.grouping.members(sample.position)
        ]

    cdef object sample_at(self, Py_ssize_t i):
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
        return SamplesBase.sample_at(self, i)

    cdef void expect(self, Py_ssize_t i, int away) noexcept:
        cdef Grouping grouping = self.grouping
        cdef groups_t *groups
        cdef uint32_t first, member
        if not fs_is_set(&grouping.grouped):
            return
        groups = &grouping.groups
        if i >= groups.count:
            return
        if away == FAR:
            fs_prefetch_line(groups.starts + i)
            return
        first = fs_load32(groups.starts + i)
        if first >= groups.grouped:
            return
        if away == NEARER:
            fs_prefetch_line(groups.members + first)
        member = fs_load32(groups.members + first)
        if member >= groups.columns.count:
            return
        if away == NEARER:
            expect_member(groups, member)
        else:
            expect_bytes(self.shard.source, groups.columns, member)


cdef void expect_member(const groups_t *groups, uint32_t member) noexcept:
    fs_prefetch_line(groups.columns.offsets + member)
    fs_prefetch_line(groups.columns.sizes + member)
    fs_prefetch_line(groups.columns.name_ends + member)
    if groups.key_ends != NULL:
        fs_prefetch_line(groups.key_ends + member)


cdef void expect_bytes(
    Source source, const columns_t *columns, uint32_t member
) noexcept:
    cdef uint64_t offset = fs_load(columns.offsets + member)
    cdef uint64_t end = fs_load(columns.name_ends + member)
    if end > 0 and end <= columns.names_size:
        fs_prefetch_line(columns.names + end - 1)
    if source is not None and source.base != NULL and offset < source.nbytes:
        fs_prefetch_line(source.base + offset)
        fs_prefetch_line(source.base + min(offset + 64, source.nbytes - 1))
