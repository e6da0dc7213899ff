"""Layouts of fields in memory, by which batches stack them without decoding."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

__all__ = ["ARRAY", "NPY", "VALUE", "FieldLayout"]


class FieldLayout(NamedTuple):
    """Layout of a field's stored bytes, as its format knows it.

    Attributes
    ----------
    kind : {"npy", "raw", "array", "value"}
        ``"npy"``: an ``.npy`` file. ``"raw"``: the values alone, of `dtype` and
        `shape`. ``"array"``: a header of the format's own, which `Sample.array`
        reads. ``"value"``: bytes that a decoder turns into a value.
    dtype : dtype-like, optional
    shape : tuple of int, optional
        Of raw values.
    """

    kind: Literal["npy", "raw", "array", "value"]
    dtype: Any = None
    shape: tuple[int, ...] | None = None


NPY = FieldLayout("npy")
ARRAY = FieldLayout("array")
VALUE = FieldLayout("value")
