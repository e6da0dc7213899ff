# cython: nonecheck=True
"""Rows of a columnar dataset: for each sample and field a shard and an offset in it.

A shard is a tar of one field's arrays. An offset is believed if it comes from who
writes true ones, and the member's own header stands before it; otherwise all headers
are walked over, once, and the last member of that name is meant. A member's size is
not known until its header was read. The members of a field have one table for all its
shards, where a member's position is its sample's.
"""

cimport cython
from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memset

from fastshard._core.dataset.npy cimport make_layout_array, make_member_array, make_array, get_layout_cache
from fastshard._core.parse.sqlite cimport (
    KIND_NULL, KIND_NUMBER, KIND_TEXT, TREE_END, TREE_NO_MEMORY, TREE_ODD, TREE_ROW,
    tree_free, tree_next, tree_open, tree_t, value_t,
)
from fastshard._core.buffers cimport int64s_of
from fastshard._core.table.extents cimport (
    ExtentTable, resolve_position, columns_add, columns_add_info, columns_free,
    columns_t, info_at, more_room, name_at, resize, make_table, decode_text_before, decode_text,
    encode_text,
)
from fastshard._core.io.source cimport local_source
from fastshard._core.io.source cimport View
from fastshard._core.dataset.npy cimport CACHED_HEADER, Layout, LayoutCache, find_layout
from fastshard._core.io.page_ring cimport PageRing
from fastshard._core.platform cimport fs_load, fs_prefetch_line
from fastshard._core.dataset.shard cimport STAGE_EXTENT, STAGE_LIST, SampleBase, SamplesBase
from fastshard._core.dataset.shard cimport Shard
from fastshard._core.io.source cimport LocalFile, MappedSource, Source
from fastshard._core.span cimport span_of, span_t
from fastshard._core.parse.tar cimport (
    TAR_MEMBER, TAR_MORE, need_t, tar_free, tar_init, tar_step, tar_t,
)
from fastshard._core.threads cimport fs_atomic_load, fs_atomic_publish

from threading import Lock
from weakref import ref

from fastshard._core.table.extents import find_names
from fastshard.errors import (
    ClosedError, FieldNotFoundError, FormatError, SampleNotFoundError,
)

cdef enum:
    NAME_WIDTH = 100               # bytes of a header's name
    SIZE_AT = 124                  # where a header's fields begin
    SIZE_DIGITS = 11
    TYPE_AT = 156
    MOST_BLOCKS = 64               # blocks of extension headers before a header
    STEPS = 8                      # of a walk over them
    MOST_HOLDERS = 8               # before those that are gone are forgotten
    FEW = 16 << 10                 # bytes that are brought of a member of unknown size
    SUFFIX = 4                     # bytes of ".npy"
    MOST_TAGS = 256                # that a byte can tell apart
    ROWS_AHEAD = 4                 # samples until one is read
    PLACE_BYTES = 32               # that a row takes a field, while an image is read

cdef enum:
    ID                             # what `wanted` numbers: the first values
    METADATA
    FIRST_PLACE                    # the offset and the shard of each field follow

cdef uint64_t UNKNOWN = <uint64_t> -1


cdef int64_t offset_of(object offset) except? -1:
    """Return an offset that a row has, or -1 if it is none."""
    cdef int overflow = 0
    cdef int64_t at
    if type(offset) is not int:
        return -1
    at = PyLong_AsLongLongAndOverflow(offset, &overflow)
    return at if overflow == 0 and at >= 0 else -1


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
    """Match a block against a plain tar header of this name; sets the size.

    Looks at its first 160 bytes: who wrote it left the name's prefix empty.
    """
    return (
        name.left <= NAME_WIDTH
        and memcmp(block, name.at, name.left) == 0
        and (name.left == NAME_WIDTH or block[name.left] == 0)
        and (block[TYPE_AT] == c'0' or block[TYPE_AT] == 0)
        and octal_at(block + SIZE_AT, size)
        and size[0] > 0            # else a header before may have it: no array is empty
    )


cdef bint is_extended(
    const uint8_t *window, uint64_t start, uint64_t nbytes, uint64_t offset,
    span_t name, uint64_t *size,
) noexcept nogil:
    """Match the headers before `offset` against a member name; sets the size.

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
        if at + BLOCK < offset and (
            window[at - start + TYPE_AT] not in (c'x', c'L', c'X')
        ):
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
        self.seen = LayoutCache.__new__(LayoutCache)
        self.holders = []
        self.most_holders = MOST_HOLDERS

    def __reduce__(self):
        raise TypeError("a ColumnFile does not pickle")

    @property
    def nbytes(self):
        """Bytes of the file when it was opened."""
        return self.source.nbytes

    @property
    def is_scanned(self):
        """Whether all headers were scanned, after the index had a wrong offset."""
        return self.scanned is not None

    def release(self):
        """Have those that remember the file forget it; who uses it goes on."""
        with cython.critical_section(self):
            holders, self.holders = self.holders, []
        for holder in holders:
            holder = holder()
            if holder is not None:
                holder.forget(self)

    cdef int held_by(self, object holder) except -1:
        """Note who remembers the file, weakly."""
        with cython.critical_section(self):
            if len(self.holders) >= self.most_holders:
                self.holders = [other for other in self.holders if other() is not None]
                self.most_holders = 2 * len(self.holders) + MOST_HOLDERS
            self.holders.append(ref(holder))
        return 0

    cdef ExtentTable walked(self):
        """Return the table of a full header scan; one thread scans, others wait."""
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
        cdef object keeper = encode_text(member, &name)
        if keeper is None:
            raise FormatError("no member is called so", self.path, offset, member)
        self.find(offset, name, &found, &size)
        return found, size

    cdef bint check(self, uint64_t offset, span_t name, uint64_t *size) except -1:
        """Whether a member of this name begins at `offset`; sets its size."""
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
            (<MappedSource> source).ensure_resident(start, end - start)
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
        member = decode_text(name)
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
        cdef object keeper = encode_text(member, &name)
        if keeper is None:
            raise FormatError("no member is called so", self.path, offset, member)
        try:
            if self.believed and isinstance(source, MappedSource):
                owner = self.window(<MappedSource> source, offset, name, &size)
            if owner is not None:
                at = (<View> owner).base
            else:
                self.find(offset, name, &found, &size)
                owner = source.pin(found, size, &at)
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
        cdef uint64_t seen
        if offset < BLOCK or offset > nbytes or offset % BLOCK != 0:
            return None
        seen = min(offset + self.likely, nbytes) - (offset - BLOCK)
        source.touch(offset - BLOCK, seen)
        source.ensure_resident(offset - BLOCK, seen)
        source.confine(offset - BLOCK, seen)
        if not is_plain(source.base + offset - BLOCK, name, size):
            return None
        if size[0] > nbytes - offset or size[0] > self.likely:
            return None            # not all of it was brought
        return source.file.raw_view(offset, size[0])


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
            (<MappedSource> source).residency.query(file.fd)  # it is read at once
    except BaseException:
        file.close()
        raise
    if source.fd < 0:
        file.close()               # a mapping needs no descriptor
    return ColumnFile.__new__(
        ColumnFile, source, path, number, scan, believed,
        (file.device, file.inode, file.nbytes, file.mtime_ns),
    )


@cython.final
cdef class RowReader:
    """Makes arrays of what an index says of a sample.

    Parameters
    ----------
    fields : list of str
    bring : callable
        ``bring(field, shard)`` returns a `ColumnFile`.
    path : str
        Of the index, for messages.
    """

    cdef readonly list fields
    cdef list files                # of each field, by shard
    cdef object bring
    cdef str path
    cdef object __weakref__

    def __cinit__(self, list fields not None, bring, str path not None):
        self.fields = fields
        self.files = [{} for _ in fields]
        self.bring = bring
        self.path = path

    def __reduce__(self):
        raise TypeError("a RowReader does not pickle")

    def arrays(self, tuple row not None, str sample_id not None, bint copy=False):
        """Return the arrays of a row by field; those that the sample has.

        Parameters
        ----------
        row : tuple
            ``(offset, shard, offset, shard, ...)``, and whatever follows.
        sample_id : str
        copy : bool
            Copy them; otherwise they are on the shards' own memory.

        Raises
        ------
        FormatError
            An array cannot be read, or the row has what is no shard and offset.
        OSError
            A shard cannot be read.
        """
        cdef Py_ssize_t k
        cdef Py_ssize_t width = len(self.fields)
        cdef dict found = {}
        cdef str member = sample_id + ".npy"
        if len(row) < 2 * width:
            raise ValueError("a row of other fields")
        for k in range(width):
            if row[2 * k] is None and row[2 * k + 1] is None:
                continue
            array = self.array(k, row[2 * k], row[2 * k + 1], member)
            found[self.fields[k]] = array.copy("K") if copy else array
        return found

    def array_of(
        self, Py_ssize_t k, offset, shard, str sample_id not None, bint copy=False
    ):
        """Return the array of field `k`; see `arrays`."""
        if not 0 <= k < len(self.fields):
            raise IndexError(f"field {k} of {len(self.fields)}")
        array = self.array(k, offset, shard, sample_id + ".npy")
        return array.copy("K") if copy else array

    def file(self, Py_ssize_t k, offset, shard, str member not None):
        """Return the open shard of field `k`, and the offset that a row has, as int.

        Raises
        ------
        FormatError
            They are no shard and offset.
        """
        cdef ColumnFile file
        cdef int64_t at = -1
        if not 0 <= k < len(self.fields):
            raise IndexError(f"field {k} of {len(self.fields)}")
        if type(shard) is int and shard >= 0:
            at = offset_of(offset)
        if at < 0:
            raise FormatError(
                f"the index says of field {self.fields[k]!r} {offset!r:.80} and "
                f"{shard!r:.80}, which are no offset and shard", self.path, 0, member,
            )
        file = (<dict> self.files[k]).get(shard)
        if file is None:
            file = <ColumnFile?> self.bring(self.fields[k], shard)
            file.held_by(self)
            (<dict> self.files[k])[shard] = file
        return file, at

    def forget(self, ColumnFile file not None):
        """Forget a shard; who is at it goes on."""
        for files in self.files:
            if files.get(file.number) is file:
                files.pop(file.number, None)

    cdef object array(self, Py_ssize_t k, object offset, object shard, str member):
        cdef object file = (<dict> self.files[k]).get(shard)
        cdef int64_t at = offset_of(offset)
        if file is None or at < 0:
            file, at = self.file(k, offset, shard, member)
        return (<ColumnFile> file).array(<uint64_t> at, member)


@cython.final
@cython.no_gc
cdef class ShardMappings:
    """Where the shards of a field are mapped. While it is referred to, they are."""

    def __cinit__(self, size_t count):
        self.at = <place_t *> calloc(count + 1, sizeof(place_t))
        if self.at == NULL:
            raise MemoryError
        self.count = count
        self.sources = []

    def __reduce__(self):
        raise TypeError("places do not pickle")

    def __dealloc__(self):
        free(self.at)


@cython.final
@cython.no_gc
cdef class Cells:
    """The memory that holds one field's numbers; the names are everybody's."""

    cdef int add(self, uint64_t offset, int32_t slot) except -1:
        cdef size_t room = 2 * self.room + 1024
        if self.count == self.room:
            if not (
                resize(<void **> &self.offsets, room, sizeof(uint64_t))
                and resize(<void **> &self.marks, room, sizeof(mark_t))
            ):
                raise MemoryError
            self.room = room
        self.offsets[self.count] = offset
        self.marks[self.count].slot = slot
        self.marks[self.count].layout = 0
        self.count += 1
        return 0

    cdef int finish(self, ExtentTable names) except -1:
        """Give back room that is not used; no header was read yet."""
        if not (
            resize(<void **> &self.offsets, self.count, sizeof(uint64_t))
            and resize(<void **> &self.marks, self.count, sizeof(mark_t))
            and resize(<void **> &self.sizes, self.count, sizeof(uint64_t))
        ):
            raise MemoryError
        memset(self.sizes, 0xff, self.count * sizeof(uint64_t))
        self.names = names
        return 0

    def __dealloc__(self):
        free(self.offsets)
        free(self.sizes)
        free(self.marks)


cdef str key_of(ExtentTable names, Py_ssize_t i):
    """The key of a sample, which its members are called by."""
    return decode_text_before(name_at(&names.columns, <uint32_t> i), SUFFIX)


cdef bint is_same_layout(Layout one, Layout other) noexcept:
    return (
        one.header_size == other.header_size
        and memcmp(one.header, other.header, one.header_size) == 0
    )


cdef bint is_same(ColumnFile file, tuple first) except -1:
    """Whether a file is the one that was opened first, which has at most grown."""
    identity, believed = first
    if file.believed and believed:
        return identity[:2] == file.identity[:2] and identity[2] <= file.identity[2]
    return identity == file.identity


@cython.final
cdef class Rows:
    """One field of some samples.

    Parameters
    ----------
    field : str
    bring : callable
        ``bring(number)`` returns the `ColumnFile` of a shard.
    path : str
        Of the index, for messages.

    Attributes
    ----------
    unpickle : callable or None
        ``unpickle(data, error)`` returns an array of Python objects, or raises the
        error, which says why the member is no other array.
    """

    def __cinit__(self, str field not None, bring, str path not None):
        self.field = field
        self.path = path
        self.bring = bring
        self.numbers = []
        self.cells = Cells.__new__(Cells)

    def __reduce__(self):
        raise TypeError("rows do not pickle")

    def forget(self, ColumnFile file not None):
        """Forget a shard; who is at it goes on."""
        with cython.critical_section(self):
            self.places = None
            if self.by_number is None:
                self.by_number = {number: k for k, number in enumerate(self.numbers)}
            slot = self.by_number.get(file.number)
            shard = None if slot is None else self.shards[slot]
            if shard is not None and (<ColumnShard> shard).file is file:
                self.shards[slot] = None

    cdef uint32_t tag_of(self, Layout layout) except? 0:
        """A number that no other layout of the column has; 0: there is none for it."""
        if layout.header_size > CACHED_HEADER:
            return 0
        with cython.critical_section(self):
            if self.kept is not None and is_same_layout(self.kept, layout):
                return self.kept_tag
            self.tags = min(self.tags + 1, MOST_TAGS)
            if self.kept is None:
                self.kept = layout  # once: it is read without a lock
                self.kept_tag = self.tags
            return 0 if self.tags == MOST_TAGS else self.tags

    @property
    def count(self):
        """How many samples have the field."""
        cdef size_t i
        cdef size_t found = 0
        for i in range(self.cells.count):
            found += self.cells.marks[i].slot != ABSENT
        return found

    def data_bytes(self):
        """Return the sum of the members' sizes, in bytes; reads their headers.

        Raises
        ------
        FormatError, OSError
            One cannot be found.
        """
        cdef ColumnShard shard
        cdef uint64_t offset, size
        cdef uint64_t total = 0
        cdef Py_ssize_t i
        for i in range(<Py_ssize_t> self.cells.count):
            if self.has(i):
                shard = self.shard_of(i)
                shard.extent(shard.open_source(), i, &offset, &size)
                total += size
        return total

    cdef int add(self, object offset, object shard, dict slots) except -1:
        cdef int64_t at
        if offset is None and shard is None:
            return self.cells.add(0, ABSENT)
        at = offset_of(offset)
        if at < 0 or type(shard) is not int or shard < 0:
            return self.cells.add(0, BROKEN)
        return self.cells.add(<uint64_t> at, self.slot_of(shard, slots))

    cdef int32_t slot_of(self, object shard, dict slots) except? -1:
        """The slot of a shard, a new one if it has none yet."""
        cdef object slot = slots.get(shard)
        if slot is None:
            slot = slots[shard] = len(self.numbers)
            self.numbers.append(shard)
        return slot

    cdef int adopt(
        self, uint64_t **offsets, const int64_t *shards, ExtentTable names
    ) except -1:
        """Take the places of all samples, and the memory of their offsets."""
        cdef dict slots = {}
        cdef size_t count = names.columns.count
        cdef int32_t slot = ABSENT
        cdef int64_t last = ABSENT
        cdef size_t i
        self.cells.offsets = offsets[0]
        offsets[0] = NULL
        if not resize(<void **> &self.cells.marks, count, sizeof(mark_t)):
            raise MemoryError
        for i in range(count):
            if shards[i] != last:
                last = shards[i]
                slot = <int32_t> last if last < 0 else self.slot_of(last, slots)
            self.cells.marks[i].slot = slot
            self.cells.marks[i].layout = 0
        self.cells.count = count
        return self.finish(names)

    cdef int finish(self, ExtentTable names) except -1:
        cdef ExtentTable table = ExtentTable.__new__(ExtentTable)
        self.cells.finish(names)
        table.keeper = self.cells
        table.columns.offsets = self.cells.offsets
        table.columns.sizes = self.cells.sizes
        table.columns.name_ends = names.columns.name_ends
        table.columns.names = names.columns.names
        table.columns.names_size = names.columns.names_size
        table.columns.count = names.columns.count
        self.table = table
        self.shards = [None] * len(self.numbers)
        self.firsts = [None] * len(self.numbers)
        return 0

    cdef bint has(self, Py_ssize_t i) except -1:
        return self.cells.marks[i].slot != ABSENT

    cdef ColumnShard shard_of(self, Py_ssize_t i):
        """The shard that holds the member of a sample that has one."""
        cdef int32_t slot = self.cells.marks[i].slot
        cdef object shard
        if slot < 0:
            raise FormatError(
                f"the index says of field {self.field!r} what is no shard and offset",
                self.path, 0, self.table.name(i),
            )
        shard = self.shards[slot]
        if shard is None:
            shard = self.open(slot)
        return <ColumnShard> shard

    cdef bint is_kept(self, Py_ssize_t i) noexcept:
        """Whether a row surely has the layout that is kept."""
        return self.kept_tag != 0 and self.cells.marks[i].layout == self.kept_tag

    cdef object array(self, Py_ssize_t i):
        """The array of a sample that has one; what is known of it is not read again."""
        cdef ColumnShard shard = self.shard_of(i)
        cdef Source source
        cdef Layout kept = self.kept
        cdef uint8_t *at
        cdef uint64_t offset, size
        if kept is not None and self.is_kept(i):
            source = shard.open_source()
            offset = fs_atomic_load(self.cells.offsets + i)
            size = kept.header_size + kept.nbytes
            shard.check_extent(source, i, offset, size)
            try:
                owner = source.pin(offset, size, &at)
            except (FormatError, OSError) as error:
                raise shard.annotate(error, i) from None
            return make_layout_array(kept, at, owner)
        owner = shard.pin(i, &at, &size)
        if (
            kept is None or size < kept.header_size
            or size - kept.header_size != kept.nbytes
            or memcmp(at, kept.header, kept.header_size) != 0
        ):
            try:
                array = make_member_array(shard, i, at, size, owner, None, None)
            except FormatError as error:
                if self.unpickle is None:
                    raise
                return self.unpickle((<const char *> at)[:size], error)
            if kept is None:       # now that all there is was checked
                self.tag_of(find_layout(at, size, get_layout_cache(shard)))
            return array
        self.cells.marks[i].layout = self.kept_tag
        return make_layout_array(kept, at, owner)

    cdef object open(self, int32_t slot):
        cdef ColumnFile file = <ColumnFile?> self.bring(self.numbers[slot])
        cdef ColumnShard shard = ColumnShard.__new__(
            ColumnShard, file.source, self.table, file.path, "mmap"
        )
        first = self.firsts[slot]
        if first is None:
            self.firsts[slot] = file.identity, file.believed
        elif not is_same(file, first):
            raise FormatError(
                "the shard was changed after some of it was read; refresh()",
                file.path, 0,
            )
        shard.direct = None        # its extents are computed
        shard.file = file
        shard.cells = self.cells
        shard.layouts = file.seen
        file.held_by(self)
        self.shards[slot] = shard
        return shard

    cdef void prefetch(self, Py_ssize_t i, int stage) noexcept:
        cdef int32_t slot
        cdef uint64_t offset
        cdef object shard
        cdef Source source
        if stage == STAGE_LIST:
            fs_prefetch_line(self.cells.marks + i)
            fs_prefetch_line(self.cells.offsets + i)
            return
        slot = self.cells.marks[i].slot
        if stage != STAGE_EXTENT or slot < 0:
            return
        shard = self.shards[slot]
        if shard is None:
            return
        source = (<ColumnShard> shard).source
        offset = fs_load(self.cells.offsets + i)
        if source is None or source.base == NULL or not (
            BLOCK <= offset < source.nbytes
        ):
            return
        fs_prefetch_line(self.cells.sizes + i)
        if self.cells.marks[i].layout == 0:  # nobody has looked at it yet
            fs_prefetch_line(source.base + offset - BLOCK)
            fs_prefetch_line(source.base + offset - BLOCK + 128)
        fs_prefetch_line(source.base + offset)
        fs_prefetch_line(source.base + min(offset + 64, source.nbytes - 1))


@cython.final
cdef class ColumnShard(Shard):
    """A shard of one field, with the table of all the field's members."""

    cdef int extent(
        self, Source source, Py_ssize_t i, uint64_t *offset, uint64_t *size
    ) except -1:
        cdef uint64_t found
        size[0] = fs_atomic_load(self.cells.sizes + i)  # first: it is written last
        offset[0] = fs_atomic_load(self.cells.offsets + i)
        if size[0] == UNKNOWN:
            self.file.find(offset[0], name_at(&self.table.columns, i), &found, size)
            offset[0] = found
            fs_atomic_publish(self.cells.offsets + i, found)
            fs_atomic_publish(self.cells.sizes + i, size[0])
        return self.check_extent(source, i, offset[0], size[0])

    cdef bint estimate_extent(
        self, Source source, Py_ssize_t i, uint64_t *offset, uint64_t *size
    ) noexcept:
        """Where a member and its header should be: the next sample's comes behind."""
        cdef uint64_t end
        cdef uint64_t at = fs_load(self.cells.offsets + i)
        if at < BLOCK or at >= source.nbytes:
            return False
        size[0] = fs_atomic_load(self.cells.sizes + i)
        if size[0] == UNKNOWN:
            size[0] = max(self.file.likely, <uint64_t> FEW)
            if <size_t> i + 1 < self.cells.count:
                end = fs_load(self.cells.offsets + i + 1)
                if (
                    self.cells.marks[i + 1].slot == self.cells.marks[i].slot
                    and end > at + BLOCK
                ):
                    size[0] = end - BLOCK - at
        offset[0] = at - BLOCK
        size[0] = min(size[0], source.nbytes - at) + BLOCK
        return True


cdef Py_ssize_t first_missing(const int64_t *positions, Py_ssize_t count) noexcept:
    """Return the place of the first position below 0, or -1."""
    cdef Py_ssize_t k
    for k in range(count):
        if positions[k] < 0:
            return k
    return -1


@cython.final
cdef class ColumnSamples(SamplesBase):
    """Samples whose fields lie in shards of their own.

    Parameters
    ----------
    columns : list of Rows
    names : ExtentTable
        The samples' names, as members are called: with ``.npy``.
    sample_type : type
    owner : object
        What they belong to: ``path`` for messages, ``closed``.
    has_metadata : bool
        Whether the names' infos are the samples' metadata.
    """

    cdef readonly list columns     # of Rows
    cdef dict by_field
    cdef readonly ExtentTable names
    cdef readonly object owner
    cdef readonly bint has_metadata

    def __cinit__(
        self, list columns not None, ExtentTable names not None, type sample_type,
        owner, bint has_metadata=False,
    ):
        self.columns = columns
        self.by_field = {column.field: column for column in columns}
        self.names = names
        self.sample_type = sample_type
        self.owner = owner
        self.has_metadata = has_metadata

    @property
    def field_names(self):
        """The fields, in the order of the index."""
        return list(self.by_field)

    def having(self, tuple fields not None):
        """Return for each sample whether it has all these fields: 0 or 1 a byte."""
        cdef Py_ssize_t i
        cdef Rows rows
        found = bytearray(b"\1") * self.names.columns.count
        for field in fields:
            rows = self.by_field.get(field)
            for i in range(<Py_ssize_t> self.names.columns.count):
                if rows is None or not rows.has(i):
                    found[i] = 0
        return found

    def find_keys(self, list keys not None):
        """Return the positions of samples: an array of int64.

        Raises
        ------
        SampleNotFoundError
            There is no sample of one of the keys.
        """
        cdef Py_buffer buffer
        cdef object found = find_names(self.names, keys, ".npy")
        cdef const int64_t *positions = int64s_of(found, &buffer)
        cdef Py_ssize_t missing
        try:
            missing = first_missing(positions, len(keys))
        finally:
            PyBuffer_Release(&buffer)
        if missing >= 0:
            raise SampleNotFoundError(keys[missing], self.owner.path)
        return found

    def search_key(self, str key not None):
        """Return the position of a sample, or -1."""
        return self.search(key)

    def keys_of(self, positions):
        """Return the keys of samples: a list.

        Parameters
        ----------
        positions : buffer of int64
            Of samples that there are.
        """
        cdef Py_buffer buffer
        cdef const int64_t *numbers
        cdef Py_ssize_t count = self.count()
        cdef Py_ssize_t k
        cdef list found = []
        numbers = int64s_of(positions, &buffer)
        try:
            for k in range(buffer.len // 8):
                if not 0 <= numbers[k] < count:
                    raise IndexError(f"position {numbers[k]} is out of range")
                found.append(self.key(numbers[k]))
            return found
        finally:
            PyBuffer_Release(&buffer)

    cdef Py_ssize_t count(self) except -1:
        if self.owner.closed:
            raise ClosedError(f"{self.owner.path} is closed")
        return self.names.columns.count

    cdef str key(self, Py_ssize_t i):
        return key_of(self.names, i)

    cdef Py_ssize_t search(self, object key) except -2:
        cdef Py_ssize_t size
        try:
            PyUnicode_AsUTF8AndSize(key, &size)
        except UnicodeEncodeError:  # ids are UTF-8; half a surrogate pair is in none
            return -1
        return self.names.find(f"{key}.npy")

    cdef str where(self):
        return self.owner.path

    cdef list fields(self, Py_ssize_t i):
        cdef Rows rows
        return [rows.field for rows in self.columns if rows.has(i)]

    cdef Py_ssize_t member(self, Py_ssize_t i, object field) except -2:
        cdef Rows rows = self.by_field.get(field)
        return i if rows is not None and rows.has(i) else -1

    cdef Shard holder(self, Py_ssize_t i, object field):
        cdef Rows rows = self.by_field[field]
        return rows.shard_of(i)

    cdef bint is_resident(self, SampleBase sample) except -1:
        cdef Rows rows
        cdef Py_ssize_t i = sample.position
        for rows in self.columns:
            if rows.has(i) and (sample.only is None or rows.field in sample.only):
                if not rows.shard_of(i).open_source().is_resident():
                    return False
        return True

    cdef void prefetch(self, Py_ssize_t i, int stage) noexcept:
        cdef Rows rows
        if stage == STAGE_LIST:
            fs_prefetch_line(self.names.columns.name_ends + i)
        for rows in self.columns:
            rows.prefetch(i, stage)

    def arrays(self, i, list columns=None, bint copy=False):
        """Return the arrays of a sample by field; of some columns only.

        Raises
        ------
        IndexError
            There is no such position.
        FormatError, OSError
            An array cannot be read.
        """
        cdef Py_ssize_t at = resolve_position(i, self.count())
        cdef Rows rows
        cdef dict found = {}
        columns = self.columns if columns is None else columns
        for rows in columns:
            rows.prefetch(at, STAGE_LIST)
        for rows in columns:
            if not rows.is_kept(at):
                rows.prefetch(at, STAGE_EXTENT)
        for rows in columns:
            if rows.has(at):
                found[rows.field] = rows.array(at)
        if copy:
            return {field: array.copy("K") for field, array in found.items()}
        return found

    def read(self, str key not None, list columns not None, bint copy=False):
        """Return the arrays of a sample by field, and the text of its metadata.

        None where there is no such sample, and as a text that is no UTF-8. Needs
        `has_metadata`.

        Raises
        ------
        FormatError, OSError
            An array cannot be read.
        """
        cdef Py_ssize_t i = self.search(key)
        if i < 0:
            return None
        return self.arrays(i, columns, copy), self.metadata_text(i)

    def read_many(self, list keys not None, list columns not None, bint copy=False):
        """Return what `read` does, of many; None where one of them is not there."""
        cdef Py_buffer buffer
        cdef object places = find_names(self.names, keys, ".npy")
        cdef const int64_t *positions = int64s_of(places, &buffer)
        try:
            return self.read_at(positions, buffer.len // 8, columns, copy)
        finally:
            PyBuffer_Release(&buffer)

    cdef list read_at(
        self, const int64_t *positions, Py_ssize_t count, list columns, bint copy
    ):
        """What `read` returns of samples; None if a position is below 0."""
        cdef Py_ssize_t i, k
        cdef list found = []
        cdef int stage
        cdef Rows rows
        if first_missing(positions, count) >= 0:
            return None
        for k in range(count):
            for stage in (STAGE_LIST, STAGE_EXTENT):
                i = k + (ROWS_AHEAD if stage == STAGE_EXTENT else 2 * ROWS_AHEAD)
                if i < count:      # its memory is asked for before its turn
                    for rows in columns:
                        rows.prefetch(positions[i], stage)
            i = positions[k]
            found.append((self.arrays(i, columns, copy), self.metadata_text(i)))
        return found

    cpdef metadata_text(self, Py_ssize_t i):
        """Return the text of a sample's metadata, maybe empty; None: it is no UTF-8."""
        cdef span_t text
        if not 0 <= i < <Py_ssize_t> self.names.columns.count:
            raise IndexError(f"position {i} is out of range")
        text = info_at(&self.names.columns, i)
        try:
            return PyUnicode_DecodeUTF8(<const char *> text.at, text.left, NULL)
        except UnicodeDecodeError:
            return None

    def columns_of(self, fields):
        """Return the columns of some fields.

        Raises
        ------
        FieldNotFoundError
            There is no such field.
        """
        for field in fields:
            if field not in self.by_field:
                raise FieldNotFoundError(field, self.owner.path)
        return [self.by_field[field] for field in fields]


def read_rows(chunks, list fields not None, bring, str path not None):
    """Read rows of an index.

    Parameters
    ----------
    chunks : iterable of list of tuple
        ``(id, offset, shard, offset, shard, ...)``, the latter of each field.
    fields : list of str
    bring : callable
        ``bring(field)`` returns what `Rows` takes.
    path : str
        Of the index, for messages.

    Returns
    -------
    columns : list of Rows
    names : ExtentTable

    Raises
    ------
    FormatError
        A sample's id is no text.
    """
    cdef columns_t columns
    cdef span_t name
    cdef Rows rows
    cdef tuple row
    cdef Py_ssize_t k
    cdef Py_ssize_t width = 2 * len(fields) + 1
    cdef list found = [Rows(field, bring(field), path) for field in fields]
    cdef list slots = [{} for _ in fields]
    cdef ExtentTable names
    memset(&columns, 0, sizeof(columns))
    try:
        for chunk in chunks:
            for row in chunk:
                if len(row) != width:
                    raise ValueError(f"a row of {len(row)} values instead of {width}")
                if type(row[0]) is not str:
                    raise FormatError(
                        f"the id of row {columns.count + 1:,} is {row[0]!r}, no text",
                        path, 0,
                    )
                member = (<str> row[0]) + ".npy"
                keeper = encode_text(member, &name)
                if keeper is None or not columns_add(&columns, 0, 0, name):
                    raise MemoryError
                for k in range(len(found)):
                    rows = <Rows> found[k]
                    rows.add(row[2 * k + 1], row[2 * k + 2], <dict> slots[k])
        names = make_table(&columns)
    finally:
        columns_free(&columns)
    for rows in found:
        rows.finish(names)
    return found, names


cdef struct field_t:               # one field, while an image is read
    uint64_t *offsets
    int64_t *shards                # or ABSENT or BROKEN


cdef struct reading_t:
    tree_t tree
    columns_t columns              # ids, as members are called; metadata
    int *wanted                    # of each column of a row, as `tree_next` takes it
    size_t columns_there           # of a row that are looked at
    value_t *values                # of the last row
    field_t *fields
    size_t width
    size_t room                    # rows that the fields have room for
    size_t most_rows
    uint8_t *name                  # of the last row
    size_t name_room


cdef bint add_name(reading_t *reading, span_t key) noexcept nogil:
    """Begin a row. False: no memory."""
    cdef size_t size = key.left + SUFFIX
    if size > reading.name_room:
        if not resize(<void **> &reading.name, 2 * size, 1):
            return False
        reading.name_room = 2 * size
    memcpy(reading.name, key.at, key.left)
    memcpy(reading.name + key.left, b".npy", SUFFIX)
    return columns_add(&reading.columns, 0, 0, span_of(reading.name, size))


cdef int make_room(reading_t *reading) noexcept nogil:
    """Have room for the places of one more row; returns a tree_status_t."""
    cdef size_t room = min(more_room(reading.room, 2.0), reading.most_rows)
    cdef size_t k
    if reading.columns.count < reading.room:
        return TREE_ROW
    if reading.columns.count == reading.most_rows:
        return TREE_ODD
    for k in range(reading.width):
        if not (
            resize(<void **> &reading.fields[k].offsets, room, sizeof(uint64_t))
            and resize(<void **> &reading.fields[k].shards, room, sizeof(int64_t))
        ):
            return TREE_NO_MEMORY
    reading.room = room
    return TREE_ROW


cdef void add_places(reading_t *reading) noexcept nogil:
    """Say where the arrays of the row are that was named last."""
    cdef size_t k
    cdef size_t i = reading.columns.count - 1
    cdef const value_t *offset
    cdef const value_t *shard
    for k in range(reading.width):
        offset = &reading.values[FIRST_PLACE + 2 * k]
        shard = offset + 1
        reading.fields[k].offsets[i] = 0
        if offset.kind == KIND_NULL and shard.kind == KIND_NULL:
            reading.fields[k].shards[i] = ABSENT
        elif (
            offset.kind == KIND_NUMBER and shard.kind == KIND_NUMBER
            and offset.number >= 0 and shard.number >= 0
        ):
            reading.fields[k].offsets[i] = <uint64_t> offset.number
            reading.fields[k].shards[i] = shard.number
        else:
            reading.fields[k].shards[i] = BROKEN


cdef int read_all(reading_t *reading) noexcept nogil:
    """Read all rows; returns a tree_status_t."""
    cdef const value_t *metadata = &reading.values[METADATA]
    cdef int status
    while True:
        status = tree_next(
            &reading.tree, reading.values, reading.wanted, reading.columns_there
        )
        if status != TREE_ROW:
            return status
        if reading.values[ID].kind != KIND_TEXT:
            return TREE_ODD
        if metadata.kind != KIND_TEXT and metadata.kind != KIND_NULL:
            return TREE_ODD
        status = make_room(reading)
        if status != TREE_ROW:
            return status
        if not add_name(reading, reading.values[ID].text):
            return TREE_NO_MEMORY
        add_places(reading)
        if not columns_add_info(
            &reading.columns,
            metadata.text if metadata.kind == KIND_TEXT else span_of(reading.name, 0),
        ):
            return TREE_NO_MEMORY


cdef bint is_text(const columns_t *columns) except -1:
    """Whether all ids are UTF-8: each ends in ASCII, so all of them together are."""
    try:
        PyUnicode_DecodeUTF8(<const char *> columns.names, columns.names_size, NULL)
    except UnicodeDecodeError:
        return False
    return True


cdef void reading_free(reading_t *reading) noexcept nogil:
    """Free what nobody has taken over."""
    cdef size_t k
    if reading.fields != NULL:
        for k in range(reading.width):
            free(reading.fields[k].offsets)
            free(reading.fields[k].shards)
    free(reading.fields)
    free(reading.values)
    free(reading.wanted)
    free(reading.name)
    columns_free(&reading.columns)
    tree_free(&reading.tree)


cdef int prepare(reading_t *reading, list places, size_t width) except -1:
    """Note which values of a row are wanted."""
    cdef size_t k
    if len(places) != <Py_ssize_t> (FIRST_PLACE + 2 * width) or min(places) < 0:
        raise ValueError("the places are of other fields")
    reading.width = width
    reading.columns_there = max(places) + 1
    reading.wanted = <int *> malloc(reading.columns_there * sizeof(int))
    reading.values = <value_t *> calloc(FIRST_PLACE + 2 * width, sizeof(value_t))
    reading.fields = <field_t *> calloc(width + 1, sizeof(field_t))
    if reading.wanted == NULL or reading.values == NULL or reading.fields == NULL:
        raise MemoryError
    for k in range(reading.columns_there):
        reading.wanted[k] = -1
    for k in range(<size_t> len(places)):
        reading.wanted[<size_t> places[k]] = k
    return 0


def read_image(
    bytes image not None, int64_t root, list places not None, list fields not None,
    bring, str path not None, size_t most,
):
    """Read the samples of an index.

    Parameters
    ----------
    image : bytes
        Of an SQLite database.
    root : int
        The first page of the table of samples.
    places : list of int
        Which columns of a row these are, as it is stored: the id, the metadata, and
        of each field the offset and the shard.
    fields, bring, path
        As for `read_rows`.
    most : int
        Bytes that may be taken for where arrays are. A row that has none of a field
        says so in no byte, and here in 32.

    Returns
    -------
    columns : list of Rows
    names : ExtentTable
        With the text of the metadata as what is said of a member.
    or None
        It is not as SQLite would leave it, a value is not what it should be, or it
        takes too much: reading by SQL tells.
    """
    cdef reading_t reading
    cdef Rows column
    cdef ExtentTable names
    cdef size_t k
    cdef int status
    cdef list found = []
    cdef span_t span = span_of(<const uint8_t *> PyBytes_AS_STRING(image), len(image))
    memset(&reading, 0, sizeof(reading))
    try:
        prepare(&reading, places, len(fields))
        reading.most_rows = most // (PLACE_BYTES * max(reading.width, <size_t> 1))
        if not tree_open(&reading.tree, span, root):
            return None
        with nogil:
            status = read_all(&reading)
        if status == TREE_NO_MEMORY:
            raise MemoryError
        if status != TREE_END or not is_text(&reading.columns):
            return None
        names = make_table(&reading.columns)
        for k in range(reading.width):
            column = Rows(fields[k], bring(fields[k]), path)
            column.adopt(&reading.fields[k].offsets, reading.fields[k].shards, names)
            found.append(column)
        return found, names
    finally:
        reading_free(&reading)
