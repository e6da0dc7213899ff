"""Which pages of a mapped file are in memory, and how to bring those that are not.

A page that is missing when it is touched is waited for with the GIL held. So the
page cache is asked: once a file and every so often whether it has all of it
(`cachestat`), else for each extent (`mincore`); what it lacks is brought without
the GIL before anyone gets a pointer to it.

To ask for a part of a file takes 0.4 us with a descriptor and 2 us without. One is
kept while some of a file is missing, of a few files. It also counts pages that are
still being read, so it is not asked shortly after a miss.
"""

cimport cython
from libc.errno cimport EFAULT, EIO
from libc.stdint cimport int64_t, uint8_t, uint64_t

from fastshard._core.mapped cimport MappedFile
from fastshard._core.pages cimport (
    fs_bring_pages, fs_ask_pages, fs_file_cached, fs_exact_now, fs_now, fs_pages_cached,
)
from fastshard._core.platform cimport (
    fs_close, fs_count, fs_glance, fs_status, fs_user,
)

import os

from fastshard.errors import FormatError

cdef Py_ssize_t probes = 0         # that are kept open
cdef uint64_t next_ask = 0         # when any file is asked about again, ns
cdef str SHORTER = "the file became shorter after it was mapped"
cdef uint64_t ASKED_LONG_AGO = 2_000_000_000  # ns
cdef uint64_t ASK_SHARE = 50       # asking again takes one part in so many of the time
cdef str UNREADABLE = "its bytes cannot be read: the device failed"
cdef int FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)


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
        if not self.stays and fs_glance(&probes) < MOST_PROBES:
            fs_count(&probes, 1)
            self.stays = True
        return self.stays

    def __dealloc__(self):
        if self.stays:
            fs_count(&probes, -1)
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
        user = fs_user()
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

    cdef int check_size(self) except -1:
        """Complain if the file became shorter; nothing without a descriptor."""
        cdef uint64_t nbytes = 0
        cdef int64_t mtime_ns
        if self.checked is not None and (
            fs_status(self.checked.fd, &nbytes, &mtime_ns) != 0
            or nbytes < self.file.nbytes
        ):
            raise FormatError(SHORTER, self.file.path, nbytes)
        return 0

    cdef int prepare(self) except -1:
        """Complain if the file became shorter, before we ourselves touch its bytes."""
        cdef uint64_t now
        if self.checked is not None:
            return self.check_size()
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

    cdef bint is_whole(self) except -1:
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
            self.ask(probe)
            cost = fs_exact_now() - begun
            self.next_look = now + LOOK_EVERY
            next_ask = max(next_ask, now) + ASK_SHARE * cost
        finally:
            self.asking = 0
        return self.whole

    def look(self, int fd):
        """Ask by a descriptor of the file that is open anyway."""
        cdef uint64_t nbytes = self.file.nbytes
        cdef int answer
        if nbytes >> 20 > MOST_ASKED:
            return
        with nogil:
            answer = fs_file_cached(fd, 0, nbytes)
        self.whole = answer == 1
        self.next_look = fs_now() + LOOK_EVERY

    cdef int ask(self, Descriptor probe) except -1:
        cdef uint64_t nbytes = self.file.nbytes
        cdef int answer = -1
        if probe is None:
            probe = self.open_again()
        if probe is not None and nbytes >> 20 > MOST_ASKED:
            answer = 0             # its members are asked about one by one
        elif probe is not None:
            with nogil:
                answer = fs_file_cached(probe.fd, 0, nbytes)
        with cython.critical_section(self):
            self.whole = answer == 1
            self.probe = probe if answer == 0 and probe.may_stay() else None
        return 0

    cdef Descriptor open_again(self):
        """Open the file by its path; None: another is there now, or none."""
        cdef Descriptor found = Descriptor.__new__(Descriptor)
        try:
            found.fd = os.open(self.file.path, FLAGS)
            status = os.fstat(found.fd)
        except OSError:
            return None
        if (status.st_dev, status.st_ino) != (self.device, self.inode):
            return None
        return found

    cdef bint has(self, uint64_t offset, uint64_t size) noexcept:
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

    cdef int bring(self, uint64_t offset, uint64_t size) except -1:
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
        size = min(size, <uint64_t> MOST_BROUGHT)
        if self.has(offset, size):
            return 0
        with nogil:                # `self` keeps it mapped
            fs_ask_pages(at, size)
            code = fs_bring_pages(at, size)
        self.calm_from = fs_now() + SETTLE
        if code != 0:
            raise self.failure(offset, code)
        return 0

    cdef object failure(self, uint64_t offset, int code):
        """Why pages could not be brought: the kernel does not say."""
        cdef uint64_t nbytes = self.file.nbytes
        cdef int64_t mtime_ns
        cdef Descriptor again = self.open_again() if self.checked is None else self.checked
        if again is not None:
            fs_status(again.fd, &nbytes, &mtime_ns)
        if nbytes < self.file.nbytes or again is None:
            return FormatError(SHORTER, self.file.path, offset)
        return OSError(EIO if code == EFAULT else code, UNREADABLE, self.file.path)
