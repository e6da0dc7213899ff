"""Decoders of fields to values, by extension."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any, TypeAlias, cast

from fastshard._util.json import parse_value
from fastshard._util.viewfile import ViewFile
from fastshard.codecs import images
from fastshard.codecs.libraries import import_library
from fastshard.errors import FastshardError, FormatError

if TYPE_CHECKING:
    import PIL.Image  # type: ignore[import-not-found, unused-ignore]
    from numpy.typing import NDArray

__all__ = [
    "DECODERS",
    "Decoder",
    "NpzDecoder",
    "ValueDecoder",
    "decode_field",
    "decoder_for",
    "is_data_error",
    "kind_of",
    "kind_of_decoder",
    "locate_error",
    "open_image",
    "own_decoder",
]

Decoder: TypeAlias = Callable[[memoryview], Any]

DIGITS = re.compile(rb"\s*[+-]?[0-9]+\s*")
MAX_DIGITS = 64  # bytes
MAX_ARRAY_BYTES = 4 << 30  # decompressed bytes of one npz, at most
MAX_MESSAGE = 200  # characters of another library's message, at most
# Exceptions that indicate a fault in a decoder rather than in a field's bytes.
CODE_ERRORS = (
    AssertionError,
    AttributeError,
    ImportError,
    MemoryError,
    NameError,
    NotImplementedError,
    TypeError,
)
# Attribute of exceptions that data may have caused; pickles of exceptions hold it.
DATA_ERROR = "_fastshard_of_data"

_array_from_buffer: Callable[[memoryview], NDArray[Any]] | None = (
    None  # set at first use
)


class ValueDecoder:
    """Decoder of a format's own, which tells the kind of its values.

    Parameters
    ----------
    decode : callable
    kind : str
        As of `FieldInfo`.
    names_bytes : bool
        Whether the offsets of its FormatErrors are those in the field.
    """

    __slots__ = ("_decode", "kind", "names_bytes")

    def __init__(
        self, decode: Decoder, kind: str, *, names_bytes: bool = False
    ) -> None:
        self._decode = decode
        self.kind = kind
        self.names_bytes = names_bytes

    def __call__(self, view: memoryview) -> Any:
        return self._decode(view)


def decode_field(
    decoder: Decoder, view: memoryview, path: str, offset: int, member: str
) -> Any:
    """Decode a field; errors name its shard and member.

    Parameters
    ----------
    decoder : callable
        One of `DECODERS`, or one of the caller.
    view : memoryview
        The field's bytes.
    path : str
        Path of the shard.
    offset : int
        Offset of the field in the shard, in bytes.
    member : str
        Name of the member.

    Returns
    -------
    object
        The decoder's result.

    Raises
    ------
    FormatError
        The bytes are invalid for one of `DECODERS`.
    MissingLibraryError
        The decoder needs a library that is not installed.
    Exception
        Exceptions of the caller's decoder, with a note that names shard and member.
        `is_data_error` tells whether the bytes may be the cause.

    Examples
    --------
    >>> from fastshard.formats.decoders import DECODERS, decode_field
    >>> decode_field(DECODERS["cls"], memoryview(b"7"), "a.tar", 512, "7.cls")
    7
    >>> decode_field(DECODERS["cls"], memoryview(b"?"), "a.tar", 512, "7.cls")
    Traceback (most recent call last):
        ...
    fastshard.errors.FormatError: not an integer - at member '7.cls' of a.tar, byte 512
    """
    try:
        return decoder(view)
    except Exception as error:
        names_bytes = getattr(decoder, "names_bytes", False)
        if not names_bytes:
            names_bytes = any(decoder is known for known in DECODERS.values())
        located = locate_error(error, path, offset, member, names_bytes=names_bytes)
        if located is error:
            raise
        raise located from error.__cause__


def locate_error(
    error: Exception, path: str, offset: int, member: str, *, names_bytes: bool
) -> Exception:
    """Return the exception of a decoder with shard and member named.

    Parameters
    ----------
    error : Exception
    path, offset, member
        As for `decode_field`.
    names_bytes : bool
        Whether the offset of a `FormatError` is that of a byte of the field.

    Returns
    -------
    Exception
        A new FormatError, or `error` itself with a note.
    """
    if isinstance(error, FormatError) and names_bytes:
        return FormatError(error.reason, path, offset + error.offset, member)
    error.add_note(f"decoding member {member!r} of {path}")
    if not isinstance(error, (FormatError, *CODE_ERRORS)):
        setattr(error, DATA_ERROR, True)
    return error


def is_data_error(error: Exception) -> bool:
    """Return whether a decoder's error may be due to the field's bytes.

    Iterations with ``on_error="skip"`` pass over such errors.

    Parameters
    ----------
    error : Exception
        An exception that `decode_field` raised.

    Returns
    -------
    bool
        False for mistakes of the decoder's own code: TypeError, NameError and the like.

    Examples
    --------
    >>> from fastshard.formats.decoders import decode_field, is_data_error
    >>> def decode_flag(view):
    ...     return {b"yes": True, b"no": False}[bytes(view)]
    >>> try:
    ...     decode_field(decode_flag, memoryview(b"?"), "train.tar", 512, "000042.flag")
    ... except KeyError as error:
    ...     print(is_data_error(error))
    True
    """
    return getattr(error, DATA_ERROR, False) is True


def own_decoder(field: str, decoders: Mapping[str, Decoder] | None) -> Decoder | None:
    """Return the user's decoder of a field's longest suffix, or None."""
    if not decoders:
        return None
    own = {}
    for extension, decoder in decoders.items():
        if not callable(decoder):
            raise TypeError(f"the decoder of {extension!r} is not callable")
        own[extension.lower().removeprefix(".")] = decoder
    rest = field.lower()
    while rest:
        if rest in own:
            return own[rest]
        rest = rest.partition(".")[2]
    return None


def decoder_for(
    field: str, decoders: Mapping[str, Decoder] | None = None
) -> Decoder | None:
    """Return the decoder of a field's longest known extension, or None.

    For ``cam.seg.png`` the extensions are ``cam.seg.png``, ``seg.png`` and ``png``, in
    this order. Case is ignored.

    Parameters
    ----------
    field : str
        The field's name.
    decoders : Mapping of str to callable, optional
        Further decoders by extension, which override `DECODERS`.

    Returns
    -------
    callable or None
        It takes the field's bytes as a memoryview.

    Raises
    ------
    TypeError
        One of `decoders` is not callable.

    Examples
    --------
    >>> from fastshard.formats.decoders import decoder_for
    >>> decoder_for("cam.json")(memoryview(b"[1, 2]"))
    [1, 2]
    >>> decoder_for("dat") is None
    True
    """
    own = own_decoder(field, decoders) if decoders else None
    return DECODERS.get(field.lower().rpartition(".")[2]) if own is None else own


def kind_of(field: str, decoders: Mapping[str, Decoder] | None = None) -> str:
    """Return the kind of a field by its extension."""
    return kind_of_decoder(decoder_for(field, decoders))


def kind_of_decoder(decoder: Decoder | None) -> str:
    """Return the kind of the values of a decoder."""
    if decoder is None or decoder is DECODERS["bin"]:
        return "bytes"
    if isinstance(decoder, NpzDecoder):
        return "arrays"
    kind = getattr(decoder, "kind", None)  # a format's own decoders tell theirs
    if isinstance(kind, str):
        return kind
    try:
        return KINDS.get(decoder, "object")
    except TypeError:  # an unhashable decoder
        return "object"


def decode_binary(view: memoryview) -> memoryview:
    """Return the view itself."""
    return view


def decode_text(view: memoryview) -> str:
    """Decode UTF-8."""
    try:
        return str(view, "utf-8")
    except UnicodeDecodeError as error:
        raise _fault(f"not UTF-8: {error.reason}", error.start) from error


def decode_json(view: memoryview) -> Any:
    """Parse JSON in UTF-8, which a byte order mark may precede."""
    return parse_value(view, "<view>")


def decode_integer(view: memoryview) -> int:
    """Parse a decimal integer, which blanks may surround."""
    text = bytes(view[: MAX_DIGITS + 1])
    if len(text) > MAX_DIGITS or not DIGITS.fullmatch(text):
        raise _fault("not an integer", 0)
    return int(text)


def decode_npy(view: memoryview) -> NDArray[Any]:
    """Return the array of a ``.npy`` file, without a copy."""
    global _array_from_buffer
    if _array_from_buffer is None:  # a repeated import statement costs 0.5 us
        from fastshard._core.dataset import npy as arrays

        _array_from_buffer = arrays.array_from_buffer
    return _array_from_buffer(view)


class NpzDecoder:
    """Decode ``.npz`` files to arrays by name, within a bound of memory.

    Uncompressed arrays are views of the shard. Compressed ones are decompressed into
    memory of the size that their headers tell; arrays of Python objects are refused.
    The default decoder of npz fields is ``NpzDecoder()``.

    Parameters
    ----------
    max_array_bytes : int or str
        Total size of a field's compressed arrays after decompression, at most, as a
        number or as ``"1GiB"``; 4 GiB. A field that exceeds it raises a `FormatError`
        before memory is allocated. Uncompressed arrays are not copied and do not count.

    Attributes
    ----------
    max_array_bytes : int
        Bytes.

    Raises
    ------
    ValueError
        `max_array_bytes` is not a size.

    Examples
    --------
    >>> import numpy as np
    >>> import fastshard
    >>> from fastshard.formats.decoders import NpzDecoder
    >>> with fastshard.ShardWriter("poses-{:04d}.tar") as writer:
    ...     arrays = {"xy": np.zeros(2), "id": np.arange(3)}
    ...     writer.write({"__key__": "a", "npz": arrays})
    >>> ds = fastshard.open("poses-*.tar", decoders={"npz": NpzDecoder("1GiB")})
    >>> ds[0].decode()["npz"]
    {'xy': array([0., 0.]), 'id': array([0, 1, 2])}
    """

    __slots__ = ("max_array_bytes",)
    names_bytes = True  # the offsets of its FormatErrors are those in the field

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
    """Decode an image's first frame with Pillow, in its stored mode.

    Pillow's limit on the number of pixels applies.
    """
    image = open_image(_file_of(view))
    with _convert_errors("not an image"):
        image.load()
    return image


def open_image(file: IO[bytes], *, rare: bool = False) -> PIL.Image.Image:
    """Open an untrusted image with Pillow; its pixels are decoded at first use.

    With `rare` also of the kinds that some builds of Pillow lack.
    """
    need = "Pillow is needed to decode this field"
    pillow = import_library("PIL", need, "'fastshard[images]'")
    with _convert_errors("not an image"):
        try:
            return images.open_image(file, rare=rare)
        except pillow.UnidentifiedImageError as error:
            kinds = images.READERS + (images.RARE_READERS if rare else ())
            known = ", ".join(kinds)
            raise _fault(f"not an image of a known kind ({known})", 0) from error


def decode_msgpack(view: memoryview) -> Any:
    """Unpack one msgpack object, with UTF-8 text and keys of type str or bytes."""
    need = "msgpack is needed to decode this field"
    msgpack = import_library("msgpack", need, "'fastshard[msgpack]'")
    with _convert_errors("not msgpack"):
        return msgpack.unpackb(view, raw=False, strict_map_key=True)


def decode_torch(view: memoryview) -> Any:
    """Load a file of ``torch.save`` onto the CPU: tensors and plain containers."""
    need = "torch is needed to decode this field"
    torch = import_library("torch", need, "'fastshard[torch]'")
    with _convert_errors("not a torch file of weights only"):
        return torch.load(_file_of(view), map_location="cpu", weights_only=True)


BINARY: dict[str, Decoder] = {
    "bin": decode_binary,
    "npy": decode_npy,
    "npz": NpzDecoder(),
}
# By extension. Pickles have no decoder, so that they are returned as views.
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


KINDS: dict[Any, str] = {  # of `FieldInfo`, by decoder
    decode_npy: "array",
    decode_image: "image",
    decode_integer: "int",
    decode_json: "json",
    decode_msgpack: "msgpack",
    decode_text: "text",
    decode_torch: "torch",
}


def _fault(reason: str, at: int) -> FormatError:
    """Return the error at a byte of the view; `decode_field` adds shard and offset."""
    return FormatError(reason, "<view>", at)


def _file_of(view: memoryview) -> IO[bytes]:
    return cast("IO[bytes]", ViewFile(view, "<view>"))


@contextmanager
def _convert_errors(what: str) -> Iterator[None]:
    """Convert any exception of a library into a FormatError."""
    try:
        yield
    except (FastshardError, MemoryError):
        raise
    except Exception as error:
        text = str(error).partition("\n")[0][:MAX_MESSAGE] or type(error).__name__
        raise _fault(f"{what}: {text}", 0) from error
