"""``.npy`` members: headers, arrays on their bytes, and a buffer of members to write.

The only extension module that uses NumPy's C API; imported on the first use of an
array.
Headers are those of NEP 1, versions 1.0 to 3.0 (numpy.lib.format).
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_FillInfo,
    PyBuffer_IsContiguous, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.bytes cimport (
    PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE,
)
from cpython.memoryview cimport PyMemoryView_FromObject, PyMemoryView_GET_BUFFER
from cpython.number cimport PyNumber_AsSsize_t
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF
from cpython.unicode cimport PyUnicode_CheckExact
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcmp, memcpy, memset

cimport numpy as cnp

from fastshard._core.buffers cimport bytes_of, int64s_of
from fastshard._core.dataset cimport shard as shard_module
from fastshard._core.dataset.npy_header cimport parse_plain_header
from fastshard._core.dataset.shape cimport MAX_DIMENSIONS, shape_t
from fastshard._core.dataset.shard cimport Shard
from fastshard._core.io.source cimport View
from fastshard._core.platform cimport PY_SSIZE_T_MAX
from fastshard._core.span cimport span_of, span_t, take
from fastshard._core.table.checksums cimport encode_row, sum_field
from fastshard._core.table.extents cimport ExtentTable
from fastshard._core.table.names cimport encode_text

import ast
import copy
import io
import re
import sysconfig

import numpy
import numpy.lib.format

from fastshard.errors import FormatError

cnp.import_array()

cdef extern from "Python.h":
    bint PyUnicode_IS_COMPACT_ASCII(object text)
    char *PyUnicode_DATA(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)

cdef extern from "numpy/arrayobject.h":
    ctypedef struct PyArray_Descr:
        pass
    PyTypeObject PyArray_Type
    object PyArray_NewFromDescr(
        PyTypeObject *type, PyArray_Descr *descr, int nd, const cnp.npy_intp *dims,
        const cnp.npy_intp *strides, void *data, int flags, PyObject *like
    )
    int PyArray_SetBaseObject(cnp.ndarray array, PyObject *base) except -1
    bint PyDataType_REFCHK(cnp.dtype dtype)
    void PyArray_UpdateFlags(cnp.ndarray array, int flags)

cdef enum:
    MAX_HEADER = 1 << 20           # bytes; NumPy's writer pads to 64
    SURELY_ALIGNED = 64            # bytes: enough for every type
    BLOCK = 512                    # bytes of a tar header
    NAME_WIDTH = 100
    SIZE_AT = 124
    SIZE_DIGITS = 11
    CHECKSUM_AT = 148
    CHECKSUM_WIDTH = 8
    MAX_KEPT_ROOM = 4 << 20            # bytes; more is freed by `begin`
    MAX_LEAD = 12                  # bytes before the literal of a header
    MAX_PACK = 64 << 20            # bytes of rows
    SUFFIX_SIZE = 4                # bytes of ".npy"
    PACK_ROOM = 192 << 10          # bytes of a buffer in which a region may end: less
                                   # than those at which it is written
    SUCCESSION = 4                 # arrays of one other layout that end a pack
    ROW_DIMENSIONS = 31            # of an array in a pack: NumPy 1 has 32
    MAX_DTYPES = 64                # of a cache

cdef uint64_t MAX_OCTAL = 1 << 33  # bytes; the first size of twelve octal digits
cdef uint64_t MAX_FILE = 1 << 62   # bytes; offsets must be int64 in SQLite
cdef bint WITHOUT_GIL = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


# Headers

@cython.final
cdef class Layout:
    """Parsed ``.npy`` header: the array's type, shape and first byte."""

    cdef Layout copy(self):
        """Return a copy: threads that share a reference count contend for it."""
        cdef Layout other = Layout.__new__(Layout)
        other.dtype = copy.copy(self.dtype) if WITHOUT_GIL else self.dtype
        other.shape = self.shape
        other.nbytes = self.nbytes
        other.header_size = self.header_size
        memcpy(other.header, self.header, CACHED_HEADER)
        return other


@cython.final
cdef class LayoutCache:
    """Cache of layouts: the last three, and of those before one for each slot.

    The last three are those of the fields of a sample and of its neighbours. Headers
    that align the data inside a payload differ in length from sample to sample.
    """

    cdef Layout find(self, const uint8_t *at, uint64_t size):
        """Return the layout of a member with a cached header, or None."""
        cdef Layout layout
        with cython.critical_section(self):
            if has_header(self.first, at, size):
                return self.first
            if has_header(self.second, at, size):
                return self.second
            if has_header(self.third, at, size):
                return self.third
            if self.earlier is not None:
                layout = <Layout> self.earlier[slot_of(at, size)]
                if has_header(layout, at, size):
                    return layout
        return None

    cdef int add(self, Layout layout) except -1:
        cdef Layout last
        with cython.critical_section(self):
            last = self.third
            if last is not None:
                if self.earlier is None:
                    self.earlier = [None] * EARLIER
                self.earlier[slot_of(last.header, last.header_size)] = last
            self.third = self.second
            self.second = self.first
            self.first = layout
        return 0

    cdef object find_dtype(self, bytes descr):
        """Return the plain dtype of these characters, or None."""
        with cython.critical_section(self):
            if self.dtypes is None:
                self.dtypes = {}
            found = self.dtypes.get(descr)
            if found is None:
                found = parse_plain_dtype(descr)
                if found is not None:
                    if len(self.dtypes) >= MAX_DTYPES:
                        self.dtypes.clear()
                    self.dtypes[descr] = found
        return found


cdef object parse_plain_dtype(bytes descr):
    """Return a dtype without objects, fields and axes, or None."""
    try:
        dtype = numpy.dtype(descr.decode("ascii"))
    except Exception:              # raised again when the literal is evaluated
        return None
    if dtype.hasobject or dtype.names is not None or dtype.subdtype is not None:
        return None
    return copy.copy(dtype) if WITHOUT_GIL else dtype  # as `Layout.copy`


cdef inline Py_ssize_t slot_of(const uint8_t *at, uint64_t size) noexcept:
    """Return the slot of a header: by the low byte of its length, if it is one."""
    return at[8] % EARLIER if size > 8 else 0


cdef bint has_header(Layout layout, const uint8_t *at, uint64_t size):
    """Return whether a member begins with the header of a layout."""
    return (
        layout is not None and size >= layout.header_size
        and memcmp(at, layout.header, layout.header_size) == 0
    )


cdef LayoutCache shared_layouts = LayoutCache()  # of all shards, and of other bytes


cdef object make_fault(uint64_t at, str reason):
    """Return an error at a byte of a member; the caller adds the name."""
    return FormatError(f"not a .npy array: {reason}", "", at)


cdef Layout find_layout(const uint8_t *at, uint64_t size, LayoutCache layouts):
    """Return the layout of a member, from the caches or by parsing its header."""
    cdef Layout layout = layouts.find(at, size)
    if layout is None and layouts is not shared_layouts:
        # Another shard may have had it.
        layout = shared_layouts.find(at, size)
        if layout is not None:
            layout = layout.copy()
            layouts.add(layout)
    return read_layout(at, size, layouts) if layout is None else layout


def npy_size(view):
    """Return the size of a ``.npy`` file in bytes from its header."""
    cdef Py_buffer buffer
    cdef const uint8_t *head = bytes_of(view, &buffer)
    cdef Layout layout
    try:
        layout = find_layout(head, buffer.len, shared_layouts)
    finally:
        PyBuffer_Release(&buffer)
    return layout.header_size + layout.nbytes


cdef Layout read_layout(const uint8_t *at, uint64_t size, LayoutCache layouts):
    """Parse the header of a member; cache it if it is short."""
    cdef span_t span = span_of(at, size)
    cdef const uint8_t *magic = take(&span, 8)
    cdef const uint8_t *digits
    cdef const uint8_t *text
    cdef uint8_t[MAX_LEAD] lead    # a copy: mapped bytes may change
    cdef size_t length = 0
    cdef int k, width
    cdef bytes literal
    cdef Layout layout
    if magic != NULL:
        memcpy(lead, magic, 8)
    if magic == NULL or memcmp(lead, b"\x93NUMPY", 6) != 0:
        raise make_fault(0, "its magic is not \\x93NUMPY")
    if not 1 <= lead[6] <= 3 or lead[7] != 0:
        raise make_fault(6, f"unknown version {lead[6]}.{lead[7]}")
    width = 2 if lead[6] == 1 else 4
    digits = take(&span, width)
    if digits != NULL:
        memcpy(lead + 8, digits, width)
        for k in range(width):
            length |= <size_t> lead[8 + k] << (8 * k)
    if digits == NULL or length > MAX_HEADER or length > span.left:
        raise make_fault(8, "its header is truncated or larger than 1 MiB")
    text = take(&span, length)
    if length <= CACHED_HEADER - MAX_LEAD:
        layout = read_plain_layout(lead, 8 + width, text, length, layouts)
        if layout is not None:
            layouts.add(layout)
            return layout
    try:
        literal = (<const char *> text)[:length]
        layout = parse_header(literal, lead[6])
    except (
        ValueError, TypeError, SyntaxError, RecursionError, MemoryError, LookupError,
        OverflowError, Warning,
    ) as error:
        raise make_fault(8 + width, f"invalid header: {error}") from error
    layout.header_size = 8 + width + length
    if layout.header_size <= CACHED_HEADER:
        memcpy(layout.header, lead, 8 + width)
        memcpy(layout.header + 8 + width, <const char *> literal, length)
        layouts.add(layout)
        if layouts is not shared_layouts:
            shared_layouts.add(layout.copy())
    return layout


cdef Layout read_plain_layout(
    const uint8_t *lead, size_t lead_size, const uint8_t *text, size_t length,
    LayoutCache layouts,
):
    """Parse a header that NumPy wrote; return None if its literal has another form.

    It is quick enough that shards share none of its results.
    """
    cdef Layout layout = Layout.__new__(Layout)
    cdef uint64_t limit = <uint64_t> PY_SSIZE_T_MAX
    cdef uint64_t count
    cdef span_t descr = span_of(NULL, 0)
    cdef bint is_empty = False
    cdef int k
    memcpy(layout.header, lead, lead_size)
    memcpy(layout.header + lead_size, text, length)
    layout.header_size = lead_size + length
    if not parse_plain_header(
        span_of(layout.header + lead_size, length), &layout.shape, &descr
    ):
        return None
    layout.dtype = layouts.find_dtype((<const char *> descr.at)[:descr.left])
    if layout.dtype is None:
        return None
    layout.nbytes = cnp.PyDataType_ELSIZE(<cnp.dtype> layout.dtype)
    for k in range(layout.shape.dimensions):
        count = layout.shape.lengths[k]
        if count == 0:
            is_empty = True
        elif layout.nbytes > limit // count:
            return None
        else:
            layout.nbytes *= count
    if is_empty:
        layout.nbytes = 0
    return layout


cdef Layout parse_header(bytes text, int version):
    """Evaluate the literal of a header; raise ValueError or the like if invalid."""
    cdef Layout layout = Layout.__new__(Layout)
    cdef uint64_t length
    cdef uint64_t limit = <uint64_t> PY_SSIZE_T_MAX
    source = text.decode("utf-8" if version == 3 else "latin-1")
    try:
        header = ast.literal_eval(source.strip())
    except SyntaxError:            # Python 2 writes lengths as 10L
        header = ast.literal_eval(
            re.sub(r"(?<=[\s(,]\d)(\d*)L\b", r"\1", source.strip())
        )
    if not isinstance(header, dict) or set(header) != {
        "descr", "fortran_order", "shape"
    }:
        raise ValueError("expected the keys descr, fortran_order and shape")
    shape = header["shape"]
    if not isinstance(shape, tuple) or len(shape) > MAX_DIMENSIONS or any(
        type(n) is not int or n < 0 for n in shape
    ):
        raise ValueError(f"shape {shape!r}")
    if not isinstance(header["fortran_order"], bool):
        raise ValueError(f"fortran_order {header['fortran_order']!r}")
    layout.dtype = numpy.lib.format.descr_to_dtype(header["descr"])
    if layout.dtype.hasobject:
        raise ValueError("an array of Python objects, which only a pickle holds")
    if layout.dtype.subdtype is not None:
        raise ValueError(f"dtype {layout.dtype!r}")
    layout.shape.fortran = header["fortran_order"]
    layout.shape.dimensions = len(shape)
    layout.nbytes = layout.dtype.itemsize
    for k, length in enumerate(shape):
        layout.shape.lengths[k] = length
    for length in shape:           # as NumPy, which counts a length of 0 as 1
        if length > limit or (length > 0 and layout.nbytes > limit // length):
            raise ValueError(f"shape {shape!r} is too large")
        layout.nbytes *= max(length, <uint64_t> 1)
    if 0 in shape:
        layout.nbytes = 0
    return layout


cdef tuple make_row_layout(Layout pack):
    """Return the layout of a row of an array as a member of its own, and its header.

    The array must be in C order and have an axis. The header is that of `np.save`; the
    layout lacks it if it is longer than `CACHED_HEADER`.
    """
    cdef Layout layout = Layout.__new__(Layout)
    cdef bytes header
    cdef int k
    file = io.BytesIO()
    layout.dtype = copy.copy(pack.dtype) if WITHOUT_GIL else pack.dtype
    layout.shape.dimensions = pack.shape.dimensions - 1
    layout.nbytes = cnp.PyDataType_ELSIZE(<cnp.dtype> layout.dtype)
    for k in range(layout.shape.dimensions):
        layout.shape.lengths[k] = pack.shape.lengths[k + 1]
        layout.nbytes *= <uint64_t> layout.shape.lengths[k]
    numpy.lib.format.write_array_header_1_0(
        file,
        {
            "descr": numpy.lib.format.dtype_to_descr(layout.dtype),
            "fortran_order": False,
            "shape": tuple([
                layout.shape.lengths[k] for k in range(layout.shape.dimensions)
            ]),
        },
    )
    header = file.getvalue()
    layout.header_size = PyBytes_GET_SIZE(header)
    if layout.header_size <= CACHED_HEADER:
        memcpy(layout.header, PyBytes_AS_STRING(header), layout.header_size)
    return layout, header


# Arrays

cdef cnp.ndarray new_array(
    cnp.dtype dtype, const shape_t *shape, void *data, bint writable, object owner
):
    """Return an array on memory that `owner` keeps alive."""
    cdef int flags = cnp.NPY_ARRAY_F_CONTIGUOUS if shape.fortran else 0
    cdef cnp.ndarray array
    cdef bint aligned = <size_t> data % SURELY_ALIGNED == 0
    if writable:
        flags |= cnp.NPY_ARRAY_WRITEABLE
    if aligned:
        flags |= cnp.NPY_ARRAY_ALIGNED
    Py_INCREF(dtype)               # NumPy steals a reference
    array = PyArray_NewFromDescr(
        &PyArray_Type, <PyArray_Descr *> dtype, shape.dimensions,
        <const cnp.npy_intp *> shape.lengths,
        NULL, data, flags, NULL,
    )
    Py_INCREF(owner)               # stolen, too
    PyArray_SetBaseObject(array, <PyObject *> owner)
    if not aligned:                # it may be for this type
        PyArray_UpdateFlags(array, cnp.NPY_ARRAY_ALIGNED)
    return array


cdef object make_shaped_array(
    object dtype, const shape_t *shape, uint8_t *at, bint writable, object owner
):
    """Return an array on memory that `owner` keeps alive."""
    return new_array(dtype, shape, at, writable, owner)


cdef object make_empty_array(
    object dtype, Py_ssize_t count, tuple shape, uint64_t nbytes, uint8_t **at
):
    """Return an array ``[count, *shape]`` of so many bytes; set `at` to its memory."""
    cdef cnp.ndarray array
    cdef cnp.npy_intp lengths[MAX_DIMENSIONS + 1]
    cdef int dimensions = 1
    lengths[0] = count
    if len(shape) >= MAX_DIMENSIONS:
        raise ValueError(f"an array of {len(shape) + 1} dimensions is not supported")
    for length in shape:
        lengths[dimensions] = length
        dimensions += 1
    Py_INCREF(dtype)               # NumPy steals a reference
    array = PyArray_NewFromDescr(
        &PyArray_Type, <PyArray_Descr *> dtype, dimensions, lengths, NULL, NULL, 0,
        NULL,
    )
    if <uint64_t> cnp.PyArray_NBYTES(array) != nbytes:
        raise ValueError(
            f"{cnp.PyArray_NBYTES(array):,} bytes of an array, expected {nbytes:,}"
        )
    at[0] = <uint8_t *> cnp.PyArray_DATA(array)
    return array


cdef object allocate_column(
    str name, Py_ssize_t count, tuple shape, object dtype, uint64_t item,
    object allocate, uint8_t **out,
):
    """Return an array ``[count, *shape]`` of items; set `out` to its memory.

    None: what `allocate` returned is strided, and its caller fills it.
    """
    cdef uint64_t nbytes = <uint64_t> count * item
    cdef uint64_t size
    cdef Py_buffer buffer
    if allocate is None:
        return make_empty_array(dtype, count, shape, nbytes, out)
    made = allocate(name, (count, *shape), dtype)
    try:
        PyObject_GetBuffer(made, &buffer, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS)
    except (BufferError, ValueError):
        return None
    out[0] = <uint8_t *> buffer.buf
    size = buffer.len
    PyBuffer_Release(&buffer)      # the array, which is returned, keeps it
    if size != nbytes:
        raise ValueError(f"{size:,} bytes do not fit an array of {shape}")
    return made


cdef cnp.ndarray make_column(ExtentTable table, uint64_t *column):
    """Return a column of a table as an array on the table's memory."""
    cdef shape_t shape
    shape.dimensions = 1
    shape.fortran = False
    shape.lengths[0] = table.columns.count
    return new_array(numpy.dtype(numpy.uint64), &shape, column, False, table)


def offsets_of(ExtentTable table not None):
    """Return a table's offsets in bytes: uint64 [members], read-only, not copied."""
    table.check_extents()
    return make_column(table, table.columns.offsets)


def sizes_of(ExtentTable table not None):
    """Return a table's sizes in bytes: uint64 [members], read-only, not copied."""
    table.check_extents()
    return make_column(table, table.columns.sizes)


cdef object make_array_at(Shard shard, Py_ssize_t i, object dtype, object shape):
    """Return member `i` as an array; see `Shard.array`."""
    cdef uint8_t *at
    cdef uint64_t size
    cdef object owner = shard.pin(i, &at, &size)
    return make_member_array(shard, i, at, size, owner, dtype, shape)


cdef object make_member_array(
    Shard shard, Py_ssize_t i, uint8_t *at, uint64_t size, object owner, object dtype,
    object shape,
):
    """Return member `i` as an array on bytes from `Shard.pin`."""
    cdef bint writable = type(owner) is View and (<View> owner).owner.writable
    cdef uint64_t offset
    try:
        return make_array(
            at, size, dtype, shape, writable, owner, get_layout_cache(shard)
        )
    except FormatError as error:   # its offset is relative to the member
        shard.extent(shard.open_source(), i, &offset, &size)
        raise FormatError(
            error.reason, shard.path, offset + error.offset, shard.member_name(i)
        ) from error.__cause__
    except ValueError as error:
        raise ValueError(
            f"{error} - at member {shard.member_name(i)!r} of {shard.path}"
        ) from None


cdef object make_layout_array(Layout layout, uint8_t *at, object owner):
    """Return an array of a member whose layout and size are checked."""
    cdef bint writable = type(owner) is View and (<View> owner).owner.writable
    return new_array(
        layout.dtype, &layout.shape, at + layout.header_size, writable, owner
    )


cdef LayoutCache get_layout_cache(Shard shard):
    """Return the layout cache of a shard handle; handles share none."""
    cdef LayoutCache layouts
    with cython.critical_section(shard):
        if shard.layouts is None:
            shard.layouts = LayoutCache.__new__(LayoutCache)
        layouts = shard.layouts
    return layouts


shard_module.array_maker = make_array_at


def array_from_bytes(bytes data not None, dtype, shape, str path):
    """Return a read-only array on bytes; see `Shard.array`."""
    try:
        return make_array(
            <uint8_t *> PyBytes_AS_STRING(data), len(data), dtype, shape, False, data,
            shared_layouts,
        )
    except FormatError as error:
        raise FormatError(error.reason, path, error.offset) from error.__cause__


@cython.final
@cython.no_gc
cdef class HeldBuffer:
    """Buffer of an object, held until the last array on it is deleted."""

    def __cinit__(self, exporter):
        PyObject_GetBuffer(exporter, &self.buffer, PyBUF_SIMPLE)

    def __dealloc__(self):
        PyBuffer_Release(&self.buffer)


def array_from_buffer(view, dtype=None, shape=None):
    """Return an array on the bytes of a buffer, without a copy."""
    # A memoryview can be released, so it is never the owner of an array.
    cdef object own = (
        view if type(view) is memoryview else PyMemoryView_FromObject(view)
    )
    cdef object owner = own.obj    # raises if it is released
    cdef Py_buffer *buffer = PyMemoryView_GET_BUFFER(own)
    if not PyBuffer_IsContiguous(buffer, b"C"):
        raise ValueError("the buffer must be C-contiguous")
    if type(owner) is View:
        if (<View> owner).nbytes != buffer.len:  # a part of it
            owner = HeldBuffer(PyMemoryView_FromObject(own))
    elif type(owner) is not bytes:
        owner = HeldBuffer(PyMemoryView_FromObject(own))
    try:
        return make_array(
            <uint8_t *> buffer.buf, buffer.len, dtype, shape, not buffer.readonly,
            owner, shared_layouts,
        )
    except FormatError as error:
        raise FormatError(
            error.reason, "<view>", error.offset
        ) from error.__cause__


cdef object make_array(
    uint8_t *at, uint64_t size, object dtype, object shape, bint writable,
    object owner, LayoutCache layouts,
):
    """Return an array on the bytes of a member; see `Shard.array`."""
    if dtype is not None:
        return make_raw_array(at, size, dtype, shape, writable, owner)
    if shape is not None:
        raise ValueError("shape requires dtype: a .npy file has its own shape")
    return make_npy_array(at, size, writable, owner, layouts)


cdef cnp.ndarray make_raw_array(
    uint8_t *at, uint64_t size, object dtype, object shape, bint writable,
    object owner,
):
    """Return an array of raw values of a type."""
    cdef cnp.dtype kind = dtype if isinstance(dtype, cnp.dtype) else numpy.dtype(dtype)
    cdef uint64_t item = cnp.PyDataType_ELSIZE(kind)
    cdef shape_t lengths
    cdef bint fits
    if (
        PyDataType_REFCHK(kind) or item == 0
        or cnp.PyDataType_HASSUBARRAY(kind)
    ):
        raise ValueError(f"raw bytes cannot be read as {kind!r}")
    lengths.fortran = False
    lengths.dimensions = 1
    lengths.lengths[0] = size // item
    fits = size % item == 0
    if fits and shape is not None:
        fits = fit_shape(&lengths, shape, size // item)
    if not fits:
        wanted = "" if shape is None else f" of shape {shape}"
        raise ValueError(f"{size:,} bytes are not a {kind} array{wanted}")
    return new_array(kind, &lengths, at, writable, owner)


cdef bint fit_shape(shape_t *lengths, object shape, uint64_t items) except -1:
    """Set the lengths, one of which may be -1; say whether they have `items` items."""
    cdef uint64_t product = 1
    cdef int open_at = -1
    cdef cnp.npy_intp length
    asked = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    if len(asked) > MAX_DIMENSIONS:
        raise ValueError(
            f"shape must have at most {MAX_DIMENSIONS} dimensions, got {len(asked)}"
        )
    lengths.dimensions = len(asked)
    for k in range(lengths.dimensions):
        length = PyNumber_AsSsize_t(asked[k], OverflowError)  # no floats
        lengths.lengths[k] = length
        if length == -1 and open_at < 0:
            open_at = k
        elif length < 0:
            raise ValueError(
                f"shape must have no negative length but one -1, got {shape}"
            )
        elif length > 0 and product > (<uint64_t> PY_SSIZE_T_MAX) // <uint64_t> length:
            return False
        else:
            product *= length
    if open_at < 0:
        return product == items
    if product == 0:
        return False
    lengths.lengths[open_at] = items // product
    return items % product == 0


cdef cnp.ndarray make_npy_array(
    uint8_t *at, uint64_t size, bint writable, object owner, LayoutCache layouts
):
    """Return the array of a ``.npy`` file."""
    cdef Layout layout = find_layout(at, size, layouts)
    cdef span_t span = span_of(at, size)
    if take(&span, layout.header_size) == NULL or span.left != layout.nbytes:
        raise make_fault(
            size,
            f"expected {layout.nbytes:,} bytes of data by its header, "
            f"got {size - layout.header_size:,}",
        )
    return new_array(
        layout.dtype, &layout.shape, <void *> span.at, writable, owner
    )


# Members to stack into one array

cdef bint has_same_header(Layout first, Layout layout):
    """Return whether two layouts have equal headers."""
    return layout is first or (
        layout.header_size == first.header_size <= CACHED_HEADER
        and memcmp(layout.header, first.header, first.header_size) == 0
    )


cdef object describe_layout(array):
    """Return the properties that all arrays of a stack share."""
    fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    return array.dtype, array.shape, fortran


def read_layouts(
    list shards not None, members not None, dtype, shape, bint own=False
):
    """Return the layout of members to stack; read their headers only."""
    cdef Py_buffer buffer
    cdef const int64_t *numbers = int64s_of(members, &buffer)
    try:
        if buffer.len // 8 != len(shards):
            raise ValueError(
                f"expected a member for each of {len(shards):,} shards, "
                f"got {buffer.len // 8:,}"
            )
        return read_layouts_at(shards, numbers, dtype, shape, own)
    finally:
        PyBuffer_Release(&buffer)


cdef tuple read_layouts_at(
    list shards, const int64_t *numbers, object dtype, object shape, bint own
):
    cdef cnp.ndarray skips = numpy.zeros(len(shards), numpy.int64)
    cdef int64_t *skipped = <int64_t *> cnp.PyArray_DATA(skips)
    cdef Layout layout = None
    cdef Layout first = None
    cdef Shard shard
    cdef uint8_t *at
    cdef const uint8_t *first_at = NULL
    cdef uint64_t size
    cdef uint64_t first_size = 0
    cdef uint64_t header = 0       # bytes before the data of the first member
    cdef Py_ssize_t i, member
    cdef object first_held = None  # keeps `first_at` valid
    wanted = None
    for i in range(len(shards)):
        shard = <Shard?> shards[i]
        member = numbers[i]
        if not 0 <= member < shard.member_count():
            member = shard.find(member)
        held = shard.pin(member, &at, &size)
        if wanted is not None and size == first_size:
            if dtype is not None:
                continue
            if own and memcmp(at, first_at, header) == 0:
                skipped[i] = header
                continue
            if not own:
                try:
                    layout = find_layout(at, size, get_layout_cache(shard))
                except FormatError:
                    layout = None  # raised again below, with the member
                if layout is not None and has_same_header(first, layout):
                    skipped[i] = layout.header_size
                    continue
        if own:
            array = shard.array(member)
        else:                      # checks the whole member
            array = make_array_at(shard, member, dtype, shape)
        found = describe_layout(array)
        if wanted is None:
            wanted, first_size = found, size
            first_at, first_held = at, held
            header = size - <uint64_t> array.nbytes
            if dtype is None and not own:
                first = find_layout(at, size, get_layout_cache(shard))
        elif found != wanted:
            text = f"{found[0]} {found[1]}"
            if found[2] != wanted[2]:
                text += " in another order of axes"
            return *wanted, skips, (i, text)
        if dtype is None:
            skipped[i] = size - array.nbytes
    return *wanted, skips, None


# Arrays and members of a tar to write

cdef bint has_plain_data(object array, stored_t *stored):
    """Find the data of an ndarray that lies in C or Fortran order.

    False for other arrays, subclasses, and other objects.
    """
    cdef cnp.ndarray given
    cdef bint c_order
    if not cnp.PyArray_CheckExact(array):
        return False
    given = <cnp.ndarray> array
    c_order = cnp.PyArray_IS_C_CONTIGUOUS(given)
    if not c_order and not cnp.PyArray_IS_F_CONTIGUOUS(given):
        return False
    stored.dtype = <const void *> cnp.PyArray_DESCR(given)
    stored.at = <const uint8_t *> cnp.PyArray_DATA(given)
    stored.nbytes = cnp.PyArray_NBYTES(given)
    stored.dimensions = cnp.PyArray_NDIM(given)
    stored.lengths = <const Py_ssize_t *> cnp.PyArray_DIMS(given)
    stored.fortran = not c_order
    return True


cdef inline size_t compute_padding(size_t size) noexcept nogil:
    """Return the padding after a member, in bytes."""
    return (BLOCK - size % BLOCK) % BLOCK


cdef inline void write_octal(uint8_t *to, int digits, uint64_t value) noexcept nogil:
    """Write a number in octal digits, without a terminator."""
    cdef int i
    for i in range(digits - 1, -1, -1):
        to[i] = c'0' + (value & 7)
        value >>= 3


cdef inline bint fits_ustar(const uint8_t *name, size_t size) noexcept nogil:
    """Return whether a name is ASCII and short, so that it needs no pax header."""
    cdef size_t i
    cdef uint8_t bits = 0
    if size > NAME_WIDTH:
        return False
    for i in range(size):
        bits |= name[i]
    return bits < 0x80


cdef struct pack_t:
    size_t at                      # offset in the buffer of its tar header
    size_t data                    # of its first row
    size_t row_size                # bytes
    size_t rows
    size_t capacity                # rows before the next member; 0: it is the last


def fill_rows(bytes template not None, size_t rows):
    """Return the header of a pack, as long as its template, with the number of rows."""
    cdef Py_ssize_t at = template.rindex(b"'shape': (") + 10
    cdef Py_ssize_t end = template.index(b",", at)
    digits = b"%d" % rows
    return (
        template[:at] + digits + template[end:-1] + b" " * (end - at - len(digits))
        + b"\n"
    )


cdef struct array_layout_t:
    PyObject *dtype                # borrowed; NULL: no array has the layout
    int dimensions
    cnp.npy_intp[ROW_DIMENSIONS] lengths


cdef inline bint has_array_layout(
    const array_layout_t *layout, object array
) noexcept:
    """Return whether an array is C-contiguous with exactly this type and shape."""
    cdef cnp.ndarray given
    cdef int axis
    if layout.dtype is NULL or not cnp.PyArray_CheckExact(array):
        return False
    given = <cnp.ndarray> array
    if (
        <PyObject *> cnp.PyArray_DESCR(given) is not layout.dtype
        or cnp.PyArray_NDIM(given) != layout.dimensions
        or not cnp.PyArray_IS_C_CONTIGUOUS(given)
    ):
        return False
    for axis in range(layout.dimensions):
        if cnp.PyArray_DIM(given, axis) != layout.lengths[axis]:
            return False
    return True


cdef object note_array_layout(array_layout_t *layout, cnp.ndarray array):
    """Remember an array's type and shape; return the type, which must be kept alive.

    Types with fields are not remembered: the names of their fields can be assigned.
    """
    cdef object dtype = <object> cnp.PyArray_DESCR(array)
    cdef int axis
    layout.dtype = NULL
    if cnp.PyArray_NDIM(array) <= ROW_DIMENSIONS and dtype.names is None:
        layout.dtype = <PyObject *> dtype
        layout.dimensions = cnp.PyArray_NDIM(array)
        for axis in range(layout.dimensions):
            layout.lengths[axis] = cnp.PyArray_DIM(array, axis)
    return dtype


@cython.final
@cython.no_gc
cdef class MemberBuffer:
    """Buffer of a tar's last members before they are written.

    With `packs` set, arrays of one layout become rows of a pack, which begins in the
    buffer and ends in it at the latest with `end_pack`. While no other member follows,
    the pack grows. Where one of another layout does, a region is reserved before it, so
    that rows keep their offsets: as many rows again as the pack has, or as the last
    pack had. The unused end of the region is covered by a dead member.

    Exports its bytes (headers, data, padding) read-only; a method that changes them
    raises BufferError while an export is alive.

    Attributes
    ----------
    start : int
        Offset in the file of the first byte of the buffer.
    end : int
        Offset in the file of the next member.
    number : int
        Number of the shard; for the caller.
    left : int
        Arrays that still fit into the shard; decremented by `append_all`.
    max_end : int
        Value of `end` from which no further array fits.
    packs : bool
        Whether arrays are packed.
    has_rows : bool
        Whether `append_all` returns a row number too; for the caller.
    row : int
        Row of the array added last in its pack; -1: it is a member of its own.
    """

    cdef object head, encode, encode_row
    cdef bytes header              # of arrays of the layout `member`
    cdef array_layout_t member
    cdef object member_dtype       # keeps that of `member` alive
    cdef uint8_t[BLOCK] block      # tar header without name, of members of `block_size`
    cdef uint64_t block_size       # bytes
    cdef uint64_t block_sum        # sum of its bytes, those of the checksum as spaces
    cdef readonly uint64_t start
    cdef public long long number
    cdef public long long left
    cdef public uint64_t max_end
    cdef uint8_t *at
    cdef size_t size, room         # bytes used and allocated
    cdef size_t last               # offset in the buffer of the last member
    cdef Py_ssize_t exports
    cdef public bint packs, has_rows
    cdef readonly long long row
    cdef bytes template            # header of the open pack, or None
    cdef bytes other               # template of the last array of another layout
    cdef Py_ssize_t others         # such arrays in succession
    cdef size_t last_rows          # of the pack before
    cdef pack_t pack               # the open pack
    cdef object pack_offset        # of its data in the file
    cdef object field              # whose checksum `field_sum` is; None: none
    cdef uint32_t field_sum
    cdef array_layout_t row_layout  # of its rows
    cdef object row_dtype          # keeps that of `row_layout` alive

    def __cinit__(self, head not None, encode not None, encode_row=None):
        cdef bytes block = head(b"", 0)
        cdef int i
        if len(block) != BLOCK:
            raise ValueError(
                f"head(b'', 0) must return {BLOCK} bytes, got {len(block):,}"
            )
        self.head = head
        self.encode = encode
        self.encode_row = encode_row
        self.number = self.row = -1
        self.max_end = MAX_FILE
        memcpy(self.block, PyBytes_AS_STRING(block), BLOCK)
        memset(self.block + CHECKSUM_AT, c' ', CHECKSUM_WIDTH)
        for i in range(BLOCK):
            self.block_sum += self.block[i]
        self.set_block_size(0)

    def __dealloc__(self):
        free(self.at)

    @property
    def end(self):
        return self.start + self.size

    def __len__(self):
        return self.size

    def append(self, bytes name not None, array):
        """Append a member with the bytes that `np.save` writes."""
        return self.append_array(name, array)

    cdef object append_array(self, bytes name, object array):
        self.check_exports()
        if self.packs:
            return self.append_row(name, array)
        if has_array_layout(&self.member, array):
            return self.add_member(
                name, self.header, cnp.PyArray_DATA(<cnp.ndarray> array),
                cnp.PyArray_NBYTES(<cnp.ndarray> array),
            )
        return self.append_slowly(name, array)

    cdef object append_slowly(self, bytes name, object array):
        cdef Py_buffer data
        cdef bytes header
        header, payload = self.encode(array)
        PyObject_GetBuffer(payload, &data, PyBUF_SIMPLE)
        try:
            offset = self.add_member(name, header, data.buf, data.len)
        finally:
            PyBuffer_Release(&data)
        # Not of a structured dtype, which is mutable.
        if (
            payload is array and cnp.PyArray_CheckExact(array)
            and array.dtype.names is None
        ):
            self.header = header
            self.member_dtype = note_array_layout(&self.member, <cnp.ndarray> array)
        return offset

    cdef object append_row(self, bytes name, object array):
        """Append an array to the open pack, or begin one; or append a member."""
        cdef bytes template
        if self.template is not None:
            if self.is_full():
                self.end_pack()
            elif has_array_layout(&self.row_layout, array):
                return self.add_row(<cnp.ndarray> array)
        template, payload = self.encode_row(array)
        self.check_exports()
        if not template or not self.choose_pack(template, payload):
            return self.append_slowly(name, payload)
        offset = self.add_row(<cnp.ndarray?> payload)
        if payload is array and array.dtype.names is None:
            self.row_dtype = note_array_layout(
                &self.row_layout, <cnp.ndarray> array
            )
        return offset

    cdef bint is_full(self) noexcept:
        cdef pack_t *pack = &self.pack
        return (
            0 < pack.capacity == pack.rows or pack.rows * pack.row_size >= MAX_PACK
        )

    cdef bint choose_pack(self, bytes template, cnp.ndarray array) except -1:
        """Open a pack for an array, unless it is one of few with another layout."""
        if cnp.PyArray_NDIM(array) > ROW_DIMENSIONS:
            return False
        if self.template is not None:
            if template == self.template:
                return True
            self.others = self.others + 1 if template == self.other else 1
            self.other = template
            if self.others < SUCCESSION:
                return False
            self.end_pack()
        self.begin_pack(template, cnp.PyArray_NBYTES(array))
        return True

    cdef int begin_pack(self, bytes template, size_t row_size) except -1:
        cdef size_t before = BLOCK + PyBytes_GET_SIZE(template)
        self.reserve(before)
        self.pack.at = self.size
        self.pack.data = self.size + before
        self.pack.row_size = row_size
        self.pack.rows = self.pack.capacity = 0
        memset(self.at + self.size, 0, before)
        self.size += before
        self.template = template
        self.pack_offset = self.start + self.pack.at + BLOCK
        self.row_layout.dtype = NULL
        return 0

    cdef object add_row(self, cnp.ndarray array):
        """Append a row to the open pack; return the offset of the pack's data."""
        cdef pack_t *pack = &self.pack
        cdef size_t to = pack.data + pack.rows * pack.row_size
        if <size_t> cnp.PyArray_NBYTES(array) != pack.row_size:
            raise ValueError("the array differs in size from the pack's rows")
        if not pack.capacity:
            self.reserve(pack.row_size)
            self.size += pack.row_size
        memcpy(self.at + to, cnp.PyArray_DATA(array), pack.row_size)
        self.row = pack.rows
        pack.rows += 1
        self.others = 0
        return self.pack_offset

    cdef int reserve_region(self) except -1:
        """Make room for more rows of the open pack before a member follows it."""
        cdef pack_t *pack = &self.pack
        cdef size_t capacity = max(2 * pack.rows, self.last_rows)
        cdef size_t end
        if pack.capacity:
            return 0
        if self.left > 0:          # the member takes one place
            capacity = min(capacity, pack.rows + <size_t> self.left - 1)
        if pack.rows:
            end = pack.data if pack.data < PACK_ROOM else PACK_ROOM
            capacity = min(capacity, (PACK_ROOM - end) // pack.row_size)
        if pack.rows == 0 or capacity <= pack.rows:
            self.end_pack()
            return 0
        end = pack.data + capacity * pack.row_size
        end += compute_padding(end)
        self.reserve(end - self.size)
        memset(self.at + self.size, 0, end - self.size)
        self.size = end
        pack.capacity = capacity
        return 0

    cpdef int end_pack(self) except -1:
        """Complete the open pack, if any; the next array of its layout begins another.
        """
        cdef pack_t *pack = &self.pack
        cdef bytes template = self.template
        cdef bytes header, name, dead
        cdef size_t end, region
        self.check_exports()
        if template is None:
            return 0
        if pack.rows == 0:
            self.size = self.last = pack.at
            self.template = None
            self.row_layout.dtype = NULL
            return 0
        end = pack.data + pack.rows * pack.row_size
        region = pack.data + pack.capacity * pack.row_size
        header = fill_rows(template, pack.rows)
        name = b"pack_%012d.npy" % (self.start + pack.at + BLOCK)
        end += compute_padding(end)
        region += compute_padding(region)
        dead = b"dead_%012d.bin" % (self.start + end + BLOCK)
        if not pack.capacity:
            self.reserve(end - self.size)
            memset(self.at + self.size, 0, end - self.size)
            self.size = end
        elif region > end:
            self.write_header(self.at + end, dead, region - end - BLOCK)
        self.write_header(
            self.at + pack.at, name,
            PyBytes_GET_SIZE(header) + pack.rows * pack.row_size,
        )
        memcpy(
            self.at + pack.at + BLOCK, PyBytes_AS_STRING(header),
            PyBytes_GET_SIZE(header),
        )
        self.last_rows = pack.rows
        if pack.rows < pack.capacity:
            self.last_rows //= 2
        self.template = None
        self.row_layout.dtype = NULL
        self.others = 0
        return 0

    def append_bytes(self, bytes name not None, data not None):
        """Append a member of these bytes; return their offset in the file."""
        cdef Py_buffer view
        self.check_exports()
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            return self.add_member(name, b"", view.buf, view.len)
        finally:
            PyBuffer_Release(&view)

    cdef object add_member(
        self, bytes name, bytes header, const void *data, size_t nbytes
    ):
        """Append a member of `header` and `data`; return its data's file offset."""
        cdef uint64_t size = PyBytes_GET_SIZE(header) + <uint64_t> nbytes
        cdef size_t before = BLOCK
        cdef size_t padding = compute_padding(size)
        cdef bytes slow = None
        cdef uint8_t *to
        if (
            not fits_ustar(<uint8_t *> PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
            or size >= MAX_OCTAL
        ):
            slow = self.head(name, size)
            before = PyBytes_GET_SIZE(slow)
        if self.template is not None:
            self.reserve_region()
        self.reserve(before + size + padding)
        to = self.at + self.size
        if slow is None:
            self.write_header(to, name, size)
        else:
            memcpy(to, PyBytes_AS_STRING(slow), before)
        to += before
        memcpy(to, PyBytes_AS_STRING(header), PyBytes_GET_SIZE(header))
        to += PyBytes_GET_SIZE(header)
        if nbytes > 0:
            memcpy(to, data, nbytes)
        memset(to + nbytes, 0, padding)
        self.last = self.size
        self.row = -1
        self.size += before + size + padding
        return self.start + self.last + before

    cdef void write_header(self, uint8_t *to, bytes name, uint64_t size) noexcept:
        cdef const uint8_t *letters = <uint8_t *> PyBytes_AS_STRING(name)
        cdef Py_ssize_t n = PyBytes_GET_SIZE(name)
        cdef uint64_t total
        cdef Py_ssize_t i
        if size != self.block_size:
            self.set_block_size(size)
        total = self.block_sum
        memcpy(to, self.block, BLOCK)
        memcpy(to, letters, n)
        for i in range(n):
            total += letters[i]
        write_octal(to + CHECKSUM_AT, 6, total)
        to[CHECKSUM_AT + 6] = 0

    cdef void set_block_size(self, uint64_t size) noexcept:
        """Write the size of members into the block."""
        cdef int i
        for i in range(SIZE_DIGITS):
            self.block_sum -= self.block[SIZE_AT + i]
        write_octal(self.block + SIZE_AT, SIZE_DIGITS, size)
        for i in range(SIZE_DIGITS):
            self.block_sum += self.block[SIZE_AT + i]
        self.block_size = size

    cdef int reserve(self, uint64_t more) except -1:
        """Make room for `more` bytes at the end."""
        cdef size_t room
        cdef void *grown
        if more > MAX_FILE - self.start - self.size:
            raise OverflowError("a shard must not be larger than 2**62 bytes")
        if more <= self.room - self.size:
            return 0
        room = self.size + more
        room += room // 4
        grown = realloc(self.at, room)
        if grown is NULL:
            raise MemoryError(f"no memory for {room:,} bytes of a shard")
        self.at = <uint8_t *> grown
        self.room = room
        return 0

    def drop_last(self):
        """Remove the last array. Not repeatable before the next append."""
        cdef pack_t *pack = &self.pack
        self.check_exports()
        self.left += 1
        if self.row < 0:
            self.size = self.last
            return
        pack.rows -= 1
        if pack.rows == 0:
            self.size = self.last = pack.at
            self.template = None
            self.row_layout.dtype = NULL
        elif not pack.capacity:
            self.size -= pack.row_size
        else:
            memset(
                self.at + pack.data + pack.rows * pack.row_size, 0, pack.row_size
            )

    def begin(self, uint64_t start):
        """Clear the buffer, and continue at an offset in a file."""
        cdef void *smaller
        self.check_exports()
        if start > MAX_FILE:
            raise OverflowError(f"start must be at most 2**62, got {start:,}")
        self.start = start
        self.size = self.last = 0
        self.template = None
        self.row_layout.dtype = NULL
        self.others = 0
        if self.room > MAX_KEPT_ROOM:
            smaller = realloc(self.at, MAX_KEPT_ROOM)
            if smaller is not NULL:
                self.at = <uint8_t *> smaller
                self.room = MAX_KEPT_ROOM

    cdef bint has_room(self) noexcept:
        """Say whether one more array fits into the shard."""
        return self.left > 0 and self.start + self.size < self.max_end

    cdef int check_exports(self) except -1:
        if self.exports:
            raise BufferError("the members are being written")
        return 0

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.at, self.size, 1, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer *view):
        self.exports -= 1

    def __reduce__(self):
        raise TypeError("a MemberBuffer does not pickle")


cdef object identify_row(MemberBuffer buffer, object key, bytes name, uint64_t offset):
    """Return the stored value of the row added last; None: a member of its own."""
    cdef span_t field
    cdef size_t size = PyBytes_GET_SIZE(name)
    if buffer.row < 0:
        return None
    if size < SUFFIX_SIZE:
        raise ValueError(f"the name {name!r} has no suffix")
    if buffer.field is not key:
        keeper = encode_text(key, &field)
        if keeper is None:
            raise ValueError(f"the field {key!r:.200} is not valid Unicode")
        buffer.field_sum = sum_field(field)
        buffer.field = key
    return encode_row(
        buffer.field_sum,
        span_of(<const uint8_t *> PyBytes_AS_STRING(name), size - SUFFIX_SIZE),
        buffer.number, offset, buffer.row,
    )


def append_all(dict buffers not None, arrays not None, bytes name not None, make_room):
    """Append a member to each of several buffers, or to none of them."""
    cdef MemberBuffer buffer
    cdef list row = []
    cdef list done = []
    cdef size_t largest = 0
    try:
        for key, array in arrays.items():
            found = buffers.get(key)
            if found is None or not (<MemberBuffer?> found).has_room():
                make_room(key)
                found = buffers[key]
            buffer = <MemberBuffer?> found
            try:
                offset = buffer.append_array(name, array)
            except ValueError as error:
                raise ValueError(f"field {key!r}: {error}") from error
            row.append(offset)
            row.append(buffer.number)
            if buffer.has_rows:
                row.append(identify_row(buffer, key, name, offset))
            done.append(buffer)
            buffer.left -= 1
            if buffer.size > largest:
                largest = buffer.size
    except BaseException:
        for found in done:
            (<MemberBuffer> found).drop_last()
        raise
    return row, largest


def name_member(sample_id not None):
    """Return the name of a sample's members, or None unless the id is short ASCII."""
    cdef Py_ssize_t size
    cdef const char *letters
    cdef bytes name
    if not PyUnicode_CheckExact(sample_id) or not PyUnicode_IS_COMPACT_ASCII(sample_id):
        return None
    size = PyUnicode_GET_LENGTH(sample_id)
    letters = PyUnicode_DATA(sample_id)
    if not 0 < size <= NAME_WIDTH or memchr(letters, 0, size) is not NULL:
        return None
    name = PyBytes_FromStringAndSize(NULL, size + 4)
    memcpy(PyBytes_AS_STRING(name), letters, size)
    memcpy(PyBytes_AS_STRING(name) + size, b".npy", 4)
    return name


def keep_for_ever(thing not None):
    """Keep an object alive until the process ends, without finalization."""
    Py_INCREF(thing)
