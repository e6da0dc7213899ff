"""Sources of bytes: files, mappings, the views of them, and remote objects.

A `Source` answers extents that its caller has checked against `nbytes`. `pin`
gives an owner and a pointer that is valid while the owner lives; `read` gives
bytes of their own.

Ownership: a `View` refers to its `MappedFile`, a `MappedFile` to its `Mapping`,
and the `Mapping` unmaps when the last reference to it goes. A `MappedFile` is a
handle: threads that take one each (`handle()`) share the mapping, but neither
reference count nor counter of views.

Residency: a missing page that is touched is waited for with the GIL held. So the
page cache is asked: once a file and every so often whether it has all of it
(`cachestat`), else for each extent (`mincore`); what it lacks is brought without
the GIL before anyone gets a pointer to it. To ask for a part of a file takes 0.4 us
with a descriptor and 2 us without. One is kept while some of a file is missing, of a
few files. The cache also counts pages that are still being read, so it is not asked
shortly after a miss.

Remote: what asks for ranges is Python's business, a file with ``read(offset, size)``
and ``read_into(wants)``. What was brought for a sample is staged in a source of its
own that the sample's handle on the shard has, and lives as long as that.
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_FillInfo, PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.bytes cimport (
    PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE,
)
from cpython.memoryview cimport PyMemoryView_FromObject, PyMemoryView_GET_BUFFER
from cpython.object cimport PyObject, PyTypeObject
from libc.errno cimport EFAULT, EIO, ENODEV, ENOMEM, errno
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memset

from fastshard._core.io.page_ring cimport (
    MappedChunks, PageRing, chunks_of, open_same_file,
)
from fastshard._core.pages cimport (
    fs_advise_pages, fs_populate_pages, fs_exact_now, fs_file_cached, fs_now,
    fs_pages_cached,
)
from fastshard._core.platform cimport (
    FS_HAVE_MMAP, PY_SSIZE_T_MAX, fs_close, fs_add, fs_stat, fs_file_t,
    fs_load_relaxed, fs_map, fs_map_small_pages, fs_store_relaxed, fs_pread, fs_stat_size, fs_unmap, fs_effective_user,
)

import os
import stat

from fastshard.errors import FormatError

cdef extern from *:
    bint FREE_THREADED "CYTHON_COMPILING_IN_CPYTHON_FREETHREADING"

cdef extern from "Python.h":
    ctypedef struct buffer_slots_t "PyBufferProcs":
        void *bf_getbuffer
    ctypedef struct slots_t "PyTypeObject":
        buffer_slots_t *tp_as_buffer
    ctypedef struct filled_t "Py_buffer":
        PyObject *obj
    object PyObject_Init(PyObject *object, PyTypeObject *kind)
    ctypedef struct managed_t "_PyManagedBufferObject":
        Py_ssize_t exports
        filled_t master
    Py_ssize_t Py_REFCNT(PyObject *object)
    ctypedef struct memory_t "PyMemoryViewObject":
        managed_t *mbuf

ctypedef void (*destructor)(PyObject *) noexcept

cdef enum:
    LARGE_COPY = 64 << 10          # bytes; from here on a copy releases the GIL
    LARGE_MAPPING = 16 << 20       # bytes; from here on unmapping does: ms a GB
    TRUSTED_READS = 256            # reads between two looks at the clock
    MOST_PROBES = 128              # descriptors of the process that are kept to ask by
    MOST_ASKED = 16 << 10          # MiB: asking about a larger file takes too long
    ASK_SHARE = 50                 # asking again takes one part in so many of the time
    SIZE_EVERY = 5_000_000         # ns between two looks at a file's size by its path
    ASKED_LONG_AGO = 2_000_000_000 # ns

cdef str SHORTER = "the file became shorter after it was mapped"
cdef str UNREADABLE = "its bytes cannot be read: the device failed"
cdef int QUIET = getattr(os, "O_NOATIME", 0)
cdef int FLAGS = os.O_RDONLY | (
    getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
)
KINDS_OF_FILE = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFSOCK: "a socket",
}

cdef Py_ssize_t probes = 0         # descriptors that are kept to ask by
cdef uint64_t next_ask = 0         # when any file is asked about again, ns


cdef int open_quietly(path) except -1:
    """Open without stamping times of access: that takes a sixth of a small read."""
    if QUIET:
        try:
            return os.open(path, FLAGS | QUIET)
        except PermissionError:    # for the file's owner alone
            pass
    return os.open(path, FLAGS)


cdef uint64_t pread_all(
    int fd, char *to, uint64_t size, uint64_t offset, int *code
) noexcept nogil:
    """Read until the end of the file; how much, and the errno of what went wrong."""
    cdef uint64_t done = 0
    cdef int64_t got
    code[0] = 0
    while done < size:
        got = fs_pread(fd, to + done, size - done, offset + done)
        if got <= 0:
            code[0] = errno if got < 0 else 0  # before the GIL is back: it may change
            break
        done += got
    return done


cdef object pread(int fd, uint64_t offset, uint64_t size, path):
    """Read bytes; fewer at the end of the file."""
    cdef object copy = PyBytes_FromStringAndSize(NULL, size)
    cdef char *to = PyBytes_AS_STRING(copy)
    cdef uint64_t done
    cdef int code
    with nogil:
        done = pread_all(fd, to, size, offset, &code)
    if code != 0:
        raise OSError(code, os.strerror(code), path)
    return copy if done == size else copy[:done]


@cython.final
@cython.no_gc
cdef class LocalFile:
    """A regular file, open for reading.

    Raises
    ------
    OSError
        It cannot be opened.
    FormatError
        It is a directory, a FIFO or a device; found out without waiting.
    """

    def __cinit__(self, path):
        self.fd = -1
        self.path = path if type(path) is str else os.fsdecode(path)
        if os.name == "nt" and os.path.isdir(self.path):
            raise FormatError("a directory is not a shard", self.path, 0)
        self.fd = open_quietly(self.path)
        mode = self.describe()
        if not stat.S_ISREG(mode):
            kind = KINDS_OF_FILE.get(stat.S_IFMT(mode), "such a file")
            self.close()
            raise FormatError(f"{kind} is not a shard", self.path, 0)
        self.seen_nbytes = self.nbytes
        self.seen_mtime_ns = self.mtime_ns

    cdef object describe(self):
        """Note what the system says of the file, and return its mode."""
        cdef fs_file_t file
        cdef int code
        if not FS_HAVE_MMAP:
            status = os.fstat(self.fd)
            self.nbytes = status.st_size
            self.mtime_ns = status.st_mtime_ns
            self.ctime_ns = status.st_ctime_ns
            self.device = status.st_dev
            self.inode = status.st_ino
            self.owner = status.st_uid
            return status.st_mode
        memset(&file, 0, sizeof(file))
        with nogil:
            code = 0 if fs_stat(self.fd, &file) == 0 else errno
        if code != 0:
            raise OSError(code, os.strerror(code), self.path)
        self.nbytes = file.nbytes
        self.mtime_ns = file.mtime_ns
        self.ctime_ns = file.ctime_ns
        self.device = file.device
        self.inode = file.inode
        self.owner = file.owner
        return file.mode

    def watch(self, appended):
        """From now on raise where it is read after it was written to.

        Parameters
        ----------
        appended : callable
            ``appended(file) -> bool``: whether a file that grew still has what it
            had before.
        """
        self.appended = appended

    cdef int check_unchanged(self) except -1:
        """Complain of what was read from a file that was written to."""
        cdef uint64_t seen_nbytes
        cdef uint64_t nbytes = 0
        cdef int64_t mtime_ns = 0
        if self.appended is None:
            return 0
        if fs_stat_size(self.fd, &nbytes, &mtime_ns) != 0:
            raise OSError(errno, os.strerror(errno), self.path)
        with cython.critical_section(self):
            seen_nbytes = self.seen_nbytes
            if mtime_ns == self.seen_mtime_ns and nbytes == seen_nbytes:
                return 0
        if nbytes <= seen_nbytes or not self.appended(self):
            raise FormatError(
                f"written to after it was opened; it had {self.nbytes:,} bytes then, "
                f"and has {nbytes:,}", self.path, min(nbytes, self.nbytes),
            )
        with cython.critical_section(self):
            self.seen_nbytes = nbytes
            self.seen_mtime_ns = mtime_ns
        return 0

    def read_many(self, extents):
        """Return the bytes of some extents; fewer where the file ends before.

        Parameters
        ----------
        extents : iterable of (int, int)
            Offsets and sizes.
        """
        return [pread(self.fd, offset, size, self.path) for offset, size in extents]

    def close(self):
        """Close the descriptor; closing twice is nothing."""
        cdef int fd
        with cython.critical_section(self):
            fd = self.fd
            self.fd = -1
        if fd >= 0:
            fs_close(fd)

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()

    def __reduce__(self):
        raise TypeError("a LocalFile holds a descriptor and does not pickle")

    def __dealloc__(self):
        if self.fd >= 0:           # by C: the interpreter may be shutting down
            fs_close(self.fd)


@cython.final
@cython.no_gc
cdef class Mapping:
    """The memory of one mapped file; unmapped when the last reference goes."""

    def __dealloc__(self):
        if self.base == NULL:
            return
        if self.chunks is not None:
            self.chunks.detach()
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
    if not FS_HAVE_MMAP:
        return hold_stdlib_mmap(mapping, fd, writable)
    with nogil:
        if ring is None:
            mapping.base = <uint8_t *> fs_map(fd, nbytes, writable)
        else:
            mapping.base = <uint8_t *> fs_map_small_pages(fd, nbytes, writable)
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
        return self.views + shares_of(self.whole)

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

    cdef View raw_view(self, uint64_t offset, uint64_t size):
        """The caller has checked that the extent lies in the file."""
        cdef View view = new_view()
        if self.chunks is not None:
            self.chunks.ring.touch(self.chunks, offset, size, True)
        view.owner = self
        view.base = self.base + offset
        view.nbytes = <Py_ssize_t> size
        fs_add(&self.views, 1)
        return view

    cdef object view(self, uint64_t offset, uint64_t size):
        """Return a memoryview of an extent; the caller has checked it.

        Under a GIL those of a file without a ring share one managed buffer, which
        counts them: a view is one object, not three. An allocation may run a
        finalizer that closes the shard: nothing of this is touched after one.
        """
        cdef uint8_t *at = self.base + offset
        cdef object whole
        cdef Py_buffer *buffer
        if FREE_THREADED or self.chunks is not None:
            return PyMemoryView_FromObject(self.raw_view(offset, size))
        whole = self.whole
        if whole is None:
            whole = whole_of(self)
        view = PyMemoryView_FromObject(whole)
        buffer = PyMemoryView_GET_BUFFER(view)  # its own copy
        buffer.buf = at
        buffer.len = buffer.shape[0] = <Py_ssize_t> size
        return view


cdef object whole_of(MappedFile file):
    """Return the memoryview whose managed buffer a file's views share.

    It is of a handle of its own, so that there is no circle of references.
    """
    cdef MappedFile held = file    # a reference: the caller's may go
    whole = PyMemoryView_FromObject(
        (<MappedFile> held.handle()).raw_view(0, held.nbytes)
    )
    if held.whole is None:         # a finalizer may have asked for a view meanwhile
        held.whole = whole
    return held.whole


cdef Py_ssize_t shares_of(object whole):
    """Return how many objects share a memoryview's managed buffer, or its View."""
    cdef managed_t *shared
    if whole is None:
        return 0
    shared = (<memory_t *> whole).mbuf
    return shared.exports - 1 + Py_REFCNT(shared.master.obj) - 1


@cython.final
@cython.no_gc
@cython.freelist(256)
cdef class View:
    """A window onto a mapped file; exports its bytes and keeps them mapped.

    ``memoryview(view)`` is what callers see. Its ``obj`` is this, or the View of the
    whole file that several share: an owner, whose own bytes mean nothing.
    """

    def __init__(self, *args, **kwargs):
        raise TypeError("a View is made by a shard")

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        fill_buffer(<PyObject *> self, buffer, flags)

    def __len__(self):
        return self.nbytes

    def __reduce__(self):
        raise TypeError("a View does not pickle; pickle bytes(view)")


cdef enum:
    MOST_SPARE = 256               # Views

# Views in the place of Cython's slots, which cost as much as all else of a view: they
# save the current exception, set what is overwritten, and count references to None.
cdef PyObject *spare[<int> MOST_SPARE]  # freed Views; under a GIL alone
cdef int spares = 0


cdef inline View new_view():
    """Return a View of nothing; its owner is None."""
    global spares
    if spares == 0:
        return View.__new__(View)
    spares -= 1
    return <View> PyObject_Init(spare[spares], <PyTypeObject *> View)


cdef int fill_buffer(PyObject *view, Py_buffer *buffer, int flags) except -1:
    """`View.__getbuffer__`."""
    if (<View> view).owner is None:
        (<filled_t *> buffer).obj = NULL
        raise BufferError("a View is made by a shard")
    return PyBuffer_FillInfo(
        buffer, <View> view, (<View> view).base, (<View> view).nbytes,
        not (<View> view).owner.writable, flags,
    )


(<slots_t *> View).tp_as_buffer.bf_getbuffer = <void *> fill_buffer


cdef destructor free_view = (<PyTypeObject *> View).tp_dealloc


cdef void release_view(PyObject *view) noexcept:
    """`View.__dealloc__`. The View has no references: none may be made."""
    global spares
    cdef MappedFile owner = (<View> view).owner
    if owner is not None:
        fs_add(&owner.views, -1)
        if owner.chunks is not None:
            owner.chunks.unpin(
                <uint64_t> ((<View> view).base - owner.base),
                <uint64_t> (<View> view).nbytes,
            )
    if FREE_THREADED or spares == MOST_SPARE:
        free_view(view)
        return
    (<View> view).owner = None
    spare[spares] = view
    spares += 1


(<PyTypeObject *> View).tp_dealloc = <destructor> release_view


@cython.final
@cython.no_gc
cdef class Descriptor:
    """A file descriptor, closed when nobody refers to it."""

    def __cinit__(self):
        self.fd = -1

    def __reduce__(self):
        raise TypeError("a Descriptor does not pickle")

    cdef bint may_stay(self) noexcept:
        """Whether it may be kept to ask by: few are, of the whole process."""
        if not self.stays and fs_load_relaxed(&probes) < MOST_PROBES:
            fs_add(&probes, 1)
            self.stays = True
        return self.stays

    def __dealloc__(self):
        if self.stays:
            fs_add(&probes, -1)
        if self.fd >= 0:
            fs_close(self.fd)


@cython.final
@cython.no_gc
cdef class Residency:
    """What is known of a mapped file's pages.

    Parameters
    ----------
    file : MappedFile
    device, inode, owner : int
        Of the file, when it was mapped.
    fd : int, optional
        A descriptor of it; kept, and its size is checked at every read.
    """

    def __cinit__(self, MappedFile file not None, uint64_t device, uint64_t inode,
                  uint64_t owner, *, int fd=-1):
        cdef int64_t user
        self.file = file
        self.device = device
        self.inode = inode
        if fd >= 0:
            self.checked = Descriptor.__new__(Descriptor)
            self.checked.fd = os.dup(fd)
        user = fs_effective_user()
        self.told = user == 0 or (user > 0 and <uint64_t> user == owner) or (
            os.access(file.path, os.W_OK)
        )

    def handle(self, MappedFile file not None):
        """Return the same for another handle onto the mapping."""
        cdef Residency other = Residency.__new__(
            Residency, file, self.device, self.inode, 0
        )
        other.told = self.told
        other.checked = self.checked
        return other

    def __reduce__(self):
        raise TypeError("a Residency does not pickle; pickle the shard")

    cdef int check_size_now(self) except -1:
        """Complain if the file became shorter; nothing without a descriptor."""
        cdef uint64_t nbytes = 0
        cdef int64_t mtime_ns
        if self.checked is not None and (
            fs_stat_size(self.checked.fd, &nbytes, &mtime_ns) != 0
            or nbytes < self.file.nbytes
        ):
            raise FormatError(SHORTER, self.file.path, nbytes)
        return 0

    cdef int check_size(self) except -1:
        """Complain if the file became shorter, before we ourselves touch its bytes."""
        cdef uint64_t now
        if self.checked is not None:
            return self.check_size_now()
        now = fs_now()
        if now < self.next_size:
            return 0
        try:
            status = os.stat(self.file.path)
        except OSError:            # gone: what is mapped is all there
            return 0
        if (status.st_dev, status.st_ino) == (self.device, self.inode) and (
            <uint64_t> status.st_size < self.file.nbytes
        ):
            raise FormatError(SHORTER, self.file.path, status.st_size)
        self.next_size = now + SIZE_EVERY
        return 0

    cdef bint is_resident(self) except -1:
        """Whether all of the file was in the page cache a moment ago."""
        global next_ask
        cdef uint64_t now = fs_now()
        cdef uint64_t begun, cost
        cdef Descriptor probe
        if now < self.next_look or (self.next_look > 0 and now < next_ask):
            return self.whole
        if now < self.calm_from and not self.whole:
            return False           # what is on its way would count
        with cython.critical_section(self):
            # Another thread asks; or did, in a process that this was forked from.
            if self.asking != 0 and now - self.asking < ASKED_LONG_AGO:
                return self.whole
            self.asking = now
            probe = self.probe
        try:
            begun = fs_exact_now()
            self.query_cache(probe)
            cost = fs_exact_now() - begun
            self.next_look = now + LOOK_EVERY
            next_ask = max(next_ask, now) + ASK_SHARE * cost
        finally:
            self.asking = 0
        return self.whole

    def query(self, int fd):
        """Ask by a descriptor of the file that is open anyway."""
        cdef uint64_t nbytes = self.file.nbytes
        cdef int answer
        if nbytes >> 20 > MOST_ASKED:
            return
        with nogil:
            answer = fs_file_cached(fd, 0, nbytes)
        self.whole = answer == 1
        self.next_look = fs_now() + LOOK_EVERY

    cdef int query_cache(self, Descriptor probe) except -1:
        cdef uint64_t nbytes = self.file.nbytes
        cdef int answer = -1
        if probe is None:
            probe = self.reopen()
        if probe is not None and nbytes >> 20 > MOST_ASKED:
            answer = 0             # its members are asked about one by one
        elif probe is not None:
            with nogil:
                answer = fs_file_cached(probe.fd, 0, nbytes)
        with cython.critical_section(self):
            self.whole = answer == 1
            self.probe = probe if answer == 0 and probe.may_stay() else None
        return 0

    cdef Descriptor reopen(self):
        """Return a new descriptor of the file, or None: another is there, or none."""
        cdef Descriptor found = Descriptor.__new__(Descriptor)
        found.fd = open_same_file(self.file.path, self.device, self.inode)
        return found if found.fd >= 0 else None

    cdef bint has_resident(self, uint64_t offset, uint64_t size) noexcept:
        """Whether an extent surely is in the page cache."""
        cdef int answer = -1
        cdef Descriptor probe
        with cython.critical_section(self):
            probe = self.probe
        if probe is not None and fs_now() >= self.calm_from:
            answer = fs_file_cached(probe.fd, offset, size)
        if answer == -1 and self.told:
            answer = fs_pages_cached(self.file.base + offset, size)
        return answer == 1

    cdef int page_in(self, uint64_t offset, uint64_t size) except -1:
        """Bring the first 16 MiB of an extent that is not in memory.

        Raises
        ------
        FormatError
            The file no longer reaches so far.
        OSError
            The device failed.
        """
        cdef const uint8_t *at = self.file.base + offset
        cdef int code
        if size == 0:
            return 0
        size = min(size, <uint64_t> MAX_PAGE_IN)
        if self.has_resident(offset, size):
            return 0
        with nogil:                # `self` keeps it mapped
            fs_advise_pages(at, size)
            code = fs_populate_pages(at, size)
        self.calm_from = fs_now() + SETTLE
        if code != 0:
            raise self.failure(offset, code)
        return 0

    cdef object failure(self, uint64_t offset, int code):
        """Why pages could not be brought: the kernel does not say."""
        cdef uint64_t nbytes = self.file.nbytes
        cdef int64_t mtime_ns
        cdef Descriptor again = self.reopen() if self.checked is None else self.checked
        if again is not None:
            fs_stat_size(again.fd, &nbytes, &mtime_ns)
        if nbytes < self.file.nbytes or again is None:
            return FormatError(SHORTER, self.file.path, offset)
        return OSError(EIO if code == EFAULT else code, UNREADABLE, self.file.path)


@cython.no_gc
cdef class Source:
    """Where bytes are. Immutable, and shared by everything that reads there."""

    def __cinit__(self, *args, **kwargs):
        self.fd = -1

    @property
    def live_views(self):
        """Views onto this source's own memory that are alive."""
        return 0

    def handle(self):
        """Return a source of the same bytes for another thread."""
        return self

    def __reduce__(self):
        raise TypeError("a source does not pickle; pickle the shard")

    cdef bint is_remote(self) noexcept:
        """Whether bytes have to be asked for over a network."""
        return False

    cdef object pin(self, uint64_t offset, uint64_t size, uint8_t **at):
        raise NotImplementedError

    cpdef object read(self, uint64_t offset, uint64_t size):
        """Return `size` bytes from `offset` as bytes of their own."""
        raise NotImplementedError

    cdef int check_size(self) except -1:
        """Complain of what is known to be wrong before many bytes are read."""
        return 0

    cdef bint is_resident(self) except -1:
        """Whether all bytes can be had without waiting for a device."""
        return False

    cdef bint has_resident(self, uint64_t offset, uint64_t size) noexcept:
        """Whether some bytes can; if not, they are about to be asked for."""
        return False

    cdef int check_unchanged(self) except -1:
        """Complain if what was just read may not be what the file had."""
        return 0

    cdef int touch(self, uint64_t offset, uint64_t size) except -1:
        """Note that bytes are about to be touched where they are mapped."""
        return 0

    cdef int confine(self, uint64_t offset, uint64_t size) except -1:
        """Have no more mapped than these bytes: see `PageRing.confine`."""
        return 0

    cdef uint64_t touch_limit(self) noexcept:
        """Bytes that may be touched together; 0: any number."""
        return 0

    cdef object failure(self, uint64_t offset, int code):
        """Why bytes could not be read: what failed, or that there are no more."""
        if code != 0:
            return OSError(code, os.strerror(code), self.path)
        return FormatError(
            f"the file ends here; it had {self.nbytes:,} bytes when it was opened",
            self.path, offset,
        )


@cython.final
@cython.no_gc
cdef class MappedSource(Source):
    """The bytes of a mapped file.

    Parameters
    ----------
    file : MappedFile
    residency : Residency, optional
        What knows which bytes are in memory.
    watched : bool
        Ask it before bytes are handed out.
    """

    def __cinit__(
        self, MappedFile file not None, Residency residency=None, *, bint watched=True
    ):
        self.file = file
        self.residency = residency
        self.watched = watched and residency is not None
        self.trusted = 0 if self.watched else PY_SSIZE_T_MAX
        self.base = file.base
        self.writable = file.writable
        self.nbytes = file.nbytes
        self.path = file.path

    @property
    def address(self):
        """Where its bytes are mapped."""
        return <size_t> self.base

    @property
    def live_views(self):
        """Views of this source that are alive."""
        return self.file.live_views

    def handle(self):
        """Return a source on the same mapping that counts its own views."""
        file = self.file.handle()
        residency = None if self.residency is None else self.residency.handle(file)
        return MappedSource(file, residency, watched=self.watched)

    cdef int ensure_resident(self, uint64_t offset, uint64_t size) except -1:
        """See that bytes are in memory; while all are, not at every read."""
        cdef Py_ssize_t trusted = fs_load_relaxed(&self.trusted)
        if trusted > 0:
            fs_store_relaxed(&self.trusted, trusted - 1)
            return 0
        self.residency.check_size_now()
        if not self.is_resident():
            self.residency.page_in(offset, size)
        return 0

    cdef int check_size(self) except -1:
        if self.residency is not None:
            self.residency.check_size()
        return 0

    cdef bint is_resident(self) except -1:
        cdef Py_ssize_t trusted = fs_load_relaxed(&self.trusted)
        if trusted > 0:
            fs_store_relaxed(&self.trusted, trusted - 1)
            return True
        if not self.residency.is_resident():
            return False
        if self.residency.checked is None:  # else the size is asked for at every read
            fs_store_relaxed(&self.trusted, TRUSTED_READS)
        return True

    cdef bint has_resident(self, uint64_t offset, uint64_t size) noexcept:
        if self.residency is None or self.residency.has_resident(offset, size):
            return True
        self.residency.calm_from = fs_now() + SETTLE
        return False

    cdef object failure(self, uint64_t offset, int code):
        if self.residency is None:
            return FormatError("the file ends here", self.path, offset)
        return self.residency.failure(offset, code)

    cdef int touch(self, uint64_t offset, uint64_t size) except -1:
        cdef MappedChunks chunks = self.file.chunks
        if chunks is not None:
            chunks.ring.touch(chunks, offset, size, False)
        return 0

    cdef int confine(self, uint64_t offset, uint64_t size) except -1:
        cdef MappedChunks chunks = self.file.chunks
        if chunks is not None:
            chunks.ring.confine(chunks, offset, size)
        return 0

    cdef uint64_t touch_limit(self) noexcept:
        return 0 if self.file.chunks is None else self.file.chunks.ring.half()

    cdef object pin(self, uint64_t offset, uint64_t size, uint8_t **at):
        cdef View view
        if self.file.chunks is not None:
            view = self.file.raw_view(offset, size)  # makes room before pages are brought
            self.ensure_resident(offset, size)
            self.confine(offset, size)
            at[0] = view.base
            return view
        self.ensure_resident(offset, size)
        at[0] = self.file.base + offset
        return self.file.raw_view(offset, size)

    cpdef object read(self, uint64_t offset, uint64_t size):
        """Return `size` bytes from `offset` as bytes of their own."""
        cdef object copy
        cdef char *to
        if offset > self.nbytes or size > self.nbytes - offset:
            raise FormatError("a read beyond the file", self.path, offset)
        self.check_size()             # it is we who touch its bytes
        self.touch(offset, size)
        self.ensure_resident(offset, size)
        self.confine(offset, size)
        if size < LARGE_COPY:
            return PyBytes_FromStringAndSize(<const char *> self.base + offset, size)
        copy = PyBytes_FromStringAndSize(NULL, size)
        to = PyBytes_AS_STRING(copy)
        with nogil:                # `self` stays referenced, so the bytes stay
            memcpy(to, self.base + offset, size)
        return copy


@cython.final
@cython.no_gc
cdef class PreadSource(Source):
    """The bytes of a file that is read, never mapped; owns the file.

    Parameters
    ----------
    file : LocalFile
    """

    def __cinit__(self, LocalFile file not None):
        self.file = file
        self.fd = file.fd
        self.nbytes = file.nbytes
        self.path = file.path

    cdef object pin(self, uint64_t offset, uint64_t size, uint8_t **at):
        cdef object copy = self.read(offset, size)
        at[0] = <uint8_t *> PyBytes_AS_STRING(copy)
        return copy

    cpdef object read(self, uint64_t offset, uint64_t size):
        """Return `size` bytes from `offset` as bytes of their own.

        Raises
        ------
        FormatError
            The file has become shorter since it was opened, or is watched and was
            written to.
        """
        cdef object copy = PyBytes_FromStringAndSize(NULL, size)
        cdef char *to = PyBytes_AS_STRING(copy)
        cdef uint64_t done
        cdef int code
        with nogil:
            done = pread_all(self.fd, to, size, offset, &code)
        if done < size:
            raise self.failure(offset + done, code)
        self.file.check_unchanged()
        return copy

    cdef int check_unchanged(self) except -1:
        return self.file.check_unchanged()

    cdef bint is_resident(self) except -1:
        cdef uint64_t now = fs_now()
        if now >= self.next_look and self.nbytes >> 20 <= MOST_ASKED:
            with nogil:
                self.whole = fs_file_cached(self.fd, 0, self.nbytes) == 1
            self.next_look = now + LOOK_EVERY
        return self.whole


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

    cdef object pin(self, uint64_t offset, uint64_t size, uint8_t **at):
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


@cython.final
cdef class WritableBytes:
    """Bytes that are still to be filled, as a buffer that keeps them."""

    cdef bytes data

    def __getbuffer__(self, Py_buffer *view, int flags):
        cdef char *at = PyBytes_AS_STRING(self.data)
        PyBuffer_FillInfo(view, self, at, PyBytes_GET_SIZE(self.data), 0, flags)


def allocate_bytes(uint64_t size):
    """Return bytes that are still to be filled, and a view to fill them through."""
    cdef WritableBytes room = WritableBytes.__new__(WritableBytes)
    room.data = PyBytes_FromStringAndSize(NULL, size)
    return room.data, memoryview(room)


cdef Source local_source(
    LocalFile file, str mode, bint prefetch, bint check_size, PageRing ring
):
    """The source of a file; see `source_of`."""
    cdef MappedFile mapped
    cdef Residency residency
    if mode == "pread":
        return PreadSource.__new__(PreadSource, file)
    mapped = MappedFile.__new__(
        MappedFile, file.fd, file.nbytes, file.path, writable=mode == "private",
        ring=ring,
    )
    residency = Residency.__new__(
        Residency, mapped, file.device, file.inode, file.owner,
        fd=file.fd if check_size else -1,
    )
    return MappedSource.__new__(
        MappedSource, mapped, residency, watched=prefetch or check_size
    )


def source_of(
    LocalFile file not None, str mode not None, *, bint prefetch=True,
    bint check_size=False, PageRing ring=None,
):
    """Return the source of a file, which ``"pread"`` keeps open; others need not.

    Parameters
    ----------
    file : LocalFile
    mode, prefetch, check_size
        As for `fastshard.open_shard`.
    ring : PageRing, optional
        Bounds the resident pages of what is mapped.

    Raises
    ------
    OSError
        It cannot be mapped.
    """
    return local_source(file, mode, prefetch, check_size, ring)
