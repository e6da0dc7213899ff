"""Decoders of images: simplejpeg, imagecodecs, Pillow, or a function of the user."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from importlib import import_module
from typing import IO, TYPE_CHECKING, Any, TypeAlias, cast

from fastshard._util.viewfile import ViewFile
from fastshard.codecs.images import PLUGINS
from fastshard.errors import FastshardError, FormatError, MissingLibraryError
from fastshard.loader.image_header import MAX_SCANS, ImageHeader, count_scans

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "DECODER_NAMES",
    "ImageDecoder",
    "Take",
    "check_pixels",
    "decode_jpeg",
    "decode_own",
    "decode_plain",
    "is_simplejpeg",
    "open_image",
]

# ``fn(view) -> array``: uint8 [H, W] or [H, W, 1, 3 or 4].
ImageDecoder: TypeAlias = "Callable[[memoryview], NDArray[Any]]"
# ``take(shape)`` returns C-contiguous uint8 memory for a decoded picture.
Take: TypeAlias = "Callable[[tuple[int, int, int]], NDArray[Any]]"

DECODER_NAMES = ("simplejpeg", "pillow", "imagecodecs")
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
MAX_JPEG_SIDE = 65_500  # pixels, of libjpeg
END = b"\xff\xd9"  # of a JPEG
GREY = 128  # where pixels are missing
MAX_MESSAGE = 200  # characters of another library's message, at most
# simplejpeg computes sizes in 32 bits; 4 bytes a pixel of CMYK.
MAX_SIMPLEJPEG_PIXELS = (1 << 31) // 4 - 1
PILLOW_JPEG = "PIL.JpegImagePlugin"
ORIENTATION = 0x0112  # EXIF tag
TILE_WIDTH, TILE_LENGTH = 322, 323  # TIFF tags

_libraries: dict[str, Any] = {}  # imported, by name; None: not installed


def check_pixels(width: int, height: int, most: int) -> None:
    """Raise a FormatError for a picture without pixels, or with more than `most`."""
    if width <= 0 or height <= 0:
        raise _fault(f"an image of {width} x {height} pixels", 0)
    if width * height > most:
        raise _fault(
            f"an image of {width:,} x {height:,} pixels exceeds max_pixels={most:,}", 0
        )


def decode_jpeg(
    view: memoryview,
    header: ImageHeader,
    channels: int,
    factor: int,
    take: Take,
    *,
    decoder: str | None,
    fill: bool,
) -> tuple[NDArray[Any], bool]:
    """Decode a JPEG, at a fraction of its size if `factor` is 2, 4 or 8."""
    jpeg = header.jpeg
    assert jpeg is not None
    _check_frame(header)
    if not jpeg.is_one_scan:
        _check_scans(view, jpeg.scan)
    fast = _fast_decoder(decoder)
    # simplejpeg's RGB of four components differs from Pillow's by up to 2.
    if decoder is None and jpeg.components == 4 and _library(PILLOW_JPEG) is not None:
        fast = None
    if fast is not None:
        found = fast(view, header, channels, factor, take, True)
        if found is not None:
            return found, False
    refusal: FastshardError | None = None
    # Without an end marker Pillow finds missing pixels only in some files.
    if _has_end(view, jpeg.scan):
        try:
            return _decode_by_pillow(view, header, channels, factor), False
        except MissingLibraryError as error:
            if fast is None:
                raise
            # Pillow decodes files that the others refuse.
            refusal = _fault(f"a JPEG that the decoder refuses; {error}", 0)
        except FormatError as error:
            refusal = error
    _, end = count_scans(view, jpeg.scan)
    if not fill:
        if refusal is not None and bytes(view[end : end + 2]) == END:
            raise refusal
        raise _fault("truncated JPEG", end) from refusal
    if fast is not None:
        found = fast(view, header, channels, factor, take, False)
        if found is not None:
            return found, True
    # With an end marker libjpeg fills missing data, and only warns.
    whole = memoryview(bytes(view[:end]) + END)
    return _decode_by_pillow(whole, header, channels, factor), True


def is_simplejpeg(decoder: str | None) -> bool:
    """Return whether simplejpeg decodes JPEG for a `decoder`, where it is installed."""
    return decoder == "simplejpeg" or (decoder is None and not FREE_THREADED)


def decode_plain(view: memoryview, out: NDArray[Any]) -> bool:
    """Decode a JPEG of `plain_shape` by simplejpeg, and return whether it did."""
    library = _library("simplejpeg")
    if library is None:
        return False
    try:
        found = library.decode_jpeg(
            view, "GRAY" if out.shape[2] == 1 else "RGB", buffer=out
        )
    except (ValueError, KeyError, RuntimeError):
        return False
    return bool(found.shape == out.shape)


def _check_frame(header: ImageHeader) -> None:
    assert header.jpeg is not None
    if max(header.width, header.height) > MAX_JPEG_SIDE:
        raise _fault(
            f"JPEG of {header.width:,} x {header.height:,} pixels: libjpeg's limit is "
            f"{MAX_JPEG_SIDE:,} a side",
            0,
        )
    if header.jpeg.precision != 8:
        raise _fault(f"JPEG of {header.jpeg.precision} bits, not 8", 0)


def _check_scans(view: memoryview, at: int) -> None:
    scans, end = count_scans(view, at)
    if scans > MAX_SCANS:
        raise _fault(f"JPEG with more than {MAX_SCANS} scans", end)


def _has_end(view: memoryview, scan: int) -> bool:
    """Return whether a JPEG has an end marker behind its first scan."""
    return bytes(view[-2:]) == END or END in bytes(view[scan:])


def _fast_decoder(name: str | None) -> Callable[..., NDArray[Any] | None] | None:
    """Return the decoder of JPEG before Pillow, or None."""
    if name == "pillow":
        return None
    if name is None:
        name = "imagecodecs" if FREE_THREADED else "simplejpeg"
        if _library(name) is None:
            return None
    elif _library(name) is None:
        extra = "'fastshard[images]'" if name == "simplejpeg" else name
        raise MissingLibraryError(f"decoder={name!r} needs {name}: pip install {extra}")
    return _decode_by_simplejpeg if name == "simplejpeg" else _decode_by_imagecodecs


def _decode_by_simplejpeg(
    view: memoryview,
    header: ImageHeader,
    channels: int,
    factor: int,
    take: Take,
    strict: bool,
) -> NDArray[Any] | None:
    """Decode a JPEG by simplejpeg; None if it refuses."""
    library = _library("simplejpeg")
    height, width = -(-header.height // factor), -(-header.width // factor)
    least = (0, 0) if factor == 1 else (height, width)
    if header.width * header.height > MAX_SIMPLEJPEG_PIXELS:
        return None
    assert header.jpeg is not None
    try:
        if not header.jpeg.is_usual:
            found = library.decode_jpeg_header(view, *least, strict=strict)
            if found[:2] != (height, width):
                return None
        out = take((height, width, channels))
        if not strict:
            out[...] = GREY  # an error in the middle leaves the rest as it is
        # Refuses a size above that of `out`, of which this header tells the size.
        decoded = library.decode_jpeg(
            view,
            "GRAY" if channels == 1 else "RGB",
            min_height=least[0],
            min_width=least[1],
            buffer=out,
            strict=strict,
        )
    except (ValueError, KeyError, RuntimeError):
        return None
    return out if decoded.shape == out.shape else None


def _decode_by_imagecodecs(
    view: memoryview,
    header: ImageHeader,
    channels: int,
    factor: int,
    take: Take,
    strict: bool,
) -> NDArray[Any] | None:
    """Decode a whole JPEG by imagecodecs; None if it refuses."""
    assert header.jpeg is not None
    if factor != 1:
        return None
    if strict:
        _, end = count_scans(view, header.jpeg.scan)
        if bytes(view[end : end + 2]) != END:
            return None
    out = take((header.height, header.width, channels))
    if not strict:
        out[...] = GREY
    to, colors = (out[:, :, 0], "GRAYSCALE") if channels == 1 else (out, "RGB")
    try:
        _library("imagecodecs").jpeg8_decode(view, outcolorspace=colors, out=to)
    except MemoryError:
        raise
    except Exception:
        return None
    return out


class OpenedImage:
    """An image opened by Pillow whose pixels are not decoded yet.

    Attributes
    ----------
    width, height : int
        Pixels, as stored.
    """

    def __init__(self, image: Any) -> None:
        self._image = image
        self.width, self.height = image.size

    def decode(self, channels: int) -> tuple[NDArray[Any], int]:
        """Return the first picture, uint8 ``[H, W, channels]``, and its orientation."""
        with _Converting("not an image"):
            self._image.load()
            return _array_of(self._image, channels), _orientation_of(self._image)


def open_image(view: memoryview, kind: str, most: int) -> OpenedImage:
    """Open an image by Pillow and check its number of pixels.

    Pillow's own limit of pixels does not apply.
    """
    image = _open_by_pillow(view, kind)
    width, height = image.size
    check_pixels(width, height, most)
    tags = getattr(image, "tag_v2", None)
    if tags is not None:
        with _Converting("damaged TIFF"):
            wide, high = tags.get(TILE_WIDTH, 1), tags.get(TILE_LENGTH, 1)
        if not isinstance(wide, int) or not isinstance(high, int):
            raise _fault("TIFF with damaged sizes of tiles", 0)
        if wide * high > most:
            raise _fault(f"TIFF with tiles of more than max_pixels={most:,}", 0)
    return OpenedImage(image)


def decode_own(decoder: ImageDecoder, view: memoryview, most: int) -> NDArray[Any]:
    """Return the array of a user's decoder, uint8 ``[H, W, 1, 3 or 4]``."""
    import numpy as np

    found = decoder(view)
    if not isinstance(found, np.ndarray):
        raise TypeError(
            f"decoder must return a uint8 array, got {type(found).__name__}"
        )
    if found.ndim == 2:
        found = found[:, :, np.newaxis]
    if found.dtype != np.uint8 or found.ndim != 3 or found.shape[2] not in (1, 3, 4):
        raise ValueError(
            "decoder must return uint8 [H, W] or [H, W, 1, 3 or 4], got "
            f"{found.dtype} {found.shape}"
        )
    check_pixels(found.shape[1], found.shape[0], most)
    return np.ascontiguousarray(found)


def _open_by_pillow(view: memoryview, kind: str) -> Any:
    module, name = PLUGINS[kind]
    plugin = _library(f"PIL.{module}")
    if plugin is None:
        raise MissingLibraryError(
            f"Pillow is needed to decode {kind}: pip install 'fastshard[images]'"
        )
    with _Converting(f"not a {kind}"):
        return getattr(plugin, name)(cast("IO[bytes]", ViewFile(view, "<view>")))


def _decode_by_pillow(
    view: memoryview, header: ImageHeader, channels: int, factor: int
) -> NDArray[Any]:
    """Decode a JPEG by Pillow."""
    image = _open_by_pillow(view, "JPEG")
    if image.size != (header.width, header.height):
        raise _fault("JPEG with two sizes", 0)
    with _Converting("not a JPEG that can be decoded"):
        if factor > 1:
            image.draft(None, (image.width // factor, image.height // factor))
        image.load()
        return _array_of(image, channels)


def _array_of(image: Any, channels: int) -> NDArray[Any]:
    """Return the pixels of a loaded image, uint8 ``[H, W, channels]``."""
    import numpy as np

    mode = image.mode
    if mode.startswith("I;16") or (mode == "I" and image.format in ("PNG", "PPM")):
        high = (np.asarray(image) >> 8).astype(np.uint8)[:, :, np.newaxis]
        return high if channels == 1 else np.repeat(high, 3, axis=2)
    if mode in ("I", "F"):
        raise _fault(f"an image of 32-bit values (mode {mode})", 0)
    # With it `convert` warns; the pixels are the same.
    image.info.pop("transparency", None)
    array = np.asarray(image.convert("L" if channels == 1 else "RGB"))
    return array.reshape(*array.shape[:2], channels)


def _orientation_of(image: Any) -> int:
    """Return the EXIF orientation that is not yet applied; 1 if it is damaged."""
    try:
        found = image.getexif().get(ORIENTATION, 1)
    except MemoryError:
        raise
    except Exception:
        return 1
    return int(found) if found in range(1, 9) else 1


def _library(name: str) -> Any:
    """Import a library once; None if it is not installed."""
    try:
        return _libraries[name]
    except KeyError:
        pass
    try:
        found = import_module(name)
    except ImportError:
        found = None
    _libraries[name] = found
    return found


class _Converting:
    """Context that converts any exception of a library into a FormatError."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if not isinstance(error, Exception):
            return
        if isinstance(error, (FastshardError, MemoryError)):
            return
        text = str(error).partition("\n")[0][:MAX_MESSAGE] or type(error).__name__
        raise _fault(f"{self._what}: {text}", 0) from error


def _fault(reason: str, at: int) -> FormatError:
    return FormatError(reason, "<view>", at)
