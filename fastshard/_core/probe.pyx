"""Whether the headers of a tar still are what an index says.

A header stands right before its member's data, so that a few of them can be
compared without a walk over the others.
"""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcmp

from fastshard._core.extents cimport ExtentTable, name_at
from fastshard._core.platform cimport fs_load
from fastshard._core.span cimport span_t, take
from fastshard._core.tar cimport TAR_MEMBER, need_t, tar_free, tar_init, tar_step, tar_t

cdef enum:
    BLOCK = 512                    # bytes of a header
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


cdef bint same_name(span_t listed, span_t found) noexcept nogil:
    if not is_short(listed):
        return True
    listed = without_dot(listed)
    found = without_dot(found)
    return listed.left == found.left and (
        listed.left == 0 or memcmp(listed.at, found.at, listed.left) == 0
    )


cdef bint agrees(
    const uint8_t *block, uint64_t nbytes, uint64_t offset, uint64_t size, span_t name
) noexcept nogil:
    """Whether a header is that of a member with this extent and name."""
    cdef tar_t tar
    cdef need_t need
    cdef bint same = False
    tar_init(&tar, nbytes)
    tar.at = offset - BLOCK
    if tar_step(&tar, block, BLOCK, &need) == TAR_MEMBER:
        same = (tar.size == size or size >= HEADER_SIZES) and same_name(name, tar.name)
    tar_free(&tar)
    return same


def first_changed(file not None, ExtentTable table not None, positions):
    """Compare the headers of some members with a table.

    Parameters
    ----------
    file : LocalFile or RemoteFile
    table : ExtentTable
    positions : sequence of int

    Returns
    -------
    int
        A position whose header differs, or -1.
    """
    cdef uint64_t offset, size
    cdef uint64_t nbytes = file.nbytes
    cdef Py_ssize_t i
    cdef bytes block
    extents = []
    for i in positions:
        if not 0 <= i < len(table):
            raise IndexError(f"position {i} is out of range: there are {len(table):,}")
        offset = fs_load(table.columns.offsets + i)
        size = fs_load(table.columns.sizes + i)
        if offset < BLOCK or offset > nbytes or size > nbytes - offset:
            return i
        extents.append((i, offset, size))
    blocks = file.read_many([(offset - BLOCK, BLOCK) for _, offset, _ in extents])
    for (i, offset, size), block in zip(extents, blocks, strict=True):
        if len(block) != BLOCK or not agrees(
            <const uint8_t *> PyBytes_AS_STRING(block), nbytes, offset, size,
            name_at(&table.columns, i),
        ):
            return i
    return -1
