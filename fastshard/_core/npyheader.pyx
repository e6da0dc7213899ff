"""Headers of ``.npy`` files: NEP 1, versions 1.0 to 3.0 (numpy.lib.format)."""

cimport cython
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcmp, memcpy

from fastshard._core.platform cimport PY_SSIZE_T_MAX
from fastshard._core.span cimport span_of, span_t, take

import ast
import copy
import re
import sysconfig

import numpy
import numpy.lib.format

from fastshard.errors import FormatError

cdef enum:
    MAX_HEADER = 1 << 20           # bytes; NumPy's writer pads to 64

cdef bint WITHOUT_GIL = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


@cython.final
cdef class Layout:
    """What a ``.npy`` header says: the array's type, shape and first byte."""

    cdef Layout another(self):
        """Return one like it: threads that count references to one wait for another."""
        cdef Layout other = Layout.__new__(Layout)
        other.dtype = copy.copy(self.dtype) if WITHOUT_GIL else self.dtype
        other.shape = self.shape
        other.nbytes = self.nbytes
        other.header_size = self.header_size
        memcpy(other.header, self.header, SEEN_BYTES)
        return other


@cython.final
cdef class Seen:
    """Headers that were seen last: those of a sample's fields, of its neighbours."""

    cdef Layout recall(self, const uint8_t *at, uint64_t size):
        """Return the layout of a member that begins with a known header, or None."""
        with cython.critical_section(self):
            if begins_with(self.first, at, size):
                return self.first
            if begins_with(self.second, at, size):
                return self.second
            if begins_with(self.third, at, size):
                return self.third
        return None

    cdef int remember(self, Layout layout) except -1:
        with cython.critical_section(self):
            self.third = self.second
            self.second = self.first
            self.first = layout
        return 0


cdef bint begins_with(Layout layout, const uint8_t *at, uint64_t size):
    return (
        layout is not None and size >= layout.header_size
        and memcmp(at, layout.header, layout.header_size) == 0
    )


cdef Seen seen_anywhere = Seen()


cdef object npy_fault(uint64_t at, str reason):
    """A fault at a byte of the member; the caller knows of which."""
    return FormatError(f"not a .npy array: {reason}", "", at)


cdef Layout layout_of(const uint8_t *at, uint64_t size, Seen seen):
    """Return the layout of a member; most have a header that was seen before."""
    cdef Layout layout = seen.recall(at, size)
    if layout is None and seen is not seen_anywhere:  # another shard may have had it
        layout = seen_anywhere.recall(at, size)
        if layout is not None:
            layout = layout.another()
            seen.remember(layout)
    return read_layout(at, size, seen) if layout is None else layout


def npy_size(view):
    """Return how many bytes a ``.npy`` file has, by its header alone.

    Parameters
    ----------
    view : contiguous buffer
        The file's first bytes, as many as there are of its header or more.

    Raises
    ------
    FormatError
        It is no header, not whole, or one of Python objects.
    """
    cdef const uint8_t[::1] head = view
    cdef Layout layout
    if head.shape[0] == 0:
        raise npy_fault(0, "it does not begin with its magic")
    layout = layout_of(&head[0], head.shape[0], seen_anywhere)
    return layout.header_size + layout.nbytes


cdef Layout read_layout(const uint8_t *at, uint64_t size, Seen seen):
    """Read a header; remember it if it is short."""
    cdef span_t span = span_of(at, size)
    cdef const uint8_t *lead = take(&span, 8)
    cdef const uint8_t *digits
    cdef const uint8_t *text
    cdef size_t length = 0
    cdef int k, width
    cdef bytes literal
    cdef Layout layout
    if lead == NULL or memcmp(lead, b"\x93NUMPY", 6) != 0:
        raise npy_fault(0, "it does not begin with its magic")
    if not 1 <= lead[6] <= 3 or lead[7] != 0:
        raise npy_fault(6, f"version {lead[6]}.{lead[7]}")
    width = 2 if lead[6] == 1 else 4
    digits = take(&span, width)
    if digits != NULL:
        for k in range(width):
            length |= <size_t> digits[k] << (8 * k)
    if digits == NULL or length > MAX_HEADER or length > span.left:
        raise npy_fault(8, "its header is cut, or of over 1 MiB")
    text = take(&span, length)
    try:
        literal = (<const char *> text)[:length]
        layout = parse_header(literal, lead[6])
    except (
        ValueError, TypeError, SyntaxError, RecursionError, MemoryError, LookupError,
        OverflowError,
    ) as error:
        raise npy_fault(8 + width, f"a bad header: {error}") from error
    layout.header_size = 8 + width + length
    if layout.header_size <= SEEN_BYTES:
        memcpy(layout.header, at, layout.header_size)
        if memcmp(layout.header + 8 + width, <const char *> literal, length) != 0:
            return layout          # it changes while it is read
        seen.remember(layout)
        if seen is not seen_anywhere:
            seen_anywhere.remember(layout.another())
    return layout


cdef Layout parse_header(bytes text, int version):
    """Evaluate the literal of a header. ValueError and the like say what is bad."""
    cdef Layout layout = Layout.__new__(Layout)
    cdef uint64_t length
    cdef uint64_t limit = <uint64_t> PY_SSIZE_T_MAX
    source = text.decode("utf-8" if version == 3 else "latin-1")
    try:
        header = ast.literal_eval(source.strip())
    except SyntaxError:            # Python 2 wrote lengths as 10L
        header = ast.literal_eval(re.sub(r"(?<=[\s(,]\d)(\d*)L\b", r"\1", source.strip()))
    if not isinstance(header, dict) or set(header) != {
        "descr", "fortran_order", "shape"
    }:
        raise ValueError("it must have descr, fortran_order and shape")
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
    for length in shape:           # NumPy counts as if no length were 0
        if length > 0 and layout.nbytes > limit // length:
            raise ValueError(f"shape {shape!r} is too large")
        layout.nbytes *= max(length, <uint64_t> 1)
    if 0 in shape:
        layout.nbytes = 0
    return layout
