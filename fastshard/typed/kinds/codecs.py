"""Encodings of values of other libraries, which are imported when one is met."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from fastshard.errors import MissingLibraryError
from fastshard.typed.kinds.annotations import library_format

__all__ = ["decode", "encode", "format_of"]

# By format: what must be installed.
LIBRARIES = {
    "arrow_tensor": "pyarrow",
    "dataframe": "pandas pyarrow",
    "safetensors": "safetensors",
    "sparse": "scipy",
    "structured": "numpy",
}


def codec_of(name: str) -> Any:
    """Import the module that encodes a format.

    Raises
    ------
    MissingLibraryError
        Its library is not installed.
    """
    libraries = LIBRARIES[name]
    try:
        return import_module(f"fastshard.typed.kinds.{name}")
    except ImportError as error:
        raise MissingLibraryError(
            f"fields of the format {name!r} need {' and '.join(libraries.split())}: "
            f"pip install {libraries} ({error})"
        ) from error


def encode(name: str, value: object) -> bytes:
    """Return the bytes of a value in a format.

    Parameters
    ----------
    name : str
        arrow_tensor, dataframe, safetensors, sparse or structured.
    value : object

    Returns
    -------
    bytes

    Raises
    ------
    TypeError
        The value is not of the format's type.
    MissingLibraryError
        The format's library is not installed.
    """
    data: bytes = codec_of(name).encode(value)
    return data


def decode(name: str, data: bytes) -> Any:
    """Return the value of bytes in a format; the errors are those of its library.

    Parameters
    ----------
    name : str
    data : bytes

    Returns
    -------
    object

    Raises
    ------
    MissingLibraryError
        The format's library is not installed.
    """
    return codec_of(name).decode(data)


def format_of(value: object) -> str | None:
    """Return the format in which a value is written by itself, without importing.

    Parameters
    ----------
    value : object

    Returns
    -------
    str or None
        None for values that msgpack has, and for arrays.
    """
    found = map(library_format, type(value).__mro__)
    return next(filter(None, found), None)
