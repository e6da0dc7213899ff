"""Where the bytes of a shard are: a mapped file, or one read with pread.

A source answers extents that its caller has checked against `nbytes`. `hold`
gives an owner and a pointer that is valid while the owner lives; `read` gives
bytes of their own.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport errno
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memset

from fastshard._core cimport platform
from fastshard._core.mapped cimport MappedFile, View
from fastshard._core.pagering cimport MappedChunks
from fastshard._core.pages cimport fs_file_cached, fs_now
from fastshard._core.platform cimport (
    PY_SSIZE_T_MAX, fs_close, fs_describe, fs_file_t, fs_glance, fs_note, fs_pread,
    fs_status,
)
from fastshard._core.residency cimport (
    LOOK_EVERY, MOST_ASKED, SETTLE, TRUSTED_READS, Residency,
)

import os
import stat

from fastshard.errors import FormatError

# Copies from here on release the GIL: they take longer than taking it again.
cdef uint64_t LARGE_COPY = 64 << 10  # bytes

KINDS_OF_FILE = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFSOCK: "a socket",
}


cdef int QUIET = getattr(os, "O_NOATIME", 0)
cdef int FLAGS = os.O_RDONLY | (
    getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
)


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
        if not platform.FS_HAVE_MMAP:
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
            code = 0 if fs_describe(self.fd, &file) == 0 else errno
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

    cdef int check(self) except -1:
        """Complain of what was read from a file that was written to."""
        cdef uint64_t seen_nbytes
        cdef uint64_t nbytes = 0
        cdef int64_t mtime_ns = 0
        if self.appended is None:
            return 0
        if fs_status(self.fd, &nbytes, &mtime_ns) != 0:
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

    cdef object hold(self, uint64_t offset, uint64_t size, uint8_t **at):
        raise NotImplementedError

    cpdef object read(self, uint64_t offset, uint64_t size):
        """Return `size` bytes from `offset` as bytes of their own."""
        raise NotImplementedError

    cdef int prepare(self) except -1:
        """Complain of what is known to be wrong before many bytes are read."""
        return 0

    cdef bint is_near(self) except -1:
        """Whether all bytes can be had without waiting for a device."""
        return False

    cdef bint has(self, uint64_t offset, uint64_t size) noexcept:
        """Whether some bytes can; if not, they are about to be asked for."""
        return False

    cdef int settle(self) except -1:
        """Complain if what was just read may not be what the file had."""
        return 0

    cdef int touch(self, uint64_t offset, uint64_t size) except -1:
        """Note that bytes are about to be touched where they are mapped."""
        return 0

    cdef int confine(self, uint64_t offset, uint64_t size) except -1:
        """Have no more mapped than these bytes: see `PageRing.confine`."""
        return 0

    cdef uint64_t most_touched(self) noexcept:
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
        return self.file.views

    def handle(self):
        """Return a source on the same mapping that counts its own views."""
        file = self.file.handle()
        residency = None if self.residency is None else self.residency.handle(file)
        return MappedSource(file, residency, watched=self.watched)

    cdef int look(self, uint64_t offset, uint64_t size) except -1:
        """See that bytes are in memory; while all are, not at every read."""
        cdef Py_ssize_t trusted = fs_glance(&self.trusted)
        if trusted > 0:
            fs_note(&self.trusted, trusted - 1)
            return 0
        self.residency.check_size()
        if not self.is_near():
            self.residency.bring(offset, size)
        return 0

    cdef int prepare(self) except -1:
        if self.residency is not None:
            self.residency.prepare()
        return 0

    cdef bint is_near(self) except -1:
        cdef Py_ssize_t trusted = fs_glance(&self.trusted)
        if trusted > 0:
            fs_note(&self.trusted, trusted - 1)
            return True
        if not self.residency.is_whole():
            return False
        if self.residency.checked is None:  # else the size is asked for at every read
            fs_note(&self.trusted, TRUSTED_READS)
        return True

    cdef bint has(self, uint64_t offset, uint64_t size) noexcept:
        if self.residency is None or self.residency.has(offset, size):
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

    cdef uint64_t most_touched(self) noexcept:
        return 0 if self.file.chunks is None else self.file.chunks.ring.half()

    cdef object hold(self, uint64_t offset, uint64_t size, uint8_t **at):
        cdef View view
        if self.file.chunks is not None:
            view = self.file.window(offset, size)  # makes room before pages are brought
            self.look(offset, size)
            self.confine(offset, size)
            at[0] = view.base
            return view
        self.look(offset, size)
        at[0] = self.file.base + offset
        return self.file.window(offset, size)

    cpdef object read(self, uint64_t offset, uint64_t size):
        """Return `size` bytes from `offset` as bytes of their own."""
        cdef object copy
        cdef char *to
        if offset > self.nbytes or size > self.nbytes - offset:
            raise FormatError("a read beyond the file", self.path, offset)
        self.prepare()             # it is we who touch its bytes
        self.touch(offset, size)
        self.look(offset, size)
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

    cdef object hold(self, uint64_t offset, uint64_t size, uint8_t **at):
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
        self.file.check()
        return copy

    cdef int settle(self) except -1:
        return self.file.check()

    cdef bint is_near(self) except -1:
        cdef uint64_t now = fs_now()
        if now >= self.next_look and self.nbytes >> 20 <= MOST_ASKED:
            with nogil:
                self.whole = fs_file_cached(self.fd, 0, self.nbytes) == 1
            self.next_look = now + LOOK_EVERY
        return self.whole
