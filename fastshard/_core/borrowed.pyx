"""Tables and groupings on memory that holds an index: nothing is copied.

The memory is a mapped file, or bytes where the index was read. Its numbers may
be anything, and may change: here it is only checked that each column lies in
the memory; what a column says is checked where it is used. Checksums of its blocks
are compared at once where it was read, and block by block, when one is first used,
where it is mapped.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from fastshard._core.blocks cimport (
    SHIFT, blocks_check, blocks_free, blocks_new, blocks_right, blocks_t, count_of,
)
from fastshard._core.extents cimport ExtentTable
from fastshard._core.grouping cimport Grouping
from fastshard._core.groups cimport groups_t
from fastshard._core.hashing cimport MAX_ENTRIES
from fastshard._core.io.source cimport MappedFile
from fastshard._core.platform cimport fs_set

from fastshard.errors import FormatError


@cython.final
@cython.no_gc
cdef class IndexMemory:
    """The bytes of an index file, mapped or copied.

    Parameters
    ----------
    owner : MappedFile or bytes
    path : str
        For messages.
    sums : bytes, optional
        Checksums of the blocks from `start` to `end`; see `block_sums`.
    start, end : int
        Bytes of the file.

    Raises
    ------
    FormatError
        The memory is bytes, and a checksum is wrong.
    """

    cdef object owner
    cdef readonly object path
    cdef uint8_t *base
    cdef readonly uint64_t nbytes
    cdef blocks_t *blocks          # NULL: there are no checksums

    def __cinit__(
        self, owner not None, path not None, bytes sums=None, uint64_t start=0,
        uint64_t end=0,
    ):
        self.owner = owner
        self.path = path
        if isinstance(owner, MappedFile):
            self.base = (<MappedFile> owner).base
            self.nbytes = (<MappedFile> owner).nbytes
        else:
            self.base = <uint8_t *> PyBytes_AS_STRING(owner)
            self.nbytes = len(owner)
        if sums is None:
            return
        if start > end or end > self.nbytes or (
            <size_t> len(sums) != 4 * count_of(end - start)
        ):
            raise ValueError("checksums of other blocks than there are")
        self.blocks = blocks_new(
            self.base + start, end - start, start,
            <const uint8_t *> PyBytes_AS_STRING(sums),
        )
        if self.blocks == NULL:
            raise MemoryError
        if not isinstance(owner, MappedFile):  # it is ours, and never changes
            blocks_check(self.blocks, self.base + start, end - start, path)

    def __dealloc__(self):
        blocks_free(self.blocks)

    def damaged(self):
        """Return where blocks begin whose checksums are wrong; all are compared now."""
        cdef size_t k
        cdef bint right
        found = []
        if self.blocks == NULL:
            return found
        for k in range(self.blocks.count):
            with nogil:
                right = blocks_right(self.blocks, k)
            if not right:
                found.append(self.blocks.start + (<uint64_t> k << SHIFT))
        return found

    cdef blocks_t *unchecked(self) noexcept:
        """The blocks, or NULL: none needs to be checked."""
        if self.blocks == NULL or self.blocks.left == 0:
            return NULL
        return self.blocks

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.base, self.nbytes, 1, flags)

    def read(self, uint64_t offset, uint64_t size):
        """Return bytes of their own."""
        return PyBytes_FromStringAndSize(<const char *> self.at(offset, size, 1), size)

    def __reduce__(self):
        raise TypeError("the memory of an index does not pickle; pickle the shard")

    cdef uint8_t *at(self, uint64_t offset, uint64_t count, size_t width) except NULL:
        """Where a column begins, whose items must lie in the memory."""
        if (
            offset > self.nbytes or count > (self.nbytes - offset) // width
            or offset % width != 0
        ):
            raise FormatError("the index ends before its columns do", self.path, 0)
        return self.base + offset


def borrowed_table(
    IndexMemory memory not None, uint64_t count, uint64_t offsets, uint64_t sizes,
    uint64_t name_ends, uint64_t names, uint64_t names_size, uint64_t info_ends,
    uint64_t infos, uint64_t infos_size,
):
    """Return a table whose columns stand at these bytes of an index.

    Parameters
    ----------
    memory : IndexMemory
    count : int
        Members.
    offsets, sizes, name_ends, names, info_ends, infos : int
        Where each column begins. `info_ends` 0: there is no info.
    names_size, infos_size : int
        Bytes of all names, of all infos.

    Raises
    ------
    FormatError
        A column reaches beyond the index.
    """
    cdef ExtentTable table = ExtentTable.__new__(ExtentTable)
    table.keeper = memory
    table.columns.offsets = <uint64_t *> memory.at(offsets, count, 8)
    table.columns.sizes = <uint64_t *> memory.at(sizes, count, 8)
    table.columns.name_ends = <uint64_t *> memory.at(name_ends, count, 8)
    table.columns.names = memory.at(names, names_size, 1)
    table.columns.names_size = names_size
    if info_ends != 0:
        table.columns.info_ends = <uint64_t *> memory.at(info_ends, count, 8)
        table.columns.infos = memory.at(infos, infos_size, 1)
        table.columns.infos_size = infos_size
    table.columns.count = count
    table.columns.blocks = memory.unchecked()
    return table


def borrowed_grouping(
    ExtentTable table not None, IndexMemory memory not None, uint64_t samples,
    uint64_t starts, uint64_t grouped, uint64_t members, bint last_dot, bint lower,
    bint unique,
):
    """Return the samples that an index lists.

    Parameters
    ----------
    table : ExtentTable
    memory : IndexMemory
    samples, grouped : int
        Samples, and members that belong to one.
    starts, members : int
        Where the columns begin: ``starts`` has one more number than samples.
    last_dot, lower : bool
        As for `Grouping`.
    unique : bool
        The index says that no sample has a field twice.

    Raises
    ------
    FormatError
        There are more samples than members, or a column reaches beyond the index.
    """
    cdef Grouping grouping = Grouping(table, last_dot, lower)
    cdef groups_t *groups = &grouping.groups
    if samples > grouped or grouped > table.columns.count or grouped >= MAX_ENTRIES:
        raise FormatError("more samples than members", memory.path, 0)
    groups.starts = <uint32_t *> memory.at(starts, samples + 1, 4)
    groups.members = <uint32_t *> memory.at(members, grouped, 4)
    groups.count = <uint32_t> samples
    groups.grouped = <uint32_t> grouped
    groups.last_dot = last_dot
    groups.unique = unique
    groups.columns = &table.columns
    grouping.keeper = memory
    fs_set(&grouping.grouped)
    return grouping


cdef object bytes_of(const void *column, size_t size):
    return PyBytes_FromStringAndSize(<const char *> column, size)


def columns_of(ExtentTable table not None):
    """Return copies of a table's columns.

    Returns
    -------
    dict of str to bytes
        ``offsets``, ``sizes``, ``name_ends``: native 64-bit numbers, one a
        member; ``names``; ``info_ends`` and ``infos``, empty without info.
    """
    cdef size_t width = 8 * table.columns.count
    cdef bint has_info = table.columns.info_ends != NULL
    table.check_extents()
    table.check_names()
    table.check_infos()
    return {
        "offsets": bytes_of(table.columns.offsets, width),
        "sizes": bytes_of(table.columns.sizes, width),
        "name_ends": bytes_of(table.columns.name_ends, width),
        "names": bytes_of(table.columns.names, table.columns.names_size),
        "info_ends": bytes_of(table.columns.info_ends, width if has_info else 0),
        "infos": bytes_of(table.columns.infos, table.columns.infos_size),
    }


def samples_of(Grouping grouping not None):
    """Return copies of a grouping's columns.

    Returns
    -------
    starts, members : bytes
        Native 32-bit numbers; `starts` has one more than there are samples.
    """
    cdef groups_t *groups = grouping.built()
    grouping.check_all()
    return (
        bytes_of(groups.starts, 4 * (<size_t> groups.count + 1)),
        bytes_of(groups.members, 4 * <size_t> groups.grouped),
    )
