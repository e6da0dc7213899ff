"""The bytes of a remote shard: asked for by range, or brought before.

What asks is Python's business: a file with ``read(offset, size)`` and
``read_into(wants)``. What was brought for a sample is staged in a source of its own
that the sample's handle on the shard has, and lives as long as that.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport (
    PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE,
)
from libc.stdint cimport uint8_t, uint64_t

from fastshard._core.grouped cimport GroupedSamples
from fastshard._core.samples cimport SampleBase
from fastshard._core.shard cimport Shard
from fastshard._core.source cimport Source


@cython.final
@cython.no_gc
cdef class RemoteSource(Source):
    """The bytes of a remote object.

    Parameters
    ----------
    file : RemoteFile
    staged : dict of int to bytes, optional
        Extents that were brought, by their offsets.
    """

    def __cinit__(self, file not None, dict staged=None):
        self.file = file
        self.staged = staged
        self.nbytes = file.nbytes
        self.path = file.path

    cdef bint is_remote(self) noexcept:
        return True

    cdef bytes staged_at(self, uint64_t offset, uint64_t size):
        """Return an extent that was brought, or None."""
        cdef object data
        if size == 0:
            return b""
        if self.staged is None:
            return None
        data = self.staged.get(offset)
        if data is None or <uint64_t> PyBytes_GET_SIZE(data) != size:
            return None
        return data

    def has_staged(self, uint64_t offset, uint64_t size):
        """Say whether an extent was brought."""
        return self.staged_at(offset, size) is not None

    cdef object hold(self, uint64_t offset, uint64_t size, uint8_t **at):
        cdef object data = self.read(offset, size)
        at[0] = <uint8_t *> PyBytes_AS_STRING(data)
        return data

    cpdef object read(self, uint64_t offset, uint64_t size):
        """Return `size` bytes from `offset`.

        Raises
        ------
        RemoteError
            They cannot be had.
        """
        cdef bytes data = self.staged_at(offset, size)
        if data is None:
            data = <bytes?> self.file.read(offset, size)
            if <uint64_t> PyBytes_GET_SIZE(data) != size:
                raise ValueError("a remote file returned another number of bytes")
        return data


def stage(SampleBase sample not None, dict staged not None):
    """Give a sample a handle of its own on its shard, which has its bytes.

    Parameters
    ----------
    sample : SampleBase
        Of a remote shard.
    staged : dict of int to bytes
        By their offsets in the shard.
    """
    cdef GroupedSamples samples = sample.samples
    cdef Shard shard = samples.shard
    cdef Shard handle = shard.with_source(
        RemoteSource((<RemoteSource?> shard.open_source()).file, staged)
    )
    handle.seen = shard.seen
    sample.samples = type(samples)(handle, samples.grouping, samples.sample_type)


@cython.final
cdef class Room:
    """Bytes that are still to be filled, as a buffer that keeps them."""

    cdef bytes data

    def __getbuffer__(self, Py_buffer *view, int flags):
        cdef char *at = PyBytes_AS_STRING(self.data)
        PyBuffer_FillInfo(view, self, at, PyBytes_GET_SIZE(self.data), 0, flags)


def room_for(uint64_t size):
    """Return bytes that are still to be filled, and a view to fill them through."""
    cdef Room room = Room.__new__(Room)
    room.data = PyBytes_FromStringAndSize(NULL, size)
    return room.data, memoryview(room)
