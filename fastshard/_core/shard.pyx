"""A shard: a source and the extents of its members, read by position or name."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.memoryview cimport PyMemoryView_FromObject
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from fastshard._core.table.extents cimport (
    ExtentTable, Names, checked_position, is_doubtful, name_at,
)
from fastshard._core.platform cimport fs_has_bit, fs_load, fs_set_bit
from fastshard._core.parse.tar cimport agrees, headers_before, headers_t
from fastshard._core.io.source cimport Source
from fastshard._core.span cimport span_t

from fastshard.errors import (
    ClosedError, FormatError, MemberNotFoundError, RemoteError, StaleIndexError,
)

cdef enum:
    BLOCK = 512                    # bytes of a header
    PAGE = 4096                    # bytes: the smallest page that there is

cdef uint64_t MOST_AHEAD = 64 << 20  # bytes of a scan
cdef array_maker_t array_maker = NULL  # set by arrays.pyx, when it is imported


cdef object other_spelling(object name):
    """A name with ``./`` before it, or without: what tars may call the same file."""
    return name[2:] if name.startswith("./") else "./" + name


cdef class Shard:
    """One open shard. See `fastshard.open_shard`.

    A sequence of views (`memoryview`), one a member, that can be indexed by
    position or by name. Handles made with `copy.copy` share the mapping and the
    table; give each thread its own where speed matters.

    Parameters
    ----------
    source : Source
    table : ExtentTable
    path : str
        As it was given.
    mode : str
    """

    def __cinit__(
        self, Source source not None, ExtentTable table not None, str path, str mode,
        *args, **kwargs,
    ):
        self.source = source
        self.table = table
        self.path = path
        self.mode = mode

    @property
    def closed(self):
        """Whether `close` was called."""
        with cython.critical_section(self):
            return self.source is None

    @property
    def nbytes(self):
        """Bytes of the whole file."""
        return self.open_source().nbytes

    @property
    def names(self):
        """The members' names, a lazy sequence of str."""
        self.open_source()
        return Names(self.table)

    @property
    def offsets(self):
        """Where each member's data begins: uint64 [members], bytes, read-only."""
        from fastshard._core import arrays

        self.open_source()
        return arrays.offsets_of(self.table)

    @property
    def sizes(self):
        """How long each member is: uint64 [members], bytes, read-only."""
        from fastshard._core import arrays

        self.open_source()
        return arrays.sizes_of(self.table)

    def __len__(self):
        self.open_source()
        return self.table.columns.count

    def __getitem__(self, key):
        """Return the bytes of a member without copying them.

        Parameters
        ----------
        key : int, str or slice
            A position (negative ones count back) or a name, as tar stores it;
            of members with one name the last. A leading ``./`` may be left out,
            or be given where tar stores none. A slice gives a list of views.

        Returns
        -------
        memoryview
            One-dimensional, format ``"B"``; read-only unless the shard is
            ``mode="private"``. Valid for as long as it is referenced, also after
            the shard is closed; copy it with ``bytes(view)`` to let the file go.

        Raises
        ------
        MemberNotFoundError
            The shard has no member of this name.
        IndexError
            The shard has no member at this position.
        ClosedError
            The shard is closed.
        FormatError
            ``mode="pread"``, and the file has become shorter.
        """
        cdef Py_ssize_t i
        if isinstance(key, slice):
            return [
                self.view_at(i) for i in range(*key.indices(len(self)))
            ]
        return self.view_at(self.find(key))

    def __contains__(self, name):
        self.open_source()
        if not isinstance(name, str):
            raise TypeError(f"names are str, not {type(name).__name__}")
        return self.table.find(name) >= 0 or self.table.find(other_spelling(name)) >= 0

    def __iter__(self):
        return self.scan()

    def scan(self, order=None, window=32, *, max_memory=None, keep_cache=True):
        """Iterate over views whose bytes are brought before they are asked for.

        Parameters
        ----------
        order : sequence of int, or array, optional
            Positions; all members in order without it.
        window : int
            How many members are brought ahead; more of small ones that follow
            each other. 0: none.
        max_memory : int or str, optional
            Bytes, or "1GiB"; what was read is given back when it may take more.
        keep_cache : bool
            Whether what was read stays in the page cache.

        Returns
        -------
        iterator of memoryview
            With ``close()``. Its thread, if it needs one, ends with it.
        """
        from fastshard._core.ahead import Ahead
        from fastshard._core.feeds import MemberFeed
        from fastshard._core.fetched import Fetched
        from fastshard._core.gather import positions_of
        from fastshard._core.io.page_ring import PageRing
        from fastshard._util.sizes import parse_size

        count = len(self)
        order = range(count) if order is None else positions_of(order, count)
        ahead = MOST_AHEAD
        ring = None
        if max_memory is not None or not keep_cache:
            most = parse_size(max_memory) if max_memory is not None else 4 * MOST_AHEAD
            ahead = max(1, min(ahead, most // 4))
            ring = PageRing(most // 2, forgets=not keep_cache)  # as `Reading.ring`
        if self.open_source().is_remote():
            return Fetched(MemberFeed(self, order), window, ahead)
        return Ahead(MemberFeed(self, order), window, ahead, ring=ring)

    def position(self, name):
        """Return the position of the last member of this name.

        Raises
        ------
        MemberNotFoundError
            The shard has no member of this name.
        """
        if not isinstance(name, str):
            raise TypeError(f"names are str, not {type(name).__name__}")
        return self.find(name)

    def read(self, key):
        """Return a member's bytes as a copy of its own.

        Parameters
        ----------
        key : int or str
            Position or name.
        """
        cdef uint64_t offset, size
        cdef Py_ssize_t i = self.find(key)
        cdef Source source = self.open_source()  # a key's __index__ may close it
        self.extent(source, i, &offset, &size)
        try:
            copy = source.read(offset, size)
        except (FormatError, OSError) as error:
            raise self.of_member(error, i) from None
        if self.table.proven != NULL and not fs_has_bit(self.table.proven, i):
            self.prove(source, i)
        return copy

    def array(self, key, dtype=None, shape=None):
        """Return a member as an array without copying it.

        Parameters
        ----------
        key : int or str
            Position or name.
        dtype : dtype-like, optional
            The type of the raw values. Without one the member is ``.npy``
            (versions 1 to 3; no objects).
        shape : int or tuple of int, optional
            With `dtype`: the array's shape; one length may be -1. Otherwise
            the array has one dimension.

        Returns
        -------
        numpy.ndarray
            On the shard's own memory (a copy where ``mode="pread"``): read-only
            unless ``mode="private"``, alive for as long as it is referenced.
            Its flags say whether it is aligned.

        Raises
        ------
        ValueError
            The member's size does not fit `dtype` and `shape`.
        FormatError
            The member is no ``.npy`` file, or one of Python objects.
        MemberNotFoundError, IndexError, ClosedError
            As for ``shard[key]``.
        """
        if array_maker == NULL:
            from fastshard._core import arrays  # noqa: F401
        return array_maker(self, self.find(key), dtype, shape)

    def read_into(self, positions, out, *, threads=None):
        """Copy many members into one buffer; the GIL is released.

        Parameters
        ----------
        positions : sequence of int, or array
            Negative ones count back.
        out : buffer
            Writable and contiguous: an array, a bytearray, shared memory, a tensor
            in (pinned) memory. Into one dimension the members are put one after
            another, as bytes; of more dimensions each member fills a row.
        threads : int, optional
            At most so many; otherwise up to 4. One is used for each 4 MiB.

        Returns
        -------
        ndarray of int64 [positions + 1]
            Where each member begins in `out`, in bytes, and where the last ends.

        Raises
        ------
        ValueError
            `out` is too small, or a member is not of a row's size.
        IndexError
            The shard has no member at a position.
        FormatError, OSError
            A member cannot be read; what `out` holds then is not defined.
        """
        from fastshard._core.gather import gather, positions_of

        return gather([self], positions_of(positions, len(self)), out, threads=threads)

    def extent_of(self, i):
        """Return a member's offset and size, which are checked to lie in the file."""
        cdef uint64_t offset, size
        cdef Source source = self.open_source()
        self.extent(source, checked_position(i, self.table.columns.count), &offset, &size)
        return offset, size

    def parts(self):
        """Return a source and the table, of which another handle can be made."""
        return self.open_source().handle(), self.table

    def close(self, bint strict=False):
        """Close the shard. Views that are alive stay valid, and the file mapped.

        Parameters
        ----------
        strict : bool
            Refuse while views that were made through this handle are alive.

        Raises
        ------
        BufferError
            `strict`, and views are alive; the shard stays open.
        """
        cdef Source source
        with cython.critical_section(self):
            source = self.source
        if source is None:
            return
        if strict and source.live_views:
            raise BufferError(f"{self.path} has {source.live_views:,} views that are alive")
        with cython.critical_section(self):
            self.source = None

    def __enter__(self):
        self.open_source()
        return self

    def __exit__(self, *exc_info):
        self.close()

    def __repr__(self):
        name = type(self).__name__
        if self.closed:
            return f"<{name} {self.path!r}, closed>"
        return (
            f"<{name} {self.path!r}, {self.table.columns.count:,} members, "
            f"{self.nbytes:,} bytes, mode={self.mode!r}>"
        )

    cdef Source open_source(self):
        cdef Source source
        with cython.critical_section(self):  # without a GIL another thread may close it
            source = self.source
        if source is None:
            raise ClosedError(f"{self.path} is closed")
        return source

    cdef Py_ssize_t find(self, object key) except -1:
        """Resolve a position or a name to a position in range."""
        cdef Py_ssize_t i
        self.open_source()
        if not isinstance(key, str):
            return checked_position(key, self.table.columns.count)
        i = self.table.find(key)
        if i < 0:
            i = self.table.find(other_spelling(key))
        if i < 0:
            raise MemberNotFoundError(key, self.path)
        return i

    cdef int extent(
        self, Source source, Py_ssize_t i, uint64_t *offset, uint64_t *size
    ) except -1:
        """Load an extent once and check it."""
        if is_doubtful(self.table):
            self.table.check_extent(i)
        offset[0] = fs_load(self.table.columns.offsets + i)
        size[0] = fs_load(self.table.columns.sizes + i)
        return self.check_extent(source, i, offset[0], size[0])

    cdef int check_extent(
        self, Source source, Py_ssize_t i, uint64_t offset, uint64_t size
    ) except -1:
        """Complain of an extent beyond the file: the one place where that is done."""
        if offset > source.nbytes or size > source.nbytes - offset:
            raise FormatError(
                f"an extent of {size:,} bytes reaches beyond the file",
                self.path, offset, self.table.name(i),
            )
        return 0

    cdef bint guess(
        self, Source source, Py_ssize_t i, uint64_t *offset, uint64_t *size
    ) noexcept:
        """Where a member's bytes are, to bring them; False: nowhere in the file."""
        offset[0] = fs_load(self.table.columns.offsets + i)
        size[0] = fs_load(self.table.columns.sizes + i)
        return offset[0] <= source.nbytes and size[0] <= source.nbytes - offset[0]

    cdef int prove(self, Source source, Py_ssize_t i) except -1:
        """Compare the header before a member, whose first page is in memory.

        For a table in doubt: it is of an index of which only some headers were looked
        at. A header in the page before that of the member's first byte is left alone,
        and so are those of remote shards. Nothing is touched with the GIL held that
        was not brought.

        Raises
        ------
        StaleIndexError
            The member is not there.
        """
        cdef ExtentTable table = self.table
        cdef uint64_t offset, size
        cdef headers_t headers
        cdef span_t name
        cdef const uint8_t *window
        cdef bint same = False
        cdef object copy = None
        self.extent(source, i, &offset, &size)
        if source.is_remote() or (offset % PAGE == 0 and size > 0):
            return 0
        if is_doubtful(table):
            table.check_extent(max(i - 1, 0))
            table.check_name(i)
        if offset >= BLOCK:
            name = name_at(&table.columns, <uint32_t> i)
            headers = headers_before(
                &table.columns, i, offset, (offset - BLOCK) // PAGE * PAGE
            )
            if source.base != NULL and size > 0:
                window = source.base + headers.start
            else:
                copy = source.read(headers.start, offset - headers.start)
                window = <const uint8_t *> PyBytes_AS_STRING(copy)
            with nogil:
                same = agrees(window, headers, source.nbytes, offset, size, name)
        if not same:
            same = table.is_there(table, i, source)
        if not same:
            name_of = table.name(i)
            raise StaleIndexError(
                f"{self.path} has no member {name_of!r} of {size:,} bytes at byte "
                f"{offset:,}; make the index again with: fastshard index",
                table.index, 0, name_of,
            )
        fs_set_bit(table.proven, i)
        return 0

    cdef object hold(self, Py_ssize_t i, uint8_t **at, uint64_t *size):
        """Return what keeps a member's bytes alive, and where they are."""
        cdef uint64_t offset
        cdef Source source = self.open_source()
        cdef object owner
        self.extent(source, i, &offset, size)
        try:
            owner = source.hold(offset, size[0], at)
        except (FormatError, OSError) as error:  # the source knows of no members
            raise self.of_member(error, i) from None
        if self.table.proven != NULL and not fs_has_bit(self.table.proven, i):
            self.prove(source, i)
        return owner

    cdef object of_member(self, object error, Py_ssize_t i):
        """An error of the source, with the member's name."""
        if isinstance(error, RemoteError):
            return error.of_member(self.table.name(i))
        if isinstance(error, OSError):
            where = f"{error.strerror} - at member {self.table.name(i)!r}"
            return OSError(error.errno, where, self.path)
        return FormatError(error.reason, self.path, error.offset, self.table.name(i))

    cdef object view_at(self, Py_ssize_t i):
        cdef uint8_t *at
        cdef uint64_t size
        return PyMemoryView_FromObject(self.hold(i, &at, &size))
