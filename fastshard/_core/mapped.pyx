"""A file mapped into memory, and windows onto it that keep it mapped.

Ownership: a `View` refers to its `MappedFile`, a `MappedFile` to its `Mapping`,
and the `Mapping` unmaps when the last reference to it goes. A `MappedFile` is a
handle: threads that take one each (`handle()`) share the mapping, but neither
reference count nor counter of views.
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_FillInfo, PyBuffer_Release,
    PyObject_GetBuffer,
)
from libc.errno cimport ENODEV, ENOMEM, errno
from libc.stdint cimport uint8_t, uint64_t

from fastshard._core cimport platform
from fastshard._core.pagering cimport PageRing, chunks_of
from fastshard._core.platform cimport (
    PY_SSIZE_T_MAX, fs_count, fs_map, fs_map_finely, fs_unmap,
)

import os

# Unmapping costs milliseconds a GB: from here on it releases the GIL.
cdef uint64_t LARGE_MAPPING = 16 << 20  # bytes


@cython.final
@cython.no_gc
cdef class Mapping:
    """The memory of one mapped file; unmapped when the last reference goes."""

    def __dealloc__(self):
        if self.base == NULL:
            return
        if self.chunks is not None:
            self.chunks.unmapped()
        if self.keeper is not None:
            PyBuffer_Release(&self.held)
        elif self.nbytes < LARGE_MAPPING:
            fs_unmap(self.base, self.nbytes)
        else:
            with nogil:
                fs_unmap(self.base, self.nbytes)


cdef Mapping map_file(
    int fd, uint64_t nbytes, object path, bint writable, PageRing ring
):
    cdef Mapping mapping = Mapping.__new__(Mapping)
    cdef int code
    mapping.nbytes = nbytes
    if nbytes == 0:
        return mapping
    if nbytes > <uint64_t> PY_SSIZE_T_MAX:
        raise MemoryError(f"{path} is too large to map: {nbytes:,} bytes")
    if not platform.FS_HAVE_MMAP:
        return hold_stdlib_mmap(mapping, fd, writable)
    with nogil:
        if ring is None:
            mapping.base = <uint8_t *> fs_map(fd, nbytes, writable)
        else:
            mapping.base = <uint8_t *> fs_map_finely(fd, nbytes, writable)
        code = errno               # before the GIL is back: that may change it
    if mapping.base == NULL:
        raise map_error(code, path)
    if ring is not None:
        status = os.fstat(fd)
        mapping.chunks = chunks_of(
            ring, mapping.base, nbytes, writable, path, status.st_dev, status.st_ino
        )
    return mapping


cdef Mapping hold_stdlib_mmap(Mapping mapping, int fd, bint writable):
    import mmap

    access = mmap.ACCESS_COPY if writable else mmap.ACCESS_READ
    mapping.keeper = mmap.mmap(fd, mapping.nbytes, access=access)
    flags = PyBUF_WRITABLE if writable else PyBUF_SIMPLE
    PyObject_GetBuffer(mapping.keeper, &mapping.held, flags)
    mapping.base = <uint8_t *> mapping.held.buf
    return mapping


cdef object map_error(int code, object path):
    reason = os.strerror(code)
    if code == ENODEV:
        reason = 'this file system cannot map files; open with mode="pread"'
    elif code == ENOMEM:
        reason += (
            ": too many mappings or too little address space "
            "(see max_mapped=, vm.max_map_count and ulimit -v)"
        )
    return OSError(code, reason, path)


@cython.final
@cython.no_gc
cdef class MappedFile:
    """One handle onto a mapped file.

    Parameters
    ----------
    fd : int
        A descriptor open for reading. Not kept: it may be closed at once.
    nbytes : int
        Bytes to map, from the start of the file.
    path : str
        For messages.
    writable : bool
        Map copy-on-write: windows are writable, the file never changes.
    ring : PageRing, optional
        Bounds its resident pages.

    Raises
    ------
    OSError
        The file cannot be mapped. ENODEV names ``mode="pread"``.
    """

    def __cinit__(self, int fd, uint64_t nbytes, path, *, bint writable=False,
                  PageRing ring=None):
        self.path = path
        self.writable = writable
        self.mapping = None if fd < 0 else map_file(fd, nbytes, path, writable, ring)
        if self.mapping is not None:
            self.base = self.mapping.base
            self.nbytes = self.mapping.nbytes
            self.chunks = self.mapping.chunks

    @property
    def live_views(self):
        """Views of this handle that are alive."""
        return self.views

    def handle(self):
        """Return another handle onto the same mapping, for another thread."""
        cdef MappedFile other = MappedFile.__new__(
            MappedFile, -1, 0, self.path, writable=self.writable
        )
        other.mapping = self.mapping
        other.base = self.base
        other.nbytes = self.nbytes
        other.chunks = self.chunks
        return other

    def __reduce__(self):
        raise TypeError("a MappedFile holds a mapping and does not pickle")

    cdef View window(self, uint64_t offset, uint64_t size):
        """The caller has checked that the extent lies in the file."""
        cdef View view = View.__new__(View)
        if self.chunks is not None:
            self.chunks.ring.touch(self.chunks, offset, size, True)
        view.owner = self
        view.base = self.base + offset
        view.nbytes = <Py_ssize_t> size
        fs_count(&self.views, 1)
        return view


@cython.final
@cython.no_gc
@cython.freelist(256)
cdef class View:
    """A window onto a mapped file; exports its bytes and keeps them mapped.

    ``memoryview(view)`` is what callers see; its ``obj`` is this.
    """

    def __init__(self, *args, **kwargs):
        raise TypeError("a View is made by a shard")

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        if self.owner is None:
            raise BufferError("a View is made by a shard")
        PyBuffer_FillInfo(
            buffer, self, self.base, self.nbytes, not self.owner.writable, flags
        )

    def __len__(self):
        return self.nbytes

    def __reduce__(self):
        raise TypeError("a View does not pickle; pickle bytes(view)")

    def __dealloc__(self):
        if self.owner is not None:
            fs_count(&self.owner.views, -1)
            if self.owner.chunks is not None:
                self.owner.chunks.unpin(
                    <uint64_t> (self.base - self.owner.base), <uint64_t> self.nbytes
                )
