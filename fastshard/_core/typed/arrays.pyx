"""Arrays in msgpack bins: ``.npy`` files, and the compact form of atdata.

The compact form is ``u8 n``, a dtype string of n bytes, ``u8 ndim``, the lengths as
little-endian int64, and the data in C order. The first six bytes tell the two apart.
"""

cimport cython
from cpython.buffer cimport PyBuffer_Release
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcmp, memcpy

from fastshard._core.buffers cimport bytes_of
from fastshard._core.dataset.npy cimport (
    CACHED_HEADER, HeldBuffer, Layout, LayoutCache, find_layout, make_shaped_array,
)
from fastshard._core.dataset.shape cimport MAX_DIMENSIONS
from fastshard._core.platform cimport PY_SSIZE_T_MAX
from fastshard._core.span cimport span_of, span_t, take

import re

import numpy

from fastshard.errors import FormatError

cdef enum:
    MAGIC = 6                      # bytes

# `dtype.str` of types without fields and objects.
DTYPE = re.compile(r"[<>|=][?biufcmMSUV][0-9]{0,10}(\[[0-9A-Za-z/]{1,24}\])?")


@cython.final
cdef class ArrayField:
    """Arrays of one field of a class: the expected dtype, and layouts met before."""

    def __cinit__(self, expected=None):
        self.expected = expected
        kind = getattr(expected, "type", None)
        if getattr(kind, "__name__", "") == "bfloat16":
            self.viewed = expected
            self.expected = parse_dtype(b"<u2")
        self.layouts = new_layout_cache()


cdef LayoutCache new_layout_cache():
    """Return a cache of layouts, which must not be used for members of other kinds."""
    return LayoutCache.__new__(LayoutCache)


cdef object make_fault(uint64_t at, str reason):
    """Return an error at a byte of a bin; the caller adds the rest."""
    return FormatError(f"not an array: {reason}", "", at)


cdef inline bint is_npy(const uint8_t *at, uint64_t size) noexcept nogil:
    return size >= MAGIC and memcmp(at, b"\x93NUMPY", MAGIC) == 0


cdef bint seems_compact(const uint8_t *at, uint64_t size) noexcept nogil:
    """Return whether a bin may be a compact array: neither of text nor of pictures."""
    cdef span_t span = span_of(at, size)
    cdef const uint8_t *lead = take(&span, 3)
    cdef const uint8_t *ndim
    cdef uint8_t order
    if lead == NULL or lead[0] < 2 or take(&span, <size_t> lead[0] - 2) == NULL:
        return False
    order = lead[1]
    if order != c'<' and order != c'>' and order != c'|' and order != c'=':
        return False
    ndim = take(&span, 1)
    return ndim != NULL and ndim[0] <= MAX_DIMENSIONS and (
        take(&span, 8 * <size_t> ndim[0]) != NULL
    )


cdef Layout find_packed_layout(const uint8_t *at, uint64_t size, LayoutCache layouts):
    """Return the layout of a bin that is wholly an array, from the cache or parsed."""
    cdef Layout layout = layouts.find(at, size)
    if layout is None:
        if is_npy(at, size):
            layout = find_layout(at, size, layouts)
        else:
            layout = read_compact(at, size, layouts)
    if size < layout.header_size or size - layout.header_size != layout.nbytes:
        raise make_fault(
            size,
            f"expected {layout.nbytes:,} bytes of data by its header, "
            f"got {max(<int64_t> (size - layout.header_size), 0):,}",
        )
    return layout


cdef Layout read_compact(const uint8_t *at, uint64_t size, LayoutCache layouts):
    """Parse the header of a compact array; cache it if it is short."""
    cdef span_t span = span_of(at, size)
    cdef const uint8_t *lead = take(&span, 1)
    cdef const uint8_t *ndim
    cdef Layout layout
    cdef bytes head
    if lead == NULL or take(&span, lead[0]) == NULL:
        raise make_fault(0, "its dtype is cut off")
    ndim = take(&span, 1)
    if ndim == NULL:
        raise make_fault(size, "its number of dimensions is cut off")
    if take(&span, 8 * <size_t> ndim[0]) == NULL:
        raise make_fault(<uint64_t> (ndim - at), "its shape is cut off")
    head = (<const char *> at)[:size - span.left]  # a copy: mapped bytes may change
    layout = parse_compact(head)
    if layout.header_size <= CACHED_HEADER:
        memcpy(layout.header, <const char *> head, layout.header_size)
        layouts.add(layout)
    return layout


cdef Layout parse_compact(bytes head):
    """Return the layout of a whole header."""
    cdef Layout layout = Layout.__new__(Layout)
    cdef const uint8_t *at = <const uint8_t *> <const char *> head
    cdef uint64_t left = len(head)
    cdef uint64_t width = at[0]
    cdef uint64_t limit = <uint64_t> PY_SSIZE_T_MAX
    cdef uint64_t count = 1        # items, if a length of 0 counted as 1
    cdef bint is_empty = False
    cdef int64_t length
    cdef int k
    if left < 2 or width > left - 2 or left - 2 - width != 8 * <uint64_t> at[1 + width]:
        raise make_fault(0, "its header changed")
    layout.dtype = parse_dtype(head[1:1 + width])
    layout.shape.fortran = False
    layout.shape.dimensions = at[1 + width]
    if layout.shape.dimensions > MAX_DIMENSIONS:
        raise make_fault(
            1 + width, f"{layout.shape.dimensions} dimensions are not supported"
        )
    layout.header_size = left
    for k in range(layout.shape.dimensions):
        memcpy(&length, at + 2 + width + 8 * k, 8)
        if length < 0:
            raise make_fault(2 + width + 8 * k, f"a length of {length:,}")
        layout.shape.lengths[k] = <Py_ssize_t> length
        if length == 0:
            is_empty = True
        elif count > limit // <uint64_t> length:
            raise make_fault(2 + width + 8 * k, "its shape is too large")
        else:
            count *= <uint64_t> length
    layout.nbytes = layout.dtype.itemsize
    if layout.nbytes > 0 and count > limit // layout.nbytes:
        raise make_fault(1 + width, "its shape is too large")
    layout.nbytes = 0 if is_empty else layout.nbytes * count
    return layout


cdef object parse_dtype(bytes text):
    """Return the dtype of ``dtype.str``; never one of objects or with fields."""
    written = text.decode("latin-1")
    if DTYPE.fullmatch(written) is None:
        why = ", whose values are Python objects" if written[1:2] == "O" else ""
        raise make_fault(1, f"dtype {written!r}{why}")
    try:
        dtype = numpy.dtype(written)
    except (TypeError, ValueError, OverflowError) as error:
        raise make_fault(1, f"dtype {written!r}: {error}") from None
    if dtype.hasobject or dtype.names is not None or dtype.subdtype is not None:
        raise make_fault(1, f"dtype {written!r}")
    return dtype


cdef bint is_packed_array(const uint8_t *at, uint64_t size, LayoutCache layouts):
    """Return whether a bin is wholly a valid array."""
    if not is_npy(at, size) and not seems_compact(at, size):
        return False
    try:
        find_packed_layout(at, size, layouts)
    except FormatError:
        return False
    return True


# Arrays

cdef object make_packed_array(
    const uint8_t *at, uint64_t size, object owner, bint writable, bint copy,
    bint aligned, LayoutCache layouts,
):
    """Return a bin as an array on memory that `owner` keeps alive."""
    cdef Layout layout = find_packed_layout(at, size, layouts)
    return make_array(layout, at, owner, writable, copy, aligned)


cdef inline object make_array(
    Layout layout, const uint8_t *at, object owner, bint writable, bint copy,
    bint aligned,
):
    cdef object array
    cdef size_t alignment
    try:
        array = make_shaped_array(
            layout.dtype, &layout.shape, <uint8_t *> at + layout.header_size, writable,
            owner,
        )
    except (ValueError, TypeError) as error:  # more dimensions than this NumPy has
        raise make_fault(0, str(error)) from None
    if copy:
        return array.copy("C")
    if aligned:
        alignment = layout.dtype.alignment
        if <size_t> (at + layout.header_size) % alignment != 0:
            array = array.copy("K")
            array.flags.writeable = writable
    return array


cdef object make_field_array(
    object field, const uint8_t *at, uint64_t size, object owner, bint writable,
    bint copy, bint aligned,
):
    """Return the array of an `ArrayField`; None for another dtype."""
    cdef ArrayField known = <ArrayField> field
    cdef Layout layout = find_packed_layout(at, size, known.layouts)
    if known.expected is not None and layout.dtype is not known.accepted:
        if not agrees(layout.dtype, known.expected):
            return None
        with cython.critical_section(known):
            known.accepted = layout.dtype
    if known.viewed is not None:
        array = make_array(layout, at, owner, writable, copy, aligned)
        return array.astype(known.expected, copy=False).view(known.viewed)
    return make_array(layout, at, owner, writable, copy, aligned)


cdef bint agrees(object dtype, object expected) except -1:
    """Return whether a stored dtype is the expected one, in any byte order."""
    if isinstance(expected, type):
        return issubclass(dtype.type, expected)
    if expected.itemsize == 0 or expected.str[1:] in ("M8", "m8"):  # any size or unit
        return dtype.kind == expected.kind
    return dtype.newbyteorder("=") == expected.newbyteorder("=")


def describe_dtype(data not None):
    """Return the dtype of a bin that is an array, as text for errors."""
    cdef Py_buffer buffer
    cdef const uint8_t *at = bytes_of(data, &buffer)
    cdef Layout layout
    try:
        layout = find_packed_layout(at, buffer.len, new_layout_cache())
        return str(layout.dtype)
    finally:
        PyBuffer_Release(&buffer)


def unpack_array(data not None, *, bint copy=False, bint aligned=False):
    """Return a msgpack bin as an array."""
    cdef object held = HeldBuffer(data)
    cdef Py_buffer *buffer = &(<HeldBuffer> held).buffer
    return make_packed_array(
        <const uint8_t *> buffer.buf, buffer.len, held, not buffer.readonly, copy,
        aligned, new_layout_cache(),
    )


def is_array(data not None):
    """Return whether a buffer is wholly a valid array, ``.npy`` or compact."""
    cdef Py_buffer buffer
    cdef const uint8_t *at = bytes_of(data, &buffer)
    try:
        return is_packed_array(at, buffer.len, new_layout_cache())
    finally:
        PyBuffer_Release(&buffer)
