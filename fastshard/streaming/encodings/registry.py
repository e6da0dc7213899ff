"""MDS encodings by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from fastshard.streaming.encodings.arrays import NDArrayEncoding
from fastshard.streaming.encodings.base import Buffer, Encoding
from fastshard.streaming.encodings.images import (
    ImageListEncoding,
    JPEGArrayEncoding,
    JPEGEncoding,
    PILEncoding,
    PNGEncoding,
)
from fastshard.streaming.encodings.numbers import (
    IntEncoding,
    ScalarEncoding,
    StrDecimalEncoding,
    StrFloatEncoding,
    StrIntEncoding,
)
from fastshard.streaming.encodings.text import (
    BytesEncoding,
    JSONEncoding,
    PickleEncoding,
    StrEncoding,
)

__all__ = [
    "SCALARS",
    "find_encoding",
    "get_mds_encoded_size",
    "get_mds_encodings",
    "is_mds_encoding",
    "is_mds_encoding_safe",
    "mds_decode",
    "mds_decoder",
    "mds_encode",
    "mds_encoder",
    "mds_size",
    "register_encoding",
]

SCALARS = (
    *("uint8", "uint16", "uint32", "uint64"),
    *("int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64"),
)


class CustomEncoding(Protocol):
    """A user's encoding."""

    @property
    def size(self) -> int | None: ...
    def encode(self, obj: Any, /) -> bytes: ...
    def decode(self, data: bytes, /) -> Any: ...


BUILT_IN: dict[str, Callable[[], Encoding]] = {
    "bytes": BytesEncoding,
    "str": StrEncoding,
    "int": IntEncoding,
    "ndarray": NDArrayEncoding,
    **{name: partial(ScalarEncoding, name) for name in SCALARS},
    "str_int": StrIntEncoding,
    "str_float": StrFloatEncoding,
    "str_decimal": StrDecimalEncoding,
    "pil": PILEncoding,
    "jpeg": JPEGEncoding,
    "jpeg_array": JPEGArrayEncoding,
    "jpegarray": JPEGArrayEncoding,
    "png": PNGEncoding,
    "list[pil]": lambda: ImageListEncoding(PILEncoding()),
    "list[jpeg]": lambda: ImageListEncoding(JPEGEncoding()),
    "list[png]": lambda: ImageListEncoding(PNGEncoding()),
    "pkl": PickleEncoding,
    "json": JSONEncoding,
}

_registered: dict[str, CustomEncoding] = {}


def register_encoding(name: str, cls: Callable[[], CustomEncoding]) -> None:
    """Add an encoding of one's own to those that MDS columns can have.

    It counts for this process: a module that registers it is imported also where
    workers are spawned. A later encoding of the same name replaces it, also in datasets
    and readers that are open; writers keep the one that they began with.

    Parameters
    ----------
    name : str
        The encoding's name in ``columns=``, without a colon.
    cls : class
        Called without arguments. Its objects have ``encode(obj)``, which returns
        bytes, ``decode(data)``, which takes bytes, and ``size``, the number of bytes of
        each encoded value, or None if it varies.

    Raises
    ------
    ValueError
        The name is that of one of the format's own encodings, or is not a name.
    TypeError
        The class has no `encode`, `decode` or `size`.

    Examples
    --------
    >>> import datetime
    >>> from fastshard.streaming import MDSWriter, register_encoding
    >>> class Date:
    ...     size = 4
    ...
    ...     def encode(self, obj):
    ...         return obj.toordinal().to_bytes(4, "little")
    ...
    ...     def decode(self, data):
    ...         return datetime.date.fromordinal(int.from_bytes(data, "little"))
    >>> register_encoding("date", Date)
    >>> with MDSWriter(out="days", columns={"day": "date"}) as writer:
    ...     writer.write({"day": datetime.date(2026, 1, 31)})
    """
    if name in BUILT_IN:
        raise ValueError(f"{name!r} is an encoding of the format")
    if not name or ":" in name:
        raise ValueError(f"the name of an encoding has no colon, got {name!r}")
    encoding = cls()
    for method in ("encode", "decode"):
        if not callable(getattr(encoding, method, None)):
            raise TypeError(f"an encoding needs a method {method}, {cls!r} lacks it")
    size = getattr(encoding, "size", "nothing")
    if not (size is None or (isinstance(size, int) and size > 0)):
        raise TypeError(f"size must be a positive int or None, got {size!r}")
    _registered[name] = encoding


def find_encoding(encoding: str) -> Encoding | CustomEncoding:
    """Return the encoding of a name such as ``"ndarray:uint8:3,4"``."""
    name, colon, config = encoding.partition(":")
    if not colon:
        if name in _registered:
            return _registered[name]
        if name in BUILT_IN:
            return BUILT_IN[name]()
    elif name == "ndarray":
        try:
            return NDArrayEncoding.from_str(config)
        except ValueError as error:
            raise ValueError(f"Unsupported encoding: {encoding}. ({error})") from error
    raise ValueError(f"Unsupported encoding: {encoding}.")


def mds_decoder(encoding: str, unsafe: bool = False) -> Callable[[Buffer], Any]:
    """Return the function that decodes fields of an encoding.

    It raises a FormatError for bytes that are not of the encoding, whose `offset`
    counts from the field's first byte.
    """
    found = find_encoding(encoding)
    if not isinstance(found, Encoding):
        # Plans keep the decoder; an encoding that is registered later replaces it.
        return lambda data: _registered[encoding].decode(bytes(data))
    if not (found.safe or unsafe):
        raise ValueError(
            f"encoding {encoding!r} can run any code: allow_unsafe_types=True decodes "
            "it, for data of a trusted source"
        )
    return found.decode


def mds_encoder(encoding: str) -> Callable[[Any], bytes]:
    """Return the function that encodes values; bytes are stored unchanged."""
    found = find_encoding(encoding)
    encode = found.encode

    def encode_value(obj: Any) -> bytes:
        return obj if isinstance(obj, bytes) else encode(obj)

    def encode_checked(obj: Any) -> bytes:
        data = obj if isinstance(obj, bytes) else encode(obj)
        if not isinstance(data, bytes):
            raise TypeError(
                f"encoding {encoding!r} returned {type(data).__name__}, not bytes"
            )
        return data

    return encode_value if isinstance(found, Encoding) else encode_checked


def mds_size(encoding: str) -> int | None:
    """Return the size of each field in bytes; None if it varies."""
    return find_encoding(encoding).size


def mds_decode(encoding: str, data: Buffer, *, unsafe: bool = False) -> Any:
    """Decode one field; see `mds_decoder`."""
    return mds_decoder(encoding, unsafe)(data)


def mds_encode(encoding: str, obj: Any) -> bytes:
    """Encode one value; see `mds_encoder`."""
    return mds_encoder(encoding)(obj)


get_mds_encoded_size = mds_size


def get_mds_encodings() -> set[str]:
    """Return the names of all encodings."""
    return {*BUILT_IN, *_registered}


def is_mds_encoding(encoding: str) -> bool:
    """Return whether an encoding exists."""
    try:
        find_encoding(encoding)
    except ValueError:
        return False
    return True


def is_mds_encoding_safe(encoding: str) -> bool:
    """Return whether any bytes can be decoded without running code."""
    return encoding != "pkl"
