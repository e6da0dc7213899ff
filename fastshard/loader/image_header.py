"""Headers of images: kind, size and orientation, read from the first bytes.

Each parser is bounded: it steps over segments by their lengths and reads a fixed number
of bytes of each. No memory is allocated for pixels.
"""

from __future__ import annotations

import re
from struct import Struct
from typing import NamedTuple

from fastshard._core.loader import images
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
MAX_BLOCKS = 4096  # of a GIF before its first image
MAX_TAGS = 1024  # of an EXIF directory

# By Pillow's names. The size of kinds without a parser is that of the opened file.
KINDS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")

PNG_SIZE = Struct(">II")
GIF_SIZE = Struct("<HH")
GIF_BOX = Struct("<HHHH")  # left, top, width, height
LITTLE_32 = Struct("<I")
ORIENTATION = 0x0112  # EXIF tag
EXIF_START = b"Exif\0\0"
EXIF_ORDERS = {
    b"II*\0": "<",
    b"II\0*": "<",
    b"MM\0*": ">",
    b"MM*\0": ">",
    b"MM\0+": ">",
}
# Formats of one value, by the number of its type.
EXIF_VALUES = {
    1: "B",
    2: "B",
    3: "H",
    4: "I",
    5: "II",
    6: "b",
    7: "B",
    8: "h",
    9: "i",
    10: "ii",
    11: "f",
    12: "d",
    13: "I",
    16: "Q",
}
EXIF_TEXTS = (1, 2, 7)  # types that are bytes, not numbers
XMP_ORIENTATION = re.compile(rb'tiff:Orientation(="|>)([0-9])')


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
    scan_components : int
        Components of the first scan; fewer than `components` means several scans.
    is_usual : bool
        Whether it is gray, or of a usual subsampling of colours, such as 4:2:0.
    scan : int
        Offset of the first scan's marker, in bytes.
    """

    process: int
    precision: int
    components: int
    scan_components: int
    is_usual: bool
    scan: int

    @property
    def is_one_scan(self) -> bool:
        """True for a sequential, interleaved JPEG: one scan holds all components."""
        return self.process <= 0xC1 and self.scan_components == self.components

    @property
    def is_lossless(self) -> bool:
        """True for a lossless JPEG: without DCT it cannot be decoded smaller."""
        return self.process & 3 == 3


def read_header(view: memoryview) -> ImageHeader:
    """Return the header of an image; its first bytes tell the kind."""
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
    width, height, *facts, exif, xmp = images.read_jpeg(view)
    orientation: int | None = None
    if exif:
        parts = [bytes(view[at : at + size]) for at, size in exif]
        orientation = read_exif_orientation(b"".join(parts))
    if orientation is None and xmp is not None:
        orientation = _read_xmp_orientation(view[xmp[0] : sum(xmp)])
    orientation = 1 if orientation is None or not 1 <= orientation <= 8 else orientation
    return ImageHeader("JPEG", width, height, orientation, JpegHeader._make(facts))


def count_scans(view: memoryview, at: int, most: int = MAX_SCANS) -> tuple[int, int]:
    """Count the scans of a JPEG from the marker of the first, up to `most` + 1."""
    return images.count_scans(view, at, most)


def _read_xmp_orientation(xmp: memoryview | bytes) -> int | None:
    match = XMP_ORIENTATION.search(xmp)
    return int(match[2]) if match else None


def read_exif_orientation(exif: bytes) -> int | None:
    """Return the orientation of an EXIF block without its ``Exif\\0\\0``."""
    if exif.startswith(EXIF_START):  # some cameras write it twice
        exif = exif[len(EXIF_START) :]
    if not exif:
        return None
    order = EXIF_ORDERS.get(exif[:4])
    if order is None or len(exif) < 8:
        return 1
    entry = Struct(order + "HHI")
    start = Struct(order + "I").unpack_from(exif, 4)[0]
    if start > len(exif) - 2:
        return None
    tags = min(Struct(order + "H").unpack_from(exif, start)[0], MAX_TAGS)
    outside = 0  # bytes of values outside the directory
    for at in range(start + 2, start + 2 + 12 * tags, 12):
        if at > len(exif) - 12:
            break
        tag, kind, number = entry.unpack_from(exif, at)
        value = EXIF_VALUES.get(kind)
        if value is None or not number:
            continue
        where = at + 8
        size = number * Struct("<" + value).size
        if size > 4:
            outside += size
            if outside > len(exif):
                continue
            where = Struct(order + "I").unpack_from(exif, where)[0]
            if size > len(exif) or where > len(exif) - size:
                break
        if tag == ORIENTATION:
            found = Struct(order + value).unpack_from(exif, where)
            return _orientation_of_value(kind, found)
    return None


def _orientation_of_value(kind: int, found: tuple[float, ...]) -> int:
    """Return the orientation in a tag's first value, 1 for another value."""
    if kind in EXIF_TEXTS:
        return 1
    value, divisor = (*found, 1)[:2]
    for orientation in range(1, 9):
        if value == orientation * divisor and divisor:
            return orientation
    return 1


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
    for _ in range(MAX_BLOCKS):
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
        for _ in range(MAX_BLOCKS):
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
