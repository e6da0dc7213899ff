"""Members that are to be stacked into one array: whether they fit, and where data begins."""

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcmp

from fastshard._core.arrays cimport seen_of
from fastshard._core.npyheader cimport SEEN_BYTES, Layout, layout_of
from fastshard._core.shard cimport Shard

import numpy


cdef bint starts_alike(Layout first, Layout layout):
    """Whether two layouts are of the same header."""
    return layout is first or (
        layout.header_size == first.header_size <= SEEN_BYTES
        and memcmp(layout.header, first.header, first.header_size) == 0
    )


cdef object told(array):
    """What of an array has to be the same in all of a stack."""
    fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    return array.dtype, array.shape, fortran


def layouts(list shards not None, members not None, dtype, shape):
    """Say how members that are to be stacked lie in memory; looks at headers only.

    Parameters
    ----------
    shards : list of Shard
    members : array of int64
        A member of each.
    dtype, shape
        As for `Shard.array`.

    Returns
    -------
    dtype, shape, fortran, skips, odd
        Of the first; int64 [members], the bytes before the data of each; and the
        place and description of the first that differs, or None.
    """
    cdef const int64_t[::1] numbers = members
    cdef Layout layout = None
    cdef Layout first = None
    cdef Shard shard
    cdef uint8_t *at
    cdef uint64_t size
    cdef uint64_t first_size = 0
    cdef Py_ssize_t i
    cdef int64_t[::1] skipped
    skips = numpy.zeros(len(shards), numpy.int64)
    skipped = skips
    wanted = None
    for i in range(len(shards)):
        shard = <Shard?> shards[i]
        held = shard.hold(shard.find(numbers[i]), &at, &size)
        if wanted is not None and size == first_size:
            if dtype is not None:
                continue
            layout = layout_of(at, size, seen_of(shard))
            if starts_alike(first, layout):
                skipped[i] = layout.header_size
                continue
        array = shard.array(numbers[i], dtype, shape)  # checks all that there is
        found = told(array)
        if wanted is None:
            wanted, first_size = found, size
            if dtype is None:
                first = layout_of(at, size, seen_of(shard))
        elif found != wanted:
            text = f"{found[0]} {found[1]}"
            if found[2] != wanted[2]:
                text += " in another order of axes"
            return *wanted, skips, (i, text)
        if dtype is None:
            skipped[i] = size - array.nbytes
    return *wanted, skips, None
