"""Shards and their samples: position -> sample -> view.

`Shard` is a source and a table of extents. Formats subclass `SamplesBase` and
`SampleBase`: they define the samples, and the members that hold the fields.
`GroupedSamples` are the members of one shard, grouped by key; `fastshard.Samples` and
`fastshard.Sample` are Python subclasses, because an extension type cannot inherit from
`collections.abc.Sequence`. They share one module, so that the calls from sample to view
are direct.
"""

cimport cython
from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.memoryview cimport PyMemoryView_FromObject
from cpython.object cimport PyObject, PyTypeObject
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from fastshard._core.buffers cimport int64s_of
from fastshard._core.table.extents cimport (
    ExtentTable, Names, resolve_position, columns_t, has_unchecked_blocks, name_at,
)
from fastshard._core.io.source cimport MappedSource, RemoteSource, Source
from fastshard._core.parse.tar cimport headers_match, headers_before, headers_t
from fastshard._core.platform cimport (
    fs_has_bit, fs_is_set, fs_load, fs_load32, fs_prefetch_line, fs_set_bit,
)
from fastshard._core.table.grouping cimport Grouping, groups_t, members_range
from fastshard._core.span cimport span_t

from array import array
from functools import partial

from fastshard._util.options import near_fields, near_names, other_forms
from fastshard.errors import (
    ClosedError, FieldNotFoundError, FormatError, MemberNotFoundError, RemoteError,
    SampleNotFoundError, StaleIndexError,
)

cdef enum:
    BLOCK = 512                    # bytes of a tar header
    PAGE = 4096                    # bytes: the smallest page size

# `tp_new`, whose result is a new reference; the last argument may be NULL.
ctypedef object (*maker_t)(PyTypeObject *kind, tuple args, PyObject *kwargs)

cdef tuple NOTHING = ()
cdef array_maker_t array_maker = NULL  # set by npy.pyx when it is imported
cdef object load_function = None   # set by `register_functions`


def register_functions(load not None):
    """Register the loader of functions that `Shard` calls in higher modules."""
    global load_function
    load_function = load


cdef object respell(object name):
    """Return a name with its leading ``./`` removed, or added."""
    return name[2:] if name.startswith("./") else "./" + name


cdef inline object get_view(Shard shard, Py_ssize_t i):
    """Return a view of the member at a position in range."""
    cdef object view = resident_view(shard, i)
    if view is None:
        return shard.make_view(i)
    return view


cdef object get_views(Shard shard, object key):
    """Return the view for a name or a position of any type, or a list for a slice."""
    cdef Py_ssize_t i
    if isinstance(key, slice):
        return [get_view(shard, i) for i in range(*key.indices(len(shard)))]
    return get_view(shard, shard.find(key))


cdef class Shard:
    """Open shard: a sequence of views, one per member; see `fastshard.open_shard`.

    Members are indexed by position or by name. Handles made with `copy.copy` share
    the mapping and the table; threads read faster with a handle each.

    Attributes
    ----------
    path : str
        As passed by the caller.
    mode : {"mmap", "private", "pread", "remote"}
        How the shard is read.

    Examples
    --------
    >>> import fastshard
    >>> shard = fastshard.open_shard("data/train-0000.tar")
    >>> len(shard), shard.mode, shard.nbytes > shard.sizes.sum()
    (100, 'mmap', np.True_)
    >>> shard.names[:2], shard.offsets[:2]
    (['000000.npy', '000000.cls'], array([ 512, 1536], dtype=uint64))
    >>> bytes(shard["000000.txt"]), bytes(shard[-2])
    (b'text 0', b'text 24')
    """

    def __cinit__(
        self, Source source not None, ExtentTable table not None, str path, str mode,
        *args, **kwargs,
    ):
        self.source = source
        self.table = table
        if type(source) is MappedSource and (<MappedSource> source).file.chunks is None:
            self.direct = <MappedSource> source
        self.path = path
        self.mode = mode

    @property
    def closed(self):
        """True if `close` was called."""
        with cython.critical_section(self):
            return self.source is None

    @property
    def nbytes(self):
        """Size of the file in bytes."""
        return self.open_source().nbytes

    @property
    def names(self):
        """The members' names, a lazy sequence of str."""
        self.open_source()
        return Names(self.table)

    @property
    def offsets(self):
        """Offset of each member's data in bytes: uint64 [members], read-only."""
        self.open_source()
        return load_function("offsets_of")(self.table)

    @property
    def sizes(self):
        """Size of each member in bytes: uint64 [members], read-only."""
        self.open_source()
        return load_function("sizes_of")(self.table)

    def __len__(self):
        self.open_source()
        return self.member_count()

    def __getitem__(self, key):
        """Return the bytes of a member without copying them.

        Parameters
        ----------
        key : int, str or slice
            A position (a negative one counts from the end) or a name as tar
            stores it, with or without a leading ``./``; the last of several members
            with this name. A slice returns a list of views.

        Returns
        -------
        memoryview
            One-dimensional, format ``"B"``; read-only unless the shard is
            ``mode="private"``. Valid as long as it is referenced, also after the
            shard is closed; it keeps the file mapped. ``bytes(view)`` is a copy.
            A list of views for a slice.

        Raises
        ------
        MemberNotFoundError
            The shard has no member of this name.
        IndexError
            The shard has no member at this position.
        ClosedError
            The shard is closed.
        FormatError
            ``mode="pread"`` and the file was truncated.

        Examples
        --------
        >>> shard[2], bytes(shard[2])
        (<memory at 0x...>, b'text 0')
        >>> bytes(shard["000001.txt"]), len(shard[:4])
        (b'text 1', 4)
        """
        cdef Py_ssize_t i
        cdef Py_ssize_t count = <Py_ssize_t> self.table.columns.count
        cdef int overflow = 0
        if type(key) is int and self.direct is not None:
            i = PyLong_AsLongLongAndOverflow(key, &overflow)
            if i < 0:
                i += count
            if 0 <= i < count and overflow == 0:
                return get_view(self, i)
        return get_views(self, key)

    def __contains__(self, name):
        self.open_source()
        if not isinstance(name, str):
            raise TypeError(f"a name must be str, got {type(name).__name__}")
        return self.table.find(name) >= 0 or self.table.find(respell(name)) >= 0

    def __iter__(self):
        return self.scan()

    def scan(self, order=None, window=32, *, max_memory=None, keep_cache=True):
        """Iterate over views, prefetching the members ahead.

        Parameters
        ----------
        order : sequence of int, or array, optional
            Positions; by default all members in order.
        window : int, default 32
            Members to prefetch; more if they are small and adjacent. 0: none.
        max_memory : int or str, optional
            Limit of resident pages, in bytes or as ``"1GiB"``; pages behind the read
            position are released.
        keep_cache : bool, default True
            Leave the pages read in the page cache.

        Returns
        -------
        iterator of memoryview
            With ``close()``, which ends its prefetching thread.

        Raises
        ------
        IndexError
            The shard has no member at a position.
        FormatError, OSError
            On iteration: a member cannot be read.

        Examples
        --------
        >>> [bytes(view) for view in shard.scan([2, 6, 10])]
        [b'text 0', b'text 1', b'text 2']
        """
        return load_function("scan_members")(
            self, order, window, max_memory, keep_cache
        )

    def name_at(self, i):
        """Return the name of a member.

        Parameters
        ----------
        i : int
            Position; a negative one counts from the end.

        Raises
        ------
        IndexError
            The shard has no member at this position.
        ClosedError
            The shard is closed.

        Examples
        --------
        >>> shard.name_at(6)
        '000001.txt'
        """
        self.open_source()
        return self.member_name(resolve_position(i, self.member_count()))

    def position(self, name):
        """Return the position of the last member of this name.

        Parameters
        ----------
        name : str
            As tar stores it, with or without a leading ``./``.

        Raises
        ------
        MemberNotFoundError
            The shard has no member of this name.

        Examples
        --------
        >>> shard.position("000001.txt")
        6
        """
        if not isinstance(name, str):
            raise TypeError(f"a name must be str, got {type(name).__name__}")
        return self.find(name)

    def read(self, key):
        """Return a copy of a member's bytes.

        Parameters
        ----------
        key : int or str
            Position or name.

        Raises
        ------
        MemberNotFoundError, IndexError, ClosedError
            As for ``shard[key]``.
        FormatError, OSError
            The member cannot be read.

        Examples
        --------
        >>> shard.read("000001.txt")
        b'text 1'
        """
        cdef uint64_t offset, size
        cdef Py_ssize_t i = self.find(key)
        cdef Source source = self.open_source()  # a key's __index__ may close the shard
        self.extent(source, i, &offset, &size)
        try:
            copy = source.read(offset, size)
        except (FormatError, OSError) as error:
            raise self.annotate(error, i) from None
        if self.table.verified != NULL and not fs_has_bit(self.table.verified, i):
            self.check_header(source, i)
        return copy

    def array(self, key, dtype=None, shape=None):
        """Return a member as an array without copying it.

        Parameters
        ----------
        key : int or str
            Position or name.
        dtype : dtype-like, optional
            Type of raw values. By default the member is a ``.npy`` file (versions
            1 to 3, no objects).
        shape : int or tuple of int, optional
            Shape of the array of `dtype`; one length may be -1. By default one
            dimension.

        Returns
        -------
        numpy.ndarray
            On the shard's own memory (a copy if ``mode="pread"``): read-only
            unless ``mode="private"``, valid as long as it is referenced. See its
            flags for alignment.

        Raises
        ------
        ValueError
            The member's size does not fit `dtype` and `shape`.
        FormatError
            The member is not a ``.npy`` file, or holds Python objects.
        MemberNotFoundError, IndexError, ClosedError
            As for ``shard[key]``.

        Examples
        --------
        >>> shard.array("000003.npy")
        array([3., 3., 3., 3.], dtype=float32)
        >>> shard.array("000003.txt", "u1", (2, 3))
        array([[116, 101, 120],
               [116,  32,  51]], dtype=uint8)
        """
        if array_maker == NULL:
            load_function("array")
        return array_maker(self, self.find(key), dtype, shape)

    def read_into(self, positions, out, *, threads=None):
        """Copy many members into one buffer without the GIL.

        Parameters
        ----------
        positions : sequence of int, or array
            A negative one counts from the end.
        out : buffer
            Writable and contiguous: an array, a bytearray, shared memory, a tensor
            in (pinned) memory. If it has one dimension, the members' bytes are
            concatenated; otherwise each member fills a row.
        threads : int, optional
            Maximum number of threads, by default 4; one per 4 MiB is used.

        Returns
        -------
        ndarray of int64 [positions + 1]
            Offset of each member in `out`, in bytes, and the end of the last.

        Raises
        ------
        ValueError
            `out` is too small, or a member has not the size of a row.
        IndexError
            The shard has no member at a position.
        FormatError, OSError
            A member cannot be read; the contents of `out` are undefined.

        Examples
        --------
        >>> out = np.empty(100, np.uint8)
        >>> ends = shard.read_into([2, 6, 10], out)
        >>> ends
        array([ 0,  6, 12, 18])
        >>> out[ends[1] : ends[2]].tobytes()
        b'text 1'
        >>> rows = np.empty((3, 6), np.uint8)
        >>> _ = shard.read_into([2, 6, 10], rows)
        >>> rows[2].tobytes()
        b'text 2'
        """
        return load_function("read_members")(self, positions, out, threads)

    def extent_of(self, i):
        """Return a member's offset and size; check that they lie in the file.

        Parameters
        ----------
        i : int
            Position.

        Returns
        -------
        (offset, size) : tuple of int
            Bytes from the start of the file to the data, and its length.

        Raises
        ------
        IndexError
            The shard has no member at this position.
        FormatError
            The extent reaches beyond the file.

        Examples
        --------
        >>> shard.extent_of(2)
        (2560, 6)
        """
        cdef uint64_t offset, size
        cdef Source source = self.open_source()
        self.extent(source, resolve_position(i, self.member_count()), &offset, &size)
        return offset, size

    def parts(self):
        """Return a new handle on the source, and the table, for another `Shard`.

        Returns
        -------
        (source, table) : tuple of Source and ExtentTable

        Raises
        ------
        ClosedError
            The shard is closed.

        Examples
        --------
        >>> source, table = shard.parts()
        >>> len(table)
        100
        """
        return self.open_source().handle(), self.table

    def close(self, bint strict=False):
        """Close the shard; live views stay valid and keep the file mapped.

        Closing twice is allowed.

        Parameters
        ----------
        strict : bool, default False
            Raise if views made through this handle are alive.

        Raises
        ------
        BufferError
            `strict` and views are alive; the shard stays open.

        Examples
        --------
        >>> view = shard[2]
        >>> shard.close(strict=True)
        Traceback (most recent call last):
        BufferError: data/train-0000.tar has 1 live views
        >>> shard.close()
        >>> bytes(view), shard.closed
        (b'text 0', True)
        """
        cdef Source source
        with cython.critical_section(self):
            source = self.source
        if source is None:
            return
        if strict and source.live_views:
            raise BufferError(f"{self.path} has {source.live_views:,} live views")
        with cython.critical_section(self):
            self.source = None
            self.direct = None

    def __enter__(self):
        self.open_source()
        return self

    def __exit__(self, *exc_info):
        self.close()

    def __repr__(self):
        cdef Source source
        name = type(self).__name__
        with cython.critical_section(self):  # another thread may close it
            source = self.source
        if source is None:
            return f"{name}({self.path!r}; closed)"
        return (
            f"{name}({self.path!r}; {self.member_count():,} members, "
            f"{source.nbytes:,} bytes; {self.mode})"
        )

    cdef Source open_source(self):
        cdef Source source
        with cython.critical_section(self):  # another thread may close it
            source = self.source
        if source is None:
            raise ClosedError(f"{self.path} is closed")
        return source

    cdef Py_ssize_t find(self, object key) except -1:
        """Return the position in range for a position or a name."""
        cdef Py_ssize_t i
        self.open_source()
        if not isinstance(key, str):
            return resolve_position(key, self.member_count())
        i = self.table.find(key)
        if i < 0:
            i = self.table.find(respell(key))
        if i < 0:
            near = partial(
                near_names, key, len(self), self.table.name_of, self.__contains__
            )
            raise MemberNotFoundError(key, self.path, near)
        return i

    cdef Py_ssize_t member_count(self) except -1:
        """Return the number of members."""
        return self.table.columns.count

    cdef str member_name(self, Py_ssize_t i):
        """Return the name of the member at a position in range."""
        return self.table.name(i)

    cdef int extent(
        self, Source source, Py_ssize_t i, uint64_t *offset, uint64_t *size
    ) except -1:
        """Load an extent once, and check it."""
        if has_unchecked_blocks(self.table):
            self.table.check_extent(i)
        offset[0] = fs_load(self.table.columns.offsets + i)
        size[0] = fs_load(self.table.columns.sizes + i)
        return self.check_extent(source, i, offset[0], size[0])

    cdef int check_extent(
        self, Source source, Py_ssize_t i, uint64_t offset, uint64_t size
    ) except -1:
        """Raise FormatError if an extent reaches beyond the file.

        No other code checks it.
        """
        if offset > source.nbytes or size > source.nbytes - offset:
            raise FormatError(
                f"an extent of {size:,} bytes reaches beyond the file",
                self.path, offset, self.member_name(i),
            )
        return 0

    cdef bint estimate_extent(
        self, Source source, Py_ssize_t i, uint64_t *offset, uint64_t *size
    ) noexcept:
        """Set the likely extent of a member, to prefetch it; False: not in the file."""
        offset[0] = fs_load(self.table.columns.offsets + i)
        size[0] = fs_load(self.table.columns.sizes + i)
        return offset[0] <= source.nbytes and size[0] <= source.nbytes - offset[0]

    cdef int check_header(self, Source source, Py_ssize_t i) except -1:
        """Compare the header before a member with the table.

        For a table from an index of which only some headers were compared. The
        member's first page must be resident: with the GIL held no other page is
        touched, so a header on the page before is not compared, nor one of a remote
        shard.
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
        if has_unchecked_blocks(table):
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
                same = headers_match(window, headers, source.nbytes, offset, size, name)
        if not same:
            same = table.is_there(table, i, source)
        if not same:
            name_of = table.name(i)
            raise StaleIndexError(
                f"{self.path} has no member {name_of!r} of {size:,} bytes at byte "
                f"{offset:,}; make the index again with: fastshard index",
                table.index, 0, name_of,
            )
        fs_set_bit(table.verified, i)
        return 0

    cdef object pin(self, Py_ssize_t i, uint8_t **at, uint64_t *size):
        """Set the address and size of a member's bytes; return their owner."""
        cdef uint64_t offset
        cdef Source source = self.open_source()
        cdef object owner
        self.extent(source, i, &offset, size)
        try:
            owner = source.pin(offset, size[0], at)
        except (FormatError, OSError) as error:
            raise self.annotate(error, i) from None
        if self.table.verified != NULL and not fs_has_bit(self.table.verified, i):
            self.check_header(source, i)
        return owner

    cdef object make_view(self, Py_ssize_t i):
        """Return a view of a member after `resident_view` returned None."""
        cdef uint8_t *at
        cdef uint64_t size
        return PyMemoryView_FromObject(self.pin(i, &at, &size))

    cdef object annotate(self, object error, Py_ssize_t i):
        """Return an error of the source with the member's name."""
        if isinstance(error, RemoteError):
            return error.of_member(self.member_name(i))
        if isinstance(error, OSError):
            where = f"{error.strerror} - at member {self.member_name(i)!r}"
            return OSError(error.errno, where, self.path)
        return FormatError(error.reason, self.path, error.offset, self.member_name(i))

    cdef object view_at(self, Py_ssize_t i):
        return get_view(self, i)


@cython.nonecheck(True)
cdef class SamplesBase:
    """Sequence of samples by position or key; base class of the formats' samples.

    Attributes
    ----------
    shard : Shard or None
        The shard that holds the samples, None if several do.
    """

    def __len__(self):
        return self.count()

    def __getitem__(self, key):
        """Return a sample by position or key, or a list for a slice.

        Parameters
        ----------
        key : int, str or slice
            A position (a negative one counts from the end), or a key.

        Raises
        ------
        SampleNotFoundError
            There is no sample with this key.
        IndexError
            The position is out of range.
        FormatError
            Two members of the sample have the same field.

        Examples
        --------
        >>> shard.samples["000007"], shard.samples[7].position
        (Sample('000007'; npy, cls, txt, json), 7)
        >>> len(shard.samples[5:8])
        3
        """
        cdef Py_ssize_t i
        if isinstance(key, slice):
            return [self.sample_at(i) for i in range(*key.indices(len(self)))]
        return self.sample_at(self.find(key))

    def __contains__(self, key):
        self.count()               # raises if closed
        if not isinstance(key, str):
            raise TypeError(f"a key must be str, got {type(key).__name__}")
        return self.search(key) >= 0

    def __iter__(self):
        cdef Py_ssize_t i
        for i in range(len(self)):
            yield self.sample_at(i)

    def position(self, key):
        """Return the position of the sample with this key.

        Raises
        ------
        SampleNotFoundError
            There is no sample with this key.

        Examples
        --------
        >>> shard.samples.position("000007")
        7
        """
        if not isinstance(key, str):
            raise TypeError(f"a key must be str, got {type(key).__name__}")
        return self.find(key)

    def key_at(self, i):
        """Return the key of the sample at a position.

        Raises
        ------
        IndexError
            The position is out of range.

        Examples
        --------
        >>> shard.samples.key_at(-1)
        '000024'
        """
        return self.key(resolve_position(i, len(self)))

    def __reduce__(self):
        raise TypeError("samples do not pickle; pickle the shard")

    cdef Py_ssize_t find(self, object key) except -1:
        cdef Py_ssize_t i
        cdef Py_ssize_t count = self.count()
        if not isinstance(key, str):
            return resolve_position(key, count)
        i = self.search(key)
        if i < 0:
            near = partial(near_names, key, count, self.key_at, self.__contains__)
            raise SampleNotFoundError(key, self.where(), near)
        return i

    cdef object item(self, Py_ssize_t i):
        """Return the sample at a position; check the position."""
        cdef Py_ssize_t count = self.count()
        if not 0 <= i < count:
            i = resolve_position(i, count)
        return self.sample_at(i)

    cdef object sample_at(self, Py_ssize_t i):
        """Return the sample at a position in range."""
        return make_sample(self, i)

    cdef Py_ssize_t count(self) except -1:
        """Return the number of samples; raise ClosedError if closed."""
        raise NotImplementedError

    cdef str key(self, Py_ssize_t i):
        """Return the key of the sample at a position in range."""
        raise NotImplementedError

    cdef Py_ssize_t search(self, object key) except -2:
        """Return the position of the sample with this key, or -1."""
        raise NotImplementedError

    cdef str where(self):
        """Return the path of the samples, for error messages."""
        raise NotImplementedError

    cdef list fields(self, Py_ssize_t i):
        """Return the fields of a sample in storage order."""
        raise NotImplementedError

    cdef Py_ssize_t width(self, Py_ssize_t i) except -1:
        """Return the number of fields of a sample."""
        return len(self.fields(i))

    cdef Py_ssize_t member(self, Py_ssize_t i, object field) except -2:
        """Return the position in its shard of the member that holds a field, or -1."""
        raise NotImplementedError

    cdef Shard holder(self, Py_ssize_t i, object field):
        """Return the shard that holds a field of the sample."""
        return self.shard

    cdef bint is_resident(self, SampleBase sample) except -1:
        """Return whether reading the visible fields does not block."""
        raise NotImplementedError

    cdef list visible_members(self, SampleBase sample):
        """Return the members to read for the visible fields, as (shard, member).

        A format whose fields are parts of a row returns the row.
        """
        cdef Py_ssize_t member
        found = []
        fields = self.fields(sample.position) if sample.only is None else sample.only
        for field in fields:
            member = self.member(sample.position, field)
            if member >= 0:
                found.append((self.holder(sample.position, field), member))
        return found

    cdef SamplesBase with_shard(self, Shard shard):
        """Return these samples, held by another handle on their shard."""
        raise NotImplementedError

    cdef void prefetch(self, Py_ssize_t i, int stage) noexcept:
        """Prefetch the memory of one stage of a sample's look-up into the CPU cache."""


@cython.nonecheck(True)
cdef inline SampleBase make_sample(SamplesBase samples, Py_ssize_t i):
    """Return a new sample; no `__init__` is called."""
    cdef PyTypeObject *kind = <PyTypeObject *> samples.sample_type
    cdef SampleBase sample = <SampleBase> (<maker_t> kind.tp_new)(kind, NOTHING, NULL)
    sample.samples = samples
    sample.position = i
    return sample


@cython.nonecheck(True)
cdef class SampleBase:
    """Sample of a shard: named fields, each stored as a member.

    Attributes
    ----------
    samples : SamplesBase
        The samples that it is one of.
    position : int
        0-based position among them.
    decoders : Mapping of str to callable, or None
        Decoders that take precedence over the built-in ones.
    """

    @property
    def shard(self):
        """The shard that holds the sample, or None if several do."""
        return self.samples.shard

    @property
    def key(self):
        """The sample's key."""
        return self.samples.key(self.position)

    def narrow(self, tuple only, bint required, decoders):
        """Limit the sample itself to some fields, and set its decoders.

        `Dataset.select_fields` does it for all samples of a dataset.

        Parameters
        ----------
        only : tuple of str, or None
            Visible fields; None for all.
        required : bool
            Raise if the sample lacks one of them.
        decoders : Mapping, or None

        Raises
        ------
        FieldNotFoundError
            A required field is missing.

        Examples
        --------
        >>> sample.narrow(("txt",), True, None)
        >>> sample.keys()
        ['txt']
        """
        self.show(only, required, decoders)

    cdef int show(self, tuple only, bint required, object decoders) except -1:
        """Implementation of `narrow`."""
        if only is not None and required:
            for field in only:
                self.member_of(field)
        self.only = only
        self.decoders = decoders
        return 0

    def keys(self):
        """Return the visible fields, in the order of the shard or of the selection.

        Examples
        --------
        >>> sample.keys()
        ['npy', 'cls', 'txt', 'json']
        """
        if self.only is not None:
            return [field for field in self.only if field in self]
        return self.samples.fields(self.position)

    def __len__(self):
        return self.width()

    cdef Py_ssize_t width(self) except -1:
        """Return the number of visible fields."""
        cdef Py_ssize_t count = 0
        if self.only is None:
            return self.samples.width(self.position)
        for field in self.only:
            count += self.samples.member(self.position, field) >= 0
        return count

    def __iter__(self):
        return iter(self.keys())

    def __contains__(self, field):
        return isinstance(field, str) and (
            self.only is None or field in self.only
        ) and (
            self.samples.member(self.position, field) >= 0
        )

    def __getitem__(self, field):
        """Return the stored bytes of a field without copying them.

        Parameters
        ----------
        field : str
            ``"jpg"``, ``"seg.png"``: the part of the member's name behind the key.

        Returns
        -------
        memoryview
            As `Shard` returns it: read-only, valid as long as it is referenced.

        Raises
        ------
        FieldNotFoundError
            The sample has no such field.
        ClosedError, FormatError
            As for ``shard[name]``.

        Examples
        --------
        >>> sample["txt"], bytes(sample["txt"])
        (<memory at 0x...>, b'text 7')
        """
        cdef Py_ssize_t member = self.member_of(field)
        cdef Shard shard = self.samples.shard
        if shard is None:
            shard = self.samples.holder(self.position, field)
        return get_view(shard, member)

    def place(self, field):
        """Return the shard that holds a field, and the member's position in it.

        Returns
        -------
        (shard, i) : tuple of Shard and int

        Raises
        ------
        FieldNotFoundError
            The sample has no such field.

        Examples
        --------
        >>> shard, i = sample.place("txt")
        >>> shard.path, shard.names[i], shard.extent_of(i)
        ('data/train-0000.tar', '000007.txt', (31232, 6))
        """
        cdef Py_ssize_t member = self.member_of(field)
        return self.samples.holder(self.position, field), member

    def member(self, field):
        """Return the position in its shard of the member that holds a field.

        Raises
        ------
        FieldNotFoundError
            The sample has no such field.

        Examples
        --------
        >>> sample.member("txt")
        30
        """
        return self.member_of(field)

    cdef Py_ssize_t member_of(self, object field) except -1:
        """Implementation of `member`."""
        cdef Py_ssize_t member
        if not isinstance(field, str):
            raise TypeError(f"a field must be str, got {type(field).__name__}")
        member = -1
        if self.only is None or field in self.only:
            member = self.samples.member(self.position, field)
        if member < 0:
            fields = list(self.keys())
            where = f"sample {self.key!r} of {self.samples.where()}"
            for twin in other_forms(self.key, self.samples.__contains__):
                where += f", beside the sample {ascii(twin)}"
            raise FieldNotFoundError(
                field,
                f"{where}, which has {', '.join(fields)}",
                partial(near_fields, field, fields),
            )
        return member


@cython.nonecheck(True)
cdef inline bint is_whole(Grouping grouping, Py_ssize_t i) noexcept:
    """Return whether a sample's members exist and no field repeats.

    Prefetches the extent of its first member, which the caller is likely to read next.
    """
    cdef const groups_t *groups = &grouping.groups
    cdef uint32_t start, end, k
    if not fs_is_set(&grouping.grouped):
        return False
    if grouping.keeper is not None:
        if not groups.unique or has_unchecked_blocks(grouping.table):
            return False
    elif groups.repeat_flags == NULL or groups.repeat_flags[i] != 0:
        return False
    members_range(groups, <uint32_t> i, &start, &end)
    for k in range(start, end):
        if fs_load32(groups.members + k) >= groups.columns.count:
            return False
    if start == end:
        return False
    prefetch_member(groups, fs_load32(groups.members + start))
    return True


@cython.nonecheck(True)
cdef class GroupedSamples(SamplesBase):
    """Members of a shard grouped into samples, by position or key.

    Attributes
    ----------
    shard : Shard
    grouping : Grouping
        The members of each sample.
    sample_type : type
        Subclass of `SampleBase` to create.
    """

    def __cinit__(
        self, Shard shard not None, Grouping grouping not None, type sample_type
    ):
        self.shard = shard
        self.grouping = grouping
        self.sample_type = sample_type

    def members_at(self, i):
        """Return the positions of the members of a sample.

        Raises
        ------
        IndexError
            The position is out of range.

        Examples
        --------
        >>> shard.samples.members_at(1)
        [4, 5, 6, 7]
        """
        return self.grouping.members(resolve_position(i, len(self)))

    def having(self, tuple fields not None):
        """Return a byte per sample: 1 if it has all these fields, else 0.

        Examples
        --------
        >>> shard.samples.having(("txt", "cls"))[:3], shard.samples.having(("mp3",))[:3]
        (bytearray(b'\\x01\\x01\\x01'), bytearray(b'\\x00\\x00\\x00'))
        """
        return self.grouping.having(fields)

    cdef Py_ssize_t count(self) except -1:
        self.shard.open_source()
        return self.grouping.count()

    cdef str key(self, Py_ssize_t i):
        return self.grouping.key(i)

    cdef Py_ssize_t search(self, object key) except -2:
        return self.grouping.find(key)

    cdef str where(self):
        return self.shard.path

    cdef list fields(self, Py_ssize_t i):
        cdef Grouping grouping = self.grouping
        return [grouping.field(member) for member in grouping.members(i)]

    cdef Py_ssize_t width(self, Py_ssize_t i) except -1:
        return self.grouping.width(i)

    cdef Py_ssize_t member(self, Py_ssize_t i, object field) except -2:
        return self.grouping.member(i, field)

    cdef bint is_resident(self, SampleBase sample) except -1:
        return self.shard.open_source().is_resident()

    cdef list visible_members(self, SampleBase sample):
        if sample.only is not None:
            return SamplesBase.visible_members(self, sample)
        return [
            (self.shard, member) for member in self.grouping.members(sample.position)
        ]

    cdef SamplesBase with_shard(self, Shard shard):
        return type(self)(shard, self.grouping, self.sample_type)

    cdef object item(self, Py_ssize_t i):
        cdef Grouping grouping = self.grouping
        if self.shard.source is None or not fs_is_set(&grouping.grouped) or not (
            0 <= i < <Py_ssize_t> grouping.groups.count
        ):
            return SamplesBase.item(self, i)
        return self.sample_at(i)

    cdef object sample_at(self, Py_ssize_t i):
        cdef Py_ssize_t again
        if is_whole(self.grouping, i):
            return make_sample(self, i)
        self.grouping.check(i)
        again = self.grouping.find_repeat(i)
        if again >= 0:
            raise FormatError(
                f"sample {self.grouping.key(i)!r} has field "
                f"{self.grouping.field(again)!r} twice",
                self.shard.path, self.shard.table.columns.offsets[again],
                self.shard.table.name(again),
            )
        return make_sample(self, i)

    cdef void prefetch(self, Py_ssize_t i, int stage) noexcept:
        cdef Grouping grouping = self.grouping
        cdef groups_t *groups
        cdef uint32_t first, member
        if not fs_is_set(&grouping.grouped):
            return
        groups = &grouping.groups
        if i >= groups.count:
            return
        if stage == STAGE_LIST:
            fs_prefetch_line(groups.starts + i)
            return
        first = fs_load32(groups.starts + i)
        if first >= groups.grouped:
            return
        if stage == STAGE_EXTENT:
            fs_prefetch_line(groups.members + first)
        member = fs_load32(groups.members + first)
        if member >= groups.columns.count:
            return
        if stage == STAGE_EXTENT:
            prefetch_member(groups, member)
        else:
            prefetch_bytes(self.shard.source, groups.columns, member)


cdef class SampleDecoder:
    """Decoder of samples by position where bytes are resident, else by sample.

    A stage of `Dataset.map` of this type has a fast path in iterations and in
    ``ds[i]``. Subclasses define `__call__`, which every other read uses, with the same
    results.
    """

    def __call__(self, sample):
        """Return the value of a sample."""
        raise NotImplementedError

    cdef object decode_resident(self, SamplesBase samples, Py_ssize_t i):
        """Return the value of the sample at a position, or None for `__call__`.

        None: its bytes may not be resident, or only a sample decodes them. Positions
        may be out of range. An error is not raised to users: `__call__` is asked again
        and names the sample.
        """
        return None


cdef object decode_item(SampleDecoder decoder, object samples, Py_ssize_t i):
    """Return a decoded sample whose bytes are resident; None for the slow path."""
    if not isinstance(samples, SamplesBase):
        return None
    try:
        return decoder.decode_resident(<SamplesBase> samples, i)
    except Exception:
        return None


cdef object call_decoder(SampleDecoder decoder, object sample, object where):
    """Call a decoder; add the sample's name and `where` to errors."""
    try:
        return decoder(sample)
    except Exception as error:
        failure = add_notes(error, sample, where)
        if failure is error:
            raise
        raise failure from error


cdef void prefetch_member(const groups_t *groups, uint32_t member) noexcept:
    """Prefetch the extent and the name's end of a member."""
    fs_prefetch_line(groups.columns.offsets + member)
    fs_prefetch_line(groups.columns.sizes + member)
    fs_prefetch_line(groups.columns.name_ends + member)
    if groups.key_ends != NULL:
        fs_prefetch_line(groups.key_ends + member)


cdef void prefetch_bytes(
    Source source, const columns_t *columns, uint32_t member
) noexcept:
    """Prefetch the name and the first bytes of a member."""
    cdef uint64_t offset = fs_load(columns.offsets + member)
    cdef uint64_t end = fs_load(columns.name_ends + member)
    if end > 0 and end <= columns.names_size:
        fs_prefetch_line(columns.names + end - 1)
    if source is not None and source.base != NULL and offset < source.nbytes:
        fs_prefetch_line(source.base + offset)
        fs_prefetch_line(source.base + min(offset + 64, source.nbytes - 1))


@cython.nonecheck(True)
def stage_bytes(SampleBase sample not None, dict staged not None):
    """Give a remote shard's sample its own handle on the shard, with bytes read ahead.
    """
    cdef Shard shard = sample.samples.shard
    cdef Shard handle = shard.with_source(
        RemoteSource((<RemoteSource?> shard.open_source()).file, staged)
    )
    handle.layouts = shard.layouts
    sample.samples = sample.samples.with_shard(handle)


@cython.nonecheck(True)
cdef list members_of_fields(SampleBase sample, tuple only):
    """Return the members of the fields that a sample has among some."""
    cdef SampleBase part = make_sample(sample.samples, sample.position)
    part.only = tuple([field for field in only if field in sample])
    return sample.samples.visible_members(part)


@cython.nonecheck(True)
def find_members(list samples not None, field):
    """Return the members that hold a field of some samples."""
    cdef Py_ssize_t i
    cdef SampleBase sample
    cdef list shards = [None] * len(samples)
    cdef object members = array("q", bytes(8 * len(samples)))
    cdef Py_buffer buffer
    cdef int64_t *found = int64s_of(members, &buffer, True)
    try:
        for i in range(len(samples)):
            sample = <SampleBase?> samples[i]
            found[i] = sample.member_of(field)
            shards[i] = sample.samples.holder(sample.position, field)
    finally:
        PyBuffer_Release(&buffer)
    return shards, members


@cython.nonecheck(True)
def find_odd_width(list samples not None):
    """Return the index of the first sample of a different width, or -1.

    The width is the number of fields.
    """
    cdef Py_ssize_t i
    cdef Py_ssize_t width = (<SampleBase?> samples[0]).width() if samples else 0
    for i in range(len(samples)):
        if (<SampleBase?> samples[i]).width() != width:
            return i
    return -1


def add_notes(error, item, str where=None):
    """Add notes that name the sample to an error; return the error to raise."""
    if isinstance(error, StopIteration):
        error = RuntimeError("a function passed to map() raised StopIteration")
    for note in (*describe_item(item), where):
        if note and note not in getattr(error, "__notes__", ()):  # raised before
            error.add_note(note)
    return error


@cython.nonecheck(True)
def describe_item(item):
    """Return descriptions of the samples of an item: a list, empty if unknown."""
    if isinstance(item, tuple):    # of zip_by_key
        return [name for part in item for name in describe_item(part)]
    try:
        if isinstance(item, SampleBase):
            shard = item.samples   # a property of samples that stand on others
            where = "" if shard is None else f" of {(<SamplesBase> shard).where()}"
            return [f"sample {item.key!r}, position {item.position:,}{where}"]
        if isinstance(item, dict) and "__key__" in item:
            return [f"sample {item['__key__']!r}"]
    except Exception:              # a closed shard must not hide the first error
        pass
    return []
