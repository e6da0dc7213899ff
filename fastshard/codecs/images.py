"""Allow-list of Pillow's image readers for untrusted bytes.

Other readers are not meant for such bytes: one of them starts Ghostscript.
"""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.ImageFile import (  # type: ignore[import-not-found, unused-ignore]
        ImageFile,
    )

__all__ = ["PLUGINS", "RARE_READERS", "READERS", "open_image"]

PLUGINS = {  # modules of Pillow, and their classes of files
    "JPEG": ("JpegImagePlugin", "JpegImageFile"),
    "PNG": ("PngImagePlugin", "PngImageFile"),
    "WEBP": ("WebPImagePlugin", "WebPImageFile"),
    "GIF": ("GifImagePlugin", "GifImageFile"),
    "BMP": ("BmpImagePlugin", "BmpImageFile"),
    "TIFF": ("TiffImagePlugin", "TiffImageFile"),
    "PPM": ("PpmImagePlugin", "PpmImageFile"),
}
READERS = tuple(PLUGINS)
RARE_READERS = ("JPEG2000", "AVIF", "ICO")  # some builds of Pillow lack them


def open_image(file: IO[bytes], *, rare: bool = False) -> ImageFile:
    """Open an image, which reads its pixels at first use, by one of `READERS`."""
    from PIL import Image, UnidentifiedImageError

    try:
        return Image.open(file, formats=READERS)
    except UnidentifiedImageError:
        if not rare:
            raise
    Image.init()
    return Image.open(
        file, formats=[name for name in RARE_READERS if name in Image.OPEN]
    )
