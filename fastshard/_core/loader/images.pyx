"""Images: headers of JPEG files, and the pixels of 8-bit pictures, without the GIL.

Pictures are buffers of uint8 ``[height, width, channels]``; rows may be strided, the
pixels of a row are contiguous. They are resized, oriented and reduced to luma from
array to array.
"""

from cpython.buffer cimport (
    PyBUF_FORMAT, PyBUF_FULL_RO, PyBUF_SIMPLE, PyBUF_STRIDES, PyBuffer_Release,
    PyObject_CheckBuffer, PyObject_GetBuffer,
)
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memchr, memcmp

from fastshard._core.span cimport span_of, span_t, take

from fastshard.errors import FormatError

cdef enum:
    OK
    TRUNCATED
    NO_JPEG
    NO_SCAN
    NO_FRAME
    TWO_FRAMES
    BAD_FRAME
    BAD_SCAN
    TOO_MANY
    SOI = 0xD8
    EOI = 0xD9
    SOS = 0xDA
    APP1 = 0xE1
    MAX_SEGMENTS = 4096            # before the first scan
    MAX_EXTENTS = 8                # of EXIF segments
    MAX_JPEG_SIDE = 65500          # pixels, of libjpeg
    MAX_PIXELS = (1 << 29) - 1     # of decoders that count 4 bytes each in 32 bits

cdef tuple REASONS = (
    "",
    "truncated JPEG header",
    "not a JPEG",
    "JPEG without a scan",
    "JPEG with a scan before its frame",
    "JPEG with two frames",
    "damaged JPEG frame",
    "damaged JPEG scan",
    "JPEG with more than 4,096 segments",
)
cdef const char *EXIF = b"Exif\0\0"
cdef const char *XMP = b"http://ns.adobe.com/xap/1.0/\0"


cdef struct extent_t:
    size_t offset
    size_t size


cdef struct jpeg_t:
    int width
    int height
    int process                    # second byte of the frame's marker; 0: no frame yet
    int precision
    int components
    bint is_usual                  # gray, or colours with a usual subsampling
    int scan_components
    size_t scan                    # offset of the first scan's marker
    int exif_count
    extent_t exif[MAX_EXTENTS]     # without "Exif\0\0"
    extent_t xmp                   # the last one; size 0: none


cdef int next_marker(span_t *span) noexcept nogil:
    """Step over the next marker and return its second byte, or 0 if there is none.

    Stuffed and fill bytes, and markers without a length (TEM and RST0 to RST7), are
    passed over.
    """
    cdef const uint8_t *found
    cdef int code
    while span.left >= 2:
        found = <const uint8_t *> memchr(span.at, 0xFF, span.left - 1)
        if found == NULL:
            return 0
        take(span, <size_t> (found - span.at) + 1)
        code = span.at[0]
        if code == 0xFF:
            continue
        take(span, 1)
        if code > 1 and not 0xD0 <= code <= 0xD7:
            return code
    return 0


cdef bint take_segment(span_t *span, span_t *segment) noexcept nogil:
    """Step over a segment behind its marker; `segment` becomes its content."""
    cdef size_t length
    if span.left < 2:
        return False
    length = (<size_t> span.at[0] << 8) | span.at[1]
    if length < 2 or length > span.left:
        return False
    segment[0] = span_of(span.at + 2, length - 2)
    take(span, length)
    return True


cdef inline bint starts_with(span_t *span, const char *text, size_t n) noexcept nogil:
    return span.left >= n and memcmp(span.at, text, n) == 0


cdef int read_frame(span_t *segment, int code, jpeg_t *jpeg) noexcept nogil:
    if jpeg.process:
        return TWO_FRAMES
    if segment.left < 6:
        return BAD_FRAME
    jpeg.process = code
    jpeg.precision = segment.at[0]
    jpeg.height = (segment.at[1] << 8) | segment.at[2]
    jpeg.width = (segment.at[3] << 8) | segment.at[4]
    jpeg.components = segment.at[5]
    jpeg.is_usual = has_usual_factors(segment)
    return OK


cdef bint has_usual_factors(span_t *segment) noexcept nogil:
    """Return whether a frame is gray, or 4:4:4, 4:2:2, 4:2:0, 4:4:0 or 4:1:1."""
    cdef const uint8_t *at = segment.at
    cdef int first
    if segment.left == 9 and at[5] == 1:
        return at[7] == 0x11
    if segment.left != 15 or at[5] != 3:
        return False
    first = at[7]
    if first not in (0x11, 0x12, 0x21, 0x22, 0x41):
        return False
    return at[10] == 0x11 and at[13] == 0x11


cdef void read_app1(
    const uint8_t *base, span_t *segment, jpeg_t *jpeg
) noexcept nogil:
    """Note the extents of EXIF and XMP."""
    if starts_with(segment, EXIF, 6):
        take(segment, 6)
        if jpeg.exif_count < MAX_EXTENTS:
            jpeg.exif[jpeg.exif_count].offset = segment.at - base
            jpeg.exif[jpeg.exif_count].size = segment.left
            jpeg.exif_count += 1
    elif starts_with(segment, XMP, 29):
        take(segment, 29)
        jpeg.xmp.offset = segment.at - base
        jpeg.xmp.size = segment.left


cdef inline void start_header(jpeg_t *jpeg) noexcept nogil:
    jpeg.process = jpeg.exif_count = 0
    jpeg.is_usual = False
    jpeg.xmp.size = 0


cdef int parse(span_t *span, jpeg_t *jpeg, size_t *where) noexcept nogil:
    """Read segments up to the first scan; `where` becomes the last marker's offset."""
    cdef const uint8_t *base = span.at
    cdef size_t size = span.left
    cdef span_t segment
    cdef int k, code, status
    if not starts_with(span, b"\xff\xd8", 2):
        return NO_JPEG
    take(span, 2)
    for k in range(MAX_SEGMENTS):
        code = next_marker(span)
        if code == 0:
            where[0] = size
            return TRUNCATED
        where[0] = size - span.left - 2
        if code == SOI:
            continue
        if code == EOI:
            return NO_SCAN
        if not take_segment(span, &segment):
            return TRUNCATED
        if code == SOS:
            if jpeg.process == 0:
                return NO_FRAME
            if segment.left == 0:
                return BAD_SCAN
            jpeg.scan = where[0]
            jpeg.scan_components = segment.at[0]
            return OK
        if 0xC0 <= code <= 0xCF and code != 0xC4 and code != 0xC8 and code != 0xCC:
            status = read_frame(&segment, code, jpeg)
            if status != OK:
                return status
        elif code == APP1:
            read_app1(base, &segment, jpeg)
    return TOO_MANY


def read_jpeg(view):
    """Read the header of a JPEG, up to its first scan."""
    cdef Py_buffer held
    cdef jpeg_t jpeg
    cdef span_t span
    cdef size_t where = 0
    cdef int status, k
    start_header(&jpeg)
    PyObject_GetBuffer(view, &held, PyBUF_SIMPLE)
    try:
        span = span_of(<const uint8_t *> held.buf, held.len)
        with nogil:
            status = parse(&span, &jpeg, &where)
    finally:
        PyBuffer_Release(&held)
    if status != OK:
        raise FormatError(REASONS[status], "<view>", where)
    exif = [(jpeg.exif[k].offset, jpeg.exif[k].size) for k in range(jpeg.exif_count)]
    return (
        jpeg.width,
        jpeg.height,
        jpeg.process,
        jpeg.precision,
        jpeg.components,
        jpeg.scan_components,
        bool(jpeg.is_usual),
        jpeg.scan,
        tuple(exif),
        None if jpeg.xmp.size == 0 else (jpeg.xmp.offset, jpeg.xmp.size),
    )


def plain_shape(view, int channels, long long max_pixels):
    """Return the shape of a plain JPEG, None for other files.

    Plain is an 8-bit sequential JPEG of one scan, gray or of a usual subsampling, with
    neither EXIF nor XMP, whose decoder gives the channels without a conversion.
    """
    cdef Py_buffer held
    cdef jpeg_t jpeg
    cdef span_t span
    cdef size_t where = 0
    cdef int status = NO_JPEG
    if not PyObject_CheckBuffer(view):
        return None
    start_header(&jpeg)
    PyObject_GetBuffer(view, &held, PyBUF_FULL_RO)
    if (
        held.ndim == 1 and held.itemsize == 1
        and (held.strides == NULL or held.strides[0] == 1)
        and (held.format == NULL or held.format[0] == b'B' and held.format[1] == 0)
        and held.suboffsets == NULL
    ):
        span = span_of(<const uint8_t *> held.buf, held.len)
        with nogil:
            status = parse(&span, &jpeg, &where)
    PyBuffer_Release(&held)
    if (
        status != OK or not jpeg.is_usual or jpeg.process > 0xC1
        or jpeg.precision != 8 or jpeg.scan_components != jpeg.components
        or jpeg.exif_count or jpeg.xmp.size
        or jpeg.components > channels
        or not 0 < jpeg.width <= MAX_JPEG_SIDE
        or not 0 < jpeg.height <= MAX_JPEG_SIDE
        or <long long> jpeg.width * jpeg.height > min(max_pixels, MAX_PIXELS)
    ):
        return None
    return jpeg.height, jpeg.width, channels


cdef size_t walk_scans(span_t *span, int most, int *count) noexcept nogil:
    """Count scans up to `most` + 1; return the offset behind the last whole one."""
    cdef size_t size = span.left
    cdef size_t at
    cdef span_t segment
    cdef int code
    while True:
        code = next_marker(span)
        if code == 0:
            return size
        at = size - span.left - 2
        if code == EOI:
            return at
        if code == SOI:
            continue
        if not take_segment(span, &segment):
            return at
        if code == SOS:
            count[0] += 1
            if count[0] > most:
                return at


def count_scans(view, Py_ssize_t start, int most):
    """Count the scans of a JPEG."""
    cdef Py_buffer held
    cdef span_t span
    cdef size_t end
    cdef int count = 0
    PyObject_GetBuffer(view, &held, PyBUF_SIMPLE)
    try:
        if not 0 <= start <= held.len:
            raise ValueError(f"start must be 0 to {held.len}, got {start}")
        span = span_of(<const uint8_t *> held.buf, held.len)
        take(&span, start)
        with nogil:
            end = walk_scans(&span, most, &count)
    finally:
        PyBuffer_Release(&held)
    return count, start + end


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
    """Return the instructions that `resize_into` uses on this processor."""
    return next(name for name, level in LEVELS.items() if level == BEST)


def resize_into(src, box, out, *, bint flip=False, level=None):
    """Resize a box of a picture into another, as Pillow's BILINEAR does.

    Each byte is within 1 of ``Image.resize((w, h), BILINEAR, box=box)``. Of the source
    only the box is read, and the pixels below the filter around it. A box of whole
    pixels and of the target's size is copied.
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
    """Copy an RGB picture as luma, equal to Pillow's ``convert("L")``."""
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
