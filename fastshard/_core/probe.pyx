"""Whether the headers of a tar still are what an index says.

A header stands right before its member's data, so that a few of them can be
compared without a walk over the others.
"""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcmp

from fastshard._core.extents cimport ExtentTable, columns_t, is_doubtful, name_at
from fastshard._core.platform cimport fs_load
from fastshard._core.span cimport span_t, take
from fastshard._core.tar cimport (
    TAR_MEMBER, TAR_MORE, TAR_SKIPPED, need_t, tar_free, tar_init, tar_step, tar_t,
)

cdef enum:
    BLOCK = 512                    # bytes of a header
    LOOKED_AT = 4 << 10            # bytes before a member's data that are read
    NAME_WIDTH = 100               # bytes of a name that a header always has whole

cdef uint64_t HEADER_SIZES = <uint64_t> 1 << 33  # larger sizes may stand elsewhere


cdef span_t without_dot(span_t name) noexcept nogil:
    """A name without a leading "./", which some writers leave out."""
    if name.left >= 2 and name.at[0] == c'.' and name.at[1] == c'/':
        take(&name, 2)
    return name


cdef bint is_short(span_t name) noexcept nogil:
    """Whether every writer puts such a name into the header itself."""
    cdef size_t i
    if name.left > NAME_WIDTH - 2:
        return False
    for i in range(name.left):
        if name.at[i] >= 0x80:
            return False
    return True


cdef bint is_same(span_t listed, span_t found) noexcept nogil:
    listed = without_dot(listed)
    found = without_dot(found)
    return listed.left == found.left and (
        listed.left == 0 or memcmp(listed.at, found.at, listed.left) == 0
    )


cdef headers_t headers_before(
    const columns_t *columns, Py_ssize_t i, uint64_t offset, uint64_t lowest
) noexcept nogil:
    """Where the headers of member `i` begin: behind the member before it.

    Where that is below `lowest`, or absurd, its own block alone is looked at. The
    caller has checked that `offset` leaves room for it.
    """
    cdef headers_t headers
    cdef uint64_t before, size
    cdef uint64_t end = 0
    headers.start = offset - BLOCK
    headers.whole = False
    if i > 0:
        before = fs_load(columns.offsets + i - 1)
        size = fs_load(columns.sizes + i - 1)
        if before > offset or size > offset - before:
            return headers
        end = (before + size + (BLOCK - 1)) & ~<uint64_t> (BLOCK - 1)
    if lowest <= end <= headers.start and (offset - end) % BLOCK == 0:
        headers.start = end
        headers.whole = True
    return headers


cdef bint agrees(
    const uint8_t *window, headers_t headers, uint64_t nbytes, uint64_t offset,
    uint64_t size, span_t name,
) noexcept nogil:
    """Whether headers are those of a member with this extent and name.

    Not, where a global header tells its name or size: that is not among them.

    Parameters
    ----------
    window
        What the shard has from `headers.start` to `offset`.
    """
    cdef tar_t tar
    cdef need_t need
    cdef bint same = False
    cdef int status
    tar_init(&tar, nbytes)
    tar.at = headers.start
    while tar.at < offset:
        status = tar_step(
            &tar, window + (tar.at - headers.start), <size_t> (offset - tar.at), &need
        )
        if status == TAR_MEMBER and tar.offset == offset:
            if headers.whole:
                same = tar.size == size and is_same(name, tar.name)
            else:                  # an extension may tell a large size, another name
                same = (tar.size == size or size >= HEADER_SIZES) and (
                    not is_short(name) or is_same(name, tar.name)
                )
            break
        if status != TAR_MEMBER and status != TAR_SKIPPED and status != TAR_MORE:
            break
    tar_free(&tar)
    return same


def differing(file not None, ExtentTable table not None, positions):
    """Compare the headers of some members with a table; one read for each.

    Parameters
    ----------
    file : LocalFile or RemoteFile
    table : ExtentTable
    positions : sequence of int

    Returns
    -------
    list of int
        Positions of members that are not there, or seem not to be: a global header,
        or an extension header further away, may tell what was not looked at.
    """
    cdef uint64_t offset, size
    cdef uint64_t nbytes = file.nbytes
    cdef headers_t headers
    cdef Py_ssize_t i
    cdef bytes window
    found = []
    looks = []
    for i in positions:
        if not 0 <= i < len(table):
            raise IndexError(f"position {i} is out of range: there are {len(table):,}")
        if is_doubtful(table):
            table.check_extent(i)
            table.check_extent(max(i - 1, 0))
            table.check_name(i)
        offset = fs_load(table.columns.offsets + i)
        size = fs_load(table.columns.sizes + i)
        if offset < BLOCK or offset > nbytes or size > nbytes - offset:
            found.append(i)
            continue
        headers = headers_before(
            &table.columns, i, offset, offset - min(offset, <uint64_t> LOOKED_AT)
        )
        looks.append((i, headers.start, headers.whole, offset, size))
    windows = file.read_many([(start, offset - start) for _, start, _, offset, _ in looks])
    for (i, start, whole, offset, size), window in zip(looks, windows, strict=True):
        headers.start = start
        headers.whole = whole
        if <uint64_t> len(window) != offset - headers.start or not agrees(
            <const uint8_t *> PyBytes_AS_STRING(window), headers, nbytes, offset, size,
            name_at(&table.columns, i),
        ):
            found.append(i)
    return found
