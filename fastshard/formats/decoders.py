"""From a field's bytes to a value, by the field's extension."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any, TypeAlias, cast

from fastshard._util.viewfile import ViewFile
from fastshard.errors import FastshardError, FormatError, MissingLibraryError

if TYPE_CHECKING:
    import PIL.Image  # type: ignore[import-not-found, unused-ignore]
    from numpy.typing import NDArray

__all__ = [
    "DECODERS",
    "Decoder",
    "NpzDecoder",
    "decode_field",
    "decoder_for",
    "is_of_data",
]

Decoder: TypeAlias = Callable[[memoryview], Any]

# Those that are tried, whatever a field's name says: no other of Pillow's readers
# meets bytes that it is not meant for (one of them starts Ghostscript).
IMAGES = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
DIGITS = re.compile(rb"\s*[+-]?[0-9]+\s*")
MAX_DIGITS = 64  # bytes
MAX_ARRAY_BYTES = 4 << 30  # bytes that one npz may take when it is decompressed
MAX_MESSAGE = 200  # characters that another library's message may have
# What a decoder raises for a mistake in itself rather than in a field's bytes.
MISTAKES = (
    AssertionError,
    AttributeError,
    ImportError,
    MemoryError,
    NameError,
    NotImplementedError,
    TypeError,
)
OF_DATA = "_fastshard_of_data"  # set on the errors of decoders

_array_on: Callable[[memoryview], NDArray[Any]] | None = None  # when first used


def decode_field(
    decoder: Decoder, view: memoryview, path: str, offset: int, member: str
) -> Any:
    """Decode a field, and say of an error where it happened.

    Parameters
    ----------
    decoder : callable
        Of `DECODERS`, or a caller's own.
    view : memoryview
        The field's bytes.
    path, offset, member : str, int, str
        The shard, where the field begins in it (bytes), and the member's name.

    Raises
    ------
    FormatError
        One of `DECODERS` refuses the bytes.
    FastshardError
        It needs a library that is not installed.
    Exception
        What a caller's own decoder raises, with a note that says where. `is_of_data`
        tells whether the bytes may be the cause.
    """
    try:
        return decoder(view)
    except FormatError as error:
        ours = isinstance(decoder, NpzDecoder)
        if ours or any(decoder is one for one in DECODERS.values()):
            where = offset + error.offset
            raise FormatError(error.reason, path, where, member) from error.__cause__
        error.add_note(f"decoding member {member!r} of {path}")
        raise
    except Exception as error:
        error.add_note(f"decoding member {member!r} of {path}")
        if not isinstance(error, MISTAKES):
            setattr(error, OF_DATA, True)
        raise


def is_of_data(error: Exception) -> bool:
    """Say whether an error is one that a decoder raised for a field's bytes."""
    return getattr(error, OF_DATA, False) is True


def decoder_for(
    field: str, decoders: Mapping[str, Decoder] | None = None
) -> Decoder | None:
    """Return the decoder of a field, or None where its extension has none.

    The longest extension counts: for ``cam.seg.png`` that of ``cam.seg.png``,
    else of ``seg.png``, else of ``png``. Case does not matter.

    Parameters
    ----------
    field : str
        The field's name.
    decoders : Mapping of str to callable, optional
        More decoders by extension; they win against `DECODERS` of the same one.

    Raises
    ------
    TypeError
        A decoder among them cannot be called.
    """
    own = {}
    for extension, decoder in (decoders or {}).items():
        if not callable(decoder):
            raise TypeError(f"the decoder of {extension!r} is not callable")
        own[extension.lower().removeprefix(".")] = decoder
    rest = field.lower()
    while rest:
        found = own.get(rest) or DECODERS.get(rest)
        if found is not None:
            return found
        rest = rest.partition(".")[2]
    return None


def decode_binary(view: memoryview) -> memoryview:
    """Return the bytes as they are, without a copy."""
    return view


def decode_text(view: memoryview) -> str:
    """Decode UTF-8."""
    try:
        return str(view, "utf-8")
    except UnicodeDecodeError as error:
        raise _fault(f"not UTF-8: {error.reason}", error.start) from error


def decode_json(view: memoryview) -> Any:
    """Parse JSON in UTF-8."""
    import json

    text = decode_text(view)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        at = len(text[: error.pos].encode())
        raise _fault(f"not JSON: {error.msg}", at) from error
    except RecursionError as error:
        raise _fault("JSON that is nested too deep", 0) from error
    except ValueError as error:  # an integer of too many digits
        raise _fault(f"not JSON: {error}", 0) from error


def decode_integer(view: memoryview) -> int:
    """Read an integer in decimal digits; blanks may surround it."""
    text = bytes(view[: MAX_DIGITS + 1])
    if len(text) > MAX_DIGITS or not DIGITS.fullmatch(text):
        raise _fault("not an integer", 0)
    return int(text)


def decode_npy(view: memoryview) -> NDArray[Any]:
    """Return the array that ``.npy`` bytes hold, without a copy."""
    global _array_on
    if _array_on is None:  # an import statement costs 0.5 us each time
        from fastshard._core.dataset import npy as arrays

        _array_on = arrays.array_from_buffer
    return _array_on(view)


class NpzDecoder:
    """Decoder of ``.npz`` bytes to arrays by name, as `read_npz` does it.

    Pass one as a decoder to bound the memory that one field may take:
    ``fastshard.open(source, decoders={"npz": NpzDecoder(max_array_bytes="1GiB")})``.

    Parameters
    ----------
    max_array_bytes : int or str
        How many bytes the compressed arrays of one field may take together when they
        are decompressed, as a number or as ``"1GiB"``. A field that needs more is a
        `FormatError`, before memory is taken. Arrays that are stored as they are
        stay where they are, and count nothing.
    """

    __slots__ = ("max_array_bytes",)

    def __init__(self, max_array_bytes: int | str = MAX_ARRAY_BYTES) -> None:
        if max_array_bytes != MAX_ARRAY_BYTES:
            from fastshard._util.sizes import parse_size  # slow to import

            max_array_bytes = parse_size(max_array_bytes)
        self.max_array_bytes = int(max_array_bytes)

    def __call__(self, view: memoryview) -> dict[str, NDArray[Any]]:
        from fastshard.formats.npz import read_npz

        return read_npz(view, max_array_bytes=self.max_array_bytes)

    def __repr__(self) -> str:
        return f"NpzDecoder(max_array_bytes={self.max_array_bytes})"


def decode_image(view: memoryview) -> PIL.Image.Image:
    """Decode an image with Pillow: its first frame, in the mode it is stored in.

    Pillow's limit on the number of pixels holds.
    """
    with _needing("Pillow", "images"):
        import PIL.Image  # type: ignore[import-not-found, unused-ignore]
    with _refusing("not an image"):
        try:
            image = PIL.Image.open(_file_of(view), formats=IMAGES)
        except PIL.UnidentifiedImageError as error:
            known = ", ".join(IMAGES)
            raise _fault(f"not an image of a kind that is read ({known})", 0) from error
        image.load()
    return image


def decode_msgpack(view: memoryview) -> Any:
    """Unpack one msgpack object: text in UTF-8, keys str or bytes."""
    with _needing("msgpack", "msgpack"):
        import msgpack  # type: ignore[import-not-found, import-untyped, unused-ignore]
    with _refusing("not msgpack"):
        return msgpack.unpackb(view, raw=False, strict_map_key=True)


def decode_torch(view: memoryview) -> Any:
    """Load what ``torch.save`` wrote, onto the CPU: tensors and plain containers."""
    with _needing("torch", "torch"):
        import torch  # type: ignore[import-not-found, unused-ignore]
    with _refusing("not a torch file of weights only"):
        return torch.load(_file_of(view), map_location="cpu", weights_only=True)


BINARY: dict[str, Decoder] = {
    "bin": decode_binary,
    "npy": decode_npy,
    "npz": NpzDecoder(),
}
# By extension. Pickles are left out: an unknown extension gives the view.
DECODERS: Mapping[str, Decoder] = MappingProxyType(
    BINARY
    | dict.fromkeys(("json", "jsn"), decode_json)
    | dict.fromkeys(("txt", "text", "transcript"), decode_text)
    | dict.fromkeys(
        ("cls", "cls2", "class", "count", "index", "inx", "id"), decode_integer
    )
    | dict.fromkeys(("jpg", "jpeg", "png", "webp", "gif", "bmp"), decode_image)
    | dict.fromkeys(("tif", "tiff", "ppm", "pgm", "pbm", "pnm"), decode_image)
    | dict.fromkeys(("mp", "msg", "msgpack"), decode_msgpack)
    | dict.fromkeys(("pt", "pth"), decode_torch)
)


def _fault(reason: str, at: int) -> FormatError:
    """A fault at a byte of the view; `decode_field` knows where that lies."""
    return FormatError(reason, "<view>", at)


def _file_of(view: memoryview) -> IO[bytes]:
    return cast("IO[bytes]", ViewFile(view, "<view>"))


@contextmanager
def _needing(library: str, extra: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise MissingLibraryError(
            f"{library} is needed to decode this field: "
            f"pip install 'fastshard[{extra}]' ({error})"
        ) from error


@contextmanager
def _refusing(what: str) -> Iterator[None]:
    """Turn whatever a library makes of bad bytes into one error."""
    try:
        yield
    except (FastshardError, MemoryError):
        raise
    except Exception as error:
        text = str(error).partition("\n")[0][:MAX_MESSAGE] or type(error).__name__
        raise _fault(f"{what}: {text}", 0) from error
