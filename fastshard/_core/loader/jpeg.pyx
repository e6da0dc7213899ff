"""Headers and scans of JPEG files, parsed without the GIL."""

from cpython.buffer cimport (
    PyBUF_FULL_RO, PyBUF_SIMPLE, PyBuffer_Release, PyObject_CheckBuffer,
    PyObject_GetBuffer,
)
from libc.stdint cimport uint8_t
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
    MAX_SIDE = 65500               # pixels, of libjpeg
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
    """Read the header of a JPEG, up to its first scan.

    Parameters
    ----------
    view : buffer

    Returns
    -------
    tuple
        Width, height, the frame's process (second byte of its marker: 0xC0 baseline,
        0xC2 progressive), bits, components, components of the first scan, whether
        it is gray or of a usual subsampling, offset of the first scan's marker;
        extents ``(offset, size)`` of EXIF, and of XMP or None.

    Raises
    ------
    FormatError
        The header is cut off or damaged; its path is ``"<view>"``.
    """
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
    """Return the shape of a plain JPEG, or None for what needs a closer look.

    Plain is an 8-bit sequential JPEG of one scan, gray or of a usual subsampling, with
    neither EXIF nor XMP, whose decoder gives the channels without a conversion.

    Parameters
    ----------
    view : buffer
        Anything: None is returned for what is not contiguous bytes.
    channels : int
        3, or 1: then only gray is plain.
    max_pixels : int

    Returns
    -------
    (height, width, channels), or None
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
        or not 0 < jpeg.width <= MAX_SIDE or not 0 < jpeg.height <= MAX_SIDE
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
    """Count the scans of a JPEG.

    Parameters
    ----------
    view : buffer
    start : int
        Offset of the first scan's marker.
    most : int
        Counting ends above this number.

    Returns
    -------
    tuple of int
        The number, and the offset of the end marker; of the first segment that is cut
        off; or the size, if both are missing.
    """
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
