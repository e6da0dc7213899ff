"""A shard's members and samples: position -> sample -> view.

`Shard` is a source and a table of extents. `SamplesBase` and `SampleBase` are samples,
which a format subclasses: it says which there are, and in which members their fields
lie. `GroupedSamples` are the members of one shard, grouped by key. `SampleLocator` finds the
samples of a dataset: in which shard, at which position there.
"""

cimport cython
from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.memoryview cimport PyMemoryView_FromObject
from cpython.number cimport PyNumber_AsSsize_t
from cpython.object cimport PyObject, PyTypeObject
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from fastshard._core.buffers cimport int64s_of
from fastshard._core.table.extents cimport (
    ExtentTable, Names, resolve_position, columns_t, has_unchecked_blocks, name_at,
)
from fastshard._core.table.grouping cimport Grouping
from fastshard._core.table.grouping cimport groups_t, members_range
from fastshard._core.table.order cimport Order
from fastshard._core.platform cimport (
    fs_load_relaxed, fs_has_bit, fs_is_set, fs_load, fs_load32, fs_load_pointer, fs_store_relaxed,
    fs_prefetch_line, fs_set_bit,
)
from fastshard._core.parse.tar cimport headers_match, headers_before, headers_t
from fastshard._core.io.source cimport RemoteSource
from fastshard._core.io.source cimport MappedSource, Source
from fastshard._core.span cimport span_t

from array import array

from fastshard.errors import (
    ClosedError, FieldNotFoundError, FormatError, MemberNotFoundError, RemoteError,
    SampleNotFoundError, StaleIndexError,
)

cdef extern from *:
    bint FREE_THREADED "CYTHON_COMPILING_IN_CPYTHON_FREETHREADING"

cdef enum:
    BLOCK = 512                    # bytes of a header
    PAGE = 4096                    # bytes: the smallest page that there is

# `tp_new`, whose result is a new reference; the last argument may be NULL.
ctypedef object (*maker_t)(PyTypeObject *kind, tuple args, PyObject *kwargs)

cdef tuple NOTHING = ()
cdef array_maker_t array_maker = NULL  # set by arrays.pyx, when it is imported
cdef object load_function = None   # see `register_functions`


def register_functions(load not None):
    """Set what imports the functions behind some methods of `Shard`.

    They need modules that stand above this one, and are imported when first called.

    Parameters
    ----------
    load : callable
        ``load(name)``: ``"scan_members"``, ``"read_members"``, ``"offsets_of"`` and
        ``"sizes_of"`` give functions; ``"array"`` has `array_maker` set.
    """
    global load_function
    load_function = load


cdef object other_spelling(object name):
    """A name with ``./`` before it, or without: what tars may call the same file."""
    return name[2:] if name.startswith("./") else "./" + name


cdef inline object view_of(Shard shard, Py_ssize_t i):
    """Return a view of the member at a position that there is.

    The straight way for a mapped file whose pages are neither bounded nor to be asked
    about now, and a member that is not in doubt. `Shard.hold` is for all others.
    """
    cdef MappedSource held
    cdef PyObject *direct          # borrowed: `MappedFile.view` needs nothing of it late
    cdef uint64_t offset, size
    cdef uint8_t *at
    cdef Py_ssize_t trusted
    if FREE_THREADED:              # another thread may close it
        with cython.critical_section(shard):
            held = shard.direct
        direct = <PyObject *> held
    else:
        direct = <PyObject *> shard.direct
    if (
        direct != <PyObject *> None
        and fs_load_pointer(<void **> &shard.table.columns.blocks) == NULL
        and (shard.table.verified == NULL or fs_has_bit(shard.table.verified, i))
    ):
        trusted = fs_load_relaxed(&(<MappedSource> direct).trusted)
        offset = fs_load(shard.table.columns.offsets + i)
        size = fs_load(shard.table.columns.sizes + i)
        if trusted > 0 and offset <= (<MappedSource> direct).nbytes and (
            size <= (<MappedSource> direct).nbytes - offset
        ):
            fs_store_relaxed(&(<MappedSource> direct).trusted, trusted - 1)
            return (<MappedSource> direct).file.view(offset, size)
    return PyMemoryView_FromObject(shard.hold(i, &at, &size))


cdef object views_by(Shard shard, object key):
    """Return the view that a name or a position of any type is of, or a slice's views."""
    cdef Py_ssize_t i
    if isinstance(key, slice):
        return [view_of(shard, i) for i in range(*key.indices(len(shard)))]
    return view_of(shard, shard.find(key))


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
        if type(source) is MappedSource and (<MappedSource> source).file.chunks is None:
            self.direct = <MappedSource> source
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
        self.open_source()
        return load_function("offsets_of")(self.table)

    @property
    def sizes(self):
        """How long each member is: uint64 [members], bytes, read-only."""
        self.open_source()
        return load_function("sizes_of")(self.table)

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
        cdef Py_ssize_t count = <Py_ssize_t> self.table.columns.count
        cdef int overflow = 0
        if type(key) is int and self.direct is not None:
            i = PyLong_AsLongLongAndOverflow(key, &overflow)
            if i < 0:
                i += count
            if 0 <= i < count and overflow == 0:
                return view_of(self, i)
        return views_by(self, key)

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
        return load_function("scan_members")(self, order, window, max_memory, keep_cache)

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
        if self.table.verified != NULL and not fs_has_bit(self.table.verified, i):
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
            load_function("array")
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
        return load_function("read_members")(self, positions, out, threads)

    def extent_of(self, i):
        """Return a member's offset and size, which are checked to lie in the file."""
        cdef uint64_t offset, size
        cdef Source source = self.open_source()
        self.extent(source, resolve_position(i, self.table.columns.count), &offset, &size)
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
            self.direct = None

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
            return resolve_position(key, self.table.columns.count)
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
        if has_unchecked_blocks(self.table):
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

    cdef object hold(self, Py_ssize_t i, uint8_t **at, uint64_t *size):
        """Return what keeps a member's bytes alive, and where they are."""
        cdef uint64_t offset
        cdef Source source = self.open_source()
        cdef object owner
        self.extent(source, i, &offset, size)
        try:
            owner = source.pin(offset, size[0], at)
        except (FormatError, OSError) as error:  # the source knows of no members
            raise self.of_member(error, i) from None
        if self.table.verified != NULL and not fs_has_bit(self.table.verified, i):
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
        return view_of(self, i)


@cython.nonecheck(True)
cdef class SamplesBase:
    """Samples by position or key; what a format has to say of them."""

    def __len__(self):
        return self.count()

    def __getitem__(self, key):
        """Return a sample by position or key, or a list by a slice.

        Raises
        ------
        SampleNotFoundError
            There is no sample of this key.
        IndexError
            There is no sample at this position.
        FormatError
            Two members of the sample have the same field.
        """
        cdef Py_ssize_t i
        if isinstance(key, slice):
            return [self.sample_at(i) for i in range(*key.indices(len(self)))]
        return self.sample_at(self.find(key))

    def __contains__(self, key):
        self.count()               # raises if closed
        if not isinstance(key, str):
            raise TypeError(f"keys are str, not {type(key).__name__}")
        return self.search(key) >= 0

    def __iter__(self):
        cdef Py_ssize_t i
        for i in range(len(self)):
            yield self.sample_at(i)

    def position(self, key):
        """Return the position of the sample of this key."""
        if not isinstance(key, str):
            raise TypeError(f"keys are str, not {type(key).__name__}")
        return self.find(key)

    def key_at(self, i):
        """Return the key of the sample at a position."""
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
            from fastshard._util.options import near_names

            near = near_names(key, count, self.key_at)
            raise SampleNotFoundError(key, self.where(), near)
        return i

    cdef object item(self, Py_ssize_t i):
        """Return the sample at a position, which need not be one."""
        cdef Py_ssize_t count = self.count()
        if not 0 <= i < count:
            i = resolve_position(i, count)
        return self.sample_at(i)

    cdef object sample_at(self, Py_ssize_t i):
        """Return the sample at a position that there is."""
        return new_sample(self, i)

    cdef Py_ssize_t count(self) except -1:
        """How many samples there are; raises if they are closed."""
        raise NotImplementedError

    cdef str key(self, Py_ssize_t i):
        raise NotImplementedError

    cdef Py_ssize_t search(self, object key) except -2:
        """The position of the sample of this key, or -1."""
        raise NotImplementedError

    cdef str where(self):
        """What holds the samples, for messages."""
        raise NotImplementedError

    cdef list fields(self, Py_ssize_t i):
        """The fields of a sample, in the order they are stored."""
        raise NotImplementedError

    cdef Py_ssize_t width(self, Py_ssize_t i) except -1:
        """How many fields a sample has."""
        return len(self.fields(i))

    cdef Py_ssize_t member(self, Py_ssize_t i, object field) except -2:
        """The position of the member that holds a field, in its shard; or -1."""
        raise NotImplementedError

    cdef Shard holder(self, Py_ssize_t i, object field):
        """The shard that holds a field, which the sample has."""
        return self.shard

    cdef bint is_resident(self, SampleBase sample) except -1:
        """Whether the bytes of the fields that it shows need not be waited for."""
        raise NotImplementedError

    cdef list places(self, SampleBase sample):
        """The fields that it shows and has, each as (shard, member)."""
        cdef Py_ssize_t member
        found = []
        for field in self.fields(sample.position) if sample.only is None else sample.only:
            member = self.member(sample.position, field)
            if member >= 0:
                found.append((self.holder(sample.position, field), member))
        return found

    cdef void expect(self, Py_ssize_t i, int away) noexcept:
        """Ask for the memory that a sample which comes soon will need.

        `away` says how soon: FAR, NEARER, or NEAR, one after the other.
        """


@cython.nonecheck(True)
cdef inline SampleBase new_sample(SamplesBase samples, Py_ssize_t i):
    cdef PyTypeObject *kind = <PyTypeObject *> samples.sample_type
    cdef SampleBase sample = <SampleBase> (<maker_t> kind.tp_new)(kind, NOTHING, NULL)
    sample.samples = samples
    sample.position = i
    return sample


@cython.nonecheck(True)
cdef class SampleBase:
    """One sample of a shard: its fields, and their bytes."""

    @property
    def shard(self):
        """The shard that holds the sample; None: its fields lie in several."""
        return self.samples.shard

    @property
    def key(self):
        """The sample's key."""
        return self.samples.key(self.position)

    def narrow(self, tuple only, bint required, decoders):
        """Show some fields only, and decode with some decoders.

        Parameters
        ----------
        only : tuple of str, or None
            The fields; None for all.
        required : bool
            Whether the sample must have them.
        decoders : Mapping, or None

        Raises
        ------
        FieldNotFoundError
            `required`, and it has not.
        """
        self.show(only, required, decoders)

    cdef int show(self, tuple only, bint required, object decoders) except -1:
        """The same, for C."""
        if only is not None and required:
            for field in only:
                self.member_of(field)
        self.only = only
        self.decoders = decoders
        return 0

    def keys(self):
        """Return the fields: in the shard's order, or in the one selected."""
        if self.only is not None:
            return [field for field in self.only if field in self]
        return self.samples.fields(self.position)

    def __len__(self):
        return self.width()

    cdef Py_ssize_t width(self) except -1:
        """How many fields it shows."""
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
        """Return the bytes of a field; see `Shard.__getitem__`.

        Raises
        ------
        FieldNotFoundError
            The sample has no such field.
        """
        cdef Py_ssize_t member = self.member_of(field)
        cdef Shard shard = self.samples.shard
        if shard is None:
            shard = self.samples.holder(self.position, field)
        return view_of(shard, member)

    def place(self, field):
        """Return the shard that holds a field, and its member's position there."""
        cdef Py_ssize_t member = self.member_of(field)
        return self.samples.holder(self.position, field), member

    def member(self, field):
        """Return the position of the member that holds a field, in its shard."""
        return self.member_of(field)

    cdef Py_ssize_t member_of(self, object field) except -1:
        """The same, for C."""
        cdef Py_ssize_t member
        if not isinstance(field, str):
            raise TypeError(f"fields are str, not {type(field).__name__}")
        member = -1
        if self.only is None or field in self.only:
            member = self.samples.member(self.position, field)
        if member < 0:
            raise FieldNotFoundError(
                field,
                f"sample {self.key!r} of {self.samples.where()}, "
                f"which has {', '.join(self.keys())}",
            )
        return member


@cython.nonecheck(True)
cdef inline bint is_whole(Grouping grouping, Py_ssize_t i) noexcept:
    """Whether a sample surely has members that there are, and no field twice.

    Asks for the memory that says where the first of them is: a field comes next.
    """
    cdef const groups_t *groups = &grouping.groups
    cdef uint32_t start, end, k
    if not fs_is_set(&grouping.grouped):
        return False
    if grouping.keeper is not None:
        if not groups.unique or has_unchecked_blocks(grouping.table):
            return False
    elif groups.doubtful == NULL or groups.doubtful[i] != 0:
        return False
    members_range(groups, <uint32_t> i, &start, &end)
    for k in range(start, end):
        if fs_load32(groups.members + k) >= groups.columns.count:
            return False
    if start == end:
        return False
    expect_member(groups, fs_load32(groups.members + start))
    return True


@cython.nonecheck(True)
cdef class GroupedSamples(SamplesBase):
    """A shard's samples, by position or key.

    Parameters
    ----------
    shard : Shard
    grouping : Grouping
    sample_type : type
        The subclass of `SampleBase` to make.
    """

    def __cinit__(
        self, Shard shard not None, Grouping grouping not None, type sample_type
    ):
        self.shard = shard
        self.grouping = grouping
        self.sample_type = sample_type

    def members_at(self, i):
        """Return the positions of the members of the sample at a position."""
        return self.grouping.members(resolve_position(i, len(self)))

    def having(self, tuple fields not None):
        """Return for each sample whether it has all these fields: 0 or 1 a byte."""
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

    cdef list places(self, SampleBase sample):
        if sample.only is not None:
            return SamplesBase.places(self, sample)
        return [
            (self.shard, member) for member in self.grouping.members(sample.position)
        ]

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
            return new_sample(self, i)
        self.grouping.check(i)
        again = self.grouping.repeated(i)
        if again >= 0:
            raise FormatError(
                f"sample {self.grouping.key(i)!r} has field "
                f"{self.grouping.field(again)!r} twice",
                self.shard.path, self.shard.table.columns.offsets[again],
                self.shard.table.name(again),
            )
        return new_sample(self, i)

    cdef void expect(self, Py_ssize_t i, int away) noexcept:
        cdef Grouping grouping = self.grouping
        cdef groups_t *groups
        cdef uint32_t first, member
        if not fs_is_set(&grouping.grouped):
            return
        groups = &grouping.groups
        if i >= groups.count:
            return
        if away == FAR:
            fs_prefetch_line(groups.starts + i)
            return
        first = fs_load32(groups.starts + i)
        if first >= groups.grouped:
            return
        if away == NEARER:
            fs_prefetch_line(groups.members + first)
        member = fs_load32(groups.members + first)
        if member >= groups.columns.count:
            return
        if away == NEARER:
            expect_member(groups, member)
        else:
            expect_bytes(self.shard.source, groups.columns, member)


cdef void expect_member(const groups_t *groups, uint32_t member) noexcept:
    fs_prefetch_line(groups.columns.offsets + member)
    fs_prefetch_line(groups.columns.sizes + member)
    fs_prefetch_line(groups.columns.name_ends + member)
    if groups.key_ends != NULL:
        fs_prefetch_line(groups.key_ends + member)


cdef void expect_bytes(
    Source source, const columns_t *columns, uint32_t member
) noexcept:
    cdef uint64_t offset = fs_load(columns.offsets + member)
    cdef uint64_t end = fs_load(columns.name_ends + member)
    if end > 0 and end <= columns.names_size:
        fs_prefetch_line(columns.names + end - 1)
    if source is not None and source.base != NULL and offset < source.nbytes:
        fs_prefetch_line(source.base + offset)
        fs_prefetch_line(source.base + min(offset + 64, source.nbytes - 1))


@cython.final
cdef class SampleLocator:
    """Samples by their positions in a dataset.

    Parameters
    ----------
    starts : list of int
        Where each shard's samples begin, and, last, how many there are.
    samples : list of SamplesBase or None
        Of each shard, once it is open.
    used : bytearray or None
        Gets a 1 for a shard that is read.
    bring : callable
        ``bring(k)`` opens shard `k` and returns its samples.

    Attributes
    ----------
    total, count : int
        Samples of all shards, and of those that are in the order.
    """

    def __cinit__(self, list starts not None, list samples not None, bytearray used, bring):
        cdef Py_buffer buffer
        self.kept = array("q", starts)
        self.starts = int64s_of(self.kept, &buffer)
        PyBuffer_Release(&buffer)  # nobody else has the array: it keeps its size
        self.shards = len(starts) - 1
        if self.shards != len(samples) or (used is not None and len(used) != len(samples)):
            raise ValueError("starts, shards and marks of different lengths")
        if any(a > b for a, b in zip(starts, starts[1:])) or starts[0] != 0:
            raise ValueError("starts that go back")
        self.total = self.count = <Py_ssize_t> self.starts[self.shards]
        self.samples = samples
        self.used = used
        self.bring = bring

    def ordered(self, Order order not None):
        """Return the same samples in an order of their positions."""
        if order.limit > self.total:
            raise ValueError(f"positions below {order.limit} of {self.total} samples")
        cdef SampleLocator other = SampleLocator.__new__(SampleLocator, [0], [], None, None)
        other.kept = self.kept
        other.starts = self.starts
        other.total = self.total
        other.shards = self.shards
        other.samples = self.samples
        other.used = self.used
        other.bring = self.bring
        other.order = order
        other.count = order.count
        return other

    def at(self, i):
        """Return the sample at a position; negative ones count back.

        Raises
        ------
        IndexError
            There is no such position.
        """
        cdef Py_ssize_t k, at
        self.locate(self.wrapped(PyNumber_AsSsize_t(i, IndexError)), &k, &at)
        return self.sample_in(k, at)

    def __reduce__(self):
        raise TypeError("places do not pickle; pickle the dataset")

    cdef Py_ssize_t wrapped(self, Py_ssize_t i) except -1:
        cdef Py_ssize_t at = i + self.count if i < 0 else i
        if not 0 <= at < self.count:
            raise IndexError(f"position {i} is out of range: there are {self.count:,}")
        return at

    cdef Py_ssize_t shard_of(self, Py_ssize_t i) noexcept:
        """The last shard that begins at or before a position in range."""
        cdef Py_ssize_t low = 0
        cdef Py_ssize_t high = self.shards
        cdef Py_ssize_t middle
        while high - low > 1:
            middle = low + (high - low) // 2
            if self.starts[middle] <= i:
                low = middle
            else:
                high = middle
        return low

    cdef void locate(self, Py_ssize_t i, Py_ssize_t *shard, Py_ssize_t *at) noexcept:
        """The shard of the sample at a place in range, and its position there."""
        if self.order is not None:
            i = self.order.at(i)
        shard[0] = self.shard_of(i)
        at[0] = i - self.starts[shard[0]]

    cdef object sample_in(self, Py_ssize_t k, Py_ssize_t at):
        cdef object samples = self.samples[k]
        if samples is None:
            samples = self.bring(k)
        if self.used is not None:
            self.used[k] = 1
        return (<SamplesBase?> samples).item(at)


@cython.nonecheck(True)
def stage(SampleBase sample not None, dict staged not None):
    """Give a sample a handle of its own on its shard, which has its bytes.

    Parameters
    ----------
    sample : SampleBase
        Of a remote shard.
    staged : dict of int to bytes
        By their offsets in the shard.
    """
    cdef GroupedSamples samples = sample.samples
    cdef Shard shard = samples.shard
    cdef Shard handle = shard.with_source(
        RemoteSource((<RemoteSource?> shard.open_source()).file, staged)
    )
    handle.seen = shard.seen
    sample.samples = type(samples)(handle, samples.grouping, samples.sample_type)


@cython.nonecheck(True)
def find_members(list samples not None, field):
    """Return the shards that hold a field of some samples, and its positions there.

    Returns
    -------
    list of Shard, array of int64

    Raises
    ------
    FieldNotFoundError
        A sample has no such field.
    """
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
    """Return the first of some samples with more or fewer fields than the first; or -1."""
    cdef Py_ssize_t i
    cdef Py_ssize_t width = (<SampleBase?> samples[0]).width() if samples else 0
    for i in range(len(samples)):
        if (<SampleBase?> samples[i]).width() != width:
            return i
    return -1


def add_notes(error, item, str where=None):
    """Add notes to an error that say which sample it is of; return what to raise.

    Parameters
    ----------
    error : Exception
        Out of a function of the caller's. `StopIteration`, which would end an
        iteration early, gives a `RuntimeError`.
    item : object
        What the function was called with.
    where : str, optional
        The item's position, and in what.
    """
    if isinstance(error, StopIteration):
        error = RuntimeError("a function that a dataset was mapped with raised StopIteration")
    for note in (*describe_item(item), where):
        if note and note not in getattr(error, "__notes__", ()):  # it may come again
            error.add_note(note)
    return error


@cython.nonecheck(True)
def describe_item(item):
    """Return what names the samples of an item, as far as it is known: a list."""
    if isinstance(item, tuple):    # of zip_by_key
        return [name for part in item for name in describe_item(part)]
    try:
        if isinstance(item, SampleBase):
            shard = (<SampleBase> item).samples
            where = "" if shard is None else f" of {(<SamplesBase> shard).where()}"
            return [f"sample {item.key!r}, position {item.position:,}{where}"]
        if isinstance(item, dict) and "__key__" in item:
            return [f"sample {item['__key__']!r}"]
    except Exception:              # a shard that was closed: the first error counts
        pass
    return []
