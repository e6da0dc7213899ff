"""Dtypes that ``.npy`` cannot describe, and plain replacements."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

__all__ = ["explain_unnamed", "suggest_plain"]


def explain_unnamed(dtype: np.dtype[Any]) -> str | None:
    """Return why ``.npy`` does not restore an array, and a way out."""
    if dtype.isbuiltin == 1 and not dtype.hasobject:  # numbers in native byte order
        return None
    # A structured dtype is mutable: not a key of the cache.
    return _explain(dtype) if dtype.names is not None else _cached_explain(dtype)


def suggest_plain(dtype: np.dtype[Any]) -> str:
    """Return an expression that converts an ``array`` to a plain dtype."""
    if dtype.names is not None:
        return f"its fields one by one, as array[{next(iter(dtype.names), '')!r}]"
    if dtype.kind == "T":
        return "text of a fixed width, array.astype('U')"
    if dtype.kind in "OSU":
        return "a list, array.tolist(), or numbers, array.astype(float)"
    if dtype.kind in "mM":
        return "int64, array.astype('int64')"
    if dtype.kind == "c" and dtype.itemsize <= 16:
        name = f"float{4 * dtype.itemsize}"
        return f"{name}, array.view({name!r})"
    if not dtype.isnative:
        name = dtype.newbyteorder("=").name
        return f"{name}, array.astype({name!r})"
    raw = f"uint{8 * dtype.itemsize if dtype.itemsize in (2, 4, 8) else 8}"
    return f"{raw}, array.view({raw!r})"


def _explain(dtype: np.dtype[Any]) -> str | None:
    leaf = _find_unnamed(dtype)
    if leaf is None:
        if _comes_back(dtype):
            return None
        leaf = dtype
    if leaf.kind == "O":
        return (
            f"object-dtype arrays need pickle, got {dtype}: "
            f"store it as {suggest_plain(dtype)}"
        )
    part = "" if leaf is dtype else f", a part of {dtype}"
    return f"npy has no name for {leaf}{part}: store it as {suggest_plain(dtype)}"


_cached_explain = lru_cache(maxsize=256)(_explain)


def _find_unnamed(dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    """Return the part of a dtype that ``.npy`` cannot describe, or None."""
    import numpy as np

    if dtype.subdtype is not None:
        return _find_unnamed(dtype.base)
    if dtype.names is not None:
        parts = (_find_unnamed(dtype[name]) for name in dtype.names)
        return next((part for part in parts if part is not None), None)
    try:
        is_named = np.dtype(dtype.str) == dtype and dtype.kind not in "OT"
    except TypeError:  # '<f1', of a float8 of ml_dtypes
        is_named = False
    return None if is_named else dtype


def _comes_back(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype with named parts survives its description."""
    from numpy.lib import format as npy

    try:
        return bool(npy.descr_to_dtype(npy.dtype_to_descr(dtype)) == dtype)
    except (TypeError, ValueError):  # fields that overlap, or are out of order
        return False
