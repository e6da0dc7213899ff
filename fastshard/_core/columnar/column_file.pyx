# cython: nonecheck=True
"""Files of one column: tar shards of arrays, found by offset or by name.

An offset is used if the index is known to hold exact ones and the member's own header
precedes it. Otherwise all headers are scanned once, and the last member of that name
is used. A pack is a member whose rows are the arrays of many samples.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.long cimport PyLong_AsLongLongAndOverflow
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from fastshard._core.dataset.npy cimport (
    Layout, LayoutCache, find_layout, make_array, make_fault, make_row_layout,
    make_shaped_array,
)
from fastshard._core.io.paging cimport PageRing
from fastshard._core.io.source cimport (
    LocalFile, MappedSource, PreadSource, Source, View, local_source, pread_source,
)
from fastshard._core.parse.tar cimport (
    TAR_MEMBER, TAR_MORE, need_t, tar_free, tar_init, tar_step, tar_t,
)
from fastshard._core.platform cimport FS_HAVE_MMAP, fs_add, fs_load_relaxed
from fastshard._core.span cimport span_of, span_t
from fastshard._core.table.checksums cimport decode_row, find_sum
from fastshard._core.table.extents cimport ExtentTable
from fastshard._core.table.names cimport decode_text, encode_text

from threading import Lock
from weakref import ref

from fastshard._util.processes.descriptors import kept_limit
from fastshard.errors import FormatError, StaleShardError

cdef enum:
    VERSION_AT = 6                 # offset of the major version in ``.npy``
    SHAPE_AT = 8                   # offset that errors of the shape name
    MAX_LAYOUTS = 64               # of rows that are cached

cdef dict row_layouts = {}         # (layout, header) by the header of a pack


@cython.final
@cython.no_gc
cdef class Pack:
    """Pack whose headers are checked: all rows lie in the file as it was opened."""

    def __reduce__(self):
        raise TypeError("a Pack does not pickle")

    cdef int check_row(self, uint64_t row, str field, str member) except -1:
        """Raise FormatError if the pack has no such row."""
        if row >= self.rows:
            raise FormatError(
                f"field {field!r} is row {row:,} of a pack of {self.rows:,} rows",
                self.path, self.offset, member,
            )
        return 0

    cdef object array(self, uint64_t row, str field, str member):
        """Return a row as an array on the file's own memory."""
        cdef uint8_t *at
        cdef object owner
        cdef Source source = self.source
        self.check_row(row, field, member)
        try:
            owner = source.pin(self.first + row * self.row_size, self.row_size, &at)
        except FormatError as error:
            raise FormatError(
                error.reason, self.path, error.offset, member
            ) from error.__cause__
        return make_shaped_array(
            self.layout.dtype, &self.layout.shape, at,
            type(owner) is View and source.writable, owner,
        )


cdef tuple find_row_layout(Layout layout):
    """Return the layout and the header of the rows of a pack; cached."""
    cdef bytes key = (<const char *> layout.header)[:layout.header_size]
    found = row_layouts.get(key)
    if found is None:
        found = make_row_layout(layout)
        if len(row_layouts) >= MAX_LAYOUTS:
            row_layouts.clear()
        row_layouts[key] = found
    return <tuple> found


cdef Pack make_pack(
    Source source, str path, uint64_t offset, uint64_t size, const uint8_t *window,
    uint64_t window_size, LayoutCache layouts,
):
    """Return the pack of a member."""
    cdef Layout layout
    cdef Pack pack
    if window_size > VERSION_AT and 2 <= window[VERSION_AT] <= 3:
        raise make_fault(VERSION_AT, f"a pack of version {window[VERSION_AT]}.0")
    layout = find_layout(window, window_size, layouts)
    if layout.shape.fortran:
        raise make_fault(SHAPE_AT, "a pack in Fortran order")
    if layout.shape.dimensions == 0:
        raise make_fault(SHAPE_AT, "a pack without rows: it has no axis")
    if layout.nbytes == 0:
        raise make_fault(SHAPE_AT, "a pack without rows, or with rows of 0 bytes")
    if size < layout.header_size or size - layout.header_size != layout.nbytes:
        raise make_fault(
            size,
            f"expected {layout.nbytes:,} bytes of rows by its header, got "
            f"{max(size, <uint64_t> layout.header_size) - layout.header_size:,}",
        )
    pack = Pack.__new__(Pack)
    pack.source = source
    pack.path = path
    pack.offset = offset
    pack.first = offset + layout.header_size
    pack.rows = <uint64_t> layout.shape.lengths[0]
    pack.row_size = layout.nbytes // pack.rows
    pack.layout, pack.header = (
        find_row_layout(layout) if layout.header_size <= sizeof(layout.header)
        else make_row_layout(layout)
    )
    return pack


cdef enum:
    NAME_WIDTH = 100               # bytes of a header's name
    SIZE_AT = 124                  # offset of the size field
    SIZE_DIGITS = 11
    TYPE_AT = 156
    MAX_EXTENSION_BLOCKS = 64      # blocks of extension headers before a header
    MAX_STEPS = 8                  # calls of `tar_step` to parse them
    HOLDERS_STEP = 8               # holders added between two removals of dead ones
    FIRST_WINDOW = 4096            # bytes of a pack that are read for its header
    MAX_PACK_HEADER = (1 << 16) + 9  # bytes of ``.npy`` 1.0
    UNMAPPED_READS = 32            # of a shard, before it is mapped
    PACK_HEAD = 256                # bytes of a pack that are read with its tar header
    UNMAPPED_SIZE = 16 << 10       # bytes of a larger member are not copied
    END_SIZE = 1024                # bytes of the end of an archive
    SUFFIX_SIZE = 4                # bytes of ".npy"
    MAX_ROW = 0x7fffffff           # of a pack, if rows have identities
    MAX_UNMAPPED = 4096            # files

cdef Py_ssize_t unmapped_files = 0


cdef bint may_stay_unmapped(int fd) except -1:
    """Return whether one more file may keep its descriptor."""
    if not FS_HAVE_MMAP or fs_load_relaxed(&unmapped_files) >= MAX_UNMAPPED:
        return False
    return fd < kept_limit(spared=True)


cdef int64_t parse_offset(object offset) except? -1:
    """Return the offset in a row of the index, or -1 if invalid."""
    cdef int overflow = 0
    cdef int64_t at
    if type(offset) is not int:
        return -1
    at = PyLong_AsLongLongAndOverflow(offset, &overflow)
    return at if overflow == 0 and at >= 0 else -1


cdef bint parse_octal(const uint8_t *digits, uint64_t *value) noexcept nogil:
    """Parse a size of eleven octal digits; False for other forms."""
    cdef uint64_t total = 0
    cdef int i
    for i in range(SIZE_DIGITS):
        if not c'0' <= digits[i] <= c'7':
            return False
        total = total * 8 + (digits[i] - c'0')
    value[0] = total
    return digits[SIZE_DIGITS] == 0 or digits[SIZE_DIGITS] == c' '


cdef bint is_plain_header(
    const uint8_t *block, span_t name, uint64_t *size
) noexcept nogil:
    """Match a block with a plain tar header of this name; set the size.

    Reads the first 160 bytes only: plain headers have no name prefix.
    """
    return (
        name.left <= NAME_WIDTH
        and memcmp(block, name.at, name.left) == 0
        and (name.left == NAME_WIDTH or block[name.left] == 0)
        and (block[TYPE_AT] == c'0' or block[TYPE_AT] == 0)
        and parse_octal(block + SIZE_AT, size)
        and size[0] > 0            # 0: an extension header has it; none is empty
    )


cdef bint match_extended(
    const uint8_t *window, uint64_t start, uint64_t nbytes, uint64_t offset,
    span_t name, uint64_t *size,
) noexcept nogil:
    """Match the headers before `offset` with a member name; set the size.

    Used if extension headers hold the name or the size: each block before `offset`
    is tried as their start. `window` holds the file from `start` to `offset`.
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
        for k in range(MAX_STEPS):
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
@cython.no_gc
cdef class UnmappedFile:
    """Shard that is read with pread, at first: it costs less than to map it.

    Mapping a shard, the faults of its first pages and a query of the page cache cost as
    much as ten small reads. Once mapped, reads cost a third, and a fault for 16 pages.
    """

    def __cinit__(self, PreadSource source not None):
        self.source = source
        self.reads_left = UNMAPPED_READS
        fs_add(&unmapped_files, 1)

    def __reduce__(self):
        raise TypeError("an UnmappedFile does not pickle")

    def __dealloc__(self):
        if self.source is not None:
            fs_add(&unmapped_files, -1)


@cython.final
cdef class ColumnFile:
    """Open tar shard of one field."""

    def __cinit__(
        self, source not None, str path not None, number, scan not None,
        bint is_exact, tuple identity not None, LayoutCache layouts=None,
    ):
        if isinstance(source, LocalFile):
            self.unmapped = UnmappedFile.__new__(
                UnmappedFile, pread_source(<LocalFile> source)
            )
            self.nbytes = (<LocalFile> source).nbytes
        else:
            self.opened = <Source?> source
            self.nbytes = self.opened.nbytes
        self.is_exact = is_exact
        self.device, self.inode, self.size, self.mtime_ns = identity
        self.scanning = Lock()
        self.path = path
        self.number = number
        self.scan = scan
        self.likely_size = BLOCK
        if layouts is None:
            layouts = LayoutCache.__new__(LayoutCache)
        self.layouts = layouts
        self.packs = {}
        self.holders_limit = HOLDERS_STEP

    def __reduce__(self):
        raise TypeError("a ColumnFile does not pickle")

    @property
    def source(self):
        """Source of the file; maps it if it is not mapped yet."""
        return self.open_source()

    cdef Source open_source(self):
        cdef Source source
        cdef UnmappedFile unmapped
        with cython.critical_section(self):
            source = self.opened
            unmapped = self.unmapped
        if source is not None:
            return source
        source = map_shard(unmapped.source.open_file(), "mmap", None)
        with cython.critical_section(self):
            if self.opened is None:  # no other thread mapped it
                self.opened = source
            self.unmapped = None   # closed once no thread reads it
            self.packs = {}        # that are read with it
            return self.opened

    @property
    def identity(self):
        """Device, inode, size and modification time, when it was opened."""
        return self.device, self.inode, self.size, self.mtime_ns

    def check_same(self, tuple identity not None, bint was_exact):
        """Raise StaleShardError unless this is a file that was opened before.

        It may have grown if the index has exact offsets.
        """
        cdef tuple own = self.identity
        if self.is_exact and was_exact:
            same = identity[:2] == own[:2] and identity[2] <= own[2]
        else:
            same = identity == own
        if not same:
            raise StaleShardError(
                "the shard has changed since its first read; call refresh()",
                self.path, 0,
            )

    @property
    def is_scanned(self):
        """True if all headers were scanned because the index had a wrong offset."""
        return self.scan_table is not None

    def release(self):
        """Drop the file from its holders; arrays and views on it stay valid."""
        with cython.critical_section(self):
            holders, self.holders = self.holders or [], None
            if self.holder is not None:
                holders.append(self.holder)
                self.holder = None
        for holder in holders:
            holder = holder()
            if holder is not None:
                holder.forget(self)

    cdef int add_holder(self, object holder) except -1:
        """Add a holder by weak reference, for `release`."""
        cdef object added = ref(holder)
        with cython.critical_section(self):
            if self.holder is None or self.holder() is None:
                self.holder = added  # most files have one: a list costs more
                return 0
            if self.holders is None:
                self.holders = []
            if len(self.holders) >= self.holders_limit:
                self.holders = [other for other in self.holders if other() is not None]
                self.holders_limit = 2 * len(self.holders) + HOLDERS_STEP
            self.holders.append(added)
        return 0

    cdef ExtentTable scan_headers(self):
        """Return the table of a header scan; one thread scans, others wait."""
        with self.scanning:
            if self.scan_table is None:
                self.scan_table, self.fault = self.scan(self.path)
            return self.scan_table

    def locate(self, uint64_t offset, str member not None):
        """Return the exact offset and the size of a member."""
        cdef uint64_t found, size
        cdef span_t name
        cdef object keeper = encode_text(member, &name)
        if keeper is None:
            raise FormatError(
                "the name is not valid Unicode", self.path, offset, member
            )
        self.find(offset, name, &found, &size)
        return found, size

    cdef bint check_header(
        self, Source source, uint64_t offset, span_t name, uint64_t *size
    ) except -1:
        """Say whether a member of this name begins at `offset`; set its size."""
        cdef uint64_t nbytes = source.nbytes
        cdef uint64_t start
        cdef const uint8_t *window
        cdef object keeper
        if offset < BLOCK or offset > nbytes or offset % BLOCK != 0:
            return False
        start = offset
        if isinstance(source, MappedSource):  # page in the data with its header
            start = min(offset + self.likely_size, nbytes)
        keeper = self.map_window(source, offset - BLOCK, start, &window)
        if not is_plain_header(window, name, size):
            start = offset - min(offset, <uint64_t> MAX_EXTENSION_BLOCKS * BLOCK)
            keeper = self.map_window(source, start, offset, &window)
            if not match_extended(window, start, nbytes, offset, name, size):
                return False
        return size[0] <= nbytes - offset

    cdef object map_window(
        self, Source source, uint64_t start, uint64_t end, const uint8_t **window
    ):
        """Set the address of bytes of the file; return the object that owns them."""
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
        """Find a member: at `offset` if its header precedes it, else by its name."""
        cdef Py_ssize_t i
        cdef Source source
        cdef ExtentTable table
        cdef str member
        found[0] = offset
        source = self.open_source()
        if self.is_exact and self.check_header(source, offset, name, size):
            self.likely_size = size[0]
            return 0
        member = decode_text(name)
        if offset > source.nbytes:  # not even an inexact offset is valid
            raise FormatError(
                f"the index has an offset beyond the shard of {source.nbytes:,} bytes",
                self.path, offset, member,
            )
        table = self.scan_headers()
        i = table.find(member)
        if i < 0:
            reason = "the index names a member that the shard does not have"
            if self.fault is not None:
                reason += f": {self.fault.reason} at byte {self.fault.offset:,}"
            raise FormatError(reason, self.path, offset, member) from self.fault
        found[0] = table.columns.offsets[i]
        size[0] = table.columns.sizes[i]
        if found[0] > source.nbytes or size[0] > source.nbytes - found[0]:
            raise FormatError(  # the scan is newer than the mapping
                "the member reaches beyond the file as it was opened", self.path,
                found[0], member,
            )
        return 0

    cdef object array(self, uint64_t offset, str member):
        """Return a member as an array, on the file's own memory if it is mapped."""
        cdef uint64_t size
        cdef uint64_t start = 0
        cdef uint64_t found = offset
        cdef span_t name
        cdef uint8_t *at = NULL
        cdef Source source
        cdef bint is_writable = False
        cdef object owner = None
        cdef object keeper = encode_text(member, &name)
        if keeper is None:
            raise FormatError(
                "the name is not valid Unicode", self.path, offset, member
            )
        try:
            if self.unmapped is not None:
                owner = self.read_unmapped(offset, name, &start, &size)
            if owner is not None:
                at = <uint8_t *> PyBytes_AS_STRING(<bytes> owner) + start
                return make_array(at, size, None, None, False, owner, self.layouts)
            source = self.open_source()
            if self.is_exact and isinstance(source, MappedSource):
                owner = self.resident_view(<MappedSource> source, offset, name, &size)
            if owner is not None:
                at = (<View> owner).base
            else:
                self.find(offset, name, &found, &size)
                owner = source.pin(found, size, &at)
            is_writable = type(owner) is View and source.writable
            return make_array(at, size, None, None, is_writable, owner, self.layouts)
        except FormatError as error:
            byte = found + error.offset if error.path == "" else error.offset
            raise FormatError(
                error.reason, self.path, byte, member
            ) from error.__cause__

    cdef PreadSource take_unmapped(self):
        """Return the source for one more read of the file without a mapping, or None.
        """
        cdef UnmappedFile unmapped
        with cython.critical_section(self):
            unmapped = self.unmapped
        if unmapped is None or unmapped.reads_left <= 0:
            return None
        unmapped.reads_left -= 1
        return unmapped.source

    cdef object unmapped_array(self, uint64_t offset, span_t name):
        """Return a member as a read-only array, read with pread; or None."""
        cdef uint64_t start, size
        cdef bytes copy = self.read_unmapped(offset, name, &start, &size)
        if copy is None:
            return None
        return make_array(
            <uint8_t *> PyBytes_AS_STRING(copy) + start, size, None, None, False, copy,
            self.layouts,
        )

    cdef bytes read_unmapped(
        self, uint64_t offset, span_t name, uint64_t *start, uint64_t *size
    ):
        """Return bytes with the member whose plain header precedes `offset`.

        None if the file is to be mapped: it was read often, or the member is large or
        elsewhere.
        """
        cdef PreadSource source = self.take_unmapped()
        cdef bytes copy
        cdef uint64_t width
        if source is None:
            return None
        if self.likely_size > UNMAPPED_SIZE or offset % BLOCK != 0 or not (
            BLOCK <= offset <= source.nbytes
        ):
            return None
        width = min(self.likely_size, source.nbytes - offset)
        copy = source.read(offset - BLOCK, BLOCK + width)
        if not is_plain_header(<uint8_t *> PyBytes_AS_STRING(copy), name, size):
            return None
        if size[0] > source.nbytes - offset or size[0] > UNMAPPED_SIZE:
            return None
        self.likely_size = size[0]
        start[0] = BLOCK
        if size[0] > width:
            copy = source.read(offset, size[0])
            start[0] = 0
        return copy

    cdef Pack find_pack(self, uint64_t offset, str field, str member):
        """Return the pack whose data begins at an offset; check its headers once."""
        cdef Source source = self.take_unmapped()
        cdef object pack
        if source is None:
            source = self.open_source()
        pack = self.packs.get(offset)
        if pack is None:
            try:
                pack = self.open_pack(source, offset)
                if (<Pack> pack).row_size > UNMAPPED_SIZE and self.unmapped is not None:
                    pack = self.open_pack(self.open_source(), offset)
            except FormatError as error:
                raise FormatError(
                    f"field {field!r} is in a damaged pack: {error.reason}", self.path,
                    offset + error.offset if error.path == "" else error.offset, member,
                ) from error.__cause__
            with cython.critical_section(self):
                if (<Pack> pack).source is self.opened or self.opened is None:
                    self.packs[offset] = pack
        return <Pack> pack

    cdef Pack open_pack(self, Source source, uint64_t offset):
        cdef bytes name = b"pack_%012d.npy" % offset
        cdef uint64_t likely_size = self.likely_size
        cdef uint64_t size, width
        cdef const uint8_t *window
        cdef span_t letters = span_of(
            <uint8_t *> PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name)
        )
        cdef bint is_named
        cdef Pack pack
        if isinstance(source, PreadSource):
            pack = self.read_pack(source, offset, letters)
            if pack is not None:
                return pack
        self.likely_size = FIRST_WINDOW
        try:
            is_named = self.check_header(source, offset, letters, &size)
        finally:
            self.likely_size = likely_size
        if not is_named:
            raise FormatError(
                f"no member {name.decode()!r} begins here", self.path, offset
            )
        width = min(size, <uint64_t> FIRST_WINDOW)
        while True:
            keeper = self.map_window(source, offset, offset + width, &window)
            try:
                return make_pack(
                    source, self.path, offset, size, window, width, self.layouts
                )
            except FormatError:
                if width >= min(size, <uint64_t> MAX_PACK_HEADER):
                    raise
            width = min(size, <uint64_t> MAX_PACK_HEADER)

    cdef Pack read_pack(self, Source source, uint64_t offset, span_t name):
        """Return the pack at an offset if its headers are short and plain, or None."""
        cdef uint64_t size, width
        cdef bytes copy
        cdef const uint8_t *window
        if offset < BLOCK or offset > source.nbytes or offset % BLOCK != 0:
            return None
        width = min(<uint64_t> PACK_HEAD, source.nbytes - offset)
        copy = source.read(offset - BLOCK, BLOCK + width)
        window = <const uint8_t *> PyBytes_AS_STRING(copy)
        if not is_plain_header(window, name, &size) or size > source.nbytes - offset:
            return None
        try:
            return make_pack(
                source, self.path, offset, size, window + BLOCK, min(size, width),
                self.layouts,
            )
        except FormatError:
            return None

    cdef View resident_view(
        self, MappedSource source, uint64_t offset, span_t name, uint64_t *size
    ):
        """Return a view of a member whose plain header precedes `offset`, or None."""
        cdef uint64_t nbytes = source.nbytes
        cdef uint64_t length
        if offset < BLOCK or offset > nbytes or offset % BLOCK != 0:
            return None
        length = min(offset + self.likely_size, nbytes) - (offset - BLOCK)
        source.touch(offset - BLOCK, length)
        source.ensure_resident(offset - BLOCK, length)
        source.confine(offset - BLOCK, length)
        if not is_plain_header(source.base + offset - BLOCK, name, size):
            return None
        if size[0] > nbytes - offset or size[0] > self.likely_size:
            return None            # not paged in entirely
        return source.file.raw_view(offset, size[0])


def open_column(
    str path not None, number, str mode not None, recorded, is_unmodified not None,
    scan not None, PageRing ring=None, *, bint unmapped=False,
    LayoutCache layouts=None,
):
    """Open a tar shard of one field."""
    cdef LocalFile file = LocalFile.__new__(LocalFile, path)
    cdef object source
    cdef bint is_exact
    try:
        is_exact = recorded is not None and (
            file.nbytes == recorded + END_SIZE or is_unmodified(file, recorded)
        )
        if is_exact and recorded > 0:  # the rest may be truncated at any time
            file.nbytes = min(file.nbytes, <uint64_t> recorded)
        if (
            unmapped and mode == "mmap" and ring is None and is_exact
            and may_stay_unmapped(file.fd)
        ):
            source = file
        else:
            source = map_shard(file, mode, ring)
    except BaseException:
        file.close()
        raise
    return ColumnFile.__new__(
        ColumnFile, source, path, number, scan, is_exact,
        (file.device, file.inode, file.nbytes, file.mtime_ns), layouts,
    )


cdef Source map_shard(LocalFile file, str mode, PageRing ring):
    """Return the source of an open shard; only mode ``"pread"`` keeps its descriptor.

    The file is closed when its last reference goes.
    """
    cdef Source source = local_source(file, mode, True, False, ring)
    if isinstance(source, MappedSource):
        (<MappedSource> source).residency.query(file.fd)  # the first read follows
    return source


@cython.final
cdef class RowReader:
    """Reader of arrays by rows of an index."""

    cdef readonly list fields
    cdef list files                # a dict of ColumnFile by number for each field
    cdef list likely_sizes         # of a member, for each field
    cdef list rows_at              # index in a row of the row in a pack, or None
    cdef list sums                 # of the fields' names; -1: rows have no identities
    cdef Py_ssize_t width          # values of a row
    cdef object open_file
    cdef str path
    cdef object __weakref__

    def __cinit__(
        self, list fields not None, open_file, str path not None, dict packed=None
    ):
        cdef dict kinds = packed or {}
        self.fields = fields
        self.files = [{} for _ in fields]
        self.likely_sizes = [BLOCK] * len(fields)
        self.width = 2 * len(fields)
        self.rows_at = []
        self.sums = []
        for field in fields:
            self.rows_at.append(self.width if field in kinds else None)
            self.width += field in kinds
            self.sums.append(find_sum(kinds, field))
        self.open_file = open_file
        self.path = path

    def __reduce__(self):
        raise TypeError("a RowReader does not pickle")

    def arrays(self, tuple row not None, str sample_id not None, bint copy=False):
        """Return the arrays of a row by field, without fields that the sample lacks."""
        cdef Py_ssize_t k
        cdef dict found = {}
        cdef str member = sample_id + ".npy"
        if len(row) < self.width:
            raise ValueError(
                f"the row must have {self.width} values for {len(self.fields)} fields, "
                f"got {len(row)}"
            )
        for k in range(len(self.fields)):
            if (
                row[2 * k] is None and row[2 * k + 1] is None
                and self.row_in_pack(k, row) is None
            ):
                continue
            array = self.array(k, row, member)
            found[self.fields[k]] = array.copy("K") if copy else array
        return found

    def array_of(
        self, Py_ssize_t k, tuple row not None, str sample_id not None, bint copy=False
    ):
        """Return the array of field `k`; see `arrays`."""
        if not 0 <= k < len(self.fields) or len(row) < self.width:
            raise IndexError(f"field {k} is out of range for {len(self.fields)} fields")
        array = self.array(k, row, sample_id + ".npy")
        return array.copy("K") if copy else array

    def is_packed(self, Py_ssize_t k, tuple row not None):
        """Return whether the array of field `k` is in a pack."""
        return self.row_in_pack(k, row) is not None

    cdef object row_in_pack(self, Py_ssize_t k, tuple row):
        """Return the value for the row of field `k` in its pack, or None."""
        cdef object at = self.rows_at[k]
        return None if at is None else row[at]

    def file(self, Py_ssize_t k, offset, shard, str member not None):
        """Return the open shard of field `k`, and the row's offset as int."""
        cdef ColumnFile file
        cdef int64_t at = -1
        if not 0 <= k < len(self.fields):
            raise IndexError(f"field {k} is out of range for {len(self.fields)} fields")
        if type(shard) is int and shard >= 0:
            at = parse_offset(offset)
        if at < 0:
            raise FormatError(
                f"the index has offset {offset!r:.80} and shard {shard!r:.80} for "
                f"field {self.fields[k]!r}, expected two integers of at least 0",
                self.path, 0, member,
            )
        file = (<dict> self.files[k]).get(shard)
        if file is None:
            file = <ColumnFile?> self.open_file(self.fields[k], shard)
            file.add_holder(self)
            if file.likely_size == BLOCK:  # not read yet
                file.likely_size = self.likely_sizes[k]
            (<dict> self.files[k])[shard] = file
        return file, at

    def forget(self, ColumnFile file not None):
        """Forget a shard; reads in progress continue."""
        for files in self.files:
            if files.get(file.number) is file:
                files.pop(file.number, None)

    cdef object array(self, Py_ssize_t k, tuple row, str member):
        """Return the array of field `k`; open its shard if needed."""
        cdef object offset = row[2 * k]
        cdef object shard = row[2 * k + 1]
        cdef object row_in_pack = self.row_in_pack(k, row)
        cdef object file = (<dict> self.files[k]).get(shard)
        cdef int64_t at = parse_offset(offset)
        if file is None or at < 0:
            file, at = self.file(k, offset, shard, member)
        if row_in_pack is None:
            array = (<ColumnFile> file).array(<uint64_t> at, member)
            self.likely_sizes[k] = (<ColumnFile> file).likely_size
            return array
        return self.packed_array(
            k, <ColumnFile> file, shard, at, row_in_pack, member
        )

    cdef int64_t identified_row(
        self, int64_t field_sum, int64_t shard, int64_t offset, int64_t value,
        str member,
    ) except -2:
        """Return the row in a stored value, or -1 if it has another identity."""
        cdef span_t key
        cdef object keeper = encode_text(member, &key)
        if keeper is None:
            return -1
        key.left -= SUFFIX_SIZE
        return decode_row(
            <uint32_t> field_sum, key, shard, <uint64_t> offset, value
        )

    cdef object packed_array(
        self, Py_ssize_t k, ColumnFile file, object shard, int64_t offset, object row,
        str member,
    ):
        """Return the array of field `k` in a pack."""
        cdef str field = <str> self.fields[k]
        cdef int64_t field_sum = self.sums[k]
        cdef int64_t value = parse_offset(row)
        cdef int64_t at = value
        if at >= 0 and field_sum >= 0:
            at = self.identified_row(field_sum, shard, offset, value, member)
            if at < 0:
                raise FormatError(
                    f"the index has for field {field!r} row {value & MAX_ROW:,} of "
                    "the pack that begins here, without the sample's identity",
                    file.path, offset, member,
                )
        if at < 0:
            raise FormatError(
                f"the index has row {row!r:.80} of a pack for field {field!r}, "
                "expected an integer of at least 0",
                self.path, 0, member,
            )
        return file.find_pack(<uint64_t> offset, field, member).array(
            <uint64_t> at, field, member
        )
