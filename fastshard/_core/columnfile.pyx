"""A tar of one field's arrays, whose index says where members should be.

An offset is believed if it comes from who writes true ones, and the member's own
header stands before it. Otherwise all headers are walked over, once, and the last
member of that name is meant.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcmp

from fastshard._core.arrays cimport make_array
from fastshard._core.extents cimport text_from, text_to
from fastshard._core.localsource cimport local_source
from fastshard._core.mapped cimport View
from fastshard._core.npyheader cimport Seen
from fastshard._core.pagering cimport PageRing
from fastshard._core.source cimport LocalFile, MappedSource, Source
from fastshard._core.span cimport span_t
from fastshard._core.tar cimport (
    TAR_MEMBER, TAR_MORE, need_t, tar_free, tar_init, tar_step, tar_t,
)

from threading import Lock
from weakref import ref

from fastshard.errors import FormatError

cdef enum:
    BLOCK = 512                    # bytes of a header
    NAME_WIDTH = 100               # bytes
    SIZE = 124                     # where a header's fields begin
    SIZE_DIGITS = 11
    TYPE = 156
    MOST_BLOCKS = 64               # blocks of extension headers before a header
    STEPS = 8                      # of a walk over them
    MOST_HOLDERS = 8               # before those that are gone are forgotten


cdef bint octal_at(const uint8_t *digits, uint64_t *value) noexcept nogil:
    """Read the eleven octal digits that most headers have; False: it has others."""
    cdef uint64_t total = 0
    cdef int i
    for i in range(SIZE_DIGITS):
        if not c'0' <= digits[i] <= c'7':
            return False
        total = total * 8 + (digits[i] - c'0')
    value[0] = total
    return digits[SIZE_DIGITS] == 0 or digits[SIZE_DIGITS] == c' '


cdef bint is_plain(const uint8_t *block, span_t name, uint64_t *size) noexcept nogil:
    """Whether a block is a plain header of a file of this name; its size.

    Looks at its first 160 bytes: who wrote it left the name's prefix empty.
    """
    return (
        name.left <= NAME_WIDTH
        and memcmp(block, name.at, name.left) == 0
        and (name.left == NAME_WIDTH or block[name.left] == 0)
        and (block[TYPE] == c'0' or block[TYPE] == 0)
        and octal_at(block + SIZE, size)
        and size[0] > 0            # else it may stand in a header before: no array is empty
    )


cdef bint is_extended(
    const uint8_t *window, uint64_t start, uint64_t nbytes, uint64_t offset, span_t name,
    uint64_t *size,
) noexcept nogil:
    """Whether headers that end at `offset` are of a member of this name; its size.

    Its name or its size stands in extension headers, which come before: where they
    begin is found by trying. `window` holds the file from `start` to `offset`.
    """
    cdef tar_t tar
    cdef need_t need
    cdef bint same
    cdef uint64_t at = offset
    cdef int status, k
    while at - start >= BLOCK:
        at -= BLOCK
        if at + BLOCK < offset and window[at - start + TYPE] not in (c'x', c'L', c'X'):
            continue
        tar_init(&tar, nbytes)
        tar.at = at
        status = TAR_MORE
        for k in range(STEPS):
            if tar.at > offset:
                break
            status = tar_step(
                &tar, window + (tar.at - start), <size_t> (offset - tar.at), &need
            )
            if status != TAR_MORE:
                break
        same = (
            status == TAR_MEMBER and tar.size > 0 and tar.offset == offset
            and tar.name.left == name.left
            and memcmp(tar.name.at, name.at, name.left) == 0
        )
        size[0] = tar.size
        tar_free(&tar)
        if same:
            return True
    return False


@cython.final
cdef class ColumnFile:
    """An open tar of one field.

    Parameters
    ----------
    source : Source
    path : str
    number : int
        Of the shard, among those of its field.
    scan : callable
        ``scan(path)`` returns an `ExtentTable` of all that the file holds, and the
        fault that keeps more from being found, or None.
    believed : bool
        Offsets come from who writes true ones. Others' may lead to an earlier member
        of the same name, so that all headers are walked over before any is used.
    identity : tuple of int
        Device, inode, bytes, and ns of the last write, when it was opened.
    """

    def __cinit__(
        self, Source source not None, str path not None, number, scan not None,
        bint believed, tuple identity not None,
    ):
        self.source = source
        self.believed = believed
        self.identity = identity
        self.scanning = Lock()
        self.path = path
        self.number = number
        self.scan = scan
        self.likely = BLOCK
        self.seen = Seen.__new__(Seen)
        self.holders = []
        self.most_holders = MOST_HOLDERS

    def __reduce__(self):
        raise TypeError("a ColumnFile does not pickle")

    @property
    def nbytes(self):
        """Bytes of the file when it was opened."""
        return self.source.nbytes

    @property
    def was_scanned(self):
        """Whether an offset of the index was none, so that all headers were read."""
        return self.scanned is not None

    def let_go(self):
        """Have those that remember the file forget it; who uses it goes on."""
        with cython.critical_section(self):
            holders, self.holders = self.holders, []
        for holder in holders:
            holder = holder()
            if holder is not None:
                holder.let_go(self)

    cdef int held_by(self, object holder) except -1:
        """Note who remembers the file, weakly."""
        with cython.critical_section(self):
            if len(self.holders) >= self.most_holders:
                self.holders = [other for other in self.holders if other() is not None]
                self.most_holders = 2 * len(self.holders) + MOST_HOLDERS
            self.holders.append(ref(holder))
        return 0

    cdef ExtentTable walked(self):
        """What a walk over all headers finds; one thread walks, others wait for it."""
        with self.scanning:
            if self.scanned is None:
                self.scanned, self.fault = self.scan(self.path)
            return self.scanned

    def locate(self, uint64_t offset, str member not None):
        """Return the true offset of a member, and its size.

        Raises
        ------
        FormatError
            The file has no such member.
        """
        cdef uint64_t found, size
        cdef span_t name
        cdef object keeper = text_to(member, &name)
        if keeper is None:
            raise FormatError("no member is called so", self.path, offset, member)
        self.find(offset, name, &found, &size)
        return found, size

    cdef bint check(self, uint64_t offset, span_t name, uint64_t *size) except -1:
        """Whether a member of this name begins at `offset`; its size."""
        cdef Source source = self.source
        cdef uint64_t nbytes = source.nbytes
        cdef uint64_t start
        cdef const uint8_t *window
        cdef object keeper
        if offset < BLOCK or offset > nbytes or offset % BLOCK != 0:
            return False
        start = offset                 # of a mapped one the data comes with its header
        if isinstance(source, MappedSource):
            start = min(offset + self.likely, nbytes)
        keeper = self.held(source, offset - BLOCK, start, &window)
        if not is_plain(window, name, size):
            start = offset - min(offset, <uint64_t> MOST_BLOCKS * BLOCK)
            keeper = self.held(source, start, offset, &window)
            if not is_extended(window, start, nbytes, offset, name, size):
                return False
        return size[0] <= nbytes - offset

    cdef object held(
        self, Source source, uint64_t start, uint64_t end, const uint8_t **window
    ):
        """Point at bytes of the file; what is returned keeps them."""
        cdef bytes copy
        if isinstance(source, MappedSource):
            source.touch(start, end - start)
            (<MappedSource> source).look(start, end - start)
            source.confine(start, end - start)
            window[0] = source.base + start
            return source
        copy = source.read(start, end - start)
        window[0] = <const uint8_t *> PyBytes_AS_STRING(copy)
        return copy

    cdef int find(
        self, uint64_t offset, span_t name, uint64_t *found, uint64_t *size
    ) except -1:
        """Find a member: at `offset` if its header stands there, else by its name."""
        cdef Py_ssize_t i
        cdef Source source
        cdef ExtentTable table
        cdef str member
        found[0] = offset
        if self.believed and self.check(offset, name, size):
            self.likely = size[0]
            return 0
        source = self.source
        member = text_from(name)
        if offset > source.nbytes:  # the sums that others write are smaller, too
            raise FormatError(
                f"the index names a byte beyond the {source.nbytes:,} of the shard",
                self.path, offset, member,
            )
        table = self.walked()
        i = table.find(member)
        if i < 0:
            reason = "the index names a member that the shard has not"
            if self.fault is not None:
                reason += f": {self.fault.reason} at byte {self.fault.offset:,}"
            raise FormatError(reason, self.path, offset, member) from self.fault
        found[0] = table.columns.offsets[i]
        size[0] = table.columns.sizes[i]
        if found[0] > source.nbytes or size[0] > source.nbytes - found[0]:
            raise FormatError(  # what was mapped is older than the walk
                "a member reaches beyond the file as it was opened", self.path,
                found[0], member,
            )
        return 0

    cdef object array(self, uint64_t offset, str member):
        """Return a member as an array on the file's own memory."""
        cdef uint64_t size
        cdef uint64_t found = offset
        cdef span_t name
        cdef uint8_t *at = NULL
        cdef Source source = self.source
        cdef object owner = None
        cdef object keeper = text_to(member, &name)
        if keeper is None:
            raise FormatError("no member is called so", self.path, offset, member)
        try:
            if self.believed and isinstance(source, MappedSource):
                owner = self.window(<MappedSource> source, offset, name, &size)
            if owner is not None:
                at = (<View> owner).base
            else:
                self.find(offset, name, &found, &size)
                owner = source.hold(found, size, &at)
            return make_array(
                at, size, None, None, type(owner) is View and source.writable, owner,
                self.seen,
            )
        except FormatError as error:
            at_byte = found + error.offset if error.path == "" else error.offset
            raise FormatError(
                error.reason, self.path, at_byte, member
            ) from error.__cause__

    cdef View window(
        self, MappedSource source, uint64_t offset, span_t name, uint64_t *size
    ):
        """A window onto a member that stands where it should; or None."""
        cdef uint64_t nbytes = source.nbytes
        if offset < BLOCK or offset > nbytes or offset % BLOCK != 0:
            return None
        source.touch(
            offset - BLOCK, min(offset + self.likely, nbytes) - (offset - BLOCK)
        )
        source.look(offset - BLOCK, min(offset + self.likely, nbytes) - (offset - BLOCK))
        source.confine(
            offset - BLOCK, min(offset + self.likely, nbytes) - (offset - BLOCK)
        )
        if not is_plain(source.base + offset - BLOCK, name, size):
            return None
        if size[0] > nbytes - offset or size[0] > self.likely:
            return None            # not all of it was brought
        return source.file.window(offset, size[0])


def open_column(
    str path not None, number, str mode not None, recorded, believes not None,
    scan not None, PageRing ring=None,
):
    """Open a tar of one field.

    Parameters
    ----------
    path, number, scan
        As `ColumnFile` takes them.
    mode : {"mmap", "private", "pread"}
    recorded : int or None
        Bytes of the members that the index has true offsets of; None: it has not.
        Where it is believed, no others are mapped or read.
    believes : callable
        ``believes(file, recorded)``: whether that is so of the file that is there.
    ring : PageRing, optional
        Bounds its resident pages.

    Raises
    ------
    FormatError
        It is no regular file.
    OSError
        It cannot be opened or mapped.
    """
    cdef LocalFile file = LocalFile.__new__(LocalFile, path)
    cdef Source source
    cdef bint believed
    try:
        believed = recorded is not None and believes(file, recorded)
        if believed and recorded > 0:  # what stands behind may be cut off any time
            file.nbytes = min(file.nbytes, <uint64_t> recorded)
        source = local_source(file, mode, True, False, ring)
        if isinstance(source, MappedSource):
            (<MappedSource> source).residency.look(file.fd)  # it is read at once
    except BaseException:
        file.close()
        raise
    if source.fd < 0:
        file.close()               # a mapping needs no descriptor
    return ColumnFile.__new__(
        ColumnFile, source, path, number, scan, believed,
        (file.device, file.inode, file.nbytes, file.mtime_ns),
    )
