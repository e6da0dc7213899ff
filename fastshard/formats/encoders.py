"""Encoders of values to a field's bytes, by the last suffix of its name.

The suffixes are WebDataset's. Bytes are stored unchanged in any field. Nothing is
pickled.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fastshard._util.json import parse_json
from fastshard._util.writing.dtypes import explain_unnamed
from fastshard.codecs.libraries import import_library
from fastshard.errors import FormatError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Payload", "encode"]

Payload = bytes | bytearray | memoryview  # a view has one dimension, format "B"

EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that zip can represent


def encode(field: str, value: object) -> Payload:
    """Return the bytes to store for a field's value, as `ShardWriter.write` does.

    Parameters
    ----------
    field : str
        Its last suffix chooses the encoder; case is ignored.
    value : object
        Bytes-like values are returned unchanged.

    Raises
    ------
    TypeError
        The value has a type that the field's encoder does not accept.
    ValueError
        The value cannot be encoded: NaN in JSON, an array of objects or of a dtype
        that npy does not name, ...
    FastshardError
        The library of the encoder is not installed.

    Examples
    --------
    >>> import numpy as np
    >>> from fastshard.formats.encoders import encode
    >>> encode("cls", 7), encode("caption.txt", "a cat"), encode("json", {"a": None})
    (b'7', b'a cat', b'{"a":null}')
    >>> bytes(encode("npy", np.arange(3))[:6])
    b'\\x93NUMPY'
    """
    if isinstance(value, (bytes, bytearray)):
        return value
    if isinstance(value, memoryview):
        return flatten(value, "bytes")
    suffix = field.rpartition(".")[2].lower()
    encoder, accepted = ENCODERS.get(suffix, (encode_text, "str"))
    payload = encoder(value, suffix)
    if payload is None:
        try:
            payload = view_buffer(value, accepted)
        except TypeError as error:
            raise TypeError(f"{error}{advise(field, suffix, value)}") from None
    return payload


def advise(field: str, suffix: str, value: object) -> str:
    """Return advice on the fields that store a value."""
    kind = type(value).__name__
    if suffix in ENCODERS and not (ENCODERS[suffix][0] is encode_int and kind in WHERE):
        return ""
    name = WHERE.get(kind)
    return f"; a field {name!r} or '{field}.{name}' stores it" if name else ""


def view_buffer(value: object, accepted: str) -> memoryview:
    """Return the bytes of a buffer, such as an mmap or an array of uint8."""
    kind = type(value).__name__
    accepted = f"{accepted}, or bytes" if accepted else "bytes"
    try:
        view = memoryview(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"expected {accepted}, got {kind}") from None
    if view.ndim != 1:
        raise TypeError(f"expected {accepted}, got {kind} of {view.ndim} dimensions")
    return flatten(view, accepted)


def flatten(view: memoryview, accepted: str) -> memoryview:
    """Return a view as plain bytes; copy it only if it is not contiguous."""
    if view.itemsize != 1 or view.format not in ("B", "b", "c"):
        raise TypeError(f'expected {accepted}, got a buffer of "{view.format}"')
    if view.format == "B" and view.ndim == 1 and view.c_contiguous:
        return view
    if not view.c_contiguous or not view.nbytes:
        return memoryview(view.tobytes())
    return view.cast("B")


# Each encoder returns None for a value whose type it does not accept.


def encode_text(value: object, suffix: str) -> Payload | None:
    return value.encode() if isinstance(value, str) else None


def encode_int(value: object, suffix: str) -> Payload | None:
    if isinstance(value, str):
        return value.encode()
    try:
        return b"%d" % operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


to_json = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":")
).encode


def encode_json(value: object, suffix: str) -> Payload | None:
    if isinstance(value, str):  # JSON text, as it is for WebDataset
        try:
            parse_json(value, "<str>", depth=None, surrogates=True, limit=len(value))
        except FormatError as error:
            raise ValueError(
                f"a str must be JSON text; to store a string, encode it: {error.reason}"
            ) from None
        return value.encode()
    return to_json(value).encode()


def encode_npy(value: object, suffix: str) -> Payload | None:
    import io

    import numpy as np

    if not isinstance(value, (np.ndarray, np.generic)):
        return None
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError("expected an array without a mask: npy stores no masks")
    array: NDArray[Any] = np.asanyarray(value)
    reason = explain_unnamed(array.dtype)
    if reason is not None:
        raise ValueError(reason)
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, allow_pickle=False)
    return stream.getbuffer()


def encode_npz(value: object, suffix: str) -> Payload | None:
    import io
    import zipfile

    if not isinstance(value, Mapping):
        return None
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:  # uncompressed, so that it is mapped
        for name, array in value.items():
            try:
                data = encode_npy(array, "npy") if isinstance(name, str) else None
            except ValueError as error:
                raise ValueError(f"array {name!r}: {error}") from error
            if data is None:
                raise TypeError("expected arrays by name: a mapping of str to ndarray")
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", EPOCH), data)
    return stream.getbuffer()


IMAGES: dict[str, tuple[str, dict[str, Any]]] = {  # Pillow's format and options
    "jpg": ("JPEG", {"quality": 100}),
    "jpeg": ("JPEG", {"quality": 100}),
    "png": ("PNG", {}),
    "webp": ("WEBP", {"lossless": True, "exact": True}),
    "bmp": ("BMP", {}),
    "ppm": ("PPM", {}),
    "pnm": ("PPM", {}),
    "tif": ("TIFF", {}),
    "tiff": ("TIFF", {}),
}


def encode_image(value: object, suffix: str) -> Payload | None:
    import io
    import sys

    numpy, pillow = sys.modules.get("numpy"), sys.modules.get("PIL.Image")
    is_array = numpy is not None and isinstance(value, numpy.ndarray)
    if is_array and value.ndim in (2, 3):  # type: ignore[attr-defined]
        value = make_image(value)
    elif pillow is None or not isinstance(value, pillow.Image):
        return None
    name, options = IMAGES[suffix]
    stream = io.BytesIO()
    value.save(stream, format=name, **options)  # type: ignore[attr-defined]
    return stream.getbuffer()


def make_image(array: Any) -> object:
    """Return an image of an array [rows, columns] or [rows, columns, channels]."""
    need = "Pillow is needed to encode this field"
    pillow = import_library("PIL.Image", need, "'fastshard[images]'")
    if array.dtype != "u1":
        raise TypeError(f"expected an image of uint8, got {array.dtype}")
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim == 3 and array.shape[2] not in (3, 4):
        raise ValueError(f"expected 1, 3 or 4 channels, got {array.shape[2]}")
    return pillow.fromarray(array)


def encode_msgpack(value: object, suffix: str) -> Payload | None:
    if isinstance(value, str):
        return None
    need = "msgpack is needed to encode this field"
    msgpack = import_library("msgpack", need, "'fastshard[msgpack]'")
    packed: bytes = msgpack.packb(value)
    return packed


def accept_bytes_only(value: object, suffix: str) -> Payload | None:
    return None


WHERE = {  # a field for values of common types
    "int": "cls",
    "int64": "cls",
    "float": "json",
    "dict": "json",
    "list": "json",
    "ndarray": "npy",
}

Encoder = Callable[[object, str], "Payload | None"]

ENCODERS: dict[str, tuple[Encoder, str]] = {  # and the accepted types, for errors
    suffix: (encoder, accepted)
    for suffixes, encoder, accepted in [
        ("txt text transcript html htm", encode_text, "str"),
        ("cls cls2 class count index inx id", encode_int, "int or str"),
        ("json jsn", encode_json, "a JSON value"),
        ("npy", encode_npy, "an array"),
        ("npz", encode_npz, "arrays by name"),
        ("mp msgpack msg", encode_msgpack, "a msgpack value other than str"),
        (" ".join(IMAGES), encode_image, "a Pillow image or an array of uint8"),
        ("pyd pickle pkl pth pt gz", accept_bytes_only, ""),
    ]
    for suffix in suffixes.split()
}
