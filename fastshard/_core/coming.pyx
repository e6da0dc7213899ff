"""Samples in an order that jumps: the memory that the next ones need is asked for.

What finds a sample lies in five columns, its bytes in a sixth place, and each of them
waits for the one before. Asked for some samples ahead, they come side by side.
"""

cimport cython
from cpython.number cimport PyNumber_AsSsize_t

from fastshard._core.places cimport Places
from fastshard._core.samples cimport FAR, NEAR, NEARER, SamplesBase


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
        if samples is not None and isinstance(samples, SamplesBase):
            (<SamplesBase> samples).expect(place.at, away)
