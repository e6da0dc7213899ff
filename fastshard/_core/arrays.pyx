"""Members and columns as NumPy arrays; the one module that uses NumPy's C API.

Imported when the first array is asked for.
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBuffer_IsContiguous, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.memoryview cimport PyMemoryView_FromObject, PyMemoryView_GET_BUFFER
from cpython.number cimport PyNumber_AsSsize_t
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport uint8_t, uint64_t

cimport numpy as cnp

from fastshard._core.table.extents cimport ExtentTable
from fastshard._core.io.source cimport View
from fastshard._core.npyheader cimport (
    MAX_DIMENSIONS, Layout, Seen, layout_of, npy_fault, shape_t,
)
from fastshard._core.platform cimport PY_SSIZE_T_MAX
from fastshard._core.shard cimport Shard
from fastshard._core cimport shard as shard_module
from fastshard._core.span cimport span_of, span_t, take

import numpy

from fastshard.errors import FormatError

cnp.import_array()

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
    SURELY_ALIGNED = 64            # bytes: more than any type asks for

cdef Seen seen_anywhere = Seen()   # by those who have no shard

cdef cnp.ndarray new_array(
    cnp.dtype dtype, const shape_t *shape, void *data, bint writable, object owner
):
    """Make an array on memory that `owner` keeps alive."""
    cdef int flags = cnp.NPY_ARRAY_F_CONTIGUOUS if shape.fortran else 0
    cdef cnp.ndarray array
    cdef bint aligned = <size_t> data % SURELY_ALIGNED == 0
    if writable:
        flags |= cnp.NPY_ARRAY_WRITEABLE
    if aligned:
        flags |= cnp.NPY_ARRAY_ALIGNED
    Py_INCREF(dtype)               # NumPy steals one
    array = PyArray_NewFromDescr(
        &PyArray_Type, <PyArray_Descr *> dtype, shape.dimensions,
        <const cnp.npy_intp *> shape.lengths,
        NULL, data, flags, NULL,
    )
    Py_INCREF(owner)               # and one here
    PyArray_SetBaseObject(array, <PyObject *> owner)
    if not aligned:                # for this type it may be, all the same
        PyArray_UpdateFlags(array, cnp.NPY_ARRAY_ALIGNED)
    return array


cdef cnp.ndarray column_of(ExtentTable table, uint64_t *column):
    cdef shape_t shape
    shape.dimensions = 1
    shape.fortran = False
    shape.lengths[0] = table.columns.count
    return new_array(numpy.dtype(numpy.uint64), &shape, column, False, table)


def offsets_of(ExtentTable table not None):
    """Return a table's offsets: uint64 [members], bytes, read-only, no copy."""
    table.check_extents()
    return column_of(table, table.columns.offsets)


def sizes_of(ExtentTable table not None):
    """Return a table's sizes: uint64 [members], bytes, read-only, no copy."""
    table.check_extents()
    return column_of(table, table.columns.sizes)


cdef object array_at(Shard shard, Py_ssize_t i, object dtype, object shape):
    """Return member `i` as an array; see `Shard.array`."""
    cdef uint8_t *at
    cdef uint64_t size
    cdef object owner = shard.hold(i, &at, &size)
    return array_held(shard, i, at, size, owner, dtype, shape)


cdef object array_held(
    Shard shard, Py_ssize_t i, uint8_t *at, uint64_t size, object owner, object dtype,
    object shape,
):
    """The same, of bytes that `Shard.hold` gave."""
    cdef bint writable = type(owner) is View and (<View> owner).owner.writable
    try:
        return make_array(at, size, dtype, shape, writable, owner, seen_of(shard))
    except FormatError as error:   # its offset is from the member's first byte
        offset = shard.table.columns.offsets[i] + error.offset
        raise FormatError(
            error.reason, shard.path, offset, shard.table.name(i)
        ) from error.__cause__
    except ValueError as error:
        raise ValueError(
            f"{error} - at member {shard.table.name(i)!r} of {shard.path}"
        ) from None


cdef object array_as(Layout layout, uint8_t *at, object owner):
    """An array of a member that has a layout, and all of its bytes."""
    cdef bint writable = type(owner) is View and (<View> owner).owner.writable
    return new_array(
        layout.dtype, &layout.shape, at + layout.header_size, writable, owner
    )


cdef Seen seen_of(Shard shard):
    """What is remembered of a shard: threads with handles of their own share none."""
    cdef Seen seen
    with cython.critical_section(shard):
        if shard.seen is None:
            shard.seen = Seen.__new__(Seen)
        seen = shard.seen
    return seen


shard_module.array_maker = array_at


def array_of(bytes data not None, dtype, shape, str path):
    """Return bytes as an array that keeps them; read-only. See `Shard.array`."""
    try:
        return make_array(
            <uint8_t *> PyBytes_AS_STRING(data), len(data), dtype, shape, False, data,
            seen_anywhere,
        )
    except FormatError as error:
        raise FormatError(error.reason, path, error.offset) from error.__cause__


@cython.final
@cython.no_gc
cdef class HeldBuffer:
    """Some object's buffer: held until the last array on it goes."""

    cdef Py_buffer buffer

    def __cinit__(self, exporter):
        PyObject_GetBuffer(exporter, &self.buffer, PyBUF_SIMPLE)

    def __dealloc__(self):
        PyBuffer_Release(&self.buffer)


def array_on(view, dtype=None, shape=None):
    """Return any buffer's bytes as an array that keeps them, without a copy.

    Parameters
    ----------
    view : memoryview or another exporter of a contiguous buffer
        It may be released afterwards.
    dtype, shape
        As for `Shard.array`; without them the bytes are ``.npy``.

    Returns
    -------
    numpy.ndarray
        Writable only if the buffer is.

    Raises
    ------
    FormatError
        The bytes are no ``.npy`` file, or one of Python objects. Its offset is
        from the first of them.
    ValueError
        Their number does not fit `dtype` and `shape`, or they have gaps.
    """
    # A memoryview can be released, so none is an array's owner.
    cdef object own = view if type(view) is memoryview else PyMemoryView_FromObject(view)
    cdef object owner = own.obj    # raises for one that was released
    cdef Py_buffer *buffer = PyMemoryView_GET_BUFFER(own)
    if not PyBuffer_IsContiguous(buffer, b"C"):
        raise ValueError("an array is on a contiguous buffer")
    if type(owner) is not View and type(owner) is not bytes:
        owner = HeldBuffer(PyMemoryView_FromObject(own))
    try:
        return make_array(
            <uint8_t *> buffer.buf, buffer.len, dtype, shape, not buffer.readonly, owner,
            seen_anywhere,
        )
    except FormatError as error:
        raise FormatError(
            error.reason, "<view>", error.offset
        ) from error.__cause__


cdef object make_array(
    uint8_t *at, uint64_t size, object dtype, object shape, bint writable,
    object owner, Seen seen,
):
    if dtype is not None:
        return raw_array(at, size, dtype, shape, writable, owner)
    if shape is not None:
        raise ValueError("a shape goes with a dtype: .npy has its own")
    return npy_array(at, size, writable, owner, seen)


cdef cnp.ndarray raw_array(
    uint8_t *at, uint64_t size, object dtype, object shape, bint writable,
    object owner,
):
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
        raise ValueError(f"{size:,} bytes are no {kind} array{wanted}")
    return new_array(kind, &lengths, at, writable, owner)


cdef bint fit_shape(shape_t *lengths, object shape, uint64_t items) except -1:
    """Set the lengths, one of which may be -1; whether they make `items`."""
    cdef uint64_t product = 1
    cdef int open_at = -1
    cdef cnp.npy_intp length
    asked = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    if len(asked) > MAX_DIMENSIONS:
        raise ValueError(f"a shape of more than {MAX_DIMENSIONS} dimensions")
    lengths.dimensions = len(asked)
    for k in range(lengths.dimensions):
        length = PyNumber_AsSsize_t(asked[k], OverflowError)  # no floats
        lengths.lengths[k] = length
        if length == -1 and open_at < 0:
            open_at = k
        elif length < 0:
            raise ValueError(f"a shape with a negative length: {shape}")
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


cdef cnp.ndarray npy_array(
    uint8_t *at, uint64_t size, bint writable, object owner, Seen seen
):
    cdef Layout layout = layout_of(at, size, seen)
    cdef span_t span = span_of(at, size)
    if take(&span, layout.header_size) == NULL or span.left != layout.nbytes:
        raise npy_fault(
            size,
            f"{size - layout.header_size:,} bytes of data where its header tells "
            f"of {layout.nbytes:,}",
        )
    return new_array(
        layout.dtype, &layout.shape, <void *> span.at, writable, owner
    )
