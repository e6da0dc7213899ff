"""Sources of bytes: files, mappings, views of mappings, page residency, remote objects.

A `Source` reads extents that its caller has checked against `nbytes`. `pin` returns an
owner and a pointer that is valid while the owner lives; `read` returns bytes.

Ownership: a `View` refers to its `MappedFile`, a `MappedFile` to its `Mapping`, and the
`Mapping` unmaps when its last reference goes. A `MappedFile` is a handle: threads that
take one each (`handle()`) share the mapping, but neither a reference count nor a
counter of views.

Residency: a page fault waits for the device with the GIL held. So the page cache is
queried first, for the whole file every so often (`cachestat`), else for each extent
(`mincore`), and missing pages are populated without the GIL before a pointer is handed
out. To query an extent takes 0.4 us with a descriptor and 2 us without: one is kept
while some of a file is missing, for a limited number of files. The page cache also
counts pages that are still being read, so it is not queried shortly after a miss.

Descriptors: files that are read with pread keep theirs while there are enough, by the
rule of `fastshard._util.processes.descriptors`. Beyond that the descriptor of a file
that was not used lately is closed (CLOCK replacement), and opened again at its next
read. A descriptor is in use while its `LocalFile` is referenced.

Remote objects: Python code requests the ranges, a file with ``read(offset, size)`` and
``read_into(wants)``. Bytes prefetched for a sample are staged in a source that belongs
to the sample's handle on the shard, and live as long as that handle.

More than 1,000 lines: the classes call each other's C methods for every view, and each
further extension module would add 22,000 lines of generated C.
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_FillInfo, PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.bytes cimport (
    PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE,
)
from cpython.dict cimport PyDict_Next
from cpython.memoryview cimport PyMemoryView_FromObject, PyMemoryView_GET_BUFFER
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from cpython.object cimport PyObject, PyTypeObject
from libc.errno cimport EFAULT, EIO, ENOMEM, errno
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memmove, memset

from fastshard._core.io.paging cimport (
    MappedChunks, PageRing, chunks_of, open_same_file,
)
from fastshard._core.pages cimport (
    fs_advise_pages, fs_populate_buffer, fs_populate_pages, fs_exact_now,
    fs_file_cached, fs_now,
    fs_page_size, fs_pages_cached, fs_window_cached,
)
from fastshard._core.platform cimport (
    FS_HAVE_MMAP, PY_SSIZE_T_MAX, fs_close, fs_add, fs_stat, fs_file_t, fs_load_relaxed,
    fs_map, fs_map_small_pages, fs_store_relaxed, fs_pread, fs_stat_size, fs_unmap,
    fs_effective_user,
)

import errno as numbers
import os
import stat

from fastshard._util.processes.descriptors import kept_limit
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
    LARGE_COPY = 64 << 10          # bytes; copies of this size release the GIL
    LARGE_MAPPING = 16 << 20       # bytes; unmapping this much does: it takes ms a GB
    TRUSTED_READS = 256            # reads between two checks of the clock
    MAX_KEPT = 128              # descriptors that the process keeps for queries
    MAX_QUERIED = 16 << 10          # MiB; querying a larger file takes too long
    QUERY_SHARE = 50               # queries take at most 1 / QUERY_SHARE of the time
    STAT_EVERY = 5_000_000         # ns between two checks of a file's size by path
    WINDOW = 64                    # pages that are queried together
    MAX_WINDOWED = 4 << 20         # bytes of an extent that is looked up in windows
    QUERY_TIMEOUT = 2_000_000_000  # ns; an older query died in a fork

cdef str SHORTER = "the file was truncated after it was mapped"
cdef str UNREADABLE = "reading the file failed: device error"
cdef int QUIET = getattr(os, "O_NOATIME", 0)
cdef int FLAGS = os.O_RDONLY | (
    getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
)
cdef uint64_t PAGE_SIZE = fs_page_size()
KINDS_OF_FILE = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFSOCK: "a socket",
}

# Errors of mmap by which a file system, or a security module, refuses to map a file.
cdef object REFUSALS = frozenset((
    numbers.ENODEV, numbers.EINVAL, numbers.EACCES, numbers.EPERM, numbers.ENOSYS,
    numbers.EOPNOTSUPP,
))

cdef list kept_files = []          # LocalFiles of sources, with a descriptor
cdef Py_ssize_t clock_hand = 0     # in `kept_files`
cdef Py_ssize_t kept_descriptors = 0         # of all files, for queries
cdef uint64_t next_any_query = 0   # ns; no file is queried again before


cdef int open_quietly(path) except -1:
    """Open without updating the access time, which takes a sixth of a small read."""
    if QUIET:
        try:
            return os.open(path, FLAGS | QUIET)
        except PermissionError:    # O_NOATIME is for the owner only
            pass
    return os.open(path, FLAGS)


cdef object absolute_path(object path):
    """Return an absolute path of a file; ``link/..`` is left to the kernel."""
    if os.path.isabs(path):
        return path
    return os.path.join(os.getcwdb() if isinstance(path, bytes) else os.getcwd(), path)


cdef uint64_t pread_all(
    int fd, char *to, uint64_t size, uint64_t offset, int *code
) noexcept nogil:
    """Read up to `size` bytes or the end of the file; return how many.

    `code` is set to the errno of a failed read, else to 0.
    """
    cdef uint64_t done = 0
    cdef int64_t got
    code[0] = 0
    while done < size:
        got = fs_pread(fd, to + done, size - done, offset + done)
        if got <= 0:
            code[0] = errno if got < 0 else 0  # taking the GIL may change errno
            break
        done += got
    return done


cdef object pread(int fd, uint64_t offset, uint64_t size, path):
    """Return `size` bytes from `offset`, or fewer at the end of the file."""
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
    """A regular file, open for reading."""

    def __cinit__(self, path):
        self.fd = -1
        self.slot = -1
        self.path = path if type(path) is str else os.fsdecode(path)
        if os.name == "nt" and os.path.isdir(self.path):
            raise FormatError("a directory is not a shard", self.path, 0)
        self.fd = open_quietly(self.path)
        mode = self.load_stat()
        if not stat.S_ISREG(mode):
            kind = KINDS_OF_FILE.get(stat.S_IFMT(mode), "a file of an unknown kind")
            self.close()
            raise FormatError(f"{kind} is not a shard", self.path, 0)
        self.seen_nbytes = self.nbytes
        self.seen_mtime_ns = self.mtime_ns

    cdef object load_stat(self):
        """Load size, times and identity of the file; return its mode."""
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
        """Check at each read that the file is not modified."""
        self.is_appended = appended

    cdef int check_unchanged(self) except -1:
        """Raise FormatError if a watched file was modified other than by appending."""
        cdef uint64_t seen_nbytes
        cdef uint64_t nbytes = 0
        cdef int64_t mtime_ns = 0
        if self.is_appended is None:
            return 0
        if fs_stat_size(self.fd, &nbytes, &mtime_ns) != 0:
            raise OSError(errno, os.strerror(errno), self.path)
        with cython.critical_section(self):
            seen_nbytes = self.seen_nbytes
            if mtime_ns == self.seen_mtime_ns and nbytes == seen_nbytes:
                return 0
        if nbytes <= seen_nbytes or not self.is_appended(self):
            raise FormatError(
                f"written to after it was opened: the file had {self.nbytes:,} "
                f"bytes and has {nbytes:,}; open it again",
                self.path, min(nbytes, self.nbytes),
            )
        with cython.critical_section(self):
            self.seen_nbytes = nbytes
            self.seen_mtime_ns = mtime_ns
        return 0

    def read_many(self, extents):
        """Return the bytes of extents, truncated at the end of the file."""
        return [pread(self.fd, offset, size, self.path) for offset, size in extents]

    def close(self):
        """Close the descriptor. Closing twice does nothing."""
        self.is_closed = True
        close_descriptor(self)

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()

    def __reduce__(self):
        raise TypeError("a LocalFile holds a descriptor and does not pickle")

    def __dealloc__(self):
        if self.fd >= 0:           # not os.close: the interpreter may be finalizing
            fs_close(self.fd)


cdef int close_descriptor(LocalFile file) noexcept:
    """Close the descriptor of a file, if it is open."""
    cdef int fd
    with cython.critical_section(file):
        fd = file.fd
        file.fd = -1
    if fd >= 0:
        fs_close(fd)
    return 0


def lower_descriptor(int fd):
    """Return a low duplicate of a descriptor to keep, or `fd`.

    If need be, one of another file is closed (`evict_descriptor`), and `fd` is closed
    for one with that number: no other thread may use it.
    """
    cdef int lower
    cdef int limit = kept_limit()  # a signal may raise here, not behind `fs_close`
    while fd >= limit and evict_descriptor():
        try:
            lower = os.dup(fd)     # the lowest number that is free
        except OSError:            # another thread took it
            break
        fs_close(fd)
        fd = lower
    return fd


cdef bint keep_open(LocalFile file) except -1:
    """Lower the descriptor of a file; return whether it may be kept."""
    file.fd = lower_descriptor(file.fd)
    return file.fd < kept_limit()


cdef int remember_kept(LocalFile file) except -1:
    """Add a file to the kept ones, unless it is one of them."""
    if not FREE_THREADED and file.slot < 0:  # references there tell no use
        file.slot = len(kept_files)
        kept_files.append(file)
    return 0


cdef bint evict_descriptor() except -1:
    """Close one kept descriptor that is not in use (CLOCK replacement)."""
    global clock_hand
    cdef LocalFile file
    for _ in range(2 * len(kept_files)):  # the second round finds one
        clock_hand = clock_hand + 1 if clock_hand + 1 < len(kept_files) else 0
        file = kept_files[clock_hand]
        if file.used:
            file.used = False
        elif Py_REFCNT(<PyObject *> file) <= 3:  # the list's, its source's and ours
            forget_kept(file)
            close_descriptor(file)
            return True
    return False


cdef int forget_kept(LocalFile file) except -1:
    """Remove a file from the kept ones, if it is one of them."""
    cdef LocalFile last
    if file.slot < 0:
        return 0
    last = kept_files.pop()
    if last is not file:
        kept_files[file.slot] = last
        last.slot = file.slot
    file.slot = -1
    return 0


cdef bint is_version_of(LocalFile again, LocalFile file):
    """Return whether a path has the same file, possibly grown.

    Inode numbers are used again. A watched file is compared when it is read.
    """
    cdef bint same_inode = again.device == file.device and again.inode == file.inode
    if again.nbytes == file.seen_nbytes and again.mtime_ns == file.seen_mtime_ns:
        return same_inode or again.ctime_ns == file.ctime_ns
    return same_inode and (
        again.nbytes > file.seen_nbytes or file.is_appended is not None
    )


cdef LocalFile reopen(LocalFile file):
    """Reopen a file whose descriptor was closed to save descriptors."""
    cdef LocalFile again
    if file.is_closed:
        raise OSError(numbers.EBADF, "the file is closed", file.path)
    again = LocalFile.__new__(LocalFile, file.location)
    again.path = file.path
    if not is_version_of(again, file):
        raise FormatError("replaced after it was opened; open it again", file.path, 0)
    again.nbytes = file.nbytes
    again.is_appended = file.is_appended
    again.seen_nbytes = file.seen_nbytes
    again.seen_mtime_ns = file.seen_mtime_ns
    return again


@cython.final
@cython.no_gc
cdef class Mapping:
    """Memory of one mapped file, unmapped when the last reference goes."""

    def __dealloc__(self):
        if self.base == NULL and self.keeper is None:
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
    """Map the first `nbytes` of a file; `ring`, if any, bounds its resident pages."""
    cdef Mapping mapping = Mapping.__new__(Mapping)
    cdef int code
    mapping.nbytes = nbytes
    if nbytes == 0:
        return mapping
    if nbytes > <uint64_t> PY_SSIZE_T_MAX:
        raise MemoryError(
            f"cannot map {path}: {nbytes:,} bytes exceed the address space"
        )
    if not FS_HAVE_MMAP:
        return hold_stdlib_mmap(mapping, fd, writable)
    with nogil:
        if ring is None:
            mapping.base = <uint8_t *> fs_map(fd, nbytes, writable)
        else:
            mapping.base = <uint8_t *> fs_map_small_pages(fd, nbytes, writable)
        code = errno               # taking the GIL may change errno
    if mapping.base == NULL:
        raise map_error(code, path)
    if ring is not None:
        status = os.fstat(fd)
        mapping.chunks = chunks_of(
            ring, mapping.base, nbytes, writable, absolute_path(path), status.st_dev,
            status.st_ino,
        )
    return mapping


cdef Mapping hold_stdlib_mmap(Mapping mapping, int fd, bint writable):
    """Map with `mmap.mmap`, and hold its buffer for as long as `mapping` lives."""
    import mmap

    access = mmap.ACCESS_COPY if writable else mmap.ACCESS_READ
    mapping.keeper = mmap.mmap(fd, mapping.nbytes, access=access)
    flags = PyBUF_WRITABLE if writable else PyBUF_SIMPLE
    PyObject_GetBuffer(mapping.keeper, &mapping.held, flags)
    mapping.base = <uint8_t *> mapping.held.buf
    return mapping


cdef object map_error(int code, object path):
    """Return the OSError of a failed mmap, with advice."""
    reason = os.strerror(code)
    if code in REFUSALS:
        reason += ': the file system does not map files; open with mode="pread"'
    elif code == ENOMEM:
        reason += (
            ": too many mappings or too little address space "
            "(see max_mapped=, vm.max_map_count and ulimit -v)"
        )
    return OSError(code, reason, path)


@cython.final
@cython.no_gc
cdef class MappedFile:
    """Handle onto a mapped file."""

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
        """Number of live views of this handle."""
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
        """Return a View of an extent, which the caller has checked."""
        cdef View view = new_view()
        if self.chunks is not None:
            self.chunks.ring.touch(self.chunks, offset, size, True)
        view.owner = self
        view.base = self.base + offset
        view.nbytes = <Py_ssize_t> size
        fs_add(&self.views, 1)
        return view

    cdef object view(self, uint64_t offset, uint64_t size):
        """Return a memoryview of an extent, which the caller has checked.

        Under a GIL the views of a file without a ring share one managed buffer, which
        counts them: a view is one object, not three. An allocation may run a finalizer
        that closes the shard, so `self` must not be used after one.
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
        buffer = PyMemoryView_GET_BUFFER(view)  # the view's own copy
        buffer.buf = at
        buffer.len = buffer.shape[0] = <Py_ssize_t> size
        return view


cdef object whole_of(MappedFile file):
    """Return the memoryview that shares its managed buffer with a file's views.

    It belongs to a handle of its own, which avoids a reference cycle.
    """
    cdef MappedFile held = file    # the caller's reference may go meanwhile
    whole = PyMemoryView_FromObject(
        (<MappedFile> held.handle()).raw_view(0, held.nbytes)
    )
    if held.whole is None:         # otherwise a finalizer has requested a view
        held.whole = whole
    return held.whole


cdef Py_ssize_t shares_of(object whole):
    """Return the number of objects that share a memoryview's managed buffer or View."""
    cdef managed_t *shared
    if whole is None:
        return 0
    shared = (<memory_t *> whole).mbuf
    return shared.exports - 1 + Py_REFCNT(shared.master.obj) - 1


@cython.final
@cython.no_gc
@cython.freelist(256)
cdef class View:
    """Exporter of an extent of a mapped file, which it keeps mapped.

    Callers get ``memoryview(view)``. The ``obj`` of that is this View, or the View of
    the whole file that several memoryviews share; its own extent means nothing then.
    """

    def __init__(self, *args, **kwargs):
        raise TypeError("a View cannot be created; index a shard")

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        fill_buffer(<PyObject *> self, buffer, flags)

    def __len__(self):
        return self.nbytes

    def __reduce__(self):
        raise TypeError("a View does not pickle; pickle bytes(view)")


cdef enum:
    MAX_SPARE = 256               # Views

# Replacements of two type slots that Cython generates, which take half the time of a
# view: they save the current exception, initialize the buffer, and count references to
# None.
cdef PyObject *spare[<int> MAX_SPARE]  # freed Views; under a GIL alone
cdef int spares = 0


cdef inline View new_view():
    """Return a View without an owner."""
    global spares
    if spares == 0:
        return View.__new__(View)
    spares -= 1
    return <View> PyObject_Init(spare[spares], <PyTypeObject *> View)


cdef int fill_buffer(PyObject *view, Py_buffer *buffer, int flags) except -1:
    """Implement `View.__getbuffer__`."""
    if (<View> view).owner is None:
        (<filled_t *> buffer).obj = NULL
        raise BufferError("the View has no owner")
    return PyBuffer_FillInfo(
        buffer, <View> view, (<View> view).base, (<View> view).nbytes,
        not (<View> view).owner.writable, flags,
    )


(<slots_t *> View).tp_as_buffer.bf_getbuffer = <void *> fill_buffer


cdef destructor free_view = (<PyTypeObject *> View).tp_dealloc


cdef void release_view(PyObject *view) noexcept:
    """Implement `View.__dealloc__`. The View has no references; make none."""
    global spares
    cdef MappedFile owner = (<View> view).owner
    if owner is not None:
        fs_add(&owner.views, -1)
        if owner.chunks is not None:
            owner.chunks.unpin(
                <uint64_t> ((<View> view).base - owner.base),
                <uint64_t> (<View> view).nbytes,
            )
    if FREE_THREADED or spares == MAX_SPARE:
        free_view(view)
        return
    (<View> view).owner = None
    spare[spares] = view
    spares += 1


(<PyTypeObject *> View).tp_dealloc = <destructor> release_view


@cython.final
@cython.no_gc
cdef class Descriptor:
    """File descriptor, closed when its last reference goes."""

    def __cinit__(self):
        self.fd = -1

    def __reduce__(self):
        raise TypeError("a Descriptor does not pickle")

    cdef bint try_keep(self) except -1:
        """Count this among the kept descriptors; return False if there are too many."""
        if not self.kept and fs_load_relaxed(&kept_descriptors) < MAX_KEPT and (
            self.fd < kept_limit(spared=True)
        ):
            fs_add(&kept_descriptors, 1)
            self.kept = True
        return self.kept

    def __dealloc__(self):
        if self.kept:
            fs_add(&kept_descriptors, -1)
        if self.fd >= 0:
            fs_close(self.fd)


@cython.final
@cython.no_gc
cdef class Residency:
    """State of a mapped file's pages in the page cache."""

    def __cinit__(self, MappedFile file not None, uint64_t device, uint64_t inode,
                  uint64_t owner, *, int fd=-1):
        cdef int64_t user
        self.file = file
        self.location = absolute_path(file.path)
        self.device = device
        self.inode = inode
        if fd >= 0:
            self.checked = Descriptor.__new__(Descriptor)
            self.checked.fd = os.dup(fd)
            if self.checked.fd >= kept_limit(spared=True):
                fs_close(self.checked.fd)
                self.checked.fd = -1
        user = fs_effective_user()
        self.has_mincore = user == 0 or (user > 0 and <uint64_t> user == owner) or (
            os.access(self.location, os.W_OK)
        )

    def __dealloc__(self):
        free(self.windows)

    def handle(self, MappedFile file not None):
        """Return a Residency of another handle onto the mapping."""
        cdef Residency other = Residency.__new__(
            Residency, file, self.device, self.inode, 0
        )
        other.location = self.location
        other.has_mincore = self.has_mincore
        other.checked = self.checked
        return other

    def __reduce__(self):
        raise TypeError("a Residency does not pickle; pickle the shard")

    cdef int check_size_now(self) except -1:
        """Raise FormatError if `checked` tells that the file was truncated."""
        cdef uint64_t nbytes = 0
        cdef int64_t mtime_ns
        if self.checked is None:
            return 0
        if self.checked.fd < 0:
            return self.check_path()
        if fs_stat_size(self.checked.fd, &nbytes, &mtime_ns) != 0 or (
            nbytes < self.file.nbytes
        ):
            raise FormatError(SHORTER, self.file.path, nbytes)
        return 0

    cdef int check_path(self) except -1:
        """Raise FormatError if the file at the path was truncated."""
        try:
            status = os.stat(self.location)
        except OSError:            # deleted: the mapping keeps the bytes
            return 0
        if (status.st_dev, status.st_ino) == (self.device, self.inode) and (
            <uint64_t> status.st_size < self.file.nbytes
        ):
            raise FormatError(SHORTER, self.file.path, status.st_size)
        return 0

    cdef int check_size(self) except -1:
        """Raise FormatError if the file was truncated; call before touching its bytes.

        Without a descriptor the path is checked, at most every 5 ms.
        """
        cdef uint64_t now
        if self.checked is not None:
            return self.check_size_now()
        now = fs_now()
        if now < self.next_stat:
            return 0
        self.check_path()
        self.next_stat = now + STAT_EVERY
        return 0

    cdef bint is_resident(self) except -1:
        """Return whether all of the file was in the page cache at the last query."""
        global next_any_query
        cdef uint64_t now = fs_now()
        cdef uint64_t begun, cost
        cdef Descriptor probe
        if now < self.next_query or (self.next_query > 0 and now < next_any_query):
            return self.whole
        if now < self.arrival and not self.whole:
            return False           # pages being read would count as cached
        with cython.critical_section(self):
            # Another thread queries, or did so in the parent of a fork.
            if self.query_began != 0 and now - self.query_began < QUERY_TIMEOUT:
                return self.whole
            self.query_began = now
            probe = self.probe
        try:
            begun = fs_exact_now()
            self.query_cache(probe)
            cost = fs_exact_now() - begun
            self.next_query = now + QUERY_EVERY
            next_any_query = max(next_any_query, now) + QUERY_SHARE * cost
        finally:
            self.query_began = 0
        return self.whole

    def query(self, int fd):
        """Query the page cache for the whole file, with the caller's descriptor."""
        cdef uint64_t nbytes = self.file.nbytes
        cdef int answer
        if nbytes >> 20 > MAX_QUERIED:
            return
        with nogil:
            answer = fs_file_cached(fd, 0, nbytes)
        self.whole = answer == 1
        self.next_query = fs_now() + QUERY_EVERY

    cdef int query_cache(self, Descriptor probe) except -1:
        """Query the page cache for the whole file; keep `probe` if some is missing."""
        cdef uint64_t nbytes = self.file.nbytes
        cdef int answer = -1
        if probe is None:
            probe = self.reopen()
        if probe is not None and nbytes >> 20 > MAX_QUERIED:
            answer = 0             # extents are queried one by one
        elif probe is not None:
            with nogil:
                answer = fs_file_cached(probe.fd, 0, nbytes)
        with cython.critical_section(self):
            self.whole = answer == 1
            self.probe = probe if answer == 0 and probe.try_keep() else None
        return 0

    cdef Descriptor reopen(self):
        """Open the file again; return None if the path is another file now."""
        cdef Descriptor found = Descriptor.__new__(Descriptor)
        found.fd = open_same_file(self.location, self.device, self.inode)
        return found if found.fd >= 0 else None

    cdef bint has_resident(self, uint64_t offset, uint64_t size) noexcept:
        """Return whether an extent is certainly in the page cache."""
        cdef int answer = -1
        cdef Descriptor probe
        with cython.critical_section(self):
            probe = self.probe
        if probe is not None and fs_now() >= self.arrival:
            answer = fs_file_cached(probe.fd, offset, size)
        if answer == -1 and self.has_mincore:
            answer = fs_pages_cached(self.file.base + offset, size)
        return answer == 1

    cdef bint had_resident(
        self, uint64_t offset, uint64_t size, uint64_t now
    ) noexcept:
        """Return whether an extent was recently in the page cache.

        Pages are queried in windows, whose answers hold as long as those for the whole
        file. Pages that were missing are queried again.
        """
        cdef uint64_t nbytes = self.file.nbytes
        cdef uint64_t page = PAGE_SIZE
        cdef uint64_t all_pages = <uint64_t> -1
        cdef uint64_t first, last, end, mask, start
        cdef window_t *window
        if (
            not self.has_mincore or nbytes >> 20 > MAX_QUERIED
            or not 0 < size <= MAX_WINDOWED or offset > nbytes or size > nbytes - offset
        ):
            return self.has_resident(offset, size)
        first = offset // page
        last = (offset + size - 1) // page
        with cython.critical_section(self):
            if self.windows == NULL:
                self.windows = <window_t *> calloc(
                    nbytes // (WINDOW * page) + 1, sizeof(window_t)
                )
            if self.windows == NULL:
                return False
            while first <= last:
                window = self.windows + first // WINDOW
                end = min(last, first | (WINDOW - 1))
                mask = (all_pages << (first % WINDOW)) & (
                    all_pages >> (WINDOW - 1 - end % WINDOW)
                )
                if window.until <= now or window.pages & mask != mask:
                    start = first // WINDOW * WINDOW * page
                    if fs_window_cached(
                        self.file.base + start, min(WINDOW * page, nbytes - start),
                        &window.pages,
                    ) != 0:
                        return False
                    window.until = now + QUERY_EVERY
                    if window.pages & mask != mask:
                        return False
                first = end + 1
        return True

    cdef int page_in(self, uint64_t offset, uint64_t size) except -1:
        """Populate the first 16 MiB of an extent unless it is in memory."""
        cdef const uint8_t *at = self.file.base + offset
        cdef int code
        if size == 0:
            return 0
        size = min(size, <uint64_t> MAX_PAGE_IN)
        if self.has_resident(offset, size):
            return 0
        with nogil:                # `self` keeps the file mapped
            fs_advise_pages(at, size)
            code = fs_populate_pages(at, size)
        self.arrival = fs_now() + READ_TIME
        if code != 0:
            raise self.failure(offset, code)
        return 0

    cdef object failure(self, uint64_t offset, int code):
        """Return the error of failed population: the kernel gives no reason."""
        cdef uint64_t nbytes = self.file.nbytes
        cdef int64_t mtime_ns
        cdef Descriptor again = self.checked
        if again is None or again.fd < 0:
            again = self.reopen()
        if again is not None:
            fs_stat_size(again.fd, &nbytes, &mtime_ns)
        if nbytes < self.file.nbytes or again is None:
            return FormatError(SHORTER, self.file.path, offset)
        return OSError(EIO if code == EFAULT else code, UNREADABLE, self.file.path)


@cython.no_gc
cdef class Source:
    """Base of sources of bytes; immutable, and shared by all readers of a shard."""

    @property
    def live_views(self):
        """Number of live views onto this source's own memory."""
        return 0

    def handle(self):
        """Return a source of the same bytes, for another thread."""
        return self

    def __reduce__(self):
        raise TypeError("a source does not pickle; pickle the shard")

    cdef bint is_remote(self) noexcept:
        """Return whether bytes are read over a network."""
        return False

    cdef object pin(self, uint64_t offset, uint64_t size, uint8_t **at):
        """Set `at` to an extent, and return the object that keeps it valid."""
        raise NotImplementedError

    cdef object lease(self, int *fd):
        """Set `fd` to a descriptor to pread, or to -1 where bytes are not read so.

        Returns the object that keeps it open, or None if no descriptor can be kept:
        extents are to be read one by one.
        """
        fd[0] = -1
        return self

    cpdef object read(self, uint64_t offset, uint64_t size):
        """Return a copy of `size` bytes from `offset`."""
        raise NotImplementedError

    cdef int check_size(self) except -1:
        """Raise FormatError if the file was truncated; call before reading in bulk."""
        return 0

    cdef bint is_resident(self) except -1:
        """Return whether all bytes can be read without waiting for a device."""
        return False

    cdef bint has_resident(self, uint64_t offset, uint64_t size) noexcept:
        """Return whether an extent is in memory; otherwise the caller requests it."""
        return False

    cdef bint had_resident(
        self, uint64_t offset, uint64_t size, uint64_t now
    ) noexcept:
        """Return whether an extent was recently in memory; otherwise as above."""
        return self.has_resident(offset, size)

    cdef int check_unchanged(self) except -1:
        """Raise FormatError if bytes just read may be from a modified file."""
        return 0

    cdef int touch(self, uint64_t offset, uint64_t size) except -1:
        """Announce an access to mapped bytes."""
        return 0

    cdef int confine(self, uint64_t offset, uint64_t size) except -1:
        """Unmap the neighbours of an extent; see `PageRing.confine`."""
        return 0

    cdef uint64_t touch_limit(self) noexcept:
        """Return how many bytes may be touched together; 0: no limit."""
        return 0

    cdef object failure(self, uint64_t offset, int code):
        """Return the error of a read that ended at `offset`, with errno `code` or 0."""
        if code != 0:
            return OSError(code, os.strerror(code), self.path)
        return FormatError(
            f"the file ends here, but had {self.nbytes:,} bytes when it was opened",
            self.path, offset,
        )


@cython.final
@cython.no_gc
cdef class MappedSource(Source):
    """Source of a mapped file."""

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
        """Address of the mapping."""
        return <size_t> self.base

    @property
    def live_views(self):
        """Number of live views of this source."""
        return self.file.live_views

    def handle(self):
        """Return a source on the same mapping with a counter of views of its own."""
        file = self.file.handle()
        residency = None if self.residency is None else self.residency.handle(file)
        return MappedSource(file, residency, watched=self.watched)

    cdef int ensure_resident(self, uint64_t offset, uint64_t size) except -1:
        """Populate missing pages. While the file is resident, few calls check."""
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
        if self.residency.checked is None:  # else the size is checked at every read
            fs_store_relaxed(&self.trusted, TRUSTED_READS)
        return True

    cdef bint has_resident(self, uint64_t offset, uint64_t size) noexcept:
        if self.residency is None or self.residency.has_resident(offset, size):
            return True
        self.residency.arrival = fs_now() + READ_TIME
        return False

    cdef bint had_resident(
        self, uint64_t offset, uint64_t size, uint64_t now
    ) noexcept:
        if self.residency is None or self.residency.had_resident(
            offset, size, now
        ):
            return True
        self.residency.arrival = now + READ_TIME
        return False

    cdef object failure(self, uint64_t offset, int code):
        if self.residency is None:
            return FormatError("the file was truncated", self.path, offset)
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
        return 0 if self.file.chunks is None else self.file.chunks.ring.half_bound()

    cdef object pin(self, uint64_t offset, uint64_t size, uint8_t **at):
        cdef View view
        if self.file.chunks is not None:
            view = self.file.raw_view(offset, size)  # may trim: before populating
            self.ensure_resident(offset, size)
            self.confine(offset, size)
            at[0] = view.base
            return view
        self.ensure_resident(offset, size)
        at[0] = self.file.base + offset
        return self.file.raw_view(offset, size)

    cpdef object read(self, uint64_t offset, uint64_t size):
        """Return a copy of `size` bytes from `offset`."""
        if offset > self.nbytes or size > self.nbytes - offset:
            raise FormatError(
                f"cannot read {size:,} bytes: the file has {self.nbytes:,}",
                self.path, offset,
            )
        self.check_size()          # its bytes are touched here
        self.touch(offset, size)
        self.ensure_resident(offset, size)
        self.confine(offset, size)
        return copy_extent(self, offset, size)


@cython.final
@cython.no_gc
cdef class MemorySource(Source):
    """Source of bytes in memory, such as a shard that was decompressed."""

    def __cinit__(self, data not None, path not None, *, bint writable=False):
        self.file = data if type(data) is MappedFile else hold_memory(
            data, path, writable
        )
        self.base = self.file.base
        self.writable = self.file.writable
        self.nbytes = self.file.nbytes
        self.path = path

    @property
    def live_views(self):
        """Number of live views of this source."""
        return self.file.live_views

    def handle(self):
        """Return a source of the same memory with a counter of views of its own."""
        return MemorySource(self.file.handle(), self.path)

    cdef bint is_resident(self) except -1:
        return True

    cdef bint has_resident(self, uint64_t offset, uint64_t size) noexcept:
        return True

    cdef object pin(self, uint64_t offset, uint64_t size, uint8_t **at):
        at[0] = self.file.base + offset
        return self.file.raw_view(offset, size)

    cpdef object read(self, uint64_t offset, uint64_t size):
        """Return a copy of `size` bytes from `offset`."""
        return copy_extent(self, offset, size)


cdef MappedFile hold_memory(object data, object path, bint writable):
    """Return a MappedFile that holds the buffer of `data`, or of a writable copy."""
    cdef MappedFile file = MappedFile.__new__(
        MappedFile, -1, 0, path, writable=writable
    )
    cdef Mapping mapping = Mapping.__new__(Mapping)
    held = bytearray(data) if writable else data
    PyObject_GetBuffer(
        held, &mapping.held, PyBUF_WRITABLE if writable else PyBUF_SIMPLE
    )
    mapping.keeper = held          # only now: a failed call has nothing to release
    mapping.base = <uint8_t *> mapping.held.buf
    mapping.nbytes = <uint64_t> mapping.held.len
    file.mapping = mapping
    file.base = mapping.base
    file.nbytes = mapping.nbytes
    return file


cdef object copy_extent(Source source, uint64_t offset, uint64_t size):
    """Return a copy of memory of a source; copy much of it without the GIL."""
    cdef object copy
    cdef char *to
    if offset > source.nbytes or size > source.nbytes - offset:
        raise FormatError(
            f"cannot read {size:,} bytes: there are {source.nbytes:,}",
            source.path, offset,
        )
    if size < LARGE_COPY:
        return PyBytes_FromStringAndSize(<const char *> source.base + offset, size)
    copy = PyBytes_FromStringAndSize(NULL, size)
    to = PyBytes_AS_STRING(copy)
    with nogil:                    # the caller's reference keeps the memory
        memcpy(to, source.base + offset, size)
    return copy


@cython.final
@cython.no_gc
cdef class PreadSource(Source):
    """Source of a file that is read with pread, never mapped. Owns the file."""

    def __cinit__(self, LocalFile file not None):
        self.file = file
        self.nbytes = file.nbytes
        self.path = file.path

    def __dealloc__(self):
        if self.file is not None:
            forget_kept(self.file)

    cdef LocalFile open_file(self):
        """Return the open file, or a newly opened one if it is not kept."""
        cdef LocalFile file = self.file
        cdef LocalFile again
        if file.fd >= 0:
            file.used = True
            if file.slot < 0 and file.location is not None:
                remember_kept(file)  # another source of the file is gone
            return file
        again = reopen(file)
        if not keep_open(again):
            return again
        with cython.critical_section(file):
            if file.fd < 0 and not file.is_closed:  # by no other thread meanwhile
                file.fd = again.fd
                again.fd = -1
        remember_kept(file)
        return file

    cdef object lease(self, int *fd):
        cdef LocalFile file
        try:
            file = self.open_file()
        except (FormatError, OSError):
            return None            # raised when it is read
        fd[0] = file.fd
        return file if file is self.file else None

    cdef object pin(self, uint64_t offset, uint64_t size, uint8_t **at):
        cdef object copy = self.read(offset, size)
        at[0] = <uint8_t *> PyBytes_AS_STRING(copy)
        return copy

    cpdef object read(self, uint64_t offset, uint64_t size):
        """Return a copy of `size` bytes from `offset`."""
        cdef object copy = PyBytes_FromStringAndSize(NULL, size)
        cdef char *to = PyBytes_AS_STRING(copy)
        cdef LocalFile file = self.open_file()
        cdef uint64_t done
        cdef int code
        with nogil:
            done = pread_all(file.fd, to, size, offset, &code)
        if done < size:
            raise self.failure(offset + done, code)
        file.check_unchanged()
        return copy

    cdef int check_unchanged(self) except -1:
        return self.open_file().check_unchanged()

    cdef bint is_resident(self) except -1:
        cdef uint64_t now = fs_now()
        cdef LocalFile file = self.file
        if file.fd >= 0 and now >= self.next_query and (
            self.nbytes >> 20 <= MAX_QUERIED
        ):
            with nogil:
                self.whole = fs_file_cached(file.fd, 0, self.nbytes) == 1
            self.next_query = now + QUERY_EVERY
        return self.whole


@cython.final
@cython.no_gc
cdef class RemoteSource(Source):
    """Source of a remote object."""

    def __cinit__(self, file not None, dict staged=None):
        self.file = file
        self.staged = staged
        self.nbytes = file.nbytes
        self.path = file.path

    cdef bint is_remote(self) noexcept:
        return True

    cdef object get_staged(self, uint64_t offset, uint64_t size):
        """Return an extent that was prefetched, as bytes or ReusedMemory, or None."""
        cdef uint8_t *at
        cdef uint8_t *whole
        cdef object data = self.find_staged(offset, size, &at)
        if data is None or size == 0 or (
            <uint64_t> staged_span(data, &whole) == size
        ):
            return data
        return PyBytes_FromStringAndSize(<const char *> at, size)

    cdef object find_staged(self, uint64_t offset, uint64_t size, uint8_t **at):
        """Return the owner of a prefetched extent, or None; set the extent's address.

        A sample has one prefetched extent a member, or one for its row, which holds
        the fields, or one for a block of samples.
        """
        cdef PyObject *key
        cdef PyObject *data
        cdef Py_ssize_t position = 0
        cdef uint64_t first, nbytes
        cdef uint8_t *whole
        if size == 0:
            at[0] = <uint8_t *> PyBytes_AS_STRING(b"")
            return b""
        if self.staged is None:
            return None
        while PyDict_Next(self.staged, &position, &key, &data):
            first = <object> key
            nbytes = <uint64_t> staged_span(<object> data, &whole)
            if first <= offset and offset - first <= nbytes and (
                size <= nbytes - (offset - first)
            ):
                at[0] = whole + (offset - first)
                return <object> data
        return None

    def has_staged(self, uint64_t offset, uint64_t size):
        """Return whether an extent was prefetched."""
        return self.get_staged(offset, size) is not None

    cdef object pin(self, uint64_t offset, uint64_t size, uint8_t **at):
        cdef object data = self.get_staged(offset, size)
        if data is None:
            data = self.request_now(offset, size)
        staged_span(data, at)
        return data

    cpdef object read(self, uint64_t offset, uint64_t size):
        """Return `size` bytes from `offset`."""
        cdef object data = self.get_staged(offset, size)
        if data is None:
            return self.request_now(offset, size)
        return data if type(data) is bytes else bytes(data)

    cdef bytes request_now(self, uint64_t offset, uint64_t size):
        """Return bytes that were not prefetched."""
        cdef bytes data = <bytes?> self.file.read(offset, size)
        if <uint64_t> PyBytes_GET_SIZE(data) != size:
            raise ValueError(f"{self.path} returned {len(data):,} bytes, not {size:,}")
        return data


cdef int64_t staged_span(object data, uint8_t **at) except -1:
    """Set the address of prefetched bytes; return their number."""
    if type(data) is ReusedMemory:
        at[0] = (<ReusedMemory> data).at
        return (<ReusedMemory> data).nbytes
    at[0] = <uint8_t *> PyBytes_AS_STRING(<bytes?> data)
    return PyBytes_GET_SIZE(<bytes> data)


cdef enum:                         # of a MemoryPool
    MIN_POOLED = 16 << 10          # bytes of a block
    PAGE = 4096                    # bytes; capacities are whole pages
    MAX_FREE = 1024                # blocks
    MAX_PROBED = 64                # blocks tried before another one is made


@cython.final
@cython.no_gc
cdef class Destination:
    """Writable exporter of memory that is not filled yet."""

    cdef object owner              # keeps the memory
    cdef uint8_t *at
    cdef Py_ssize_t nbytes

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.at, self.nbytes, 0, flags)


cdef object writable_view(object owner, uint8_t *at, Py_ssize_t nbytes):
    """Return the writable memoryview of memory that `owner` keeps."""
    cdef Destination destination = Destination.__new__(Destination)
    destination.owner = owner
    destination.at = at
    destination.nbytes = nbytes
    return PyMemoryView_FromObject(destination)


def allocate_bytes(uint64_t size):
    """Return a bytes object and the writable memoryview to fill it through.

    The bytes must not be used before they are filled.
    """
    cdef bytes data = PyBytes_FromStringAndSize(NULL, size)
    return data, writable_view(data, <uint8_t *> PyBytes_AS_STRING(data), size)


@cython.final
@cython.no_gc
cdef class ReusedMemory:
    """Read-only buffer whose memory goes back to a `MemoryPool` when it is freed.

    A memoryview refers to it, so that views keep their bytes.
    """

    def __reduce__(self):
        raise TypeError("a ReusedMemory does not pickle")

    def __len__(self):
        return self.nbytes

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.at, self.nbytes, 1, flags)

    def __dealloc__(self):
        if self.pool is not None:
            self.pool.give_back(self.at, self.capacity)
        else:
            PyMem_RawFree(self.at)


@cython.final
@cython.no_gc
cdef class MemoryPool:
    """Pool of buffer memory, reused when nothing refers to it.

    New memory costs page faults, which take longer than the copy from a socket.
    """

    def __cinit__(self, uint64_t limit):
        self.limit = limit
        self.free_blocks = <free_t *> PyMem_RawMalloc(MAX_FREE * sizeof(free_t))
        if self.free_blocks == NULL:
            raise MemoryError

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.count):
            PyMem_RawFree(self.free_blocks[i].at)
        PyMem_RawFree(self.free_blocks)

    def __reduce__(self):
        raise TypeError("a MemoryPool does not pickle")

    def take(self, uint64_t size):
        """Return a buffer and the writable memoryview to fill it through.

        Its pages are allocated. The buffer must not be used before it is filled.
        Small ones are bytes.
        """
        cdef ReusedMemory memory
        cdef Py_ssize_t needed, capacity
        self.is_drained = False
        if size < MIN_POOLED or size > self.limit:
            return allocate_bytes(size)
        needed = capacity = (<Py_ssize_t> size + PAGE - 1) // PAGE * PAGE
        memory = ReusedMemory.__new__(ReusedMemory)
        memory.nbytes = size
        memory.at = <uint8_t *> self.find_block(needed, &capacity)
        if memory.at == NULL:
            memory.at = <uint8_t *> PyMem_RawMalloc(needed)
            if memory.at == NULL:
                raise MemoryError
            with nogil:
                fs_populate_buffer(memory.at, size)
        if not FREE_THREADED:      # there, a block could be returned meanwhile
            memory.capacity = capacity
            memory.pool = self
            self.used += capacity
            self.shrink()
        return memory, writable_view(memory, memory.at, size)

    def drain(self):
        """Free the free blocks, and those returned before the next `take`."""
        self.is_drained = True
        self.shrink()

    cdef void *find_block(self, Py_ssize_t needed, Py_ssize_t *capacity) noexcept:
        """Remove and return a free block that fits, or NULL; set its capacity."""
        cdef Py_ssize_t i, k
        cdef void *at
        for k in range(1, min(self.count, <Py_ssize_t> MAX_PROBED) + 1):
            i = self.count - k
            capacity[0] = self.free_blocks[i].capacity
            if needed <= capacity[0] <= needed + needed // 4:
                at = self.free_blocks[i].at
                self.spare -= capacity[0]
                self.count -= 1
                memmove(
                    self.free_blocks + i, self.free_blocks + i + 1,
                    (self.count - i) * sizeof(free_t),
                )
                return at
        capacity[0] = needed
        return NULL

    cdef void give_back(self, void *at, Py_ssize_t capacity) noexcept:
        self.used -= capacity
        if self.is_drained or self.count == MAX_FREE:
            PyMem_RawFree(at)
            return
        self.free_blocks[self.count].at = at
        self.free_blocks[self.count].capacity = capacity
        self.count += 1
        self.spare += capacity
        self.shrink()

    cdef void shrink(self) noexcept:
        """Free blocks beyond the limit, the least recently used first."""
        cdef uint64_t limit = 0 if self.is_drained else self.limit
        cdef Py_ssize_t freed = 0
        while freed < self.count and self.used + self.spare > limit:
            self.spare -= self.free_blocks[freed].capacity
            PyMem_RawFree(self.free_blocks[freed].at)
            freed += 1
        if freed > 0:
            self.count -= freed
            memmove(
                self.free_blocks, self.free_blocks + freed, self.count * sizeof(free_t)
            )


batch_memory = MemoryPool(64 << 20)  # of all remote batches; threads drain it


cdef PreadSource pread_source(LocalFile file):
    """Return the source of a file whose descriptor is kept if there are enough."""
    file.location = absolute_path(file.path)  # the working directory may change
    if keep_open(file):
        remember_kept(file)
    else:
        close_descriptor(file)
    return PreadSource.__new__(PreadSource, file)


def map_or_read(LocalFile file not None):
    """Map a file; where the file system maps none, read it."""
    try:
        return MappedFile(file.fd, file.nbytes, file.path)
    except OSError as error:
        if error.errno not in REFUSALS:
            raise
    return PreadSource(file).read(0, file.nbytes)


cdef Source local_source(
    LocalFile file, str mode, bint prefetch, bint check_size, PageRing ring
):
    """Return the source of a file; see `source_of`."""
    cdef MappedFile mapped
    cdef Residency residency
    if mode == "pread":
        return pread_source(file)
    try:
        mapped = MappedFile.__new__(
            MappedFile, file.fd, file.nbytes, file.path, writable=mode == "private",
            ring=ring,
        )
    except OSError as error:
        if mode == "private" or error.errno not in REFUSALS:
            raise
        return pread_source(file)
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
    """Return the source of a file.

    A `PreadSource` owns the file; with others it may be closed. Where the file system
    maps no files, mode ``"mmap"`` is ``"pread"``.
    """
    return local_source(file, mode, prefetch, check_size, ring)
