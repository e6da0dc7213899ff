"""Samples in an order that jumps: the memory that the next ones need is asked for.

What finds a sample lies in five columns, its bytes in a sixth place, and each of them
waits for the one before. Asked for some samples ahead, they come side by side.
"""

cimport cython
from cpython.number cimport PyNumber_AsSsize_t
from libc.stdint cimport uint32_t, uint64_t

from fastshard._core.extents cimport columns_t
from fastshard._core.groups cimport groups_t
from fastshard._core.grouping cimport Grouping
from fastshard._core.places cimport Places
from fastshard._core.platform cimport fs_is_set, fs_load, fs_load32, fs_prefetch_line
from fastshard._core.samples cimport SamplesBase
from fastshard._core.source cimport Source

cdef enum:
    FAR = 24                       # samples ahead: where its members are listed
    NEARER = 16                    # where its first member is
    NEAR = 8                       # that one's name and first bytes


@cython.final
cdef class Coming:
    """Samples of `places`, one after another.

    Parameters
    ----------
    places : Places
    positions : tuple, optional
        Positions in any order; all without it.
    """

    def __cinit__(self, Places places not None, tuple positions=None):
        self.places = places
        self.positions = positions
        self.count = places.count if positions is None else len(positions)

    def __reduce__(self):
        raise TypeError("what is coming does not pickle")

    def every(self):
        """Return all samples as a list."""
        cdef Py_ssize_t i
        return [self.sample(i) for i in range(self.count)]

    cdef object sample(self, Py_ssize_t i):
        """Return the i-th sample, which is asked for once, or again if it failed.

        Raises
        ------
        IndexError
            There is no such position.
        """
        cdef place_t place
        self.look_ahead(i)
        place = self.ring[i % RING]
        return self.places.sample_in(place.shard, place.at)

    cdef int look_ahead(self, Py_ssize_t i) except -1:
        cdef Py_ssize_t end = min(i + FAR + 1, self.count)
        cdef Py_ssize_t place
        cdef place_t *found
        while self.known < end:
            place = self.known
            if self.positions is not None:
                place = self.places.wrapped(
                    PyNumber_AsSsize_t(self.positions[place], IndexError)
                )
            found = &self.ring[self.known % RING]
            self.places.locate(place, &found.shard, &found.at)
            self.known += 1
            self.expect(found, FAR)
        if i + NEARER < end:
            self.expect(&self.ring[(i + NEARER) % RING], NEARER)
        if i + NEAR < end:
            self.expect(&self.ring[(i + NEAR) % RING], NEAR)
        return 0

    cdef void expect(self, const place_t *place, int away) noexcept:
        """Ask for what the step after this one reads of a sample."""
        cdef object samples = self.places.samples[place.shard]
        cdef Grouping grouping
        cdef groups_t *groups
        cdef uint32_t first, member
        if samples is None or not isinstance(samples, SamplesBase):
            return
        grouping = (<SamplesBase> samples).grouping
        if not fs_is_set(&grouping.grouped):
            return
        groups = &grouping.groups
        if place.at >= groups.count:
            return
        if away == FAR:
            fs_prefetch_line(groups.starts + place.at)
            return
        first = fs_load32(groups.starts + place.at)
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
            expect_bytes((<SamplesBase> samples).shard.source, groups.columns, member)


cdef void expect_member(const groups_t *groups, uint32_t member) noexcept:
    fs_prefetch_line(groups.columns.offsets + member)
    fs_prefetch_line(groups.columns.sizes + member)
    fs_prefetch_line(groups.columns.name_ends + member)
    if groups.key_sizes != NULL:
        fs_prefetch_line(groups.key_sizes + member)


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
