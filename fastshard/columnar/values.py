"""Encoding of arrays as members, and of objects as pickles."""

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

from fastshard.columnar.headers import MAX_HEADER

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer

__all__ = [
    "encode_array",
    "encode_metadata",
    "encode_object",
]


DEEP = 400  # brackets in a text from which on it is asked how deep they nest

MAX_METADATA = 63 << 20  # bytes; readers take rows of 64 MiB

_encoder = json.JSONEncoder(allow_nan=False, check_circular=False)


def _text_maker() -> Callable[[object], str]:
    """Return `JSONEncoder.encode`, less what it makes anew for each text.

    That takes half of its time.
    """
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # another Python
        return _encoder.encode
    escape = json.encoder.encode_basestring_ascii
    separators = _encoder.key_separator, _encoder.item_separator
    # No circles are looked for, no indent; keys are neither sorted nor passed over;
    # no NaN.
    parts = make(None, _encoder.default, escape, None, *separators, False, False, False)
    return lambda metadata: "".join(parts(metadata, 0))


_json = _text_maker()


def encode_array(value: Any) -> tuple[bytes, Buffer]:
    """Return the ``.npy`` header and the data of an array, as `np.save` writes them.

    Parameters
    ----------
    value : array_like

    Returns
    -------
    header : bytes
        64 bytes or a multiple of that, so that the data is aligned.
    data : bytes-like
        C-contiguous; the array itself where that is possible.

    Raises
    ------
    ValueError
        It is no array, or one that holds Python objects, or one of a dtype that
        ``.npy`` would turn into another.
    """
    array = _as_array(value)
    if array.dtype.hasobject:
        raise ValueError(
            f"the array holds Python objects (dtype {array.dtype}), which are stored "
            "only with allow_pickle=True"
        )
    fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    # A dtype of several parts can change: it is no key.
    header_of = _header if array.dtype.names is None else _new_header
    header = header_of(array.dtype, array.shape, fortran)
    # What stands in the file in C order: of a Fortran array its transpose does.
    straight = array.T if fortran else array
    if straight.flags.c_contiguous:
        try:
            memoryview(straight)  # type: ignore[arg-type]
        except ValueError:  # a dtype without a buffer format: datetime64
            pass
        else:
            return header, straight  # type: ignore[return-value]
    return header, straight.tobytes("C")


def encode_object(value: Any) -> tuple[bytes, Buffer]:
    """Do the same, and pickle arrays of Python objects.

    Raises
    ------
    ValueError
        As for `encode_array`; or it cannot be pickled.
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


def _as_array(value: Any) -> NDArray[Any]:
    if type(value) is np.ndarray:
        return value
    if isinstance(value, np.ma.MaskedArray):
        raise ValueError("a masked array would lose its mask: store it as a field too")
    try:
        return np.asarray(value)
    except Exception as error:
        raise ValueError(f"{type(value).__name__} is no array: {error}") from error


def _new_header(dtype: np.dtype[Any], shape: tuple[int, ...], fortran: bool) -> bytes:
    """Return what stands before an array's data; magic and version included."""
    header = _any_header(dtype, shape, fortran)
    if len(header) > MAX_HEADER:
        raise ValueError(f"its dtype takes {len(header):,} bytes to say: too many")
    return header


def _any_header(dtype: np.dtype[Any], shape: tuple[int, ...], fortran: bool) -> bytes:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # metadata of dtypes, versions
        descr = npy.dtype_to_descr(dtype)
        if npy.descr_to_dtype(descr) != dtype:
            raise ValueError(
                f"an array of dtype {dtype} would be read as {descr}: "
                "store a view of it"
            )
        fields = {"descr": descr, "fortran_order": fortran, "shape": shape}
        for write in (npy.write_array_header_1_0, npy.write_array_header_2_0):
            header = io.BytesIO()
            try:
                write(header, fields)
            except ValueError:  # too long; or names that are not Latin-1
                continue
            return header.getvalue()
        return _first_write(np.empty(shape, dtype, order="F" if fortran else "C"))


_header = lru_cache(maxsize=4096)(_new_header)


def _first_write(array: NDArray[Any]) -> bytes:
    """Return the header that NumPy chooses itself. The array's memory is not used."""
    first = _First()
    with suppress(_EnoughError):
        npy.write_array(first, array, allow_pickle=False)
    return first.data


class _EnoughError(Exception):
    pass


class _First:
    """A file that takes one write."""

    data = b""

    def write(self, data: bytes) -> None:
        if self.data:
            raise _EnoughError
        self.data = data


def encode_metadata(
    metadata: object, sample_id: str | None, conn: sqlite3.Connection
) -> str:
    """Return metadata as the JSON text that the index keeps.

    Parameters
    ----------
    metadata : mapping or None
    sample_id : str or None
        Whose, for errors.
    conn : sqlite3.Connection
        It is asked whether it can read a text that nests deeply.

    Raises
    ------
    ValueError
        JSON cannot say it: it has a NaN, an object of another type, a circle; or
        two of its own keys would be one.
    TypeError
        It is no mapping.
    """
    if metadata is None:
        return "{}"
    if not isinstance(metadata, dict):
        if not isinstance(metadata, Mapping):
            kind = type(metadata).__name__
            raise TypeError(f"metadata is a mapping or None, not {kind}")
        metadata = dict(metadata)
    try:
        text = _json(metadata)
        collides = not _are_texts(metadata) and len(json.loads(text)) < len(metadata)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"the metadata{_of(sample_id)} is no JSON: {error}{_hint(error)}"
        ) from error
    if collides:
        raise ValueError(f"the metadata{_of(sample_id)} has keys that are one in JSON")
    if len(text) > MAX_METADATA:
        raise ValueError(
            f"the metadata{_of(sample_id)} is JSON of {len(text):,} bytes: at most "
            f"{MAX_METADATA:,}"
        )
    if (
        len(text) > DEEP
        and text.count("[") + text.count("{") > DEEP
        and not conn.execute("SELECT json_valid(?)", (text,)).fetchone()[0]
    ):
        raise ValueError(
            f"the metadata{_of(sample_id)} nests too deeply for SQLite to read"
        )
    return text


def _of(sample_id: str | None) -> str:
    return "" if sample_id is None else f" of sample {sample_id!r:.200}"


def _hint(error: Exception) -> str:
    """Say what to do about an object of NumPy."""
    kind = str(error).removeprefix("Object of type ").partition(" ")[0]
    if kind == "ndarray":
        return "; .tolist() makes a list of an array"
    found = getattr(np, kind, None)
    if not (isinstance(found, type) and issubclass(found, np.generic)):
        return ""
    return "; .item() makes a number of Python's of one of NumPy's"


def _are_texts(keys: Iterable[object]) -> bool:
    try:
        "".join(keys)  # type: ignore[arg-type]  # which looks at them, and is fast
    except TypeError:
        return False
    return True
