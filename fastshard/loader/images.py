"""Reader of one image: decoded, oriented, cropped and resized into a row of a batch."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from numbers import Integral, Real
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from fastshard._core.loader.images import (
    gray_into,
    orient_into,
    plain_shape,
    resize_into,
)
from fastshard._util.options import check_choice
from fastshard.errors import FormatError
from fastshard.loader.crops import Box, center_box, random_box, uniforms
from fastshard.loader.image_decoders import (
    DECODER_NAMES,
    ImageDecoder,
    check_pixels,
    decode_jpeg,
    decode_own,
    decode_plain,
    is_simplejpeg,
    open_image,
)
from fastshard.loader.image_header import ImageHeader, read_header
from fastshard.loader.times import current_times

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ImageOptions", "ImageReader"]

MAX_SIDE = 65_535  # of a target, pixels
MAX_RESIZED_SIDE = 1 << 24  # of a source, pixels, of `resize_into`
MAX_PIXELS = 1 << 26
MAX_INT = (1 << 63) - 1
KEPT_SCRATCH = 4 << 20  # bytes that a thread keeps of each of its memories
CHANNELS = {"RGB": 3, "L": 1}
# EXIF orientations whose first column or row is one of the stored picture's last.
MIRRORED_X = (2, 3, 6, 7)
MIRRORED_Y = (3, 4, 7, 8)


class ImageOptions(NamedTuple):
    """Options of decoding, cropping and resizing; see `Dataset.images` for each.

    `ImageOptions.checked` makes them from arguments of a user.
    """

    size: tuple[int, int] | None = None
    crop: str | None = None
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = False
    mode: str = "RGB"
    orient: bool = True
    max_pixels: int = MAX_PIXELS
    truncated: str = "error"
    decoder: str | ImageDecoder | None = None
    seed: int = 0

    @classmethod
    def checked(
        cls,
        size: int | tuple[int, int] | None = None,
        *,
        crop: str | None = None,
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        flip: bool = False,
        mode: str = "RGB",
        orient: bool = True,
        max_pixels: int = MAX_PIXELS,
        truncated: str = "error",
        decoder: str | ImageDecoder | None = None,
        seed: int = 0,
    ) -> ImageOptions:
        """Return the options of arguments, each checked."""
        shape = _check_size(size)
        check_choice("mode", mode, tuple(CHANNELS))
        check_choice("truncated", truncated, ("error", "fill"))
        check_choice("crop", crop, (None, "center", "random"))
        if crop is not None and shape is None:
            raise ValueError(f"crop={crop!r} requires a size")
        low, high = _check_pair("scale", scale)
        if high > 1:
            raise ValueError(f"scale must be at most 1, got {scale!r:.200}")
        if not callable(decoder):
            check_choice("decoder", decoder, (None, *DECODER_NAMES))
        return cls(
            shape,
            crop,
            (low, high),
            _check_pair("ratio", ratio),
            _check_bool("flip", flip),
            mode,
            _check_bool("orient", orient),
            _check_integer("max_pixels", max_pixels, 1),
            truncated,
            decoder,
            _check_integer("seed", seed, None),
        )


class ImageReader:
    """Decode images of a dataset's field, each into an array of the options' shape.

    Threads may share one; it pickles.
    """

    __slots__ = ("_channels", "_is_straight", "_max_pixels", "options")

    def __init__(self, options: ImageOptions) -> None:
        self.options = options
        self._channels = CHANNELS[options.mode]
        self._max_pixels = min(options.max_pixels, MAX_INT)
        # Plain JPEGs are decoded into the row: no crop, flip or size.
        self._is_straight = (
            options.size is None
            and not options.flip
            and not callable(options.decoder)
            and is_simplejpeg(options.decoder)
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.options,)

    def __repr__(self) -> str:
        return f"ImageReader({self.options})"

    @property
    def row_shape(self) -> tuple[int, int, int] | None:
        """Shape of each picture, ``(height, width, channels)``; None: its own."""
        size = self.options.size
        return None if size is None else (*size, CHANNELS[self.options.mode])

    def read(
        self,
        view: memoryview,
        draw: tuple[int, int] | None = None,
        out: NDArray[Any] | None = None,
    ) -> NDArray[Any]:
        """Decode an image."""
        if self._is_straight:
            found = self._read_plain(view, out)
            if found is not None:
                return found
        view = _bytes_view(view)
        if out is not None:
            _check_out(out, self.row_shape)
        picture = _Picture(self.options, draw, out)
        if callable(self.options.decoder):
            return self._read_own(self.options.decoder, view, picture)
        header = read_header(view)
        if header.kind == "JPEG":
            return self._read_jpeg(view, header, picture)
        return self._read_other(view, header, picture)

    def shape_of(self, view: memoryview) -> tuple[int, int, int] | None:
        """Return the shape of a picture by its header, or None if unknown."""
        if self.options.size is not None or callable(self.options.decoder):
            return self.row_shape
        shape = plain_shape(view, self._channels, self._max_pixels)
        if shape is not None:
            return shape
        try:
            header = read_header(_bytes_view(view))
        except FormatError:
            return None
        height, width = header.height, header.width
        if header.kind not in ("JPEG", "PNG") or header.orientation is None:
            return None
        if width * height > self.options.max_pixels:
            return None
        if self.options.orient and header.orientation >= 5:
            height, width = width, height
        return height, width, CHANNELS[self.options.mode]

    def _read_plain(
        self, view: memoryview, out: NDArray[Any] | None
    ) -> NDArray[Any] | None:
        """Decode a plain JPEG straight into the row.

        None if the picture is not plain, the row does not fit, or the decoder refuses;
        the row may be overwritten.
        """
        shape = plain_shape(view, self._channels, self._max_pixels)
        if shape is None:
            return None
        if out is None:
            out = _new(shape)
        elif not _is_row(out, shape):
            return None
        times = current_times()
        if times is None:
            return out if decode_plain(view, out) else None
        start = perf_counter_ns()
        is_decoded = decode_plain(view, out)
        times.decode += perf_counter_ns() - start
        if not is_decoded:
            return None
        times.bytes_decoded += out.nbytes
        return out

    def _read_jpeg(
        self, view: memoryview, header: ImageHeader, picture: _Picture
    ) -> NDArray[Any]:
        options = self.options
        check_pixels(header.width, header.height, options.max_pixels)
        assert header.jpeg is not None
        one = options.mode == "L" and header.jpeg.components == 1
        picture.choose_box(header.width, header.height, header.orientation or 1)
        # libjpeg always writes a lossless one at full size.
        factor = 1 if header.jpeg.is_lossless else picture.factor()
        with _Timed("decode") as timed:
            array, filled = decode_jpeg(
                view,
                header,
                1 if one else 3,
                factor,
                picture.take,
                decoder=None if callable(options.decoder) else options.decoder,
                fill=options.truncated == "fill",
            )
            timed.count(array.nbytes, filled)
        return picture.finish(array)

    def _read_other(
        self, view: memoryview, header: ImageHeader, picture: _Picture
    ) -> NDArray[Any]:
        most = self.options.max_pixels
        if header.width:
            check_pixels(header.width, header.height, most)
        with _Timed("decode") as timed:
            opened = open_image(view, header.kind, most)
            array, orientation = opened.decode(CHANNELS[self.options.mode])
            timed.count(array.nbytes, False)
        orientation = orientation if header.orientation is None else header.orientation
        picture.choose_box(array.shape[1], array.shape[0], orientation)
        return picture.finish(array)

    def _read_own(
        self, decoder: ImageDecoder, view: memoryview, picture: _Picture
    ) -> NDArray[Any]:
        orientation = 1
        if bytes(view[:2]) == b"\xff\xd8":
            header = read_header(view)
            check_pixels(header.width, header.height, self.options.max_pixels)
            orientation = header.orientation or 1
        with _Timed("decode") as timed:
            array = decode_own(decoder, view, self.options.max_pixels)
            timed.count(array.nbytes, False)
        picture.choose_box(array.shape[1], array.shape[0], orientation)
        return picture.finish(array)


class _Picture:
    """One picture between its decoded pixels and its row."""

    def __init__(
        self,
        options: ImageOptions,
        draw: tuple[int, int] | None,
        out: NDArray[Any] | None,
    ) -> None:
        self._options = options
        self._draw = draw
        self._out = out
        self._channels = CHANNELS[options.mode]
        self._orientation = 1
        self._flip = False
        self._sides = (0, 0)  # oriented height and width
        self._box: Box | None = None  # of the oriented picture; None: all of it

    def choose_box(self, width: int, height: int, orientation: int) -> None:
        """Choose box and flip for a stored size and an orientation."""
        options = self._options
        self._orientation = orientation = orientation if options.orient else 1
        if orientation >= 5:
            width, height = height, width
        self._sides = height, width
        if options.size is not None and max(width, height) > MAX_RESIZED_SIDE:
            raise FormatError(
                f"an image of {width:,} x {height:,} pixels: sides above "
                f"{MAX_RESIZED_SIDE:,} cannot be resized",
                "<view>",
                0,
            )
        if options.flip or options.crop == "random":
            if self._draw is None:
                raise ValueError(
                    "random crops and flips require draw=(epoch, position)"
                )
            draws = uniforms(options.seed, *self._draw)
            self._flip = next(draws) < 0.5 and options.flip
        if options.size is None:
            if self._out is not None:
                _check_out(self._out, (height, width, self._channels))
        elif options.crop == "random":
            scale, ratio = options.scale, options.ratio
            self._box = random_box(width, height, scale, ratio, draws)
        elif options.crop == "center":
            self._box = center_box(width, height, options.size)
        else:
            self._box = (0.0, 0.0, float(width), float(height))

    def factor(self) -> int:
        """Return the largest of 1, 2, 4, 8 by which the crop stays the target's size.

        Scales the box to the smaller picture.
        """
        if self._box is None or self._options.size is None:
            return 1
        x0, y0, x1, y1 = self._box
        high, wide = self._options.size
        for k in (8, 4, 2):
            if x1 - x0 >= wide * k and y1 - y0 >= high * k:
                height, width = self._sides
                self._sides = -(-height // k), -(-width // k)
                # The last block is partial: when mirrored it comes first.
                right = -width % k if self._orientation in MIRRORED_X else 0
                down = -height % k if self._orientation in MIRRORED_Y else 0
                self._box = (
                    (x0 + right) / k,
                    (y0 + down) / k,
                    (x1 + right) / k,
                    (y1 + down) / k,
                )
                return k
        return 1

    def take(self, shape: tuple[int, int, int]) -> NDArray[Any]:
        """Return memory to decode into: the row itself if no step follows."""
        if self._is_final(shape):
            if self._out is None:
                self._out = _new(shape)
            if self._out.flags.c_contiguous:
                return self._out
        return _scratch.take(0, shape)

    def finish(self, array: NDArray[Any]) -> NDArray[Any]:
        """Orient, crop and resize decoded pixels into the row."""
        out = self._out
        if array is out:
            return array
        with _Timed("resize"):
            if array.shape[2] != self._channels:
                array = _with_channels(array, self._channels)
            shape = (*(self._options.size or self._sides), self._channels)
            if out is None:
                out = _new(shape)
            if self._is_final(array.shape):
                out[...] = array
                return out
            if self._box is None:
                orient_into(array, out, self._orientation, self._flip)
                return out
            if self._orientation != 1:
                turned = _scratch.take(1, (*self._sides, self._channels))
                orient_into(array, turned, self._orientation)
                array = turned
            resize_into(array, self._box, out, flip=self._flip)
        return out

    def _is_final(self, shape: tuple[int, ...]) -> bool:
        """Return whether decoded pixels of a shape are the row's."""
        if self._orientation != 1 or self._flip or shape[2] != self._channels:
            return False
        if self._box is None:
            return True
        whole = (0.0, 0.0, float(shape[1]), float(shape[0]))
        return self._box == whole and self._options.size == shape[:2]


class _Scratch(threading.local):
    """Scratch memory of a thread for pictures."""

    def __init__(self) -> None:
        # Decoded, oriented, gray.
        self._kept: list[NDArray[Any] | None] = [None] * 3

    def take(self, slot: int, shape: tuple[int, int, int]) -> NDArray[Any]:
        """Return uninitialized memory, valid until the thread's next call."""
        nbytes = shape[0] * shape[1] * shape[2]
        if nbytes > KEPT_SCRATCH:
            return _new(shape)
        kept = self._kept[slot]
        if kept is None or len(kept) < nbytes:
            kept = self._kept[slot] = _new((nbytes,))
        return kept[:nbytes].reshape(shape)


_scratch = _Scratch()


class _Timed:
    """Context that adds its duration to a step of the thread's times."""

    __slots__ = ("_start", "_step", "_times")

    def __init__(self, step: str) -> None:
        self._step = step
        self._times = current_times()
        self._start = 0

    def __enter__(self) -> _Timed:
        if self._times is not None:
            self._start = perf_counter_ns()
        return self

    def __exit__(self, *error: object) -> None:
        times = self._times
        if times is not None:
            spent = perf_counter_ns() - self._start
            setattr(times, self._step, getattr(times, self._step) + spent)

    def count(self, nbytes: int, filled: bool) -> None:
        if self._times is not None:
            self._times.bytes_decoded += nbytes
            self._times.filled += filled


def _new(shape: tuple[int, ...]) -> NDArray[Any]:
    import numpy as np

    return np.empty(shape, np.uint8)


def _with_channels(array: NDArray[Any], channels: int) -> NDArray[Any]:
    """Convert a picture of 1, 3 or 4 channels to 1 or 3."""
    import numpy as np

    if array.shape[2] == 4:
        array = np.ascontiguousarray(array[:, :, :3])
    if array.shape[2] == channels:
        return array
    if channels == 3:
        return np.repeat(array, 3, axis=2)
    gray = _scratch.take(2, (*array.shape[:2], 1))
    gray_into(array, gray)
    return gray


def _bytes_view(stored: Any) -> memoryview:
    view = memoryview(stored)
    if view.format == "B" and view.ndim == 1 and view.contiguous:
        return view
    return view.cast("B") if view.contiguous else memoryview(view.tobytes())


def _is_row(out: Any, shape: tuple[int, int, int]) -> bool:
    """Return whether an object is a C-contiguous array for a picture."""
    import numpy as np

    if type(out) is not np.ndarray or out.shape != shape or out.dtype != np.uint8:
        return False
    flags = out.flags
    return bool(flags.c_contiguous and flags.writeable)


def _check_out(out: Any, shape: tuple[int, int, int] | None) -> None:
    import numpy as np

    wanted = "[height, width, channels]" if shape is None else str(shape)
    if (
        not isinstance(out, np.ndarray)
        or out.dtype != np.uint8
        or out.ndim != 3
        or (shape is not None and out.shape != shape)
        or not out.flags.writeable
        or (out.size and out.strides[1:] != (out.shape[2], 1))
    ):
        got = type(out).__name__
        if isinstance(out, np.ndarray):
            kind = "" if out.flags.writeable else "read-only "
            got = f"{kind}{out.dtype} {out.shape} of strides {out.strides}"
        raise ValueError(
            f"out must be a writable uint8 array {wanted} with contiguous pixels in "
            f"each row, got {got}"
        )


def _check_size(size: Any) -> tuple[int, int] | None:
    if size is None:
        return None
    sides = (size, size)
    if isinstance(size, Iterable) and not isinstance(size, (str, bytes)):
        sides = tuple(size)
    if len(sides) != 2 or any(
        isinstance(side, bool) or not isinstance(side, Integral) for side in sides
    ):
        raise TypeError(f"size must be an int or (height, width), got {size!r:.200}")
    if not all(1 <= side <= MAX_SIDE for side in sides):
        raise ValueError(f"size must be 1 to {MAX_SIDE:,} pixels, got {size!r:.200}")
    return int(sides[0]), int(sides[1])


def _check_pair(name: str, value: Any) -> tuple[float, float]:
    pair = tuple(value) if isinstance(value, (tuple, list)) else ()
    if len(pair) != 2 or any(
        isinstance(one, bool) or not isinstance(one, Real) for one in pair
    ):
        raise TypeError(f"{name} must be two numbers, got {value!r:.200}")
    low, high = float(pair[0]), float(pair[1])
    if not 0 < low <= high < float("inf"):
        raise ValueError(f"{name} must be (low, high) above 0, got {value!r:.200}")
    return low, high


def _check_bool(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a bool, got {type(value).__name__}")
    return value


def _check_integer(name: str, value: Any, least: int | None) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if least is not None and value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return int(value)
