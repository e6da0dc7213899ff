"""Headers of images: kind, size and orientation, read from the first bytes.

Each parser is bounded: it steps over segments by their lengths and reads a fixed number
of bytes of each. No memory is allocated for pixels.
"""

from __future__ import annotations

import re
from struct import Struct
from typing import NamedTuple

from fastshard.errors import FormatError

__all__ = [
    "KINDS",
    "MAX_SCANS",
    "ImageHeader",
    "JpegHeader",
    "count_scans",
    "read_exif_orientation",
    "read_header",
]

MAX_SCANS = 100  # of one JPEG
MAX_SEGMENTS = 4096  # before the first scan of a JPEG, blocks of a GIF before its image
MAX_TAGS = 1024  # of an EXIF directory

# By Pillow's names. The size of kinds without a parser is that of the opened file.
KINDS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")

U16 = Struct(">H")
FRAME = Struct(">HBHHB")  # length, precision, height, width, components
PNG_SIZE = Struct(">II")
GIF_SIZE = Struct("<HH")
GIF_BOX = Struct("<HHHH")  # left, top, width, height
LITTLE_32 = Struct("<I")
EXIF = b"Exif\0\0"
XMP = b"http://ns.adobe.com/xap/1.0/\0"
XMP_ORIENTATION = re.compile(rb'tiff:Orientation(="|>)([0-9])')
SCAN = 0xDA
# Start of frame, by the second byte of the marker; DHT, JPG and DAC lie between.
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
PROGRESSIVE = frozenset((0xC2, 0xC6, 0xCA, 0xCE))
# Markers without a length: TEM and RST0 to RST7.
BARE = frozenset((0x01, *range(0xD0, 0xD8)))
# Any marker; one that ends entropy-coded data: no stuffed byte, fill or restart.
ANY_MARKER = re.compile(rb"\xff[^\x00\xff]")
MARKER = re.compile(rb"\xff+[^\x00\xff\xd0-\xd7]")


class ImageHeader(NamedTuple):
    """Facts of an image known before it is decoded.

    Attributes
    ----------
    kind : str
        One of `KINDS`.
    width, height : int
        Pixels, as stored. 0 and 0 for a kind whose reader tells them (TIFF, PPM).
    orientation : int or None
        EXIF orientation, 1 to 8. None: the reader tells it.
    jpeg : JpegHeader or None
        Further facts of a JPEG.
    """

    kind: str
    width: int
    height: int
    orientation: int | None
    jpeg: JpegHeader | None = None


class JpegHeader(NamedTuple):
    """Facts of a JPEG's frame and first scan.

    Attributes
    ----------
    process : int
        Second byte of the frame's marker: 0xC0 baseline, 0xC2 progressive.
    precision : int
        Bits of a component.
    components : int
    scan : int
        Offset of the first scan's marker, in bytes.
    scan_components : int
        Components of the first scan; fewer than `components` means several scans.
    """

    process: int
    precision: int
    components: int
    scan: int
    scan_components: int


def read_header(view: memoryview) -> ImageHeader:
    """Return the header of an image; its first bytes tell the kind.

    Parameters
    ----------
    view : memoryview
        The file's bytes, one-dimensional.

    Returns
    -------
    ImageHeader

    Raises
    ------
    FormatError
        The kind is not one of `KINDS`, the header is cut off or damaged, or a side
        is 0.

    Examples
    --------
    >>> from fastshard.loader.image_header import read_header
    >>> bmp = b"BM" + bytes(12) + bytes([12, 0, 0, 0, 2, 0, 3, 0]) + bytes(10)
    >>> read_header(memoryview(bmp))[:3]
    ('BMP', 2, 3)
    """
    if not len(view):
        raise _fault("not an image: no bytes", 0)
    first = bytes(view[:16])
    if first.startswith(b"\xff\xd8"):
        header = _read_jpeg(view)
    elif first.startswith(b"\x89PNG\r\n\x1a\n"):
        header = _read_png(view)
    elif first.startswith((b"GIF87a", b"GIF89a")):
        header = _read_gif(view)
    elif first.startswith(b"RIFF") and first[8:12] == b"WEBP":
        header = _read_webp(view)
    elif first.startswith(b"BM"):
        header = _read_bmp(view)
    elif first.startswith((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")):
        return ImageHeader("TIFF", 0, 0, None)
    elif first[:1] == b"P" and first[1:2] in b"123456fFy":
        return ImageHeader("PPM", 0, 0, None)
    else:
        kinds = ", ".join(KINDS)
        raise _fault(f"not an image of a known kind ({kinds})", 0)
    if not header.width or not header.height:
        raise _fault(f"{header.kind} of {header.width} x {header.height} pixels", 0)
    return header


def _read_jpeg(view: memoryview) -> ImageHeader:
    """Read segments up to the first scan."""
    size = len(view)
    at = 2
    process = -1
    width = height = precision = components = 0
    exif = xmp = None
    for _ in range(MAX_SEGMENTS):
        at = _find_marker(view, at)
        code = view[at + 1]
        if code in BARE or code == 0xD8:
            at += 2
            continue
        if code == 0xD9:
            raise _fault("JPEG without a scan", at)
        if size - at < 4:
            break
        length = U16.unpack_from(view, at + 2)[0]
        if length < 2 or length > size - at - 2:
            break
        if code == SCAN:
            if process < 0:
                raise _fault("JPEG with a scan before its frame", at)
            if length < 3:
                raise _fault("damaged JPEG scan", at)
            count = view[at + 4]
            jpeg = JpegHeader(process, precision, components, at, count)
            turn = _jpeg_orientation(exif, xmp)
            return ImageHeader("JPEG", width, height, turn, jpeg)
        if code in FRAMES:
            if process >= 0:
                raise _fault("JPEG with two frames", at)
            if length < 8:
                raise _fault("damaged JPEG frame", at)
            _, precision, height, width, components = FRAME.unpack_from(view, at + 2)
            process = code
        elif code == 0xE1:
            segment = view[at + 4 : at + 2 + length]
            if bytes(segment[:6]) == EXIF:
                exif = (exif or b"") + bytes(segment[6:])
            elif bytes(segment[:29]) == XMP:
                xmp = segment[29:]
        at += 2 + length
    else:
        raise _fault(f"JPEG with more than {MAX_SEGMENTS:,} segments", at)
    raise _fault("truncated JPEG header", min(at, size))


def _find_marker(view: memoryview, at: int) -> int:
    """Return the offset of the last 0xFF of the next marker."""
    size = len(view)
    if size - at >= 2 and view[at] == 0xFF and 0 < view[at + 1] < 0xFF:
        return at
    found = ANY_MARKER.search(view, at)
    if found is None:
        raise _fault("truncated JPEG header", size)
    return found.start()


def count_scans(view: memoryview, at: int, most: int = MAX_SCANS) -> tuple[int, int]:
    """Count the scans of a JPEG from the marker of the first, up to `most` + 1.

    Returns
    -------
    tuple of int
        The number, and the offset behind the last complete segment or scan: of the end
        marker, if there is one.
    """
    size = len(view)
    count = 0
    while size - at >= 4:
        code = view[at + 1]
        if code == 0xD9:
            break
        if code in BARE:
            at += 2
        else:
            length = U16.unpack_from(view, at + 2)[0]
            if length < 2 or length > size - at - 2:
                break
            at += 2 + length
        if code == SCAN:
            count += 1
            if count > most:
                break
        found = MARKER.search(view, at)
        if found is None:
            return count, size
        at = found.end() - 2
    return count, at


def _jpeg_orientation(exif: bytes | None, xmp: memoryview | None) -> int:
    found = None if exif is None else read_exif_orientation(exif)
    if found is None and xmp is not None:
        found = _read_xmp_orientation(xmp)
    return 1 if found is None or not 1 <= found <= 8 else found


def _read_xmp_orientation(xmp: memoryview | bytes) -> int | None:
    match = XMP_ORIENTATION.search(xmp)
    return int(match[2]) if match else None


def read_exif_orientation(exif: bytes) -> int | None:
    """Return the orientation of an EXIF block without its ``Exif\\0\\0``.

    Parameters
    ----------
    exif : bytes
        A TIFF header and its first directory.

    Returns
    -------
    int or None
        The tag's value, which need not be 1 to 8; None if there is none, or the
        block is damaged.
    """
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(exif[:4])
    if order is None or len(exif) < 8:
        return None
    u16, u32 = Struct(order + "H"), Struct(order + "I")
    start = u32.unpack_from(exif, 4)[0]
    if start > len(exif) - 2:
        return None
    tags = min(u16.unpack_from(exif, start)[0], MAX_TAGS)
    at = start + 2
    found = None
    for _ in range(tags):
        if at > len(exif) - 12:
            break
        if u16.unpack_from(exif, at)[0] == 0x0112:
            kind = u16.unpack_from(exif, at + 2)[0]
            number = u32.unpack_from(exif, at + 4)[0]
            if number == 1:
                if kind in (3, 8):
                    found = u16.unpack_from(exif, at + 8)[0]
                elif kind in (4, 9):
                    found = u32.unpack_from(exif, at + 8)[0]
                elif kind == 6:
                    found = exif[at + 8]
        at += 12
    return found


def _read_png(view: memoryview) -> ImageHeader:
    if len(view) < 33 or bytes(view[12:16]) != b"IHDR":
        raise _fault("truncated PNG header", min(len(view), 33))
    width, height = PNG_SIZE.unpack_from(view, 16)
    return ImageHeader("PNG", width, height, None)


def _read_gif(view: memoryview) -> ImageHeader:
    """Read up to the first image's box, which may exceed the screen."""
    size = len(view)
    if size < 13:
        raise _fault("truncated GIF header", size)
    width, height = GIF_SIZE.unpack_from(view, 6)
    flags = view[10]
    at = 13 + (3 << ((flags & 7) + 1) if flags & 0x80 else 0)
    for _ in range(MAX_SEGMENTS):
        if at >= size:
            break
        code = view[at]
        if code == 0x2C:
            if size - at < 10:
                break
            left, top, wide, high = GIF_BOX.unpack_from(view, at + 1)
            sides = max(width, left + wide), max(height, top + high)
            return ImageHeader("GIF", *sides, 1)
        if code == 0x3B:
            raise _fault("GIF without an image", at)
        at += 1
        if code != 0x21:
            continue  # as Pillow passes over bytes between blocks
        at += 1
        for _ in range(MAX_SEGMENTS):
            if at >= size:
                break
            length = view[at]
            at += 1 + length
            if not length:
                break
        else:
            raise _fault("GIF with an extension that is too long", at)
    raise _fault("truncated GIF header", min(at, size))


def _read_webp(view: memoryview) -> ImageHeader:
    if len(view) < 30:
        raise _fault("truncated WEBP header", len(view))
    form = bytes(view[12:16])
    if form == b"VP8X":
        width = (LITTLE_32.unpack_from(view, 24)[0] & 0xFFFFFF) + 1
        height = (LITTLE_32.unpack_from(view, 26)[0] >> 8) + 1
        return ImageHeader("WEBP", width, height, None)
    if form == b"VP8L":
        bits = LITTLE_32.unpack_from(view, 21)[0]
        return ImageHeader("WEBP", (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1, 1)
    if form == b"VP8 ":
        width, height = GIF_SIZE.unpack_from(view, 26)
        return ImageHeader("WEBP", width & 0x3FFF, height & 0x3FFF, 1)
    raise _fault("damaged WEBP header", 12)


def _read_bmp(view: memoryview) -> ImageHeader:
    size = len(view)
    if size < 26:
        raise _fault("truncated BMP header", size)
    if LITTLE_32.unpack_from(view, 14)[0] == 12:
        width, height = GIF_SIZE.unpack_from(view, 18)
    elif size < 54:
        raise _fault("truncated BMP header", size)
    else:
        width = LITTLE_32.unpack_from(view, 18)[0]
        height = LITTLE_32.unpack_from(view, 22)[0]
        if height >> 31:  # rows from the top
            height = (1 << 32) - height
    return ImageHeader("BMP", width, height, 1)


def _fault(reason: str, at: int) -> FormatError:
    """Return the error at a byte of the view; callers add shard and member."""
    return FormatError(reason, "<view>", at)
