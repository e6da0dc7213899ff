"""Memory layouts of fields, which let batches stack them without decoding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

__all__ = ["ARRAY", "NPY", "VALUE", "Allocate", "FieldLayout"]

# ``allocate(field, shape, dtype)`` returns a writable C-contiguous array.
Allocate = Callable[[str, tuple[int, ...], Any], Any]


class FieldLayout(NamedTuple):
    """Layout of a field's stored bytes.

    Attributes
    ----------
    kind : {"npy", "raw", "array", "value"}
        ``"npy"``: an ``.npy`` file. ``"raw"``: array elements without a header, of
        `dtype` and `shape`. ``"array"``: an array behind a header of the format, which
        alone determines its dtype and shape; `Shard.array` reads it. ``"value"``: bytes
        for a decoder.
    dtype : dtype-like, optional
        Of a raw field.
    shape : tuple of int, optional
        Of a raw field.
    """

    kind: Literal["npy", "raw", "array", "value"]
    dtype: Any = None
    shape: tuple[int, ...] | None = None


NPY = FieldLayout("npy")
ARRAY = FieldLayout("array")
VALUE = FieldLayout("value")
