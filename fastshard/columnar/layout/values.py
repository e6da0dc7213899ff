"""Encoding of arrays as ``.npy`` members, and of metadata as JSON."""

from __future__ import annotations

import io
import json
import sqlite3
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib import format as npy

from fastshard._core.parse.json import encode_flat
from fastshard._util.json import parse_value
from fastshard._util.writing.dtypes import explain_unnamed
from fastshard.columnar.layout.headers import MAX_HEADER
from fastshard.columnar.layout.packs import MAX_ROW_BYTES, MAX_ROWS

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer

__all__ = [
    "VERSION_1",
    "encode_array",
    "encode_header",
    "encode_metadata",
    "encode_object",
    "encode_pack",
    "encode_row",
]


MAX_BRACKETS = 400  # in JSON whose nesting SQLite need not check
VERSION_1 = b"\x93NUMPY\x01\x00"  # the beginning of an .npy header
MAX_METADATA = 63 << 20  # bytes; readers take rows of 64 MiB

_encoder = json.JSONEncoder(allow_nan=False, check_circular=False)


def _make_encode() -> Callable[[object], str]:
    """Return a faster `JSONEncoder.encode`.

    `JSONEncoder.encode` spends half of its time on objects that it makes anew for each
    text.
    """
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # not CPython
        return _encoder.encode
    escape = json.encoder.encode_basestring_ascii
    separators = _encoder.key_separator, _encoder.item_separator
    # No check for cycles, no indent; keys neither sorted nor skipped; NaN refused.
    parts = make(None, _encoder.default, escape, None, *separators, False, False, False)
    return lambda metadata: "".join(parts(metadata, 0))


_encode_json = _make_encode()


def encode_array(value: Any) -> tuple[bytes, Buffer]:
    """Return the ``.npy`` header and the data of an array, as `np.save` writes them."""
    array = _as_array(value)
    if array.dtype.hasobject:
        raise ValueError(
            f"the array holds Python objects (dtype {array.dtype}), which are stored "
            "only with allow_pickle=True"
        )
    fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    # A structured dtype is mutable: not a key of the cache.
    encode = _cached_header if array.dtype.names is None else encode_header
    header = encode(array.dtype, array.shape, fortran)
    # A Fortran-ordered array is stored as its transpose, which is C-ordered.
    ordered = array.T if fortran else array
    if ordered.flags.c_contiguous:
        try:
            memoryview(ordered)  # type: ignore[arg-type]
        except ValueError:  # a dtype without a buffer format, as datetime64
            pass
        else:
            return header, ordered  # type: ignore[return-value]
    return header, ordered.tobytes("C")


def encode_object(value: Any) -> tuple[bytes, Buffer]:
    """Return header and data as `encode_array` does; pickle arrays of Python objects.

    A pickled array is all data, after an empty header.
    """
    array = _as_array(value)
    if not array.dtype.hasobject:
        return encode_array(array)
    data = io.BytesIO()
    try:
        np.save(data, array, allow_pickle=True)
    except Exception as error:
        raise ValueError(f"the array cannot be pickled: {error}") from error
    return b"", data.getbuffer()


def encode_row(value: Any) -> tuple[bytes, Any]:
    """Return the header of a pack for an array, and the array in C order."""
    array = _as_array(value)
    flags = array.flags
    if (
        array.dtype.hasobject
        or not 0 < array.nbytes <= MAX_ROW_BYTES
        or (flags.f_contiguous and not flags.c_contiguous)
    ):
        return b"", array
    encode = _cached_pack if array.dtype.names is None else encode_pack
    header = encode(array.dtype, array.shape)
    return header, array if flags.c_contiguous else array.copy("C")


def encode_pack(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return the header of a pack of `MAX_ROWS` rows; None if no pack may have it."""
    header = encode_header(dtype, (MAX_ROWS, *shape), False)
    return header if header.startswith(VERSION_1) else b""


def _as_array(value: Any) -> NDArray[Any]:
    if type(value) is np.ndarray:
        return value
    if isinstance(value, np.ma.MaskedArray):
        raise ValueError(
            "a masked array would lose its mask: store its data and mask as two fields"
        )
    try:
        return np.asarray(value)
    except Exception as error:
        kind = type(value).__name__
        raise ValueError(f"a field must be an array, got {kind}: {error}") from error


def encode_header(dtype: np.dtype[Any], shape: tuple[int, ...], fortran: bool) -> bytes:
    """Return the header of an array, from the magic string on."""
    header = _write_header(dtype, shape, fortran)
    if len(header) > MAX_HEADER:
        raise ValueError(
            f"the header of an array must have at most {MAX_HEADER:,} bytes, got "
            f"{len(header):,}: simplify its dtype"
        )
    return header


def _write_header(dtype: np.dtype[Any], shape: tuple[int, ...], fortran: bool) -> bytes:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # on dtypes' metadata, versions
        reason = explain_unnamed(dtype)
        if reason is not None:
            raise ValueError(reason)
        descr = npy.dtype_to_descr(dtype)
        fields = {"descr": descr, "fortran_order": fortran, "shape": shape}
        for write in (npy.write_array_header_1_0, npy.write_array_header_2_0):
            header = io.BytesIO()
            try:
                write(header, fields)
            except ValueError:  # too long, or names outside Latin-1
                continue
            return header.getvalue()
        return _capture_header(np.empty(shape, dtype, order="F" if fortran else "C"))


_cached_header = lru_cache(maxsize=4096)(encode_header)
_cached_pack = lru_cache(maxsize=4096)(encode_pack)


def _capture_header(array: NDArray[Any]) -> bytes:
    """Return the header that NumPy chooses itself, without reading the array."""
    file = _HeaderFile()
    with suppress(_HeaderCompleteError):
        npy.write_array(file, array, allow_pickle=False)
    return file.header


class _HeaderCompleteError(Exception):
    """The header was written, and NumPy continues to the data."""


class _HeaderFile:
    """File that accepts one write: NumPy's, of the header."""

    header = b""

    def write(self, data: bytes) -> None:
        if self.header:
            raise _HeaderCompleteError
        self.header = data


def encode_metadata(
    metadata: object, sample_id: str | None, conn: sqlite3.Connection
) -> str:
    """Return metadata as JSON, for the index."""
    if metadata is None:
        return "{}"
    if type(metadata) is dict:
        flat = encode_flat(metadata)
        if flat is not None:
            return flat
    if not isinstance(metadata, dict):
        if not isinstance(metadata, Mapping):
            kind = type(metadata).__name__
            raise TypeError(f"metadata must be a mapping or None, got {kind}")
        metadata = dict(metadata)
    try:
        text = _encode_json(metadata)
        collides = not _are_all_str(metadata) and (
            len(parse_value(text, "<metadata>")) < len(metadata)
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"the metadata{_of_sample(sample_id)} cannot be JSON: {error}{_hint(error)}"
        ) from error
    if collides:
        raise ValueError(
            f"the metadata{_of_sample(sample_id)} has keys that are equal as JSON"
        )
    if len(text) > MAX_METADATA:
        raise ValueError(
            f"the metadata{_of_sample(sample_id)} must have at most {MAX_METADATA:,} "
            f"bytes as JSON, got {len(text):,}"
        )
    if (
        len(text) > MAX_BRACKETS
        and text.count("[") + text.count("{") > MAX_BRACKETS
        and not conn.execute("SELECT json_valid(?)", (text,)).fetchone()[0]
    ):
        raise ValueError(
            f"the metadata{_of_sample(sample_id)} nests too deeply for SQLite"
        )
    return text


def _of_sample(sample_id: str | None) -> str:
    return "" if sample_id is None else f" of sample {sample_id!r:.200}"


def _hint(error: Exception) -> str:
    """Return advice on how to convert an object of NumPy."""
    kind = str(error).removeprefix("Object of type ").partition(" ")[0]
    if kind == "ndarray":
        return "; convert an array by .tolist()"
    found = getattr(np, kind, None)
    if not (isinstance(found, type) and issubclass(found, np.generic)):
        return ""
    return "; convert a NumPy scalar by .item()"


def _are_all_str(keys: Iterable[object]) -> bool:
    try:
        "".join(keys)  # type: ignore[arg-type]  # the fastest check
    except TypeError:
        return False
    return True
