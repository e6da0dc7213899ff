"""Resize, orientation and luma of 8-bit pictures, from array to array without the GIL.

Pictures are buffers of uint8 ``[height, width, channels]``; rows may be strided, the
pixels of a row are contiguous.
"""

from cpython.buffer cimport (
    PyBUF_FORMAT, PyBUF_STRIDES, PyBuffer_Release, PyObject_GetBuffer,
)
from libc.stdint cimport int64_t, uint8_t

cdef extern from "resize.h" nogil:
    enum:
        FS_PLAIN
        FS_SSE41
        FS_AVX2
        FS_RESIZED
    ctypedef struct fs_picture_t:
        const uint8_t *base
        Py_ssize_t stride
        int64_t height
        int64_t width
        int channels
    int fs_best_level()
    int fs_resize(
        const fs_picture_t *source, const float *box, const fs_picture_t *target,
        uint8_t *out, int flip, int level
    )
    void fs_orient(
        const fs_picture_t *source, const fs_picture_t *target, uint8_t *out,
        int orientation, int flip
    )
    void fs_gray(
        const fs_picture_t *source, const fs_picture_t *target, uint8_t *out
    )

cdef enum:
    MAX_SIDE = 1 << 24             # pixels; float32 has all integers up to it

cdef int BEST = fs_best_level()
cdef dict LEVELS = {"plain": FS_PLAIN, "sse4.1": FS_SSE41, "avx2": FS_AVX2}


def instruction_set():
    """Return the instructions that `resize_into` uses on this processor.

    Returns
    -------
    str
        ``"avx2"``, ``"sse4.1"`` or ``"plain"``: what the compiler chose.
    """
    return next(name for name, level in LEVELS.items() if level == BEST)


def resize_into(src, box, out, *, bint flip=False, level=None):
    """Resize a box of a picture into another, as Pillow's BILINEAR does.

    Each byte is within 1 of ``Image.resize((w, h), BILINEAR, box=box)``. Of the source
    only the box is read, and what lies below the filter around it. A box of whole
    pixels and of the target's size is copied.

    Parameters
    ----------
    src : buffer
        uint8 ``[H, W, C]``; C is 1, 3 or 4, and sides are at most 16,777,216 pixels.
    box : tuple of float
        ``(x0, y0, x1, y1)`` in source pixels, not empty, inside the source.
    out : buffer
        uint8 ``[h, w, C]``, writable, not overlapping `src`.
    flip : bool
        Mirror left and right.
    level : str, optional
        Instructions to use, for tests; all give the same bytes.

    Raises
    ------
    ValueError
        An argument is not as described, or the processor lacks `level`.
    MemoryError
        No memory for a strip of a row and its weights, at most 1 MB.
    """
    cdef Py_buffer source_view, target_view
    cdef fs_picture_t source, target
    cdef float[4] sides
    cdef uint8_t *to
    cdef int status, chosen = find_level(level)
    take_picture(src, "src", &source_view, &source, NULL)
    try:
        take_sides(box, &source, sides)
        take_picture(out, "out", &target_view, &target, &to)
        try:
            if target.channels != source.channels:
                raise ValueError(
                    f"out must have the {source.channels} channels of src, "
                    f"got {target.channels}"
                )
            with nogil:
                status = fs_resize(&source, sides, &target, to, flip, chosen)
        finally:
            PyBuffer_Release(&target_view)
    finally:
        PyBuffer_Release(&source_view)
    if status != FS_RESIZED:
        raise MemoryError


def orient_into(src, out, int orientation, bint flip=False):
    """Copy a picture turned as its EXIF orientation says, then mirrored.

    Equal to ``ImageOps.exif_transpose``.

    Parameters
    ----------
    src : buffer
        uint8 ``[H, W, C]``; C is 1, 3 or 4.
    out : buffer
        uint8 ``[H, W, C]``, or ``[W, H, C]`` for orientations of 5 to 8; writable, not
        overlapping `src`.
    orientation : int
        1 to 8.
    flip : bool
        Mirror left and right, after the turn.

    Raises
    ------
    ValueError
        An argument is not as described.
    """
    cdef Py_buffer source_view, target_view
    cdef fs_picture_t source, target
    cdef int64_t height, width
    cdef uint8_t *to
    if not 1 <= orientation <= 8:
        raise ValueError(f"orientation must be 1 to 8, got {orientation}")
    take_picture(src, "src", &source_view, &source, NULL)
    try:
        take_picture(out, "out", &target_view, &target, &to)
        try:
            height, width = source.height, source.width
            if orientation > 4:
                height, width = width, height
            check_shape(&target, height, width, source.channels)
            with nogil:
                fs_orient(&source, &target, to, orientation, flip)
        finally:
            PyBuffer_Release(&target_view)
    finally:
        PyBuffer_Release(&source_view)


def gray_into(src, out):
    """Copy an RGB picture as luma, equal to Pillow's ``convert("L")``.

    Parameters
    ----------
    src : buffer
        uint8 ``[H, W, 3]``.
    out : buffer
        uint8 ``[H, W, 1]``, writable, not overlapping `src`.

    Raises
    ------
    ValueError
        An argument is not as described.
    """
    cdef Py_buffer source_view, target_view
    cdef fs_picture_t source, target
    cdef uint8_t *to
    take_picture(src, "src", &source_view, &source, NULL)
    try:
        if source.channels != 3:
            raise ValueError(f"src must have 3 channels, got {source.channels}")
        take_picture(out, "out", &target_view, &target, &to)
        try:
            check_shape(&target, source.height, source.width, 1)
            with nogil:
                fs_gray(&source, &target, to)
        finally:
            PyBuffer_Release(&target_view)
    finally:
        PyBuffer_Release(&source_view)


cdef int find_level(object level) except -1:
    cdef int found
    if level is None:
        return BEST
    if level not in LEVELS:
        raise ValueError(f"level must be one of {', '.join(LEVELS)}, got {level!r}")
    found = LEVELS[level]
    if found > BEST:
        raise ValueError(f"this processor or build has no {level}")
    return found


cdef int take_picture(
    object picture, str name, Py_buffer *view, fs_picture_t *taken, uint8_t **to
) except -1:
    """Take the buffer of a picture, and set `to` to its bytes if they are written.

    The caller releases `view`, unless this raises.
    """
    PyObject_GetBuffer(picture, view, PyBUF_STRIDES | PyBUF_FORMAT)
    try:
        check_picture(view, name, to != NULL)
    except BaseException:
        PyBuffer_Release(view)
        raise
    taken.base = <const uint8_t *> view.buf
    taken.stride = view.strides[0]
    taken.height = view.shape[0]
    taken.width = view.shape[1]
    taken.channels = <int> view.shape[2]
    if to != NULL:
        to[0] = <uint8_t *> view.buf
    return 0


cdef int check_picture(Py_buffer *view, str name, bint written) except -1:
    cdef int i
    kind = view.format.decode() if view.format != NULL else "B"
    shape = [view.shape[i] for i in range(view.ndim)]
    if kind != "B" or view.ndim != 3 or shape[2] not in (1, 3, 4) or 0 in shape:
        raise ValueError(
            f"{name} must be uint8 [height, width, 1, 3 or 4], "
            f"got format {kind!r} and shape {shape}"
        )
    if (
        shape[2] != 1 and view.strides[2] != 1
        or shape[1] != 1 and view.strides[1] != shape[2]
    ):
        raise ValueError(
            f"the pixels of a row of {name} must be contiguous, "
            f"got strides {[view.strides[i] for i in range(3)]}"
        )
    if written and view.readonly:
        raise ValueError(f"{name} must be writable")
    return 0


cdef int check_shape(
    const fs_picture_t *target, int64_t height, int64_t width, int channels
) except -1:
    if (
        target.height != height or target.width != width
        or target.channels != channels
    ):
        raise ValueError(
            f"out must have the shape {[height, width, channels]}, "
            f"got {[target.height, target.width, target.channels]}"
        )
    return 0


cdef int take_sides(object box, const fs_picture_t *source, float *sides) except -1:
    """Read a box, rounded to float32 as Pillow rounds it."""
    cdef double x0, y0, x1, y1
    if source.width > MAX_SIDE or source.height > MAX_SIDE:
        raise ValueError(
            f"src must have sides of at most {MAX_SIDE:,} pixels, got height "
            f"{source.height:,} and width {source.width:,}"
        )
    try:
        x0, y0, x1, y1 = box
    except (TypeError, ValueError):
        raise ValueError(f"box must be (x0, y0, x1, y1), got {box!r}") from None
    sides[0] = <float> x0
    sides[1] = <float> y0
    sides[2] = <float> x1
    sides[3] = <float> y1
    # Also false for a NaN.
    if not (
        0 <= x0 and 0 <= y0 and x1 <= source.width and y1 <= source.height
        and sides[0] < sides[2] and sides[1] < sides[3]
    ):
        raise ValueError(
            f"box must be (x0, y0, x1, y1) inside a source of width {source.width} "
            f"and height {source.height}, and not empty, got {box!r}"
        )
    return 0
