"""A walk over the headers of a tar whose bytes somebody else brings.

The same `tar_step` as in a scan of a local file: it says which bytes it needs next,
and goes on when it is given them. A walk may begin in the middle of an archive, at a
header, and end where another one begins.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memset

from fastshard._core.extents cimport (
    ExtentTable, columns_add, columns_free, columns_t, name_at, table_of, text_from,
)
from fastshard._core.tar cimport *

from fastshard._core import scan
from fastshard.errors import FormatError

cdef enum:
    BLOCK = 512                    # bytes of a header
    AT_ONCE = 1 << 16              # headers between looks at signals
    WALK_STOPPED = TAR_STATUSES + 1

@cython.final
cdef class Walk:
    """A walk from one header of a tar on.

    Parameters
    ----------
    nbytes : int
        Of the whole archive.
    start : int
        Where the first header is.
    path : str
        For messages.
    """

    cdef tar_t tar
    cdef columns_t columns
    cdef uint64_t[<int> SKIPPED_KINDS] counts
    cdef readonly object path
    cdef uint64_t start            # of the headers of the member that is next
    cdef readonly uint64_t stride  # running mean of bytes between headers
    cdef readonly uint64_t header_size  # bytes of the last member's headers
    cdef readonly bint ended       # the archive ends here
    cdef readonly bint has_global  # a header was seen that holds for all that follow

    def __cinit__(self, uint64_t nbytes, uint64_t start, path):
        memset(&self.columns, 0, sizeof(self.columns))
        tar_init(&self.tar, nbytes)
        self.tar.at = self.start = start
        self.path = path
        self.header_size = BLOCK

    def __dealloc__(self):
        tar_free(&self.tar)
        columns_free(&self.columns)

    def __reduce__(self):
        raise TypeError("a walk does not pickle")

    @property
    def nbytes(self):
        """Bytes of the whole archive."""
        return self.tar.nbytes

    @property
    def at(self):
        """Where the headers of the member that comes next begin."""
        return self.start

    @property
    def count(self):
        """Members so far."""
        return self.columns.count

    def go(self, bytes window not None, uint64_t offset, uint64_t stop):
        """Walk on, as far as the bytes reach.

        Parameters
        ----------
        window : bytes
            What the archive has from `offset` on; empty to begin with.
        offset : int
        stop : int
            Walk no further than to a header at or behind this offset.

        Returns
        -------
        (int, int), or None
            The offset and the number of bytes that are needed at least; None: the
            archive ended, or `stop` was reached.

        Raises
        ------
        FormatError
            The archive breaks the format.
        """
        cdef const uint8_t *bytes_at = <const uint8_t *> PyBytes_AS_STRING(window)
        cdef size_t size = len(window)
        cdef need_t need
        cdef int status
        with nogil:
            status = self.walk(bytes_at, size, offset, stop, &need)
        if status == TAR_NEED:
            return need.offset, need.size
        if status == TAR_END:
            self.ended = True
            self.start = self.tar.at
        elif status != WALK_STOPPED:
            raise self.fault(status)
        return None

    cdef int walk(
        self, const uint8_t *window, size_t size, uint64_t offset, uint64_t stop,
        need_t *need,
    ) noexcept nogil:
        cdef tar_t *tar = &self.tar
        cdef uint64_t skip
        cdef int status
        while True:
            if tar.extension == 0 and not tar.pending and tar.at >= stop:
                return WALK_STOPPED
            skip = size
            if offset <= tar.at and tar.at - offset < size:
                skip = tar.at - offset
            status = tar_step(tar, window + skip, size - <size_t> skip, need)
            if status == TAR_MEMBER:
                if self.columns.count == 0:
                    self.stride = tar.at - self.start
                else:
                    self.stride = (3 * self.stride + (tar.at - self.start)) // 4
                self.header_size = tar.offset - self.start
                if not columns_add(&self.columns, tar.offset, tar.size, tar.name):
                    return TAR_NO_MEMORY
                self.start = tar.at
            elif status == TAR_SKIPPED:
                self.counts[tar.skipped] += 1
                self.start = tar.at
            elif status != TAR_MORE:
                return status
            elif tar.extension == 0 and not tar.pending:
                self.has_global = True
                self.start = tar.at

    cdef object fault(self, int status):
        member = None
        if status == TAR_NO_MEMORY:
            return MemoryError()
        if status in (
            TAR_SPARSE, TAR_MULTI_VOLUME, TAR_INCREMENTAL, TAR_SIZE_BEYOND,
            TAR_PADDING_CUT,
        ):
            member = text_from(self.tar.name)
        return FormatError(scan.FAULTS[status], self.path, self.tar.fault_at, member)

    def append(self, Walk other not None):
        """Add what another walk found, which began where this one ended."""
        cdef size_t i
        cdef columns_t *more = &other.columns
        if other is self:
            raise ValueError("a walk behind itself")
        for i in range(more.count):
            if not columns_add(
                &self.columns, more.offsets[i], more.sizes[i], name_at(more, i)
            ):
                raise MemoryError
        for i in range(<size_t> SKIPPED_KINDS):
            self.counts[i] += other.counts[i]
        tar_free(&self.tar)
        tar_init(&self.tar, other.tar.nbytes)
        self.tar.at = other.tar.at
        self.start = other.start
        self.ended = other.ended
        self.has_global = self.has_global or other.has_global

    def go_on_at(self, uint64_t start):
        """Go on at another header; what global headers said so far holds there too."""
        if self.tar.pending or self.tar.extension != 0:
            raise ValueError("a walk that stands between a header and its member")
        self.tar.at = self.start = start

    def table(self):
        """Return the members, and leave none behind."""
        return table_of(&self.columns)

    def skipped(self):
        """Return how many of each kind were passed over that are no members."""
        return {kind: self.counts[i] for i, kind in scan.KINDS.items() if self.counts[i]}


def first_header(bytes window not None, uint64_t offset, uint64_t nbytes, uint64_t stop):
    """Look for a header in the middle of an archive, which may be a false one.

    Parameters
    ----------
    window : bytes
        What the archive has from `offset` on, a multiple of 512.
    offset, nbytes : int
        Where the window begins, and bytes of the whole archive.
    stop : int
        Look no further than here.

    Returns
    -------
    int, or None
        Where the first block is that looks like a member's own header.
    """
    cdef const uint8_t *at = <const uint8_t *> PyBytes_AS_STRING(window)
    cdef uint64_t end = min(offset + <uint64_t> len(window), stop)
    cdef tar_t tar
    cdef need_t need
    cdef int status
    while offset < end and end - offset >= BLOCK:
        if at[257] == c'u' and at[258] == c's' and at[259] == c't':
            tar_init(&tar, nbytes)
            tar.at = offset
            status = tar_step(&tar, at, BLOCK, &need)
            tar_free(&tar)
            if status == TAR_MEMBER or status == TAR_SKIPPED or (
                status in (TAR_MORE, TAR_NEED) and at[156] in (c'x', c'L')
            ):
                return offset
        at += BLOCK
        offset += BLOCK
    return None
